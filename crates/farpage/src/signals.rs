//! SIGBUS and SIGSYS are ours from the moment a process is active, or blocks one of them; the program believes they are
//! its own.
//!
//! What the program installs for them is kept here and called for everything that is not ours (a truncated file mapping,
//! its own filter). No mask of the program may hold either signal: a fault with SIGBUS blocked kills the process.
//! Handlers run with all other signals blocked while they work on pages, so no handler of the program can run on top of
//! a held page lock.
//!
//! # Safety
//! Handlers get the kernel's siginfo and ucontext, valid while they run.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::activate::was_given_back_lately;
use crate::dispatch;
use crate::engine_stack;
use crate::errand;
use crate::fault::{self, Outcome};
use crate::in_flight;
use crate::mm::{Mm, PAGE, mm, mode, page_of};
use crate::pool::is_managed;
use crate::sigmask;
use crate::stub;
use crate::sys::{self, Errno, OURS, SigMask, sig_bit};
use crate::trap;

/// struct sigaction as the kernel has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Action {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: SigMask,
}

const SA_RESTORER: u64 = 0x0400_0000;
const BUS_ADRERR: i32 = 2;
const SYS_SECCOMP: i32 = 1;
/// Bytes of the instruction.
const SYSCALL_LEN: i64 = 2;
/// So often in a row an instruction is run again whose fault found nothing managed, before the fault is the program's: more often
/// than mappings come and go beneath it.
const STRAYS_MAX: u64 = 64;
/// What a fault may take of a stack, in bytes, with room.
const STACK_WANTED: u64 = 32 << 10;

/// What the program believes is installed for one of our signals.
struct Virtual([AtomicU64; 4]);

static VIRTUAL_BUS: Virtual = Virtual([const { AtomicU64::new(0) }; 4]);
static VIRTUAL_SYS: Virtual = Virtual([const { AtomicU64::new(0) }; 4]);

impl Virtual {
    fn of(sig: i32) -> Option<&'static Virtual> {
        match sig {
            libc::SIGBUS => Some(&VIRTUAL_BUS),
            libc::SIGSYS => Some(&VIRTUAL_SYS),
            _ => None,
        }
    }

    fn load(&self) -> Action {
        let [handler, flags, restorer, mask] = [0, 1, 2, 3].map(|i| self.0[i].load(Ordering::Acquire));
        Action {
            handler,
            flags,
            restorer,
            mask,
        }
    }

    fn store(&self, action: &Action) {
        for (word, value) in self
            .0
            .iter()
            .zip([action.handler, action.flags, action.restorer, action.mask])
        {
            word.store(value, Ordering::Release);
        }
    }
}

fn kernel_sigaction(sig: i32, new: Option<&Action>, old: Option<&mut Action>) -> i64 {
    let new = new.map_or(0, |action| action as *const _ as u64);
    let old = old.map_or(0, |action| action as *mut _ as u64);
    // SAFETY: both point to structures of the kernel's layout, or are NULL.
    unsafe { sys::raw(libc::SYS_rt_sigaction, [sig as u64, new, old, 8, 0, 0]) }
}

/// Who owns SIGBUS and SIGSYS: the program, nobody (a thread is taking them over), us.
static OWNER: AtomicU32 = AtomicU32::new(THEIRS);
const THEIRS: u32 = 0;
const CHANGING: u32 = 1;
const TAKEN: u32 = 2;

/// Whether `sig` is one of ours and its action is virtual.
#[must_use]
pub fn is_taken(sig: i32) -> bool {
    Virtual::of(sig).is_some() && OWNER.load(Ordering::Acquire) == TAKEN
}

/// Takes SIGBUS and SIGSYS over, once, and routes [`sys`] through the stub; the program's actions for them become virtual. A dormant process needs it as soon as
/// one of them is believed blocked: the kernel delivers it, and somebody has to keep it until it is let through.
pub fn take() -> Result<(), Errno> {
    // Signals are blocked, so the thread that others wait for here is never interrupted by one that waits too.
    let mask = sys::block_signals();
    let result = loop {
        match OWNER.compare_exchange(THEIRS, CHANGING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                let result = stub::install();
                if result.is_ok() {
                    install_handlers();
                }
                OWNER.store(if result.is_ok() { TAKEN } else { THEIRS }, Ordering::Release);
                break result;
            }
            Err(TAKEN) => break Ok(()),
            Err(_) => core::hint::spin_loop(),
        }
    };
    sys::set_mask(mask);
    result
}

fn install_handlers() {
    // A small alternate stack has no room for a second frame of SIGBUS, and a fault is answered without another. SIGSYS
    // re-issues calls that may block, so the program's signals must get through there.
    for (sig, handler, mask) in [
        (
            libc::SIGBUS,
            on_sigbus as *const () as u64,
            !sig_bit(libc::SIGSYS),
        ),
        (libc::SIGSYS, on_sigsys as *const () as u64, 0),
    ] {
        let flags =
            (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART) as u64 | SA_RESTORER;
        let ours = Action {
            handler,
            flags,
            restorer: stub::restorer(),
            mask,
        };
        let mut before = Action::default();
        kernel_sigaction(sig, Some(&ours), Some(&mut before));
        if let Some(virtual_action) = Virtual::of(sig) {
            virtual_action.store(&before);
        }
    }
}

/// At activation: handlers installed by raw system calls while dormant may block our signals; new ones go through [`sigaction`].
pub fn strip_masks() {
    for sig in (1..=64).filter(|sig| OURS & sig_bit(*sig) == 0) {
        let mut action = Action::default();
        if kernel_sigaction(sig, None, Some(&mut action)) == 0
            && action.handler > 1
            && action.mask & OURS != 0
        {
            action.mask &= !OURS;
            kernel_sigaction(sig, Some(&action), None);
        }
    }
    set_mask_of_thread();
}

fn set_mask_of_thread() {
    let mask = sys::set_mask(!OURS);
    sys::set_mask(mask & !OURS);
}

/// rt_sigaction for the program. `-errno` on failure.
pub fn sigaction(sig: i32, new: Option<&Action>, old: Option<&mut Action>) -> i64 {
    let stripped = new.map(|action| Action {
        mask: action.mask & !OURS,
        ..*action
    });
    let ours = if is_taken(sig) { Virtual::of(sig) } else { None };
    // What a child that borrows this memory (vfork) says of them would be its parent's; and the kernel has its own of the child.
    let (stripped, new) = match ours.is_some() && mm().is_lent() {
        true => (None, None),
        false => (stripped, new),
    };
    let mut before = Action::default();
    if let Some(virtual_action) = ours {
        before = virtual_action.load();
        if let Some(action) = stripped {
            virtual_action.store(&action);
        }
    } else {
        let result = kernel_sigaction(sig, stripped.as_ref(), Some(&mut before));
        if result < 0 {
            return result;
        }
    }
    before.mask |= sigmask::action_mask(sig, new.map(|action| action.mask));
    if let Some(old) = old {
        *old = before;
    }
    0
}

extern "C" fn on_sigbus(sig: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's siginfo.
    let (addr, code, value) = unsafe { ((*info).si_addr() as u64, (*info).si_code, (*info).si_value()) };
    if in_flight::is_interrupt(code, value.sival_ptr as u64) {
        return;
    }
    let mm = mm();
    if code == BUS_ADRERR && is_managed(addr) {
        if mm.mode.load(Ordering::Acquire) == mode::OFF {
            if was_given_back_lately() {
                return;
            }
        } else if errand::fault(mm, addr).unwrap_or_else(|| answer(mm, addr, context)) == Outcome::Done {
            sigmask::end_strays(page_of(addr));
            crate::thread::nudge(mm);
            return;
        } else if is_to_be_tried_again(page_of(addr)) {
            return;
        }
    }
    chain(sig, info, context);
}

/// Whether a touch that found nothing managed is the kernel's to answer once more. The mapping may have gone between touch and signal, by
/// munmap or MAP_FIXED of another thread: then there is no fault any more, or one of another kind. The end of a file that is mapped
/// there answers each time, and is the program's affair.
fn is_to_be_tried_again(page: u64) -> bool {
    let again = sigmask::count_stray(page) <= STRAYS_MAX;
    if !again {
        sigmask::end_strays(page);
    }
    again
}

/// Brings in what was touched at `addr`. Of a small alternate stack of the program's (a Rust program has 8 KiB) the kernel's frame
/// may leave a few KiB: there it is done elsewhere.
fn answer(mm: &Mm, addr: u64, context: *mut libc::c_void) -> Outcome {
    // SAFETY: the kernel's ucontext.
    let stack = unsafe { &(*(context as *const libc::ucontext_t)).uc_stack };
    let here = 0u8;
    let left = (&raw const here as u64).wrapping_sub(stack.ss_sp as u64);
    // Each thread has an alternate stack of its own.
    let thread = Some((stack.ss_sp as u64 / PAGE) as u32).filter(|number| *number != 0);
    if left < STACK_WANTED {
        engine_stack::run(|| fault::at_address(mm, addr, thread))
    } else {
        fault::at_address(mm, addr, thread)
    }
}

extern "C" fn on_sigsys(sig: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    const SYS_USER_DISPATCH: i32 = 2;
    // SAFETY: the kernel's siginfo and ucontext.
    let (code, mark, context_ref) = unsafe {
        (
            (*info).si_code,
            (*info).si_errno,
            &mut *(context as *mut libc::ucontext_t),
        )
    };
    match code {
        SYS_SECCOMP if trap::is_ours(mark, context_ref) => trap::on_trap(context_ref),
        SYS_SECCOMP if trap::is_reissued(context_ref) && is_engine_at_work(context_ref) => {
            context_ref.uc_mcontext.gregs[libc::REG_RAX as usize] = -i64::from(libc::ENOSYS);
        }
        SYS_USER_DISPATCH => dispatch::on_dispatch(context_ref),
        _ => chain(sig, info, context),
    }
}

/// Whether the engine was interrupted while it may hold locks, by a filter of the program's that trapped a call of its or by a signal that
/// somebody sent: a handler of the program's, whose memory may be out, would wait for them for ever. Then all signals are blocked; a
/// program that blocks all of its own is taken for it.
fn is_engine_at_work(context: &mut libc::ucontext_t) -> bool {
    const NEVER: SigMask = sig_bit(libc::SIGKILL) | sig_bit(libc::SIGSTOP);
    *mask_of(context) | NEVER | OURS == !0
}

/// The signal mask that the interrupted code runs with, to be changed in place.
pub fn mask_of(context: &mut libc::ucontext_t) -> &mut SigMask {
    // SAFETY: uc_sigmask starts with the kernel's 8-byte mask.
    unsafe { &mut *(&raw mut context.uc_sigmask as *mut SigMask) }
}

/// Gives a signal that is not ours to the program.
fn chain(sig: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(action) = Virtual::of(sig).map(Virtual::load) else {
        return;
    };
    // SAFETY: the kernel's siginfo and ucontext.
    let (code, context_ref) = unsafe { ((*info).si_code, &mut *(context as *mut libc::ucontext_t)) };
    let (sent, trapped) = (code <= 0, sig == libc::SIGSYS && code == SYS_SECCOMP);
    // SAFETY: the kernel's siginfo.
    if sent && (action.handler == libc::SIG_IGN as u64 || unsafe { sigmask::hold(sig, info) }) {
        return;
    }
    if sent && action.handler > 1 && is_engine_at_work(context_ref) {
        // SAFETY: the kernel's siginfo.
        if unsafe { sigmask::put_off(sig, info, mask_of(context_ref)) } {
            return;
        }
    }
    // A fault of the program's own while it blocks the signal ends it, handler or not.
    if action.handler <= 1 || sigmask::blocked() & sig_bit(sig) != 0 {
        // The default: the faulting instruction runs again and ends the process the usual way.
        kernel_sigaction(sig, Some(&Action::default()), None);
        if sent {
            sys::raise(sig);
        } else if trapped {
            // The kernel has put back the call's number; the instruction lies behind.
            context_ref.uc_mcontext.gregs[libc::REG_RIP as usize] -= SYSCALL_LEN;
        }
        return;
    }
    let outer = *mask_of(context_ref);
    let own = if action.flags & libc::SA_NODEFER as u64 != 0 {
        0
    } else {
        sig_bit(sig)
    };
    sys::set_mask((outer | action.mask | own) & !OURS);
    if action.flags & libc::SA_RESETHAND as u64 != 0
        && let Some(virtual_action) = Virtual::of(sig)
    {
        virtual_action.store(&Action::default());
    }
    // SAFETY: the program installed this function as a handler for this signal.
    unsafe {
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
            core::mem::transmute(action.handler);
        handler(sig, info, context);
    }
}
