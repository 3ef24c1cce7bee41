//! Work areas: where pages are unpacked, compressed, read to and written from. No stack of a signal handler is large enough for that, and
//! nothing may allocate.
//!
//! What lies in one counts against the budget like everything else. Only what pages were brought in through is large; where a few are
//! brought in at a time it holds nothing, so it is given back a while after it was needed.
//!
//! # Safety
//! The areas are mapped once, before the process is active. Each has a bit, and who took the bit is its only user.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use farpage_core::planes::Page;
use farpage_core::units::PAGE_SIZE;
use lz4_flex::block::CompressTable;

use crate::mm::{Mm, SPAN, mm};
use crate::request::Lists;
use crate::store::Writes;
use crate::sys::{self, Errno};

const COUNT_MAX: usize = 32;
/// A work area takes up to 300 KiB: one per so many pages of the budget, and at least so many.
const BUDGET_EACH: i64 = 2048;
const COUNT_MIN: i64 = 6;
/// In a budget of so many pages at most (32 MiB) the memory that pages were brought in through is given back after each use.
const TIGHT_BUDGET: i64 = 8192;
/// Elsewhere when no more than `KEPT_PAGES` at a time came through it for so long, in nanoseconds.
const UNUSED_NS: u64 = 200_000_000;
const KEPT_PAGES: usize = 8;

/// How many work areas a process has in a budget of so many pages.
#[must_use]
pub fn count(budget: i64) -> u32 {
    (budget / BUDGET_EACH).clamp(COUNT_MIN, COUNT_MAX as i64) as u32
}

/// Work area of one fault or one store.
#[repr(C, align(4096))]
pub struct Context {
    /// Where pages are decompressed or read to before they are installed.
    pub bounce: [[u8; PAGE_SIZE]; SPAN],
    /// Where pages are compressed to.
    pub out: [u8; 2 * PAGE_SIZE],
    /// A page by planes, to be compressed.
    pub planes: Page,
    pub table: CompressTable,
    /// What is being written to files.
    pub writes: Writes,
    /// Whether a fault waits for what is read.
    pub is_waited_for: bool,
}

/// What the holder of a context has: the context, and lists for what it brings in.
#[repr(C, align(4096))]
struct WorkArea {
    context: Context,
    lists: Lists,
}

/// The work areas of this process.
pub struct WorkAreas {
    memory: AtomicU64,
    /// Those that are free, a bit each.
    free: AtomicU32,
    /// Threads that sleep until one is.
    awaited: AtomicU32,
    /// When many pages were last brought in through an area whose memory was not given back since; 0: it was.
    used_ns: [AtomicU64; COUNT_MAX],
}

impl Default for WorkAreas {
    fn default() -> Self {
        WorkAreas::new()
    }
}

impl WorkAreas {
    #[must_use]
    pub const fn new() -> WorkAreas {
        WorkAreas {
            memory: AtomicU64::new(0),
            free: AtomicU32::new(u32::MAX),
            awaited: AtomicU32::new(0),
            used_ns: [const { AtomicU64::new(0) }; COUNT_MAX],
        }
    }

    /// Maps them: so many can be taken at a time. Called once.
    pub fn prepare(&self, count: u32) -> Result<(), Errno> {
        let memory = sys::engine_memory((COUNT_MAX * size_of::<WorkArea>()) as u64)?;
        for i in 0..count as usize {
            // SAFETY: fresh memory for that many areas, page-aligned; the table is written in place.
            unsafe {
                let area = (memory as *mut WorkArea).add(i);
                (&raw mut (*area).context.table).write(CompressTable::small());
            }
        }
        self.free
            .store((u32::MAX).checked_shr(32 - count).unwrap_or(0), Ordering::Relaxed);
        self.memory.store(memory, Ordering::Release);
        Ok(())
    }

    /// Takes one; waits if all are in use.
    pub fn take(&self) -> ContextGuard {
        let mut turns = 0u32;
        loop {
            let free = self.free.load(Ordering::Relaxed);
            if free != 0 && self.try_take(free.trailing_zeros()) {
                return ContextGuard(free.trailing_zeros());
            }
            turns += 1;
            if turns.is_multiple_of(64) {
                self.awaited.fetch_add(1, Ordering::SeqCst);
                sys::futex_wait(&self.free, 0, false, 100);
                self.awaited.fetch_sub(1, Ordering::Relaxed);
            }
            core::hint::spin_loop();
        }
    }

    fn try_take(&self, area: u32) -> bool {
        self.free.fetch_and(!(1 << area), Ordering::Acquire) >> area & 1 == 1
    }

    fn give(&self, area: u32) {
        self.free.fetch_or(1 << area, Ordering::SeqCst);
        if self.awaited.load(Ordering::SeqCst) != 0 {
            sys::futex_wake(&self.free, 1, false);
        }
    }

    /// In a forked child: the threads that waited are not here.
    pub fn forget_waiters(&self) {
        self.awaited.store(0, Ordering::Relaxed);
    }

    fn is_unused(&self, area: usize, now_ns: u64) -> bool {
        let used_ns = self.used_ns[area].load(Ordering::Relaxed);
        used_ns != 0 && now_ns.saturating_sub(used_ns) > UNUSED_NS
    }

    /// Whether some area has memory to give back.
    pub fn are_unused(&self, now_ns: u64) -> bool {
        (0..COUNT_MAX).any(|area| self.is_unused(area, now_ns))
    }

    /// Gives it back. The caller holds the gate, so that no fork comes while an area is taken.
    pub fn return_unused(&self, now_ns: u64) {
        for area in (0..COUNT_MAX).filter(|area| self.is_unused(*area, now_ns)) {
            if self.try_take(area as u32) {
                ContextGuard(area as u32).return_bounce();
            }
        }
    }
}

/// A work area in use.
pub struct ContextGuard(u32);

impl ContextGuard {
    fn area(&self) -> *mut WorkArea {
        let areas = mm().work_areas.memory.load(Ordering::Relaxed) as *mut WorkArea;
        // SAFETY: there are as many areas as bits that can be taken.
        unsafe { areas.add(self.0 as usize) }
    }

    /// The context and the lists.
    pub fn split(&mut self) -> (&mut Context, &mut Lists) {
        // SAFETY: the bit was ours to take, so the area has no other user, and the guard is borrowed mutably.
        let area = unsafe { &mut *self.area() };
        (&mut area.context, &mut area.lists)
    }

    /// So many pages have come through it, at the first places: if they are many their memory is given back later, in a tight budget
    /// at once.
    pub fn note_used(&self, mm: &Mm, pages: usize) {
        if pages <= KEPT_PAGES {
            return;
        }
        if mm.header().budget.load(Ordering::Relaxed) <= TIGHT_BUDGET {
            self.return_bounce();
        } else {
            mm.work_areas.used_ns[self.0 as usize].store(sys::now_ns(), Ordering::Relaxed);
        }
    }

    fn return_bounce(&self) {
        let kept = size_of_val(&self.bounce[..KEPT_PAGES]) as u64;
        let (from, len) = (
            self.bounce.as_ptr() as u64 + kept,
            size_of_val(&self.bounce) as u64 - kept,
        );
        // SAFETY: nobody reads what is in a work area that is given back; fresh pages come in its place.
        let _ = unsafe { sys::madvise(from, len, libc::MADV_DONTNEED) };
        mm().work_areas.used_ns[self.0 as usize].store(0, Ordering::Relaxed);
    }
}

impl core::ops::Deref for ContextGuard {
    type Target = Context;
    fn deref(&self) -> &Context {
        // SAFETY: the bit was ours to take, so the area has no other user.
        unsafe { &(*self.area()).context }
    }
}

impl core::ops::DerefMut for ContextGuard {
    fn deref_mut(&mut self) -> &mut Context {
        self.split().0
    }
}

impl Drop for ContextGuard {
    fn drop(&mut self) {
        let taken = self.split().1.taken.pages().len();
        if taken > 0 {
            self.note_used(mm(), taken);
            // The next holder may bring nothing in.
            self.split().1.taken.fill(core::iter::empty());
        }
        mm().work_areas.give(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_area_is_unused_once_a_while_has_passed_since_many_pages_came_through_it() {
        let areas = WorkAreas::new();
        let now = 10 * UNUSED_NS;
        assert!(!areas.are_unused(now), "none was used");
        areas.used_ns[3].store(now - UNUSED_NS, Ordering::Relaxed);
        assert!(!areas.are_unused(now));
        assert!(areas.are_unused(now + 1));
        assert!(areas.is_unused(3, now + 1) && !areas.is_unused(2, now + 1));
    }

    #[test]
    fn an_area_is_taken_once() {
        let areas = WorkAreas::new();
        assert!(areas.try_take(5) && !areas.try_take(5));
        areas.give(5);
        assert!(areas.try_take(5));
    }
}
