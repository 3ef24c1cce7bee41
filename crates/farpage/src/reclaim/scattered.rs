//! Runs with many gaps, moved out by three flushes of the TLBs (decision 0024).
//!
//! MOVE flushes the TLB of every CPU that runs a thread of this process once for each stretch of present pages; in a virtual
//! machine a flush that interrupts another CPU takes some 20 us. Where that was measured, a run is carried to a scratch area by
//! one `mremap` (the first flush); its gaps are filled there, so that it is a single stretch, which is MOVEd to the frames (the
//! second): MOVE and not the rest, for it looks at each page, and what is held for DMA it leaves. That is carried back to its
//! place. The filling is dropped by one call (the third).
//!
//! The caller holds the gate shared, so no mapping changes meanwhile, and has locked the words of the whole run: who touches a
//! page of it waits.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use farpage_core::kill_point;
use farpage_core::stats::Counter;

use super::BLOCK;
use crate::bits::{bits, mask};
use crate::mean::Mean;
use crate::mm::{Mm, PAGE, address};
use crate::reclaim_calls::{
    carry, carry_back, close_scratch, drop_each, drop_frames, has_keys, map_over, map_scratch, open_scratch,
    populate_write, sure_presence, unmaps_first,
};
use crate::sys::{self, Errno};

/// Runs that can be on their way at once. Each takes up to [`BLOCK`] pages of filling, which nobody is charged for: they are
/// part of the margin.
const FILLED: u32 = 2;
/// Others, for runs without gaps. More threads than these wait for one another.
const CLOSED: u32 = 6;
const AREAS: u32 = FILLED + CLOSED;
/// Least limit of the tree, in pages for each process there ever was at a time, for which the margin has room for that.
const LIMIT_MIN: i64 = ((32 << 20) / PAGE) as i64;
/// What a page of filling takes, in nanoseconds: to be got, to be zeroed, to be given back.
const FILL_NS: u64 = 1_000;
/// Flushes that a run takes by way of the scratch area.
const FLUSHES: u64 = 3;
const AREA_LEN: u64 = BLOCK * PAGE;
/// How often, and how long at a time, an area that others hold is waited for.
const NAPS: u32 = 50;
const NAP_US: u64 = 100;
/// So often an area may be left for a new one: what is left is address space.
const LEFT_MAX: u32 = 256;
/// How long areas that were lost are not asked for again the first time, in nanoseconds.
const REVIVED_AFTER_NS: u64 = 1_000_000_000;
const REVIVED_AFTER_MAX_NS: u64 = 60 * REVIVED_AFTER_NS;
/// One run in so many goes the plain way, which tells what a stretch costs by now.
const MEASURED: u32 = 64;
/// In the build that tests kill and hold up threads in, runs come this way whatever it costs.
const FORCED: bool = cfg!(feature = "kill-points");

/// Locked pages of the window at `base`: `len` from place `at`, which go to the same places of `block`. Those of `victims` (bits of
/// the window) are there, the others are gaps.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) base: u64,
    pub(super) block: u64,
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) victims: u64,
}

impl Run {
    fn places(&self) -> u64 {
        mask(self.len) << self.at
    }

    fn gaps(&self) -> u64 {
        self.places() & !self.victims
    }

    /// How many stretches of present pages it has: each is a flush for MOVE.
    fn stretches(&self) -> u64 {
        let present = self.victims & self.places();
        u64::from((present & !(present << 1)).count_ones())
    }

    /// Whether filling the gaps is cheaper than flushing for each stretch, where `is_dearer` tells if a stretch takes more
    /// than so many nanoseconds.
    fn is_worth_filling(&self, is_dearer: impl FnOnce(u64) -> bool) -> bool {
        let spared = self.stretches().saturating_sub(FLUSHES);
        spared > 0 && is_dearer(u64::from(self.gaps().count_ones()) * FILL_NS / spared)
    }
}

/// The scratch areas of a process, and what flushes cost it.
pub struct Scattered {
    areas: [AtomicU64; AREAS as usize],
    /// Areas in use, and those that are lost: a bit each.
    taken: AtomicU32,
    /// Those that the kernel had no memory to carry to. It is asked for another from `revive_ns` on, and twice as long after that the next time.
    lost: AtomicU32,
    revive_ns: AtomicU64,
    revive_after_ns: AtomicU64,
    /// How often an area was left for a new one.
    left: AtomicU32,
    /// Runs with gaps enough, by which turns are told.
    turn: AtomicU32,
    /// Nanoseconds that stretches took.
    cost: Mean,
    /// 1 once the kernel turned out to have no way to drop the filling by one call.
    is_unable: AtomicU32,
    /// 1 if a call that is refused may have unmapped the area before.
    unmaps_first: AtomicU32,
}

impl Scattered {
    pub const fn new() -> Scattered {
        Scattered {
            areas: [const { AtomicU64::new(0) }; AREAS as usize],
            taken: AtomicU32::new(0),
            lost: AtomicU32::new(0),
            revive_ns: AtomicU64::new(0),
            revive_after_ns: AtomicU64::new(REVIVED_AFTER_NS),
            left: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            cost: Mean::new(),
            is_unable: AtomicU32::new(0),
            unmaps_first: AtomicU32::new(1),
        }
    }

    /// Maps the scratch areas.
    pub fn prepare(&self) -> Result<(), Errno> {
        self.unmaps_first
            .store(u32::from(unmaps_first()), Ordering::Relaxed);
        (0..AREAS).try_for_each(|area| self.map_elsewhere(area))
    }

    fn map_elsewhere(&self, area: u32) -> Result<(), Errno> {
        let memory = sys::engine_memory(AREA_LEN)?;
        self.areas[area as usize].store(memory, Ordering::Relaxed);
        Ok(())
    }

    /// After a call that failed, which has unmapped the area or not. In the latter case what lies there can't be told from a mapping that
    /// somebody else has got there since: it is left alone. (Two runs that lay in two mappings each once were the last that went this way, and
    /// later some 250.)
    fn mend(&self, area: u32, len: u64) -> bool {
        map_scratch(self.address(area), len) || self.leave(area)
    }

    fn leave(&self, area: u32) -> bool {
        self.left.load(Ordering::Relaxed) < LEFT_MAX
            && self.map_elsewhere(area).is_ok()
            && self.left.fetch_add(1, Ordering::Relaxed) < LEFT_MAX
    }

    /// In a forked child, before anybody maps anything there: gets the areas that the parent has. What was carried was said not to be
    /// inherited, perhaps (MADV_DONTFORK), and its area says so too since: where it was is a hole, that anybody's mapping may be put in.
    pub fn inherit(&self) -> Result<(), Errno> {
        let given_up = self.taken.load(Ordering::Relaxed);
        (0..AREAS)
            .filter(|area| given_up >> area & 1 == 0)
            .try_for_each(|area| map_over(self.address(area), AREA_LEN))
    }

    /// Whether a run is one of those that are measured.
    pub(super) fn is_of_interest(run: &Run) -> bool {
        run.stretches() > FLUSHES
    }

    /// A run of interest took `ns` without a scratch area.
    pub(super) fn note(&self, ns: u64, run: &Run) {
        self.cost.add(ns, run.stretches());
    }

    fn is_wanted(&self, mm: &Mm, run: &Run) -> bool {
        if self.is_unable.load(Ordering::Relaxed) != 0 || has_keys() {
            return false;
        }
        if FORCED {
            return run.gaps() != 0 && run.stretches() != 0;
        }
        let header = mm.header();
        let processes = i64::from(header.entries.load(Ordering::Relaxed));
        header.last_limit() >= LIMIT_MIN * processes
            && run.is_worth_filling(|bound| self.cost.exceeds(bound))
            && !self.turn.fetch_add(1, Ordering::Relaxed).is_multiple_of(MEASURED)
    }

    fn take(&self, of: Range<u32>) -> Option<u32> {
        let is_free = |area: &u32| self.taken.fetch_or(1 << area, Ordering::Acquire) >> area & 1 == 0;
        of.clone().find(is_free).or_else(|| self.revive(of))
    }

    /// One that was lost, once in a while: there is memory again, perhaps.
    fn revive(&self, mut of: Range<u32>) -> Option<u32> {
        let area = of.find(|area| self.is_lost(*area))?;
        let is_due = sys::now_ns() >= self.revive_ns.load(Ordering::Relaxed);
        if !is_due || self.lost.fetch_and(!(1 << area), Ordering::Relaxed) >> area & 1 == 0 {
            return None;
        }
        if self.leave(area) {
            return Some(area);
        }
        self.lose(area);
        None
    }

    fn lose(&self, area: u32) {
        let now = sys::now_ns();
        if now >= self.revive_ns.load(Ordering::Relaxed) {
            // Twice the time at most, whoever else does the same now.
            let after = self.revive_after_ns.load(Ordering::Relaxed);
            self.revive_ns.store(now + after, Ordering::Relaxed);
            let next = (2 * after).min(REVIVED_AFTER_MAX_NS);
            self.revive_after_ns.store(next, Ordering::Relaxed);
        }
        self.lost.fetch_or(1 << area, Ordering::Relaxed);
    }

    fn is_lost(&self, area: u32) -> bool {
        self.lost.load(Ordering::Relaxed) >> area & 1 != 0
    }

    /// One for a run without gaps. If others hold them all one is free in a moment; `None` if not.
    fn wait_for(&self, mm: &Mm) -> Option<u32> {
        let areas = FILLED..AREAS;
        for _ in 0..NAPS {
            if let Some(area) = self.take(areas.clone()) {
                return Some(area);
            }
            if areas.clone().all(|area| self.is_lost(area)) {
                return None;
            }
            mm.header().nap(NAP_US);
        }
        None
    }

    /// After a run of `len` bytes was carried, or not. Without memory for that (too many mappings, RLIMIT_AS) there is none for a new area.
    /// (All were lost within a moment then, for good, and each read-only page cost a wait for one.)
    fn give_after(&self, area: u32, len: u64, carried: Result<(), Errno>) {
        let refused = matches!(carried, Err(Errno(libc::EFAULT | libc::EPERM | libc::EINVAL)));
        let is_there = carried.is_ok() || refused && self.unmaps_first.load(Ordering::Relaxed) == 0;
        if is_there || carried != Err(Errno(libc::ENOMEM)) && self.mend(area, len) {
            self.give(area);
        } else {
            self.lose(area);
        }
    }

    fn give(&self, area: u32) {
        self.taken.fetch_and(!(1 << area), Ordering::Release);
    }

    fn address(&self, area: u32) -> u64 {
        self.areas[area as usize].load(Ordering::Relaxed)
    }
}

/// Moves the run out by way of a scratch area; the bits of what moved. None: it was not done, and the run is as it was.
pub(super) fn move_out(mm: &Mm, run: &Run) -> Option<u64> {
    let scattered = &mm.frames.scattered;
    if !scattered.is_wanted(mm, run) {
        return None;
    }
    let area = scattered.take(0..FILLED)?;
    by_area(mm, run, area)
}

/// Moves a run without gaps out that can't be moved from its mapping, since that may not be written, or may be executed: a scratch area is as MOVE
/// demands. The bits of what moved; `None`: it is not in one mapping, or there is no area. (Such pages were copied. What a device was to write to
/// one of them was lost: MOVE looks whether it is held.)
pub(super) fn move_closed(mm: &Mm, run: &Run) -> Option<u64> {
    if has_keys() {
        return None;
    }
    let area = mm.frames.scattered.wait_for(mm)?;
    by_area(mm, run, area)
}

fn by_area(mm: &Mm, run: &Run, area: u32) -> Option<u64> {
    let scattered = &mm.frames.scattered;
    let scratch = scattered.address(area);
    let (from, len) = (address(run.base + run.at), run.len * PAGE);
    let carried = carry(mm, from, len, scratch);
    let moved = carried.is_ok().then(|| from_scratch(mm, run, scratch));
    scattered.give_after(area, len, carried);
    moved
}

/// The pages of the run are in the scratch area.
fn from_scratch(mm: &Mm, run: &Run, scratch: u64) -> u64 {
    let &Run {
        base,
        block,
        at,
        len,
        victims,
    } = run;
    kill_point!("evict-carried");
    // What that fails for is not moved.
    open_scratch(scratch, len * PAGE);
    populate_write(scratch, len * PAGE);
    let to = mm.frames.address(block * BLOCK + at);
    let mut moved = run.places();
    if !move_all(mm, to, scratch, len) {
        // It is dropped with the filling if it is not told apart.
        let left = (sure_presence(scratch, len) << at) & victims;
        if left != 0 {
            close_scratch(scratch, len * PAGE, address(base + at));
        }
        bits(left).for_each(|i| carry_back(mm, scratch + (i - at) * PAGE, address(base + i)));
        moved &= !left;
        drop_frames(mm, scratch, len * PAGE);
        mm.header()
            .count(Counter::PgreclaimBusy, u64::from(left.count_ones()));
    }
    if run.gaps() != 0 && !drop_each(mm, to, run.gaps() >> at) {
        mm.frames.scattered.is_unable.store(1, Ordering::Relaxed);
    }
    let count = u64::from((moved & victims).count_ones());
    mm.header().count(Counter::PgstealScattered, count);
    moved
}

/// Moves what can be moved of `len` pages; whether that was all.
fn move_all(mm: &Mm, to: u64, from: u64, len: u64) -> bool {
    let (mut done, mut all) = (0, true);
    while done < len {
        let at = done * PAGE;
        let result = mm.move_pages(to + at, from + at, len * PAGE - at);
        done += result.bytes / PAGE;
        if !matches!(result.error, None | Some(Errno(libc::EAGAIN))) {
            all = false;
            done += 1;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(at: u64, len: u64, victims: u64) -> Run {
        Run {
            base: 0,
            block: 0,
            at,
            len,
            victims,
        }
    }

    #[test]
    fn stretches_and_gaps_are_those_of_the_run_alone() {
        let all = run(0, 64, 0b1011_0001);
        assert_eq!((all.stretches(), all.gaps().count_ones()), (3, 60));
        let part = run(4, 3, 0b1011_0001);
        assert_eq!((part.stretches(), part.gaps()), (1, 0b100_0000));
        assert_eq!(run(0, 64, !0).stretches(), 1);
        assert_eq!(run(63, 1, 1 << 63).gaps(), 0);
    }

    #[test]
    fn gaps_are_filled_where_flushes_cost_more() {
        // Every fourth page: 16 stretches, of which 13 flushes are spared, for 45 pages of filling.
        let every_fourth = run(0, 61, 0x1111_1111_1111_1111);
        let costs = |ns| move |bound| ns > bound;
        assert!(every_fourth.is_worth_filling(costs(18_000)));
        assert!(
            !every_fourth.is_worth_filling(costs(1_000)),
            "no other CPU was interrupted"
        );
        assert!(
            !run(0, 64, 1 | 1 << 20 | 1 << 63).is_worth_filling(costs(18_000)),
            "three flushes either way"
        );
    }
}
