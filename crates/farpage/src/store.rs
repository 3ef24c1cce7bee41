//! The frames of a block go to a tier.
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

use crate::mm::{Context, Mm};
use crate::reclaim::{BLOCK, bits, set};
use crate::slot_batch::SlotBatch;
use crate::tiers;

/// Stores the pages of window `base` that are in the frames `filled` of `block`: zeros need no place, what compresses well
/// goes to the zpool, the rest to a file.
pub fn store_frames(mm: &Mm, base: u64, block: u64, filled: u64) {
    let mut batch = SlotBatch::default();
    let mut context = mm.context();
    // Frames to be written to a file, and where.
    let (mut raw, mut slots) = (0u64, [0u32; BLOCK as usize]);
    for i in bits(filled) {
        let frame = block * BLOCK + i;
        if !holds(mm, base + i, frame) || store_zero(mm, base + i, frame) {
            continue;
        }
        let left = (filled >> i).count_ones() as usize;
        if let Some(slot) = store_small(mm, (base + i, frame), left, &mut batch, &mut context) {
            raw |= 1 << i;
            slots[i as usize] = slot;
        }
    }
    drop(context);
    batch.finish(mm);
    store_raw(mm, base, block, raw, &slots);
}

/// True while the page's content is in this frame and nobody is taking it back.
fn holds(mm: &Mm, page: u64, frame: u64) -> bool {
    let seen = mm.load(page);
    seen.kind() == Kind::Cached && seen.frame() == frame && !seen.is_locked()
}

/// True for a page of zeros, which needs no place.
fn store_zero(mm: &Mm, page: u64, frame: u64) -> bool {
    if !tiers::is_zero(mm.frames.address(frame)) {
        return false;
    }
    let seen = mm.load(page);
    if seen.kind() == Kind::Cached && seen.frame() == frame && !seen.is_locked() && mm.try_lock(page, seen) {
        kill_point!("store-zero");
        mm.unlock(page, seen, PageState::zero());
        mm.header().count(Counter::SwpoutZero, 1);
    }
    true
}

/// Compresses a page, given with its frame, and hands it over. What is not worth it, or finds the tier full, gets a slot
/// with a block, which is returned: it is to be written there. None if there is no such slot either.
fn store_small(
    mm: &Mm,
    (page, frame): (u64, u64),
    left: usize,
    batch: &mut SlotBatch,
    context: &mut Context,
) -> Option<u32> {
    if tiers::passes_through(mm, page / BLOCK)
        && let Some(slot) = batch.for_file(mm, left)
    {
        return Some(slot);
    }
    let Some(compressed) = tiers::compress(mm, mm.frames.address(frame), context) else {
        return batch.for_file(mm, left);
    };
    let slot = batch.for_compressed(mm, left)?;
    kill_point!("store-slot");
    if let Some(backing) = tiers::store_compressed(mm, slot, &compressed, context) {
        kill_point!("store-compressed");
        hand_over(mm, page, frame, slot, backing);
        return None;
    }
    if tiers::place_of(mm.pool(), slot).is_some() {
        return Some(slot);
    }
    tiers::release(mm, &[slot]);
    batch.for_file(mm, left)
}

/// The page is in `slot` from now on, unless the program took it back. The word names the slot before the slot counts
/// the reference, so a process killed in between leaves a busy slot of its own and nothing else.
fn hand_over(mm: &Mm, page: u64, frame: u64, slot: u32, backing: Backing) {
    if let Backing::Device { .. } = backing {
        tiers::count_blocks(mm, slot, 1);
    }
    let seen = mm.load(page);
    let table = mm.pool().swap_table();
    let still = seen.kind() == Kind::Cached && seen.frame() == frame && !seen.is_locked();
    if still && mm.try_lock(page, seen) {
        kill_point!("store-locked");
        let locked = mm.load(page);
        mm.word(page).store(
            locked.replace(PageState::swapped(slot)).locked().raw(),
            Ordering::Release,
        );
        kill_point!("store-worded");
        if let Err(impossible) = table.publish(slot, backing) {
            tiers::stop(&impossible);
        }
        kill_point!("store-published");
        mm.unlock(page, locked, PageState::swapped(slot));
    } else {
        tiers::free_backing(mm.pool(), slot, backing, mm.owner());
        tiers::release(mm, &[slot]);
    }
}

/// Writes the frames in `raw` to their slots' blocks, neighbouring slots with one write wherever the frames are.
fn store_raw(mm: &Mm, base: u64, block: u64, raw: u64, slots: &[u32; BLOCK as usize]) {
    let mut left = raw;
    while left != 0 {
        let first = slots[left.trailing_zeros() as usize];
        let place = tiers::place_of(mm.pool(), first);
        let follows = |&(nth, i): &(u64, u64)| {
            let there = tiers::place_of(mm.pool(), slots[i as usize]);
            there == place.map(|(area, block)| (area, block + nth))
        };
        let run = (0..).zip(bits(left)).take_while(follows);
        let run = set(run.map(|(_, i)| i));
        let frame = |i: u64| block * BLOCK + i;
        if tiers::write_run(mm, bits(run).map(|i| mm.frames.address(frame(i))), first) {
            kill_point!("store-written");
            for i in bits(run) {
                let crc = tiers::checksum(mm.frames.address(frame(i)));
                hand_over(mm, base + i, frame(i), slots[i as usize], Backing::Device { crc });
            }
        } else {
            bits(run).for_each(|i| tiers::release(mm, &[slots[i as usize]]));
        }
        // A slot without a block, which there should not be, is its own run.
        left &= !(run | 1 << left.trailing_zeros());
    }
}
