//! The zpool beside a naive model, and under threads.

#[allow(dead_code, reason = "the models of the other structures are for other tests")]
mod models;

use std::sync::Barrier;
use std::thread;

use farpage_core::zpool::{Handle, OBJECT_MAX, ZpoolHints};
use models::zpool::{Event, Memory, follow};
use proptest::prelude::*;

fn event() -> impl Strategy<Value = Event> {
    // Few sizes, so that zpages fill and classes compete; one that is too large.
    let bytes = prop_oneof![
        Just(17usize),
        Just(1000),
        Just(2700),
        Just(OBJECT_MAX),
        Just(OBJECT_MAX + 1),
        0..5000usize
    ];
    prop_oneof![
        6 => bytes.prop_map(Event::Alloc),
        4 => any::<usize>().prop_map(Event::Free),
        1 => any::<usize>().prop_map(Event::FreeAndDie),
        1 => Just(Event::Clean),
        2 => any::<usize>().prop_map(Event::Move),
    ]
}

proptest! {
    #[test]
    fn follows_the_model(events in prop::collection::vec(event(), 0..150), limit in 0..7usize) {
        follow(events, limit);
    }
}

/// Threads as processes in a pool so small that zpages empty, are punched and change class all the time.
fn hammer(zpages: usize, limit: usize, sizes: &[usize], keep: usize) {
    const THREADS: u32 = 4;
    let memory = Memory::new(zpages);
    let barrier = Barrier::new(THREADS as usize);
    let body = |me: u32| {
        let (pool, hints) = (memory.pool(), ZpoolHints::new());
        let mut mine: Vec<(Handle, u32)> = Vec::new();
        barrier.wait();
        for round in 0..6_000u32 {
            let slot = round * THREADS + me + 1;
            if let Some(handle) = pool.alloc(&hints, limit, sizes[round as usize % sizes.len()], slot) {
                assert_eq!(pool.owner_slot(handle), slot);
                memory.fill(handle, slot);
                mine.push((handle, slot));
            }
            let target = if round % 64 < 8 { 0 } else { keep };
            while mine.len() > target {
                let (handle, slot) = mine.swap_remove(round as usize % mine.len());
                assert!(memory.is_filled(handle, slot), "somebody wrote into it");
                assert_eq!(pool.owner_slot(handle), slot);
                memory.free(handle, me as u16);
            }
        }
        mine.into_iter()
            .for_each(|(handle, _)| memory.free(handle, me as u16));
    };
    thread::scope(|scope| (0..THREADS).for_each(|me| drop(scope.spawn(move || body(me)))));
    memory.assert_empty();
}

#[test]
fn threads_in_one_large_class() {
    hammer(2, 2, &[OBJECT_MAX], 1);
}

#[test]
fn threads_in_competing_classes() {
    hammer(5, 4, &[4000, 1000, 2700, 64, 1000], 6);
}

#[test]
fn threads_in_small_objects() {
    hammer(3, 3, &[40], 60);
}
