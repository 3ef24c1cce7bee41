//! System V segments attached at managed addresses: the kernel's, and in our map like any other mapping among ours.
//!
//! # Safety
//! Raw calls here are the program's own requests.
#![allow(unsafe_code)]

use crate::errand;
use crate::maps;
use crate::mem::{self, managed_pages};
use crate::mm::{Mm, mm};
use crate::sys;

/// shmat(2), and shmdt(2), whose address is the first argument. The result, or `-errno`.
pub fn call(nr: i64, args: [u64; 6]) -> i64 {
    let mm = mm();
    let _watched = match errand::call(mm, nr, args) {
        Ok(result) => return result,
        Err(watched) => watched,
    };
    if nr == libc::SYS_shmat {
        attach(mm, args)
    } else {
        detach(mm, args)
    }
}

fn attach(mm: &Mm, args: [u64; 6]) -> i64 {
    let alone = mm.gate.alone();
    // SAFETY: see the file's note.
    let result = unsafe { sys::raw(libc::SYS_shmat, args) };
    if result >= 0
        && let Some((lo, hi)) = pages_at(result as u64)
    {
        // What SHM_REMAP has replaced.
        mem::discard_mapping(mm, lo, hi, &alone);
        mem::note_foreign(mm, lo, hi);
    }
    result
}

fn detach(mm: &Mm, args: [u64; 6]) -> i64 {
    let _alone = mm.gate.alone();
    let pages = pages_at(args[0]);
    // SAFETY: see the file's note.
    let result = unsafe { sys::raw(libc::SYS_shmdt, args) };
    if result == 0
        && let Some((lo, hi)) = pages
    {
        mem::forget(mm, lo, hi);
    }
    result
}

/// The managed pages of the mapping that starts at an address.
fn pages_at(start: u64) -> Option<(u64, u64)> {
    let mut pages = None;
    let _ = maps::each_mapping(|mapping| {
        if mapping.start == start {
            pages = managed_pages(start, mapping.end - start);
        }
        Ok(())
    });
    pages
}
