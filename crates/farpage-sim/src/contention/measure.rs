//! What the operations cost on this machine, each alone: the median over batches, on devices half full and as fragmented
//! as random frees make them.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use farpage_core::cluster::CLUSTER_SLOTS;
use farpage_core::slots::Request;
use farpage_core::swap_table::Backing;

use super::baseline::{Map, Tree};
use super::costs::Costs;
use super::memory::Memory;
use crate::rng::Rng;

const PAGES: usize = 64 * 1024;
/// Operations timed together.
const BATCH: usize = 64;
const BATCHES: usize = 1500;

/// Nanoseconds of each batch, by what was done.
#[derive(Debug, Default)]
struct Times(BTreeMap<&'static str, Vec<u64>>);

impl Times {
    /// Does `work`, which says how many operations that was.
    fn take(&mut self, name: &'static str, work: impl FnOnce() -> usize) {
        let start = Instant::now();
        let operations = work().max(1) as u64;
        let ns = start.elapsed().as_nanos() as u64;
        self.0.entry(name).or_default().push(ns.div_ceil(operations));
    }

    /// The median, at least 1.
    fn of(&mut self, name: &str) -> u64 {
        let Some(times) = self.0.get_mut(name) else {
            return 1;
        };
        times.sort_unstable();
        times.get(times.len() / 2).map_or(1, |ns| (*ns).max(1))
    }
}

/// Measures; takes a second or so.
///
/// # Errors
/// If the structures contradict themselves.
pub fn measure() -> Result<Costs, String> {
    let mut times = Times::default();
    core(&mut times)?;
    baseline(&mut times)?;
    Ok(Costs {
        visit: times.of("visit"),
        visit_one: times.of("visit_one"),
        release: times.of("release"),
        release_next: times.of("release_next"),
        sweep: times.of("sweep"),
        publish: times.of("publish"),
        put: times.of("put"),
        look_up: times.of("look_up"),
        map_alloc: times.of("map_alloc"),
        map_count: times.of("map_count"),
        tree_insert: times.of("tree_insert"),
        tree_delete: times.of("tree_delete"),
        tree_look: times.of("tree_look"),
        ..Costs::FIXED
    })
}

const OWNER: u16 = 1;
const REQUEST: Request = Request {
    owner: OWNER,
    cpu: 0,
    order: 0,
    want: BATCH,
    has_file: true,
};

/// Takes `count` slots in runs of up to `most`, each of which gets content.
fn take(
    memory: &Memory,
    (count, most): (usize, usize),
    into: &mut Vec<u32>,
    times: &mut Times,
) -> Result<(), String> {
    let from = into.len();
    let view = memory.slots();
    let name = if most == 1 { "visit_one" } else { "visit" };
    while into.len() < from + count {
        let had = into.len();
        // Single slots are too quick to be timed one by one.
        times.take(name, || {
            while into.len() < from + count {
                let want = (from + count - into.len()).min(most);
                let Some(run) = view.alloc(&Request { want, ..REQUEST }) else {
                    break;
                };
                into.extend(run.first..run.first + run.count as u32);
                if most > 1 {
                    break;
                }
            }
            view.take_tally().locks as usize
        });
        if into.len() == had {
            return Err("the devices are full".to_owned());
        }
    }
    let mut result = Ok(());
    times.take("publish", || {
        for &slot in &into[from..] {
            result = result.and(memory.table().publish(slot, Backing::Device { crc: slot }));
        }
        count
    });
    result.map_err(|wrong| wrong.to_string())
}

fn core(times: &mut Times) -> Result<(), String> {
    let memory = Memory::new(1, 2 * PAGES);
    let (mut rng, mut held) = (Rng::new(1), Vec::new());
    take(&memory, (PAGES, BATCH), &mut held, &mut Times::default())?;
    // As many as there are slots are freed and taken first, so that free slots lie scattered.
    for batch in 0..BATCHES + PAGES / BATCH {
        let mut unseen = Times::default();
        let times = if batch < PAGES / BATCH {
            &mut unseen
        } else {
            &mut *times
        };
        let picked: Vec<u32> = (0..BATCH)
            .map(|_| held.swap_remove(rng.below(held.len())))
            .collect();
        times.take("look_up", || {
            for &slot in &picked {
                black_box(memory.table().load(slot).backing());
            }
            BATCH
        });
        let mut result = Ok(());
        times.take("put", || {
            for &slot in &picked {
                result = result.and(memory.table().put(slot, OWNER).map(|_| ()));
            }
            BATCH
        });
        let view = memory.slots();
        times.take("release", || {
            for slot in &picked {
                result = result.and(view.release(std::slice::from_ref(slot), OWNER));
            }
            BATCH
        });
        result.map_err(|wrong| wrong.to_string())?;
        // A batch of single slots, then one of runs.
        let most = if batch % 2 == 0 { 1 } else { BATCH };
        take(&memory, (BATCH, most), &mut held, times)?;
    }
    whole_clusters(&Memory::new(1, 2 * PAGES), times)
}

/// What is done to many slots of one cluster at once.
fn whole_clusters(memory: &Memory, times: &mut Times) -> Result<(), String> {
    let view = memory.slots();
    for _ in 0..100 {
        let request = Request {
            order: CLUSTER_SLOTS.trailing_zeros() as usize,
            want: 1,
            ..REQUEST
        };
        let run = view.alloc(&request).ok_or("no cluster is free")?;
        let all: Vec<u32> = (run.first..run.first + run.count as u32).collect();
        let (apart, together) = all.split_at(all.len() / 2);
        let cluster = run.first / CLUSTER_SLOTS as u32;
        let holder = view.try_lock(cluster, OWNER + 1).ok_or("nobody else locks")?;
        let mut result = view.release(apart, OWNER);
        times.take("sweep", || {
            view.unlock_unchanged(holder);
            1
        });
        times.take("release_next", || {
            result = result.and(view.release(together, OWNER));
            together.len()
        });
        result.map_err(|wrong| wrong.to_string())?;
    }
    Ok(())
}

fn baseline(times: &mut Times) -> Result<(), String> {
    let (mut map, mut tree, mut rng) = (Map::new(2 * PAGES), Tree::new(), Rng::new(1));
    let mut held: Vec<u32> = (0..PAGES).filter_map(|_| map.alloc()).collect();
    // The cache holds what is on its way: some pages of each of many CPUs.
    for &slot in held.iter().step_by(16) {
        tree.insert(slot, 0);
    }
    for batch in 0..BATCHES + PAGES / BATCH {
        let mut unseen = Times::default();
        let times = if batch < PAGES / BATCH {
            &mut unseen
        } else {
            &mut *times
        };
        let picked: Vec<u32> = (0..BATCH)
            .map(|_| held.swap_remove(rng.below(held.len())))
            .collect();
        times.take("tree_look", || {
            for slot in &picked {
                black_box(tree.get(slot));
            }
            BATCH
        });
        times.take("tree_insert", || {
            for slot in &picked {
                tree.insert(*slot, 0);
            }
            BATCH
        });
        times.take("tree_delete", || {
            for slot in &picked {
                tree.remove(slot);
            }
            BATCH
        });
        times.take("map_count", || {
            for slot in &picked {
                map.down(*slot);
            }
            BATCH
        });
        let had = held.len();
        times.take("map_alloc", || {
            held.extend((0..BATCH).filter_map(|_| map.alloc()));
            BATCH
        });
        if held.len() != had + BATCH {
            return Err("the map is full".to_owned());
        }
    }
    Ok(())
}
