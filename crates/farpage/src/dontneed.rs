//! MADV_DONTNEED on managed memory: content that goes at once, without I/O.
//!
//! The kernel goes first, since it may refuse (a sealed mapping), and the books follow as far as it went. With the gate held alone:
//!
//! 1. the words of resident pages are locked, so that no call pins one meanwhile;
//! 2. those that a call under way has pinned are taken out of the registration: what touches them now, the call above all, gets a
//!    page of zeros from the kernel, as it would without farpage, and no EFAULT;
//! 3. the kernel drops the range;
//! 4. pinned pages are made present where nobody has touched them, and registered again: they stay resident and pinned, as zeros;
//! 5. all others become untouched, which unlocks them.
//!
//! So a pin keeps its page, and only that: a call that never came to its end (its thread was cancelled, or left it by a jump out of
//! a handler) leaves pins for good, and DONTNEED was refused there with EINVAL for the rest of the program's life, content and all.
//!
//! # Safety
//! Raw calls here act on ranges that the program itself asked to change.
#![allow(unsafe_code)]

use farpage_core::kill_point;
use farpage_core::page_state::{Kind, PageState};

use crate::errand;
use crate::fault::{self, Outcome};
use crate::gate::Alone;
use crate::in_flight;
use crate::maps::each_mapping;
use crate::mem::{discard, each_touched};
use crate::mm::{Mm, PAGE, address};
use crate::pool::flag;
use crate::sys::{self, Errno};

/// Bytes whose content is dropped while holding the gate alone once.
const DROP_STEP: u64 = 32 << 20;
const ENOMEM: i64 = -(libc::ENOMEM as i64);

/// Drops the content of pages `lo..hi`. As in the kernel holes are passed over, with ENOMEM in the end, and anything else it finds
/// ends the call there.
pub fn drop_content(mm: &Mm, lo: u64, hi: u64) -> i64 {
    if is_pinned(mm, lo, hi) {
        // Pages of calls that have ended need not stay.
        errand::settle(mm);
        in_flight::watch_now(mm);
    }
    let mut result = 0;
    let mut page = lo;
    while page < hi {
        let end = (page + DROP_STEP / PAGE).min(hi);
        match drop_step(mm, page, end, &mm.gate.alone()) {
            0 => {}
            ENOMEM => result = ENOMEM,
            refused => return refused,
        }
        page = end;
    }
    result
}

fn is_pinned(mm: &Mm, lo: u64, hi: u64) -> bool {
    let mut found = false;
    each_touched(mm, lo, hi, |from, to| {
        found = found || (from..to).any(|page| mm.load(page).pins() != 0);
    });
    found
}

fn drop_step(mm: &Mm, lo: u64, hi: u64, alone: &Alone) -> i64 {
    let any_held = lock_resident(mm, lo, hi);
    if any_held {
        // Where the kernel has no room for that the page is away for a moment.
        each_held(mm, lo, hi, |from, to| {
            let _ = mm.uffd().unregister(address(from), (to - from) * PAGE);
        });
    }
    let result = dropped_by_kernel(lo, hi);
    kill_point!("dontneed-dropped");
    let end = match result {
        0 | ENOMEM => hi,
        _ => end_of_dropped(lo, hi),
    };
    let mut at = lo;
    if any_held {
        each_held(mm, lo, end, |from, to| {
            discard(mm, at, from, alone);
            refill(mm, from, to);
            at = to;
        });
        each_held(mm, end, hi, |from, to| register(mm, from, to));
    }
    discard(mm, at, end, alone);
    each_locked(mm, end, hi, |page, state| mm.unlock(page, state, state));
    result
}

/// Locks the words of resident pages; true if one of them is pinned. None is locked by others, who would be inside the gate.
fn lock_resident(mm: &Mm, lo: u64, hi: u64) -> bool {
    let mut any_held = false;
    each_touched(mm, lo, hi, |from, to| {
        for page in from..to {
            // The word changes under us only where a pin comes or goes.
            loop {
                let seen = mm.load(page);
                if seen.is_locked() || seen.kind() != Kind::Resident {
                    break;
                }
                if mm.try_lock(page, seen) {
                    any_held |= seen.pins() != 0;
                    break;
                }
            }
        }
    });
    any_held
}

fn each_locked(mm: &Mm, lo: u64, hi: u64, mut f: impl FnMut(u64, PageState)) {
    each_touched(mm, lo, hi, |from, to| {
        for page in from..to {
            let state = mm.load(page);
            if state.is_locked() {
                f(page, state);
            }
        }
    });
}

/// Calls `f` with each run of pages that we have locked and somebody has pinned. Pins of a locked page don't change, so it is the
/// same runs each time.
fn each_held(mm: &Mm, lo: u64, hi: u64, mut f: impl FnMut(u64, u64)) {
    let (mut start, mut end) = (lo, lo);
    let mut run = |from, to| {
        if from < to {
            f(from, to);
        }
    };
    each_touched(mm, lo, hi, |from, to| {
        for page in from..to {
            let state = mm.load(page);
            if !state.is_locked() || state.pins() == 0 {
                continue;
            }
            if page != end {
                run(start, end);
                start = page;
            }
            end = page + 1;
        }
    });
    run(start, end);
}

fn dropped_by_kernel(lo: u64, hi: u64) -> i64 {
    let args = [address(lo), (hi - lo) * PAGE, libc::MADV_DONTNEED as u64, 0, 0, 0];
    // SAFETY: the program asked for the content to go.
    unsafe { sys::raw(libc::SYS_madvise, args) }
}

/// How far the kernel came that was refused: mapping by mapping the same once more, of which all but the last is empty already.
fn end_of_dropped(lo: u64, hi: u64) -> u64 {
    let mut done = lo;
    let _ = each_mapping(|mapping| {
        let (start, end) = (mapping.start.max(address(lo)), mapping.end.min(address(hi)));
        if start < end {
            let (from, to) = (lo + (start - address(lo)) / PAGE, lo + (end - address(lo)) / PAGE);
            sys::check(dropped_by_kernel(from, to))?;
            done = to;
        }
        Ok(())
    });
    done
}

/// Pinned pages that were dropped are there again, and ours. What the kernel has written to them meanwhile is there, too. A slot that
/// one keeps is told by its digest to hold something else.
fn refill(mm: &Mm, lo: u64, hi: u64) {
    // Where there was no room to split the mapping it is registered still: by thread that would wait for one that waits for us.
    if !mm.header().has(flag::THREAD_DELIVERY) {
        in_flight::make_present(lo, hi);
    }
    register(mm, lo, hi);
    for page in lo..hi {
        let state = mm.load(page);
        // Inaccessible memory can't be populated.
        if !fault::is_present(page) && fault::install(mm, page, mm.frames.zeros(), state) != Outcome::Done {
            stop(Errno(libc::ENOENT));
        }
        mm.unlock(page, state, state);
    }
}

fn register(mm: &Mm, lo: u64, hi: u64) {
    if let Err(errno) = mm.register(address(lo), (hi - lo) * PAGE) {
        stop(errno);
    }
}

fn stop(errno: Errno) -> ! {
    let code = sys::Num::new(errno.0 as u64, 10);
    sys::die(&[
        "farpage: memory that a system call is using was dropped and could not be registered again, errno ",
        code.text(),
        ", so the program is stopped: the process has too many mappings, or the kernel no memory (see vm.max_map_count)",
    ])
}
