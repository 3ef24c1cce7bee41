//! Which pages one read brings in: those whose blocks lie in one run of a file.

use crate::mm::SPAN;
use crate::tiers::READ_MAX;

/// Distance of two wanted blocks that one read spans, where the next one waits for it: reading what lies between takes less than a
/// second read.
pub const GAP_MAX: u64 = 24;
/// Most blocks of such a read: up to about that many take hardly longer than one.
pub const WAITED_MAX: u64 = 32;
/// The same distance where the second read would be in flight beside the first.
pub const GAP_BESIDE: u64 = 4;
const INDEX_BITS: u32 = 6;
const BLOCK_BITS: u32 = 48;

/// Where a page lies, with its index among up to [`SPAN`] pages, in one word that sorts by area and block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Lies(u64);

impl Lies {
    #[must_use]
    pub fn new((area, block): (u8, u64), index: u64) -> Lies {
        debug_assert!(block >> BLOCK_BITS == 0 && index < SPAN as u64);
        Lies((u64::from(area) << BLOCK_BITS | block) << INDEX_BITS | index)
    }

    /// Area and block as one number: blocks of different areas are far apart.
    #[must_use]
    pub const fn block(self) -> u64 {
        self.0 >> INDEX_BITS
    }

    /// The same apart.
    #[must_use]
    pub const fn place(self) -> (u8, u64) {
        let block = self.block();
        ((block >> BLOCK_BITS) as u8, block & ((1 << BLOCK_BITS) - 1))
    }

    #[must_use]
    pub const fn index(self) -> usize {
        (self.0 % SPAN as u64) as usize
    }
}

/// The places of up to [`SPAN`] pages.
pub struct Places {
    sorted: [Lies; SPAN],
    len: usize,
}

impl Default for Places {
    fn default() -> Self {
        Places {
            sorted: [Lies(0); SPAN],
            len: 0,
        }
    }
}

impl Places {
    /// Takes these places, at most [`SPAN`], and no others.
    pub fn fill(&mut self, places: impl Iterator<Item = Lies>) {
        self.len = 0;
        for (to, place) in self.sorted.iter_mut().zip(places) {
            *to = place;
            self.len += 1;
        }
        self.sorted[..self.len].sort_unstable();
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Those that one read brings in with the page of `index`, none if it is not among them: each in a block of its own, no farther from the next one
    /// than `gap` blocks, no more than `most` blocks in all and half of them before it.
    #[must_use]
    pub fn around(&self, index: usize, gap: u64, most: u64) -> &[Lies] {
        let all = &self.sorted[..self.len];
        let Some(at) = all.iter().position(|place| place.index() == index) else {
            return &[];
        };
        let first = all[at];
        let is_near = |low: Lies, high: Lies| (1..=gap).contains(&(high.block() - low.block()));
        let mut from = at;
        while from > 0
            && is_near(all[from - 1], all[from])
            && first.block() - all[from - 1].block() < most / 2
        {
            from -= 1;
        }
        let mut to = at;
        while to + 1 < all.len()
            && is_near(all[to], all[to + 1])
            && all[to + 1].block() - all[from].block() < most
        {
            to += 1;
        }
        &all[from..=to]
    }

    /// All of them, by the reads that bring them in, one after the other in the file.
    pub fn runs(&self, gap: u64) -> impl Iterator<Item = &[Lies]> {
        let mut rest = &self.sorted[..self.len];
        core::iter::from_fn(move || {
            let first = rest.first()?;
            let follows = |pair: &&[Lies]| {
                let distance = pair[1].block() - pair[0].block();
                (1..=gap).contains(&distance) && pair[1].block() - first.block() < READ_MAX as u64
            };
            let len = 1 + rest.windows(2).take_while(follows).count();
            let (run, others) = rest.split_at(len);
            rest = others;
            Some(run)
        })
    }
}

const _: () = assert!(1 << INDEX_BITS == SPAN);

#[cfg(test)]
mod tests {
    use super::*;

    fn indexes(blocks: &[(u8, u64)], first: usize) -> Vec<usize> {
        let lies = |(index, place): (usize, &(u8, u64))| Lies::new(*place, index as u64);
        let mut places = Places::default();
        places.fill(blocks.iter().enumerate().map(lies));
        let run = places.around(first, GAP_MAX, WAITED_MAX);
        run.iter().map(|place| place.index()).collect()
    }

    #[test]
    fn neighbours_in_the_file_are_one_run_in_any_order() {
        assert_eq!(indexes(&[(0, 7), (0, 5), (0, 6)], 0), [1, 2, 0]);
        assert_eq!(indexes(&[(0, 7), (0, 5), (0, 6)], 1), [1, 2, 0]);
    }

    #[test]
    fn a_wide_gap_and_another_file_end_a_run() {
        let gap = GAP_MAX;
        assert_eq!(indexes(&[(0, 9), (0, 9 + gap), (0, 10 + 2 * gap)], 0), [0, 1]);
        assert_eq!(indexes(&[(0, 9), (1, 10), (2, 9)], 1), [1]);
    }

    #[test]
    fn one_block_is_read_for_one_page_only() {
        assert_eq!(indexes(&[(0, 9), (0, 9)], 0), [0]);
        assert_eq!(indexes(&[(0, 9), (0, 9)], 1), [1]);
    }

    #[test]
    fn a_read_that_is_waited_for_is_short() {
        let blocks: Vec<_> = (0..SPAN as u64).map(|i| (0, i * 2)).collect();
        let most = WAITED_MAX as usize / 2;
        assert_eq!(indexes(&blocks, 0).len(), most);
        let around = indexes(&blocks, SPAN / 2);
        assert_eq!((around[0], around.len()), (SPAN / 2 - most / 2 + 1, most));
    }

    #[test]
    fn all_runs_hold_every_place_once() {
        let blocks = [(0, 5), (1, 6), (0, 1), (0, 80), (0, 6), (0, 10), (0, 11)];
        let mut places = Places::default();
        places.fill((0..).zip(blocks).map(|(index, place)| Lies::new(place, index)));
        let runs: Vec<Vec<_>> = places
            .runs(GAP_BESIDE)
            .map(|run| run.iter().map(|place| place.index()).collect())
            .collect();
        assert_eq!(runs, [vec![2, 0, 4, 5, 6], vec![3], vec![1]]);
        assert_eq!(Places::default().runs(GAP_BESIDE).count(), 0);
    }

    #[test]
    fn a_run_is_no_longer_than_a_read() {
        let mut places = Places::default();
        places.fill((0..SPAN as u64).map(|index| Lies::new((0, index * 2), index)));
        let lengths: Vec<_> = places.runs(GAP_BESIDE).map(<[Lies]>::len).collect();
        assert_eq!(lengths, [READ_MAX / 2, READ_MAX / 2]);
    }
}
