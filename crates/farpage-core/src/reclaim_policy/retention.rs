//! Whether units that have waited longest leave, or stay for another turn of the queue: a FIFO that does not thrash.
//!
//! A program that goes round and round a little more than there is memory for gets nothing from a FIFO (or an LRU): each unit leaves
//! just before its next touch, so all of it is read for a tenth too much. Who lets three of four stay, whichever they are, has the
//! next touches of most. That is random replacement, and as good as a FIFO where the order of touches has no pattern; but worse where
//! the program moves on and the oldest really is what it needs no more.
//!
//! The refault distances tell the two apart (`mm/workingset.c` has the idea): of a program that moves on, or needs many times its memory,
//! few loads are of units that left within the last three quarters of a turnover; of one that goes round in a little too much, most are.
//! While that holds for more than two thirds of what is loaded, and makes up half of what leaves, units stay. A turnover is as many
//! evictions as units are resident. Only what comes in runs counts as near: touches at random come back as soon, gain nothing, and evict
//! units that have hardly filled again.

use super::ReclaimPolicy;
use super::links::{Links, Node};

/// Steps of the eviction clock in a turnover.
const STEPS: u64 = 8;
/// Refaults within so many steps are near.
const NEAR: u64 = STEPS * 3 / 4;
/// One unit in so many leaves at each turn where units stay.
const LEAVES: u64 = 4;
/// Fewer units than these know nothing of turns.
const RESIDENT_MIN: u32 = 64;
/// A whole unit's load.
const WHOLE: u32 = 64;
/// A load of so many parts of a whole is a run.
const RUN: u32 = 8;
/// Fewer loads than these tell nothing.
const LOADS_MIN: u32 = 4 * WHOLE;
/// Loads beside a quarter of a turnover until older ones count half.
const LOADS: u32 = 16 * WHOLE;
/// Stamps are 1 to this, and 0 for none.
const STAMPS: u64 = 61;
/// Bits of a step's fraction.
const FRACTION: u32 = 32;

/// What is known of turns and refaults. Pure: 32 bytes, no allocation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Retention {
    /// Steps of evictions, and turns of the queue, with [`FRACTION`] bits behind the point.
    clock: u64,
    turns: u64,
    /// Loads lately, near refaults among them, and evictions meanwhile, in parts of [`WHOLE`].
    loads: u32,
    near: u32,
    gone: u32,
}

impl Retention {
    /// Of a queue that was never turned.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            clock: 0,
            turns: 0,
            loads: 0,
            near: 0,
            gone: 0,
        }
    }

    /// One of `resident` units is evicted; what to remember of it.
    pub fn evicted(&mut self, resident: u32) -> u8 {
        self.clock = self
            .clock
            .wrapping_add((STEPS << FRACTION) / u64::from(resident.max(1)));
        self.gone += WHOLE;
        self.forget(resident);
        1 + ((self.clock >> FRACTION) % STAMPS) as u8
    }

    /// How many steps ago a stamp was given, if that was within the last seven turnovers; older ones look young.
    fn since(&self, stamp: u8) -> Option<u64> {
        let then = u64::from(stamp).checked_sub(1)?;
        Some(((self.clock >> FRACTION) % STAMPS + STAMPS - then) % STAMPS)
    }

    /// So many 64ths of a unit were loaded, whose last eviction has left `stamp`, 0 if there was none.
    pub fn loaded(&mut self, stamp: u8, parts: u32, resident: u32) {
        let near = Self::is_run(parts) && self.since(stamp).is_some_and(|steps| steps <= NEAR);
        self.came(near, parts, resident);
    }

    /// Whether a load of so many parts may count as near.
    #[must_use]
    pub const fn is_run(parts: u32) -> bool {
        parts >= RUN
    }

    /// The same by who keeps no stamps: whether the load was of a run that left within three quarters of a turnover.
    pub fn came(&mut self, near: bool, parts: u32, resident: u32) {
        self.loads += parts;
        self.near += if near { parts } else { 0 };
        self.forget(resident);
    }

    fn forget(&mut self, resident: u32) {
        if self.loads.max(self.gone) > LOADS + resident / 4 * WHOLE {
            self.loads /= 2;
            self.near /= 2;
            self.gone /= 2;
        }
    }

    /// Whether units stay for the time being.
    #[must_use]
    pub fn is_on(&self, resident: u32) -> bool {
        let most = self.near * 3 > self.loads * 2 && self.near * 2 > self.gone;
        resident >= RESIDENT_MIN && self.loads > LOADS_MIN && most
    }

    /// The oldest of `resident` units is looked at, one of `group`: whether it stays for another turn. Units of a group that follow each
    /// other have one answer, so that what makes up a huge page stays or leaves as one.
    pub fn stays(&mut self, group: u64, resident: u32) -> bool {
        self.turns = self
            .turns
            .wrapping_add((1 << FRACTION) / u64::from(resident.max(1)));
        self.is_on(resident) && !mixed(group ^ (self.turns >> FRACTION << 40)).is_multiple_of(LEAVES)
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
pub(super) const fn mixed(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A FIFO with [`Retention`], without touches. With the swap cache around it the engine's policy.
#[derive(Debug)]
pub struct Fifo<'a> {
    links: Links<'a, 1>,
    retention: Retention,
    scanned: u64,
}

impl<'a> Fifo<'a> {
    /// Without a resident unit.
    #[must_use]
    pub fn new(nodes: &'a mut [Node]) -> Self {
        Self {
            links: Links::new(nodes),
            retention: Retention::new(),
            scanned: 0,
        }
    }
}

impl ReclaimPolicy for Fifo<'_> {
    fn loaded(&mut self, unit: u32, refault: Option<u32>) {
        let resident = self.links.all();
        // What is resident was not loaded, nor what is taken back from the swap cache.
        if self.links.list_of(unit).is_none() && refault != Some(0) {
            let near =
                refault.is_some_and(|distance| u64::from(distance) * STEPS <= u64::from(resident) * NEAR);
            self.retention.came(near, WHOLE, resident);
        }
        self.links.push(0, unit, 0);
    }

    fn touched(&mut self, _unit: u32) -> bool {
        false
    }

    fn victim(&mut self) -> Option<u32> {
        let resident = self.links.all();
        let mut may_stay = resident / 2;
        loop {
            let (unit, _) = self.links.pop(0)?;
            self.scanned += 1;
            if !self.retention.stays(unit.into(), resident) || may_stay == 0 {
                self.retention.evicted(resident);
                return Some(unit);
            }
            may_stay -= 1;
            self.links.push(0, unit, 0);
        }
    }

    fn gone(&mut self, unit: u32) {
        self.links.take(unit);
    }

    fn resident(&self) -> u32 {
        self.links.all()
    }

    fn scanned(&self) -> u64 {
        self.scanned
    }
}
