//! A CPU's slot cache beside lists that are sorted and searched.

use farpage_core::slot_cache::{CACHE_SLOTS, SlotCache};
use farpage_core::slots::Run;

use super::Input;

#[derive(Debug, Clone, Copy)]
pub enum Event {
    /// A run of so many slots, none of which was there before.
    Keep {
        has_file: bool,
        count: usize,
    },
    Take {
        has_file: bool,
    },
    /// Slots to be given back, from this number on.
    Free {
        first: u32,
        count: u32,
    },
    Drain,
}

impl Event {
    /// The next event that some bytes say; none at their end.
    pub fn read(input: &mut Input<'_>) -> Option<Self> {
        let (what, n) = (input.byte()?, input.byte()?);
        let has_file = n & 1 == 1;
        Some(match what % 8 {
            0..=2 => Self::Keep {
                has_file,
                count: usize::from(n / 2) % (CACHE_SLOTS + 1),
            },
            3 => Self::Take { has_file },
            4 => Self::Drain,
            _ => Self::Free {
                first: u32::from(n) * 7919 % 1000,
                count: u32::from(what / 8),
            },
        })
    }
}

/// Does what the events say to a cache and to a model of it; panics where they differ.
pub fn follow(events: impl IntoIterator<Item = Event>) {
    let mut cache = SlotCache::new();
    let mut runs: [Vec<Run>; 2] = Default::default();
    let mut freed: Vec<u32> = Vec::new();
    let mut next = 0;
    for event in events {
        match event {
            Event::Keep { has_file, count } => {
                let run = Run { first: next, count };
                next += count as u32;
                let kept = &mut runs[usize::from(has_file)];
                kept.push(run);
                kept.retain(|run| run.count > 0);
                // The longest stays, of equal ones the first.
                kept.sort_by_key(|run| core::cmp::Reverse(run.count));
                let given_back = (kept.len() > 1).then(|| kept.remove(1));
                assert_eq!(cache.keep_run(has_file, run), given_back);
            }
            Event::Take { has_file } => {
                assert_eq!(cache.take_run(has_file), runs[usize::from(has_file)].pop());
            }
            Event::Free { first, count } => {
                for slot in first..first + count {
                    freed.push(slot);
                    let full = (freed.len() == CACHE_SLOTS).then(|| core::mem::take(&mut freed));
                    let sorted = full.map(|mut all| {
                        all.sort_unstable();
                        all
                    });
                    assert_eq!(cache.free(slot).map(Vec::from), sorted);
                }
            }
            Event::Drain => drain(&mut cache, &mut freed),
        }
    }
    drain(&mut cache, &mut freed);
    for has_file in [false, true] {
        assert_eq!(cache.take_run(has_file), runs[usize::from(has_file)].pop());
    }
}

fn drain(cache: &mut SlotCache, freed: &mut Vec<u32>) {
    let (slots, len) = cache.drain_freed();
    freed.sort_unstable();
    assert_eq!(&slots[..len], freed);
    freed.clear();
}
