//! Each page that the program may write counts once (`commit`), from the call that opens it until it is unmapped:
//!
//! ```text
//! counted = mapped (Mm::maps) without closed (the set here)
//! ```
//!
//! Closed is what was mapped without being counted: reserved, read-only, or something else's. mprotect counts what it opens of that; what is
//! open and is closed by mprotect stays counted, for its content stays. A page that is in neither set counts when it is opened: nobody saw
//! how it was mapped. malloc counts what it uses of its memory by itself.
//!
//! Memory that mremap moves is as open at its new place as it was. What finds no room in the set counts as if it were open.
//!
//! # Safety
//! The set is used by who holds the lock of `Mm::maps`.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;

use farpage_core::range_map::{Range, RangeMap};

use crate::mm::Mm;
use crate::range_set::{carry, parts};
use crate::sys;

struct Shared(UnsafeCell<RangeMap<'static>>);

// SAFETY: used by who holds a lock, as the file's note says.
unsafe impl Sync for Shared {}

static CLOSED: Shared = Shared(UnsafeCell::new(RangeMap::new(&mut [])));

/// The process begins, with nothing mapped and room for so many ranges.
pub fn begin(mm: &Mm, entries: &'static mut [Range]) {
    locked(mm, |_, closed| *closed = RangeMap::new(entries));
}

/// Runs `f` on what is mapped and what of it is closed. Signals are blocked.
fn locked<R>(mm: &Mm, f: impl FnOnce(&mut RangeMap<'static>, &mut RangeMap<'static>) -> R) -> Option<R> {
    let mut guard = mm.maps.lock();
    let maps = guard.as_mut()?;
    // SAFETY: the lock is held, and nothing that is called in it takes it again.
    let closed = unsafe { &mut *CLOSED.0.get() };
    Some(f(maps, closed))
}

/// In a child forked while dormant, whose counts begin with none: all that it has inherited is closed. (Another thread may have been in the
/// middle of a change.) One forked while active has its parent's counts, and so its set.
pub fn begin_anew(mm: &Mm) {
    let mask = sys::block_signals();
    locked(mm, |maps, closed| {
        closed.clear();
        maps.iter().for_each(|range| {
            let _ = closed.insert(range.start, range.end);
        });
    });
    sys::set_mask(mask);
}

/// How many of pages `lo..hi` would count more if all could be written. Signals need not be blocked.
pub(super) fn uncounted(mm: &Mm, lo: u64, hi: u64) -> u64 {
    let mask = sys::block_signals();
    let counted = locked(mm, |maps, closed| counted(maps, closed, lo, hi));
    sys::set_mask(mask);
    hi - lo - counted.unwrap_or(0)
}

/// Pages `lo..hi` are mapped, and may be written; how many of them did not count before. Signals are blocked, as for what follows.
pub(super) fn open(mm: &Mm, lo: u64, hi: u64) -> u64 {
    let fresh = locked(mm, |maps, closed| {
        let before = counted(maps, closed, lo, hi);
        // What can't be noted counts once more when it is opened again.
        let _ = maps.insert(lo, hi);
        let _ = closed.remove(lo, hi);
        hi - lo - before
    });
    fresh.unwrap_or(hi - lo)
}

/// Pages `lo..hi` are mapped anew, and do not count; how many of them did before (negative: so many do, for want of room).
pub(super) fn close(mm: &Mm, lo: u64, hi: u64) -> i64 {
    let fewer = locked(mm, |maps, closed| {
        let before = counted(maps, closed, lo, hi);
        let _ = maps.insert(lo, hi);
        let _ = closed.insert(lo, hi);
        before as i64 - counted(maps, closed, lo, hi) as i64
    });
    fewer.unwrap_or(0)
}

/// Pages `lo..hi` are not mapped any more; how many of them counted.
pub(super) fn leave(mm: &Mm, lo: u64, hi: u64) -> u64 {
    let fewer = locked(mm, |maps, closed| {
        let before = counted(maps, closed, lo, hi);
        // A full map keeps a range that is free: lost address space, no harm.
        if maps.remove(lo, hi).is_ok() {
            let _ = closed.remove(lo, hi);
        } else {
            let _ = closed.insert(lo, hi);
        }
        before
    });
    fewer.unwrap_or(0)
}

/// mremap has moved the mapping `from` to `to`, what is more of it at its end being open; how many pages more count now. `replaces`: what
/// was at the new place counted. `stays`: so does what was left at the old one.
pub(super) fn moved(mm: &Mm, from: Range, to: Range, replaces: bool, stays: bool) -> i64 {
    let more = locked(mm, |maps, closed| {
        let count = |maps: &RangeMap<'_>, closed: &RangeMap<'_>, of: Range| {
            counted(maps, closed, of.start, of.end) as i64
        };
        let before = count(maps, closed, from) + if replaces { count(maps, closed, to) } else { 0 };
        // What a full map keeps counts on as it did.
        let stays = stays || maps.remove(from.start, from.end).is_err();
        let _ = maps.insert(to.start, to.end);
        let _ = carry(closed, from, to, stays);
        count(maps, closed, from) + count(maps, closed, to) - before
    });
    more.unwrap_or(0)
}

fn counted(maps: &RangeMap<'_>, closed: &RangeMap<'_>, lo: u64, hi: u64) -> u64 {
    let within = |set, part: Range| -> u64 { parts(set, part.start, part.end).map(Range::pages).sum() };
    parts(maps, lo, hi)
        .map(|part| part.pages() - within(closed, part))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `f` with what is mapped and what is closed.
    fn with<R>(
        mapped: &[(u64, u64)],
        shut: &[(u64, u64)],
        f: impl FnOnce(&RangeMap<'_>, &RangeMap<'_>) -> R,
    ) -> R {
        let (mut of_maps, mut of_closed) = ([Range::EMPTY; 8], [Range::EMPTY; 8]);
        let (mut maps, mut closed) = (RangeMap::new(&mut of_maps), RangeMap::new(&mut of_closed));
        for (set, said) in [(&mut maps, mapped), (&mut closed, shut)] {
            said.iter().for_each(|(lo, hi)| set.insert(*lo, *hi).unwrap());
        }
        f(&maps, &closed)
    }

    #[test]
    fn what_is_mapped_and_open_counts() {
        let in_range = |lo, hi| {
            with(
                &[(10, 20), (30, 60)],
                &[(12, 14), (35, 40), (55, 60)],
                |maps, closed| counted(maps, closed, lo, hi),
            )
        };
        assert_eq!(in_range(0, 100), 8 + 20);
        assert_eq!([in_range(12, 14), in_range(13, 16), in_range(20, 30)], [0, 2, 0]);
        assert_eq!([in_range(11, 13), in_range(39, 41), in_range(50, 100)], [1, 1, 5]);
        assert_eq!(in_range(15, 15), 0);
    }
}
