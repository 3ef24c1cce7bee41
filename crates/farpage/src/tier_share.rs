//! How much of a tree's RAM its compressed tier may take.
//!
//! A page of RAM for the tier holds two pages and makes room for none: it spares reads of the file, and makes more pages be
//! decompressed. Which counts for more is the program's affair, so the share follows its refault distances
//! (`farpage_core::workingset`, decision 0022).

use std::sync::atomic::Ordering;

use farpage_core::units::PAGE_SIZE;
use farpage_core::workingset::{Held, Trend};
use farpage_core::zpool::ZPAGE_BYTES;

use crate::pool::{Header, Pool};

/// Parts of the limit in which the share is counted; where it begins (decision 0021), its bounds, one step.
const WHOLE: i64 = 1024;
const FIRST: i64 = WHOLE / 8;
const LEAST: i64 = WHOLE / 32;
const MOST: i64 = WHOLE / 2;
const STEP: i64 = WHOLE / 64;
/// Pages stored, as a part of the limit and at least, from which the working set is judged.
const KNOWN_ONE_IN: i64 = 16;
const KNOWN_MIN: i64 = 256;
/// The tier counts as full when all but one in so many of its zpages are in use.
const FULL: i64 = 8;
const ZPAGE_PAGES: i64 = (ZPAGE_BYTES / PAGE_SIZE) as i64;

/// The most bytes of a budget that the tier has where there are files.
#[must_use]
pub const fn most_beside_files(ram_bytes: u64) -> u64 {
    ram_bytes / WHOLE as u64 * MOST as u64
}

/// The share where there are files, in parts of [`WHOLE`].
pub struct TierShare(i64);

impl Default for TierShare {
    fn default() -> Self {
        TierShare(FIRST)
    }
}

impl TierShare {
    /// The zpages that the tier, which holds `objects` pages, may use of the tree's `limit`, in pages. It gives way when the rest
    /// of the tree needs the budget.
    pub fn zpages(&mut self, pool: &Pool, limit: i64, objects: usize) -> u64 {
        let most = pool.layout().zpage_count as i64;
        let share = if pool.header().areas.load(Ordering::Relaxed) > 0 {
            self.follow(pool.header(), limit, objects);
            limit * self.0 / WHOLE
        } else {
            limit * 3 / 4
        };
        (share / ZPAGE_PAGES).clamp(most.min(1), most) as u64
    }

    /// Moves the share to where programs wait less.
    fn follow(&mut self, header: &Header, limit: i64, objects: usize) {
        let used = header.zpages_used.load(Ordering::Relaxed) as i64;
        let allowed = header.zpages_limit.load(Ordering::Relaxed) as i64;
        let is_full = used * FULL > allowed * (FULL - 1);
        let known = header.workingset.remembered() as i64;
        if known < (limit / KNOWN_ONE_IN).max(KNOWN_MIN) || !is_full {
            return;
        }
        let held = Held {
            stored: objects as u64,
            ram: header.zpool_pages() as u64,
        };
        let step = (limit * STEP / WHOLE).max(ZPAGE_PAGES);
        let by = match header.workingset.trend(held, step as u64) {
            Trend::Grow => STEP,
            Trend::Shrink => -STEP,
            Trend::Stay => 0,
        };
        self.0 = (self.0 + by).clamp(LEAST, MOST);
        header.workingset.forget_half();
    }
}
