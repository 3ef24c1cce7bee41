//! What systems C and T replaced, for comparison only: a device's map of byte counts behind one lock, found by scanning
//! from where the last slot was taken, and a tree of the pages in the swap cache behind another.

use std::collections::BTreeMap;

/// A device's slots: one count a byte.
#[derive(Debug)]
pub struct Map {
    counts: Vec<u8>,
    next: usize,
}

impl Map {
    /// So many free slots.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self {
            counts: vec![0; slots],
            next: 0,
        }
    }

    /// The next free slot, with a count of 1.
    pub fn alloc(&mut self) -> Option<u32> {
        let (front, back) = self.counts.split_at(self.next);
        let is_free = |count: &u8| *count == 0;
        let ahead = back.iter().position(is_free).map(|at| at + self.next);
        let at = ahead.or_else(|| front.iter().position(is_free))?;
        self.counts[at] = 1;
        self.next = at + 1;
        Some(at as u32)
    }

    /// One user more; false if nobody has the slot.
    pub fn up(&mut self, slot: u32) -> bool {
        match self.counts.get_mut(slot as usize) {
            Some(count) if *count > 0 => {
                *count += 1;
                true
            }
            _ => false,
        }
    }

    /// One user less; the last one frees the slot. False if nobody has it.
    pub fn down(&mut self, slot: u32) -> bool {
        match self.counts.get_mut(slot as usize) {
            Some(count) if *count > 0 => {
                *count -= 1;
                true
            }
            _ => false,
        }
    }

    /// Slots taken.
    #[must_use]
    pub fn used(&self) -> usize {
        self.counts.iter().filter(|count| **count > 0).count()
    }
}

/// The swap cache, or a part of it: slots and the frames that hold their pages.
pub type Tree = BTreeMap<u32, u64>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_go_round_and_are_freed_by_the_last() {
        let mut map = Map::new(3);
        assert_eq!(
            [map.alloc(), map.alloc(), map.alloc()],
            [Some(0), Some(1), Some(2)]
        );
        assert_eq!(map.alloc(), None);
        assert!(map.up(1) && map.down(1));
        assert_eq!(map.alloc(), None, "one user is left");
        assert!(map.down(1) && !map.down(1) && !map.up(1));
        assert_eq!((map.used(), map.alloc()), (2, Some(1)));
    }
}
