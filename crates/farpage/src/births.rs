//! Children that libc is making for a dormant process. While one is under way the process stays dormant: a fork that began as
//! the kernel's must not end in a process whose memory is managed by then, and the child of a spawn, which runs in this memory
//! with handlers of its own, must not meet the filter.
//!
//! Who would activate meanwhile leaves that to the last birth's end: it may be the very thread that is giving birth (a
//! handler of pthread_atfork that asks for memory), so it can't wait.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::activate;
use crate::errand;
use crate::mm::{Mm, mm, mode};
use crate::sys;

/// Set while the process is becoming active.
const CLOSED: u32 = 1 << 31;
/// Births under way, plus [`CLOSED`].
static UNDER_WAY: AtomicU32 = AtomicU32::new(0);
/// 1 if somebody wanted to activate meanwhile.
static POSTPONED: AtomicU32 = AtomicU32::new(0);

/// A child being made by a process that stays dormant until this is dropped.
pub struct Birth(());

/// Begins one; `None`: the process is not dormant.
pub fn begin() -> Option<Birth> {
    let mm = mm();
    loop {
        if mm.mode.load(Ordering::Acquire) != mode::DORMANT {
            return None;
        }
        if UNDER_WAY.fetch_add(1, Ordering::SeqCst) & CLOSED == 0 {
            let birth = Birth(());
            // It may have been closed and opened again in between.
            return (mm.mode.load(Ordering::Acquire) == mode::DORMANT).then_some(birth);
        }
        leave();
        wait_for_activation(mm);
    }
}

/// Returns when this process is active, or no other thread is making it so.
pub fn wait_for_activation(mm: &Mm) {
    if mm.is_active() {
        return;
    }
    let _watched = errand::watched(mm);
    let mask = sys::block_signals();
    drop(mm.gate.shared());
    sys::set_mask(mask);
}

/// Whether the count is none now. In a forked child it may have been [`forget`]-ed.
fn leave() -> bool {
    let less = |count: u32| (count & !CLOSED > 0).then(|| count - 1);
    UNDER_WAY
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
        .is_ok_and(|before| before == 1)
}

impl Drop for Birth {
    fn drop(&mut self) {
        if leave() && POSTPONED.swap(0, Ordering::SeqCst) != 0 {
            activate::activate();
        }
    }
}

/// No birth begins until this is dropped.
pub struct Closed(());

/// Keeps births out; `None`: one is under way, and its end will activate this process.
pub fn close() -> Option<Closed> {
    // Before the count is looked at: a birth that ends afterwards finds it.
    POSTPONED.store(1, Ordering::SeqCst);
    let closed = UNDER_WAY
        .compare_exchange(0, CLOSED, Ordering::SeqCst, Ordering::SeqCst)
        .is_ok();
    closed.then(|| {
        POSTPONED.store(0, Ordering::SeqCst);
        Closed(())
    })
}

impl Drop for Closed {
    fn drop(&mut self) {
        UNDER_WAY.fetch_and(!CLOSED, Ordering::SeqCst);
    }
}

/// In a child, which has none of the other threads.
pub fn forget() {
    UNDER_WAY.store(0, Ordering::SeqCst);
    POSTPONED.store(0, Ordering::SeqCst);
}
