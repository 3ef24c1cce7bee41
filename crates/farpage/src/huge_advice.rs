//! What the program said about huge pages, range by range: MADV_HUGEPAGE and MADV_NOHUGEPAGE.
//!
//! Noted here and not passed on once the process is active: different flags would split the kernel's mappings, across which
//! pages can't be moved.

use farpage_core::huge::Advice;
use farpage_core::range_map::{Full, Range, RangeMap};

use crate::gate::{Spin, SpinGuard};
use crate::mm::CHUNK_PAGES;
use crate::range_set::{carry, go_on, new_map};
use crate::sys;

/// Ranges for which the program wants huge pages, and those for which it does not; advice that finds no room is forgotten.
pub struct Noted {
    wanted: Option<RangeMap<'static>>,
    declined: Option<RangeMap<'static>>,
}

static NOTED: Spin<Noted> = Spin::new(Noted {
    wanted: None,
    declined: None,
});

impl Noted {
    fn both(&mut self) -> [Option<&mut RangeMap<'static>>; 2] {
        [self.wanted.as_mut(), self.declined.as_mut()]
    }
}

/// Held across a fork, so that the child finds no lock held by a thread it does not have.
pub fn hold() -> SpinGuard<'static, Noted> {
    NOTED.lock()
}

/// In a child forked while dormant, where another thread of the parent may have held the lock: half a change is forgotten with
/// the rest.
pub fn abandon_lock() {
    if NOTED.abandon() {
        NOTED
            .lock()
            .both()
            .into_iter()
            .flatten()
            .for_each(RangeMap::clear);
    }
}

/// Pages `lo..hi` are to be huge, or (`wanted` false) not.
pub fn note(lo: u64, hi: u64, wanted: bool) {
    let mask = sys::block_signals();
    {
        let mut noted = NOTED.lock();
        let noted = &mut *noted;
        for map in [&mut noted.wanted, &mut noted.declined] {
            if map.is_none() {
                *map = new_map();
            }
        }
        let [to, from] = match (noted.both(), wanted) {
            ([wanted, declined], true) => [wanted, declined],
            ([wanted, declined], false) => [declined, wanted],
        };
        let _ = from.map(|map| map.remove(lo, hi));
        let _ = to.map(|map| map.insert(lo, hi));
    }
    sys::set_mask(mask);
}

/// Pages `lo..hi` are unmapped: nothing was said about what comes there later.
pub fn forget(lo: u64, hi: u64) {
    each_map(|map| map.remove(lo, hi));
}

/// What was said about a mapping goes with it: see [`carry`].
pub fn moved(from: Range, to: Range, stays: bool) {
    each_map(|map| carry(map, from, to, stays));
}

/// Pages `lo..hi` are more of the mapping before them.
pub fn grown(lo: u64, hi: u64) {
    each_map(|map| go_on(map, lo, hi));
}

fn each_map(f: impl Fn(&mut RangeMap<'static>) -> Result<(), Full>) {
    for map in NOTED.lock().both().into_iter().flatten() {
        let _ = f(map);
    }
}

/// What was said about a chunk.
pub fn of(chunk: u64) -> Advice {
    let noted = NOTED.lock();
    let (lo, hi) = (chunk, chunk + CHUNK_PAGES);
    if noted.declined.as_ref().is_some_and(|map| map.overlaps(lo, hi)) {
        Advice::Small
    } else if noted.wanted.as_ref().is_some_and(|map| map.covers(lo, hi)) {
        Advice::Huge
    } else {
        Advice::None
    }
}
