//! Swap-out: room is made by moving cold pages out of the program into frames (the swap cache), and by storing the
//! oldest frames in a tier.
//!
//! Eviction, step by step (what is locked in brackets):
//! 1. take an empty block of 64 frames; 2. the clock finds a window of 64 pages with resident ones; 3. lock them [words];
//! 4. MOVE them to the block, same place in block and window [words]; 5. words say *cached(frame)*, unlocked; 6. the block
//!    joins the end of the FIFO.
//!
//! The oldest block is stored (`store`), and its memory returned.
//!
//! Everything here runs with the gate held shared and signals blocked.

use core::sync::atomic::Ordering;

use farpage_core::kill_point;
use farpage_core::page_state::{Kind, PageState};
use farpage_core::stats::Counter;

use crate::bits::mask;
use crate::cow;
use crate::huge_out::{self, Turn};
use crate::mm::{CHUNK_PAGES, Mm, PAGE, RESIDENT_MASK, address};
use crate::pool::flag;
use crate::queue::{ALL, Victim};
pub use crate::reclaim_calls::{note_keys, presence};
use crate::reclaim_calls::{populate_write, split_folios, sure_presence};
use crate::store::WRITE_MAX;
use crate::sys::{self, Errno};
use crate::thread;

mod frames;
mod page_out;
pub mod poor;
mod room;
mod scattered;
mod stored;
mod who;
pub use frames::{BLOCK, FIRST_PLACE, Frames};
pub use page_out::page_out;
pub use room::{
    Released, begin_patiently, ensure_room, is_limit_old, limit_is_old, room_ahead, room_for_hint,
};
use scattered::{Run, Scattered};
use stored::store_oldest;
pub use who::Who;

/// Turns in the FIFO that a page read ahead is spared for: as many as the swap cache is smaller than what it is the cache of.
const SPARES: u64 = 16;
/// Most frames that wait to be stored while the tree is over its limit: two large writes.
const LEAVING_MAX: i64 = 2 * WRITE_MAX as i64;
/// Pages moved out without that freeing any, after which reclaim looks up: no tier may take them, and others may have given something
/// back.
const VAIN_MAX: u64 = 4096;

/// Makes about `pages` pages free: moves out a batch, stores the oldest blocks beyond the swap cache's share.
/// Returns how many pages were returned to the system or moved out.
pub fn reclaim(mm: &Mm, pages: i64) -> u64 {
    reclaim_by(mm, pages, None)
}

fn reclaim_by(mm: &Mm, pages: i64, measured: Option<&Who>) -> u64 {
    let mut freed = 0;
    let mut progress = 0;
    let refused = || mm.header().counted(Counter::SwpoutRefused);
    let before = refused();
    while freed < pages as u64 {
        let wanted = pages as u64 - freed;
        let leaving = is_enough_leaving(mm);
        let (mut moved, mut stored) = (0, 0);
        if leaving {
            stored = store_oldest(mm, wanted);
        }
        // While others store theirs, there is nothing to do but to wait.
        if has_too_many_waiting(mm) {
            stored += store_oldest(mm, BLOCK);
        } else if !leaving || (stored == 0 && !are_leaving(mm)) {
            moved = evict_windows(mm, wanted, measured);
            stored = if moved == 0 {
                store_oldest(mm, BLOCK)
            } else {
                store_surplus(mm)
            };
        }
        freed += stored;
        progress += moved + stored;
        if moved + stored == 0 || progress - freed > VAIN_MAX {
            break;
        }
    }
    // What no tier took is where it was.
    progress.saturating_sub(refused().wrapping_sub(before))
}

/// The reclaimer's part, ahead of the faults: about `pages` pages. While it is left to the faults only a window, to see what
/// that costs by now, and 0.
pub fn ahead(mm: &Mm, pages: i64) -> u64 {
    // The delivery thread serves one fault after the other: it is not to be kept from the next.
    let may_be_left = !mm.header().has(flag::THREAD_DELIVERY);
    if may_be_left && mm.who.decide(sys::now_ns()) && mm.header().excess(0) <= BLOCK as i64 {
        evict_windows(mm, 1, Some(&mm.who));
        store_surplus(mm);
        return 0;
    }
    reclaim_by(mm, pages, Some(&mm.who))
}

/// Whether the tree is over its limit, and this process has so much in frames or on its way there, all of it to be stored then,
/// that more would not free anything sooner. Pages that fork shares are copied to be moved: 32 threads that each moved out what was
/// missing once held 25 MiB too much, and 6 when only what had arrived was counted. Not where frames can't be stored (all swap is
/// full): other pages may be zeros, which need no place.
fn is_enough_leaving(mm: &Mm) -> bool {
    let excess = mm.header().excess(0);
    excess > BLOCK as i64
        && mm.entry().frames.load(Ordering::Relaxed) + mm.frames.moving() >= excess.min(LEAVING_MAX)
        && !mm.frames.released.failed_lately(sys::now_ns())
}

/// Whether some thread of this process is moving pages out or storing them, so that there will be room.
fn are_leaving(mm: &Mm) -> bool {
    mm.frames.moving() > 0 || mm.entry().storing.load(Ordering::Relaxed) > 0
}

/// Whether there is no hope of room, and so much waits in frames that more would only be taken back. (Once all of a program did,
/// page by page, for each page that found a place: it ran at a thousandth of its speed.)
fn has_too_many_waiting(mm: &Mm) -> bool {
    let entry = mm.entry();
    let waiting = entry.frames.load(Ordering::Relaxed);
    waiting > LEAVING_MAX.min(entry.resident.load(Ordering::Relaxed)) && mm.header().is_hopeless()
}

/// Moves about `pages` pages out, of several windows where the headroom is large, and at most 256 at once: what fork shares is
/// copied to be moved, and only storing it frees anything; how many. Windows with few pages that can go are many small blocks of frames, to be
/// stored together. What it takes is told to `measured`.
fn evict_windows(mm: &Mm, pages: u64, measured: Option<&Who>) -> u64 {
    let most = thread::spare(mm).clamp(1, WRITE_MAX as i64) as u64;
    let mut moved = 0;
    while moved < pages.min(most) {
        // Other threads move out meanwhile.
        if moved > 0 && is_enough_leaving(mm) {
            break;
        }
        let start = measured.map(|_| sys::thread_ns());
        let more = mm.frames.while_moving(|| evict_window(mm));
        if let (Some(who), Some(start)) = (measured, start) {
            who.note_moved(sys::thread_ns() - start, more);
        }
        moved += more;
        if measured.is_none() {
            mm.header().count(Counter::PgreclaimDirect, more);
        }
        if more == 0 {
            break;
        }
    }
    moved
}

/// Stores the oldest blocks until the swap cache holds no more than its share; how many frames were given back. Blocks are of
/// all sizes: one for one, small ones stored for large ones filled, the cache would grow over everything.
fn store_surplus(mm: &Mm) -> u64 {
    let mut stored = 0;
    loop {
        let waiting = mm.entry().frames.load(Ordering::Relaxed) - mm.entry().storing.load(Ordering::Relaxed);
        let surplus = waiting - cache_target(mm) * BLOCK as i64;
        if surplus < BLOCK as i64 {
            break;
        }
        let done = store_oldest(mm, surplus as u64);
        stored += done;
        if done == 0 {
            break;
        }
    }
    stored
}

/// How many blocks the swap cache may keep: a sixteenth of what the process has resident, 2 to 128 blocks. None while the
/// tree is over its limit: of pages shared by fork eviction makes copies, so only storing them frees anything.
fn cache_target(mm: &Mm) -> i64 {
    if mm.header().excess(0) > BLOCK as i64 {
        return 0;
    }
    let resident = mm.entry().resident.load(Ordering::Relaxed).max(0);
    (resident / 16 / BLOCK as i64).clamp(2, 128)
}

/// Moves the evictable pages of one window out; 0 if there was none, now or a moment ago, or no block is free.
fn evict_window(mm: &Mm) -> u64 {
    if mm.frames.are_searched() {
        return 0;
    }
    let Some(block) = mm.frames.take_free() else {
        return 0;
    };
    kill_point!("evict-block");
    let mut moved = evict_oldest(mm, block);
    if moved == 0 {
        moved = evict_swept(mm, block);
    }
    mm.frames.note_search(moved > 0);
    if moved == 0 {
        mm.frames.give_free(block);
    }
    moved
}

/// The window that was loaded longest ago and has something to evict.
fn evict_oldest(mm: &Mm, block: u64) -> u64 {
    let debtors = cow::debtors(mm);
    let mut looks = mm.queue.looks();
    // One turn each: a window that keeps its pages comes to the queue's end again.
    for _ in 0..mm.queue.len() {
        let resident = mm.entry().resident.load(Ordering::Relaxed).max(0) as u64;
        let shared = |window| cow::shared(mm, &debtors, window * BLOCK);
        let Some(Victim { window, pages }) = mm.queue.dequeue(resident, &mut looks, shared) else {
            break;
        };
        let base = window * BLOCK;
        if mm.chunk(base).load(Ordering::Relaxed) & RESIDENT_MASK == 0 {
            continue;
        }
        if pages != ALL {
            let moved = evict_pages(mm, base, block, pages);
            queue_again(mm, window);
            if moved > 0 {
                return moved;
            }
            continue;
        }
        match huge_out::evict(mm, base, |chunk| huge_out::leaves_together(mm, chunk)) {
            Turn::Moved(count) => {
                mm.frames.give_free(block);
                queue_again(mm, window);
                return count;
            }
            Turn::Spared => {
                mm.queue.enqueue(window);
                continue;
            }
            Turn::Small => {}
        }
        let moved = evict_from(mm, base, block);
        queue_again(mm, window);
        if moved > 0 {
            return moved;
        }
    }
    0
}

/// A window comes to the queue's end again for what stayed in it: pinned, or brought back a moment ago.
fn queue_again(mm: &Mm, window: u64) {
    let pages = window * BLOCK..(window + 1) * BLOCK;
    if pages
        .into_iter()
        .any(|page| mm.load(page).kind() == Kind::Resident)
    {
        mm.queue.enqueue(window);
    }
}

/// What the queue does not know of: a sweep of the clock hand over all windows.
fn evict_swept(mm: &Mm, block: u64) -> u64 {
    let windows = mm.top_page.load(Ordering::Relaxed).div_ceil(BLOCK).max(1);
    let mut looked = 0;
    while looked <= 2 * windows {
        let window = mm.hand.fetch_add(1, Ordering::Relaxed) % windows;
        let page = window * BLOCK;
        looked += 1;
        if mm.chunk(page).load(Ordering::Relaxed) & RESIDENT_MASK == 0 {
            let skip = (CHUNK_PAGES / BLOCK) - window % (CHUNK_PAGES / BLOCK) - 1;
            mm.hand.fetch_add(skip, Ordering::Relaxed);
            looked += skip;
            continue;
        }
        match huge_out::evict(mm, page, |_| false) {
            Turn::Moved(count) => {
                mm.frames.give_free(block);
                return count;
            }
            Turn::Spared => continue,
            Turn::Small => {}
        }
        let moved = evict_from(mm, page, block);
        if moved > 0 {
            return moved;
        }
    }
    0
}

/// Evicts what can be evicted of the window at `base` into `block`, which joins the FIFO unless nothing moved.
fn evict_from(mm: &Mm, base: u64, block: u64) -> u64 {
    if poor::all_stay(mm, base) {
        return 0;
    }
    // What fork shares is copied to be moved, and paid for as any copy.
    cow::lift(mm, base);
    evict_pages(mm, base, block, ALL)
}

/// The same of those among `pages`, a bit each.
fn evict_pages(mm: &Mm, base: u64, block: u64, pages: u64) -> u64 {
    let victims = lock_victims(mm, base, pages);
    if victims == 0 {
        return 0;
    }
    let holes = lock_holes(mm, base, victims);
    let both = victims | holes;
    kill_point!("evict-locked");
    let mut moved = 0u64;
    let mut at = 0;
    while at < BLOCK {
        if both >> at & 1 == 0 {
            at += 1;
            continue;
        }
        let len = u64::from((!(both >> at)).trailing_zeros()).min(BLOCK - at);
        let run = Run {
            base,
            block,
            at,
            len,
            victims,
        };
        moved |= move_run(mm, &run);
        at += len;
    }
    kill_point!("evict-moved");
    let count = u64::from((moved & victims).count_ones());
    settle(mm, base, block, victims, holes, moved & victims);
    kill_point!("evict-worded");
    mm.header().count(Counter::Pgsteal, count);
    if count > 0 {
        mm.frames.push(block);
        kill_point!("evict-queued");
    }
    count
}

/// Locks the resident, unpinned ones among `pages` of the window; a page taken back lately is spared once, one that no tier takes is passed over.
fn lock_victims(mm: &Mm, base: u64, pages: u64) -> u64 {
    let mut victims = 0u64;
    let mut poor = poor::Turn::default();
    for i in (0..BLOCK).filter(|i| pages >> i & 1 != 0) {
        let seen = mm.load(base + i);
        if seen.kind() != Kind::Resident || seen.is_locked() || seen.pins() != 0 || poor.stays(mm, seen) {
            continue;
        }
        if seen.young() {
            let word = mm.word(base + i);
            let older = seen.with_young(false).raw();
            let _ = word.compare_exchange(seen.raw(), older, Ordering::Relaxed, Ordering::Relaxed);
        } else if mm.try_lock(base + i, seen) {
            victims |= 1 << i;
            poor.takes(mm, seen);
        }
    }
    mm.header().count(Counter::Pgscan, BLOCK);
    victims
}

/// Locks the absent pages between victims, so that one MOVE can step over them and nobody fills them meanwhile. Untouched
/// pages end a run: should the kernel know a page there that our books do not, it must not be carried off as a hole.
fn lock_holes(mm: &Mm, base: u64, victims: u64) -> u64 {
    let (first, last) = (
        u64::from(victims.trailing_zeros()),
        63 - u64::from(victims.leading_zeros()),
    );
    let mut holes = 0;
    for i in first..last {
        let seen = mm.load(base + i);
        let absent = matches!(seen.kind(), Kind::Zero | Kind::Cached | Kind::Swapped);
        if victims >> i & 1 == 0 && absent && !seen.is_locked() && mm.try_lock(base + i, seen) {
            holes |= 1 << i;
        }
    }
    holes
}

/// Moves the locked pages of a run; the bits of what moved (gaps included).
fn move_run(mm: &Mm, run: &Run) -> u64 {
    if let Some(moved) = scattered::move_out(mm, run) {
        return moved;
    }
    if !Scattered::is_of_interest(run) {
        return move_stretches(mm, run);
    }
    let start = sys::thread_ns();
    let moved = move_stretches(mm, run);
    mm.frames.scattered.note(sys::thread_ns() - start, run);
    moved
}

fn move_stretches(mm: &Mm, run: &Run) -> u64 {
    let &Run {
        base,
        block,
        mut at,
        len,
        victims,
    } = run;
    let mut moved = 0u64;
    let end = at + len;
    let (mut owned, mut split) = (false, false);
    while at < end {
        let (src, dst) = (address(base + at), mm.frames.address(block * BLOCK + at));
        let result = mm.move_pages(dst, src, (end - at) * PAGE);
        let count = (result.bytes / PAGE).min(end - at);
        for i in at..at + count {
            moved |= 1 << i;
        }
        at += count;
        match result.error {
            None | Some(Errno(libc::EAGAIN)) => continue,
            Some(_) if at >= end => break,
            Some(Errno(libc::EBUSY)) if !owned => {
                // Shared by fork: writing breaks the sharing, then the copy is ours to move.
                own_pages(base, at, end, victims);
                owned = true;
                continue;
            }
            Some(Errno(libc::EBUSY)) if !split => {
                // Ours already, in a huge page whose first page is another's, or gone: it is the first that MOVE asks.
                split_folios(address(base + at), (end - at) * PAGE);
                split = true;
                continue;
            }
            Some(Errno(libc::EINVAL)) => {
                let len = u64::from((!(victims >> at)).trailing_zeros()).min(end - at);
                let stretch = Run { at, len, ..*run };
                let closed = (len > 1).then(|| scattered::move_closed(mm, &stretch)).flatten();
                if let Some(closed) = closed {
                    moved |= closed;
                    at += len;
                    continue;
                }
            }
            _ => {}
        }
        if move_one(mm, base, block, at, victims) {
            moved |= 1 << at;
        }
        owned = false;
        at += 1;
    }
    moved
}

/// One page that a batch stopped at: tells the kernel's false EEXIST from real trouble, and goes another way where it can't be moved from its
/// mapping (read-only).
fn move_one(mm: &Mm, base: u64, block: u64, at: u64, victims: u64) -> bool {
    let (src, dst) = (address(base + at), mm.frames.address(block * BLOCK + at));
    if victims >> at & 1 == 0 {
        return false;
    }
    let result = mm.move_pages(dst, src, PAGE);
    match result.error {
        None => true,
        Some(Errno(libc::EEXIST)) => {
            // Linux 6.18 reports EEXIST after it has moved the page; the page tables tell.
            let arrived = sure_presence(src, 1) == 0 && sure_presence(dst, 1) == 1;
            mm.header().count(Counter::MoveFalseEexist, u64::from(arrived));
            arrived
        }
        Some(Errno(libc::EINVAL)) => {
            let run = Run {
                base,
                block,
                at,
                len: 1,
                victims,
            };
            scattered::move_closed(mm, &run).is_some_and(|moved| moved != 0)
        }
        Some(_) => {
            mm.header().count(Counter::PgreclaimBusy, 1);
            false
        }
    }
}

/// Makes the victims among the pages private by a write fault of the kernel's.
fn own_pages(base: u64, at: u64, end: u64, victims: u64) {
    let mut i = at;
    while i < end {
        let len = (i..end).take_while(|j| victims >> j & 1 == 1).count() as u64;
        if len > 0 {
            populate_write(address(base + i), len * PAGE);
        }
        i += len.max(1);
    }
}

/// Writes the words of everything that was locked, and moves the counts.
fn settle(mm: &Mm, base: u64, block: u64, victims: u64, holes: u64, moved: u64) {
    let count = moved.count_ones() as i64;
    if count > 0 {
        mm.frames.blocks[block as usize]
            .base_page
            .store(base, Ordering::Relaxed);
        mm.frames.blocks[block as usize]
            .filled
            .store(moved, Ordering::Relaxed);
        mm.frames.blocks[block as usize]
            .sampled
            .store(0, Ordering::Relaxed);
        mm.frames.blocks[block as usize]
            .spares
            .store(0, Ordering::Relaxed);
        mm.chunk(base).fetch_sub(count as u32, Ordering::Relaxed);
        mm.entry().resident.fetch_sub(count, Ordering::Relaxed);
        mm.entry().frames.fetch_add(count, Ordering::Relaxed);
    }
    kill_point!("evict-counted");
    let mut poor = 0;
    for i in 0..BLOCK {
        let bit = 1u64 << i;
        if (victims | holes) & bit == 0 {
            continue;
        }
        let locked = mm.load(base + i);
        poor += i64::from(locked.refused().is_some());
        if moved & bit != 0 {
            let frame = PageState::cached(block * BLOCK + i);
            mm.unlock(base + i, locked, frame.keeping(locked.slot()));
        } else if victims & bit != 0 {
            // Could not be moved now; spare it in the next turn.
            let there = PageState::resident().with_young(true);
            mm.unlock(base + i, locked, there.keeping(locked.slot()));
        } else {
            mm.unlock(base + i, locked, locked);
        }
    }
    poor::forget(mm, poor);
}

/// Puts locked pages from `page` on, charged already, whose content lies at `from`, into frames, marked as read ahead (those of
/// `sampled` as the sample), and unlocks them; how many of the first of them. Each keeps the slot in `kept`, if that is not 0. A block holds
/// pages of one window.
pub fn hold(mm: &Mm, page: u64, kept: &[u32], from: u64, sampled: u64) -> u64 {
    let mut done = 0;
    while done < kept.len() {
        let first = page + done as u64;
        let pages = ((BLOCK - first % BLOCK) as usize).min(kept.len() - done);
        let here = &kept[done..done + pages];
        let held = hold_in_window(mm, first, here, from + done as u64 * PAGE, sampled >> done) as usize;
        done += held;
        if held < pages {
            break;
        }
    }
    done as u64
}

fn hold_in_window(mm: &Mm, page: u64, kept: &[u32], from: u64, sampled: u64) -> u64 {
    let pages = kept.len() as u64;
    let Some(block) = mm.frames.take_free() else {
        return 0;
    };
    let at = page % BLOCK;
    let copied = mm
        .uffd()
        .copy(mm.frames.address(block * BLOCK + at), from, pages * PAGE);
    let held = copied.bytes / PAGE;
    if held == 0 {
        mm.frames.give_free(block);
        return 0;
    }
    kill_point!("hold-copied");
    let info = &mm.frames.blocks[block as usize];
    info.base_page.store(page - at, Ordering::Relaxed);
    info.filled.store(mask(held) << at, Ordering::Relaxed);
    info.sampled
        .store((sampled & mask(held)) << at, Ordering::Relaxed);
    info.spares.store(SPARES, Ordering::Relaxed);
    mm.entry().frames.fetch_add(held as i64, Ordering::Relaxed);
    kill_point!("hold-counted");
    for (i, slot) in (0..held).zip(kept) {
        let waiting = PageState::cached(block * BLOCK + at + i).with_readahead(true);
        mm.unlock(page + i, mm.load(page + i), waiting.keeping(*slot));
    }
    kill_point!("hold-worded");
    mm.frames.push(block);
    held
}
