//! exec by a child that borrows this process's memory (vfork, clone with CLONE_VM).
//!
//! An exec that succeeds does not return, so pins taken for its strings would stay with the parent for good: its pages
//! could neither be evicted nor dropped any more. So the child brings the strings in and holds nothing; should one be evicted
//! before the kernel has read it, the kernel says so (it copies all strings before it lets go of the old image), and the child tries again.
//!
//! # Safety
//! The call is the program's own.
#![allow(unsafe_code)]

use crate::mm::{Mm, mm};
use crate::sys;
use crate::syscalls;
use crate::trap::{self, Pins};

/// How often an exec is tried. A bad pointer looks like a page that was evicted again.
pub const TRIES: u32 = 16;

/// Whether the caller runs in memory that belongs to another process.
#[must_use]
pub fn is_borrowed(mm: &Mm) -> bool {
    mm.is_active() && !mm.is_own()
}

/// An exec in borrowed memory; `None` if it is none, or did not get all its strings to stay.
pub fn perform(nr: i64, args: [u64; 6]) -> Option<i64> {
    if !matches!(nr, libc::SYS_execve | libc::SYS_execveat) || !is_borrowed(mm()) {
        return None;
    }
    for _ in 0..TRIES {
        let mut pins = Pins::new();
        let mut read = trap::read_word;
        syscalls::ranges(nr as usize, &args, &mut read, &mut |start, len| {
            pins.add(mm(), start, len)
        });
        pins.release(mm());
        // SAFETY: the program's own call.
        let result = unsafe { sys::raw(nr, args) };
        if result != -i64::from(libc::EFAULT) {
            return Some(result);
        }
    }
    None
}
