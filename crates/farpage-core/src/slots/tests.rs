use super::*;
use crate::swap_table::Backing;
use crate::sync::AtomicU32;
use crate::zpool::Handle;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::thread;
use std::vec::Vec;

/// Two devices with a file of equal priority, one of them short, and one without a file.
const DEVICES: [Device; 3] = [
    device(1, 1000, 1, true),
    device(3, 512, 1, true),
    device(4, 1024, 0, false),
];
const CLUSTERS: usize = 6;

const fn device(first_cluster: u32, slots: u32, priority: i32, has_file: bool) -> Device {
    Device {
        first_cluster,
        slots,
        priority,
        has_file,
    }
}

struct Memory {
    table: Vec<AtomicU64>,
    clusters: Vec<AtomicU64>,
    lists: Vec<AtomicU64>,
    current: Vec<AtomicU64>,
    fifo: Vec<AtomicU32>,
    ends: [AtomicU64; 2],
    states: Vec<DeviceState>,
    punched: AtomicUsize,
}

fn zeros(len: usize) -> Vec<AtomicU64> {
    (0..len).map(|_| AtomicU64::new(0)).collect()
}

fn state() -> DeviceState {
    DeviceState {
        fresh: AtomicU32::new(0),
        active: AtomicU32::new(0),
        used: AtomicU64::new(0),
        turn: AtomicU32::new(0),
        shut: AtomicU32::new(0),
        missing: AtomicU32::new(0),
        padding: [const { AtomicU32::new(0) }; 9],
    }
}

impl Memory {
    fn new() -> Self {
        Self {
            table: zeros(CLUSTERS * CLUSTER_SLOTS),
            clusters: zeros(CLUSTERS),
            lists: zeros(list_words(CLUSTERS)),
            current: zeros(CPUS * CURRENT_WORDS),
            fifo: (0..CLUSTERS).map(|_| AtomicU32::new(0)).collect(),
            ends: core::array::from_fn(|_| AtomicU64::new(0)),
            states: (0..3).map(|_| state()).collect(),
            punched: AtomicUsize::new(0),
        }
    }

    fn table(&self) -> SwapTable<'_> {
        SwapTable { words: &self.table }
    }

    fn slots(&self) -> Slots<'_, &Self> {
        let parts = Parts {
            table: self.table(),
            clusters: &self.clusters,
            lists: &self.lists,
            current: &self.current,
            fifo: Fifo {
                places: &self.fifo,
                ends: &self.ends,
            },
            devices: &DEVICES,
            states: &self.states,
        };
        Slots::new(parts, self)
    }

    fn check(&self) {
        for cluster in 0..CLUSTERS as u32 {
            let fault = self.slots().fault_of(cluster);
            assert_eq!(
                fault,
                None,
                "cluster {cluster}: {:?}",
                self.slots().cluster_word(cluster)
            );
        }
        let used: u64 = self.states.iter().map(|s| s.used.load(Ordering::Relaxed)).sum();
        let clusters = self.clusters.iter().map(cluster::load);
        assert_eq!(used, clusters.map(|word| locked::told(word.count())).sum());
    }
}

impl Punch for &Memory {
    fn punch(&self, cluster: u32) {
        let start = cluster as usize * CLUSTER_SLOTS;
        let words = &self.table[start..start + CLUSTER_SLOTS];
        assert!(
            words.iter().all(|word| word.load(Ordering::Relaxed) == 0),
            "used words punched"
        );
        self.punched.fetch_add(1, Ordering::Relaxed);
    }
}

/// A device that is being emptied hands out nothing, keeps its lists right, and may come back with another size.
#[test]
fn a_device_leaves_and_comes_back() {
    let memory = Memory::new();
    let slots = memory.slots();
    let run = |want| slots.alloc(&request(0, want, true));
    let first = run(64).unwrap();
    assert_eq!(first.first, 512, "the first device");
    memory.states[0]
        .shut
        .store(devices::SHUT_LEAVING, Ordering::Relaxed);
    assert_eq!(run(64).unwrap().first / 512, 3, "the second device");
    assert_eq!((slots.count_used(0), slots.settled(0)), (64, Some(64)));
    let held = slots.try_lock(1, 9).unwrap();
    assert_eq!(slots.settled(0), None, "somebody may be taking slots");
    slots.unlock_unchanged(held);
    let taken: Vec<u32> = (0..64).map(|i| first.first + i).collect();
    slots.release(&taken, 3).unwrap();
    assert_eq!(slots.settled(0), Some(0));
    memory.check();
    memory.states[0].missing.store(1000 - 100, Ordering::Relaxed);
    memory.states[0].shut.store(0, Ordering::Relaxed);
    memory.states[1]
        .shut
        .store(devices::SHUT_LEAVING, Ordering::Relaxed);
    let sum: usize = std::iter::from_fn(|| run(64)).map(|run| run.count).sum();
    assert_eq!((sum, slots.count_used(0)), (100, 100), "as many as it has blocks");
    memory.check();
}

fn request(order: usize, want: usize, has_file: bool) -> Request {
    Request {
        owner: 3,
        cpu: 0,
        order,
        want,
        has_file,
    }
}

fn all(run: Run) -> Vec<u32> {
    (run.first..run.first + run.count as u32).collect()
}

#[test]
fn batches_are_contiguous_and_fill_clusters_in_order() {
    let memory = Memory::new();
    let slots = memory.slots();
    let runs: Vec<_> = (0..8)
        .map(|_| slots.alloc(&request(0, 64, true)).unwrap())
        .collect();
    for (i, run) in runs.iter().enumerate() {
        assert_eq!((run.first, run.count), (512 + 64 * i as u32, 64));
    }
    assert_eq!(slots.cluster_word(1).list(), List::Full);
    assert_eq!(slots.take_tally(), Tally { locks: 8, missed: 0 });
    let other = slots.alloc(&request(0, 64, true)).unwrap();
    assert_eq!(other.first, 3 * 512, "equals in turn");
    assert_eq!(memory.table().load(other.first).owner(), Some(3));
    let alone = slots.alloc(&request(0, 1, false)).unwrap();
    assert_eq!((alone.first, alone.count), (4 * 512, 1));
    memory.check();
    slots.release(&all(runs[0]), 3).unwrap();
    assert_eq!(slots.cluster_word(1).list(), List::Frag);
    runs[1..]
        .iter()
        .for_each(|run| slots.release(&all(*run), 3).unwrap());
    assert_eq!(slots.cluster_word(1).list(), List::Free);
    assert_eq!(memory.punched.load(Ordering::Relaxed), 1);
    memory.check();
}

#[test]
fn orders_are_aligned_and_keep_to_their_clusters() {
    let memory = Memory::new();
    let slots = memory.slots();
    let whole = slots.alloc(&request(9, 1, true)).unwrap();
    assert_eq!((whole.first % 512, whole.count), (0, 512));
    let small = slots.alloc(&request(0, 3, true)).unwrap();
    let large = slots.alloc(&request(4, 1, true)).unwrap();
    assert_eq!((large.first % 16, large.count), (0, 16));
    assert_ne!(
        small.first / 512,
        large.first / 512,
        "not in a cluster of single slots"
    );
    assert_eq!(slots.alloc(&request(9, 1, true)), None, "no cluster is empty");
    assert_eq!(slots.alloc(&request(ORDERS, 1, true)), None);
    assert_eq!(slots.alloc(&request(0, 0, true)), None);
    // Single slots fill every hole, those of larger orders last.
    let mut rest = 0;
    while let Some(run) = slots.alloc(&request(0, 512, true)) {
        rest += run.count;
    }
    assert_eq!(rest, 1512 - 3 - 16 - 512);
    memory.check();
    slots.release(&all(large), 3).unwrap();
    assert_eq!(slots.alloc(&request(0, 64, true)), Some(large), "stolen");
    memory.check();
}

#[test]
fn a_run_is_the_first_long_enough_else_the_longest() {
    let memory = Memory::new();
    let slots = memory.slots();
    while slots.alloc(&request(0, 512, true)).is_some() {}
    let free: Vec<u32> = [600, 700, 701, 800, 801, 802].into();
    slots.release(&free, 3).unwrap();
    assert_eq!(
        slots.alloc(&request(0, 2, true)),
        Some(Run { first: 700, count: 2 })
    );
    assert_eq!(
        slots.alloc(&request(0, 9, true)),
        Some(Run { first: 800, count: 3 })
    );
    assert_eq!(
        slots.alloc(&request(0, 9, true)),
        Some(Run { first: 600, count: 1 })
    );
    assert_eq!(slots.alloc(&request(0, 9, true)), None);
    memory.check();
}

#[test]
fn a_held_lock_is_skipped_and_its_holder_frees_for_others() {
    let memory = Memory::new();
    let slots = memory.slots();
    let run = slots.alloc(&request(0, 64, true)).unwrap();
    let locked = slots.try_lock(1, 9).unwrap();
    assert!(slots.try_lock(1, 3).is_none());
    slots.release(&all(run)[..63], 3).unwrap();
    assert_eq!(slots.cluster_word(1).count(), 64);
    let elsewhere = slots.alloc(&request(0, 64, true)).unwrap();
    assert_ne!(elsewhere.first / 512, 1);
    assert!(slots.take_tally().missed >= 3);
    slots.unlock_unchanged(locked);
    assert_eq!(slots.cluster_word(1).count(), 1);
    memory.check();
    slots.release(&[run.first + 63], 3).unwrap();
    assert_eq!(slots.cluster_word(1).list(), List::Free);
    memory.check();
}

#[test]
fn only_the_owner_gives_back() {
    let memory = Memory::new();
    let slots = memory.slots();
    let run = slots.alloc(&request(0, 2, true)).unwrap();
    memory
        .table()
        .publish(run.first, Backing::Device { crc: 1 })
        .unwrap();
    let error = slots.release(&all(run), 3).unwrap_err();
    assert_eq!(error.slot, run.first);
    assert!(
        slots.release(&[run.first + 1], 3).is_err(),
        "the other was given back"
    );
    assert!(slots.release(&[u32::MAX], 3).is_err() && slots.release(&[], 3).is_ok());
    memory.check();
}

/// What the dead left: a locked cluster with a count that is not that of its words, lists half changed, a
/// slot released that nobody was told of.
#[test]
fn a_dead_holder_is_mended() {
    for stored in [0, 40] {
        let memory = Memory::new();
        let slots = memory.slots();
        let run = slots.alloc(&request(0, 64, true)).unwrap();
        let _held = slots.try_lock(1, 7).unwrap();
        for word in &memory.table[700..700 + stored] {
            word.store(SlotWord::taken(7, 1).raw(), Ordering::Relaxed);
        }
        slots.set(List::Frag, 0).unwrap().remove(1);
        slots.set(List::Nonfull, 2).unwrap().insert(1);
        slots.release(&all(run)[..32], 3).unwrap();
        assert!(!slots.mend(1, 8) && slots.mend(1, 7) && !slots.mend(1, 7));
        assert_eq!(slots.cluster_word(1).count(), 32 + stored);
        assert!(slots.fault_of(1).is_none());
        let left: Vec<u32> = (700..700 + stored as u32).collect();
        slots.release(&left, 7).unwrap();
        slots.release(&all(run)[32..], 3).unwrap();
        assert_eq!(
            (slots.cluster_word(1).list(), slots.fault_of(1)),
            (List::Free, None)
        );
    }
}

#[test]
fn full_clusters_are_written_back_in_the_order_they_filled() {
    let memory = Memory::new();
    let slots = memory.slots();
    let fill = |has_file| {
        while slots.alloc(&request(0, 512, has_file)).is_some() {}
    };
    fill(true);
    fill(false);
    let first = slots.lock_oldest(5).unwrap();
    assert_eq!(first.cluster(), 1);
    assert_eq!(slots.alloc(&request(0, 1, true)), None);
    slots.release(&[600], 3).unwrap();
    assert_eq!(
        slots.alloc(&request(0, 1, true)),
        None,
        "freed, but not to be handed out yet"
    );
    slots.unlock_again(first);
    assert_eq!(slots.alloc(&request(0, 1, true)).map(|run| run.first), Some(600));
    let mut order = Vec::new();
    while let Some(locked) = slots.lock_oldest(5) {
        order.push(locked.cluster());
        slots.unlock_unchanged(locked);
    }
    order.truncate(2);
    assert!(
        order == [2, 3] || order == [3, 2],
        "{order:?}: those without a file never"
    );
    memory.check();
}

/// A process that dies between locking a fresh cluster and allocating in it holds nobody up and loses nothing.
#[test]
fn a_death_on_a_fresh_cluster() {
    let memory = Memory::new();
    let slots = memory.slots();
    let _held = slots.try_lock(1, 7).unwrap();
    let run = slots.alloc(&request(0, 64, true)).unwrap();
    assert_eq!(run.first / 512, 2);
    assert!(slots.mend(1, 7));
    memory.check();
    let mut count = run.count;
    while let Some(run) = slots.alloc(&request(0, 512, true)) {
        count += run.count;
    }
    assert_eq!(count, 1512);
    memory.check();
}

/// A table page for each cluster that has a slot in use, 48 bits of metadata at most for one that has none.
#[test]
fn memory_of_a_large_device() {
    let clusters = (1usize << 40) / 4096 / CLUSTER_SLOTS;
    let bytes = 8 * (clusters + list_words(clusters));
    assert!(
        (bytes as f64) < 0.1 * (clusters * CLUSTER_SLOTS) as f64,
        "{bytes}"
    );
    assert!(bytes <= 48 * clusters);
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Alloc(Request),
    /// Gives back a share of the oldest run.
    Free(usize),
    /// Another process holds the lock of a cluster until the next event of this kind.
    Hold(u32),
    Die,
}

fn event() -> impl Strategy<Value = Event> {
    let order = prop_oneof![4 => Just(0usize), 1 => 1..ORDERS];
    let alloc = (0..2u16, 0..3u32, order, 1..200usize, any::<bool>());
    prop_oneof![
        4 => alloc.prop_map(|(owner, cpu, order, want, has_file)| Event::Alloc(Request {
            owner, cpu, order, want, has_file,
        })),
        4 => (1..200usize).prop_map(Event::Free),
        1 => (1..CLUSTERS as u32).prop_map(Event::Hold),
        1 => Just(Event::Die),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn follows_the_model(events in prop::collection::vec(event(), 1..80)) {
        let memory = Memory::new();
        let slots = memory.slots();
        // Slot to owner; and the order of allocation.
        let (mut model, mut age) = (BTreeMap::new(), Vec::new());
        let mut held: Option<Locked> = None;
        for event in events {
            match event {
                Event::Alloc(request) => {
                    let run = slots.alloc(&request);
                    if run.is_none() && held.is_none() && request.order == 0 {
                        let class = |slot: &&u32| {
                            devices::owner_of(&DEVICES, **slot / 512).unwrap().1.has_file == request.has_file
                        };
                        let room = if request.has_file { 1512 } else { 1024 };
                        prop_assert_eq!(model.keys().filter(class).count(), room, "refused though not full");
                    }
                    for slot in run.iter().flat_map(|run| all(*run)) {
                        let (_, device) = devices::owner_of(&DEVICES, slot / 512).unwrap();
                        prop_assert!(device.has_file == request.has_file);
                        prop_assert!(device.block(slot) < u64::from(device.slots));
                        prop_assert!(model.insert(slot, request.owner).is_none(), "handed out twice");
                        age.push(slot);
                    }
                    let (count, most) = (run.map_or(0, |run| run.count), 1 << request.order);
                    let fits = if request.order == 0 { count <= request.want } else { count == 0 || count == most };
                    prop_assert!(fits);
                    prop_assert!(run.is_none_or(|run| (run.first as usize).is_multiple_of(most)));
                }
                Event::Free(count) => {
                    let rest = age.split_off(count.min(age.len()));
                    for slot in core::mem::replace(&mut age, rest) {
                        let owner = model.remove(&slot).unwrap();
                        slots.release(&[slot], owner).unwrap();
                    }
                }
                Event::Hold(cluster) => match held.take() {
                    Some(locked) => slots.unlock_unchanged(locked),
                    None => held = slots.try_lock(cluster, 5),
                },
                Event::Die => {
                    if let Some(locked) = held.take() {
                        prop_assert!(slots.mend(locked.cluster(), 5));
                    }
                }
            }
        }
        if let Some(locked) = held {
            slots.unlock_unchanged(locked);
        }
        memory.check();
        for slot in 0..(CLUSTERS * CLUSTER_SLOTS) as u32 {
            prop_assert_eq!(memory.table().load(slot).owner(), model.get(&slot).copied());
        }
    }
}

/// Threads as processes: each takes runs, publishes, shares with itself and gives back; no slot ever has two
/// owners, and in the end every count and list is right.
#[test]
fn threads_never_share_a_slot() {
    const THREADS: u16 = 4;
    let memory = Memory::new();
    let owners: Vec<AtomicU32> = (0..CLUSTERS * CLUSTER_SLOTS).map(|_| AtomicU32::new(0)).collect();
    let body = |me: u16| {
        let (slots, table, mut mine) = (memory.slots(), memory.table(), Vec::new());
        for round in 0..4000u64 {
            let request = Request {
                owner: me,
                cpu: u32::from(me) / 2,
                order: 0,
                want: 1 + round as usize % 64,
                has_file: round % 5 != 0,
            };
            for slot in slots.alloc(&request).iter().flat_map(|run| all(*run)) {
                assert_eq!(
                    owners[slot as usize].swap(u32::from(me) + 1, Ordering::Relaxed),
                    0
                );
                let backing = Backing::Compressed(Handle((round << 8) | u64::from(me)));
                table.publish(slot, backing).unwrap();
                table.dup(slot).unwrap();
                mine.push((slot, backing));
            }
            while mine.len() > 500 {
                let (slot, backing) = mine.swap_remove(round as usize % mine.len());
                assert_eq!(table.put(slot, me), Ok(None));
                assert_eq!(table.put(slot, me), Ok(Some(backing)));
                owners[slot as usize].store(0, Ordering::Relaxed);
                slots.release(&[slot], me).unwrap();
            }
        }
        mine.len()
    };
    let left: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|me| scope.spawn(move || body(me))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    memory.check();
    let used = memory
        .table
        .iter()
        .filter(|word| word.load(Ordering::Relaxed) != 0)
        .count();
    assert_eq!(used, left);
}
