//! mremap of memory that is not managed: the kernel's alone, but for what has left managed memory in several mappings, which it does not merge
//! there either. (Its next mremap got EFAULT.)
//!
//! # Safety
//! Takes back a mapping of ours that nothing was moved to.
#![allow(unsafe_code)]

use super::pieces::{self, Refusal};
use super::{EFAULT, ENOMEM, Remap, USER_END};
use crate::mem::round_up;
use crate::reclaim_calls::unmaps_first;
use crate::sys;

pub(super) fn mremap(request: Remap) -> i64 {
    if !pieces::have_moved() {
        return request.kernel();
    }
    let mask = sys::block_signals();
    let result = if request.flags & libc::MREMAP_FIXED != 0 {
        at_place(request)
    } else {
        match request.kernel() {
            EFAULT => elsewhere(request),
            result => result,
        }
    };
    sys::set_mask(mask);
    result
}

/// Moves to a fixed place, of managed memory or not. What is to become smaller is moved as far as it stays; the rest goes.
pub(super) fn at_place(request: Remap) -> i64 {
    let stays = request.flags & libc::MREMAP_DONTUNMAP != 0;
    let rest = request.old_len.saturating_sub(request.new_len);
    let head = Remap {
        old_len: request.old_len - rest,
        ..request
    };
    let Some(sized) = sized(head).filter(|_| pieces::have_moved() && (rest == 0 || !stays)) else {
        return request.kernel();
    };
    if let Err(refusal) = pieces::relocate(sized, false) {
        return refusal.errno;
    }
    if round_up(request.old_len) > sized.old_len {
        // SAFETY: the program's own memory, which it gives up.
        let _ = unsafe {
            sys::munmap(
                sized.old + sized.old_len,
                round_up(request.old_len) - sized.old_len,
            )
        };
    }
    sized.new as i64
}

/// Moves what the kernel has refused as several mappings to a place of its choice.
fn elsewhere(request: Remap) -> i64 {
    if request.flags & libc::MREMAP_MAYMOVE == 0 {
        return EFAULT;
    }
    if request.old_len.max(request.new_len) > USER_END {
        return EFAULT;
    }
    let len = round_up(request.new_len);
    let Ok(new) = sys::engine_memory(len) else {
        return ENOMEM;
    };
    let flags = request.flags | libc::MREMAP_FIXED;
    let refusal = match sized(Remap {
        flags,
        new,
        ..request
    }) {
        Some(sized) => match pieces::relocate(sized, false) {
            Ok(()) => return new as i64,
            Err(refusal) => refusal,
        },
        None => Refusal::of(EFAULT),
    };
    // A hole that the kernel, or a piece that went back, has left there may be somebody else's by now: then all of it stays.
    if !refusal.moved && !unmaps_first() {
        // SAFETY: mapped just now, and nothing was moved there.
        let _ = unsafe { sys::munmap(new, len) };
    }
    refusal.errno
}

/// In whole pages; `None` if it is not to be moved, or the kernel refuses it whatever is mapped.
fn sized(request: Remap) -> Option<Remap> {
    let moves =
        request.flags & libc::MREMAP_DONTUNMAP != 0 || request.new != 0 || request.new_len > request.old_len;
    let is_sane = request.old_len.max(request.new_len) <= USER_END && request.new_len >= request.old_len;
    let sized = (moves && is_sane).then(|| Remap {
        old_len: round_up(request.old_len),
        new_len: round_up(request.new_len),
        ..request
    })?;
    sized.check().is_ok().then_some(sized)
}
