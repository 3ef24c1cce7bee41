//! Slots kept by a CPU instead of being taken and given back each by itself: the kernel's way before its clusters had
//! locks of their own (`mm/swap_slots.c` up to Linux 6.13: 64 slots to allocate, 64 to free, per CPU).
//!
//! A policy, off unless asked for: what it saves in cluster locks it pays in slots that lie idle and in
//! neighbours that are no longer freed at once. The caller has one for each CPU of a process, not of the machine: every slot in here is `Busy` with that
//! process, so what a killed one kept is found by its name like all else it was working on.
//!
//! ```text
//! keeps:   one run of slots to allocate for each class of device (64 are asked for at a time)
//!          up to 64 slots to give back, handed out sorted, so that each cluster is locked once for all of its own
//! ```

use crate::slots::Run;

/// Slots asked for at once, and given back at once.
pub const CACHE_SLOTS: usize = 64;
/// The policy rests while fewer slots than this, times the CPUs, are free: kept ones would be missed.
pub const FREE_MIN_PER_CPU: u64 = 5 * CACHE_SLOTS as u64;

/// How slots are taken and given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SlotPolicy {
    /// Runs from the CPU's current cluster, each slot given back when it is free.
    #[default]
    PercpuCluster,
    /// With a [`SlotCache`] for each CPU.
    Cache,
}

/// What one CPU of a process keeps.
#[derive(Debug, Clone, Copy)]
pub struct SlotCache {
    /// Without a file, and with one; a count of 0 is none.
    runs: [Run; 2],
    freed: [u32; CACHE_SLOTS],
    freed_len: usize,
}

impl Default for SlotCache {
    fn default() -> Self {
        Self::new()
    }
}

impl SlotCache {
    /// One that keeps nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            runs: [Run { first: 0, count: 0 }; 2],
            freed: [0; CACHE_SLOTS],
            freed_len: 0,
        }
    }

    /// The run kept of a class; the caller has it from now on.
    #[must_use]
    pub fn take_run(&mut self, has_file: bool) -> Option<Run> {
        let run = &mut self.runs[usize::from(has_file)];
        let taken = *run;
        run.count = 0;
        (taken.count > 0).then_some(taken)
    }

    /// Keeps what is left of a run; returns what there is no place for, the shorter of two.
    #[must_use]
    pub fn keep_run(&mut self, has_file: bool, run: Run) -> Option<Run> {
        let kept = &mut self.runs[usize::from(has_file)];
        let (long, short) = if run.count > kept.count {
            (run, *kept)
        } else {
            (*kept, run)
        };
        *kept = long;
        (short.count > 0).then_some(short)
    }

    /// Keeps a slot to be given back; if that fills the cache all of them come out, ascending.
    #[must_use]
    pub fn free(&mut self, slot: u32) -> Option<[u32; CACHE_SLOTS]> {
        self.freed[self.freed_len] = slot;
        self.freed_len += 1;
        if self.freed_len < CACHE_SLOTS {
            return None;
        }
        self.freed_len = 0;
        self.freed.sort_unstable();
        Some(self.freed)
    }

    /// Hands over the slots to be given back, ascending, as many as the second says.
    #[must_use]
    pub fn drain_freed(&mut self) -> ([u32; CACHE_SLOTS], usize) {
        let len = core::mem::take(&mut self.freed_len);
        self.freed[..len].sort_unstable();
        (self.freed, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn slots_come_out_as_often_as_they_went_in() {
        let mut cache = SlotCache::new();
        let mut out = Vec::new();
        let numbers = || (0..150u32).map(|i| i * 7 % 150);
        for slot in numbers() {
            if let Some(all) = cache.free(slot) {
                assert!(all.is_sorted());
                out.extend(all);
            }
        }
        assert_eq!(out.len(), 2 * CACHE_SLOTS);
        let (rest, len) = cache.drain_freed();
        assert!(rest[..len].is_sorted() && len == 150 - 2 * CACHE_SLOTS);
        out.extend(&rest[..len]);
        out.sort_unstable();
        assert!(out.into_iter().eq(0..150));
        assert_eq!(cache.drain_freed().1, 0);
    }

    #[test]
    fn the_longer_run_stays() {
        let mut cache = SlotCache::new();
        let run = |first, count| Run { first, count };
        assert_eq!(cache.take_run(true), None);
        assert_eq!(cache.keep_run(true, run(10, 3)), None);
        assert_eq!(cache.keep_run(true, run(20, 2)), Some(run(20, 2)));
        assert_eq!(cache.keep_run(true, run(30, 4)), Some(run(10, 3)));
        assert_eq!(cache.take_run(false), None, "classes are apart");
        assert_eq!(cache.take_run(true), Some(run(30, 4)));
        assert_eq!(cache.take_run(true), None);
    }
}
