//! What the program is to inherit from whoever started us, and the standard library would change: SIGPIPE ignored (services
//! of systemd are started so), and the mask of blocked signals.
//!
//! # Safety
//! Asks for and sets signal state of the calling thread and process.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

/// Whether SIGPIPE was ignored when this process began.
static SIGPIPE_IGNORED: AtomicBool = AtomicBool::new(false);

/// Runs before `main`: the runtime ignores SIGPIPE on the way there.
#[used]
// SAFETY: a function that libc calls with arguments it does not look at; it needs nothing that is not there yet.
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

extern "C" fn note() {
    let mut now = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: sigaction fills the room it is given.
    let ignored = unsafe {
        libc::sigaction(libc::SIGPIPE, ptr::null(), now.as_mut_ptr()) == 0
            && now.assume_init().sa_sigaction == libc::SIG_IGN
    };
    SIGPIPE_IGNORED.store(ignored, Ordering::Relaxed);
}

/// Signal state for a child.
#[derive(Clone, Copy)]
pub struct SignalState {
    mask: libc::sigset_t,
    sigpipe_ignored: bool,
}

impl SignalState {
    /// That of the calling thread, and of this process when it began.
    pub fn now() -> Self {
        let mut mask = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: fills the room it is given, which is valid as it is too.
        let mask = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask.as_mut_ptr());
            mask.assume_init()
        };
        Self {
            mask,
            sigpipe_ignored: SIGPIPE_IGNORED.load(Ordering::Relaxed),
        }
    }

    /// Sets it, between fork and exec: only calls that are safe there.
    pub fn restore(&self) {
        // SAFETY: a mask and a disposition that were there before.
        unsafe {
            if self.sigpipe_ignored {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, ptr::null_mut());
        }
    }
}
