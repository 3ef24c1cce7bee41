//! Buffers that are in RAM: a call on one needs no handler, only that the pages stay.
//!
//! Nothing here faults anything in, so it fits on whatever stack the program calls from.

use super::managed_part;
use crate::fault;
use crate::mm::mm;
use crate::pool::flag;

/// Pages pinned this way. A longer buffer is brought in and pinned by the handler.
const PAGES_MAX: u64 = 64;

/// Pages that stay resident until this is dropped.
pub struct Held {
    lo: u64,
    hi: u64,
}

/// Keeps a buffer where it is; `None`: it is not wholly in RAM, or none of it is managed, or the kernel is free to fault it in, or the
/// caller may die without its process (`errand`).
#[must_use]
pub fn hold(addr: u64, len: u64) -> Option<Held> {
    let mm = mm();
    let (lo, hi) = managed_part(addr, len)?;
    if hi - lo > PAGES_MAX || !mm.is_active() || mm.is_lent() || mm.header().has(flag::THREAD_DELIVERY) {
        return None;
    }
    let mut held = Held { lo, hi: lo };
    while held.hi < hi {
        if !fault::pin_now(mm, held.hi) {
            return None;
        }
        held.hi += 1;
    }
    Some(held)
}

impl Drop for Held {
    fn drop(&mut self) {
        (self.lo..self.hi).for_each(|page| fault::unpin(mm(), page));
    }
}
