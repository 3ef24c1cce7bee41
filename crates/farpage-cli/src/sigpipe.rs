//! Whether SIGPIPE was ignored when farpage began: services of systemd are started so, and the runtime ignores it for
//! everybody on the way to `main`.
//!
//! # Safety
//! Asks for the state of a signal.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

static IGNORED: AtomicBool = AtomicBool::new(false);

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
    IGNORED.store(ignored, Ordering::Relaxed);
}

pub fn was_ignored() -> bool {
    IGNORED.load(Ordering::Relaxed)
}
