//! What a zpage's descriptor and an object's handle are packed of, and the size classes.

use crate::sync::{AtomicU64, Ordering};

/// Bytes in a zpage.
pub const ZPAGE_BYTES: usize = if cfg!(all(test, loom)) { 64 } else { 32768 };
/// Bytes of the header at the front of every object.
pub const HEADER_BYTES: usize = 16;
/// Objects in a zpage, by size class. The steps are small where compressed pages mostly are: half of a step is what an object
/// wastes, and every class in use what its last zpage lacks.
#[cfg(all(test, loom))]
const OBJECTS: [u16; 1] = [2];
#[cfg(not(all(test, loom)))]
const OBJECTS: [u16; 28] = [
    256, 192, 128, 96, 80, 64, 56, 48, 42, 36, 32, 28, 25, 23, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11,
    10, 9, 8,
];
/// Number of size classes, the smallest objects first.
pub const CLASSES: usize = OBJECTS.len();
/// Bytes of the largest object, its header included.
pub const OBJECT_MAX: usize = class_bytes(CLASSES - 1);

/// Objects begin at multiples of so many bytes of their zpage.
const ALIGN: usize = 16;
/// By size in units of [`ALIGN`], rounded up.
const CLASS_OF: [u8; OBJECT_MAX / ALIGN + 1] = {
    let mut classes = [0; OBJECT_MAX / ALIGN + 1];
    let (mut units, mut class) = (0, 0);
    while units < classes.len() {
        if units * ALIGN > class_bytes(class) {
            class += 1;
        }
        classes[units] = class as u8;
        units += 1;
    }
    classes
};
/// The most zpages a handle can tell apart: 1 TiB of data.
pub const ZPAGES_MAX: usize = 1 << ZPAGE_BITS;
const ZPAGE_BITS: u32 = 25;
pub(super) const INDEX_BITS: u32 = 8;

/// The size class for objects of `bytes`, header included; none above [`OBJECT_MAX`].
#[must_use]
pub const fn class_of(bytes: usize) -> Option<usize> {
    if bytes > OBJECT_MAX {
        return None;
    }
    Some(CLASS_OF[bytes.div_ceil(ALIGN)] as usize)
}

/// Bytes of an object of a class, header included.
#[must_use]
pub const fn class_bytes(class: usize) -> usize {
    ZPAGE_BYTES / class_objects(class) / ALIGN * ALIGN
}

/// Objects in a zpage of a class.
#[must_use]
pub const fn class_objects(class: usize) -> usize {
    OBJECTS[class] as usize
}

/// An object: its class (7 bits), zpage (25 bits) and index in the zpage (8 bits). 40 bits in all.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

impl Handle {
    /// The object at `index`, below 256, of a zpage below [`ZPAGES_MAX`] and a class below [`CLASSES`].
    #[must_use]
    pub const fn new(class: usize, zpage: usize, index: usize) -> Self {
        Self((((class as u64) << ZPAGE_BITS | zpage as u64) << INDEX_BITS) | index as u64)
    }

    /// The size class.
    #[must_use]
    pub const fn class(self) -> usize {
        (self.0 >> (ZPAGE_BITS + INDEX_BITS)) as usize
    }

    /// The zpage index.
    #[must_use]
    pub const fn zpage(self) -> usize {
        (self.0 >> INDEX_BITS) as usize & (ZPAGES_MAX - 1)
    }

    /// The index of the object in its zpage.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize & ((1 << INDEX_BITS) - 1)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Free,
    Active,
    Emptying,
    Invalid,
}

/// A descriptor word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Desc(pub(super) u64);

impl Desc {
    pub(super) const FREE: Self = Self(0);
    const STATE: u64 = 0b11;
    const CLASS_SHIFT: u32 = 2;
    const CLASS: u64 = 0x7f;
    const IN_USE_SHIFT: u32 = 9;
    const IN_USE: u64 = 0x3ff;
    const OWNER_SHIFT: u32 = 19;

    pub(super) const fn active(class: usize, in_use: usize) -> Self {
        Self(1 | ((class as u64) << Self::CLASS_SHIFT) | ((in_use as u64) << Self::IN_USE_SHIFT))
    }

    pub(super) const fn emptying(class: usize, owner: u16) -> Self {
        Self(2 | ((class as u64) << Self::CLASS_SHIFT) | ((owner as u64) << Self::OWNER_SHIFT))
    }

    pub(super) const fn state(self) -> State {
        match self.0 & Self::STATE {
            0 => State::Free,
            1 if self.class() < CLASSES => State::Active,
            2 => State::Emptying,
            _ => State::Invalid,
        }
    }

    pub(super) const fn class(self) -> usize {
        ((self.0 >> Self::CLASS_SHIFT) & Self::CLASS) as usize
    }

    pub(super) const fn in_use(self) -> usize {
        ((self.0 >> Self::IN_USE_SHIFT) & Self::IN_USE) as usize
    }

    pub(super) const fn owner(self) -> u16 {
        (self.0 >> Self::OWNER_SHIFT) as u16
    }
}

pub(super) fn load(desc: &AtomicU64) -> Desc {
    Desc(desc.load(Ordering::Acquire))
}

/// One CAS that both publishes what its thread did before and sees what the last change published.
pub(super) fn exchange(desc: &AtomicU64, seen: Desc, next: Desc) -> Result<(), Desc> {
    desc.compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Acquire)
        .map(|_| ())
        .map_err(Desc)
}
