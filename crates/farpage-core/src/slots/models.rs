//! Small programs of two threads, run through every interleaving and every outcome of a weak memory within a
//! bound of preemptions: three where that takes seconds, else two or one. Clusters have two slots here.

use super::fixture::{Memory, zeros};
use super::*;
use crate::devices::SHUT_LEAVING;
use crate::swap_table::{Backing, COUNT_MAX, SlotKind};
use crate::zpool::Handle;
use loom::sync::Arc;
use loom::thread;

pub const DEVICES: [Device; 1] = [Device {
    first_cluster: 1,
    slots: 4,
    priority: 0,
    has_file: true,
    rotates: false,
    discards: false,
}];
const OBJECT: Backing = Backing::Compressed(Handle(5));

fn memory() -> Arc<Memory> {
    Arc::new(Memory::new(&DEVICES))
}

impl Memory {
    pub fn alloc(&self, owner: u16) -> Option<u32> {
        let request = Request {
            owner,
            cpu: 0,
            order: 0,
            want: 1,
            has_file: true,
        };
        self.slots().alloc(&request).map(|run| run.first)
    }
}

pub fn explore(model: impl Fn() + Sync + Send + 'static) {
    explore_within(3, model);
}

pub fn explore_within(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(model);
}

#[test]
fn alloc_against_free() {
    explore(|| {
        let memory = memory();
        let first = memory.alloc(1).unwrap();
        let other = Arc::clone(&memory);
        let freeing = thread::spawn(move || other.slots().release(&[first], 1).unwrap());
        let second = memory.alloc(2).unwrap();
        freeing.join().unwrap();
        assert_eq!(memory.table().load(second).owner(), Some(2));
        assert_eq!(memory.used(), 1);
        memory.check();
    });
}

/// Of a full device an allocation gets what is given up beside it, or nothing, and then the next does.
#[test]
fn alloc_against_reclaim_of_a_full_device() {
    explore_within(2, || {
        let memory = memory();
        let slots = [(); 4].map(|()| memory.alloc(1).unwrap());
        assert_eq!(memory.alloc(2), None);
        let given_up = slots[1];
        memory.table().publish(given_up, OBJECT).unwrap();
        let other = Arc::clone(&memory);
        let reclaiming = thread::spawn(move || {
            assert_eq!(other.table().put(given_up, 1), Ok(Some(OBJECT)));
            other.slots().release(&[given_up], 1).unwrap();
        });
        let beside = memory.alloc(2);
        reclaiming.join().unwrap();
        assert_eq!(beside.or_else(|| memory.alloc(2)), Some(given_up));
        assert_eq!(
            (memory.table().load(given_up).owner(), memory.used()),
            (Some(2), 4)
        );
        memory.check();
    });
}

#[test]
fn two_allocations_are_two_slots() {
    explore_within(2, || {
        let memory = memory();
        let other = Arc::clone(&memory);
        let second = thread::spawn(move || other.alloc(2).unwrap());
        let first = memory.alloc(1).unwrap();
        let second = second.join().unwrap();
        assert_ne!(first, second);
        assert_eq!(memory.table().load(first).owner(), Some(1));
        assert_eq!(memory.table().load(second).owner(), Some(2));
        memory.check();
    });
}

/// Both slots of a cluster are freed at once: one of the two gives its memory back, after both.
#[test]
fn free_against_free() {
    explore(|| {
        let memory = memory();
        let (a, b) = (memory.alloc(1).unwrap(), memory.alloc(2).unwrap());
        let other = Arc::clone(&memory);
        let freeing = thread::spawn(move || other.slots().release(&[a], 1).unwrap());
        memory.slots().release(&[b], 2).unwrap();
        freeing.join().unwrap();
        let word = memory.slots().cluster_word(a / 2);
        assert_eq!((word.count(), word.list()), (0, List::Free));
        memory.check();
    });
}

#[test]
fn look_up_against_free_and_punch() {
    explore(|| {
        let memory = memory();
        let slot = memory.alloc(1).unwrap();
        memory.table().publish(slot, OBJECT).unwrap();
        let other = Arc::clone(&memory);
        let freeing = thread::spawn(move || {
            assert_eq!(other.table().put(slot, 1), Ok(Some(OBJECT)));
            other.slots().release(&[slot], 1).unwrap();
        });
        let before = memory.table().load(slot);
        let after = memory.table().load(slot);
        let is_sane = |word: SlotWord| match word.kind() {
            SlotKind::Compressed => word.backing() == Some(OBJECT) && word.count() == 1,
            SlotKind::Busy | SlotKind::Free => word.backing().is_none() && word.count() == 0,
            _ => false,
        };
        assert!(is_sane(before) && is_sane(after), "{before:?} {after:?}");
        let back = before.kind() == SlotKind::Free && after.kind() != SlotKind::Free;
        assert!(!back, "a freed slot came back");
        freeing.join().unwrap();
        assert_eq!(memory.table().load(slot), SlotWord::FREE);
        memory.check();
    });
}

#[test]
fn put_against_dup() {
    explore(|| {
        let memory = memory();
        let slot = memory.alloc(1).unwrap();
        memory.table().publish(slot, OBJECT).unwrap();
        memory.table().dup(slot).unwrap();
        let other = Arc::clone(&memory);
        let holder = thread::spawn(move || {
            other.table().dup(slot).unwrap();
            let first = other.table().put(slot, 2).unwrap();
            assert_eq!(first, None, "one more reference was held");
            other.table().put(slot, 2).unwrap()
        });
        let mine = memory.table().put(slot, 1).unwrap();
        let theirs = holder.join().unwrap();
        assert!(
            mine.is_some() != theirs.is_some(),
            "the last put, and only it, gets the backing"
        );
        let owner = if mine.is_some() { 1 } else { 2 };
        assert_eq!(memory.table().load(slot).owner(), Some(owner));
    });
}

#[test]
fn a_count_never_overflows() {
    explore(|| {
        let memory = memory();
        let slot = memory.alloc(1).unwrap();
        let word = memory.table().load(slot).backed(OBJECT, COUNT_MAX - 1).unwrap();
        memory.table[slot as usize].store(word.raw(), Ordering::Relaxed);
        let other = Arc::clone(&memory);
        let second = thread::spawn(move || other.table().dup(slot).is_ok());
        let first = memory.table().dup(slot).is_ok();
        assert!(first != second.join().unwrap(), "one of two");
        assert_eq!(memory.table().load(slot).count(), COUNT_MAX);
        assert_eq!(memory.table().load(slot).backing(), Some(OBJECT));
    });
}

/// Process 7 is killed with the lock held and one slot taken; process 1 gives a slot back meanwhile.
#[test]
fn a_dead_holder_against_free() {
    explore(|| {
        let memory = memory();
        let slot = memory.alloc(1).unwrap();
        let (cluster, taken) = (slot / 2, slot + 1);
        let _held = memory.slots().try_lock(cluster, 7).unwrap();
        memory.table[taken as usize].store(SlotWord::taken(7, 1).raw(), Ordering::Relaxed);
        let other = Arc::clone(&memory);
        let freeing = thread::spawn(move || other.slots().release(&[slot], 1).unwrap());
        assert!(memory.slots().mend(cluster, 7));
        freeing.join().unwrap();
        assert_eq!(memory.slots().cluster_word(cluster).count(), 1);
        assert_eq!(memory.table().load(taken).owner(), Some(7));
        memory.check();
    });
}

/// Content moves to its block while the last reference is given up: the object is freed once.
#[test]
fn write_back_against_put() {
    explore(|| {
        let memory = memory();
        let slot = memory.alloc(1).unwrap();
        memory.table().publish(slot, OBJECT).unwrap();
        let other = Arc::clone(&memory);
        let putting = thread::spawn(move || {
            let backing = other.table().put(slot, 1).unwrap();
            other.slots().release(&[slot], 1).unwrap();
            backing
        });
        let locked = memory.slots().try_lock(slot / 2, 2);
        let seen = memory.table().load(slot);
        let moved = locked.is_some() && memory.table().written_back(slot, seen, 9);
        if let Some(locked) = locked {
            memory.slots().unlock_unchanged(locked);
        }
        let expected = if moved { Backing::Device { crc: 9 } } else { OBJECT };
        assert_eq!(putting.join().unwrap(), Some(expected));
        assert_eq!(memory.table().load(slot), SlotWord::FREE);
        memory.check();
    });
}

/// Two give slots back while a third holds the cluster: it frees both when it unlocks, or they do.
#[test]
fn two_frees_against_an_unlock() {
    explore(|| {
        let memory = memory();
        let (a, b) = (memory.alloc(1).unwrap(), memory.alloc(2).unwrap());
        let locked = memory.slots().try_lock(a / 2, 3).unwrap();
        let freeing = [(a, 1), (b, 2)].map(|(slot, owner)| {
            let memory = Arc::clone(&memory);
            thread::spawn(move || memory.slots().release(&[slot], owner).unwrap())
        });
        memory.slots().unlock_unchanged(locked);
        freeing.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(memory.slots().cluster_word(a / 2).count(), 0);
        memory.check();
    });
}

/// The two share a summary bit that a search from the front must pass.
#[test]
fn insert_against_remove() {
    explore(|| {
        let words = Arc::new(zeros(BitTree::words(200)));
        BitTree::new(&words, 200).insert(70);
        let other = Arc::clone(&words);
        let removing = thread::spawn(move || BitTree::new(&other, 200).remove(70));
        BitTree::new(&words, 200).insert(71);
        removing.join().unwrap();
        assert_eq!(BitTree::new(&words, 200).next(0, 200), Some(71));
    });
}

/// The same one level higher: 4096 words of the lowest level are below one bit of the highest.
#[test]
fn insert_against_remove_far_above() {
    const LEN: usize = 2 * 4096;
    explore(|| {
        let words = Arc::new(zeros(BitTree::words(LEN)));
        BitTree::new(&words, LEN).insert(4096 + 70);
        let other = Arc::clone(&words);
        let removing = thread::spawn(move || BitTree::new(&other, LEN).remove(4096 + 70));
        BitTree::new(&words, LEN).insert(4096 + 140);
        removing.join().unwrap();
        assert_eq!(BitTree::new(&words, LEN).next(0, LEN), Some(4096 + 140));
    });
}

const DISCARDING: [Device; 1] = [Device {
    slots: 2,
    discards: true,
    ..DEVICES[0]
}];

/// While the device is told of an empty cluster none of it is anybody's; then all of it can be taken.
#[test]
fn alloc_against_a_discard() {
    explore(|| {
        let memory = Arc::new(Memory::new(&DISCARDING));
        let slot = memory.alloc(1).unwrap();
        memory.slots().release(&[slot], 1).unwrap();
        assert_eq!(memory.slots().cluster_word(slot / 2).list(), List::Discard);
        let other = Arc::clone(&memory);
        let telling = thread::spawn(move || {
            let view = other.slots();
            let told = view.lock_discard(2);
            let was_told = told.is_some();
            if let Some(locked) = told {
                assert_eq!(other.used(), 0);
                view.unlock_discarded(locked);
            }
            was_told
        });
        let taken = memory.alloc(1);
        let was_told = telling.join().unwrap();
        assert!(taken.is_some() || was_told, "it was locked for nothing");
        assert!(memory.slots().lock_discard(2).is_none(), "told of, or in use");
        let left = core::iter::from_fn(|| memory.alloc(1)).count();
        assert_eq!(usize::from(taken.is_some()) + left, 2);
        memory.check();
    });
}

/// While the oldest cluster is written no slot of it is handed out. Filled anew it waits again, and is not lost if it could
/// not be locked.
#[test]
fn refill_against_write_back() {
    explore(|| {
        let memory = memory();
        let (a, _) = (memory.alloc(1).unwrap(), memory.alloc(1).unwrap());
        let other = Arc::clone(&memory);
        let writing = thread::spawn(move || {
            let view = other.slots();
            let Some(locked) = view.lock_oldest(2) else {
                return false;
            };
            let owner = || other.table().load(a).owner();
            let before = owner();
            assert!(before.is_some() || owner().is_none(), "handed out");
            view.unlock_unchanged(locked);
            true
        });
        memory.slots().release(&[a], 1).unwrap();
        let refilled = memory.alloc(3) == Some(a);
        let written = writing.join().unwrap();
        let word = memory.slots().cluster_word(a / 2);
        let waits = memory.slots().waiting().any(|cluster| cluster == a / 2);
        assert_eq!(word.queued(), waits);
        assert!(waits || written, "it left the queue for nothing");
        assert_eq!(word.list() == List::Full, refilled);
        memory.check();
    });
}

/// Once a device that was shut is found settled there will never be more slots taken. Seen: the mark below which clusters are
/// looked at was read as it had been earlier, and the cluster above it was taken by one that did not see the device shut.
#[test]
fn settled_against_alloc() {
    explore(|| {
        let memory = memory();
        let other = Arc::clone(&memory);
        // A cluster that was never used, then the next.
        let taking = thread::spawn(move || [(); 3].map(|()| other.alloc(2)));
        memory.states[0].shut.fetch_or(SHUT_LEAVING, Ordering::AcqRel);
        let settled = memory.slots().settled(0);
        let taken = taking.join().unwrap();
        if let Some(count) = settled {
            assert_eq!(taken.iter().flatten().count() as u64, count);
        }
        assert_eq!(memory.slots().settled(0), Some(memory.used() as u64));
        memory.check();
    });
}

/// Slots that are freed after the look may be counted, none is missed.
#[test]
fn settled_against_free() {
    explore(|| {
        let memory = memory();
        let slots = [(); 3].map(|()| memory.alloc(1).unwrap());
        memory.states[0].shut.fetch_or(SHUT_LEAVING, Ordering::AcqRel);
        let other = Arc::clone(&memory);
        let freeing = thread::spawn(move || other.slots().release(&slots[1..], 1).unwrap());
        let settled = memory.slots().settled(0);
        freeing.join().unwrap();
        assert!(settled.is_none_or(|count| (1..=3).contains(&count)));
        assert_eq!(memory.slots().settled(0), Some(1));
        memory.check();
    });
}
