//! System calls that other threads are in while this process becomes active.
//!
//! The seccomp filter traps the calls that begin after it. One that is in the kernel already (a read that waits for a socket) would
//! get EFAULT as soon as its buffer has been swapped out, or is registered before anything was written to it. So once the filter
//! stands, and before any memory is registered, each other thread is looked at in /proc/self/task:
//!
//! - one that waits in a call: what the call may touch is made present, and pinned until the thread is seen elsewhere;
//! - one that runs may be in a call or not: a signal of ours makes it pass through its handler, after which it is in none that began
//!   before the filter. (One that goes to sleep at that very moment is interrupted: the kernel restarts the call, or it answers
//!   EINTR, as after any signal with a handler.)
//!
//! # Safety
//! Reads files of /proc into buffers on the stack; the table of kept ranges is memory of ours.
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use crate::engine_stack::if_managed;
use crate::fault;
use crate::gate::Spin;
use crate::mm::{Mm, PAGE, address};
use crate::pool::flag;
use crate::proc_dirs::{self, each_entry};
use crate::sentinel;
use crate::sys::{self, Errno, Num};
use crate::syscalls;
use crate::trap;

/// Ranges of calls in flight that can be kept. Of a program that has more, the last ones' calls may answer EFAULT.
const KEPT_MAX: usize = 4096;
/// In the place of a call: what is kept until its thread has ended.
const ENDING: u64 = 0;
/// Threads that are signalled together.
const TOGETHER: usize = 64;
/// How long is waited for them: one may sleep where no signal wakes it, and is then looked at again.
const PATIENCE_NS: u64 = 1_000_000_000;
const NAP_US: u64 = 100;
/// How often is looked whether the calls have ended.
const WATCH_NS: (u64, u64) = (20_000_000, 1_000_000_000);
const POPULATE_READ: i32 = 22;
const POPULATE_WRITE: i32 = 23;
/// Threads that have to pass through the handler. The signal carries its address, so as not to be taken for one of the program's.
static AWAITED: [AtomicI32; TOGETHER] = [const { AtomicI32::new(0) }; TOGETHER];

/// Pages `lo..hi` that a call of thread `tid` may touch.
#[derive(Clone, Copy)]
struct Range {
    tid: i32,
    /// Checksum of the call's description, or [`ENDING`].
    call: u64,
    lo: u64,
    hi: u64,
}

struct Kept {
    /// Address of `KEPT_MAX` ranges; 0: none yet.
    table: u64,
    len: usize,
    /// In all of them.
    pages: u64,
}

static KEPT: Spin<Kept> = Spin::new(Kept {
    table: 0,
    len: 0,
    pages: 0,
});
/// When is looked next, and how long after that again; 0: nothing is kept.
static NEXT_NS: AtomicU64 = AtomicU64::new(0);
static EVERY_NS: AtomicU64 = AtomicU64::new(WATCH_NS.0);

impl Kept {
    /// False: there is no room.
    fn push(&mut self, range: Range) -> bool {
        if self.table == 0 {
            self.table = sys::engine_memory((KEPT_MAX * size_of::<Range>()) as u64).unwrap_or(0);
        }
        let has_room = self.table != 0 && self.len < KEPT_MAX;
        if has_room {
            let at = self.len;
            self.len += 1;
            self.pages += range.hi - range.lo;
            self.ranges()[at] = range;
        }
        has_room
    }

    fn ranges(&mut self) -> &mut [Range] {
        if self.table == 0 {
            return &mut [];
        }
        // SAFETY: memory of ours for KEPT_MAX ranges, any bytes of which are one; `len` is at most that.
        unsafe { core::slice::from_raw_parts_mut(self.table as *mut Range, self.len) }
    }

    /// Lets every range go that `ends` names, but for the pins of `unmapped` pages, which went with their mapping.
    fn release(&mut self, mm: &Mm, unmapped: core::ops::Range<u64>, ends: impl Fn(&Range) -> bool) {
        let mut at = 0;
        while let Some(range) = self.ranges().get(at).copied() {
            if !ends(&range) {
                at += 1;
                continue;
            }
            (range.lo..range.hi)
                .filter(|page| !unmapped.contains(page))
                .for_each(|page| fault::unpin(mm, page));
            let last = self.len - 1;
            self.ranges().swap(at, last);
            self.len = last;
            self.pages -= range.hi - range.lo;
        }
        if self.len == 0 {
            NEXT_NS.store(0, Ordering::Relaxed);
        }
    }
}

/// What /proc says of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Gone,
    Running,
    /// Asleep, in no call.
    Elsewhere,
    Call {
        nr: i64,
        args: [u64; 6],
        call: u64,
    },
}

/// Makes sure that no call of another thread began before the filter, or that what it may touch is present and noted for [`pin`]. The
/// caller is alone inside the gate, the filter stands, nothing is registered.
pub fn settle(mm: &Mm) -> Result<(), Errno> {
    // There the kernel waits for a page like everybody else.
    if mm.header().has(flag::THREAD_DELIVERY) {
        return Ok(());
    }
    let (own, sentinel) = (sys::gettid(), sentinel::tid());
    let mut running = 0;
    each_thread(|tid| {
        if tid == own || tid == sentinel {
            return;
        }
        let seen = look_past_vfork(tid);
        keep(mm, tid, seen);
        if seen == Seen::Running {
            AWAITED[running].store(tid, Ordering::SeqCst);
            running += 1;
        }
        if running == TOGETHER {
            pass_through_handler(mm);
            running = 0;
        }
    })?;
    if running > 0 {
        pass_through_handler(mm);
    }
    Ok(())
}

/// Waits until a child that runs in this memory (vfork) has become a program: it was made before the filter, so its faults and calls
/// are nobody's.
fn look_past_vfork(tid: i32) -> Seen {
    let start = sys::now_ns();
    loop {
        let seen = look(tid);
        let borrows = match seen {
            Seen::Call { nr, args, .. } => match nr {
                libc::SYS_vfork | libc::SYS_clone3 => true,
                libc::SYS_clone => args[0] & libc::CLONE_VFORK as u64 != 0,
                _ => false,
            },
            _ => false,
        };
        if !borrows || sys::now_ns() - start > PATIENCE_NS {
            return seen;
        }
        nap();
    }
}

fn nap() {
    sys::futex_wait(&AtomicU32::new(0), 0, false, NAP_US);
}

/// Has each thread of [`AWAITED`] run our signal handler, unless it has gone to sleep meanwhile.
fn pass_through_handler(mm: &Mm) {
    let tids: [i32; TOGETHER] = core::array::from_fn(|at| AWAITED[at].load(Ordering::SeqCst));
    for (tid, awaited) in tids.iter().zip(&AWAITED).filter(|(tid, _)| **tid != 0) {
        let seen = look(*tid);
        keep(mm, *tid, seen);
        if seen != Seen::Running || !interrupt(*tid) {
            awaited.store(0, Ordering::SeqCst);
        }
    }
    let start = sys::now_ns();
    while AWAITED.iter().any(|awaited| awaited.load(Ordering::SeqCst) != 0) {
        let late = sys::now_ns() - start > PATIENCE_NS;
        for awaited in &AWAITED {
            let tid = awaited.load(Ordering::SeqCst);
            if tid == 0 {
                continue;
            }
            if late || look(tid) == Seen::Gone {
                awaited.store(0, Ordering::SeqCst);
            }
        }
        nap();
    }
    // One that had decided for a call of a dormant process before, and made it only now, waits in it.
    for tid in tids.into_iter().filter(|tid| *tid != 0) {
        keep(mm, tid, look(tid));
    }
}

/// Sends a thread of this process the signal that [`is_interrupt`] knows.
fn interrupt(tid: i32) -> bool {
    let mut info = [0u64; 16]; // siginfo: number and errno, code, sender, value
    info[0] = libc::SIGBUS as u64;
    info[1] = u64::from(libc::SI_QUEUE as u32);
    info[2] = sys::getpid() as u64;
    info[3] = AWAITED.as_ptr() as u64;
    let args = [
        sys::getpid() as u64,
        tid as u64,
        libc::SIGBUS as u64,
        info.as_ptr() as u64,
        0,
        0,
    ];
    // SAFETY: a whole siginfo; the handler for SIGBUS is ours.
    unsafe { sys::raw(libc::SYS_rt_tgsigqueueinfo, args) == 0 }
}

/// Called by the handler of SIGBUS: whether it is the signal of [`interrupt`], which has then done its work.
pub fn is_interrupt(code: i32, value: u64) -> bool {
    if code != libc::SI_QUEUE || value != AWAITED.as_ptr() as u64 {
        return false;
    }
    let own = sys::gettid();
    for awaited in &AWAITED {
        // Who is no longer awaited came too late, and was seen to.
        let _ = awaited.compare_exchange(own, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
    true
}

/// Makes present what the call that a thread was seen in may touch, and notes it. At most half the limit for all together.
fn keep(mm: &Mm, tid: i32, seen: Seen) {
    let Seen::Call { nr, args, call } = seen else {
        return;
    };
    // A call that goes on after a stop has the arguments of the one it was.
    let nr = if nr == libc::SYS_restart_syscall {
        syscalls::NUMBERS
    } else {
        nr as usize
    };
    let most = most_pages(mm);
    let mut read = trap::read_word;
    syscalls::ranges(nr, &args, &mut read, &mut |start, len| {
        let Some((lo, hi)) = trap::managed_part(start, len) else {
            return;
        };
        let mut kept = KEPT.lock();
        let hi = hi.min(lo + most.saturating_sub(kept.pages));
        make_present(lo, hi);
        let _ = kept.push(Range { tid, call, lo, hi });
    });
}

/// Half the limit, or what is kept would keep all others from making room.
fn most_pages(mm: &Mm) -> u64 {
    (mm.header().last_limit() / 2).max(512) as u64
}

/// Keeps a page, which the caller has pinned, until the calling thread has ended: the kernel touches it then, and nobody else could
/// let it go. Beyond what may be kept it is not.
pub fn keep_to_end(mm: &Mm, page: u64) {
    if_managed(|| keep_inside(mm, page));
}

fn keep_inside(mm: &Mm, page: u64) {
    let mask = sys::block_signals();
    {
        let _inside = mm.gate.shared();
        let mut kept = KEPT.lock();
        let range = Range {
            tid: sys::gettid(),
            call: ENDING,
            lo: page,
            hi: page + 1,
        };
        // It may have been unmapped since, and its pin with it.
        if kept.pages < most_pages(mm) && fault::pin_present(mm, page) {
            if kept.push(range) {
                look_soon();
            } else {
                fault::unpin(mm, page);
            }
        }
    }
    sys::set_mask(mask);
}

fn look_soon() {
    EVERY_NS.store(WATCH_NS.0, Ordering::Relaxed);
    NEXT_NS.store(sys::now_ns() + WATCH_NS.0, Ordering::Relaxed);
}

/// Has the kernel make pages present that are not registered.
pub fn make_present(lo: u64, hi: u64) {
    let (from, bytes) = (address(lo), (hi - lo) * PAGE);
    // SAFETY: brings pages of the program in, as a touch would; what is not mapped is an error and stays so.
    unsafe {
        if sys::madvise(from, bytes, POPULATE_WRITE).is_err() {
            let _ = sys::madvise(from, bytes, POPULATE_READ);
        }
    }
}

/// Pins what [`settle`] noted, now that it is in the books. The caller is alone inside the gate.
pub fn pin(mm: &Mm) {
    let mut kept = KEPT.lock();
    for range in kept.ranges() {
        let present = (range.lo..range.hi).take_while(|page| fault::pin_present(mm, *page));
        range.hi = range.lo + present.count() as u64;
    }
    kept.pages = kept.ranges().iter().map(|range| range.hi - range.lo).sum();
    if kept.len > 0 {
        look_soon();
    }
}

/// Lets go what calls had that have ended. Called by the reclaimer thread.
pub fn watch(mm: &Mm) {
    let (next, now) = (NEXT_NS.load(Ordering::Relaxed), sys::now_ns());
    if next == 0 || now < next {
        return;
    }
    let every = (EVERY_NS.load(Ordering::Relaxed) * 2).min(WATCH_NS.1);
    EVERY_NS.store(every, Ordering::Relaxed);
    NEXT_NS.store(now + every, Ordering::Relaxed);
    // No fork meanwhile: the child could not take the lock.
    let _inside = mm.gate.shared();
    KEPT.lock().release(mm, 0..0, |range| !may_be_in(range));
}

/// The same at once, for a thread that is about to say something about pages, and is in no such call itself.
pub fn watch_now(mm: &Mm) {
    if NEXT_NS.load(Ordering::Relaxed) != 0 {
        let mask = sys::block_signals();
        {
            let _inside = mm.gate.shared();
            let own = sys::gettid();
            let is_past = |range: &Range| range.tid == own && range.call != ENDING;
            KEPT.lock()
                .release(mm, 0..0, |range| is_past(range) || !may_be_in(range));
        }
        sys::set_mask(mask);
    }
}

/// Whether a thread may be in the call that it was in, or at its end. One that runs is sent through the handler to be sure that it is not in
/// a call.
fn may_be_in(range: &Range) -> bool {
    let seen = look(range.tid);
    if range.call == ENDING {
        // What is left of the first thread, while there are others, is in no call.
        let is_first = range.tid == sys::getpid();
        return seen != Seen::Gone && !(is_first && seen == Seen::Elsewhere);
    }
    match seen {
        Seen::Call { call, .. } => call == range.call,
        Seen::Gone | Seen::Elsewhere => false,
        Seen::Running => {
            AWAITED[0].store(range.tid, Ordering::SeqCst);
            if interrupt(range.tid) {
                (0..10)
                    .take_while(|_| AWAITED[0].load(Ordering::SeqCst) != 0)
                    .for_each(|_| nap());
            }
            AWAITED[0].swap(0, Ordering::SeqCst) != 0
        }
    }
}

/// Pages `lo..hi` are unmapped or moved away, and their pins gone. The caller is alone inside the gate.
pub fn unmapped(mm: &Mm, lo: u64, hi: u64) {
    if NEXT_NS.load(Ordering::Relaxed) != 0 {
        KEPT.lock()
            .release(mm, lo..hi, |range| range.lo < hi && lo < range.hi);
    }
}

/// In a forked child, which has none of the threads, or after an activation that failed.
pub fn forget() {
    NEXT_NS.store(0, Ordering::Relaxed);
    let mut kept = KEPT.lock();
    (kept.len, kept.pages) = (0, 0);
}

/// Calls `f` with every thread of this process.
fn each_thread(mut f: impl FnMut(i32)) -> Result<(), Errno> {
    each_entry(c"/proc/self/task", |_, name| {
        let number = core::str::from_utf8(name).ok().and_then(|text| text.parse().ok());
        if let Some(tid) = number {
            f(tid);
        }
    })
}

/// What a thread does. One that can't be looked at counts as running.
fn look(tid: i32) -> Seen {
    let number = Num::new(tid as u64, 10);
    let path = sys::path(&["/proc/self/task/", number.text(), "/syscall"]);
    let Ok(path) = CStr::from_bytes_until_nul(&path) else {
        return Seen::Running;
    };
    let fd = match proc_dirs::open(path, libc::O_RDONLY) {
        Ok(fd) => fd,
        Err(Errno(libc::ENOENT | libc::ESRCH)) => return Seen::Gone,
        Err(_) => return Seen::Running,
    };
    let mut line = [0u8; 256];
    let args = [fd as u64, line.as_mut_ptr() as u64, line.len() as u64, 0, 0, 0];
    // SAFETY: a buffer of ours.
    let got = unsafe { sys::call(libc::SYS_read, args) };
    sys::close(fd);
    match got {
        Ok(got) => parse(&line[..got as usize]),
        Err(Errno(libc::ESRCH)) => Seen::Gone,
        Err(_) => Seen::Running,
    }
}

/// `running`, `-1 SP PC`, or `NR ARG*6 SP PC`.
fn parse(line: &[u8]) -> Seen {
    let text = core::str::from_utf8(line).unwrap_or_default().trim_end();
    let mut fields = text.split_ascii_whitespace();
    let Some(nr) = fields.next().and_then(|nr| nr.parse::<i64>().ok()) else {
        return if text.is_empty() {
            Seen::Gone
        } else {
            Seen::Running
        };
    };
    if nr < 0 {
        return Seen::Elsewhere;
    }
    let mut args = [0; 6];
    for arg in &mut args {
        let digits = fields.next().and_then(|field| field.strip_prefix("0x"));
        *arg = digits
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
            .unwrap_or(0);
    }
    // FNV-1a of all but the number: a call that goes on after a stop has another.
    let described = line.iter().skip_while(|byte| **byte != b' ');
    let call = described.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    Seen::Call { nr, args, call }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc() {
        assert_eq!(parse(b"running\n"), Seen::Running);
        assert_eq!(parse(b""), Seen::Gone);
        assert_eq!(parse(b"-1 0x7ffc 0x7f00\n"), Seen::Elsewhere);
        let read = parse(b"0 0x3 0x100000003000 0x8000 0x0 0x0 0x1 0x7ffc 0x7f00\n");
        let Seen::Call { nr, args, call } = read else {
            panic!("{read:?}")
        };
        assert_eq!((nr, args), (0, [3, 0x1000_0000_3000, 0x8000, 0, 0, 1]));
        let again = parse(b"0 0x3 0x100000003000 0x8000 0x0 0x0 0x1 0x7ffc 0x7f04\n");
        assert!(!matches!(again, Seen::Call { call: other, .. } if other == call));
    }

    #[test]
    fn threads_are_found_and_what_they_wait_in() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            sender.send(sys::gettid()).expect("heard");
            let _ = ended.recv();
        });
        let tid = receiver.recv().expect("told");
        let mut found = Vec::new();
        each_thread(|tid| found.push(tid)).expect("listed");
        assert!(
            found.contains(&tid) && found.contains(&sys::gettid()),
            "{found:?}"
        );
        let asleep = || {
            matches!(
                look(tid),
                Seen::Call {
                    nr: libc::SYS_futex,
                    ..
                }
            )
        };
        while !asleep() {
            std::thread::yield_now();
        }
        drop(end);
        thread.join().expect("ends");
        // Joined is who has told so; the kernel takes its number back after that. A test that goes on is ended as a hang.
        while look(tid) != Seen::Gone {
            std::thread::yield_now();
        }
    }
}
