//! The slot caches of this process, one for each CPU, where the policy `--slots cache` is chosen and slots are not scarce.
//!
//! Each has a lock that nobody waits for: who finds it held does without. Slots in here are *busy* with this process, so the
//! supervisor finds them after a death; a forked child forgets its copy.

use core::sync::atomic::Ordering;

use farpage_core::kill_point;
use farpage_core::slot_cache::SlotCache;
use farpage_core::slots::Run;
use farpage_core::stats::Counter;

use crate::gate::{Spin, SpinGuard};
use crate::mm::Mm;
use crate::puts;
use crate::sys;
use crate::tiers;

/// CPUs with a cache of their own; more share them.
const CPUS: usize = 64;

pub struct SlotCaches([Spin<SlotCache>; CPUS]);

impl Default for SlotCaches {
    fn default() -> Self {
        SlotCaches::new()
    }
}

impl SlotCaches {
    #[must_use]
    pub const fn new() -> SlotCaches {
        SlotCaches([const { Spin::new(SlotCache::new()) }; CPUS])
    }

    /// In a forked child: what is kept is the parent's.
    pub fn forget(&self) {
        self.0.iter().for_each(|cache| *cache.lock() = SlotCache::new());
    }
}

/// This CPU's cache, if the policy is on and nobody else works on it.
fn own(mm: &Mm) -> Option<SpinGuard<'_, SlotCache>> {
    let least = mm.header().slot_cache_floor.load(Ordering::Relaxed);
    if least == 0 || free_slots(mm) < least {
        return None;
    }
    let cache = mm.slot_caches.0[sys::cpu() as usize % CPUS].try_lock();
    if cache.is_none() {
        mm.header().count(Counter::SlotCacheMissed, 1);
    }
    cache
}

/// Slots that are free, about.
fn free_slots(mm: &Mm) -> u64 {
    let states = mm.pool().device_states().iter();
    let all = mm.pool().devices().iter().zip(states);
    let stay = all.filter(|(_, state)| state.stays());
    stay.map(|(device, state)| {
        u64::from(state.now(device).slots).saturating_sub(state.used.load(Ordering::Relaxed))
    })
    .sum()
}

/// Whether to ask for more slots than are wanted now.
pub fn are_on(mm: &Mm) -> bool {
    mm.header().slot_cache_floor.load(Ordering::Relaxed) != 0
}

/// Not of an area that is being emptied, or refuses what is written to it.
fn is_kept(mm: &Mm, slot: u32) -> bool {
    tiers::stays(mm.pool(), slot) && tiers::may_be_written(mm, slot)
}

/// A run that this CPU kept, or nothing where that is given back.
pub fn take_run(mm: &Mm, has_file: bool) -> Option<Run> {
    let run = own(mm)?.take_run(has_file)?;
    if !is_kept(mm, run.first) {
        give_back(mm, run);
        return None;
    }
    kill_point!("cache-taken");
    mm.header().count(Counter::SlotCacheHit, 1);
    Some(run)
}

/// Keeps what is left of a run; what there is no place for.
pub fn keep_run(mm: &Mm, has_file: bool, run: Run) -> Option<Run> {
    match own(mm) {
        Some(mut cache) if is_kept(mm, run.first) => cache.keep_run(has_file, run),
        _ => Some(run),
    }
}

/// Keeps slots that have no content, to be given back with others. False: the caller does it.
pub fn free(mm: &Mm, slots: &[u32]) -> bool {
    if !slots.iter().all(|slot| is_kept(mm, *slot)) {
        return false;
    }
    let Some(mut cache) = own(mm) else { return false };
    for &slot in slots {
        kill_point!("cache-kept");
        if let Some(all) = cache.free(slot) {
            kill_point!("cache-drained");
            puts::release_now(mm, &all);
        }
    }
    true
}

/// Gives back all that is kept, because slots have run out or some are of an area that is being emptied.
pub fn drain(mm: &Mm) {
    for cache in &mm.slot_caches.0 {
        let Some(mut cache) = cache.try_lock() else {
            continue;
        };
        let (slots, len) = cache.drain_freed();
        puts::release_now(mm, &slots[..len]);
        for has_file in [false, true] {
            if let Some(run) = cache.take_run(has_file) {
                give_back(mm, run);
            }
        }
    }
}

fn give_back(mm: &Mm, run: Run) {
    (run.first..run.first + run.count as u32).for_each(|slot| puts::release_now(mm, &[slot]));
}
