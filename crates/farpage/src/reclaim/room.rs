//! Waiting for room.

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use farpage_core::stats::Counter;

use super::{BLOCK, reclaim};
use crate::mm::Mm;
use crate::pool::ProcEntry;
use crate::store::WRITE_MAX;
use crate::{sys, writeback};

// How long a thread waits is measured by [`Effort`].
const MS: u64 = 1_000_000;
/// How long a thread waits while no process of the tree gives anything back, in nanoseconds.
const PATIENCE_NS: u64 = 200 * MS;
/// The same where some thread is moving pages out, storing them or writing compressed ones back: the device may be slow, the machine busy.
const PATIENCE_STORING_NS: u64 = 5_000 * MS;
/// The same where the limit could not be reached a moment ago: it is not waited for again by every single fault. And how long a fault
/// waits in all where there is no hope of room, though now and then something is given back: exchanging pages one by one keeps to the
/// limit, but a program that was promised too much once went on at a hundred faults a second so.
const PATIENCE_OVER_NS: u64 = 2 * MS;
/// How long a thread waits in all, whatever is given back meanwhile: others may take it each time.
const PATIENCE_IN_ALL_NS: u64 = 10_000 * MS;
/// The same where room is made ahead of what is charged in any case.
const PATIENCE_AHEAD_NS: u64 = 1_000 * MS;
/// The same where pages are read ahead, which nobody waits for: while a thread of ours waits, who wants the memory alone waits too.
const PATIENCE_HINT_NS: u64 = 100 * MS;
/// How long that moment is.
const MOMENT_NS: u64 = 1_000 * MS;
/// What one turn of a wait counts by the clock, at most: who was stopped (SIGSTOP, a frozen cgroup) has not waited.
const TURN_MAX_NS: u64 = 1_000 * MS;
/// After so long without anything given back a waiting thread writes compressed pages back itself.
const HELD_UP_NS: u64 = 20 * MS;
/// How often a waiting thread asks the rest of the tree to reclaim.
const ASK_EVERY_NS: u64 = 5 * MS;
/// One sleep, in microseconds, unless frames are given back.
const SLEEP_US: u64 = 500;
/// What of it counts, at most (see [`Effort`]).
const SLEPT_MAX_NS: u64 = 2 * SLEEP_US * 1000;

/// When this process last gave up waiting for room; how long it had waited without anything given back, and [`Header::pages_left`] then.
static OVERRUN_NS: AtomicU64 = AtomicU64::new(0);
static OVERRUN_WAITED_NS: AtomicU64 = AtomicU64::new(0);
static OVERRUN_AT: AtomicU64 = AtomicU64::new(0);
/// Pages that it then takes without waiting again, if all swap is full: nobody makes room for them.
static OVERRUN_LEFT: AtomicI64 = AtomicI64::new(0);
const OVERRUN_BATCH: i64 = 64;

/// What [`Header::limits_set`] must reach for the limit to know that this process is active.
static LIMIT_KNOWS: AtomicU32 = AtomicU32::new(0);
/// How long that is waited for at most, in nanoseconds: three ticks.
const PATIENCE_LIMIT_NS: u64 = 60 * MS;

/// This process becomes active. What it had mapped while dormant was taken off the limit, which is right again when the supervisor
/// has looked once from its beginning.
pub fn limit_is_old(mm: &Mm) {
    let set = mm.header().limits_set.load(Ordering::Relaxed);
    LIMIT_KNOWS.store(set.wrapping_add(2), Ordering::Relaxed);
}

/// Whether the limit is still the one from before this process became active: to keep to it, programs that fitted once swapped for a
/// moment (in 3 of 40 runs on a busy machine).
pub fn is_limit_old(mm: &Mm) -> bool {
    let header = mm.header();
    let left = LIMIT_KNOWS
        .load(Ordering::Relaxed)
        .wrapping_sub(header.limits_set.load(Ordering::Relaxed));
    (1..=2).contains(&left) && header.supervisor_is_there()
}

/// Waits until the limit knows that this process is active, or `pages` fit.
fn wait_for_limit(mm: &Mm, pages: i64) {
    let header = mm.header();
    let start = sys::now_ns();
    while header.excess(pages) > 0 && is_limit_old(mm) {
        if sys::now_ns() - start > PATIENCE_LIMIT_NS {
            let set = header.limits_set.load(Ordering::Relaxed);
            LIMIT_KNOWS.store(set, Ordering::Relaxed);
        }
        header.nap(1000);
    }
}

/// What tells waiting threads that frames were given back.
pub struct Released {
    times: AtomicU32,
    sleeping: AtomicU32,
    /// When storing last gave nothing back.
    failed_ns: AtomicU64,
}

impl Released {
    pub(super) const fn new() -> Released {
        Released {
            times: AtomicU32::new(0),
            sleeping: AtomicU32::new(0),
            failed_ns: AtomicU64::new(0),
        }
    }

    pub fn tell(&self) {
        self.times.fetch_add(1, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) != 0 {
            sys::futex_wake(&self.times, u32::MAX >> 1, false);
        }
    }

    pub fn tell_of_failure(&self) {
        self.failed_ns.store(sys::now_ns(), Ordering::Relaxed);
    }

    pub fn failed_lately(&self, now: u64) -> bool {
        is_lately(&self.failed_ns, now)
    }

    fn sleep(&self, seen: u32) {
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        sys::futex_wait(&self.times, seen, false, SLEEP_US);
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits, reclaiming, until `pages` more may be charged. Returns in any case: a tree that can't get below its limit
/// (all swap full, others stopped) overruns it rather than hang, and says so in `limit_overrun`.
pub fn ensure_room(mm: &Mm, pages: i64) {
    let header = mm.header();
    if header.excess(pages) <= 0 {
        return;
    }
    wait_for_limit(mm, pages);
    if is_in_batch(mm, pages) {
        OVERRUN_LEFT.fetch_sub(pages, Ordering::Relaxed);
    } else if let Err(waited_ns) = wait(mm, PATIENCE_IN_ALL_NS, || pages) {
        header.count(Counter::LimitOverrun, 1);
        let now = sys::now_ns();
        OVERRUN_WAITED_NS.store(waited_ns.max(waited_in_vain(mm, now)), Ordering::Relaxed);
        OVERRUN_NS.store(now, Ordering::Relaxed);
        OVERRUN_AT.store(header.pages_left(), Ordering::Relaxed);
        OVERRUN_LEFT.store(OVERRUN_BATCH, Ordering::Relaxed);
    }
}

/// How long this process has waited a moment ago without anything given back since.
fn waited_in_vain(mm: &Mm, now: u64) -> u64 {
    if is_lately(&OVERRUN_NS, now) && mm.header().pages_left() == OVERRUN_AT.load(Ordering::Relaxed) {
        OVERRUN_WAITED_NS.load(Ordering::Relaxed)
    } else {
        0
    }
}

/// Whether these pages were given up on with others a moment ago.
fn is_in_batch(mm: &Mm, pages: i64) -> bool {
    OVERRUN_LEFT.load(Ordering::Relaxed) >= pages
        && is_lately(&OVERRUN_NS, sys::now_ns())
        && mm.pool().is_swap_full()
}

/// In a forked child: it has given up on nothing yet.
pub fn begin_patiently() {
    OVERRUN_NS.store(0, Ordering::Relaxed);
    OVERRUN_LEFT.store(0, Ordering::Relaxed);
}

/// Makes room, for a second at most, ahead of what is charged in any case. `pages` is asked for again each time: reclaim may give back
/// what is wanted for. False: there was none in that time.
#[must_use]
pub fn room_ahead(mm: &Mm, pages: impl Fn() -> i64) -> bool {
    wait(mm, PATIENCE_AHEAD_NS, pages).is_ok()
}

/// Makes room for pages that may as well stay where they are; false: there is none.
#[must_use]
pub fn room_for_hint(mm: &Mm, pages: i64) -> bool {
    wait(mm, PATIENCE_HINT_NS, || pages).is_ok()
}

/// What a wait takes of a thread, in nanoseconds: what it runs, and its sleeps. By the clock, threads that were kept from a CPU (32 of them, beside
/// others' busy loops) lost patience with each other: they overran a budget that was being cleared. What it waits in the kernel for a
/// device is neither, so a part of the clock's time counts in any case.
struct Effort {
    ran: u64,
    slept: u64,
    by_clock: bool,
}

/// A wait is so many times as long as it is meant to be, at most.
const SLOWEST: u64 = 5;
/// One in which nothing happens: on a machine with forty threads for each CPU those of the tree that have something to give, or the
/// supervisor that gives back what the dead had, once had no turn for a second.
const SLOWEST_IDLE: u64 = 20;

impl Effort {
    /// By the clock alone: what may as well not be had; and without a supervisor, since what the dead are charged never comes back then.
    fn begin(mm: &Mm, in_all: u64) -> Effort {
        Effort {
            ran: sys::thread_ns(),
            slept: 0,
            by_clock: in_all == PATIENCE_HINT_NS || !mm.header().supervisor_lives(),
        }
    }

    /// What the thread has done since it began.
    fn done(&self) -> u64 {
        sys::thread_ns() - self.ran + self.slept
    }

    /// What counts of a time in which the thread has `done` so much while the clock has gone on by `clock`.
    fn counted(&self, done: u64, clock: u64, slowest: u64) -> u64 {
        if self.by_clock {
            clock
        } else {
            done.max(clock / slowest)
        }
    }

    fn sleep(&mut self, released: &Released, seen: u32) {
        let start = sys::now_ns();
        released.sleep(seen);
        self.slept += (sys::now_ns() - start).min(SLEPT_MAX_NS);
    }
}

/// Reclaims and waits. An error: there is no room; how long that was waited for without anything given back, in nanoseconds.
///
/// More than half of what there can be is never waited for, since it would be free only while nobody else takes a page. (A fork that wanted 200 pages in a limit of 256 waited for good, with malloc's locks held, as long
/// as the handler of a timer touched pages.)
fn wait(mm: &Mm, in_all: u64, pages: impl Fn() -> i64) -> Result<(), u64> {
    let header = mm.header();
    let excess = || header.excess(pages().min(header.room_at_most() / 2));
    if excess() <= 0 {
        return Ok(());
    }
    let mut start = sys::now_ns();
    mm.who.note_fault(start);
    let released = &mm.frames.released;
    let mut seen = released.times.load(Ordering::SeqCst);
    let mut left = header.pages_left();
    let (mut effort, mut idle_since, mut asked, mut looked) = (None, [0, start], 0, start);
    if !mm.who.is_by_faults() {
        header.count(Counter::Allocstall, 1);
    }
    let mut outcome = Ok(());
    while excess() > 0 {
        let done = reclaim(mm, excess().clamp(BLOCK as i64, WRITE_MAX as i64));
        if excess() <= 0 {
            break; // as mostly: nothing is measured
        }
        let before = core::mem::replace(&mut seen, released.times.load(Ordering::SeqCst));
        let left_before = core::mem::replace(&mut left, header.pages_left());
        let now = sys::now_ns();
        let stopped = (now - looked).saturating_sub(TURN_MAX_NS);
        (start, idle_since[1], looked) = (start + stopped, idle_since[1] + stopped, now);
        let effort = effort.get_or_insert_with(|| Effort::begin(mm, in_all));
        let spent = effort.done();
        if done > 0 || seen != before || left != left_before {
            idle_since = [spent, now];
        }
        let is_over = if header.is_hopeless() {
            now - start > PATIENCE_OVER_NS
        } else {
            effort.counted(spent, now - start, SLOWEST) > in_all
        };
        let in_vain = is_over && excess() > 0;
        if done > 0 && !in_vain {
            continue;
        }
        let idle = effort.counted(spent - idle_since[0], now - idle_since[1], SLOWEST_IDLE);
        // The reclaimer may not get to it: it waits for the gate, which this thread holds.
        if !in_vain && idle > HELD_UP_NS && writeback::is_due(mm) && writeback::run(mm) > 0 {
            continue;
        }
        let patience = patience(mm, now);
        if in_vain || idle > patience {
            // What was waited for may have come, and whoever brought it be idle, since the counts were read.
            if !in_vain && (released.times.load(Ordering::SeqCst) != seen || header.pages_left() != left) {
                continue;
            }
            if excess() > 0 {
                outcome = Err(if in_vain { PATIENCE_NS } else { patience });
            }
            break;
        }
        if now - asked > ASK_EVERY_NS {
            asked = now;
            header.ask_to_reclaim();
        }
        effort.sleep(released, seen);
    }
    header.count(Counter::StallNs, sys::now_ns() - start);
    outcome
}

/// How long nothing may happen in the tree before the limit is overrun. By time, not by sleeps: 32 threads that woke
/// each other by asking once gave up after a few milliseconds, and each made it worse for the others. A process that has nothing left
/// waits for those that have: 32 threads of one whose children held all of 96 MiB once took 7 MiB more while these stored theirs.
fn patience(mm: &Mm, now: u64) -> u64 {
    let any = |is_so: fn(&ProcEntry) -> bool| mm.pool().processes().iter().any(is_so);
    let is_storing = mm.frames.moving() > 0 || any(|entry| entry.storing.load(Ordering::Relaxed) > 0);
    // What finds the compressed tier full waits for what leaves that.
    let is_writing_back = any(|entry| entry.writing_back.load(Ordering::Relaxed) > 0);
    if !is_lately(&OVERRUN_NS, now) {
        return if is_storing || is_writing_back {
            PATIENCE_STORING_NS
        } else {
            PATIENCE_NS
        };
    }
    let has_hope = is_writing_back || is_storing && !mm.frames.released.failed_lately(now);
    // A process may be stopped in the middle of it, a device hang: that is waited for once.
    if has_hope && waited_in_vain(mm, now) < PATIENCE_STORING_NS && !mm.pool().is_swap_full() {
        PATIENCE_STORING_NS
    } else {
        PATIENCE_OVER_NS
    }
}

fn is_lately(at: &AtomicU64, now: u64) -> bool {
    now.saturating_sub(at.load(Ordering::Relaxed)) < MOMENT_NS
}
