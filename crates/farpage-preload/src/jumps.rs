//! siglongjmp and its other names. libc gives the kernel the mask that sigsetjmp kept by an instruction of its own, so SIGBUS and SIGSYS stayed
//! believed blocked for good: a signal sent later never came, and programs started then had both blocked.
//!
//! What sigsetjmp kept is the kernel's mask, which has neither. So a thread that believed one blocked at sigsetjmp believes it let through
//! after the jump. That is the harmless direction: a signal that waits comes, a little early, and none is lost.
//!
//! The callers' frames are left for good, by a jump from here: nothing is live that would be dropped.

use farpage::sigmask;
use farpage::sys::{OURS, SigMask};

use crate::real::{self, Real, go_on};

/// glibc's `struct __jmp_buf_tag` up to the kernel's part of the mask.
#[repr(C)]
pub struct Jump {
    registers: [u64; 8],
    has_mask: i32,
    mask: SigMask,
}

/// Sets the mask that the jump gives back as sigprocmask does: what waits and may come comes here, where libc's own call would let it through.
fn give_back(jump: *mut Jump) {
    // SAFETY: what sigsetjmp filled in; it is written to only where its mask was kept before this library had our signals.
    unsafe {
        if jump.is_null() || (&raw const (*jump).has_mask).read() == 0 {
            return;
        }
        let mask = (&raw const (*jump).mask).read();
        if (mask | sigmask::blocked()) & OURS == 0 {
            return;
        }
        // That one always can be set.
        let _ = sigmask::change(libc::SIG_SETMASK, Some(mask));
        if mask & sigmask::blocked() != 0 {
            (&raw mut (*jump).mask).write(mask & !OURS);
        }
    }
}

macro_rules! jumps {
    ($($name:ident $where_to:ident;)*) => {$(
        extern "C" fn $where_to(jump: *mut Jump) -> usize {
            give_back(jump);
            real::address(Real::$name) as usize
        }

        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            go_on!($where_to, [])
        }
    )*};
}

jumps! {
    siglongjmp to_siglongjmp;
    longjmp to_longjmp;
    _longjmp to_underscored;
    __longjmp_chk to_checked;
}
