//! When all swap is full for good: the supervisor's part.
//!
//! A tree whose swap is full exchanges pages: what comes back leaves its place to what leaves. That is slow, since most of what is
//! tried finds none, but it keeps the budget. Where programs do nothing else for seconds they were promised more than there is
//! room for (MAP_NORESERVE, what fork shares), and it ends in an overrun: then less is tried, and it comes sooner.

use core::sync::atomic::Ordering;

use farpage_core::stats::Counter;

use crate::pool::Pool;

/// How long all swap must be full and programs wait for most of the time, in nanoseconds.
const PATIENCE_NS: u64 = 3_000_000_000;

/// What was seen at the last look.
#[derive(Default)]
pub struct Overcommit {
    looked_ns: u64,
    stalled_ns: u64,
    /// How long it has been so.
    lasted_ns: u64,
}

impl Overcommit {
    /// Looks again, and tells the tree.
    pub fn look(&mut self, pool: &Pool, now: u64) {
        let header = pool.header();
        let stalled = header.counted(Counter::StallNs);
        let hopeless = self.after(pool.is_swap_full(), stalled, now);
        header.hopeless.store(u32::from(hopeless), Ordering::Relaxed);
    }

    fn after(&mut self, is_full: bool, stalled_ns: u64, now: u64) -> bool {
        let (passed, stalled) = (
            now.saturating_sub(self.looked_ns),
            stalled_ns.saturating_sub(self.stalled_ns),
        );
        (self.looked_ns, self.stalled_ns) = (now, stalled_ns);
        let was = self.lasted_ns >= PATIENCE_NS;
        self.lasted_ns = if is_full && (was || stalled * 2 > passed) {
            self.lasted_ns + passed
        } else if is_full {
            self.lasted_ns
        } else {
            0
        };
        self.lasted_ns >= PATIENCE_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: u64 = 20_000_000;

    #[test]
    fn seconds_of_waiting_for_full_swap_are_hopeless_and_a_free_place_is_hope() {
        let mut seen = Overcommit::default();
        let mut now = 0;
        let mut ticks = |count: u64, is_full: bool, stalled_part: u64| {
            let mut hopeless = false;
            for _ in 0..count {
                now += TICK;
                let stalled = seen.stalled_ns + TICK * stalled_part / 4;
                hopeless = seen.after(is_full, stalled, now);
            }
            hopeless
        };
        assert!(!ticks(1000, true, 1), "full, and the programs run");
        assert!(!ticks(100, true, 4), "two seconds");
        assert!(ticks(100, true, 3));
        assert!(ticks(1, true, 0), "until there is room");
        assert!(!ticks(1, false, 4));
        assert!(!ticks(100, true, 4));
    }
}
