//! A cluster in the hands of one thread: locking, unlocking, the lists, and mending what a dead holder left.

use super::{LONG_RUN, Punch, SETS, Slots};
use crate::bit_tree::BitTree;
use crate::cluster::{self, CLUSTER_SLOTS, ClusterWord, List, ORDERS, RUN_CLASSES, run_class};
use crate::devices::DeviceState;
use crate::kill_point;
use crate::swap_table::{Impossible, SlotKind, SlotWord};
use crate::sync::{AtomicU64, Ordering};

/// A cluster in which no run of this class, a whole block of frames, is left after an allocation is passed over from then on:
/// what lies in it waits to be written back, or the holes that stay would keep it from that. (With a lower bound a tree once
/// wrote 1 page back instead of 70,000.)
const SPENT_BELOW: usize = if cfg!(all(test, loom)) { 0 } else { RUN_CLASSES - 1 };
/// Clusters tried before nothing old is said to be there.
const OLDEST_TRIES: usize = if cfg!(all(test, loom)) { 2 } else { 16 };

/// A cluster whose lock is held.
#[derive(Debug)]
pub struct Locked {
    pub(super) cluster: u32,
    /// The word in memory, but for the pending mark.
    was: ClusterWord,
    /// What it will be when unlocked.
    pub(super) now: ClusterWord,
    /// Whether no list can be trusted about it.
    stray: bool,
}

impl Locked {
    /// The cluster.
    #[must_use]
    pub const fn cluster(&self) -> u32 {
        self.cluster
    }
}

/// What was done to a cluster while it was locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    Nothing,
    Took,
    Freed,
}

impl<'a, P: Punch> Slots<'a, P> {
    /// Locks a cluster for process index `owner`; none if it is locked. While it is held no slot of the
    /// cluster is handed out or becomes free, though slots may be put.
    #[must_use]
    pub fn try_lock(&self, cluster: u32, owner: u16) -> Option<Locked> {
        let word = self.parts.clusters.get(cluster as usize)?;
        let seen = cluster::load(word);
        let was = seen.locked(owner);
        let mut tally = self.tally.get();
        let taken = seen.holder().is_none() && cluster::exchange(word, seen, was).is_ok();
        tally.locks += u64::from(taken);
        tally.missed += u64::from(!taken);
        self.tally.set(tally);
        if taken {
            kill_point!("cluster-locked");
        }
        taken.then_some(Locked {
            cluster,
            was,
            now: was,
            stray: false,
        })
    }

    /// Unlocks a cluster whose slots the holder has neither taken nor freed.
    pub fn unlock_unchanged(&self, locked: Locked) {
        self.unlock(locked, Done::Nothing);
    }

    /// Numbered steps: 1. the list that fits the count; 2. no slot used: the memory of the words goes back;
    /// 3. the sets; 4. the word, which unlocks, unless slots were released meanwhile: then again from 1.
    pub(super) fn unlock(&self, mut locked: Locked, mut done: Done) {
        let cluster = locked.cluster;
        let Some(word) = self.parts.clusters.get(cluster as usize) else {
            return;
        };
        let owner = self.device_of(cluster);
        let mut capacity = owner.map_or(CLUSTER_SLOTS, |(_, device)| device.capacity(cluster));
        let discards = owner.is_some_and(|(_, device)| device.discards);
        let mut on = locked.was;
        loop {
            if done != Done::Nothing {
                let target = match locked.now.target(capacity, done == Done::Took) {
                    // Not a cluster that was never used, or has been told of.
                    List::Free if discards && on.list() != List::Free => List::Discard,
                    target => target,
                };
                locked.now = locked.now.with_list(target);
            }
            if locked.now.list() == List::Full {
                locked.now = locked.now.with_run(0);
            } else if on.list() == List::Full && capacity < CLUSTER_SLOTS {
                // It was as full as that with slots behind the end of a device that was larger, and may have had runs.
                locked.now = locked.now.with_run(run_class(self.longest_run(cluster)));
            }
            if locked.now.count() == 0 {
                locked.now = locked.now.with_order(0);
                if locked.was.count() != 0 || locked.stray {
                    self.punch.punch(cluster);
                    kill_point!("cluster-punched");
                }
            }
            self.relist(&locked, on);
            kill_point!("cluster-relisted");
            let full = locked.now.list() == List::Full && on.list() != List::Full;
            // Also when an allocation that looked for more has found that it is.
            let looked = done == Done::Took || on.run() >= SPENT_BELOW;
            let spent = looked && locked.now.run() < SPENT_BELOW && locked.now.count() > 0;
            if (full || spent) && !locked.now.queued() && owner.is_some_and(|(_, device)| device.has_file) {
                self.queue(&mut locked);
            }
            on = locked.now;
            let Err(found) = cluster::exchange(word, locked.was, locked.now.unlocked()) else {
                break;
            };
            // Others change nothing but the mark; take it off before looking, so that none is missed.
            if cluster::exchange(word, found, locked.was).is_ok() {
                self.sweep(&mut locked);
                done = Done::Freed;
                // Who has given the device another size sets the mark too.
                capacity = self.capacity(cluster);
            }
        }
        kill_point!("cluster-unlocked");
        if let Some((state, _)) = owner {
            steer(state, locked.was.count(), locked.now.count());
        }
    }

    /// The word says so after the cluster is there: a death in between leaves it there twice, never lost.
    fn queue(&self, locked: &mut Locked) {
        self.parts.fifo.push(locked.cluster);
        kill_point!("cluster-queued");
        locked.now = locked.now.with_queued(true);
    }

    /// The clusters in the queue to be written back, as they are when looked at.
    pub fn waiting(&self) -> impl Iterator<Item = u32> {
        self.parts.fifo.waiting()
    }

    /// Puts a cluster into that queue; if it is there already it comes twice, which does no harm.
    pub fn requeue(&self, cluster: u32) {
        self.parts.fifo.push(cluster);
    }

    /// Locks the cluster that was filled longest ago, of those with a file. While it is held its slots' blocks
    /// can be written: none of them is handed out. None if there is none, or the first few are locked.
    #[must_use]
    pub fn lock_oldest(&self, owner: u16) -> Option<Locked> {
        for _ in 0..OLDEST_TRIES {
            let cluster = self.parts.fifo.pop()?;
            kill_point!("cluster-popped");
            if let Some(mut locked) = self.try_lock(cluster, owner) {
                locked.now = locked.now.with_queued(false);
                return Some(locked);
            }
            self.parts.fifo.push(cluster);
        }
        None
    }

    /// Unlocks a cluster that waits for its turn once more: something in it could not be written yet.
    pub fn unlock_again(&self, mut locked: Locked) {
        self.queue(&mut locked);
        self.unlock(locked, Done::Nothing);
    }

    /// Locks an empty cluster whose blocks the device may forget; the caller tells it, then calls
    /// [`Self::unlock_discarded`]. None if there is none, or the first few are locked.
    #[must_use]
    pub fn lock_discard(&self, owner: u16) -> Option<Locked> {
        let set = self.set(List::Discard, 0, 0)?;
        let mut at = 0;
        for _ in 0..OLDEST_TRIES {
            let cluster = set.next(at, self.parts.clusters.len())?;
            if let Some(locked) = self.try_lock(cluster as u32, owner) {
                if locked.now.list() == List::Discard {
                    return Some(locked);
                }
                self.unlock_unchanged(locked);
            }
            at = cluster + 1;
        }
        None
    }

    /// Unlocks a cluster from [`Self::lock_discard`]: it is free now.
    pub fn unlock_discarded(&self, mut locked: Locked) {
        locked.now = locked.now.with_list(List::Free);
        self.unlock(locked, Done::Nothing);
    }

    /// Takes the cluster from the set it was on and puts it into the one it belongs to.
    fn relist(&self, locked: &Locked, on: ClusterWord) {
        let member = locked.cluster as usize;
        let to = home_of(locked.now);
        if locked.stray {
            (0..SETS).for_each(|set| self.set_at(set).mend(member, Some(set) == to));
            return;
        }
        let from = home_of(on);
        // A free cluster that was never used is in no set yet.
        if from == to && locked.now.list() != List::Free {
            return;
        }
        if let Some(from) = from.filter(|_| from != to) {
            self.set_at(from).remove(member);
        }
        if let Some(to) = to {
            self.set_at(to).insert(member);
        }
    }

    /// The set of the clusters on a list; for single slots of those with runs of `class` only.
    pub(super) fn set(&self, list: List, order: usize, class: usize) -> Option<BitTree<'a>> {
        Some(self.set_at(set_index(list, order, class)?))
    }

    pub(super) fn set_at(&self, index: usize) -> BitTree<'a> {
        let clusters = self.parts.clusters.len();
        let words = BitTree::words(clusters);
        let lists = self.parts.lists;
        BitTree::new(
            lists.get(index * words..(index + 1) * words).unwrap_or(&[]),
            clusters,
        )
    }

    /// The first `count` words of a cluster; none of a cluster that the table does not reach.
    pub(super) fn words(&self, cluster: u32, count: usize) -> &'a [AtomicU64] {
        let start = cluster as usize * CLUSTER_SLOTS;
        let words = self.parts.table.words;
        words.get(start..start + count).unwrap_or(&[])
    }

    /// Unlocks a cluster that the dead process `dead` held: count and list are made anew from the words. Done
    /// in the name of the dead, by its one cleaner. False if the dead did not hold it.
    pub fn mend(&self, cluster: u32, dead: u16) -> bool {
        let Some(word) = self.parts.clusters.get(cluster as usize) else {
            return false;
        };
        let was = loop {
            let seen = cluster::load(word);
            if seen.holder() != Some(dead) {
                return false;
            }
            let was = seen.with_pending(false);
            if cluster::exchange(word, seen, was).is_ok() {
                break was;
            }
        };
        if was.queued() {
            // It may have been taken off the queue, to be written back, by the one that died. Coming twice does no harm.
            self.parts.fifo.push(cluster);
        }
        let mut locked = Locked {
            cluster,
            was,
            now: was,
            stray: true,
        };
        self.sweep(&mut locked);
        locked.now = locked.now.with_count(self.count_words(cluster));
        self.unlock(locked, Done::Freed);
        true
    }

    /// So many slots of a locked cluster have been freed, `slot` among them.
    ///
    /// # Errors
    /// It counted fewer. It counts its words from now on: others' slots are not to be given up with these.
    pub(super) fn lose(&self, locked: &mut Locked, count: usize, slot: u32) -> Result<(), Impossible> {
        let left = locked.now.count().checked_sub(count);
        let left = left.ok_or(Impossible {
            slot,
            word: locked.was.0,
            expected: "a cluster that counts each of its slots in use",
        });
        let counted = left.unwrap_or_else(|_| self.count_words(locked.cluster));
        locked.now = locked.now.with_count(counted);
        left.map(drop)
    }

    /// The words of a cluster that are not free.
    fn count_words(&self, cluster: u32) -> usize {
        let used = |word: &&AtomicU64| word.load(Ordering::Acquire) != 0;
        self.words(cluster, CLUSTER_SLOTS).iter().filter(used).count()
    }

    /// What is wrong with an unlocked cluster while nobody works on it: its count must be that of its words,
    /// and it must be in the set of its list and in no other. `None` if all is well.
    #[must_use]
    pub fn fault_of(&self, cluster: u32) -> Option<&'static str> {
        let word = self.cluster_word(cluster);
        let (_, device) = self.device_of(cluster)?;
        let home = home_of(word);
        let listed = |set: usize| self.set_at(set).contains(cluster as usize);
        if word.count() != 0 && self.count_words(cluster) != word.count() {
            return Some("its count is not that of its slots");
        }
        let fits = match word.list() {
            List::Free | List::Discard => word.count() == 0,
            // More, if slots behind the end are left from a time when the device was larger.
            List::Full => word.count() >= device.capacity(cluster),
            List::Nonfull | List::Frag => word.count() != 0 && word.count() < device.capacity(cluster),
            List::Invalid => false,
        };
        if !fits {
            return Some("its list does not fit its count");
        }
        let in_use = matches!(word.list(), List::Nonfull | List::Frag);
        if in_use && run_class(self.longest_run(cluster)) > word.run() {
            return Some("it has a longer run of free slots than its word says");
        }
        if (0..SETS).any(|set| Some(set) != home && listed(set)) {
            return Some("it is on a list that its word does not name");
        }
        // A free cluster that was never used is on none.
        let missing = word.list() != List::Free && home.is_some_and(|set| !listed(set));
        if missing {
            return Some("it is missing from the list that its word names");
        }
        home.is_some_and(|set| self.set_at(set).hides(cluster as usize))
            .then_some("it is hidden on its list: the summary above it tells of nothing there")
    }

    /// Frees the `Released` words of a locked cluster.
    pub(super) fn sweep(&self, locked: &mut Locked) {
        let mut count = 0;
        for word in self.words(locked.cluster, CLUSTER_SLOTS) {
            if SlotWord(word.load(Ordering::Acquire)).kind() == SlotKind::Released {
                word.store(0, Ordering::Relaxed);
                count += 1;
            }
        }
        locked.now = locked.now.with_count(locked.now.count().saturating_sub(count));
        let class = run_class(self.longest_run(locked.cluster));
        locked.now = locked.now.with_run(class);
    }

    fn capacity(&self, cluster: u32) -> usize {
        let owner = self.device_of(cluster);
        owner.map_or(CLUSTER_SLOTS, |(_, device)| device.capacity(cluster))
    }

    /// The length of the longest run of free slots.
    fn longest_run(&self, cluster: u32) -> usize {
        let (mut longest, mut run) = (0, 0);
        for word in self.words(cluster, self.capacity(cluster)) {
            run = if word.load(Ordering::Relaxed) == 0 {
                run + 1
            } else {
                0
            };
            longest = longest.max(run);
        }
        longest
    }

    /// Raises the class of a locked cluster to that of the longest run which one of `slots`, just freed, lies in.
    pub(super) fn note_runs(&self, locked: &mut Locked, slots: &[u32]) {
        let words = self.words(locked.cluster, self.capacity(locked.cluster));
        let is_free = |word: &&AtomicU64| word.load(Ordering::Relaxed) == 0;
        let mut seen = 0..0;
        for &slot in slots {
            let at = slot as usize % CLUSTER_SLOTS;
            if seen.contains(&at) || locked.now.run() == RUN_CLASSES - 1 {
                continue;
            }
            let (before, after) = words.split_at(at.min(words.len()));
            let below = before.iter().rev().take(LONG_RUN).take_while(is_free).count();
            let above = after.iter().take(LONG_RUN).take_while(is_free).count();
            if above > 0 {
                let class = run_class(below + above).max(locked.now.run());
                locked.now = locked.now.with_run(class);
                seen = at - below..at + above;
            }
        }
    }
}

/// The set that a cluster with this word belongs to.
const fn home_of(word: ClusterWord) -> Option<usize> {
    set_index(word.list(), word.order(), word.run())
}

/// Free; discard; nonfull and frag of single slots by class of run; nonfull and frag of the larger orders.
const fn set_index(list: List, order: usize, class: usize) -> Option<usize> {
    let of_list = match list {
        List::Free => return Some(0),
        List::Discard => return Some(1),
        List::Nonfull => 0,
        List::Frag => 1,
        _ => return None,
    };
    match order {
        0 if class < RUN_CLASSES => Some(2 + of_list * RUN_CLASSES + class),
        1..ORDERS => Some(1 + 2 * RUN_CLASSES + of_list * (ORDERS - 1) + order),
        _ => None,
    }
}

/// Keeps the figures that steer a device. Slots are told by the eighth of a cluster, so that not every free of a single
/// slot writes a word that all CPUs share.
fn steer(state: &DeviceState, before: usize, after: usize) {
    let (told, new) = (DeviceState::told(before), DeviceState::told(after));
    if new > told {
        state.used.fetch_add(new - told, Ordering::Relaxed);
    }
    if new < told {
        state.used.fetch_sub(told - new, Ordering::Relaxed);
    }
    if before == 0 && after > 0 {
        state.active.fetch_add(1, Ordering::Relaxed);
    }
    if before > 0 && after == 0 {
        state.active.fetch_sub(1, Ordering::Relaxed);
    }
}
