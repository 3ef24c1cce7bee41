//! A range that is one mapping to the program, and several to the kernel, which moves one at a time: they are moved one after the other.
//!
//! The kernel merges neighbours that have the same anon_vma. A mapping whose pages all leave at once by mremap (the scratch area's way out, if
//! it is one window) loses its own; its pages come back to the anon_vma of whatever lies beside them at that moment, so that after an
//! mprotect of its middle its parts may never merge again. (A program that moved such memory got EFAULT.)

use core::ops::Range;

use super::{EFAULT, Remap};
use crate::maps;
use crate::sys;

/// Most mappings that are moved so. The list is not read again half way, where it might be refused.
const MOST: usize = 64;

/// Why a range was not moved.
pub(super) struct Refusal {
    pub(super) errno: i64,
    /// A part of it was, and moved back: without what was registered.
    pub(super) moved: bool,
}

impl Refusal {
    pub(super) fn of(errno: i64) -> Refusal {
        Refusal { errno, moved: false }
    }
}

/// What the kernel has mapped of a range, without a hole.
struct Pieces {
    /// Where each of them ends.
    ends: [u64; MOST],
    count: usize,
    /// Whether all have the same permissions.
    are_alike: bool,
}

impl Pieces {
    /// `None` if there is a hole, too many of them, or they can't be told.
    fn of(range: &Range<u64>) -> Option<Pieces> {
        let mut pieces = Pieces {
            ends: [0; MOST],
            count: 0,
            are_alike: true,
        };
        let (mut covered, mut perms) = (range.start, None);
        let listed = maps::each_mapping(|mapping| {
            if mapping.start <= covered && mapping.end > covered && covered < range.end && pieces.count < MOST
            {
                covered = mapping.end.min(range.end);
                pieces.are_alike &= *perms.get_or_insert(mapping.perms) == mapping.perms;
                pieces.ends[pieces.count] = covered;
                pieces.count += 1;
            }
            Ok(())
        });
        (listed.is_ok() && covered == range.end).then_some(pieces)
    }
}

/// The kernel's part of a request to move a range to a fixed place, where it is at least as large. Nobody else maps, unmaps or protects
/// managed memory meanwhile.
///
/// `at_once`: the kernel may be asked before it is known how many mappings there are. Not where something lies at the new place, which a kernel
/// before 6.17 unmaps before it refuses; nor where the first of several mappings may not be registered: since 6.17 that is moved then.
pub(super) fn relocate(request: Remap, at_once: bool) -> Result<(), Refusal> {
    if at_once {
        match request.kernel() {
            EFAULT => {}
            refused if refused < 0 => return Err(Refusal::of(refused)),
            _ => return Ok(()),
        }
    }
    let of_one_size = request.old_len == request.new_len;
    match Pieces::of(&(request.old..request.old + request.old_len)) {
        // What the program itself has made of several mappings is refused, as the kernel does (since 6.17 it moves them if their size stays).
        Some(pieces) if pieces.count > 1 && (pieces.are_alike || of_one_size) => {
            one_by_one(&request, &pieces)
        }
        Some(pieces) if pieces.count > 1 => Err(Refusal::of(EFAULT)),
        _ => part(&request, 0, request.old_len).map_err(Refusal::of),
    }
}

/// The last comes first: what the range is to grow by is mostly why the kernel refuses.
fn one_by_one(request: &Remap, pieces: &Pieces) -> Result<(), Refusal> {
    let (ends, last) = (
        &pieces.ends[..pieces.count - 1],
        pieces.ends[pieces.count - 2] - request.old,
    );
    part(request, last, request.old_len).map_err(Refusal::of)?;
    let mut done = 0;
    for end in ends.iter().map(|end| end - request.old) {
        if let Err(errno) = part(request, done, end) {
            shrink(request, last);
            move_back(request, last..request.old_len);
            move_back(request, 0..done);
            return Err(Refusal { errno, moved: true });
        }
        done = end;
    }
    Ok(())
}

/// Moves bytes `from..to` of the range, which are in one mapping. With its end goes what it is to grow by.
fn part(request: &Remap, from: u64, to: u64) -> Result<(), i64> {
    let new_end = if to == request.old_len {
        request.new_len
    } else {
        to
    };
    let result = Remap {
        old: request.old + from,
        old_len: to - from,
        new_len: new_end - from,
        new: request.new + from,
        ..*request
    }
    .kernel();
    if result < 0 { Err(result) } else { Ok(()) }
}

/// The last piece, from byte `last` on, is as long as it was.
fn shrink(request: &Remap, last: u64) {
    let cut = Remap {
        old: request.new + last,
        old_len: request.new_len - last,
        new_len: request.old_len - last,
        flags: 0,
        new: 0,
    };
    if cut.kernel() < 0 {
        stop(EFAULT);
    }
}

/// Moves bytes `of` of the range back. They may be one mapping at their new place, or several.
fn move_back(request: &Remap, of: Range<u64>) {
    if of.is_empty() {
        return;
    }
    let back = Remap {
        old: request.new + of.start,
        old_len: of.end - of.start,
        new_len: of.end - of.start,
        flags: libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
        new: request.old + of.start,
    };
    let pieces = Pieces::of(&(back.old..back.old + back.old_len)).unwrap_or_else(|| stop(EFAULT));
    let mut done = 0;
    for end in pieces.ends[..pieces.count].iter().map(|end| end - back.old) {
        part(&back, done, end).unwrap_or_else(|errno| stop(errno));
        done = end;
    }
}

fn stop(errno: i64) -> ! {
    let code = sys::Num::new(errno.unsigned_abs(), 10);
    sys::die(&[
        "farpage: of memory that mremap was to move the kernel has moved a part only, and could not move it back, errno ",
        code.text(),
        "; the program was stopped (has it too many mappings? see vm.max_map_count)",
    ])
}
