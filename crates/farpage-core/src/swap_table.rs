//! The swap table: one word per slot, shared by all processes of the tree.
//!
//! ```text
//! 63   59 58                                  19 18          3 2   0
//! +------+--------------------------------------+-------------+-----+
//! | gen  | location                             | count       |kind |
//! +------+--------------------------------------+-------------+-----+
//!          Busy: owner process index; Compressed: zpool handle; Device: CRC-32C of the content; Moved: the other slot
//! ```
//!
//! A slot *is* a place: its number says which device and which block ([`crate::devices`]). Content that lies
//! compressed in RAM owns its slot all the same, so writing it back later is a write to the slot's own block
//! and one exchange of the word; no page state that names the slot is touched. Life of a slot:
//!
//! ```text
//! Free --alloc*--> Busy(owner) --publish--> backed, count 1 <--dup, put--> backed, count n
//!   ^                |     ^                  |        \--written_back--> Device, --relocated--> Compressed, count as it is
//!   |                |     +----last put------+
//!   +----release*----+
//!   +--sweep*-- Released <--release while another holds the cluster's lock--+
//! ```
//!
//! A device that is emptied gives its content to other slots. Who names the old slot must be found one by one, and a slot
//! can be shared, so its word says `Moved` meanwhile and holds one reference to the other slot, given up
//! when the last reference to the old one is put: `backed --moved--> Moved, count as it is`.
//!
//! The steps with a star change the cluster's count too and are done under the cluster's lock
//! ([`crate::slots`]); all others are one CAS of the word and take no lock.
//!
//! Invariants:
//!
//! - `Free` is all zero bits: the page of memory that holds a cluster's words is given back when its last
//!   slot is free, and reads as zeros from then on;
//! - count > 0 if and only if the slot is backed; it equals the number of page states and of moved slots
//!   that hold the slot;
//! - only the owner moves a `Busy` slot on. If it dies, the supervisor finds the slot by the owner's name;
//!   the content is not needed by anybody, but an object of the zpool may still name the slot;
//! - who looks at a word holds a reference (a locked page state that names the slot) or, when writing back,
//!   the cluster's lock, under which no free slot is handed out. So the word cannot be that of a later life
//!   of the slot. The generation, which comes from the cluster and grows with every allocation there, is the
//!   second line of defence, the checksum the third.
//!
//! CAS loops here retry only when another thread changed the same word, so the tree as a whole always
//! advances.

use core::fmt;

use crate::sync::{AtomicU64, Ordering, fence};
use crate::zpool::Handle;

/// The most references a slot can have.
pub const COUNT_MAX: u16 = u16::MAX;

const KIND: u64 = 0b111;
const COUNT_SHIFT: u32 = 3;
const COUNT_ONE: u64 = 1 << COUNT_SHIFT;
const LOCATION_SHIFT: u32 = 19;
const LOCATION_MAX: u64 = (1 << 40) - 1;
const GENERATION_SHIFT: u32 = 59;

/// What a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotKind {
    /// Nobody's.
    Free,
    /// A process is filling or emptying it.
    Busy,
    /// The content is in the zpool.
    Compressed,
    /// The content is in the slot's own block.
    Device,
    /// Nobody's, but its cluster still counts it.
    Released,
    /// The content is in another slot.
    Moved,
    /// Not a slot word: outside the table, or not written by farpage.
    Invalid,
}

/// Where the content of a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// An object of the zpool.
    Compressed(Handle),
    /// The slot's own block.
    Device {
        /// CRC-32C of the content.
        crc: u32,
    },
    /// Another slot, to which this one holds a reference.
    Moved {
        /// That slot.
        to: u32,
    },
}

impl Backing {
    /// Kind bits and location; none if a part does not fit.
    const fn encode(self) -> Option<(u64, u64)> {
        match self {
            Self::Compressed(handle) if handle.0 <= LOCATION_MAX => Some((2, handle.0)),
            Self::Compressed(_) => None,
            Self::Device { crc } => Some((3, crc as u64)),
            Self::Moved { to } => Some((5, to as u64)),
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
    /// A slot that is nobody's.
    pub const FREE: Self = Self(0);

    const fn with(self, kind: u64, count: u64, location: u64) -> Self {
        let generation = self.0 >> GENERATION_SHIFT << GENERATION_SHIFT;
        Self(generation | (location << LOCATION_SHIFT) | (count << COUNT_SHIFT) | kind)
    }

    const fn next_generation(self) -> Self {
        Self(self.0.wrapping_add(1 << GENERATION_SHIFT))
    }

    /// A slot just taken by process index `owner`; of `generation` the lowest 5 bits count.
    #[must_use]
    pub const fn taken(owner: u16, generation: u8) -> Self {
        Self((generation as u64) << GENERATION_SHIFT).busy(owner)
    }

    /// A busy slot of process index `owner` that remembers this word's generation.
    #[must_use]
    pub const fn busy(self, owner: u16) -> Self {
        self.with(1, 0, owner as u64)
    }

    /// A slot given back that its cluster still counts.
    #[must_use]
    pub const fn released(self) -> Self {
        self.with(4, 0, 0)
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
            0 if self.0 == 0 => SlotKind::Free,
            1 => SlotKind::Busy,
            2 => SlotKind::Compressed,
            3 => SlotKind::Device,
            4 => SlotKind::Released,
            5 => SlotKind::Moved,
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

    /// The cluster's generation when the slot was taken, plus the backings it has had since, modulo 32.
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
            SlotKind::Device => Some(Backing::Device { crc: location as u32 }),
            SlotKind::Moved => Some(Backing::Moved { to: location as u32 }),
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
    /// One word per slot.
    pub words: &'a [AtomicU64],
}

impl<'a> SwapTable<'a> {
    /// Gives a busy slot its content and one reference.
    ///
    /// # Errors
    /// If the slot is not busy or the backing does not fit the word; then nothing has changed.
    pub fn publish(&self, slot: u32, backing: Backing) -> Result<(), Impossible> {
        let word = self.word(slot)?;
        let seen = expect(slot, word, "a busy slot to publish", |w| {
            w.kind() == SlotKind::Busy
        })?;
        let expected = "a handle below 2^40";
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

    /// What `read` found behind a slot whose word was `seen`, for a caller that holds a reference to it or its cluster. None: the
    /// content has moved meanwhile, and where it was may lie another slot's by now, checksum and all.
    pub fn read_behind<T>(&self, slot: u32, seen: SlotWord, read: impl FnOnce() -> T) -> Option<T> {
        let found = read();
        // With the one in the zpool's `claim`: who has read of the next content sees that the slot names it no more.
        fence(Ordering::Acquire);
        self.load(slot).same_backing(seen).then_some(found)
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
    /// frees it, then releases the slot ([`crate::slots::Slots::release`]).
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

    /// The content of a compressed slot now lies in its block too, with checksum `crc`: from here on the block
    /// is the backing, if the slot still has the backing, of the same generation, that `expected` shows; the
    /// references it has at that moment stay. True: the caller frees the compressed object. False: the slot
    /// has been freed meanwhile, or is not compressed.
    #[must_use]
    pub fn written_back(&self, slot: u32, expected: SlotWord, crc: u32) -> bool {
        expected.kind() == SlotKind::Compressed && self.rebase(slot, expected, Backing::Device { crc })
    }

    /// The content of a slot that lies compressed, and was found by `expected`, now lies in object `to` too. The caller holds
    /// the cluster's lock; otherwise as [`Self::written_back`]; False: the caller frees `to`.
    #[must_use]
    pub fn relocated(&self, slot: u32, expected: SlotWord, to: Handle) -> bool {
        expected.kind() == SlotKind::Compressed && self.rebase(slot, expected, Backing::Compressed(to))
    }

    /// The content of a slot that lies compressed or in its block now lies in slot `to` too, of which the caller gives its
    /// reference to this one. Otherwise as [`Self::written_back`]; True: the caller frees what the content
    /// had here, object or block. False: the reference is still the caller's.
    #[must_use]
    pub fn moved(&self, slot: u32, expected: SlotWord, to: u32) -> bool {
        expected.kind() != SlotKind::Moved && self.rebase(slot, expected, Backing::Moved { to })
    }

    fn rebase(&self, slot: u32, expected: SlotWord, backing: Backing) -> bool {
        let Ok(word) = self.word(slot) else { return false };
        let mut seen = SlotWord(word.load(Ordering::Acquire));
        while seen.same_backing(expected) {
            let Some(next) = seen.backed(backing, seen.count()) else {
                return false;
            };
            match exchange(word, seen, next) {
                Ok(()) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    pub(crate) fn word(&self, slot: u32) -> Result<&'a AtomicU64, Impossible> {
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

#[cfg(all(test, loom))]
mod models;

#[cfg(test)]
mod tests {
    use super::*;
    use std::{format, vec::Vec};

    fn table(slots: usize) -> Vec<AtomicU64> {
        (0..slots).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn a_life() {
        let words = table(4);
        let table = SwapTable { words: &words };
        words[1].store(SlotWord::taken(7, 33).raw(), Ordering::Relaxed);
        assert_eq!((table.load(1).owner(), table.load(1).generation()), (Some(7), 1));
        let object = Backing::Compressed(Handle(LOCATION_MAX));
        table.publish(1, object).unwrap();
        let word = table.load(1);
        assert_eq!(
            (word.kind(), word.count(), word.generation()),
            (SlotKind::Compressed, 1, 2)
        );
        table.dup(1).unwrap();
        assert!(
            table.written_back(1, word, !0),
            "a count that moved does not matter"
        );
        assert!(!table.written_back(1, word, 5), "an old word does");
        assert!(!table.written_back(1, table.load(1), 5), "nor is it compressed");
        let (word, device) = (table.load(1), Backing::Device { crc: !0 });
        assert_eq!(
            (word.backing(), word.count(), word.generation()),
            (Some(device), 2, 3)
        );
        assert_eq!(table.put(1, 7), Ok(None));
        assert_eq!(table.put(1, 9), Ok(Some(device)));
        assert_eq!(table.load(1).owner(), Some(9));
        let gone = table.load(1).released();
        assert_eq!(
            (gone.kind(), gone.count(), gone.owner()),
            (SlotKind::Released, 0, None)
        );
    }

    #[test]
    fn content_that_moved() {
        let words = table(4);
        let table = SwapTable { words: &words };
        for slot in [1, 2] {
            words[slot].store(SlotWord::taken(7, 0).raw(), Ordering::Relaxed);
        }
        table.publish(1, Backing::Device { crc: 9 }).unwrap();
        table.publish(2, Backing::Device { crc: 9 }).unwrap();
        let before = table.load(1);
        table.dup(1).unwrap();
        assert!(table.moved(1, before, 2), "a count that moved does not matter");
        let moved = Backing::Moved { to: 2 };
        assert_eq!((table.load(1).backing(), table.load(1).count()), (Some(moved), 2));
        assert!(!table.moved(1, before, 3), "an old word does");
        assert!(!table.moved(1, table.load(1), 3), "nor does it move twice");
        assert!(!table.written_back(1, table.load(1), 5));
        assert_eq!(table.put(1, 7), Ok(None));
        assert_eq!(table.put(1, 7), Ok(Some(moved)));
    }

    #[test]
    fn the_impossible_is_reported_and_changes_nothing() {
        let words = table(4);
        let table = SwapTable { words: &words };
        assert!(table.publish(1, Backing::Device { crc: 0 }).is_err(), "free");
        words[1].store(SlotWord::taken(1, 0).raw(), Ordering::Relaxed);
        assert!(table.dup(1).is_err() && table.put(1, 1).is_err());
        let outside = Backing::Compressed(Handle(LOCATION_MAX + 1));
        assert!(table.publish(1, outside).is_err());
        assert_eq!(table.load(1).owner(), Some(1));
        table.publish(1, Backing::Device { crc: 3 }).unwrap();
        assert!(table.publish(1, Backing::Device { crc: 3 }).is_err());
        words[1].fetch_or(u64::from(COUNT_MAX) << COUNT_SHIFT, Ordering::Relaxed);
        assert!(table.dup(1).is_err(), "count overflow");
        assert_eq!(table.load(1).count(), COUNT_MAX);
        assert_eq!(table.load(4), SlotWord::OUTSIDE);
        assert_eq!(SlotWord(8).kind(), SlotKind::Invalid, "free slots are all zero");
        let error = table.put(4, 1).unwrap_err();
        assert_eq!(
            format!("{error}"),
            "slot 4: found word 0x0000000000000007, expected a slot inside the table"
        );
    }
}
