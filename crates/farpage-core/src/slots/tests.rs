use super::fixture::Memory;
use super::*;
use crate::swap_table::Backing;
use crate::sync::AtomicU32;
use crate::zpool::Handle;
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
        rotates: false,
        discards: false,
    }
}

/// Whoever frees more slots than their cluster counts is told, and the slots of others stay what they are.
#[test]
fn a_cluster_that_counts_too_few_is_told_of() {
    let memory = Memory::new(&DEVICES);
    let slots = memory.slots();
    let run = slots.alloc(&request(0, 3, true)).unwrap();
    let cluster = run.first / CLUSTER_SLOTS as u32;
    let word = &memory.clusters[cluster as usize];
    let counted = cluster::load(word);
    word.store(counted.with_count(1).0, Ordering::Relaxed);
    let freed = slots.release(&[run.first, run.first + 1], 3);
    assert_eq!(freed.map_err(|error| error.slot), Err(run.first));
    assert_eq!(slots.cluster_word(cluster).count(), 1);
    assert!(slots.release(&[run.first + 2], 3).is_ok(), "still its owner's");
}

/// A device that is being emptied hands out nothing, keeps its lists right, and may come back with another size.
#[test]
fn a_device_leaves_and_comes_back() {
    let memory = Memory::new(&DEVICES);
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
    slots.release(&all(first), 3).unwrap();
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

/// What a file wants is asked of the one that is there now: emptied clusters of one that discards are told of.
#[test]
fn a_device_takes_the_traits_of_its_present_file() {
    let memory = Memory::new(&DEVICES);
    let slots = memory.slots();
    let empty = |traits| {
        memory.states[0].traits.store(traits, Ordering::Relaxed);
        memory.states[1]
            .shut
            .store(devices::SHUT_LEAVING, Ordering::Relaxed);
        let run = slots.alloc(&request(0, 64, true)).unwrap();
        slots.release(&all(run), 3).unwrap();
        memory.check();
        slots.cluster_word(run.first / CLUSTER_SLOTS as u32).list()
    };
    assert_eq!(empty(devices::DISCARDS), List::Discard);
    assert_eq!(empty(0), List::Free);
}

/// Priorities come with the present file: the highest is filled first wherever it stands, equal ones cluster by cluster in turn.
#[test]
fn priorities_are_those_of_the_present_files() {
    const FOUR: [Device; 4] = [
        device(1, 2048, -1, true),
        device(5, 2048, -2, true),
        device(9, 2048, -3, true),
        device(13, 2048, -4, true),
    ];
    let memory = Memory::new(&FOUR);
    let slots = memory.slots();
    let owner = |run: Run| (run.first / CLUSTER_SLOTS as u32 - 1) / 4;
    let order = || -> Vec<u32> {
        let runs: Vec<Run> = std::iter::from_fn(|| slots.alloc(&request(0, 512, true))).collect();
        for run in &runs {
            slots.release(&all(*run), 3).unwrap();
        }
        memory.check();
        runs.into_iter().map(owner).collect()
    };
    let raise = |index: usize, priority| {
        let raised = devices::raised(priority);
        memory.states[index].raised.store(raised, Ordering::Relaxed);
    };
    assert_eq!(order(), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);
    raise(2, Some(0));
    raise(3, Some(7));
    assert_eq!(order(), [3, 3, 3, 3, 2, 2, 2, 2, 0, 0, 0, 0, 1, 1, 1, 1]);
    raise(1, Some(7));
    let shared = order();
    // The first may come from the cluster that the CPU had last.
    assert!(
        [[1, 3], [3, 1]].contains(&[shared[1], shared[2]]),
        "in turn: {shared:?}"
    );
    let count = |index, part: &[u32]| part.iter().filter(|owner| **owner == index).count();
    assert_eq!((count(1, &shared[..8]), count(3, &shared[..8])), (4, 4));
    assert_eq!(&shared[8..], [2, 2, 2, 2, 0, 0, 0, 0]);
    for index in 1..4 {
        raise(index, None);
    }
    assert_eq!(order()[..4], [0; 4]);
}

/// Who came after a device that had nothing got its turns as well.
#[test]
fn equal_devices_share_the_turns_of_one_that_is_shut() {
    const THREE: [Device; 3] = [
        device(1, 4096, 0, true),
        device(9, 4096, 0, true),
        device(17, 4096, 0, true),
    ];
    let memory = Memory::new(&THREE);
    memory.states[1]
        .shut
        .store(devices::SHUT_FAILED, Ordering::Relaxed);
    let slots = memory.slots();
    let mut shares = [0; 3];
    for _ in 0..12 {
        let run = slots.alloc(&request(0, 512, true)).expect("there is room");
        shares[((run.first / CLUSTER_SLOTS as u32 - 1) / 8) as usize] += 1;
    }
    assert_eq!(shares, [6, 0, 6]);
}

/// Slots left in a cluster that is cut short in one file and whole in the next.
#[test]
fn a_device_of_another_size_lists_what_is_left_anew() {
    let memory = Memory::new(&DEVICES);
    let slots = memory.slots();
    let resize = |blocks: u32| {
        memory.states[0].missing.store(1000 - blocks, Ordering::Relaxed);
        slots.resized(0, 9);
        memory.check();
    };
    memory.states[1]
        .shut
        .store(devices::SHUT_LEAVING, Ordering::Relaxed);
    resize(512 + 8);
    let runs: Vec<Run> = std::iter::from_fn(|| slots.alloc(&request(0, 64, true))).collect();
    let left = *runs.last().unwrap();
    assert_eq!(
        (left, slots.cluster_word(2).list()),
        (
            Run {
                first: 1024,
                count: 8
            },
            List::Full
        )
    );
    runs.iter()
        .filter(|run| **run != left)
        .for_each(|run| slots.release(&all(*run), 3).unwrap());
    resize(0);
    assert_ne!(slots.cluster_word(2).list(), List::Full);
    slots.release(&all(left)[..7], 3).unwrap();
    resize(512 + 16);
    resize(1000);
}

/// The model found both: a cluster that was locked while its device got another size stayed on the list of the old one if
/// its holder did nothing else there; one with more slots taken than it has room for now was called wrong, and once those
/// behind the end were freed its runs were not known.
#[test]
fn a_device_of_another_size_lists_what_is_locked_and_what_is_too_full() {
    let memory = Memory::new(&DEVICES);
    let slots = memory.slots();
    let run = slots.alloc(&request(ORDERS - 1, 1, true)).unwrap();
    let (inside, behind) = (all(run)[..100].to_vec(), all(run)[100..].to_vec());
    let resize = |blocks: u32| {
        memory.states[0].missing.store(1000 - blocks, Ordering::Relaxed);
        slots.resized(0, 9);
    };
    resize(100);
    memory.check();
    slots.release(&inside[20..], 3).unwrap();
    memory.check();
    slots.release(&behind, 3).unwrap();
    memory.check();
    let held = slots.try_lock(run.first / CLUSTER_SLOTS as u32, 7).unwrap();
    resize(20);
    slots.unlock_unchanged(held);
    memory.check();
    let list = slots.cluster_word(run.first / CLUSTER_SLOTS as u32).list();
    assert_eq!(list, List::Full);
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
    let memory = Memory::new(&DEVICES);
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
    let memory = Memory::new(&DEVICES);
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
    let memory = Memory::new(&DEVICES);
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
    let memory = Memory::new(&DEVICES);
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
fn emptied_clusters_are_told_of_or_taken_again() {
    const ONE: [Device; 1] = [Device {
        discards: true,
        ..device(1, 2048, 0, true)
    }];
    let memory = Memory::new(&ONE);
    let slots = memory.slots();
    let runs: Vec<_> = (0..3)
        .map(|_| slots.alloc(&request(0, 512, true)).unwrap())
        .collect();
    assert!(slots.lock_discard(5).is_none());
    runs.iter().for_each(|run| slots.release(&all(*run), 3).unwrap());
    assert_eq!(
        [1, 2, 3].map(|c| slots.cluster_word(c).list()),
        [List::Discard; 3]
    );
    memory.check();
    let locked = slots.lock_discard(5).unwrap();
    assert_eq!(locked.cluster(), 1);
    let elsewhere = Request {
        cpu: 1,
        ..request(0, 512, true)
    };
    assert_eq!(
        slots.alloc(&elsewhere),
        Some(runs[1]),
        "neither the one that is being told of nor a free one"
    );
    slots.unlock_discarded(locked);
    assert_eq!(slots.cluster_word(1).list(), List::Free);
    let _held = slots.lock_discard(7).unwrap();
    assert!(slots.mend(3, 7), "a death while telling: it is told again");
    assert_eq!(slots.cluster_word(3).list(), List::Discard);
    assert_eq!(slots.alloc(&request(0, 512, true)), Some(runs[2]));
    assert!(slots.lock_discard(5).is_none(), "never used, used, or told of");
    memory.check();
}

#[test]
fn all_cpus_write_side_by_side_where_the_device_rotates() {
    const FLAT: [Device; 1] = [device(1, 2048, 0, true)];
    const ROTATING: [Device; 1] = [Device {
        rotates: true,
        ..FLAT[0]
    }];
    for (devices, second) in [(&FLAT, 1024), (&ROTATING, 512 + 64)] {
        let memory = Memory::new(devices);
        let of_cpu = |cpu| Request {
            cpu,
            ..request(0, 64, true)
        };
        assert_eq!(memory.slots().alloc(&of_cpu(0)).unwrap().first, 512);
        assert_eq!(memory.slots().alloc(&of_cpu(1)).unwrap().first, second);
    }
}

#[test]
fn only_the_owner_gives_back() {
    let memory = Memory::new(&DEVICES);
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
        let memory = Memory::new(&DEVICES);
        let slots = memory.slots();
        let run = slots.alloc(&request(0, 64, true)).unwrap();
        let _held = slots.try_lock(1, 7).unwrap();
        for word in &memory.table[700..700 + stored] {
            word.store(SlotWord::taken(7, 1).raw(), Ordering::Relaxed);
        }
        slots.set(List::Frag, 0, 0).unwrap().remove(1);
        slots.set(List::Nonfull, 2, 0).unwrap().insert(1);
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
    let memory = Memory::new(&DEVICES);
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

/// A cluster that is passed over because it has no long run left waits to be written back too. It once did not: what was
/// compressed into it stayed in RAM for good.
#[test]
fn a_cluster_that_is_passed_over_is_written_back() {
    let memory = Memory::new(&DEVICES);
    let slots = memory.slots();
    let filled = (0..8).filter_map(|_| slots.alloc(&request(0, 64, true)));
    assert_eq!(filled.map(|run| run.count).sum::<usize>(), 512);
    let full = slots.lock_oldest(5).unwrap();
    assert_eq!(full.cluster(), 1);
    slots.unlock_unchanged(full);
    for hole in [612..692, 812..892] {
        slots.release(&hole.collect::<Vec<_>>(), 3).unwrap();
    }
    let mut runs = Vec::new();
    while !runs.iter().any(|run: &Run| run.first >= 3 * 512) || runs.len() < 3 {
        assert!(runs.len() < 8, "{runs:?}");
        runs.push(slots.alloc(&request(0, 64, true)).unwrap());
    }
    let waiting: Vec<_> = slots.waiting().collect();
    assert_eq!(waiting, [1], "{runs:?}");
    memory.check();
}

/// A process that dies between locking a fresh cluster and allocating in it holds nobody up and loses nothing.
#[test]
fn a_death_on_a_fresh_cluster() {
    let memory = Memory::new(&DEVICES);
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

/// What every cluster costs, used or not.
#[test]
fn memory_of_a_large_device() {
    let clusters = (1usize << 40) / 4096 / CLUSTER_SLOTS;
    let bytes = 8 * (clusters + list_words(clusters));
    assert!(
        (bytes as f64) < 0.1 * (clusters * CLUSTER_SLOTS) as f64,
        "{bytes}"
    );
    assert!(bytes <= 13 * clusters);
}

/// Counts one more when it goes, in a panic too.
struct Ended<'a>(&'a AtomicU32);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Threads as processes: each takes runs, publishes, shares with itself and gives back, while another looks slots up and writes back
/// what was filled longest ago. No slot ever has two owners, its content is what its owner said, and in the end every count and list is
/// right.
#[test]
fn threads_never_share_a_slot() {
    const THREADS: u16 = 4;
    let memory = Memory::new(&DEVICES);
    let owners: Vec<AtomicU32> = (0..CLUSTERS * CLUSTER_SLOTS).map(|_| AtomicU32::new(0)).collect();
    let ended = AtomicU32::new(0);
    let beside = || {
        let (slots, table, mut written) = (memory.slots(), memory.table(), 0);
        while ended.load(Ordering::Relaxed) < u32::from(THREADS) {
            for slot in (0..CLUSTERS * CLUSTER_SLOTS).step_by(7) {
                if let Some(Backing::Compressed(Handle(made))) = table.load(slot as u32).backing() {
                    assert!(made & 255 < u64::from(THREADS), "slot {slot}: {made}");
                }
            }
            let Some(locked) = slots.lock_oldest(THREADS) else {
                continue;
            };
            let first = locked.cluster() * CLUSTER_SLOTS as u32;
            for slot in first..first + CLUSTER_SLOTS as u32 {
                let seen = table.load(slot);
                if let Some(Backing::Compressed(Handle(made))) = seen.backing() {
                    written += u32::from(table.written_back(slot, seen, made as u32));
                }
            }
            slots.unlock_unchanged(locked);
        }
        written
    };
    let body = |me: u16| {
        let (slots, table, mut mine) = (memory.slots(), memory.table(), Vec::new());
        let _ended = Ended(&ended);
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
                let made = (round << 8) | u64::from(me);
                table.publish(slot, Backing::Compressed(Handle(made))).unwrap();
                table.dup(slot).unwrap();
                mine.push((slot, made));
            }
            while mine.len() > 500 {
                let (slot, made) = mine.swap_remove(round as usize % mine.len());
                assert_eq!(table.put(slot, me), Ok(None));
                let backing = table.put(slot, me).unwrap();
                let ways = [
                    Backing::Compressed(Handle(made)),
                    Backing::Device { crc: made as u32 },
                ];
                assert!(ways.map(Some).contains(&backing), "{backing:?} of {made}");
                owners[slot as usize].store(0, Ordering::Relaxed);
                slots.release(&[slot], me).unwrap();
            }
        }
        mine.len()
    };
    let (left, written): (usize, u32) = thread::scope(|scope| {
        let beside = scope.spawn(beside);
        let threads: Vec<_> = (0..THREADS).map(|me| scope.spawn(move || body(me))).collect();
        let left = threads.into_iter().map(|t| t.join().unwrap()).sum();
        (left, beside.join().unwrap())
    });
    assert!(written > 0, "nothing was written back");
    memory.check();
    assert_eq!(memory.used(), left);
}
