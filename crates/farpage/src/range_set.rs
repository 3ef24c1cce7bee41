//! Ranges of pages about which something was said, beside the page states: in memory of the engine's own, behind a lock.
//!
//! # Safety
//! The memory is fresh, never given back, and used by its set alone.
#![allow(unsafe_code)]

use farpage_core::range_map::{Range, RangeMap};

use crate::gate::{Spin, SpinGuard};
use crate::sys;

/// Most ranges of a set.
const RANGES_MAX: usize = 4096;

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

    /// The mapping at `lo..hi` moves to `to`, and what was said about it too.
    pub fn moved(&self, lo: u64, hi: u64, to: u64) {
        let _ = self.with_used(|set| {
            set.remove(to, to + (hi - lo))?;
            let mut at = lo;
            while let Some(part) = first_within(set, at, hi) {
                set.insert(to + (part.start - lo), to + (part.end - lo))?;
                at = part.end;
            }
            set.remove(lo, hi)
        });
    }
}

/// The first part of the set in `at..hi`.
pub fn first_within(set: &RangeMap<'_>, at: u64, hi: u64) -> Option<Range> {
    set.iter()
        .map(|range| Range {
            start: range.start.max(at),
            end: range.end.min(hi),
        })
        .find(|part| part.start < part.end)
}

/// An empty set in memory of its own; `None`: there is none.
pub fn new_map() -> Option<RangeMap<'static>> {
    let memory = sys::engine_memory((RANGES_MAX * size_of::<Range>()) as u64).ok()?;
    // SAFETY: fresh zeroed memory of that size, never given back.
    let entries = unsafe { core::slice::from_raw_parts_mut(memory as *mut Range, RANGES_MAX) };
    Some(RangeMap::new(entries))
}
