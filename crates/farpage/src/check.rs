//! `farpage check`: does everything in a pool agree with everything else?
//!
//! - a slot's count is the number of page states, of all processes, that name it, and of slots whose content was moved to it;
//! - a cluster's count is that of its slots that are not free, and it is on the list that it says, and on no other;
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
use crate::{snapshot, tiers};

/// Looks at the pool before a difference is believed, and the time between them.
const LOOKS: usize = 4;
const PAUSE: Duration = Duration::from_millis(60);

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
    let (held, total) = recount::references(pool, file.as_raw_fd())
        .map_err(|e| format!("the pool can't be read: errno {}", e.0))?;
    look.report.references = total;
    look_at_clusters(pool, &held, &mut look);
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
    let embryo = |entry: &ProcEntry| entry.state.load(Ordering::Acquire) == entry_state::EMBRYO;
    let births = pool.header().births.load(Ordering::Acquire);
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
    (same && !pool.processes().iter().any(embryo)).then_some(lost)
}

fn look_at_clusters(pool: &Pool, held: &References, look: &mut Look) {
    let slots = pool.slots();
    let used = pool.devices().iter().zip(pool.device_states());
    for (device, state) in used {
        // Clusters from here on were never used.
        let fresh = device.first_cluster + state.fresh.load(Ordering::Relaxed);
        for cluster in device.first_cluster..fresh.min(device.end_cluster()) {
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
    let entry = pool.processes().get(usize::from(index));
    entry.is_none_or(|entry| entry.state.load(Ordering::Acquire) == entry_state::FREE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup;
    use crate::pool::{Geometry, STATES_LEN};
    use crate::tier_files;
    use farpage_core::page_state::PageState;
    use farpage_core::slots::Request;
    use farpage_core::zpool::{Handle, ZpoolHints};
    use std::fs::OpenOptions;
    use std::os::unix::fs::FileExt;

    const DEAD: u16 = 5;
    const ALIVE: u16 = 6;

    struct Tree {
        pool: Pool,
        fd: i32,
        file: File,
    }

    impl Tree {
        fn new() -> Tree {
            let mut geometry = Geometry::default();
            geometry.area_blocks[0] = 5000;
            geometry.zpages = 20;
            let (fd, pool) = Pool::create(&geometry).unwrap();
            pool.header().areas.store(1, Ordering::Relaxed);
            pool.header().zpages_limit.store(20, Ordering::Relaxed);
            for index in [DEAD, ALIVE] {
                let entry = &pool.processes()[usize::from(index)];
                entry.state.store(entry_state::LIVE, Ordering::Relaxed);
                entry.active.store(1, Ordering::Relaxed);
            }
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(format!("/proc/self/fd/{fd}"));
            let file = file.unwrap();
            Tree { pool, fd, file }
        }

        fn take(&self, owner: u16, want: usize) -> u32 {
            let request = Request {
                owner,
                cpu: 0,
                order: 0,
                want,
                has_file: true,
            };
            let run = self.pool.slots().alloc(&request).unwrap();
            assert_eq!(run.count, want);
            run.first
        }

        fn object(&self, slot: u32) -> Handle {
            self.pool
                .zpool()
                .alloc(&ZpoolHints::new(), 20, 500, slot)
                .unwrap()
        }

        /// Fills a slot and has page `page` of a process name it.
        fn fill(&self, index: u16, page: u64, slot: u32, backing: Backing) {
            self.name(index, page, PageState::swapped(slot));
            self.pool.swap_table().publish(slot, backing).unwrap();
        }

        fn name(&self, index: u16, page: u64, state: PageState) {
            let at = self.pool.layout().states + u64::from(index) * STATES_LEN + page * 8;
            self.file.write_all_at(&state.raw().to_le_bytes(), at).unwrap();
        }

        /// Slots and pages of both processes, compressed and written, one of them shared.
        fn filled() -> (Tree, u32) {
            let tree = Tree::new();
            let slot = tree.take(DEAD, 8);
            for i in 0..4 {
                tree.fill(DEAD, u64::from(i), slot + i, Backing::Device { crc: i });
            }
            for i in 4..8 {
                let object = Backing::Compressed(tree.object(slot + i));
                tree.fill(DEAD, u64::from(i), slot + i, object);
            }
            tree.pool.header().area[0].used.store(4, Ordering::Relaxed);
            tree.pool.swap_table().dup(slot + 7).unwrap();
            tree.name(ALIVE, 70_000, PageState::swapped(slot + 7));
            (tree, slot)
        }

        fn look(&self) -> Look {
            look(&self.file, &self.pool).unwrap()
        }

        fn problems(&self) -> Vec<String> {
            self.look().problems.into_iter().collect()
        }

        /// After the dead process was cleaned up, only the shared slot is left.
        fn clean_up_and_check(&self) {
            cleanup::return_everything(&self.pool, self.fd, usize::from(DEAD), 0);
            let look = self.look();
            assert_eq!(look.problems, BTreeSet::new());
            assert_eq!(look.lost, BTreeSet::new());
            let report = look.report;
            assert_eq!((report.processes, report.slots, report.references), (1, 1, 1));
            assert_eq!(self.pool.zpool().count_used(), 1, "objects were left");
        }
    }

    #[test]
    fn a_sound_pool_has_no_problem_and_a_dead_process_leaves_none() {
        let (tree, _) = Tree::filled();
        let look = tree.look();
        assert_eq!((look.problems.len(), look.lost.len()), (0, 0));
        assert_eq!((look.report.slots, look.report.references), (8, 9));
        tree.clean_up_and_check();
    }

    #[test]
    fn each_kind_of_damage_is_found() {
        let (tree, slot) = Tree::filled();
        let words = tree.pool.swap_table().words;
        let word = |i: u32| &words[(slot + i) as usize];
        let lines = |text: &str| tree.problems().iter().filter(|line| line.contains(text)).count();
        tree.name(ALIVE, 1, PageState::swapped(slot));
        assert_eq!(lines("it counts 1 references, 2 pages name it"), 1);
        tree.name(ALIVE, 1, PageState::resident());
        tree.name(DEAD, 0, PageState::resident());
        assert_eq!(tree.look().lost, BTreeSet::from([(slot, 1)]));
        tree.name(DEAD, 0, PageState::swapped(slot));
        let was = word(4).swap(word(5).load(Ordering::Relaxed), Ordering::Relaxed);
        assert_eq!(lines("its compressed object does not name it"), 1);
        assert_eq!(lines(&format!("it belongs to slot {}", slot + 4)), 1);
        word(4).store(0, Ordering::Relaxed);
        assert_eq!(lines("1 pages name it, but it is Free"), 1);
        assert_eq!(lines("its count is not that of its slots"), 1);
        word(4).store(was | 7, Ordering::Relaxed);
        assert_eq!(lines("not a word of farpage's"), 1);
        word(4).store(SlotWord::taken(9, 0).raw(), Ordering::Relaxed);
        assert_eq!(lines("busy with a process that is gone"), 1);
        word(4).store(was, Ordering::Relaxed);
        assert_eq!(tree.problems(), Vec::<String>::new());
        let held = tree.pool.slots().try_lock(slot / CLUSTER_SLOTS as u32, 9);
        assert!(held.is_some() && lines("locked by entry 9, which is gone") == 1);
    }

    /// A slot that moved holds the slot it moved to, and once no page names either, both are lost.
    #[test]
    fn content_that_moved() {
        let (tree, slot) = Tree::filled();
        let to = tree.take(ALIVE, 1);
        let table = tree.pool.swap_table();
        table.publish(to, Backing::Device { crc: 0 }).unwrap();
        tree.pool.header().moved.fetch_add(1, Ordering::Relaxed);
        assert!(table.moved(slot, table.load(slot), to));
        let look = tree.look();
        assert_eq!(
            (look.problems.len(), look.lost.len()),
            (0, 0),
            "{:?}",
            look.problems
        );
        assert_eq!(lost_slots(&tree.pool, tree.fd, 0), None, "pages name them");
        for page in 0..8 {
            tree.name(DEAD, page, PageState::resident());
        }
        tree.name(ALIVE, 70_000, PageState::resident());
        assert_eq!(lost_slots(&tree.pool, tree.fd, 0), Some(9));
        tree.name(DEAD, 0, PageState::swapped(slot));
        tree.name(ALIVE, 70_000, PageState::swapped(slot + 7));
        cleanup::return_everything(&tree.pool, tree.fd, usize::from(DEAD), 0);
        assert_eq!(
            table.load(to).kind(),
            SlotKind::Free,
            "given up with the old slot"
        );
        assert_eq!(tree.pool.header().moved.load(Ordering::Relaxed), 0);
    }

    /// A slot that moved while processes share it: what the dead one left is put, the other slot's reference once, and what the
    /// living reach by way of the old slot is not.
    #[test]
    fn killed_while_content_moves() {
        let (tree, slot) = Tree::filled();
        let (table, entries) = (tree.pool.swap_table(), tree.pool.processes());
        let to = tree.take(ALIVE, 3);
        let device = Backing::Device { crc: 0 };
        let moves = |from: u32, to: u32| {
            table.publish(to, device).unwrap();
            tree.pool.header().moved.fetch_add(1, Ordering::Relaxed);
            assert!(table.moved(from, table.load(from), to));
        };
        // The dead one had renamed its page and not put the old slot; the living one names the new slot already.
        moves(slot, to);
        table.dup(to).unwrap();
        tree.name(ALIVE, 100, PageState::swapped(to));
        tree.name(DEAD, 0, PageState::resident());
        core::mem::forget(entries[usize::from(DEAD)].puts.begin());
        // The living one has not come by yet.
        table.dup(slot + 1).unwrap();
        tree.name(ALIVE, 101, PageState::swapped(slot + 1));
        moves(slot + 1, to + 1);
        // The new slot was published, the old one's word not exchanged.
        table.publish(to + 2, device).unwrap();
        core::mem::forget(entries[usize::from(DEAD)].moves.begin());
        tree.pool.header().area[0].used.store(7, Ordering::Relaxed);
        cleanup::return_everything(&tree.pool, tree.fd, usize::from(DEAD), 0);
        assert_eq!(tree.look().lost, BTreeSet::from([(slot, 1), (to + 2, 1)]));
        recount::mend(&tree.pool, tree.fd);
        let look = tree.look();
        assert_eq!((look.lost, look.problems), (BTreeSet::new(), BTreeSet::new()));
        let count = |slot: u32| (table.load(slot).kind(), table.load(slot).count());
        assert_eq!(count(slot), (SlotKind::Free, 0));
        assert_eq!(count(to), (SlotKind::Device, 1));
        assert_eq!(count(slot + 1), (SlotKind::Moved, 1));
        assert_eq!(count(to + 1), (SlotKind::Device, 1));
        assert_eq!(count(to + 2), (SlotKind::Free, 0));
        assert_eq!(tree.pool.header().moved.load(Ordering::Relaxed), 1);
    }

    /// An area is closed with a slot in it that nobody can give up yet. When it is, the books are right, whatever file is there.
    #[test]
    fn what_is_lost_outlives_its_file() {
        let (tree, slot) = Tree::filled();
        let area = &tree.pool.header().area[0];
        core::mem::forget(tree.pool.processes()[usize::from(DEAD)].puts.begin());
        tree.name(DEAD, 0, PageState::resident());
        tree.name(ALIVE, 70_000, PageState::resident());
        let busy = tree.pool.processes()[usize::from(ALIVE)].puts.begin();
        cleanup::return_everything(&tree.pool, tree.fd, usize::from(DEAD), 0);
        recount::mend(&tree.pool, tree.fd);
        assert_eq!(lost_slots(&tree.pool, tree.fd, 0), Some(2));
        tier_files::close_to_pages(&tree.pool, 0);
        assert_eq!(tree.pool.slots().settled(0), Some(2));
        tier_files::forget(&tree.pool, 0);
        assert_eq!(area.used.load(Ordering::Relaxed), 1);
        assert_eq!(tree.problems(), Vec::<String>::new());
        drop(busy);
        recount::mend(&tree.pool, tree.fd);
        assert_eq!(area.used.load(Ordering::Relaxed), 0);
        let state = tree.pool.swap_table().load(slot).kind();
        assert_eq!((state, tree.look().report.slots), (SlotKind::Free, 0));
        assert_eq!(tree.problems(), Vec::<String>::new());
    }

    /// A process killed while it stored pages: slots taken, an object made, a page's word changed but its slot not published.
    #[test]
    fn killed_while_storing() {
        let (tree, _) = Tree::filled();
        let slot = tree.take(DEAD, 3);
        tree.object(slot);
        tree.object(slot + 1);
        tree.name(DEAD, 100, PageState::swapped(slot + 1).locked());
        tree.clean_up_and_check();
    }

    /// Killed with a cluster's lock held while it allocated (words stored, count not) or freed (the reverse).
    #[test]
    fn killed_inside_a_cluster_lock() {
        for stored in [
            SlotWord::taken(DEAD, 3),
            SlotWord::FREE,
            SlotWord::FREE.released(),
        ] {
            let (tree, slot) = Tree::filled();
            let more = tree.take(DEAD, 2);
            let held = tree.pool.slots().try_lock(slot / CLUSTER_SLOTS as u32, DEAD);
            assert!(held.is_some());
            for word in &tree.pool.swap_table().words[more as usize..more as usize + 6] {
                word.store(stored.raw(), Ordering::Relaxed);
            }
            tree.clean_up_and_check();
        }
    }

    /// Killed between the change of a page's word and the put of its slot: nobody holds the reference, and the supervisor
    /// puts it when nobody else is in between. A slot once stayed used for ever, with its content.
    #[test]
    fn killed_before_a_put() {
        let (tree, slot) = Tree::filled();
        let entries = tree.pool.processes();
        core::mem::forget(entries[usize::from(DEAD)].puts.begin());
        tree.name(DEAD, 0, PageState::resident());
        tree.name(DEAD, 7, PageState::resident());
        let busy = entries[usize::from(ALIVE)].puts.begin();
        cleanup::return_everything(&tree.pool, tree.fd, usize::from(DEAD), 0);
        let lost = BTreeSet::from([(slot, 1), (slot + 7, 1)]);
        recount::mend(&tree.pool, tree.fd);
        assert_eq!(
            tree.look().lost,
            lost,
            "the living may be in the middle of this put"
        );
        drop(busy);
        let forks = entries[usize::from(ALIVE)].moves.begin();
        recount::mend(&tree.pool, tree.fd);
        assert_eq!(tree.look().lost, lost, "or of counting a child's reference");
        drop(forks);
        recount::mend(&tree.pool, tree.fd);
        let look = tree.look();
        assert_eq!((look.lost, look.problems), (BTreeSet::new(), BTreeSet::new()));
        assert_eq!((look.report.slots, look.report.references), (1, 1));
    }

    /// Killed between the reservation and the claim of an object, between the two steps of its return, before it told that a
    /// zpage is in use no more.
    #[test]
    fn killed_while_taking_and_freeing_objects() {
        let (tree, slot) = Tree::filled();
        let words = tree.pool.zpool();
        let zpage = words.objects(0).count();
        assert_eq!(zpage, 4);
        let at = words.descs[0].load(Ordering::Relaxed);
        words.descs[0].store(at + (3 << 9), Ordering::Relaxed);
        words.used.fetch_add(1, Ordering::Relaxed);
        assert_eq!(tree.problems().len(), 2);
        core::mem::forget(tree.pool.processes()[usize::from(DEAD)].objects.begin());
        cleanup::return_everything(&tree.pool, tree.fd, usize::from(DEAD), 0);
        recount::mend(&tree.pool, tree.fd);
        assert_eq!(tree.problems(), Vec::<String>::new());
        assert_eq!(
            words.objects(0).map(|(_, owner)| owner).collect::<Vec<_>>(),
            [slot + 7]
        );
    }

    /// What was given back while another process held the cluster, for as long as a write takes on a busy machine.
    #[test]
    fn released_while_a_living_process_holds_the_cluster() {
        let tree = Tree::new();
        let slot = tree.take(ALIVE, 2);
        let view = tree.pool.slots();
        let held = view.try_lock(slot / CLUSTER_SLOTS as u32, ALIVE).unwrap();
        view.release(&[slot, slot + 1], ALIVE).unwrap();
        assert_eq!(tree.problems(), Vec::<String>::new());
        view.unlock_unchanged(held);
        assert_eq!(tree.problems(), Vec::<String>::new());
        assert_eq!(tree.pool.swap_table().load(slot).kind(), SlotKind::Free);
    }

    /// Killed between taking a cluster off the queue of writeback and locking it: nobody would ever come to it again.
    #[test]
    fn killed_with_a_cluster_off_the_queue() {
        let tree = Tree::new();
        let slot = tree.take(DEAD, CLUSTER_SLOTS);
        for i in 0..CLUSTER_SLOTS as u32 {
            tree.fill(ALIVE, u64::from(i), slot + i, Backing::Device { crc: i });
        }
        assert_eq!(tree.problems(), Vec::<String>::new());
        let off = tree.pool.slots().lock_oldest(DEAD).unwrap();
        tree.pool.slots().unlock_again(off);
        let queue = tree.pool.layout().fifo;
        tree.file.write_all_at(&2u64.to_le_bytes(), queue).unwrap();
        assert_eq!(tree.problems().len(), 1);
        cleanup::return_everything(&tree.pool, tree.fd, usize::from(DEAD), 0);
        recount::mend(&tree.pool, tree.fd);
        assert_eq!(tree.problems(), Vec::<String>::new());
    }

    /// Killed in the middle of a write-back: words exchanged, objects not freed. Another process freed slots meanwhile.
    #[test]
    fn killed_while_writing_back() {
        let (tree, slot) = Tree::filled();
        let mine = tree.take(ALIVE, 2);
        tree.fill(ALIVE, 3, mine, Backing::Compressed(tree.object(mine)));
        let held = tree.pool.slots().try_lock(slot / CLUSTER_SLOTS as u32, DEAD);
        assert!(held.is_some());
        let table = tree.pool.swap_table();
        for i in [4, 5] {
            assert!(table.written_back(slot + i, table.load(slot + i), 1));
        }
        assert!(table.written_back(mine, table.load(mine), 1));
        tree.name(ALIVE, 3, PageState::resident());
        table.put(mine, ALIVE).unwrap();
        tree.pool.slots().release(&[mine, mine + 1], ALIVE).unwrap();
        tree.clean_up_and_check();
    }
}
