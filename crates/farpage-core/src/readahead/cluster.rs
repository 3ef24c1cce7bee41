//! Readahead in device order: the block of slots around the faulting one.
//!
//! The kernel's oldest swap readahead, written from a description of `mm/swap_state.c` (Linux 6.18). It knows
//! one history for the whole machine: hits are counted together, whoever had them, so one random program
//! spoils the windows of a sequential one. It pays where neighbours in memory were written out together and a
//! seek costs more than reading a slot for nothing.
//!
//! 1. Take the hits since the last miss and make them 0.
//! 2. Compute the size ([`super::window`]) with *slots* for pages, the limit `2^page_cluster` and the last
//!    size.
//! 3. Remember the slot, but only if there were no hits; remember the size.
//! 4. The window is the naturally aligned block of that size that holds the slot, cut at both ends of the
//!    device.
//!
//! The caller skips the slots of the block that hold nothing or what nobody references.

use super::{Fault, Order, Window};
use crate::sync::{AtomicU64, Ordering};

/// Hits that memory starts with, so that the first window is the greatest.
const FRESH_HITS: u64 = 4;
/// The kernel's greatest `vm.page-cluster`.
const PAGE_CLUSTER_MAX: u32 = 31;

/// The one history. All bytes zero is its initial state, so it may lie in fresh shared memory.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Cluster {
    /// Hits since the last miss less [`FRESH_HITS`], wrapping.
    hits: AtomicU64,
    prev_slot: AtomicU64,
    prev_win: AtomicU64,
}

impl Cluster {
    /// No events yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            hits: AtomicU64::new(0),
            prev_slot: AtomicU64::new(0),
            prev_win: AtomicU64::new(0),
        }
    }

    /// A hit; only first touches of pages that readahead brought (`marked`) count.
    pub fn hit(&self, marked: bool) {
        if marked {
            self.hits.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The window in slots for a miss, at most `2^page_cluster` (`page_cluster` above 31 means 31) and
    /// rounded down to a power of two if the fault allows less. Without a slot, or one outside its device,
    /// only the page itself.
    #[must_use]
    pub fn miss(&self, fault: &Fault<'_>, page_cluster: u32) -> Window {
        let Some(place) = fault.slot else {
            return Window::single(fault.page);
        };
        let most = floor_power_of_two((1 << page_cluster.min(PAGE_CLUSTER_MAX)).min(fault.most()));
        let inside = place.first <= place.slot && place.slot < place.end;
        let size = if most <= 1 || !inside {
            1
        } else {
            u64::from(self.next_size(place.slot, most))
        };
        let block = place.slot & !(size - 1);
        let (first, last) = match size {
            1 => (place.slot, place.slot),
            _ => (block.max(place.first), (block + (size - 1)).min(place.end - 1)),
        };
        Window {
            len: (last - first + 1) as u32,
            order: Order::Device,
            ..Window::single(first)
        }
    }

    /// The size of the window for a miss of `slot`: a power of two, at most `most`, which is one.
    fn next_size(&self, slot: u64, most: u32) -> u32 {
        let none = 0u64.wrapping_sub(FRESH_HITS);
        let hits = self.hits.swap(none, Ordering::Relaxed).wrapping_add(FRESH_HITS);
        let hits = u32::try_from(hits).unwrap_or(u32::MAX);
        let prev_slot = self.prev_slot.load(Ordering::Relaxed);
        let prev_win = u32::try_from(self.prev_win.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        let size = super::window(prev_slot, slot, hits, most, prev_win);
        if hits == 0 {
            self.prev_slot.store(slot, Ordering::Relaxed);
        }
        self.prev_win.store(u64::from(size), Ordering::Relaxed);
        // The limit may have been lowered since the last window, and the memory may hold anything.
        floor_power_of_two(size.min(most))
    }
}

const fn floor_power_of_two(pages: u32) -> u32 {
    match pages.checked_ilog2() {
        Some(log2) => 1 << log2,
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readahead::Slot;

    fn miss(cluster: &Cluster, slot: u64, page_cluster: u32) -> (u64, u32) {
        let word = AtomicU64::new(0);
        let window = cluster.miss(&at(slot, &word), page_cluster);
        assert_eq!(
            (window.stride, window.order, window.marker),
            (1, Order::Device, None)
        );
        (window.first, window.len)
    }

    fn at(slot: u64, word: &AtomicU64) -> Fault<'_> {
        Fault {
            page: 7777,
            offset: 0,
            thread: 1,
            lo: 0,
            hi: 10_000,
            word,
            slot: Some(Slot {
                slot,
                first: 1,
                end: 1000,
            }),
            budget: 4096,
            window_max: 4096,
        }
    }

    #[test]
    fn fresh_memory_gives_the_greatest_window_which_decays() {
        let cluster = Cluster::new();
        // 4 hits: 6 pages wanted, 8 given.
        assert_eq!(miss(&cluster, 100, 3), (96, 8));
        // No hits and no neighbour: half each time.
        assert_eq!(miss(&cluster, 503, 3), (500, 4));
        assert_eq!(miss(&cluster, 303, 3), (302, 2));
        assert_eq!(miss(&cluster, 703, 3), (703, 1));
        // The slot beside the last one.
        assert_eq!(miss(&cluster, 704, 3), (704, 2));
    }

    #[test]
    fn hits_make_the_window() {
        for (hits, size) in [(1, 4), (2, 4), (3, 8), (6, 8), (7, 16), (15, 32), (60, 32)] {
            let cluster = Cluster::new();
            for far in [100, 300, 500, 700, 900, 200, 400] {
                let _ = miss(&cluster, far, 5);
            }
            assert_eq!(miss(&cluster, 600, 5), (600, 1), "decayed");
            (0..hits).for_each(|_| cluster.hit(true));
            (0..9).for_each(|_| cluster.hit(false));
            assert_eq!(miss(&cluster, 320, 5), (320, size), "hits {hits}");
        }
    }

    #[test]
    fn the_slot_is_remembered_only_without_hits() {
        let cluster = Cluster::new();
        for far in [100, 300, 500, 700] {
            let _ = miss(&cluster, far, 3);
        }
        cluster.hit(true);
        assert_eq!(
            miss(&cluster, 800, 3),
            (800, 4),
            "with a hit: 700 stays the last slot"
        );
        assert_eq!(cluster.prev_slot.load(Ordering::Relaxed), 700);
        let _ = miss(&cluster, 900, 3);
        let _ = miss(&cluster, 300, 3);
        cluster.hit(true);
        let _ = miss(&cluster, 800, 3);
        let _ = miss(&cluster, 301, 3);
        assert_eq!(cluster.prev_slot.load(Ordering::Relaxed), 301);
    }

    #[test]
    fn windows_end_with_the_device() {
        assert_eq!(miss(&Cluster::new(), 3, 3), (1, 7), "slot 0 is the header");
        assert_eq!(miss(&Cluster::new(), 999, 5), (992, 8), "cut at the end");
        assert_eq!(miss(&Cluster::new(), 1000, 3), (1000, 1), "outside");
        assert_eq!(miss(&Cluster::new(), 5, 0), (5, 1), "page_cluster 0");
        // 4 hits never give more than 8.
        assert_eq!(miss(&Cluster::new(), 100, 40), (96, 8));
        let word = AtomicU64::new(0);
        let mut fault = at(100, &word);
        fault.budget = 7;
        assert_eq!(Cluster::new().miss(&fault, 3).len, 4, "the budget, rounded down");
        fault.slot = None;
        assert_eq!(Cluster::new().miss(&fault, 3), Window::single(7777));
    }
}
