//! Stacks in managed memory: the kernel writes signal frames there without asking anybody.

use std::sync::OnceLock;

use farpage_core::page_state::{Kind, PIN_MAX};

use crate::cow;
use crate::engine_stack;
use crate::errand;
use crate::fault;
use crate::in_flight;
use crate::mem::{are_mapped, managed_pages};
use crate::mm::{Mm, PAGE, mm};
use crate::trap::managed_part;

/// Bytes below the top of a stack that are brought in at once.
pub const TOP: u64 = 256 << 10;

/// Calls its argument with address and length of every range that the kernel writes to without asking anybody, and how many bytes at
/// its end are to be there from the start.
pub type Noted = fn(&mut dyn FnMut(u64, u64, u64));
/// Tells what the preload library noted while the process was dormant.
static NOTED: OnceLock<Noted> = OnceLock::new();

/// Sets who tells what has to stay in RAM from activation on. Called once.
pub fn are_noted_by(noted: Noted) {
    let _ = NOTED.set(noted);
}

/// Keeps a stack in RAM until [`let_go`], in forked children too: its top from now on, what lies deeper once it is touched.
pub fn keep(addr: u64, len: u64) {
    let mm = mm();
    let Some((lo, hi)) = managed_pages(addr, len) else {
        return;
    };
    errand::end_if_orphan(mm);
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
    mm.note_touched(page);
    fault::set_pins(mm, page, PIN_MAX);
}

/// Before the process becomes active: a thread's first fault may come before anybody could bring its alternate stack in.
pub fn make_noted_present(mm: &Mm) {
    each_noted(mm, |_, hi, first| in_flight::make_present(first, hi));
}

/// Keeps what was noted in RAM, now that it is in the books. The caller is alone inside the gate, and nothing has been evicted.
pub fn keep_noted(mm: &Mm) {
    each_noted(mm, |lo, hi, _| (lo..hi).for_each(|page| keep_page(mm, page)));
}

/// Calls `f` with the noted ranges that are mapped still, and the first page of each that is to be there from the start.
fn each_noted(mm: &Mm, f: impl Fn(u64, u64, u64)) {
    let Some(noted) = NOTED.get() else { return };
    noted(&mut |addr, len, present| {
        if let Some((lo, hi)) = managed_part(addr, len).filter(|(lo, hi)| are_mapped(mm, *lo, *hi)) {
            f(lo, hi, hi.saturating_sub(present.div_ceil(PAGE) + 1).max(lo));
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
