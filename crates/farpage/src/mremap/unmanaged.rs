//! mremap of memory that is not managed: the kernel's alone, but for what has left managed memory in several mappings, which it does not merge
//! there either. (Its next mremap got EFAULT.)
//!
//! # Safety
//! Takes back a mapping of ours that nothing was moved to.
#![allow(unsafe_code)]

use super::{EFAULT, ENOMEM, Remap, USER_END, pieces};
use crate::mem::round_up;
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

/// Moves to a fixed place, of managed memory or not.
pub(super) fn at_place(request: Remap) -> i64 {
    let sized = sized(request).filter(|_| pieces::have_moved());
    sized.map_or_else(
        || request.kernel(),
        |sized| match pieces::relocate(sized, false) {
            Ok(()) => sized.new as i64,
            Err(refusal) => refusal.errno,
        },
    )
}

/// Moves what the kernel has refused as several mappings to a place of its choice.
fn elsewhere(request: Remap) -> i64 {
    if request.flags & libc::MREMAP_MAYMOVE == 0 {
        return EFAULT;
    }
    let flags = request.flags | libc::MREMAP_FIXED;
    let Some(sized) = sized(Remap {
        flags,
        new: 0,
        ..request
    }) else {
        return EFAULT;
    };
    let Ok(new) = sys::engine_memory(sized.new_len) else {
        return ENOMEM;
    };
    pieces::relocate(Remap { new, ..sized }, false).map_or_else(
        |refusal| {
            // SAFETY: mapped just now, and nothing has stayed there.
            let _ = unsafe { sys::munmap(new, sized.new_len) };
            refusal.errno
        },
        |()| new as i64,
    )
}

/// In whole pages; `None` if it is not to be moved, is to become smaller, or the kernel refuses it whatever is mapped.
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
