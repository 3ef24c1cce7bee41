//! The zpool beside a map from handle to slot.

use std::collections::BTreeMap;

use farpage_core::sync::{AtomicU32, AtomicU64, Ordering};
use farpage_core::zpool::{
    CLASSES, Handle, OBJECT_MAX, ZPAGE_BYTES, Zpool, ZpoolHints, class_bytes, class_of,
};

use super::Input;

const ZPAGE_WORDS: usize = ZPAGE_BYTES / 4;

pub struct Memory {
    descs: Vec<AtomicU64>,
    data: Vec<AtomicU32>,
    pub used: AtomicU64,
}

impl Memory {
    pub fn new(zpages: usize) -> Self {
        let data = (0..zpages * ZPAGE_WORDS).map(|_| AtomicU32::new(0)).collect();
        Self {
            descs: (0..zpages).map(|_| AtomicU64::new(0)).collect(),
            data,
            used: AtomicU64::new(0),
        }
    }

    pub fn pool(&self) -> Zpool<'_> {
        Zpool {
            descs: &self.descs,
            data: &self.data,
            used: &self.used,
        }
    }

    /// The words of an object after its owner slot.
    pub fn body(&self, handle: Handle) -> &[AtomicU32] {
        let (offset, bytes) = (self.pool().offset(handle), self.pool().capacity(handle));
        &self.data[offset / 4 + 1..(offset + bytes) / 4]
    }

    pub fn fill(&self, handle: Handle, value: u32) {
        self.body(handle)
            .iter()
            .for_each(|word| word.store(value, Ordering::Relaxed));
    }

    pub fn is_filled(&self, handle: Handle, value: u32) -> bool {
        self.body(handle)
            .iter()
            .all(|word| word.load(Ordering::Relaxed) == value)
    }

    pub fn punch(&self, zpage: usize) {
        let words = &self.data[zpage * ZPAGE_WORDS..(zpage + 1) * ZPAGE_WORDS];
        words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// What a caller does with an object it no longer needs.
    pub fn free(&self, handle: Handle, owner: u16) {
        let slot = self.pool().owner_slot(handle);
        if let Some(zpage) = self.pool().free(handle, slot, owner).unwrap() {
            self.punch(zpage);
            self.pool().release_zpage(zpage);
        }
    }

    pub fn assert_empty(&self) {
        assert!(self.descs.iter().all(|desc| desc.load(Ordering::Relaxed) == 0));
        assert!(self.data.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        assert_eq!(
            (self.used.load(Ordering::Relaxed), self.pool().count_used()),
            (0, 0)
        );
    }
}

#[derive(Debug, Clone, Copy)]
pub enum Event {
    Alloc(usize),
    Free(usize),
    /// The process dies between emptying a zpage and releasing it, if this frees the last object.
    FreeAndDie(usize),
    /// The supervisor cleans up after the dead.
    Clean,
    /// It moves an object to another zpage.
    Move(usize),
}

impl Event {
    /// The next event that some bytes say; none at their end.
    pub fn read(input: &mut Input<'_>) -> Option<Self> {
        let (what, n) = (input.byte()?, usize::from(input.word()?));
        Some(match what % 13 {
            0..=5 => Self::Alloc(n % 5000),
            6..=9 => Self::Free(n),
            10 => Self::FreeAndDie(n),
            11 => Self::Move(n),
            _ => Self::Clean,
        })
    }
}

/// The process that dies.
const DEAD: u16 = 999;

/// Does what the events say to a pool of six zpages, of which `limit` may be used, and to a model of it.
pub fn follow(events: impl IntoIterator<Item = Event>, limit: usize) {
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
                    let class = class_of(bytes).unwrap();
                    assert!(capacity >= bytes && capacity <= class_bytes((class + 3).min(CLASSES - 1)));
                    assert!(offset % 16 == 0 && offset % ZPAGE_BYTES + capacity <= ZPAGE_BYTES);
                    assert_eq!(pool.owner_slot(handle), slot);
                    assert!(live.insert(handle.0, (slot, bytes)).is_none(), "handed out twice");
                    memory.fill(handle, slot);
                } else {
                    let used = memory.used.load(Ordering::Relaxed);
                    assert!(bytes > OBJECT_MAX || used >= limit.min(6) as u64);
                }
            }
            Event::Free(n) | Event::FreeAndDie(n) => {
                if let Some(handle) = pick(n) {
                    let (slot, _) = live.remove(&handle.0).unwrap();
                    assert!(memory.is_filled(handle, slot), "somebody wrote into it");
                    if let Event::FreeAndDie(_) = event {
                        let last = !live.keys().any(|&h| Handle(h).zpage() == handle.zpage());
                        let emptied = pool.free(handle, slot, DEAD).unwrap();
                        assert_eq!(emptied, last.then_some(handle.zpage()));
                    } else {
                        memory.free(handle, 1);
                    }
                    assert!(pool.free(handle, slot, 1).is_err(), "twice");
                }
            }
            Event::Move(n) => {
                if let Some(old) = pick(n) {
                    let (slot, bytes) = live[&old.0];
                    let room = |zpage| pool.active(zpage).is_some_and(|(class, _)| class == old.class());
                    if let Some(new) = pool.copy_to(old, slot, n % 6) {
                        assert!(room(n % 6) && new.zpage() == n % 6);
                        assert!(memory.is_filled(new, slot), "not all of it was copied");
                        live.remove(&old.0);
                        assert!(live.insert(new.0, (slot, bytes)).is_none(), "handed out twice");
                        memory.free(old, 1);
                    }
                }
            }
            Event::Clean => {
                for zpage in pool.emptying_of(DEAD) {
                    memory.punch(zpage);
                    pool.release_zpage(zpage);
                }
                assert_eq!(pool.emptying_of(DEAD).count(), 0);
            }
        }
        assert_eq!(memory.used.load(Ordering::Relaxed), pool.count_used());
        assert!(pool.count_used() <= limit as u64);
        let objects: usize = pool.tally().iter().map(|class| class.objects).sum();
        assert_eq!(objects, live.len());
        let listed = (0..6).flat_map(|zpage| pool.objects(zpage));
        let listed: BTreeMap<u64, u32> = listed.map(|(h, s)| (h.0, s)).collect();
        assert!(listed.into_iter().eq(live.iter().map(|(&h, &(s, _))| (h, s))));
    }
    for (handle, (slot, _)) in live {
        assert!(memory.is_filled(Handle(handle), slot));
        memory.free(Handle(handle), 1);
    }
    for zpage in pool.emptying_of(DEAD) {
        memory.punch(zpage);
        pool.release_zpage(zpage);
    }
    memory.assert_empty();
}
