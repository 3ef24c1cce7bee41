//! Paying for what fork shares.
//!
//! After fork parent and child share every resident page; the kernel copies a page when either writes it, without a
//! fault that we would see. Charging the child for all of it at once would make each fork-and-exec throw half of the
//! tree out of RAM; charging it later lets a writer outrun any budget (a pool of four Python workers once passed a
//! hard limit within two milliseconds). So where the budget has no room for a full copy, the shared pages of both
//! sides are write-protected through userfaultfd, and the first write to each window of 64 pages comes to us: it
//! makes room, moves the window's pages from what the child owes to what it is charged, and lifts the protection.
//!
//! Invariants:
//! - pages of a protected window are owed for, pages of others are paid for: a copy arises, and a page is moved or given up,
//!   only after the window's bit was cleared. So what the tree really holds is at most what is charged;
//! - each copy that can arise is paid for once, by who owes for its window (`debts`);
//! - what a child owes never exceeds what it inherited, so charged + owed is at most a full copy;
//! - a window with a pinned page is never protected: the kernel itself writes such pages (a system call under way, a
//!   thread's stack), and its write would fail. The bit is set before pins are read, and a pin is taken before the bit
//!   is read, so one of the two sees the other;
//! - the pages that a protected window shares are those that were there at the last fork ([`Mm::inherited`]): none of them leaves before the protection does.
//!   Those loaded since are the process's own, charged as ever, and may leave without that;
//! - a stale bit (its pages were unmapped meanwhile) costs one needless call.

use core::sync::atomic::{AtomicU32, Ordering, fence};

use farpage_core::huge;
use farpage_core::kill_point;
use farpage_core::page_state::Kind;
use farpage_core::stats::Counter;

use crate::debts::{self, Debtors};
use crate::ledger::COPIES_PART;
use crate::mm::{CHUNK_PAGES, Mm, PAGE, RESIDENT_MASK, TOUCHED, address};
use crate::pool::ProcEntry;
use crate::reclaim::{self, BLOCK};
use crate::sys::{self, Errno};

/// Pages under one protection bit: the window that reclaim evicts from.
const WINDOW: u64 = BLOCK;
const WINDOWS_PER_CHUNK: u64 = CHUNK_PAGES / WINDOW;
/// The protection bits of [`Mm::chunk`] begin here, one for each window of the chunk.
const PROTECTED_SHIFT: u64 = 16;
const PROTECTED_MASK: u32 = ((1 << WINDOWS_PER_CHUNK) - 1) << PROTECTED_SHIFT;
const _: () = assert!(PROTECTED_MASK & (RESIDENT_MASK | TOUCHED | huge::CREDIT_MASK | huge::MEASURED) == 0);

/// How many threads of a process make room for a window at a time. Room is made before it is charged: 128 threads once
/// found the same room, and overran a limit of 128 MiB by 32.
const PAYERS_MAX: u32 = 4;
/// One sleep of a thread that waits for its turn, in microseconds, unless it is woken.
const TURN_US: u64 = 500;

/// Threads that make room for windows they write to.
#[derive(Default)]
pub struct Payers(AtomicU32);

/// One of them, until dropped.
struct Turn<'a>(&'a AtomicU32);

impl Payers {
    pub const fn new() -> Payers {
        Payers(AtomicU32::new(0))
    }

    /// Waits for its turn. The gate is held shared, so that no fork copies a turn.
    fn turn(&self) -> Turn<'_> {
        loop {
            let running = self.0.load(Ordering::Relaxed);
            if running >= PAYERS_MAX {
                sys::futex_wait(&self.0, running, false, TURN_US);
            } else if self
                .0
                .compare_exchange(running, running + 1, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
            {
                return Turn(&self.0);
            }
        }
    }
}

impl Turn<'_> {
    fn taken(&self) -> i64 {
        i64::from(self.0.load(Ordering::Relaxed))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.0.fetch_sub(1, Ordering::SeqCst) == PAYERS_MAX {
            sys::futex_wake(self.0, 1, false);
        }
    }
}

fn bit_of(page: u64) -> u32 {
    1 << (PROTECTED_SHIFT + page % CHUNK_PAGES / WINDOW)
}

/// Whether a write to the page, by the program or by the kernel, would fault although it is there.
#[inline]
pub fn is_protected(mm: &Mm, page: u64) -> bool {
    mm.chunk(page).load(Ordering::SeqCst) & bit_of(page) != 0
}

/// Whether a write to some page of the chunk would fault although it is there.
pub fn any_protected(mm: &Mm, chunk: u64) -> bool {
    mm.chunk(chunk).load(Ordering::SeqCst) & PROTECTED_MASK != 0
}

/// In the parent, alone, before the clone: protects what is resident, or, where the budget has room for a full copy or
/// the kernel can't protect, leaves it. Returns how many pages the child must be charged for at once; frames are always
/// among them, for the parent gives them up without being asked. For the other pages the child at index `child` owes from now on, which it says
/// already.
pub fn before_clone(mm: &Mm, child: usize, (resident, frames): (i64, i64), headroom: i64) -> i64 {
    let inherited = resident + frames;
    let is_paid = mm.header().excess(inherited + headroom) <= 0 || !mm.can_protect();
    let mut bare = frames;
    for_each_chunk(mm, |chunk, word| {
        if is_paid {
            // What is protected since an earlier fork will be in the child, too.
            windows_of(chunk, word).for_each(|window| share(mm, window, present(mm, window).0));
        } else if word & RESIDENT_MASK != 0 {
            let all = windows_of(chunk, PROTECTED_MASK);
            bare += all.map(|window| offer(mm, window)).sum::<i64>();
            protect_chunk(mm, chunk);
            kill_point!("cow-protected");
            let protected = mm.chunk(chunk).load(Ordering::Relaxed) & PROTECTED_MASK;
            debts::owe(mm.pool(), child, chunk, (protected >> PROTECTED_SHIFT) as u8);
        }
    });
    if is_paid { inherited } else { bare }
}

/// The child is going to copy what is not managed, too, and the supervisor sees it only at its next look: until then the
/// limit is lower.
pub fn reserve_for_child(mm: &Mm, child: &ProcEntry) {
    let header = mm.header();
    let apart = mm.entry().apart.load(Ordering::Relaxed);
    child.apart.store(apart, Ordering::Relaxed);
    let limit = header.limit.load(Ordering::Relaxed).max(0);
    let reserved = apart.clamp(0, limit / COPIES_PART);
    header.promises.fetch_add(reserved, Ordering::SeqCst);
    header.lower_limit(reserved);
}

/// In the child, alone, registered: the same windows become protected here too.
pub fn after_clone(mm: &Mm) {
    for_each_chunk(mm, |chunk, word| {
        if word & PROTECTED_MASK != 0 {
            protect_chunk(mm, chunk);
        }
    });
}

fn for_each_chunk(mm: &Mm, mut f: impl FnMut(u64, u32)) {
    let top = mm.top_page.load(Ordering::Relaxed);
    for chunk in (0..top).step_by(CHUNK_PAGES as usize) {
        let word = mm.chunk(chunk).load(Ordering::Relaxed);
        if word != 0 {
            f(chunk, word);
        }
    }
}

/// The windows of a chunk whose word says that they are protected.
fn windows_of(chunk: u64, word: u32) -> impl Iterator<Item = u64> {
    let windows = (chunk..chunk + CHUNK_PAGES).step_by(WINDOW as usize);
    windows.filter(move |window| word & bit_of(*window) != 0)
}

/// Which pages of the window are resident, a bit each, and whether one is pinned.
fn present(mm: &Mm, window: u64) -> (u64, bool) {
    let states = (0..WINDOW).map(|i| (i, mm.load(window + i)));
    states.fold((0, false), |(resident, pinned), (i, state)| {
        let is_resident = state.kind() == Kind::Resident;
        (
            resident | u64::from(is_resident) << i,
            pinned || state.pins() != 0,
        )
    })
}

/// These pages of a protected window are shared from now on.
fn share(mm: &Mm, window: u64, pages: u64) {
    mm.inherited(window).store(pages, Ordering::Relaxed);
}

/// Sets the window's bit if it can be protected; else returns how many resident pages stay writable in it.
fn offer(mm: &Mm, window: u64) -> i64 {
    let known = mm.chunk(window).fetch_or(bit_of(window), Ordering::SeqCst) & bit_of(window) != 0;
    fence(Ordering::SeqCst);
    kill_point!("cow-marked");
    let (resident, pinned) = present(mm, window);
    let before = mm.inherited(window).load(Ordering::Relaxed);
    if known && resident != before {
        debts::pay_own(mm.pool(), mm.owner(), window, before.count_ones().into());
    }
    // Protected since an earlier fork: a thread that is taking a pin now will see the bit, so it must stay.
    if known || (resident != 0 && !pinned) {
        share(mm, window, resident);
        return 0;
    }
    mm.chunk(window).fetch_and(!bit_of(window), Ordering::SeqCst);
    i64::from(resident.count_ones())
}

/// Tells the kernel about the chunk's protected windows, neighbours in one call.
fn protect_chunk(mm: &Mm, chunk: u64) {
    let bits = (mm.chunk(chunk).load(Ordering::Relaxed) & PROTECTED_MASK) >> PROTECTED_SHIFT;
    let mut at = 0;
    while bits >> at != 0 {
        let skip = u64::from((bits >> at).trailing_zeros());
        let len = u64::from((!(bits >> (at + skip))).trailing_zeros());
        let start = chunk + (at + skip) * WINDOW;
        if protect(mm, start, len * WINDOW, true).is_err() {
            (start..start + len * WINDOW)
                .step_by(WINDOW as usize)
                .for_each(|window| protect_pages(mm, window));
        }
        at += skip + len;
    }
}

/// A window whose pages do not all lie in registered memory: page by page what is resident (which is registered).
fn protect_pages(mm: &Mm, window: u64) {
    for page in window..window + WINDOW {
        if mm.load(page).kind() == Kind::Resident {
            let _ = protect(mm, page, 1, true);
        }
    }
}

/// Write-protects pages, or lifts that.
fn protect(mm: &Mm, page: u64, pages: u64, protect: bool) -> Result<(), Errno> {
    mm.header().count(Counter::TlbFlushCall, 1);
    loop {
        match mm.uffd().write_protect(address(page), pages * PAGE, protect) {
            Err(Errno(libc::EAGAIN)) => {}
            result => return result,
        }
    }
}

/// A write to a protected window: room is made for the copies, then the program may write. The gate is held shared.
pub fn on_write(mm: &Mm, page: u64) {
    let turn = mm.payers.turn();
    if is_protected(mm, page) {
        // For those beside it too, which are not charged yet.
        reclaim::ensure_room(mm, turn.taken() * WINDOW as i64);
        lift(mm, page);
        mm.header().count(Counter::ForkUnshared, 1);
    }
}

/// Lifts the protection of the page's window, if it has one, and charges for it. The gate is held.
pub fn lift(mm: &Mm, page: u64) {
    let window = page / WINDOW * WINDOW;
    if !is_protected(mm, window) {
        return;
    }
    if protect(mm, window, WINDOW, false).is_err() {
        (window..window + WINDOW).for_each(|page| {
            let _ = protect(mm, page, 1, false);
        });
    }
    kill_point!("cow-lifted");
    // Only after the kernel's part: who finds the bit cleared may write at once. One thread clears it and pays.
    if mm.chunk(window).fetch_and(!bit_of(window), Ordering::SeqCst) & bit_of(window) != 0 {
        kill_point!("cow-cleared");
        let shared = mm.inherited(window).load(Ordering::Relaxed);
        pay(mm, window, shared.count_ones().into());
    }
}

/// Lifts the protection of every window that pages `lo..hi` touch. The gate is held.
pub fn lift_range(mm: &Mm, lo: u64, hi: u64) {
    let mut page = lo;
    while page < hi {
        lift(mm, page);
        page = (page / WINDOW + 1) * WINDOW;
    }
}

/// Charges for a window that this process has for itself from now on.
fn pay(mm: &Mm, window: u64, pages: i64) {
    if let Some(forks) = unsettled(mm)
        && !debts::pay(mm.pool(), mm.owner(), window, pages)
    {
        mm.settled_forks.store(forks, Ordering::Relaxed);
    }
}

/// Forks so far, if there were some since nobody of the family owed: only forks make debts. `None`: every copy there can be is paid for.
fn unsettled(mm: &Mm) -> Option<u32> {
    let forks = mm.header().forks.load(Ordering::Acquire);
    (mm.settled_forks.load(Ordering::Relaxed) != forks).then_some(forks)
}

/// Who of this process's family owes.
pub fn debtors(mm: &Mm) -> Debtors {
    unsettled(mm).map_or(Debtors::NONE, |_| Debtors::of(mm.pool(), mm.owner()))
}

/// The pages of a window that is another process's too, a bit each.
#[derive(Clone, Copy)]
pub struct Shared {
    /// What fork shares. To move it out frees nothing unless each of them does the same.
    pub inherited: u64,
    /// What this process has loaded since.
    pub own: u64,
}

/// `None`: the page's window is this process's alone. The gate is held shared.
pub fn shared(mm: &Mm, debtors: &Debtors, page: u64) -> Option<Shared> {
    let window = page / WINDOW * WINDOW;
    let is_shared = is_protected(mm, page) && debtors.share(mm.pool(), window);
    is_shared.then(|| {
        let inherited = mm.inherited(window).load(Ordering::Relaxed);
        let loaded = |i: &u64| inherited >> i & 1 == 0 && mm.load(window + i).kind() == Kind::Resident;
        Shared {
            inherited,
            own: (0..WINDOW).filter(loaded).fold(0, |own, i| own | 1 << i),
        }
    })
}
