//! The signal calls of System V and BSD, made of this library's `sigaction` and mask as libc makes them of its own: those it
//! does not see, and they would replace our handlers or block what must come through.

use core::ffi::c_int;

use farpage::sigmask;
use farpage::signals;
use farpage::sys::sig_bit;

use crate::real::call_real;
use crate::result;
use crate::signal::sigaction;

/// `sigset`: block the signal.
const SIG_HOLD: usize = 2;

/// Sets the handler of a signal (`None`: only looks); the handler before, or SIG_ERR.
fn act(sig: c_int, new: Option<(usize, c_int)>) -> usize {
    // SAFETY: structures of ours; a sigaction of zeros is one.
    unsafe {
        let mut old: libc::sigaction = core::mem::zeroed();
        let mut wanted: libc::sigaction = core::mem::zeroed();
        if let Some((handler, flags)) = new {
            wanted.sa_sigaction = handler;
            wanted.sa_flags = flags;
        }
        let given = new.map_or(core::ptr::null(), |_| &raw const wanted);
        match sigaction(sig, given, &mut old) {
            0 => old.sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}

/// Blocks or unblocks one signal; the mask before, or `-errno`.
fn mask_one(how: c_int, sig: c_int) -> Result<u64, i64> {
    if !(1..=64).contains(&sig) {
        return Err(-i64::from(libc::EINVAL));
    }
    sigmask::change(how, Some(sig_bit(sig)))
}

/// 0, or -1 with errno set.
fn status(done: Result<u64, i64>) -> c_int {
    result(done.map_or_else(|errno| errno, |_| 0)) as c_int
}

/// signal(3) as System V had it: the handler is called once, with the signal unblocked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(sig: c_int, handler: usize) -> usize {
    act(sig, Some((handler, libc::SA_RESETHAND | libc::SA_NODEFER)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigset(sig: c_int, handler: usize) -> usize {
    let (how, new) = if handler == SIG_HOLD {
        (libc::SIG_BLOCK, None)
    } else {
        (libc::SIG_UNBLOCK, Some((handler, 0)))
    };
    let before = act(sig, new);
    if before == libc::SIG_ERR {
        return before;
    }
    match mask_one(how, sig) {
        Ok(mask) if mask & sig_bit(sig) != 0 => SIG_HOLD,
        _ => before,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sighold(sig: c_int) -> c_int {
    status(mask_one(libc::SIG_BLOCK, sig))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigrelse(sig: c_int) -> c_int {
    status(mask_one(libc::SIG_UNBLOCK, sig))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigignore(sig: c_int) -> c_int {
    match act(sig, Some((libc::SIG_IGN, 0))) {
        libc::SIG_ERR => -1,
        _ => 0,
    }
}

/// A call interrupted by one of ours is made again by us; there is nothing to switch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siginterrupt(sig: c_int, interrupts: c_int) -> c_int {
    if signals::is_taken(sig) {
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
