//! Who owes for which windows that fork shares: a bit for each process and window, which who lifts the window's protection clears, and then it is paid for.
//!
//! What is shared by one process that does not owe and *n* that do can become *n* copies more. So each of them pays once: for itself when it leaves
//! those that share, and where one leaves that does not owe, one of the others, which from then on does not owe either. Two processes that both
//! move the same window out have paid for one copy: while it was the pages that were counted, and not whose windows they were, both paid, and eviction
//! freed nothing until all that a child had inherited was paid for (redis in 384 MiB threw 180 of 360 MiB out within two seconds of BGSAVE).
//!
//! Invariants:
//! - what a family owes is at most what it shares, so what the tree really holds is at most what is charged. What is paid by who shares with nobody any
//!   more is too much charged, until the debtor ends. (A thread killed between a bit and its payment leaves one window unpaid.)
//! - `owed` of an entry is told before its bits. Where it has paid more than its share of a window it is less than they stand for, and
//!   once it is nothing they say nothing: all that it inherited is paid for;
//! - bits are cleared before the entry is free.

use core::sync::atomic::{AtomicU8, Ordering};

use farpage_core::kill_point;

use crate::mm::CHUNK_PAGES;
use crate::pool::{Pool, ProcEntry, entry_state};
use crate::reclaim::BLOCK;

/// How far up a process's ancestors are looked for.
const ANCESTORS_MAX: usize = 64;

/// The child at `index`, which is not born yet, owes for the windows of the chunk at page `chunk` whose bits are set.
pub fn owe(pool: &Pool, index: usize, chunk: u64, windows: u8) {
    pool.debts(index)[(chunk / CHUNK_PAGES) as usize].store(windows, Ordering::SeqCst);
}

fn bits_of(pool: &Pool, index: usize, window: u64) -> (&'static AtomicU8, u8) {
    let bits = &pool.debts(index)[(window / CHUNK_PAGES) as usize];
    (bits, 1 << (window % CHUNK_PAGES / BLOCK))
}

/// Whether the process at `index` owes for the window at page `window`.
fn owes(pool: &Pool, index: usize, window: u64) -> bool {
    // Else the look would fill a hole of the pool's file.
    if pool.processes()[index].owed.load(Ordering::SeqCst) <= 0 {
        return false;
    }
    let (bits, bit) = bits_of(pool, index, window);
    bits.load(Ordering::SeqCst) & bit != 0
}

/// True for one caller.
fn take(pool: &Pool, index: usize, window: u64) -> bool {
    let (bits, bit) = bits_of(pool, index, window);
    bits.fetch_and(!bit, Ordering::SeqCst) & bit != 0
}

/// The process at `index` has `pages` of the window at page `window` for itself from now on: who owes for it is charged. False: nobody of its
/// family owes anything.
pub fn pay(pool: &Pool, index: u16, window: u64, pages: i64) -> bool {
    let own = usize::from(index);
    // Who has paid for others before may owe less for its windows than it inherited of them: somebody else owes the rest.
    let mut left = pages - pay_own(pool, index, window, pages);
    while left > 0 {
        let Some((at, is_youngest_child)) = debtor(pool, own, window) else {
            let mut family = relatives(pool, own).chain([own]);
            return family.any(|at| pool.processes()[at].owed.load(Ordering::Relaxed) > 0);
        };
        if take(pool, at, window) {
            kill_point!("cow-debt");
            // Others may have inherited other pages of it.
            let most = if is_youngest_child { pages } else { BLOCK as i64 };
            left -= pay_for_others(pool, &pool.processes()[at], most);
        }
    }
    true
}

/// The same of what it owes for the window itself; how many pages of it. A child that is going to share more of the window pays before for what it
/// inherited of it.
pub fn pay_own(pool: &Pool, index: u16, window: u64, pages: i64) -> i64 {
    let own = usize::from(index);
    if !owes(pool, own, window) || !take(pool, own, window) {
        return 0;
    }
    kill_point!("cow-debt");
    pool.processes()[own].pay(pool.header(), pages)
}

/// Processes of one family that owe, some of them where there are many.
pub struct Debtors {
    at: [u16; Debtors::MAX],
    count: usize,
}

impl Debtors {
    const MAX: usize = 16;
    pub const NONE: Debtors = Debtors {
        at: [0; Debtors::MAX],
        count: 0,
    };

    /// Those of the family of the process at `index`.
    #[must_use]
    pub fn of(pool: &Pool, index: u16) -> Debtors {
        let own = usize::from(index);
        let mut debtors = Debtors::NONE;
        let owe = |at: &usize| pool.processes()[*at].owed.load(Ordering::Relaxed) > 0;
        let family = [own].into_iter().chain(relatives(pool, own));
        for at in family.filter(owe).take(Debtors::MAX) {
            debtors.at[debtors.count] = at as u16;
            debtors.count += 1;
        }
        debtors
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether the window at page `window` is shared by more than one of the family.
    #[must_use]
    pub fn share(&self, pool: &Pool, window: u64) -> bool {
        self.at[..self.count]
            .iter()
            .any(|&at| owes(pool, usize::from(at), window))
    }
}

/// Who pays for a window when one leaves that does not owe, and whether that is its youngest child: the youngest of its descendants that do, for what it
/// has now was inherited last by that one; else the youngest of its siblings and its parent, else of all relatives, although those may share with others
/// than this one.
fn debtor(pool: &Pool, own: usize, window: u64) -> Option<(usize, bool)> {
    let entries = pool.processes();
    let born = |at: usize| entries[at].born_ns.load(Ordering::Relaxed);
    let is_child = |at: usize| entries[at].parent.load(Ordering::Relaxed) as usize == own + 1;
    let debtor = relatives(pool, own)
        .filter(|&at| owes(pool, at, window))
        .max_by_key(|&at| (descends(pool, at, own), is_near(pool, at, own), born(at)))?;
    let youngest = relatives(pool, own)
        .filter(|&at| is_child(at))
        .max_by_key(|&at| born(at));
    Some((debtor, youngest == Some(debtor)))
}

/// Whether it is a sibling or the parent.
fn is_near(pool: &Pool, at: usize, own: usize) -> bool {
    let parent = |at: usize| pool.processes()[at].parent.load(Ordering::Relaxed);
    parent(own) != 0 && (at as u32 + 1 == parent(own) || parent(at) == parent(own))
}

/// The others, by index, that come of the same process by forks.
fn relatives(pool: &Pool, own: usize) -> impl Iterator<Item = usize> {
    let entries = pool.processes();
    let family = entries[own].family.load(Ordering::Relaxed);
    let others = entries.iter().enumerate().filter(move |(at, entry)| {
        *at != own
            && entry.family.load(Ordering::Relaxed) == family
            && entry_state::is_occupied(entry.state.load(Ordering::Acquire))
    });
    others.map(|(at, _)| at)
}

fn descends(pool: &Pool, mut at: usize, from: usize) -> bool {
    for _ in 0..ANCESTORS_MAX {
        let parent = pool.processes()[at].parent.load(Ordering::Relaxed);
        match (parent as usize).checked_sub(1) {
            Some(parent) if parent == from => return true,
            Some(parent) => at = parent,
            None => return false,
        }
    }
    false
}

/// The process at `index` ends, and what it was charged with it. What its descendants share with it stays in RAM and is charged to them, to each of
/// them all that it inherited; what it paid for copies of others it shared with its siblings or its parent, or with others who come of the same: one
/// of them has it now, most likely the next in age. That is known by number of pages only: where three and more share it may be charged to
/// another one than has it, and then be missing when that one pays for its own. The supervisor sees such pages at its next look.
pub fn hand_on(pool: &Pool, index: u16) {
    let (entries, own) = (pool.processes(), usize::from(index));
    let entry = &entries[own];
    let parent = entry.parent.load(Ordering::Relaxed);
    for heir in relatives(pool, own).filter(|&at| descends(pool, at, own)) {
        pay_for_others(pool, &entries[heir], i64::MAX);
    }
    let is_child = |at: usize| entries[at].parent.load(Ordering::Relaxed) as usize == own + 1;
    for (_, child) in entries.iter().enumerate().filter(|(at, _)| is_child(*at)) {
        child.parent.store(parent, Ordering::Relaxed);
    }
    entry.owed.store(0, Ordering::Relaxed);
    let mut left = entry.paid_for.swap(0, Ordering::Relaxed);
    let born = |at: usize| entries[at].born_ns.load(Ordering::Relaxed);
    while left > 0 {
        let owing = relatives(pool, own).filter(|&at| entries[at].owed.load(Ordering::Relaxed) > 0);
        let Some(at) = owing.min_by_key(|&at| (!is_near(pool, at, own), born(at).abs_diff(born(own)))) else {
            break;
        };
        left -= pay_for_others(pool, &entries[at], left);
    }
}

/// Charges up to `pages` of what it owes to a process that shares them with others, which have copied them or ended; how many.
fn pay_for_others(pool: &Pool, entry: &ProcEntry, pages: i64) -> i64 {
    let paid = entry.pay(pool.header(), pages);
    entry.paid_for.fetch_add(paid, Ordering::Relaxed);
    paid
}

#[cfg(test)]
mod tests;
