//! Two threads at one slot's word: what a look-up sees while content is published, and content that changes its place.

use super::*;
use crate::slots::fixture::Memory;
use crate::slots::models::{DEVICES, explore};
use loom::sync::Arc;
use loom::thread;

const OBJECT: Backing = Backing::Compressed(Handle(5));
const CRC: u32 = 9;

/// Slots and their contents, as their blocks or objects hold them.
struct Store {
    memory: Memory,
    contents: [AtomicU64; 6],
    /// Objects freed.
    freed: AtomicU64,
}

impl Store {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            memory: Memory::new(&DEVICES),
            contents: core::array::from_fn(|_| AtomicU64::new(0)),
            freed: AtomicU64::new(0),
        })
    }

    fn table(&self) -> SwapTable<'_> {
        self.memory.table()
    }

    /// A page goes out: content, then the word that names it.
    fn publish(&self, slot: u32, backing: Backing) {
        self.contents[slot as usize].store(77, Ordering::Relaxed);
        self.table().publish(slot, backing).unwrap();
    }

    /// What a fault does that finds its page behind `slot`: none if it is not backed.
    fn look_up(&self, slot: u32) -> Option<Backing> {
        let word = self.table().load(slot);
        let backing = word.backing();
        assert_eq!(backing.is_some(), word.count() > 0, "{word:?}");
        match backing? {
            Backing::Moved { to } => {
                assert!(self.look_up(to).is_some(), "moved to nowhere");
            }
            _ => assert_eq!(self.contents[slot as usize].load(Ordering::Relaxed), 77),
        }
        backing
    }

    /// A page gives its slot up, and with the last one goes what is behind it.
    fn leave(&self, slot: u32, owner: u16) {
        let Some(backing) = self.table().put(slot, owner).unwrap() else {
            return;
        };
        match backing {
            Backing::Compressed(_) => {
                self.freed.fetch_add(1, Ordering::Relaxed);
            }
            Backing::Moved { to } => self.leave(to, owner),
            Backing::Device { .. } => {}
        }
        self.memory.slots().release(&[slot], owner).unwrap();
    }

    /// A page of `owner` leaves slot `from`, which it shares, for `to`, or for where another has moved the content.
    fn move_on(&self, from: u32, to: u32, owner: u16) -> u32 {
        let seen = self.table().load(from);
        self.publish(to, Backing::Device { crc: CRC });
        if self.table().moved(from, seen, to) {
            self.freed.fetch_add(1, Ordering::Relaxed);
        } else {
            self.leave(to, owner);
        }
        let Some(Backing::Moved { to }) = self.table().load(from).backing() else {
            panic!("moved by nobody");
        };
        self.table().dup(to).unwrap();
        self.leave(from, owner);
        to
    }
}

/// Before: busy, without content. After: all of it.
#[test]
fn look_up_against_publish() {
    explore(|| {
        let store = Store::new();
        let slot = store.memory.alloc(1).unwrap();
        let other = Arc::clone(&store);
        let looking = thread::spawn(move || [(); 2].map(|()| other.look_up(slot)));
        store.publish(slot, OBJECT);
        store.table().dup(slot).unwrap();
        let seen = looking.join().unwrap();
        assert!(seen.into_iter().flatten().all(|backing| backing == OBJECT));
        assert!(seen[0].is_none() || seen[1].is_some(), "it went back");
        assert_eq!(store.look_up(slot), Some(OBJECT));
    });
}

/// Somebody remembers a word and holds neither reference nor lock, while the slot begins another life with the same object.
/// What he does is done to the life that he has seen, or not at all.
fn a_stale_word_against_the_next_life(
    becomes: Backing,
    change: impl Fn(SwapTable<'_>, u32, SlotWord) -> bool + Copy + Sync + Send + 'static,
) {
    explore(move || {
        let store = Store::new();
        let slot = store.memory.alloc(1).unwrap();
        store.publish(slot, OBJECT);
        let seen = store.table().load(slot);
        let other = Arc::clone(&store);
        let changing = thread::spawn(move || change(other.table(), slot, seen));
        let last = store.table().put(slot, 1).unwrap();
        store.memory.slots().release(&[slot], 1).unwrap();
        assert_eq!(store.memory.alloc(1), Some(slot));
        store.publish(slot, OBJECT);
        let changed = changing.join().unwrap();
        assert_eq!(last, Some(if changed { becomes } else { OBJECT }));
        assert_eq!(store.look_up(slot), Some(OBJECT));
    });
}

#[test]
fn a_late_write_back() {
    a_stale_word_against_the_next_life(Backing::Device { crc: CRC }, |table, slot, seen| {
        table.written_back(slot, seen, CRC)
    });
}

#[test]
fn a_late_move() {
    a_stale_word_against_the_next_life(Backing::Moved { to: 3 }, |table, slot, seen| {
        table.moved(slot, seen, 3)
    });
}

/// Who holds a reference finds the content, here or there.
#[test]
fn look_up_against_a_move() {
    explore(|| {
        let store = Store::new();
        let (from, to) = (store.memory.alloc(1).unwrap(), store.memory.alloc(1).unwrap());
        store.publish(from, OBJECT);
        store.table().dup(from).unwrap();
        let other = Arc::clone(&store);
        let looking = thread::spawn(move || other.look_up(from));
        assert_eq!(store.move_on(from, to, 1), to);
        let there = looking.join().unwrap();
        assert!(there == Some(OBJECT) || there == Some(Backing::Moved { to }));
    });
}

/// Of a shared slot one page moves the content, while another forks, is given up, and is given up.
#[test]
fn a_move_against_dup_and_put() {
    explore(|| {
        let store = Store::new();
        let (from, to) = (store.memory.alloc(1).unwrap(), store.memory.alloc(1).unwrap());
        store.publish(from, OBJECT);
        store.table().dup(from).unwrap();
        let other = Arc::clone(&store);
        let leaving = thread::spawn(move || {
            other.table().dup(from).unwrap();
            other.leave(from, 2);
            other.leave(from, 2);
        });
        assert_eq!(store.move_on(from, to, 1), to);
        leaving.join().unwrap();
        assert_eq!(store.table().load(from), SlotWord::FREE);
        let word = store.table().load(to);
        assert_eq!((word.kind(), word.count()), (SlotKind::Device, 1));
        assert_eq!(store.freed.load(Ordering::Relaxed), 1);
        store.memory.check();
    });
}

/// Both pages that share a slot move its content: one of them does, and both name its place.
#[test]
fn two_moves_at_once() {
    explore(|| {
        let store = Store::new();
        let [from, here, there] = [1, 1, 2].map(|owner| store.memory.alloc(owner).unwrap());
        store.publish(from, OBJECT);
        store.table().dup(from).unwrap();
        let other = Arc::clone(&store);
        let moving = thread::spawn(move || other.move_on(from, there, 2));
        let named = store.move_on(from, here, 1);
        assert_eq!(moving.join().unwrap(), named);
        let word = store.table().load(named);
        assert_eq!((word.kind(), word.count()), (SlotKind::Device, 2));
        assert_eq!(store.memory.used(), 1);
        assert_eq!(store.freed.load(Ordering::Relaxed), 1);
        store.memory.check();
    });
}
