//! Slots for the pages of one block of frames: taken in runs, so that pages that leave together lie side by side.
//! Those that are kept compressed and those that are written are two runs: in one, each compressed page would end a write.
//!
//! A page that is kept compressed gets a slot with a block too, its place to be written to later, while a quarter of all
//! blocks is left: those are kept for pages that do not compress and can go nowhere else. What is left over goes back in one step.

use core::sync::atomic::Ordering;

use farpage_core::devices::{self, DeviceState, SHUT_FAILED};
use farpage_core::slots::{Request, Run};

use crate::kept;
use crate::mm::Mm;
use crate::pool::{Area, Pool};
use crate::puts;
use crate::slot_caches;
use crate::sys;
use crate::tiers;

/// Most slots taken ahead: one block of frames.
const AHEAD: usize = 64;
/// Of the budget, for the swap table's pages: with more of them shorter runs are taken.
const TABLE_PART: u64 = 32;

/// Slots taken and not yet used.
#[derive(Clone, Copy, Default)]
struct Ahead {
    next: u32,
    end: u32,
}

impl Ahead {
    fn next(&mut self) -> Option<u32> {
        let slot = self.next;
        (slot < self.end).then(|| {
            self.next += 1;
            slot
        })
    }
}

/// What a slot is for.
#[derive(Clone, Copy)]
enum Use {
    /// A page that is kept compressed, without a block.
    Kept,
    /// One with a block, to be written there later.
    KeptWithBlock,
    /// A page that is written now.
    Written,
}

impl Use {
    const ALL: [Use; 3] = [Use::Kept, Use::KeptWithBlock, Use::Written];

    fn has_file(self) -> bool {
        !matches!(self, Use::Kept)
    }
}

/// The slots of one store.
#[derive(Default)]
pub struct SlotBatch {
    ahead: [Ahead; Use::ALL.len()],
}

impl SlotBatch {
    /// A slot for a page to be kept compressed; about `left` more will be asked for.
    pub fn for_compressed(&mut self, mm: &Mm, left: usize) -> Option<u32> {
        if blocks_to_spare(mm)
            && let Some(slot) = self.take(mm, Use::KeptWithBlock, left)
        {
            return Some(slot);
        }
        self.take(mm, Use::Kept, left).or_else(|| self.for_file(mm, left))
    }

    /// A slot with a block to write to.
    pub fn for_file(&mut self, mm: &Mm, left: usize) -> Option<u32> {
        if mm.header().areas.load(Ordering::Relaxed) == 0 {
            return None;
        }
        // In a small area the others may be all that was left.
        self.take(mm, Use::Written, left)
            .or_else(|| self.ahead[Use::KeptWithBlock as usize].next())
    }

    fn take(&mut self, mm: &Mm, of: Use, left: usize) -> Option<u32> {
        let (ahead, has_file) = (&mut self.ahead[of as usize], of.has_file());
        if let Some(slot) = ahead.next() {
            return Some(slot);
        }
        let want = if slot_caches::are_on(mm) {
            AHEAD
        } else {
            left.clamp(1, AHEAD)
        };
        let run = slot_caches::take_run(mm, has_file).or_else(|| alloc(mm, has_file, want))?;
        *ahead = Ahead {
            next: run.first,
            end: run.first + run.count as u32,
        };
        ahead.next()
    }

    /// Gives back what was not used.
    pub fn finish(self, mm: &Mm) {
        for (of, ahead) in Use::ALL.into_iter().zip(self.ahead) {
            let left = Run {
                first: ahead.next,
                count: (ahead.end - ahead.next) as usize,
            };
            if left.count > 0
                && let Some(run) = slot_caches::keep_run(mm, of.has_file(), left)
            {
                let mut slots = [0u32; AHEAD];
                let places = slots.iter_mut().zip(run.first..);
                places.for_each(|(to, slot)| *to = slot);
                puts::release_now(mm, &slots[..run.count]);
            }
        }
    }
}

/// Whether more than a quarter of the slots with a block is free.
pub fn blocks_to_spare(mm: &Mm) -> bool {
    let (used, all) = with_block(mm);
    used < all - all / 4
}

/// Slots with a block in a file that stays: how many are taken, and all there are.
pub fn with_block(mm: &Mm) -> (u64, u64) {
    let states = mm.pool().device_states().iter();
    let with_file = mm
        .pool()
        .devices()
        .iter()
        .zip(states)
        .filter(|(device, state)| device.has_file && state.stays());
    with_file.fold((0, 0), |(used, all), (device, state)| {
        (
            used + state.used.load(Ordering::Relaxed),
            all + u64::from(state.now(device).slots),
        )
    })
}

/// Tells the devices how short a run will do, by what the pages of the swap table that are in memory may be of the budget.
pub fn set_enough(pool: &Pool) {
    let active = |state: &DeviceState| u64::from(state.active.load(Ordering::Relaxed));
    let table = pool.device_states().iter().map(active).sum();
    let budget = pool.header().budget.load(Ordering::Relaxed);
    let enough = devices::enough(table, budget.max(0) as u64 / TABLE_PART);
    for state in pool.device_states() {
        state.enough.store(enough, Ordering::Relaxed);
    }
}

fn alloc(mm: &Mm, has_file: bool, want: usize) -> Option<Run> {
    let view = mm.pool().slots();
    let request = Request {
        owner: mm.owner(),
        cpu: sys::cpu(),
        order: 0,
        want,
        has_file,
    };
    let mut run = view.alloc(&request);
    if run.is_none() && slot_caches::are_on(mm) {
        slot_caches::drain(mm);
        run = view.alloc(&request);
    }
    if run.is_none() && has_file && (reopen(mm) | give_up_kept(mm)) {
        run = view.alloc(&request);
    }
    tiers::count_locks(mm.pool(), &view);
    run
}

/// Areas to which a write has failed are tried again when nothing else has room. Those that refuse are not, as long as the supervisor
/// sees to them. True if there was one.
fn reopen(mm: &Mm) -> bool {
    let (now, header) = (sys::now_ns(), mm.header());
    let areas = mm.pool().device_states().iter().zip(&header.area);
    let again = areas.filter(|(state, area)| {
        if area.refusal.may_be_lifted(now, || true) && !header.supervisor_lives() {
            area.refusal.lift(now);
        }
        !area.refusal.stands() && state.shut.fetch_and(!SHUT_FAILED, Ordering::Relaxed) == SHUT_FAILED
    });
    again.count() > 0
}

/// Gives up what pages in RAM keep, if some of it is in an area that takes pages; whether it did.
fn give_up_kept(mm: &Mm) -> bool {
    mm.header().area.iter().any(Area::takes_pages) && kept::give_up_all(mm)
}
