//! Returns to the pool what a process held that is gone: ended, killed at any instruction, or replaced by exec.
//!
//! Its page states name its references: the slot of each is put. Slots it was filling or freeing are *busy* and name
//! it as owner, clusters it was working on are locked with its name: compressed objects that such a slot, or a write-back cut short, has left
//! over are found by the slot number that they carry. Last, those clusters are mended: count and lists are made anew from the slots. Between the store of a new page state
//! and the put of the old slot a kill can leave one reference too many (never one too few): the supervisor counts again (`recount`).
//! In the middle of `mremap` two words may name what is one reference: of a process that died so none is put, all are counted again.
//!
//! # Safety
//! Page states of a process that is gone (or is this one, before it manages anything) have no other user.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering};

use farpage_core::cluster::CLUSTER_SLOTS;
use farpage_core::kill_point;
use farpage_core::page_state::PageState;
use farpage_core::slots::Slots;
use farpage_core::swap_table::{SlotKind, SlotWord};
use farpage_core::units::PAGE_SIZE;

use crate::debts;
use crate::mremap::turn;
use crate::numbers;
use crate::pool::{DEBTS_LEN, Pool, ProcEntry, STATES_LEN, entry_state};
use crate::puts;
use crate::recount::{self, SUPERVISOR};
use crate::sys;
use crate::watch;

/// Empties the entry `index`, taken at `born_ns`, and what it names; the entry is free afterwards. Nothing happens if another
/// process has it by now: after exec the supervisor and the new image both find the old one, and the image may take the same
/// entry again before the supervisor comes to it.
pub fn return_everything(pool: &Pool, pool_fd: i32, index: usize, born_ns: u64) {
    let state = pool.processes()[index].state.load(Ordering::Relaxed);
    give_up(pool, pool_fd, index, born_ns, state);
}

/// The same, unless the entry is not in this `state` any more: its process may have taken it over in its own name a moment ago.
pub fn give_up(pool: &Pool, pool_fd: i32, index: usize, born_ns: u64, state: u32) {
    let entry = &pool.processes()[index];
    let occupied = entry_state::is_occupied(state);
    let is_meant = || entry.born_ns.load(Ordering::Relaxed) == born_ns;
    let mine = entry_state::cleaned_by(numbers::own().unwrap_or_else(sys::getpid));
    let exchange = |from, to| {
        entry
            .state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
    };
    // One cleaner only.
    if !occupied || !is_meant() || exchange(state, mine).is_err() {
        return;
    }
    if !is_meant() {
        // Given back, unless the process has come to life meanwhile and says so itself.
        let _ = exchange(mine, state);
        return;
    }
    kill_point!("clean-claimed");
    let header = pool.header();
    if entry.active.load(Ordering::Relaxed) != 0 {
        if !put_slots(pool, pool_fd, index) {
            // No memory to look at its words now: the entry stays taken, or the next process would find them.
            entry.state.store(state, Ordering::Release);
            return;
        }
        if holds_any(pool, pool_fd, index as u16) {
            free_objects(pool, index as u16);
            free_slots(pool, pool_fd, index as u16);
        }
        release_zpages(pool, index as u16);
        header.recount.fetch_or(recount::GONE, Ordering::Relaxed);
    }
    watch::bury(pool, index as u16);
    turn::bury(pool, index as u16);
    let steps = [&entry.puts, &entry.moves, &entry.objects];
    if steps.into_iter().filter(|steps| steps.bury()).count() > 0 {
        header.recount.fetch_or(recount::IN_A_STEP, Ordering::Relaxed);
    }
    // A thread of it may have been in fork. (One that borrowed its memory may be still, and will write the pid.)
    let number = entry.pid.load(Ordering::Relaxed);
    pool.processes().iter().for_each(|other| let_go(other, number));
    debts::hand_on(pool, index as u16);
    forget_debts(pool, pool_fd, index);
    let charged = entry.charged.swap(0, Ordering::Relaxed);
    // What it shared is others' now, and not charged to them everywhere: no room before the supervisor has looked.
    header.lower_limit(charged);
    header.charged.fetch_sub(charged, Ordering::Relaxed);
    header
        .committed
        .fetch_sub(entry.committed.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    header
        .unmanaged
        .fetch_sub(entry.unmanaged.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    for word in [
        &entry.resident,
        &entry.frames,
        &entry.storing,
        &entry.writing_back,
        &entry.poor,
        &entry.kept,
        &entry.owed,
        &entry.first,
        &entry.promised,
        &entry.apart,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    entry.parent.store(0, Ordering::Relaxed);
    entry.active.store(0, Ordering::Relaxed);
    entry.wanted.store(0, Ordering::Relaxed);
    entry.area_epoch.store(0, Ordering::Relaxed);
    entry.area_errno.store(0, Ordering::Relaxed);
    entry.execing.store(0, Ordering::Relaxed);
    entry.call_up.store(0, Ordering::Relaxed);
    entry.born_ns.store(0, Ordering::Relaxed);
    set_free(entry);
}

/// The last step. A child that execs may be here before its parent is back from the fork and writes its pid: that went into the entry of the
/// parent's next child, which was given up when the first one ended, and stopped. So the parent has the last word then.
fn set_free(entry: &ProcEntry) {
    let forker = entry.forking.load(Ordering::SeqCst);
    if forker == 0 {
        entry.pid.store(0, Ordering::Relaxed);
        entry.state.store(entry_state::FREE, Ordering::Release);
        return;
    }
    entry.state.store(entry_state::left_to(forker), Ordering::SeqCst);
    // One of the two sees what the other has done, or both do, and one frees it.
    if entry.forking.load(Ordering::SeqCst) == 0 {
        free_left(entry, forker);
    }
}

/// `forker` is in the fork that made this entry's process no more, if it ever was, or is gone.
pub fn let_go(entry: &ProcEntry, forker: i32) {
    if forker == 0 {
        return;
    }
    if entry.forking.load(Ordering::SeqCst) == forker {
        let _ = entry
            .forking
            .compare_exchange(forker, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
    free_left(entry, forker);
}

/// Frees an entry that was left to `forker`, unless that is in a fork by now that has made the entry's next life, left to it too.
fn free_left(entry: &ProcEntry, forker: i32) {
    let left = entry_state::left_to(forker);
    let claim = || {
        let mine = entry_state::cleaned_by(numbers::own().unwrap_or_else(sys::getpid));
        entry
            .state
            .compare_exchange(left, mine, Ordering::SeqCst, Ordering::Relaxed)
    };
    while entry.state.load(Ordering::SeqCst) == left && claim().is_ok() {
        if entry.forking.load(Ordering::SeqCst) == 0 {
            entry.pid.store(0, Ordering::Relaxed);
            entry.state.store(entry_state::FREE, Ordering::Release);
            return;
        }
        entry.state.store(left, Ordering::SeqCst);
        if entry.forking.load(Ordering::SeqCst) != 0 {
            return;
        }
    }
}

/// The entry `index` is being cleaned up after by a process that is gone: what it had not come to is done again.
pub fn take_over(pool: &Pool, pool_fd: i32, index: usize, state: u32) {
    let entry = &pool.processes()[index];
    // The parent may have cleaned up what it could not fork.
    if let Some(gone) = entry_state::cleaner(state) {
        let_go(entry, gone);
    }
    // It may have died between a word and the put of its slot.
    pool.header()
        .recount
        .fetch_or(recount::IN_A_STEP, Ordering::Relaxed);
    let again = entry
        .state
        .compare_exchange(state, entry_state::LIVE, Ordering::Acquire, Ordering::Relaxed);
    if again.is_ok() {
        return_everything(pool, pool_fd, index, entry.born_ns.load(Ordering::Relaxed));
    }
}

/// Clears what the entry owed, for its next life.
fn forget_debts(pool: &Pool, pool_fd: i32, index: usize) {
    let start = pool.layout().debts + index as u64 * DEBTS_LEN;
    let (words, rest) = pool.debts(index).as_chunks::<8>();
    debug_assert!(rest.is_empty());
    let mut any = false;
    each_written(pool_fd, start, words.len() as u64, |word| {
        let bytes = &words[word as usize];
        bytes.iter().for_each(|byte| byte.store(0, Ordering::SeqCst));
        any = true;
    });
    if any {
        pool.punch_debts(index);
    }
}

/// Puts the slot of every swapped page, unless two words may name the same reference, then gives the page states' memory back. False:
/// they could not be mapped.
fn put_slots(pool: &Pool, pool_fd: i32, index: usize) -> bool {
    let start = pool.layout().states + index as u64 * STATES_LEN;
    let end = start + STATES_LEN;
    let Ok(window) = pool.map_states(pool_fd, index, None) else {
        return false;
    };
    let is_sure = pool.processes()[index].moves.idle().is_some();
    let mut at = start;
    while let Some((from, to)) = next_data(pool_fd, at, end) {
        for offset in (from - start..to - start).step_by(8) {
            // SAFETY: inside the window just mapped.
            let word = unsafe { &*((window + offset) as *const AtomicU64) };
            // After the entry's state: see Mm::has_entry_still.
            let state = PageState(word.swap(0, Ordering::AcqRel));
            if let Some(slot) = state.named_slot().filter(|_| is_sure) {
                kill_point!("clean-put");
                puts::put_for(pool, slot, index as u16);
            }
        }
        at = to;
    }
    // SAFETY: the window is ours; its pages read as zeros afterwards.
    let _ = unsafe { sys::madvise(window, STATES_LEN, libc::MADV_REMOVE) };
    // SAFETY: mapped above.
    let _ = unsafe { sys::munmap(window, STATES_LEN) };
    true
}

/// The next written part of the pool's file in `at..end`, page-aligned.
pub(crate) fn next_data(fd: i32, at: u64, end: u64) -> Option<(u64, u64)> {
    let seek = |from: u64, whence: i32| {
        // SAFETY: moves the file offset, which nobody uses.
        unsafe { sys::call(libc::SYS_lseek, [fd as u64, from, whence as u64, 0, 0, 0]) }.ok()
    };
    let from = seek(at, libc::SEEK_DATA).filter(|&from| from < end)?;
    let to = seek(from, libc::SEEK_HOLE)?.min(end);
    Some((from, to))
}

/// Whether any cluster is locked by `owner`, or any slot of it busy, or released and not told.
fn holds_any(pool: &Pool, pool_fd: i32, owner: u16) -> bool {
    let mut found = false;
    each_cluster(pool, pool_fd, |slots, cluster| {
        found |= slots.cluster_word(cluster).holder() == Some(owner);
        each_slot(pool, slots, cluster, |_, word| {
            found |= word.owner() == Some(owner) || word.kind() == SlotKind::Released;
        });
    });
    found
}

/// How long others are waited for that have to do with an object, in nanoseconds.
const COPY_NS: u64 = 1_000_000_000;

/// Frees the compressed objects that only `owner` knew of: of slots it left busy, and of slots whose content it had just written
/// to their blocks (their cluster is still locked by it, so they have not become anybody else's).
fn free_objects(pool: &Pool, owner: u16) {
    let (table, zpool, slots) = (pool.swap_table(), pool.zpool(), pool.slots());
    let end_ns = sys::now_ns() + COPY_NS;
    for (handle, slot) in (0..zpool.zpages()).flat_map(|zpage| zpool.objects(zpage)) {
        let cluster = slots.cluster_word(slot / CLUSTER_SLOTS as u32);
        let is_held = || cluster.holder() == Some(owner);
        let mut word = table.load(slot);
        // Somebody living puts a slot that the dead process had just written back: its object is left over once that is done.
        while word.kind() == SlotKind::Busy
            && word.owner() != Some(owner)
            && is_held()
            && sys::now_ns() < end_ns
        {
            pool.header().nap(1000);
            word = table.load(slot);
        }
        let left_over = match word.kind() {
            SlotKind::Busy => {
                word.owner() == Some(owner) && is_let_go(pool, slot / CLUSTER_SLOTS as u32, end_ns)
            }
            SlotKind::Device | SlotKind::Moved | SlotKind::Released | SlotKind::Free => is_held(),
            SlotKind::Compressed | SlotKind::Invalid => false,
        };
        // Looked at again: whoever gave the slot up meanwhile has freed the object before. While the dead process holds the
        // cluster the slot is nobody else's, so what still names it is left over.
        if left_over && zpool.owner_slot(handle) == slot {
            puts::free_left_over(pool, handle, slot, owner);
        }
    }
}

/// Whether the supervisor does not hold the cluster, or not till `end_ns`. It may be in the middle of copying an object of it (compaction), to a
/// place that would be somebody else's before it goes on. While it is stopped the object stays, and then for good.
fn is_let_go(pool: &Pool, cluster: u32, end_ns: u64) -> bool {
    let slots = pool.slots();
    let is_held = || slots.cluster_word(cluster).holder() == Some(SUPERVISOR);
    while is_held() {
        if sys::now_ns() >= end_ns {
            return false;
        }
        pool.header().nap(1000);
    }
    true
}

/// Unlocks the clusters that `owner` left locked, frees the slots it left busy, sweeps what was left released.
fn free_slots(pool: &Pool, pool_fd: i32, owner: u16) {
    each_cluster(pool, pool_fd, |slots, cluster| {
        slots.mend(cluster, owner);
        let mut released = false;
        each_slot(pool, slots, cluster, |slot, word| {
            released |= word.kind() == SlotKind::Released;
            if word.owner() == Some(owner) {
                puts::release_for(pool, slot, owner);
            }
        });
        if released {
            slots.sweep_or_tell(cluster, owner);
        }
    });
}

fn release_zpages(pool: &Pool, owner: u16) {
    let zpool = pool.zpool();
    for zpage in zpool.emptying_of(owner) {
        pool.punch_zpages(zpage, 1);
        zpool.release_zpage(zpage);
    }
}

/// Calls `f` with the slots of a cluster and their words. Only clusters with used slots, or locked ones, have any: reading
/// a hole of shared memory would fill it.
fn each_slot(pool: &Pool, slots: &Slots<'_, &Pool>, cluster: u32, mut f: impl FnMut(u32, SlotWord)) {
    let word = slots.cluster_word(cluster);
    if word.count() == 0 && word.holder().is_none() {
        return;
    }
    let first = cluster * CLUSTER_SLOTS as u32;
    (first..first + CLUSTER_SLOTS as u32).for_each(|slot| f(slot, pool.swap_table().load(slot)));
}

/// Calls `f` with every cluster that has been used, and maybe others.
fn each_cluster(pool: &Pool, pool_fd: i32, mut f: impl FnMut(&Slots<'_, &Pool>, u32)) {
    let layout = pool.layout();
    let slots = pool.slots();
    each_written(pool_fd, layout.clusters, layout.cluster_count, |cluster| {
        f(&slots, cluster as u32);
    });
}

/// Calls `f` with the index of every word that lies in a written page of the array of `count` words at `start`.
fn each_written(pool_fd: i32, start: u64, count: u64, mut f: impl FnMut(u64)) {
    let end = start + count * 8;
    let mut at = start;
    while let Some((from, to)) = next_data(pool_fd, at, end.next_multiple_of(PAGE_SIZE as u64)) {
        let to_word = to.min(end);
        ((from - start) / 8..(to_word - start) / 8).for_each(&mut f);
        at = to;
    }
}
