//! Compaction: what is spread over more zpages than it needs is moved together ([`Zpool::tally`] says where that is so).
//!
//! After zsmalloc's of the kernel: of a size class the emptiest zpages give their objects to the fullest ones that have room,
//! until no zpage less would hold them. Whose objects they are goes on meanwhile: he may read one, put its slot, or take a
//! further reference, and waits for nothing.

use crate::cluster::CLUSTER_SLOTS;
use crate::kill_point;
use crate::slots::{Punch, Slots};
use crate::swap_table::{Backing, SwapTable};
use crate::zpool::{Handle, Zpool};

/// What became of an object that was to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relocation {
    /// It has moved; or it is not there any more, or its cluster is locked.
    Done,
    /// The zpage had no room.
    Full,
}

/// Moves the object at `from`, of `slot`, to zpage `to` for process index `owner`. With the cluster of the slot locked:
/// 1. the word names the object: it can't be that of a later life, since nobody is given the slot meanwhile; 2. a copy;
/// 3. the word is exchanged from the old object to the new one; 4. `free` gives back which of the two no word names then.
///
/// Whoever cleans up after a dead process that was giving up the slot may have found that one first.
pub fn relocate<P: Punch>(
    (slots, table): (&Slots<'_, P>, SwapTable<'_>),
    zpool: &Zpool<'_>,
    (from, slot): (Handle, u32),
    to: usize,
    owner: u16,
    free: impl FnOnce(Handle, u32),
) -> Relocation {
    // Where the zpage has become another's since it was looked at, what was taken for a slot may be content: a cluster that was never used
    // is not to be touched.
    let cluster = slot / CLUSTER_SLOTS as u32;
    let names = || table.load(slot).backing() == Some(Backing::Compressed(from));
    if slots.cluster_word(cluster).count() == 0 || !names() {
        return Relocation::Done;
    }
    let Some(locked) = slots.try_lock(cluster, owner) else {
        return Relocation::Done;
    };
    let word = table.load(slot);
    let mut outcome = Relocation::Done;
    if word.backing() == Some(Backing::Compressed(from)) {
        if let Some(new) = zpool.copy_to(from, slot, to) {
            kill_point!("compact-copied");
            let lost = if table.relocated(slot, word, new) {
                from
            } else {
                new
            };
            kill_point!("compact-exchanged");
            free(lost, slot);
            kill_point!("compact-freed");
        } else {
            outcome = Relocation::Full;
        }
    }
    slots.unlock_unchanged(locked);
    outcome
}

#[cfg(all(test, loom))]
mod models {
    use std::vec::Vec;

    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::slots::fixture::Memory;
    use crate::slots::models::{DEVICES, explore_within};
    use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
    use crate::zpool::{OBJECT_MAX, ZPAGE_BYTES, ZpoolHints};

    const SUPERVISOR: u16 = 9;
    /// Index of a header's word that is the caller's.
    const CONTENT: usize = 1;

    /// Two zpages of two objects each: the first is full, the second has one. Of each of the three slots
    /// the object has the slot's number for content.
    struct Pool {
        memory: Memory,
        descs: Vec<AtomicU64>,
        data: Vec<AtomicU32>,
        used: AtomicU64,
        slots: [u32; 3],
    }

    impl Pool {
        fn new() -> Arc<Self> {
            let words = |len: usize| (0..len).map(|_| AtomicU32::new(0)).collect();
            let mut pool = Self {
                memory: Memory::new(&DEVICES),
                descs: (0..2).map(|_| AtomicU64::new(0)).collect(),
                data: words(2 * ZPAGE_BYTES / 4),
                used: AtomicU64::new(0),
                slots: [0; 3],
            };
            pool.slots = [(); 3].map(|()| pool.store(1));
            assert_eq!(pool.slots.map(|slot| pool.handle(slot).zpage()), [0, 0, 1]);
            Arc::new(pool)
        }

        /// A page goes out: a slot of `owner` and an object that has its number for content.
        fn store(&self, owner: u16) -> u32 {
            let slot = self.memory.alloc(owner).unwrap();
            let handle = self
                .zpool()
                .alloc(&ZpoolHints::new(), 2, OBJECT_MAX, slot)
                .unwrap();
            self.word(handle, CONTENT).store(slot, Ordering::Relaxed);
            self.memory
                .table()
                .publish(slot, Backing::Compressed(handle))
                .unwrap();
            slot
        }

        fn zpool(&self) -> Zpool<'_> {
            Zpool {
                descs: &self.descs,
                data: &self.data,
                used: &self.used,
            }
        }

        fn word(&self, handle: Handle, word: usize) -> &AtomicU32 {
            &self.data[self.zpool().offset(handle) / 4 + word]
        }

        fn handle(&self, slot: u32) -> Handle {
            match self.memory.table().load(slot).backing() {
                Some(Backing::Compressed(handle)) => handle,
                other => panic!("slot {slot}: {other:?}"),
            }
        }

        fn free(&self, handle: Handle, slot: u32, owner: u16) {
            if let Some(zpage) = self.zpool().free(handle, slot, owner).unwrap() {
                let words = ZPAGE_BYTES / 4;
                // A system call does it.
                fence(Ordering::Release);
                for word in &self.data[zpage * words..][..words] {
                    word.store(0, Ordering::Relaxed);
                }
                self.zpool().release_zpage(zpage);
            }
        }

        /// Gives up a reference to a slot.
        fn put(&self, slot: u32, owner: u16) {
            if let Some(Backing::Compressed(handle)) = self.memory.table().put(slot, owner).unwrap() {
                self.free(handle, slot, owner);
                self.memory.slots().release(&[slot], owner).unwrap();
            }
        }

        /// The supervisor moves an object to the zpage of the first slot.
        fn compact(&self, object: (Handle, u32)) -> Relocation {
            relocate(
                (&self.memory.slots(), self.memory.table()),
                &self.zpool(),
                object,
                0,
                SUPERVISOR,
                |lost, slot| self.free(lost, slot, SUPERVISOR),
            )
        }

        /// Each slot that is there has one object with its content, and there are no others.
        fn check(&self, there: &[u32]) {
            for slot in there {
                let handle = self.handle(*slot);
                assert_eq!(self.zpool().owner_slot(handle), *slot);
                assert_eq!(self.word(handle, CONTENT).load(Ordering::Relaxed), *slot);
            }
            let zpages = (0..2).filter_map(|zpage| self.zpool().active(zpage));
            assert_eq!(zpages.map(|(_, objects)| objects).sum::<usize>(), there.len());
            assert_eq!(self.used.load(Ordering::Relaxed), self.zpool().count_used());
            self.memory.check();
        }
    }

    /// What another thread does while the supervisor moves the object of the third slot beside that of the first, and which
    /// slots are there in the end.
    fn against(
        preemptions: usize,
        theirs: impl Fn(&Pool) + Copy + Sync + Send + 'static,
        there: impl Fn(&Pool) -> Vec<u32> + Sync + Send + 'static,
    ) {
        explore_within(preemptions, move || {
            let pool = Pool::new();
            pool.put(pool.slots[1], 1);
            let object = (pool.handle(pool.slots[2]), pool.slots[2]);
            let other = Arc::clone(&pool);
            let at_work = thread::spawn(move || theirs(&other));
            pool.compact(object);
            at_work.join().unwrap();
            pool.check(&there(&pool));
        });
    }

    /// The object that was read is moved, and another page goes out to where it was: what was read is the slot's content, or known
    /// not to be.
    #[test]
    fn a_read_against_a_move_and_the_next_object() {
        explore_within(2, || {
            let pool = Pool::new();
            pool.put(pool.slots[1], 1);
            let slot = pool.slots[2];
            let object = (pool.handle(slot), slot);
            let other = Arc::clone(&pool);
            let at_work = thread::spawn(move || {
                other.compact(object);
                other.store(2);
            });
            let seen = pool.memory.table().load(slot);
            if let Some(Backing::Compressed(handle)) = seen.backing() {
                let read = || pool.word(handle, CONTENT).load(Ordering::Relaxed);
                let found = pool.memory.table().read_behind(slot, seen, read);
                assert!(found.is_none_or(|found| found == slot), "{found:?} for {slot}");
            }
            at_work.join().unwrap();
        });
    }

    /// One of the two frees the old object, the other the copy.
    #[test]
    fn a_move_against_the_last_put() {
        against(
            2,
            |pool| pool.put(pool.slots[2], 1),
            |pool| Vec::from([pool.slots[0]]),
        );
    }

    /// References come and go; the object is there once, in its new place or its old one.
    #[test]
    fn a_move_against_dup_and_put() {
        let share = |pool: &Pool| {
            pool.memory.table().dup(pool.slots[2]).unwrap();
            pool.put(pool.slots[2], 1);
        };
        against(3, share, |pool| Vec::from([pool.slots[0], pool.slots[2]]));
    }

    /// The zpage to which the object is to go becomes empty, and is somebody's for another object.
    #[test]
    fn a_move_against_the_end_of_the_zpage() {
        against(
            3,
            |pool| pool.put(pool.slots[0], 1),
            |pool| Vec::from([pool.slots[2]]),
        );
    }

    /// The slot begins another life, with an object in the same place: it has that life's content.
    #[test]
    fn a_move_against_the_next_life_of_the_slot() {
        let again = |pool: &Pool| {
            pool.put(pool.slots[2], 1);
            pool.store(1);
        };
        against(1, again, |pool| {
            let table = pool.memory.table();
            let used = |slot: &u32| table.load(*slot).backing().is_some();
            (0..pool.memory.table.len() as u32).filter(used).collect()
        });
    }
}
