//! What reclaim asks of the kernel, page by page.
//!
//! # Safety
//! Addresses are pages whose words this thread has locked, or frames of a block it holds.
#![allow(unsafe_code)]

use crate::mm::{Mm, PAGE};
use crate::sys;

/// Bit i: page i from `addr` has memory (in RAM or in the host's own swap).
pub fn presence(addr: u64, pages: u64) -> u64 {
    let mut vec = [0u8; 64];
    // SAFETY: mincore only reads page tables and writes one byte a page into vec.
    let result = unsafe {
        sys::raw(
            libc::SYS_mincore,
            [addr, pages * PAGE, vec.as_mut_ptr() as u64, 0, 0, 0],
        )
    };
    if result < 0 {
        return 0;
    }
    vec.iter()
        .enumerate()
        .fold(0, |bits, (i, byte)| bits | u64::from(byte & 1) << i)
}

pub fn populate_write(addr: u64, len: u64) {
    // SAFETY: breaks copy-on-write sharing of present pages; content is unchanged. Failure shows in the MOVE.
    let _ = unsafe { sys::madvise(addr, len, libc::MADV_POPULATE_WRITE) };
}

pub fn drop_frames(addr: u64, len: u64) {
    // SAFETY: no word names these frames any more.
    let _ = unsafe { sys::madvise(addr, len, libc::MADV_DONTNEED) };
}

/// Copies a page that can't be moved (its mapping is read-only, so nobody writes it) and drops the original.
pub fn copy_out(mm: &Mm, src: u64, dst: u64) -> bool {
    let mut context = mm.context();
    let to = [context.bounce[0].as_mut_ptr() as u64, PAGE];
    let from = [src, PAGE];
    // SAFETY: reads the page without a signal if it is unreadable (PROT_NONE: EFAULT, then it stays).
    let copied = unsafe {
        let iov = (to.as_ptr() as u64, from.as_ptr() as u64);
        sys::raw(
            libc::SYS_process_vm_readv,
            [sys::getpid() as u64, iov.0, 1, iov.1, 1, 0],
        )
    };
    if copied != PAGE as i64 || writable(src) {
        return false;
    }
    if mm.uffd().copy(dst, to[0], PAGE).error.is_some() {
        return false;
    }
    // SAFETY: the page is copied, its word locked, and its mapping can change only with the gate held alone.
    unsafe { sys::madvise(src, PAGE, libc::MADV_DONTNEED) }.is_ok()
}

/// Whether the program could write the page now: then a copy could miss a write.
fn writable(addr: u64) -> bool {
    // SAFETY: POPULATE_WRITE of a present page changes no content; it fails with EFAULT in a read-only mapping.
    unsafe { sys::madvise(addr, PAGE, libc::MADV_POPULATE_WRITE) }.is_ok()
}
