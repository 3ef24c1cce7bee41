//! Who makes room: the reclaimer, ahead of the faults, or each fault for itself.
//!
//! MOVE flushes the TLB of every CPU that runs a thread of this process, once for each stretch of present pages. For the
//! reclaimer that is always another CPU, the program's, which in a virtual machine takes 10 to 20 us: where the windows that
//! leave have gaps, a page costs more to move out than a whole fault, and holds up the program besides. The thread that
//! faults flushes its own CPU for next to nothing. So the reclaimer measures what it pays, and leaves the work to the faults
//! while that is too much (decision 0025).

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::mean::Mean;

/// What the reclaimer may take to move a page out, in nanoseconds: about what a fault takes without reclaim. Beyond it the
/// program has more from doing both in turn than from a helper that can't keep up with it.
const DEAR_NS: u64 = 5_000;
/// Of the pages stored, the part that may be written to files for a fault to do it: writes are waited for.
const WRITTEN_PART: u64 = 8;
/// How long faults may make no room before the reclaimer does it again, in nanoseconds.
const IDLE_NS: u64 = 50_000_000;

/// What a process knows of who should make room in it.
pub struct Who {
    /// Nanoseconds that the reclaimer took to move pages out.
    cost: Mean,
    /// Pages written to files of those stored, in parts of [`WRITTEN_PART`].
    written: Mean,
    /// Pages that came from files before their touch, of those that came, in halves.
    early: Mean,
    by_faults: AtomicBool,
    /// When a page last came from a file.
    filed_ns: AtomicU64,
    /// When a fault last made room, or was first told to.
    active_ns: AtomicU64,
}

impl Default for Who {
    fn default() -> Self {
        Who::new()
    }
}

impl Who {
    #[must_use]
    pub const fn new() -> Who {
        Who {
            cost: Mean::new(),
            written: Mean::new(),
            early: Mean::new(),
            by_faults: AtomicBool::new(false),
            filed_ns: AtomicU64::new(0),
            active_ns: AtomicU64::new(0),
        }
    }

    /// Whether faults make room for themselves now.
    #[inline]
    pub fn is_by_faults(&self) -> bool {
        self.by_faults.load(Ordering::Relaxed)
    }

    /// Whether faults had better bring in by themselves what they expect to be touched next, too: a helper on another CPU
    /// would make each flush of theirs an interrupt again. What comes from files is waited for, and is the helpers'.
    #[inline]
    pub fn is_alone(&self, now: impl FnOnce() -> u64) -> bool {
        self.is_by_faults() && now().saturating_sub(self.filed_ns.load(Ordering::Relaxed)) > IDLE_NS
    }

    /// A page comes from a file at `now`.
    pub fn note_file(&self, now: u64) {
        self.filed_ns.store(now, Ordering::Relaxed);
    }

    /// A fault has begun to make room at `now`.
    pub fn note_fault(&self, now: u64) {
        self.active_ns.store(now, Ordering::Relaxed);
    }

    /// The reclaimer took `ns` to move `pages` out.
    pub fn note_moved(&self, ns: u64, pages: u64) {
        self.cost.add(ns, pages);
    }

    /// Of `stored` pages `written` went to files.
    pub fn note_stored(&self, stored: u64, written: u64) {
        self.written.add(written * WRITTEN_PART, stored);
    }

    /// A touch waited for its page.
    #[inline]
    pub fn note_touched(&self) {
        self.early.add(0, 1);
    }

    /// The prefetch threads brought in `pages` from files.
    pub fn note_early(&self, pages: u64) {
        self.early.add(2 * pages, pages);
    }

    /// The reclaimer's look at it, each time it wakes.
    pub fn decide(&self, now: u64) -> bool {
        // Where reads come before their touch, threads that make room would keep the program waiting for the next ones.
        let is_dear = self.cost.exceeds(DEAR_NS) && !self.written.exceeds(1) && !self.early.exceeds(1);
        let was = self.is_by_faults();
        let idle = now.saturating_sub(self.active_ns.load(Ordering::Relaxed)) > IDLE_NS;
        if was && idle {
            // Nobody runs here whom it could hold up: what it pays is to be measured again.
            self.cost.forget();
        }
        let by_faults = is_dear && !(was && idle);
        if by_faults && !was {
            self.active_ns.store(now, Ordering::Relaxed);
        }
        self.by_faults.store(by_faults, Ordering::Relaxed);
        by_faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK_NS: u64 = 20_000_000;

    /// One that has moved 1000 pages out, at `cost` nanoseconds each.
    fn after_moving(cost: u64) -> Who {
        let who = Who::new();
        for _ in 0..100 {
            who.note_moved(10 * cost, 10);
            who.note_touched();
        }
        who
    }

    #[test]
    fn faults_make_room_where_that_is_dear_for_the_reclaimer() {
        assert!(!Who::new().decide(TICK_NS), "nothing is known yet");
        assert!(!after_moving(DEAR_NS / 2).decide(TICK_NS));
        assert!(after_moving(2 * DEAR_NS).decide(TICK_NS));
    }

    #[test]
    fn cheap_moves_later_outweigh_dear_ones_before() {
        let who = after_moving(2 * DEAR_NS);
        assert!(who.decide(TICK_NS));
        for _ in 0..40 {
            who.note_moved(64 * 100, 64);
        }
        who.note_fault(2 * TICK_NS);
        assert!(!who.decide(2 * TICK_NS));
    }

    #[test]
    fn the_reclaimer_takes_over_where_no_fault_makes_room() {
        let who = after_moving(2 * DEAR_NS);
        assert!(who.decide(TICK_NS));
        assert!(who.decide(TICK_NS + IDLE_NS), "not at once");
        assert!(!who.decide(2 * TICK_NS + IDLE_NS));
        assert!(
            !who.decide(3 * TICK_NS + IDLE_NS),
            "not before it has measured again"
        );
    }

    #[test]
    fn helpers_read_files_ahead_and_leave_compressed_pages_to_the_faults() {
        let who = after_moving(2 * DEAR_NS);
        assert!(!who.is_alone(|| TICK_NS), "the reclaimer makes room still");
        assert!(who.decide(TICK_NS) && who.is_alone(|| TICK_NS + IDLE_NS));
        who.note_file(TICK_NS + IDLE_NS);
        assert!(!who.is_alone(|| TICK_NS + 2 * IDLE_NS));
        assert!(who.is_alone(|| 2 * TICK_NS + 2 * IDLE_NS));
    }

    #[test]
    fn what_is_waited_for_and_what_comes_early_is_the_reclaimers() {
        let writing = after_moving(2 * DEAR_NS);
        writing.note_stored(256, 64);
        assert!(!writing.decide(TICK_NS));
        let streaming = after_moving(2 * DEAR_NS);
        streaming.note_early(128);
        assert!(!streaming.decide(TICK_NS));
    }
}
