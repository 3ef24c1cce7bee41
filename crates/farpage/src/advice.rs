//! madvise on managed memory, with the kernel's own meaning.
//!
//! # Safety
//! Raw calls here act on ranges that the program itself asked to change.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering;

use farpage_core::page_state::Kind;

use crate::dontneed::drop_content;
use crate::errand;
use crate::fault;
use crate::heirs;
use crate::mem::{are_mapped, managed_pages};
use crate::mm::{Mm, PAGE, address, mm, mode};
use crate::residency;
use crate::sys::{self, Errno};

/// MADV_GUARD_INSTALL, MADV_GUARD_REMOVE.
const GUARDS: [i32; 2] = [102, 103];
const ENOMEM: i64 = -(libc::ENOMEM as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);

fn kernel(addr: u64, len: u64, advice: i32) -> i64 {
    // SAFETY: the program's own request.
    unsafe { sys::raw(libc::SYS_madvise, [addr, len, advice as u64, 0, 0, 0]) }
}

pub fn madvise(addr: u64, len: u64, advice: i32) -> i64 {
    let mm = mm();
    let Some((lo, hi)) = managed_pages(addr, len) else {
        return kernel(addr, len, advice);
    };
    // At once, from the start: what the kernel were to drop at its leisure it would drop from an active process, too, and out of the
    // books. (Programs were stopped for pages that were gone, of what they had freed while dormant.)
    let advice = match advice {
        libc::MADV_FREE => libc::MADV_DONTNEED,
        advice => advice,
    };
    let _watched = match errand::call(mm, libc::SYS_madvise, [addr, len, advice as u64, 0, 0, 0]) {
        Ok(result) => return result,
        Err(watched) => watched,
    };
    if matches!(advice, libc::MADV_HUGEPAGE | libc::MADV_NOHUGEPAGE) {
        note_huge(mm, addr, len, advice == libc::MADV_HUGEPAGE);
    }
    // A page that is swapped in or filled beside a guard would replace it: refused, as by kernels before 6.13, before the process is managed,
    // too.
    if GUARDS.contains(&advice) && mm.mode.load(Ordering::Acquire) != mode::OFF {
        return EINVAL;
    }
    // Content that goes without the books' knowledge would be missed.
    if let Some(result) = mm.while_dormant(|| kernel(addr, len, advice)) {
        return result;
    }
    if !addr.is_multiple_of(PAGE) {
        return EINVAL;
    }
    // What is mapped of a range with holes is dealt with first.
    let past_holes = |result: i64| match result {
        0 if !are_mapped(mm, lo, hi) => ENOMEM,
        result => result,
    };
    match advice {
        libc::MADV_DONTNEED if is_locked(lo, hi) => EINVAL,
        libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED => drop_content(mm, lo, hi),
        libc::MADV_WILLNEED | libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => {
            past_holes(prefetch(mm, lo, hi, advice))
        }
        libc::MADV_COLD | libc::MADV_PAGEOUT if is_locked(lo, hi) => EINVAL,
        libc::MADV_COLD | libc::MADV_PAGEOUT => past_holes(page_out(mm, lo, hi)),
        libc::MADV_DONTFORK | libc::MADV_DOFORK | libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK => {
            heirs::advise(mm, lo, hi, advice, || kernel(addr, len, advice))
        }
        // Hints about placement and dumps: recorded by nobody, harmless, and passing them on would split the
        // kernel's mappings, across which pages can't be moved.
        libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_DONTDUMP
        | libc::MADV_DODUMP
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE => past_holes(0),
        _ => kernel(addr, len, advice),
    }
}

/// Notes of pages that were the kernel's what was said before about children and about what must stay in RAM: it knows.
pub fn adopt(mm: &Mm, lo: u64, hi: u64) -> Result<(), Errno> {
    heirs::each_said_of(lo, hi, |lo, hi, said| {
        if said.locked {
            residency::adopt_lock(mm, lo, hi);
        }
        heirs::note(lo, hi, said)
    })
}

/// Notes what the program says about huge pages, before it is active too.
fn note_huge(mm: &Mm, addr: u64, len: u64, wanted: bool) {
    if mm.mode.load(Ordering::Acquire) != mode::OFF
        && mm.header().huge.load(Ordering::Relaxed) != 0
        && let Some((lo, hi)) = managed_pages(addr, len)
    {
        crate::huge_advice::note(lo, hi, wanted);
    }
}

/// Whether the program has locked one of the pages: pins tell nothing, since calls have them too.
fn is_locked(lo: u64, hi: u64) -> bool {
    let mask = sys::block_signals();
    let locked = residency::any_locked(lo, hi);
    sys::set_mask(mask);
    locked
}

/// Brings pages in, at most a quarter of the limit at a time: more would only push out what came first.
pub fn prefetch(mm: &Mm, lo: u64, hi: u64, advice: i32) -> i64 {
    let most = (mm.header().last_limit() / 4).max(64) as u64;
    let untouched_too = advice != libc::MADV_WILLNEED;
    for page in (lo..hi).take(if untouched_too { usize::MAX } else { most as usize }) {
        let kind = mm.load(page).kind();
        if kind == Kind::Resident || (kind == Kind::Untouched && !untouched_too) {
            continue;
        }
        if fault::fault(mm, page) == fault::Outcome::NotManaged {
            // A file or shared memory that lies among managed addresses is the kernel's.
            let done = kernel(address(page), PAGE, advice);
            if done < 0 {
                return done;
            }
        }
    }
    0
}

fn page_out(mm: &Mm, lo: u64, hi: u64) -> i64 {
    let mask = sys::block_signals();
    {
        let _inside = mm.gate.shared();
        crate::reclaim::page_out(mm, lo, hi);
    }
    sys::set_mask(mask);
    0
}
