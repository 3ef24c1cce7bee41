//! What the core's operations cost, per operation: `cargo bench -p farpage-core`.
//!
//! `-- --save FILE` keeps the figures, `-- --baseline FILE` shows them beside kept ones. Each figure is the median of
//! several rounds; with two threads it is wall time over the operations of both.

#[allow(dead_code, reason = "the models are for the tests")]
#[path = "../tests/models/mod.rs"]
mod models;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;
use std::{env, fs, thread};

use farpage_core::devices::Device;
use farpage_core::slot_cache::SlotCache;
use farpage_core::slots::Request;
use farpage_core::swap_table::Backing;
use farpage_core::zpool::{Handle, ZpoolHints};
use models::{slots_memory, zpool};

const ROUNDS: usize = 7;
const TURNS: usize = 400;
const BATCH: usize = 64;
const DEVICES: [Device; 1] = [Device {
    first_cluster: 1,
    slots: 512 * 256,
    priority: 0,
    has_file: true,
    rotates: false,
    discards: false,
}];

/// The median of nanoseconds per operation: `work` is done by each of `threads` and says how many it did.
fn measure(threads: u32, work: impl Fn(u32) -> usize + Sync) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let barrier = Barrier::new(threads as usize + 1);
            let body = |me| {
                barrier.wait();
                work(me)
            };
            thread::scope(|scope| {
                let running: Vec<_> = (0..threads).map(|me| scope.spawn(move || body(me))).collect();
                barrier.wait();
                let start = Instant::now();
                let operations: usize = running.into_iter().map(|t| t.join().expect("ends")).sum();
                start.elapsed().as_nanos() as f64 / operations as f64
            })
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// A batch is taken, published, put and given back, each slot by itself or by way of a slot cache.
fn allocate_and_free(memory: &slots_memory::Memory, me: u32, mut cache: Option<SlotCache>) -> usize {
    let (slots, table, owner) = (memory.slots(), memory.table(), me as u16 + 1);
    let request = Request {
        owner,
        cpu: me,
        order: 0,
        want: BATCH,
        has_file: true,
    };
    let mut done = 0;
    for _ in 0..TURNS {
        let run = slots.alloc(&request).expect("room");
        for slot in run.first..run.first + run.count as u32 {
            table.publish(slot, Backing::Device { crc: slot }).expect("busy");
            let _ = black_box(table.put(slot, owner));
            match cache.as_mut() {
                None => slots.release(&[slot], owner).expect("ours"),
                Some(cache) => {
                    if let Some(all) = cache.free(slot) {
                        slots.release(&all, owner).expect("ours");
                    }
                }
            }
            done += 1;
        }
    }
    if let Some((rest, len)) = cache.as_mut().map(SlotCache::drain_freed) {
        slots.release(&rest[..len], owner).expect("ours");
    }
    done
}

fn look_up() -> f64 {
    let memory = slots_memory::Memory::new(&DEVICES);
    let request = Request {
        owner: 1,
        cpu: 0,
        order: 9,
        want: 1,
        has_file: true,
    };
    let first = memory.slots().alloc(&request).expect("room").first;
    for slot in first..first + 512 {
        memory
            .table()
            .publish(slot, Backing::Device { crc: slot })
            .expect("busy");
    }
    measure(1, |_| {
        for turn in 0..TURNS as u32 * 512 {
            black_box(memory.table().load(first + turn.wrapping_mul(97) % 512).backing());
        }
        TURNS * 512
    })
}

/// Places are taken, filled, read and freed; no codec.
fn store_and_load() -> f64 {
    let memory = zpool::Memory::new(64);
    let hints = ZpoolHints::new();
    measure(1, |_| {
        for turn in 0..TURNS {
            let stored: Vec<Handle> = (1..=BATCH as u32)
                .map(|slot| {
                    let bytes = 400 + (turn * 37 + slot as usize * 61) % 2600;
                    memory.pool().alloc(&hints, 64, bytes, slot).expect("room")
                })
                .collect();
            for (slot, handle) in (1..).zip(stored) {
                memory.fill(handle, slot);
                assert!(memory.is_filled(handle, slot));
                memory.free(handle, 1);
            }
        }
        TURNS * BATCH
    })
}

fn kept(path: &str) -> BTreeMap<String, f64> {
    let text = fs::read_to_string(path).expect("a file written with --save");
    let pair = |line: &str| {
        line.split_once('\t')
            .map(|(name, ns)| (name.to_owned(), ns.parse().expect("ns")))
    };
    text.lines().filter_map(pair).collect()
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|a| a == name)?;
        arguments.get(at + 1).cloned()
    };
    let baseline = value("--baseline").map_or_else(BTreeMap::new, |path| kept(&path));
    let mut figures = Vec::new();
    for threads in [1, 2] {
        for cache in [None, Some(SlotCache::new())] {
            let memory = slots_memory::Memory::new(&DEVICES);
            let ns = measure(threads, |me| allocate_and_free(&memory, me, cache));
            let policy = if cache.is_some() {
                "cache"
            } else {
                "percpu-cluster"
            };
            figures.push((
                format!("allocate, publish, put, free; {policy}, threads {threads}"),
                ns,
            ));
        }
    }
    figures.push(("swap table look-up".to_owned(), look_up()));
    figures.push(("zpool store and load, no codec".to_owned(), store_and_load()));
    let mut text = String::new();
    for (name, ns) in figures {
        let beside = baseline
            .get(&name)
            .map(|old| format!("  was {old:.1}, ratio {:.2}", ns / old));
        println!("{name:55} {ns:8.1} ns{}", beside.unwrap_or_default());
        text += &format!("{name}\t{ns}\n");
    }
    if let Some(path) = value("--save") {
        fs::write(path, text).expect("written");
    }
}
