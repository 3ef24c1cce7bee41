//! Several reads in flight from one thread: Linux's asynchronous reads (`io_submit`), where the kernel and its filters allow them.
//!
//! Used by the prefetch threads, and by faults that look for the end of their one read without sleeping (`watch`). All reads are
//! over before the thread leaves the gate, so none is in flight across a fork.
//!
//! # Safety
//! The structures are those of `linux/aio_abi.h` for little-endian machines. The kernel copies requests and lists of pieces
//! when they are submitted; the memory read to belongs to a work area whose holder waits for all reads before it goes on.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering};

use crate::mm::{Mm, PAGE};
use crate::sys::{self, Errno, Piece};
use crate::tiers::{self, Blocks};
use crate::work_area::Context;

/// Most reads in flight, and pieces of all of them.
const READS_MAX: usize = farpage_core::pace::DEPTH_MAX as usize;
const PIECES_MAX: usize = 256;
const NUMBER_BITS: u32 = 6;

const PREADV: u16 = 7;
const RING_HEADER: u64 = 32;
/// Between two looks at the ring, and looks between two questions whether to go on: about 0.2 us and 2 us.
const PAUSES: u32 = 8;
const LOOKS: u32 = 8;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Request {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    pieces: u64,
    count: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    request: u64,
    result: i64,
    result2: i64,
}

/// The reads of one thread.
pub struct Aio {
    ring: Ring,
    requests: [Request; READS_MAX],
    pieces: [Piece; PIECES_MAX],
}

/// A queue of reads, by the kernel's number for it.
#[derive(Clone, Copy)]
pub struct Ring(u64);

/// The kernel maps a ring of events for the reads: no use to a forked child, which has none in flight.
fn keep_from_children(context: u64) {
    // SAFETY: a context's number is the address of its ring, which begins with its number and how many events it has.
    let events = unsafe { (context as *const u32).add(1).read_volatile() };
    let len = RING_HEADER + u64::from(events) * size_of::<Event>() as u64;
    // SAFETY: advice on what was just mapped for us.
    let _ = unsafe { sys::madvise(context, len.next_multiple_of(PAGE), libc::MADV_DONTFORK) };
}

impl Ring {
    /// One for so many reads in flight. None: the kernel refuses, or all of the machine's are taken.
    pub fn new(reads: usize) -> Option<Ring> {
        let mut context = 0u64;
        // SAFETY: the kernel writes one word.
        let made = unsafe {
            sys::call(
                libc::SYS_io_setup,
                [reads as u64, &raw mut context as u64, 0, 0, 0, 0],
            )
        };
        made.ok()?;
        keep_from_children(context);
        Some(Ring(context))
    }

    /// The number, by which it can be kept in a word; not 0.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The one of a number that [`Self::number`] gave in this process.
    pub fn of_number(number: u64) -> Option<Ring> {
        (number != 0).then_some(Ring(number))
    }

    /// Reads from `file` at `offset` to the pieces, and asks `goes_on` now and then whether to look for the end without sleeping;
    /// how many bytes were read. None: nothing was begun. This is the ring's one read in flight.
    ///
    /// # Safety
    /// The pieces are writable memory that nobody else uses meanwhile.
    pub unsafe fn read_alone(
        self,
        file: i32,
        offset: u64,
        pieces: &[Piece],
        goes_on: impl FnMut() -> bool,
    ) -> Option<u64> {
        let request = Request {
            opcode: PREADV,
            fd: file as u32,
            pieces: pieces.as_ptr() as u64,
            count: pieces.len() as u64,
            offset: offset as i64,
            ..Request::default()
        };
        if self.submit(&[&raw const request]) == 0 {
            return None;
        }
        let event = self.look(goes_on).or_else(|| {
            let mut event = [Event::default()];
            while self.wait(1, &mut event) == 0 {}
            Some(event[0])
        });
        event.map(|event| event.result.max(0) as u64)
    }

    /// The next event, taken off the ring in memory: no system call. The kernel writes an event before it moves the tail on, and
    /// looks at the head only to see what is free.
    fn look(self, mut goes_on: impl FnMut() -> bool) -> Option<Event> {
        // SAFETY: the ring's header as `aio_abi` has it since it is mapped: id, length, head, tail.
        let header = unsafe { &*(self.0 as *const [AtomicU32; RING_HEADER as usize / 4]) };
        let (len, head) = (
            header[1].load(Ordering::Relaxed),
            header[2].load(Ordering::Relaxed),
        );
        let mut looks = 0u32;
        while header[3].load(Ordering::Acquire) == head {
            (0..PAUSES).for_each(|_| core::hint::spin_loop());
            looks += 1;
            if looks.is_multiple_of(LOOKS) && !goes_on() {
                return None;
            }
        }
        let at = self.0 + RING_HEADER + u64::from(head) * size_of::<Event>() as u64;
        // SAFETY: head is below the number of events, which follow the header; this one was written before the tail.
        let event = unsafe { (at as *const Event).read_volatile() };
        header[2].store((head + 1) % len, Ordering::Release);
        Some(event)
    }

    /// Starts requests in their order; how many of the first of them are in flight now.
    fn submit(self, requests: &[*const Request]) -> usize {
        let mut flying = 0;
        while flying < requests.len() {
            let rest = &requests[flying..];
            // SAFETY: that many pointers to requests, whose pieces are their holder's: it waits for all of them.
            let done = unsafe {
                let (count, at) = (rest.len() as u64, rest.as_ptr() as u64);
                sys::call(libc::SYS_io_submit, [self.0, count, at, 0, 0, 0])
            };
            match done {
                Ok(done) if done > 0 => flying += done as usize,
                Err(Errno(libc::EINTR)) => {}
                _ => break,
            }
        }
        flying
    }

    /// Waits until some of the reads in flight are over; how many.
    fn wait(self, flying: usize, events: &mut [Event]) -> usize {
        let (most, at) = (flying.min(events.len()) as u64, events.as_mut_ptr() as u64);
        // SAFETY: room for that many events.
        let got = unsafe { sys::call(libc::SYS_io_getevents, [self.0, 1, most, at, 0, 0]) };
        match got {
            Ok(count) => count as usize,
            Err(Errno(libc::EINTR)) => 0,
            // They may write to the work area after it has got another holder.
            Err(_) => sys::die(&[
                "farpage: the kernel lost reads in flight; the program was stopped so that no wrong data is used",
            ]),
        }
    }
}

impl Aio {
    /// None: the kernel refuses, or all of the machine's are taken.
    pub fn new() -> Option<Aio> {
        Some(Aio {
            ring: Ring::new(READS_MAX)?,
            requests: [Request::default(); READS_MAX],
            pieces: [[0; 2]; PIECES_MAX],
        })
    }

    /// Reads all of `reads` into `context`, as many in flight as the device's pace allows; as each is there, calls `over` with its
    /// number. What it is not called for could not be read, or there was no room for it.
    pub fn read(
        &mut self,
        mm: &Mm,
        reads: impl Iterator<Item = Blocks>,
        context: &mut Context,
        mut over: impl FnMut(usize, &Context),
    ) {
        let (mut added, mut used, mut depth, now) = (0, 0, READS_MAX, sys::now_ns());
        for blocks in reads.take(READS_MAX) {
            let Some(pieces) = self.pieces.get_mut(used..used + blocks.len) else {
                break;
            };
            let count = tiers::read_pieces(&blocks, context, pieces);
            let (file, offset) = tiers::file_of(mm, blocks.first);
            let area = &mm.header().area[usize::from(blocks.first.0)];
            depth = depth.min(area.pace.depth(now));
            self.requests[added] = Request {
                // Its number, and what the kernel shall say it read.
                data: added as u64 | (blocks.len as u64 * PAGE) << NUMBER_BITS,
                opcode: PREADV,
                fd: file as u32,
                pieces: pieces.as_ptr() as u64,
                count: count as u64,
                offset: offset as i64,
                ..Request::default()
            };
            (added, used) = (added + 1, used + count);
        }
        let requests: [*const Request; READS_MAX] = core::array::from_fn(|i| &raw const self.requests[i]);
        let (mut next, mut flying) = (0, 0);
        loop {
            let most = added.min(next + (depth - flying));
            let begun = self.ring.submit(&requests[next..most]);
            if begun < most - next {
                // What can't be begun is left to the caller.
                added = next + begun;
            }
            (next, flying) = (next + begun, flying + begun);
            if flying == 0 {
                return;
            }
            let mut events = [Event::default(); READS_MAX];
            let count = self.ring.wait(flying, &mut events);
            flying -= count;
            for event in &events[..count] {
                if event.result == (event.data >> NUMBER_BITS) as i64 {
                    over((event.data & ((1 << NUMBER_BITS) - 1)) as usize, context);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_the_kernels() {
        assert_eq!((size_of::<Request>(), size_of::<Event>()), (64, 32));
        assert_eq!(core::mem::offset_of!(Request, opcode), 16);
        assert_eq!(core::mem::offset_of!(Request, offset), 40);
    }

    /// The ring would pile up in children of children.
    #[test]
    fn the_ring_is_not_inherited() {
        let aio = Aio::new().expect("io_setup: forbidden here, or fs.aio-max-nr is used up");
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let ring = format!("{:x}-", aio.ring.number());
        let of_ring = maps.lines().skip_while(|line| !line.starts_with(&ring));
        let flags = of_ring.skip(1).find(|line| line.starts_with("VmFlags:")).unwrap();
        assert!(flags.split(' ').any(|flag| flag == "dc"), "{flags}");
        let next = maps
            .lines()
            .find(|line| line.contains("[aio]") && !line.starts_with(&ring));
        assert_eq!(next, None, "only a part of the ring");
    }
}
