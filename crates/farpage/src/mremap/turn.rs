//! One process of a tree at a time has memory pinned to move it: each may pin half the limit.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::mm::Mm;
use crate::pool::Pool;
use crate::sys;

/// How long a turn is waited for, in nanoseconds. Who has it may be stopped, or dead without a supervisor: then it is taken over, and the
/// limit may be overrun. (Each mover after it once waited as long.)
const PATIENCE_NS: u64 = 10_000_000_000;
/// One sleep, in microseconds, unless the turn is given back.
const SLEEP_US: u64 = 5_000;

/// Ends when dropped. Signals are blocked until then: a handler of the program's that does not return would keep it.
pub struct Turn<'a> {
    taken: Option<Taken<'a>>,
    mask: sys::SigMask,
}

/// The word that says whose turn it is, and what stands there while it is ours.
struct Taken<'a> {
    mover: &'a AtomicU32,
    mine: u32,
}

/// Waits for the turn, outside of the gate.
pub fn take(mm: &Mm) -> Turn<'_> {
    let mask = sys::block_signals();
    let mine = mm.index.load(Ordering::Relaxed) + 1;
    Turn {
        taken: take_word(&mm.header().mover, mine, PATIENCE_NS),
        mask,
    }
}

/// `None`: others took it all the time, or another thread of this process has it.
fn take_word(mover: &AtomicU32, mine: u32, patience_ns: u64) -> Option<Taken<'_>> {
    let start = sys::now_ns();
    let exchange = |from| mover.compare_exchange(from, mine, Ordering::Acquire, Ordering::Relaxed);
    loop {
        let Err(holder) = exchange(0) else {
            return Some(Taken { mover, mine });
        };
        if sys::now_ns() - start > patience_ns {
            // Its own word would be given back by whichever thread ends first.
            let taken = holder != mine && exchange(holder).is_ok();
            return taken.then_some(Taken { mover, mine });
        }
        sys::futex_wait(mover, holder, true, SLEEP_US);
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // Unless another has taken it over.
        let _ = self
            .mover
            .compare_exchange(self.mine, 0, Ordering::Release, Ordering::Relaxed);
        sys::futex_wake(self.mover, 1, true);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.taken = None;
        sys::set_mask(self.mask);
    }
}

/// Gives back the turn of a process that is gone.
pub fn bury(pool: &Pool, owner: u16) {
    let holder = u32::from(owner) + 1;
    let _ = pool
        .header()
        .mover
        .compare_exchange(holder, 0, Ordering::Relaxed, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who held it was stopped. Each mover waited for ten seconds then, again and again.
    #[test]
    fn a_turn_that_does_not_end_is_taken_over_once() {
        let mover = AtomicU32::new(0);
        let stopped = take_word(&mover, 7, PATIENCE_NS).expect("it was free");
        let next = take_word(&mover, 3, 1_000_000).expect("it does not come back");
        drop(stopped);
        assert_eq!(mover.load(Ordering::Relaxed), 3, "it is another's by now");
        drop(next);
        assert_eq!(mover.load(Ordering::Relaxed), 0);
    }

    /// The word names a process, not a thread: taken over by another one of the same it would be given back while that one still moves.
    #[test]
    fn a_turn_is_not_taken_over_within_a_process() {
        let mover = AtomicU32::new(0);
        let slow = take_word(&mover, 7, PATIENCE_NS).expect("it was free");
        assert!(take_word(&mover, 7, 1_000_000).is_none());
        drop(slow);
        assert_eq!(mover.load(Ordering::Relaxed), 0);
    }
}
