//! The operations of the swap core beside what systems C and T replaced: a map of byte counts behind one lock per device,
//! a tree of the pages in the swap cache behind another ([`farpage_sim::contention::baseline`]).
//!
//! `benches/core.rs` times them, `src/main.rs` does a given number of them so that an instruction counter can watch.

use std::hint::black_box;
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farpage_core::slots::{Request, Tally};
use farpage_core::swap_table::Backing;
use farpage_sim::contention::baseline::{Map, Tree};
use farpage_sim::contention::memory::Memory;
use farpage_sim::rng::Rng;

/// Slots of the device; half of them are taken.
const SLOTS: usize = 128 * 1024;
/// Slots allocated together, as reclaim does.
const BATCH: usize = 64;
/// Threads at most, each with an equal share of the pages that are out.
pub const THREADS: usize = 16;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A slot is taken, and given back without ever having had content. The device has been used for a while.
    AllocateFree,
    /// The same, but what was allocated together is given back together, as the engine does it; on the other side the device's
    /// lock is taken once for all of a batch.
    AllocateFreeGrouped,
    /// As the first on a device with whole free clusters.
    AllocateFreeEmpty,
    /// Where a slot's content is.
    LookUp,
    /// A page gets its slot's word, with one reference, and loses it.
    AddDelete,
    /// A child gets a reference to a slot of its parent's, and gives it up.
    Fork,
    /// Pages come back, one by one from anywhere on the device, and as many leave together: all that the two do to slots and words.
    /// Slots are given back to clusters from which other CPUs allocate.
    InOut,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::AllocateFree,
        Self::AllocateFreeGrouped,
        Self::AllocateFreeEmpty,
        Self::LookUp,
        Self::AddDelete,
        Self::Fork,
        Self::InOut,
    ];

    /// The stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllocateFree => "allocate+free",
            Self::AllocateFreeGrouped => "allocate+free, grouped",
            Self::AllocateFreeEmpty => "allocate+free, empty device",
            Self::LookUp => "look-up",
            Self::AddDelete => "add+delete",
            Self::Fork => "fork of a table",
            Self::InOut => "in+out, anywhere",
        }
    }
}

/// One side with a device that is half full, and what each thread has there.
pub trait Side: Sync {
    /// Does `operation` so many times as thread `me`.
    fn work(&self, operation: Operation, me: usize, times: usize);

    /// Cluster locks taken and found held since last asked; none on the side that has no clusters.
    fn locks(&self) -> Option<[u64; 2]> {
        None
    }
}

/// Both sides, by their stable names.
pub const SIDES: [&str; 2] = ["farpage", "baseline"];

/// A side by its name, ready for `operation`.
#[must_use]
pub fn side(name: &str, operation: Operation) -> Box<dyn Side> {
    let fragmented = operation != Operation::AllocateFreeEmpty;
    if name == SIDES[0] {
        Box::new(Ours::new(fragmented))
    } else {
        Box::new(Replaced::new(fragmented))
    }
}

/// Wall time for `times` operations by each of `threads`, per thread.
pub fn timed(side: &dyn Side, operation: Operation, threads: usize, times: usize) -> Duration {
    let barrier = Barrier::new(threads + 1);
    thread::scope(|scope| {
        let body = |me| {
            barrier.wait();
            side.work(operation, me, times);
        };
        let running: Vec<_> = (0..threads).map(|me| scope.spawn(move || body(me))).collect();
        barrier.wait();
        let start = Instant::now();
        for thread in running {
            thread.join().expect("ends");
        }
        start.elapsed() / threads as u32
    })
}

/// Which of the slots that were taken in order stay: half of the device, at random or what was taken first.
fn keep(taken: Vec<u32>, fragmented: bool) -> (Vec<u32>, Vec<u32>) {
    let mut rng = Rng::new(1);
    let mut kept = taken;
    let mut freed = Vec::new();
    while kept.len() > SLOTS / 2 {
        let at = if fragmented {
            rng.below(kept.len())
        } else {
            kept.len() - 1
        };
        freed.push(kept.swap_remove(at));
    }
    (kept, freed)
}

fn share(kept: &[u32], me: usize) -> &[u32] {
    let each = kept.len() / THREADS;
    &kept[me * each..(me + 1) * each]
}

/// What each thread's pages have, from anywhere on the device.
fn scattered(kept: &[u32]) -> Vec<Mutex<Vec<u32>>> {
    let mut rng = Rng::new(2);
    let mut all = kept.to_vec();
    (1..all.len()).for_each(|at| all.swap(at, rng.below(at + 1)));
    (0..THREADS)
        .map(|me| Mutex::new(share(&all, me).to_vec()))
        .collect()
}

/// Each slot of a thread's in turn is given up by `gone`, and after so many as make a batch `taken` has as many new ones for them.
fn exchange(own: &Mutex<Vec<u32>>, times: usize, gone: impl Fn(u32), mut taken: impl FnMut(&mut [u32])) {
    let mut own = own.lock().unwrap_or_else(PoisonError::into_inner);
    let mut left = times;
    while left > 0 {
        for batch in own.chunks_mut(BATCH) {
            let now = batch.len().min(left);
            batch[..now].iter().for_each(|&slot| gone(slot));
            taken(&mut batch[..now]);
            left -= now;
        }
    }
}

/// The allocator and the table of `farpage-core`.
struct Ours {
    memory: Memory,
    kept: Vec<u32>,
    scattered: Vec<Mutex<Vec<u32>>>,
    tally: Mutex<[u64; 2]>,
}

impl Ours {
    fn new(fragmented: bool) -> Self {
        let memory = Memory::new(1, SLOTS);
        let slots = memory.slots();
        let mut taken = Vec::new();
        while taken.len() < SLOTS * 3 / 4 {
            let me = taken.len() / BATCH % THREADS;
            let run = slots.alloc(&request(me, BATCH)).expect("room");
            taken.extend(run.first..run.first + run.count as u32);
            for slot in run.first..run.first + run.count as u32 {
                memory
                    .table()
                    .publish(slot, Backing::Device { crc: slot })
                    .expect("busy");
            }
        }
        let (kept, freed) = keep(taken, fragmented);
        for slot in freed {
            memory.table().put(slot, 1).expect("backed");
            slots.release(&[slot], 1).expect("ours");
        }
        Self {
            memory,
            scattered: scattered(&kept),
            kept,
            tally: Mutex::default(),
        }
    }

    /// In runs as long as there are: each of them is given back slot by slot, or so many together as make a batch.
    fn allocate_and_free(&self, grouped: bool, me: usize, times: usize) {
        let (slots, owner) = (self.memory.slots(), me as u16 + 1);
        let (mut left, mut batch, mut filled) = (times, [0; BATCH], 0);
        while left > 0 {
            let want = left.min(BATCH - filled);
            let run = slots.alloc(&request(me, want)).expect("room");
            let taken = run.first..run.first + run.count as u32;
            left -= run.count;
            if !grouped {
                taken.for_each(|slot| slots.release(&[slot], owner).expect("ours"));
                continue;
            }
            batch
                .iter_mut()
                .skip(filled)
                .zip(taken)
                .for_each(|(at, slot)| *at = slot);
            filled += run.count;
            if filled == BATCH || left == 0 {
                slots.release(&batch[..filled], owner).expect("ours");
                filled = 0;
            }
        }
        self.count(slots.take_tally());
    }

    /// One reference, one slot, one lock for each page that comes; runs for those that leave.
    fn in_and_out(&self, me: usize, times: usize) {
        let (slots, table, owner) = (self.memory.slots(), self.memory.table(), me as u16 + 1);
        let gone = |slot| {
            table.put(slot, owner).expect("backed");
            slots.release(&[slot], owner).expect("ours");
        };
        let taken = |batch: &mut [u32]| {
            let mut filled = 0;
            while filled < batch.len() {
                let run = slots.alloc(&request(me, batch.len() - filled)).expect("room");
                for slot in run.first..run.first + run.count as u32 {
                    table.publish(slot, Backing::Device { crc: slot }).expect("busy");
                    batch[filled] = slot;
                    filled += 1;
                }
            }
        };
        exchange(&self.scattered[me], times, gone, taken);
        self.count(slots.take_tally());
    }

    fn count(&self, tally: Tally) {
        let mut all = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        *all = [all[0] + tally.locks, all[1] + tally.missed];
    }
}

const fn request(me: usize, want: usize) -> Request {
    Request {
        owner: me as u16 + 1,
        cpu: me as u32,
        order: 0,
        want,
        has_file: true,
    }
}

impl Side for Ours {
    fn work(&self, operation: Operation, me: usize, times: usize) {
        let (table, owner) = (self.memory.table(), me as u16 + 1);
        let own = share(&self.kept, me);
        let around = own.iter().cycle().take(times);
        match operation {
            Operation::AllocateFree | Operation::AllocateFreeEmpty | Operation::AllocateFreeGrouped => {
                self.allocate_and_free(operation == Operation::AllocateFreeGrouped, me, times);
            }
            Operation::LookUp => around.for_each(|&slot| {
                black_box(table.load(slot).backing());
            }),
            Operation::AddDelete => around.for_each(|&slot| {
                table.put(slot, owner).expect("backed");
                table.publish(slot, Backing::Device { crc: slot }).expect("busy");
            }),
            Operation::Fork => around.for_each(|&slot| {
                table.dup(slot).expect("backed");
                table.put(slot, owner).expect("backed");
            }),
            Operation::InOut => self.in_and_out(me, times),
        }
    }

    fn locks(&self) -> Option<[u64; 2]> {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        Some(std::mem::take(&mut *tally))
    }
}

/// The map and the tree, each behind the one lock of the device.
struct Replaced {
    map: Mutex<Map>,
    tree: Mutex<Tree>,
    kept: Vec<u32>,
    scattered: Vec<Mutex<Vec<u32>>>,
}

impl Replaced {
    fn new(fragmented: bool) -> Self {
        let mut map = Map::new(SLOTS);
        let taken = (0..SLOTS * 3 / 4).map(|_| map.alloc().expect("room")).collect();
        let (kept, freed) = keep(taken, fragmented);
        for slot in freed {
            assert!(map.down(slot), "slot {slot} was taken");
        }
        // One for the page table, one for the swap cache.
        kept.iter().for_each(|&slot| assert!(map.up(slot), "taken"));
        let tree = kept.iter().map(|&slot| (slot, u64::from(slot))).collect();
        Self {
            map: Mutex::new(map),
            tree: Mutex::new(tree),
            scattered: scattered(&kept),
            kept,
        }
    }

    fn map<R>(&self, work: impl FnOnce(&mut Map) -> R) -> R {
        work(&mut self.map.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn tree<R>(&self, work: impl FnOnce(&mut Tree) -> R) -> R {
        work(&mut self.tree.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Side for Replaced {
    fn work(&self, operation: Operation, me: usize, times: usize) {
        let around = share(&self.kept, me).iter().cycle().take(times);
        match operation {
            Operation::AllocateFree | Operation::AllocateFreeEmpty => {
                for _ in 0..times.div_ceil(BATCH) {
                    let batch: [u32; BATCH] =
                        std::array::from_fn(|_| self.map(|map| map.alloc().expect("room")));
                    batch
                        .iter()
                        .for_each(|&slot| assert!(self.map(|map| map.down(slot)), "taken"));
                }
            }
            Operation::AllocateFreeGrouped => {
                for _ in 0..times.div_ceil(BATCH) {
                    let batch: [u32; BATCH] =
                        self.map(|map| std::array::from_fn(|_| map.alloc().expect("room")));
                    self.map(|map| batch.iter().for_each(|&slot| assert!(map.down(slot), "taken")));
                }
            }
            Operation::LookUp => around.for_each(|&slot| {
                black_box(self.tree(|tree| tree.get(&slot).copied()));
            }),
            Operation::AddDelete => around.for_each(|&slot| {
                self.tree(|tree| tree.remove(&slot));
                assert!(self.map(|map| map.down(slot)), "taken");
                assert!(self.map(|map| map.up(slot)), "taken");
                self.tree(|tree| tree.insert(slot, u64::from(slot)));
            }),
            Operation::Fork => around.for_each(|&slot| {
                assert!(self.map(|map| map.up(slot)), "taken");
                assert!(self.map(|map| map.down(slot)), "taken");
            }),
            Operation::InOut => exchange(
                &self.scattered[me],
                times,
                // The page's count and the swap cache's.
                |slot| {
                    self.tree(|tree| tree.remove(&slot));
                    assert!(self.map(|map| map.down(slot) && map.down(slot)), "taken");
                },
                |batch| {
                    self.map(|map| {
                        batch.fill_with(|| {
                            let slot = map.alloc().expect("room");
                            assert!(map.up(slot), "taken");
                            slot
                        });
                    });
                    self.tree(|tree| tree.extend(batch.iter().map(|&slot| (slot, u64::from(slot)))));
                },
            ),
        }
    }
}
