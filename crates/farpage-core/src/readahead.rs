//! How many pages to read around a fault, and which.
//!
//! This is the kernel's swap readahead as arithmetic. A window is twofold: its *size* grows with the number
//! of readahead pages that were touched since the last miss and never shrinks faster than by half; its
//! *place* follows the direction of the last event. Because every hit in the swap cache moves the remembered
//! page on, the first miss after a window was used up looks adjacent, and a stream keeps reading ahead of
//! itself. Per region all memory is one word, so that threads race for it without a lock: a lost update costs
//! a worse window, never a wrong page.
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

use crate::units::{HUGE_SIZE, PAGE_SHIFT, PAGE_SIZE};

const FIELD_BITS: u32 = 6;
const FIELD_MAX: u64 = (1 << FIELD_BITS) - 1;
const FRESH_HITS: u32 = 4;
const HUGE_PAGES: u64 = (HUGE_SIZE / PAGE_SIZE) as u64;

/// The next window in pages, from the page of the last event, the page missed now, the readahead pages
/// touched since the last miss, the greatest window allowed and the last window. A power of two if
/// `max_pages` and `prev_win` are; exceeds `max_pages` only while a `prev_win` of more than twice that
/// decays.
#[must_use]
pub const fn window(prev_page: u64, page: u64, hits: u32, max_pages: u32, prev_win: u32) -> u32 {
    let wanted = if hits > 0 {
        let pages = hits.saturating_add(2);
        let pages = if pages > 1 << 31 {
            1 << 31
        } else {
            pages.next_power_of_two()
        };
        if pages < 4 { 4 } else { pages }
    } else if page.abs_diff(prev_page) == 1 {
        2
    } else {
        1
    };
    let allowed = if wanted < max_pages { wanted } else { max_pages };
    let decayed = prev_win / 2;
    if allowed > decayed { allowed } else { decayed }
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

    #[test]
    fn windows_by_hand() {
        // (hits, expected) far from the last page, no last window, limit 32.
        for (hits, win) in [
            (0, 1),
            (1, 4),
            (2, 4),
            (3, 8),
            (6, 8),
            (7, 16),
            (14, 16),
            (15, 32),
            (63, 32),
        ] {
            assert_eq!(window(100, 500, hits, 32, 0), win, "hits {hits}");
        }
        assert_eq!(window(100, 101, 0, 8, 0), 2);
        assert_eq!(window(100, 99, 0, 8, 0), 2);
        assert_eq!(window(100, 100, 0, 8, 0), 1);
        assert_eq!(window(100, 102, 0, 8, 0), 1);
        assert_eq!(window(0, u64::MAX, 0, 8, 0), 1, "no wrap around zero");
        assert_eq!(window(0, 9, u32::MAX, u32::MAX, 0), 1 << 31);
    }

    #[test]
    fn window_decays_by_half() {
        let mut win = 8;
        let mut seen = std::vec::Vec::new();
        for _ in 0..4 {
            win = window(100, 500, 0, 8, win);
            seen.push(win);
        }
        assert_eq!(seen, [4, 2, 1, 1]);
        assert_eq!(window(100, 500, 0, 8, 32), 16, "decay wins over the limit");
    }

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

    #[test]
    fn fields_saturate() {
        assert_eq!(RaWord::pack(7, 100, 100).unpack(), (7, 63, 63));
        assert_eq!(RaWord::pack(7, 8, 63).hit(8, true).unpack(), (8, 8, 63));
        assert_eq!(RaWord::FRESH.unpack(), (0, 0, 4));
    }
}
