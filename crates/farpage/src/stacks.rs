//! Stacks in managed memory: the kernel writes signal frames there without asking anybody.

use core::sync::atomic::Ordering;

use farpage_core::page_state::{Kind, PIN_MAX};

use crate::cow;
use crate::engine_stack;
use crate::errand;
use crate::fault;
use crate::mem::managed_pages;
use crate::mm::{Mm, PAGE, TOUCHED, mm};
use crate::sys;

/// Bytes below the top of a stack that are brought in at once.
const TOP: u64 = 256 << 10;

/// Keeps a stack in RAM until [`let_go`], in forked children too: its top from now on, what lies deeper once it is touched.
pub fn keep(addr: u64, len: u64) {
    let mm = mm();
    let Some((lo, hi)) = managed_pages(addr, len) else {
        return;
    };
    let top = hi.saturating_sub(TOP / PAGE).max(lo);
    for page in lo..top {
        // The next to unmap the chunk must look at its words.
        mm.chunk(page).fetch_or(TOUCHED, Ordering::Relaxed);
        fault::set_pins(mm, page, PIN_MAX);
        if mm.load(page).kind() == Kind::Resident {
            // It may be there and write-protected.
            fault::pin_for_good(mm, page);
        }
    }
    (top..hi).for_each(|page| fault::pin_for_good(mm, page));
    if mm.is_active() {
        let _watched = errand::watched(mm);
        let mask = sys::block_signals();
        engine_stack::run(|| {
            let _inside = mm.gate.shared();
            cow::lift_range(mm, lo, hi);
        });
        sys::set_mask(mask);
    }
}

/// Lets the pages of a stack be evicted again.
pub fn let_go(addr: u64, len: u64) {
    let mm: &Mm = mm();
    if let Some((lo, hi)) = managed_pages(addr, len).filter(|_| mm.is_active()) {
        (lo..hi).for_each(|page| fault::set_pins(mm, page, 0));
    }
}
