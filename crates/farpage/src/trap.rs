//! System calls on managed memory.
//!
//! The kernel can't fault a swapped page in for a system call (it answers EFAULT), so a seccomp filter traps calls that
//! pass managed pointers. The handler faults in all that the call may touch, pins it, re-issues the call from the stub
//! and unpins. Calls whose pointers hide in memory (iovec arrays, argv) come through interposed symbols to the same
//! [`perform`]. Buffers too long to pin are done in pieces, with the result the kernel would give.
//!
//! # Safety
//! Calls are re-issued with the program's own arguments; memory of the program is read with process_vm_readv, which
//! survives bad pointers.
#![allow(unsafe_code)]

pub mod descriptors;
mod many;
pub mod pieces;
pub mod present;

use core::sync::atomic::{AtomicBool, Ordering};

use crate::births;
use crate::engine_stack;
use crate::errand::{self, Errand};
use crate::fault;
use crate::filter::{FilterConfig, TRAP_MARK, build};
use crate::mem;
use crate::mm::{Mm, PAGE, fd, mm, page_of};
use crate::mremap;
use crate::pool::{MANAGED_BASE, MANAGED_LEN, flag};
use crate::remote;
use crate::shm;
use crate::sigmask;
use crate::signals::{self, Action};
use crate::stub;
use crate::sys::{self, Errno, OURS, SigMask};
use crate::syscalls;
use crate::vfork;

/// Whether this image runs under a filter of ours already, from before an exec.
pub fn is_inherited(mm: &Mm) -> bool {
    is_protected(mm.fd(fd::COUNT - 1))
}

/// Whether a descriptor's number is one that a filter of ours protects in this process.
#[must_use]
pub fn is_protected(number: i32) -> bool {
    // The filter answers EBADF, the kernel EINVAL where both are the same, whatever the limit of open files is by now.
    plain_dup(number, number) == -i64::from(libc::EBADF)
}

/// Set before the filter stands.
static FILTERED: AtomicBool = AtomicBool::new(false);

/// Whether our filter trapped a call, and not one of the program's; `mark` came with it. It traps none from the stub.
#[must_use]
pub fn is_ours(mark: i32, context: &libc::ucontext_t) -> bool {
    FILTERED.load(Ordering::Acquire) && mark == i32::from(TRAP_MARK) && !is_reissued(context)
}

/// Whether the interrupted code is the stub.
#[must_use]
pub fn is_reissued(context: &libc::ucontext_t) -> bool {
    stub::holds(context.uc_mcontext.gregs[libc::REG_RIP as usize] as u64)
}

/// Installs the filter for all threads, unless this image inherited it across exec.
pub fn install(mm: &Mm) -> Result<(), Errno> {
    if is_inherited(mm) {
        FILTERED.store(true, Ordering::Release);
        return Ok(());
    }
    FILTERED.store(true, Ordering::Release);
    let header = mm.header();
    let program = build(&FilterConfig {
        stub_ip_lo: stub::STUB_ADDR,
        stub_ip_hi: stub::STUB_ADDR + stub::STUB_LEN,
        fd_lo: mm.fd(0) as u32,
        fd_hi: mm.fd(fd::COUNT - 1) as u32,
        trap_pointers: !header.has(flag::THREAD_DELIVERY),
        trap_hidden: false,
        refuse_io_uring: !header.has(flag::ALLOW_IO_URING),
    });
    let prog = libc::sock_fprog {
        len: program.len as u16,
        filter: program.insns.as_ptr() as *mut _,
    };
    const TSYNC: u64 = 1;
    // SAFETY: a valid program; without the privilege to install it as it is, the process gives up gaining privileges.
    unsafe {
        let args = [
            libc::SECCOMP_SET_MODE_FILTER as u64,
            TSYNC,
            &prog as *const _ as u64,
            0,
            0,
            0,
        ];
        let first = sys::raw(libc::SYS_seccomp, args);
        if first == 0 {
            return Ok(());
        }
        sys::raw(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as u64, 1, 0, 0, 0, 0]);
        match sys::check(sys::raw(libc::SYS_seccomp, args))? {
            0 => Ok(()),
            _ => Err(Errno(libc::ESRCH)), // a thread that could not be synchronised
        }
    }
}

/// dup3(2) of descriptors of ours from ordinary code, where the filter sees it.
fn plain_dup(from: i32, to: i32) -> i64 {
    let ret: i64;
    // SAFETY: both numbers are the engine's own.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") libc::SYS_dup3 => ret, in("rdi") from as u64, in("rsi") to as u64,
            in("rdx") 0u64, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}

/// Number and arguments of the system call that the interrupted code was making.
pub fn call_of(context: &libc::ucontext_t) -> (i64, [u64; 6]) {
    let regs = &context.uc_mcontext.gregs;
    let nr = regs[libc::REG_RAX as usize];
    let args = [
        libc::REG_RDI,
        libc::REG_RSI,
        libc::REG_RDX,
        libc::REG_R10,
        libc::REG_R8,
        libc::REG_R9,
    ]
    .map(|reg| regs[reg as usize] as u64);
    (nr, args)
}

/// A call that the filter trapped; the result goes where the kernel would have put it.
pub fn on_trap(context: &mut libc::ucontext_t) {
    let (nr, args) = call_of(context);
    let mm = mm();
    // Another thread may be making the process active. Should it fail, the call is made as it is.
    births::wait_for_activation(mm);
    mm.header().count(farpage_core::stats::Counter::SyscallTrap, 1);
    let result = perform_in(context, nr, args);
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = result;
}

/// [`perform`] in a handler: what belongs to the interrupted code is changed in its frame.
pub fn perform_in(context: &mut libc::ucontext_t, nr: i64, args: [u64; 6]) -> i64 {
    match nr {
        libc::SYS_rt_sigprocmask => on_sigprocmask(context, args),
        libc::SYS_sigaltstack => on_sigaltstack(context, args),
        libc::SYS_rt_sigaction => on_sigaction(args),
        _ if syscalls::memory_call(nr as usize, &args) => undisturbed(|| perform(nr, args)),
        _ => perform(nr, args),
    }
}

/// In a handler of SIGSYS, for what leaves its stack ([`engine_stack`]): should a filter of the program's trap a call that is made there,
/// the kernel would write the frame over that of the handler. So the program is ended.
pub fn undisturbed(work: impl FnOnce() -> i64) -> i64 {
    let mask = sys::block_traps();
    let result = work();
    sys::set_mask(mask);
    result
}

/// The mask of the interrupted code lives in the frame: the return from the handler would undo a change of our own. Where libc keeps what it is
/// told for a context (getcontext and sigsetjmp ask, swapcontext sets another) it is the kernel's, without the signals of ours that are
/// believed blocked: a call that is not trapped may give it back to the kernel.
fn on_sigprocmask(context: &mut libc::ucontext_t, args: [u64; 6]) -> i64 {
    sigprocmask_with(args, |how, wanted| {
        let real = *signals::mask_of(context) & !OURS;
        let believed = real | sigmask::blocked();
        let Some(wanted) = wanted else { return Ok(real) };
        let after = sigmask::changed(believed, how, wanted).ok_or(-(libc::EINVAL as i64))?;
        *signals::mask_of(context) = after & !OURS;
        sigmask::believe(after);
        Ok(if how == libc::SIG_SETMASK { real } else { believed })
    })
}

/// rt_sigprocmask by number, outside of handlers of ours.
pub fn sigprocmask(args: [u64; 6]) -> i64 {
    sigprocmask_with(args, sigmask::change)
}

/// As the kernel does it: the new mask counts even where there is no place for the old one.
fn sigprocmask_with(
    args: [u64; 6],
    change: impl FnOnce(i32, Option<SigMask>) -> Result<SigMask, i64>,
) -> i64 {
    let [how, set, old, size, ..] = args;
    if size != size_of::<SigMask>() as u64 {
        return -(libc::EINVAL as i64);
    }
    let mut wanted: SigMask = 0;
    if set != 0 && !read_user(set, &mut wanted as *mut _ as u64, size) {
        return -(libc::EFAULT as i64);
    }
    match change(how as i32, (set != 0).then_some(wanted)) {
        Err(errno) => errno,
        Ok(before) if old != 0 && !write_user(old, &before as *const _ as u64, size) => {
            -(libc::EFAULT as i64)
        }
        Ok(_) => 0,
    }
}

/// The return from the handler sets the alternate stack that the frame names, or, while the handler itself runs on one (Linux 6.12), leaves it: so
/// it is set now, too.
fn on_sigaltstack(context: &mut libc::ucontext_t, args: [u64; 6]) -> i64 {
    const SS_AUTODISARM: i32 = 1 << 31;
    let [new, old, ..] = args;
    let size = size_of::<libc::stack_t>() as u64;
    let sp = context.uc_mcontext.gregs[libc::REG_RSP as usize] as u64;
    let mut before = context.uc_stack;
    // The frame has the flags as they were set; the call says whether there is a stack, and whether the code runs on it.
    before.ss_flags &= SS_AUTODISARM;
    let above = sp.wrapping_sub(before.ss_sp as u64);
    if before.ss_size == 0 {
        before.ss_flags |= libc::SS_DISABLE;
    } else if before.ss_flags == 0 && (1..=before.ss_size as u64).contains(&above) {
        before.ss_flags = libc::SS_ONSTACK;
    }
    if new != 0 {
        let mut wanted = before;
        if !read_user(new, &mut wanted as *mut _ as u64, size) {
            return -(libc::EFAULT as i64);
        }
        if wanted.ss_flags & libc::SS_DISABLE == 0 {
            keep_resident(wanted.ss_sp as u64, wanted.ss_size as u64);
        }
        let result = stub::set_altstack(&wanted, sp);
        if result < 0 {
            return result;
        }
        context.uc_stack = wanted;
    }
    if old != 0 && !write_user(old, &before as *const _ as u64, size) {
        return -(libc::EFAULT as i64);
    }
    0
}

pub fn on_sigaction(args: [u64; 6]) -> i64 {
    let [sig, new, old, set_size, ..] = args;
    if set_size != size_of::<SigMask>() as u64 {
        return -(libc::EINVAL as i64);
    }
    let (mut wanted, mut before) = (Action::default(), Action::default());
    let size = size_of::<Action>() as u64;
    if new != 0 && !read_user(new, &mut wanted as *mut _ as u64, size) {
        return -(libc::EFAULT as i64);
    }
    let result = signals::sigaction(sig as i32, (new != 0).then_some(&wanted), Some(&mut before));
    if result == 0 && old != 0 && !write_user(old, &before as *const _ as u64, size) {
        return -(libc::EFAULT as i64);
    }
    result
}

/// Keeps a range (an alternate stack, a thread's own stack) in RAM for good: the kernel writes there without asking.
pub fn keep_resident(addr: u64, len: u64) {
    let mm = mm();
    if let Some((lo, hi)) = managed_part(addr, len).filter(|_| mm.is_active()) {
        (lo..hi).for_each(|page| fault::pin_for_good(mm, page));
    }
}

/// Pages of a range that are managed.
pub fn managed_part(addr: u64, len: u64) -> Option<(u64, u64)> {
    let end = addr.checked_add(len)?;
    let (lo, hi) = (addr.max(MANAGED_BASE), end.min(MANAGED_BASE + MANAGED_LEN));
    (lo < hi).then(|| (page_of(lo), (hi - MANAGED_BASE).div_ceil(PAGE)))
}

/// Does system call `nr` for the program, whatever memory its pointers name; the kernel's result.
pub fn perform(nr: i64, args: [u64; 6]) -> i64 {
    // Constructors of other libraries run before ours: libgcrypt's locks memory there, and ended ffmpeg.
    if mm().entry_opt().is_none() {
        return issue(nr, args);
    }
    if let Some(result) = remote::perform(nr, args).or_else(|| vfork::perform(nr, args)) {
        return result;
    }
    let index = nr as usize;
    if syscalls::memory_call(index, &args) {
        if let Ok(result) = errand::call(mm(), nr, args) {
            return result;
        }
        return engine_stack::blocked(|| memory_call(nr, args));
    }
    if let Some(result) = descriptors::answer(mm(), nr, &args) {
        return result;
    }
    if let Some(result) = many::perform(nr, args).or_else(|| pieces::message(nr, args)) {
        return result;
    }
    if let Some(call) = syscalls::describe(index)
        && let Some(result) = pieces::in_pieces(nr, args, call.restart)
    {
        return result;
    }
    perform_whole(nr, args)
}

/// [`perform`] without a look at what the call means: pins what it may touch.
pub fn perform_whole(nr: i64, args: [u64; 6]) -> i64 {
    perform_piece(nr, args, 0)
}

/// [`perform_whole`] of a call whose buffers were found short enough: these pages are pinned whatever the limit has become since.
fn perform_piece(nr: i64, args: [u64; 6], pages: u64) -> i64 {
    let mm = mm();
    let mut pins = Pins::new();
    pins.least = pages;
    pins.add_call(mm, nr, &args);
    let result = issue(nr, args);
    if !(syscalls::keeps(nr as usize, &args) && result >= 0) {
        pins.release(mm);
    } else if nr == libc::SYS_rseq {
        // A forked child inherits it, and the kernel writes there before any code of the child runs.
        keep_resident(args[0], args[1]);
    }
    result
}

/// Makes a call of the program's as it is. A new image gets the mask that the program believes in.
pub fn issue(nr: i64, args: [u64; 6]) -> i64 {
    // SAFETY: the program's own call.
    let call = || unsafe { sys::raw(nr, args) };
    match nr {
        libc::SYS_execve | libc::SYS_execveat => sigmask::handed_on(call),
        _ => call(),
    }
}

/// The word at an address of the program's; `None` for a bad pointer.
pub fn read_word(addr: u64) -> Option<u64> {
    let mut value = 0u64;
    read_user(addr, &mut value as *mut _ as u64, 8).then_some(value)
}

/// The ranges pinned for one call. More than fit are noted in memory of their own. Those of a child that borrows this memory are in the
/// hands of a thread of its parent's process (`errand`).
pub struct Pins {
    near: [(u64, u64); 40],
    len: usize,
    far: u64,
    far_len: usize,
    pinned: u64,
    /// Pages that may be pinned in any case.
    least: u64,
    /// The range pinned last.
    last: (u64, u64),
    errand: Option<Errand>,
}

const FAR_MAX: usize = 1 << 16;
/// Pages that may be pinned for a call whatever the limit is.
const PINNED_MIN: u64 = 512;

impl Default for Pins {
    fn default() -> Self {
        Pins::new()
    }
}

impl Pins {
    #[must_use]
    pub const fn new() -> Pins {
        Pins {
            near: [(0, 0); 40],
            len: 0,
            far: 0,
            far_len: 0,
            pinned: 0,
            least: 0,
            last: (0, 0),
            errand: None,
        }
    }

    /// All that a call may touch.
    pub fn of_call(mm: &Mm, nr: i64, args: &[u64; 6]) -> Pins {
        let mut pins = Pins::new();
        pins.add_call(mm, nr, args);
        pins
    }

    fn add_call(&mut self, mm: &Mm, nr: i64, args: &[u64; 6]) {
        let mut read = read_word;
        syscalls::ranges(nr as usize, args, &mut read, &mut |start, len| {
            self.add(mm, start, len)
        });
    }

    /// Faults in and pins the managed pages of a range; pages that do not exist are the kernel's to complain about. A
    /// dormant process has no page words yet, and no page of its is swapped out.
    pub fn add(&mut self, mm: &Mm, start: u64, len: u64) {
        let Some((lo, hi)) = managed_part(start, len).filter(|_| mm.is_active()) else {
            return;
        };
        // Strings lie beside one another: most of ten thousand arguments are in a page that is pinned already.
        if self.covers(lo, hi) {
            return;
        }
        if self.len == 0 && self.errand.is_none() {
            self.errand = Errand::for_pins(mm);
        }
        if let Some(errand) = &mut self.errand {
            if errand.pin(mm, start, len) {
                self.last = (lo, hi);
            }
            return;
        }
        let mut from = lo;
        let hi = hi.min(lo + self.room(mm));
        for page in lo..hi {
            if fault::pin(mm, page) {
                self.pinned += 1;
                continue;
            }
            self.note(from, page);
            from = page + 1;
            if !mem::are_mapped(mm, page, page + 1) {
                return; // the kernel stops here too
            }
        }
        self.note(from, hi);
    }

    fn covers(&self, lo: u64, hi: u64) -> bool {
        self.last.0 <= lo && hi <= self.last.1
    }

    /// Whether the range pinned last holds this one.
    #[must_use]
    pub fn has(&self, start: u64, len: u64) -> bool {
        managed_part(start, len).is_some_and(|(lo, hi)| self.covers(lo, hi))
    }

    /// Pages that may still be pinned: half the limit at most, but for a piece, or a call would keep all others from making room. A
    /// buffer beyond that belongs to a call that can't be split (a datagram) and that does not use all of it.
    fn room(&self, mm: &Mm) -> u64 {
        let most = (mm.header().last_limit() / 2).max(PINNED_MIN as i64) as u64;
        most.max(self.least).saturating_sub(self.pinned)
    }

    fn note(&mut self, lo: u64, hi: u64) {
        if lo >= hi {
            return;
        }
        self.last = (lo, hi);
        if self.len < self.near.len() {
            self.near[self.len] = (lo, hi);
            self.len += 1;
            return;
        }
        if self.far == 0 {
            self.far = sys::engine_memory((FAR_MAX * 16) as u64).unwrap_or(0);
        }
        // Past the last place the pages simply stay resident.
        if self.far != 0 && self.far_len < FAR_MAX {
            // SAFETY: far points to FAR_MAX pairs of ours.
            unsafe { (self.far as *mut (u64, u64)).add(self.far_len).write((lo, hi)) };
            self.far_len += 1;
        }
    }

    /// Lets the pages go.
    pub fn release(&mut self, mm: &Mm) {
        if let Some(errand) = self.errand.take() {
            errand.unpin(mm);
        }
        let unpin = |(lo, hi): (u64, u64)| (lo..hi).for_each(|page| fault::unpin(mm, page));
        self.near[..self.len].iter().copied().for_each(unpin);
        for i in 0..self.far_len {
            // SAFETY: written by note.
            unpin(unsafe { (self.far as *const (u64, u64)).add(i).read() });
        }
        if self.far != 0 {
            // SAFETY: memory of ours that nobody refers to.
            let _ = unsafe { sys::munmap(self.far, (FAR_MAX * 16) as u64) };
        }
    }
}

/// Calls about mappings, on managed addresses.
pub fn memory_call(nr: i64, args: [u64; 6]) -> i64 {
    let [a, b, c, d, e, _] = args;
    match nr {
        libc::SYS_mmap => mem::mmap(mem::Map::from_args(args)),
        libc::SYS_munmap => mem::munmap(a, b),
        libc::SYS_shmat | libc::SYS_shmdt => shm::call(nr, args),
        libc::SYS_mprotect => mem::mprotect(a, b, c as i32, None),
        libc::SYS_pkey_mprotect => mem::mprotect(a, b, c as i32, Some(d as i32)),
        libc::SYS_madvise => mem::madvise(a, b, c as i32),
        libc::SYS_mremap => mremap::mremap(mremap::Remap {
            old: a,
            old_len: b,
            new_len: c,
            flags: d as i32,
            new: e,
            alone: false,
        }),
        libc::SYS_mlock2 if !mem::are_lock_flags(c as i32) => -i64::from(libc::EINVAL),
        libc::SYS_mlock | libc::SYS_mlock2 | libc::SYS_munlock => {
            mem::mlock(a, b, nr != libc::SYS_munlock).unwrap_or_else(|| perform_whole(nr, args))
        }
        libc::SYS_mincore => {
            let mut fine = true;
            let result = mem::mincore(a, b, &mut |i, byte| {
                fine &= write_user(c + i, &byte as *const _ as u64, 1)
            });
            match result {
                Some(0) if !fine => -(libc::EFAULT as i64),
                Some(result) => result,
                None => perform_whole(nr, args),
            }
        }
        // Names and NUMA policies of managed memory would split the kernel's mappings; they change no content.
        libc::SYS_prctl | libc::SYS_mbind => 0,
        _ => perform_whole(nr, args),
    }
}

/// Copies from the program's memory, faulting it in; false for a bad pointer.
pub fn read_user(from: u64, to: u64, len: u64) -> bool {
    transfer_user(from, to, len, libc::SYS_process_vm_readv)
}

/// Copies to the program's memory, faulting it in; false for a bad pointer.
pub fn write_user(to: u64, from: u64, len: u64) -> bool {
    transfer_user(to, from, len, libc::SYS_process_vm_writev)
}

fn transfer_user(theirs: u64, ours: u64, len: u64, nr: i64) -> bool {
    let mm = mm();
    let (local, remote) = ([ours, len], [theirs, len]);
    let transfer = || {
        let iov = (local.as_ptr() as u64, remote.as_ptr() as u64);
        // The thread's number: that of a process whose first thread has ended names no memory any more.
        // SAFETY: `ours` is a buffer of len bytes on our stack; the other side is checked by the kernel.
        let done = unsafe { sys::raw(nr, [sys::gettid() as u64, iov.0, 1, iov.1, 1, 0]) };
        done == len as i64
    };
    // To ask for pins takes longer than to find the page there, as it is mostly.
    if vfork::is_borrowed(mm) && transfer() {
        return true;
    }
    let mut pins = Pins::new();
    if mm.is_active() {
        pins.add(mm, theirs, len);
    }
    let done = transfer();
    pins.release(mm);
    done
}
