//! userfaultfd: open, register, COPY, ZEROPAGE, MOVE.
//!
//! # Safety
//! The wrappers take page-aligned addresses of ranges that the engine owns (registered ranges and its staging area);
//! each ioctl is given a structure of the kernel's exact layout that outlives the call.
#![allow(unsafe_code)]

use crate::sys::{self, Errno};

const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_UNREGISTER: u64 = 0x8010_aa01;
const UFFDIO_WAKE: u64 = 0x8010_aa02;
const UFFDIO_COPY: u64 = 0xc028_aa03;
const UFFDIO_MOVE: u64 = 0xc028_aa05;
const UFFDIO_WRITEPROTECT: u64 = 0xc018_aa06;

pub const FEATURE_SIGBUS: u64 = 1 << 7;
pub const FEATURE_THREAD_ID: u64 = 1 << 8;
pub const FEATURE_EXACT_ADDRESS: u64 = 1 << 11;
pub const FEATURE_MOVE: u64 = 1 << 16;
const MODE_MISSING: u64 = 1;
const MODE_WP: u64 = 2;
const WRITEPROTECT_WP: u64 = 1;
const MOVE_ALLOW_SRC_HOLES: u64 = 2;
const USER_MODE_ONLY: u64 = 1;

/// One userfaultfd of this process, by descriptor number.
#[derive(Clone, Copy)]
pub struct Uffd(pub i32);

/// What a COPY or MOVE did: bytes done before it stopped, and why it stopped if it did.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub bytes: u64,
    pub error: Option<Errno>,
}

/// Opens a userfaultfd, by the system call or by /dev/userfaultfd, which a container may have instead. `kernel_faults` asks for faults of
/// system calls too, which the device gives to who may open it, and the call to the privileged.
pub fn open(kernel_faults: bool, features: u64) -> Result<i32, Errno> {
    let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
    let flags = flags | if kernel_faults { 0 } else { USER_MODE_ONLY };
    // SAFETY: opens a descriptor.
    let by_call = || unsafe { sys::call(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]) };
    let fd = if kernel_faults {
        open_device(flags).or_else(|_| by_call())?
    } else {
        by_call().or_else(|why| open_device(flags).map_err(|_| why))?
    };
    let mut api = [0xaau64, features, 0];
    // SAFETY: struct uffdio_api is three u64.
    let result = unsafe { ioctl(fd as i32, UFFDIO_API, api.as_mut_ptr() as u64) };
    if let Err(e) = result {
        sys::close(fd as i32);
        return Err(e);
    }
    Ok(fd as i32)
}

fn open_device(flags: u64) -> Result<u64, Errno> {
    const USERFAULTFD_IOC_NEW: u64 = 0xaa00;
    let dev = sys::open(c"/dev/userfaultfd", libc::O_RDWR)?;
    // SAFETY: the ioctl takes flags by value.
    let fd = unsafe { ioctl(dev, USERFAULTFD_IOC_NEW, flags) };
    sys::close(dev);
    fd
}

unsafe fn ioctl(fd: i32, cmd: u64, arg: u64) -> Result<u64, Errno> {
    // SAFETY: the caller passes a structure that fits cmd.
    unsafe { sys::call(libc::SYS_ioctl, [fd as u64, cmd, arg, 0, 0, 0]) }
}

impl Uffd {
    /// Missing pages of the range are ours to fill from now on, and with `protect` its pages can be write-protected.
    pub fn register(self, addr: u64, len: u64, protect: bool) -> Result<(), Errno> {
        let mode = MODE_MISSING | if protect { MODE_WP } else { 0 };
        let mut arg = [addr, len, mode, 0];
        // SAFETY: struct uffdio_register is four u64.
        unsafe { ioctl(self.0, UFFDIO_REGISTER, arg.as_mut_ptr() as u64).map(drop) }
    }

    /// The range is the kernel's again; who waits for a page of it tries again.
    pub fn unregister(self, addr: u64, len: u64) -> Result<(), Errno> {
        let arg = [addr, len];
        // SAFETY: struct uffdio_range is two u64; no content changes.
        unsafe { ioctl(self.0, UFFDIO_UNREGISTER, arg.as_ptr() as u64).map(drop) }
    }

    /// Makes writes to the present pages of the range fault, or (which wakes who waits) no longer.
    pub fn write_protect(self, addr: u64, len: u64, protect: bool) -> Result<(), Errno> {
        let arg = [addr, len, if protect { WRITEPROTECT_WP } else { 0 }];
        // SAFETY: struct uffdio_writeprotect is three u64; no content changes.
        unsafe { ioctl(self.0, UFFDIO_WRITEPROTECT, arg.as_ptr() as u64).map(drop) }
    }

    /// Installs copies of `src..src+len` at `dst`, each page atomically.
    pub fn copy(self, dst: u64, src: u64, len: u64) -> Done {
        let mut arg = [dst, src, len, 0, 0];
        // SAFETY: struct uffdio_copy is five u64; src is engine memory of at least len bytes.
        let result = unsafe { ioctl(self.0, UFFDIO_COPY, arg.as_mut_ptr() as u64) };
        done(result, arg[4] as i64, len)
    }

    /// Moves the pages of `src..src+len` to the empty range at `dst` without copying; holes stay holes.
    pub fn move_pages(self, dst: u64, src: u64, len: u64) -> Done {
        let mut arg = [dst, src, len, MOVE_ALLOW_SRC_HOLES, 0];
        // SAFETY: struct uffdio_move is five u64; both ranges are registered with this userfaultfd.
        let result = unsafe { ioctl(self.0, UFFDIO_MOVE, arg.as_mut_ptr() as u64) };
        done(result, arg[4] as i64, len)
    }

    /// Wakes threads that wait for pages of the range (thread delivery).
    pub fn wake(self, addr: u64, len: u64) {
        let arg = [addr, len];
        // SAFETY: struct uffdio_range is two u64.
        let _ = unsafe { ioctl(self.0, UFFDIO_WAKE, arg.as_ptr() as u64) };
    }
}

fn done(result: Result<u64, Errno>, count: i64, len: u64) -> Done {
    match result {
        Ok(_) => Done {
            bytes: len,
            error: None,
        },
        Err(e) => Done {
            bytes: count.max(0) as u64,
            error: Some(e),
        },
    }
}
