//! `farpage check`: does everything in a pool agree with everything else?
//!
//! - a slot's count is the number of page states, of all processes, that name it, and of slots whose content was moved to it;
//! - a cluster's count is that of its slots that are not free, also where it is 0, and it is on the list that it says, and on no
//!   other;
//! - a compressed slot's object names the slot, and no object names a slot that does not name it;
//! - no slot is busy and no cluster locked with a process that is gone.
//!
//! A running tree is looked at while it changes, so a difference may be a step under way. Each look takes them all down; only
//! what several looks find word for word the same is told.
//!
//! References that nobody holds are counted apart: a process that was killed between the change of a page's
//! word and the put of its slot leaves one, which costs its slot until the tree ends and nothing else (`docs/decisions/0005`).

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farpage_core::cluster::CLUSTER_SLOTS;
use farpage_core::swap_table::{Backing, SlotKind, SlotWord};

use crate::pool::{Pool, ProcEntry, entry_state};
use crate::recount::{self, References};
use crate::sys::Errno;
use crate::{snapshot, tiers};

/// Looks at the pool before a difference is believed, and the time between them. What a death left is counted again at a moment when
/// nobody is in the middle of a step, which takes a while on a busy machine.
const LOOKS: usize = 40;
const PAUSE: Duration = Duration::from_millis(60);
const CLUSTER_BYTES: u64 = CLUSTER_SLOTS as u64 * 8;

/// What was found. One line per problem.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
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

/// Checks the pool of the tree that `pid` belongs to. The error says why it can't be looked at.
pub fn check(pid: i32) -> Result<Report, String> {
    let (file, pool) = snapshot::open_pool(pid)
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
    let in_use = |entry: &&ProcEntry| entry.state.load(Ordering::Acquire) != entry_state::FREE;
    look.report.processes = pool.processes().iter().filter(in_use).count();
    let unreadable = |e: Errno| format!("the pool can't be read: errno {}", e.0);
    let (held, total) = recount::references(pool, file.as_raw_fd()).map_err(unreadable)?;
    look.report.references = total;
    look_at_clusters(pool, &held, &mut look);
    look_at_empty_clusters(pool, file.as_raw_fd(), &mut look).map_err(unreadable)?;
    look_at_objects(pool, &mut look);
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

fn look_at_clusters(pool: &Pool, held: &References, look: &mut Look) {
    let slots = pool.slots();
    for cluster in recount::used_clusters(pool) {
        let word = slots.cluster_word(cluster);
        match word.holder() {
            Some(holder) if is_gone(pool, holder) => {
                look.problems.insert(format!(
                    "cluster {cluster}: locked by entry {holder}, which is gone"
                ));
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
                look_at_slot(pool, slot, u32::from(recount::held(held, slot)), look);
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

fn look_at_slot(pool: &Pool, slot: u32, held: u32, look: &mut Look) {
    let word = pool.swap_table().load(slot);
    look.report.slots += u64::from(word.kind() != SlotKind::Free);
    if let Some(fault) = fault_of_slot(pool, slot, word) {
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

fn fault_of_slot(pool: &Pool, slot: u32, word: SlotWord) -> Option<&'static str> {
    match word.kind() {
        SlotKind::Busy if word.owner().is_some_and(|owner| is_gone(pool, owner)) => {
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
            let is_held = cluster.pending() && cluster.holder().is_some_and(|holder| !is_gone(pool, holder));
            (!is_held).then_some("released, but not swept")
        }
        SlotKind::Invalid => Some("not a word of farpage's"),
    }
}

fn look_at_objects(pool: &Pool, look: &mut Look) {
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
    for zpage in (0..zpool.zpages()).filter(|zpage| zpool.overcounted(*zpage).is_some()) {
        look.problems
            .insert(format!("zpage {zpage}: it counts objects that it has not"));
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

fn is_gone(pool: &Pool, index: u16) -> bool {
    if index == recount::SUPERVISOR {
        return false;
    }
    let entry = pool.processes().get(usize::from(index));
    entry.is_none_or(|entry| entry.state.load(Ordering::Acquire) == entry_state::FREE)
}

#[cfg(test)]
mod tests;
