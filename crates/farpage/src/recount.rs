//! What only counting again can mend after a death, done by the supervisor.
//!
//! A process killed between the change of a page's word and the put of its slot leaves a reference that nobody holds; killed
//! between the two steps of an object's taking or return, a zpage that counts one object too many; between the count of a block
//! and the word that names it, or the reverse, an area whose count is one off. Whose the surplus is
//! can't be seen in the words, only that it is there; and a living process in the middle of the same step makes
//! the same difference. So each process tells when it is in between ([`Steps`](crate::steps::Steps)), and a difference is
//! believed only if nobody was:
//!
//! 1. no slot gains a reference and no name of a slot changes its place meanwhile (`moves`), so of a slot that was backed
//!    before the page states were read, the pages found to name it are all there are, or more; 2. its word was the same
//!    before that and after every process was seen with no put under way: a put that was under way at the start, or begun
//!    since, would have ended between and changed the word; 3. its cluster was locked meanwhile, so that a slot that was put is
//!    not in another life that looks like this one. What the slot counts above what was found is then nobody's, and
//!    stays nobody's: it can be put at any time.
//!
//! A slot whose content was moved to another one (`swapoff`) names that, as a page would: the name appears in a step of `moves`
//! and goes with the last reference, in the step that puts that one. Such names are counted whether or not a page names the
//! slot that has them, since the put of what that has lost gives its name up with it.
//!
//! Whatever disturbs a count puts it off to the next tick.
//!
//! # Safety
//! One read of the pool's file into a buffer of this module.
#![allow(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, Ordering};

use farpage_core::cluster::CLUSTER_SLOTS;
use farpage_core::kill_point;
use farpage_core::page_state::PageState;
use farpage_core::slots::{Locked, Slots};
use farpage_core::swap_table::{Backing, SlotWord};

use crate::cleanup::next_data;
use crate::pool::{MAX_PROCESSES, Pool, ProcEntry, STATES_LEN, entry_state};
use crate::puts;
use crate::steps::Steps;
use crate::sys::{self, Errno};
use crate::tier_files;

/// Bits of `Header::recount`: a process is gone that managed memory; one was in the middle of a step, and of what that may have
/// left these are still to be counted.
pub const GONE: u32 = 1;
pub const IN_A_STEP: u32 = LOST | OBJECTS | BLOCKS;
const LOST: u32 = 2;
const OBJECTS: u32 = 4;
const BLOCKS: u32 = 8;
/// What the supervisor does itself is done in this name, which no process has.
pub const SUPERVISOR: u16 = MAX_PROCESSES as u16;
/// Looks at a process that has a step under way before the count is put off.
const PATIENCE: usize = 1000;
const BUFFER_BYTES: usize = 1 << 18;
/// Counts of the slots that are in doubt, in one go.
const ROUNDS: usize = 8;
/// Most clusters locked at a time.
const LOCKED_MAX: usize = 8;

/// References found by cluster and place in it.
pub type References = HashMap<u32, Box<[u16; CLUSTER_SLOTS]>>;

/// Mends what the marked deaths left. What can't be told apart now from steps of the living is tried again when next called.
pub fn mend(pool: &Pool, pool_fd: i32) {
    let wanted = pool.header().recount.swap(0, Ordering::Relaxed);
    if wanted & GONE != 0 {
        requeue(pool);
    }
    // Each may have to be put off while others can be done.
    let put_off = |bit, count: &dyn Fn() -> bool| if wanted & bit == 0 || count() { 0 } else { bit };
    let left = put_off(LOST, &|| put_lost(pool, pool_fd))
        | put_off(OBJECTS, &|| settle_objects(pool))
        | put_off(BLOCKS, &|| settle_blocks(pool));
    pool.header().recount.fetch_or(left, Ordering::Relaxed);
}

/// Clusters whose word says that they wait to be written back and that are not in the queue: whoever took them off it died before he
/// locked them. Coming twice does no harm.
fn requeue(pool: &Pool) {
    let slots = pool.slots();
    let waiting: HashSet<u32> = slots.waiting().collect();
    for cluster in used_clusters(pool) {
        let word = slots.cluster_word(cluster);
        if word.queued() && word.holder().is_none() && !waiting.contains(&cluster) {
            slots.requeue(cluster);
        }
    }
}

/// The clusters that were ever used.
pub fn used_clusters(pool: &Pool) -> impl Iterator<Item = u32> {
    let devices = pool.devices().iter().zip(pool.device_states());
    devices.flat_map(|(device, state)| {
        let fresh = device.first_cluster + state.fresh.load(Ordering::Relaxed);
        // The mark is moved on after the first cluster was taken, so the one at it may be in use.
        device.first_cluster..(fresh + 1).min(device.end_cluster())
    })
}

/// How often each slot is named: by page states of all processes, locked or not, whose number is the second figure, and by slots
/// whose content is in it.
///
/// # Errors
/// The pool can't be read.
pub fn references(pool: &Pool, pool_fd: i32) -> Result<(References, u64), Errno> {
    references_telling(pool, pool_fd, |_, _| {})
}

/// The same; `tell` is called with each page state that it comes across and the index of whose it is.
///
/// # Errors
/// The pool can't be read.
pub fn references_telling(
    pool: &Pool,
    pool_fd: i32,
    tell: impl FnMut(usize, PageState),
) -> Result<(References, u64), Errno> {
    let (mut found, total) = named_by_pages(pool, pool_fd, tell)?;
    for slot in used_slots(pool) {
        if let Some(Backing::Moved { to }) = pool.swap_table().load(slot).backing() {
            let count = count_of(&mut found, to);
            *count = count.saturating_add(1);
        }
    }
    Ok((found, total))
}

/// Slots that a page names, or that content of one was moved to.
///
/// # Errors
/// The pool can't be read.
pub fn reachable(pool: &Pool, pool_fd: i32) -> Result<References, Errno> {
    let (mut found, _) = named_by_pages(pool, pool_fd, |_, _| {})?;
    let mut left = Vec::new();
    for (cluster, counts) in &found {
        let all = (cluster * CLUSTER_SLOTS as u32..).zip(counts.iter());
        left.extend(all.filter(|(_, count)| **count > 0).map(|(slot, _)| slot));
    }
    while let Some(slot) = left.pop() {
        if let Some(Backing::Moved { to }) = pool.swap_table().load(slot).backing() {
            let count = count_of(&mut found, to);
            if *count == 0 {
                left.push(to);
            }
            *count = count.saturating_add(1);
        }
    }
    Ok(found)
}

fn named_by_pages(
    pool: &Pool,
    pool_fd: i32,
    mut tell: impl FnMut(usize, PageState),
) -> Result<(References, u64), Errno> {
    let mut found = References::new();
    let mut total = 0;
    for (index, entry) in pool.processes().iter().enumerate() {
        if entry.state.load(Ordering::Acquire) == entry_state::FREE {
            continue;
        }
        let start = pool.layout().states + index as u64 * STATES_LEN;
        each_word(pool_fd, start, start + STATES_LEN, |_, word| {
            tell(index, PageState(word));
            if let Some(slot) = PageState(word).named_slot() {
                let count = count_of(&mut found, slot);
                *count = count.saturating_add(1);
                total += 1;
            }
        })?;
    }
    Ok((found, total))
}

/// Calls `f` with the offset and the value of every word of the file between the offsets `start` and `end` that has memory.
///
/// # Errors
/// The file can't be read.
pub fn each_word(pool_fd: i32, start: u64, end: u64, mut f: impl FnMut(u64, u64)) -> Result<(), Errno> {
    let mut buffer = vec![0u64; BUFFER_BYTES / 8];
    let mut at = start;
    while let Some((from, to)) = next_data(pool_fd, at, end) {
        at = (from + BUFFER_BYTES as u64).min(to);
        let words = &mut buffer[..(at - from) as usize / 8];
        read_words(pool_fd, words, from)?;
        (from..)
            .step_by(8)
            .zip(words.iter())
            .for_each(|(at, word)| f(at, *word));
    }
    Ok(())
}

fn split(slot: u32) -> (u32, usize) {
    (slot / CLUSTER_SLOTS as u32, slot as usize % CLUSTER_SLOTS)
}

fn count_of(references: &mut References, slot: u32) -> &mut u16 {
    let (cluster, place) = split(slot);
    let counts = references.entry(cluster);
    &mut counts.or_insert_with(|| Box::new([0; CLUSTER_SLOTS]))[place]
}

/// Of references, those to `slot`.
#[must_use]
pub fn held(references: &References, slot: u32) -> u16 {
    let (cluster, place) = split(slot);
    references.get(&cluster).map_or(0, |counts| counts[place])
}

/// Puts the references that nobody holds. False: it could not be told now.
fn put_lost(pool: &Pool, pool_fd: i32) -> bool {
    // The entries are asked for at each look: one that is new since may have such a step, too.
    let moves = || all_idle(pool.processes(), |entry| &entry.moves);
    let before = moves();
    if before.is_none() || someone_cleans(pool.processes()) {
        return false;
    }
    // What the slots count is read first: whoever leaves one meanwhile is then missing among the pages, and the slot suspect
    // for nothing; in the other order a slot that is left while the pages are read could hide what it has lost.
    let counted = counts(pool);
    let Ok((found, _)) = references(pool, pool_fd) else {
        return false;
    };
    let mut suspects: Vec<u32> = used_slots(pool)
        .filter(|slot| held(&counted, *slot) > held(&found, *slot))
        .collect();
    drop((counted, found));
    // Beside busy processes most suspects are slots that were left meanwhile. What is lost is among the suspects from the first
    // round on, so only those whose word changed are looked at again.
    let mut lost = Vec::new();
    for _ in 0..ROUNDS {
        if suspects.is_empty() {
            break;
        }
        let Some(seen) = examine(pool, pool_fd, &suspects, &before) else {
            return false;
        };
        lost.extend(seen.lost.into_iter().map(|(slot, _)| slot));
        suspects = seen.unsure;
    }
    let all_put = put_locked(pool, pool_fd, &mut lost, &before);
    all_put && suspects.is_empty() && moves() == before
}

/// What a count found of some slots.
struct Examined {
    /// Those that count more references than are named, and how many more.
    lost: Vec<(u32, u16)>,
    /// Those whose word changed meanwhile.
    unsure: Vec<u32>,
}

/// Counts what names some slots, with no move since `before`. None: that can't be told now.
fn examine(pool: &Pool, pool_fd: i32, suspects: &[u32], before: &Option<Vec<u64>>) -> Option<Examined> {
    let table = pool.swap_table();
    let words = suspects.iter().map(|slot| (*slot, table.load(*slot)));
    let words: Vec<(u32, SlotWord)> = words.filter(|(_, word)| word.count() > 0).collect();
    let (found, _) = references(pool, pool_fd).ok()?;
    let entries = pool.processes();
    if !each_idle_once(entries, |entry| &entry.puts) || someone_cleans(entries) {
        return None;
    }
    let (sure, unsure): (Vec<_>, Vec<_>) = words
        .into_iter()
        .partition(|(slot, word)| table.load(*slot) == *word);
    let lost = sure
        .into_iter()
        .map(|(slot, word)| (slot, word.count().saturating_sub(held(&found, slot))));
    (all_idle(pool.processes(), |entry| &entry.moves) == *before).then(|| Examined {
        lost: lost.filter(|(_, more)| *more > 0).collect(),
        unsure: unsure.into_iter().map(|(slot, _)| slot).collect(),
    })
}

/// Counts again what names these slots, this time with their clusters locked, and puts what nobody holds: so that none is freed,
/// taken and filled again between two looks at its word and, with the few bits of its generation, looks as before. False: some
/// of it was put off.
fn put_locked(pool: &Pool, pool_fd: i32, lost: &mut [u32], before: &Option<Vec<u64>>) -> bool {
    let same_cluster = |a: &u32, b: &u32| split(*a).0 == split(*b).0;
    lost.sort_unstable();
    let clusters: Vec<&[u32]> = lost.chunk_by(same_cluster).collect();
    let mut all_put = clusters.len() <= ROUNDS * LOCKED_MAX;
    for clusters in clusters.chunks(LOCKED_MAX).take(ROUNDS) {
        let held = Held::lock(pool, clusters.iter().map(|slots| split(slots[0]).0));
        kill_point!("recount-locked");
        let is_held = |slot: &u32| held.clusters.iter().any(|c| c.cluster() == split(*slot).0);
        let slots: Vec<u32> = clusters.concat().into_iter().filter(is_held).collect();
        all_put &= held.clusters.len() == clusters.len();
        // Slot caches hand slots out past the cluster's lock, but not without a put.
        let cached = pool.header().slot_cache_floor.load(Ordering::Relaxed) != 0;
        let puts = || cached.then(|| all_idle(pool.processes(), |entry| &entry.puts));
        let begun = puts();
        let seen = examine(pool, pool_fd, &slots, before);
        let quiet = begun != Some(None) && puts() == begun;
        all_put &= quiet && seen.as_ref().is_some_and(|seen| seen.unsure.is_empty());
        for (slot, more) in seen.filter(|_| quiet).into_iter().flat_map(|seen| seen.lost) {
            (0..more).for_each(|_| puts::put_for(pool, slot, SUPERVISOR));
            kill_point!("recount-put");
        }
    }
    all_put
}

/// Clusters locked by the supervisor, as long as this lives: nobody waits for one.
struct Held<'a> {
    view: Slots<'a, &'a Pool>,
    clusters: Vec<Locked>,
}

impl<'a> Held<'a> {
    fn lock(pool: &'a Pool, clusters: impl Iterator<Item = u32>) -> Held<'a> {
        let view = pool.slots();
        let clusters = clusters
            .filter_map(|cluster| view.try_lock(cluster, SUPERVISOR))
            .collect();
        Held { view, clusters }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for cluster in self.clusters.drain(..) {
            self.view.unlock_unchanged(cluster);
        }
    }
}

/// What each slot counts.
fn counts(pool: &Pool) -> References {
    let mut counts = References::new();
    for slot in used_slots(pool) {
        let count = pool.swap_table().load(slot).count();
        if count > 0 {
            *count_of(&mut counts, slot) = count;
        }
    }
    counts
}

/// The slots of clusters that have any in use.
pub fn used_slots(pool: &Pool) -> impl Iterator<Item = u32> {
    used_slots_in(pool, |_| true)
}

/// The same, of clusters that are wanted.
pub fn used_slots_in(pool: &Pool, is_wanted: impl Fn(u32) -> bool) -> impl Iterator<Item = u32> {
    used_clusters(pool)
        .filter(move |cluster| is_wanted(*cluster) && pool.slots().cluster_word(*cluster).count() > 0)
        .flat_map(|cluster| {
            let first = cluster * CLUSTER_SLOTS as u32;
            first..first + CLUSTER_SLOTS as u32
        })
}

/// Zpages that count more objects than they have, and the count of zpages in use. False: it could not be told now.
fn settle_objects(pool: &Pool) -> bool {
    let zpool = pool.zpool();
    // Asked for at each look: a process that is new since may be in the middle of a step.
    let idle = || all_idle(pool.processes(), |entry| &entry.objects);
    let mut all = true;
    for zpage in 0..zpool.zpages() {
        if zpool.overcounted(zpage) == Ok(None) {
            continue;
        }
        let Some(before) = idle() else {
            return false;
        };
        let found = zpool.overcounted(zpage);
        if idle() != Some(before) {
            all = false;
            continue;
        }
        match found {
            Ok(None) => {}
            Ok(Some((seen, objects))) if zpool.settle(zpage, seen, objects, SUPERVISOR) => {
                if objects == 0 {
                    pool.punch_zpages(zpage, 1);
                    zpool.release_zpage(zpage);
                }
            }
            _ => all = false,
        }
    }
    let Some(before) = idle() else {
        return false;
    };
    let used = &pool.header().zpages_used;
    let seen = used.load(Ordering::Relaxed);
    let surplus = seen.saturating_sub(zpool.count_used());
    if idle() != Some(before) {
        return false;
    }
    // Who cleans up after a process gives zpages back in no such step: then it is not what was seen.
    let settled = used.compare_exchange(seen, seen - surplus, Ordering::Relaxed, Ordering::Relaxed);
    settled.is_ok() && all
}

/// The counts of blocks that hold a page, and of slots whose content was moved to another one. False: one could not be told now.
fn settle_blocks(pool: &Pool) -> bool {
    // Whatever gives a block content, or takes it, or moves a slot's to another one, is in one of these steps from before the first of
    // the two words to after the other. The entries are asked for at each look, as above.
    let idle = || {
        let entries = pool.processes();
        let objects = all_idle(entries, |entry| &entry.objects)?;
        let puts = all_idle(entries, |entry| &entry.puts)?;
        let moves = all_idle(entries, |entry| &entry.moves)?;
        (!someone_cleans(entries)).then_some([objects, puts, moves])
    };
    // One count after the other: in a busy tree nobody is in between for so long, but not for as long as all take. Whoever began and
    // ended to clean up meanwhile has changed the count, and then it is not exchanged.
    let settle = |count: &AtomicI64, found: &dyn Fn() -> i64| {
        let Some(before) = idle() else {
            return false;
        };
        let (counted, found) = (count.load(Ordering::Acquire), found());
        idle() == Some(before)
            && count
                .compare_exchange(counted, found, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    };
    let header = pool.header();
    let areas = header.area.iter().enumerate();
    let all = areas.fold(true, |all, (index, area)| {
        settle(&area.used, &|| tier_files::written(pool, index)) && all
    });
    // A death leaves this one too high, never too low.
    let is_right = header.moved.load(Ordering::Acquire) == 0;
    (is_right || settle(&header.moved, &|| moved(pool))) && all
}

/// Slots whose content was moved to another one.
fn moved(pool: &Pool) -> i64 {
    let backings = used_slots(pool).map(|slot| pool.swap_table().load(slot).backing());
    backings
        .filter(|backing| matches!(backing, Some(Backing::Moved { .. })))
        .count() as i64
}

/// What all processes have begun, if nothing is under way.
pub fn all_idle(entries: &[ProcEntry], steps: impl Fn(&ProcEntry) -> &Steps) -> Option<Vec<u64>> {
    entries.iter().map(|entry| steps(entry).idle()).collect()
}

/// Whether each process was seen idle, at whatever time from the call on.
fn each_idle_once(entries: &[ProcEntry], steps: impl Fn(&ProcEntry) -> &Steps) -> bool {
    entries.iter().all(|entry| {
        (0..PATIENCE).any(|_| {
            let idle = steps(entry).idle().is_some();
            core::hint::spin_loop();
            idle
        })
    })
}

fn someone_cleans(entries: &[ProcEntry]) -> bool {
    let state = |entry: &ProcEntry| entry.state.load(Ordering::SeqCst);
    entries
        .iter()
        .any(|entry| entry_state::cleaner(state(entry)).is_some())
}

fn read_words(fd: i32, words: &mut [u64], from: u64) -> Result<(), Errno> {
    // SAFETY: the buffer is ours and that long.
    unsafe { sys::pread_all(fd, words.as_mut_ptr() as u64, size_of_val(words) as u64, from) }
}
