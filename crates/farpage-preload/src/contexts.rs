//! setcontext and swapcontext. libc hands the mask that lies in a context to the kernel, and no register shows the filter what is in it: SIGBUS
//! and SIGSYS, blocked so, would end the thread at its next swapped page. A context of getcontext's names neither (see
//! `farpage::trap`); a program that fills one in itself may.
//!
//! What is kept are the caller's registers and its stack. So these are jumps, not calls.

use farpage::sys::{OURS, SigMask};

use crate::real::{self, Real, go_on};

/// Takes our signals out of a context's mask.
fn strip(context: *mut libc::ucontext_t) {
    if context.is_null() {
        return;
    }
    // SAFETY: the caller's context, which may be only for reading. The kernel's mask is the first word of libc's.
    unsafe {
        let mask = (&raw mut (*context).uc_sigmask).cast::<SigMask>();
        if mask.read() & OURS != 0 {
            mask.write(mask.read() & !OURS);
        }
    }
}

extern "C" fn to_setcontext(context: *mut libc::ucontext_t) -> usize {
    strip(context);
    real::address(Real::setcontext) as usize
}

extern "C" fn to_swapcontext(_saved: *mut libc::ucontext_t, context: *mut libc::ucontext_t) -> usize {
    strip(context);
    real::address(Real::swapcontext) as usize
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setcontext() {
    go_on!(to_setcontext, [])
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swapcontext() {
    go_on!(to_swapcontext, [])
}
