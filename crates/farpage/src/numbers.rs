//! The number that a process has in the tree: as the pid namespace of the supervisor counts. The process table and everybody who
//! reads it go by that.
//!
//! A process that was forked into a pid namespace of its own, and whoever descends from it without an exec, counts otherwise. Such a
//! one asks /proc, by a directory that its parent opened for it: whatever is mounted at /proc by now, what is reached through that
//! directory is told as the tree counts. Nobody else has it: one that has changed its root could leave that by it.
//!
//! # Safety
//! Calls fill buffers on the stack.
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::errand::LENT;
use crate::mm::{Mm, fd, mm};
use crate::sys::{self, Errno};

/// This process counts in another pid namespace than the tree.
static APART: AtomicBool = AtomicBool::new(false);

pub fn is_apart() -> bool {
    APART.load(Ordering::Relaxed)
}

/// What a parent opened for its child.
#[derive(Clone, Copy)]
pub enum Opened {
    /// The child counts as its parent does, and has what that has.
    Nothing,
    Directory(i32),
    /// The child needs it, and it can't be had.
    Missing,
}

impl Opened {
    /// In the parent.
    pub fn close(self) {
        if let Opened::Directory(proc) = self {
            sys::close(proc);
        }
    }
}

/// Before a clone with these flags.
pub fn open_for_child(mm: &Mm, flags: u64) -> Opened {
    if is_apart() {
        return Opened::Nothing;
    }
    let tree = mm.header().pid_namespace.load(Ordering::Relaxed);
    // A thread's own affair; and there is none to be seen before its first process.
    let next = sys::inode(c"/proc/thread-self/ns/pid_for_children");
    if flags & libc::CLONE_NEWPID as u64 == 0 && next == tree {
        return Opened::Nothing;
    }
    match sys::open(c"/proc", libc::O_PATH | libc::O_DIRECTORY) {
        Ok(proc) if counts_alike(proc) => Opened::Directory(proc),
        Ok(proc) => {
            sys::close(proc);
            Opened::Missing
        }
        Err(_) => Opened::Missing,
    }
}

/// In the forked child: whether its number can be told.
pub fn note_birth(mm: &Mm, opened: Opened) -> bool {
    match opened {
        Opened::Nothing => return true,
        // Where /proc can't be read a namespace is known by that alone: a parent outside of it has no number there.
        Opened::Missing => return sys::getppid() != 0,
        Opened::Directory(proc) if sys::move_fd(proc, mm.fd(fd::PROC), true).is_err() => return false,
        Opened::Directory(_) => {}
    }
    // Opened for nothing, maybe: where the thread group's leader has exited, say.
    let number = own_by(mm.fd(fd::PROC));
    APART.store(number != Some(sys::getpid()), Ordering::Relaxed);
    number.is_some()
}

/// The number in the tree of this process, or of the caller that borrows its memory. `None`: it can't be told, as of one that was
/// made in a namespace of its own to borrow.
#[must_use]
pub fn own() -> Option<i32> {
    if is_apart() {
        own_by(mm().fd(fd::PROC))
    } else if LENT.load(Ordering::Relaxed) != 0 && sys::pid_namespace() != tree_namespace() {
        None
    } else {
        Some(sys::getpid())
    }
}

/// The number in the tree of who is `pid` to the caller. ESRCH: there is no such process (any more). Another error: nobody
/// can tell.
pub fn of(pid: i32) -> Result<i32, Errno> {
    if !is_apart() {
        return Ok(pid);
    }
    // SAFETY: opens a descriptor that is ours alone.
    let process = unsafe { sys::call(libc::SYS_pidfd_open, [pid as u64, 0, 0, 0, 0, 0])? } as i32;
    let number = behind(process);
    sys::close(process);
    match number {
        Some(number @ 1..) => Ok(number),
        Some(_) => Err(Errno(libc::ESRCH)),
        None => Err(Errno(libc::EIO)),
    }
}

/// The number in the tree of the process behind a pidfd.
#[must_use]
pub fn behind(pidfd: i32) -> Option<i32> {
    let number = sys::Num::new(u64::try_from(pidfd).ok()?, 10);
    let (directory, path) = if is_apart() {
        let path = sys::path(&["thread-self/fdinfo/", number.text()]);
        (mm().fd(fd::PROC), path)
    } else {
        let path = sys::path(&["/proc/thread-self/fdinfo/", number.text()]);
        (libc::AT_FDCWD, path)
    };
    let mut text = [0u8; 512];
    parse(line(&mut text, directory, &path, b"Pid:\t")?)
}

/// Whether there is a process with this number in the tree.
#[must_use]
pub fn is_there(number: i32) -> bool {
    if !is_apart() {
        // EPERM means that it is there too.
        return sys::kill(number, 0) != Err(Errno(libc::ESRCH));
    }
    let digits = sys::Num::new(number as u64, 10);
    let path = sys::path(&[digits.text()]);
    let args = [mm().fd(fd::PROC) as u64, path.as_ptr() as u64, 0, 0, 0, 0];
    // SAFETY: a path that ends in a NUL.
    unsafe { sys::call(libc::SYS_faccessat, args) != Err(Errno(libc::ENOENT)) }
}

fn tree_namespace() -> u64 {
    mm().header().pid_namespace.load(Ordering::Relaxed)
}

fn own_by(proc: i32) -> Option<i32> {
    let mut target = [0u8; 16];
    let args = [
        proc as u64,
        c"self".as_ptr() as u64,
        target.as_mut_ptr() as u64,
        target.len() as u64,
        0,
        0,
    ];
    // SAFETY: a path and a buffer of ours.
    let len = unsafe { sys::call(libc::SYS_readlinkat, args).ok()? as usize };
    parse(target.get(..len)?)
}

/// Whether a directory of /proc counts as the caller does: it knows one number of it and no more.
fn counts_alike(proc: i32) -> bool {
    let mut text = [0u8; 4096];
    let path = sys::path(&["self/status"]);
    let numbers = line(&mut text, proc, &path, b"NSpid:\t");
    numbers.and_then(parse) == Some(sys::getpid())
}

/// What follows `start` in the line of a file that begins so.
fn line<'a>(text: &'a mut [u8], directory: i32, path: &[u8], start: &[u8]) -> Option<&'a [u8]> {
    let path = CStr::from_bytes_until_nul(path).ok()?;
    let file = sys::open_at(directory, path, libc::O_RDONLY).ok()?;
    let args = [file as u64, text.as_mut_ptr() as u64, text.len() as u64, 0, 0, 0];
    // SAFETY: a buffer of ours.
    let read = unsafe { sys::call(libc::SYS_read, args) };
    sys::close(file);
    let text = text.get(..read.ok()? as usize)?;
    text.split(|&byte| byte == b'\n')
        .find_map(|line| line.strip_prefix(start))
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
        assert!(counts_alike(proc));
        // SAFETY: opens a descriptor.
        let process = unsafe { sys::call(libc::SYS_pidfd_open, [own as u64, 0, 0, 0, 0, 0]).unwrap() } as i32;
        assert_eq!(behind(process), Some(own));
        assert_eq!(behind(proc), None);
        sys::close(process);
        // A descriptor of another kind tells nothing.
        let other = sys::open(c"/", libc::O_PATH | libc::O_DIRECTORY).unwrap();
        assert_eq!((own_by(other), counts_alike(other)), (None, false));
        sys::close(other);
        sys::close(proc);
    }
}
