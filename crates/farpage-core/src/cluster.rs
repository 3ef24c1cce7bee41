//! The word of a cluster: its lock, how many of its slots are used, and which list it is on.
//!
//! ```text
//! 63  44 43 41 40     39    34 33      32   29 28  26 25      16 15         0
//! +-----+-----+------+--------+-------+-------+------+----------+------------+
//! | 0   | run |queued| gen    |pending| order | list | count    | lock owner |
//! +-----+-----+------+--------+-------+-------+------+----------+------------+
//! ```
//!
//! A cluster is 512 slots side by side: one page of swap table, 2 MiB of a device. The lock owner is the
//! index of a process plus one, 0 = unlocked, so that the lock of a process that was killed can be found and
//! its cluster mended. Nobody waits for a cluster's lock: who allocates takes another cluster, who frees
//! leaves the slot `Released` and sets *pending*, and the holder frees it when it unlocks. Invariants:
//!
//! - while a cluster is unlocked, count = number of its table words that are not zero, and pending is 0;
//! - while it is locked only the holder changes the word, except that others set pending;
//! - list says where the cluster belongs; the trees of [`crate::slots`] agree with it while it is unlocked;
//! - while it is unlocked and neither empty nor full, no run of free slots is of a higher class than run says.

use crate::sync::{AtomicU64, Ordering};

/// Slots per cluster. The model checker explores clusters of two.
pub const CLUSTER_SLOTS: usize = if cfg!(all(test, loom)) { 2 } else { 512 };
/// Orders of allocation: 2^0 to 2^(ORDERS - 1) aligned contiguous slots.
pub const ORDERS: usize = CLUSTER_SLOTS.trailing_zeros() as usize + 1;

const OWNER: u64 = 0xffff;
const COUNT_SHIFT: u32 = 16;
const COUNT: u64 = 0x3ff;
const LIST_SHIFT: u32 = 26;
const LIST: u64 = 0b111;
const ORDER_SHIFT: u32 = 29;
const ORDER: u64 = 0xf;
const PENDING: u64 = 1 << 33;
const GENERATION_SHIFT: u32 = 34;
const GENERATION: u64 = 0x3f;
const QUEUED: u64 = 1 << 40;
const RUN_SHIFT: u32 = 41;
const RUN: u64 = 0b111;

/// Classes of runs of free slots by log2 of their length; the last holds all that are longer.
pub const RUN_CLASSES: usize = if cfg!(all(test, loom)) { 2 } else { 7 };

/// The class of a run of `len` free slots, at least 1.
#[must_use]
pub const fn run_class(len: usize) -> usize {
    let class = (usize::BITS - 1 - (len | 1).leading_zeros()) as usize;
    if class < RUN_CLASSES {
        class
    } else {
        RUN_CLASSES - 1
    }
}

/// Where a cluster belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    /// No slot is used.
    Free,
    /// At least a quarter is free and nobody allocates from it.
    Nonfull,
    /// Somebody allocates from it, or little of it is free.
    Frag,
    /// Every slot is used.
    Full,
    /// No slot is used, and the device has not been told that it may forget the blocks.
    Discard,
    /// Not a list.
    Invalid,
}

/// The word of one cluster.
#[repr(transparent)]
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub struct ClusterWord(pub u64);

impl ClusterWord {
    const fn with(self, shift: u32, mask: u64, value: u64) -> Self {
        Self((self.0 & !(mask << shift)) | ((value & mask) << shift))
    }

    /// The process index of the lock's holder, if it is locked.
    #[must_use]
    pub const fn holder(self) -> Option<u16> {
        match self.0 & OWNER {
            0 => None,
            owner => Some((owner - 1) as u16),
        }
    }

    /// The same, locked by process index `owner` (below 65535).
    #[must_use]
    pub const fn locked(self, owner: u16) -> Self {
        self.with(0, OWNER, owner as u64 + 1)
    }

    /// The same, unlocked.
    #[must_use]
    pub const fn unlocked(self) -> Self {
        self.with(0, OWNER, 0)
    }

    /// How many slots are used.
    #[must_use]
    pub const fn count(self) -> usize {
        ((self.0 >> COUNT_SHIFT) & COUNT) as usize
    }

    /// The same with another count.
    #[must_use]
    pub const fn with_count(self, count: usize) -> Self {
        self.with(COUNT_SHIFT, COUNT, count as u64)
    }

    /// Where the cluster belongs.
    #[must_use]
    pub const fn list(self) -> List {
        match (self.0 >> LIST_SHIFT) & LIST {
            0 => List::Free,
            1 => List::Nonfull,
            2 => List::Frag,
            3 => List::Full,
            4 => List::Discard,
            _ => List::Invalid,
        }
    }

    /// The same on another list.
    #[must_use]
    pub const fn with_list(self, list: List) -> Self {
        self.with(LIST_SHIFT, LIST, list as u64)
    }

    /// The order that the first allocation into the empty cluster gave it.
    #[must_use]
    pub const fn order(self) -> usize {
        ((self.0 >> ORDER_SHIFT) & ORDER) as usize
    }

    /// The same with another order.
    #[must_use]
    pub const fn with_order(self, order: usize) -> Self {
        self.with(ORDER_SHIFT, ORDER, order as u64)
    }

    /// Whether slots were released while the cluster was locked.
    #[must_use]
    pub const fn pending(self) -> bool {
        self.0 & PENDING != 0
    }

    /// The same with the pending mark as given.
    #[must_use]
    pub const fn with_pending(self, on: bool) -> Self {
        Self(if on { self.0 | PENDING } else { self.0 & !PENDING })
    }

    /// How many allocations were made, modulo 64; survives the cluster's emptiness.
    #[must_use]
    pub const fn generation(self) -> u8 {
        ((self.0 >> GENERATION_SHIFT) & GENERATION) as u8
    }

    /// The same after one more allocation.
    #[must_use]
    pub const fn next_generation(self) -> Self {
        self.with(GENERATION_SHIFT, GENERATION, self.generation() as u64 + 1)
    }

    /// Whether the cluster waits to be written back.
    #[must_use]
    pub const fn queued(self) -> bool {
        self.0 & QUEUED != 0
    }

    /// The same with the queued mark as given.
    #[must_use]
    pub const fn with_queued(self, on: bool) -> Self {
        Self(if on { self.0 | QUEUED } else { self.0 & !QUEUED })
    }

    /// The greatest class that a run of free slots here can have: they grow in sight of the lock's holder only, so
    /// it is too high at times and never too low.
    #[must_use]
    pub const fn run(self) -> usize {
        ((self.0 >> RUN_SHIFT) & RUN) as usize
    }

    /// The same with another class of run.
    #[must_use]
    pub const fn with_run(self, class: usize) -> Self {
        self.with(RUN_SHIFT, RUN, class as u64)
    }

    /// Whether an allocation of `order` may be tried: single slots fit anywhere, larger ones keep to clusters
    /// of their own order.
    #[must_use]
    pub const fn usable(self, order: usize) -> bool {
        matches!(
            self.list(),
            List::Free | List::Nonfull | List::Frag | List::Discard
        ) && (order == 0 || self.count() == 0 || self.order() == order)
    }

    /// Where a cluster with room for `capacity` slots belongs after an allocation (`taking`) or a free.
    #[must_use]
    pub const fn target(self, capacity: usize, taking: bool) -> List {
        let count = self.count();
        if count == 0 {
            List::Free
        } else if count >= capacity {
            List::Full
        } else if taking || count * 4 > capacity * 3 {
            List::Frag
        } else {
            List::Nonfull
        }
    }
}

/// Loads a cluster's word.
#[must_use]
pub fn load(word: &AtomicU64) -> ClusterWord {
    ClusterWord(word.load(Ordering::Acquire))
}

/// One CAS that both publishes what its thread did before and sees what the last holder did.
///
/// # Errors
/// The word found, if it is not `seen`.
pub fn exchange(word: &AtomicU64, seen: ClusterWord, next: ClusterWord) -> Result<(), ClusterWord> {
    word.compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Acquire)
        .map(|_| ())
        .map_err(ClusterWord)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_bits_are_a_free_unlocked_cluster() {
        let word = ClusterWord(0);
        assert_eq!((word.holder(), word.count(), word.list()), (None, 0, List::Free));
        assert!(word.usable(0) && word.usable(ORDERS - 1) && !word.pending());
    }

    #[test]
    fn fields_are_independent() {
        let word = ClusterWord(0)
            .with_count(512)
            .with_list(List::Full)
            .with_order(9)
            .locked(1023)
            .with_pending(true)
            .with_queued(true)
            .with_run(RUN_CLASSES - 1)
            .next_generation();
        let fields = (word.count(), word.list(), word.order(), word.holder());
        assert_eq!(fields, (512, List::Full, 9, Some(1023)));
        assert_eq!(
            (word.pending(), word.queued(), word.generation()),
            (true, true, 1)
        );
        assert_eq!(word.run(), RUN_CLASSES - 1);
        let word = word.unlocked().with_pending(false).with_count(3).with_run(0);
        let fields = (word.count(), word.list(), word.order(), word.holder());
        assert_eq!(fields, (3, List::Full, 9, None));
        let wrapped = (0..64).fold(word, |word, _| word.next_generation());
        assert_eq!(wrapped, word, "a generation that wraps touches nothing else");
    }

    #[test]
    fn classes_of_runs() {
        let classes = [1, 2, 3, 4, 63, 64, 512].map(run_class);
        let expected = [0, 1, 1, 2, 5, 6, 6].map(|class: usize| class.min(RUN_CLASSES - 1));
        assert_eq!(classes, expected);
    }

    #[test]
    fn targets() {
        let target = |count, taking| ClusterWord(0).with_count(count).target(100, taking);
        assert_eq!(target(0, true), List::Free);
        assert_eq!((target(1, true), target(1, false)), (List::Frag, List::Nonfull));
        assert_eq!(
            (target(75, false), target(76, false)),
            (List::Nonfull, List::Frag)
        );
        assert_eq!((target(100, false), target(100, true)), (List::Full, List::Full));
    }
}
