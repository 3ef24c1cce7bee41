//! Compaction of the zpool, by the supervisor.
//!
//! Pages come back in any order, so after a while every zpage is half empty, and the compressed tier takes twice the RAM it needs.
//! Of each size class the emptiest zpages give their objects to the fullest ones ([`relocate`] says how one is moved). Who reads
//! the slot meanwhile finds the word changed, and reads again. Nothing waits: a cluster that somebody works on is left for the
//! next turn.

use std::sync::atomic::Ordering;

use farpage_core::compact::{Relocation, relocate};
use farpage_core::kill_point;
use farpage_core::zpool::{CLASSES, Handle, Zpool, class_objects};

use crate::pool::Pool;
use crate::puts;
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

/// Gives the memory of zpages back that hold nothing and were kept for the next objects.
pub fn give_back_empty(pool: &Pool) {
    let zpool = pool.zpool();
    for zpage in 0..zpool.zpages() {
        if matches!(zpool.active(zpage), Some((_, 0))) {
            give_back(pool, &zpool, zpage);
        }
    }
}

fn give_back(pool: &Pool, zpool: &Zpool<'_>, zpage: usize) {
    if zpool.empty(zpage, SUPERVISOR) {
        kill_point!("compact-emptying");
        pool.punch_zpages(zpage, 1);
        zpool.release_zpage(zpage);
    }
}

/// Empties the first `surplus` of the zpages into the last.
fn gather(pool: &Pool, zpool: &Zpool<'_>, zpages: &[Roomy], surplus: usize, left: &mut usize) {
    // Kept for the next objects, by processes that may have ended.
    for &(_, zpage) in zpages.iter().take_while(|(objects, _)| *objects == 0) {
        give_back(pool, zpool, zpage);
    }
    let surplus = surplus.min(zpages.len());
    let (from, to) = zpages.split_at(surplus);
    let mut to = to.iter().rev().map(|(_, zpage)| *zpage).peekable();
    for object in from.iter().flat_map(|(_, zpage)| zpool.objects(*zpage)) {
        if *left == 0 {
            return;
        }
        *left -= 1;
        while let Some(zpage) = to.peek()
            && move_one(pool, zpool, object, *zpage) == Relocation::Full
        {
            to.next();
        }
    }
}

/// Moves one object to zpage `to`.
fn move_one(pool: &Pool, zpool: &Zpool<'_>, object: (Handle, u32), to: usize) -> Relocation {
    let view = pool.slots();
    let free = |lost, slot| puts::free_left_over(pool, lost, slot, SUPERVISOR);
    let outcome = relocate((&view, pool.swap_table()), zpool, object, to, SUPERVISOR, free);
    tiers::count_locks(pool, &view);
    outcome
}
