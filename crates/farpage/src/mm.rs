//! The memory of this process as farpage sees it: one static, reached from program threads, signal handlers, the
//! reclaimer thread and a forked child (which gets its own copy of everything here by copy-on-write).
//!
//! Written in two steps: [`init`] once (dormant), [`activate`](crate::activate) once (active); afterwards only atomics change.
//!
//! # Safety
//! `states`, `chunks` and `inherited` are arrays of atomics mapped for the whole managed range before `mode` becomes ACTIVE and never
//! unmapped, so indexing them with a page below `MANAGED_PAGES` is sound.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use farpage_core::page_state::PageState;
use farpage_core::planes::Forms;
use farpage_core::range_map::{Range, RangeMap};
use farpage_core::stats::Counter;
use farpage_core::units::PAGE_SIZE;
use farpage_core::zpool::ZpoolHints;

use crate::cow::Payers;
use crate::errand::LENT;
use crate::gate::{Gate, Spin};
use crate::huge_places::Places;
use crate::kept::Kept;
use crate::mem::closed;
use crate::pool::{Header, MANAGED_BASE, MANAGED_PAGES, Pool, ProcEntry, entry_state};
use crate::prefetch::Prefetcher;
use crate::queue::{Queue, WINDOW};
use crate::readahead::Readahead;
use crate::reclaim::{Frames, Who};
use crate::slot_caches::SlotCaches;
use crate::sys::{self, Errno};
use crate::uffd::{Done, Uffd};
use crate::watch::Watch;
use crate::work_area::{self, ContextGuard, WorkAreas};

pub const PAGE: u64 = PAGE_SIZE as u64;
/// Pages per chunk: one page-table page, one huge page.
pub const CHUNK_PAGES: u64 = 512;
/// Pages that one turn of swap-in looks at: what it brings in lies among them.
pub const SPAN: usize = 64;
const RANGES_MAX: usize = 65_536;

pub mod mode {
    pub const OFF: u32 = 0;
    pub const DORMANT: u32 = 1;
    pub const ACTIVE: u32 = 2;
}

/// Numbers of the inherited descriptors, counted from `Header::fd_base`.
pub mod fd {
    pub const POOL: i32 = 0;
    pub const UFFD: i32 = 1;
    pub const LIBRARY: i32 = 2;
    pub const AREAS: i32 = 3;
    /// The process's own pagemap, where huge pages are on; the pool elsewhere.
    pub const PAGEMAP: i32 = 11;
    /// The directory /proc as the tree knows it, in a process that counts in another pid namespace (`numbers`).
    pub const PROC: i32 = 12;
    /// The end of a pipe that tells the supervisor whether anybody of the tree lives (`life`).
    pub const LIFE: i32 = 13;
    /// What an active process opens for itself. Exec leaves open what leads nowhere (not [`PROC`]): the filter outlives it, and a program that
    /// does not load the library would get a file of its own there that it can't close.
    pub const OWN: [i32; 3] = [UFFD, PAGEMAP, PROC];
    /// The last one always holds the pool (`trap::is_inherited`).
    pub const COUNT: i32 = 15;
}

pub struct Mm {
    pub mode: AtomicU32,
    pool: UnsafeCell<MaybeUninit<Pool>>,
    /// Index of this process in the process table.
    pub index: AtomicU32,
    /// Its number: the caller's own, unless that borrows this memory.
    own_pid: AtomicI32,
    /// The same in the tree (`numbers`).
    own_number: AtomicI32,
    states: AtomicU64,
    chunks: AtomicU64,
    inherited: AtomicU64,
    pub work_areas: WorkAreas,
    pub gate: Gate,
    pub frames: Frames,
    /// Who makes room in this process.
    pub who: Who,
    /// Where huge pages are made, and where they wait.
    pub places: Places,
    pub zhints: ZpoolHints,
    /// In which form pages are compressed.
    pub forms: Forms,
    /// Slots that stay with pages that came back.
    pub kept: Kept,
    pub queue: Queue,
    /// Next window of pages the reclaim clock looks at.
    pub hand: AtomicU64,
    /// One past the highest page ever mapped.
    pub top_page: AtomicU64,
    /// Managed ranges that are mapped, in pages from the base.
    pub maps: Spin<Option<RangeMap<'static>>>,
    /// 1 once something else than managed memory was mapped over managed addresses.
    pub foreign: AtomicU32,
    pub readahead: Readahead,
    pub prefetcher: Prefetcher,
    pub slot_caches: SlotCaches,
    pub watch: Watch,
    /// 1 while a reclaimer thread of this process runs.
    pub reclaimer: AtomicU32,
    pub fork_lock: AtomicU32,
    /// [`Header::forks`] when nobody owed any more for what this process copies.
    pub settled_forks: AtomicU32,
    /// Who makes room for what fork shares.
    pub payers: Payers,
    /// 1 once the kernel was found unable to write-protect through userfaultfd.
    unprotectable: AtomicU32,
    waiters: [Waiters; 64],
}

struct Waiters {
    seq: AtomicU32,
    count: AtomicU32,
}

// SAFETY: `pool` is written once before `mode` leaves OFF and only read afterwards; the rest are atomics and locks.
unsafe impl Sync for Mm {}

static MM: Mm = Mm {
    mode: AtomicU32::new(mode::OFF),
    pool: UnsafeCell::new(MaybeUninit::uninit()),
    index: AtomicU32::new(u32::MAX),
    own_pid: AtomicI32::new(0),
    own_number: AtomicI32::new(0),
    states: AtomicU64::new(0),
    chunks: AtomicU64::new(0),
    inherited: AtomicU64::new(0),
    work_areas: WorkAreas::new(),
    gate: Gate::new(),
    frames: Frames::new(),
    who: Who::new(),
    places: Places::new(),
    zhints: ZpoolHints::new(),
    forms: Forms::new(),
    kept: Kept::new(),
    queue: Queue::new(),
    hand: AtomicU64::new(0),
    top_page: AtomicU64::new(0),
    maps: Spin::new(None),
    foreign: AtomicU32::new(0),
    readahead: Readahead::new(),
    prefetcher: Prefetcher::new(),
    slot_caches: SlotCaches::new(),
    watch: Watch::new(),
    reclaimer: AtomicU32::new(0),
    fork_lock: AtomicU32::new(0),
    settled_forks: AtomicU32::new(0),
    payers: Payers::new(),
    unprotectable: AtomicU32::new(0),
    waiters: [const {
        Waiters {
            seq: AtomicU32::new(0),
            count: AtomicU32::new(0),
        }
    }; 64],
};

/// This process's memory. Meaningful once [`Mm::mode`] is not OFF.
#[inline]
pub fn mm() -> &'static Mm {
    &MM
}

/// Makes the process dormant: the pool is attached, nothing is managed yet.
pub fn init(pool: Pool, index: u32) -> Result<(), Errno> {
    let bytes = (2 * RANGES_MAX * size_of::<Range>()) as u64;
    let memory = sys::engine_memory(bytes)?;
    // SAFETY: fresh zeroed memory of that size, never given back; Range is two u64.
    let entries = unsafe { core::slice::from_raw_parts_mut(memory as *mut Range, 2 * RANGES_MAX) };
    let (mapped, closed) = entries.split_at_mut(RANGES_MAX);
    // SAFETY: init runs once, in the constructor, before mode leaves OFF; nobody reads the pool yet.
    unsafe { (*MM.pool.get()).write(pool) };
    MM.index.store(index, Ordering::Release);
    MM.be_own(sys::getpid());
    *MM.maps.lock() = Some(RangeMap::new(mapped));
    closed::begin(&MM, closed);
    MM.mode.store(mode::DORMANT, Ordering::Release);
    Ok(())
}

impl Mm {
    #[inline]
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.mode.load(Ordering::Acquire) == mode::ACTIVE
    }

    /// What `f` gives, if the process is dormant, and stays so meanwhile.
    pub fn while_dormant<T>(&self, f: impl FnOnce() -> T) -> Option<T> {
        if self.is_active() {
            return None;
        }
        let mask = sys::block_signals();
        let inside = self.gate.shared();
        let result = (!self.is_active()).then(f);
        drop(inside);
        sys::set_mask(mask);
        result
    }

    #[inline]
    #[must_use]
    pub fn pool(&self) -> &'static Pool {
        debug_assert!(self.index.load(Ordering::Relaxed) != u32::MAX);
        // SAFETY: written by init before mode left OFF and the index was set, and every caller runs after that.
        unsafe { (*MM.pool.get()).assume_init_ref() }
    }

    #[inline]
    #[must_use]
    pub fn header(&self) -> &'static Header {
        self.pool().header()
    }

    /// Whether the caller runs in the process whose entry this is, and not in a child that borrows its memory (vfork).
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.own_pid.load(Ordering::Relaxed) == sys::getpid()
            && self.entry_opt().is_some_and(|entry| self.is_its(entry))
    }

    /// Whether the caller is a child that borrows this memory (vfork) and was made by libc: one that the program makes by an instruction of
    /// its own is not seen here.
    #[inline]
    #[must_use]
    pub fn is_lent(&self) -> bool {
        LENT.load(Ordering::Relaxed) != 0 && self.own_pid.load(Ordering::Relaxed) != sys::getpid()
    }

    /// The number in the tree of the process whose memory this is.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.own_number.load(Ordering::Relaxed)
    }

    /// From now on this memory is the caller's, who has this number in the tree: at its start, and after fork.
    pub fn be_own(&self, number: i32) {
        self.own_pid.store(sys::getpid(), Ordering::Relaxed);
        self.own_number.store(number, Ordering::Relaxed);
    }

    fn is_its(&self, entry: &ProcEntry) -> bool {
        entry.pid.load(Ordering::Relaxed) == self.number()
    }

    /// Whether the page states are still this memory's: the process whose entry it is lives. A child that borrows the memory
    /// (vfork) may run on when it does not any more.
    #[must_use]
    pub fn has_entry_still(&self) -> bool {
        let entry = self.entry();
        let is_its = entry.state.load(Ordering::Acquire) == entry_state::LIVE && self.is_its(entry);
        is_its || sys::getpid() == self.own_pid.load(Ordering::Relaxed)
    }

    /// This process's entry, if it has one: a process that could not join its tree has no pool either.
    #[must_use]
    pub fn entry_opt(&self) -> Option<&'static ProcEntry> {
        let index = self.index.load(Ordering::Acquire);
        if index == u32::MAX {
            return None;
        }
        self.pool().processes().get(index as usize)
    }

    /// This process's entry. An active process always has one.
    #[inline]
    #[must_use]
    pub fn entry(&self) -> &'static ProcEntry {
        match self.entry_opt() {
            Some(entry) => entry,
            None => sys::die(&["farpage: internal error: an active process has no entry in the pool"]),
        }
    }

    #[inline]
    #[must_use]
    pub fn owner(&self) -> u16 {
        self.index.load(Ordering::Relaxed) as u16
    }

    #[must_use]
    pub fn fd(&self, which: i32) -> i32 {
        self.header().fd_base.load(Ordering::Relaxed) as i32 + which
    }

    #[inline]
    #[must_use]
    pub fn uffd(&self) -> Uffd {
        Uffd(self.fd(fd::UFFD))
    }

    /// Moves pages ([`Uffd::move_pages`]), counted.
    pub fn move_pages(&self, dst: u64, src: u64, len: u64) -> Done {
        self.header().count(Counter::UffdMove, 1);
        self.uffd().move_pages(dst, src, len)
    }

    /// Registers mapped memory with this process's userfaultfd. EINVAL: it is not private anonymous memory.
    pub fn register(&self, addr: u64, len: u64) -> Result<(), Errno> {
        let protect = self.can_protect();
        let result = self.uffd().register(addr, len, protect);
        if !protect || result != Err(Errno(libc::EINVAL)) {
            return result;
        }
        self.uffd().register(addr, len, false)?;
        self.unprotectable.store(1, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the kernel can write-protect registered memory, as far as is known.
    pub fn can_protect(&self) -> bool {
        self.unprotectable.load(Ordering::Relaxed) == 0
    }

    /// Maps what an active process needs besides the pool. Called once.
    pub fn prepare_active(&self) -> Result<(), Errno> {
        // Before the first word is written: whatever happens then, they are cleaned up after.
        self.entry().active.store(1, Ordering::Relaxed);
        let states = self
            .pool()
            .map_states(self.fd(fd::POOL), self.owner() as usize, None)?;
        let chunks = sys::engine_memory(MANAGED_PAGES / CHUNK_PAGES * 4)?;
        let inherited = sys::engine_memory(MANAGED_PAGES / WINDOW * 8)?;
        self.frames.prepare()?;
        self.places.prepare(self)?;
        let budget = self.header().budget.load(Ordering::Relaxed).max(0) as u64;
        self.queue.prepare(budget)?;
        self.kept.prepare(budget)?;
        // Without it nothing is recalled.
        let _ = self.readahead.history.prepare(budget);
        self.work_areas.prepare(work_area::count(budget as i64))?;
        self.states.store(states, Ordering::Relaxed);
        self.chunks.store(chunks, Ordering::Relaxed);
        self.inherited.store(inherited, Ordering::Relaxed);
        Ok(())
    }

    /// After fork, in the child: the window on the parent's page states becomes one on the child's own.
    pub fn remap_states(&self, index: u32) -> Result<(), Errno> {
        self.index.store(index, Ordering::Relaxed);
        let at = self.states.load(Ordering::Relaxed);
        self.pool()
            .map_states(self.fd(fd::POOL), index as usize, Some(at))
            .map(drop)
    }

    /// The state word of a page (counted from the base of the managed range).
    #[inline]
    #[must_use]
    pub fn word(&self, page: u64) -> &'static AtomicU64 {
        debug_assert!(page < MANAGED_PAGES);
        let states = self.states.load(Ordering::Relaxed);
        // SAFETY: see the file's note; callers pass pages of managed addresses only.
        unsafe { &*((states + (page % MANAGED_PAGES) * 8) as *const AtomicU64) }
    }

    /// Per chunk: number of resident pages in the low bits, [`TOUCHED`] once any of its words was set, protection bits of
    /// `cow` and the credit and [`MEASURED`](farpage_core::huge::MEASURED) of `huge` between. A page is counted before its word says resident.
    #[inline]
    #[must_use]
    pub fn chunk(&self, page: u64) -> &'static AtomicU32 {
        let chunks = self.chunks.load(Ordering::Relaxed);
        // SAFETY: as for word.
        unsafe { &*((chunks + page % MANAGED_PAGES / CHUNK_PAGES * 4) as *const AtomicU32) }
    }

    /// A bit for each page of the page's window of 64: of a protected window, what was there when it was last shared (see `cow`).
    #[must_use]
    pub fn inherited(&self, page: u64) -> &'static AtomicU64 {
        let inherited = self.inherited.load(Ordering::Relaxed);
        // SAFETY: as for word.
        unsafe { &*((inherited + page % MANAGED_PAGES / WINDOW * 8) as *const AtomicU64) }
    }

    /// A word of the page's chunk says something: who unmaps the chunk must look at its words.
    #[inline]
    pub fn note_touched(&self, page: u64) {
        self.chunk(page).fetch_or(TOUCHED, Ordering::Relaxed);
    }

    /// Pages from `page` on became (n > 0), or pages of its chunk stopped being (n < 0) resident: chunk, process and tree counts.
    pub fn count_resident(&self, page: u64, n: i64) {
        self.note_resident(page, n);
        self.charge(n);
    }

    /// The same for pages that are charged already, or still.
    pub fn note_resident(&self, page: u64, n: i64) {
        let chunk = self.chunk(page);
        chunk.fetch_add(n as u32, Ordering::Relaxed);
        self.note_touched(page);
        if n > 0 {
            self.queue.loaded(page, n as u64);
        }
        self.entry().resident.fetch_add(n, Ordering::Relaxed);
    }

    /// Counts pages that came or, negative, went.
    pub fn charge(&self, n: i64) {
        self.entry().charge(self.header(), n);
    }

    /// Takes a work area; waits if all are in use (holders never wait for one another while holding).
    pub fn context(&self) -> ContextGuard {
        self.work_areas.take()
    }

    /// Sleeps until the word of `page` is likely unlocked.
    pub fn wait_unlocked(&self, page: u64) {
        let word = self.word(page);
        for _ in 0..200 {
            if !PageState(word.load(Ordering::Acquire)).is_locked() {
                return;
            }
            core::hint::spin_loop();
        }
        let waiters = &self.waiters[(page % 64) as usize];
        let seq = waiters.seq.load(Ordering::Acquire);
        waiters.count.fetch_add(1, Ordering::SeqCst);
        if PageState(word.load(Ordering::SeqCst)).is_locked() {
            sys::futex_wait(&waiters.seq, seq, false, 5_000);
        }
        waiters.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// In a forked child: the threads that waited are not here.
    pub fn forget_waiters(&self) {
        self.work_areas.forget_waiters();
        self.waiters
            .iter()
            .for_each(|waiters| waiters.count.store(0, Ordering::Relaxed));
    }

    /// Writes the new state of a page whose lock the caller holds, which unlocks it, and wakes who waits.
    #[inline]
    pub fn unlock(&self, page: u64, locked: PageState, new: PageState) {
        self.word(page).store(locked.replace(new).raw(), Ordering::SeqCst);
        let waiters = &self.waiters[(page % 64) as usize];
        if waiters.count.load(Ordering::SeqCst) != 0 {
            waiters.seq.fetch_add(1, Ordering::Release);
            sys::futex_wake(&waiters.seq, u32::MAX >> 1, false);
        }
    }

    /// Locks a page whose word is still `seen`.
    #[inline]
    #[must_use]
    pub fn try_lock(&self, page: u64, seen: PageState) -> bool {
        let word = self.word(page);
        word.compare_exchange(
            seen.raw(),
            seen.locked().raw(),
            Ordering::Acquire,
            Ordering::Relaxed,
        )
        .is_ok()
    }

    #[inline]
    #[must_use]
    pub fn load(&self, page: u64) -> PageState {
        PageState(self.word(page).load(Ordering::Acquire))
    }
}

/// Bit of [`Mm::chunk`]: some word of the chunk was set since it was last emptied.
pub const TOUCHED: u32 = 1 << 31;
/// Mask of [`Mm::chunk`]: the count of resident pages.
pub const RESIDENT_MASK: u32 = 0xffff;

/// Address of a page of the managed range.
#[inline]
#[must_use]
pub fn address(page: u64) -> u64 {
    MANAGED_BASE + page * PAGE
}

/// Page of a managed address.
#[inline]
#[must_use]
pub fn page_of(addr: u64) -> u64 {
    (addr - MANAGED_BASE) / PAGE
}
