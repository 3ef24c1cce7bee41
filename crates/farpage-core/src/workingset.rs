//! Refault distances: how long ago a page left that is wanted again, and what they say about the compressed tier's size.
//!
//! After the kernel's shadows (`mm/workingset.c`): the word of a page that was stored compressed holds a *stamp*, the low bits of
//! a clock that counts pages stored. When the page is touched again, the clock less the stamp is its refault distance, counted in
//! epochs of many pages. A histogram of these distances is the density of touches by age; two places of it matter. Touches with
//! a distance near zero would have found their page resident, had a little more RAM been left to resident pages. Touches with a
//! distance at the *edge*, the age at which the full tier writes pages to the file, would have found theirs compressed, had
//! the tier been a little larger. RAM moves to where it saves more waiting:
//!
//! ```text
//! a step of s pages of RAM to the tier, which holds r pages in one of RAM:
//! costs  touches(0 .. s) * compressed          saves  touches(edge .. edge + s (r - 1) / survivors) * (file - compressed)
//! ```
//!
//! Survivors are the part of the pages that are still there at the edge's age; the others have been touched before. Counters
//! are shared and raced for: a lost count makes the estimate worse, nothing else.

use crate::stats::Source;
use crate::sync::{AtomicU64, Ordering};

/// Stamp of a page that has none: one that was never compressed.
pub const NO_STAMP: u8 = 0;
/// Stamps go round: a page stored longer ago than so many epochs looks younger than it is.
const STAMPS: u64 = 255;
/// Distances that are told apart, in epochs; greater ones do not matter to any size of the tier.
const DISTANCES: usize = 128;
/// Part of a new latency in the mean of those before.
const MEAN_OF: u64 = 64;
/// No single wait counts for more, in ns: the thread may just not have run.
const LATENCY_MAX: u64 = 1_000_000;
/// What a fault costs beside the time in which its page is found, in ns: the signal and another page's way out.
const FAULT_NS: u64 = 15_000;
/// A change must be worth so many quarters of what it costs.
const WORTH_QUARTERS: u64 = 5;

/// Histograms and means of both tiers: these are their places.
const COMPRESSED: usize = 0;
const FILE: usize = 1;

/// What the compressed tier holds, in pages.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    /// Pages of programs.
    pub stored: u64,
    /// Pages of RAM they take.
    pub ram: u64,
}

/// What would make programs wait less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trend {
    /// More RAM for the compressed tier.
    Grow,
    /// More RAM for resident pages.
    Shrink,
    /// Neither is worth it, or too little is known.
    Stay,
}

/// The clock and the histogram. All bytes zero is the initial state, in which nothing is stamped.
#[repr(C)]
#[derive(Debug)]
pub struct Workingset {
    /// Pages of an epoch.
    epoch: AtomicU64,
    /// Pages stored compressed so far.
    clock: AtomicU64,
    /// Where the clock stood when the histogram's memory begins.
    since: AtomicU64,
    /// By tier and distance.
    touches: [[AtomicU64; DISTANCES]; 2],
    /// Mean ns of a touch, by tier.
    latency: [AtomicU64; 2],
}

impl Default for Workingset {
    /// Stamps nothing, as all bytes zero do.
    fn default() -> Self {
        let zero = |_| AtomicU64::new(0);
        Self {
            epoch: zero(0),
            clock: zero(0),
            since: zero(0),
            touches: core::array::from_fn(|_| core::array::from_fn(zero)),
            latency: core::array::from_fn(zero),
        }
    }
}

impl Workingset {
    /// Begins to stamp; an epoch is `pages`, at least 1.
    pub fn start(&self, pages: u64) {
        self.epoch.store(pages.max(1), Ordering::Relaxed);
    }

    /// Counts a page that is stored compressed now; its stamp.
    pub fn stamp(&self) -> u8 {
        let clock = self.clock.fetch_add(1, Ordering::Relaxed);
        match clock.checked_div(self.epoch.load(Ordering::Relaxed)) {
            Some(epoch) => (epoch % STAMPS) as u8 + 1,
            None => NO_STAMP,
        }
    }

    /// How many epochs ago a page with this stamp was stored.
    #[must_use]
    pub fn distance(&self, stamp: u8) -> Option<u64> {
        let then = u64::from(stamp).checked_sub(1)?;
        let clock = self.clock.load(Ordering::Relaxed);
        let now = clock.checked_div(self.epoch.load(Ordering::Relaxed))? % STAMPS;
        Some((now + STAMPS - then) % STAMPS)
    }

    /// Notes that a page of a tier was waited for.
    pub fn refault(&self, stamp: u8, from: Source, ns: u64) {
        let tier = match from {
            Source::Compressed => COMPRESSED,
            Source::File => FILE,
            Source::Zero | Source::Cached => return,
        };
        if let Some(touches) = self
            .distance(stamp)
            .and_then(|distance| self.touches[tier].get(distance as usize))
        {
            touches.fetch_add(1, Ordering::Relaxed);
        }
        let mean = &self.latency[tier];
        let before = mean.load(Ordering::Relaxed);
        mean.store(
            before - before / MEAN_OF + ns.min(LATENCY_MAX) / MEAN_OF,
            Ordering::Relaxed,
        );
    }

    /// Pages stored that the histogram remembers.
    #[must_use]
    pub fn remembered(&self) -> u64 {
        let clock = self.clock.load(Ordering::Relaxed);
        clock.saturating_sub(self.since.load(Ordering::Relaxed))
    }

    /// Half of what the histogram remembers is forgotten.
    pub fn forget_half(&self) {
        for count in self.touches.iter().flatten() {
            count.store(count.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
        }
        self.since
            .fetch_add(self.remembered().div_ceil(2), Ordering::Relaxed);
    }

    /// Whether a `step` of so many pages of RAM to or from the full tier is worth it.
    #[must_use]
    pub fn trend(&self, held: Held, step: u64) -> Trend {
        let epoch = self.epoch.load(Ordering::Relaxed);
        let stored = self.remembered();
        let gain = held.stored.saturating_sub(held.ram);
        if epoch == 0 || stored == 0 || gain == 0 {
            return Trend::Stay;
        }
        let [compressed, file] = self.latency.each_ref().map(|mean| mean.load(Ordering::Relaxed));
        let saved = file.saturating_sub(compressed);
        let (edge, survivors) = self.edge(held.stored, epoch, stored);
        let reach = step * gain / held.ram.max(1) * stored / survivors.max(1);
        let touches = |lo: u64, hi: u64| {
            self.touches_within(COMPRESSED, lo, hi, epoch) + self.touches_within(FILE, lo, hi, epoch)
        };
        let near = touches(0, step) * (compressed + FAULT_NS);
        // The edge is not sharp. No more waits can be saved than there were.
        let waits = self.touches_within(FILE, 0, edge + reach, epoch);
        let beyond = touches(edge, edge + reach).min(waits) * saved;
        let inside = touches(edge.saturating_sub(reach), edge) * saved;
        if beyond * 4 > near * WORTH_QUARTERS {
            Trend::Grow
        } else if near * 4 > inside * WORTH_QUARTERS {
            Trend::Shrink
        } else {
            Trend::Stay
        }
    }

    /// The distance, in pages, up to which pages that were stored fill a tier of `held` pages, and how many of `stored` pages
    /// have not been touched before they are that old.
    fn edge(&self, held: u64, epoch: u64, stored: u64) -> (u64, u64) {
        let mut survivors = stored;
        let (mut edge, mut left) = (0, held);
        for (compressed, file) in self.touches[COMPRESSED].iter().zip(&self.touches[FILE]) {
            let there = epoch * survivors / stored;
            if there >= left {
                return (edge + left * stored / survivors.max(1), survivors);
            }
            left -= there;
            edge += epoch;
            let touched = compressed.load(Ordering::Relaxed) + file.load(Ordering::Relaxed);
            survivors = survivors.saturating_sub(touched);
        }
        (edge, survivors)
    }

    /// Touches with distances from `lo` to below `hi`, in pages; of an epoch in part, that part.
    fn touches_within(&self, tier: usize, lo: u64, hi: u64, epoch: u64) -> u64 {
        let counts = (0..).step_by(epoch as usize).zip(&self.touches[tier]);
        counts
            .map(|(start, touches)| {
                let pages = hi.min(start + epoch).saturating_sub(lo.max(start));
                touches.load(Ordering::Relaxed) * pages / epoch
            })
            .sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn fresh(epoch: u64) -> Workingset {
        let set = Workingset::default();
        set.start(epoch);
        set
    }

    /// Latencies settle at `compressed` and `file` ns.
    fn waits(set: &Workingset, compressed: u64, file: u64) {
        for _ in 0..2000 {
            set.refault(NO_STAMP, Source::Compressed, compressed);
            set.refault(NO_STAMP, Source::File, file);
        }
    }

    /// Stores `pages`, of which one in `one_in` comes back when `after` more have been stored.
    fn run(set: &Workingset, pages: u64, one_in: usize, after: usize, from: Source) {
        (0..pages).for_each(|_| {
            set.stamp();
        });
        let epochs = after / set.epoch.load(Ordering::Relaxed) as usize;
        let tier = usize::from(from == Source::File);
        let touches = &set.touches[tier][epochs];
        touches.fetch_add(pages / one_in as u64, Ordering::Relaxed);
    }

    #[test]
    fn distances_are_counted_in_epochs_and_go_round() {
        let set = fresh(10);
        let first = set.stamp();
        assert_eq!((first, set.distance(first)), (1, Some(0)));
        (0..9).for_each(|_| assert_eq!(set.stamp(), 1));
        assert_eq!((set.distance(first), set.stamp()), (Some(1), 2));
        (0..2528).for_each(|_| {
            set.stamp();
        });
        assert_eq!(set.distance(first), Some(253));
        (0..20).for_each(|_| {
            set.stamp();
        });
        assert_eq!(set.distance(first), Some(0), "the clock has gone round");
        assert_eq!(set.distance(NO_STAMP), None);
        assert_eq!(fresh(0).clock.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn nothing_is_stamped_before_the_start() {
        let set = Workingset::default();
        assert_eq!((set.stamp(), set.distance(5)), (NO_STAMP, None));
        assert_eq!(set.trend(Held { stored: 10, ram: 5 }, 1), Trend::Stay);
    }

    /// One in `.0` pages comes back after `.1` more have been stored, from `.2`; epochs of 100 pages.
    fn used_so(comes_back: &[(usize, usize, Source)]) -> Workingset {
        let set = fresh(100);
        waits(&set, 10_000, 150_000);
        for &(one_in, after, from) in comes_back {
            run(&set, 8000, one_in, after, from);
        }
        set
    }

    const HELD: Held = Held {
        stored: 1000,
        ram: 500,
    };

    #[test]
    fn touches_just_beyond_the_edge_want_a_larger_tier() {
        assert_eq!(used_so(&[(2, 1050, Source::File)]).trend(HELD, 50), Trend::Grow);
        let out_of_reach = used_so(&[(2, 3000, Source::File)]);
        assert_eq!(out_of_reach.trend(HELD, 50), Trend::Stay);
    }

    /// A tier once grew on and on though it held all there was.
    #[test]
    fn a_tier_that_holds_everything_does_not_grow() {
        let set = used_so(&[(2, 1050, Source::Compressed)]);
        assert_ne!(set.trend(HELD, 50), Trend::Grow);
    }

    #[test]
    fn touches_of_what_left_just_now_want_more_resident_pages() {
        let set = used_so(&[(2, 0, Source::Compressed)]);
        assert_eq!(set.trend(HELD, 50), Trend::Shrink);
    }

    #[test]
    fn a_tier_whose_edge_is_busy_keeps_its_size() {
        let set = used_so(&[(8, 0, Source::Compressed), (8, 990, Source::Compressed)]);
        let edge = set.edge(1000, 100, set.remembered()).0;
        assert!((1000..1200).contains(&edge), "{edge}");
        let held = Held {
            stored: 900,
            ram: 450,
        };
        assert_eq!(set.trend(held, 50), Trend::Stay);
    }

    #[test]
    fn survivors_make_the_edge_lie_farther() {
        let set = fresh(100);
        run(&set, 1000, 2, 0, Source::Compressed);
        assert_eq!(set.edge(100, 100, 1000), (100, 1000));
        assert_eq!(set.edge(150, 100, 1000), (200, 500));
        assert_eq!(set.edge(1 << 40, 100, 1000).0, 100 * DISTANCES as u64);
    }

    #[test]
    fn half_is_forgotten() {
        let set = fresh(10);
        run(&set, 100, 1, 0, Source::Compressed);
        set.forget_half();
        assert_eq!(
            (set.remembered(), set.touches[0][0].load(Ordering::Relaxed)),
            (50, 50)
        );
    }
}
