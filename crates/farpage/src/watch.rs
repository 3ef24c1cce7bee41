//! A fault's read from a file, waited for without sleeping where CPUs are to spare.
//!
//! A thread that sleeps until its read is over leaves its CPU idle; to bring it back takes an interrupt to a CPU that sleeps,
//! in a virtual machine 10 us and more of the 30 to 40 that a fast disk takes. Linux tells the end of an asynchronous read in memory, so a fault can
//! look for it instead (decision 0028). It may do so while the tree has a CPU to spare for it, as the supervisor sees it
//! (`spare_cpus`), and where reads are short.
//!
//! # Safety
//! See [`read`].
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use farpage_core::kill_point;
use farpage_core::stats::Counter;

use crate::aio::Ring;
use crate::mean::Mean;
use crate::mm::Mm;
use crate::pool::{Header, Pool};
use crate::sys::{self, Piece};

/// Most threads of a tree that look for the end of a read at a time.
pub const TURNS: usize = 8;
/// Queues of a process, one for each of them.
const RINGS: usize = 4;
/// What reads may take on average, and one of them, in nanoseconds: longer ones are slept through.
const SHORT_NS: u64 = 150_000;
const LONGEST_NS: u64 = 300_000;
/// While reads take longer one in so many is still looked at, so that a change is noticed.
const TRIED_ONE_IN: u32 = 64;

/// In the build that tests kill and hold up threads in, as many as there can be.
const FORCED: bool = cfg!(feature = "kill-points");

/// What a process reads with.
pub struct Watch {
    /// Numbers of the queues; 0: not made yet.
    rings: [AtomicU64; RINGS],
    /// Those in use, a bit each.
    taken: AtomicU32,
    /// 1 once a fault had to read, 2 once the queues were made for that.
    is_wanted: AtomicU32,
    turn: AtomicU32,
    cost: Mean,
}

impl Default for Watch {
    fn default() -> Self {
        Watch::new()
    }
}

impl Watch {
    #[must_use]
    pub const fn new() -> Watch {
        Watch {
            rings: [const { AtomicU64::new(0) }; RINGS],
            taken: AtomicU32::new(0),
            is_wanted: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            cost: Mean::new(),
        }
    }

    /// In a forked child: the queues are not here.
    pub fn forget(&self) {
        self.rings
            .iter()
            .for_each(|ring| ring.store(0, Ordering::Relaxed));
        self.taken.store(0, Ordering::Relaxed);
        self.is_wanted.store(0, Ordering::Relaxed);
    }

    /// Makes the queues once they are wanted; called by the reclaimer thread. One try: where the kernel refuses, reads are slept
    /// through.
    pub fn make_wanted(&self) {
        if self.is_wanted.load(Ordering::Relaxed) != 1 {
            return;
        }
        self.is_wanted.store(2, Ordering::Relaxed);
        for place in &self.rings {
            let Some(ring) = Ring::new(1) else { break };
            place.store(ring.number(), Ordering::Release);
        }
    }

    fn pays(&self) -> bool {
        !self.cost.exceeds(SHORT_NS)
            || self
                .turn
                .fetch_add(1, Ordering::Relaxed)
                .is_multiple_of(TRIED_ONE_IN)
    }

    fn take(&self) -> Option<(u32, Ring)> {
        let free = |nth: &u32| self.taken.fetch_or(1 << nth, Ordering::Acquire) >> nth & 1 == 0;
        let nth = (0..RINGS as u32).find(free)?;
        let ring = Ring::of_number(self.rings[nth as usize].load(Ordering::Acquire));
        if ring.is_none() {
            self.give(nth);
        }
        ring.map(|ring| (nth, ring))
    }

    fn give(&self, nth: u32) {
        self.taken.fetch_and(!(1 << nth), Ordering::Release);
    }
}

/// The right to keep a CPU busy, of which the tree has as many as CPUs to spare.
struct Turn<'a>(&'a AtomicU32);

impl Turn<'_> {
    fn take(header: &Header, owner: u16) -> Option<Turn<'_>> {
        let spare = match FORCED {
            true => TURNS,
            false => header.spare_cpus.load(Ordering::Relaxed) as usize,
        };
        let name = u32::from(owner) + 1;
        let free = |turn: &&AtomicU32| {
            turn.load(Ordering::Relaxed) == 0
                && turn
                    .compare_exchange(0, name, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
        };
        header.watching[..spare.min(TURNS)].iter().find(free).map(Turn)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Gives back what a process that is gone had of the turns.
pub fn bury(pool: &Pool, owner: u16) {
    for turn in &pool.header().watching {
        let _ = turn.compare_exchange(u32::from(owner) + 1, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Reads from `file` at `offset` to the pieces, for a fault that waits for it. False: it is to be read by a plain call.
///
/// # Safety
/// The pieces are writable memory that nobody else uses meanwhile.
pub unsafe fn read(mm: &Mm, file: i32, offset: u64, pieces: &[Piece]) -> bool {
    let own = &mm.watch;
    if own.is_wanted.load(Ordering::Relaxed) == 0 {
        own.is_wanted.store(1, Ordering::Relaxed);
    }
    if !own.pays() {
        return false;
    }
    let Some(turn) = Turn::take(mm.header(), mm.owner()) else {
        return false;
    };
    let Some((nth, ring)) = own.take() else {
        return false;
    };
    kill_point!("watch-taken");
    let start = sys::now_ns();
    let goes_on = || sys::now_ns() - start < LONGEST_NS;
    // SAFETY: the caller vouches for the pieces; the ring is ours.
    let done = unsafe { ring.read_alone(file, offset, pieces, goes_on) };
    kill_point!("watch-read");
    own.cost.add(sys::now_ns() - start, 1);
    own.give(nth);
    drop(turn);
    let wanted = pieces.iter().map(|piece| piece[1]).sum();
    let all = done == Some(wanted);
    mm.header().count(Counter::ReadWatched, u64::from(all));
    all
}
