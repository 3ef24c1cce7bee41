//! Memory that is about to become writable, counted before anybody can touch it: what decides when processes become active, and
//! when memory is refused.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use farpage_core::kill_point;

use crate::activate;
use crate::mm::{Mm, PAGE};
use crate::pool::{Header, ProcEntry};
use crate::sentinel;
use crate::sys;
use crate::thread;

/// How long a new limit is waited for before memory is refused, and how long after that, or after a refusal, nobody begins to wait anew, in
/// nanoseconds.
const PATIENCE_NS: u64 = 500_000_000;
const BETWEEN_NS: u64 = 100_000_000;
/// When that was, and which number of limits is waited for.
static WAITED_NS: AtomicU64 = AtomicU64::new(0);
static WAITED_FOR: AtomicU32 = AtomicU32::new(0);
/// One more than the number of limits at which a wait was in vain; 0: none was.
static IN_VAIN: AtomicU64 = AtomicU64::new(0);

/// Whether `len` more bytes could be kept somewhere, were all of them touched.
#[must_use]
pub fn room_for(mm: &Mm, len: u64) -> bool {
    let fits = || mm.pool().room() >= (len / PAGE) as i64;
    !mm.is_active() || fits() || (limit_is_new(mm.header()) && fits())
}

/// Waits for the limit to be set anew, at most once in a while: what was promised to others, and to this process before it
/// was active, is taken off it until then. Memory was refused so while most of the budget was free (once in a run of `make test`; that this was why is inferred).
fn limit_is_new(header: &Header) -> bool {
    if !header.supervisor_is_there() {
        return false;
    }
    // A supervisor that is stopped, or dead and not waited for, sets none: each refusal once took half a second then.
    let in_vain = || u64::from(header.limits_set.load(Ordering::Relaxed)) + 1;
    if IN_VAIN.load(Ordering::Relaxed) == in_vain() {
        return false;
    }
    let now = sys::now_ns();
    let left = || {
        WAITED_FOR
            .load(Ordering::Relaxed)
            .wrapping_sub(header.limits_set.load(Ordering::Relaxed)) as i32
    };
    let before = WAITED_NS.load(Ordering::Relaxed);
    if now.saturating_sub(before) >= BETWEEN_NS {
        // Twice: a look that is under way may have begun before this process was active. Threads that begin together wait for nearly the same.
        WAITED_FOR.store(
            header.limits_set.load(Ordering::Relaxed).wrapping_add(2),
            Ordering::Relaxed,
        );
        WAITED_NS.store(now, Ordering::Relaxed);
    } else if left() <= 0 {
        // Who asks again and again does not wait again and again.
        WAITED_NS.store(now, Ordering::Relaxed);
        return false;
    }
    // Another thread's wait is this one's too: it was refused at once what the first one got a moment later.
    while left() > 0 && sys::now_ns().saturating_sub(now) < PATIENCE_NS {
        header.nap(1000);
    }
    if left() > 0 {
        IN_VAIN.store(in_vain(), Ordering::Relaxed);
    }
    left() <= 0
}

/// In a forked child, which waits for itself.
pub fn forget() {
    WAITED_NS.store(0, Ordering::Relaxed);
    IN_VAIN.store(0, Ordering::Relaxed);
}

/// Counts memory that is about to become writable, and becomes active if that is too much for the tree. Counted first: four
/// processes that mapped at the same time once saw nothing of one another, and all stayed dormant. What then can't be had
/// is taken back with [`commit`].
pub fn grow(mm: &Mm, bytes: u64) {
    commit(mm, bytes as i64);
    activate::on_growth(mm);
    if mm.is_active() && mm.is_own() {
        // Where it could not be started for want of processes there may be some by now.
        thread::start_reclaimer(mm);
    }
    if !mm.is_active() {
        if let Some(entry) = mm.entry_opt() {
            promise(mm.header(), entry);
        }
        sentinel::on_growth(mm);
    }
}

/// A process that stays dormant is not asked when it fills what it has mapped: the rest of the tree makes room for that now. For
/// what it has mapped beyond what it had at most since the supervisor last set the limit: memory that was mapped and unmapped
/// again and again was once taken off the limit each time, and a process that became active then swapped in an empty budget.
pub(crate) fn promise(header: &Header, entry: &ProcEntry) {
    let pages = entry.may_fill();
    let more = pages - entry.promised.fetch_max(pages, Ordering::SeqCst);
    if more > 0 {
        header.promises.fetch_add(more, Ordering::SeqCst);
        header.lower_limit(more);
    }
}

/// Counts memory that became (or ceased to be) writable; the sum decides when processes become active.
pub fn commit(mm: &Mm, bytes: i64) {
    mm.header().committed.fetch_add(bytes, Ordering::Relaxed);
    kill_point!("commit-half");
    if let Some(entry) = mm.entry_opt() {
        entry.committed.fetch_add(bytes, Ordering::SeqCst);
    }
}
