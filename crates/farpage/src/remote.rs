//! Calls that reach into memory by a process's number instead of a pointer of the caller's: process_vm_readv and writev,
//! /proc/PID/mem, process_madvise.
//!
//! The kernel can't bring a swapped page of another process in either. So the call is made as it is; where it ends at
//! managed memory it goes on piece by piece, and before a piece is tried again its pages are brought in: those of this
//! process by pinning them, those of another process of the tree by asking it ([`ProcEntry::wanted`]), which its reclaimer
//! thread answers. (Under thread delivery the kernel does bring it in, but sleeps until the other process answers its fault: so
//! it is asked first.) Nothing is held meanwhile: a page that is evicted again before it was copied is asked for again. A process
//! that does not answer (it is stopped, or gone) ends the call with what was done so far, or the kernel's error.
//!
//! # Safety
//! Calls are re-issued with the program's own addresses, which the kernel checks.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::engine_stack;
use crate::fault::{self, Outcome};
use crate::mem;
use crate::mm::{Mm, PAGE, mm, page_of};
use crate::numbers;
use crate::pool::{MANAGED_PAGES, ProcEntry, entry_state, flag, is_managed};
use crate::sys;
use crate::trap::{self, Pins};

/// Pages asked for at a time, and the longest piece.
const PIECE_PAGES: u64 = 64;
/// How often a piece is tried without getting anywhere. A bad address looks like a page that was evicted again; and where little
/// room is left a page that was brought in goes within microseconds (8 tries once were not enough on a busy machine).
const TRIES: u32 = 64;
/// How long another process may take to answer, in nanoseconds.
const PATIENCE_NS: u64 = 2_000_000_000;
/// One sleep while waiting for it, in microseconds.
const NAP_US: u64 = 500;
const IOV_MAX: u64 = 1024;
const EINVAL: i64 = -(libc::EINVAL as i64);
const EFAULT: i64 = -(libc::EFAULT as i64);
const EIO: i64 = -(libc::EIO as i64);

/// A call of this module's kind; `None` if it is another, or has nothing to do with managed memory.
pub fn perform(nr: i64, args: [u64; 6]) -> Option<i64> {
    let [a, b, c, d, e, f] = args;
    match nr {
        libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => {
            let ends = (Side::new(b, c), Side::new(d, e));
            Some(across(
                Door::Process {
                    nr,
                    pid: a as i32,
                    flags: f,
                },
                ends,
                args,
            ))
        }
        libc::SYS_pread64 | libc::SYS_pwrite64 if is_managed(d) => {
            let pid = owner_of_mem(a as i32)?;
            let (near, far) = ([b, c.min(0x7fff_f000)], [d, c]);
            let ends = (
                Side::new(near.as_ptr() as u64, 1),
                Side::new(far.as_ptr() as u64, 1),
            );
            Some(across(Door::File { nr, fd: a, pid }, ends, args))
        }
        libc::SYS_process_madvise => advise(args),
        _ => None,
    }
}

/// A read or write that ended with EIO, as /proc/PID/mem answers at pages that are away: there the position is an address. `None`: it
/// is another file.
pub fn at_position(nr: i64, [fd, buffer, len, ..]: [u64; 6]) -> Option<i64> {
    let nr = match nr {
        libc::SYS_read => libc::SYS_pread64,
        libc::SYS_write => libc::SYS_pwrite64,
        _ => return None,
    };
    // SAFETY: the position of a file of the program's, which the call would have moved.
    let seek =
        |offset: u64, whence: i32| unsafe { sys::raw(libc::SYS_lseek, [fd, offset, whence as u64, 0, 0, 0]) };
    let position = u64::try_from(seek(0, libc::SEEK_CUR)).ok()?;
    let done = perform(nr, [fd, buffer, len, position, 0, 0])?;
    if done > 0 {
        seek(position + done as u64, libc::SEEK_SET);
    }
    Some(done)
}

/// How the other side's memory is reached.
#[derive(Clone, Copy)]
enum Door {
    Process { nr: i64, pid: i32, flags: u64 },
    File { nr: i64, fd: u64, pid: i32 },
}

impl Door {
    fn pid(self) -> i32 {
        match self {
            Door::Process { pid, .. } | Door::File { pid, .. } => pid,
        }
    }

    /// Transfers `len` bytes between `near` in this process and `far`.
    fn transfer(self, near: u64, far: u64, len: u64) -> i64 {
        match self {
            Door::Process { nr, pid, flags } => {
                let (near, far) = ([near, len], [far, len]);
                let iov = (near.as_ptr() as u64, far.as_ptr() as u64);
                trap::perform_whole(nr, [pid as u64, iov.0, 1, iov.1, 1, flags])
            }
            Door::File { nr, fd, pid } => {
                let call = Door::Process {
                    nr: libc::SYS_process_vm_writev,
                    pid,
                    flags: 0,
                };
                if self.writes_by_file()
                    && is_managed(far)
                    && !is_own(pid)
                    && call.transfer(near, far, len) == len as i64
                {
                    return len as i64;
                }
                trap::perform_whole(nr, [fd, near, len, far, 0, 0])
            }
        }
    }

    /// Whether it writes by a file of /proc. There the kernel takes each page without holding it for DMA: it may have been moved out, and copied,
    /// by the time it is written. process_vm_writev holds it, but can't write what the owner can't.
    fn writes_by_file(self) -> bool {
        matches!(
            self,
            Door::File {
                nr: libc::SYS_pwrite64,
                ..
            }
        )
    }
}

/// A place in an iovec array.
#[derive(Clone, Copy)]
struct Side {
    array: u64,
    count: u64,
    index: u64,
    done: u64,
}

impl Side {
    fn new(array: u64, count: u64) -> Side {
        Side {
            array,
            count,
            index: 0,
            done: 0,
        }
    }

    fn element(&self, index: u64) -> Option<[u64; 2]> {
        trap::pieces::iov_element(self.array, index)
    }

    /// Where the next byte goes and how many may follow it there; `None` at the end, or where the array is unreadable.
    fn rest(&mut self) -> Option<(u64, u64)> {
        while self.index < self.count {
            let [base, len] = self.element(self.index)?;
            if self.done < len {
                return Some((base.wrapping_add(self.done), len - self.done));
            }
            self.done -= len;
            self.index += 1;
        }
        None
    }

    /// Bytes of all elements together, and whether one of them is managed.
    fn total(&self) -> Option<(u64, bool)> {
        let (mut sum, mut managed) = (0u64, false);
        for index in 0..self.count {
            let [base, len] = self.element(index)?;
            sum = sum.saturating_add(len);
            managed |= is_managed(base);
        }
        Some((sum, managed))
    }
}

/// The kernel's single call first: it checks the arguments and the permission, and mostly does it all. Not under thread
/// delivery, where it would sleep in a fault for as long as the other process is stopped: there each piece is asked for first.
fn across(door: Door, (near, far): (Side, Side), args: [u64; 6]) -> i64 {
    let nr = match door {
        Door::Process { nr, .. } | Door::File { nr, .. } => nr,
    };
    let mm = mm();
    if near.count > IOV_MAX || far.count > IOV_MAX || !mm.is_active() {
        return trap::perform_whole(nr, args);
    }
    let (Some(ours), Some(theirs)) = (near.total(), far.total()) else {
        return trap::perform_whole(nr, args);
    };
    let total = ours.0.min(theirs.0);
    let own = is_own(door.pid());
    let ask_first = mm.header().has(flag::THREAD_DELIVERY)
        && !own
        && theirs.1
        && (1..=i64::MAX as u64).contains(&total)
        && entry_of(mm, door.pid()).is_some();
    let mut walk = Transfer {
        door,
        near,
        far,
        own,
        ask_first,
    };
    // Piece by piece from the start: own pages are pinned for each. Whether the file may be written is asked by a write of nothing.
    let by_pieces =
        total > 0 && theirs.1 && door.writes_by_file() && (own || entry_of(mm, door.pid()).is_some());
    if by_pieces {
        let refused = trap::perform_whole(nr, [args[0], args[1], 0, args[3], 0, 0]);
        if refused < 0 {
            return refused;
        }
    }
    if ask_first || by_pieces {
        return walk.go_on(EFAULT);
    }
    let result = trap::perform_whole(nr, args);
    let failed = result < 0 && !matches!(result, EFAULT | EIO);
    if failed || result >= total as i64 || !(ours.1 || theirs.1) {
        return result;
    }
    let before = result.max(0) as u64;
    (walk.near.done, walk.far.done) = (before, before);
    match walk.go_on(result) {
        more if result < 0 => more,
        more => result + more.max(0),
    }
}

struct Transfer {
    door: Door,
    near: Side,
    far: Side,
    /// The other side is this process.
    own: bool,
    ask_first: bool,
}

impl Transfer {
    /// Goes on piece by piece; the bytes done from here, else the last error (`nothing` where no call was made).
    fn go_on(&mut self, nothing: i64) -> i64 {
        let mm = mm();
        let (mut done, mut error, mut tries) = (0, nothing, 0);
        while let (Some((at, room)), Some((there, rest))) = (self.near.rest(), self.far.rest()) {
            let len = room.min(rest).min(PIECE_PAGES * PAGE - there % PAGE);
            let ask = || is_managed(there) && ask(mm, self.door.pid(), there, len);
            // Of a process that is gone meanwhile the kernel says so.
            if self.ask_first && is_managed(there) && !ask() && entry_of(mm, self.door.pid()).is_some() {
                break;
            }
            let mut pins = Pins::new();
            if self.own {
                pins.add(mm, there, len);
            }
            let result = self.door.transfer(at, there, len);
            pins.release(mm);
            if result > 0 {
                self.near.done += result as u64;
                self.far.done += result as u64;
                done += result;
                tries = 0;
                continue;
            }
            error = result;
            tries += 1;
            let final_word = !matches!(result, EFAULT | EIO);
            if final_word || self.own || tries > TRIES || !(self.ask_first || ask()) {
                break;
            }
        }
        if done > 0 { done } else { error }
    }
}

/// Whether `pid` is this process or one of its threads.
fn is_own(pid: i32) -> bool {
    let me = sys::getpid();
    // SAFETY: signal 0 is only looked at.
    pid == me || unsafe { sys::raw(libc::SYS_tgkill, [me as u64, pid as u64, 0, 0, 0, 0]) } == 0
}

/// Whether an entry is that of the process with this number in the tree, and it manages its memory.
fn is_active(entry: &ProcEntry, number: i32) -> bool {
    entry.state.load(Ordering::Acquire) == entry_state::LIVE
        && entry.active.load(Ordering::Relaxed) != 0
        && entry.pid.load(Ordering::Relaxed) == number
}

/// The entry of who is `pid` to the caller.
fn entry_of(mm: &Mm, pid: i32) -> Option<&'static ProcEntry> {
    let number = numbers::of(pid).ok()?;
    mm.pool()
        .processes()
        .iter()
        .find(|entry| is_active(entry, number))
}

/// Asks process `pid` of the tree to bring in the pages at `addr`, and waits. False: it can't be asked, or does not answer.
fn ask(mm: &Mm, pid: i32, addr: u64, len: u64) -> bool {
    let Some(entry) = entry_of(mm, pid) else {
        return false;
    };
    let number = entry.pid.load(Ordering::Relaxed);
    let pages = (addr % PAGE + len).div_ceil(PAGE).min(PIECE_PAGES);
    let request = Request {
        page: page_of(addr),
        pages,
    }
    .raw();
    let until = sys::now_ns() + PATIENCE_NS;
    let mut posted = false;
    loop {
        if !posted {
            posted = entry
                .wanted
                .compare_exchange(0, request, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok();
            if posted {
                mm.header().ask_to_reclaim();
            }
        }
        let seq = mm.header().reclaim_seq.load(Ordering::SeqCst);
        if posted && entry.wanted.load(Ordering::SeqCst) != request {
            return true;
        }
        if sys::now_ns() > until || !is_active(entry, number) {
            // Whoever asked the process that does not answer: the place is free for the next to try.
            let stale = entry.wanted.load(Ordering::Relaxed);
            let _ = entry
                .wanted
                .compare_exchange(stale, 0, Ordering::Relaxed, Ordering::Relaxed);
            return false;
        }
        sys::futex_wait(&mm.header().reclaim_seq, seq, true, NAP_US);
    }
}

/// Pages that another process asks for, in one word that is never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    page: u64,
    /// 1 to [`PIECE_PAGES`].
    pages: u64,
}

const PAGES_SHIFT: u32 = 32;

impl Request {
    fn raw(self) -> u64 {
        self.pages << PAGES_SHIFT | self.page
    }

    fn from_raw(raw: u64) -> Option<Request> {
        let request = Request {
            page: raw & ((1 << PAGES_SHIFT) - 1),
            pages: raw >> PAGES_SHIFT,
        };
        let inside = request.page + request.pages <= MANAGED_PAGES;
        (inside && (1..=PIECE_PAGES).contains(&request.pages)).then_some(request)
    }
}

/// In the reclaimer thread: brings in what another process asked this one for.
pub fn answer(mm: &Mm) {
    let wanted = &mm.entry().wanted;
    let raw = wanted.load(Ordering::SeqCst);
    if raw == 0 {
        return;
    }
    if let Some(Request { page, pages }) = Request::from_raw(raw) {
        for page in page..page + pages {
            if fault::fault(mm, page) == Outcome::NotManaged {
                break;
            }
        }
    }
    let _ = wanted.compare_exchange(raw, 0, Ordering::SeqCst, Ordering::Relaxed);
    mm.header().ask_to_reclaim();
}

/// The process behind a descriptor of /proc/PID/mem.
fn owner_of_mem(fd: i32) -> Option<i32> {
    let number = sys::Num::new(u64::try_from(fd).ok()?, 10);
    let path = sys::path(&["/proc/thread-self/fd/", number.text()]);
    let mut target = [0u8; 64];
    // SAFETY: a path and a buffer of ours.
    let len = unsafe {
        let to = (target.as_mut_ptr() as u64, target.len() as u64);
        sys::call(libc::SYS_readlink, [path.as_ptr() as u64, to.0, to.1, 0, 0, 0]).ok()? as usize
    };
    let rest = target
        .get(..len)?
        .strip_prefix(b"/proc/")?
        .strip_suffix(b"/mem")?;
    numbers::parse(rest.split(|&byte| byte == b'/').next()?)
}

/// The number in the tree of the process behind a pidfd.
fn owner_of_pidfd(fd: i32) -> Option<i32> {
    const SELF: [i32; 3] = [-10_000, -10_001, -20_000]; // PIDFD_SELF_THREAD, _THREAD_GROUP, and as it first was
    if SELF.contains(&fd) {
        return numbers::own();
    }
    numbers::behind(fd)
}

/// process_madvise on this process: each range as madvise would have it. On another it is the kernel's affair: what is
/// allowed there changes no content.
fn advise(args: [u64; 6]) -> Option<i64> {
    let [pidfd, array, count, advice, flags, _] = args;
    let ranges = Side::new(array, count);
    if !mm().is_active() || count > IOV_MAX || !ranges.total()?.1 {
        return Some(trap::perform_whole(libc::SYS_process_madvise, args));
    }
    let is_own = numbers::own().is_some_and(|own| owner_of_pidfd(pidfd as i32) == Some(own));
    if !is_own {
        return Some(trap::perform_whole(libc::SYS_process_madvise, args));
    }
    // Without ranges the kernel tells whether it would do this at all.
    // SAFETY: an empty array.
    let allowed = unsafe { sys::raw(libc::SYS_process_madvise, [pidfd, array, 0, advice, flags, 0]) };
    if allowed < 0 {
        return Some(allowed);
    }
    let mut done = 0i64;
    for index in 0..count {
        let [base, len] = ranges.element(index)?;
        let result = if i64::try_from(len).is_err() {
            EINVAL
        } else {
            // The stack may be a coroutine's, and away.
            engine_stack::blocked(|| mem::madvise(base, len, advice as i32))
        };
        if result < 0 {
            return Some(if done > 0 { done } else { result });
        }
        done += len as i64;
    }
    Some(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_keep_their_pages() {
        for (page, pages) in [
            (0, 1),
            (MANAGED_PAGES - 1, 1),
            (MANAGED_PAGES - 64, 64),
            (12345, 7),
        ] {
            let request = Request { page, pages };
            assert_ne!(request.raw(), 0);
            assert_eq!(Request::from_raw(request.raw()), Some(request));
        }
    }

    #[test]
    fn requests_out_of_range_are_none() {
        for (page, pages) in [
            (0, 0),
            (0, PIECE_PAGES + 1),
            (MANAGED_PAGES, 1),
            (MANAGED_PAGES - 1, 2),
        ] {
            assert_eq!(Request::from_raw(Request { page, pages }.raw()), None);
        }
    }

    #[test]
    fn finds_the_owner_of_a_mem_file_and_of_a_pidfd() {
        let pid = sys::getpid();
        for path in ["/proc/self/mem", "/proc/thread-self/mem"] {
            let file = std::fs::File::open(path).unwrap();
            assert_eq!(
                owner_of_mem(std::os::fd::AsRawFd::as_raw_fd(&file)),
                Some(pid),
                "{path}"
            );
        }
        let other = std::fs::File::open("/proc/self/maps").unwrap();
        assert_eq!(owner_of_mem(std::os::fd::AsRawFd::as_raw_fd(&other)), None);
        // SAFETY: opens a descriptor.
        let fd = unsafe { sys::call(libc::SYS_pidfd_open, [pid as u64, 0, 0, 0, 0, 0]).unwrap() } as i32;
        assert_eq!(owner_of_pidfd(fd), Some(pid));
        assert_eq!(owner_of_pidfd(std::os::fd::AsRawFd::as_raw_fd(&other)), None);
        sys::close(fd);
    }
}
