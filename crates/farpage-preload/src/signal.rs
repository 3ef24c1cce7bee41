//! Signal actions and masks: SIGBUS and SIGSYS stay ours and unblocked.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

use farpage::engine_stack::if_managed;
use farpage::mem;
use farpage::mm::{Mm, mm, mode};
use farpage::pool::{flag, is_managed};
use farpage::robust;
use farpage::sigmask;
use farpage::signals::{self, Action};
use farpage::sys::OURS;
use farpage::trap;

use crate::descriptors::answered;
use crate::real::call_real;
use crate::result;

/// The first word of a sigset_t is the kernel's mask.
fn without_ours(set: &libc::sigset_t) -> libc::sigset_t {
    let mut copy = *set;
    // SAFETY: a sigset_t is made of u64 words.
    unsafe { *(&raw mut copy as *mut u64) &= !OURS };
    copy
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    sig: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller's structures.
    unsafe {
        if signals::is_taken(sig) {
            return virtual_sigaction(sig, new, old);
        }
        let copy = new.as_ref().map(|new| libc::sigaction {
            sa_mask: without_ours(&new.sa_mask),
            ..*new
        });
        let wanted = new.as_ref().map(|new| *(&raw const new.sa_mask as *const u64));
        let mut before: libc::sigaction = core::mem::zeroed();
        let done = call_real!(
            sigaction as fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int,
            sig,
            copy.as_ref()
                .map_or(core::ptr::null(), |copy| copy as *const libc::sigaction),
            &mut before
        );
        if done != 0 {
            return done;
        }
        *(&raw mut before.sa_mask as *mut u64) |= sigmask::action_mask(sig, wanted);
        if let Some(old) = old.as_mut() {
            *old = before;
        }
    }
    0
}

unsafe fn virtual_sigaction(sig: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: the caller's structures; the first word of a mask is the kernel's.
    unsafe {
        let wanted = new.as_ref().map(|new| Action {
            handler: new.sa_sigaction as u64,
            flags: new.sa_flags as u64,
            restorer: 0,
            mask: *(&raw const new.sa_mask as *const u64),
        });
        let mut before = Action::default();
        signals::sigaction(sig, wanted.as_ref(), Some(&mut before));
        if let Some(old) = old.as_mut() {
            *old = core::mem::zeroed();
            old.sa_sigaction = before.handler as usize;
            old.sa_flags = before.flags as c_int;
            *(&raw mut old.sa_mask as *mut u64) = before.mask;
        }
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(sig: c_int, handler: usize) -> usize {
    if !signals::is_taken(sig) {
        sigmask::action_mask(sig, Some(0));
        return call_real!(signal as fn(c_int, usize) -> usize, sig, handler);
    }
    let new = Action {
        handler: handler as u64,
        flags: libc::SA_RESTART as u64,
        restorer: 0,
        mask: 0,
    };
    let mut old = Action::default();
    signals::sigaction(sig, Some(&new), Some(&mut old));
    old.handler as usize
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the caller's sets.
    let error = unsafe { pthread_sigmask(how, set, old) };
    result(-i64::from(error)) as c_int
}

/// Returns the error number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    /// libc's own signals (cancellation, setxid) can't be blocked by a program.
    const LIBC_OWN: u64 = 3 << 31;
    // SAFETY: the caller's sets; eight bytes of each are the kernel's mask.
    unsafe {
        let wanted = set
            .as_ref()
            .map(|set| *(&raw const *set as *const u64) & !LIBC_OWN);
        match sigmask::change(how, wanted) {
            Ok(before) => {
                if let Some(old) = old.as_mut() {
                    *old = core::mem::zeroed();
                    *(&raw mut *old as *mut u64) = before;
                }
                0
            }
            Err(errno) => -errno as c_int,
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigpending(set: *mut libc::sigset_t) -> c_int {
    let mut waiting = 0u64;
    // SAFETY: eight bytes of ours, then the caller's set.
    unsafe {
        let raw = farpage::sys::raw(
            libc::SYS_rt_sigpending,
            [&mut waiting as *mut u64 as u64, 8, 0, 0, 0, 0],
        );
        if raw == 0 {
            *set = core::mem::zeroed();
            *(set as *mut u64) = waiting | sigmask::pending();
        }
        result(raw) as c_int
    }
}

/// A signal of ours that waits comes at once if the mask lets it through.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigsuspend(mask: *const libc::sigset_t) -> c_int {
    // SAFETY: the caller's set.
    let (copy, wanted) = unsafe { (without_ours(&*mask), *(mask as *const u64)) };
    let blocked = sigmask::blocked();
    let comes = sigmask::pending() & !wanted != 0;
    sigmask::believe(wanted);
    let done = if comes {
        result(-i64::from(libc::EINTR)) as c_int
    } else {
        call_real!(sigsuspend as fn(*const libc::sigset_t) -> c_int, &copy)
    };
    sigmask::believe(blocked);
    done
}

/// The kernel writes signal frames on an alternate stack without asking: it stays in RAM. A thread without one of its
/// own runs with ours, and believes that it has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaltstack(new: *const libc::stack_t, old: *mut libc::stack_t) -> c_int {
    // SAFETY: the caller's structures, copied so that the kernel sees none of managed memory.
    unsafe {
        let ours = crate::threads::own_stack();
        let mut wanted = new.as_ref().copied();
        if let Some(stack) = &wanted
            && stack.ss_flags & libc::SS_DISABLE == 0
        {
            crate::threads::keep(stack.ss_sp as u64, stack.ss_size as u64);
        }
        if let Some(stack) = &mut wanted
            && stack.ss_flags & libc::SS_DISABLE != 0
        {
            *stack = ours;
        }
        let mut before: libc::stack_t = core::mem::zeroed();
        let new = wanted
            .as_ref()
            .map_or(core::ptr::null(), |stack| stack as *const libc::stack_t);
        let done = call_real!(
            sigaltstack as fn(*const libc::stack_t, *mut libc::stack_t) -> c_int,
            new,
            &mut before
        );
        if done == 0
            && let Some(old) = old.as_mut()
        {
            if !ours.ss_sp.is_null() && before.ss_sp == ours.ss_sp {
                before = core::mem::zeroed();
                before.ss_flags = libc::SS_DISABLE;
            }
            *old = before;
        }
        done
    }
}

type Timespec = *const libc::timespec;

fn optional(mask: *const libc::sigset_t, copy: &mut Option<libc::sigset_t>) -> *const libc::sigset_t {
    // SAFETY: the caller's set, or NULL.
    *copy = unsafe { mask.as_ref() }.map(without_ours);
    copy.as_ref().map_or(core::ptr::null(), |mask| mask as *const _)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: Timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    let mut copy = None;
    let mask = optional(mask, &mut copy);
    call_real!(
        ppoll as fn(*mut libc::pollfd, libc::nfds_t, Timespec, *const libc::sigset_t) -> c_int,
        fds,
        count,
        timeout,
        mask
    )
}

/// What a program calls that was built with _FORTIFY_SOURCE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: Timespec,
    mask: *const libc::sigset_t,
    len: usize,
) -> c_int {
    let mut copy = None;
    let mask = optional(mask, &mut copy);
    call_real!(
        __ppoll_chk as fn(*mut libc::pollfd, libc::nfds_t, Timespec, *const libc::sigset_t, usize) -> c_int,
        fds,
        count,
        timeout,
        mask,
        len
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut c_void,
    write: *mut c_void,
    except: *mut c_void,
    timeout: Timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    let mut copy = None;
    let mask = optional(mask, &mut copy);
    type Sets = *mut c_void;
    call_real!(
        pselect as fn(c_int, Sets, Sets, Sets, Timespec, *const libc::sigset_t) -> c_int,
        count,
        read,
        write,
        except,
        timeout,
        mask
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    fd: c_int,
    events: *mut c_void,
    max: c_int,
    timeout: c_int,
    mask: *const libc::sigset_t,
) -> c_int {
    let mut copy = None;
    let mask = optional(mask, &mut copy);
    call_real!(
        epoll_pwait as fn(c_int, *mut c_void, c_int, c_int, *const libc::sigset_t) -> c_int,
        fd,
        events,
        max,
        timeout,
        mask
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    fd: c_int,
    events: *mut c_void,
    max: c_int,
    timeout: Timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    let mut copy = None;
    let mask = optional(mask, &mut copy);
    call_real!(
        epoll_pwait2 as fn(c_int, *mut c_void, c_int, Timespec, *const libc::sigset_t) -> c_int,
        fd,
        events,
        max,
        timeout,
        mask
    )
}

/// Any system call: those on managed memory need our help, whoever makes them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(nr: i64, a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> i64 {
    let args = [a, b, c, d, e, f];
    // Our signals are only believed blocked here too.
    if nr == libc::SYS_rt_sigprocmask {
        return result(trap::sigprocmask(args));
    }
    let mm = mm();
    // From the start: a ring that is made while dormant would go on when the filter stands.
    if nr == libc::SYS_io_uring_setup && refuses_rings(mm) {
        return result(-i64::from(libc::ENOSYS));
    }
    if let Some(answer) = answered(nr, [a, b, c]) {
        return i64::from(answer);
    }
    let limits = match nr {
        libc::SYS_prlimit64 => Some(crate::limits::perform(a as i32, b as u32, c, d)),
        libc::SYS_setrlimit => Some(crate::limits::set(a as u32, b)),
        libc::SYS_getrlimit => Some(crate::limits::get(a as u32, b)),
        _ => None,
    };
    if let Some(answer) = limits {
        return result(answer);
    }
    if nr == libc::SYS_mlockall {
        // SAFETY: takes numbers.
        return i64::from(unsafe { crate::memory::mlockall(a as c_int) });
    }
    if nr == libc::SYS_unshare {
        // SAFETY: takes flags.
        return i64::from(unsafe { crate::descriptors::unshare(a as c_int) });
    }
    if !mm.is_active() {
        return result(dormant_syscall(nr, args));
    }
    match nr {
        libc::SYS_fork | libc::SYS_vfork => crate::process::raw_fork(nr, args),
        libc::SYS_clone if a & libc::CLONE_VM as u64 == 0 && b == 0 => crate::process::raw_fork(nr, args),
        // Starts threads or returns on another stack: as it is.
        libc::SYS_clone | libc::SYS_exit | libc::SYS_exit_group => {
            if nr == libc::SYS_exit {
                robust::keep_list(mm);
            }
            if nr == libc::SYS_clone && a & libc::CLONE_THREAD as u64 != 0 {
                crate::threads::note_unknown();
            }
            // SAFETY: the caller's call.
            result(unsafe { farpage::sys::raw(ended_by(nr), args) })
        }
        libc::SYS_rt_sigaction => result(trap::on_sigaction(args)),
        libc::SYS_ptrace => {
            if a == u64::from(libc::PTRACE_TRACEME) && farpage::vfork::is_borrowed(mm) {
                crate::exec::note_traced();
            }
            result(trap::perform(nr, args))
        }
        libc::SYS_clone3 => result(-i64::from(libc::ENOSYS)),
        _ => result(trap::perform(nr, args)),
    }
}

/// A program's only thread that ends is the end of the process; the engine's threads would live on.
fn ended_by(nr: i64) -> i64 {
    // One that libc does not know of is not the first.
    let is_first = || farpage::sys::gettid() == farpage::sys::getpid();
    let has_ours = || mm().mode.load(Ordering::Relaxed) != mode::OFF;
    if nr == libc::SYS_exit && has_ours() && crate::threads::is_alone() && is_first() {
        libc::SYS_exit_group
    } else {
        nr
    }
}

/// What a dormant process asks of the kernel by number goes there, but for what would come to light when it is active.
fn dormant_syscall(nr: i64, args: [u64; 6]) -> i64 {
    let [a, b, c, ..] = args;
    if nr == libc::SYS_madvise && is_managed(a) {
        return if_managed(|| mem::madvise(a, b, c as i32));
    }
    crate::confine::prepare(nr, args);
    if nr == libc::SYS_fork || (nr == libc::SYS_clone && a & libc::CLONE_VM as u64 == 0 && b == 0) {
        return crate::process::dormant_fork(nr, args);
    }
    // Its flags lie in memory: as when it is active.
    if nr == libc::SYS_clone3 && mm().mode.load(Ordering::Relaxed) != mode::OFF {
        return -i64::from(libc::ENOSYS);
    }
    let done = trap::issue(ended_by(nr), args);
    crate::threads::keep_named(nr, args, done);
    done
}

pub(crate) fn refuses_rings(mm: &Mm) -> bool {
    mm.mode.load(Ordering::Relaxed) != mode::OFF && !mm.header().has(flag::ALLOW_IO_URING)
}
