//! One process of a tree at a time has memory pinned to move it: each may pin half the limit.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::mm::Mm;
use crate::pool::Pool;
use crate::sys;

/// How long a turn is waited for, in nanoseconds. Who has it may be stopped, or dead without a supervisor: then the limit is overrun.
const PATIENCE_NS: u64 = 10_000_000_000;
/// One sleep, in microseconds, unless the turn is given back.
const SLEEP_US: u64 = 5_000;

/// Ends when dropped. Signals are blocked until then: a handler of the program's that does not return would keep it.
pub struct Turn<'a> {
    taken: Option<&'a AtomicU32>,
    mask: sys::SigMask,
}

/// Waits for the turn, outside of the gate.
pub fn take(mm: &Mm) -> Turn<'_> {
    let mask = sys::block_signals();
    let mover = &mm.header().mover;
    let mine = mm.index.load(Ordering::Relaxed) + 1;
    let start = sys::now_ns();
    loop {
        let taken = mover.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed);
        let Err(holder) = taken else {
            let taken = Some(mover);
            return Turn { taken, mask };
        };
        if sys::now_ns() - start > PATIENCE_NS {
            return Turn { taken: None, mask };
        }
        sys::futex_wait(mover, holder, true, SLEEP_US);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(mover) = self.taken {
            mover.store(0, Ordering::Release);
            sys::futex_wake(mover, 1, true);
        }
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
