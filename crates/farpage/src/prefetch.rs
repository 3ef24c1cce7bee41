//! The prefetch thread: reads what a stream will touch while the program works on what it has.
//!
//! A fault that finds a stream leaves a request here and goes on; the thread, started by the reclaimer with the first request, brings the
//! pages in a span at a time. A page under way is locked, so a touch of it waits for that span only. Requests are
//! hints: when the ring is full the oldest is forgotten, and nothing depends on one being served.

use core::sync::atomic::{AtomicU32, Ordering};

use farpage_core::kill_point;
use farpage_core::readahead::{Direction, Window};

use crate::gate::Spin;
use crate::mm::{Mm, SPAN, mm};
use crate::reclaim::{bits, mask};
use crate::swapin;
use crate::sys;
use crate::thread;

const REQUESTS: usize = 8;
/// States of the thread.
const NONE: u32 = 0;
const WANTED: u32 = 1;
const RUNNING: u32 = 2;
/// How long the thread sleeps when nobody asks, in microseconds.
const NAP_US: u64 = 10_000_000;

/// What is left to fetch of a window.
#[derive(Clone, Copy, Default)]
pub struct Request {
    window: Option<Window>,
    /// Steps of the window, in order of use, that have been taken off.
    taken: u32,
}

struct Ring {
    requests: [Request; REQUESTS],
    head: usize,
    len: usize,
}

/// Requests of one process. The ring is touched only with the gate held, so a forked child finds it unlocked.
pub struct Prefetcher {
    state: AtomicU32,
    seq: AtomicU32,
    asleep: AtomicU32,
    ring: Spin<Ring>,
}

impl Request {
    #[must_use]
    pub const fn new(window: Window) -> Request {
        Request {
            window: Some(window),
            taken: 0,
        }
    }

    fn is_done(&self) -> bool {
        self.window.is_none_or(|window| self.taken >= window.len)
    }

    /// Takes the next pages off, at most `most` of them within a span: the span's first page, and a bit per page wanted.
    pub fn next_span(&mut self, most: u32) -> Option<(u64, u64)> {
        const SPAN_PAGES: u64 = SPAN as u64;
        if self.is_done() {
            return None;
        }
        let window = self.window?;
        let first = window.step(self.taken);
        let start = match window.direction {
            Direction::Backward => (first.end() + 1).saturating_sub(SPAN_PAGES),
            Direction::Forward | Direction::Around => *first.start(),
        };
        let mut wanted = 0u64;
        while self.taken < window.len && wanted.count_ones() < most {
            let (from, to) = window.step(self.taken).into_inner();
            if from < start || to - start >= SPAN_PAGES {
                break;
            }
            wanted |= mask(to - from + 1) << (from - start);
            self.taken += 1;
        }
        Some((start, wanted))
    }

    /// The place of the window's marker among the `fetched` ones of the span that was taken off last, or of the one that
    /// stands for it because it was not to be had; given out once.
    pub fn take_marker(&mut self, start: u64, fetched: u64) -> Option<u64> {
        let window = self.window.as_mut()?;
        let page = window.marker_in(bits(fetched).map(|place| start + place))?;
        window.marker = None;
        Some(page - start)
    }
}

impl Default for Prefetcher {
    fn default() -> Self {
        Prefetcher::new()
    }
}

impl Prefetcher {
    #[must_use]
    pub const fn new() -> Prefetcher {
        let none = Request {
            window: None,
            taken: 0,
        };
        Prefetcher {
            state: AtomicU32::new(NONE),
            seq: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            ring: Spin::new(Ring {
                requests: [none; REQUESTS],
                head: 0,
                len: 0,
            }),
        }
    }

    /// In a forked child: the thread is not here.
    pub fn forget(&self) {
        self.state.store(NONE, Ordering::Relaxed);
        self.asleep.store(0, Ordering::Relaxed);
        self.ring.lock().len = 0;
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

    fn pop(&self) -> Option<Request> {
        let mut ring = self.ring.lock();
        ring.len = ring.len.checked_sub(1)?;
        let request = ring.requests[ring.head];
        ring.head = (ring.head + 1) % REQUESTS;
        Some(request)
    }
}

/// Leaves a request, if it asks for anything. The gate is held shared.
pub fn ask(mm: &Mm, request: Request) {
    if request.is_done() {
        return;
    }
    let own = &mm.prefetcher;
    own.push(request);
    own.seq.fetch_add(1, Ordering::SeqCst);
    if own.state.load(Ordering::Relaxed) == NONE {
        // Not started from here: a fault may lie inside a fork window, where this thread's system calls are dispatched.
        own.state.store(WANTED, Ordering::Relaxed);
        mm.header().ask_to_reclaim();
    } else if own.asleep.load(Ordering::SeqCst) != 0 {
        sys::futex_wake(&own.seq, 1, false);
    }
}

/// Starts the thread if it is wanted; called by the reclaimer thread.
pub fn start_wanted(mm: &Mm) {
    let own = &mm.prefetcher;
    let wanted = own
        .state
        .compare_exchange(WANTED, RUNNING, Ordering::Relaxed, Ordering::Relaxed);
    if wanted.is_ok() && thread::spawn(prefetch_main).is_err() {
        own.state.store(NONE, Ordering::Relaxed);
    }
}

extern "C" fn prefetch_main() -> ! {
    let mm = mm();
    let own = &mm.prefetcher;
    loop {
        let seq = own.seq.load(Ordering::SeqCst);
        if serve_next(mm) {
            continue;
        }
        own.asleep.store(1, Ordering::SeqCst);
        sys::futex_wait(&own.seq, seq, false, NAP_US);
        own.asleep.store(0, Ordering::SeqCst);
    }
}

/// Serves the oldest request to its end, letting those in who want the memory alone between its spans.
fn serve_next(mm: &Mm) -> bool {
    let mut request = {
        let _inside = mm.gate.shared();
        match mm.prefetcher.pop() {
            Some(request) => request,
            None => return false,
        }
    };
    kill_point!("prefetch-popped");
    loop {
        let _inside = mm.gate.shared();
        if !swapin::serve(mm, &mut request) {
            return true;
        }
    }
}
