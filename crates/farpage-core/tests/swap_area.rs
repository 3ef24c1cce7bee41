//! The block map beside a naive model, and under threads.

use std::sync::Barrier;
use std::thread;

use farpage_core::swap_area::BlockMap;
use farpage_core::sync::{AtomicU32, AtomicU64, Ordering};
use proptest::prelude::*;

fn words(blocks: usize) -> Vec<AtomicU64> {
    (0..blocks).map(|_| AtomicU64::new(0)).collect()
}

/// The run the map should take: free runs in scan order, the first as long as asked for, else the first
/// longest.
fn naive_run(owners: &[u32], cursor: usize, wanted: usize) -> Option<(u64, usize)> {
    let start = if cursor < owners.len() { cursor } else { 0 };
    let mut runs = Vec::new();
    for part in [start..owners.len(), 0..start] {
        let mut at = part.start;
        while at < part.end {
            let len = owners[at..part.end]
                .iter()
                .take_while(|owner| **owner == 0)
                .count();
            if len > 0 {
                runs.push((at as u64, len.min(wanted)));
            }
            at += len.max(1);
        }
    }
    let longest = runs.iter().map(|run| run.1).max()?;
    runs.into_iter().find(|run| run.1 == longest)
}

proptest! {
    #[test]
    fn follows_the_model(
        blocks in 1..80usize,
        events in prop::collection::vec(
            (1..9usize, prop::collection::vec(0..80u64, 0..8), any::<u32>()),
            0..60,
        ),
        jump: bool,
    ) {
        let words = words(blocks);
        let map = BlockMap { words: &words };
        let (cursor, mut owners) = (AtomicU32::new(0), vec![0u32; blocks]);
        for (next_slot, (wanted, freed, crc)) in (1u32..).step_by(16).zip(events) {
            let slots: Vec<u32> = (next_slot..).take(wanted).collect();
            if jump {
                cursor.store(crc % 90, Ordering::Relaxed);
            }
            let expected = naive_run(&owners, cursor.load(Ordering::Relaxed) as usize, wanted);
            let got = map.alloc_run(&cursor, &slots);
            prop_assert_eq!(got, expected);
            if let Some((first, n)) = got {
                owners[first as usize..first as usize + n].copy_from_slice(&slots[..n]);
                prop_assert!(map.set_crc(first, crc));
                prop_assert_eq!(map.crc(first), crc);
            }
            for block in freed {
                map.free(block);
                if let Some(owner) = owners.get_mut(block as usize) {
                    *owner = 0;
                }
            }
            prop_assert!((0u64..).zip(&owners).all(|(block, &owner)| map.owner(block) == owner));
        }
    }
}

/// Threads as processes, all at the same cursor: no block ever belongs to two slots, and every run is whole.
#[test]
fn threads_never_share_a_block() {
    const THREADS: u32 = 4;
    let words = words(256);
    let map = BlockMap { words: &words };
    let cursor = AtomicU32::new(0);
    let barrier = Barrier::new(THREADS as usize);
    let body = |me: u32| {
        let mut mine: Vec<(u64, u32)> = Vec::new();
        barrier.wait();
        for round in 0..20_000u32 {
            let slots: Vec<u32> = (0..1 + round % 7)
                .map(|i| (round * 8 + i) * THREADS + me + 1)
                .collect();
            if let Some((first, n)) = map.alloc_run(&cursor, &slots) {
                for (block, &slot) in (first..).zip(&slots[..n]) {
                    assert!(map.set_crc(block, !slot));
                    mine.push((block, slot));
                }
            }
            while mine.len() > 40 {
                let (block, slot) = mine.swap_remove(round as usize % mine.len());
                assert_eq!((map.owner(block), map.crc(block)), (slot, !slot));
                map.free(block);
            }
        }
        mine.into_iter().for_each(|(block, _)| map.free(block));
    };
    thread::scope(|scope| (0..THREADS).for_each(|me| drop(scope.spawn(move || body(me)))));
    assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
}
