//! Which of stdin, stdout and stderr were closed when farpage began: the runtime opens /dev/null in their place on the way to `main`. The
//! program is to find them closed, as its errors tell then.
//!
//! # Safety
//! Asks about and closes descriptors by number, before there are threads and between fork and exec.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

#[used]
// SAFETY: a function that libc calls with arguments it does not look at; it needs nothing that is not there yet.
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

extern "C" fn note() {
    for (number, closed) in (0..).zip(&CLOSED) {
        // SAFETY: asks about a number, which may be nobody's.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        closed.store(flags < 0, Ordering::Relaxed);
    }
}

pub fn at_start() -> impl Iterator<Item = i32> {
    let known = (0..).zip(&CLOSED);
    known
        .filter(|(_, closed)| closed.load(Ordering::Relaxed))
        .map(|(number, _)| number)
}

/// Closes them again, before an exec.
pub fn close_again() {
    for number in at_start() {
        // SAFETY: what the runtime has opened, for nobody.
        unsafe { libc::close(number) };
    }
}
