//! A cluster in the hands of one thread: locking, unlocking, the lists, and mending what a dead holder left.

use super::{Punch, SETS, Slots};
use crate::bit_tree::BitTree;
use crate::cluster::{self, CLUSTER_SLOTS, ClusterWord, List, ORDERS};
use crate::devices::DeviceState;
use crate::swap_table::{SlotKind, SlotWord};
use crate::sync::{AtomicU64, Ordering};

/// Clusters tried before nothing old is said to be there.
const OLDEST_TRIES: usize = 16;

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
        let capacity = owner.map_or(CLUSTER_SLOTS, |(_, device)| device.capacity(cluster));
        let mut on = locked.was;
        loop {
            if done != Done::Nothing {
                let target = locked.now.target(capacity, done == Done::Took);
                locked.now = locked.now.with_list(target);
            }
            if locked.now.count() == 0 {
                locked.now = locked.now.with_order(0);
                if locked.was.count() != 0 || locked.stray {
                    self.punch.punch(cluster);
                }
            }
            self.relist(&locked, on);
            let full = locked.now.list() == List::Full && on.list() != List::Full;
            if full && !locked.now.queued() && owner.is_some_and(|(_, device)| device.has_file) {
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
            }
        }
        if let Some((state, _)) = owner {
            steer(state, locked.was.count(), locked.now.count());
        }
    }

    /// The word says so after the cluster is there: a death in between leaves it there twice, never lost.
    fn queue(&self, locked: &mut Locked) {
        self.parts.fifo.push(locked.cluster);
        locked.now = locked.now.with_queued(true);
    }

    /// Locks the cluster that was filled longest ago, of those with a file. While it is held its slots' blocks
    /// can be written: none of them is handed out. None if there is none, or the first few are locked.
    #[must_use]
    pub fn lock_oldest(&self, owner: u16) -> Option<Locked> {
        for _ in 0..OLDEST_TRIES {
            let cluster = self.parts.fifo.pop()?;
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

    /// Takes the cluster from the set it was on and puts it into the one it belongs to.
    fn relist(&self, locked: &Locked, on: ClusterWord) {
        let member = locked.cluster as usize;
        let to = set_index(locked.now.list(), locked.now.order());
        if locked.stray {
            (0..SETS).for_each(|set| self.set_at(set).mend(member, Some(set) == to));
            return;
        }
        let from = set_index(on.list(), on.order());
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

    pub(super) fn set(&self, list: List, order: usize) -> Option<BitTree<'a>> {
        Some(self.set_at(set_index(list, order)?))
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
        let home = set_index(word.list(), word.order());
        let listed = |set: usize| self.set_at(set).contains(cluster as usize);
        if word.count() != 0 && self.count_words(cluster) != word.count() {
            return Some("its count is not that of its slots");
        }
        let fits = match word.list() {
            List::Free => word.count() == 0,
            List::Full => word.count() == device.capacity(cluster),
            List::Nonfull | List::Frag => word.count() != 0 && word.count() < device.capacity(cluster),
            List::Invalid => false,
        };
        if !fits {
            return Some("its list does not fit its count");
        }
        if (0..SETS).any(|set| Some(set) != home && listed(set)) {
            return Some("it is on a list that its word does not name");
        }
        // A free cluster that was never used is on none.
        let missing = word.list() != List::Free && home.is_some_and(|set| !listed(set));
        missing.then_some("it is missing from the list that its word names")
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
    }
}

const fn set_index(list: List, order: usize) -> Option<usize> {
    match list {
        List::Free => Some(0),
        List::Nonfull if order < ORDERS => Some(1 + order),
        List::Frag if order < ORDERS => Some(1 + ORDERS + order),
        _ => None,
    }
}

/// Keeps the figures that steer a device. Slots are told by the eighth of a cluster, so that not every free of a single
/// slot writes a word that all CPUs share.
fn steer(state: &DeviceState, before: usize, after: usize) {
    let (told, new) = (told(before), told(after));
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

/// What a device is told of a cluster with `count` slots used.
pub(super) const fn told(count: usize) -> u64 {
    const STEP: usize = if CLUSTER_SLOTS < 8 { 1 } else { CLUSTER_SLOTS / 8 };
    ((count + STEP / 2) / STEP * STEP) as u64
}
