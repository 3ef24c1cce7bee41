//! What the program is to inherit from whoever started us, and the standard library would change: SIGPIPE ignored, and the
//! mask of blocked signals.
//!
//! # Safety
//! Asks for and sets signal state of the calling thread and process.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;
use core::ptr;

/// Signal state for a child.
#[derive(Clone, Copy)]
pub struct SignalState {
    mask: libc::sigset_t,
    ignores_sigpipe: bool,
}

impl SignalState {
    /// The calling thread's mask, and what is to become of SIGPIPE. From now on signals in `held` wait, until
    /// [`release`](Self::release).
    pub fn hold(held: impl Iterator<Item = i32>, ignores_sigpipe: bool) -> Self {
        let mut mask = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: sets and masks of our own; the old mask fills the room it is given, which is valid as it is too.
        let mask = unsafe {
            let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
            libc::sigemptyset(set.as_mut_ptr());
            for sig in held {
                libc::sigaddset(set.as_mut_ptr(), sig);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), mask.as_mut_ptr());
            mask.assume_init()
        };
        Self {
            mask,
            ignores_sigpipe,
        }
    }

    /// Sets it, between fork and exec: only calls that are safe there.
    pub fn restore(&self) {
        // SAFETY: a disposition that was there before.
        unsafe {
            if self.ignores_sigpipe {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            }
        }
        self.release();
    }

    /// The mask that the calling thread had before: what waited arrives.
    pub fn release(&self) {
        // SAFETY: a mask that was there before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, ptr::null_mut()) };
    }
}
