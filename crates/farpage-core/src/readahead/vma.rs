//! Readahead in virtual order, one memory per region: the kernel's present default.
//!
//! Written from a description of `mm/swap_state.c` (Linux 6.18). A window is twofold: its *size*
//! ([`super::window`]) grows with the number of readahead pages that were touched since the last miss and
//! never shrinks faster than by half; its *place* follows the direction of the last event. Because every hit
//! in the swap cache moves the remembered page on, the first miss after a window was used up looks adjacent,
//! and a stream keeps reading ahead of itself. Per region all memory is one word, so that threads race for it
//! without a lock: a lost update costs a worse window, never a wrong page.
//!
//! ```text
//! 63                                  12 11         6 5          0
//! +-------------------------------------+------------+------------+
//! | page of the last event              | window     | hits       |     0 = fresh region
//! +-------------------------------------+------------+------------+
//! ```
//!
//! Invariant: window and hits saturate at 63; a fresh word reads as 4 hits, so a region's first window is the
//! greatest.

use super::{Direction, Fault, Window, window};
use crate::sync::Ordering;
use crate::units::{HUGE_SIZE, PAGE_SHIFT, PAGE_SIZE};

const FIELD_BITS: u32 = 6;
const FIELD_MAX: u64 = (1 << FIELD_BITS) - 1;
const FRESH_HITS: u32 = 4;
const HUGE_PAGES: u64 = (HUGE_SIZE / PAGE_SIZE) as u64;
/// The greatest window is 32 pages, whatever `page_cluster` says.
pub(super) const ORDER_MAX: u32 = 5;

/// The window for a miss: at most `2^page_cluster` pages and 32. Updates the region's word.
#[must_use]
pub fn miss(fault: &Fault<'_>, page_cluster: u32) -> Window {
    let most = (1 << page_cluster.min(ORDER_MAX)).min(fault.most());
    if most <= 1 || !fault.is_inside() {
        return Window::single(fault.page);
    }
    let word = RaWord(fault.word.load(Ordering::Relaxed));
    let (next, win) = word.miss(fault.page, most);
    fault.word.store(next.0, Ordering::Relaxed);
    let (prev, ..) = word.unpack();
    // A window that decays from before the limit was lowered may exceed it.
    let (first, len) = vma_range(prev, fault.page, win.min(most), fault.lo, fault.hi);
    Window {
        len,
        direction: match fault.page.wrapping_sub(prev) {
            1 => Direction::Forward,
            u64::MAX => Direction::Backward,
            _ => Direction::Around,
        },
        ..Window::single(first)
    }
}

/// A hit: the region's word moves on, and counts it if `marked`.
pub fn hit(fault: &Fault<'_>, marked: bool) {
    let word = RaWord(fault.word.load(Ordering::Relaxed));
    fault
        .word
        .store(word.hit(fault.page, marked).0, Ordering::Relaxed);
}

/// The pages to read for a miss at `page`, as (first page, number of pages), when the last event was at
/// `prev` and the region is `[lo, hi)` in pages: forward after an ascending step, backward after a descending
/// one, else around the page; clamped to the region and to the huge page that holds `page`. Always contains
/// `page`, even if that lies outside the region.
#[must_use]
pub const fn vma_range(prev: u64, page: u64, win: u32, lo: u64, hi: u64) -> (u64, u32) {
    let win = win as u64;
    if win <= 1 || page < lo || page >= hi {
        return (page, 1);
    }
    let (before, after) = if page.wrapping_sub(prev) == 1 {
        (0, win)
    } else if prev.wrapping_sub(page) == 1 {
        (win - 1, 1)
    } else {
        ((win - 1) / 2, win - (win - 1) / 2)
    };
    let block = page - page % HUGE_PAGES;
    let block_end = block.saturating_add(HUGE_PAGES);
    let start = later(later(lo, block), page.saturating_sub(before));
    let end = earlier(earlier(hi, block_end), page.saturating_add(after));
    (start, (end - start) as u32)
}

const fn later(a: u64, b: u64) -> u64 {
    if a > b { a } else { b }
}

const fn earlier(a: u64, b: u64) -> u64 {
    if a < b { a } else { b }
}

/// The readahead memory of one region.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RaWord(pub u64);

impl RaWord {
    /// The word of a region that has seen no event.
    pub const FRESH: Self = Self(0);

    /// Packs the page number (52 bits) of an event, the window and the hits; the latter two saturate at 63.
    #[must_use]
    pub const fn pack(page: u64, win: u32, hits: u32) -> Self {
        let win = earlier(win as u64, FIELD_MAX);
        let hits = earlier(hits as u64, FIELD_MAX);
        Self((page << PAGE_SHIFT) | (win << FIELD_BITS) | hits)
    }

    /// Page, window and hits of the last event; a fresh word reads as (0, 0, 4).
    #[must_use]
    pub const fn unpack(self) -> (u64, u32, u32) {
        if self.0 == 0 {
            return (0, 0, FRESH_HITS);
        }
        let win = (self.0 >> FIELD_BITS) & FIELD_MAX;
        (self.0 >> PAGE_SHIFT, win as u32, (self.0 & FIELD_MAX) as u32)
    }

    /// A miss at `page`: the next word, and the window in pages to use now.
    #[must_use]
    pub const fn miss(self, page: u64, max_pages: u32) -> (Self, u32) {
        let (prev, prev_win, hits) = self.unpack();
        let win = window(prev, page, hits, max_pages, prev_win);
        (Self::pack(page, win, 0), win)
    }

    /// A fault at `page` that found it in the swap cache; `marked` says that readahead had brought it. The
    /// page is remembered in both cases.
    #[must_use]
    pub const fn hit(self, page: u64, marked: bool) -> Self {
        let (_, win, hits) = self.unpack();
        Self::pack(page, win, hits + marked as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::AtomicU64;

    #[test]
    fn ranges_by_hand() {
        let (lo, hi) = (0, 1 << 20);
        assert_eq!(vma_range(1000, 1001, 8, lo, hi), (1001, 8), "forward");
        assert_eq!(vma_range(1001, 1000, 8, lo, hi), (993, 8), "backward");
        assert_eq!(
            vma_range(5, 1000, 8, lo, hi),
            (997, 8),
            "around: three before, four after"
        );
        assert_eq!(vma_range(5, 1000, 1, lo, hi), (1000, 1));
        assert_eq!(vma_range(5, 1000, 0, lo, hi), (1000, 1));
        assert_eq!(vma_range(5, 1000, 8, 999, 1002), (999, 3), "region");
        assert_eq!(
            vma_range(1022, 1023, 8, lo, hi),
            (1023, 1),
            "huge page ends at 1024"
        );
        assert_eq!(
            vma_range(1025, 1024, 8, lo, hi),
            (1024, 1),
            "huge page begins at 1024"
        );
        assert_eq!(vma_range(9, 1, 8, lo, hi), (0, 6), "front of memory");
        assert_eq!(vma_range(9, 7, 8, 10, 20), (7, 1), "outside");
    }

    #[test]
    fn a_stream_keeps_its_window() {
        let (word, win) = RaWord::FRESH.miss(1000, 8);
        assert_eq!(
            (word, win),
            (RaWord::pack(1000, 8, 0), 8),
            "4 hits give the greatest window"
        );
        assert_eq!(vma_range(0, 1000, win, 0, 4096), (997, 8));
        let word = (1001..=1004).fold(word, |word, page| word.hit(page, true));
        assert_eq!(word.unpack(), (1004, 8, 4));
        let (word, win) = word.miss(1005, 8);
        assert_eq!((win, word.unpack()), (8, (1005, 8, 0)));
        assert_eq!(
            word.hit(1006, false).unpack(),
            (1006, 8, 0),
            "unmarked moves the page, not the hits"
        );
    }

    /// `page_cluster` bounds the window: what the hits ask for is 2^N at most, and never more than 32.
    #[test]
    fn page_cluster_by_hand() {
        for (hits, page_cluster, len) in [
            (0, 3, 1),
            (63, 0, 1),
            (63, 1, 2),
            (63, 2, 4),
            (63, 3, 8),
            (7, 4, 16),
            (6, 4, 8),
            (63, 5, 32),
            (63, 9, 32),
        ] {
            let word = AtomicU64::new(RaWord::pack(1, 0, hits).0);
            let window = miss(&fault(1000, &word), page_cluster);
            assert_eq!(window.len, len, "{hits} hits, page_cluster {page_cluster}");
        }
        let word = AtomicU64::new(0);
        assert_eq!(miss(&fault(1000, &word), 5).len, 8, "a fresh region has 4 hits");
    }

    fn fault(page: u64, word: &AtomicU64) -> Fault<'_> {
        Fault {
            page,
            offset: 0,
            thread: 1,
            lo: 0,
            hi: 4096,
            word,
            slot: None,
            budget: 4096,
            window_max: 4096,
        }
    }

    fn miss_at(page: u64, word: &AtomicU64, page_cluster: u32) -> (u64, u32, Direction) {
        let window = miss(&fault(page, word), page_cluster);
        assert_eq!(
            (window.stride, window.order, window.marker),
            (1, crate::readahead::Order::Virtual, None)
        );
        (window.first, window.len, window.direction)
    }

    #[test]
    fn regions_by_hand() {
        let word = AtomicU64::new(0);
        // 4 hits give 8 pages, three before and four after.
        assert_eq!(miss_at(1000, &word, 3), (997, 8, Direction::Around));
        // Not used at all: 4, 2, 1 pages.
        assert_eq!(miss_at(2000, &word, 3), (1999, 4, Direction::Around));
        assert_eq!(miss_at(3000, &word, 3), (3000, 2, Direction::Around));
        assert_eq!(miss_at(100, &word, 3), (100, 1, Direction::Around));
        // A descending stream: 2 for the neighbour, then a hit gives 4 below the page.
        assert_eq!(miss_at(99, &word, 3), (98, 2, Direction::Backward));
        hit(&fault(98, &word), true);
        assert_eq!(miss_at(97, &word, 3), (94, 4, Direction::Backward));
        for page in [96, 95, 94] {
            hit(&fault(page, &word), true);
        }
        assert_eq!(miss_at(93, &word, 3), (86, 8, Direction::Backward));
        // A fresh region goes no further than its limit asks, nor beyond 32 pages.
        assert_eq!(miss_at(1000, &AtomicU64::new(0), 2), (999, 4, Direction::Around));
        let word = AtomicU64::new(RaWord::pack(999, 32, 40).0);
        assert_eq!(
            miss_at(1000, &word, 31),
            (1000, 24, Direction::Forward),
            "huge page ends at 1024"
        );
        let word = AtomicU64::new(RaWord::pack(511, 32, 40).0);
        assert_eq!(miss_at(512, &word, 31), (512, 32, Direction::Forward));
    }

    #[test]
    fn a_window_of_one_leaves_no_trace() {
        let word = AtomicU64::new(0);
        assert_eq!(miss(&fault(1000, &word), 0), Window::single(1000));
        assert_eq!(
            miss(&fault(5000, &word), 3),
            Window::single(5000),
            "outside the region"
        );
        let mut poor = fault(1000, &word);
        poor.budget = 0;
        assert_eq!(miss(&poor, 3), Window::single(1000));
        assert_eq!(word.load(Ordering::Relaxed), 0);
        poor.budget = 5;
        assert_eq!(miss(&poor, 3).len, 5);
    }

    #[test]
    fn fields_saturate() {
        assert_eq!(RaWord::pack(7, 100, 100).unpack(), (7, 63, 63));
        assert_eq!(RaWord::pack(7, 8, 63).hit(8, true).unpack(), (8, 8, 63));
        assert_eq!(RaWord::FRESH.unpack(), (0, 0, 4));
    }
}
