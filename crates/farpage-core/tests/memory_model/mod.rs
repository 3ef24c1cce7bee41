//! A naive memory for readahead policies: a set of pages, evicted first in first out, and what became of each
//! page that was read ahead. A page's slot has the page's number.

use std::collections::{BTreeMap, HashMap, VecDeque};

use farpage_core::readahead::hits::{Hits, is_sampled};
use farpage_core::readahead::{Cluster, Fault, Memory, Policy, Slot, Streams, Window};
use farpage_core::sync::AtomicU64;

/// What one thread did and what it got.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    pub touches: u64,
    /// Faults that had to fetch the page.
    pub misses: u64,
    /// Of those, the ones answered with the page alone.
    pub alone: u64,
    /// Faults on pages that were fetched, but not mapped.
    pub hit_faults: u64,
    /// Pages read ahead, and how many of them were touched before they were evicted.
    pub ahead: u64,
    pub used: u64,
    pub window_max: u32,
}

impl Tally {
    /// Pages read ahead that were touched, of those read ahead.
    pub fn accuracy(&self) -> f64 {
        self.used as f64 / (self.ahead as f64).max(1.0)
    }

    /// Pages read ahead in vain per miss.
    pub fn waste(&self) -> f64 {
        (self.ahead - self.used) as f64 / (self.misses as f64).max(1.0)
    }

    /// Fetched pages that were there before they were touched.
    pub fn coverage(&self) -> f64 {
        self.used as f64 / ((self.used + self.misses) as f64).max(1.0)
    }
}

#[derive(Clone, Copy)]
enum Page {
    Mapped,
    /// Read ahead for this thread and not touched yet; mapped or not.
    Ahead {
        by: u32,
        mapped: bool,
        sampled: bool,
    },
}

pub struct Model {
    pub policy: Policy,
    pub window_max: u32,
    pub lo: u64,
    pub hi: u64,
    pub tallies: BTreeMap<u32, Tally>,
    /// Each thread has a region's word of its own.
    pub own_regions: bool,
    /// Where in its page the next touch is, in bytes.
    pub offset: u32,
    /// Of the pages mapped ahead one in so many is left unmapped as a sample; none if None.
    pub one_in: Option<u32>,
    pub hits: Hits,
    windows: u64,
    capacity: usize,
    pages: HashMap<u64, Page>,
    fifo: VecDeque<u64>,
    words: HashMap<u32, AtomicU64>,
    cluster: Cluster,
    streams: Streams,
}

impl Model {
    pub fn new(policy: Policy, (lo, hi): (u64, u64), capacity: usize) -> Self {
        Self {
            policy,
            window_max: 1024,
            lo,
            hi,
            tallies: BTreeMap::new(),
            own_regions: false,
            offset: 0,
            one_in: None,
            hits: Hits::new(),
            windows: 0,
            capacity,
            pages: HashMap::new(),
            fifo: VecDeque::new(),
            words: HashMap::new(),
            cluster: Cluster::new(),
            streams: Streams::new(),
        }
    }

    pub fn tally(&self, thread: u32) -> Tally {
        self.tallies.get(&thread).cloned().unwrap_or_default()
    }

    fn mine(&mut self, thread: u32) -> &mut Tally {
        self.tallies.entry(thread).or_default()
    }

    /// A thread touches a page: nothing, a hit or a miss.
    pub fn touch(&mut self, thread: u32, page: u64) {
        self.mine(thread).touches += 1;
        match self.pages.get(&page).copied() {
            Some(Page::Mapped) => {}
            Some(Page::Ahead { by, mapped, sampled }) => {
                self.mine(by).used += 1;
                if !mapped {
                    self.hits.touched(sampled);
                }
                self.pages.insert(page, Page::Mapped);
                if !mapped {
                    self.mine(thread).hit_faults += 1;
                    let window = self.ask(thread, page, |policy, fault, memory| {
                        policy.hit(fault, memory, true)
                    });
                    if let Some(window) = window {
                        self.check(&window);
                        assert!(!window.holds(page), "{window:?} ahead of {page}");
                        self.fetch(thread, &window);
                    }
                }
            }
            None => self.miss(thread, page),
        }
    }

    fn miss(&mut self, thread: u32, page: u64) {
        let window = self.ask(thread, page, Policy::miss);
        self.check(&window);
        assert!(window.holds(page), "{window:?} for {page}");
        let tally = self.mine(thread);
        tally.misses += 1;
        tally.alone += u64::from(window.len == 1);
        self.insert(page, Page::Mapped);
        self.fetch(thread, &window);
    }

    fn ask<T>(&mut self, thread: u32, page: u64, ask: impl Fn(Policy, &Fault<'_>, &Memory<'_>) -> T) -> T {
        let fault = Fault {
            page,
            offset: self.offset,
            thread,
            lo: self.lo,
            hi: self.hi,
            word: self
                .words
                .entry(if self.own_regions { thread } else { 0 })
                .or_default(),
            slot: Some(Slot {
                slot: page,
                first: self.lo,
                end: self.hi,
            }),
            budget: self.capacity as u32 / 2,
            window_max: self.window_max,
        };
        let memory = Memory {
            cluster: &self.cluster,
            streams: &self.streams,
            history: None,
            page_cluster: 3,
        };
        ask(self.policy, &fault, &memory)
    }

    fn check(&self, window: &Window) {
        assert!(
            window.len >= 1 && window.len <= self.window_max.min(1024),
            "{window:?}"
        );
        let last = window.places().last().expect("not empty");
        assert!(window.first >= self.lo && last < self.hi, "{window:?}");
        assert!(window.marker.is_none_or(|page| window.holds(page)), "{window:?}");
    }

    /// Reads what is not there. Streams are mapped, but for the marker; the kernel's windows wait in the swap
    /// cache for the touch.
    fn fetch(&mut self, by: u32, window: &Window) {
        let wanted: Vec<_> = window
            .places()
            .filter(|page| !self.pages.contains_key(page))
            .collect();
        let marker = window.marker_in(wanted.iter().copied());
        let tally = self.mine(by);
        tally.ahead += wanted.len() as u64;
        tally.window_max = tally.window_max.max(window.len);
        let maps = self.policy == Policy::Adaptive;
        self.windows += 1;
        for page in wanted {
            let to_map = maps && marker != Some(page);
            let sampled = to_map && self.one_in.is_some_and(|n| is_sampled(page, self.windows, n));
            if to_map {
                self.hits.add_mapped(1, u64::from(sampled));
            } else {
                self.hits.add_marked(1);
            }
            let mapped = to_map && !sampled;
            self.insert(page, Page::Ahead { by, mapped, sampled });
        }
    }

    fn insert(&mut self, page: u64, state: Page) {
        if self.pages.insert(page, state).is_none() {
            self.fifo.push_back(page);
        }
        while self.fifo.len() > self.capacity {
            let oldest = self.fifo.pop_front().expect("over capacity");
            self.pages.remove(&oldest);
        }
    }
}

/// Numbers that look random: splitmix64.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % n
    }
}
