//! The operations of the swap core beside what systems C and T replaced: a map of byte counts behind one lock per device,
//! a tree of the pages in the swap cache behind another ([`crate::contention::baseline`]). Real structures, real threads.
//!
//! Timed by `farpage bench --baseline C,T` and by `microbench/`, which also counts their instructions.

use std::hint::black_box;
use std::panic;
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farpage_core::slots::{Request, Run, Tally};
use farpage_core::swap_table::{Backing, Impossible};

use crate::contention::baseline::{Map, Tree};
use crate::contention::memory::Memory;
use crate::rng::Rng;

/// Slots of the device; half of them are taken.
const SLOTS: usize = 128 * 1024;
/// Slots that are taken at any time, but for those that an operation has just now.
pub const KEPT: usize = SLOTS / 2;
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
    /// Does `operation` so many times as thread `me`, below [`THREADS`].
    ///
    /// # Errors
    /// If a structure contradicts itself.
    fn work(&self, operation: Operation, me: usize, times: usize) -> Result<(), Impossible>;

    /// Slots taken: [`KEPT`] while nothing runs.
    fn used(&self) -> usize;

    /// Cluster locks taken and found held since last asked; none on the side that has no clusters.
    fn locks(&self) -> Option<[u64; 2]> {
        None
    }
}

/// Both sides, by their stable names.
pub const SIDES: [&str; 2] = ["farpage", "baseline"];

/// A side by its name, ready for `operation`; the baseline by any other name than the first of [`SIDES`].
///
/// # Errors
/// If a structure contradicts itself.
pub fn side(name: &str, operation: Operation) -> Result<Box<dyn Side>, Impossible> {
    let fragmented = operation != Operation::AllocateFreeEmpty;
    Ok(if name == SIDES[0] {
        Box::new(Ours::new(fragmented)?)
    } else {
        Box::new(Replaced::new(fragmented)?)
    })
}

/// Wall time for `times` operations by each of `threads`, from the first one's start to the last one's end, per thread.
///
/// # Errors
/// If a structure contradicts itself.
pub fn timed(
    side: &dyn Side,
    operation: Operation,
    threads: usize,
    times: usize,
) -> Result<Duration, Impossible> {
    let barrier = Barrier::new(threads);
    let body = |me| {
        barrier.wait();
        let start = Instant::now();
        let done = side.work(operation, me, times);
        done.map(|()| (start, Instant::now()))
    };
    thread::scope(|scope| {
        let body = &body;
        let running: Vec<_> = (0..threads).map(|me| scope.spawn(move || body(me))).collect();
        let ended = running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|cause| panic::resume_unwind(cause)));
        let spans = ended.collect::<Result<Vec<_>, _>>()?;
        let start = spans.iter().map(|(start, _)| *start).min();
        let end = spans.iter().map(|(_, end)| *end).max();
        let wall = end.zip(start).map_or(Duration::ZERO, |(end, start)| end - start);
        Ok(wall / threads.max(1) as u32)
    })
}

const NO_ROOM: Impossible = Impossible {
    slot: 0,
    word: 0,
    expected: "a free slot: half of the device is free",
};

/// What the baseline says of a slot that somebody is to have.
const fn had(slot: u32, is_had: bool) -> Result<(), Impossible> {
    if is_had {
        return Ok(());
    }
    let expected = "a count of 1 or more";
    Err(Impossible {
        slot,
        word: 0,
        expected,
    })
}

const fn slots_of(run: Run) -> std::ops::Range<u32> {
    run.first..run.first + run.count as u32
}

/// Which of the slots that were taken in order stay: half of the device, at random or what was taken first.
fn keep(taken: Vec<u32>, fragmented: bool) -> (Vec<u32>, Vec<u32>) {
    let mut rng = Rng::new(1);
    let mut kept = taken;
    let mut freed = Vec::new();
    while kept.len() > KEPT {
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
fn exchange(
    own: &Mutex<Vec<u32>>,
    times: usize,
    gone: impl Fn(u32) -> Result<(), Impossible>,
    taken: impl Fn(&mut [u32]) -> Result<(), Impossible>,
) -> Result<(), Impossible> {
    let mut own = own.lock().unwrap_or_else(PoisonError::into_inner);
    let mut left = times;
    while left > 0 {
        for batch in own.chunks_mut(BATCH) {
            let now = batch.len().min(left);
            batch[..now].iter().try_for_each(|&slot| gone(slot))?;
            taken(&mut batch[..now])?;
            left -= now;
        }
    }
    Ok(())
}

/// The allocator and the table of `farpage-core`.
struct Ours {
    memory: Memory,
    kept: Vec<u32>,
    scattered: Vec<Mutex<Vec<u32>>>,
    tally: Mutex<[u64; 2]>,
}

impl Ours {
    fn new(fragmented: bool) -> Result<Self, Impossible> {
        let memory = Memory::new(1, SLOTS);
        let slots = memory.slots();
        let mut taken = Vec::new();
        while taken.len() < SLOTS * 3 / 4 {
            let me = taken.len() / BATCH % THREADS;
            let run = slots.alloc(&request(me, BATCH)).ok_or(NO_ROOM)?;
            taken.extend(slots_of(run));
            for slot in slots_of(run) {
                memory.table().publish(slot, Backing::Device { crc: slot })?;
            }
        }
        let (kept, freed) = keep(taken, fragmented);
        for slot in freed {
            memory.table().put(slot, 1)?;
            slots.release(&[slot], 1)?;
        }
        Ok(Self {
            memory,
            scattered: scattered(&kept),
            kept,
            tally: Mutex::default(),
        })
    }

    /// In runs as long as there are: each of them is given back slot by slot, or so many together as make a batch.
    fn allocate_and_free(&self, grouped: bool, me: usize, times: usize) -> Result<(), Impossible> {
        let (slots, owner) = (self.memory.slots(), me as u16 + 1);
        let (mut left, mut batch, mut filled) = (times, [0; BATCH], 0);
        while left > 0 {
            let want = left.min(BATCH - filled);
            let run = slots.alloc(&request(me, want)).ok_or(NO_ROOM)?;
            let mut taken = slots_of(run);
            left -= run.count;
            if !grouped {
                taken.try_for_each(|slot| slots.release(&[slot], owner))?;
                continue;
            }
            batch
                .iter_mut()
                .skip(filled)
                .zip(taken)
                .for_each(|(at, slot)| *at = slot);
            filled += run.count;
            if filled == BATCH || left == 0 {
                slots.release(&batch[..filled], owner)?;
                filled = 0;
            }
        }
        self.count(slots.take_tally());
        Ok(())
    }

    /// One reference, one slot, one lock for each page that comes; runs for those that leave.
    fn in_and_out(&self, me: usize, times: usize) -> Result<(), Impossible> {
        let (slots, table, owner) = (self.memory.slots(), self.memory.table(), me as u16 + 1);
        let gone = |slot| {
            table.put(slot, owner)?;
            slots.release(&[slot], owner)
        };
        let taken = |batch: &mut [u32]| {
            let mut filled = 0;
            while filled < batch.len() {
                let want = batch.len() - filled;
                let run = slots.alloc(&request(me, want)).ok_or(NO_ROOM)?;
                for slot in slots_of(run) {
                    table.publish(slot, Backing::Device { crc: slot })?;
                    batch[filled] = slot;
                    filled += 1;
                }
            }
            Ok(())
        };
        exchange(&self.scattered[me], times, gone, taken)?;
        self.count(slots.take_tally());
        Ok(())
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
    fn work(&self, operation: Operation, me: usize, times: usize) -> Result<(), Impossible> {
        let (table, owner) = (self.memory.table(), me as u16 + 1);
        let own = share(&self.kept, me);
        let mut around = own.iter().cycle().take(times);
        match operation {
            Operation::AllocateFree | Operation::AllocateFreeEmpty | Operation::AllocateFreeGrouped => {
                self.allocate_and_free(operation == Operation::AllocateFreeGrouped, me, times)
            }
            Operation::LookUp => {
                around.for_each(|&slot| {
                    black_box(table.load(slot).backing());
                });
                Ok(())
            }
            Operation::AddDelete => around.try_for_each(|&slot| {
                table.put(slot, owner)?;
                table.publish(slot, Backing::Device { crc: slot })
            }),
            Operation::Fork => around.try_for_each(|&slot| {
                table.dup(slot)?;
                table.put(slot, owner).map(|_| ())
            }),
            Operation::InOut => self.in_and_out(me, times),
        }
    }

    fn used(&self) -> usize {
        self.memory.used()
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
    fn new(fragmented: bool) -> Result<Self, Impossible> {
        let mut map = Map::new(SLOTS);
        let taken = (0..SLOTS * 3 / 4).map_while(|_| map.alloc()).collect();
        let (kept, freed) = keep(taken, fragmented);
        for slot in freed {
            had(slot, map.down(slot))?;
        }
        // One for the page table, one for the swap cache.
        kept.iter().try_for_each(|&slot| had(slot, map.up(slot)))?;
        let tree = kept.iter().map(|&slot| (slot, u64::from(slot))).collect();
        Ok(Self {
            map: Mutex::new(map),
            tree: Mutex::new(tree),
            scattered: scattered(&kept),
            kept,
        })
    }

    fn map<R>(&self, work: impl FnOnce(&mut Map) -> R) -> R {
        work(&mut self.map.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn tree<R>(&self, work: impl FnOnce(&mut Tree) -> R) -> R {
        work(&mut self.tree.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Batches of slots; each slot takes the lock by itself, or once for its batch where they are grouped.
    fn allocate_and_free(&self, grouped: bool, times: usize) -> Result<(), Impossible> {
        for _ in 0..times.div_ceil(BATCH) {
            let mut batch = [0; BATCH];
            if grouped {
                self.map(|map| fill(map, &mut batch))?;
                self.map(|map| batch.iter().try_for_each(|&slot| had(slot, map.down(slot))))?;
                continue;
            }
            for at in &mut batch {
                *at = self.map(Map::alloc).ok_or(NO_ROOM)?;
            }
            batch
                .iter()
                .try_for_each(|&slot| had(slot, self.map(|map| map.down(slot))))?;
        }
        Ok(())
    }

    /// The page's count and the swap cache's.
    fn in_and_out(&self, me: usize, times: usize) -> Result<(), Impossible> {
        let gone = |slot| {
            self.tree(|tree| tree.remove(&slot));
            had(slot, self.map(|map| map.down(slot) && map.down(slot)))
        };
        let taken = |batch: &mut [u32]| {
            self.map(|map| {
                fill(map, batch)?;
                batch.iter().try_for_each(|&slot| had(slot, map.up(slot)))
            })?;
            self.tree(|tree| tree.extend(batch.iter().map(|&slot| (slot, u64::from(slot)))));
            Ok(())
        };
        exchange(&self.scattered[me], times, gone, taken)
    }
}

fn fill(map: &mut Map, batch: &mut [u32]) -> Result<(), Impossible> {
    batch.iter_mut().try_for_each(|at| {
        *at = map.alloc().ok_or(NO_ROOM)?;
        Ok(())
    })
}

impl Side for Replaced {
    fn work(&self, operation: Operation, me: usize, times: usize) -> Result<(), Impossible> {
        let mut around = share(&self.kept, me).iter().cycle().take(times);
        match operation {
            Operation::AllocateFree | Operation::AllocateFreeEmpty | Operation::AllocateFreeGrouped => {
                self.allocate_and_free(operation == Operation::AllocateFreeGrouped, times)
            }
            Operation::LookUp => {
                around.for_each(|&slot| {
                    black_box(self.tree(|tree| tree.get(&slot).copied()));
                });
                Ok(())
            }
            Operation::AddDelete => around.try_for_each(|&slot| {
                self.tree(|tree| tree.remove(&slot));
                had(slot, self.map(|map| map.down(slot)))?;
                had(slot, self.map(|map| map.up(slot)))?;
                self.tree(|tree| tree.insert(slot, u64::from(slot)));
                Ok(())
            }),
            Operation::Fork => around.try_for_each(|&slot| {
                had(slot, self.map(|map| map.up(slot)))?;
                had(slot, self.map(|map| map.down(slot)))
            }),
            Operation::InOut => self.in_and_out(me, times),
        }
    }

    fn used(&self) -> usize {
        self.map(|map| map.used())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More threads than CPUs, so that locks are met.
    #[test]
    fn both_sides_end_with_the_slots_they_began_with() {
        for name in SIDES {
            for operation in Operation::ALL {
                let side = side(name, operation).expect("made");
                timed(side.as_ref(), operation, 5, 20 * BATCH + 7).expect("works");
                assert_eq!(side.used(), KEPT, "{name}, {}", operation.name());
            }
        }
    }

    /// A slot that nobody has, as after a double free, ends the measurement on either side.
    #[test]
    fn a_contradiction_is_told() {
        let ours = Ours::new(true).expect("made");
        ours.memory.table().put(ours.kept[0], 1).expect("backed");
        assert!(timed(&ours, Operation::Fork, 2, BATCH).is_err());
        let replaced = Replaced::new(true).expect("made");
        let slot = replaced.kept[0];
        assert!(replaced.map(|map| map.down(slot) && map.down(slot)));
        assert!(timed(&replaced, Operation::AddDelete, 2, BATCH).is_err());
    }
}
