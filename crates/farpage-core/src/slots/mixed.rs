//! Free clusters for huge pages beside small ones: 100 rounds of random discard, swap-in and swap-out of 4 KiB, 64 KiB and
//! 2 MiB, in the spirit of Linux' test of its allocator for huge pages.

use super::fixture::Memory;
use super::fragmented::{Lcg, device_of};
use super::*;
use std::vec::Vec;

const CLUSTERS: u32 = 256;
const ROUNDS: usize = 100;
const DEVICES: [Device; 1] = [device_of(CLUSTERS)];
/// Slots of what leaves together: a page, a window of 16, a huge page.
const SIZES: [usize; 3] = [1, 16, CLUSTER_SLOTS];

/// A swap area and what is out in it.
struct Traffic<'a> {
    slots: Slots<'a, &'a Memory>,
    /// What is out, by size.
    live: [Vec<Vec<u32>>; 3],
    used: usize,
    whole: usize,
    split: usize,
}

impl Traffic<'_> {
    fn request(order: usize, want: usize) -> Request {
        Request {
            owner: 3,
            cpu: 0,
            order,
            want,
            has_file: true,
        }
    }

    /// Swap-out: one cluster for a huge page, or runs as for small ones.
    fn store(&mut self, kind: usize) {
        let mut taken = Vec::new();
        if SIZES[kind] == CLUSTER_SLOTS {
            let run = self.slots.alloc(&Self::request(ORDERS - 1, 1));
            self.whole += usize::from(run.is_some());
            self.split += usize::from(run.is_none());
            taken.extend(
                run.into_iter()
                    .flat_map(|run| run.first..run.first + run.count as u32),
            );
        }
        while taken.len() < SIZES[kind] {
            let want = (SIZES[kind] - taken.len()).min(64);
            let run = self.slots.alloc(&Self::request(0, want)).unwrap();
            taken.extend(run.first..run.first + run.count as u32);
        }
        self.used += taken.len();
        self.live[kind].push(taken);
    }

    /// Swap-in or discard: the slots are free.
    fn give_back(&mut self, kind: usize, at: usize) {
        let gone = self.live[kind].swap_remove(at);
        self.used -= gone.len();
        self.slots.release(&gone, 3).unwrap();
    }
}

/// Huge pages stored whole and split, while `free` of 100 slots at least stay free and of 100 pages `small` leave in each of the
/// two smaller sizes.
fn run(free: usize, small: usize) -> (usize, usize) {
    let memory = Memory::new(&DEVICES);
    let mut device = Traffic {
        slots: memory.slots(),
        live: Default::default(),
        used: 0,
        whole: 0,
        split: 0,
    };
    let room = CLUSTERS as usize * CLUSTER_SLOTS * (100 - free) / 100;
    let mut random = Lcg(7);
    for _ in 0..ROUNDS {
        // A fifth of everything comes back or is discarded, chosen at random.
        for kind in 0..SIZES.len() {
            for _ in 0..device.live[kind].len() / 5 {
                let at = random.below(device.live[kind].len());
                device.give_back(kind, at);
            }
        }
        // Then as much leaves as there is room for.
        while device.used + CLUSTER_SLOTS <= room {
            let drawn = random.below(100);
            let kind = usize::from(drawn >= small) + usize::from(drawn >= 2 * small);
            // So many of a size that each draw stands for 512 pages.
            (0..CLUSTER_SLOTS / SIZES[kind]).for_each(|_| device.store(kind));
        }
    }
    let counts = (device.whole, device.split);
    drop(device);
    memory.check();
    counts
}

#[test]
fn huge_pages_find_clusters_beside_small_ones() {
    // With two thirds of the pages in small sizes and 10 % free, 39 % are split: the holes small pages leave are more than that.
    for (free, small) in [(10, 5), (10, 10), (10, 15), (25, 20)] {
        let (whole, split) = run(free, small);
        let all = whole + split;
        assert!(
            split * 20 < all,
            "{free} % free, {small} % each: {split} of {all} split"
        );
    }
}
