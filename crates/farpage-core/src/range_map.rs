//! Sorted, disjoint, merged page ranges in an array of fixed size.
//!
//! Used for what a process has mapped, pinned or set aside: few ranges, often asked, changed inside
//! interposed calls where nothing may allocate. The caller gives the array; when a change would need more
//! entries than it has, the change is refused whole. Invariants, for the first `len` entries:
//!
//! ```text
//! start[i] < end[i]          no empty range
//! end[i]   < start[i + 1]    sorted, disjoint, and neighbours that touch are one range
//! ```
//!
//! Page numbers are in units of [`crate::units::PAGE_SIZE`], and ranges are half open.

/// Pages `start` to `end - 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Range {
    /// First page.
    pub start: u64,
    /// One past the last page.
    pub end: u64,
}

impl Range {
    /// What unused entries hold.
    pub const EMPTY: Self = Self { start: 0, end: 0 };

    /// Number of pages.
    #[must_use]
    pub const fn pages(self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// The array has no room for the change; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl core::fmt::Display for Full {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("range map is full")
    }
}

impl core::error::Error for Full {}

/// A set of pages.
#[derive(Debug)]
pub struct RangeMap<'a> {
    entries: &'a mut [Range],
    len: usize,
}

impl<'a> RangeMap<'a> {
    /// An empty set that can hold `entries.len()` ranges.
    #[must_use]
    pub const fn new(entries: &'a mut [Range]) -> Self {
        Self { entries, len: 0 }
    }

    /// The ranges in use, ascending.
    #[must_use]
    pub fn ranges(&self) -> &[Range] {
        self.entries.get(..self.len).unwrap_or(&[])
    }

    /// The ranges in use, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range> + '_ {
        self.ranges().iter().copied()
    }

    /// Number of ranges.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether no page is in the set.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of pages in the set.
    #[must_use]
    pub fn total_pages(&self) -> u64 {
        self.iter().map(Range::pages).sum()
    }

    /// Index of the first range that ends after `page`.
    fn first_after(&self, page: u64) -> usize {
        self.ranges().partition_point(|r| r.end <= page)
    }

    /// Whether the page is in the set.
    #[must_use]
    pub fn contains(&self, page: u64) -> bool {
        self.ranges()
            .get(self.first_after(page))
            .is_some_and(|r| r.start <= page)
    }

    /// The range that holds the page.
    #[must_use]
    pub fn range_of(&self, page: u64) -> Option<Range> {
        let range = self.ranges().get(self.first_after(page))?;
        (range.start <= page).then_some(*range)
    }

    /// Whether any page of `[start, end)` is in the set.
    #[must_use]
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        start < end
            && self
                .ranges()
                .get(self.first_after(start))
                .is_some_and(|r| r.start < end)
    }

    /// Whether every page of `[start, end)` is in the set; true for an empty range.
    #[must_use]
    pub fn covers(&self, start: u64, end: u64) -> bool {
        start >= end
            || self
                .ranges()
                .get(self.first_after(start))
                .is_some_and(|r| r.start <= start && end <= r.end)
    }

    /// The lowest multiple of `align_pages` in `[lo, hi)` from which `pages` pages below `hi` are all outside
    /// the set. None if there is none, or if `pages` is 0; an alignment of 0 counts as 1.
    #[must_use]
    pub fn find_gap(&self, lo: u64, hi: u64, pages: u64, align_pages: u64) -> Option<u64> {
        if pages == 0 {
            return None;
        }
        let align = align_pages.max(1);
        let mut start = lo.checked_next_multiple_of(align)?;
        for range in self.ranges().get(self.first_after(start)..)? {
            if start.checked_add(pages)? <= range.start {
                break;
            }
            start = start.max(range.end.checked_next_multiple_of(align)?);
        }
        (start.checked_add(pages)? <= hi).then_some(start)
    }

    /// Adds the pages `[start, end)`, merging with what they overlap or touch; nothing for an empty range.
    ///
    /// # Errors
    /// [`Full`] if one range too many would be needed.
    pub fn insert(&mut self, start: u64, end: u64) -> Result<(), Full> {
        if start >= end {
            return Ok(());
        }
        let from = self.ranges().partition_point(|r| r.end < start);
        let to = self.ranges().partition_point(|r| r.start <= end);
        let merged = self.ranges().get(from..to).unwrap_or(&[]);
        let start = merged.first().map_or(start, |r| r.start.min(start));
        let end = merged.last().map_or(end, |r| r.end.max(end));
        self.splice(from, to, [Range { start, end }, Range::EMPTY])
    }

    /// Removes all, whatever state an interrupted change has left.
    pub const fn clear(&mut self) {
        self.len = 0;
    }

    /// Removes the pages `[start, end)`, splitting a range that reaches beyond both; nothing for an empty
    /// range.
    ///
    /// # Errors
    /// [`Full`] if a split needs one range too many.
    pub fn remove(&mut self, start: u64, end: u64) -> Result<(), Full> {
        if start >= end {
            return Ok(());
        }
        let from = self.first_after(start);
        let to = self.ranges().partition_point(|r| r.start < end);
        let (Some(first), Some(last)) = (self.ranges().get(from), self.ranges().get(to.wrapping_sub(1)))
        else {
            return Ok(());
        };
        if from >= to {
            return Ok(());
        }
        let left = Range {
            start: first.start,
            end: start,
        };
        let right = Range {
            start: end,
            end: last.end,
        };
        self.splice(from, to, [left, right])
    }

    /// Replaces the entries `from..to` by those of `new` that are not empty.
    fn splice(&mut self, from: usize, to: usize, new: [Range; 2]) -> Result<(), Full> {
        let wanted = new.iter().filter(|r| r.pages() > 0).count();
        let len = self.len - (to - from) + wanted;
        if len > self.entries.len() {
            return Err(Full);
        }
        self.entries.copy_within(to..self.len, from + wanted);
        let places = self.entries.iter_mut().skip(from);
        for (place, range) in places.zip(new.into_iter().filter(|r| r.pages() > 0)) {
            *place = range;
        }
        self.len = len;
        Ok(())
    }

    /// Whether the invariants hold; walks all ranges.
    #[must_use]
    pub fn check(&self) -> bool {
        let ranges = self.ranges();
        ranges.len() == self.len
            && ranges.iter().all(|r| r.start < r.end)
            && ranges
                .windows(2)
                .all(|pair| matches!(pair, [a, b] if a.end < b.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn pairs(map: &RangeMap<'_>) -> Vec<(u64, u64)> {
        assert!(map.check());
        map.iter().map(|r| (r.start, r.end)).collect()
    }

    #[test]
    fn merges_and_splits() {
        let mut room = [Range::EMPTY; 3];
        let mut map = RangeMap::new(&mut room);
        map.insert(10, 20).unwrap();
        map.insert(30, 40).unwrap();
        map.insert(20, 25).unwrap();
        assert_eq!(pairs(&map), [(10, 25), (30, 40)]);
        map.insert(25, 30).unwrap();
        assert_eq!(pairs(&map), [(10, 40)]);
        map.remove(15, 20).unwrap();
        map.remove(30, 35).unwrap();
        assert_eq!(pairs(&map), [(10, 15), (20, 30), (35, 40)]);
        assert_eq!((map.total_pages(), map.len()), (20, 3));
        assert_eq!(map.insert(50, 60), Err(Full));
        assert_eq!(map.remove(21, 22), Err(Full));
        assert_eq!(pairs(&map), [(10, 15), (20, 30), (35, 40)], "refused whole");
        map.remove(16, 19).unwrap();
        map.insert(5, 5).unwrap();
        map.remove(0, u64::MAX).unwrap();
        assert!(map.is_empty());
        map.remove(0, 1).unwrap();
        assert_eq!(RangeMap::new(&mut []).insert(0, 1), Err(Full));
    }

    #[test]
    fn answers_at_the_edges() {
        let mut room = [Range::EMPTY; 4];
        let mut map = RangeMap::new(&mut room);
        map.insert(10, 20).unwrap();
        map.insert(21, 30).unwrap();
        assert!(
            map.contains(10)
                && map.contains(19)
                && !map.contains(20)
                && map.contains(21)
                && !map.contains(30)
        );
        assert!(map.overlaps(0, 11) && !map.overlaps(0, 10) && !map.overlaps(20, 21) && map.overlaps(20, 22));
        assert!(map.covers(10, 20) && !map.covers(10, 22) && map.covers(5, 5) && !map.overlaps(15, 15));
        assert_eq!(map.find_gap(0, 100, 1, 1), Some(0));
        assert_eq!(map.find_gap(10, 100, 1, 1), Some(20));
        assert_eq!(map.find_gap(10, 100, 2, 1), Some(30));
        assert_eq!(map.find_gap(1, 100, 9, 8), Some(32), "8 + 9 runs into 10");
        assert_eq!(map.find_gap(1, 40, 9, 8), None);
        assert_eq!(map.find_gap(20, 21, 1, 0), Some(20));
        assert_eq!(map.find_gap(0, 100, 0, 1), None);
        assert_eq!(map.find_gap(u64::MAX, u64::MAX, 2, 2), None);
    }
}
