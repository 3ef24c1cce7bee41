//! What the zpool costs per object, without a codec: `make bench-zpool`. The median of several rounds. Slots and swap table
//! are timed in microbench/.

#[allow(dead_code, reason = "the models are for the tests")]
#[path = "../tests/models/mod.rs"]
mod models;

use std::time::Instant;

use farpage_core::zpool::{Handle, ZpoolHints};
use models::zpool;

const ROUNDS: usize = 7;
const TURNS: usize = 400;
const BATCH: usize = 64;

/// Places are taken, filled, read and freed.
fn store_and_load(memory: &zpool::Memory, hints: &ZpoolHints) {
    for turn in 0..TURNS {
        let stored: Vec<Handle> = (1..=BATCH as u32)
            .map(|slot| {
                let bytes = 400 + (turn * 37 + slot as usize * 61) % 2600;
                memory.pool().alloc(hints, 64, bytes, slot).expect("room")
            })
            .collect();
        for (slot, handle) in (1..).zip(stored) {
            memory.fill(handle, slot);
            assert!(memory.is_filled(handle, slot));
            memory.free(handle, 1);
        }
    }
}

fn main() {
    let (memory, hints) = (zpool::Memory::new(64), ZpoolHints::new());
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            store_and_load(&memory, &hints);
            start.elapsed().as_nanos() as f64 / (TURNS * BATCH) as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("store, read and free an object: {:.1} ns", rounds[ROUNDS / 2]);
}
