//! Pages that no tier takes: they compress poorly, and no file has room for them.
//!
//! Left in frames they would fill all of these, and nothing could leave any more (decision 0038). So they are copied back into
//! the program, and their words say since when. The clock passes over them while no file has a free slot, and tries one of a
//! window again after a while: its content may have changed.
//!
//! `ProcEntry::poor` counts the words that say so, so that memory is refused in time (`Pool::room`).

use core::sync::atomic::{AtomicU64, Ordering};

use farpage_core::page_state::{Kind, PageState};

use super::BLOCK;
use crate::mm::{CHUNK_PAGES, Mm, PAGE, address};
use crate::store;
use crate::sys::{self, Errno};

/// Nanoseconds in a unit of a word's time, as a power of two: 67 ms. It comes round after 73 minutes, when an old page may count as
/// one just refused.
const UNIT_SHIFT: u32 = 26;
/// After so many units a page is tried again: 4 s.
const AGAIN: u16 = 60;
/// How long the free slots of files are taken for none after a page got none, in nanoseconds: others may hold them.
const VAIN_NS: u64 = 50_000_000;

/// When a page last got no slot though some were free.
static VAIN_AT: AtomicU64 = AtomicU64::new(0);

fn stamp(now: u64) -> u16 {
    ((now >> UNIT_SHIFT) as u16).max(1)
}

/// Whether files have room for such pages, as far as is known.
fn files_take(mm: &Mm, now: u64) -> bool {
    let vain = now.saturating_sub(VAIN_AT.load(Ordering::Relaxed)) < VAIN_NS;
    !vain && mm.pool().free_slots() > 0
}

/// One look at a window.
#[derive(Default)]
pub(super) struct Turn {
    /// The time, and whether all of them may leave; known from the first such page on.
    known: Option<(u16, bool)>,
    /// Whether one is tried already.
    tried: bool,
}

impl Turn {
    /// Whether the page is to stay, since no tier would take it.
    pub(super) fn stays(&mut self, mm: &Mm, seen: PageState) -> bool {
        let Some(refused) = seen.refused() else {
            return false;
        };
        let (now, may_leave) = *self.known.get_or_insert_with(|| {
            let now = sys::now_ns();
            (stamp(now), files_take(mm, now))
        });
        if may_leave {
            return false;
        }
        let is_due = !self.tried && now.wrapping_sub(refused) >= AGAIN;
        self.tried |= is_due;
        !is_due
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

/// Whether a page of the chunk stays, so that it does not leave as one.
pub fn any_stays(mm: &Mm, chunk: u64) -> bool {
    if mm.entry().poor.load(Ordering::Relaxed) <= 0 {
        return false;
    }
    let mut turn = Turn::default();
    (chunk..chunk + CHUNK_PAGES).any(|page| turn.stays(mm, mm.load(page)))
}

/// Copies a page that no tier takes from its frame back into the program; whether it is there. The frame goes with its block, as that of
/// a page taken back. Where there is no memory for the copy it waits on.
pub fn put_back(mm: &Mm, page: u64, frame: u64) -> bool {
    let seen = mm.load(page);
    if !store::holds(mm, page, frame) || !mm.try_lock(page, seen) {
        return false;
    }
    let copied = loop {
        let result = mm.uffd().copy(address(page), mm.frames.address(frame), PAGE);
        if result.error != Some(Errno(libc::EAGAIN)) {
            break result.error.is_none();
        }
    };
    if !copied {
        mm.unlock(page, seen, seen);
        return false;
    }
    let now = sys::now_ns();
    if mm.pool().free_slots() > 0 {
        VAIN_AT.store(now, Ordering::Relaxed);
    }
    mm.count_resident(page, 1);
    mm.entry().poor.fetch_add(1, Ordering::Relaxed);
    let there = PageState::poor(stamp(now)).keeping(seen.slot());
    mm.unlock(page, mm.load(page), there);
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
            let passed = |ns| stamp(refused + ns).wrapping_sub(stamp(refused));
            assert!(passed(3 * second) < AGAIN);
            assert!(passed(5 * second) >= AGAIN);
        }
    }
}
