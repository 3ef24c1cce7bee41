//! The frames of blocks go to a tier.
//!
//! Storing needs no lock: frames never change, so each page is compressed or written first and then its word exchanged from
//! *cached(this frame)* to *swapped(slot)*; if the program took the page back meanwhile the exchange fails and the slot is
//! given up.
//!
//! Runs with the gate held shared and signals blocked.

use core::sync::atomic::Ordering;

use farpage_core::kill_point;
use farpage_core::page_state::{Kind, PageState};
use farpage_core::stats::Counter;
use farpage_core::swap_table::Backing;

use crate::bits::bits;
use crate::compress;
use crate::kept;
use crate::mm::Mm;
use crate::puts;
use crate::reclaim::{BLOCK, poor};
use crate::slot_batch::SlotBatch;
use crate::sys;
use crate::tiers;
use crate::work_area::Context;

/// A block of frames and the window whose pages are in those that are `filled`.
#[derive(Clone, Copy)]
pub struct Occupied {
    pub base: u64,
    pub block: u64,
    pub filled: u64,
}

impl Occupied {
    /// Pages and the frames they are in.
    pub fn pages(self) -> impl Iterator<Item = (u64, u64)> {
        bits(self.filled).map(move |i| (self.base + i, self.block * BLOCK + i))
    }
}

/// So many pages in a row that found no place: where there is no hope of room there is none for the others either.
const HOMELESS_MAX: u32 = 8;
/// Most pages of one write: 1 MiB.
pub const WRITE_MAX: usize = 256;

/// A page on its way to a file: from its frame to its slot's block.
#[derive(Clone, Copy)]
pub struct Raw {
    page: u64,
    frame: u32,
    slot: u32,
}

/// What one store writes: a list, and the same for the kernel.
pub struct Writes {
    raw: [Raw; WRITE_MAX],
    pieces: [sys::Piece; WRITE_MAX],
}

/// Where a page goes that has left the program.
enum Home {
    /// Its content is stored, or nobody's in this frame any more.
    Stored,
    /// Its slot has a block, which is to be written.
    Block(u32),
    /// There is none now: it waits in its frame.
    Missing,
    /// It is not worth compressing, and no file has room for it.
    Poor,
}

/// Stores what is in the frames of `blocks`: what is unchanged is there already, zeros need no place, what compresses well goes to the zpool, the rest to a file.
/// Slots are taken for all of them together, so that many small blocks make one large write. How many pages went back into the program instead.
pub fn store_frames(mm: &Mm, blocks: impl Iterator<Item = Occupied> + Clone) -> u64 {
    let mut batch = SlotBatch::default();
    let mut context = mm.context();
    let all: usize = blocks
        .clone()
        .map(|block| block.filled.count_ones() as usize)
        .sum();
    let (mut left, mut raw, mut written, mut homeless, mut back) = (all, 0, 0, 0, 0);
    for (page, frame) in blocks.flat_map(Occupied::pages) {
        left -= 1;
        if !holds(mm, page, frame) || kept::is_there(mm, page, frame) || store_zero(mm, page, frame) {
            continue;
        }
        let slot = match store_small(mm, (page, frame), left + 1, &mut batch, &mut context) {
            Home::Block(slot) => slot,
            Home::Stored => {
                homeless = 0;
                continue;
            }
            Home::Poor if poor::put_back(mm, page, frame) => {
                back += 1;
                continue;
            }
            Home::Poor | Home::Missing => {
                homeless = if holds(mm, page, frame) { homeless + 1 } else { 0 };
                if homeless >= HOMELESS_MAX && mm.header().is_hopeless() {
                    break;
                }
                continue;
            }
        };
        if raw == WRITE_MAX {
            store_raw(mm, &mut context.writes, raw);
            written += raw;
            raw = 0;
        }
        context.writes.raw[raw] = Raw {
            page,
            frame: frame as u32,
            slot,
        };
        raw += 1;
    }
    batch.finish(mm);
    store_raw(mm, &mut context.writes, raw);
    mm.who.note_stored(all as u64, (written + raw) as u64);
    back
}

/// True while the page's content is in this frame and nobody is taking it back.
pub fn holds(mm: &Mm, page: u64, frame: u64) -> bool {
    let seen = mm.load(page);
    seen.kind() == Kind::Cached && seen.frame() == frame && !seen.is_locked()
}

/// True for a page of zeros, which needs no place.
pub fn store_zero(mm: &Mm, page: u64, frame: u64) -> bool {
    if !tiers::is_zero(mm.frames.address(frame)) {
        return false;
    }
    let seen = mm.load(page);
    let still = seen.kind() == Kind::Cached && seen.frame() == frame && seen.named_slot().is_none();
    if still && !seen.is_locked() && mm.try_lock(page, seen) {
        kill_point!("store-zero");
        mm.unlock(page, seen, PageState::zero());
        mm.header().count(Counter::SwpoutZero, 1);
    }
    true
}

/// Compresses a page, given with its frame, and hands it over. What is not worth it, or finds the tier full, gets a slot
/// with a block: it is to be written there.
fn store_small(
    mm: &Mm,
    (page, frame): (u64, u64),
    left: usize,
    batch: &mut SlotBatch,
    context: &mut Context,
) -> Home {
    if tiers::passes_through(mm, page / BLOCK)
        && let Some(slot) = batch.for_file(mm, left)
    {
        return Home::Block(slot);
    }
    let Some(compressed) = compress::compress(mm, page, mm.frames.address(frame), context) else {
        // Without a compressed tier all of it is the files', and what comes back from them makes room.
        let compresses = mm.header().zpages_limit.load(Ordering::Relaxed) > 0;
        let homeless = if compresses { Home::Poor } else { Home::Missing };
        return batch.for_file(mm, left).map_or(homeless, Home::Block);
    };
    let Some(slot) = batch.for_compressed(mm, left) else {
        return Home::Missing;
    };
    kill_point!("store-slot");
    if let Some(backing) = tiers::store_compressed(mm, slot, &compressed, context) {
        kill_point!("store-compressed");
        hand_over(mm, page, frame, slot, backing);
        return Home::Stored;
    }
    if tiers::place_of(mm.pool(), slot).is_some() {
        return Home::Block(slot);
    }
    puts::release(mm, &[slot]);
    batch.for_file(mm, left).map_or(Home::Missing, Home::Block)
}

/// The page is in `slot` from now on, unless the program took it back. The word names the slot before the slot counts
/// the reference, so a process killed in between leaves a busy slot of its own and nothing else.
pub fn hand_over(mm: &Mm, page: u64, frame: u64, slot: u32, backing: Backing) {
    let _counted = matches!(backing, Backing::Device { .. }).then(|| tiers::count_block(mm, slot));
    let seen = mm.load(page);
    let table = mm.pool().swap_table();
    // A slot that the page keeps has been given up before (`kept::is_there`), unless the page was away since.
    let still = seen.kind() == Kind::Cached && seen.frame() == frame && seen.named_slot().is_none();
    if still && !seen.is_locked() && mm.try_lock(page, seen) {
        kill_point!("store-locked");
        let locked = mm.load(page);
        let swapped = match backing {
            Backing::Compressed(_) => PageState::stamped(slot, mm.header().workingset.stamp()),
            _ => PageState::swapped(slot),
        };
        mm.word(page)
            .store(locked.replace(swapped).locked().raw(), Ordering::Release);
        kill_point!("store-worded");
        if let Err(impossible) = table.publish(slot, backing) {
            tiers::stop(&impossible);
        }
        kill_point!("store-published");
        mm.unlock(page, locked, swapped);
    } else {
        puts::free_backing(mm.pool(), slot, backing, mm.owner());
        puts::release(mm, &[slot]);
    }
}

/// Writes the first `count` listed pages to their slots' blocks, neighbouring slots with one write wherever the frames are.
fn store_raw(mm: &Mm, writes: &mut Writes, count: usize) {
    // What the compressed tier had no room for has slots of its own among the others'.
    writes.raw[..count].sort_unstable_by_key(|raw| raw.slot);
    let mut rest = &writes.raw[..count];
    while let Some(first) = rest.first().map(|raw| raw.slot) {
        let place = tiers::place_of(mm.pool(), first);
        let follows = |&(nth, raw): &(u64, &Raw)| {
            tiers::place_of(mm.pool(), raw.slot) == place.map(|(area, block)| (area, block + nth))
        };
        let len = (0..).zip(rest).take_while(follows).count();
        let (run, others) = rest.split_at(len);
        let frames = run
            .iter()
            .map(|raw| Some(mm.frames.address(u64::from(raw.frame))));
        if tiers::write_listed(mm, frames, first, &mut writes.pieces) {
            kill_point!("store-written");
            for raw in run {
                let frame = u64::from(raw.frame);
                let crc = tiers::checksum(mm.frames.address(frame));
                hand_over(mm, raw.page, frame, raw.slot, Backing::Device { crc });
            }
        } else {
            run.iter().for_each(|raw| puts::release(mm, &[raw.slot]));
        }
        rest = others;
    }
}
