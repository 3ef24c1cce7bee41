//! mlock and mincore on managed memory: what must be in RAM, and what is.
//!
//! # Safety
//! Raw calls here act on ranges that the program itself has locked.
#![allow(unsafe_code)]

use farpage_core::page_state::Kind;
use farpage_core::range_map::{Full, Range, RangeMap};

use crate::errand;
use crate::fault;
use crate::mem::{are_mapped, managed_pages};
use crate::mm::{CHUNK_PAGES, Mm, PAGE, address, mm};
use crate::pool::{MANAGED_PAGES, is_managed};
use crate::range_set::{RangeSet, first_within};
use crate::sys;

/// Pages that the program has locked.
pub static LOCKED: RangeSet = RangeSet::new();

const ENOMEM: i64 = -(libc::ENOMEM as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);

/// Whether mlock2 has these flags. The kernel refuses others before it looks at the memory.
#[must_use]
pub fn are_lock_flags(flags: i32) -> bool {
    flags & !(libc::MLOCK_ONFAULT as i32) == 0
}

/// mlock: the pages are brought in and stay. munlock lets them go again.
pub fn mlock(addr: u64, len: u64, lock: bool) -> Option<i64> {
    let mm = mm();
    let start = addr / PAGE * PAGE;
    let (lo, hi) = managed_pages(start, len + (addr - start)).filter(|_| mm.is_active())?;
    let nr = if lock { libc::SYS_mlock } else { libc::SYS_munlock };
    let _watched = match errand::call(mm, nr, [addr, len, 0, 0, 0, 0]) {
        Ok(result) => return Some(result),
        Err(watched) => watched,
    };
    if lock && !may_stay(mm, lo, hi) {
        return Some(ENOMEM);
    }
    if !are_mapped(mm, lo, hi) {
        return Some(ENOMEM);
    }
    let done = if lock {
        pin_all(mm, lo, hi)
    } else {
        unlock_all(mm, lo, hi)
    };
    Some(if done { 0 } else { ENOMEM })
}

/// munlockall, as far as it is ours.
pub fn munlock_all() {
    let mm = mm();
    if mm.is_active() && mm.is_own() {
        unlock_all(mm, 0, MANAGED_PAGES);
    }
}

/// Whether pages `lo..hi` may be kept in RAM beside all others that are locked: half the limit at most. (Six locks of a quarter each once
/// left nothing to swap out.)
fn may_stay(mm: &Mm, lo: u64, hi: u64) -> bool {
    let within = |range: Range| range.end.min(hi).saturating_sub(range.start.max(lo));
    let others = LOCKED.with(|locked| {
        locked
            .iter()
            .map(|range| range.pages() - within(range))
            .sum::<u64>()
    });
    (others.unwrap_or(0) + hi - lo) as i64 <= mm.header().last_limit() / 2
}

/// Pages `lo..hi` are more of the mapping before them: brought in to stay if its end is.
pub fn lock_growth(mm: &Mm, lo: u64, hi: u64) {
    let mask = sys::block_signals();
    let goes_on = mm.is_active() && is_locked(lo - 1);
    sys::set_mask(mask);
    if goes_on && may_stay(mm, lo, hi) {
        pin_all(mm, lo, hi);
    }
}

/// What the kernel has locked for a dormant process is kept in RAM by us from now on, if the budget allows that. The kernel's
/// own lock would split the mappings, across which pages can't be moved.
pub fn adopt_lock(mm: &Mm, lo: u64, hi: u64) {
    // SAFETY: the program's own memory, whose content stays.
    let _ = unsafe { sys::call(libc::SYS_munlock, [address(lo), (hi - lo) * PAGE, 0, 0, 0, 0]) };
    if may_stay(mm, lo, hi)
        && let Some(Ok(())) = LOCKED.with(|locked| locked.insert(lo, hi))
    {
        for page in lo..hi {
            mm.note_touched(page);
            fault::add_pin(mm, page);
        }
    }
}

/// Whether the program has locked the page. Signals are blocked.
pub fn is_locked(page: u64) -> bool {
    any_locked(page, page + 1)
}

/// Whether the program has locked a page of the range. Signals are blocked.
pub fn any_locked(lo: u64, hi: u64) -> bool {
    LOCKED
        .with_used(|locked| locked.overlaps(lo, hi))
        .unwrap_or(false)
}

/// Each page that is not locked gets a pin of its own, beside those of calls in flight.
fn pin_all(mm: &Mm, lo: u64, hi: u64) -> bool {
    (lo..hi).all(|page| {
        let is_there = lock_page(mm, page) && fault::bring_pinned(mm, page);
        if !is_there {
            // It was unmapped meanwhile, and its lock went with that; or not, if something else lies there by now.
            unlock_all(mm, page, page + 1);
        }
        is_there
    })
}

/// What came of a try.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Try {
    Done,
    Refused,
    Busy,
}

/// The page becomes one that the program has locked. False: it is not mapped, or there is no room to note it.
fn lock_page(mm: &Mm, page: u64) -> bool {
    loop {
        match try_lock_page(mm, page) {
            Try::Busy => mm.wait_unlocked(page),
            done => return done == Try::Done,
        }
    }
}

/// A locked page and its pin come at once: a munlock of another thread that found the one without the other took the pin of a call in flight,
/// and left this one for good.
fn try_lock_page(mm: &Mm, page: u64) -> Try {
    let note = |locked: &mut RangeMap<'_>| {
        if locked.contains(page) {
            return Try::Done;
        }
        if locked.insert(page, page + 1).is_err() {
            return Try::Refused;
        }
        if fault::try_pin(mm, page) {
            return Try::Done;
        }
        // There is room for what was there before.
        let _ = locked.remove(page, page + 1);
        Try::Busy
    };
    inside(mm, || match are_mapped(mm, page, page + 1) {
        true => LOCKED.with(note).unwrap_or(Try::Refused),
        false => Try::Refused,
    })
}

/// Runs `f` while nothing is unmapped.
fn inside<R>(mm: &Mm, f: impl FnOnce() -> R) -> R {
    let mask = sys::block_signals();
    let result = {
        let _inside = mm.gate.shared();
        f()
    };
    sys::set_mask(mask);
    result
}

/// munlock: what is unmapped and mapped anew in between has only the pins of calls. False: there is no room to note what stays locked.
fn unlock_all(mm: &Mm, lo: u64, hi: u64) -> bool {
    loop {
        match inside(mm, || unpin_some(mm, lo, hi)) {
            Ok(true) => {}
            done => return done.is_ok(),
        }
    }
}

/// Pins of calls in flight stay: munlock once took them, and a read into the page failed with EFAULT. The caller is alone inside.
pub fn unpin_all(mm: &Mm, lo: u64, hi: u64) {
    while unpin_some(mm, lo, hi) == Ok(true) {}
}

/// The first locked pages of the range, a chunk of them at most; false: there are none.
fn unpin_some(mm: &Mm, lo: u64, hi: u64) -> Result<bool, Full> {
    let take = |locked: &mut RangeMap<'_>| {
        let Some(part) = first_within(locked, lo, hi) else {
            return Ok(None);
        };
        let end = part.end.min(part.start + CHUNK_PAGES);
        locked.remove(part.start, end).map(|()| Some(part.start..end))
    };
    let taken = LOCKED.with(take).unwrap_or(Ok(None))?;
    let is_some = taken.is_some();
    taken
        .into_iter()
        .flatten()
        .for_each(|page| fault::unpin(mm, page));
    Ok(is_some)
}

/// In a forked child, which inherits no locks.
pub fn forget_locks() {
    let _ = LOCKED.with_used(RangeMap::clear);
}

/// mincore as our page states see it; `out` receives one byte a page.
pub fn mincore(addr: u64, len: u64, out: &mut dyn FnMut(u64, u8)) -> Option<i64> {
    let mm = mm();
    let (lo, hi) = managed_pages(addr, len).filter(|_| mm.is_active() && is_managed(addr))?;
    if !addr.is_multiple_of(PAGE) {
        return Some(EINVAL);
    }
    if !inside(mm, || are_mapped(mm, lo, hi)) {
        return Some(ENOMEM);
    }
    for page in lo..hi {
        out(page - lo, u8::from(mm.load(page).kind() == Kind::Resident));
    }
    Some(0)
}
