//! The slot allocator: clusters, the lists they are on, and a current cluster for each CPU.
//!
//! Follows the kernel's allocator of Linux 6.18 (`mm/swapfile.c`: cluster locks, lists by fullness, per-CPU
//! clusters), with one change of means: its lists are chains under a lock of the device, ours are sets of
//! bits ([`crate::bit_tree`]) without a lock, because the holder of a lock can be killed here. Allocation of
//! 2^order slots, or for order 0 of a run of up to `want` side by side:
//!
//! 1. where this CPU allocated last, from the place after;
//! 2. on each device, by priority and in turn among equals:
//!    a free cluster if those in use are dense; a `Nonfull` one of the order; a free one; a `Frag` one of the
//!    order; for single slots at last those of other orders. Single slots take a free one last of all while few are left and
//!    whole ones were asked for.
//!
//! Clusters of single slots are listed by the class of their longest free run too, and steps 1 and 2 are for runs
//! of the whole length wanted. Only if there is none on the device are shorter ones taken, from the clusters with
//! the longest: a device with scattered holes gives its long runs first, and the short ones may grow meanwhile.
//! Where clusters with a few slots each have become too many ([`DeviceState::enough`]) the longest of theirs come before a free one.
//! What is left of a cluster that was filled from front to end is used up however short it is.
//!
//! A device that wants to be told of empty blocks has its emptied clusters listed apart: they are taken before free
//! ones, which spares it the telling, and whoever has time tells it of the others ([`Slots::lock_discard`]).
//!
//! A cluster whose lock is held is skipped. So no two CPUs allocate in one cluster unless free clusters have run out, and
//! a lock left by a dead process costs its cluster until [`Slots::mend`].
//!
//! Freeing must reach its own cluster, so it can't skip it: if the lock is held, the slots are left
//! `Released` and the holder frees them when it unlocks. When a cluster's last slot is freed, whoever does it
//! gives the memory of its words back under the lock ([`Punch`]). A look-up that raced sees zeros: free.
//!
//! A death between two steps leaves one of these, and [`Slots::mend`] with a look at each used cluster's
//! words finds them all: a cluster locked by the dead; slots `Busy` with its index; slots `Released` that
//! nobody was told of. [`DeviceState`] may be left wrong by one operation: it only steers.

use core::cell::Cell;

use crate::bit_tree::BitTree;
use crate::cluster::{self, CLUSTER_SLOTS, ClusterWord, List, ORDERS, RUN_CLASSES, run_class};
use crate::devices::{self, Device, DeviceState};
use crate::fifo::Fifo;
use crate::kill_point;
use crate::swap_table::{Impossible, SlotWord, SwapTable};
use crate::sync::{AtomicU64, Ordering};

/// CPUs that have current clusters of their own; more share them.
pub const CPUS: usize = if cfg!(all(test, loom)) { 2 } else { 256 };
/// Words per CPU in [`Parts::current`]: one per order and class of device, rounded up to whole lines.
pub const CURRENT_WORDS: usize = 32;
/// Sets of clusters: free, discard, nonfull and frag of single slots by class of run, nonfull and frag of larger orders.
const SETS: usize = 2 + 2 * RUN_CLASSES + 2 * (ORDERS - 1);
/// A run of the highest class: nothing longer is looked for.
const LONG_RUN: usize = 1 << (RUN_CLASSES - 1);
/// Mark in the word of a current cluster: it has given a run shorter than wanted.
const SPENT: u64 = 1 << 63;
/// Clusters of its order that a large allocation looks through.
const LARGE_TRIES: usize = 16;

/// Gives a cluster's page of table words back to the system.
pub trait Punch {
    /// Makes the words of `cluster`, all of them free, read as zeros and cost nothing. Called with the
    /// cluster's lock held.
    fn punch(&self, cluster: u32);
}

/// The shared memory an allocator works on. All zero is an empty one.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// One word per slot, [`CLUSTER_SLOTS`] per cluster.
    pub table: SwapTable<'a>,
    /// One word per cluster.
    pub clusters: &'a [AtomicU64],
    /// The lists: [`list_words`] words.
    pub lists: &'a [AtomicU64],
    /// Where each CPU allocated last: [`CPUS`] times [`CURRENT_WORDS`] words.
    pub current: &'a [AtomicU64],
    /// Clusters of devices with a file, by the time they became full.
    pub fifo: Fifo<'a>,
    /// The devices.
    pub devices: &'a [Device],
    /// Their states, in the same order.
    pub states: &'a [DeviceState],
}

/// How many words the lists of so many clusters need.
#[must_use]
pub const fn list_words(clusters: usize) -> usize {
    SETS * BitTree::words(clusters)
}

/// The clusters that are on a list by word `at` of [`Parts::lists`], if it is `word`, of so many clusters.
pub fn listed_by(clusters: usize, at: usize, word: u64) -> impl Iterator<Item = usize> {
    BitTree::members_of(clusters, at % BitTree::words(clusters), word)
}

/// What an allocation asks for.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Index of the process that will fill the slots.
    pub owner: u16,
    /// The CPU it runs on; any number will do.
    pub cpu: u32,
    /// 2^order aligned contiguous slots, below [`ORDERS`].
    pub order: usize,
    /// For order 0: up to so many contiguous slots, at least 1.
    pub want: usize,
    /// Slots with a block to write to, or slots without.
    pub has_file: bool,
}

/// Contiguous slots, busy with the request's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first slot.
    pub first: u32,
    /// How many.
    pub count: usize,
}

/// Locks taken and missed by one [`Slots`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Cluster locks taken.
    pub locks: u64,
    /// Cluster locks found held.
    pub missed: u64,
}

/// One thread's view on the allocator.
#[derive(Debug)]
pub struct Slots<'a, P> {
    parts: Parts<'a>,
    punch: P,
    tally: Cell<Tally>,
}

/// When a device's free clusters are taken: before all others, after those of the order that are not full, after all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    First,
    Second,
    Last,
}

impl<'a, P: Punch> Slots<'a, P> {
    /// A view on `parts`.
    #[must_use]
    pub const fn new(parts: Parts<'a>, punch: P) -> Self {
        let tally = Cell::new(Tally { locks: 0, missed: 0 });
        Self { parts, punch, tally }
    }

    /// The locks taken and missed through this view since last asked.
    #[must_use]
    pub fn take_tally(&self) -> Tally {
        self.tally.take()
    }

    /// The word of a cluster; a free one's for a cluster that is not there.
    #[must_use]
    pub fn cluster_word(&self, cluster: u32) -> ClusterWord {
        let word = self.parts.clusters.get(cluster as usize);
        word.map_or(ClusterWord(0), cluster::load)
    }

    /// Takes slots. None if there are none on any device of the class; a larger order may also fail because
    /// no aligned run is free.
    #[must_use]
    pub fn alloc(&self, request: &Request) -> Option<Run> {
        if request.order >= ORDERS || request.want == 0 {
            return None;
        }
        if let Some(run) = self.take_current(request) {
            return Some(run);
        }
        let mut above = i64::MAX;
        while let Some(priority) = self.priorities().filter(|p| *p < above).max() {
            if let Some(run) = self.take_equal(priority, request) {
                return Some(run);
            }
            above = priority;
        }
        None
    }

    /// The devices' priorities as they are now.
    fn priorities(&self) -> impl Iterator<Item = i64> {
        let all = self.parts.devices.iter().zip(self.parts.states);
        all.map(|(device, state)| i64::from(state.now(device).priority))
    }

    /// From one of the devices of a priority: each is asked first in its turn.
    fn take_equal(&self, priority: i64, request: &Request) -> Option<Run> {
        let equal = || {
            let all = self.priorities().enumerate();
            all.filter(move |(_, p)| *p == priority).map(|(index, _)| index)
        };
        let first = equal().next()?;
        let count = equal().count();
        let turns = self.parts.states.get(first).filter(|_| count > 1);
        let turn = turns.map_or(0, |state| {
            state.turn.fetch_add(1, Ordering::Relaxed) as usize % count
        });
        let (before, from) = (equal().take(turn), equal().skip(turn));
        let (passed, run) = from
            .chain(before)
            .enumerate()
            .find_map(|(passed, index)| Some((passed, self.take_device(index, request)?)))?;
        // The turn of those that had nothing is over: who stands in for them does not get theirs and his own.
        if let Some(state) = turns.filter(|_| passed > 0) {
            state.turn.fetch_add(passed as u32, Ordering::Relaxed);
        }
        Some(run)
    }

    /// The device that owns a cluster, as it is now, and its state.
    fn device_of(&self, cluster: u32) -> Option<(&'a DeviceState, Device)> {
        let (index, device) = devices::owner_of(self.parts.devices, cluster)?;
        let state = self.parts.states.get(index)?;
        Some((state, state.now(device)))
    }

    /// Slots of device `index` that are taken, by the counts of its clusters. Others allocate and free meanwhile.
    #[must_use]
    pub fn count_used(&self, index: usize) -> u64 {
        let counts = self.used_clusters(index);
        counts.map(|word| cluster::load(word).count() as u64).sum()
    }

    /// The slots of device `index`, which was shut before, that are taken; none if one of its clusters is locked. Until it
    /// is opened there will never be more: each of its clusters was seen unlocked in one instruction that later
    /// holders of its lock see, and with it that the device is shut.
    #[must_use]
    pub fn settled(&self, index: usize) -> Option<u64> {
        let mut used = 0;
        if let Some(state) = self.parts.states.get(index) {
            // Who finds the mark from here on sees the device shut; a mark moved on before is seen below.
            state.fresh.fetch_add(0, Ordering::AcqRel);
        }
        for word in self.used_clusters(index) {
            let seen = cluster::load(word);
            if seen.holder().is_some() || cluster::exchange(word, seen, seen).is_err() {
                return None;
            }
            used += seen.count() as u64;
        }
        Some(used)
    }

    /// Lists those clusters of device `index` anew that have slots taken still, after its size has changed; done for process
    /// index `owner`. The holder of one that is locked does it when he unlocks, whatever else he did.
    pub fn resized(&self, index: usize, owner: u16) {
        let first = self
            .parts
            .devices
            .get(index)
            .map_or(0, |device| device.first_cluster);
        for (cluster, word) in (first..).zip(self.used_clusters(index)) {
            if cluster::load(word).count() > 0 {
                self.sweep_or_tell(cluster, owner);
            }
        }
    }

    /// The words of a device's clusters that were ever locked: the fresh mark moves on after the lock.
    fn used_clusters(&self, index: usize) -> impl Iterator<Item = &'a AtomicU64> {
        let range = match (self.parts.devices.get(index), self.parts.states.get(index)) {
            (Some(device), Some(state)) => {
                let fresh = state.fresh.load(Ordering::Acquire) + 1;
                let first = device.first_cluster;
                first..(first + fresh).min(device.end_cluster())
            }
            _ => 0..0,
        };
        let clusters = self.parts.clusters;
        range.filter_map(|cluster| clusters.get(cluster as usize))
    }

    /// The word that tells where a CPU allocated last: cluster + 1, and the place in it after that. One for all CPUs
    /// if a device of the class rotates.
    fn current(&self, request: &Request) -> Option<&'a AtomicU64> {
        let class = usize::from(request.has_file) * ORDERS + request.order;
        let mut now = self.parts.devices.iter().zip(self.parts.states);
        let rotates = |device: Device| device.rotates && device.has_file == request.has_file;
        let cpu = match now.any(|(device, state)| rotates(state.now(device))) {
            true => 0,
            false => request.cpu as usize % CPUS,
        };
        self.parts.current.get(cpu * CURRENT_WORDS + class)
    }

    fn take_current(&self, request: &Request) -> Option<Run> {
        let hint = self.current(request)?.load(Ordering::Relaxed);
        let cluster = (hint as u32).checked_sub(1)?;
        if hint & SPENT != 0 && self.cluster_word(cluster).run() < sure_class(request.want) {
            return None;
        }
        let least = request.want.min(LONG_RUN);
        self.take(cluster, request, ((hint & !SPENT) >> 32) as usize, least)
    }

    fn take_device(&self, index: usize, request: &Request) -> Option<Run> {
        let state = self.parts.states.get(index)?;
        let device = &state.now(self.parts.devices.get(index)?);
        let shut = state.shut.load(Ordering::Relaxed) != 0;
        if shut || device.has_file != request.has_file || device.slots == 0 {
            return None;
        }
        if request.order == ORDERS - 1 && state.whole.load(Ordering::Relaxed) == 0 {
            state.whole.store(1, Ordering::Relaxed);
        }
        let spares = request.order == 0 && state.spares_clusters(device.clusters());
        let turn_of_free = match (spares, state.dense()) {
            (true, _) => Turn::Last,
            (false, true) => Turn::First,
            (false, false) => Turn::Second,
        };
        let free = |turn| {
            if turn != turn_of_free {
                return None;
            }
            self.take_list((List::Discard, 0), device, request, 1)
                .or_else(|| self.take_list((List::Free, 0), device, request, 1))
                .or_else(|| self.take_fresh(device, state, request))
        };
        let least = request.want.min(LONG_RUN);
        let classes = match request.order {
            0 => sure_class(request.want)..RUN_CLASSES,
            _ => 0..1,
        };
        let whole = |list| {
            let mut classes = classes.clone();
            classes.find_map(|class| self.take_list((list, class), device, request, least))
        };
        let fair = || {
            let enough = state.enough.load(Ordering::Relaxed) as usize;
            (request.order == 0 && enough > 0 && enough < least).then(|| {
                let classes = sure_class(enough)..=run_class(request.want);
                let of_class = |class| self.take_list((List::Nonfull, class), device, request, enough);
                classes.rev().find_map(of_class)
            })?
        };
        let short = || {
            (request.order == 0)
                .then(|| self.take_short(device, request))
                .flatten()
        };
        free(Turn::First)
            .or_else(|| whole(List::Nonfull))
            .or_else(fair)
            .or_else(|| free(Turn::Second))
            .or_else(|| whole(List::Frag))
            .or_else(short)
            .or_else(|| free(Turn::Last))
    }

    /// A run shorter than wanted: the longest, to the class, that the device has; then from clusters of larger orders.
    fn take_short(&self, device: &Device, request: &Request) -> Option<Run> {
        (0..=run_class(request.want))
            .rev()
            .find_map(|class| {
                self.take_list((List::Nonfull, class), device, request, 1 << class)
                    .or_else(|| self.take_list((List::Frag, class), device, request, 1 << class))
            })
            .or_else(|| self.steal(device, request))
    }

    /// Single slots from clusters of larger orders.
    fn steal(&self, device: &Device, request: &Request) -> Option<Run> {
        (1..ORDERS).find_map(|order| {
            let of_list = |list| self.take_members(self.set(list, order, 0)?, device, request, 1);
            of_list(List::Frag).or_else(|| of_list(List::Nonfull))
        })
    }

    /// From the clusters on a list, of the request's order; for single slots of those with runs of a class.
    fn take_list(
        &self,
        (list, class): (List, usize),
        device: &Device,
        request: &Request,
        least: usize,
    ) -> Option<Run> {
        self.take_members(self.set(list, request.order, class)?, device, request, least)
    }

    fn take_members(
        &self,
        set: BitTree<'_>,
        device: &Device,
        request: &Request,
        least: usize,
    ) -> Option<Run> {
        let tries = if request.order == 0 {
            usize::MAX
        } else {
            LARGE_TRIES
        };
        let mut at = device.first_cluster as usize;
        for _ in 0..tries {
            let cluster = set.next(at, device.end_cluster() as usize)?;
            let run = self.take(cluster as u32, request, 0, least);
            if run.is_some() {
                return run;
            }
            at = cluster + 1;
        }
        None
    }

    /// A cluster that was never used. The mark is moved on after the cluster was locked, or by whoever finds
    /// it locked, so a death in between holds nobody up.
    fn take_fresh(&self, device: &Device, state: &DeviceState, request: &Request) -> Option<Run> {
        loop {
            let seen = state.fresh.load(Ordering::Acquire);
            // A device that is shut meanwhile gives none, however many are left: they need not be looked at.
            if seen >= device.clusters() || state.shut.load(Ordering::Relaxed) != 0 {
                return None;
            }
            let cluster = device.first_cluster + seen;
            let run = self.take(cluster, request, 0, 1);
            let _ = state
                .fresh
                .compare_exchange(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed);
            if run.is_some() {
                return run;
            }
        }
    }

    /// Tries to allocate in one cluster, looking from place `from` on: a run of `least` slots at least, but what is left
    /// of a cluster that was filled in order is taken whatever its length.
    fn take(&self, cluster: u32, request: &Request, from: usize, least: usize) -> Option<Run> {
        let mut locked = self.try_lock(cluster, request.owner)?;
        // Looked at under the lock: who shuts a device, then finds its clusters free and unlocked, need not wait; and another file that
        // has joined in its place since may be smaller.
        let found = self.device_of(cluster).filter(|(state, device)| {
            state.shut.load(Ordering::Acquire) == 0
                && device.owns(cluster)
                && device.has_file == request.has_file
                && locked.now.usable(request.order)
        });
        let Some((_, device)) = found else {
            self.unlock(locked, Done::Nothing);
            return None;
        };
        let words = self.words(cluster, device.capacity(cluster));
        let (from, least) = if locked.now.count() == 0 {
            locked.now = locked
                .now
                .with_order(request.order)
                .with_run(run_class(words.len()));
            (0, 1)
        } else {
            (from, least)
        };
        let found = find(words, from, request);
        if request.order == 0
            && let Some(longest_left) = found.longest_left
        {
            let taken = found.count >= least;
            let longest = if taken {
                longest_left
            } else {
                found.count.max(longest_left)
            };
            locked.now = locked.now.with_run(run_class(longest));
        }
        let (start, count) = (found.start, found.count);
        if count == 0 || (count < least && !found.is_rest) {
            self.unlock(locked, if count == 0 { Done::Took } else { Done::Nothing });
            return None;
        }
        locked.now = locked.now.next_generation();
        let taken = SlotWord::taken(request.owner, locked.now.generation());
        for word in words.iter().skip(start).take(count) {
            word.store(taken.raw(), Ordering::Relaxed);
            kill_point!("cluster-storing");
        }
        kill_point!("cluster-stored");
        locked.now = locked.now.with_count(locked.now.count() + count);
        self.unlock(locked, Done::Took);
        kill_point!("cluster-current");
        if let Some(current) = self.current(request) {
            let spent = if count < request.want && !found.is_rest {
                SPENT
            } else {
                0
            };
            let hint = (((start + count) % CLUSTER_SLOTS) as u64) << 32 | u64::from(cluster + 1);
            current.store(hint | spent, Ordering::Relaxed);
        }
        let first = cluster * CLUSTER_SLOTS as u32 + start as u32;
        Some(Run { first, count })
    }

    /// Gives back slots that `owner` holds busy; neighbours in one step.
    ///
    /// # Errors
    /// The first slot that is not `owner`'s; the others are given back.
    pub fn release(&self, slots: &[u32], owner: u16) -> Result<(), Impossible> {
        let mut result = Ok(());
        let same_cluster = |a: &u32, b: &u32| a / CLUSTER_SLOTS as u32 == b / CLUSTER_SLOTS as u32;
        for group in slots.chunk_by(same_cluster) {
            result = result.and(self.release_group(group, owner));
        }
        result
    }

    fn release_group(&self, group: &[u32], owner: u16) -> Result<(), Impossible> {
        let cluster = group.first().map_or(0, |slot| slot / CLUSTER_SLOTS as u32);
        let mut result = Ok(());
        let mut each = |to: fn(SlotWord) -> SlotWord| {
            let mut count = 0;
            for &slot in group {
                let gone = self.give_up(slot, owner, to);
                kill_point!("cluster-freeing");
                count += usize::from(gone.is_ok());
                result = result.and(gone);
            }
            count
        };
        if let Some(mut locked) = self.try_lock(cluster, owner) {
            let count = each(|_| SlotWord::FREE);
            kill_point!("cluster-freed");
            let first = group.first().copied().unwrap_or_default();
            result = result.and(self.lose(&mut locked, count, first));
            self.note_runs(&mut locked, group);
            self.unlock(locked, Done::Freed);
        } else {
            each(SlotWord::released);
            kill_point!("slot-released");
            self.sweep_or_tell(cluster, owner);
        }
        result
    }

    fn give_up(&self, slot: u32, owner: u16, to: fn(SlotWord) -> SlotWord) -> Result<(), Impossible> {
        let word = self.parts.table.word(slot)?;
        let seen = SlotWord(word.load(Ordering::Acquire));
        if seen.owner() != Some(owner) {
            return Err(Impossible {
                slot,
                word: seen.raw(),
                expected: "a busy slot of the process that gives it back",
            });
        }
        // Only its owner changes a busy word.
        word.store(to(seen).raw(), Ordering::Release);
        Ok(())
    }

    /// Frees what was left `Released` in a cluster and lists it anew, or tells the holder of its lock to. Also for slots
    /// that a dead process left so.
    pub fn sweep_or_tell(&self, cluster: u32, owner: u16) {
        let Some(word) = self.parts.clusters.get(cluster as usize) else {
            return;
        };
        loop {
            let seen = cluster::load(word);
            if seen.holder().is_some() {
                // Exchanged even if the mark is there already: that makes the holder see the words.
                if cluster::exchange(word, seen, seen.with_pending(true)).is_ok() {
                    return;
                }
            } else if let Some(mut locked) = self.try_lock(cluster, owner) {
                self.sweep(&mut locked);
                self.unlock(locked, Done::Freed);
                return;
            }
        }
    }
}

/// The lowest class whose runs are all long enough, or the highest there is.
const fn sure_class(want: usize) -> usize {
    let class = run_class(want);
    if want.is_power_of_two() || class + 1 == RUN_CLASSES {
        class
    } else {
        class + 1
    }
}

mod find;
use find::find;
mod locked;
use locked::Done;
pub use locked::Locked;

#[cfg(test)]
#[path = "../tests/models/slots_memory.rs"]
pub(crate) mod fixture;
#[cfg(all(test, not(loom)))]
mod fragmented;
#[cfg(all(test, not(loom)))]
mod mixed;
#[cfg(all(test, loom))]
pub(crate) mod models;
#[cfg(all(test, not(loom)))]
mod tests;
