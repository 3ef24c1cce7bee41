//! A range that is one mapping to the program, and several to the kernel, which moves one at a time: they are moved one after the other.
//!
//! The kernel merges neighbours that have the same anon_vma. A mapping whose pages all leave at once by mremap (the scratch area's way out, if
//! it is one window) loses its own; its pages come back to the anon_vma of whatever lies beside them at that moment, so that after an
//! mprotect of its middle its parts may never merge again. (A program that moved such memory got EFAULT.)

use core::ops::Range;

use super::{EFAULT, Remap};
use crate::maps;
use crate::pool::is_managed;
use crate::sys;

/// Mappings whose ends are noted at a time.
const AT_ONCE: usize = 64;

/// What the kernel has mapped of a range, without a hole.
struct Pieces {
    /// Where the first of them end.
    ends: [u64; AT_ONCE],
    /// How many of those there are.
    count: usize,
    /// Whether all of the range, further ones included, has the same permissions.
    are_alike: bool,
}

impl Pieces {
    /// `None` if there is a hole, or it can't be told.
    fn of(range: &Range<u64>) -> Option<Pieces> {
        let mut pieces = Pieces {
            ends: [0; AT_ONCE],
            count: 0,
            are_alike: true,
        };
        let (mut covered, mut perms) = (range.start, None);
        let listed = maps::each_mapping(|mapping| {
            if mapping.start > covered || mapping.end <= covered || covered >= range.end {
                return Ok(());
            }
            covered = mapping.end.min(range.end);
            pieces.are_alike &= *perms.get_or_insert(mapping.perms) == mapping.perms;
            if pieces.count < AT_ONCE {
                pieces.ends[pieces.count] = covered;
                pieces.count += 1;
            }
            Ok(())
        });
        (listed.is_ok() && covered == range.end).then_some(pieces)
    }
}

/// The kernel's part of a request to move a range to a fixed place, where it is at least as large. Nobody else maps, unmaps or protects there meanwhile.
pub(super) fn relocate(request: Remap) -> i64 {
    // A kernel before 6.17 unmaps what is at the new place before it refuses. Away from managed addresses another thread may map something in
    // the gap, so there it is not asked in vain.
    let result = if is_managed(request.new) || is_one(&request) {
        request.kernel()
    } else {
        EFAULT
    };
    if result == EFAULT {
        one_by_one(request)
    } else {
        result
    }
}

fn old_range(request: &Remap) -> Range<u64> {
    request.old..request.old + request.old_len
}

fn is_one(request: &Remap) -> bool {
    Pieces::of(&old_range(request)).is_none_or(|pieces| pieces.count == 1)
}

/// What the program itself has made of several mappings is refused, as the kernel does (since 6.17 it moves them if their size stays).
fn one_by_one(request: Remap) -> i64 {
    let is_right = |pieces: &Pieces| pieces.are_alike || request.old_len == request.new_len;
    let Some(mut pieces) = Pieces::of(&old_range(&request)).filter(is_right) else {
        return EFAULT;
    };
    let mut done = 0;
    loop {
        for end in &pieces.ends[..pieces.count] {
            let until = end - request.old;
            match part(&request, done..until).kernel() {
                result if result >= 0 => done = until,
                refused if done == 0 => return refused,
                refused => stop(refused),
            }
        }
        if done == request.old_len {
            return request.new as i64;
        }
        let rest = request.old + done..request.old + request.old_len;
        pieces = Pieces::of(&rest).unwrap_or_else(|| stop(EFAULT));
    }
}

/// Bytes `of` of the range. The last piece takes what the range is to grow by.
fn part(request: &Remap, of: Range<u64>) -> Remap {
    let len = of.end - of.start;
    let is_last = of.end == request.old_len;
    Remap {
        old: request.old + of.start,
        old_len: len,
        new_len: if is_last { request.new_len - of.start } else { len },
        new: request.new + of.start,
        ..*request
    }
}

fn stop(refused: i64) -> ! {
    let code = sys::Num::new(refused.unsigned_abs(), 10);
    sys::die(&[
        "farpage: of memory that mremap was to move the kernel has moved a part only, errno ",
        code.text(),
        "; the program was stopped (has it too many mappings? see vm.max_map_count)",
    ])
}
