//! A huge page leaves whole: one MOVE to a place, one free cluster of slots, one write.
//!
//! Steps, with what is locked in brackets: 1. take a place; 2. lock the chunk's 512 words [words]; 3. MOVE 2 MiB [words]; 4. words
//! say *cached(frame)*, unlocked; 5. the place joins the FIFO that blocks are in. When it is the oldest: 6. take a free cluster;
//! page `i` gets slot `i` of it; 7. what compresses well goes to the zpool, the rest is written, all of it with one call where
//! nothing is compressed; 8. hand over page by page as for blocks (`store`); 9. the memory goes back.
//!
//! Small pages that are a whole chunk and leave together go the same way, for the cluster's sake.
//!
//! Whatever does not go whole (pinned, shared by fork, no place, no free cluster) goes the way of small pages.
//!
//! Runs with the gate held shared and signals blocked.

use core::sync::atomic::Ordering;

use farpage_core::cluster::ORDERS;
use farpage_core::huge::{self, HUGE_PAGES, SwapOut};
use farpage_core::kill_point;
use farpage_core::page_state::{Kind, PIN_MAX, PageState};
use farpage_core::slots::Request;
use farpage_core::stats::Counter;
use farpage_core::swap_table::Backing;

use crate::compress;
use crate::cow;
use crate::huge_places::{
    HUGE_LEN, carry, first_frame, is_huge, is_huge_at, lock_all, set_locked, unlock_same,
};
use crate::kept;
use crate::mm::{CHUNK_PAGES, Mm, PAGE, RESIDENT_MASK, address};
use crate::puts;
use crate::reclaim::{BLOCK, FIRST_PLACE, poor};
use crate::reclaim_calls::drop_frames;
use crate::residency;
use crate::slot_batch;
use crate::store::{self, Occupied};
use crate::sys;
use crate::tiers;

/// What became of a chunk whose turn has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// So many pages are in a place now.
    Moved(u64),
    /// It was taken back lately, or is in use: not now.
    Spared,
    /// It is no huge page, or can't leave as one.
    Small,
}

/// Moves the chunk of window `base` out, if it is a huge page, or small pages that leave `together`: they share a cluster then.
pub fn evict(mm: &Mm, base: u64, together: impl FnOnce(u64) -> bool) -> Turn {
    if !mm.places.is_on() || swapout(mm) == SwapOut::SplitEarly {
        return Turn::Small;
    }
    let chunk = base / CHUNK_PAGES * CHUNK_PAGES;
    let resident = mm.chunk(chunk).load(Ordering::Relaxed) & RESIDENT_MASK;
    let whole = i64::from(resident) == HUGE_PAGES && !cow::any_protected(mm, chunk);
    let huge = whole && is_huge(mm, chunk);
    if !huge && resident >= huge::USED_AS_ONE {
        give_credit(mm, chunk);
    }
    let as_one = huge || (whole && together(chunk));
    if !as_one || poor::any_stays(mm, chunk) {
        return Turn::Small;
    }
    let turn = look(mm, chunk).unwrap_or_else(|| {
        let place = mm.places.take();
        place.map_or(Turn::Small, |place| move_out(mm, chunk, place))
    });
    let (moved, split) = match turn {
        Turn::Moved(moved) => (moved, moved < CHUNK_PAGES),
        Turn::Small => (0, true),
        Turn::Spared => (0, false),
    };
    mm.header().count(Counter::Pgsteal, moved);
    mm.header()
        .count(Counter::ThpSwpoutFallback, u64::from(huge && split));
    turn
}

/// How huge pages are to leave.
fn swapout(mm: &Mm) -> SwapOut {
    let setting = mm.header().huge_swapout.load(Ordering::Relaxed) as usize;
    SwapOut::ALL.get(setting).copied().unwrap_or_default()
}

/// Whether all windows of the chunk leave now: half of them at least are the oldest, and none was loaded into again. The others may have
/// gone round once, as the first ones of memory that is written for the first time do: it comes a few pages at a time.
pub fn leaves_together(mm: &Mm, chunk: u64) -> bool {
    let windows = chunk / BLOCK..(chunk + CHUNK_PAGES) / BLOCK;
    // One has come already.
    mm.queue.leads_with(windows, CHUNK_PAGES / BLOCK / 2 - 1)
}

/// Small pages that nearly all were resident may come back as one.
pub fn give_credit(mm: &Mm, chunk: u64) {
    let full = |word| Some(huge::with_full_credit(word));
    let _ = mm
        .chunk(chunk)
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, full);
}

/// What keeps the chunk from leaving as one now: a page taken back lately is spared once, one in use for as long; with one that
/// stays for good the others leave without it.
fn look(mm: &Mm, chunk: u64) -> Option<Turn> {
    let mut spared = false;
    for page in chunk..chunk + CHUNK_PAGES {
        let seen = mm.load(page);
        if seen.pins() == PIN_MAX || (seen.pins() != 0 && residency::is_locked(page)) {
            return Some(Turn::Small);
        }
        spared |= seen.is_locked() || seen.pins() != 0;
        if seen.young() {
            spared = true;
            let older = seen.with_young(false).raw();
            let _ = mm
                .word(page)
                .compare_exchange(seen.raw(), older, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
    mm.header().count(Counter::Pgscan, CHUNK_PAGES);
    spared.then_some(Turn::Spared)
}

/// Moves the chunk to an empty place, as one or as small pages.
pub fn move_out(mm: &Mm, chunk: u64, place: u64) -> Turn {
    let leaves = |_, seen: PageState| seen.kind() == Kind::Resident && seen.pins() == 0;
    if lock_all(mm, chunk, leaves).is_err() {
        mm.places.give(mm, place);
        return Turn::Spared;
    }
    kill_point!("huge-out-locked");
    let first = first_frame(place);
    let moved = carry(mm, mm.frames.address(first), address(chunk));
    if moved < CHUNK_PAGES || !is_huge_at(mm, mm.frames.address(first)) {
        mm.places.get(place).note_table();
    }
    kill_point!("huge-out-moved");
    if moved > 0 {
        mm.places.get(place).fill(chunk, moved, None);
        mm.chunk(chunk).fetch_sub(moved as u32, Ordering::Relaxed);
        mm.entry().resident.fetch_sub(moved as i64, Ordering::Relaxed);
        mm.entry().frames.fetch_add(moved as i64, Ordering::Relaxed);
    }
    let mut refused = 0;
    for i in 0..CHUNK_PAGES {
        let locked = mm.load(chunk + i);
        refused += i64::from(locked.refused().is_some());
        let then = if i < moved {
            PageState::cached(first + i)
        } else {
            // Where none could be moved (a border of mappings lies in it) they leave as small pages, now: not spared.
            PageState::resident().with_young(moved > 0)
        };
        set_locked(mm, chunk + i, then.keeping(locked.slot()));
    }
    poor::forget(mm, refused);
    kill_point!("huge-out-worded");
    // In the FIFO before a page can be touched: then all of it can be taken back.
    if moved > 0 {
        mm.frames.push(FIRST_PLACE + place);
    } else {
        mm.places.give(mm, place);
    }
    unlock_same(mm, chunk, chunk + CHUNK_PAGES);
    if moved == 0 {
        return Turn::Small;
    }
    Turn::Moved(moved)
}

/// Stores what lies in a place that was taken off the FIFO, and returns its memory; the number of frames given back.
pub fn store(mm: &Mm, place: u64) -> u64 {
    let base = mm.places.get(place).base.load(Ordering::Relaxed);
    let first = first_frame(place);
    let held = |i: &u64| store::holds(mm, base + i, first + i);
    // All but zeros, which need no place, and what has one still.
    let left = (0..CHUNK_PAGES)
        .filter(held)
        .filter(|i| !kept::is_there(mm, base + i, first + i) && !store::store_zero(mm, base + i, first + i));
    let left = left.count() as u64;
    let whole = left * 2 > CHUNK_PAGES;
    let cluster = if whole { take_cluster(mm, base) } else { None };
    kill_point!("huge-out-cluster");
    let back = match cluster {
        Some(slot) => {
            mm.header().count(Counter::ThpSwpout, 1);
            store_whole(mm, base, first, slot)
        }
        None if left > 0 => {
            let block = |at: u64| Occupied {
                base: base + at * BLOCK,
                block: first / BLOCK + at,
                filled: u64::MAX,
            };
            mm.header().count(Counter::ThpSwpoutFallback, u64::from(whole));
            store::store_frames(mm, (0..CHUNK_PAGES / BLOCK).map(block))
        }
        None => 0,
    };
    release(mm, place).saturating_sub(back)
}

/// The first slot of a free cluster for the pages of the chunk at `base`.
fn take_cluster(mm: &Mm, base: u64) -> Option<u32> {
    let header = mm.header();
    let has_areas = header.areas.load(Ordering::Relaxed) > 0;
    let compresses = compresses(mm, base);
    let cluster_of = |has_file: bool| {
        let view = mm.pool().slots();
        let run = view.alloc(&Request {
            owner: mm.owner(),
            cpu: sys::cpu(),
            order: ORDERS - 1,
            want: 1,
            has_file,
        });
        tiers::count_locks(mm.pool(), &view);
        run.map(|run| run.first)
    };
    let with_file = has_areas && (!compresses || slot_batch::blocks_to_spare(mm));
    let found = if with_file { cluster_of(true) } else { None };
    found.or_else(|| if compresses { cluster_of(false) } else { None })
}

fn compresses(mm: &Mm, base: u64) -> bool {
    mm.header().zpages_limit.load(Ordering::Relaxed) > 0 && !tiers::passes_through(mm, base / BLOCK)
}

/// Stores page `i` of the chunk at `base` in slot `i` from `slot` on; how many went back into the program instead.
fn store_whole(mm: &Mm, base: u64, first: u64, slot: u32) -> u64 {
    let mut back = 0;
    let compresses = compresses(mm, base);
    let has_block = tiers::place_of(mm.pool(), slot).is_some();
    let (mut raw, mut unused) = (Places::default(), Places::default());
    let mut context = mm.context();
    for i in 0..CHUNK_PAGES {
        let (page, frame, slot) = (base + i, first + i, slot + i as u32);
        if !store::holds(mm, page, frame) {
            unused.add(i);
            continue;
        }
        let small = if compresses {
            compress::compress(mm, page, mm.frames.address(frame), &mut context)
        } else {
            None
        };
        if compresses && small.is_none() && !has_block {
            back += u64::from(poor::put_back(mm, page, frame));
        }
        match small.and_then(|small| tiers::store_compressed(mm, slot, &small, &context)) {
            Some(backing) => {
                kill_point!("huge-out-compressed");
                store::hand_over(mm, page, frame, slot, backing);
            }
            None if has_block => raw.add(i),
            None => unused.add(i),
        }
    }
    drop(context);
    let most = match swapout(mm) {
        SwapOut::SplitLate => 1,
        SwapOut::Whole | SwapOut::SplitEarly => CHUNK_PAGES,
    };
    raw.each_run(most, |i, count| {
        let frames = mm.frames.address(first + i);
        if !tiers::write_row(mm, frames, count, slot + i as u32) {
            (i..i + count).for_each(|i| unused.add(i));
            return;
        }
        kill_point!("huge-out-written");
        for i in i..i + count {
            let crc = tiers::checksum(mm.frames.address(first + i));
            store::hand_over(mm, base + i, first + i, slot + i as u32, Backing::Device { crc });
        }
    });
    unused.each_run(BLOCK, |i, count| {
        let mut slots = [0u32; BLOCK as usize];
        let len = count.min(BLOCK) as usize;
        let places = slots[..len].iter_mut().zip(slot + i as u32..);
        places.for_each(|(to, slot)| *to = slot);
        puts::release_now(mm, &slots[..len]);
    });
    back
}

/// Places of a chunk, a bit each.
#[derive(Default)]
struct Places([u64; (CHUNK_PAGES / 64) as usize]);

impl Places {
    fn add(&mut self, i: u64) {
        self.0[(i / 64) as usize] |= 1 << (i % 64);
    }

    fn has(&self, i: u64) -> bool {
        self.0[(i / 64) as usize] >> (i % 64) & 1 == 1
    }

    /// Calls `f` with the first place and the length of each run, in pieces of `most` places.
    fn each_run(&self, most: u64, mut f: impl FnMut(u64, u64)) {
        let mut at = 0;
        while at < CHUNK_PAGES {
            let len = (at..CHUNK_PAGES.min(at + most))
                .take_while(|i| self.has(*i))
                .count() as u64;
            if len > 0 {
                f(at, len);
            }
            at += len.max(1);
        }
    }
}

/// Returns the memory of a stored place; frames given back. While a page waits in it still it stays, whole: parts of a huge
/// page give no memory back.
fn release(mm: &Mm, place: u64) -> u64 {
    let (base, first) = (
        mm.places.get(place).base.load(Ordering::Relaxed),
        first_frame(place),
    );
    let waits = |i: u64| {
        let seen = mm.load(base + i);
        seen.kind() == Kind::Cached && seen.frame() == first + i
    };
    if (0..CHUNK_PAGES).any(waits) {
        mm.frames.push(FIRST_PLACE + place);
        return 0;
    }
    drop_frames(mm, mm.frames.address(first), HUGE_LEN);
    kill_point!("huge-out-dropped");
    let held = mm.places.get(place).held.load(Ordering::Relaxed);
    mm.entry().frames.fetch_sub(held as i64, Ordering::Relaxed);
    mm.charge(-(held as i64));
    mm.frames.released.tell();
    mm.places.give(mm, place);
    held
}

const _: () = assert!(1 << (ORDERS - 1) == CHUNK_PAGES && HUGE_PAGES as u64 == CHUNK_PAGES && PAGE == 4096);
