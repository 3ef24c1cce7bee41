//! Two threads at one zpage: objects taken and given back. A zpage holds two objects here, and there is one zpage.

use super::*;
use crate::slots::models::explore;
use loom::sync::Arc;
use loom::thread;
use std::vec::Vec;

struct Memory {
    desc: [AtomicU64; 1],
    data: Vec<AtomicU32>,
    used: AtomicU64,
}

impl Memory {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            desc: [AtomicU64::new(0)],
            data: (0..ZPAGE_WORDS).map(|_| AtomicU32::new(0)).collect(),
            used: AtomicU64::new(0),
        })
    }

    fn zpool(&self) -> Zpool<'_> {
        Zpool {
            descs: &self.desc,
            data: &self.data,
            used: &self.used,
        }
    }

    /// An object whose last word is its slot's number.
    fn alloc(&self, slot: u32) -> Option<Handle> {
        let handle = self.zpool().alloc(&ZpoolHints::new(), 1, OBJECT_MAX, slot)?;
        self.last_word(handle).store(slot, Ordering::Relaxed);
        Some(handle)
    }

    fn last_word(&self, handle: Handle) -> &AtomicU32 {
        &self.data[header_word(handle) + class_bytes(handle.class()) / WORD_BYTES - 1]
    }

    /// As the engine does: an empty zpage is made zero, then free.
    fn free(&self, handle: Handle) {
        let slot = self.zpool().owner_slot(handle);
        if let Some(zpage) = self.zpool().free(handle, slot, 1).unwrap() {
            self.data.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            self.zpool().release_zpage(zpage);
        }
    }

    /// The objects are those of `slots`, each with its content, and are all that is counted.
    fn check(&self, slots: &[u32]) {
        let objects: Vec<_> = self.zpool().objects(0).collect();
        let mut owners: Vec<_> = objects.iter().map(|(_, slot)| *slot).collect();
        owners.sort_unstable();
        assert_eq!(owners, slots);
        for (handle, slot) in objects {
            assert_eq!(self.last_word(handle).load(Ordering::Relaxed), slot);
        }
        let counted = self.zpool().active(0).map_or(0, |(_, objects)| objects);
        assert_eq!(counted, slots.len());
        let used = self.used.load(Ordering::Relaxed);
        assert_eq!(
            (used, used),
            (self.zpool().count_used(), u64::from(!slots.is_empty()))
        );
    }
}

/// Two want the one place that is left.
#[test]
fn alloc_against_alloc() {
    explore(|| {
        let memory = Memory::new();
        memory.alloc(1).unwrap();
        let other = Arc::clone(&memory);
        let taking = thread::spawn(move || other.alloc(3).is_some());
        let first = memory.alloc(2).is_some();
        assert!(first != taking.join().unwrap(), "one of two");
        memory.check(&[1, if first { 2 } else { 3 }]);
    });
}

/// The zpage is full; who finds the place that is given back has it, whichever header it is.
#[test]
fn alloc_against_free() {
    explore(|| {
        let memory = Memory::new();
        let (first, _) = (memory.alloc(1).unwrap(), memory.alloc(2).unwrap());
        let other = Arc::clone(&memory);
        let freeing = thread::spawn(move || other.free(first));
        let taken = memory.alloc(3).is_some();
        freeing.join().unwrap();
        memory.check(if taken { &[2, 3] } else { &[2] });
    });
}

/// The last object goes, and the zpage is given back: an object taken meanwhile is in the zpage while it is still active,
/// or when it is active again, and is never made zero.
#[test]
fn alloc_against_the_last_free() {
    explore(|| {
        let memory = Memory::new();
        let first = memory.alloc(1).unwrap();
        let other = Arc::clone(&memory);
        let freeing = thread::spawn(move || other.free(first));
        let taken = memory.alloc(2).is_some();
        freeing.join().unwrap();
        memory.check(if taken { &[2] } else { &[] });
    });
}

/// A zpage that was kept is taken again or emptied: what is taken from it is never made zero.
#[test]
fn alloc_against_the_emptying_of_a_kept_zpage() {
    explore(|| {
        let memory = Memory::new();
        let first = memory.alloc(1).unwrap();
        let hints = ZpoolHints::new();
        assert_eq!(memory.zpool().free_keeping(&hints, first, 1), Ok(Some(0)));
        let other = Arc::clone(&memory);
        let emptying = thread::spawn(move || {
            if other.zpool().empty(0, 1) {
                other
                    .data
                    .iter()
                    .for_each(|word| word.store(0, Ordering::Relaxed));
                other.zpool().release_zpage(0);
            }
        });
        let taken = memory.alloc(2);
        emptying.join().unwrap();
        if taken.is_some() {
            memory.check(&[2]);
        } else {
            assert_eq!(memory.zpool().count_used(), 0);
        }
    });
}

/// Of the last two objects one of the two threads empties the zpage, and what comes next is in it alone.
#[test]
fn free_against_free_and_alloc() {
    explore(|| {
        let memory = Memory::new();
        let (first, second) = (memory.alloc(1).unwrap(), memory.alloc(2).unwrap());
        let other = Arc::clone(&memory);
        let freeing = thread::spawn(move || other.free(first));
        memory.free(second);
        let taken = memory.alloc(3).is_some();
        freeing.join().unwrap();
        memory.check(if taken { &[3] } else { &[] });
    });
}

/// Both have a reservation and begin at the same header.
#[test]
fn two_claims_of_a_header() {
    explore(|| {
        let memory = Memory::new();
        let first = memory.alloc(1).unwrap();
        let other = Arc::clone(&memory);
        let again = thread::spawn(move || {
            other.free(first);
            other.alloc(3).is_some()
        });
        let mine = memory.alloc(2).is_some();
        let theirs = again.join().unwrap();
        let there: Vec<_> = [(2, mine), (3, theirs)]
            .into_iter()
            .filter(|(_, is_in)| *is_in)
            .collect();
        let slots: Vec<_> = there.into_iter().map(|(slot, _)| slot).collect();
        memory.check(&slots);
    });
}
