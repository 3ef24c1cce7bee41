//! Pages that the program itself says it does not need now.

use core::sync::atomic::Ordering;

use super::{BLOCK, evict_from, store_oldest, store_surplus};
use crate::huge_out::{self, Turn};
use crate::mem::each_touched;
use crate::mm::{CHUNK_PAGES, Mm, RESIDENT_MASK};

/// How often the oldest is stored for a free block.
const TRIES: u32 = 4;

/// MADV_PAGEOUT and COLD: moves what can be moved of pages `lo..hi` out, now.
pub fn page_out(mm: &Mm, lo: u64, hi: u64) {
    each_touched(mm, lo, hi, |lo, hi| (lo..hi).for_each(|page| make_old(mm, page)));
    for window in lo.div_ceil(BLOCK)..hi / BLOCK {
        if mm.chunk(window * BLOCK).load(Ordering::Relaxed) & RESIDENT_MASK == 0 {
            continue;
        }
        let first = window * BLOCK;
        if first.is_multiple_of(CHUNK_PAGES)
            && first + CHUNK_PAGES <= hi
            && let Turn::Moved(_) = huge_out::evict(mm, first, |_| true)
        {
            store_surplus(mm);
            continue;
        }
        let Some(block) = free_block(mm) else { break };
        if evict_from(mm, window * BLOCK, block) == 0 {
            mm.frames.give_free(block);
        }
        store_surplus(mm);
    }
}

fn make_old(mm: &Mm, page: u64) {
    let seen = mm.load(page);
    if seen.young() && !seen.is_locked() {
        let word = mm.word(page);
        let _ = word.compare_exchange(
            seen.raw(),
            seen.with_young(false).raw(),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }
}

/// Windows with few pages fill all blocks long before the swap cache has too much: then the oldest are stored. A huge page may be the oldest, a
/// block may keep a page that somebody works on, and others may take what is free.
fn free_block(mm: &Mm) -> Option<u64> {
    let stored_first = || {
        store_oldest(mm, BLOCK);
        mm.frames.take_free()
    };
    mm.frames
        .take_free()
        .or_else(|| (0..TRIES).find_map(|_| stored_first()))
}
