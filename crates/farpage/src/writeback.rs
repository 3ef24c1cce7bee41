//! Writeback: what has lain compressed longest goes to its own blocks when the compressed tier is nearly full, so that what
//! leaves now stays in RAM, where it comes back from a hundred times faster.
//!
//! Clusters are written in the order they filled, each as a whole, in large runs. Numbered steps, with what is locked in
//! brackets: 1. lock the oldest cluster [cluster]: no slot of it is handed out, so none of its blocks gets another content
//! while a write is under way; 2. decompress a run of neighbours into the work area [cluster]; 3. write it [cluster]; 4. slot by slot,
//! exchange the word from compressed to device, and free the object [cluster]. Whoever reads a slot meanwhile reads the
//! object, or finds the word changed and reads the block. A slot that was put meanwhile keeps no content: nothing to exchange.
//! Nor has one of nobody's between two others, which is written along: nobody can take it meanwhile.

use core::sync::atomic::Ordering;

use farpage_core::cluster::CLUSTER_SLOTS;
use farpage_core::kill_point;
use farpage_core::planes::Page;
use farpage_core::stats::Counter;
use farpage_core::swap_table::{Backing, SlotKind, SlotWord};

use crate::mm::{Mm, SPAN};
use crate::puts::Objects;
use crate::tiers;
use crate::work_area::Context;

/// Pages per write.
const RUN: usize = SPAN;
/// Most slots of nobody's in a row that are written along: a block takes 3 us of a disk for which a write by itself takes 60 to 100.
const GAP_MAX: usize = 16;
/// Clusters looked at in one turn.
const TURN: usize = 8;
/// Pages that make a turn worth its while.
const ENOUGH: u64 = 256;

/// Whether the compressed tier has less than a 16th of its limit left, or takes room that pages have which no tier takes, and there are files
/// to write to.
#[must_use]
pub fn is_due(mm: &Mm) -> bool {
    let header = mm.header();
    let most = header.zpages_beside_poor();
    header.areas.load(Ordering::Relaxed) > 0
        && header.zpages_limit.load(Ordering::Relaxed) > 0
        && header.zpages_used.load(Ordering::Relaxed) > most - most / 16
}

/// Writes some of the oldest compressed pages to their blocks; how many.
pub fn run(mm: &Mm) -> u64 {
    let view = mm.pool().slots();
    let mut done = 0;
    for _ in 0..TURN {
        let Some(locked) = view.lock_oldest(mm.owner()) else {
            break;
        };
        kill_point!("writeback-locked");
        if !tiers::stays(mm.pool(), locked.cluster() * CLUSTER_SLOTS as u32) {
            // What is empty is nobody's any more: it would only hold up what waits behind it.
            if view.cluster_word(locked.cluster()).count() == 0 {
                view.unlock_unchanged(locked);
            } else {
                view.unlock_again(locked);
            }
            continue;
        }
        if !tiers::may_be_written(mm, locked.cluster() * CLUSTER_SLOTS as u32) {
            view.unlock_again(locked);
            continue;
        }
        let outcome = write_cluster(mm, locked.cluster());
        done += outcome.written;
        if outcome.again {
            view.unlock_again(locked);
        } else {
            view.unlock_unchanged(locked);
        }
        if done >= ENOUGH || outcome.failed {
            break;
        }
    }
    tiers::count_locks(mm.pool(), &view);
    tiers::count_writebacks(mm, done);
    done
}

#[derive(Default)]
struct Outcome {
    written: u64,
    /// A slot was being filled: the cluster must come again.
    again: bool,
    /// The file failed.
    failed: bool,
}

fn write_cluster(mm: &Mm, cluster: u32) -> Outcome {
    let mut outcome = Outcome::default();
    let mut context = mm.context();
    let mut slot = cluster * CLUSTER_SLOTS as u32;
    let end = slot + CLUSTER_SLOTS as u32;
    while slot < end {
        let mut seen = [(SlotWord::FREE, 0); RUN];
        let count = gather(mm, slot..end, &mut seen, &mut context);
        if count == 0 {
            outcome.again |= mm.pool().swap_table().load(slot).kind() == SlotKind::Busy;
            slot += 1;
            continue;
        }
        kill_point!("writeback-gathered");
        let address = |((word, _), page): (&(SlotWord, u32), &Page)| {
            word.backing().is_some().then_some(page.as_ptr() as u64)
        };
        let addresses = seen[..count].iter().zip(&context.bounce).map(address);
        let writing_back = &mm.entry().writing_back;
        writing_back.fetch_add(count as i64, Ordering::Relaxed);
        let is_written = tiers::write_run(mm, addresses, slot);
        writing_back.fetch_sub(count as i64, Ordering::Relaxed);
        if !is_written {
            outcome.again = true;
            outcome.failed = true;
            break;
        }
        kill_point!("writeback-written");
        outcome.written += exchange(mm, slot, &seen[..count]);
        slot += count as u32;
    }
    context.note_used(mm, context.bounce.len());
    outcome
}

/// Decompresses compressed neighbours from the first of `slots` on; how many, with their words and checksums. Those of nobody's between
/// them keep the word that `seen` has.
fn gather(
    mm: &Mm,
    slots: core::ops::Range<u32>,
    seen: &mut [(SlotWord, u32); RUN],
    context: &mut Context,
) -> usize {
    let table = mm.pool().swap_table();
    let Context { bounce, out, .. } = context;
    let mut count = 0;
    for (at, ((slot, to), page)) in slots.zip(seen).zip(bounce).enumerate() {
        let word = table.load(slot);
        if let Some(crc) = tiers::unpack(mm.pool(), slot, word, out, page) {
            *to = (word, crc);
            count = at + 1;
        } else if count == 0 || at - count >= GAP_MAX || word.kind() != SlotKind::Free {
            break;
        }
    }
    count
}

/// The blocks from that of `first` on hold the content now.
fn exchange(mm: &Mm, first: u32, seen: &[(SlotWord, u32)]) -> u64 {
    let (pool, header) = (mm.pool(), mm.header());
    let mut moved = 0;
    let mut objects = Objects::new(pool, mm.owner());
    for (slot, &(word, crc)) in (first..).zip(seen) {
        if !pool.swap_table().written_back(slot, word, crc) {
            continue;
        }
        kill_point!("writeback-exchanged");
        moved += 1;
        if let Some(Backing::Compressed(handle)) = word.backing() {
            objects.free(handle, slot);
        }
        kill_point!("writeback-freed");
    }
    tiers::count_blocks(mm, first, moved);
    header.count(Counter::Zswpwb, moved);
    moved
}
