//! siglongjmp and its other names. libc gives the kernel the mask that sigsetjmp kept by an instruction of its own, so SIGBUS and SIGSYS stayed
//! believed blocked for good: a signal sent later never came, and programs started then had both blocked.
//!
//! What sigsetjmp kept is the kernel's mask, which has neither; what was believed is noted beside it.
//!
//! The callers' frames are left for good, by a jump from here: nothing is live that would be dropped.

use core::ffi::c_int;

use farpage::sigmask;
use farpage::sys::{OURS, SigMask};

use crate::real::{self, Real, go_on};

/// glibc's `struct __jmp_buf_tag`.
#[repr(C)]
pub struct Jump {
    registers: [u64; 8],
    has_mask: i32,
    mask: SigMask,
    /// The rest of the room for a mask. libc uses the first two at most (the stack of shadows).
    spare: [u64; 14],
    noted: u64,
}

/// In [`Jump::noted`], beside the belief. A buffer that was filled past this library has something else.
const NOTED: u64 = 0x6661_7270_0000_0000;
const _: () = assert!(NOTED & OURS == 0 && size_of::<Jump>() == 200);

/// Buffers without a mask may be shorter (libc's for cleanups are).
fn note(jump: *mut Jump, has_mask: c_int) {
    if has_mask != 0 && !jump.is_null() {
        // SAFETY: the caller's buffer, all of which is its to fill in.
        unsafe { (&raw mut (*jump).noted).write(NOTED | (sigmask::blocked() & OURS)) };
    }
}

/// Sets the mask that the jump gives back as sigprocmask does: what waits and may come comes here, where libc's own call would let it through.
fn give_back(jump: *mut Jump) {
    // SAFETY: what sigsetjmp filled in; it is written to only where its mask was kept before this library had our signals.
    unsafe {
        if jump.is_null() || (&raw const (*jump).has_mask).read() == 0 {
            return;
        }
        let (kept, noted) = (
            (&raw const (*jump).mask).read(),
            (&raw const (*jump).noted).read(),
        );
        let mask = match noted & !OURS {
            NOTED => kept | (noted & OURS),
            _ => kept,
        };
        if (mask | sigmask::blocked()) & OURS == 0 {
            return;
        }
        // That one always can be set.
        let _ = sigmask::change(libc::SIG_SETMASK, Some(mask));
        if kept & sigmask::blocked() & OURS != 0 {
            (&raw mut (*jump).mask).write(kept & !OURS);
        }
    }
}

extern "C" fn to_sigsetjmp(jump: *mut Jump, has_mask: c_int) -> usize {
    note(jump, has_mask);
    real::address(Real::__sigsetjmp) as usize
}

/// libc's own, which comes back twice: nothing of this is on the stack then.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sigsetjmp() {
    go_on!(to_sigsetjmp, [])
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
