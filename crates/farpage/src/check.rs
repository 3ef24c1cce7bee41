//! `farpage check`: does everything in a pool agree with everything else?
//!
//! - a slot's count is the number of page states, of all processes, that name it, and of slots whose content was moved to it;
//! - a cluster's count is that of its slots that are not free, also where it is 0, and it is on the list that it says, in sight, and
//!   on no other; one that was never used is on none;
//! - a compressed slot's object names the slot, and no object names a slot that does not name it;
//! - a process counts the pages that its page states say it has;
//! - no slot is busy, no cluster locked and no zpage being emptied with a process that is gone, the supervisor included, and none that
//!   is gone has an entry.
//!
//! A running tree is looked at while it changes, so a difference may be a step under way. Each look takes them all down; only
//! what several looks find word for word the same is told.
//!
//! References that nobody holds are counted apart: a process that was killed between the change of a page's word and the put
//! of its slot leaves one, which costs its slot until the supervisor counts anew (`crate::recount`) and nothing else.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use farpage_core::cluster::CLUSTER_SLOTS;
use farpage_core::page_state::{Kind, PageState};
use farpage_core::slots;
use farpage_core::swap_table::{Backing, SlotKind, SlotWord};

use crate::pool::{Pool, ProcEntry, entry_state};
use crate::recount::{self, References};
use crate::sys::Errno;
use crate::{tiers, trees};

mod presence;
use presence::Presence;

/// Looks at the pool before a difference is believed, and the time between them. What a death left is counted again at a moment when
/// nobody is in the middle of a step, which takes a while on a busy machine.
const LOOKS: usize = 40;
const PAUSE: Duration = Duration::from_millis(60);
const CLUSTER_BYTES: u64 = CLUSTER_SLOTS as u64 * 8;
/// `ProcEntry::kept` is about right if it is off by no more than so many pages and one in so many of them.
const KEPT_OFF: i64 = 64;
const KEPT_OFF_ONE_IN: i64 = 8;

/// What was found. One line per problem.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// That are there.
    pub processes: usize,
    /// Slots in use.
    pub slots: u64,
    /// Page states that name a slot.
    pub references: u64,
    /// References that slots count and no page holds.
    pub lost: u64,
    pub problems: Vec<String>,
}

/// What one look found.
#[derive(Default)]
struct Look {
    report: Report,
    problems: BTreeSet<String>,
    /// Slots with references too many, and how many.
    lost: BTreeSet<(u32, u32)>,
}

/// Checks the pool of the tree of the supervisor `pid`, which may have ended, or that the process `pid` belongs to. The error says why it can't be looked at.
pub fn check(pid: i32) -> Result<Report, String> {
    let (file, pool) = trees::open(pid)
        .ok_or_else(|| format!("process {pid} belongs to no running farpage tree that you may look at"))?;
    let mut found = look(&file, &pool)?;
    for _ in 1..LOOKS {
        if found.problems.is_empty() && found.lost.is_empty() {
            break;
        }
        std::thread::sleep(PAUSE);
        let next = look(&file, &pool)?;
        found.problems = &found.problems & &next.problems;
        found.lost = &found.lost & &next.lost;
        found.report = next.report;
    }
    Ok(Report {
        lost: found.lost.iter().map(|&(_, count)| u64::from(count)).sum(),
        problems: found.problems.into_iter().collect(),
        ..found.report
    })
}

fn look(file: &File, pool: &Pool) -> Result<Look, String> {
    let mut look = Look::default();
    let there = Presence::of(pool);
    let unreadable = |e: Errno| format!("the pool can't be read: errno {}", e.0);
    let mut pages = vec![Pages::default(); pool.processes().len()];
    let tell = |index: usize, state| {
        if let Some(pages) = pages.get_mut(index) {
            pages.add(state);
        }
    };
    let (held, total) = recount::references_telling(pool, file.as_raw_fd(), tell).map_err(unreadable)?;
    look.report.references = total;
    look_at_entries(pool, &there, &pages, &mut look);
    look_at_clusters(pool, &there, &held, &mut look);
    look_at_empty_clusters(pool, file.as_raw_fd(), &mut look).map_err(unreadable)?;
    look_at_lists(pool, file.as_raw_fd(), &mut look).map_err(unreadable)?;
    look_at_objects(pool, &there, &mut look);
    look_at_queue(pool, &mut look);
    look_at_charges(pool, &mut look);
    for (cluster, counts) in &held {
        for (slot, count) in (cluster * CLUSTER_SLOTS as u32..).zip(counts.iter()) {
            let word = pool.swap_table().load(slot);
            if *count > 0 && word.backing().is_none() {
                look.problems
                    .insert(format!("slot {slot}: {count} pages name it, but it is {word:?}"));
            }
        }
    }
    Ok(look)
}

/// What page states say of the pages of a process.
#[derive(Clone, Copy, Default)]
struct Pages {
    resident: i64,
    cached: i64,
    /// Of the resident ones, those that no tier took.
    poor: i64,
    /// Of both, those that keep a slot.
    kept: i64,
}

impl Pages {
    fn add(&mut self, state: PageState) {
        let kind = state.kind();
        self.resident += i64::from(kind == Kind::Resident);
        self.cached += i64::from(kind == Kind::Cached);
        self.poor += i64::from(state.refused().is_some());
        self.kept += i64::from(state.kept_slot().is_some());
    }

    /// How far the counts of the entry are off, each with its name, where they are.
    fn differences(&self, entry: &ProcEntry) -> impl Iterator<Item = (&'static str, i64)> {
        let off = |count: &AtomicI64, pages: i64| count.load(Ordering::Relaxed) - pages;
        // A frame whose page was taken back has memory still, and is counted until its whole block goes.
        let frames = off(&entry.frames, self.cached).min(0);
        let kept = off(&entry.kept, self.kept);
        let is_near = kept.abs() <= KEPT_OFF + self.kept / KEPT_OFF_ONE_IN;
        let all = [
            ("resident", off(&entry.resident, self.resident)),
            ("frame", frames),
            ("poor", off(&entry.poor, self.poor)),
            ("kept", if is_near { 0 } else { kept }),
        ];
        all.into_iter().filter(|(_, off)| *off != 0)
    }
}

/// Those that are there count the pages they have; those that are not have no entry.
fn look_at_entries(pool: &Pool, there: &Presence<'_>, pages: &[Pages], look: &mut Look) {
    for ((index, entry), pages) in (0u16..).zip(pool.processes()).zip(pages) {
        let state = entry.state.load(Ordering::Acquire);
        if state == entry_state::FREE {
            continue;
        }
        if let Some(pid) = there.missed(index) {
            let what = match entry_state::cleaner(state) {
                Some(_) => "was returning what it holds",
                None => "has it",
            };
            look.problems.insert(format!(
                "entry {index}: process {pid}, which is gone, {what}, and nobody has returned that"
            ));
            continue;
        }
        if entry_state::left_to_whom(state).is_some() {
            continue;
        }
        look.report.processes += 1;
        if state == entry_state::LIVE && entry.active.load(Ordering::Relaxed) != 0 {
            for (what, off) in pages.differences(entry) {
                look.problems.insert(format!(
                    "entry {index}: its count of {what} pages is off by {off:+} from what its pages say"
                ));
            }
        }
    }
}

/// The taken slots of area `index`, if no page of any process names one of them now: references that dead processes left.
/// `None` also while a process is being born, which may be about to name one.
pub fn lost_slots(pool: &Pool, pool_fd: i32, index: usize) -> Option<u64> {
    let embryo = |entry: &ProcEntry| entry_state::taker(entry.state.load(Ordering::Acquire)).is_some();
    let births = pool.header().births.load(Ordering::Acquire);
    // A name that changes its place may be missed in the one and in the other.
    let moves = || recount::all_idle(pool.processes(), |entry| &entry.moves);
    let before = moves()?;
    let reachable = recount::reachable(pool, pool_fd).ok()?;
    let device = pool.devices()[index];
    let mut lost = 0;
    for slot in recount::used_slots(pool).filter(|slot| device.owns(slot / CLUSTER_SLOTS as u32)) {
        let word = pool.swap_table().load(slot);
        if word.kind() == SlotKind::Free {
            continue;
        }
        if word.backing().is_none() || recount::held(&reachable, slot) > 0 {
            return None;
        }
        lost += 1;
    }
    let same = pool.header().births.load(Ordering::Acquire) == births;
    (same && moves() == Some(before) && !pool.processes().iter().any(embryo)).then_some(lost)
}

fn look_at_clusters(pool: &Pool, there: &Presence<'_>, held: &References, look: &mut Look) {
    let slots = pool.slots();
    for cluster in recount::used_clusters(pool) {
        let word = slots.cluster_word(cluster);
        match word.holder() {
            Some(holder) if there.is_gone(holder) => {
                let who = Presence::name_of(holder);
                look.problems
                    .insert(format!("cluster {cluster}: locked by {who}, which is gone"));
            }
            Some(_) => {}
            None => {
                if let Some(fault) = slots.fault_of(cluster) {
                    look.problems
                        .insert(format!("cluster {cluster}: {fault}: {word:?}"));
                }
            }
        }
        if word.count() > 0 {
            let first = cluster * CLUSTER_SLOTS as u32;
            for slot in first..first + CLUSTER_SLOTS as u32 {
                look_at_slot(pool, there, slot, u32::from(recount::held(held, slot)), look);
            }
        }
    }
}

/// Slots that are not free, in clusters that count none: nobody would ever free them. The table is read from the file, where it
/// has memory, since a look at the mapping would give memory to all of it.
fn look_at_empty_clusters(pool: &Pool, pool_fd: i32, look: &mut Look) -> Result<(), Errno> {
    let start = pool.layout().slots;
    let end = start + pool.layout().cluster_count * CLUSTER_BYTES;
    recount::each_word(pool_fd, start, end, |at, word| {
        let slot = ((at - start) / 8) as u32;
        let cluster = pool.slots().cluster_word(slot / CLUSTER_SLOTS as u32);
        if word != 0 && cluster.count() == 0 && cluster.holder().is_none() {
            let word = SlotWord(word);
            look.problems
                .insert(format!("slot {slot}: {word:?} in a cluster that counts none"));
        }
    })
}

/// Clusters on a list that were never used, or are none. Of those that were, each looks after itself ([`slots::Slots::fault_of`]).
fn look_at_lists(pool: &Pool, pool_fd: i32, look: &mut Look) -> Result<(), Errno> {
    let layout = pool.layout();
    let clusters = layout.cluster_count as usize;
    let mut listed = BTreeSet::new();
    let end = layout.lists + slots::list_words(clusters) as u64 * 8;
    recount::each_word(pool_fd, layout.lists, end, |at, word| {
        let at = (at - layout.lists) / 8;
        if word != 0 {
            listed.extend(slots::listed_by(clusters, at as usize, word));
        }
    })?;
    // Read afterwards: the mark of a device never goes back.
    for cluster in recount::used_clusters(pool) {
        listed.remove(&(cluster as usize));
    }
    for cluster in listed {
        look.problems
            .insert(format!("cluster {cluster}: never used, but on a list"));
    }
    Ok(())
}

fn look_at_slot(pool: &Pool, there: &Presence<'_>, slot: u32, held: u32, look: &mut Look) {
    let word = pool.swap_table().load(slot);
    look.report.slots += u64::from(word.kind() != SlotKind::Free);
    if let Some(fault) = fault_of_slot(pool, there, slot, word) {
        look.problems.insert(format!("slot {slot}: {fault}: {word:?}"));
    }
    let count = u32::from(word.count());
    if count < held {
        look.problems.insert(format!(
            "slot {slot}: it counts {count} references, {held} pages name it"
        ));
    } else if count > held {
        look.lost.insert((slot, count - held));
    }
}

fn fault_of_slot(pool: &Pool, there: &Presence<'_>, slot: u32, word: SlotWord) -> Option<&'static str> {
    match word.kind() {
        SlotKind::Busy if word.owner().is_some_and(|owner| there.is_gone(owner)) => {
            Some("busy with a process that is gone")
        }
        SlotKind::Free | SlotKind::Busy => None,
        SlotKind::Compressed => {
            let Some(Backing::Compressed(handle)) = word.backing() else {
                return Some("not a word of farpage's");
            };
            let names_it = pool.zpool().owner_slot(handle) == slot;
            (!names_it).then_some("its compressed object does not name it")
        }
        SlotKind::Device if tiers::place_of(pool, slot).is_none() => {
            Some("written to a block, but it has none")
        }
        SlotKind::Device | SlotKind::Moved => None,
        // Who holds the cluster, to write it back for instance, will sweep it.
        SlotKind::Released => {
            let cluster = pool.slots().cluster_word(slot / CLUSTER_SLOTS as u32);
            let is_held = cluster.pending() && cluster.holder().is_some_and(|holder| !there.is_gone(holder));
            (!is_held).then_some("released, but not swept")
        }
        SlotKind::Invalid => Some("not a word of farpage's"),
    }
}

fn look_at_objects(pool: &Pool, there: &Presence<'_>, look: &mut Look) {
    let (table, zpool) = (pool.swap_table(), pool.zpool());
    for (handle, slot) in (0..zpool.zpages()).flat_map(|zpage| zpool.objects(zpage)) {
        let word = table.load(slot);
        if word.kind() != SlotKind::Busy && word.backing() != Some(Backing::Compressed(handle)) {
            look.problems.insert(format!(
                "object {:#x}: it belongs to slot {slot}, which is {word:?}",
                handle.0
            ));
        }
    }
    let is_over = |zpage: &usize| matches!(zpool.overcounted(*zpage), Ok(Some(_)));
    for zpage in (0..zpool.zpages()).filter(is_over) {
        look.problems
            .insert(format!("zpage {zpage}: it counts objects that it has not"));
    }
    for (zpage, owner) in zpool.emptying().filter(|(_, owner)| there.is_gone(*owner)) {
        let who = Presence::name_of(owner);
        look.problems
            .insert(format!("zpage {zpage}: being emptied by {who}, which is gone"));
    }
    let (said, used) = (zpool.used.load(Ordering::Relaxed), zpool.count_used());
    if said != used {
        look.problems
            .insert(format!("{said} zpages are said to be in use, {used} are"));
    }
}

/// A cluster whose word says that it waits to be written back must be in the queue, or nobody ever comes to it.
fn look_at_queue(pool: &Pool, look: &mut Look) {
    let slots = pool.slots();
    let waiting: HashSet<u32> = slots.waiting().collect();
    for cluster in recount::used_clusters(pool).filter(|cluster| !waiting.contains(cluster)) {
        let word = slots.cluster_word(cluster);
        if word.queued() && word.holder().is_none() {
            look.problems.insert(format!(
                "cluster {cluster}: it waits to be written back, but not in the queue"
            ));
        }
    }
}

/// What the tree is charged is the sum of what its processes are.
fn look_at_charges(pool: &Pool, look: &mut Look) {
    let header = pool.header();
    let charged = pool
        .processes()
        .iter()
        .map(|entry| entry.charged.load(Ordering::Relaxed));
    let (all, sum) = (header.charged.load(Ordering::Relaxed), charged.sum::<i64>());
    if all != sum {
        look.problems.insert(format!(
            "the tree is charged {} pages more than its processes",
            all - sum
        ));
    }
}

#[cfg(test)]
mod tests;
