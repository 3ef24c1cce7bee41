//! Files of /proc about this process, and directories there without allocation: whose entries are threads or descriptors.
//!
//! What tells of memory or descriptors is asked of the calling thread (/proc/thread-self): /proc/self is the first thread, which has
//! neither once it has called pthread_exit, while the others live on.
//!
//! # Safety
//! Calls fill buffers on the stack.
#![allow(unsafe_code)]

use core::ffi::CStr;

use crate::gate::{Spin, SpinGuard};
use crate::sys::{self, Errno};

/// Held while this process is made dumpable: what it was before.
static CHANGING: Spin<i64> = Spin::new(0);

/// Opens a file of /proc about this process. They are root's while it is not dumpable, as a daemon that has changed its user is: then
/// it is for this moment.
pub fn open(path: &CStr, flags: i32) -> Result<i32, Errno> {
    match sys::open(path, flags) {
        Err(Errno(libc::EACCES)) => {}
        opened => return opened,
    }
    // No handler of the program's waits for the lock on top of its holder.
    let mask = sys::block_signals();
    let opened = {
        let mut before = CHANGING.lock();
        *before = dumpable(libc::PR_GET_DUMPABLE, 0);
        dumpable(libc::PR_SET_DUMPABLE, 1);
        let opened = sys::open(path, flags);
        put_back(*before);
        *before = 0;
        opened
    };
    sys::set_mask(mask);
    opened
}

/// Held across a fork, so that the child is no more dumpable than its parent.
pub fn hold() -> SpinGuard<'static, i64> {
    CHANGING.lock()
}

/// In a child that was forked without [`hold`]: the thread that held it is not here.
pub fn abandon_lock() {
    if CHANGING.abandon() {
        put_back(*CHANGING.lock());
    }
}

/// 2, which nobody but the kernel can say, is like 0, but for root's core dumps.
fn put_back(before: i64) {
    dumpable(libc::PR_SET_DUMPABLE, u64::from(before == 1));
}

fn dumpable(what: i32, value: u64) -> i64 {
    // SAFETY: one flag of this process.
    unsafe { sys::raw(libc::SYS_prctl, [what as u64, value, 0, 0, 0, 0]) }
}

/// Calls `f` with the directory and each name in it.
pub fn each_entry(path: &CStr, mut f: impl FnMut(i32, &[u8])) -> Result<(), Errno> {
    let directory = open(path, libc::O_RDONLY | libc::O_DIRECTORY)?;
    let result = each_name(directory, |name| f(directory, name));
    sys::close(directory);
    result
}

fn each_name(directory: i32, mut f: impl FnMut(&[u8])) -> Result<(), Errno> {
    const LENGTH_AT: usize = 16;
    const NAME_AT: usize = 19;
    let mut buffer = [0u8; 2048];
    loop {
        let args = [
            directory as u64,
            buffer.as_mut_ptr() as u64,
            buffer.len() as u64,
            0,
            0,
            0,
        ];
        // SAFETY: a buffer of ours.
        let got = unsafe { sys::call(libc::SYS_getdents64, args)? } as usize;
        if got == 0 {
            return Ok(());
        }
        let mut rest = &buffer[..got];
        while let Some(length) = rest.get(LENGTH_AT..LENGTH_AT + 2) {
            let length = usize::from(u16::from_ne_bytes([length[0], length[1]]));
            let Some(name) = rest.get(NAME_AT..length) else {
                break;
            };
            f(name.split(|byte| *byte == 0).next().unwrap_or_default());
            rest = &rest[length..];
        }
    }
}

/// Whether this process has an io_uring.
pub fn has_io_uring() -> Result<bool, Errno> {
    let mut found = false;
    each_entry(c"/proc/thread-self/fd", |directory, name| {
        found |= leads_to(directory, name, b"anon_inode:[io_uring]");
    })?;
    Ok(found)
}

/// Whether the link `name` in a directory has this target.
fn leads_to(directory: i32, name: &[u8], target: &[u8]) -> bool {
    let (mut path, mut read) = ([0u8; 16], [0u8; 64]);
    let Some(room) = path.get_mut(..name.len()) else {
        return false;
    };
    room.copy_from_slice(name);
    let Ok(path) = CStr::from_bytes_until_nul(&path) else {
        return false;
    };
    let args = [
        directory as u64,
        path.as_ptr() as u64,
        read.as_mut_ptr() as u64,
        read.len() as u64,
        0,
        0,
    ];
    // SAFETY: a path and a buffer of ours.
    let length = unsafe { sys::call(libc::SYS_readlinkat, args) };
    length.is_ok_and(|length| read[..length as usize] == *target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_seen_while_it_is_there() {
        let mut parameters = [0u64; 15];
        // SAFETY: io_uring_params is 120 bytes, all zero to begin with.
        let ring = unsafe {
            sys::call(
                libc::SYS_io_uring_setup,
                [1, parameters.as_mut_ptr() as u64, 0, 0, 0, 0],
            )
        };
        // Where the kernel allows none there is none to be seen.
        if let Ok(ring) = ring {
            assert_eq!(has_io_uring(), Ok(true));
            sys::close(ring as i32);
        }
        assert_eq!(has_io_uring(), Ok(false));
    }
}
