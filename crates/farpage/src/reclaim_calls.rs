//! What reclaim asks of the kernel, page by page.
//!
//! # Safety
//! Addresses are pages whose words this thread has locked, or frames of a block it holds.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, Ordering};

use farpage_core::stats::Counter;

use crate::activate;
use crate::bits::mask;
use crate::maps;
use crate::mm::{Mm, PAGE};
use crate::sys::{self, Errno};

/// Bit i: page i from `addr`, of 64 at most, has memory (in RAM or in the host's own swap). None of them where that can't be told.
pub fn presence(addr: u64, pages: u64) -> u64 {
    try_presence(addr, pages).unwrap_or(0)
}

/// The same, or why it can't be told.
pub fn try_presence(addr: u64, pages: u64) -> Result<u64, Errno> {
    let resident = in_ram(addr, pages)?;
    if resident == mask(pages) || !host_has_swap() {
        return Ok(resident);
    }
    // mincore doesn't count what the host has swapped out. Without /proc it has to do.
    Ok(resident | in_host_swap(addr, pages).unwrap_or(0))
}

/// The same where it has to be told.
pub fn sure_presence(addr: u64, pages: u64) -> u64 {
    try_presence(addr, pages).unwrap_or_else(|errno| {
        let code = sys::Num::new(errno.0 as u64, 10);
        sys::die(&[
            "farpage: it can't be told which pages could not be moved out, errno ",
            code.text(),
            "; the program was stopped so that no wrong data is used",
        ])
    })
}

fn host_has_swap() -> bool {
    // SAFETY: a structure of integers, all zero is one; the kernel fills it.
    let mut info: libc::sysinfo = unsafe { core::mem::zeroed() };
    // SAFETY: as above.
    let result = unsafe { sys::raw(libc::SYS_sysinfo, [&raw mut info as u64, 0, 0, 0, 0, 0]) };
    result < 0 || info.totalswap != 0
}

fn in_host_swap(addr: u64, pages: u64) -> Result<u64, Errno> {
    const SWAPPED: u64 = 1 << 62;
    let fd = activate::open_pagemap()?;
    let mut entries = [0u64; 64];
    // SAFETY: the buffer holds 64 entries.
    let read = unsafe {
        sys::pread_all(
            fd,
            entries.as_mut_ptr() as u64,
            pages.min(64) * 8,
            addr / PAGE * 8,
        )
    };
    sys::close(fd);
    read?;
    let swapped = entries.iter().map(|entry| u64::from(entry & SWAPPED != 0));
    Ok(swapped.enumerate().fold(0, |bits, (i, bit)| bits | bit << i))
}

fn in_ram(addr: u64, pages: u64) -> Result<u64, Errno> {
    let mut vec = [0u8; 64];
    // SAFETY: mincore only reads page tables and writes one byte a page into vec.
    unsafe {
        sys::call(
            libc::SYS_mincore,
            [addr, pages * PAGE, vec.as_mut_ptr() as u64, 0, 0, 0],
        )?
    };
    let present = vec.iter().map(|byte| u64::from(byte & 1));
    Ok(present.enumerate().fold(0, |bits, (i, bit)| bits | bit << i))
}

pub fn populate_write(addr: u64, len: u64) {
    // SAFETY: breaks copy-on-write sharing of present pages; content is unchanged. Failure shows in the MOVE.
    let _ = unsafe { sys::madvise(addr, len, libc::MADV_POPULATE_WRITE) };
}

/// Takes apart what large folios lie in the range in part and are this process's alone.
pub fn split_folios(addr: u64, len: u64) {
    // SAFETY: the content is unchanged, and so is what is mapped. That the kernel splits them is a side effect (Linux 5.4 to 6.18 do).
    let _ = unsafe { sys::madvise(addr, len, libc::MADV_COLD) };
}

pub fn drop_frames(mm: &Mm, addr: u64, len: u64) {
    mm.header().count(Counter::TlbFlushCall, 1);
    // SAFETY: no word names these frames any more.
    let _ = unsafe { sys::madvise(addr, len, libc::MADV_DONTNEED) };
}

/// Set once the program has given memory a protection key. Such memory can't be moved, and whether this thread can write it, by
/// the rights of a signal handler or of a thread of ours, says nothing of the program's threads.
static HAS_KEYS: AtomicBool = AtomicBool::new(false);

pub fn note_keys() {
    HAS_KEYS.store(true, Ordering::Relaxed);
}

pub fn has_keys() -> bool {
    HAS_KEYS.load(Ordering::Relaxed)
}

/// Lets pages in a scratch area be read and written and no more, as MOVE demands. If that fails they are as they were.
pub fn open_scratch(addr: u64, len: u64) {
    // SAFETY: the area is this thread's own.
    let _ = unsafe { sys::mprotect(addr, len, sys::PROT_RW) };
}

/// Gives pages in a scratch area the protection of the mapping at `place`, where they come from.
pub fn close_scratch(addr: u64, len: u64, place: u64) {
    let mut found = None;
    let listed = maps::each_mapping(|mapping| {
        if (mapping.start..mapping.end).contains(&place) {
            found = Some(mapping.protection());
        }
        Ok(())
    });
    // SAFETY: the area is this thread's own.
    let closed = |prot| unsafe { sys::mprotect(addr, len, prot) }.is_ok();
    if listed.is_err() || !found.is_some_and(closed) {
        sys::die(&[
            "farpage: a read-only page in use by a device can't be put back in its place as it was, so the program is stopped: \
             the process has too many mappings or open files, or the kernel no memory",
        ]);
    }
}

/// Carries the pages of a range to the scratch area at `to`; the mapping that they leave stays as it is. On an error they are where
/// they were, and the area may be unmapped (see [`unmaps_first`]).
pub fn carry(mm: &Mm, from: u64, len: u64, to: u64) -> Result<(), Errno> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    mm.header().count(Counter::TlbFlushCall, 1);
    // SAFETY: the words of all pages in the range are locked; `to` is empty and this thread's own.
    unsafe { sys::call(libc::SYS_mremap, [from, len, len, flags as u64, to, 0]) }.map(drop)
}

/// Whether this kernel's mremap unmaps what is at the new place before it looks whether the old range is in one mapping, and may be moved:
/// before Linux 6.17.
pub fn unmaps_first() -> bool {
    // SAFETY: plain words, for the kernel to fill in.
    let mut name: libc::utsname = unsafe { core::mem::zeroed() };
    // SAFETY: a whole utsname.
    let told = unsafe { sys::call(libc::SYS_uname, [&raw mut name as u64, 0, 0, 0, 0, 0]) }.is_ok();
    let release = name.release.map(|letter| letter as u8);
    let release = core::str::from_utf8(&release).ok().filter(|_| told);
    release.and_then(sys::kernel_version) < Some((6, 17))
}

/// Maps a scratch area anew, where it is gone; false if the place is somebody else's by now.
pub fn map_scratch(addr: u64, len: u64) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: replaces nothing.
    let mapped = unsafe { sys::mmap(addr, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    mapped.is_ok()
}

/// Maps a scratch area anew, that is there or unmapped: nobody else can have got the place.
pub fn map_over(addr: u64, len: u64) -> Result<(), Errno> {
    let flags = sys::MAP_MANAGED | libc::MAP_FIXED;
    // SAFETY: the area is the engine's own and not in use.
    unsafe { sys::mmap(addr, len, sys::PROT_RW, flags, -1, 0) }.map(drop)
}

/// Carries a page that could not be moved back to its place, whose mapping thereby loses its registration, and gets it again.
/// Nobody misses a fault meanwhile: the page is there.
pub fn carry_back(mm: &Mm, from: u64, to: u64) {
    if carry(mm, from, PAGE, to)
        .and_then(|()| mm.register(to, PAGE))
        .is_err()
    {
        sys::die(&[
            "farpage: a page that can't be moved out could not be put back in its place and registered, so the program is stopped: \
             the process has too many mappings, or the kernel no memory (see vm.max_map_count)",
        ]);
    }
}

/// Gives back the pages of the set bits, from `addr` on; false if that took more than one call, and more flushes than one.
pub fn drop_each(mm: &Mm, addr: u64, pages: u64) -> bool {
    /// The calling process, where a descriptor of a process is asked for (Linux 6.14; the flushes are one since 6.16).
    const PIDFD_SELF_THREAD_GROUP: i64 = -10001;
    let mut pieces = [[0u64; 2]; 32];
    let (mut count, mut left, mut len) = (0, pages, 0);
    while left != 0 {
        let first = u64::from(left.trailing_zeros());
        let run = u64::from((!(left >> first)).trailing_zeros()).min(64 - first);
        pieces[count] = [addr + first * PAGE, run * PAGE];
        (count, len) = (count + 1, len + run * PAGE);
        left &= !(mask(run) << first);
    }
    let list = [pieces.as_ptr() as u64, count as u64];
    let args = [
        PIDFD_SELF_THREAD_GROUP as u64,
        list[0],
        list[1],
        libc::MADV_DONTNEED as u64,
        0,
        0,
    ];
    mm.header().count(Counter::TlbFlushCall, 1);
    // SAFETY: frames of a block that this thread holds, which no word names.
    let dropped = unsafe { sys::raw(libc::SYS_process_madvise, args) };
    if dropped != len as i64 {
        pieces[..count]
            .iter()
            .for_each(|[addr, len]| drop_frames(mm, *addr, *len));
    }
    dropped == len as i64
}
