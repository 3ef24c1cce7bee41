//! Where huge pages are made and where they wait, and what the kernel is asked about them.
//!
//! The kernel gives no huge page to memory that is registered, so each one is made in a **nursery**, memory of the engine's own
//! outside, and MOVEd whole to where it belongs: into the program, or into a **place** of the staging area, which is for huge
//! pages what a block is for small ones. MOVE keeps a page whole only where no page table is at the destination, so places are
//! apart from blocks, and one that small pages were moved to is mapped anew before it is used again.
//!
//! Whether 2 MiB are one huge page is asked of the kernel (PAGEMAP_SCAN) each time: nothing is remembered that a munmap, a fork or
//! the kernel's own splitting could make wrong.
//!
//! Who has taken a place's id off the FIFO may empty it. Who has its bit in `places_free` cleared, or its id, may change its fields.
//!
//! # Safety
//! Nurseries and places are mapped before the process is active and stay so; one holder at a time.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use farpage_core::huge::{MEASURED_ONE_IN, WALK_NS, Walk};
use farpage_core::page_state::{Kind, PageState};
use farpage_core::stats::Counter;

use crate::activate;
use crate::mm::{CHUNK_PAGES, Mm, PAGE, address, fd};
use crate::pool::{MANAGED_PAGES, flag};
use crate::reclaim::{self, BLOCK, FIRST_PLACE};
use crate::sys::{self, Errno};

pub const PLACES: usize = 32;
/// Bytes of a huge page.
pub const HUGE_LEN: u64 = CHUNK_PAGES * PAGE;
/// For each prefetch thread one, and others for threads that touch: with four in all one found none in some 6 % of the runs of two threads.
const NURSERIES: u64 = 8;
/// After the kernel had no huge page to give it is not asked for so many times.
const PATIENCE: u32 = 64;
/// Huge pages whose time of coming is remembered.
const CAME: usize = 64;
/// Bits of a chunk's number, and of nanoseconds that are not kept.
const CHUNK_BITS: u32 = (MANAGED_PAGES / CHUNK_PAGES).trailing_zeros();
const CAME_SHIFT: u32 = 10;
pub const PRESENT: u64 = 1 << 3;
pub const SWAPPED: u64 = 1 << 4;
const HUGE: u64 = 1 << 6;

/// A huge page's worth of frames.
pub struct Place {
    /// First page of the chunk that lies here.
    pub base: AtomicU64,
    /// Frames counted as in use: all that came, until the last of them goes (parts of a huge page give no memory back).
    pub held: AtomicU64,
    /// The walk it was read ahead of, plus 1; 0: it was evicted.
    ahead: AtomicU32,
    /// 1 if there may be a page table here.
    has_table: AtomicU32,
}

/// The huge pages of one process.
pub struct Places {
    on: AtomicU32,
    nursery: AtomicU64,
    nurseries_free: AtomicU32,
    places_free: AtomicU32,
    /// Nurseries still to be refused since the kernel had no huge page.
    scarce: AtomicU32,
    /// 1 once a huge page has arrived whole: this kernel takes empty page tables away.
    whole: AtomicU32,
    /// Chunks that walks were about to come to.
    ahead: AtomicU32,
    places: [Place; PLACES],
    /// When a chunk came as a huge page, found by its number; the number is in the low bits.
    came: [AtomicU64; CAME],
}

impl Default for Places {
    fn default() -> Self {
        Places::new()
    }
}

impl Places {
    #[must_use]
    pub const fn new() -> Places {
        Places {
            on: AtomicU32::new(0),
            nursery: AtomicU64::new(0),
            nurseries_free: AtomicU32::new(0),
            places_free: AtomicU32::new(0),
            scarce: AtomicU32::new(0),
            whole: AtomicU32::new(0),
            ahead: AtomicU32::new(0),
            places: [const {
                Place {
                    base: AtomicU64::new(0),
                    held: AtomicU64::new(0),
                    ahead: AtomicU32::new(0),
                    has_table: AtomicU32::new(0),
                }
            }; PLACES],
            came: [const { AtomicU64::new(0) }; CAME],
        }
    }

    /// The chunk has come as a huge page just now.
    pub fn note_came(&self, chunk: u64) {
        let number = chunk / CHUNK_PAGES;
        let entry = sys::now_ns() >> CAME_SHIFT << CHUNK_BITS | number;
        self.came[number as usize % CAME].store(entry, Ordering::Relaxed);
    }

    /// Whether it came so lately that nobody can have walked through it since.
    #[must_use]
    pub fn came_lately(&self, chunk: u64) -> bool {
        let number = chunk / CHUNK_PAGES;
        let entry = self.came[number as usize % CAME].load(Ordering::Relaxed);
        let then = entry >> CHUNK_BITS << CAME_SHIFT;
        entry & ((1 << CHUNK_BITS) - 1) == number && sys::now_ns().saturating_sub(then) < WALK_NS
    }

    /// Maps the nurseries, if the tree wants huge pages and the kernel can be asked about them.
    pub fn prepare(&self, mm: &Mm) -> Result<(), Errno> {
        if mm.header().huge.load(Ordering::Relaxed) == 0 || open_pagemap(mm).is_err() {
            return Ok(());
        }
        let memory = sys::engine_memory((NURSERIES + 1) * HUGE_LEN)?.next_multiple_of(HUGE_LEN);
        // SAFETY: advice on memory of ours.
        let _ = unsafe { sys::madvise(memory, NURSERIES * HUGE_LEN, libc::MADV_HUGEPAGE) };
        self.nursery.store(memory, Ordering::Relaxed);
        self.nurseries_free.store((1 << NURSERIES) - 1, Ordering::Relaxed);
        self.places_free.store(u32::MAX, Ordering::Relaxed);
        self.on.store(1, Ordering::Release);
        Ok(())
    }

    /// In a forked child, alone: its pagemap is another one.
    pub fn reopen(&self, mm: &Mm) {
        if self.is_on() && open_pagemap(mm).is_err() {
            self.on.store(0, Ordering::Relaxed);
        }
    }

    /// Whether this process has huge pages at all.
    #[inline]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire) != 0
    }

    /// A huge page has arrived whole.
    pub fn note_whole(&self) {
        self.whole.store(1, Ordering::Relaxed);
    }

    /// Whether huge pages arrive whole here, as far as is known.
    #[must_use]
    pub fn stay_whole(&self) -> bool {
        self.whole.load(Ordering::Relaxed) != 0
    }

    /// Whether the chunk that a walk is about to come to is one whose use is to be seen.
    #[must_use]
    pub fn measures_next(&self) -> bool {
        let before = self.ahead.fetch_add(1, Ordering::Relaxed);
        before % MEASURED_ONE_IN == MEASURED_ONE_IN - 1
    }

    pub fn get(&self, place: u64) -> &Place {
        &self.places[place as usize % PLACES]
    }

    /// Takes an empty place without a page table.
    #[must_use]
    pub fn take(&self) -> Option<u64> {
        take_bit(&self.places_free)
    }

    /// Gives an empty place back. Its memory has gone.
    pub fn give(&self, mm: &Mm, place: u64) {
        // One that can't be mapped anew is not used again.
        if self.get(place).has_table.swap(0, Ordering::Relaxed) == 0 || map_anew(mm, place) {
            self.places_free.fetch_or(1 << place, Ordering::Release);
        }
    }

    /// A nursery with a fresh huge page of zeros in it; none if the kernel has none to give.
    #[must_use]
    pub fn nursery(&self) -> Option<Nursery<'_>> {
        if self.scarce.load(Ordering::Relaxed) > 0 {
            self.scarce.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let nursery = Nursery {
            places: self,
            index: take_bit(&self.nurseries_free)?,
        };
        // SAFETY: memory of ours that nobody else uses while we hold its bit.
        unsafe { (nursery.address() as *mut u8).write_volatile(0) };
        // What one write has brought: everything, or less.
        if reclaim::presence(nursery.address() + HUGE_LEN - PAGE, 1) & 1 == 1 {
            return Some(nursery);
        }
        self.scarce.store(PATIENCE, Ordering::Relaxed);
        None
    }
}

fn take_bit(bits: &AtomicU32) -> Option<u64> {
    loop {
        let seen = bits.load(Ordering::Relaxed);
        if seen == 0 {
            return None;
        }
        let bit = seen & seen.wrapping_neg();
        if bits.fetch_and(!bit, Ordering::Acquire) & bit != 0 {
            return Some(u64::from(bit.trailing_zeros()));
        }
    }
}

impl Place {
    /// Notes what lies here now: `held` frames of the chunk at `base`, read ahead of a walk or evicted.
    pub fn fill(&self, base: u64, held: u64, ahead: Option<Walk>) {
        self.base.store(base, Ordering::Relaxed);
        self.held.store(held, Ordering::Relaxed);
        let ahead = ahead.map_or(0, |walk| walk as u32 + 1);
        self.ahead.store(ahead, Ordering::Relaxed);
    }

    /// The walk it was read ahead of.
    pub fn ahead(&self) -> Option<Walk> {
        match self.ahead.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(Walk::Up),
            _ => Some(Walk::Down),
        }
    }

    /// Whether small pages may be here.
    pub fn has_table(&self) -> bool {
        self.has_table.load(Ordering::Relaxed) != 0
    }

    /// Small pages were moved here, or from here.
    pub fn note_table(&self) {
        self.has_table.store(1, Ordering::Relaxed);
    }
}

/// First frame of a place.
#[must_use]
pub const fn first_frame(place: u64) -> u64 {
    FIRST_PLACE * BLOCK + place * CHUNK_PAGES
}

/// The place that a frame lies in, unless it is one of a block.
#[must_use]
pub fn place_of(frame: u64) -> Option<u64> {
    Some(frame.checked_sub(FIRST_PLACE * BLOCK)? / CHUNK_PAGES)
}

/// A huge page in the making. Dropped, its memory goes, except what was moved away.
pub struct Nursery<'a> {
    places: &'a Places,
    index: u64,
}

impl Nursery<'_> {
    #[must_use]
    pub fn address(&self) -> u64 {
        self.places.nursery.load(Ordering::Relaxed) + self.index * HUGE_LEN
    }

    /// `count` pages from the `i`th on, to be filled.
    pub fn pages(&mut self, i: u64, count: u64) -> &mut [[u8; PAGE as usize]] {
        let first = i.min(CHUNK_PAGES);
        let count = count.min(CHUNK_PAGES - first) as usize;
        // SAFETY: inside the nursery, whose memory is there and ours; any bytes are valid.
        unsafe { core::slice::from_raw_parts_mut((self.address() + first * PAGE) as *mut _, count) }
    }

    /// Page `i` becomes a copy of the frame at `from`, whose page's word is locked.
    pub fn copy_page(&mut self, i: u64, from: u64) {
        let to = self.pages(i, 1).as_mut_ptr() as *mut u8;
        // SAFETY: the frame is there while a locked word names it, and nobody writes frames.
        unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to, PAGE as usize) };
    }
}

impl Drop for Nursery<'_> {
    fn drop(&mut self) {
        // SAFETY: ours, and of no use any more.
        let _ = unsafe { sys::madvise(self.address(), HUGE_LEN, libc::MADV_DONTNEED) };
        self.places
            .nurseries_free
            .fetch_or(1 << self.index, Ordering::Release);
    }
}

/// Locks all words of a chunk, if each is unlocked and `fits`; else none, and tells the page in the way.
pub fn lock_all(mm: &Mm, chunk: u64, fits: impl Fn(u64, PageState) -> bool) -> Result<(), u64> {
    for i in 0..CHUNK_PAGES {
        let seen = mm.load(chunk + i);
        if seen.is_locked() || !fits(i, seen) || !mm.try_lock(chunk + i, seen) {
            unlock_same(mm, chunk, chunk + i);
            return Err(chunk + i);
        }
    }
    Ok(())
}

/// Gives a locked page its new word, still locked.
pub fn set_locked(mm: &Mm, page: u64, new: PageState) {
    let locked = mm.load(page);
    let then = locked.replace(new).locked();
    mm.word(page).store(then.raw(), Ordering::Release);
}

/// Unlocks pages as they are, the first one last: who touches it finds the others unlocked.
pub fn unlock_same(mm: &Mm, lo: u64, hi: u64) {
    for page in (lo..hi).rev() {
        let locked = mm.load(page);
        mm.unlock(page, locked, locked);
    }
}

/// MOVEs 2 MiB from `src` to `dst`, whole where that can be; how many of the first pages have arrived.
pub fn carry(mm: &Mm, dst: u64, src: u64) -> u64 {
    let (mut done, mut failed) = (0, false);
    while done < CHUNK_PAGES {
        let at = done * PAGE;
        let result = mm.move_pages(dst + at, src + at, HUGE_LEN - at);
        done += (result.bytes / PAGE).min(CHUNK_PAGES - done);
        match result.error {
            None | Some(Errno(libc::EAGAIN)) => {}
            Some(Errno(libc::EEXIST)) => {
                // Linux 6.18 reports EEXIST after it has moved; the page tables tell.
                let arrived = arrived(dst + done * PAGE, src + done * PAGE, CHUNK_PAGES - done);
                mm.header()
                    .count(Counter::MoveFalseEexist, u64::from(arrived > 0));
                done += arrived;
                failed = true;
                if arrived == 0 {
                    break;
                }
            }
            Some(_) => {
                failed = true;
                break;
            }
        }
    }
    // A call that failed in the end has not woken who waits for what it did before.
    if failed && done > 0 && mm.header().has(flag::THREAD_DELIVERY) {
        mm.uffd().wake(dst, done * PAGE);
    }
    done
}

/// How many of the first pages, at most a block's, are at `dst` and no more at `src`.
fn arrived(dst: u64, src: u64, pages: u64) -> u64 {
    let pages = pages.min(BLOCK);
    let there = reclaim::presence(dst, pages) & !reclaim::presence(src, pages);
    u64::from(there.trailing_ones()).min(pages)
}

/// Whether the chunk is one huge page.
#[must_use]
pub fn is_huge(mm: &Mm, chunk: u64) -> bool {
    is_huge_at(mm, address(chunk))
}

/// Whether the 2 MiB at `addr`, of a chunk or a place, are one huge page.
#[must_use]
pub fn is_huge_at(mm: &Mm, addr: u64) -> bool {
    scan(mm, addr, HUGE, 0) == Some((addr, addr + HUGE_LEN))
}

/// Whether the pages from `page` on, at most a work area's, have other content than zeros. False too if they are gone by now.
#[must_use]
pub fn has_content(mm: &Mm, page: u64, pages: u64) -> bool {
    let mut context = mm.context();
    // Locked, so that they stay: the delivery thread must not read what it would have to bring itself.
    for at in page..page + pages {
        let seen = mm.load(at);
        if seen.kind() != Kind::Resident || seen.is_locked() || !mm.try_lock(at, seen) {
            unlock_same(mm, page, at);
            return false;
        }
    }
    let len = pages * PAGE;
    let to = [
        context.bounce.as_mut_ptr() as u64,
        len.min(size_of_val(&context.bounce) as u64),
    ];
    let from = [address(page), to[1]];
    // SAFETY: the work area is ours; what is not there is told by a short count, without a signal.
    let copied = unsafe {
        let (to, from) = (to.as_ptr() as u64, from.as_ptr() as u64);
        sys::raw(
            libc::SYS_process_vm_readv,
            [sys::gettid() as u64, to, 1, from, 1, 0],
        )
    };
    unlock_same(mm, page, page + pages);
    let read = (copied.max(0) as u64 / PAGE) as usize;
    context.bounce.iter().take(read).flatten().any(|byte| *byte != 0)
}

/// Makes an absent chunk ready to take a huge page: an empty page table goes (the fault that brought us here has made one; Linux
/// takes it away with the content since 6.14, and before that the page is split by its MOVE). False: the kernel has a page there.
/// All its words are locked.
#[must_use]
pub fn clear_for_huge(mm: &Mm, chunk: u64) -> bool {
    if scan(mm, address(chunk), 0, PRESENT | SWAPPED) != Some((0, 0)) {
        return false;
    }
    mm.header().count(Counter::TlbFlushCall, 1);
    // SAFETY: there is nothing, and nobody brings anything while its words are locked.
    let _ = unsafe { sys::madvise(address(chunk), HUGE_LEN, libc::MADV_DONTNEED) };
    true
}

/// An empty place gets a fresh mapping, without a page table.
fn map_anew(mm: &Mm, place: u64) -> bool {
    let addr = mm.frames.address(first_frame(place));
    mm.header().count(Counter::TlbFlushCall, 1);
    // SAFETY: a place of ours that holds nothing.
    let mapped = unsafe {
        let flags = sys::MAP_MANAGED | libc::MAP_FIXED;
        sys::mmap(addr, HUGE_LEN, sys::PROT_RW, flags, -1, 0)
    };
    mapped.is_ok() && mm.register(addr, HUGE_LEN).is_ok()
}

/// The first range of pages in the 2 MiB at `addr` that are all of `all` and, if that is not 0, some of `some`; (0, 0): there is
/// none. None: the kernel can't be asked.
fn scan(mm: &Mm, addr: u64, all: u64, some: u64) -> Option<(u64, u64)> {
    scan_range(mm.fd(fd::PAGEMAP), addr..addr + HUGE_LEN, all, some)
}

/// The same for any range of addresses, asked of a descriptor of the page map.
pub fn scan_range(pagemap: i32, range: core::ops::Range<u64>, all: u64, some: u64) -> Option<(u64, u64)> {
    const PAGEMAP_SCAN: u64 = 0xc060_6610;
    let mut region = [0u64; 3];
    let mut arg = [0u64; 12];
    arg[0] = size_of_val(&arg) as u64;
    (arg[2], arg[3]) = (range.start, range.end);
    (arg[5], arg[6]) = (region.as_mut_ptr() as u64, 1);
    (arg[9], arg[10]) = (all, some);
    arg[11] = all | some;
    // SAFETY: struct pm_scan_arg is twelve u64, and struct page_region three; only page tables are read.
    let result = unsafe {
        sys::raw(
            libc::SYS_ioctl,
            [pagemap as u64, PAGEMAP_SCAN, arg.as_mut_ptr() as u64, 0, 0, 0],
        )
    };
    (result >= 0).then_some((region[0], region[1]))
}

fn open_pagemap(mm: &Mm) -> Result<(), Errno> {
    sys::move_fd(activate::open_pagemap()?, mm.fd(fd::PAGEMAP), false)?;
    // An older kernel can't be asked.
    let nursery = mm.frames.staging().0;
    scan(mm, nursery, 0, PRESENT).map(drop).ok_or(Errno(libc::ENOTTY))
}
