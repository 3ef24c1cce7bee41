//! The memory of what a process has missed lately ([`farpage_core::readahead::recall`]).
//!
//! Records for four times as many pages as the process has in RAM: who goes round in more than that has most of it elsewhere for good. Address space
//! is for the whole budget; what is used of it grows with the process in steps of two, so that all of a tree have 64 bytes for each page
//! of the budget at most, one process 32, and only where pages come from files in no order of addresses.
//!
//! # Safety
//! Both arrays are mapped once, before the process is active, and never unmapped; atomics may hold any bits.
#![allow(unsafe_code)]

use core::slice;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use farpage_core::readahead::{History, Recall};

use crate::sys::{self, Errno};

/// Records for each page in RAM.
const EACH: u64 = 4;
const RECORDS_MIN: u64 = 1 << 12;
const RECORDS_MAX: u64 = 1 << 24;
/// How many records are written before it is looked whether there is room for enough.
const LOOK: u64 = 1 << 10;

pub struct OwnHistory {
    recall: Recall,
    ring: AtomicU64,
    index: AtomicU64,
    /// Records that there is room for now, and at most; 0: nothing is remembered.
    room: AtomicU64,
    most: AtomicU64,
}

impl OwnHistory {
    pub const fn new() -> OwnHistory {
        OwnHistory {
            recall: Recall::new(),
            ring: AtomicU64::new(0),
            index: AtomicU64::new(0),
            room: AtomicU64::new(0),
            most: AtomicU64::new(0),
        }
    }

    /// Maps it, for a budget of so many pages.
    pub fn prepare(&self, budget: u64) -> Result<(), Errno> {
        let most = records_for(budget);
        let bytes = most * size_of::<AtomicU32>() as u64;
        self.ring.store(sys::engine_memory(bytes)?, Ordering::Relaxed);
        self.index.store(sys::engine_memory(bytes)?, Ordering::Relaxed);
        self.most.store(most, Ordering::Relaxed);
        self.room.store(RECORDS_MIN.min(most), Ordering::Release);
        Ok(())
    }

    pub fn get(&self) -> Option<History<'_>> {
        let room = self.room.load(Ordering::Acquire) as usize;
        let of = |address: &AtomicU64| {
            let address = address.load(Ordering::Relaxed) as *const AtomicU32;
            // SAFETY: see above; there is room for `most` at least.
            unsafe { slice::from_raw_parts(address, room) }
        };
        (room > 0).then(|| History::new(&self.recall, of(&self.ring), of(&self.index)))
    }

    /// Called at misses of pages on a device: more room where the process has so many pages in RAM.
    pub fn fit(&self, resident: impl FnOnce() -> u64) {
        if !self.recall.records().is_multiple_of(LOOK) {
            return;
        }
        // In steps of two: what was remembered is forgotten each time.
        let (wanted, mut room) = (records_for(resident()), self.most.load(Ordering::Relaxed));
        while room / 2 >= wanted {
            room /= 2;
        }
        self.room.fetch_max(room, Ordering::AcqRel);
    }
}

fn records_for(pages: u64) -> u64 {
    pages.saturating_mul(EACH).clamp(RECORDS_MIN, RECORDS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_grows_with_the_process_up_to_the_budget() {
        let own = OwnHistory::new();
        assert!(own.get().is_none());
        own.prepare(5000).unwrap();
        let room = || own.room.load(Ordering::Relaxed);
        assert_eq!(room(), RECORDS_MIN);
        own.fit(|| 1100);
        assert_eq!(room(), 5_000, "a quarter of what the budget has");
        own.fit(|| 100_000);
        assert_eq!(room(), 20_000);
        own.fit(|| 10);
        assert_eq!(room(), 20_000);
        assert!(own.get().is_some());
    }
}
