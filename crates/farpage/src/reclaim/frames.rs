//! The staging area: frames in blocks, the free ones and the FIFO of those that hold pages.

use core::sync::atomic::{AtomicU64, Ordering};

use super::Released;
use crate::gate::Spin;
use crate::huge_places::{HUGE_LEN, PLACES};
use crate::mm::PAGE;
use crate::queue;
use crate::store::Occupied;
use crate::sys::{self, Errno};

/// Frames per block, pages per window of the clock: one bit each in a word.
pub const BLOCK: u64 = queue::WINDOW;
const BLOCKS: usize = 512;
/// Ids in the FIFO from here on are huge places: eight blocks' worth of frames each, behind those of the blocks.
pub const FIRST_PLACE: u64 = BLOCKS as u64;
const IDS: usize = BLOCKS + PLACES;
/// Bytes of the read-only zero pages that fresh memory is copied from.
const ZEROS_LEN: u64 = 64 * PAGE;
const STAGING_LEN: u64 = BLOCKS as u64 * BLOCK * PAGE + PLACES as u64 * HUGE_LEN;

/// One block of frames and the window of pages it was filled from.
pub(super) struct Block {
    pub(super) base_page: AtomicU64,
    /// Frames that hold a page's memory.
    pub(super) filled: AtomicU64,
    /// Of those, pages that were read ahead and held back as a sample.
    pub(super) sampled: AtomicU64,
}

struct Lists {
    free: [u16; BLOCKS],
    free_len: usize,
    fifo: [u16; IDS],
    fifo_head: usize,
    fifo_len: usize,
}

/// The staging area: where evicted pages wait.
pub struct Frames {
    staging: AtomicU64,
    zeros: AtomicU64,
    pub(super) blocks: [Block; BLOCKS],
    /// Pages in blocks that are being stored: counted as frames still.
    pub(super) storing: AtomicU64,
    /// Tells those who wait for room of frames that were given back.
    pub released: Released,
    lists: Spin<Lists>,
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
                }
            }; BLOCKS],
            storing: AtomicU64::new(0),
            released: Released::new(),
            lists: Spin::new(Lists {
                free: [0; BLOCKS],
                free_len: 0,
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
        let mut lists = self.lists.lock();
        for i in 0..BLOCKS {
            lists.free[i] = (BLOCKS - 1 - i) as u16;
        }
        lists.free_len = BLOCKS;
        Ok(())
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

    pub(super) fn take_free(&self) -> Option<u64> {
        let mut lists = self.lists.lock();
        lists.free_len = lists.free_len.checked_sub(1)?;
        Some(u64::from(lists.free[lists.free_len]))
    }

    pub(super) fn give_free(&self, block: u64) {
        let mut lists = self.lists.lock();
        let len = lists.free_len;
        lists.free[len] = block as u16;
        lists.free_len += 1;
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
