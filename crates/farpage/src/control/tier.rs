//! What can be taken away from a running tree, and come back: an area, or the compressed tier.

use core::sync::atomic::Ordering;

use super::RENAME_NS;
use crate::pool::{Area, MAX_AREAS, Pool};
use crate::tier_files;

/// An area by its index, or the compressed tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    Area(usize),
    Compressed,
}

/// Number of the compressed tier, behind those of the areas.
const COMPRESSED: u32 = MAX_AREAS as u32;

impl Tier {
    /// As a number, below 255: how the pool's words name it.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Tier::Area(index) => index as u32,
            Tier::Compressed => COMPRESSED,
        }
    }

    /// The tier of a number; `None` where there is none.
    #[must_use]
    pub fn of(number: u32) -> Option<Tier> {
        match number {
            COMPRESSED => Some(Tier::Compressed),
            index => (index < COMPRESSED).then_some(Tier::Area(index as usize)),
        }
    }

    /// How messages call it.
    pub(super) fn name(self, pool: &Pool) -> String {
        match self {
            Tier::Area(index) => pool.header().area[index].name(),
            Tier::Compressed => "compressed".to_owned(),
        }
    }

    /// Whether pages go there.
    pub(super) fn is_open(self, pool: &Pool) -> bool {
        match self {
            Tier::Area(index) => is_open(&pool.header().area[index]),
            Tier::Compressed => has_compressed(pool) == Some(true),
        }
    }

    /// Slots of it that are taken still, or objects in it.
    pub(super) fn left(self, pool: &Pool) -> u64 {
        match self {
            Tier::Area(index) => pool.slots().count_used(index),
            Tier::Compressed => {
                let classes = pool.zpool().tally();
                classes.iter().map(|class| class.objects as u64).sum()
            }
        }
    }

    /// Pages that need a place elsewhere.
    pub(super) fn pages(self, pool: &Pool) -> i64 {
        match self {
            Tier::Area(index) => pool.header().area[index].used.load(Ordering::Relaxed).max(0),
            Tier::Compressed => self.left(pool) as i64,
        }
    }

    /// Pages of RAM that are free when it is empty.
    pub(super) fn ram(self, pool: &Pool) -> i64 {
        match self {
            Tier::Area(_) => 0,
            Tier::Compressed => pool.header().zpool_pages(),
        }
    }

    /// From now on no page goes there.
    pub(super) fn shut(self, pool: &Pool) {
        let header = pool.header();
        let control = &header.control;
        match self {
            Tier::Area(index) => tier_files::close_to_pages(pool, index),
            Tier::Compressed => {
                // What `reopen` needs is there before it is wanted: the supervisor may be killed here.
                let limit = header.zpages_limit.load(Ordering::SeqCst);
                control.tier_limit.store(limit, Ordering::SeqCst);
                control.tier_shut.store(1, Ordering::SeqCst);
                header.zpages_limit.store(0, Ordering::SeqCst);
            }
        }
    }

    /// It takes pages again.
    pub(super) fn reopen(self, pool: &Pool) {
        let control = &pool.header().control;
        match self {
            Tier::Area(index) => tier_files::open_to_pages(pool, index),
            Tier::Compressed => {
                if control.tier_shut.swap(0, Ordering::SeqCst) != 0 {
                    let limit = control.tier_limit.load(Ordering::SeqCst);
                    pool.header().zpages_limit.store(limit, Ordering::SeqCst);
                }
            }
        }
    }

    /// Whether it is over with what is left: `left` slots that no page names, after `idle_ns` without a change.
    pub(super) fn is_settled(self, pool: &Pool, left: u64, idle_ns: u64) -> bool {
        match self {
            Tier::Area(index) => pool.slots().settled(index) == Some(left),
            // Processes that share a slot let their own pages name the new one, for which the old one waits.
            Tier::Compressed => pool.header().moved.load(Ordering::Relaxed) <= 0 || idle_ns > RENAME_NS,
        }
    }
}

fn is_open(area: &Area) -> bool {
    area.open.load(Ordering::Relaxed) != 0
}

/// Whether the tree compresses pages; `None`: it never did.
#[must_use]
pub fn has_compressed(pool: &Pool) -> Option<bool> {
    let is_open = pool.header().control.tier_shut.load(Ordering::Relaxed) == 0;
    (pool.layout().zpage_count > 0).then_some(is_open)
}

/// Areas of a tree that pages may be written to: index and name.
#[must_use]
pub fn areas_of(pool: &Pool) -> Vec<(usize, String)> {
    let areas = pool.header().area.iter().enumerate();
    areas
        .filter(|(_, area)| is_open(area))
        .map(|(index, area)| (index, area.name()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_below_255_is_one_tier_or_none() {
        let tiers: Vec<Tier> = (0..255).filter_map(Tier::of).collect();
        assert_eq!(tiers.len(), MAX_AREAS + 1);
        assert!((0..).zip(&tiers).all(|(number, tier)| tier.number() == number));
        assert_eq!(tiers.last(), Some(&Tier::Compressed));
    }
}
