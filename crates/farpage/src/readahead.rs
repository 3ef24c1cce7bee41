//! Asking the readahead policy: what this process remembers of its faults, and how a fault is described to it.
//!
//! The decisions are `farpage_core::readahead`; here are their memory and the facts they need. All of it is hints made of
//! atomics: threads race for it, and a fault in the middle of another one's update sees a worse window at most.

use core::sync::atomic::{AtomicU64, Ordering};

use farpage_core::range_map::Range;
use farpage_core::readahead::{
    Cluster, Fault, Memory, PAGE_CLUSTER_DEFAULT, Policy, Slot, Streams, WINDOW_MAX, Window,
};

use crate::mm::Mm;
use crate::swapin::NOW_MAX;
use crate::sys;
use crate::tiers;

/// Words of the vma policy, found by a region's first page.
const REGION_WORDS: usize = 256;
/// A window is at most this part of the limit.
const LIMIT_SHARE: i64 = 64;
/// One page of so many that are mapped ahead of their touch waits in a frame instead, to be counted.
pub const SAMPLE_ONE_IN: u32 = 64;

/// What one process remembers.
pub struct Readahead {
    cluster: Cluster,
    streams: Streams,
    regions: [AtomicU64; REGION_WORDS],
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
            cluster: Cluster::new(),
            streams: Streams::new(),
            regions: [const { AtomicU64::new(0) }; REGION_WORDS],
            windows: AtomicU64::new(0),
        }
    }

    fn memory(&self) -> Memory<'_> {
        Memory {
            cluster: &self.cluster,
            streams: &self.streams,
            page_cluster: PAGE_CLUSTER_DEFAULT,
        }
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
}

/// The window to fetch for a miss, whose content is in `slot`.
pub fn miss(mm: &Mm, touch: Touch, slot: u32) -> Window {
    let policy = policy(mm);
    if policy == Policy::None {
        return Window::single(touch.page);
    }
    let own = &mm.readahead;
    let place = (policy == Policy::Cluster)
        .then(|| tiers::block_of(mm, slot))
        .flatten()
        .map(|(area, block)| Slot {
            slot: block,
            first: 0,
            end: mm.header().area[usize::from(area)].blocks.load(Ordering::Relaxed),
        });
    let window = policy.miss(&describe(mm, touch, place), &own.memory());
    mm.header().windows.add(window.len);
    window
}

/// Notes a touch of a page that waited in a frame (`marked`: since readahead brought it); perhaps a window to fetch ahead.
pub fn hit(mm: &Mm, touch: Touch, marked: bool) -> Option<Window> {
    let policy = policy(mm);
    if policy == Policy::None || mm.who.is_alone(sys::now_ns) {
        return None;
    }
    let window = policy.hit(&describe(mm, touch, None), &mm.readahead.memory(), marked)?;
    mm.header().windows.add(window.len);
    Some(window)
}

fn describe(mm: &Mm, Touch { page, offset }: Touch, slot: Option<Slot>) -> Fault<'_> {
    let around = mm
        .maps
        .lock()
        .as_ref()
        .and_then(|maps| maps.range_of(page))
        .unwrap_or(Range {
            start: page,
            end: page + 1,
        });
    let longest = if mm.who.is_alone(sys::now_ns) {
        NOW_MAX as u32
    } else {
        WINDOW_MAX
    };
    let most = (mm.header().limit.load(Ordering::Relaxed) / LIMIT_SHARE).clamp(1, i64::from(longest)) as u32;
    Fault {
        page,
        offset,
        thread: sys::gettid() as u32,
        lo: around.start,
        hi: around.end,
        word: &mm.readahead.regions[around.start as usize % REGION_WORDS],
        slot,
        budget: most,
        window_max: most,
    }
}
