//! Memory that is about to become writable, counted before anybody can touch it: what decides when processes become active, and
//! when memory is refused.

use core::sync::atomic::Ordering;

use farpage_core::kill_point;

use crate::activate;
use crate::mm::{Mm, PAGE};
use crate::pool::{Header, ProcEntry};
use crate::sentinel;

/// Whether `len` more bytes could be kept somewhere, were all of them touched.
#[must_use]
pub fn room_for(mm: &Mm, len: u64) -> bool {
    !mm.is_active() || mm.header().room() >= (len / PAGE) as i64
}

/// Counts memory that is about to become writable, and becomes active if that is too much for the tree. Counted first: four
/// processes that mapped at the same time once saw nothing of one another, and all stayed dormant. What then can't be had
/// is taken back with [`commit`].
pub fn grow(mm: &Mm, bytes: u64) {
    commit(mm, bytes as i64);
    activate::on_growth(mm);
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
    let pages = (entry.committed.load(Ordering::SeqCst) as u64).div_ceil(PAGE) as i64;
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
