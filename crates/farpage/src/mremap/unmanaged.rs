//! mremap of memory that is not managed: the kernel's alone, but for what has left managed memory in several mappings, which it does not merge
//! there either. (Its next mremap got EFAULT.)
//!
//! # Safety
//! Takes back a mapping of ours that nothing was moved to.
#![allow(unsafe_code)]

use super::{EFAULT, ENOMEM, Remap, USER_END, pieces};
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
    let Some(sized) = sized(request).filter(|_| pieces::have_moved()) else {
        return request.kernel();
    };
    let rest = sized.old_len.saturating_sub(sized.new_len);
    let head = Remap {
        old_len: sized.old_len - rest,
        ..sized
    };
    if let Err(refusal) = pieces::relocate(head, false) {
        return refusal.errno;
    }
    if rest > 0 {
        // SAFETY: the program's own memory, which it gives up.
        let _ = unsafe { sys::munmap(head.old + head.old_len, rest) };
    }
    head.new as i64
}

/// Moves what the kernel has refused as several mappings to a place of its choice.
fn elsewhere(request: Remap) -> i64 {
    if request.flags & libc::MREMAP_MAYMOVE == 0 {
        return EFAULT;
    }
    let Some(sized) = sized(Remap { new: 0, ..request }) else {
        return EFAULT;
    };
    let Ok(new) = sys::engine_memory(sized.new_len) else {
        return ENOMEM;
    };
    let flags = sized.flags | libc::MREMAP_FIXED;
    pieces::relocate(Remap { flags, new, ..sized }, false).map_or_else(
        |refusal| {
            // A hole that the kernel, or a piece that went back, has left there may be somebody else's by now: then all of it stays.
            let may_be_holes = refusal.moved || refusal.asked && (unmaps_first() || refusal.errno == ENOMEM);
            if !may_be_holes {
                // SAFETY: mapped just now, and nothing was moved there.
                let _ = unsafe { sys::munmap(new, sized.new_len) };
            }
            refusal.errno
        },
        |()| new as i64,
    )
}

/// In whole pages; `None` if it is not to be moved, or the kernel refuses it whatever is mapped.
fn sized(request: Remap) -> Option<Remap> {
    let is_sane = request.old_len.max(request.new_len) <= USER_END;
    let sized = is_sane.then(|| Remap {
        old_len: round_up(request.old_len),
        new_len: round_up(request.new_len),
        ..request
    })?;
    let moves = sized.flags & libc::MREMAP_DONTUNMAP != 0 || sized.new != 0 || sized.new_len > sized.old_len;
    (moves && sized.check().is_ok()).then_some(sized)
}
