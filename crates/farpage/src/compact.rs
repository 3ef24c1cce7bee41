//! Compaction of the zpool, by the supervisor.
//!
//! Pages come back in any order, so after a while every zpage is half empty, and the compressed tier takes twice the RAM it needs.
//! Of each size class the emptiest zpages give their objects to the fullest ones.
//!
//! One object, with what is locked in brackets: 1. lock the cluster of its slot, so that nobody is given the slot: its word
//! can't be that of a later life [cluster]; 2. the word names the object [cluster]; 3. copy it [cluster]; 4. exchange the
//! word from the old object to the new one, and free the one that no word names then [cluster]. Who reads the slot meanwhile
//! finds the word changed, and reads again. Nothing waits: a cluster that somebody works on is left for the next turn.

use std::sync::atomic::Ordering;

use farpage_core::cluster::CLUSTER_SLOTS;
use farpage_core::swap_table::Backing;
use farpage_core::zpool::{CLASSES, Handle, Zpool, class_objects};

use crate::pool::Pool;
use crate::recount::SUPERVISOR;
use crate::tiers;

/// It begins when one zpage in so many is not needed.
const SURPLUS_ONE_IN: usize = 16;
/// Most objects of one turn.
const MOVES_MAX: usize = 2048;

/// A zpage that has room, by the number of its objects.
type Roomy = (usize, usize);

/// Moves objects together if that gains enough; how many objects there are.
pub fn run(pool: &Pool) -> usize {
    let zpool = pool.zpool();
    let classes = zpool.tally();
    let surplus = |class: usize| classes[class].surplus(class);
    let used: usize = classes.iter().map(|class| class.zpages).sum();
    let gains = (0..CLASSES).map(surplus).sum::<usize>() * SURPLUS_ONE_IN > used;
    // Slot caches hand slots out past the cluster's lock.
    if gains && pool.header().slot_cache_floor.load(Ordering::Relaxed) == 0 {
        gather_all(pool, &zpool, surplus);
    }
    classes.iter().map(|class| class.objects).sum()
}

fn gather_all(pool: &Pool, zpool: &Zpool<'_>, surplus: impl Fn(usize) -> usize) {
    let mut roomy: [Vec<Roomy>; CLASSES] = [const { Vec::new() }; CLASSES];
    for zpage in 0..zpool.zpages() {
        if let Some((class, objects)) = zpool.active(zpage)
            && objects < class_objects(class)
        {
            roomy[class].push((objects, zpage));
        }
    }
    let mut left = MOVES_MAX;
    for (class, zpages) in roomy.iter_mut().enumerate() {
        zpages.sort_unstable();
        gather(pool, zpool, zpages, surplus(class), &mut left);
    }
}

/// Empties the first `surplus` of the zpages into the last.
fn gather(pool: &Pool, zpool: &Zpool<'_>, zpages: &[Roomy], surplus: usize, left: &mut usize) {
    let surplus = surplus.min(zpages.len());
    let (from, to) = zpages.split_at(surplus);
    let mut to = to.iter().rev().map(|(_, zpage)| *zpage).peekable();
    for (handle, slot) in from.iter().flat_map(|(_, zpage)| zpool.objects(*zpage)) {
        if *left == 0 {
            return;
        }
        *left -= 1;
        while let Some(zpage) = to.peek()
            && relocate(pool, zpool, (handle, slot), *zpage) == Outcome::Full
        {
            to.next();
        }
    }
}

#[derive(PartialEq, Eq)]
enum Outcome {
    /// It has moved, or is not there any more, or is somebody's now.
    Done,
    /// The zpage had no room.
    Full,
}

/// Moves one object to zpage `to`.
fn relocate(pool: &Pool, zpool: &Zpool<'_>, (handle, slot): (Handle, u32), to: usize) -> Outcome {
    let view = pool.slots();
    let Some(locked) = view.try_lock(slot / CLUSTER_SLOTS as u32, SUPERVISOR) else {
        return Outcome::Done;
    };
    let table = pool.swap_table();
    let word = table.load(slot);
    let mut outcome = Outcome::Done;
    if word.backing() == Some(Backing::Compressed(handle)) {
        if let Some(new) = zpool.copy_to(handle, slot, to) {
            let lost = if table.relocated(slot, word, new) {
                handle
            } else {
                new
            };
            tiers::free_object(pool, lost, SUPERVISOR);
        } else {
            outcome = Outcome::Full;
        }
    }
    view.unlock_unchanged(locked);
    tiers::count_locks(pool, &view);
    outcome
}
