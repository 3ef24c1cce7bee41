//! The limit of the tree, which the supervisor sets every 20 ms, and what is done while it does not.

use core::sync::atomic::Ordering;

use super::Header;
use crate::numbers;
use crate::sys;

/// While the supervisor does not come by a 64th of the budget is left free for each so many nanoseconds, up to an eighth.
const LATE_NS: u64 = 60_000_000;
const LATE_PART: i64 = 64;
const LATE_STEPS: u32 = 8;
/// One that has not come by for so long does not come again: it is stopped, or dead and nobody has waited for it. On a machine with forty
/// threads for each CPU it came a second late.
const GONE_NS: u64 = 5_000_000_000;

impl Header {
    /// Called by faults, at the time they began: lowers the limit bit by bit while the supervisor, kept from running, does not see what
    /// grows beside managed pages.
    #[inline]
    pub fn watch_limit(&self, now: u64) {
        let late = now.saturating_sub(self.limit_set_ns.load(Ordering::Relaxed)) / LATE_NS;
        let steps = self.late_steps.load(Ordering::Relaxed);
        if late > u64::from(steps) && steps <= LATE_STEPS {
            self.limit_is_late(steps, late);
        }
    }

    #[cold]
    fn limit_is_late(&self, steps: u32, late: u64) {
        let is_gone = late > GONE_NS / LATE_NS;
        if steps == LATE_STEPS && !is_gone {
            return;
        }
        let exchange =
            self.late_steps
                .compare_exchange(steps, steps + 1, Ordering::Relaxed, Ordering::Relaxed);
        if exchange.is_ok() && self.limit_set_ns.load(Ordering::Relaxed) != 0 {
            self.lower_limit(self.budget.load(Ordering::Relaxed) / LATE_PART);
        }
    }

    /// The supervisor's, at each look.
    pub fn set_limit(&self, limit: i64, now: u64) {
        self.limit_set_ns.store(now, Ordering::Relaxed);
        self.late_steps.store(0, Ordering::Relaxed);
        self.limit_set.store(limit, Ordering::Relaxed);
        self.limit.store(limit, Ordering::Relaxed);
        self.limits_set.fetch_add(1, Ordering::Relaxed);
    }

    /// What sizes are parts of: the limit as it was last set. What is taken off it for a moment (by the end of a child all that it had)
    /// tells what may come in now, and not how much there is.
    #[inline]
    pub fn last_limit(&self) -> i64 {
        self.limit_set.load(Ordering::Relaxed)
    }

    /// Takes pages off the limit until the supervisor sets it anew. With the supervisor gone nobody would raise it again: then it is
    /// what that one set last. (A program that ran itself anew five times, whose supervisor was dead and not waited for, was left with 2 of 48
    /// MiB.)
    pub fn lower_limit(&self, pages: i64) {
        if !self.supervisor_lives() {
            self.limit.fetch_max(self.last_limit(), Ordering::SeqCst);
            return;
        }
        let least = self.least_limit();
        let lower = |limit: i64| (limit - pages).max(least.min(limit));
        let _ = self
            .limit
            .fetch_update(Ordering::SeqCst, Ordering::Relaxed, |limit| Some(lower(limit)));
    }

    /// Whether somebody looks at the tree now and then.
    pub fn supervisor_lives(&self) -> bool {
        let came = self.limit_set_ns.load(Ordering::Relaxed);
        let is_late = || came != 0 && sys::now_ns().saturating_sub(came) > GONE_NS;
        self.supervisor_is_there() && !is_late()
    }

    /// Whether somebody may look at it soon, though it be late: what the whole tree was stopped for seconds with (Ctrl-Z, a frozen cgroup)
    /// goes on a moment after the others.
    pub fn supervisor_is_there(&self) -> bool {
        let pid = self.supervisor.load(Ordering::Relaxed);
        pid > 0 && numbers::is_there(pid)
    }
}

#[cfg(test)]
mod tests {
    use crate::pool::{Geometry, Pool};
    use core::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn a_limit_that_nobody_sets_any_more_is_what_it_was() {
        let (_, pool) = Pool::create(&Geometry::default()).unwrap();
        let header = pool.header();
        header.budget.store(10_000, Ordering::Relaxed);
        header.supervisor.store(sys::getpid(), Ordering::Relaxed);
        let set = sys::now_ns();
        header.set_limit(9_000, set);
        header.lower_limit(1_000);
        header.lower_limit(1_000_000);
        let least = header.least_limit();
        assert_eq!(header.limit.load(Ordering::Relaxed), least);
        assert_eq!(header.last_limit(), 9_000, "and sizes are parts of that");
        // It comes late, then no more.
        header.watch_limit(set + LATE_NS * 3 / 2);
        assert_eq!(header.limit.load(Ordering::Relaxed), least);
        header
            .limit_set_ns
            .store(set.saturating_sub(2 * GONE_NS).max(1), Ordering::Relaxed);
        (0..=LATE_STEPS).for_each(|_| header.watch_limit(set));
        assert!(!header.supervisor_lives() && header.supervisor_is_there());
        assert_eq!(header.limit.load(Ordering::Relaxed), 9_000);
        header.lower_limit(1_000);
        assert_eq!(header.limit.load(Ordering::Relaxed), 9_000);
    }
}
