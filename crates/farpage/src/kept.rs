//! Slots that stay with a page that came back: if it leaves again unchanged, it is there already and not written (decision 0027).
//!
//! Whether a page has changed is told by its content, not by write faults: when it comes back a digest of it is kept, in memory
//! of this process, and compared with one of its frame. The digest is 96 bits of POLYVAL (RFC 8452), the page and the slot's
//! number as a polynomial at a point that this process draws and nobody is told: two contents have the same with a chance of
//! 2^-87, whoever chose them. A page whose digest was overwritten by another one, for want of room, counts as changed.
//!
//! A slot that is this page's alone is kept only while those with a block are not scarce, and where the page would be written when it
//! leaves: what is compressed in RAM would lie there twice. Such slots are given up as soon as more than half of all are taken. One
//! that another process has too, after a fork, is there in any case, wherever its content lies: it is kept while it is.
//!
//! The name in the page's word is a reference like any other, whatever kind the page is: it comes and goes with the word
//! ([`PageState::named_slot`]). `ProcEntry::kept` says how many there are, or more: it is raised before a word names its slot, and lowered
//! afterwards.
//!
//! # Safety
//! The digests are an array of atomics that is mapped once, before the process is active.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use farpage_core::kill_point;
use farpage_core::page_state::{Kind, PageState};
use farpage_core::planes::Page;
use farpage_core::stats::Counter;
use farpage_core::swap_table::Backing;
use polyval::Polyval;
use polyval::universal_hash::UniversalHash;

use crate::mm::{CHUNK_PAGES, Mm, TOUCHED};
use crate::puts;
use crate::reclaim::BLOCK;
use crate::slot_batch;
use crate::sys::{self, Errno};
use crate::tiers;

/// Digests: one for each page of the budget, within these bounds.
const DIGESTS_MIN: u64 = 1 << 10;
const DIGESTS_MAX: u64 = 1 << 22;
/// A digest lies in one of so many places, which the slot tells.
const WAYS: usize = 8;
const ROW_BYTES: u64 = size_of::<[[AtomicU64; 2]; WAYS]>() as u64;
/// The bits of a digest that name its slot.
const SLOT: u64 = u32::MAX as u64;
/// Pages that must have been judged before the outcome counts, and that make both counts halve.
const JUDGED_FROM: u32 = 256;
const HALVED_AT: u32 = 4096;
/// Keeping pays where one page of so many leaves unchanged: two digests cost 1.3 us, a write 2 to 20.
const JUDGED_PER_UNCHANGED: u32 = 10;
/// While it does not, one window of pages in so many still keeps its slots, so that a change is noticed.
const TRIED_ONE_IN: u64 = 16;
/// Chunks of pages that one turn of giving slots up looks at.
const TURN: usize = 64;

/// What a process knows of the pages that keep their slots.
pub struct Kept {
    digests: AtomicU64,
    /// One less than how many rows of them there are; 0: slots are not kept.
    mask: AtomicU64,
    key: UnsafeCell<[u8; 16]>,
    unchanged: AtomicU32,
    changed: AtomicU32,
    /// How often both were halved.
    halvings: AtomicU64,
    /// Where slots are given up next.
    hand: AtomicU64,
    /// When none could be given up, last.
    vain_ns: AtomicU64,
}

// SAFETY: the key is written once, by `prepare`, before the process is active, and only read afterwards.
unsafe impl Sync for Kept {}

impl Default for Kept {
    fn default() -> Self {
        Kept::new()
    }
}

impl Kept {
    #[must_use]
    pub const fn new() -> Kept {
        Kept {
            digests: AtomicU64::new(0),
            mask: AtomicU64::new(0),
            key: UnsafeCell::new([0; 16]),
            unchanged: AtomicU32::new(0),
            changed: AtomicU32::new(0),
            halvings: AtomicU64::new(0),
            hand: AtomicU64::new(0),
            vain_ns: AtomicU64::new(0),
        }
    }

    /// Maps the digests, for a budget of so many pages. A CPU that can't multiply without carries would take longer
    /// over them than a write takes.
    pub fn prepare(&self, budget: u64) -> Result<(), Errno> {
        let is_quick = std::arch::is_x86_feature_detected!("pclmulqdq");
        if is_quick { self.start(budget) } else { Ok(()) }
    }

    fn start(&self, budget: u64) -> Result<(), Errno> {
        let mut key = [0u8; 16];
        // SAFETY: fills the key, which is ours.
        let drawn = unsafe {
            let (to, len) = (key.as_mut_ptr() as u64, key.len() as u64);
            sys::call(libc::SYS_getrandom, [to, len, 0, 0, 0, 0])?
        };
        if drawn != key.len() as u64 {
            return Ok(());
        }
        let count = budget.next_power_of_two().clamp(DIGESTS_MIN, DIGESTS_MAX);
        let rows = count / WAYS as u64;
        let memory = sys::engine_memory(rows * ROW_BYTES)?;
        // SAFETY: see `Sync`; nobody reads it while the mask is 0.
        unsafe { *self.key.get() = key };
        self.digests.store(memory, Ordering::Relaxed);
        self.mask.store(rows - 1, Ordering::Release);
        // The library looks at the CPU once, and not beside another thread in the middle of a fault.
        self.digest(0, &[0; 4096]);
        Ok(())
    }

    fn is_on(&self) -> bool {
        self.mask.load(Ordering::Acquire) != 0
    }

    /// The slot's number, then what tells the content.
    fn digest(&self, slot: u32, page: &Page) -> [u64; 2] {
        let mut last = [0u8; 16];
        last[..4].copy_from_slice(&slot.to_le_bytes());
        // SAFETY: written before the process was active.
        let key = unsafe { &*self.key.get() };
        let mut polynomial = Polyval::new(key.into());
        polynomial.update_padded(page);
        polynomial.update_padded(&last);
        let tag = u128::from_le_bytes(polynomial.finalize().into());
        [tag as u64 & !SLOT | u64::from(slot), (tag >> 64) as u64]
    }

    /// The places for a slot's digest: zeros, or the two halves of one. Of two that are written to the same at the same time half
    /// of each may stay: that fits neither.
    fn places(&self, slot: u32) -> &[[AtomicU64; 2]; WAYS] {
        let row = u64::from(slot) & self.mask.load(Ordering::Relaxed);
        let address = self.digests.load(Ordering::Relaxed) + row * ROW_BYTES;
        // SAFETY: inside the array, see the file's note.
        unsafe { &*(address as *const [[AtomicU64; 2]; WAYS]) }
    }

    /// The one that is the slot's; of slot 0: one that is free.
    fn place_of(&self, row: u32, slot: u32) -> Option<&[AtomicU64; 2]> {
        let is_its = |place: &&[AtomicU64; 2]| load(place)[0] & SLOT == u64::from(slot);
        self.places(row).iter().find(is_its)
    }

    /// Of each slot the last note counts: it takes the place of what was noted in an earlier life of the slot.
    fn note(&self, slot: u32, page: &Page) {
        let digest = self.digest(slot, page);
        let place = self.place_of(slot, slot).or_else(|| self.place_of(slot, 0));
        store(
            place.unwrap_or(&self.places(slot)[digest[1] as usize % WAYS]),
            digest,
        );
    }

    /// Whether the page is as it was noted, which is forgotten.
    fn is_as_noted(&self, slot: u32, page: &Page) -> bool {
        let Some(place) = self.place_of(slot, slot) else {
            return false;
        };
        let noted = load(place);
        store(place, [0, 0]);
        self.digest(slot, page) == noted
    }

    /// Whether keeping pays, as far as is known, for pages of a window.
    fn pays(&self, window: u64) -> bool {
        let (unchanged, changed) = (
            self.unchanged.load(Ordering::Relaxed),
            self.changed.load(Ordering::Relaxed),
        );
        let judged = unchanged + changed;
        judged < JUDGED_FROM
            || unchanged * JUDGED_PER_UNCHANGED >= judged
            || (window + self.halvings.load(Ordering::Relaxed)).is_multiple_of(TRIED_ONE_IN)
    }

    fn judge(&self, is_unchanged: bool) {
        let count = if is_unchanged {
            &self.unchanged
        } else {
            &self.changed
        };
        // Lost updates of others cost a little memory of the past, nothing else.
        if count.fetch_add(1, Ordering::Relaxed) >= HALVED_AT {
            for count in [&self.unchanged, &self.changed] {
                count.store(count.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
            }
            self.halvings.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn load(place: &[AtomicU64; 2]) -> [u64; 2] {
    [place[0].load(Ordering::Acquire), place[1].load(Ordering::Acquire)]
}

fn store(place: &[AtomicU64; 2], digest: [u64; 2]) {
    place[0].store(digest[0], Ordering::Release);
    place[1].store(digest[1], Ordering::Release);
}

/// Which slots stay with pages that come back.
#[derive(Clone, Copy)]
pub struct Terms {
    /// Those of one page.
    own: bool,
    /// Those that other processes have too.
    shared: bool,
}

/// On what terms pages of the window that `page` lies in are to keep their slots when they come back into the program; none: they are not.
#[must_use]
pub fn terms(mm: &Mm, page: u64) -> Option<Terms> {
    let pays = mm.kept.pays(page / BLOCK);
    pays.then(|| may_keep(mm, page)).flatten()
}

fn may_keep(mm: &Mm, page: u64) -> Option<Terms> {
    if !mm.kept.is_on() {
        return None;
    }
    let (used, all) = slot_batch::with_block(mm);
    let terms = Terms {
        own: used * 8 <= all * 3 && leaves_for_a_file(mm, page),
        // What is kept counts as free: with hardly a free block left, that would be a lie.
        shared: used * 16 <= all * 15 && mm.header().forks.load(Ordering::Relaxed) > 0,
    };
    (terms.own || terms.shared).then_some(terms)
}

/// Whether a page would be written to a file if it left now: there is no compressed tier, or that is full, or does not pay.
fn leaves_for_a_file(mm: &Mm, page: u64) -> bool {
    let header = mm.header();
    let limit = header.zpages_limit.load(Ordering::Relaxed);
    limit == 0
        || header.zpages_used.load(Ordering::Relaxed) > limit - limit / 8
        || tiers::passes_through(mm, page / BLOCK)
}

/// Whether `slot` can stay with a page: its content lies in a tier that is not being emptied.
fn can_stay(mm: &Mm, terms: Terms, slot: u32) -> bool {
    let word = mm.pool().swap_table().load(slot);
    let is_shared = terms.shared && word.count() > 1;
    match word.backing() {
        Some(Backing::Device { .. }) => (terms.own || is_shared) && tiers::stays(mm.pool(), slot),
        Some(Backing::Compressed(_)) => {
            is_shared && mm.header().control.tier_shut.load(Ordering::Relaxed) == 0
        }
        _ => false,
    }
}

/// A page whose content is `content` comes into the program from `slot`, which it is to keep if it can: the slot, or 0. The caller
/// has locked the page's word, which names the slot; it puts the slot where the answer is 0, and where it is not counts it before the word is
/// unlocked.
#[must_use]
pub fn keep(mm: &Mm, terms: Terms, slot: u32, content: &Page) -> u32 {
    if slot == 0 || !can_stay(mm, terms, slot) {
        return 0;
    }
    mm.kept.note(slot, content);
    slot
}

/// The locked page, whose word was `seen`, is back from its frame: unlocks it as `then`. It keeps the slot that it kept, unless it
/// was read ahead and that does not pay.
pub fn taken_back(mm: &Mm, page: u64, seen: PageState, then: PageState) {
    let slot = seen.slot();
    if slot != 0 && seen.readahead() {
        if !terms(mm, page).is_some_and(|terms| can_stay(mm, terms, slot)) {
            give_up(mm, page, then, slot);
            return;
        }
        mm.kept
            .note(slot, tiers::content_at(mm.frames.address(seen.frame())));
    }
    mm.unlock(page, mm.load(page), then.keeping(slot));
}

/// Of `slots`, those that stay with the pages that come into frames from them; 0 for the others. Nobody touches such a page
/// without taking it from its frame first, so no digest is needed.
pub fn keep_in_frames(mm: &Mm, page: u64, slots: &[u32], kept: &mut [u32]) {
    let terms = may_keep(mm, page);
    for (kept, slot) in kept.iter_mut().zip(slots) {
        let stays = terms.is_some_and(|terms| can_stay(mm, terms, *slot));
        *kept = if stays { *slot } else { 0 };
    }
}

/// Looks at a page that waits in a frame to be stored: if it names a slot it is there already, unchanged, or the slot is given
/// up. False: it is to be stored.
#[must_use]
pub fn is_there(mm: &Mm, page: u64, frame: u64) -> bool {
    let seen = mm.load(page);
    let Some(slot) = seen.named_slot() else {
        return false;
    };
    if seen.kind() != Kind::Cached || seen.frame() != frame || seen.is_locked() || !mm.try_lock(page, seen) {
        // The program takes it back.
        return true;
    }
    // What was read ahead and never touched nobody can have changed.
    let content = tiers::content_at(mm.frames.address(frame));
    let is_unchanged = seen.readahead() || mm.kept.is_as_noted(slot, content);
    if !seen.readahead() {
        mm.kept.judge(is_unchanged);
    }
    kill_point!("kept-judged");
    if is_unchanged {
        mm.unlock(
            page,
            seen,
            PageState::stamped(slot, mm.header().workingset.stamp()),
        );
        mm.entry().kept.fetch_sub(1, Ordering::Relaxed);
        mm.header().count(Counter::SwpoutUnchanged, 1);
    } else {
        give_up(mm, page, seen, slot);
    }
    is_unchanged
}

/// The locked page keeps its slot no more, and is unlocked as `then`.
fn give_up(mm: &Mm, page: u64, then: PageState, slot: u32) {
    puts::leave(mm, slot, || {
        mm.unlock(page, mm.load(page), then.keeping(0));
        kill_point!("kept-left");
    });
    mm.entry().kept.fetch_sub(1, Ordering::Relaxed);
}

/// Gives `slot` up if the page keeps it; false: it does not, or somebody works on it.
pub fn leave(mm: &Mm, page: u64, slot: u32) -> bool {
    let seen = mm.load(page);
    let locked = seen.kept_slot() == Some(slot) && !seen.is_locked() && mm.try_lock(page, seen);
    if locked {
        give_up(mm, page, seen, slot);
    }
    locked
}

/// Which kept slots are to be given up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Those that were shared when they were kept, and whose content lies in RAM.
    Doubles,
    /// All that no other process has.
    Own,
    /// Those that others have too.
    All,
}

/// Which kept slots are to be given up now: more than half of all are taken, or others may have put theirs.
#[must_use]
pub fn are_to_go(mm: &Mm) -> Option<Which> {
    if mm.entry().kept.load(Ordering::Relaxed) <= 0 {
        return None;
    }
    let (used, all) = slot_batch::with_block(mm);
    let is_compressed = mm.header().zpages_used.load(Ordering::Relaxed) > 0;
    if used * 2 > all {
        Some(Which::Own)
    } else {
        (is_compressed && mm.header().forks.load(Ordering::Relaxed) > 0).then_some(Which::Doubles)
    }
}

/// Gives some of the kept slots up. The gate is held shared.
pub fn give_up_some(mm: &Mm, which: Which) {
    let all = chunks(mm);
    let turn = (0..all).map(|_| mm.kept.hand.fetch_add(1, Ordering::Relaxed) % all);
    turn.filter(|chunk| give_up_in(mm, *chunk, which))
        .take(TURN)
        .for_each(drop);
}

/// Gives kept slots up because no other is free: whether there are fewer now. Where all were in areas that refuse pages it is not tried again
/// for a while. The gate is held shared.
pub fn give_up_all(mm: &Mm) -> bool {
    const VAIN_NS: u64 = 100_000_000;
    let kept = || mm.entry().kept.load(Ordering::Relaxed);
    let (before, now) = (kept(), sys::now_ns());
    if before <= 0 || now.saturating_sub(mm.kept.vain_ns.load(Ordering::Relaxed)) < VAIN_NS {
        return false;
    }
    // Slots that others have too are not free then, but where they are no more than kept there either, the last one frees them.
    let gone = [Which::Own, Which::All].into_iter().any(|which| {
        for chunk in 0..chunks(mm) {
            give_up_in(mm, chunk, which);
        }
        kept() < before
    });
    if !gone {
        mm.kept.vain_ns.store(now, Ordering::Relaxed);
    }
    gone
}

/// Chunks of pages up to the last one that was touched.
fn chunks(mm: &Mm) -> u64 {
    mm.top_page.load(Ordering::Relaxed).div_ceil(CHUNK_PAGES)
}

/// Gives up what is kept in a chunk; false: nothing of it was ever touched.
fn give_up_in(mm: &Mm, chunk: u64, which: Which) -> bool {
    let first = chunk * CHUNK_PAGES;
    let touched = mm.chunk(first).load(Ordering::Relaxed) & TOUCHED != 0;
    if touched {
        for page in first..first + CHUNK_PAGES {
            let kept = mm.load(page).kept_slot();
            if let Some(slot) = kept.filter(|slot| is_to_go(mm, *slot, which)) {
                leave(mm, page, slot);
            }
        }
    }
    touched
}

fn is_to_go(mm: &Mm, slot: u32, which: Which) -> bool {
    let word = mm.pool().swap_table().load(slot);
    match (which, word.backing()) {
        (Which::Doubles | Which::Own, _) if word.count() > 1 => false,
        (_, Some(Backing::Compressed(_))) => true,
        (Which::Doubles, _) => false,
        // Where nothing can be written a block is worth more than it takes.
        (Which::Own | Which::All, _) => tiers::may_be_written(mm, slot),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> Kept {
        let kept = Kept::new();
        kept.start(0).unwrap();
        kept
    }

    #[test]
    fn a_digest_tells_content_and_slot() {
        let kept = ready();
        let mut page = [7; 4096];
        kept.note(5, &page);
        assert!(!kept.is_as_noted(6, &page), "nothing was noted");
        assert!(
            !kept.is_as_noted(5 + DIGESTS_MIN as u32 / WAYS as u32, &page),
            "its digest lies in the same row"
        );
        assert!(kept.is_as_noted(5, &page));
        assert!(!kept.is_as_noted(5, &page), "forgotten");
        for bit in [0, 77, 8 * 4096 - 1] {
            kept.note(5, &page);
            page[bit / 8] ^= 1 << (bit % 8);
            assert!(!kept.is_as_noted(5, &page), "bit {bit}");
        }
        // What was noted in an earlier life of the slot.
        kept.note(5, &[8; 4096]);
        kept.note(5, &[9; 4096]);
        assert!(!kept.is_as_noted(5, &[8; 4096]));
    }

    #[test]
    fn a_full_row_loses_one_for_each_that_comes() {
        let kept = ready();
        let slots: Vec<u32> = (1..=12)
            .map(|nth| nth * DIGESTS_MIN as u32 / WAYS as u32)
            .collect();
        slots.iter().for_each(|slot| kept.note(*slot, &[7; 4096]));
        let found = slots
            .iter()
            .filter(|slot| kept.is_as_noted(**slot, &[7; 4096]))
            .count();
        assert_eq!(found, WAYS);
    }

    #[test]
    fn a_process_draws_its_own_key() {
        let (one, other) = (ready(), ready());
        assert_ne!(one.digest(5, &[7; 4096]), other.digest(5, &[7; 4096]));
    }

    #[test]
    fn where_all_pages_change_few_windows_keep_their_slots() {
        let kept = ready();
        let windows = |kept: &Kept| (0..160).filter(|window| kept.pays(*window)).count();
        assert_eq!(windows(&kept), 160, "nothing is known");
        (0..10_000).for_each(|_| kept.judge(false));
        assert_eq!(windows(&kept), 10);
        (0..1_000).for_each(|_| kept.judge(true));
        assert_eq!(windows(&kept), 160);
    }
}
