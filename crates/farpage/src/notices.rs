//! What the supervisor tells the user while the program runs: what is wrong, and how to mend it.

use farpage_core::stats::Counter;

use crate::pool::{Area, MAX_AREAS, Pool};
use crate::sys;

/// That an area refuses pages is told again after so long, in nanoseconds.
const AGAIN_NS: u64 = 600_000_000_000;

/// What has been told.
#[derive(Default)]
pub struct Notices {
    /// That memory is needed for which there is no place; and how often the budget had been overrun at the last look.
    overrun: bool,
    overruns: u64,
    /// When it was told of each area that it refuses pages.
    refusals_ns: [Option<u64>; MAX_AREAS],
}

impl Notices {
    pub fn look(&mut self, pool: &Pool, now: u64) {
        let header = pool.header();
        self.look_for_overrun(pool);
        for (area, told_ns) in header.area.iter().zip(&mut self.refusals_ns) {
            look_for_refusal(area, told_ns, now);
        }
    }

    /// Once: memory is needed for which there is no place.
    fn look_for_overrun(&mut self, pool: &Pool) {
        let overruns = pool.header().counted(Counter::LimitOverrun);
        let is_new = core::mem::replace(&mut self.overruns, overruns) != overruns;
        if self.overrun || !is_new || !pool.is_swap_full() {
            return;
        }
        self.overrun = true;
        sys::complain(&[
            "farpage: all swap is full and the programs use more memory than the budget: add some with ",
            "`farpage swapon DIRECTORY:SIZE`, or run with a larger --ram or --swap",
        ]);
    }
}

fn look_for_refusal(area: &Area, told_ns: &mut Option<u64>, now: u64) {
    let is_known = told_ns.is_some_and(|told| now.saturating_sub(told) < AGAIN_NS);
    let Some(error) = area.refusal.error().filter(|_| !is_known) else {
        return;
    };
    *told_ns = Some(now);
    let fix = match error.0 {
        libc::ENOSPC | libc::EDQUOT => "free space there",
        _ => "check the disk",
    };
    sys::complain(&[
        "farpage: ",
        &area.name(),
        " takes no more pages: ",
        &error.to_string(),
        "; ",
        fix,
        " (it is then used again), or add another place with `farpage swapon DIRECTORY:SIZE`",
    ]);
}
