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
const SIZES: [usize; 4] = [1, 16, CLUSTER_SLOTS, CLUSTER_SLOTS];
/// Of these, the one that leaves whole; the last leaves as windows of small pages.
const WHOLE: usize = 2;
/// Most slots that are asked for at once.
const BATCH: usize = 64;

/// A swap area and what is out in it.
struct Traffic<'a> {
    slots: Slots<'a, &'a Memory>,
    /// What is out, by size.
    live: [Vec<Vec<u32>>; 4],
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
        if kind == WHOLE {
            let run = self.slots.alloc(&Self::request(ORDERS - 1, 1));
            self.whole += usize::from(run.is_some());
            self.split += usize::from(run.is_none());
            taken.extend(
                run.into_iter()
                    .flat_map(|run| run.first..run.first + run.count as u32),
            );
        }
        self.add_small(&mut taken, SIZES[kind]);
        self.used += taken.len();
        self.live[kind].push(taken);
    }

    /// Swap-out of so many small pieces, whose pages are stored together.
    fn store_many(&mut self, kind: usize, count: usize) {
        let mut taken = Vec::new();
        self.add_small(&mut taken, count * SIZES[kind]);
        self.used += taken.len();
        self.live[kind].extend(taken.chunks(SIZES[kind]).map(Vec::from));
    }

    /// Adds single slots until there are `all`.
    fn add_small(&self, taken: &mut Vec<u32>, all: usize) {
        while taken.len() < all {
            let want = (all - taken.len()).min(BATCH);
            let run = self.slots.alloc(&Self::request(0, want)).unwrap();
            taken.extend(run.first..run.first + run.count as u32);
        }
    }

    /// Swap-in or discard: the slots are free.
    fn give_back(&mut self, kind: usize, at: usize) {
        let gone = self.live[kind].swap_remove(at);
        self.used -= gone.len();
        self.slots.release(&gone, 3).unwrap();
    }
}

/// Huge pages stored whole and split, while `free` of 100 slots at least stay free and of 100 pages `small` leave in each of the
/// two smaller sizes and `windows` in windows of small pages.
fn run(free: usize, small: usize, windows: usize) -> (usize, usize) {
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
            let kind = [small, 2 * small, 100 - windows]
                .iter()
                .filter(|end| drawn >= **end)
                .count();
            // So many of a size that each draw stands for 512 pages.
            match kind {
                0 | 1 => device.store_many(kind, CLUSTER_SLOTS / SIZES[kind]),
                _ => device.store(kind),
            }
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
    // Windows of small pages ask for long runs: where those were taken from free clusters while short ones were left, half and more
    // of the huge pages were split.
    let mixes = [
        (10, 5, 0),
        (10, 10, 0),
        (10, 15, 0),
        (25, 20, 0),
        (10, 10, 20),
        (10, 15, 20),
    ];
    for (free, small, windows) in mixes {
        let (whole, split) = run(free, small, windows);
        let all = whole + split;
        assert!(
            split * 20 < all,
            "{free} % free, {small} % each, {windows} % in windows: {split} of {all} split"
        );
    }
}
