//! The best possible: evict what is touched latest again (Belady, 1966).

use std::collections::BTreeSet;

/// How often a touch misses, in `capacity` units of memory, when the future is known.
#[must_use]
pub fn misses(units: &[u32], distinct: u32, capacity: u32) -> u64 {
    let mut next_of = vec![u64::MAX; distinct as usize];
    let mut next = vec![u64::MAX; units.len()];
    for (at, &unit) in units.iter().enumerate().rev() {
        next[at] = std::mem::replace(&mut next_of[unit as usize], at as u64);
    }
    // Each resident unit by its next touch; `due` says under which.
    let mut resident: BTreeSet<(u64, u32)> = BTreeSet::new();
    let mut due = vec![None; distinct as usize];
    let mut misses = 0;
    for (at, &unit) in units.iter().enumerate() {
        match due[unit as usize].take() {
            Some(was) => {
                resident.remove(&(was, unit));
            }
            None => {
                misses += 1;
                if resident.len() >= capacity.max(1) as usize
                    && let Some((_, victim)) = resident.pop_last()
                {
                    due[victim as usize] = None;
                }
            }
        }
        resident.insert((next[at], unit));
        due[unit as usize] = Some(next[at]);
    }
    misses
}
