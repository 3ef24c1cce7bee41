//! Slots for the pages of one block of frames: taken in runs, so that pages that leave together lie side by side.
//!
//! Pages that go to a file get slots with a block, those that stay compressed get others. What is left over goes back in
//! one step.

use core::sync::atomic::Ordering;

use farpage_core::slots::{Request, Run};

use crate::mm::Mm;
use crate::sys;
use crate::tiers;

/// Most slots taken ahead: one block of frames.
const AHEAD: usize = 64;

/// Slots of one class of device, taken and not yet used.
#[derive(Clone, Copy, Default)]
struct Ahead {
    next: u32,
    end: u32,
}

/// The slots of one store.
#[derive(Default)]
pub struct SlotBatch {
    /// With a block in a file, and without.
    classes: [Ahead; 2],
}

impl SlotBatch {
    /// A slot for a page to be kept compressed; about `left` more will be asked for.
    pub fn for_compressed(&mut self, mm: &Mm, left: usize) -> Option<u32> {
        self.take(mm, false, left)
    }

    /// A slot with a block to write to.
    pub fn for_file(&mut self, mm: &Mm, left: usize) -> Option<u32> {
        if mm.header().areas.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.take(mm, true, left)
    }

    fn take(&mut self, mm: &Mm, has_file: bool, left: usize) -> Option<u32> {
        let ahead = &mut self.classes[usize::from(has_file)];
        if ahead.next == ahead.end {
            let run = alloc(mm, has_file, left.clamp(1, AHEAD))?;
            *ahead = Ahead {
                next: run.first,
                end: run.first + run.count as u32,
            };
        }
        ahead.next += 1;
        Some(ahead.next - 1)
    }

    /// Gives back what was not used.
    pub fn finish(self, mm: &Mm) {
        for ahead in self.classes {
            let mut slots = [0u32; AHEAD];
            let count = (ahead.end - ahead.next) as usize;
            if count > 0 {
                slots
                    .iter_mut()
                    .zip(ahead.next..ahead.end)
                    .for_each(|(to, slot)| *to = slot);
                tiers::release(mm, &slots[..count]);
            }
        }
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
    if run.is_none() && has_file && reopen(mm) {
        run = view.alloc(&request);
    }
    tiers::count_locks(mm.pool(), &view);
    run
}

/// Areas that failed are tried again when nothing else has room: a full disk may have been cleared. True if there was one.
fn reopen(mm: &Mm) -> bool {
    let states = mm.pool().device_states().iter();
    states
        .filter(|state| state.shut.swap(0, Ordering::Relaxed) != 0)
        .count()
        > 0
}
