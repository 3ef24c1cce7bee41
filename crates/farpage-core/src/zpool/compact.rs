//! Compaction: what is spread over more zpages than it needs is moved together.
//!
//! After zsmalloc's of the kernel: of a size class the emptiest zpage gives its objects to the fullest ones that have room,
//! until no zpage less would hold them. Whoever moves an object makes sure that its slot is not given to somebody else
//! meanwhile, exchanges the slot's word from the old handle to the new one, and frees whichever of the two lost.

use super::{CLASSES, Handle, State, WORD_BYTES, Zpool, class_bytes, class_objects, header_word, load};
use crate::sync::Ordering;

/// What the zpages of a class hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Active zpages.
    pub zpages: usize,
    /// Objects in them.
    pub objects: usize,
}

impl Tally {
    /// Zpages of `class` that these objects would not need.
    #[must_use]
    pub const fn surplus(self, class: usize) -> usize {
        self.zpages
            .saturating_sub(self.objects.div_ceil(class_objects(class)))
    }
}

impl Zpool<'_> {
    /// What every class holds, as it is when looked at.
    #[must_use]
    pub fn tally(&self) -> [Tally; CLASSES] {
        let mut classes = [Tally::default(); CLASSES];
        for (class, objects) in (0..self.zpages()).filter_map(|zpage| self.active(zpage)) {
            classes[class].zpages += 1;
            classes[class].objects += objects;
        }
        classes
    }

    /// Class and number of objects of an active zpage.
    #[must_use]
    pub fn active(&self, zpage: usize) -> Option<(usize, usize)> {
        let seen = load(self.desc(zpage)?);
        (seen.state() == State::Active).then_some((seen.class(), seen.in_use()))
    }

    /// Takes an object for `slot` in zpage `to`, of the class of `from`, and copies `from` to it. What is copied is the content
    /// of `slot` only if the slot's word names `from` before and afterwards. None: no room there.
    #[must_use]
    pub fn copy_to(&self, from: Handle, slot: u32, to: usize) -> Option<Handle> {
        if !self.names_a_place(from) {
            return None;
        }
        let new = self.take(to, from.class(), slot)?;
        let words = class_bytes(from.class()) / WORD_BYTES;
        // The first word is the header's, which names the slot already.
        for word in 1..words {
            let content = self.data.get(header_word(from) + word)?.load(Ordering::Relaxed);
            self.data
                .get(header_word(new) + word)?
                .store(content, Ordering::Relaxed);
        }
        Some(new)
    }
}
