//! Steps that change two words of the pool one after the other: how many a process has under way, and how many it has begun.
//!
//! A process killed between the two words leaves them apart: a slot that counts a reference nobody holds, a compressed object
//! that its zpage counts and nobody has. What is apart can't be told from a step under way by the words alone, so each
//! process says when it is in between. Whoever counts again (`recount`) knows then that a dead process left something, and
//! that the living are not in between.

use core::sync::atomic::{AtomicU64, Ordering};

const UNDER_WAY: u64 = 0xffff_ffff;
const BEGUN: u64 = 1 << 32;

/// Low half: under way. High half: begun so far, modulo 2^32.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Steps(AtomicU64);

/// A step under way, until dropped.
pub struct Step<'a>(&'a Steps);

impl Steps {
    /// Begins a step. Nothing of it is seen before that.
    #[must_use]
    pub fn begin(&self) -> Step<'_> {
        self.0.fetch_add(BEGUN + 1, Ordering::SeqCst);
        Step(self)
    }

    /// Steps begun, if none is under way.
    #[must_use]
    pub fn idle(&self) -> Option<u64> {
        let word = self.0.load(Ordering::SeqCst);
        (word & UNDER_WAY == 0).then_some(word)
    }

    /// After a death: what was under way has ended. True if anything was.
    pub fn bury(&self) -> bool {
        self.0.fetch_and(!UNDER_WAY, Ordering::SeqCst) & UNDER_WAY != 0
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        // One that was buried has ended already: below none there would always be some under way.
        let ended = |word: u64| (word & UNDER_WAY != 0).then(|| word - 1);
        let _ = self.0.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_between_steps_and_after_a_burial() {
        let steps = Steps::default();
        let before = steps.idle();
        let (one, two) = (steps.begin(), steps.begin());
        assert_eq!(steps.idle(), None);
        drop(one);
        assert_eq!(steps.idle(), None);
        drop(two);
        assert!(steps.idle().is_some() && steps.idle() != before);
        core::mem::forget(steps.begin());
        assert!(steps.bury() && !steps.bury());
        assert!(steps.idle().is_some());
    }

    /// Who borrows a process's memory can end a step of it after its burial. The count once went below none, and nothing was
    /// counted again until the entry had another process, and that had died.
    #[test]
    fn a_step_that_was_buried_ends_no_other() {
        let steps = Steps::default();
        let step = steps.begin();
        assert!(steps.bury());
        let before = steps.idle();
        drop(step);
        assert!(before.is_some() && steps.idle() == before);
        let next = steps.begin();
        assert_eq!(steps.idle(), None);
        drop(next);
        assert!(steps.idle().is_some());
    }
}
