//! Which resident unit (a page, or a window of 64) goes next: policies behind one interface that answers with data.
//!
//! A policy hears three things: a unit was loaded, a resident unit was touched, a unit is gone. Asked for a victim it names
//! one and forgets it; moving memory is the caller's. What the caller can see decides what a policy is worth: a page that is
//! in RAM is touched without a fault, so without the hardware's accessed bits [`ReclaimPolicy::touched`] is only heard for units that were
//! taken out of the page tables and wait in the swap cache. [`SwapCache`] takes them out for that purpose; the others
//! take touches from wherever they come, and without any CLOCK and SIEVE are plain FIFOs.
//!
//! | policy | after | what it keeps |
//! |---|---|---|
//! | [`SwapCache`] | the kernel's inactive list, in the engine's way | what another policy gives up: a sixteenth waits outside, and a touch there is a second chance |
//! | [`Fifo`] | a FIFO, and random replacement where that thrashes | [`Retention`]: three of four for another turn, while most of what is loaded left a moment ago |
//! | [`Clock`] | Corbato 1968 | a ring with a bit per unit |
//! | [`Sieve`] | Zhang et al., NSDI 2024 | a FIFO whose hand passes over touched units and leaves them where they are |
//! | [`S3Fifo`] | Yang et al., SOSP 2023 | a small FIFO for the new, a main one for what was touched twice or came back soon |
//! | [`LruGen`] | the kernel's multi-generational LRU (Linux 6.1) | four generations; touched units move to the youngest |
//!
//! **Refault distance.** When a unit is evicted its *shadow* is kept: the eviction clock ([`Shadows`]). When it comes back,
//! the evictions since are how much larger the memory would have had to be to still have it (`mm/workingset.c`). At most the resident
//! size means that it belongs to the working set. [`S3Fifo`] uses that in place of its ghost queue: a ghost queue of
//! length n and a distance of at most n say the same, but for units that the main queue gave up, which leave a shadow here too.
//!
//! Which of them the engine uses, and why: `docs/decisions/0017-reclaim-policy.md`.
//!
//! Memory: [`Node`]s are the caller's, one per unit, so nothing is allocated; what is said of a unit beyond them is ignored.

mod clock;
mod links;
mod lru_gen;
mod retention;
mod s3fifo;
mod sharing;
mod sieve;
mod swap_cache;

pub use clock::Clock;
pub use links::Node;
pub use lru_gen::LruGen;
pub use retention::{Fifo, Retention};
pub use s3fifo::S3Fifo;
pub use sharing::{CLASSES, Sharing};
pub use sieve::Sieve;
pub use swap_cache::SwapCache;

/// Says which unit goes next. Units are numbers below that of the policy's nodes.
pub trait ReclaimPolicy {
    /// A unit became resident; `refault` is its distance if it had been evicted before.
    fn loaded(&mut self, unit: u32, refault: Option<u32>);

    /// A resident unit was touched, and that was seen. True if it had to be brought back from the swap cache for that.
    fn touched(&mut self, unit: u32) -> bool;

    /// The unit to evict, which is forgotten; none if no unit is resident.
    fn victim(&mut self) -> Option<u32>;

    /// A unit is resident no more, though it was not evicted.
    fn gone(&mut self, unit: u32);

    /// Units that are resident, by what was said.
    fn resident(&self) -> u32;

    /// Units looked at so far to find victims: what the policy costs beyond a fixed part.
    fn scanned(&self) -> u64;
}

/// When each unit was evicted, by the number of evictions before; wraps after 2^32 - 1 of them.
#[derive(Debug)]
pub struct Shadows<'a> {
    clock: u32,
    /// Clock plus one; 0 for a unit without a shadow.
    at: &'a mut [u32],
}

impl<'a> Shadows<'a> {
    /// Without any shadow, over one word for each unit.
    #[must_use]
    pub fn new(at: &'a mut [u32]) -> Self {
        at.fill(0);
        Self { clock: 0, at }
    }

    /// A unit is evicted.
    pub fn evicted(&mut self, unit: u32) {
        if let Some(at) = self.at.get_mut(unit as usize) {
            *at = self.clock.wrapping_add(1).max(1);
        }
        self.clock = self.clock.wrapping_add(1);
    }

    /// A unit comes back: how many others were evicted since it was. None if it never was.
    pub fn returned(&mut self, unit: u32) -> Option<u32> {
        let at = core::mem::take(self.at.get_mut(unit as usize)?);
        (at != 0).then(|| self.clock.wrapping_sub(at))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
