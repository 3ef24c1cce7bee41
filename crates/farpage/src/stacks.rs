//! Stacks in managed memory: the kernel writes signal frames there without asking anybody.

use core::sync::atomic::Ordering;

use farpage_core::page_state::{Kind, PIN_MAX};

use crate::activate;
use crate::cow;
use crate::engine_stack;
use crate::errand;
use crate::fault;
use crate::in_flight;
use crate::mem::managed_pages;
use crate::mm::{Mm, PAGE, TOUCHED, mm};
use crate::trap::managed_part;

/// Bytes below the top of a stack that are brought in at once.
pub const TOP: u64 = 256 << 10;

/// Keeps a stack in RAM until [`let_go`], in forked children too: its top from now on, what lies deeper once it is touched.
pub fn keep(addr: u64, len: u64) {
    let mm = mm();
    let Some((lo, hi)) = managed_pages(addr, len) else {
        return;
    };
    let top = top_of(lo, hi);
    for page in lo..top {
        keep_page(mm, page);
        if mm.load(page).kind() == Kind::Resident {
            // It may be there and write-protected.
            fault::pin_for_good(mm, page);
        }
    }
    (top..hi).for_each(|page| fault::pin_for_good(mm, page));
    if mm.is_active() {
        let _watched = errand::watched(mm);
        engine_stack::blocked(|| {
            let _inside = mm.gate.shared();
            cow::lift_range(mm, lo, hi);
        });
    }
}

fn top_of(lo: u64, hi: u64) -> u64 {
    hi.saturating_sub(TOP / PAGE).max(lo)
}

/// Keeps a page in RAM from when it is there.
fn keep_page(mm: &Mm, page: u64) {
    // The next to unmap the chunk must look at its words.
    mm.chunk(page).fetch_or(TOUCHED, Ordering::Relaxed);
    fault::set_pins(mm, page, PIN_MAX);
}

/// Before the process becomes active: a thread's first fault may come before anybody could bring its alternate stack in.
pub fn make_noted_present(mm: &Mm) {
    each_noted(mm, |lo, hi, first| in_flight::make_present(first.max(lo), hi));
}

/// Keeps what was noted in RAM, now that it is in the books. The caller is alone inside the gate, and nothing has been evicted.
pub fn keep_noted(mm: &Mm) {
    each_noted(mm, |lo, hi, _| (lo..hi).for_each(|page| keep_page(mm, page)));
}

/// Calls `f` with the noted ranges that are mapped still, and the first page of each that is to be there from the start.
fn each_noted(mm: &Mm, f: impl Fn(u64, u64, u64)) {
    activate::each_noted(&mut |addr, len, present| {
        let is_mapped = |&(lo, hi): &(u64, u64)| {
            let maps = mm.maps.lock();
            maps.as_ref().is_some_and(|maps| maps.covers(lo, hi))
        };
        if let Some((lo, hi)) = managed_part(addr, len).filter(is_mapped) {
            f(lo, hi, hi.saturating_sub(present.div_ceil(PAGE) + 1));
        }
    });
}

/// Lets the pages of a stack be evicted again.
pub fn let_go(addr: u64, len: u64) {
    let mm: &Mm = mm();
    if let Some((lo, hi)) = managed_pages(addr, len).filter(|_| mm.is_active()) {
        (lo..hi).for_each(|page| fault::set_pins(mm, page, 0));
    }
}
