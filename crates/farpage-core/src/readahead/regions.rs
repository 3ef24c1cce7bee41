//! Hits by region: those regions (mappings of processes) that most pages were read ahead in.
//!
//! A region is known by its process and its first page. The table is of fixed size and belongs to nobody, so a region's counts
//! outlive the process. Where a region's places are all taken, the one with the fewest pages read ahead makes way; so the counts
//! of a region with many are right from its first page on, and one with few may be missing or have lost its beginning. The counts
//! of *all* regions are kept apart from these and miss nothing.
//!
//! Threads race for a place by one exchange of its key. What is being added meanwhile to the counts of a region that makes way is
//! lost, or is counted to the next one: some pages of a batch.

use super::hits::{Estimate, Hits};
use crate::sync::{AtomicU64, Ordering};

/// Places for regions, and among how many of them, in a row, one region may be.
const PLACES: usize = 64;
const WAYS: usize = 8;

/// Which region: the number of its process, not 0, and its first page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionId {
    /// Of the process.
    pub pid: u32,
    /// Its first page.
    pub start: u32,
}

impl RegionId {
    const fn key(self) -> u64 {
        (self.pid as u64) << 32 | self.start as u64
    }

    const fn of_key(key: u64) -> Self {
        Self {
            pid: (key >> 32) as u32,
            start: key as u32,
        }
    }

    /// Its first place.
    const fn set(self) -> usize {
        (self.key().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % (PLACES / WAYS) * WAYS
    }
}

#[repr(C)]
#[derive(Debug, Default)]
struct Place {
    /// 0: free.
    key: AtomicU64,
    /// One past its last page, as it was last.
    end: AtomicU64,
    hits: Hits,
}

/// The table. All bytes zero is the initial state.
#[repr(C)]
#[derive(Debug)]
pub struct RegionHits {
    places: [Place; PLACES],
}

/// What was read ahead in one region.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RegionUse {
    /// Which.
    pub id: RegionId,
    /// One past its last page.
    pub end: u64,
    /// Pages read ahead in it, and hits.
    pub readahead: Estimate,
}

impl Default for RegionHits {
    fn default() -> Self {
        Self {
            places: core::array::from_fn(|_| Place::default()),
        }
    }
}

impl RegionHits {
    fn set_of(&self, id: RegionId) -> &[Place] {
        self.places
            .get(id.set()..)
            .and_then(|rest| rest.get(..WAYS))
            .unwrap_or(&[])
    }

    /// The counts of a region that has a place.
    #[must_use]
    pub fn find(&self, id: RegionId) -> Option<&Hits> {
        let mut places = self.set_of(id).iter();
        let found = places.find(|place| place.key.load(Ordering::Relaxed) == id.key());
        found.map(|place| &place.hits)
    }

    /// The counts of a region that ends before page `end`, which gets a place if it has none. None: others were faster.
    pub fn claim(&self, id: RegionId, end: u64) -> Option<&Hits> {
        let places = self.set_of(id);
        let pages = |place: &&Place| match place.key.load(Ordering::Relaxed) {
            0 => 0,
            _ => place.hits.counts().estimate().pages.saturating_add(1),
        };
        let has = |place: &&Place| place.key.load(Ordering::Relaxed) == id.key();
        let place = match places.iter().find(has) {
            Some(place) => place,
            None => {
                let place = places.iter().min_by_key(pages)?;
                let seen = place.key.load(Ordering::Relaxed);
                place
                    .key
                    .compare_exchange(seen, id.key(), Ordering::Relaxed, Ordering::Relaxed)
                    .ok()?;
                place.hits.reset();
                place
            }
        };
        place.end.store(end, Ordering::Relaxed);
        Some(&place.hits)
    }

    /// The regions in the table by pages read ahead, most first, as many as there is room for.
    pub fn most(&self, into: &mut [Option<RegionUse>]) {
        into.fill(None);
        let pages = |one: &Option<RegionUse>| one.map_or(0, |one| one.readahead.pages);
        for place in &self.places {
            let key = place.key.load(Ordering::Relaxed);
            let mut found = (key != 0).then(|| RegionUse {
                id: RegionId::of_key(key),
                end: place.end.load(Ordering::Relaxed),
                readahead: place.hits.counts().estimate(),
            });
            for told in into.iter_mut() {
                if pages(told) < pages(&found) {
                    core::mem::swap(told, &mut found);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(start: u32) -> RegionId {
        RegionId { pid: 7, start }
    }

    fn most<const N: usize>(table: &RegionHits) -> [Option<RegionUse>; N] {
        let mut most = [None; N];
        table.most(&mut most);
        most
    }

    #[test]
    fn regions_are_counted_apart() {
        let table = RegionHits::default();
        assert!(table.find(id(512)).is_none());
        table.claim(id(512), 1000).expect("a place").add_marked(10);
        let other = RegionId { pid: 8, start: 512 };
        table.claim(other, 600).expect("a place").add_marked(3);
        table.find(id(512)).expect("found").touched(false);
        // It has grown since.
        table.claim(id(512), 2000).expect("its place").add_marked(2);
        let [Some(one), Some(two), None] = most(&table) else {
            panic!("two regions");
        };
        assert_eq!((one.id, one.end), (id(512), 2000));
        assert_eq!((one.readahead.pages, one.readahead.hits), (12, 1.0));
        assert_eq!((two.id, two.readahead.pages, two.readahead.hits), (other, 3, 0.0));
    }

    #[test]
    fn the_one_with_fewest_pages_makes_way() {
        let table = RegionHits::default();
        // Many more regions than places; one of them has most of the pages and comes again and again.
        for nth in 0..10_000 {
            table.claim(id(5), 6).expect("a place").add_marked(2);
            table.claim(id(100 + nth), 20_000).expect("a place").add_marked(1);
        }
        let [Some(one), Some(two)] = most(&table) else {
            panic!("as many as wanted");
        };
        assert_eq!((one.id, one.readahead.pages), (id(5), 20_000));
        assert_eq!(two.readahead.pages, 1, "the counts of one that made way are gone");
    }

    #[test]
    fn those_with_most_are_told_first() {
        let table = RegionHits::default();
        for pages in [3, 9, 1, 7, 5] {
            table
                .claim(id(pages), 100)
                .expect("a place")
                .add_marked(u64::from(pages));
        }
        let told = most::<3>(&table).map(|one| one.map(|one| one.readahead.pages));
        assert_eq!(told, [Some(9), Some(7), Some(5)]);
    }
}
