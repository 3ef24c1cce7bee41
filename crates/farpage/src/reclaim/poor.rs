//! Pages that no tier takes: they compress poorly, and no file has room for them.
//!
//! Left in frames they would fill all of these, and nothing could leave any more (decision 0038). So they are copied back into
//! the program, and their words say since when. The clock passes over them while no file has a free slot, and now and then tries one
//! again that was refused long ago: its content may have changed.
//!
//! `ProcEntry::poor` counts the words that say so, so that memory is refused in time (`Pool::room`).

use core::sync::atomic::{AtomicU64, Ordering};

use farpage_core::page_state::{Kind, PageState};
use farpage_core::stats::Counter;

use super::{BLOCK, FIRST_PLACE};
use crate::mm::{CHUNK_PAGES, Mm, PAGE, address};
use crate::reclaim_calls::drop_frames;
use crate::store;
use crate::sys::{self, Errno};

/// Nanoseconds in a unit of a word's time, as a power of two: 67 ms. It comes round after 73 minutes, when an old page may count as
/// one just refused.
const UNIT_SHIFT: u32 = 26;
/// After so many units a page is tried again: 4 s.
const AGAIN: u16 = 60;
/// From here on a time is not past, but of another thread a moment later.
const FUTURE: u16 = 1 << 15;
/// Between two pages of a process that are tried again, in nanoseconds: one takes some 50 us in vain.
const EACH_NS: u64 = 10_000_000;
/// How long the free slots of files are taken for none after a page got none, in nanoseconds: others may hold them.
const VAIN_NS: u64 = 50_000_000;

/// When a page last got no slot though some were free, and when one was last tried again.
static VAIN_AT: AtomicU64 = AtomicU64::new(0);
static TRIED_AT: AtomicU64 = AtomicU64::new(0);

fn stamp(now: u64) -> u16 {
    ((now >> UNIT_SHIFT) as u16).max(1)
}

fn is_due(now: u16, refused: u16) -> bool {
    (AGAIN..FUTURE).contains(&now.wrapping_sub(refused))
}

/// One look at some pages.
#[derive(Default)]
pub(super) struct Turn {
    known: Option<Known>,
}

/// What is looked up when the first poor page is met.
struct Known {
    now: u64,
    /// Files have room for such pages, as far as is known.
    has_slots: bool,
    /// One may be tried again.
    has_try: bool,
}

impl Turn {
    fn known(&mut self, mm: &Mm) -> &mut Known {
        self.known.get_or_insert_with(|| {
            let now = sys::now_ns();
            let passed = |at: &AtomicU64| now.saturating_sub(at.load(Ordering::Relaxed));
            Known {
                now,
                has_slots: passed(&VAIN_AT) >= VAIN_NS && mm.pool().free_or_kept_slots() > 0,
                has_try: passed(&TRIED_AT) >= EACH_NS,
            }
        })
    }

    /// Whether the page is to stay, since no tier would take it.
    pub(super) fn stays(&mut self, mm: &Mm, seen: PageState) -> bool {
        seen.refused().is_some_and(|refused| {
            let known = self.known(mm);
            !(known.has_slots || known.has_try && is_due(stamp(known.now), refused))
        })
    }

    /// The page is about to leave.
    pub(super) fn takes(&mut self, mm: &Mm, seen: PageState) {
        if seen.refused().is_some() {
            let known = self.known(mm);
            known.has_try = false;
            TRIED_AT.store(known.now, Ordering::Relaxed);
        }
    }
}

/// Whether every resident page of the window stays.
pub(super) fn all_stay(mm: &Mm, base: u64) -> bool {
    if mm.entry().poor.load(Ordering::Relaxed) <= 0 {
        return false;
    }
    let mut turn = Turn::default();
    let mut resident = (base..base + BLOCK)
        .map(|page| mm.load(page))
        .filter(|seen| seen.kind() == Kind::Resident);
    resident.all(|seen| turn.stays(mm, seen))
}

/// Whether a page of the chunk is poor and does not leave in any case, so that it can't leave as one.
pub fn any_stays(mm: &Mm, chunk: u64) -> bool {
    if mm.entry().poor.load(Ordering::Relaxed) <= 0 {
        return false;
    }
    let mut turn = Turn::default();
    let mut poor = (chunk..chunk + CHUNK_PAGES)
        .map(|page| mm.load(page))
        .filter(|seen| seen.refused().is_some());
    poor.any(|_| !turn.known(mm).has_slots)
}

/// Copies a page that no tier takes from its frame back into the program; whether it is there. Its frame goes with its block, as that of
/// a page taken back, but the memory in it at once. Where there is none for the copy the page waits on.
pub fn put_back(mm: &Mm, page: u64, frame: u64) -> bool {
    let seen = mm.load(page);
    if !store::holds(mm, page, frame) || !mm.try_lock(page, seen) {
        return false;
    }
    let from = mm.frames.address(frame);
    let copied = loop {
        let result = mm.uffd().copy(address(page), from, PAGE);
        if result.error != Some(Errno(libc::EAGAIN)) {
            break result.error.is_none();
        }
    };
    if !copied {
        mm.unlock(page, seen, seen);
        return false;
    }
    let now = sys::now_ns();
    if mm.pool().free_or_kept_slots() > 0 {
        VAIN_AT.store(now, Ordering::Relaxed);
    }
    mm.count_resident(page, 1);
    mm.entry().poor.fetch_add(1, Ordering::Relaxed);
    mm.header().count(Counter::SwpoutRefused, 1);
    let there = PageState::poor(stamp(now)).keeping(seen.slot());
    mm.unlock(page, mm.load(page), there);
    // Parts of a huge place give no memory back.
    if frame < FIRST_PLACE * BLOCK {
        drop_frames(mm, from, PAGE);
    }
    true
}

/// So many words do not say any more that no tier took their page.
pub fn forget(mm: &Mm, pages: i64) {
    if pages > 0 {
        mm.entry().poor.fetch_sub(pages, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_never_that_of_a_page_nobody_refused() {
        let lap = 1 << (UNIT_SHIFT + 16);
        for now in [0, 1, lap - 1, lap, lap + 1, 5 * lap, u64::MAX] {
            assert_ne!(stamp(now), 0, "{now}");
        }
        assert_eq!(stamp(lap + (77 << UNIT_SHIFT)), 77);
    }

    #[test]
    fn it_is_due_after_four_seconds_also_across_the_lap() {
        let second = 1_000_000_000;
        for refused in [5 * second, (1 << (UNIT_SHIFT + 16)) - 2 * second] {
            let is_due_after = |ns| is_due(stamp(refused + ns), stamp(refused));
            assert!(!is_due_after(0) && !is_due_after(3 * second));
            assert!(is_due_after(5 * second) && is_due_after(600 * second));
            // Refused by another thread, after this one has looked at the clock.
            assert!(!is_due(stamp(refused), stamp(refused + second)));
        }
    }
}
