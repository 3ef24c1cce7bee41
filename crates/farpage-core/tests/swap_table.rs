//! The swap table beside a naive model, and under threads.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::thread;

use farpage_core::swap_table::{Backing, CLUSTER_SLOTS, SlotKind, SwapTable};
use farpage_core::sync::{AtomicU32, AtomicU64, Ordering};
use farpage_core::zpool::Handle;
use proptest::prelude::*;

struct Memory {
    words: Vec<AtomicU64>,
    hints: Vec<AtomicU32>,
}

impl Memory {
    fn new(slots: usize) -> Self {
        let hints = (0..slots.div_ceil(CLUSTER_SLOTS))
            .map(|_| AtomicU32::new(0))
            .collect();
        Self {
            words: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            hints,
        }
    }

    fn table(&self) -> SwapTable<'_> {
        SwapTable::new(&self.words, &self.hints)
    }
}

/// What the naive table knows of a slot that is not free.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Known {
    Busy(u16),
    Backed(Backing, u16),
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Alloc(u16),
    Publish(u32, Backing),
    Dup(u32),
    Put(u32, u16),
    Release(u32),
    Replace(u32, Backing),
    /// A death left this cluster's hint wrong.
    Lie(usize, u32),
}

const SLOTS: usize = CLUSTER_SLOTS + 40;

fn backing() -> impl Strategy<Value = Backing> {
    prop_oneof![
        (0..1u64 << 40).prop_map(|h| Backing::Compressed(Handle(h))),
        (0..32u8, 0..1u64 << 35).prop_map(|(area, block)| Backing::File { area, block }),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let slot = || 0..12u32;
    prop_oneof![
        4 => (0..3u16).prop_map(Event::Alloc),
        4 => (slot(), backing()).prop_map(|(s, b)| Event::Publish(s, b)),
        2 => slot().prop_map(Event::Dup),
        4 => (slot(), 0..3u16).prop_map(|(s, o)| Event::Put(s, o)),
        3 => slot().prop_map(Event::Release),
        2 => (slot(), backing()).prop_map(|(s, b)| Event::Replace(s, b)),
        1 => (0..2usize, any::<u32>()).prop_map(|(c, n)| Event::Lie(c, n)),
    ]
}

fn apply(memory: &Memory, cursor: &AtomicU32, model: &mut BTreeMap<u32, Known>, event: Event) {
    let table = memory.table();
    match event {
        Event::Alloc(owner) => {
            // The cursor goes back, so that slots are used again soon.
            cursor.store(0, Ordering::Relaxed);
            let slot = table.alloc(owner, cursor).expect("far more slots than events");
            assert!(slot != 0 && model.insert(slot, Known::Busy(owner)).is_none());
        }
        Event::Publish(slot, backing) => {
            let busy = matches!(model.get(&slot), Some(Known::Busy(_)));
            assert_eq!(table.publish(slot, backing).is_ok(), busy);
            if busy {
                model.insert(slot, Known::Backed(backing, 1));
            }
        }
        Event::Dup(slot) => match model.get_mut(&slot) {
            Some(Known::Backed(_, count)) => {
                *count += 1;
                table.dup(slot).unwrap();
            }
            _ => assert!(table.dup(slot).is_err()),
        },
        Event::Put(slot, owner) => match model.get(&slot).copied() {
            Some(Known::Backed(backing, 1)) => {
                assert_eq!(table.put(slot, owner), Ok(Some(backing)));
                model.insert(slot, Known::Busy(owner));
            }
            Some(Known::Backed(backing, count)) => {
                assert_eq!(table.put(slot, owner), Ok(None));
                model.insert(slot, Known::Backed(backing, count - 1));
            }
            _ => assert!(table.put(slot, owner).is_err()),
        },
        Event::Release(slot) => {
            table.release(slot);
            if let Some(Known::Busy(_)) = model.get(&slot) {
                model.remove(&slot);
            }
        }
        Event::Replace(slot, new) => {
            let seen = table.load(slot);
            let backed = matches!(model.get(&slot), Some(Known::Backed(..)));
            assert_eq!(table.replace_backing(slot, seen, new), backed);
            assert!(!table.replace_backing(slot, seen, new), "an old word is refused");
            if let Some(Known::Backed(old, _)) = model.get_mut(&slot) {
                *old = new;
            }
        }
        Event::Lie(cluster, used) => memory.hints[cluster].store(used, Ordering::Relaxed),
    }
}

fn compare(table: SwapTable<'_>, model: &BTreeMap<u32, Known>) {
    for slot in 0..SLOTS as u32 {
        let word = table.load(slot);
        match model.get(&slot) {
            None => assert_eq!(
                (word.kind(), word.count(), word.location()),
                (SlotKind::Free, 0, 0)
            ),
            Some(Known::Busy(owner)) => assert_eq!((word.owner(), word.count()), (Some(*owner), 0)),
            Some(Known::Backed(backing, count)) => {
                assert_eq!((word.backing(), word.count()), (Some(*backing), *count));
            }
        }
    }
    for owner in 0..3 {
        let busy = model
            .iter()
            .filter(|(_, known)| **known == Known::Busy(owner))
            .map(|(slot, _)| *slot);
        assert!(table.busy_of(owner).eq(busy));
    }
}

proptest! {
    #[test]
    fn follows_the_model(events in prop::collection::vec(event(), 0..200)) {
        let memory = Memory::new(SLOTS);
        let (cursor, mut model, mut lied) = (AtomicU32::new(0), BTreeMap::new(), false);
        for event in events {
            lied |= matches!(event, Event::Lie(..));
            apply(&memory, &cursor, &mut model, event);
        }
        compare(memory.table(), &model);
        prop_assert!(memory.table().used() < SLOTS as u64);
        if !lied {
            prop_assert_eq!(memory.table().used(), model.len() as u64);
        }
    }

    #[test]
    fn every_free_slot_is_found(
        cursor: u32,
        hints: [u32; 2],
        free in prop::collection::btree_set(1..SLOTS as u32, 0..20),
    ) {
        let memory = Memory::new(SLOTS);
        let table = memory.table();
        let all = AtomicU32::new(0);
        while table.alloc(1, &all).is_some() {}
        free.iter().for_each(|&slot| table.release(slot));
        memory.hints.iter().zip(hints).for_each(|(hint, lie)| hint.store(lie, Ordering::Relaxed));
        let cursor = AtomicU32::new(cursor);
        let mut got: Vec<u32> = std::iter::from_fn(|| table.alloc(2, &cursor)).collect();
        got.sort_unstable();
        prop_assert!(free.into_iter().eq(got));
    }
}

/// Threads as processes: each takes, publishes, shares with itself and gives back; no slot ever has two
/// owners.
#[test]
fn threads_never_share_a_slot() {
    const THREADS: u16 = 4;
    let memory = Memory::new(600);
    let owners: Vec<AtomicU32> = (0..600).map(|_| AtomicU32::new(0)).collect();
    let barrier = Barrier::new(usize::from(THREADS));
    let body = |me: u16| {
        let (table, cursor, mut mine) = (memory.table(), AtomicU32::new(u32::from(me)), Vec::new());
        barrier.wait();
        for round in 0..20_000u64 {
            if let Some(slot) = table.alloc(me, &cursor) {
                assert_eq!(
                    owners[slot as usize].swap(u32::from(me) + 1, Ordering::Relaxed),
                    0
                );
                let backing = Backing::Compressed(Handle((round << 8) | u64::from(me)));
                table.publish(slot, backing).unwrap();
                table.dup(slot).unwrap();
                mine.push((slot, backing));
            }
            if mine.len() >= 140 || round % 3 == 0 {
                let at = round as usize % mine.len();
                let (slot, backing) = mine.swap_remove(at);
                assert_eq!(table.put(slot, me), Ok(None));
                assert_eq!(table.put(slot, me), Ok(Some(backing)));
                owners[slot as usize].store(0, Ordering::Relaxed);
                table.release(slot);
            }
        }
        mine.len()
    };
    let left: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|me| scope.spawn(move || body(me))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert_eq!(
        memory.table().used(),
        left as u64,
        "hints are exact when nobody dies"
    );
    assert!((0..THREADS).all(|me| memory.table().busy_of(me).next().is_none()));
}

/// Many hold one slot and let go at once while a writer moves it: exactly one gets the backing, and it is the
/// last one.
#[test]
fn the_last_put_gets_the_backing_that_is_there() {
    let memory = Memory::new(2);
    let table = memory.table();
    let barrier = Barrier::new(4);
    let (freed, round_trips) = (AtomicU64::new(0), 3000u64);
    let holder = |me: u16| {
        for _ in 0..round_trips {
            barrier.wait();
            table.dup(1).unwrap();
            for _ in 0..2 {
                if let Some(backing) = table.put(1, me).unwrap() {
                    let Backing::File { block, .. } = backing else {
                        panic!("never moved: {backing:?}")
                    };
                    freed.store(block, Ordering::Relaxed);
                    table.release(1);
                }
            }
            barrier.wait();
        }
    };
    thread::scope(|scope| {
        for me in 0..2 {
            scope.spawn(move || holder(me));
        }
        let mover = scope.spawn(|| {
            for round in 0..round_trips {
                barrier.wait();
                // Holds a reference of its own, so the slot stays backed meanwhile.
                let seen = table.load(1);
                assert!(table.replace_backing(
                    1,
                    seen,
                    Backing::File {
                        area: 1,
                        block: round + 1
                    }
                ));
                assert!(!table.replace_backing(1, seen, Backing::File { area: 2, block: 0 }));
                if let Some(backing) = table.put(1, 2).unwrap() {
                    assert_eq!(
                        backing,
                        Backing::File {
                            area: 1,
                            block: round + 1
                        }
                    );
                    freed.store(round + 1, Ordering::Relaxed);
                    table.release(1);
                }
                barrier.wait();
            }
        });
        for round in 0..round_trips {
            freed.store(0, Ordering::Relaxed);
            assert_eq!(table.alloc(3, &AtomicU32::new(1)), Some(1));
            table.publish(1, Backing::Compressed(Handle(round))).unwrap();
            table.dup(1).unwrap();
            table.dup(1).unwrap();
            barrier.wait();
            barrier.wait();
            assert_eq!(
                (freed.load(Ordering::Relaxed), table.load(1).kind()),
                (round + 1, SlotKind::Free)
            );
        }
        mover.join().unwrap();
    });
}
