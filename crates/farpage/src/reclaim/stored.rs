//! The oldest blocks of the swap cache are stored, and their memory returned.

use core::sync::atomic::Ordering;

use farpage_core::kill_point;
use farpage_core::page_state::Kind;

use crate::bits::{bits, set};
use crate::huge_out;
use crate::mm::{Mm, PAGE};
use crate::reclaim::{BLOCK, FIRST_PLACE};
use crate::reclaim_calls::drop_frames;
use crate::store::{self, Occupied, WRITE_MAX};

/// Most blocks stored together.
const STORED_MAX: usize = 64;

/// Stores the oldest blocks, of about `pages` pages and at most [`WRITE_MAX`] together, and returns their memory; the number of
/// frames given back.
pub fn store_oldest(mm: &Mm, pages: u64) -> u64 {
    let mut blocks = [0u16; STORED_MAX];
    let (mut len, mut count, mut place) = (0, 0, None);
    for _ in 0..mm.frames.waiting() {
        if len == STORED_MAX || count >= pages.min(WRITE_MAX as u64) {
            break;
        }
        let Some(block) = mm.frames.pop_oldest() else {
            break;
        };
        place = u64::from(block).checked_sub(FIRST_PLACE);
        if place.is_some() {
            break;
        }
        if is_spared(mm, &mm.frames.filled(block)) {
            mm.frames.push(u64::from(block));
            continue;
        }
        count += u64::from(mm.frames.filled(block).filled.count_ones());
        blocks[len] = block;
        len += 1;
    }
    let mut stored = 0;
    if len > 0 {
        let blocks = blocks[..len].iter().map(|block| mm.frames.filled(*block));
        mm.entry().storing.fetch_add(count as i64, Ordering::Relaxed);
        let back = store::store_frames(mm, blocks.clone());
        stored = release_blocks(mm, blocks.clone()).saturating_sub(back);
        if stored == 0 && (back > 0 || blocks.clone().any(|block| is_stuck(mm, &block))) {
            mm.frames.released.tell_of_failure();
        }
        mm.entry().storing.fetch_sub(count as i64, Ordering::Relaxed);
    }
    stored + place.map_or(0, |place| store_place(mm, place))
}

fn store_place(mm: &Mm, place: u64) -> u64 {
    let held = mm.places.get(place).held.load(Ordering::Relaxed);
    mm.entry().storing.fetch_add(held as i64, Ordering::Relaxed);
    let stored = huge_out::store(mm, place);
    if stored == 0 {
        mm.frames.released.tell_of_failure();
    }
    mm.entry().storing.fetch_sub(held as i64, Ordering::Relaxed);
    stored
}

/// Whether a block, taken from the FIFO, holds a page read ahead (a marker or one of the sample) that waits for its touch beside
/// neighbours that were mapped ahead of theirs. Those leave with their window, later than the FIFO is through: stored before them, the
/// sample would tell of misses that are none, and the marker would be late.
fn is_spared(mm: &Mm, occupied: &Occupied) -> bool {
    let window = occupied.base..occupied.base + BLOCK;
    let mut there = window.map(|page| mm.load(page).kind() == Kind::Resident);
    mm.frames.spare(occupied.block) && there.any(|there| there) && still_named(mm, occupied) != 0
}

/// Returns the memory of at most [`STORED_MAX`] stored blocks; the number of frames. Those whose page could not be stored stay, in
/// a block at the FIFO's end.
fn release_blocks(mm: &Mm, blocks: impl Iterator<Item = Occupied> + Clone) -> u64 {
    let mut whole = [0u64; STORED_MAX];
    let mut len = 0;
    let mut kept = [0u64; STORED_MAX];
    for (kept, occupied) in kept.iter_mut().zip(blocks.clone()) {
        *kept = still_named(mm, &occupied);
        if *kept == 0 {
            whole[len] = occupied.block;
            len += 1;
        } else {
            let frame = |i| mm.frames.address(occupied.block * BLOCK + i);
            bits(occupied.filled & !*kept).for_each(|i| drop_frames(mm, frame(i), PAGE));
        }
    }
    // Neighbours together: each call flushes the TLBs of all CPUs.
    whole[..len].sort_unstable();
    for row in whole[..len].chunk_by(|a, b| a + 1 == *b) {
        drop_frames(
            mm,
            mm.frames.address(row[0] * BLOCK),
            row.len() as u64 * BLOCK * PAGE,
        );
    }
    kill_point!("frames-dropped");
    let each = blocks.zip(kept);
    each.map(|(occupied, kept)| release_block(mm, &occupied, kept))
        .sum()
}

/// Whether a page waits in the block although it was to be stored, and nobody is taking it back.
fn is_stuck(mm: &Mm, occupied: &Occupied) -> bool {
    bits(still_named(mm, occupied)).any(|i| !mm.load(occupied.base + i).is_locked())
}

/// The frames of a block that a page's word names still.
fn still_named(mm: &Mm, occupied: &Occupied) -> u64 {
    let Occupied { base, block, filled } = *occupied;
    set(bits(filled).filter(|i| {
        // Locked or not: a locked word's page is being taken back from this very frame, perhaps by this very thread
        // (which reclaims because it got no memory for it). Its frame goes in a later turn.
        let seen = mm.load(base + i);
        seen.kind() == Kind::Cached && seen.frame() == block * BLOCK + i
    }))
}

/// The frames of a block but the `kept` ones have no memory any more.
fn release_block(mm: &Mm, occupied: &Occupied, kept: u64) -> u64 {
    let Occupied { block, filled, .. } = *occupied;
    let gone = filled & !kept;
    let count = i64::from(gone.count_ones());
    mm.entry().frames.fetch_sub(count, Ordering::Relaxed);
    mm.charge(-count);
    if gone != 0 {
        mm.frames.released.tell();
    }
    kill_point!("frames-uncharged");
    if kept == 0 {
        mm.frames.give_free(block);
    } else {
        mm.frames.blocks[block as usize]
            .filled
            .store(kept, Ordering::Relaxed);
        mm.frames.push(block);
    }
    count as u64
}
