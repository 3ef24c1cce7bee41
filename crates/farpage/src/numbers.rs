//! The number that a process has in the tree: as the pid namespace of the supervisor counts. The process table and everybody who
//! reads it go by that.
//!
//! A process that forked into a pid namespace of its own, and whoever descends from it without an exec, counts otherwise. Such a one
//! asks /proc, by a directory that was opened when the memory it inherits became managed: whatever is mounted at /proc by now, what
//! is reached through that directory is told as the tree counts.
//!
//! # Safety
//! Calls fill buffers on the stack.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, Ordering};

use crate::mm::{Mm, fd, mm};
use crate::sys::{self, Errno};

/// This process counts in another pid namespace than the tree.
static APART: AtomicBool = AtomicBool::new(false);

/// Opens the directory, if it tells what this process, which still counts like the tree, knows about itself.
pub fn open(mm: &Mm) {
    let Ok(proc) = sys::open(c"/proc", libc::O_PATH | libc::O_DIRECTORY) else {
        return;
    };
    if own_by(proc) != Some(sys::getpid()) || sys::move_fd(proc, mm.fd(fd::PROC), true).is_err() {
        sys::close(proc);
    }
}

/// In a forked child: notes whether it counts apart. False: then nobody can tell its number.
pub fn note_birth(mm: &Mm) -> bool {
    // A parent outside of the namespace has no number there.
    if sys::getppid() == 0 {
        APART.store(true, Ordering::Relaxed);
    }
    !is_apart() || own_by(mm.fd(fd::PROC)).is_some()
}

pub fn is_apart() -> bool {
    APART.load(Ordering::Relaxed)
}

/// The caller's own number in the tree.
#[must_use]
pub fn own() -> i32 {
    if !is_apart() {
        return sys::getpid();
    }
    own_by(mm().fd(fd::PROC)).unwrap_or_else(|| {
        sys::die(&["farpage: a process in a pid namespace of its own lost the descriptor of /proc that its memory needs"])
    })
}

/// The number in the tree of who is `pid` to the caller. ESRCH: there is no such process (any more). Another error: nobody
/// can tell.
pub fn of(pid: i32) -> Result<i32, Errno> {
    if !is_apart() {
        return Ok(pid);
    }
    // SAFETY: opens a descriptor that is ours alone.
    let process = unsafe { sys::call(libc::SYS_pidfd_open, [pid as u64, 0, 0, 0, 0, 0])? } as i32;
    let number = behind(mm().fd(fd::PROC), "self/fdinfo/", process);
    sys::close(process);
    match number {
        Some(number @ 1..) => Ok(number),
        Some(_) => Err(Errno(libc::ESRCH)),
        None => Err(Errno(libc::EIO)),
    }
}

fn own_by(proc: i32) -> Option<i32> {
    let mut target = [0u8; 16];
    let to = (target.as_mut_ptr() as u64, target.len() as u64);
    // SAFETY: a path and a buffer of ours.
    let len = unsafe {
        sys::call(
            libc::SYS_readlinkat,
            [proc as u64, c"self".as_ptr() as u64, to.0, to.1, 0, 0],
        )
        .ok()? as usize
    };
    parse(target.get(..len)?)
}

/// The process behind a pidfd, as the directory counts in which `prefix` leads to the descriptors' description.
pub fn behind(directory: i32, prefix: &str, pidfd: i32) -> Option<i32> {
    let number = sys::Num::new(u64::try_from(pidfd).ok()?, 10);
    let path = sys::path(&[prefix, number.text()]);
    let mut text = [0u8; 512];
    // SAFETY: a path that ends in a NUL, and a buffer of ours.
    let len = unsafe {
        let how = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
        let args = [directory as i64 as u64, path.as_ptr() as u64, how, 0, 0, 0];
        let info = sys::call(libc::SYS_openat, args).ok()?;
        let to = (text.as_mut_ptr() as u64, text.len() as u64);
        let read = sys::call(libc::SYS_read, [info, to.0, to.1, 0, 0, 0]);
        sys::close(info as i32);
        read.ok()? as usize
    };
    let line = text
        .get(..len)?
        .split(|&byte| byte == b'\n')
        .find_map(|line| line.strip_prefix(b"Pid:\t"))?;
    parse(line)
}

pub fn parse(text: &[u8]) -> Option<i32> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_tells_own_number_and_that_behind_a_pidfd() {
        let proc = sys::open(c"/proc", libc::O_PATH | libc::O_DIRECTORY).unwrap();
        let own = sys::getpid();
        assert_eq!(own_by(proc), Some(own));
        // SAFETY: opens a descriptor.
        let process = unsafe { sys::call(libc::SYS_pidfd_open, [own as u64, 0, 0, 0, 0, 0]).unwrap() } as i32;
        assert_eq!(behind(proc, "self/fdinfo/", process), Some(own));
        assert_eq!(behind(proc, "self/fdinfo/", proc), None);
        sys::close(process);
        // A descriptor of another kind tells nothing.
        let other = sys::open(c"/", libc::O_PATH | libc::O_DIRECTORY).unwrap();
        assert_eq!(own_by(other), None);
        sys::close(other);
        sys::close(proc);
    }
}
