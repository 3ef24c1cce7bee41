//! How long the runs are that a device gives whose free slots lie scattered: blocks of 64 pages leave together, pages
//! come back alone or with their block.

use super::fixture::Memory;
use super::*;
use std::vec::Vec;

const CLUSTERS: u32 = 64;
const BLOCK: usize = 64;
const DEVICES: [Device; 1] = [device_of(CLUSTERS)];

/// A file of so many clusters.
pub(super) const fn device_of(clusters: u32) -> Device {
    Device {
        first_cluster: 1,
        slots: clusters * CLUSTER_SLOTS as u32,
        priority: 0,
        has_file: true,
        rotates: false,
        discards: false,
    }
}

/// Numbers that look random (Knuth's MMIX constants).
pub(super) struct Lcg(pub(super) u64);

impl Lcg {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % end as u64) as usize
    }
}

/// Slots for one block; how many runs they are.
fn store(slots: &Slots<'_, &Memory>, blocks: &mut Vec<Vec<u32>>) -> usize {
    let (mut block, mut runs) = (Vec::new(), 0);
    while block.len() < BLOCK {
        let request = Request {
            owner: 3,
            cpu: 0,
            order: 0,
            want: BLOCK - block.len(),
            has_file: true,
        };
        let run = slots.alloc(&request).unwrap();
        block.extend(run.first..run.first + run.count as u32);
        runs += 1;
    }
    blocks.push(block);
    runs
}

/// The mean length of a run while `used` of 100 slots are used and of 100 pages that come back `together` come with
/// their block, the others one by one: once every slot has been used five times over.
fn mean_run(used: usize, together: usize) -> f64 {
    let memory = Memory::new(&DEVICES);
    let slots = memory.slots();
    let room = CLUSTERS as usize * CLUSTER_SLOTS * used / 100;
    let (mut blocks, mut live, mut random) = (Vec::new(), 0, Lcg(1));
    let (turns, mut runs, mut measured) = (6 * room / BLOCK, 0, 0);
    for turn in 0..turns {
        while live + BLOCK > room {
            let at = random.below(blocks.len());
            let block: &mut Vec<u32> = &mut blocks[at];
            // A block is BLOCK pages, so this share of the events brings that share of the pages.
            let whole = random.below(together + (100 - together) * BLOCK) < together;
            let gone = if whole {
                core::mem::take(block)
            } else {
                let page = random.below(block.len());
                Vec::from([block.swap_remove(page)])
            };
            if block.is_empty() {
                blocks.swap_remove(at);
            }
            live -= gone.len();
            slots.release(&gone, 3).unwrap();
        }
        let taken = store(&slots, &mut blocks);
        live += BLOCK;
        if turn >= turns / 6 * 5 {
            runs += taken;
            measured += BLOCK;
        }
    }
    memory.check();
    measured as f64 / runs as f64
}

#[test]
fn runs_are_as_long_as_the_device_allows() {
    // Measured: 2.31, 2.78 and 17.4; where the first run long enough of the current cluster was taken, 1.54, 1.59 and 2.20.
    for (used, together, least) in [(80, 0, 2.0), (80, 50, 2.5), (60, 50, 12.0)] {
        let mean = mean_run(used, together);
        assert!(mean > least, "{used} % used, {together} % together: {mean:.2}");
    }
}

/// Slots of clusters in use for each slot that is used, and the mean length of a run: of each block three pages stay away long, and three
/// quarters of all that is away are such; the others come back soon, one by one. A run of `enough` will do.
fn spread(enough: u32) -> (f64, f64) {
    const DEVICES: [Device; 1] = [device_of(1024)];
    const ROOM: usize = 16384;
    const STAY: usize = 3;
    let memory = Memory::new(&DEVICES);
    memory.states[0].enough.store(enough, Ordering::Relaxed);
    let slots = memory.slots();
    let (mut cold, mut hot, mut block) = (Vec::new(), Vec::new(), Vec::new());
    let (mut random, mut runs, turns) = (Lcg(1), 0, 40 * ROOM / BLOCK);
    for turn in 0..turns {
        for (live, room) in [(&mut cold, ROOM / 4 * 3), (&mut hot, ROOM / 4)] {
            while live.len() + BLOCK > room {
                let slot: u32 = live.swap_remove(random.below(live.len()));
                slots.release(&[slot], 3).unwrap();
            }
        }
        let taken = store(&slots, &mut block);
        runs += if turn >= turns / 2 { taken } else { 0 };
        let mut new = block.pop().unwrap();
        cold.extend(new.drain(..STAY));
        hot.append(&mut new);
    }
    memory.check();
    let active = memory.states[0].active.load(Ordering::Relaxed) as usize;
    let used = cold.len() + hot.len();
    (
        (active * CLUSTER_SLOTS) as f64 / used as f64,
        (turns / 2 * BLOCK) as f64 / runs as f64,
    )
}

#[test]
fn clusters_in_use_stay_few_where_short_runs_do() {
    // Measured: 20.9 slots for each used one in runs of 60.8, 6.2 in 32.7, 3.9 in 17.5, 2.7 in 9.6.
    for (enough, most, least) in [(0, 25.0, 55.0), (32, 8.0, 30.0), (16, 5.0, 15.0), (8, 3.5, 8.0)] {
        let (slots, run) = spread(enough);
        assert!(
            slots < most && run > least,
            "{enough}: {slots:.1} slots, runs of {run:.1}"
        );
    }
}
