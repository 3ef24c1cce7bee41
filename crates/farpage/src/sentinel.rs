//! A dormant process can be called up: the supervisor asks the largest of them to become active when the tree needs the RAM
//! that they have, and a thread of theirs, asleep until then, does it (decision 0018).
//!
//! # Safety
//! A bare thread, which touches no thread-local storage (see `thread`).
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use crate::activate;
use crate::mm::{Mm, PAGE, mm, mode};
use crate::pool::{Pool, ProcEntry, entry_state};
use crate::sys;
use crate::thread;

/// What `ProcEntry::call_up` says: nobody hears it, somebody does, it has been asked.
const DEAF: u32 = 0;
const HEARS: u32 = 1;
const ASKED: u32 = 2;
/// The part of the budget from which on a process is worth a thread.
const PART: i64 = 16;
/// How long it sleeps if nobody asks, and before it tries again what was put off.
const SLEEP_US: u64 = 1_000_000;
const AGAIN_US: u64 = 10_000;
/// Bytes opened in small pieces so far.
static OPENED: AtomicU64 = AtomicU64::new(0);
/// 1 once the thread of this process was started.
static STARTED: AtomicU32 = AtomicU32::new(0);
/// Its number.
static TID: AtomicI32 = AtomicI32::new(0);

/// Called when a dormant process has grown: starts the thread once that is worth it.
pub fn on_growth(mm: &Mm) {
    let Some(entry) = mm.entry_opt() else { return };
    if entry.committed.load(Ordering::Relaxed) / PAGE as i64 > worth_a_thread(mm.pool()) {
        start(mm, entry);
    }
}

/// The same where memory was opened in pieces too small to be counted each: some are opened again and again. The supervisor sees what there is.
pub fn on_opening(mm: &Mm, bytes: u64) {
    let Some(entry) = mm.entry_opt() else { return };
    let opened = OPENED.fetch_add(bytes, Ordering::Relaxed) + bytes;
    if (opened / PAGE) as i64 > worth_a_thread(mm.pool()) {
        start(mm, entry);
    }
}

fn start(mm: &Mm, entry: &ProcEntry) {
    if STARTED.load(Ordering::Relaxed) != 0 || mm.mode.load(Ordering::Acquire) != mode::DORMANT {
        return;
    }
    // A child that borrows this memory (vfork) must not: the thread would be its own.
    if mm.is_own() && STARTED.swap(1, Ordering::Relaxed) == 0 {
        entry.call_up.store(HEARS, Ordering::Relaxed);
        if thread::spawn(sentinel_main).is_err() {
            entry.call_up.store(DEAF, Ordering::Relaxed);
        }
    }
}

/// In a forked child, which has no such thread.
pub fn forget() {
    STARTED.store(0, Ordering::Relaxed);
    TID.store(0, Ordering::Relaxed);
}

/// The number of this process's thread, which is in no call of the program's; 0: there is none.
pub fn tid() -> i32 {
    TID.load(Ordering::Relaxed)
}

fn worth_a_thread(pool: &Pool) -> i64 {
    pool.header().budget.load(Ordering::Relaxed) / PART
}

extern "C" fn sentinel_main() -> ! {
    let mm = mm();
    TID.store(sys::gettid(), Ordering::Relaxed);
    while mm.mode.load(Ordering::Acquire) == mode::DORMANT {
        let word = &mm.entry().call_up;
        if word.load(Ordering::Acquire) == ASKED {
            activate::activate();
            // Put off while libc makes a child.
            sys::futex_wait(&mm.mode, mode::DORMANT, false, AGAIN_US);
        } else {
            sys::futex_wait(word, HEARS, true, SLEEP_US);
        }
    }
    loop {
        // SAFETY: ends this thread; its stack is not used any more.
        unsafe { sys::raw(libc::SYS_exit, [0; 6]) };
    }
}

/// Asks the dormant process that has most, if the tree needs RAM. Called by the supervisor.
pub fn call_up(pool: &Pool) {
    let header = pool.header();
    let headroom = thread::headroom_of(header);
    // Memory that nobody counted as it grew may be too much by itself, while the limit leaves the rest something.
    let uncounted =
        header.unmanaged.load(Ordering::Relaxed) + headroom > header.budget.load(Ordering::Relaxed);
    if header.excess(headroom) <= 0 && !uncounted {
        return;
    }
    let size = |index: &usize| pool.processes()[*index].unmanaged.load(Ordering::Relaxed);
    let hears = |index: &usize| {
        let entry = &pool.processes()[*index];
        entry.state.load(Ordering::Acquire) == entry_state::LIVE
            && entry.active.load(Ordering::Relaxed) == 0
            && entry.call_up.load(Ordering::Relaxed) == HEARS
    };
    let largest = (0..pool.processes().len()).filter(hears).max_by_key(size);
    if let Some(index) = largest.filter(|index| size(index) > worth_a_thread(pool)) {
        let word = &pool.processes()[index].call_up;
        // It may have ended, and its entry be another's, who then is asked in vain.
        if word
            .compare_exchange(HEARS, ASKED, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            sys::futex_wake(word, u32::MAX >> 1, true);
        }
    }
}
