//! The tree's descriptors survive programs that close what they do not know, or put others in its place. The filter answers such
//! calls by itself; what is made from the stub it lets pass, so those are answered here, in the same way. A dormant process has no filter.
//!
//! # Safety
//! The calls are made with the program's own arguments.
#![allow(unsafe_code)]

use crate::mm::{Mm, fd};
use crate::sys::{self, Errno};
use crate::tier_files::identity;

/// Whether `number`, of which the kernel takes the low half, is one of the tree's.
#[must_use]
pub fn is_ours(mm: &Mm, number: u64) -> bool {
    (mm.fd(0)..mm.fd(fd::COUNT)).contains(&(number as i32))
}

/// The answer to a call that would take one of the tree's descriptors away; `None` for any other.
#[must_use]
pub fn answer(mm: &Mm, nr: i64, args: &[u64; 6]) -> Option<i64> {
    let &[first, second, ..] = args;
    match nr {
        libc::SYS_close if is_ours(mm, first) => Some(0),
        libc::SYS_dup2 | libc::SYS_dup3 if is_ours(mm, second) => Some(-i64::from(libc::EBADF)),
        libc::SYS_fcntl if is_ours(mm, first) => {
            matches!(second as i32, libc::F_SETFD | libc::F_SETFL).then_some(0)
        }
        libc::SYS_ioctl if is_ours(mm, first) => {
            let marks = [libc::FIOCLEX, libc::FIONCLEX].contains(&u64::from(second as u32));
            marks.then_some(0)
        }
        libc::SYS_close_range => Some(close_beside(mm, args)),
        _ => None,
    }
}

/// close_range over our descriptors closes what lies beside them.
fn close_beside(mm: &Mm, args: &[u64; 6]) -> i64 {
    let &[first, last, flags, ..] = args;
    let (first, last) = (u64::from(first as u32), u64::from(last as u32));
    let (lo, hi) = (mm.fd(0) as u64, mm.fd(fd::COUNT - 1) as u64);
    if last < lo || first > hi || first > last {
        return close_all(first, last, flags);
    }
    let mut result = 0;
    for (from, to) in [(first, lo - 1), (hi + 1, last)] {
        if from <= to {
            result = close_all(from, to, flags);
        }
    }
    result
}

fn close_all(first: u64, last: u64, flags: u64) -> i64 {
    // SAFETY: the program's own descriptors.
    unsafe { sys::raw(libc::SYS_close_range, [first, last, flags, 0, 0, 0]) }
}

/// The pool takes a number of the engine's own. A userfaultfd of the image before, which stayed there when it could not, was taken for
/// another process's by [`check_place`].
pub fn put_pool(pool_fd: i32, number: i32) {
    if sys::copy_fd(pool_fd, number, false).is_err() {
        sys::close(number);
    }
}

/// An error unless the place of this process's userfaultfd is free: the pool holds it then, or nobody after an exec under a filter. Where
/// another process shares the descriptors (CLONE_FILES) it may hold the other's, which would be closed, and with it all that is known of
/// the other's memory.
///
/// # Errors
/// EEXIST.
pub fn check_place(mm: &Mm) -> Result<(), Errno> {
    match identity(mm.fd(fd::UFFD)) {
        Err(Errno(libc::EBADF)) => Ok(()),
        place if place? == identity(mm.fd(fd::POOL))? => Ok(()),
        _ => Err(Errno(libc::EEXIST)),
    }
}
