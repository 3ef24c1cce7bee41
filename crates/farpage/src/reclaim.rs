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

use core::sync::atomic::{AtomicU64, Ordering};

use farpage_core::kill_point;
use farpage_core::page_state::{Kind, PageState};
use farpage_core::stats::Counter;

use crate::cow;
use crate::gate::Spin;
use crate::mm::{CHUNK_PAGES, Mm, PAGE, RESIDENT_MASK, address};
use crate::queue;
use crate::store;
use crate::sys::{self, Errno};

/// Frames per block, pages per window of the clock: one bit each in a word.
pub const BLOCK: u64 = queue::WINDOW;
const BLOCKS: usize = 512;
/// Bytes of the read-only zero pages that fresh memory is copied from.
const ZEROS_LEN: u64 = 64 * PAGE;

/// One block of frames and the window of pages it was filled from.
struct Block {
    base_page: AtomicU64,
    /// Frames that hold a page's memory.
    filled: AtomicU64,
    /// Of those, pages that were read ahead and held back as a sample.
    sampled: AtomicU64,
}

struct Lists {
    free: [u16; BLOCKS],
    free_len: usize,
    fifo: [u16; BLOCKS],
    fifo_head: usize,
    fifo_len: usize,
}

/// The staging area: where evicted pages wait.
pub struct Frames {
    staging: AtomicU64,
    zeros: AtomicU64,
    blocks: [Block; BLOCKS],
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
            lists: Spin::new(Lists {
                free: [0; BLOCKS],
                free_len: 0,
                fifo: [0; BLOCKS],
                fifo_head: 0,
                fifo_len: 0,
            }),
        }
    }

    /// Maps the staging area; all blocks are free.
    pub fn prepare(&self) -> Result<(), Errno> {
        self.staging
            .store(sys::engine_memory(STAGING_LEN)?, Ordering::Relaxed);
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
        let block = &self.blocks[(frame / BLOCK) as usize % BLOCKS];
        block.sampled.load(Ordering::Relaxed) >> (frame % BLOCK) & 1 == 1
    }

    fn take_free(&self) -> Option<u64> {
        let mut lists = self.lists.lock();
        lists.free_len = lists.free_len.checked_sub(1)?;
        Some(u64::from(lists.free[lists.free_len]))
    }

    fn give_free(&self, block: u64) {
        let mut lists = self.lists.lock();
        let len = lists.free_len;
        lists.free[len] = block as u16;
        lists.free_len += 1;
    }

    fn push(&self, block: u64) {
        let mut lists = self.lists.lock();
        let at = (lists.fifo_head + lists.fifo_len) % BLOCKS;
        lists.fifo[at] = block as u16;
        lists.fifo_len += 1;
    }

    fn pop_oldest(&self) -> Option<u64> {
        let mut lists = self.lists.lock();
        lists.fifo_len = lists.fifo_len.checked_sub(1)?;
        let block = lists.fifo[lists.fifo_head];
        lists.fifo_head = (lists.fifo_head + 1) % BLOCKS;
        Some(u64::from(block))
    }
}

const STAGING_LEN: u64 = BLOCKS as u64 * BLOCK * PAGE;

/// When this process last gave up waiting for room.
static OVERRUN_NS: AtomicU64 = AtomicU64::new(0);

/// Waits, reclaiming, until `pages` more may be charged. Returns in any case: a tree that can't get below its limit
/// (all swap full, others stopped) overruns it rather than hang, and says so in `limit_overrun`.
pub fn ensure_room(mm: &Mm, pages: i64) {
    let header = mm.header();
    if header.excess(pages) <= 0 {
        return;
    }
    let start = sys::now_ns();
    let mut idle = 0;
    // A limit that could not be reached a moment ago is not waited for again by every single fault.
    let patience = if start.saturating_sub(OVERRUN_NS.load(Ordering::Relaxed)) < 1_000_000_000 {
        4
    } else {
        400
    };
    while header.excess(pages) > 0 {
        header.count(Counter::PgreclaimDirect, 1);
        if reclaim(mm, header.excess(pages).max(BLOCK as i64)) > 0 {
            idle = 0;
            continue;
        }
        idle += 1;
        if idle > patience {
            header.count(Counter::LimitOverrun, 1);
            OVERRUN_NS.store(sys::now_ns(), Ordering::Relaxed);
            break;
        }
        header.ask_to_reclaim();
        header.nap(500);
    }
    header.count(Counter::StallNs, sys::now_ns() - start);
}

/// Makes about `pages` pages free: moves out a batch, stores the oldest blocks beyond the swap cache's share.
/// Returns how many pages were returned to the system or moved out.
pub fn reclaim(mm: &Mm, pages: i64) -> u64 {
    let mut freed = 0;
    let mut progress = 0;
    while freed < pages as u64 {
        let moved = evict_window(mm);
        let stored = if moved == 0 {
            store_oldest(mm)
        } else {
            store_surplus(mm)
        };
        freed += stored;
        progress += moved + stored;
        if moved + stored == 0 {
            break;
        }
    }
    progress
}

/// Stores the oldest blocks until the swap cache holds no more than its share; how many frames were given back. Blocks are of
/// all sizes: one for one, small ones stored for large ones filled, the cache would grow over everything.
fn store_surplus(mm: &Mm) -> u64 {
    let mut stored = 0;
    while mm.entry().frames.load(Ordering::Relaxed) / BLOCK as i64 > cache_target(mm) {
        let done = store_oldest(mm);
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

/// Moves the evictable pages of one window out; 0 if there was none or no block is free.
fn evict_window(mm: &Mm) -> u64 {
    let Some(block) = mm.frames.take_free() else {
        return 0;
    };
    kill_point!("evict-block");
    let mut moved = evict_oldest(mm, block);
    if moved == 0 {
        moved = evict_swept(mm, block);
    }
    if moved == 0 {
        mm.frames.give_free(block);
    }
    moved
}

/// The window that was loaded longest ago and has something to evict.
fn evict_oldest(mm: &Mm, block: u64) -> u64 {
    // One turn each: a window that keeps its pages comes to the queue's end again.
    for _ in 0..mm.queue.len() {
        let Some(window) = mm.queue.dequeue() else { break };
        let base = window * BLOCK;
        if mm.chunk(base).load(Ordering::Relaxed) & RESIDENT_MASK == 0 {
            continue;
        }
        let moved = evict_from(mm, base, block);
        if (base..base + BLOCK).any(|page| mm.load(page).kind() == Kind::Resident) {
            // Pinned, or brought back a moment ago.
            mm.queue.enqueue(window);
        }
        if moved > 0 {
            return moved;
        }
    }
    0
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
        let moved = evict_from(mm, page, block);
        if moved > 0 {
            return moved;
        }
    }
    0
}

/// Evicts what can be evicted of the window at `base` into `block`, which joins the FIFO unless nothing moved.
fn evict_from(mm: &Mm, base: u64, block: u64) -> u64 {
    // What fork shares is copied to be moved, and paid for as any copy.
    cow::lift(mm, base);
    let victims = lock_victims(mm, base);
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
        moved |= move_run(mm, base, block, at, len, victims);
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

/// Locks the resident, unpinned pages of the window; a page taken back lately is spared once.
fn lock_victims(mm: &Mm, base: u64) -> u64 {
    let mut victims = 0u64;
    for i in 0..BLOCK {
        let seen = mm.load(base + i);
        if seen.kind() != Kind::Resident || seen.is_locked() || seen.pins() != 0 {
            continue;
        }
        if seen.young() {
            let word = mm.word(base + i);
            let older = seen.with_young(false).raw();
            let _ = word.compare_exchange(seen.raw(), older, Ordering::Relaxed, Ordering::Relaxed);
        } else if mm.try_lock(base + i, seen) {
            victims |= 1 << i;
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

/// Moves `len` locked pages from place `at` of the window; returns the bits of what moved (holes included).
fn move_run(mm: &Mm, base: u64, block: u64, at: u64, len: u64, victims: u64) -> u64 {
    let mut moved = 0u64;
    let mut at = at;
    let end = at + len;
    let mut owned = false;
    while at < end {
        let (src, dst) = (address(base + at), mm.frames.address(block * BLOCK + at));
        let result = mm.uffd().move_pages(dst, src, (end - at) * PAGE);
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

/// One page that a batch stopped at: tells the kernel's false EEXIST from real trouble, and copies where the mapping
/// can't be moved from (read-only).
fn move_one(mm: &Mm, base: u64, block: u64, at: u64, victims: u64) -> bool {
    let (src, dst) = (address(base + at), mm.frames.address(block * BLOCK + at));
    if victims >> at & 1 == 0 {
        return false;
    }
    let result = mm.uffd().move_pages(dst, src, PAGE);
    match result.error {
        None => true,
        Some(Errno(libc::EEXIST)) => {
            // Linux 6.18 reports EEXIST after it has moved the page; the page tables tell.
            let arrived = presence(src, 1) & 1 == 0 && presence(dst, 1) & 1 == 1;
            mm.header().count(Counter::MoveFalseEexist, u64::from(arrived));
            arrived
        }
        Some(Errno(libc::EINVAL)) => copy_out(mm, src, dst),
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
        mm.chunk(base).fetch_sub(count as u32, Ordering::Relaxed);
        mm.entry().resident.fetch_sub(count, Ordering::Relaxed);
        mm.entry().frames.fetch_add(count, Ordering::Relaxed);
    }
    kill_point!("evict-counted");
    for i in 0..BLOCK {
        let bit = 1u64 << i;
        if (victims | holes) & bit == 0 {
            continue;
        }
        let locked = mm.load(base + i);
        if moved & bit != 0 {
            mm.unlock(base + i, locked, PageState::cached(block * BLOCK + i));
        } else if victims & bit != 0 {
            // Could not be moved now; spare it in the next turn.
            mm.unlock(base + i, locked, PageState::resident().with_young(true));
        } else {
            mm.unlock(base + i, locked, locked);
        }
    }
}

/// Puts `count` locked pages from `page` on, whose content lies at `from`, into frames, marked as read ahead (those of
/// `sampled` as the sample), and unlocks them; how many of the first of them. A block holds pages of one window.
pub fn hold(mm: &Mm, page: u64, count: u64, from: u64, sampled: u64) -> u64 {
    let mut done = 0;
    while done < count {
        let first = page + done;
        let pages = (BLOCK - first % BLOCK).min(count - done);
        let held = hold_in_window(mm, first, pages, from + done * PAGE, sampled >> done);
        done += held;
        if held < pages {
            break;
        }
    }
    done
}

fn hold_in_window(mm: &Mm, page: u64, pages: u64, from: u64, sampled: u64) -> u64 {
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
    mm.entry().frames.fetch_add(held as i64, Ordering::Relaxed);
    mm.charge(held as i64);
    kill_point!("hold-charged");
    for i in 0..held {
        let waiting = PageState::cached(block * BLOCK + at + i).with_readahead(true);
        mm.unlock(page + i, mm.load(page + i), waiting);
    }
    kill_point!("hold-worded");
    mm.frames.push(block);
    held
}

/// Stores the oldest block and returns its memory; the number of frames given back.
fn store_oldest(mm: &Mm) -> u64 {
    let Some(block) = mm.frames.pop_oldest() else {
        return 0;
    };
    let info = &mm.frames.blocks[block as usize];
    let (base, filled) = (
        info.base_page.load(Ordering::Relaxed),
        info.filled.load(Ordering::Relaxed),
    );
    store::store_frames(mm, base, block, filled);
    release_block(mm, base, block, filled)
}

/// Returns the memory of a stored block. Frames whose page could not be stored stay, in a block at the FIFO's end.
fn release_block(mm: &Mm, base: u64, block: u64, filled: u64) -> u64 {
    let mut kept = 0u64;
    for i in bits(filled) {
        // Locked or not: a locked word's page is being taken back from this very frame, perhaps by this very thread
        // (which reclaims because it got no memory for it). Its frame goes in a later turn.
        let seen = mm.load(base + i);
        if seen.kind() == Kind::Cached && seen.frame() == block * BLOCK + i {
            kept |= 1 << i;
        }
    }
    let gone = filled & !kept;
    if kept == 0 {
        drop_frames(mm.frames.address(block * BLOCK), BLOCK * PAGE);
    } else {
        bits(gone).for_each(|i| drop_frames(mm.frames.address(block * BLOCK + i), PAGE));
    }
    kill_point!("frames-dropped");
    let count = i64::from(gone.count_ones());
    mm.entry().frames.fetch_sub(count, Ordering::Relaxed);
    mm.charge(-count);
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

/// The places of the bits that are set.
pub fn bits(mask: u64) -> impl DoubleEndedIterator<Item = u64> {
    (0..BLOCK).filter(move |i| mask >> i & 1 == 1)
}

/// The bits of the places.
pub fn set(places: impl Iterator<Item = u64>) -> u64 {
    places.fold(0, |bits, place| bits | 1 << place)
}

/// The first `len` bits.
pub fn mask(len: u64) -> u64 {
    if len >= 64 { u64::MAX } else { (1 << len) - 1 }
}

mod kernel {
    //! # Safety
    //! Addresses are pages whose words this thread has locked, or frames of a block it holds.
    #![allow(unsafe_code)]
    use super::*;

    /// Bit i: page i from `addr` has memory (in RAM or in the host's own swap).
    pub fn presence(addr: u64, pages: u64) -> u64 {
        let mut vec = [0u8; 64];
        // SAFETY: mincore only reads page tables and writes one byte a page into vec.
        let result = unsafe {
            sys::raw(
                libc::SYS_mincore,
                [addr, pages * PAGE, vec.as_mut_ptr() as u64, 0, 0, 0],
            )
        };
        if result < 0 {
            return 0;
        }
        vec.iter()
            .enumerate()
            .fold(0, |bits, (i, byte)| bits | u64::from(byte & 1) << i)
    }

    pub fn populate_write(addr: u64, len: u64) {
        // SAFETY: breaks copy-on-write sharing of present pages; content is unchanged. Failure shows in the MOVE.
        let _ = unsafe { sys::madvise(addr, len, libc::MADV_POPULATE_WRITE) };
    }

    pub fn drop_frames(addr: u64, len: u64) {
        // SAFETY: no word names these frames any more.
        let _ = unsafe { sys::madvise(addr, len, libc::MADV_DONTNEED) };
    }

    /// Copies a page that can't be moved (its mapping is read-only, so nobody writes it) and drops the original.
    pub fn copy_out(mm: &Mm, src: u64, dst: u64) -> bool {
        let mut context = mm.context();
        let to = [context.bounce[0].as_mut_ptr() as u64, PAGE];
        let from = [src, PAGE];
        // SAFETY: reads the page without a signal if it is unreadable (PROT_NONE: EFAULT, then it stays).
        let copied = unsafe {
            let iov = (to.as_ptr() as u64, from.as_ptr() as u64);
            sys::raw(
                libc::SYS_process_vm_readv,
                [sys::getpid() as u64, iov.0, 1, iov.1, 1, 0],
            )
        };
        if copied != PAGE as i64 || writable(src) {
            return false;
        }
        if mm.uffd().copy(dst, to[0], PAGE).error.is_some() {
            return false;
        }
        // SAFETY: the page is copied, its word locked, and its mapping can change only with the gate held alone.
        unsafe { sys::madvise(src, PAGE, libc::MADV_DONTNEED) }.is_ok()
    }

    /// Whether the program could write the page now: then a copy could miss a write.
    fn writable(addr: u64) -> bool {
        // SAFETY: POPULATE_WRITE of a present page changes no content; it fails with EFAULT in a read-only mapping.
        unsafe { sys::madvise(addr, PAGE, libc::MADV_POPULATE_WRITE) }.is_ok()
    }
}
pub use kernel::presence;
use kernel::{copy_out, drop_frames, populate_write};

/// MADV_PAGEOUT and COLD: moves what can be moved of pages `lo..hi` out, now.
pub fn page_out(mm: &Mm, lo: u64, hi: u64) {
    for page in lo..hi {
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
    for window in lo.div_ceil(BLOCK)..hi / BLOCK {
        if mm.chunk(window * BLOCK).load(Ordering::Relaxed) & RESIDENT_MASK == 0 {
            continue;
        }
        let Some(block) = mm.frames.take_free() else { break };
        if evict_from(mm, window * BLOCK, block) == 0 {
            mm.frames.give_free(block);
        }
        store_surplus(mm);
    }
}
