//! The zpool beside a naive model, and under threads.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::thread;

use farpage_core::sync::{AtomicU32, AtomicU64, Ordering};
use farpage_core::zpool::{Handle, OBJECT_MAX, ZPAGE_BYTES, Zpool, ZpoolHints};
use proptest::prelude::*;

const ZPAGE_WORDS: usize = ZPAGE_BYTES / 4;

struct Memory {
    descs: Vec<AtomicU64>,
    data: Vec<AtomicU32>,
    used: AtomicU64,
}

impl Memory {
    fn new(zpages: usize) -> Self {
        let data = (0..zpages * ZPAGE_WORDS).map(|_| AtomicU32::new(0)).collect();
        Self {
            descs: (0..zpages).map(|_| AtomicU64::new(0)).collect(),
            data,
            used: AtomicU64::new(0),
        }
    }

    fn pool(&self) -> Zpool<'_> {
        Zpool {
            descs: &self.descs,
            data: &self.data,
            used: &self.used,
        }
    }

    /// The words of an object after its owner slot.
    fn body(&self, handle: Handle) -> &[AtomicU32] {
        let (offset, bytes) = (self.pool().offset(handle), self.pool().capacity(handle));
        &self.data[offset / 4 + 1..(offset + bytes) / 4]
    }

    fn fill(&self, handle: Handle, value: u32) {
        self.body(handle)
            .iter()
            .for_each(|word| word.store(value, Ordering::Relaxed));
    }

    fn is_filled(&self, handle: Handle, value: u32) -> bool {
        self.body(handle)
            .iter()
            .all(|word| word.load(Ordering::Relaxed) == value)
    }

    fn punch(&self, zpage: usize) {
        let words = &self.data[zpage * ZPAGE_WORDS..(zpage + 1) * ZPAGE_WORDS];
        words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// What a caller does with an object it no longer needs.
    fn free(&self, handle: Handle, owner: u16) {
        if let Some(zpage) = self.pool().free(handle, owner).unwrap() {
            self.punch(zpage);
            self.pool().release_zpage(zpage);
        }
    }

    fn assert_empty(&self) {
        assert!(self.descs.iter().all(|desc| desc.load(Ordering::Relaxed) == 0));
        assert!(self.data.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        assert_eq!(
            (self.used.load(Ordering::Relaxed), self.pool().count_used()),
            (0, 0)
        );
    }
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Alloc(usize),
    Free(usize),
    /// The process dies between emptying a zpage and releasing it, if this frees the last object.
    FreeAndDie(usize),
    /// The supervisor cleans up after the dead.
    Clean,
}

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
    ]
}

const DEAD: u16 = 999;

proptest! {
    #[test]
    fn follows_the_model(events in prop::collection::vec(event(), 0..150), limit in 0..7usize) {
        let memory = Memory::new(6);
        let (pool, hints) = (memory.pool(), ZpoolHints::new());
        let mut live: BTreeMap<u64, (u32, usize)> = BTreeMap::new();
        for (slot, event) in (1u32..).zip(events) {
            let pick = |n: usize| live.keys().nth(n % live.len().max(1)).map(|&h| Handle(h));
            match event {
                Event::Alloc(bytes) => {
                    let got = pool.alloc(&hints, limit, bytes, slot);
                    if let Some(handle) = got {
                        let (offset, capacity) = (pool.offset(handle), pool.capacity(handle));
                        prop_assert!(capacity >= bytes && capacity < bytes.max(1) + 64);
                        prop_assert!(offset % 64 == 0 && offset % ZPAGE_BYTES + capacity <= ZPAGE_BYTES);
                        prop_assert_eq!(pool.owner_slot(handle), slot);
                        prop_assert!(live.insert(handle.0, (slot, bytes)).is_none(), "handed out twice");
                        memory.fill(handle, slot);
                    } else {
                        let used = memory.used.load(Ordering::Relaxed);
                        prop_assert!(bytes > OBJECT_MAX || used >= limit.min(6) as u64);
                    }
                }
                Event::Free(n) | Event::FreeAndDie(n) => if let Some(handle) = pick(n) {
                    let (slot, _) = live.remove(&handle.0).unwrap();
                    prop_assert!(memory.is_filled(handle, slot), "somebody wrote into it");
                    if let Event::FreeAndDie(_) = event {
                        let last = !live.keys().any(|&h| Handle(h).zpage() == handle.zpage());
                        let emptied = pool.free(handle, DEAD).unwrap();
                        prop_assert_eq!(emptied, last.then_some(handle.zpage()));
                    } else {
                        memory.free(handle, 1);
                    }
                    prop_assert!(pool.free(handle, 1).is_err(), "twice");
                },
                Event::Clean => {
                    for zpage in pool.emptying_of(DEAD) {
                        memory.punch(zpage);
                        pool.release_zpage(zpage);
                    }
                    prop_assert_eq!(pool.emptying_of(DEAD).count(), 0);
                }
            }
            prop_assert_eq!(memory.used.load(Ordering::Relaxed), pool.count_used());
            prop_assert!(pool.count_used() <= limit as u64);
            let listed = (0..6).flat_map(|zpage| pool.objects(zpage));
            let listed: BTreeMap<u64, u32> = listed.map(|(h, s)| (h.0, s)).collect();
            prop_assert!(listed.into_iter().eq(live.iter().map(|(&h, &(s, _))| (h, s))));
        }
        for (handle, (slot, _)) in live {
            prop_assert!(memory.is_filled(Handle(handle), slot));
            memory.free(Handle(handle), 1);
        }
        for zpage in pool.emptying_of(DEAD) {
            memory.punch(zpage);
            pool.release_zpage(zpage);
        }
        memory.assert_empty();
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
