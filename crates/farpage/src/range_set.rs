//! Ranges of pages about which something was said, beside the page states: in memory of the engine's own, behind a lock.
//!
//! # Safety
//! The memory is fresh, never given back, and used by its set alone.
#![allow(unsafe_code)]

use farpage_core::range_map::{Full, Range, RangeMap};

use crate::gate::{Spin, SpinGuard};
use crate::sys;

/// Most ranges of a set.
pub const RANGES_MAX: usize = 4096;

/// A set of pages, empty at first.
pub struct RangeSet(Spin<Option<RangeMap<'static>>>);

impl RangeSet {
    pub const fn new() -> Self {
        Self(Spin::new(None))
    }

    /// Held across a fork, so that the child finds no lock held by a thread it does not have.
    pub fn hold(&self) -> SpinGuard<'_, Option<RangeMap<'static>>> {
        self.0.lock()
    }

    /// Runs `f` on the set with signals blocked; `None`: there is no memory for one.
    pub fn with<R>(&self, f: impl FnOnce(&mut RangeMap<'static>) -> R) -> Option<R> {
        let mask = sys::block_signals();
        let result = {
            let mut set = self.0.lock();
            if set.is_none() {
                *set = new_map();
            }
            set.as_mut().map(f)
        };
        sys::set_mask(mask);
        result
    }

    /// Runs `f` on the set if anything was ever put into it. Signals are blocked, or the caller is alone.
    pub fn with_used<R>(&self, f: impl FnOnce(&mut RangeMap<'static>) -> R) -> Option<R> {
        self.0.lock().as_mut().map(f)
    }

    /// Pages `lo..hi` are unmapped: nothing was said about what comes there later.
    pub fn forget(&self, lo: u64, hi: u64) {
        let _ = self.with_used(|set| set.remove(lo, hi));
    }

    /// See [`carry`].
    pub fn moved(&self, from: Range, to: Range, stays: bool) {
        let _ = self.with_used(|set| carry(set, from, to, stays));
    }

    /// See [`go_on`].
    pub fn grown(&self, lo: u64, hi: u64) {
        let _ = self.with_used(|set| go_on(set, lo, hi));
    }
}

/// The mapping at `from` moves to `to`, as far as that reaches, and what was said about it goes with it; where it `stays`, the
/// place that it leaves keeps it too.
pub fn carry(set: &mut RangeMap<'_>, from: Range, to: Range, stays: bool) -> Result<(), Full> {
    set.remove(to.start, to.end)?;
    let end = from.end.min(from.start + (to.end - to.start));
    let mut at = from.start;
    while let Some(part) = first_within(set, at, end) {
        let [start, end] = [part.start, part.end].map(|page| to.start + (page - from.start));
        // What finds no room is forgotten; at the old place it would be said of another mapping.
        let _ = set.insert(start, end);
        at = part.end;
    }
    if stays {
        Ok(())
    } else {
        set.remove(from.start, from.end)
    }
}

/// Pages `lo..hi` are more of the mapping before them: what was said about its end goes on.
pub fn go_on(set: &mut RangeMap<'_>, lo: u64, hi: u64) -> Result<(), Full> {
    if set.contains(lo - 1) {
        set.insert(lo, hi)
    } else {
        Ok(())
    }
}

/// The parts of the set in `lo..hi`, none of them empty.
pub fn parts<'a>(set: &'a RangeMap<'_>, lo: u64, hi: u64) -> impl Iterator<Item = Range> + 'a {
    let from = set.ranges().partition_point(|range| range.end <= lo);
    let rest = set.ranges().iter().skip(from);
    rest.map(move |range| Range {
        start: range.start.max(lo),
        end: range.end.min(hi),
    })
    .take_while(|part| part.start < part.end)
}

/// The first of them.
pub fn first_within(set: &RangeMap<'_>, lo: u64, hi: u64) -> Option<Range> {
    parts(set, lo, hi).next()
}

/// An empty set in memory of its own; `None`: there is none.
pub fn new_map() -> Option<RangeMap<'static>> {
    let memory = sys::engine_memory((RANGES_MAX * size_of::<Range>()) as u64).ok()?;
    // SAFETY: fresh zeroed memory of that size, never given back.
    let entries = unsafe { core::slice::from_raw_parts_mut(memory as *mut Range, RANGES_MAX) };
    Some(RangeMap::new(entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(said: &[(u64, u64)], f: impl FnOnce(&mut RangeMap<'_>) -> Result<(), Full>) -> Vec<(u64, u64)> {
        let mut entries = [Range { start: 0, end: 0 }; 16];
        let mut set = RangeMap::new(&mut entries);
        for (lo, hi) in said {
            set.insert(*lo, *hi).unwrap();
        }
        f(&mut set).unwrap();
        set.iter().map(|range| (range.start, range.end)).collect()
    }

    fn range(start: u64, end: u64) -> Range {
        Range { start, end }
    }

    #[test]
    fn what_was_said_moves_with_the_mapping_and_no_further() {
        let said = [(8, 12), (15, 20), (105, 107), (110, 130)];
        let moved = |to, stays| after(&said, |set| carry(set, range(10, 20), to, stays));
        assert_eq!(moved(range(100, 110), false), [(8, 10), (100, 102), (105, 130)]);
        // Shrunk: what lies behind the target is another's.
        assert_eq!(
            moved(range(100, 106), false),
            [(8, 10), (100, 102), (105, 107), (110, 130)]
        );
        assert_eq!(
            moved(range(200, 206), true),
            [(8, 12), (15, 20), (105, 107), (110, 130), (200, 202), (205, 206)]
        );
    }

    #[test]
    fn parts_lie_within() {
        let mut entries = [Range::EMPTY; 4];
        let mut set = RangeMap::new(&mut entries);
        for (lo, hi) in [(8, 12), (15, 20), (30, 40)] {
            set.insert(lo, hi).unwrap();
        }
        let within = |lo, hi| parts(&set, lo, hi).collect::<Vec<_>>();
        assert_eq!(within(10, 35), [range(10, 12), range(15, 20), range(30, 35)]);
        assert_eq!(within(16, 18), [range(16, 18)]);
        assert!(within(12, 15).is_empty() && within(17, 17).is_empty() && within(40, 50).is_empty());
    }

    #[test]
    fn what_grows_goes_on_as_its_end() {
        assert_eq!(after(&[(8, 12)], |set| go_on(set, 12, 20)), [(8, 20)]);
        assert_eq!(after(&[(8, 11)], |set| go_on(set, 12, 20)), [(8, 11)]);
    }
}
