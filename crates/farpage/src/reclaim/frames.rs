//! The staging area: frames in blocks, the free ones and the FIFO of those that hold pages.

use core::sync::atomic::{AtomicU64, Ordering};

use super::Released;
use super::scattered::Scattered;
use crate::gate::Spin;
use crate::huge_places::{HUGE_LEN, PLACES};
use crate::mm::PAGE;
use crate::queue;
use crate::store::Occupied;
use crate::sys::{self, Errno};

/// Frames per block, pages per window of the clock: one bit each in a word.
pub const BLOCK: u64 = queue::WINDOW;
const BLOCKS: usize = 512;
/// Blocks are handed out in turn from so many times as many as are taken, and no fewer than the least.
const RING_PART: usize = 4;
const RING_MIN: usize = 16;
/// Ids in the FIFO from here on are huge places: eight blocks' worth of frames each, behind those of the blocks.
pub const FIRST_PLACE: u64 = BLOCKS as u64;
const IDS: usize = BLOCKS + PLACES;
/// Bytes of the read-only zero pages that fresh memory is copied from.
const ZEROS_LEN: u64 = 64 * PAGE;
/// So long nobody looks for what can be moved out after a thread has found nothing.
const LOOK_AGAIN_NS: u64 = 250_000;
const STAGING_LEN: u64 = BLOCKS as u64 * BLOCK * PAGE + PLACES as u64 * HUGE_LEN;

/// One block of frames and the window of pages it was filled from.
pub(super) struct Block {
    pub(super) base_page: AtomicU64,
    /// Frames that hold a page's memory.
    pub(super) filled: AtomicU64,
    /// Of those, pages that were read ahead and held back as a sample.
    pub(super) sampled: AtomicU64,
    /// Turns in the FIFO that a block of pages read ahead may yet be spared for.
    pub(super) spares: AtomicU64,
}

struct Lists {
    /// Free blocks, a bit each, how many others there are, and where the next one is looked for.
    free: [u64; BLOCKS / 64],
    taken: usize,
    next: usize,
    fifo: [u16; IDS],
    fifo_head: usize,
    fifo_len: usize,
}

/// The staging area: where evicted pages wait.
pub struct Frames {
    staging: AtomicU64,
    zeros: AtomicU64,
    pub(super) blocks: [Block; BLOCKS],
    /// Pages of the windows that threads are moving out of, at most: not counted as frames yet.
    moving: AtomicU64,
    /// When a thread last found nothing to move out; 0: another has found something since.
    vain_ns: AtomicU64,
    /// Tells those who wait for room of frames that were given back.
    pub released: Released,
    pub(super) scattered: Scattered,
    lists: Spin<Lists>,
}

impl Lists {
    /// The first free block from `start` on.
    fn free_from(&self, start: usize) -> Option<usize> {
        let words = self.free.iter().enumerate().skip(start / 64);
        words
            .map(|(i, word)| {
                if i == start / 64 {
                    (i, word & !0 << (start % 64))
                } else {
                    (i, *word)
                }
            })
            .find(|(_, word)| *word != 0)
            .map(|(i, word)| i * 64 + word.trailing_zeros() as usize)
    }
}

impl Default for Frames {
    fn default() -> Self {
        Frames::new()
    }
}

impl Frames {
    pub const fn new() -> Frames {
        Frames {
            staging: AtomicU64::new(0),
            zeros: AtomicU64::new(0),
            blocks: [const {
                Block {
                    base_page: AtomicU64::new(0),
                    filled: AtomicU64::new(0),
                    sampled: AtomicU64::new(0),
                    spares: AtomicU64::new(0),
                }
            }; BLOCKS],
            moving: AtomicU64::new(0),
            vain_ns: AtomicU64::new(0),
            released: Released::new(),
            scattered: Scattered::new(),
            lists: Spin::new(Lists {
                free: [0; BLOCKS / 64],
                taken: BLOCKS,
                next: 0,
                fifo: [0; IDS],
                fifo_head: 0,
                fifo_len: 0,
            }),
        }
    }

    /// Maps the staging area; all blocks are free.
    pub fn prepare(&self) -> Result<(), Errno> {
        let memory = sys::engine_memory(STAGING_LEN + HUGE_LEN)?;
        self.staging
            .store(memory.next_multiple_of(HUGE_LEN), Ordering::Relaxed);
        self.zeros
            .store(sys::engine_memory(ZEROS_LEN)?, Ordering::Relaxed);
        self.scattered.prepare()?;
        let mut lists = self.lists.lock();
        lists.free.fill(!0);
        lists.taken = 0;
        Ok(())
    }

    /// In a forked child, which finds the staging area as its parent has it; see [`Scattered::inherit`].
    pub fn inherit(&self) -> Result<(), Errno> {
        self.scattered.inherit()
    }

    /// Whether a thread has found nothing to move out just now. (32 threads of a process whose children held all of the budget each looked through
    /// all of its pages twice in a millisecond, and left the children no CPU to store theirs.)
    pub(super) fn are_searched(&self) -> bool {
        let then = self.vain_ns.load(Ordering::Relaxed);
        then != 0 && sys::now_ns().saturating_sub(then) < LOOK_AGAIN_NS
    }

    pub(super) fn note_search(&self, found: bool) {
        if !found {
            self.vain_ns.store(sys::now_ns(), Ordering::Relaxed);
        } else if self.vain_ns.load(Ordering::Relaxed) != 0 {
            self.vain_ns.store(0, Ordering::Relaxed);
        }
    }

    /// Address and length of the staging area, to be registered with the process's userfaultfd.
    pub fn staging(&self) -> (u64, u64) {
        (self.staging.load(Ordering::Relaxed), STAGING_LEN)
    }

    pub fn zeros(&self) -> u64 {
        self.zeros.load(Ordering::Relaxed)
    }

    /// Address of a frame's page.
    pub fn address(&self, frame: u64) -> u64 {
        self.staging.load(Ordering::Relaxed) + frame * PAGE
    }

    /// Whether the frame holds a page of the readahead sample.
    pub fn is_sample(&self, frame: u64) -> bool {
        let block = self.blocks.get((frame / BLOCK) as usize);
        block.is_some_and(|block| block.sampled.load(Ordering::Relaxed) >> (frame % BLOCK) & 1 == 1)
    }

    /// Moves pages of one window out, which others count on meanwhile.
    pub(super) fn while_moving(&self, evict: impl FnOnce() -> u64) -> u64 {
        self.moving.fetch_add(BLOCK, Ordering::Relaxed);
        let moved = evict();
        self.moving.fetch_sub(BLOCK, Ordering::Relaxed);
        moved
    }

    pub(super) fn moving(&self) -> i64 {
        self.moving.load(Ordering::Relaxed) as i64
    }

    /// A free block. They are handed out one after the other, so that those stored together, the oldest, lie together
    /// and their memory is returned by one call, which flushes all TLBs once; in a ring no larger than needed, whose page tables
    /// are memory too.
    pub(super) fn take_free(&self) -> Option<u64> {
        let mut lists = self.lists.lock();
        let ring = (RING_PART * lists.taken)
            .next_power_of_two()
            .clamp(RING_MIN, BLOCKS);
        let next = if lists.next < ring { lists.next } else { 0 };
        let block = lists.free_from(next).or_else(|| lists.free_from(0))?;
        lists.free[block / 64] &= !(1 << (block % 64));
        lists.taken += 1;
        lists.next = block + 1;
        Some(block as u64)
    }

    pub(super) fn give_free(&self, block: u64) {
        let mut lists = self.lists.lock();
        lists.free[block as usize / 64] |= 1 << (block % 64);
        lists.taken -= 1;
    }

    /// Puts a block or a huge place at the FIFO's end.
    pub fn push(&self, block: u64) {
        let mut lists = self.lists.lock();
        let at = (lists.fifo_head + lists.fifo_len) % IDS;
        lists.fifo[at] = block as u16;
        lists.fifo_len += 1;
    }

    pub(super) fn pop_oldest(&self) -> Option<u16> {
        let mut lists = self.lists.lock();
        lists.fifo_len = lists.fifo_len.checked_sub(1)?;
        let block = lists.fifo[lists.fifo_head];
        lists.fifo_head = (lists.fifo_head + 1) % IDS;
        Some(block)
    }

    /// Blocks and places in the FIFO.
    pub(super) fn waiting(&self) -> usize {
        self.lists.lock().fifo_len
    }

    /// Uses up one of the turns that a block, taken from the FIFO, may be spared for; false if there is none, or if blocks are scarce.
    pub(super) fn spare(&self, block: u64) -> bool {
        let scarce = self.lists.lock().taken > BLOCKS / 2;
        let spares = &self.blocks[block as usize].spares;
        let left = spares.load(Ordering::Relaxed);
        spares.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0 && !scarce
    }

    /// Takes a block or a place out of the FIFO, wherever it is there: whoever has taken it off may empty it. False: somebody
    /// else has.
    pub fn withdraw(&self, block: u64) -> bool {
        let mut lists = self.lists.lock();
        let (head, len) = (lists.fifo_head, lists.fifo_len);
        let Some(at) = (0..len).find(|at| u64::from(lists.fifo[(head + at) % IDS]) == block) else {
            return false;
        };
        for at in at + 1..len {
            lists.fifo[(head + at - 1) % IDS] = lists.fifo[(head + at) % IDS];
        }
        lists.fifo_len -= 1;
        true
    }

    /// What a block holds that the caller has taken from the FIFO.
    pub(super) fn filled(&self, block: u16) -> Occupied {
        let info = &self.blocks[usize::from(block)];
        Occupied {
            base: info.base_page.load(Ordering::Relaxed),
            block: u64::from(block),
            filled: info.filled.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unused() -> Frames {
        let frames = Frames::new();
        let mut lists = frames.lists.lock();
        lists.free.fill(!0);
        lists.taken = 0;
        drop(lists);
        frames
    }

    #[test]
    fn every_block_is_handed_out_once_and_again_when_it_is_given_back() {
        let frames = unused();
        let mut taken: Vec<_> = core::iter::from_fn(|| frames.take_free()).collect();
        taken.sort_unstable();
        assert!(taken.iter().copied().eq(0..BLOCKS as u64));
        frames.give_free(77);
        assert_eq!((frames.take_free(), frames.take_free()), (Some(77), None));
    }

    /// V1 on compressed RAM was told to hit 93 to 97 % of what it read ahead: the sample was stored again while the pages that it
    /// stands for were still mapped.
    #[test]
    fn a_block_of_pages_read_ahead_is_spared_some_turns_unless_blocks_are_scarce() {
        let frames = unused();
        let block = frames.take_free().expect("a free block");
        assert!(
            !frames.spare(block),
            "what reclaim filled is stored when its turn comes"
        );
        frames.blocks[block as usize].spares.store(3, Ordering::Relaxed);
        let spared: Vec<_> = (0..5).map(|_| frames.spare(block)).collect();
        assert_eq!(spared, [true, true, true, false, false]);
        frames.blocks[block as usize].spares.store(3, Ordering::Relaxed);
        while frames.take_free().is_some() {}
        assert!(!frames.spare(block), "no block is free");
    }

    #[test]
    fn blocks_taken_one_after_the_other_lie_together_however_they_came_back() {
        let frames = unused();
        let mut waiting: Vec<_> = (0..4).map_while(|_| frames.take_free()).collect();
        let mut apart = 0;
        for _ in 0..1000 {
            // The oldest two are stored and come back in the wrong order.
            let (a, b) = (waiting.remove(0), waiting.remove(0));
            apart += u32::from(a.abs_diff(b) != 1);
            frames.give_free(b);
            frames.give_free(a);
            waiting.extend((0..2).map_while(|_| frames.take_free()));
            assert!(
                waiting.iter().all(|block| *block < RING_MIN as u64),
                "{waiting:?}"
            );
        }
        assert!(
            apart <= 1000 / 8 + 1,
            "{apart} of 1000 stores were of two blocks apart"
        );
    }
}
