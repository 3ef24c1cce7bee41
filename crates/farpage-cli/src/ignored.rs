//! Signals that were ignored when farpage began, and must not be in it: the runtime ignores SIGPIPE for everybody on the way to
//! `main`, and of a child whose end is ignored nobody learns how it ended. The program is to find them as they were.
//!
//! # Safety
//! Asks for and sets what becomes of a signal, before there are threads and between fork and exec.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::closed;

const SIGNALS: [i32; 2] = [libc::SIGPIPE, libc::SIGCHLD];

static IGNORED: [AtomicBool; SIGNALS.len()] = [const { AtomicBool::new(false) }; SIGNALS.len()];

#[used]
// SAFETY: a function that libc calls with arguments it does not look at; it needs nothing that is not there yet.
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

extern "C" fn note() {
    for (sig, ignored) in SIGNALS.into_iter().zip(&IGNORED) {
        let mut now = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: sigaction fills the room it is given.
        let is_ignored = unsafe {
            libc::sigaction(sig, ptr::null(), now.as_mut_ptr()) == 0
                && now.assume_init().sa_sigaction == libc::SIG_IGN
        };
        ignored.store(is_ignored, Ordering::Relaxed);
    }
    // SAFETY: as every program begins that nobody gave another.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

pub fn at_start() -> impl Iterator<Item = i32> {
    let known = SIGNALS.into_iter().zip(&IGNORED);
    known
        .filter(|(_, ignored)| ignored.load(Ordering::Relaxed))
        .map(|(sig, _)| sig)
}

/// Becomes the command, which finds them as farpage did, and its standard files too; returns only if that fails.
pub fn exec(command: &mut Command) -> io::Error {
    let again = || {
        for sig in at_start() {
            // SAFETY: a disposition that was there before.
            unsafe { libc::signal(sig, libc::SIG_IGN) };
        }
        closed::close_again();
        Ok(())
    };
    // SAFETY: before the exec calls about signals and descriptors are made and nothing else.
    unsafe { command.pre_exec(again) }.exec()
}
