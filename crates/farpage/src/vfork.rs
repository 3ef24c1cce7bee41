//! exec by a child that borrows this process's memory (vfork, clone with CLONE_VM).
//!
//! An exec that succeeds does not return, so pins taken for its strings would stay with the parent for good: its pages
//! could neither be evicted nor dropped any more. So the child brings the strings in and holds nothing; should one be evicted
//! before the kernel has read it, the kernel says so (it copies all strings before it lets go of the old image), and the child tries again.
//!
//! # Safety
//! The call is the program's own.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::mm::{Mm, mm};
use crate::sys;
use crate::syscalls;
use crate::trap::{self, Pins};

/// How often an exec is tried. A bad pointer looks like a page that was evicted again.
pub const TRIES: u32 = 16;

/// The child that is to be traced once it execs, and when it asked; 0: none.
static TRACED: AtomicI32 = AtomicI32::new(0);
static TRACED_NS: AtomicU64 = AtomicU64::new(0);
/// What is older was left by a child that never came to an exec; its number may be another's by now.
const TRACED_MAX_NS: u64 = 60_000_000_000;

/// PTRACE_TRACEME by a child that borrows memory waits for its exec; false: the caller is none. A traced child stops for every
/// signal, those for swapped pages too, and the parent that should let it go on waits for the exec: both would wait for ever.
#[must_use]
pub fn trace_later(mm: &Mm) -> bool {
    if !is_borrowed(mm) {
        return false;
    }
    TRACED_NS.store(sys::now_ns(), Ordering::Relaxed);
    TRACED.store(sys::getpid(), Ordering::Release);
    true
}

fn trace_now() {
    let asked = TRACED.compare_exchange(sys::getpid(), 0, Ordering::Acquire, Ordering::Relaxed);
    let age = sys::now_ns().saturating_sub(TRACED_NS.load(Ordering::Relaxed));
    if asked.is_ok() && age < TRACED_MAX_NS {
        // SAFETY: changes nothing in memory.
        unsafe { sys::raw(libc::SYS_ptrace, [libc::PTRACE_TRACEME as u64, 0, 0, 0, 0, 0]) };
    }
}

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
        trace_now();
        let result = trap::issue(nr, args);
        if result != -i64::from(libc::EFAULT) {
            return Some(result);
        }
    }
    None
}
