//! What the program is to inherit from whoever started us. Some of it is not so in us: signals that were ignored, and the mask of
//! blocked ones. And files, which are not for us.
//!
//! # Safety
//! Asks for and sets signal state of the calling thread and process, and closes descriptors that nobody here knows.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;
use core::ptr;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Signal state for a child.
#[derive(Clone)]
pub struct SignalState {
    mask: libc::sigset_t,
    ignored: Vec<i32>,
}

impl SignalState {
    /// The calling thread's mask, and which signals are to be ignored. From now on signals in `held` wait, until
    /// [`release`](Self::release).
    pub fn hold(held: impl Iterator<Item = i32>, ignored: Vec<i32>) -> Self {
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
        Self { mask, ignored }
    }

    /// Sets it, between fork and exec: only calls that are safe there.
    pub fn restore(&self) {
        for &sig in &self.ignored {
            // SAFETY: a disposition that was there before.
            unsafe { libc::signal(sig, libc::SIG_IGN) };
        }
        self.release();
    }

    /// The mask that the calling thread had before: what waited arrives.
    pub fn release(&self) {
        // SAFETY: a mask that was there before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, ptr::null_mut()) };
    }
}

/// Closes all files that were there when this program began: they are not closed by exec, and each that was opened since is. The
/// standard ones are of nothing then.
pub fn let_go() {
    let_go_of(&[libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO]);
}

/// The same, but for where this program tells what it has to: others learn when the command closes a pipe, and a lock ends with it.
pub fn let_go_but_stderr() {
    let_go_of(&[libc::STDIN_FILENO, libc::STDOUT_FILENO]);
}

/// Of all that are not standard ones, and of these.
fn let_go_of(standard: &[i32]) {
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<i32> = open
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > libc::STDERR_FILENO)
        .collect();
    for fd in numbers {
        // SAFETY: no file of ours is named by such a number.
        unsafe {
            let flags = libc::fcntl(fd, libc::F_GETFD);
            if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
                libc::close(fd);
            }
        }
    }
    // A pipe that nobody writes to has an end like it.
    let nothing = OpenOptions::new().read(true).write(true).open("/dev/null");
    let nothing = nothing
        .map(OwnedFd::from)
        .or_else(|_| io::pipe().map(|(end, _)| end.into()));
    let Ok(nothing) = nothing else { return };
    for &fd in standard {
        // SAFETY: the runtime has seen to it that these are nothing of ours.
        unsafe { libc::dup2(nothing.as_raw_fd(), fd) };
    }
}
