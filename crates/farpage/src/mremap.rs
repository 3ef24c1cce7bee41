//! mremap of managed memory: grown where it is, moved with its page states, onto managed addresses and away from them.
//!
//! # Safety
//! Raw calls here act on ranges that the program itself asked to change.
#![allow(unsafe_code)]

use core::cell::Cell;
use core::ops::Range;
use core::sync::atomic::Ordering;

use farpage_core::kill_point;
use farpage_core::page_state::{Kind, PageState};
use farpage_core::range_map;

use crate::activate;
use crate::advice;
use crate::bits::bits;
use crate::commit::{commit, grow, room_for};
use crate::cow;
use crate::errand;
use crate::fault::{self, Outcome};
use crate::gate::Alone;
use crate::heirs;
use crate::huge_advice;
use crate::in_flight;
use crate::maps;
use crate::mem::{
    EINVAL, ENOMEM, are_mapped, discard, discard_mapping, each_touched, forget, managed_pages, munmap,
    note_mapped, note_moved, note_unmapped, register, reserve, round_up,
};
use crate::mm::{CHUNK_PAGES, Mm, PAGE, address, mm, mode, page_of};
use crate::pool::{MANAGED_PAGES, is_managed};
use crate::reclaim_calls::try_presence;
use crate::residency;
use crate::sys;

mod pieces;
pub mod turn;
mod unmanaged;
use pieces::Refusal;

/// Pages that the kernel is asked about at a time.
const WINDOW: usize = 64;
const EFAULT: i64 = -(libc::EFAULT as i64);
/// End of the program's address space: the kernel's TASK_SIZE with four-level page tables.
const USER_END: u64 = (1 << 47) - PAGE;

/// Arguments of mremap.
#[derive(Clone, Copy)]
pub struct Remap {
    pub old: u64,
    pub old_len: u64,
    pub new_len: u64,
    pub flags: i32,
    pub new: u64,
    /// The caller is known to be the program's only thread.
    pub alone: bool,
}

impl Remap {
    /// What the kernel refuses whatever is mapped; sizes are whole pages already.
    fn check(&self) -> Result<(), i64> {
        const KNOWN: i32 = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let has = |flag: i32| self.flags & flag != 0;
        let moves = has(libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP);
        let sizes = self.old.is_multiple_of(PAGE) && self.old_len != 0 && self.new_len != 0;
        let flags = self.flags & !KNOWN == 0
            && (!moves || has(libc::MREMAP_MAYMOVE))
            && (!has(libc::MREMAP_DONTUNMAP) || self.old_len == self.new_len);
        let place = !has(libc::MREMAP_FIXED)
            || (self.new.is_multiple_of(PAGE)
                && self.new <= USER_END - self.new_len
                && (self.new + self.new_len <= self.old
                    || self.old.saturating_add(self.old_len) <= self.new));
        if sizes && flags && place {
            Ok(())
        } else {
            Err(EINVAL)
        }
    }

    fn args(&self) -> [u64; 6] {
        [
            self.old,
            self.old_len,
            self.new_len,
            self.flags as u64,
            self.new,
            0,
        ]
    }

    fn kernel(&self) -> i64 {
        // SAFETY: the program's own request (or ours on its behalf with a destination we chose).
        unsafe { sys::raw(libc::SYS_mremap, self.args()) }
    }
}

pub fn mremap(request: Remap) -> i64 {
    let mm = mm();
    let fixed = request.flags & libc::MREMAP_FIXED != 0;
    let touches = is_managed(request.old) || (fixed && managed_pages(request.new, request.new_len).is_some());
    if mm.mode.load(Ordering::Acquire) == mode::OFF || !touches {
        return unmanaged::mremap(request);
    }
    let _watched = match errand::call(mm, libc::SYS_mremap, request.args()) {
        Ok(result) => return result,
        Err(watched) => watched,
    };
    if request.old_len > USER_END || request.new_len > USER_END {
        return EINVAL;
    }
    let mut request = request;
    request.old_len = round_up(request.old_len);
    request.new_len = round_up(request.new_len);
    if let Err(errno) = request.check() {
        return errno;
    }
    if !is_managed(request.old) {
        return onto_managed(mm, request);
    }
    if !old_is_mapped(mm, request) {
        return EFAULT;
    }
    let growth = request.new_len.saturating_sub(request.old_len);
    if growth > 0 {
        grow(mm, growth);
    }
    let result = if growth == 0 || room_for(mm, growth) {
        mremap_managed(mm, request)
    } else {
        ENOMEM
    };
    if result < 0 || !is_managed_whole(result as u64, request.new_len) {
        commit(mm, -(growth as i64));
    } else if growth > 0
        && let Some((lo, hi)) = managed_pages(result as u64 + request.old_len, growth)
    {
        residency::lock_growth(mm, lo, hi);
    }
    result
}

/// The managed range `old` becomes `new_len` long, where it is or elsewhere; there is room for what is more.
fn mremap_managed(mm: &Mm, request: Remap) -> i64 {
    let fixed = request.flags & libc::MREMAP_FIXED != 0;
    let keep_old = request.flags & libc::MREMAP_DONTUNMAP != 0;
    if request.new_len < request.old_len {
        // Moved first: a refusal leaves the tail, too.
        let old_len = request.new_len;
        let result = if fixed {
            relocate(mm, Remap { old_len, ..request })
        } else {
            request.old as i64
        };
        if result < 0 {
            return result;
        }
        let cut = munmap(request.old + old_len, request.old_len - old_len);
        return if cut < 0 && !fixed { cut } else { result };
    }
    if !fixed && !keep_old {
        if request.new_len == request.old_len || grow_in_place(mm, request) {
            return request.old as i64;
        }
        if request.flags & libc::MREMAP_MAYMOVE == 0 {
            return ENOMEM;
        }
    }
    relocate(mm, request)
}

/// Whether the old range is mapped: all of it, or its first page when it only shrinks in place.
fn old_is_mapped(mm: &Mm, request: Remap) -> bool {
    const MOVES: i32 = libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let lo = page_of(request.old);
    let in_place = request.flags & MOVES == 0 && request.new_len <= request.old_len;
    let hi = if in_place {
        lo + 1
    } else {
        lo + request.old_len / PAGE
    };
    are_mapped(mm, lo, hi)
}

/// Lets the kernel grow the mapping where it is, if nothing is behind it. The new part shares the mapping and with it the
/// registration (a separate mapping beside it would not always merge, and could never be remapped as one).
fn grow_in_place(mm: &Mm, request: Remap) -> bool {
    let lo = page_of(request.old + request.old_len);
    let hi = page_of(request.old) + request.new_len / PAGE;
    if hi > MANAGED_PAGES {
        return false;
    }
    let _alone = mm.gate.alone();
    let taken = mm
        .maps
        .lock()
        .as_mut()
        .is_some_and(|maps| !maps.overlaps(lo, hi) && maps.insert(lo, hi).is_ok());
    if !taken {
        return false;
    }
    // Its last page is in one mapping, whatever the range is (see `pieces`).
    let last = Remap {
        old: request.old + request.old_len - PAGE,
        old_len: PAGE,
        new_len: PAGE + request.new_len - request.old_len,
        flags: 0,
        new: 0,
        ..request
    };
    let grown = last.kernel() == last.old as i64;
    if grown {
        mm.top_page.fetch_max(hi, Ordering::Relaxed);
        note_growth(mm, lo, hi);
    } else {
        forget(mm, lo, hi);
    }
    grown
}

/// What was said about a mapping holds for what it gets more at its end.
fn note_growth(mm: &Mm, lo: u64, hi: u64) {
    huge_advice::grown(lo, hi);
    // While dormant the kernel keeps it (see `mem::discard_mapping`).
    if mm.is_active() {
        heirs::grown(lo, hi);
    }
}

/// An unmanaged mapping is moved onto managed addresses: what was there goes, what comes is managed from then on (if it is
/// private anonymous memory; else it stays the kernel's).
fn onto_managed(mm: &Mm, request: Remap) -> i64 {
    let Some((lo, hi)) = managed_pages(request.new, request.new_len) else {
        return request.kernel();
    };
    let alone = mm.gate.alone();
    mark_apart(request.old, request.old_len, libc::MADV_DONTDUMP);
    let result = unmanaged::at_place(request);
    if result < 0 {
        mark_apart(request.old, request.old_len, libc::MADV_DODUMP);
        return result;
    }
    discard_mapping(mm, lo, hi, &alone);
    note_mapped(mm, lo, hi);
    let adopted = || activate::adopt(mm, lo, hi).and_then(|()| advice::adopt(mm, lo, hi));
    if !mm.is_active() || adopted().is_err() {
        mm.foreign.store(1, Ordering::Relaxed);
    }
    mark_apart(request.new, request.new_len, libc::MADV_DODUMP);
    result
}

/// Whether all pages there are managed.
fn is_managed_whole(addr: u64, len: u64) -> bool {
    managed_pages(addr, len).is_some_and(|(lo, hi)| hi - lo == len / PAGE)
}

/// Moves a managed mapping to another place, where it is at least as large: pages by the kernel, words by us.
///
/// Between these two steps a mapping that takes the place of one that other threads use (`exposed`) is the kernel's alone: a touch of what is
/// out would find zeros. So all its content is brought in and pinned before, unless that is more than may stay, or there is no other thread:
/// three processes that each pinned as much as may stay once overran a budget by what they had pinned together.
fn relocate(mm: &Mm, request: Remap) -> i64 {
    let old_lo = page_of(request.old);
    let old_hi = old_lo + request.old_len / PAGE;
    let fixed = request.flags & libc::MREMAP_FIXED != 0;
    if fixed && !is_managed_whole(request.new, request.new_len) {
        return leave_managed(mm, request, old_lo, old_hi);
    }
    let old = old_lo..old_hi;
    let active = mm.is_active();
    let exposed = fixed && active && is_accessible(mm, request.new, request.new_len);
    let pinned = exposed && !request.alone && may_stay(mm, &old);
    let _turn = pinned.then(|| turn::take(mm));
    if pinned {
        // Most of it while others go on.
        each_known(mm, old_lo, old_hi, |page| fault::fault(mm, page));
    }
    let alone = mm.gate.alone();
    if mm.is_active() != active {
        // It became so meanwhile: nothing of it was brought in, nor is there a turn.
        drop(alone);
        return relocate(mm, request);
    }
    let pinned_to = if pinned {
        each_known(mm, old_lo, old_hi, |page| fault::pin_alone(mm, page, &alone))
    } else {
        old_lo
    };
    if !settle_frames(mm, old_lo, old_hi, &alone) {
        unpin_known(mm, old_lo, pinned_to);
        return ENOMEM;
    }
    lift_protection(mm, old_lo, old_hi);
    let is_foreign = holds_foreign(mm, old_lo, old_hi);
    let mut request = request;
    if !fixed {
        let pages = request.new_len / PAGE;
        let align = if pages >= CHUNK_PAGES { CHUNK_PAGES } else { 1 };
        let Ok(page) = reserve(mm, MANAGED_PAGES, pages, align) else {
            return ENOMEM;
        };
        request.new = address(page);
        request.flags |= libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    }
    let (new_lo, new_hi) = (
        page_of(request.new),
        page_of(request.new) + request.new_len / PAGE,
    );
    // A moved mapping loses its registration. Were the kernel to merge it with its new neighbours at once, they would
    // lose theirs with it; a flag that they don't have keeps it apart until it is registered again.
    mark_apart(request.old, request.old_len, libc::MADV_DONTDUMP);
    // What the program has not named nobody has: there the kernel may be asked in vain.
    let at_once = !fixed && !is_foreign && request.new_len != request.old_len;
    if let Err(refusal) = pieces::relocate(request, at_once) {
        if refusal.moved && active {
            register_again(mm, old_lo, old_hi, is_foreign);
        }
        mark_apart(request.old, request.old_len, libc::MADV_DODUMP);
        unpin_known(mm, old_lo, pinned_to);
        if !fixed {
            forget(mm, new_lo, new_hi);
        }
        return refusal.errno;
    }
    kill_point!("mremap-moved");
    follow(
        mm,
        &request,
        [(old_lo, old_hi), (new_lo, new_hi)],
        fixed,
        is_foreign,
        &alone,
    );
    if exposed {
        note_touched_early(mm, new_lo, new_hi, is_foreign);
    }
    request.new as i64
}

/// The kernel has moved a mapping: map, notes, words and registration follow.
fn follow(
    mm: &Mm,
    request: &Remap,
    places: [(u64, u64); 2],
    replaces: bool,
    is_foreign: bool,
    alone: &Alone,
) {
    let [from, to] = places.map(|(start, end)| range_map::Range { start, end });
    let stays = request.flags & libc::MREMAP_DONTUNMAP != 0;
    note_moved(mm, from, to, replaces, stays);
    discard_mapping(mm, to.start, to.end, alone);
    carry_notes(mm, from, to, stays);
    if mm.is_active() {
        move_words(mm, from.start, to.start, from.end - from.start);
        if stays {
            discard(mm, from.start, from.end, alone);
            register_again(mm, from.start, from.end, is_foreign);
        } else {
            discard_mapping(mm, from.start, from.end, alone);
        }
        register_again(mm, to.start, to.end, is_foreign);
    }
    mark_apart(request.new, request.new_len, libc::MADV_DODUMP);
    if stays {
        mark_apart(request.old, request.old_len, libc::MADV_DODUMP);
    }
}

/// Whether any of a range may be accessed now: then somebody may touch what is moved there at any time.
fn is_accessible(mm: &Mm, addr: u64, len: u64) -> bool {
    let Some((lo, hi)) = managed_pages(addr, len) else {
        return false;
    };
    let mask = sys::block_signals();
    let mapped = mm.maps.lock().as_ref().is_some_and(|maps| maps.overlaps(lo, hi));
    sys::set_mask(mask);
    let mut accessible = false;
    let listed = mapped.then(|| {
        maps::each_mapping(|mapping| {
            accessible |=
                mapping.start < address(hi) && address(lo) < mapping.end && !mapping.is_inaccessible();
            Ok(())
        })
    });
    accessible || listed.is_some_and(|listed| listed.is_err())
}

/// Whether all that is known of these pages may be in RAM at a time: half the limit at most.
fn may_stay(mm: &Mm, pages: &Range<u64>) -> bool {
    let known = Cell::new(0);
    each_known(mm, pages.start, pages.end, |_| {
        known.set(known.get() + 1);
        Outcome::Done
    });
    known.get() <= mm.header().last_limit() / 2
}

/// Pages `lo..hi` were touched, perhaps, before they were registered: what the kernel has mapped of fresh memory is in the books from now
/// on. Where it has put zeros in place of what is swapped, somebody may have seen them.
fn note_touched_early(mm: &Mm, lo: u64, hi: u64, is_foreign: bool) {
    if !is_foreign {
        return note_present(mm, lo, hi);
    }
    // What else is mapped there is not in the books.
    let noted = activate::each_plain_part(address(lo), address(hi), |from, to| {
        note_present(mm, page_of(from), page_of(to));
        Ok(())
    });
    if noted.is_err() {
        seen_early();
    }
}

fn note_present(mm: &Mm, lo: u64, hi: u64) {
    for from in (lo..hi).step_by(WINDOW) {
        let there = try_presence(address(from), (hi - from).min(WINDOW as u64));
        for page in bits(there.unwrap_or_else(|_| seen_early())).map(|i| from + i) {
            let seen = mm.load(page);
            match seen.kind() {
                Kind::Resident => {}
                // The word changes under us only where a pin comes or goes.
                Kind::Untouched | Kind::Zero => {
                    mm.count_resident(page, 1);
                    while !mm.try_lock(page, mm.load(page)) {}
                    mm.unlock(page, mm.load(page), PageState::resident());
                }
                Kind::Cached | Kind::Swapped | Kind::Invalid => seen_early(),
            }
        }
    }
}

fn seen_early() -> ! {
    sys::die(&[
        "farpage: another thread touched memory that mremap was moving in place of other memory, of which more is swapped than half the ",
        "limit, and may have seen zeros; the program was stopped; give it a larger --ram",
    ])
}

/// What was said about a mapping goes with it. Only locks do not stay where MREMAP_DONTUNMAP leaves an empty mapping.
fn carry_notes(mm: &Mm, from: range_map::Range, to: range_map::Range, stays: bool) {
    huge_advice::moved(from, to, stays);
    if mm.is_active() {
        heirs::moved(from, to, stays);
        residency::LOCKED.moved(from, to, false);
    }
    let moved = to.start + (from.end - from.start);
    if moved < to.end {
        note_growth(mm, moved, to.end);
    }
}

/// Whether something else than managed memory is mapped in pages `lo..hi`, or may be.
fn holds_foreign(mm: &Mm, lo: u64, hi: u64) -> bool {
    mm.foreign.load(Ordering::Relaxed) != 0 && !activate::is_plain(address(lo), address(hi)).unwrap_or(false)
}

/// What has moved lost its registration. What is not managed has none: a file can't be registered, and shared memory must not be.
fn register_again(mm: &Mm, lo: u64, hi: u64, is_foreign: bool) {
    let done = if is_foreign {
        activate::register_parts(mm, address(lo), address(hi), |_, _| Ok(())).is_ok()
    } else {
        register(mm, lo, hi)
    };
    if !done {
        sys::die(&["farpage: memory moved by mremap could not be registered; the program was stopped"]);
    }
}

fn mark_apart(addr: u64, len: u64, advice: i32) {
    // SAFETY: changes what a core dump would hold, no content.
    let _ = unsafe { sys::madvise(addr, len, advice) };
}

/// A moved page loses its write protection: what fork shares is paid for before.
fn lift_protection(mm: &Mm, lo: u64, hi: u64) {
    if mm.is_active() {
        cow::lift_range(mm, lo, hi);
    }
}

/// Brings pages that wait in frames back, so that no frame names a page at its old place. Alone, so that none is evicted again
/// meanwhile: a loop that tried before it entered once ran for ever beside busy reclaimers. They may exceed the limit for
/// that moment. False: there is no memory even for that.
fn settle_frames(mm: &Mm, lo: u64, hi: u64, _alone: &Alone) -> bool {
    let mut done = true;
    if mm.is_active() {
        each_touched(mm, lo, hi, |from, to| {
            done = done && (from..to).all(|page| fault::unframe(mm, page))
        });
    }
    done
}

/// Carries page states to the new place, chunk counts with them. For a moment two words name what is one reference: `cleanup` knows. (The other
/// way round the page of a parent would be lost with a child of vfork that dies here.)
fn move_words(mm: &Mm, from: u64, to: u64, pages: u64) {
    in_flight::unmapped(mm, from, from + pages);
    let _step = mm.entry().moves.begin();
    each_touched(mm, from, from + pages, |lo, hi| {
        (lo..hi).for_each(|page| move_word(mm, page, page - from + to));
    });
}

fn move_word(mm: &Mm, from: u64, to: u64) {
    let word = mm.word(from);
    let state = PageState(word.load(Ordering::Relaxed));
    if state.raw() == 0 {
        return;
    }
    // Of the pins only that of a lock goes with the page. Those of its new place come and go outside of the gate.
    let lock = u16::from(state.pins() != 0 && residency::is_locked(to));
    let place = mm.word(to);
    let mut seen = place.load(Ordering::Relaxed);
    while let Err(now) = place.compare_exchange(
        seen,
        state.with_pins(PageState(seen).pins().saturating_add(lock)).raw(),
        Ordering::Release,
        Ordering::Relaxed,
    ) {
        seen = now;
    }
    kill_point!("move-word");
    word.store(0, Ordering::Release);
    mm.note_touched(to);
    if state.kind() == Kind::Resident {
        mm.chunk(from).fetch_sub(1, Ordering::Relaxed);
        mm.chunk(to).fetch_add(1, Ordering::Relaxed);
        mm.queue.loaded(to, 1);
    }
}

/// Moves a managed mapping to an address of the kernel's: all its content is brought in, and stays until the kernel has moved it. More than
/// half the limit is refused.
fn leave_managed(mm: &Mm, request: Remap, lo: u64, hi: u64) -> i64 {
    let active = mm.is_active();
    if active && !may_stay(mm, &(lo..hi)) {
        // Beyond the limit each page would wait for room that there is not, the last of them with the gate held alone.
        return ENOMEM;
    }
    let _turn = active.then(|| turn::take(mm));
    if active {
        // Most of it while others go on.
        each_known(mm, lo, hi, |page| fault::fault(mm, page));
    }
    let alone = mm.gate.alone();
    if mm.is_active() != active {
        drop(alone);
        return leave_managed(mm, request, lo, hi);
    }
    lift_protection(mm, lo, hi);
    let pinned_to = if active {
        // Only now it is known what there is: a first touch goes on before the page's word tells of it. Such a page was not looked
        // after once, left for a frame before we were alone, and its write was lost.
        each_known(mm, lo, hi, |page| fault::pin_alone(mm, page, &alone))
    } else {
        hi
    };
    let locked = active && residency::any_locked(lo, hi);
    let is_foreign = holds_foreign(mm, lo, hi);
    let moved = if pinned_to == hi {
        pieces::relocate(request, false)
    } else {
        Err(Refusal::of(ENOMEM))
    };
    if active {
        unpin_known(mm, lo, pinned_to);
    }
    if let Err(refusal) = moved {
        if refusal.moved && active {
            register_again(mm, lo, hi, is_foreign);
        }
        return refusal.errno;
    }
    if locked {
        // From here on the lock is the kernel's again.
        // SAFETY: the program's own memory, whose content stays.
        let _ = unsafe { sys::raw(libc::SYS_mlock, [request.new, request.new_len, 0, 0, 0, 0]) };
    }
    if request.flags & libc::MREMAP_DONTUNMAP == 0 {
        discard_mapping(mm, lo, hi, &alone);
        note_unmapped(mm, lo, hi);
        return request.new as i64;
    }
    discard(mm, lo, hi, &alone);
    residency::unpin_all(mm, lo, hi);
    if active {
        register_again(mm, lo, hi, is_foreign);
    }
    request.new as i64
}

/// Undoes [`fault::pin_alone`] for each of these pages.
fn unpin_known(mm: &Mm, lo: u64, hi: u64) {
    each_known(mm, lo, hi, |page| {
        fault::unpin(mm, page);
        Outcome::Done
    });
}

/// Calls `f` with each page of `lo..hi` that is or was touched; the first for which it is not done, or `hi`.
fn each_known(mm: &Mm, lo: u64, hi: u64, f: impl Fn(u64) -> Outcome) -> u64 {
    let mut end = hi;
    each_touched(mm, lo, hi, |from, to| {
        let known = (from..to.min(end)).filter(|page| mm.load(*page).kind() != Kind::Untouched);
        if let Some(page) = known.into_iter().find(|page| f(*page) != Outcome::Done) {
            end = page;
        }
    });
    end
}
