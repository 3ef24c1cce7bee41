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
//! - where parent and child have both lifted a window it is paid for twice, until one of them ends: too much rather than
//!   too little;
//! - what a child owes never exceeds what it inherited, so charged + owed is at most a full copy;
//! - a window with a pinned page is never protected: the kernel itself writes such pages (a system call under way, a
//!   thread's stack), and its write would fail. The bit is set before pins are read, and a pin is taken before the bit
//!   is read, so one of the two sees the other;
//! - a stale bit (its pages were unmapped meanwhile) costs one needless call.

use core::sync::atomic::{AtomicU32, Ordering, fence};

use farpage_core::huge;
use farpage_core::kill_point;
use farpage_core::page_state::Kind;
use farpage_core::stats::Counter;

use crate::ledger::COPIES_PART;
use crate::mm::{CHUNK_PAGES, Mm, PAGE, RESIDENT_MASK, TOUCHED, address};
use crate::pool::{Pool, ProcEntry, entry_state};
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
/// among them, for the parent gives them up without being asked.
pub fn before_clone(mm: &Mm, resident: i64, frames: i64, headroom: i64) -> i64 {
    let inherited = resident + frames;
    if mm.header().excess(inherited + headroom) <= 0 || !mm.can_protect() {
        return inherited;
    }
    let mut bare = frames;
    for_each_chunk(mm, |chunk, word| {
        if word & RESIDENT_MASK == 0 {
            return;
        }
        for window in (chunk..chunk + CHUNK_PAGES).step_by(WINDOW as usize) {
            bare += offer(mm, window);
        }
        protect_chunk(mm, chunk);
        kill_point!("cow-protected");
    });
    bare
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

/// Sets the window's bit if it can be protected; else returns how many resident pages stay writable in it.
fn offer(mm: &Mm, window: u64) -> i64 {
    if mm.chunk(window).fetch_or(bit_of(window), Ordering::SeqCst) & bit_of(window) != 0 {
        // Protected since an earlier fork: a thread that is taking a pin now will see the bit, so it must stay.
        return 0;
    }
    fence(Ordering::SeqCst);
    kill_point!("cow-marked");
    let (mut resident, mut pinned) = (0, false);
    for page in window..window + WINDOW {
        let state = mm.load(page);
        resident += i64::from(state.kind() == Kind::Resident);
        pinned |= state.pins() != 0;
    }
    if resident > 0 && !pinned {
        return 0;
    }
    mm.chunk(window).fetch_and(!bit_of(window), Ordering::SeqCst);
    resident
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
        let resident = (window..window + WINDOW).filter(|&page| mm.load(page).kind() == Kind::Resident);
        pay(mm, resident.count() as i64);
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

/// Charges those who owe for shared pages: this process for what it inherited, then others that may share with it. Nobody owes:
/// every copy there can be is paid for.
fn pay(mm: &Mm, pages: i64) {
    let left = pages - mm.entry().pay(mm.header(), pages);
    // Only forks make debts.
    let forks = mm.header().forks.load(Ordering::Acquire);
    if left > 0
        && mm.settled_forks.load(Ordering::Relaxed) != forks
        && pay_by_others(mm.pool(), mm.owner(), left) > 0
    {
        mm.settled_forks.store(forks, Ordering::Relaxed);
    }
}

/// Charges other processes for pages that the one at `index` copies: its children, which inherited them from it, its siblings, which
/// share what it inherited, then any, grandchildren among them; what nobody owes. (A parent whose first child had paid for all
/// once left the second one's pages, and a grandchild's, charged to nobody.)
pub fn pay_by_others(pool: &Pool, index: u16, pages: i64) -> i64 {
    let entries = pool.processes();
    let (own, parent) = (
        u32::from(index) + 1,
        entries[usize::from(index)].parent.load(Ordering::Relaxed),
    );
    let mut left = pages;
    for relation in [Some(own), Some(parent).filter(|parent| *parent != 0), None] {
        let debtors = entries.iter().filter(|entry| {
            entry.owed.load(Ordering::Relaxed) > 0
                && relation.is_none_or(|parent| entry.parent.load(Ordering::Relaxed) == parent)
                && entry_state::is_occupied(entry.state.load(Ordering::Acquire))
        });
        left = charge_for_others(pool, debtors, left);
        if left == 0 {
            break;
        }
    }
    left
}

/// Charges debtors, one after another, for pages that others copy; what is left of those.
fn charge_for_others<'a>(pool: &Pool, debtors: impl Iterator<Item = &'a ProcEntry>, pages: i64) -> i64 {
    let mut left = pages;
    for debtor in debtors {
        let paid = debtor.pay(pool.header(), left);
        debtor.paid_for.fetch_add(paid, Ordering::Relaxed);
        left -= paid;
        if left == 0 {
            break;
        }
    }
    left
}

/// The process at `index` ends, and what it was charged with it. What it paid for copies of others it shared with its siblings: one of
/// them has it now.
pub fn hand_on(pool: &Pool, index: u16) {
    let entries = pool.processes();
    let entry = &entries[usize::from(index)];
    entry.owed.store(0, Ordering::Relaxed);
    let paid_for = entry.paid_for.swap(0, Ordering::Relaxed);
    let parent = entry.parent.load(Ordering::Relaxed);
    if paid_for > 0 && parent != 0 {
        charge_for_others(pool, children(entries, (parent - 1) as u16), paid_for);
    }
}

/// Living children by fork of the process at `index`.
pub fn children(entries: &[ProcEntry], index: u16) -> impl Iterator<Item = &ProcEntry> {
    let parent = u32::from(index) + 1;
    entries.iter().filter(move |entry| {
        entry.parent.load(Ordering::Relaxed) == parent
            && entry_state::is_occupied(entry.state.load(Ordering::Acquire))
    })
}
