//! The signal calls of System V and BSD, for our two signals. libc makes them of its own `sigaction` and `sigprocmask`,
//! which this library does not see, and would so replace our handlers or block what must come through.

use core::ffi::c_int;
use core::mem::MaybeUninit;

use farpage::sigmask;
use farpage::signals::{self, Action};
use farpage::sys::sig_bit;

use crate::real::call_real;
use crate::result;

/// `sigset`: block the signal.
const SIG_HOLD: usize = 2;

fn is_ours(sig: c_int) -> bool {
    matches!(sig, libc::SIGBUS | libc::SIGSYS)
}

/// Sets the action of one of ours; the handler before.
fn act(sig: c_int, handler: usize, flags: c_int) -> usize {
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: structures of ours; a sigaction of zeros is one, and is filled in.
    unsafe {
        let mut new: libc::sigaction = core::mem::zeroed();
        new.sa_sigaction = handler;
        new.sa_flags = flags;
        match crate::signal::sigaction(sig, &new, old.as_mut_ptr()) {
            0 => old.assume_init().sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}

/// Blocks or unblocks one signal; the mask before.
fn mask_one(how: c_int, sig: c_int) -> Result<u64, i64> {
    if !(1..=64).contains(&sig) {
        return Err(-i64::from(libc::EINVAL));
    }
    sigmask::change(how, Some(sig_bit(sig)))
}

/// signal(3) as System V had it: the handler is called once, with the signal unblocked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(sig: c_int, handler: usize) -> usize {
    if is_ours(sig) {
        return act(sig, handler, libc::SA_RESETHAND | libc::SA_NODEFER);
    }
    sigmask::action_mask(sig, Some(0));
    call_real!(__sysv_signal as fn(c_int, usize) -> usize, sig, handler)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigset(sig: c_int, handler: usize) -> usize {
    if !is_ours(sig) {
        return call_real!(sigset as fn(c_int, usize) -> usize, sig, handler);
    }
    let how = if handler == SIG_HOLD {
        libc::SIG_BLOCK
    } else {
        libc::SIG_UNBLOCK
    };
    let mut now = Action::default();
    signals::sigaction(sig, None, Some(&mut now));
    let before = if handler == SIG_HOLD {
        now.handler as usize
    } else {
        act(sig, handler, 0)
    };
    match mask_one(how, sig) {
        Ok(mask) if mask & sig_bit(sig) != 0 => SIG_HOLD,
        _ => before,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sighold(sig: c_int) -> c_int {
    result(mask_one(libc::SIG_BLOCK, sig).map_or_else(|errno| errno, |_| 0)) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigrelse(sig: c_int) -> c_int {
    result(mask_one(libc::SIG_UNBLOCK, sig).map_or_else(|errno| errno, |_| 0)) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigignore(sig: c_int) -> c_int {
    if is_ours(sig) {
        return if act(sig, libc::SIG_IGN, 0) == libc::SIG_ERR {
            -1
        } else {
            0
        };
    }
    call_real!(sigignore as fn(c_int) -> c_int, sig)
}

/// A call interrupted by one of ours is made again by us; there is nothing to switch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siginterrupt(sig: c_int, interrupts: c_int) -> c_int {
    if is_ours(sig) {
        return 0;
    }
    call_real!(siginterrupt as fn(c_int, c_int) -> c_int, sig, interrupts)
}

/// BSD masks have the first 32 signals.
fn bsd_mask(how: c_int, mask: c_int) -> c_int {
    match sigmask::change(how, Some(u64::from(mask as u32))) {
        Ok(before) => before as u32 as c_int,
        Err(errno) => result(errno) as c_int,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigblock(mask: c_int) -> c_int {
    bsd_mask(libc::SIG_BLOCK, mask)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigsetmask(mask: c_int) -> c_int {
    bsd_mask(libc::SIG_SETMASK, mask)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn siggetmask() -> c_int {
    bsd_mask(libc::SIG_BLOCK, 0)
}
