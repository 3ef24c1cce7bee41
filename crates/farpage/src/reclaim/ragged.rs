//! Eviction from a window with gaps, by copies.
//!
//! The kernel flushes the TLBs after each stretch of present pages that it moves, which costs an interrupt of each other CPU that the
//! program runs on: 10 to 20 us in a VM, for hardly more than a page where random touches have brought the pages in. So where
//! a run of locked pages has several gaps it is write-protected (one flush), the pages are copied to their frames, and the
//! originals dropped (one flush more).
//!
//! Between the two the program may read the pages. A write waits for the page's word, as with a page that was moved. The
//! kernel itself writes none: a page with a system call or AIO under way is pinned, and not locked. What it writes behind our back (io_uring,
//! where it is allowed) keeps the pages it has taken; those are only ever moved.

use crate::bits::{bits, mask};
use crate::cow;
use crate::mm::{Mm, PAGE, address};
use crate::pool::flag;
use crate::reclaim::BLOCK;
use crate::reclaim_calls::{drop_copied, drop_frames};
use crate::sys::Errno;

/// Stretches of pages from which on copies are cheaper: MOVE costs a flush for each, copies cost two and some us a page.
const STRETCHES_MIN: u32 = 3;

/// Evicts the victims among the `len` locked pages from place `at` of the window at `base`, all others of which are absent; the
/// bits of those that are in their frames now. None: they are to be moved.
pub fn copy_run(mm: &Mm, base: u64, block: u64, at: u64, len: u64, victims: u64) -> Option<u64> {
    let here = victims & (mask(len) << at);
    let stretches = (here & !(here << 1)).count_ones();
    if stretches < STRETCHES_MIN || !mm.can_protect() || mm.header().has(flag::ALLOW_IO_URING) {
        return None;
    }
    if cow::protect(mm, base + at, len, true).is_err() {
        unprotect(mm, base, at, len);
        return None;
    }
    let copied = copy(mm, base, block, here);
    if copied == here && drop_copied(address(base + at), len * PAGE) {
        return Some(here);
    }
    // Something stays: stretch by stretch.
    let mut gone = 0;
    for (from, count) in stretches_of(copied) {
        if drop_copied(address(base + from), count * PAGE) {
            gone |= mask(count) << from;
        } else {
            drop_frames(mm.frames.address(block * BLOCK + from), count * PAGE);
        }
    }
    unprotect(mm, base, at, len);
    Some(gone)
}

/// Copies the pages of `wanted` to their frames; the bits of those that were.
fn copy(mm: &Mm, base: u64, block: u64, wanted: u64) -> u64 {
    let mut copied = 0;
    for (from, count) in stretches_of(wanted) {
        let mut done = 0;
        while done < count {
            let (src, dst) = (
                address(base + from + done),
                mm.frames.address(block * BLOCK + from + done),
            );
            let result = mm.uffd().copy(dst, src, (count - done) * PAGE);
            done += (result.bytes / PAGE).min(count - done);
            if !matches!(result.error, None | Some(Errno(libc::EAGAIN))) {
                return copied | mask(done) << from;
            }
        }
        copied |= mask(count) << from;
    }
    copied
}

fn unprotect(mm: &Mm, base: u64, at: u64, len: u64) {
    if cow::protect(mm, base + at, len, false).is_err() {
        for page in base + at..base + at + len {
            let _ = cow::protect(mm, page, 1, false);
        }
    }
}

/// First place and length of each stretch of bits.
fn stretches_of(set: u64) -> impl Iterator<Item = (u64, u64)> {
    let starts = set & !(set << 1);
    bits(starts).map(move |at| (at, u64::from((!(set >> at)).trailing_zeros()).min(BLOCK - at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches() {
        let all = |set| stretches_of(set).collect::<Vec<_>>();
        assert_eq!(all(0), []);
        assert_eq!(all(0b1011_0001), [(0, 1), (4, 2), (7, 1)]);
        assert_eq!(all(u64::MAX), [(0, 64)]);
        assert_eq!(all(1 << 63 | 1), [(0, 1), (63, 1)]);
    }
}
