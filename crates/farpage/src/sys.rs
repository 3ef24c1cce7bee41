//! The only door to the kernel: raw system calls, userfaultfd ioctls and their structures.
//!
//! # Safety
//! Functions here never go through libc's wrappers: inside a preloaded program those symbols are ours, and a signal
//! handler must not disturb `errno`. Once the [`stub`](crate::stub) page is mapped every call is issued from it,
//! because the seccomp filter lets calls from that address pass. Results are `-errno` turned into [`Errno`].
#![allow(unsafe_code)]

use core::arch::asm;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// A kernel error number, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

type Call = unsafe extern "sysv64" fn(i64, u64, u64, u64, u64, u64, u64) -> i64;

static STUB: AtomicUsize = AtomicUsize::new(0);

/// Routes all later calls of this process through the stub at `address` (see [`crate::stub`]).
pub fn use_stub(address: usize) {
    STUB.store(address, Ordering::Release);
}

/// Whether all calls go through it.
pub fn has_stub() -> bool {
    STUB.load(Ordering::Relaxed) != 0
}

/// Issues system call `nr`; the result is the kernel's, negative for errors.
///
/// # Safety
/// The arguments must be valid for that call: the kernel writes wherever it is told to.
#[inline]
pub unsafe fn raw(nr: i64, a: [u64; 6]) -> i64 {
    let stub = STUB.load(Ordering::Relaxed);
    if stub != 0 {
        // SAFETY: a non-zero value is only stored by use_stub with the address of the stub page's entry, whose
        // signature is `Call` and which stays mapped for the life of the process.
        let call: Call = unsafe { core::mem::transmute::<usize, Call>(stub) };
        // SAFETY: the caller vouches for the arguments.
        return unsafe { call(nr, a[0], a[1], a[2], a[3], a[4], a[5]) };
    }
    let ret: i64;
    // SAFETY: the syscall instruction clobbers rcx and r11 only; the caller vouches for the arguments.
    unsafe {
        asm!("syscall", inlateout("rax") nr => ret, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3],
             in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}

/// Turns a raw result into a `Result`.
pub fn check(ret: i64) -> Result<u64, Errno> {
    if (-4095..0).contains(&ret) {
        Err(Errno(-ret as i32))
    } else {
        Ok(ret as u64)
    }
}

/// # Safety
/// As [`raw`].
pub unsafe fn call(nr: i64, a: [u64; 6]) -> Result<u64, Errno> {
    // SAFETY: the caller vouches for the arguments.
    check(unsafe { raw(nr, a) })
}

pub const PROT_NONE: i32 = libc::PROT_NONE;
pub const PROT_RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// How all managed memory is mapped, so that the kernel merges neighbours into one mapping.
pub const MAP_MANAGED: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// # Safety
/// With MAP_FIXED the range must be the caller's to replace.
pub unsafe fn mmap(addr: u64, len: u64, prot: i32, flags: i32, fd: i32, off: u64) -> Result<u64, Errno> {
    // SAFETY: the caller vouches for a fixed range; otherwise mmap harms nothing.
    unsafe {
        call(
            libc::SYS_mmap,
            [addr, len, prot as u64, flags as u64, fd as i64 as u64, off],
        )
    }
}

/// # Safety
/// Nothing may use the range any more.
pub unsafe fn munmap(addr: u64, len: u64) -> Result<u64, Errno> {
    // SAFETY: the caller vouches for the range.
    unsafe { call(libc::SYS_munmap, [addr, len, 0, 0, 0, 0]) }
}

/// # Safety
/// The new protection must suit everyone who uses the range.
pub unsafe fn mprotect(addr: u64, len: u64, prot: i32) -> Result<u64, Errno> {
    // SAFETY: the caller vouches for the range.
    unsafe { call(libc::SYS_mprotect, [addr, len, prot as u64, 0, 0, 0]) }
}

/// # Safety
/// Advice that drops content (DONTNEED, REMOVE) needs an owner's consent.
pub unsafe fn madvise(addr: u64, len: u64, advice: i32) -> Result<u64, Errno> {
    // SAFETY: the caller vouches for the range.
    unsafe { call(libc::SYS_madvise, [addr, len, advice as u64, 0, 0, 0]) }
}

/// Fresh private memory of the engine's own, zeroed, never managed; `len` in bytes.
pub fn engine_memory(len: u64) -> Result<u64, Errno> {
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing else.
    unsafe { mmap(0, len, PROT_RW, MAP_MANAGED, -1, 0) }
}

/// The same for a stack, whose lowest page can't be accessed.
pub fn engine_stack(len: u64) -> Result<u64, Errno> {
    let stack = engine_memory(len)?;
    // SAFETY: mapped just now. Where the kernel can't split a mapping any more the stack has no guard. A huge page would be the better part
    // of a thread's memory.
    let _ = unsafe {
        let _ = madvise(stack, len, libc::MADV_NOHUGEPAGE);
        mprotect(stack, 4096, libc::PROT_NONE)
    };
    Ok(stack)
}

/// Sleeps until `word` is woken, differs from `expected`, or `timeout_us` passed (0 = no limit). Spurious returns are fine.
pub fn futex_wait(word: &AtomicU32, expected: u32, shared: bool, timeout_us: u64) {
    let ts = [
        (timeout_us / 1_000_000) as i64,
        ((timeout_us % 1_000_000) * 1000) as i64,
    ];
    let tsp = if timeout_us == 0 { 0 } else { ts.as_ptr() as u64 };
    let op = if shared { 0 } else { 128 };
    // SAFETY: the word and the timespec outlive the call.
    unsafe {
        raw(
            libc::SYS_futex,
            [word.as_ptr() as u64, op, expected as u64, tsp, 0, 0],
        )
    };
}

pub fn futex_wake(word: &AtomicU32, count: u32, shared: bool) {
    let op = 1 | if shared { 0 } else { 128 };
    // SAFETY: FUTEX_WAKE only looks the address up.
    unsafe { raw(libc::SYS_futex, [word.as_ptr() as u64, op, count as u64, 0, 0, 0]) };
}

pub fn getpid() -> i32 {
    // SAFETY: no arguments.
    unsafe { raw(libc::SYS_getpid, [0; 6]) as i32 }
}

/// The parent's number; 0 if it has none in this process's pid namespace.
pub fn getppid() -> i32 {
    // SAFETY: no arguments.
    unsafe { raw(libc::SYS_getppid, [0; 6]) as i32 }
}

/// The pid namespace that this process counts in, as a number; 0 if /proc does not tell.
pub fn pid_namespace() -> u64 {
    inode(c"/proc/thread-self/ns/pid")
}

/// The number of what a path leads to; 0 if that can't be told.
pub fn inode(path: &CStr) -> u64 {
    // SAFETY: a stat of zeros is one, and the call fills it.
    unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        let to = (path.as_ptr() as u64, &raw mut stat as u64);
        let args = [libc::AT_FDCWD as i64 as u64, to.0, to.1, 0, 0, 0];
        call(libc::SYS_newfstatat, args).map_or(0, |_| stat.st_ino)
    }
}

pub fn gettid() -> i32 {
    // SAFETY: no arguments.
    unsafe { raw(libc::SYS_gettid, [0; 6]) as i32 }
}

/// Opens a file by an absolute path; the descriptor is closed by exec.
pub fn open(path: &CStr, flags: i32) -> Result<i32, Errno> {
    open_at(libc::AT_FDCWD, path, flags)
}

/// The same by a path that begins at a directory.
pub fn open_at(directory: i32, path: &CStr, flags: i32) -> Result<i32, Errno> {
    let how = (flags | libc::O_CLOEXEC) as u64;
    let args = [directory as i64 as u64, path.as_ptr() as u64, how, 0, 0, 0];
    // SAFETY: opens a descriptor; the path ends in a NUL.
    unsafe { call(libc::SYS_openat, args).map(|fd| fd as i32) }
}

pub fn close(fd: i32) {
    // SAFETY: closing a descriptor of ours.
    unsafe { raw(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]) };
}

/// Moves `fd` to the number `to` (replacing what was there); `cloexec` as given. What can't be moved is closed.
pub fn move_fd(fd: i32, to: i32, cloexec: bool) -> Result<(), Errno> {
    if fd == to {
        return Ok(());
    }
    let copied = copy_fd(fd, to, cloexec);
    close(fd);
    copied
}

/// Another number for `fd`, in place of what had it.
pub fn copy_fd(fd: i32, to: i32, cloexec: bool) -> Result<(), Errno> {
    let flags = if cloexec { libc::O_CLOEXEC } else { 0 };
    let args = [fd as u64, to as u64, flags as u64, 0, 0, 0];
    // SAFETY: both numbers are the engine's own descriptors.
    let copied = match unsafe { call(libc::SYS_dup3, args) } {
        // The program may have lowered the limit of open files since the numbers were chosen.
        // SAFETY: as above.
        Err(Errno(libc::EBADF)) => with_descriptor(to, || unsafe { call(libc::SYS_dup3, args) }),
        copied => copied,
    };
    copied.map(drop)
}

/// The soft limit of a resource.
#[must_use]
pub fn soft_limit(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a valid rlimit.
    unsafe { libc::getrlimit(resource, &mut limit) };
    limit.rlim_cur
}

/// Runs `f` with a soft limit of open files that admits `number`, where the hard limit does.
fn with_descriptor<R>(number: i32, f: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    let mut limit = [0u64; 2];
    let set = |new: *const u64, old: *mut u64| {
        let args = [0, u64::from(libc::RLIMIT_NOFILE), new as u64, old as u64, 0, 0];
        // SAFETY: limits of ours.
        unsafe { call(libc::SYS_prlimit64, args) }
    };
    set(core::ptr::null(), limit.as_mut_ptr())?;
    let least = number as u64 + 1;
    if limit[0] >= least {
        return Err(Errno(libc::EBADF));
    }
    // Root may raise the hard limit, too.
    set([least, limit[1].max(least)].as_ptr(), core::ptr::null_mut()).map_err(|_| Errno(libc::EMFILE))?;
    let result = f();
    let _ = set(limit.as_ptr(), core::ptr::null_mut());
    result
}

const NO_TIME: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Monotonic time in nanoseconds (vDSO; safe in signal handlers).
pub fn now_ns() -> u64 {
    let mut time = NO_TIME;
    // SAFETY: a valid timespec; clock_gettime is async-signal-safe and not interposed.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    nanoseconds(time)
}

/// What this thread has run so far, in nanoseconds: a system call, and so one of ours (in a fork's window libc's are dispatched).
pub fn thread_ns() -> u64 {
    let mut time = NO_TIME;
    let clock = libc::CLOCK_THREAD_CPUTIME_ID as u64;
    // SAFETY: a valid timespec.
    unsafe { raw(libc::SYS_clock_gettime, [clock, &raw mut time as u64, 0, 0, 0, 0]) };
    nanoseconds(time)
}

fn nanoseconds(time: libc::timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The CPU this thread runs on at the moment. The kernel keeps the number in the limit of a segment that any program may
/// ask for (so does the vDSO's getcpu); 0 where there is none.
pub fn cpu() -> u32 {
    const CPU_SEGMENT: u32 = 15 * 8 + 3;
    let mut limit = 0u32;
    // SAFETY: reads a segment limit; leaves the register as it was if there is no such segment.
    unsafe { asm!("lsl {0:e}, {1:e}", inout(reg) limit, in(reg) CPU_SEGMENT, options(nomem, nostack)) };
    limit & 0xfff
}

/// A full 64-bit signal mask as the kernel knows it.
pub type SigMask = u64;
/// Bit of a signal in a [`SigMask`].
pub const fn sig_bit(sig: i32) -> SigMask {
    1 << (sig - 1)
}
/// The two signals that must never be blocked in a managed program.
pub const OURS: SigMask = sig_bit(libc::SIGBUS) | sig_bit(libc::SIGSYS);

/// Blocks every signal except our two, which stay as they are, and returns the mask before.
pub fn block_signals() -> SigMask {
    change_mask(libc::SIG_BLOCK, !OURS)
}

/// The same with SIGBUS, where nothing managed is touched.
pub fn block_faults() -> SigMask {
    change_mask(libc::SIG_BLOCK, !sig_bit(libc::SIGSYS))
}

/// This thread's mask.
pub fn mask() -> SigMask {
    change_mask(libc::SIG_BLOCK, 0)
}

/// Blocks SIGSYS alone.
pub fn block_traps() -> SigMask {
    change_mask(libc::SIG_BLOCK, sig_bit(libc::SIGSYS))
}

pub fn set_mask(mask: SigMask) -> SigMask {
    change_mask(libc::SIG_SETMASK, mask)
}

fn change_mask(how: i32, mask: SigMask) -> SigMask {
    /// In one page, so that the kernel either reads one and writes the other, or does nothing.
    #[repr(C, align(16))]
    struct Masks {
        new: SigMask,
        old: SigMask,
    }
    let mut masks = Masks { new: mask, old: 0 };
    let at = &raw mut masks;
    loop {
        // SAFETY: both masks are 8 bytes, the kernel's size, and this function's own.
        unsafe {
            let (new, old) = (&raw const (*at).new as u64, &raw mut (*at).old as u64);
            let result = raw(libc::SYS_rt_sigprocmask, [how as u64, new, old, 8, 0, 0]);
            if result >= 0 {
                return (*at).old;
            }
            // A stack in managed memory, evicted between two instructions: the touch brings it back.
            (*at).old = 0;
        }
    }
}

/// Asks that thread `tid` (0: the caller) gets a CPU soon after it wakes, for little at a time: among many busy threads one that watches
/// over a limit once came by too late. Kernels before Linux 6.12 take no notice. Source: sched_setattr(2).
pub fn run_soon(tid: i32) {
    const SLICE_NS: u64 = 100_000;
    const SLICE: usize = 3;
    // struct sched_attr: size and policy, flags, nice value and priority, runtime, deadline, period, two clamps.
    let mut attr = [0u64; 7];
    let (at, size) = (&raw mut attr, size_of_val(&attr) as u64);
    // SAFETY: a structure of that size, read and written back.
    unsafe {
        let got = raw(libc::SYS_sched_getattr, [tid as u64, at as u64, size, 0, 0, 0]);
        if got == 0 && ((*at)[0] >> 32) as i32 == libc::SCHED_OTHER {
            (*at)[SLICE] = SLICE_NS;
            raw(libc::SYS_sched_setattr, [tid as u64, at as u64, 0, 0, 0, 0]);
        }
    }
}

/// Reads `buf.len()` bytes at `off`; short reads are retried, end of file gives an error.
///
/// # Safety
/// `addr..addr+len` must be writable memory that nobody else reads meanwhile.
pub unsafe fn pread_all(fd: i32, addr: u64, len: u64, off: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        // SAFETY: the caller vouches for the range.
        match unsafe {
            call(
                libc::SYS_pread64,
                [fd as u64, addr + done, len - done, off + done, 0, 0],
            )
        } {
            Ok(0) => return Err(Errno(libc::EIO)),
            Ok(n) => done += n,
            Err(Errno(libc::EINTR)) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Pieces of memory, as `[address, bytes]`, that one read or write scatters to or gathers from.
pub type Piece = [u64; 2];

/// Reads (`write` false) or writes all bytes of the pieces, in their order, at `off`. The pieces are used up.
///
/// # Safety
/// Pieces to read to must be writable memory that nobody else reads meanwhile, pieces to write from readable memory. There
/// are at most 1024.
pub unsafe fn transfer_all(fd: i32, write: bool, pieces: &mut [Piece], off: u64) -> Result<(), Errno> {
    let nr = if write {
        libc::SYS_pwritev
    } else {
        libc::SYS_preadv
    };
    let (mut first, mut off) = (0, off);
    while first < pieces.len() {
        let left = &mut pieces[first..];
        // SAFETY: the caller vouches for the pieces; a piece is laid out like struct iovec.
        let done = unsafe {
            call(
                nr,
                [fd as u64, left.as_ptr() as u64, left.len() as u64, off, 0, 0],
            )
        };
        let mut done = match done {
            Ok(0) => return Err(Errno(libc::EIO)),
            Ok(n) => n,
            Err(Errno(libc::EINTR)) => continue,
            Err(e) => return Err(e),
        };
        off += done;
        for piece in left {
            let part = done.min(piece[1]);
            *piece = [piece[0] + part, piece[1] - part];
            done -= part;
            first += usize::from(piece[1] == 0);
            if piece[1] != 0 {
                break;
            }
        }
    }
    Ok(())
}

/// What is behind a descriptor.
pub fn stat(fd: i32) -> Result<libc::stat, Errno> {
    // SAFETY: stat is plain data; the call fills it.
    unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        call(libc::SYS_fstat, [fd as u64, (&raw mut stat) as u64, 0, 0, 0, 0])?;
        Ok(stat)
    }
}

/// Nobody is to be told anything.
static QUIET: AtomicBool = AtomicBool::new(false);

/// From now on nothing is written to standard error.
pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Writes one line to standard error, for the failures a user must see; never allocates.
pub fn complain(parts: &[&str]) {
    if QUIET.load(Ordering::Relaxed) {
        return;
    }
    let mut buf = [0u8; 512];
    let mut n = 0;
    for part in parts.iter().chain(&["\n"]) {
        for &byte in part.as_bytes() {
            if n < buf.len() {
                buf[n] = byte;
                n += 1;
            }
        }
    }
    // SAFETY: the buffer is ours and n bytes long.
    unsafe { raw(libc::SYS_write, [2, buf.as_ptr() as u64, n as u64, 0, 0, 0]) };
}

/// Major and minor number of a release such as `6.8.0-41-generic`.
#[must_use]
pub fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|byte: char| !byte.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// A number as text without allocation.
pub struct Num {
    digits: [u8; 20],
    start: usize,
}

impl Num {
    pub fn new(value: u64, base: u64) -> Num {
        let mut num = Num {
            digits: [b'0'; 20],
            start: 20,
        };
        let mut rest = value;
        loop {
            num.start -= 1;
            num.digits[num.start] = b"0123456789abcdef"[(rest % base) as usize];
            rest /= base;
            if rest == 0 {
                return num;
            }
        }
    }

    pub fn text(&self) -> &str {
        core::str::from_utf8(&self.digits[self.start..]).unwrap_or("?")
    }
}

/// Parts of a path, one after another, and zeros.
pub fn path(parts: &[&str]) -> [u8; 64] {
    let mut path = [0; 64];
    let bytes = parts.iter().flat_map(|part| part.bytes());
    // Never full: there is a NUL at the end.
    path[..63].iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
    path
}

/// Sends a signal; number 0 only asks whether there is such a process.
pub fn kill(pid: i32, signal: i32) -> Result<(), Errno> {
    // SAFETY: touches no memory.
    unsafe { call(libc::SYS_kill, [pid as u64, signal as u64, 0, 0, 0, 0]) }.map(drop)
}

/// Sends a signal with the value that it was queued with here.
pub fn queue_signal(pid: i32, signal: i32, info: *const libc::siginfo_t) -> Result<(), Errno> {
    // SAFETY: the kernel reads the information, and answers EFAULT where it can't.
    unsafe {
        call(
            libc::SYS_rt_sigqueueinfo,
            [pid as u64, signal as u64, info as u64, 0, 0, 0],
        )
    }
    .map(drop)
}

/// Sends a signal to this thread: one it does not block is there when this returns.
pub fn raise(signal: i32) {
    // SAFETY: touches no memory.
    unsafe {
        raw(
            libc::SYS_tgkill,
            [getpid() as u64, gettid() as u64, signal as u64, 0, 0, 0],
        )
    };
}

/// Ends this process: something was found that must not go on (a page that can't be trusted).
pub fn die(parts: &[&str]) -> ! {
    complain(parts);
    let action = [0u64; 4];
    // SAFETY: restores the default action of SIGABRT.
    unsafe {
        raw(
            libc::SYS_rt_sigaction,
            [libc::SIGABRT as u64, action.as_ptr() as u64, 0, 8, 0, 0],
        )
    };
    set_mask(0);
    // To this thread: one sent to the process may be for another, and the exit below is sooner.
    raise(libc::SIGABRT);
    // SAFETY: the first of a pid namespace takes no such signal.
    unsafe { raw(libc::SYS_exit_group, [134, 0, 0, 0, 0, 0]) };
    loop {
        core::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use std::{env, os::unix::process::ExitStatusExt, process};

    use super::*;

    #[test]
    fn kernel_versions() {
        assert_eq!(kernel_version("6.18.44-fc-v669"), Some((6, 18)));
        assert_eq!(
            kernel_version("6.18.44-fc-v669\0\0"),
            Some((6, 18)),
            "as uname has it"
        );
        assert_eq!(kernel_version("6.8-rc1"), Some((6, 8)));
        assert_eq!(kernel_version("unknown"), None);
    }

    /// The signal went to the process once: it was for the first thread, and this one exited with 134 before that took it.
    #[test]
    fn what_must_not_go_on_ends_by_the_signal_in_whichever_thread_it_was_found() {
        const ENDS: &str = "FARPAGE_TEST_ENDS";
        if env::var_os(ENDS).is_some() {
            die(&["farpage: found in a thread\n"]);
        }
        let test = std::thread::current().name().unwrap().to_owned();
        let output = process::Command::new(env::current_exe().unwrap())
            .args(["--exact", &test, "--nocapture", "--test-threads=2"])
            .env(ENDS, "1")
            .output()
            .unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("farpage: found in a thread\n"), "{said}");
    }

    #[test]
    fn a_thread_that_is_to_run_soon_has_a_short_slice_where_the_kernel_knows_of_slices() {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let version: Vec<u32> = release
            .split(['.', '-'])
            .take(2)
            .map(|part| part.parse().unwrap())
            .collect();
        run_soon(0);
        let mut attr = [0u64; 7];
        // SAFETY: a structure of that size.
        let got = unsafe {
            raw(
                libc::SYS_sched_getattr,
                [0, attr.as_mut_ptr() as u64, 56, 0, 0, 0],
            )
        };
        assert_eq!(got, 0);
        let expected = if version >= vec![6, 12] { 100_000 } else { 0 };
        assert_eq!((attr[0] >> 32, attr[3]), (0, expected));
    }
}
