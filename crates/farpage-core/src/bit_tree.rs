//! A set of small numbers in shared words: a bitmap with two levels of summary.
//!
//! ```text
//! level 2   one bit per 4096 words of level 0
//! level 1   one bit per 64 words ...  set if any below is set
//! level 0   one bit per member
//! ```
//!
//! The lists of clusters are such sets and not chains: a chain that a killed process left half linked must be
//! rebuilt under a lock that stops everybody, while here each step is one atomic instruction and every
//! half-done change leaves a set that is right but for its own member. Callers serialise the changes of one
//! member (they hold its cluster's lock); different members are changed at the same time by anybody.
//!
//! A summary bit may be set above nothing, which costs a look. It is clear above something only for the time
//! between two instructions of a remover, or until [`BitTree::mend`] if the remover died there.

use crate::kill_point;
use crate::sync::{AtomicU64, Ordering};

const BITS: usize = 64;

/// The set over shared words; all zero is the empty set.
#[derive(Debug, Clone, Copy)]
pub struct BitTree<'a> {
    levels: [&'a [AtomicU64]; 3],
}

/// Words of the three levels of a set of numbers below `len`.
const fn sizes(len: usize) -> [usize; 3] {
    let first = len.div_ceil(BITS);
    let second = first.div_ceil(BITS);
    [first, second, second.div_ceil(BITS)]
}

impl<'a> BitTree<'a> {
    /// How many words a set of numbers below `len` needs.
    #[must_use]
    pub const fn words(len: usize) -> usize {
        let sizes = sizes(len);
        sizes[0] + sizes[1] + sizes[2]
    }

    /// The set of numbers below `len` in `words`, of which there must be [`Self::words`]; what is missing
    /// holds nothing.
    #[must_use]
    pub fn new(words: &'a [AtomicU64], len: usize) -> Self {
        let [first, second, third] = sizes(len);
        let part = |from: usize, count: usize| words.get(from..from + count).unwrap_or(&[]);
        Self {
            levels: [part(0, first), part(first, second), part(first + second, third)],
        }
    }

    /// Puts `member` in.
    pub fn insert(&self, member: usize) {
        let mut at = member;
        for level in self.levels {
            if let Some(word) = level.get(at / BITS) {
                word.fetch_or(1 << (at % BITS), Ordering::AcqRel);
            }
            kill_point!("list-entered");
            at /= BITS;
        }
    }

    /// Takes `member` out.
    pub fn remove(&self, member: usize) {
        let mut at = member;
        for (height, level) in self.levels.into_iter().enumerate() {
            let Some(word) = level.get(at / BITS) else { return };
            let bit = 1u64 << (at % BITS);
            let left = word.fetch_and(!bit, Ordering::AcqRel) & !bit;
            if left != 0 && height == 0 {
                return;
            }
            if left != 0 {
                break;
            }
            kill_point!("list-halved");
            at /= BITS;
        }
        // Somebody may have put another in below a summary bit just cleared.
        self.summarise(member);
    }

    /// Sets the summary bits above what is there.
    fn summarise(&self, member: usize) {
        let mut at = member / BITS;
        for pair in self.levels.windows(2) {
            let below = pair[0].get(at).map_or(0, |word| word.load(Ordering::Acquire));
            if below != 0
                && let Some(word) = pair[1].get(at / BITS)
            {
                word.fetch_or(1 << (at % BITS), Ordering::AcqRel);
            }
            at /= BITS;
        }
    }

    /// Puts `member` in or takes it out, and corrects the summary above it whatever a death left there.
    pub fn mend(&self, member: usize, is_in: bool) {
        if is_in {
            self.insert(member);
        } else {
            self.remove(member);
            self.summarise(member);
        }
    }

    /// Whether `member` is in.
    #[must_use]
    pub fn contains(&self, member: usize) -> bool {
        self.levels[0]
            .get(member / BITS)
            .is_some_and(|word| word.load(Ordering::Acquire) >> (member % BITS) & 1 == 1)
    }

    /// Whether a clear summary bit hides `member`, which is in: between two instructions of a remover, or since it died there.
    #[must_use]
    pub fn hides(&self, member: usize) -> bool {
        let mut at = member;
        let mut is_in = |level: &[AtomicU64]| {
            let word = level
                .get(at / BITS)
                .map_or(0, |word| word.load(Ordering::Acquire));
            let is_set = word >> (at % BITS) & 1 == 1;
            at /= BITS;
            is_set
        };
        let [first, above @ ..] = self.levels;
        is_in(first) && !above.into_iter().all(is_in)
    }

    /// The members of which word `at` of those that [`Self::new`] was given tells, if it is `word`: none of a summary.
    pub(crate) fn members_of(len: usize, at: usize, word: u64) -> impl Iterator<Item = usize> {
        let is_first = at < sizes(len)[0];
        (0..BITS)
            .filter(move |bit| is_first && word >> bit & 1 == 1)
            .map(move |bit| at * BITS + bit)
    }

    /// The least member in `from..end`.
    #[must_use]
    pub fn next(&self, from: usize, end: usize) -> Option<usize> {
        let mut at = from;
        while at < end {
            if let Some(found) = self.next_in_word(0, at) {
                return (found < end).then_some(found);
            }
            // The next word of level 0 that is said to hold something.
            at = BITS * self.next_word(at / BITS + 1, end.div_ceil(BITS))?;
        }
        None
    }

    fn next_word(&self, from: usize, end: usize) -> Option<usize> {
        let mut at = from;
        while at < end {
            if let Some(found) = self.next_in_word(1, at) {
                return (found < end).then_some(found);
            }
            let mut above = at / BITS + 1;
            let last = end.div_ceil(BITS);
            while above < last {
                if let Some(found) = self.next_in_word(2, above) {
                    above = found;
                    break;
                }
                above = (above / BITS + 1) * BITS;
            }
            at = above * BITS;
        }
        None
    }

    /// The first set bit of a level at or after `at`, in the word that holds `at`.
    fn next_in_word(&self, level: usize, at: usize) -> Option<usize> {
        let word = self.levels[level].get(at / BITS)?.load(Ordering::Acquire) >> (at % BITS);
        (word != 0).then(|| at + word.trailing_zeros() as usize)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    const LEN: usize = 64 * 64 * 64 * 2 + 100;

    fn memory() -> Vec<AtomicU64> {
        (0..BitTree::words(LEN)).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn by_hand() {
        let words = memory();
        let tree = BitTree::new(&words, LEN);
        assert_eq!(tree.next(0, LEN), None);
        for member in [0, 63, 64, 4096, 262_144, LEN - 1] {
            tree.insert(member);
        }
        assert_eq!((tree.next(0, LEN), tree.next(1, LEN)), (Some(0), Some(63)));
        assert_eq!((tree.next(65, LEN), tree.next(65, 4096)), (Some(4096), None));
        tree.remove(4096);
        tree.remove(64);
        assert_eq!((tree.next(64, LEN), tree.contains(64)), (Some(262_144), false));
        assert_eq!(tree.next(262_145, LEN), Some(LEN - 1));
        tree.insert(LEN + 1000);
        assert!(!tree.contains(LEN + 1000), "outside");
    }

    /// A remover killed between its two steps hides its neighbours; mending any of them shows all.
    #[test]
    fn mending_after_a_death() {
        let words = memory();
        let tree = BitTree::new(&words, LEN);
        tree.insert(5);
        tree.levels[1][0].store(0, Ordering::Relaxed);
        tree.levels[2][0].store(0, Ordering::Relaxed);
        tree.mend(9, false);
        assert_eq!(tree.next(0, 10), Some(5));
        tree.levels[1][0].store(0, Ordering::Relaxed);
        tree.insert(70);
        assert_eq!((tree.next(6, 64), tree.next(6, LEN)), (None, Some(70)));
    }

    #[test]
    fn what_a_clear_summary_hides() {
        let words = memory();
        let tree = BitTree::new(&words, LEN);
        tree.insert(5);
        tree.insert(LEN - 1);
        assert!(!tree.hides(5) && !tree.hides(6) && !tree.hides(LEN + 1000));
        for level in [1, 2] {
            let was = tree.levels[level][0].swap(0, Ordering::Relaxed);
            assert!(tree.hides(5) && !tree.hides(6), "6 is not in");
            tree.levels[level][0].store(was, Ordering::Relaxed);
        }
        assert!(!tree.hides(5) && !tree.hides(LEN - 1));
    }

    #[test]
    fn members_by_word() {
        let words = memory();
        let tree = BitTree::new(&words, LEN);
        let members = [0, 63, 64, 4096, LEN - 1];
        members.into_iter().for_each(|member| tree.insert(member));
        let all = words.iter().enumerate();
        let found = all.flat_map(|(at, word)| BitTree::members_of(LEN, at, word.load(Ordering::Relaxed)));
        assert_eq!(found.collect::<Vec<_>>(), members);
    }
}
