//! The block map of a swap area: one word per 4 KiB block of a swap file or device.
//!
//! ```text
//! 63              32 31               0
//! +-----------------+-----------------+
//! | CRC-32C         | owner slot      |      owner 0 = free
//! +-----------------+-----------------+
//! ```
//!
//! The map is also the reverse map, block to slot, so an area can be drained in block order with large reads.
//! A block is taken by one CAS of its word and given back by one store; there is no other state, so a process
//! that dies leaves only blocks that name a slot which does not name them, and those are found by comparing
//! the two tables. Invariants:
//!
//! - a block belongs to the slot in its word, and only whoever holds that slot busy, or moves it here,
//!   changes the word;
//! - the checksum is valid once the slot names the block: [`BlockMap::set_crc`] comes before the slot is
//!   published.
//!
//! Runs exist only to make writes large. Reading the map while others claim is racy by nature: the search
//! looks for a run without claiming, and the claim takes as much of its front as it finds still free.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Blocks a search looks at before it accepts a run shorter than asked for.
pub const SCAN_BLOCKS: usize = 65536;
/// How often a claim that lost its first block to another process is searched anew.
const CLAIM_TRIES: usize = 1024;
const OWNER: u64 = u32::MAX as u64;
const CRC_SHIFT: u32 = 32;

/// The map over shared words; all zero is an empty area.
#[derive(Debug, Clone, Copy)]
pub struct BlockMap<'a> {
    /// One word per block.
    pub words: &'a [AtomicU64],
}

impl<'a> BlockMap<'a> {
    /// Claims contiguous blocks for the slots: block `first + i` for `slots[i]`. Returns `(first, n)` with `1
    /// <= n <= slots.len()`. First fit from `cursor` to the end of the area, then from its front. A run
    /// shorter than asked for (the longest seen, the first of equals) is accepted once [`SCAN_BLOCKS`]
    /// blocks, or the whole area, held none as long. None if the area is full, if others fill it faster than
    /// this process can claim, or if `slots` is empty; slots from the first 0 on are ignored, because 0 owns
    /// nothing.
    #[must_use]
    pub fn alloc_run(&self, cursor: &AtomicU32, slots: &[u32]) -> Option<(u64, usize)> {
        let wanted = slots.iter().position(|&slot| slot == 0).unwrap_or(slots.len());
        let mut start = cursor.load(Ordering::Relaxed) as usize;
        for _ in 0..CLAIM_TRIES {
            let (first, n) = self.search(start, wanted)?;
            let claimed = self.claim(first, slots.get(..n)?);
            if claimed > 0 {
                cursor.store((first + claimed) as u32, Ordering::Relaxed);
                return Some((first as u64, claimed));
            }
            start = first + 1;
        }
        None
    }

    /// The run to try, read only.
    fn search(&self, start: usize, wanted: usize) -> Option<(usize, usize)> {
        let len = self.words.len();
        let start = if start < len { start } else { 0 };
        let (mut best_first, mut best) = (0, 0);
        // Free blocks seen in a row up to the current one.
        let mut run = 0;
        if wanted == 0 {
            return None;
        }
        for (step, at) in (start..len).chain(0..start).enumerate() {
            if at == 0 {
                run = 0;
            }
            run = if self.owner(at as u64) == 0 { run + 1 } else { 0 };
            if run > best {
                (best_first, best) = (at + 1 - run, run);
            }
            // A best run that is still open may grow.
            if best == wanted || (step + 1 >= SCAN_BLOCKS && best > 0 && run < best) {
                break;
            }
        }
        (best > 0).then_some((best_first, best))
    }

    /// Claims blocks from `first` on until one is not free; how many.
    fn claim(&self, first: usize, slots: &[u32]) -> usize {
        let words = self.words.get(first..).unwrap_or(&[]);
        let taken = |word: &AtomicU64, slot: u32| {
            let seen = word.load(Ordering::Relaxed);
            let next = u64::from(slot);
            seen & OWNER == 0
                && word
                    .compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
        };
        words
            .iter()
            .zip(slots)
            .take_while(|&(word, &slot)| taken(word, slot))
            .count()
    }

    /// Notes the CRC-32C of a block's content. False, and no change, if the block is free or outside the
    /// area.
    pub fn set_crc(&self, block: u64, crc: u32) -> bool {
        let Some(word) = self.word(block) else {
            return false;
        };
        let mut seen = word.load(Ordering::Relaxed);
        while seen & OWNER != 0 {
            let next = (u64::from(crc) << CRC_SHIFT) | (seen & OWNER);
            match word.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// The CRC-32C noted for a block; 0 for a free one.
    #[must_use]
    pub fn crc(&self, block: u64) -> u32 {
        (self.load(block) >> CRC_SHIFT) as u32
    }

    /// The slot that owns a block; 0 if it is free or outside the area.
    #[must_use]
    pub fn owner(&self, block: u64) -> u32 {
        self.load(block) as u32
    }

    /// Gives a block back; nothing if it is free already or outside the area.
    pub fn free(&self, block: u64) {
        if let Some(word) = self.word(block) {
            word.store(0, Ordering::Release);
        }
    }

    fn load(&self, block: u64) -> u64 {
        self.word(block).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn word(&self, block: u64) -> Option<&'a AtomicU64> {
        self.words.get(usize::try_from(block).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn area(blocks: usize) -> Vec<AtomicU64> {
        (0..blocks).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn runs_by_hand() {
        let words = area(16);
        let map = BlockMap { words: &words };
        let cursor = AtomicU32::new(0);
        assert_eq!(map.alloc_run(&cursor, &[5, 6, 7]), Some((0, 3)));
        assert_eq!(
            [map.owner(0), map.owner(1), map.owner(2), map.owner(3)],
            [5, 6, 7, 0]
        );
        assert_eq!(map.alloc_run(&cursor, &[8; 12]), Some((3, 12)));
        [1, 4, 5, 5, 99].into_iter().for_each(|block| map.free(block));
        // Free: 1, 4, 5, 15. The run at the end does not go on at the front.
        assert_eq!(map.alloc_run(&cursor, &[9, 9]), Some((4, 2)));
        assert_eq!(
            map.alloc_run(&cursor, &[9, 9]),
            Some((15, 1)),
            "shorter than asked for"
        );
        assert_eq!(
            map.alloc_run(&cursor, &[9, 0, 9]),
            Some((1, 1)),
            "slot 0 owns nothing"
        );
        assert_eq!(map.alloc_run(&cursor, &[9]), None);
        assert_eq!(map.alloc_run(&cursor, &[]), None);
        assert_eq!(BlockMap { words: &[] }.alloc_run(&cursor, &[9]), None);
    }

    #[test]
    fn a_long_search_settles_for_less() {
        let words = area(SCAN_BLOCKS + 100);
        let map = BlockMap { words: &words };
        let all: Vec<u32> = (1..=words.len() as u32).collect();
        assert_eq!(map.alloc_run(&AtomicU32::new(0), &all), Some((0, all.len())));
        let end = SCAN_BLOCKS as u64;
        for block in [10, 20, 21, end + 50, end + 51, end + 52] {
            map.free(block);
        }
        assert_eq!(
            map.alloc_run(&AtomicU32::new(0), &[1, 1, 1]),
            Some((20, 2)),
            "longest within the limit"
        );

        assert_eq!(
            map.alloc_run(&AtomicU32::new(11), &[1, 1, 1]),
            Some((end + 50, 3)),
            "found none within it"
        );
    }

    #[test]
    fn checksums_live_with_their_block() {
        let words = area(2);
        let map = BlockMap { words: &words };
        assert!(!map.set_crc(0, 1) && !map.set_crc(2, 1));
        map.alloc_run(&AtomicU32::new(0), &[u32::MAX]).unwrap();
        assert!(map.set_crc(0, 0xdead_beef) && map.set_crc(0, 0xfeed_beef));
        assert_eq!((map.owner(0), map.crc(0)), (u32::MAX, 0xfeed_beef));
        map.free(0);
        assert_eq!(
            (map.owner(0), map.crc(0), words[0].load(Ordering::Relaxed)),
            (0, 0, 0)
        );
        assert_eq!((map.owner(9), map.crc(u64::MAX)), (0, 0));
    }
}
