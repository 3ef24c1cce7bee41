//! Refault distances and what follows from them, beside a list of all that was ever stored.

use std::collections::BTreeMap;

use farpage_core::stats::Source;
use farpage_core::workingset::{Held, NO_STAMP, Trend, Workingset};

use super::Input;

/// Distances that are told apart, and after how many epochs a stamp is used again.
const DISTANCES: u64 = 128;
const STAMPS: u64 = 255;

#[derive(Debug, Clone, Copy)]
pub enum Event {
    /// So many pages are stored.
    Store(u64),
    /// A page is wanted again that was stored so many pages ago, or one without a stamp; it took so many ns.
    Refault {
        back: u64,
        from: Source,
        ns: u64,
    },
    ForgetHalf,
    /// What a step of so many pages is worth.
    Ask {
        held: Held,
        step: u64,
    },
}

impl Event {
    /// The next event that some bytes say; none at their end.
    pub fn read(input: &mut Input<'_>) -> Option<Self> {
        const SOURCES: [Source; 4] = [Source::Zero, Source::Cached, Source::Compressed, Source::File];
        let (what, n, m) = (input.byte()?, u64::from(input.word()?), u64::from(input.byte()?));
        Some(match what % 8 {
            0..=2 => Self::Store(n % 700),
            3..=5 => Self::Refault {
                // Often of late, at times from before the stamps went round.
                back: if m % 8 == 0 { n } else { n % 512 },
                from: SOURCES[usize::from(what / 8) % 4],
                ns: m << (what / 8 % 16),
            },
            6 if what == 6 => Self::ForgetHalf,
            _ => Self::Ask {
                held: Held {
                    stored: n % 4096,
                    ram: n % 4096 * m / 256,
                },
                step: u64::from(what) + 1,
            },
        })
    }
}

struct Model {
    epoch: u64,
    /// The stamp of each page stored, in order.
    stored: Vec<u8>,
    /// Pages that are remembered no more.
    forgotten: u64,
    /// How often a page that came from compressed RAM or from a file had been away for so many epochs.
    touches: [BTreeMap<u64, u64>; 2],
    latency: [u64; 2],
}

impl Model {
    /// Epochs since a page was stored, as far as its stamp tells.
    fn distance(&self, page: u64) -> u64 {
        (self.stored.len() as u64 / self.epoch - page / self.epoch) % STAMPS
    }

    fn refault(&mut self, page: Option<u64>, from: Source, ns: u64) {
        let tier = match from {
            Source::Compressed => 0,
            Source::File => 1,
            _ => return,
        };
        if let Some(distance) = page.map(|page| self.distance(page)) {
            *self.touches[tier].entry(distance).or_default() += 1;
        }
        let mean = &mut self.latency[tier];
        *mean = *mean - *mean / 64 + ns.min(1_000_000) / 64;
    }

    fn remembered(&self) -> u64 {
        self.stored.len() as u64 - self.forgotten
    }

    /// Touches of a tier by their distance in pages, from `lo` to below `hi`.
    fn within(&self, tier: usize, lo: u64, hi: u64) -> u64 {
        let known = self.touches[tier]
            .iter()
            .filter(|(distance, _)| **distance < DISTANCES);
        let part = |(distance, count): (&u64, &u64)| {
            let pages = distance * self.epoch..(distance + 1) * self.epoch;
            count * pages.filter(|page| (lo..hi).contains(page)).count() as u64 / self.epoch
        };
        known.map(part).sum()
    }

    /// Goes back in time, epoch by epoch, until the pages that are left fill the tier.
    fn edge(&self, held: u64) -> (u64, u64) {
        let (all, mut left) = (self.remembered(), held);
        let mut survivors = all;
        for distance in 0..DISTANCES {
            let there = self.epoch * survivors / all;
            if there >= left {
                return (distance * self.epoch + left * all / survivors.max(1), survivors);
            }
            left -= there;
            let touched = self.touches.iter().filter_map(|touches| touches.get(&distance));
            survivors = survivors.saturating_sub(touched.sum());
        }
        (DISTANCES * self.epoch, survivors)
    }

    /// The formula on top of the module, a quarter more than even.
    fn trend(&self, held: Held, step: u64) -> Trend {
        if self.remembered() == 0 || held.stored <= held.ram {
            return Trend::Stay;
        }
        let both = |lo, hi| self.within(0, lo, hi) + self.within(1, lo, hi);
        let saved = self.latency[1].saturating_sub(self.latency[0]);
        let (edge, survivors) = self.edge(held.stored);
        let more = step * (held.stored - held.ram) / held.ram.max(1);
        let reach = more * self.remembered() / survivors.max(1);
        let costs = both(0, step) * (self.latency[0] + 15_000);
        let waits = self.within(1, 0, edge + reach);
        let saves = both(edge, edge + reach).min(waits) * saved;
        let loses = both(edge.saturating_sub(reach), edge) * saved;
        match (saves * 4 > costs * 5, costs * 4 > loses * 5) {
            (true, _) => Trend::Grow,
            (false, true) => Trend::Shrink,
            _ => Trend::Stay,
        }
    }
}

/// Does what the events say to a histogram with epochs of so many pages, and to a model of it; panics where they differ.
pub fn follow(epoch: u64, events: impl IntoIterator<Item = Event>) {
    let set = Workingset::default();
    assert_eq!((set.stamp(), set.distance(1)), (NO_STAMP, None), "not started");
    set.start(epoch);
    let mut model = Model {
        epoch,
        // The one before the start.
        stored: vec![NO_STAMP],
        forgotten: 0,
        touches: Default::default(),
        latency: [0; 2],
    };
    for event in events {
        match event {
            Event::Store(pages) => {
                for _ in 0..pages {
                    let stamp = set.stamp();
                    assert_ne!(stamp, NO_STAMP);
                    model.stored.push(stamp);
                }
            }
            Event::Refault { back, from, ns } => {
                let page = (model.stored.len() as u64).checked_sub(back + 1);
                let stamp = page.map_or(NO_STAMP, |page| model.stored[page as usize]);
                let page = page.filter(|_| stamp != NO_STAMP);
                assert_eq!(set.distance(stamp), page.map(|page| model.distance(page)));
                set.refault(stamp, from, ns);
                model.refault(page, from, ns);
            }
            Event::ForgetHalf => {
                set.forget_half();
                model.forgotten += model.remembered().div_ceil(2);
                for count in model.touches.iter_mut().flat_map(BTreeMap::values_mut) {
                    *count /= 2;
                }
            }
            Event::Ask { held, step } => {
                assert_eq!(set.trend(held, step), model.trend(held, step), "{held:?}, {step}");
            }
        }
        assert_eq!(set.remembered(), model.remembered());
    }
}
