//! Huge pages: when 512 pages are better kept as one.
//!
//! A huge page costs 512 pages of the budget at once and moves as one: one state change, one I/O. It pays where all of it
//! is used, and throws out 511 pages for one where it is not. Nothing tells which of its pages are used while it is in place
//! (there is one accessed bit, and user space can't see it), so the decision is made before, from what can be seen:
//!
//! - a walk through memory touches the first page of an aligned range when all pages just before it are there, or the
//!   last one when all just behind it are. A sparse toucher of small pages does neither, wherever it lands;
//! - where those pages came as a huge one they prove nothing by being there (one touch in each 2 MiB would make all of them
//!   huge). Fresh memory that was walked through is not all zeros at its end, and no walk is faster than memory ([`WALK_NS`]);
//! - a range that came in page by page and had nearly all of its pages in when reclaim came to it was used as one. That
//!   earns it [`CREDIT`] returns as a whole, whichever page is touched first; then it is measured again;
//! - of the ranges that a walk is about to come to, one in [`MEASURED_ONE_IN`] comes in small pages, so that it can be seen whether the walk goes
//!   through it. Where it does not, it does not reach the next one either: nothing leads there as a whole any more.
//!
//! Only ranges that the program asked for (`madvise`) or all (`always`) come into question, never those that it declined,
//! and only in budgets that a huge page is a small part of.

/// Pages of a huge page.
pub const HUGE_PAGES: i64 = 512;
/// Pages that must be there just before (or behind) a range for a walk to be seen.
pub const WALK: u64 = 32;
/// No walk through a huge page takes less, in nanoseconds: 2 MiB in that time are 70 GB/s.
pub const WALK_NS: u64 = 30_000;
/// Returns as a whole that a range earns when it was found used as one.
pub const CREDIT: u32 = 4;
/// Resident pages, of 512, from which on a range counts as used as one.
pub const USED_AS_ONE: u32 = 448;
/// Of the ranges ahead of walks one in so many is measured.
pub const MEASURED_ONE_IN: u32 = 64;
/// A huge page is at most so small a part of the limit.
const LIMIT_SHARE: i64 = 32;

/// Which memory may be huge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Huge {
    /// None.
    #[default]
    Never,
    /// What the program asked for with `MADV_HUGEPAGE`.
    Madvise,
    /// All but what the program declined with `MADV_NOHUGEPAGE`.
    Always,
}

/// How what was a huge page, or could be one, comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SwapIn {
    /// As a whole where use of all of it is expected.
    #[default]
    Whole,
    /// The touched page first, the others after it, in small pages.
    Touched,
}

/// How a huge page leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SwapOut {
    /// As a whole: one place, one cluster, one write.
    #[default]
    Whole,
    /// Split first: it leaves as any 512 small pages do.
    SplitEarly,
    /// It takes its place and its cluster whole, and is written in small pages.
    SplitLate,
}

/// What the program said about a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Nothing, or different things about parts of it.
    None,
    /// `MADV_HUGEPAGE` for all of it.
    Huge,
    /// `MADV_NOHUGEPAGE` for a part of it.
    Small,
}

impl Huge {
    /// All, by the number that stands for them in the pool.
    pub const ALL: [Self; 3] = [Self::Never, Self::Madvise, Self::Always];

    /// Whether a range under `advice` may be huge.
    #[must_use]
    pub fn allows(self, advice: Advice) -> bool {
        match self {
            Self::Never => false,
            Self::Madvise => advice == Advice::Huge,
            Self::Always => advice != Advice::Small,
        }
    }
}

impl SwapOut {
    /// All, by the number that stands for them in the pool.
    pub const ALL: [Self; 3] = [Self::Whole, Self::SplitEarly, Self::SplitLate];
}

impl SwapIn {
    /// All, by the number that stands for them in the pool.
    pub const ALL: [Self; 2] = [Self::Whole, Self::Touched];
}

/// From this budget on there are huge pages: its limit, which is a little lower, is [`affordable`].
pub const BUDGET_MIN_BYTES: u64 = 72 << 20;

/// Whether huge pages are considered at all under a limit of so many pages.
#[must_use]
pub const fn affordable(limit: i64) -> bool {
    limit >= LIMIT_SHARE * HUGE_PAGES
}

/// How many huge pages are read ahead of a walk.
#[must_use]
pub const fn ahead(limit: i64) -> u64 {
    if limit >= 4 * LIMIT_SHARE * HUGE_PAGES {
        2
    } else {
        1
    }
}

/// The way a walk goes through memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walk {
    /// To higher addresses.
    Up,
    /// To lower ones.
    Down,
}

impl Walk {
    /// The first page of the range that a walk to `range` came from; none at the start of memory.
    #[must_use]
    pub const fn from(self, range: u64) -> Option<u64> {
        match self {
            Self::Up => range.checked_sub(HUGE_PAGES as u64),
            Self::Down => Some(range + HUGE_PAGES as u64),
        }
    }

    /// The walk that a touch of place `at` (of 512) of an absent range belongs to; `there` tells for a distance from the first page,
    /// which may be negative or beyond the range, whether that page is there.
    #[must_use]
    pub fn seen(at: u64, mut there: impl FnMut(i64) -> bool) -> Option<Self> {
        const LAST: u64 = HUGE_PAGES as u64 - 1;
        match at {
            0 if (1..=WALK as i64).all(|back| there(-back)) => Some(Self::Up),
            LAST if (1..=WALK as i64).all(|on| there(LAST as i64 + on)) => Some(Self::Down),
            _ => None,
        }
    }
}

/// Bits of a range's word that hold its credit.
pub const CREDIT_SHIFT: u32 = 24;
/// Mask of those bits.
pub const CREDIT_MASK: u32 = 0b111 << CREDIT_SHIFT;

/// The credit in a range's word.
#[must_use]
pub const fn credit(word: u32) -> u32 {
    (word & CREDIT_MASK) >> CREDIT_SHIFT
}

/// Bit of a range's word: it comes in small pages whatever leads to it, since its use is to be seen.
pub const MEASURED: u32 = 1 << 27;

/// The word with full credit; what was to be seen has been seen.
#[must_use]
pub const fn with_full_credit(word: u32) -> u32 {
    word & !(CREDIT_MASK | MEASURED) | CREDIT << CREDIT_SHIFT
}

/// The word with one return less; none if there was no credit.
#[must_use]
pub const fn spend(word: u32) -> Option<u32> {
    if credit(word) == 0 {
        None
    } else {
        Some(word - (1 << CREDIT_SHIFT))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn who_may_be_huge() {
        use Advice as A;
        let may = |huge: Huge| [A::None, A::Huge, A::Small].map(|advice| huge.allows(advice));
        assert_eq!(may(Huge::Never), [false, false, false]);
        assert_eq!(may(Huge::Madvise), [false, true, false]);
        assert_eq!(may(Huge::Always), [true, true, false]);
    }

    #[test]
    fn small_budgets_have_none() {
        assert!(!affordable(8 << 8) && !affordable(LIMIT_SHARE * HUGE_PAGES - 1));
        assert!(affordable(64 << 8));
        assert_eq!([64 << 8, 255 << 8, 256 << 8].map(ahead), [1, 1, 2]);
    }

    #[test]
    fn a_walk_is_seen_at_its_edge_only() {
        let all = |_| true;
        assert_eq!(Walk::seen(0, all), Some(Walk::Up));
        assert_eq!(Walk::seen(511, all), Some(Walk::Down));
        assert!((1..511).all(|at| Walk::seen(at, all).is_none()));
        assert_eq!(Walk::seen(0, |at| at != -32), None);
        assert_eq!(Walk::seen(511, |at| at != 511 + 32), None);
        assert_eq!(Walk::seen(0, |at| at < 0), Some(Walk::Up));
        assert_eq!(Walk::seen(511, |at| at > 511), Some(Walk::Down));
    }

    #[test]
    fn sparse_touchers_never_walk() {
        // Every k-th page, in order, k from 2 on: the page before is never there.
        for step in 2..600i64 {
            for touch in 0..2000i64 {
                let page = touch * step;
                let there = |at: i64| {
                    let absolute = page - page % 512 + at;
                    absolute >= 0 && absolute % step == 0 && absolute < page
                };
                assert_eq!(
                    Walk::seen((page % 512) as u64, there),
                    None,
                    "step {step} page {page}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn credit_keeps_to_its_bits(word: u32) {
            let full = with_full_credit(word);
            prop_assert_eq!(credit(full), CREDIT);
            prop_assert_eq!(full & !CREDIT_MASK, word & !(CREDIT_MASK | MEASURED));
            let mut left = full;
            for spent in 1..=CREDIT {
                left = spend(left).unwrap();
                prop_assert_eq!(credit(left), CREDIT - spent);
                prop_assert_eq!(left & !CREDIT_MASK, full & !CREDIT_MASK);
            }
            prop_assert_eq!(spend(left), None);
        }
    }
}
