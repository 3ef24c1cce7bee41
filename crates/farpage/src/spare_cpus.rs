//! How many CPUs have nothing to do: what threads of the tree may keep busy while they wait (`watch`).
//!
//! /proc/loadavg tells how many threads run or want to at this moment, this one among them. One look says little, so the
//! past counts on.

use core::sync::atomic::Ordering;
use std::fs;
use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use crate::pool::Header;
use crate::watch::TURNS;

/// An old look counts so many times as much as a new one.
const INERTIA: u32 = 7;
/// In which parts of a thread the mean is kept.
const PARTS: u32 = 64;

/// What the supervisor knows of it.
pub struct SpareCpus {
    /// CPUs that the tree may use.
    cpus: u32,
    /// Threads that run, but for those that only wait for a read: the mean, in [`PARTS`].
    busy: u32,
}

impl Default for SpareCpus {
    /// None is spared before it was looked.
    fn default() -> Self {
        let cpus = available_parallelism().map_or(1, NonZeroUsize::get) as u32;
        SpareCpus {
            cpus,
            busy: cpus * PARTS,
        }
    }
}

impl SpareCpus {
    /// Looks again, and tells the tree.
    pub fn look(&mut self, header: &Header) {
        let watching = header.watching.iter();
        let watching = watching.filter(|turn| turn.load(Ordering::Relaxed) != 0).count() as u32;
        let load = fs::read_to_string("/proc/loadavg");
        // Where it can't be read no CPU is idle.
        let running = load
            .ok()
            .as_deref()
            .and_then(running)
            .unwrap_or(u32::MAX / PARTS / 16);
        let spare = self.after(running.saturating_sub(1 + watching));
        header
            .spare_cpus
            .store(spare.min(TURNS as u32), Ordering::Relaxed);
    }

    /// How many CPUs are idle after a look that found so many threads busy, rounded.
    fn after(&mut self, busy: u32) -> u32 {
        self.busy = (self.busy * INERTIA + busy * PARTS) / (INERTIA + 1);
        (self.cpus * PARTS + PARTS / 2).saturating_sub(self.busy) / PARTS
    }
}

/// The running threads of a line such as `0.20 0.18 0.12 1/80 11206`.
fn running(load: &str) -> Option<u32> {
    let threads = load.split_ascii_whitespace().nth(3)?;
    threads.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fourth_word_tells_who_runs() {
        assert_eq!(running("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(running("0.20 0.18"), None);
        let real = fs::read_to_string("/proc/loadavg").unwrap();
        assert!(running(&real) >= Some(1), "{real}");
    }

    #[test]
    fn cpus_are_spared_while_few_threads_run() {
        let mut spare = SpareCpus {
            cpus: 2,
            busy: 2 * PARTS,
        };
        let mut after = |busy| (0..40).fold(0, |_, _| spare.after(busy));
        assert_eq!([after(0), after(1), after(2), after(9)], [2, 1, 0, 0]);
        assert_eq!(after(0), 2);
        // One look tells nothing.
        assert_eq!(spare.after(3), 2);
    }
}
