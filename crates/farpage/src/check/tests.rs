use super::*;
use crate::cleanup;
use crate::pool::{Geometry, STATES_LEN};
use crate::sys;
use crate::tier_files;
use crate::tiers;
use farpage_core::bit_tree::BitTree;
use farpage_core::slots::Request;
use farpage_core::units::PAGE_SIZE;
use farpage_core::zpool::{Handle, ZpoolHints};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::process::Command;

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
        pool.header().entries.store(16, Ordering::Relaxed);
        pool.header().supervisor.store(sys::getpid(), Ordering::Relaxed);
        pool.header()
            .pid_namespace
            .store(sys::pid_namespace(), Ordering::Relaxed);
        for index in [DEAD, ALIVE] {
            let entry = &pool.processes()[usize::from(index)];
            entry.state.store(entry_state::LIVE, Ordering::Relaxed);
            entry.active.store(1, Ordering::Relaxed);
            entry.pid.store(sys::getpid(), Ordering::Relaxed);
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

    /// Page `page` of a process is so from now on, and is counted.
    fn name(&self, index: u16, page: u64, state: PageState) {
        let at = self.pool.layout().states + u64::from(index) * STATES_LEN + page * 8;
        let mut before = [0; 8];
        self.file.read_exact_at(&mut before, at).unwrap();
        self.file.write_all_at(&state.raw().to_le_bytes(), at).unwrap();
        let (mut was, mut is) = (Pages::default(), Pages::default());
        was.add(PageState(u64::from_le_bytes(before)));
        is.add(state);
        let entry = &self.pool.processes()[usize::from(index)];
        let count = |count: &AtomicI64, was: i64, is: i64| count.fetch_add(is - was, Ordering::Relaxed);
        count(&entry.resident, was.resident, is.resident);
        count(&entry.frames, was.cached, is.cached);
        count(&entry.kept, was.kept, is.kept);
    }

    /// Writes a word of the lists.
    fn list(&self, set: usize, word: usize, value: u64) {
        let words = BitTree::words(self.pool.layout().cluster_count as usize);
        let at = self.pool.layout().lists + (set * words + word) as u64 * 8;
        self.file.write_all_at(&value.to_le_bytes(), at).unwrap();
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
    // In the next cluster, which was never used, and in one far from it.
    for cluster in [1, 5] {
        let stray = &words[slot as usize + cluster * CLUSTER_SLOTS];
        stray.store(was, Ordering::Relaxed);
        assert_eq!(lines("in a cluster that counts none"), 1);
        stray.store(0, Ordering::Relaxed);
    }
    let held = tree.pool.slots().try_lock(slot / CLUSTER_SLOTS as u32, 9);
    assert!(held.is_some() && lines("locked by entry 9, which is gone") == 1);
}

/// A process that is no more: its number is nobody's for a while.
fn ended() -> i32 {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id() as i32
}

/// What is held in the name of the supervisor counted as held by somebody after its death too, and so did what is held by those
/// that died after it: their entries are never given up.
#[test]
fn what_nobody_gives_back_any_more() {
    let (tree, slot) = Tree::filled();
    let (pool, view) = (&tree.pool, tree.pool.slots());
    let lines = |text: &str| tree.problems().iter().filter(|line| line.contains(text)).count();
    let zpage = {
        let hints = ZpoolHints::new();
        let handle = pool.zpool().alloc(&hints, 20, 3000, 1).unwrap();
        pool.zpool().free(handle, 1, recount::SUPERVISOR).unwrap()
    };
    assert!(zpage.is_some(), "it was the only object");
    assert!(
        view.try_lock(slot / CLUSTER_SLOTS as u32, recount::SUPERVISOR)
            .is_some()
    );
    let busy = &pool.swap_table().words[(slot + 4) as usize];
    let was = busy.swap(SlotWord::taken(recount::SUPERVISOR, 0).raw(), Ordering::Relaxed);
    assert_eq!(lines("gone"), 0, "the supervisor is there");
    pool.header().supervisor.store(ended(), Ordering::Relaxed);
    assert_eq!(lines("locked by the supervisor, which is gone"), 1);
    assert_eq!(lines("being emptied by the supervisor, which is gone"), 1);
    assert_eq!(lines("busy with a process that is gone"), 1);
    busy.store(was, Ordering::Relaxed);
    assert_eq!((lines("gone"), tree.look().report.processes), (2, 2));
    let entry = &pool.processes()[usize::from(DEAD)];
    entry.pid.store(ended(), Ordering::Relaxed);
    busy.store(SlotWord::taken(DEAD, 0).raw(), Ordering::Relaxed);
    assert_eq!(
        (lines("which is gone, has it"), tree.look().report.processes),
        (1, 1)
    );
    assert_eq!(lines("busy with a process that is gone"), 1);
    entry
        .state
        .store(entry_state::cleaned_by(ended()), Ordering::Relaxed);
    assert_eq!(lines("was returning what it holds"), 1);
    // The number is another one's by now.
    let mut stranger = Command::new("sleep").arg("60").spawn().unwrap();
    entry.state.store(entry_state::LIVE, Ordering::Relaxed);
    entry.pid.store(stranger.id() as i32, Ordering::Relaxed);
    assert_eq!(lines("which is gone, has it"), 1);
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

/// An entry that its taker, killed in fork, has not filled is given up by the supervisor ten seconds later.
#[test]
fn an_entry_that_was_taken_and_not_filled() {
    let tree = Tree::new();
    let entry = &tree.pool.processes()[usize::from(DEAD)];
    entry.pid.store(0, Ordering::Relaxed);
    entry
        .state
        .store(entry_state::taken_by(ended()), Ordering::Relaxed);
    assert_eq!(tree.problems(), Vec::<String>::new());
    tree.pool.header().supervisor.store(ended(), Ordering::Relaxed);
    assert_eq!(tree.problems().len(), 1);
}

/// A process that counts more pages than it has is over its limit with nothing to give up.
#[test]
fn counts_that_its_page_states_contradict() {
    let (tree, slot) = Tree::filled();
    let entry = &tree.pool.processes()[usize::from(ALIVE)];
    for page in 0..3 {
        tree.name(ALIVE, page, PageState::resident());
        tree.name(ALIVE, page + 3, PageState::cached(page));
    }
    tree.name(ALIVE, 6, PageState::resident().keeping(slot));
    tree.pool.swap_table().dup(slot).unwrap();
    assert_eq!(tree.problems(), Vec::<String>::new());
    let off = |count: &AtomicI64, by: i64| {
        count.fetch_add(by, Ordering::Relaxed);
        let lines = tree.problems();
        count.fetch_sub(by, Ordering::Relaxed);
        lines
    };
    assert!(off(&entry.resident, 2)[0].contains("entry 6: its count of resident pages is off by +2"));
    assert!(off(&entry.resident, -1)[0].contains("off by -1"));
    assert!(off(&entry.frames, -1)[0].contains("count of frame pages is off by -1"));
    assert_eq!(
        off(&entry.frames, 60),
        Vec::<String>::new(),
        "taken back, not dropped"
    );
    assert_eq!(off(&entry.kept, 60), Vec::<String>::new(), "about right");
    assert!(off(&entry.kept, 90)[0].contains("count of kept pages is off by +90"));
    entry.active.store(0, Ordering::Relaxed);
    assert_eq!(off(&entry.resident, 2), Vec::<String>::new(), "it is dormant");
}

/// A summary bit that a killed remover left clear hides clusters from who allocates: only the lowest level was looked at.
#[test]
fn clusters_that_a_summary_hides() {
    let (tree, slot) = Tree::filled();
    let clusters = tree.pool.layout().cluster_count as usize;
    let sets = slots::list_words(clusters) / BitTree::words(clusters);
    let (first, second) = (clusters.div_ceil(64), clusters.div_ceil(64 * 64));
    let lines = |text: &str| tree.problems().iter().filter(|line| line.contains(text)).count();
    for level in [first, first + second] {
        (0..sets).for_each(|set| tree.list(set, level, 0));
        assert_eq!(lines("hidden on its list"), 1);
        (0..sets).for_each(|set| tree.list(set, level, 1));
        assert_eq!(
            tree.problems(),
            Vec::<String>::new(),
            "a bit above nothing is fine"
        );
    }
    // The first cluster of its device is used; the next but one never was.
    let cluster = slot / CLUSTER_SLOTS as u32 + 2;
    tree.list(1, 0, 1 << cluster);
    assert_eq!(lines(&format!("cluster {cluster}: never used, but on a list")), 1);
    tree.list(1, 0, 0);
    tree.list(sets - 1, first - 1, 1 << 40);
    assert_eq!(lines("never used, but on a list"), 1, "far behind");
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
    // The new slot was published and the move counted, the old one's word not exchanged.
    table.publish(to + 2, device).unwrap();
    tree.pool.header().moved.fetch_add(1, Ordering::Relaxed);
    core::mem::forget(entries[usize::from(DEAD)].moves.begin());
    tree.pool.header().area[0].used.store(7, Ordering::Relaxed);
    cleanup::return_everything(&tree.pool, tree.fd, usize::from(DEAD), 0);
    // What one names that died while it moved content is not put: some of it may be another's by now.
    let of_the_dead = (slot..slot + 8).map(|slot| (slot, 1));
    let lost: BTreeSet<_> = of_the_dead.chain([(to + 2, 1)]).collect();
    assert_eq!(tree.look().lost, lost);
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
    let view = tree.pool.slots();
    let cluster = view.try_lock(slot / CLUSTER_SLOTS as u32, ALIVE).unwrap();
    recount::mend(&tree.pool, tree.fd);
    assert_eq!(tree.look().lost, lost, "or of giving the slot its next life");
    view.unlock_unchanged(cluster);
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

/// Killed between the count of a block and the word that names it, or the reverse. An area once counted a block more for ever with each
/// process that ended so, an ordinary exit beside its reclaimer's write included, and took itself for full at last.
#[test]
fn killed_between_a_block_and_its_count() {
    for off in [3, -1] {
        let (tree, _) = Tree::filled();
        let used = &tree.pool.header().area[0].used;
        used.fetch_add(off, Ordering::Relaxed);
        let entries = tree.pool.processes();
        core::mem::forget(entries[usize::from(DEAD)].objects.begin());
        let busy = entries[usize::from(ALIVE)].objects.begin();
        cleanup::return_everything(&tree.pool, tree.fd, usize::from(DEAD), 0);
        recount::mend(&tree.pool, tree.fd);
        assert_eq!(used.load(Ordering::Relaxed), off, "the living may be in between");
        drop(busy);
        recount::mend(&tree.pool, tree.fd);
        assert_eq!(used.load(Ordering::Relaxed), 0);
    }
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

/// Pages that came back leave half-empty zpages. Their objects move together, each slot names its object still, and a cluster
/// that somebody works on is left alone.
#[test]
fn compaction_moves_objects_and_their_slots() {
    let tree = Tree::new();
    let (pool, table, zpool) = (&tree.pool, tree.pool.swap_table(), tree.pool.zpool());
    let per_zpage = zpool_objects(500);
    let hints = ZpoolHints::new();
    let first = tree.take(ALIVE, 4 * per_zpage);
    for i in 0..4 * per_zpage as u32 {
        let handle = zpool.alloc(&hints, 20, 500, first + i).unwrap();
        tree.fill(ALIVE, u64::from(i), first + i, Backing::Compressed(handle));
    }
    for i in (0..4 * per_zpage as u32).filter(|i| i % 4 != 0) {
        tree.name(ALIVE, u64::from(i), PageState::resident());
        crate::puts::put_for(pool, first + i, ALIVE);
    }
    assert_eq!(zpool.count_used(), 4, "a quarter of each is left");
    let cluster = first / CLUSTER_SLOTS as u32;
    let held = pool.slots().try_lock(cluster, ALIVE).unwrap();
    assert_eq!(crate::compact::run(pool), per_zpage);
    assert_eq!(zpool.count_used(), 4);
    pool.slots().unlock_unchanged(held);
    crate::compact::run(pool);
    assert_eq!(zpool.count_used(), 1);
    assert_eq!(tree.problems(), Vec::<String>::new());
    let objects = (0..20).flat_map(|zpage| zpool.objects(zpage));
    let named =
        objects.filter(|(handle, slot)| table.load(*slot).backing() == Some(Backing::Compressed(*handle)));
    assert_eq!(named.count(), per_zpage);
}

fn zpool_objects(bytes: usize) -> usize {
    farpage_core::zpool::class_objects(farpage_core::zpool::class_of(bytes).unwrap())
}

/// A reader was held up when it had found whose object it reads. When it went on the object had moved, and where it was lay the
/// next one: whole, with its own checksum. So a page of one process once got the content of another's. What was read counts only
/// if the slot still names the object afterwards.
#[test]
fn a_read_that_was_held_up_while_its_object_moved() {
    let tree = Tree::new();
    let (pool, table, zpool) = (&tree.pool, tree.pool.swap_table(), tree.pool.zpool());
    let (mine, page) = (tree.take(ALIVE, 1), [7u8; PAGE_SIZE]);
    let write = |owner: u32, handle: Handle, page: &[u8; PAGE_SIZE]| {
        let mut packed = [0; 2 * PAGE_SIZE];
        let length = lz4_flex::block::compress_into(page, &mut packed).unwrap();
        let header = [owner, length as u32, crc32c::crc32c(page), 0];
        let bytes = header
            .into_iter()
            .flat_map(u32::to_le_bytes)
            .chain(packed.into_iter().take(length));
        let at = pool.layout().zdata + zpool.offset(handle) as u64;
        tree.file.write_all_at(&bytes.collect::<Vec<_>>(), at).unwrap();
    };
    let old = tree.object(mine);
    write(mine, old, &page);
    tree.fill(ALIVE, 0, mine, Backing::Compressed(old));
    let read = |seen: SlotWord| {
        let (mut copy, mut page) = ([0; 2 * PAGE_SIZE], [0; PAGE_SIZE]);
        tiers::unpack(pool, mine, seen, &mut copy, &mut page).map(|_| page)
    };
    let seen = table.load(mine);
    assert_eq!(read(seen), Some(page));
    let new = tree.object(mine);
    write(mine, new, &page);
    assert!(table.relocated(mine, seen, new));
    write(mine, old, &[8; PAGE_SIZE]);
    assert_eq!(read(seen), None, "another one's page");
    assert_eq!(read(table.load(mine)), Some(page));
}
