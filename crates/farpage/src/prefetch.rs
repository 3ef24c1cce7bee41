//! The prefetch thread: reads what a stream will touch while the program works on what it has.
//!
//! A fault that finds a stream leaves a request here and goes on; the thread, started with the first request, brings the
//! pages in a window at a time. A page under way is locked, so a touch of it waits for that window only. Requests are
//! hints: when the ring is full the oldest is forgotten, and nothing depends on one being served.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::gate::Spin;
use crate::mm::{Mm, WINDOW_MAX, mm};
use crate::swapin;
use crate::sys;
use crate::thread;

const REQUESTS: usize = 8;
/// How long the thread sleeps when nobody asks, in microseconds.
const NAP_US: u64 = 10_000_000;

/// Pages wanted soon; `backward`: the last of them first.
#[derive(Clone, Copy, Default)]
pub struct Request {
    lo: u64,
    hi: u64,
    backward: bool,
}

struct Ring {
    requests: [Request; REQUESTS],
    head: usize,
    len: usize,
}

/// Requests of one process. The ring is touched only with the gate held, so a forked child finds it unlocked.
pub struct Prefetcher {
    running: AtomicU32,
    seq: AtomicU32,
    asleep: AtomicU32,
    ring: Spin<Ring>,
}

impl Request {
    #[must_use]
    pub fn new(pages: Range<u64>, backward: bool) -> Request {
        Request {
            lo: pages.start,
            hi: pages.end,
            backward,
        }
    }

    /// Takes the next window off the request.
    fn next(&mut self) -> Range<u64> {
        let len = (self.hi - self.lo).min(WINDOW_MAX as u64);
        if self.backward {
            self.hi -= len;
            self.hi..self.hi + len
        } else {
            self.lo += len;
            self.lo - len..self.lo
        }
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
            lo: 0,
            hi: 0,
            backward: false,
        };
        Prefetcher {
            running: AtomicU32::new(0),
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
        self.running.store(0, Ordering::Relaxed);
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

    /// The next window of the oldest request.
    fn pop(&self) -> Option<Range<u64>> {
        let mut ring = self.ring.lock();
        while ring.len > 0 {
            let head = ring.head;
            let request = &mut ring.requests[head];
            if request.lo < request.hi {
                return Some(request.next());
            }
            ring.head = (head + 1) % REQUESTS;
            ring.len -= 1;
        }
        None
    }
}

/// Leaves a request, if it asks for anything. The gate is held shared.
pub fn ask(mm: &Mm, request: Request) {
    if request.lo >= request.hi {
        return;
    }
    let own = &mm.prefetcher;
    own.push(request);
    own.seq.fetch_add(1, Ordering::SeqCst);
    if own.running.swap(1, Ordering::Relaxed) == 0 {
        if thread::spawn(prefetch_main).is_err() {
            own.running.store(0, Ordering::Relaxed);
        }
    } else if own.asleep.load(Ordering::SeqCst) != 0 {
        sys::futex_wake(&own.seq, 1, false);
    }
}

extern "C" fn prefetch_main() -> ! {
    let mm = mm();
    let own = &mm.prefetcher;
    loop {
        let seq = own.seq.load(Ordering::SeqCst);
        let busy = {
            let _inside = mm.gate.shared();
            let window = own.pop();
            window
                .clone()
                .into_iter()
                .for_each(|window| swapin::bring(mm, window));
            window.is_some()
        };
        if !busy {
            own.asleep.store(1, Ordering::SeqCst);
            sys::futex_wait(&own.seq, seq, false, NAP_US);
            own.asleep.store(0, Ordering::SeqCst);
        }
    }
}
