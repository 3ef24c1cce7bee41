//! The limits of a process. That of file sizes is also the engine's affair: see `farpage::file_limit`.

use core::ffi::{c_int, c_uint};
use core::sync::atomic::Ordering;

use farpage::file_limit::{self, Limits};
use farpage::mm::{mm, mode};
use farpage::{sys, trap};

use crate::result;

/// prlimit64(2); `-errno` on failure.
///
/// # Safety
/// Limits of the caller's, or NULL.
pub unsafe fn perform(pid: i32, resource: c_uint, new: *const Limits, old: *mut Limits) -> i64 {
    let is_own = pid == 0 || pid == sys::getpid();
    if resource != libc::RLIMIT_FSIZE || !is_own || mm().mode.load(Ordering::Relaxed) == mode::OFF {
        let args = [pid as u64, u64::from(resource), new as u64, old as u64, 0, 0];
        return trap::perform(libc::SYS_prlimit64, args);
    }
    // SAFETY: as the caller's.
    let (new, old) = unsafe { (new.as_ref().copied(), old.as_mut()) };
    match file_limit::change(mm(), new) {
        Ok(before) => {
            if let Some(old) = old {
                *old = before;
            }
            0
        }
        Err(errno) => -i64::from(errno.0),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(pid: i32, resource: c_uint, new: *const Limits, old: *mut Limits) -> c_int {
    // SAFETY: as the caller's.
    result(unsafe { perform(pid, resource, new, old) }) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(resource: c_uint, new: *const Limits) -> c_int {
    // SAFETY: as the caller's.
    unsafe { prlimit(0, resource, new, core::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrlimit(resource: c_uint, old: *mut Limits) -> c_int {
    // SAFETY: as the caller's.
    unsafe { prlimit(0, resource, core::ptr::null(), old) }
}
