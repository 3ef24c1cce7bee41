//! One word per page of a process: what the page is, who works on it, how many calls pin it.
//!
//! ```text
//! 63             48 47                     16 15        6  5  4  3 2   0
//! +----------------+-------------------------+-----------+--+--+--+-----+
//! | frame or time  | slot                    | pins      |RA|Y |L |kind |
//! +----------------+-------------------------+-----------+--+--+--+-----+
//! ```
//!
//! The word is the only authority on a page. A thread that wants to change the kind sets the lock bit by CAS,
//! does its work and stores the new word; a thread that finds the bit set waits or turns to another page.
//! Invariants:
//!
//! - all zero bits is a page nobody has touched: untouched, unlocked, no pins. Fresh shared memory is a valid
//!   array;
//! - pins belong to system calls in flight, not to the kind, so a change of kind carries them over: that is
//!   what [`PageState::replace`] is for. Reclaim leaves a page with pins alone;
//! - the upper 16 bits mean a frame when `Cached`, a stamp (8 bits, [`crate::workingset`]) when `Swapped`, the time at which no
//!   tier took the page when `Resident` (0: none ever refused it), and are zero otherwise;
//! - a page that is `Swapped` names a slot. One that is `Resident` or `Cached` may: the slot that it came back from and
//!   keeps, with the content that it had then. Slot 0 is none. Each name is a reference that the slot counts, of whatever
//!   kind the page is ([`PageState::named_slot`]).

use core::fmt;

const KIND: u64 = 0b111;
const LOCKED: u64 = 1 << 3;
const YOUNG: u64 = 1 << 4;
const READAHEAD: u64 = 1 << 5;
const PIN_SHIFT: u32 = 6;
const PINS: u64 = (PIN_MAX as u64) << PIN_SHIFT;
const SLOT_SHIFT: u32 = 16;
const SLOT: u64 = (u32::MAX as u64) << SLOT_SHIFT;
const FRAME_SHIFT: u32 = 48;
const FRAME: u64 = !0 << FRAME_SHIFT;

/// What to add to a word for one more pin; the adder checks for [`PIN_MAX`] first.
pub const PIN_ONE: u64 = 1 << PIN_SHIFT;
/// The most pins a page can have.
pub const PIN_MAX: u16 = (1 << (SLOT_SHIFT - PIN_SHIFT)) - 1;
/// The greatest frame number that fits the word.
pub const FRAME_MAX: u64 = u16::MAX as u64;

/// Where the content of a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Never touched: reads as zeros.
    Untouched,
    /// In the program's memory.
    Resident,
    /// Evicted, still in a frame of the swap cache.
    Cached,
    /// In the swap table's care.
    Swapped,
    /// Evicted and known to be all zeros: neither frame nor slot.
    Zero,
    /// Not a kind; the word was not written by farpage.
    Invalid,
}

/// The state word of one page.
#[repr(transparent)]
#[derive(Copy, Clone, PartialEq, Eq)]
pub struct PageState(pub u64);

impl PageState {
    const fn of(kind: u64, slot: u32, above: u64) -> Self {
        debug_assert!(above <= FRAME_MAX);
        Self(kind | (slot as u64) << SLOT_SHIFT | above << FRAME_SHIFT)
    }

    /// A page nobody has touched.
    #[must_use]
    pub const fn untouched() -> Self {
        Self::of(0, 0, 0)
    }

    /// A page in the program's memory.
    #[must_use]
    pub const fn resident() -> Self {
        Self::of(1, 0, 0)
    }

    /// A page in the program's memory that no tier took at the time `refused`, which is not 0.
    #[must_use]
    pub const fn poor(refused: u16) -> Self {
        debug_assert!(refused != 0);
        Self::of(1, 0, refused as u64)
    }

    /// A page in the swap cache; `frame` is at most [`FRAME_MAX`], higher bits are lost.
    #[must_use]
    pub const fn cached(frame: u64) -> Self {
        Self::of(2, 0, frame)
    }

    /// A page whose content is behind `slot`.
    #[must_use]
    pub const fn swapped(slot: u32) -> Self {
        Self::of(3, slot, 0)
    }

    /// The same of a page that was stored compressed, with the time of that.
    #[must_use]
    pub const fn stamped(slot: u32, stamp: u8) -> Self {
        Self::of(3, slot, stamp as u64)
    }

    /// An evicted page of zeros.
    #[must_use]
    pub const fn zero() -> Self {
        Self::of(4, 0, 0)
    }

    /// The same, of a page that is resident or cached, keeping `slot`; 0: none.
    #[must_use]
    pub const fn keeping(self, slot: u32) -> Self {
        Self(self.0 & !SLOT | (slot as u64) << SLOT_SHIFT)
    }

    /// Where the content is.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self.0 & KIND {
            0 => Kind::Untouched,
            1 => Kind::Resident,
            2 => Kind::Cached,
            3 => Kind::Swapped,
            4 => Kind::Zero,
            _ => Kind::Invalid,
        }
    }

    /// Whether a thread is changing the page.
    #[must_use]
    pub const fn is_locked(self) -> bool {
        self.0 & LOCKED != 0
    }

    /// The same with the lock bit set.
    #[must_use]
    pub const fn locked(self) -> Self {
        Self(self.0 | LOCKED)
    }

    /// The same with the lock bit clear.
    #[must_use]
    pub const fn unlocked(self) -> Self {
        Self(self.0 & !LOCKED)
    }

    /// How many system calls in flight need the page to stay.
    #[must_use]
    pub const fn pins(self) -> u16 {
        ((self.0 & PINS) >> PIN_SHIFT) as u16
    }

    /// The same with this many pins, at most [`PIN_MAX`].
    #[must_use]
    pub const fn with_pins(self, pins: u16) -> Self {
        let pins = if pins > PIN_MAX { PIN_MAX } else { pins };
        Self((self.0 & !PINS) | ((pins as u64) << PIN_SHIFT))
    }

    /// Whether the page came back since reclaim last looked at it.
    #[must_use]
    pub const fn young(self) -> bool {
        self.0 & YOUNG != 0
    }

    /// The same with the young bit as given.
    #[must_use]
    pub const fn with_young(self, on: bool) -> Self {
        Self(if on { self.0 | YOUNG } else { self.0 & !YOUNG })
    }

    /// Whether readahead brought the page and nobody has touched it yet.
    #[must_use]
    pub const fn readahead(self) -> bool {
        self.0 & READAHEAD != 0
    }

    /// The same with the readahead mark as given.
    #[must_use]
    pub const fn with_readahead(self, on: bool) -> Self {
        Self(if on {
            self.0 | READAHEAD
        } else {
            self.0 & !READAHEAD
        })
    }

    /// The slot that the page names, if it does.
    #[must_use]
    pub const fn named_slot(self) -> Option<u32> {
        let slot = self.slot();
        match self.kind() {
            Kind::Swapped => Some(slot),
            Kind::Resident | Kind::Cached if slot != 0 => Some(slot),
            _ => None,
        }
    }

    /// The slot that the page keeps though it is in RAM, if it does.
    #[must_use]
    pub const fn kept_slot(self) -> Option<u32> {
        match self.kind() {
            Kind::Swapped => None,
            _ => self.named_slot(),
        }
    }

    /// The slot; 0 unless the page names one.
    #[must_use]
    pub const fn slot(self) -> u32 {
        (self.0 >> SLOT_SHIFT) as u32
    }

    /// When the page was stored compressed; meaningful when `Swapped`.
    #[must_use]
    pub const fn stamp(self) -> u8 {
        (self.0 >> FRAME_SHIFT) as u8
    }

    /// When no tier took the page, if it is in the program's memory for that reason.
    #[must_use]
    pub const fn refused(self) -> Option<u16> {
        match (self.kind(), (self.0 >> FRAME_SHIFT) as u16) {
            (Kind::Resident, 1..) => Some((self.0 >> FRAME_SHIFT) as u16),
            _ => None,
        }
    }

    /// The frame; meaningful when `Cached`.
    #[must_use]
    pub const fn frame(self) -> u64 {
        self.0 >> FRAME_SHIFT
    }

    /// The word itself.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Kind, slot and frame of `other`; pins, lock bit and marks stay as they are.
    #[must_use]
    pub const fn with_kind_of(self, other: Self) -> Self {
        let taken = KIND | SLOT | FRAME;
        Self((self.0 & !taken) | (other.0 & taken))
    }

    /// `new` as the successor of this word: everything of `new`, but the pins stay and the lock bit is clear.
    #[must_use]
    pub const fn replace(self, new: Self) -> Self {
        Self((new.0 & !PINS) | (self.0 & PINS)).unlocked()
    }
}

impl fmt::Debug for PageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({}) slot={}", self.kind(), self.frame(), self.slot())?;
        write!(
            f,
            " pins={} locked={} young={}",
            self.pins(),
            self.is_locked(),
            self.young()
        )?;
        write!(f, " readahead={}", self.readahead())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_bits_are_untouched() {
        let fresh = PageState(0);
        assert_eq!(fresh, PageState::untouched());
        assert_eq!(fresh.kind(), Kind::Untouched);
        assert!(!fresh.is_locked() && !fresh.young() && !fresh.readahead());
        assert_eq!((fresh.pins(), fresh.frame(), fresh.named_slot()), (0, 0, None));
    }

    #[test]
    fn bits_are_where_the_page_says() {
        assert_eq!(
            PageState::swapped(u32::MAX).raw(),
            3 | (u64::from(u32::MAX) << 16)
        );
        assert_eq!(PageState::cached(FRAME_MAX).raw(), 2 | (FRAME_MAX << 48));
        assert_eq!(
            PageState::resident()
                .locked()
                .with_young(true)
                .with_readahead(true)
                .raw(),
            0b11_1001
        );
        assert_eq!(PageState(PIN_ONE).pins(), 1);
        assert_eq!(PageState::zero().with_pins(PIN_MAX).raw(), 4 | 0xffc0);
        assert_eq!(PageState::zero().with_pins(u16::MAX).pins(), PIN_MAX);
        assert_eq!(PageState::cached(3).keeping(7).raw(), 2 | 7 << 16 | 3 << 48);
        assert_eq!(PageState::poor(9).keeping(7).raw(), 1 | 7 << 16 | 9 << 48);
        for word in 5..8 {
            assert_eq!(PageState(word).kind(), Kind::Invalid);
        }
    }

    #[test]
    fn a_slot_is_named_by_what_is_swapped_or_keeps_one() {
        assert_eq!(PageState::swapped(5).named_slot(), Some(5));
        assert_eq!(PageState::resident().named_slot(), None);
        assert_eq!(PageState::resident().keeping(5).named_slot(), Some(5));
        assert_eq!(PageState::cached(9).keeping(5).named_slot(), Some(5));
        assert_eq!(PageState::cached(9).keeping(5).keeping(0), PageState::cached(9));
        assert_eq!(PageState::zero().named_slot(), None);
        assert_eq!(PageState::swapped(5).kept_slot(), None);
        assert_eq!(PageState::resident().keeping(5).kept_slot(), Some(5));
        assert_eq!(PageState::cached(9).kept_slot(), None);
    }

    #[test]
    fn only_a_resident_page_was_refused_and_young_or_pinned_it_still_was() {
        let poor = PageState::poor(u16::MAX);
        assert_eq!((poor.kind(), poor.refused()), (Kind::Resident, Some(u16::MAX)));
        let busy = poor.keeping(3).with_young(true).with_pins(2).locked();
        assert_eq!((busy.refused(), busy.slot()), (Some(u16::MAX), 3));
        for other in [
            PageState::resident(),
            PageState::cached(5),
            PageState::stamped(5, 7),
            PageState::zero(),
        ] {
            assert_eq!(other.refused(), None, "{other:?}");
        }
    }

    #[test]
    fn replace_keeps_pins_only() {
        let old = PageState::cached(77).with_pins(9).locked().with_readahead(true);
        let new = old.replace(PageState::swapped(5).with_young(true).with_pins(3).locked());
        assert_eq!(new, PageState::swapped(5).with_young(true).with_pins(9));
    }
}
