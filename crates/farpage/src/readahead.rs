//! Asking the readahead policy: what this process remembers of its faults, and how a fault is described to it.
//!
//! The decisions are `farpage_core::readahead`; here are their memory and the facts they need. All of it is hints made of
//! atomics: threads race for it, and a fault in the middle of another one's update sees a worse window at most.

use core::sync::atomic::{AtomicU64, Ordering};

use farpage_core::range_map::Range;
use farpage_core::readahead::regions::RegionId;
use farpage_core::readahead::{Fault, Memory, Policy, Slot, Streams, WINDOW_MAX, Window};

use crate::history::OwnHistory;
use crate::mm::{CHUNK_PAGES, Mm};
use crate::pool::MANAGED_PAGES;
use crate::swapin::NOW_MAX;
use crate::sys;
use crate::tiers;

/// Words of the vma policy, found by a region's first page.
const REGION_WORDS: usize = 256;
/// Mapped ranges that were found last, by chunk: all threads share the lock of the map.
const RANGES: usize = 256;
/// Bits of a page's number; such a word has the first and the last one of a range.
const PAGE_BITS: u32 = MANAGED_PAGES.trailing_zeros();
/// A window is at most this part of the limit.
const LIMIT_SHARE: i64 = 64;
/// One page of so many that are mapped ahead of their touch waits in a frame instead, to be counted.
pub const SAMPLE_ONE_IN: u32 = 64;

/// What one process remembers. (Of the policy `cluster` the tree has one history, as the kernel has.)
pub struct Readahead {
    streams: Streams,
    pub history: OwnHistory,
    regions: [AtomicU64; REGION_WORDS],
    ranges: [AtomicU64; RANGES],
    windows: AtomicU64,
}

impl Default for Readahead {
    fn default() -> Self {
        Readahead::new()
    }
}

impl Readahead {
    #[must_use]
    pub const fn new() -> Readahead {
        Readahead {
            streams: Streams::new(),
            history: OwnHistory::new(),
            regions: [const { AtomicU64::new(0) }; REGION_WORDS],
            ranges: [const { AtomicU64::new(0) }; RANGES],
            windows: AtomicU64::new(0),
        }
    }

    fn memory<'a>(&'a self, mm: &'a Mm) -> Memory<'a> {
        Memory {
            cluster: &mm.header().cluster,
            streams: &self.streams,
            history: self.history.get(),
            page_cluster: mm.header().page_cluster.load(Ordering::Relaxed),
        }
    }

    /// The mapped range that `page` lies in, as it was when it was last looked for there. It bounds windows, of which only what is
    /// swapped is brought in: an old one costs nothing but pages that are not read ahead.
    fn range_around(&self, mm: &Mm, page: u64) -> Range {
        let word = &self.ranges[(page / CHUNK_PAGES) as usize % RANGES];
        let seen = word.load(Ordering::Relaxed);
        let (start, last) = (seen >> PAGE_BITS, seen & (MANAGED_PAGES - 1));
        if seen != 0 && (start..=last).contains(&page) {
            return Range { start, end: last + 1 };
        }
        let found = mm.maps.lock().as_ref().and_then(|maps| maps.range_of(page));
        let Some(range) = found else {
            return Range {
                start: page,
                end: page + 1,
            };
        };
        word.store(range.start << PAGE_BITS | (range.end - 1), Ordering::Relaxed);
        range
    }

    /// The page that a record of the history names.
    pub fn recalled(&self, place: u64) -> Option<u64> {
        self.history
            .get()?
            .page(place)
            .filter(|page| *page < MANAGED_PAGES)
    }

    /// A number for a window, by which its sample is drawn.
    pub fn next_window(&self) -> u64 {
        self.windows.fetch_add(1, Ordering::Relaxed)
    }
}

/// The tree's policy.
pub fn policy(mm: &Mm) -> Policy {
    let index = mm.header().readahead.load(Ordering::Relaxed) as usize;
    Policy::ALL.get(index).copied().unwrap_or_default()
}

/// A touch of managed memory: its page, and where in it, in bytes (0 if that is not known).
#[derive(Clone, Copy)]
pub struct Touch {
    pub page: u64,
    pub offset: u32,
    /// A number of the thread's, if one is at hand: to ask for one is a system call.
    pub thread: Option<u32>,
}

impl Touch {
    /// Somewhere in a page, by who can be asked.
    pub fn of_page(page: u64) -> Touch {
        Touch {
            page,
            offset: 0,
            thread: None,
        }
    }
}

/// The window to fetch for a miss, whose content is in `slot`.
pub fn miss(mm: &Mm, touch: Touch, slot: u32) -> Window {
    let policy = policy(mm);
    if policy == Policy::None {
        return Window::single(touch.page);
    }
    let own = &mm.readahead;
    let by_place = matches!(policy, Policy::Cluster | Policy::Adaptive);
    let place = by_place
        .then(|| tiers::block_of(mm, slot))
        .flatten()
        .map(|(area, block)| Slot {
            slot: block,
            first: 0,
            end: mm.header().area[usize::from(area)].blocks.load(Ordering::Relaxed),
        });
    if policy == Policy::Adaptive && place.is_some() {
        own.history
            .fit(|| mm.entry().resident.load(Ordering::Relaxed).max(0) as u64);
    }
    let window = policy.miss(&describe(mm, touch, place), &own.memory(mm));
    mm.header().windows.add(window.len);
    window
}

/// Notes a touch of a page that waited in a frame (`marked`: since readahead brought it); perhaps a window to fetch ahead.
pub fn hit(mm: &Mm, touch: Touch, marked: bool) -> Option<Window> {
    let policy = policy(mm);
    // Alone, the adaptive policy has nobody who would fetch it; the kernel's policies count hits whoever fetches.
    if policy == Policy::None || (policy == Policy::Adaptive && mm.who.is_alone(sys::now_ns)) {
        return None;
    }
    let window = policy.hit(&describe(mm, touch, None), &mm.readahead.memory(mm), marked)?;
    mm.header().windows.add(window.len);
    Some(window)
}

/// Counts pages that readahead brought in: `mapped`, of which `sampled` wait in frames as a sample, and `marked`. One of them is `page`: a
/// batch is of one region, but where [`Policy::Cluster`] reaches over the end of one.
pub fn count_ahead(mm: &Mm, page: u64, (mapped, sampled): (u64, u64), marked: u64) {
    if mapped + marked == 0 {
        return;
    }
    let header = mm.header();
    let (id, end) = region_id(mm, page);
    let of_region = header.region_hits.claim(id, end);
    for hits in of_region.into_iter().chain([&header.hits]) {
        hits.add_mapped(mapped, sampled);
        hits.add_marked(marked);
    }
}

/// Counts the first touch of a page that readahead brought and that waited in a frame.
pub fn count_touch(mm: &Mm, page: u64, of_sample: bool) {
    let header = mm.header();
    let of_region = header.region_hits.find(region_id(mm, page).0);
    for hits in of_region.into_iter().chain([&header.hits]) {
        hits.touched(of_sample);
    }
}

/// The region of a page, and where it ends.
fn region_id(mm: &Mm, page: u64) -> (RegionId, u64) {
    let around = mm.readahead.range_around(mm, page);
    let id = RegionId {
        pid: mm.entry().pid.load(Ordering::Relaxed) as u32,
        start: around.start as u32,
    };
    (id, around.end)
}

/// Which word is a region's: mappings begin at multiples of large powers of two, so all bits of its first page count.
fn region_of(start: u64) -> usize {
    (start.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % REGION_WORDS
}

fn describe(mm: &Mm, Touch { page, offset, thread }: Touch, slot: Option<Slot>) -> Fault<'_> {
    let around = mm.readahead.range_around(mm, page);
    let longest = if mm.who.is_alone(sys::now_ns) {
        NOW_MAX as u32
    } else {
        WINDOW_MAX
    };
    let most = (mm.header().last_limit() / LIMIT_SHARE).clamp(1, i64::from(longest)) as u32;
    Fault {
        page,
        offset,
        thread: thread.unwrap_or_else(|| sys::gettid() as u32),
        lo: around.start,
        hi: around.end,
        word: &mm.readahead.regions[region_of(around.start)],
        slot,
        budget: most,
        window_max: most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regions of 2 MiB and more once shared one word of the vma policy, and with it each other's history.
    #[test]
    fn regions_at_round_addresses_have_words_of_their_own() {
        let words: std::collections::BTreeSet<_> = (0..64).map(|nth| region_of(nth * 512)).collect();
        assert!(words.len() > 50, "{} words for 64 regions", words.len());
    }
}
