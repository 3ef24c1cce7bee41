//! The prefetch threads: they read what a stream will touch while the program works on what it has.
//!
//! A fault that finds a stream leaves a request here and goes on. Each thread takes what one read brings in off the oldest
//! request, so that several reads of a window are in flight, and a page under way is locked, so a touch of it waits for that read
//! only. Threads are started by the reclaimer, one more whenever there is something to read and none of them is free.
//! Requests are hints: when the ring is full the oldest is forgotten, and nothing depends on one being served.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use farpage_core::kill_point;

use crate::aio::Aio;
use crate::gate::Spin;
use crate::mm::{Mm, SPAN, mm};
use crate::request::{Lists, Request, Which};
use crate::swapin;
use crate::sys;
use crate::thread;
use crate::work_area;

const REQUESTS: usize = 8;
/// Most threads of a process, and how many work areas there are for each.
const THREADS_MAX: u32 = 4;
const AREAS_EACH: u32 = 3;
/// How many of them read while faults read single pages: the streams would take the device from those who can't be helped.
const BESIDE_FAULTS: u32 = 1;
/// For how long after such a fault, in nanoseconds.
const BESIDE_NS: u64 = 1_000_000;
/// How long a thread sleeps when nobody asks, in microseconds.
const NAP_US: u64 = 10_000_000;

struct Ring {
    requests: [Request; REQUESTS],
    head: usize,
    len: usize,
}

/// Requests of one process. The ring is touched only with the gate held, so a forked child finds it unlocked.
pub struct Prefetcher {
    /// Threads that run, and that shall.
    running: AtomicU32,
    wanted: AtomicU32,
    asleep: AtomicU32,
    /// Threads that bring something in.
    serving: AtomicU32,
    /// When a fault last had to read from a file itself.
    waited_ns: AtomicU64,
    seq: AtomicU32,
    ring: Spin<Ring>,
}

impl Default for Prefetcher {
    fn default() -> Self {
        Prefetcher::new()
    }
}

impl Prefetcher {
    #[must_use]
    pub const fn new() -> Prefetcher {
        Prefetcher {
            running: AtomicU32::new(0),
            wanted: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            serving: AtomicU32::new(0),
            waited_ns: AtomicU64::new(0),
            seq: AtomicU32::new(0),
            ring: Spin::new(Ring {
                requests: [const { Request::none() }; REQUESTS],
                head: 0,
                len: 0,
            }),
        }
    }

    /// In a forked child: the threads are not here.
    pub fn forget(&self) {
        for count in [&self.running, &self.wanted, &self.asleep, &self.serving] {
            count.store(0, Ordering::Relaxed);
        }
        self.ring.lock().len = 0;
    }

    /// A fault is about to read from a file at `now`.
    pub fn note_waiting(&self, now: u64) {
        self.waited_ns.store(now, Ordering::Relaxed);
    }

    /// Whether faults wait for the device these moments, so that long reads would be in their way.
    #[must_use]
    pub fn faults_wait(&self) -> bool {
        sys::now_ns().saturating_sub(self.waited_ns.load(Ordering::Relaxed)) < BESIDE_NS
    }

    /// Whether one more thread would be too many beside the faults that wait for the device.
    fn is_in_the_way(&self) -> bool {
        self.serving.load(Ordering::Relaxed) >= BESIDE_FAULTS && self.faults_wait()
    }

    fn push(&self, request: Request) {
        let mut ring = self.ring.lock();
        if ring.len == REQUESTS {
            ring.head = (ring.head + 1) % REQUESTS;
            ring.len -= 1;
        }
        let at = (ring.head + ring.len) % REQUESTS;
        ring.requests[at] = request;
        ring.len += 1;
    }

    /// Takes next pages of the oldest request; whether more is left. None: nothing is asked for.
    fn take(&self, mm: &Mm, which: Which, lists: &mut Lists) -> Option<bool> {
        let mut ring = self.ring.lock();
        while ring.len > 0 {
            let head = ring.head;
            let took = ring.requests[head].take(mm, SPAN, which, lists);
            if ring.requests[head].is_done() {
                ring.head = (head + 1) % REQUESTS;
                ring.len -= 1;
            }
            if took {
                return Some(ring.len > 0);
            }
        }
        None
    }
}

/// Leaves a request, if it asks for anything. The gate is held shared.
pub fn ask(mm: &Mm, request: &Request) {
    if !request.is_done() {
        mm.prefetcher.push(*request);
        call_one(mm);
    }
}

/// Wakes a thread that sleeps, or has one more started if none does.
fn call_one(mm: &Mm) {
    let own = &mm.prefetcher;
    own.seq.fetch_add(1, Ordering::SeqCst);
    if own.asleep.load(Ordering::SeqCst) != 0 {
        sys::futex_wake(&own.seq, 1, false);
        return;
    }
    let running = own.running.load(Ordering::Relaxed);
    // Without files there are no reads to be in flight: more threads would only come before those that work.
    let has_files = mm.header().areas.load(Ordering::Relaxed) > 0;
    let most = (work_area::count(mm.header().budget.load(Ordering::Relaxed)) / AREAS_EACH)
        .clamp(1, if has_files { THREADS_MAX } else { 1 });
    let one_more = || {
        own.wanted
            .compare_exchange(running, running + 1, Ordering::Relaxed, Ordering::Relaxed)
    };
    if running < most && one_more().is_ok() {
        // Not started from here: a fault may lie inside a fork window, where this thread's system calls are dispatched.
        mm.header().ask_to_reclaim();
    }
}

/// Starts the threads that are wanted; called by the reclaimer thread.
pub fn start_wanted(mm: &Mm) {
    let own = &mm.prefetcher;
    let running = own.running.load(Ordering::Relaxed);
    if own.wanted.load(Ordering::Relaxed) > running {
        // Before it runs: who finds none asleep then does not ask for another one at once.
        own.running.store(running + 1, Ordering::Relaxed);
        if thread::spawn(prefetch_main).is_err() {
            own.running.store(running, Ordering::Relaxed);
            own.wanted.store(running, Ordering::Relaxed);
        }
    }
}

extern "C" fn prefetch_main() -> ! {
    let mm = mm();
    let own = &mm.prefetcher;
    let (mut aio, mut lists) = (Aio::new(), Lists::default());
    loop {
        let seq = own.seq.load(Ordering::SeqCst);
        if serve_next(mm, aio.as_mut(), &mut lists) {
            continue;
        }
        own.asleep.fetch_add(1, Ordering::SeqCst);
        sys::futex_wait(&own.seq, seq, false, NAP_US);
        own.asleep.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Brings in what can be in flight at once; those who want the memory alone get in between. False: nothing is asked for.
fn serve_next(mm: &Mm, aio: Option<&mut Aio>, lists: &mut Lists) -> bool {
    let _inside = mm.gate.shared();
    if mm.prefetcher.is_in_the_way() {
        return false;
    }
    let which = if aio.is_some() { Which::All } else { Which::Read };
    let Some(is_more) = mm.prefetcher.take(mm, which, lists) else {
        return false;
    };
    kill_point!("prefetch-popped");
    if is_more {
        call_one(mm);
    }
    mm.prefetcher.serving.fetch_add(1, Ordering::Relaxed);
    swapin::bring(mm, lists, aio);
    mm.prefetcher.serving.fetch_sub(1, Ordering::Relaxed);
    true
}
