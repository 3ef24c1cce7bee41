//! Which pages come with the one that is missed.
//!
//! A policy is asked at each fault and answers with a [`Window`]: data that the engine carries out. It may
//! skip any page of a window but the faulting one, and reads a page only after it has looked at the page's
//! own word. So nothing in here can cause a wrong page, only a useless one: the memory of the policies is
//! made of plain atomics that threads and processes race for, and a lost update costs a worse window.
//!
//! | policy | window | memory |
//! |---|---|---|
//! | `none` | the page itself | none |
//! | [`cluster`] | the aligned block of *slots* around it: Linux on rotating disks | one per tree (Linux: per machine) |
//! | [`vma`] | its *virtual* neighbours, up to 32 pages: Linux on the rest | a word per region |
//! | [`adaptive`] | the next pages of a *stream*, forward, backward or strided, up to 1024; where there is none, what was missed next the last time ([`recall`]) | a table and a history per process |
//!
//! Two events feed them. A **miss** is a fault on a page that has to be fetched. A **hit** is a fault on a
//! page that was fetched before it was touched (or is being fetched), or was evicted a moment ago and is
//! still in the swap cache. Pages that are mapped ahead of the touch cause neither; so that a stream is
//! noticed before it runs dry, a window may name a **marker**, a page to fetch but leave unmapped: touching
//! it is a hit that starts the next window ahead. How many pages were of use is counted in [`hits`],
//! and by region in [`regions`].

pub mod adaptive;
pub mod cluster;
pub mod hits;
pub mod recall;
pub mod regions;
mod size;
pub mod vma;

use core::fmt;
use core::ops::RangeInclusive;
use core::str::FromStr;

use crate::sync::AtomicU64;
use crate::units::PAGE_SIZE;

pub use adaptive::Streams;
pub use cluster::Cluster;
pub use recall::{History, Recall};
pub use size::window;
pub use vma::{RaWord, vma_range};

/// No window of any policy has more pages than this (4 MiB).
pub const WINDOW_MAX: u32 = 1024;
/// log2 of the kernel's greatest windows, unless set otherwise (`vm.page-cluster`).
pub const PAGE_CLUSTER_DEFAULT: u32 = 3;
/// The greatest of the cluster policy that makes a difference: from such a window come the pages that lie within 32 in memory, 64 in all.
pub const PAGE_CLUSTER_MAX: u32 = 6;

/// What decides on readahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// No readahead.
    None,
    /// Neighbours on the device.
    Cluster,
    /// Neighbours in memory, the kernel's way.
    Vma,
    /// Streams.
    #[default]
    Adaptive,
}

/// A text that names no policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownPolicy;

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such readahead policy; choose none, cluster, vma or adaptive")
    }
}

impl core::error::Error for UnknownPolicy {}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let named = Self::ALL.into_iter().find(|policy| policy.name() == text);
        named.ok_or(UnknownPolicy)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where the content of a page lies on its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The slot.
    pub slot: u64,
    /// The first slot that can hold a page: 1 where the device begins with a header of one slot.
    pub first: u64,
    /// The slots of the device end before this one.
    pub end: u64,
}

/// A fault, as far as readahead cares.
#[derive(Debug, Clone, Copy)]
pub struct Fault<'a> {
    /// The page touched.
    pub page: u64,
    /// Where in it, in bytes; 0 where that is not known.
    pub offset: u32,
    /// Tells threads apart; any stable value of the thread will do.
    pub thread: u32,
    /// First page of the region (mapping) that holds `page`.
    pub lo: u64,
    /// The region ends before this page.
    pub hi: u64,
    /// The region's own memory, zero for a new region; [`vma`] uses it.
    pub word: &'a AtomicU64,
    /// Where the page lies, if it is on a device; [`cluster`] uses it, and [`recall`] whether it is.
    pub slot: Option<Slot>,
    /// Pages that may be brought in now, the faulting one included.
    pub budget: u32,
    /// Greatest window in pages; above [`WINDOW_MAX`] means that.
    pub window_max: u32,
}

impl Fault<'_> {
    /// The most pages a window may have: at least 1.
    #[must_use]
    pub fn most(&self) -> u32 {
        self.window_max.min(WINDOW_MAX).min(self.budget).max(1)
    }

    /// Whether the page lies in its region.
    #[must_use]
    pub const fn is_inside(&self) -> bool {
        self.lo <= self.page && self.page < self.hi
    }
}

/// What the policies remember from fault to fault, apart from the region's word.
#[derive(Debug, Clone, Copy)]
pub struct Memory<'a> {
    /// Of the cluster policy: one for all.
    pub cluster: &'a Cluster,
    /// Of the adaptive policy: one per process.
    pub streams: &'a Streams,
    /// Of the adaptive policy too, if there is memory for it.
    pub history: Option<History<'a>>,
    /// log2 of the greatest window of the cluster and vma policies; see [`PAGE_CLUSTER_DEFAULT`].
    pub page_cluster: u32,
}

impl Policy {
    /// The greatest `page_cluster` that makes a difference; None where there is no such setting.
    #[must_use]
    pub const fn page_cluster_max(self) -> Option<u32> {
        match self {
            Self::Cluster => Some(PAGE_CLUSTER_MAX),
            Self::Vma => Some(vma::ORDER_MAX),
            Self::None | Self::Adaptive => None,
        }
    }

    /// Every policy.
    pub const ALL: [Self; 4] = [Self::None, Self::Cluster, Self::Vma, Self::Adaptive];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Cluster => "cluster",
            Self::Vma => "vma",
            Self::Adaptive => "adaptive",
        }
    }

    /// The window to fetch for a miss. It holds the faulting page (or its slot, or a record of it), at most [`Fault::most`]
    /// pages, and no page outside the region unless the faulting one is, or it is of records.
    #[must_use]
    pub fn miss(self, fault: &Fault<'_>, memory: &Memory<'_>) -> Window {
        match self {
            Self::None => Window::single(fault.page),
            Self::Cluster => memory.cluster.miss(fault, memory.page_cluster),
            Self::Vma => vma::miss(fault, memory.page_cluster),
            Self::Adaptive => {
                let window = memory.streams.miss(fault);
                let history = memory.history.filter(|_| window.len == 1 && fault.slot.is_some());
                history.and_then(|history| history.miss(fault)).unwrap_or(window)
            }
        }
    }

    /// Notes a hit; `marked` says that readahead had brought the page and this is its first touch. Returns a
    /// window to fetch ahead, which does not hold the faulting page, if it is time for one.
    #[must_use]
    pub fn hit(self, fault: &Fault<'_>, memory: &Memory<'_>, marked: bool) -> Option<Window> {
        match self {
            Self::None => None,
            Self::Cluster => {
                memory.cluster.hit(marked);
                None
            }
            Self::Vma => {
                vma::hit(fault, marked);
                None
            }
            Self::Adaptive => {
                let recalled = || memory.history.and_then(|history| history.hit(fault));
                memory.streams.hit(fault).or_else(recalled)
            }
        }
    }
}

/// Which way a window is expected to be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the lowest page up.
    Forward,
    /// From the highest page down.
    Backward,
    /// Nobody knows.
    Around,
}

/// What the numbers in a window are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Pages of the region.
    Virtual,
    /// Slots of the device.
    Device,
    /// Records of a [`History`].
    Recalled,
}

/// Pages (or slots, or records) to fetch: `first + i * stride` for steps `i` in `0..len`. In a walk by bytes a step is what the `reach` bytes
/// from byte `phase + i * (stride * 4096 + fraction)` of `first` on lie in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The lowest.
    pub first: u64,
    /// How many steps, at least 1.
    pub len: u32,
    /// The distance from one to the next, in pages; 0 only with a fraction.
    pub stride: u32,
    /// What the distance is more, in bytes, less than a page.
    pub fraction: u32,
    /// Where in `first` the lowest step lies, in bytes, less than a page.
    pub phase: u32,
    /// How many bytes a step reaches over, at least 1.
    pub reach: u32,
    /// The order of use.
    pub direction: Direction,
    /// Pages, slots or records.
    pub order: Order,
    /// The page to leave unmapped, if any: see the module. One of the window.
    pub marker: Option<u64>,
}

impl Window {
    /// The page alone.
    #[must_use]
    pub const fn single(page: u64) -> Self {
        Self {
            first: page,
            len: 1,
            stride: 1,
            fraction: 0,
            phase: 0,
            reach: 1,
            direction: Direction::Around,
            order: Order::Virtual,
            marker: None,
        }
    }

    /// `len` pages in a row from `first` on, without a marker.
    #[must_use]
    pub const fn row(first: u64, len: u32, direction: Direction) -> Self {
        let window = Self::single(first);
        Self {
            len,
            direction,
            ..window
        }
    }

    /// Whether it leaves no page of memory out between its first and its last.
    #[must_use]
    pub fn is_row(&self) -> bool {
        let distance = u64::from(self.stride) * PAGE_SIZE as u64 + u64::from(self.fraction);
        self.order == Order::Virtual && distance <= u64::from(self.reach).max(PAGE_SIZE as u64)
    }

    /// The first place of step `step` in the order of use.
    #[must_use]
    pub fn at(&self, step: u32) -> u64 {
        *self.step(step).start()
    }

    /// The places of step `step` in the order of use, at least one.
    #[must_use]
    pub fn step(&self, step: u32) -> RangeInclusive<u64> {
        self.nth(match self.direction {
            Direction::Backward => self.len.saturating_sub(1).saturating_sub(step),
            Direction::Forward | Direction::Around => step,
        })
    }

    /// The places of the `i`-th lowest step.
    fn nth(&self, i: u32) -> RangeInclusive<u64> {
        let (i, page) = (u64::from(i), PAGE_SIZE as u64);
        let begin = u64::from(self.phase) + i * u64::from(self.fraction);
        let base = self.first.saturating_add(i * u64::from(self.stride));
        let last = (begin + u64::from(self.reach.max(1)) - 1) / page;
        base.saturating_add(begin / page)..=base.saturating_add(last)
    }

    /// All steps' places, the lowest step first.
    pub fn places(self) -> impl Iterator<Item = u64> {
        (0..self.len).flat_map(move |i| self.nth(i))
    }

    /// Whether `place` is one of the window.
    #[must_use]
    pub fn holds(self, place: u64) -> bool {
        self.places().any(|held| held == place)
    }

    /// The page to leave unmapped when only those `fetched`, ascending, could be had: the marker, or the next of them in
    /// the order of use.
    pub fn marker_in(&self, mut fetched: impl DoubleEndedIterator<Item = u64>) -> Option<u64> {
        let marker = self.marker?;
        match self.direction {
            Direction::Backward => fetched.rev().find(|&page| page <= marker),
            Direction::Forward | Direction::Around => fetched.find(|&page| page >= marker),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;
    use std::vec::Vec;

    #[test]
    fn policies_read_back() {
        for policy in Policy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert_eq!("Adaptive".parse::<Policy>(), Err(UnknownPolicy));
        assert_eq!("".parse::<Policy>(), Err(UnknownPolicy));
        assert_eq!(Policy::default(), Policy::Adaptive);
    }

    #[test]
    fn a_row_leaves_no_page_out() {
        let walks = [
            (1, 0, 1, true),
            (0, 900, 8, true),
            (2, 0, 8192, true),
            (1, 4000, 1, false),
            (8, 0, 1, false),
        ];
        for (stride, fraction, reach, is_row) in walks {
            let window = Window {
                len: 9,
                stride,
                fraction,
                reach,
                ..Window::single(10)
            };
            let places: Vec<_> = window.places().collect();
            assert_eq!(window.is_row(), is_row, "{window:?}");
            assert_eq!(
                places.windows(2).all(|two| two[1] <= two[0] + 1),
                is_row,
                "{window:?}"
            );
        }
        let slots = Window {
            order: Order::Device,
            ..Window::row(10, 8, Direction::Forward)
        };
        assert!(!slots.is_row());
    }

    #[test]
    fn places_of_a_window() {
        let mut window = Window {
            first: 10,
            len: 4,
            stride: 3,
            direction: Direction::Forward,
            marker: Some(16),
            ..Window::single(10)
        };
        assert_eq!(window.places().collect::<Vec<_>>(), [10, 13, 16, 19]);

        assert!([10, 13, 16, 19].iter().all(|&page| window.holds(page)));
        assert!(![9, 11, 22].iter().any(|&page| window.holds(page)));
        assert_eq!((window.at(0), window.at(3)), (10, 19));
        let marker = |window: &Window, least, most| {
            let fetched: Vec<_> = window
                .places()
                .filter(|page| (least..=most).contains(page))
                .collect();
            window.marker_in(fetched.into_iter())
        };
        assert_eq!(marker(&window, 0, 99), Some(16));
        assert_eq!(marker(&window, 17, 99), Some(19));
        assert_eq!(marker(&window, 0, 15), None);
        window.direction = Direction::Backward;
        assert_eq!((window.at(0), window.at(3)), (19, 10));
        assert_eq!(marker(&window, 0, 99), Some(16));
        assert_eq!(marker(&window, 0, 15), Some(13));
        assert_eq!(marker(&window, 17, 99), None);
        window.marker = None;
        assert_eq!(marker(&window, 0, 99), None);
    }
}
