//! A range that is one mapping to the program, and several to the kernel, which moves one at a time: they are moved one after the other.
//!
//! The kernel merges neighbours that have the same anon_vma. A mapping whose pages all leave at once by mremap (the scratch area's way out, if
//! it is one window) loses its own; its pages come back to the anon_vma of whatever lies beside them at that moment, so that after an
//! mprotect of its middle its parts may never merge again. (A program that moved such memory got EFAULT.) In a child of fork, whose
//! anon_vmas have the parent's beside them, they grow as many as it ever made borders.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use super::{EFAULT, Remap};
use crate::maps;
use crate::sys::{self, Errno};

static HAVE_MOVED: AtomicBool = AtomicBool::new(false);

/// Whether any range of this process was moved in several pieces, so that such a range may lie where nothing is managed.
pub(super) fn have_moved() -> bool {
    HAVE_MOVED.load(Ordering::Relaxed)
}

/// Why a range was not moved.
pub(super) struct Refusal {
    pub(super) errno: i64,
    /// The kernel was asked, which may have unmapped what was at the new place.
    pub(super) asked: bool,
    /// A part of it was, and moved back: without what was registered.
    pub(super) moved: bool,
}

impl Refusal {
    /// Without asking the kernel.
    pub(super) fn of(errno: i64) -> Refusal {
        Refusal {
            errno,
            asked: false,
            moved: false,
        }
    }
}

impl From<Errno> for Refusal {
    fn from(Errno(code): Errno) -> Refusal {
        Refusal {
            asked: true,
            ..Refusal::of(-i64::from(code))
        }
    }
}

/// Calls `f` with each part of a range that is one mapping, and its permissions, in order; that part may be moved meanwhile. EFAULT if there is a
/// hole.
fn each_piece(
    range: Range<u64>,
    mut f: impl FnMut(Range<u64>, [u8; 4]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut covered = range.start;
    if range.is_empty() {
        return Ok(());
    }
    maps::each_mapping(|mapping| {
        let (from, to) = (mapping.start.max(range.start), mapping.end.min(range.end));
        if from == covered && from < to {
            covered = to;
            f(from..to, mapping.perms)?;
        }
        Ok(())
    })?;
    if covered == range.end {
        Ok(())
    } else {
        Err(Errno(libc::EFAULT))
    }
}

/// The kernel's part of a request to move a range to a fixed place, where it is at least as large. Nobody else maps, unmaps or protects
/// managed memory meanwhile.
///
/// `at_once`: the kernel may be asked before it is known how many mappings there are. Not where something lies at the new place, which a kernel
/// before 6.17 unmaps before it refuses; nor where the size stays (DONTUNMAP) or the first of several mappings may not be registered: since 6.17 that is moved then, whatever becomes of
/// the next.
pub(super) fn relocate(request: Remap, at_once: bool) -> Result<(), Refusal> {
    if at_once {
        match sys::check(request.kernel()) {
            Err(Errno(libc::EFAULT)) => {}
            done => return Ok(done.map(drop)?),
        }
    }
    let (mut last, mut perms, mut are_alike) = (request.old, None, true);
    let listed = each_piece(request.old..request.old + request.old_len, |piece, its| {
        last = piece.start;
        are_alike &= *perms.get_or_insert(its) == its;
        Ok(())
    });
    if listed.is_err() {
        return Ok(part(&request, 0, request.old_len)?);
    }
    // What the program itself has made of several mappings is refused, as the kernel does (since 6.17 it moves them if their size stays).
    if !are_alike && request.old_len != request.new_len {
        return Err(Refusal::of(EFAULT));
    }
    one_by_one(&request, last - request.old)
}

/// The last piece, from byte `last` on, comes first: what the range is to grow by is mostly why the kernel refuses.
fn one_by_one(request: &Remap, last: u64) -> Result<(), Refusal> {
    if last > 0 {
        HAVE_MOVED.store(true, Ordering::Relaxed);
    }
    part(request, last, request.old_len)?;
    let mut done = 0;
    let others = each_piece(request.old..request.old + last, |piece, _| {
        part(request, piece.start - request.old, piece.end - request.old)?;
        done = piece.end - request.old;
        Ok(())
    });
    others.map_err(|errno| {
        shrink(request, last).unwrap_or_else(|errno| stop(errno));
        for moved in [last..request.old_len, 0..done] {
            move_back(request, moved).unwrap_or_else(|errno| stop(errno));
        }
        Refusal {
            moved: true,
            ..Refusal::from(errno)
        }
    })
}

/// Moves bytes `from..to` of the range, which are in one mapping. With its end goes what it is to grow by.
fn part(request: &Remap, from: u64, to: u64) -> Result<(), Errno> {
    let new_end = if to == request.old_len {
        request.new_len
    } else {
        to
    };
    let moved = Remap {
        old: request.old + from,
        old_len: to - from,
        new_len: new_end - from,
        new: request.new + from,
        ..*request
    };
    sys::check(moved.kernel()).map(drop)
}

/// The last piece, from byte `last` on, is as long as it was.
fn shrink(request: &Remap, last: u64) -> Result<(), Errno> {
    let cut = Remap {
        old: request.new + last,
        old_len: request.new_len - last,
        new_len: request.old_len - last,
        flags: 0,
        new: 0,
        ..*request
    };
    sys::check(cut.kernel()).map(drop)
}

/// Moves bytes `of` of the range back. They may be one mapping at their new place, or several.
fn move_back(request: &Remap, of: Range<u64>) -> Result<(), Errno> {
    let back = Remap {
        old: request.new,
        old_len: request.old_len,
        new_len: request.old_len,
        flags: libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
        new: request.old,
        ..*request
    };
    each_piece(request.new + of.start..request.new + of.end, |piece, _| {
        part(&back, piece.start - back.old, piece.end - back.old)
    })
}

fn stop(Errno(errno): Errno) -> ! {
    let code = sys::Num::new(errno as u64, 10);
    sys::die(&[
        "farpage: of memory that mremap was to move the kernel has moved a part only, and could not move it back, errno ",
        code.text(),
        "; the program was stopped (has it too many mappings? see vm.max_map_count)",
    ])
}
