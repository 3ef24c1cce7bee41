//! Several reads in flight from one thread: Linux's asynchronous reads (`io_submit`), where the kernel and its filters allow them.
//!
//! Used by the prefetch threads only: a fault reads what it waits for, and nothing is submitted from a signal handler. The
//! reads of a batch are all over before the thread leaves the gate, so none is in flight across a fork.
//!
//! # Safety
//! The structures are those of `linux/aio_abi.h` for little-endian machines. The kernel copies requests and lists of pieces
//! when they are submitted; the memory read to belongs to a work area whose holder waits for all reads before it goes on.
#![allow(unsafe_code)]

use crate::mm::{Context, Mm, PAGE};
use crate::sys::{self, Errno, Piece};
use crate::tiers::{self, Blocks};

/// Most reads in flight, and pieces of all of them.
const READS_MAX: usize = 64;
const PIECES_MAX: usize = 256;
const NUMBER_BITS: u32 = 6;

const PREADV: u16 = 7;
const RING_HEADER: u64 = 32;

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
    context: u64,
    requests: [Request; READS_MAX],
    pieces: [Piece; PIECES_MAX],
}

/// The kernel maps a ring of events for the reads: no use to a forked child, which has none in flight.
fn keep_from_children(context: u64) {
    // SAFETY: a context's number is the address of its ring, which begins with its number and how many events it has.
    let events = unsafe { (context as *const u32).add(1).read_volatile() };
    let len = RING_HEADER + u64::from(events) * size_of::<Event>() as u64;
    // SAFETY: advice on what was just mapped for us.
    let _ = unsafe { sys::madvise(context, len.next_multiple_of(PAGE), libc::MADV_DONTFORK) };
}

impl Aio {
    /// None: the kernel refuses, or all of the machine's are taken.
    pub fn new() -> Option<Aio> {
        let mut context = 0u64;
        // SAFETY: the kernel writes one word.
        let made = unsafe {
            sys::call(
                libc::SYS_io_setup,
                [READS_MAX as u64, &raw mut context as u64, 0, 0, 0, 0],
            )
        };
        made.ok()?;
        keep_from_children(context);
        Some(Aio {
            context,
            requests: [Request::default(); READS_MAX],
            pieces: [[0; 2]; PIECES_MAX],
        })
    }

    /// Reads all of `reads` into `context`, several in flight; as each is there, calls `over` with its number. What it is not
    /// called for could not be read, or there was no room for it.
    pub fn read(
        &mut self,
        mm: &Mm,
        reads: impl Iterator<Item = Blocks>,
        context: &mut Context,
        mut over: impl FnMut(usize, &Context),
    ) {
        let (mut added, mut used) = (0, 0);
        for blocks in reads.take(READS_MAX) {
            let Some(pieces) = self.pieces.get_mut(used..used + blocks.len) else {
                break;
            };
            let count = tiers::read_pieces(&blocks, context, pieces);
            let (file, offset) = tiers::file_of(mm, &blocks);
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
        let mut flying = self.submit(added);
        while flying > 0 {
            let mut events = [Event::default(); READS_MAX];
            let count = self.wait(flying, &mut events);
            flying -= count;
            for event in &events[..count] {
                if event.result == (event.data >> NUMBER_BITS) as i64 {
                    over((event.data & ((1 << NUMBER_BITS) - 1)) as usize, context);
                }
            }
        }
    }

    /// Starts the first `added` requests, in their order; how many of the first of them are in flight now.
    fn submit(&self, added: usize) -> usize {
        let pointers: [*const Request; READS_MAX] = core::array::from_fn(|i| &raw const self.requests[i]);
        let mut flying = 0;
        while flying < added {
            let rest = pointers[flying..].as_ptr() as u64;
            // SAFETY: that many pointers to requests, whose pieces are a work area's: its holder waits for all of them.
            let done = unsafe {
                sys::call(
                    libc::SYS_io_submit,
                    [self.context, (added - flying) as u64, rest, 0, 0, 0],
                )
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
    fn wait(&self, flying: usize, events: &mut [Event; READS_MAX]) -> usize {
        let at = events.as_mut_ptr() as u64;
        // SAFETY: room for that many events.
        let got = unsafe { sys::call(libc::SYS_io_getevents, [self.context, 1, flying as u64, at, 0, 0]) };
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
        let ring = format!("{:x}-", aio.context);
        let of_ring = maps.lines().skip_while(|line| !line.starts_with(&ring));
        let flags = of_ring.skip(1).find(|line| line.starts_with("VmFlags:")).unwrap();
        assert!(flags.split(' ').any(|flag| flag == "dc"), "{flags}");
        let next = maps
            .lines()
            .find(|line| line.contains("[aio]") && !line.starts_with(&ring));
        assert_eq!(next, None, "only a part of the ring");
    }
}
