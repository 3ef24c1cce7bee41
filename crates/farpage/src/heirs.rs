//! What forked children get of managed memory, as the program said it to the kernel, which keeps both apart: a mapping under
//! MADV_DONTFORK is not there in a child, one under MADV_WIPEONFORK is there and empty.
//!
//! Noted beside page states, since a child's words would still name the content. A note that finds no room is refused, or a child
//! would find what it must not, or miss what it must have.

use farpage_core::range_map::{Range, RangeMap};

use crate::gate::SpinGuard;
use crate::maps::{Said, each_said};
use crate::mem::{self, ENOMEM, managed_pages};
use crate::mm::Mm;
use crate::range_set::{RANGES_MAX, RangeSet, first_within};
use crate::sys::{self, Errno};

/// Pages under MADV_DONTFORK.
static NOT_COPIED: RangeSet = RangeSet::new();
/// Pages under MADV_WIPEONFORK.
static WIPED: RangeSet = RangeSet::new();
const BOTH: [&RangeSet; 2] = [&NOT_COPIED, &WIPED];

type Held = SpinGuard<'static, Option<RangeMap<'static>>>;

/// Held across a fork, so that the child finds no lock held by a thread it does not have.
pub fn hold() -> [Held; 2] {
    [NOT_COPIED.hold(), WIPED.hold()]
}

/// Pages `lo..hi` are unmapped.
pub fn forget(lo: u64, hi: u64) {
    BOTH.iter().for_each(|set| set.forget(lo, hi));
}

/// See [`RangeSet::moved`].
pub fn moved(from: Range, to: Range, stays: bool) {
    BOTH.iter().for_each(|set| set.moved(from, to, stays));
}

/// See [`RangeSet::grown`].
pub fn grown(lo: u64, hi: u64) {
    BOTH.iter().for_each(|set| set.grown(lo, hi));
}

/// The set that an advice changes, and whether pages come into it.
fn set_of(advice: i32) -> (&'static RangeSet, bool) {
    match advice {
        libc::MADV_DONTFORK => (&NOT_COPIED, true),
        libc::MADV_DOFORK => (&NOT_COPIED, false),
        libc::MADV_WIPEONFORK => (&WIPED, true),
        _ => (&WIPED, false),
    }
}

/// One of the four advices about pages `lo..hi`, which `kernel` tells the kernel.
pub fn advise(mm: &Mm, lo: u64, hi: u64, advice: i32, kernel: impl FnOnce() -> i64) -> i64 {
    let _alone = mm.gate.alone();
    let (set, comes) = set_of(advice);
    let mut parts = 0;
    each_mapped(mm, lo, hi, |_| parts += 1);
    // Each part makes one range more at most, be it that it splits one.
    let has_room = set.with(|ranges| ranges.ranges().len() + parts <= RANGES_MAX);
    if has_room != Some(true) {
        return ENOMEM;
    }
    let result = kernel();
    match result {
        // What is mapped of a range with holes has it too.
        0 | ENOMEM => each_mapped(mm, lo, hi, |part| {
            let _ = set.with_used(|ranges| {
                if comes {
                    ranges.insert(part.start, part.end)
                } else {
                    ranges.remove(part.start, part.end)
                }
            });
        }),
        // It may have come to an end halfway.
        _ => {
            forget(lo, hi);
            if each_said_of(lo, hi, note).is_err() {
                sys::die(&[
                    "farpage: it can't be told what forked children get of memory about which madvise has failed ",
                    "(/proc, or more than 4096 ranges under DONTFORK or WIPEONFORK); the program was stopped",
                ]);
            }
        }
    }
    result
}

/// Calls `f` with each mapped part of pages `lo..hi`.
fn each_mapped(mm: &Mm, lo: u64, hi: u64, mut f: impl FnMut(Range)) {
    let maps = mm.maps.lock();
    let mut at = lo;
    while let Some(part) = maps.as_ref().and_then(|maps| first_within(maps, at, hi)) {
        f(part);
        at = part.end;
    }
}

/// Calls `f` for each part of pages `lo..hi` about which the kernel was told something.
pub fn each_said_of(lo: u64, hi: u64, f: impl Fn(u64, u64, Said) -> Result<(), Errno>) -> Result<(), Errno> {
    each_said(
        |mapping, said| match managed_pages(mapping.start, mapping.end - mapping.start) {
            Some((start, end)) if start < hi && lo < end => f(start.max(lo), end.min(hi), said),
            _ => Ok(()),
        },
    )
}

/// Notes what the kernel was told before of pages that are managed from now on.
pub fn note(lo: u64, hi: u64, said: Said) -> Result<(), Errno> {
    for (set, is_said) in [(&NOT_COPIED, said.not_copied), (&WIPED, said.wiped)] {
        if is_said && set.with(|ranges| ranges.insert(lo, hi)) != Some(Ok(())) {
            return Err(Errno(libc::ENOMEM));
        }
    }
    Ok(())
}

/// In a forked child, alone as it starts: content that it does not get is gone. Its own children do get what it maps in the gaps.
pub fn drop_content(mm: &Mm) {
    for set in BOTH {
        let _ = set.with_used(|ranges| {
            ranges
                .iter()
                .for_each(|range| mem::forget_content(mm, range.start, range.end));
        });
    }
    let _ = NOT_COPIED.with_used(RangeMap::clear);
}
