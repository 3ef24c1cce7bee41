//! The part of libc's fork in which this thread's system calls are dispatched: around the clone, and no longer.
//!
//! In fork(3) it lies inside all handlers of pthread_atfork: those that open and close it were registered first, and what
//! prepares is called in reverse order. A handler of the program's may start a thread or a program: the dispatched clone
//! would come back from the stub on a stack that was prepared for libc's own instruction. It may fork. And its mask is the program's.
//!
//! # Safety
//! What an open window has to give back is touched by the thread that holds `fork_lock` alone, or by its copy, the child.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, Ordering};

use crate::births;
use crate::dispatch::Dispatched;
use crate::errand::{self, Watched};
use crate::mm::mm;
use crate::sigmask;
use crate::sys::{self, SigMask};

struct Window {
    dispatched: Dispatched,
    mask: SigMask,
    watched: Option<Watched>,
}

/// The one window that may be open, and whose it is (0: nobody's).
struct Open {
    thread: AtomicI32,
    window: UnsafeCell<Option<Window>>,
}

// SAFETY: see the file's note.
unsafe impl Sync for Open {}

static OPEN: Open = Open {
    thread: AtomicI32::new(0),
    window: UnsafeCell::new(None),
};

/// Runs `libc_call`, which clones and calls no handlers, in a window.
pub fn within(libc_call: &mut dyn FnMut() -> i64) -> i64 {
    let _birth = births::begin();
    open();
    let result = libc_call();
    close();
    result
}

/// Opens a window on this thread, if the process is active: then [`close`] follows, and in the child another.
pub fn open() {
    let mm = mm();
    if !mm.is_active() {
        return;
    }
    let watched = errand::watched(mm);
    sigmask::faults_come();
    let mask = sys::block_signals();
    let mut since = 0;
    while mm.fork_lock.swap(1, Ordering::Acquire) != 0 {
        sys::futex_wait(&mm.fork_lock, 1, false, 10_000);
        errand::blame(&mut since);
    }
    let window = Window {
        dispatched: Dispatched::begin(),
        mask,
        watched,
    };
    // SAFETY: this thread has the lock.
    let left = unsafe { (*OPEN.window.get()).replace(window) };
    // Of a thread that is not here: this process was forked by number while another thread had one open. To end it would end this one's.
    core::mem::forget(left);
    OPEN.thread.store(sys::gettid(), Ordering::Relaxed);
}

/// Closes this thread's window, if it has one.
pub fn close() {
    let thread = OPEN.thread.load(Ordering::Relaxed);
    if thread == 0 || thread != sys::gettid() {
        return;
    }
    OPEN.thread.store(0, Ordering::Relaxed);
    // SAFETY: this thread has the lock.
    let Some(window) = (unsafe { (*OPEN.window.get()).take() }) else {
        return;
    };
    let mm = mm();
    drop(window.dispatched);
    mm.fork_lock.store(0, Ordering::Release);
    sys::futex_wake(&mm.fork_lock, 1, false);
    sys::set_mask(window.mask);
    sigmask::faults_came();
    drop(window.watched);
}

/// In the child: the window it was made in is its own.
pub fn inherit() {
    sigmask::forget_pending();
    OPEN.thread.store(sys::gettid(), Ordering::Relaxed);
}
