//! What something took on average, lately.

use core::sync::atomic::{AtomicU64, Ordering};

/// Things after which older measurements count half.
const MEMORY: u64 = 512;

/// A sum over things of one kind, pages or reads, in which the past counts less and less. Racing writers lose a measurement, no
/// more.
pub struct Mean {
    sum: AtomicU64,
    things: AtomicU64,
}

impl Mean {
    pub const fn new() -> Mean {
        Mean {
            sum: AtomicU64::new(0),
            things: AtomicU64::new(0),
        }
    }

    pub fn add(&self, sum: u64, things: u64) {
        let (sum, things) = (
            self.sum.load(Ordering::Relaxed) + sum,
            self.things.load(Ordering::Relaxed) + things,
        );
        let half = u32::from(things > MEMORY);
        self.sum.store(sum >> half, Ordering::Relaxed);
        self.things.store(things >> half, Ordering::Relaxed);
    }

    /// Whether the mean is above `bound`; no before there is anything to tell from.
    pub fn exceeds(&self, bound: u64) -> bool {
        let things = self.things.load(Ordering::Relaxed);
        things >= MEMORY / 4 && self.sum.load(Ordering::Relaxed) > bound * things
    }

    pub fn forget(&self) {
        self.sum.store(0, Ordering::Relaxed);
        self.things.store(0, Ordering::Relaxed);
    }
}
