//! The swap table: one word per slot, shared by all processes of the tree.
//!
//! ```text
//! 63   59 58                                  19 18          3 2   0
//! +------+--------------------------------------+-------------+-----+
//! | gen  | location                             | count       |kind |
//! +------+--------------------------------------+-------------+-----+
//!          Busy: owner process index; Compressed: zpool handle; File: area (5 bits), block (35 bits)
//! ```
//!
//! A slot is virtual: page states refer to the slot, the slot refers to the backing, so content can change
//! tier without any page state being touched. Life of a slot, each arrow one CAS of its word:
//!
//! ```text
//! Free --alloc--> Busy(owner) --publish--> backed, count 1 <--dup, put--> backed, count n
//!   ^                |     ^                  |        \--replace_backing--> backed, count as it is
//!   +----release-----+     +----last put------+
//! ```
//!
//! Invariants:
//!
//! - count > 0 if and only if the slot is backed; it equals the number of page states that hold the slot;
//! - only the owner moves a `Busy` slot on. If it dies, the supervisor finds its slots with
//!   [`SwapTable::busy_of`]; the content of such a slot is not needed by anybody, but a backing may still
//!   name the slot as owner and must be freed;
//! - the generation grows by one (modulo 32) whenever a backing is installed, so a reader that loads the
//!   word, copies the content and finds [`SlotWord::same_backing`] has copied the right bytes, unless it
//!   slept through exactly a multiple of 32 changes that ended at the same location: the checksum is the
//!   second line;
//! - a cluster's hint never exceeds the number of its used slots, as long as nobody dies. It is raised after
//!   the slot is taken and lowered before the slot is given back, so a cluster with a free slot is not hinted
//!   full. After a death it may be wrong by a few: then the second pass of [`SwapTable::alloc`], which does
//!   not look at hints, finds the slot.
//!
//! CAS loops here retry only when another thread changed the same word, so the tree as a whole always
//! advances.

use core::fmt;

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::zpool::Handle;

/// Slots per cluster: the unit of the used-slots hints.
pub const CLUSTER_SLOTS: usize = 512;
/// The most references a slot can have.
pub const COUNT_MAX: u16 = u16::MAX;

const KIND: u64 = 0b111;
const COUNT_SHIFT: u32 = 3;
const COUNT_ONE: u64 = 1 << COUNT_SHIFT;
const LOCATION_SHIFT: u32 = 19;
const LOCATION_MAX: u64 = (1 << 40) - 1;
const GENERATION_SHIFT: u32 = 59;
const AREA_SHIFT: u32 = 35;
const BLOCK_MAX: u64 = (1 << AREA_SHIFT) - 1;
const AREA_MAX: u8 = 31;

/// What a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotKind {
    /// Nobody's.
    Free,
    /// A process is filling or emptying it.
    Busy,
    /// The content is in the zpool.
    Compressed,
    /// The content is in a swap area.
    File,
    /// Not a slot word: outside the table, or not written by farpage.
    Invalid,
}

/// Where the content of a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// An object of the zpool.
    Compressed(Handle),
    /// A block of a swap area.
    File {
        /// Index of the area, at most 31.
        area: u8,
        /// Index of the 4 KiB block in the area, below 2^35.
        block: u64,
    },
}

impl Backing {
    /// Kind bits and location; none if a part does not fit.
    const fn encode(self) -> Option<(u64, u64)> {
        match self {
            Self::Compressed(handle) if handle.0 <= LOCATION_MAX => Some((2, handle.0)),
            Self::File { area, block } if area <= AREA_MAX && block <= BLOCK_MAX => {
                Some((3, ((area as u64) << AREA_SHIFT) | block))
            }
            _ => None,
        }
    }
}

/// The word of one slot.
#[repr(transparent)]
#[derive(Copy, Clone, PartialEq, Eq)]
pub struct SlotWord(pub u64);

impl SlotWord {
    /// What [`SwapTable::load`] answers for a slot outside the table.
    pub const OUTSIDE: Self = Self(KIND);

    const fn with(self, kind: u64, count: u64, location: u64) -> Self {
        let generation = self.0 >> GENERATION_SHIFT << GENERATION_SHIFT;
        Self(generation | (location << LOCATION_SHIFT) | (count << COUNT_SHIFT) | kind)
    }

    const fn next_generation(self) -> Self {
        Self(self.0.wrapping_add(1 << GENERATION_SHIFT))
    }

    /// A free slot that remembers this word's generation.
    #[must_use]
    pub const fn freed(self) -> Self {
        self.with(0, 0, 0)
    }

    /// A busy slot of process index `owner` that remembers this word's generation.
    #[must_use]
    pub const fn busy(self, owner: u16) -> Self {
        self.with(1, 0, owner as u64)
    }

    /// The next generation, backed by `backing` and with `count` references; none if the backing does not
    /// fit.
    #[must_use]
    pub const fn backed(self, backing: Backing, count: u16) -> Option<Self> {
        match backing.encode() {
            Some((kind, location)) => Some(self.with(kind, count as u64, location).next_generation()),
            None => None,
        }
    }

    /// What the slot is.
    #[must_use]
    pub const fn kind(self) -> SlotKind {
        match self.0 & KIND {
            0 => SlotKind::Free,
            1 => SlotKind::Busy,
            2 => SlotKind::Compressed,
            3 => SlotKind::File,
            _ => SlotKind::Invalid,
        }
    }

    /// How many page states hold the slot.
    #[must_use]
    pub const fn count(self) -> u16 {
        (self.0 >> COUNT_SHIFT) as u16
    }

    /// The 40 location bits.
    #[must_use]
    pub const fn location(self) -> u64 {
        (self.0 >> LOCATION_SHIFT) & LOCATION_MAX
    }

    /// How many backings the slot has had, modulo 32.
    #[must_use]
    pub const fn generation(self) -> u8 {
        (self.0 >> GENERATION_SHIFT) as u8
    }

    /// The process index that works on the slot, if it is busy.
    #[must_use]
    pub const fn owner(self) -> Option<u16> {
        match self.kind() {
            SlotKind::Busy => Some(self.location() as u16),
            _ => None,
        }
    }

    /// Where the content is, if the slot is backed.
    #[must_use]
    pub const fn backing(self) -> Option<Backing> {
        let location = self.location();
        match self.kind() {
            SlotKind::Compressed => Some(Backing::Compressed(Handle(location))),
            SlotKind::File => Some(Backing::File {
                area: (location >> AREA_SHIFT) as u8,
                block: location & BLOCK_MAX,
            }),
            _ => None,
        }
    }

    /// Whether both words show the slot with the same backing, of the same generation; counts may differ.
    #[must_use]
    pub const fn same_backing(self, other: Self) -> bool {
        let count = (COUNT_MAX as u64) << COUNT_SHIFT;
        self.backing().is_some() && self.0 & !count == other.0 & !count
    }

    /// The word itself.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for SlotWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, location) = (self.kind(), self.location());
        write!(
            f,
            "{kind:?}({location:#x}) count={} generation={}",
            self.count(),
            self.generation()
        )
    }
}

/// A state that the protocol rules out: shared memory was damaged or a caller broke its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Impossible {
    /// The slot concerned; 0 if the word found does not tell.
    pub slot: u32,
    /// The word found.
    pub word: u64,
    /// What should have been there.
    pub expected: &'static str,
}

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "slot {}: found word {:#018x}, expected {}",
            self.slot, self.word, self.expected
        )
    }
}

impl core::error::Error for Impossible {}

/// The table over shared words.
#[derive(Debug, Clone, Copy)]
pub struct SwapTable<'a> {
    words: &'a [AtomicU64],
    free_hint: &'a [AtomicU32],
}

impl<'a> SwapTable<'a> {
    /// A table over `words`, one per slot, and `free_hint`, one count of used slots per [`CLUSTER_SLOTS`]
    /// slots. All zero is an empty table. Slots from 2^32 - 1 on are not used; clusters without a hint are
    /// always looked at.
    #[must_use]
    pub const fn new(words: &'a [AtomicU64], free_hint: &'a [AtomicU32]) -> Self {
        Self { words, free_hint }
    }

    /// Takes a free slot, never slot 0, and makes it `Busy(owner)`. Searches from `cursor` to the end, then
    /// from the front; clusters hinted full are skipped in a first pass and looked at in a second. None if
    /// both passes, each over the whole table, saw no free slot.
    #[must_use]
    pub fn alloc(&self, owner: u16, cursor: &AtomicU32) -> Option<u32> {
        let len = self.words.len().min(u32::MAX as usize);
        let start = (cursor.load(Ordering::Relaxed) as usize).clamp(1, len.max(1));
        for trust_hints in [true, false] {
            let found = self
                .claim_between(start, len, owner, trust_hints)
                .or_else(|| self.claim_between(1, start, owner, trust_hints));
            if let Some(index) = found {
                let slot = index as u32;
                self.raise_hint(index);
                let next = if index + 1 < len { slot + 1 } else { 1 };
                cursor.store(next, Ordering::Relaxed);
                return Some(slot);
            }
        }
        None
    }

    fn claim_between(&self, from: usize, to: usize, owner: u16, trust_hints: bool) -> Option<usize> {
        let mut at = from;
        while at < to {
            let cluster = at / CLUSTER_SLOTS;
            let end = to.min((cluster + 1) * CLUSTER_SLOTS);
            if !(trust_hints && self.hinted_full(cluster)) {
                let claimed = self.claim_in(at, end, owner);
                if claimed.is_some() {
                    return claimed;
                }
            }
            at = end;
        }
        None
    }

    fn claim_in(&self, from: usize, to: usize, owner: u16) -> Option<usize> {
        let words = self.words.get(from..to)?;
        let claimed = words.iter().position(|word| {
            let seen = SlotWord(word.load(Ordering::Relaxed));
            seen.kind() == SlotKind::Free && exchange(word, seen, seen.busy(owner)).is_ok()
        })?;
        Some(from + claimed)
    }

    /// Slots of a cluster that can be handed out: the last cluster may be short, the first lacks slot 0.
    fn usable_in(&self, cluster: usize) -> u32 {
        let first = (cluster * CLUSTER_SLOTS).max(1);
        let end = ((cluster + 1) * CLUSTER_SLOTS).min(self.words.len());
        end.saturating_sub(first) as u32
    }

    fn hinted_full(&self, cluster: usize) -> bool {
        self.free_hint
            .get(cluster)
            .is_some_and(|h| h.load(Ordering::Relaxed) >= self.usable_in(cluster))
    }

    fn raise_hint(&self, index: usize) {
        let cluster = index / CLUSTER_SLOTS;
        let usable = self.usable_in(cluster);
        self.change_hint(cluster, |used| (used < usable).then(|| used + 1));
    }

    fn lower_hint(&self, index: usize) {
        let cluster = index / CLUSTER_SLOTS;
        let usable = self.usable_in(cluster);
        self.change_hint(cluster, |used| used.min(usable).checked_sub(1));
    }

    fn change_hint(&self, cluster: usize, change: impl Fn(u32) -> Option<u32>) {
        let Some(hint) = self.free_hint.get(cluster) else {
            return;
        };
        let mut used = hint.load(Ordering::Relaxed);
        while let Some(next) = change(used) {
            match hint.compare_exchange_weak(used, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => used = now,
            }
        }
    }

    /// Gives a busy slot its content and one reference.
    ///
    /// # Errors
    /// If the slot is not busy or the backing does not fit the word; then nothing has changed.
    pub fn publish(&self, slot: u32, backing: Backing) -> Result<(), Impossible> {
        let word = self.word(slot)?;
        let seen = expect(slot, word, "a busy slot to publish", |w| {
            w.kind() == SlotKind::Busy
        })?;
        let expected = "a handle below 2^40, or an area below 32 and a block below 2^35";
        let next = seen.backed(backing, 1).ok_or(Impossible {
            slot,
            word: seen.0,
            expected,
        })?;
        let expected = "a busy slot that only its owner changes";
        exchange(word, seen, next).map_err(|now| Impossible {
            slot,
            word: now.0,
            expected,
        })
    }

    /// The word of a slot; [`SlotWord::OUTSIDE`] if there is no such slot.
    #[must_use]
    pub fn load(&self, slot: u32) -> SlotWord {
        self.word(slot)
            .map_or(SlotWord::OUTSIDE, |word| SlotWord(word.load(Ordering::Acquire)))
    }

    /// One more reference, for a caller that holds one already.
    ///
    /// # Errors
    /// If the slot is not backed or has [`COUNT_MAX`] references; then nothing has changed.
    pub fn dup(&self, slot: u32) -> Result<(), Impossible> {
        let word = self.word(slot)?;
        loop {
            let seen = expect(slot, word, "a backed slot with less than 65535 references", |w| {
                w.backing().is_some() && (1..COUNT_MAX).contains(&w.count())
            })?;
            if exchange(word, seen, SlotWord(seen.0 + COUNT_ONE)).is_ok() {
                return Ok(());
            }
        }
    }

    /// One reference less. The last one makes the slot `Busy(owner)` and returns the backing: the caller
    /// frees it, then calls [`Self::release`].
    ///
    /// # Errors
    /// If the slot is not backed; then nothing has changed.
    pub fn put(&self, slot: u32, owner: u16) -> Result<Option<Backing>, Impossible> {
        let word = self.word(slot)?;
        loop {
            let seen = expect(slot, word, "a backed slot with a reference to put", |w| {
                w.backing().is_some() && w.count() > 0
            })?;
            if seen.count() > 1 {
                if exchange(word, seen, SlotWord(seen.0 - COUNT_ONE)).is_ok() {
                    return Ok(None);
                }
            } else if exchange(word, seen, seen.busy(owner)).is_ok() {
                return Ok(seen.backing());
            }
        }
    }

    /// Gives a busy slot back after its backing was freed. Does nothing to a slot that is not busy: it is not
    /// the caller's.
    pub fn release(&self, slot: u32) {
        let Ok(word) = self.word(slot) else { return };
        let seen = SlotWord(word.load(Ordering::Acquire));
        if seen.kind() == SlotKind::Busy {
            self.lower_hint(slot as usize);
            // Only the owner changes a busy word, so this fails only for a caller that is not the owner.
            let _ = exchange(word, seen, seen.freed());
        }
    }

    /// Gives back a slot that was taken and never published; the same as [`Self::release`].
    pub fn abandon(&self, slot: u32) {
        self.release(slot);
    }

    /// Moves a slot to a `new` backing if it still has the backing, of the same generation, that `expected`
    /// shows; the references it has at that moment stay. True: the caller owns the old backing and frees it.
    /// False: the slot has moved on (or `new` does not fit the word), the caller still owns the new one.
    #[must_use]
    pub fn replace_backing(&self, slot: u32, expected: SlotWord, new: Backing) -> bool {
        let Ok(word) = self.word(slot) else { return false };
        let mut seen = SlotWord(word.load(Ordering::Acquire));
        while seen.same_backing(expected) {
            let Some(next) = seen.backed(new, seen.count()) else {
                return false;
            };
            match exchange(word, seen, next) {
                Ok(()) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// The slots that are busy with process index `owner`, in ascending order: for cleaning after it died.
    pub fn busy_of(&self, owner: u16) -> impl Iterator<Item = u32> + use<'a> {
        let busy = move |word: &AtomicU64| SlotWord(word.load(Ordering::Acquire)).owner() == Some(owner);
        (0u32..u32::MAX)
            .zip(self.words)
            .filter(move |(_, word)| busy(word))
            .map(|(slot, _)| slot)
    }

    /// About how many slots are in use: the sum of the hints.
    #[must_use]
    pub fn used(&self) -> u64 {
        let used = |hint: &AtomicU32, cluster| hint.load(Ordering::Relaxed).min(self.usable_in(cluster));
        self.free_hint
            .iter()
            .zip(0..)
            .map(|(hint, cluster)| u64::from(used(hint, cluster)))
            .sum()
    }

    fn word(&self, slot: u32) -> Result<&'a AtomicU64, Impossible> {
        let outside = Impossible {
            slot,
            word: SlotWord::OUTSIDE.0,
            expected: "a slot inside the table",
        };
        self.words.get(slot as usize).ok_or(outside)
    }
}

fn expect(
    slot: u32,
    word: &AtomicU64,
    expected: &'static str,
    holds: impl Fn(SlotWord) -> bool,
) -> Result<SlotWord, Impossible> {
    let seen = SlotWord(word.load(Ordering::Acquire));
    if holds(seen) {
        Ok(seen)
    } else {
        Err(Impossible {
            slot,
            word: seen.0,
            expected,
        })
    }
}

/// One CAS that both publishes what its thread wrote before and sees what the last change published.
fn exchange(word: &AtomicU64, seen: SlotWord, next: SlotWord) -> Result<(), SlotWord> {
    word.compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Acquire)
        .map(|_| ())
        .map_err(SlotWord)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{format, vec::Vec};

    fn table(slots: usize) -> (Vec<AtomicU64>, Vec<AtomicU32>) {
        let words = (0..slots).map(|_| AtomicU64::new(0)).collect();
        (
            words,
            (0..slots.div_ceil(CLUSTER_SLOTS))
                .map(|_| AtomicU32::new(0))
                .collect(),
        )
    }

    const FILE: Backing = Backing::File {
        area: 31,
        block: BLOCK_MAX,
    };

    #[test]
    fn a_life() {
        let (words, hints) = table(4);
        let table = SwapTable::new(&words, &hints);
        let cursor = AtomicU32::new(0);
        let slot = table.alloc(7, &cursor).unwrap();
        assert_eq!((slot, table.load(slot).owner(), table.used()), (1, Some(7), 1));
        table
            .publish(slot, Backing::Compressed(Handle(LOCATION_MAX)))
            .unwrap();
        let word = table.load(slot);
        assert_eq!(
            (word.kind(), word.count(), word.generation()),
            (SlotKind::Compressed, 1, 1)
        );
        table.dup(slot).unwrap();
        assert!(
            table.replace_backing(slot, word, FILE),
            "a count that moved does not matter"
        );
        assert!(!table.replace_backing(slot, word, FILE), "an old word does");
        let word = table.load(slot);
        assert_eq!(
            (word.backing(), word.count(), word.generation()),
            (Some(FILE), 2, 2)
        );
        assert_eq!(table.put(slot, 7), Ok(None));
        assert_eq!(table.put(slot, 9), Ok(Some(FILE)));
        assert_eq!(table.busy_of(9).collect::<Vec<_>>(), [1]);
        table.release(slot);
        assert_eq!((table.load(slot).kind(), table.used()), (SlotKind::Free, 0));
        assert_eq!(table.load(slot).generation(), 2, "free slots remember");
    }

    #[test]
    fn the_impossible_is_reported_and_changes_nothing() {
        let (words, hints) = table(4);
        let table = SwapTable::new(&words, &hints);
        let slot = table.alloc(1, &AtomicU32::new(9)).unwrap();
        assert!(table.dup(slot).is_err() && table.put(slot, 1).is_err());
        assert!(table.publish(slot, Backing::File { area: 32, block: 0 }).is_err());
        assert!(
            table
                .publish(
                    slot,
                    Backing::File {
                        area: 0,
                        block: BLOCK_MAX + 1
                    }
                )
                .is_err()
        );
        assert!(
            table
                .publish(slot, Backing::Compressed(Handle(LOCATION_MAX + 1)))
                .is_err()
        );
        assert_eq!(table.load(slot).owner(), Some(1));
        table.publish(slot, FILE).unwrap();
        assert!(table.publish(slot, FILE).is_err());
        table.release(slot);
        assert_eq!(table.load(slot).backing(), Some(FILE));
        assert!(!table.replace_backing(slot, table.load(slot), Backing::Compressed(Handle(!0))));
        words[slot as usize].fetch_or(u64::from(COUNT_MAX) << COUNT_SHIFT, Ordering::Relaxed);
        assert!(table.dup(slot).is_err());
        assert_eq!(table.load(slot).count(), COUNT_MAX);
        assert_eq!(table.load(4), SlotWord::OUTSIDE);
        let error = table.put(4, 1).unwrap_err();
        assert_eq!(
            format!("{error}"),
            "slot 4: found word 0x0000000000000007, expected a slot inside the table"
        );
        assert_eq!(table.used(), 1);
    }

    #[test]
    fn hints_that_lie_do_not_hide_slots() {
        let (words, hints) = table(CLUSTER_SLOTS + 10);
        let table = SwapTable::new(&words, &hints);
        hints[0].store(u32::MAX, Ordering::Relaxed);
        hints[1].store(10, Ordering::Relaxed);
        assert_eq!(table.used(), 521);
        let cursor = AtomicU32::new(600);
        let mut got = Vec::new();
        while let Some(slot) = table.alloc(3, &cursor) {
            got.push(slot);
        }
        got.sort_unstable();
        assert_eq!(got, (1..522).collect::<Vec<_>>());
        hints[1].store(0, Ordering::Relaxed);
        for slot in got {
            table.abandon(slot);
        }
        assert_eq!(table.used(), 0);
        assert_eq!(SwapTable::new(&[], &[]).alloc(0, &cursor), None);
        assert_eq!(
            SwapTable::new(&words[..1], &[]).alloc(0, &cursor),
            None,
            "slot 0 is never handed out"
        );
    }

    #[test]
    fn the_cursor_wraps() {
        let (words, hints) = table(8);
        let table = SwapTable::new(&words, &hints);
        let cursor = AtomicU32::new(6);
        let got: Vec<_> = core::iter::from_fn(|| table.alloc(0, &cursor)).collect();
        assert_eq!(got, [6, 7, 1, 2, 3, 4, 5]);
    }
}
