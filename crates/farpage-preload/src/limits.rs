//! The limits of a process. That of file sizes is also the engine's affair: see `farpage::file_limit`.

use core::ffi::{c_int, c_uint};
use core::sync::atomic::Ordering;

use farpage::file_limit::{self, Limits};
use farpage::mm::{mm, mode};
use farpage::{sys, trap};

use crate::result;

const EFAULT: i64 = -(libc::EFAULT as i64);

/// prlimit64(2) with pointers of the program's, or 0; `-errno` on failure.
pub fn perform(pid: i32, resource: c_uint, new: u64, old: u64) -> i64 {
    let is_own = pid == 0 || pid == sys::getpid();
    if resource != libc::RLIMIT_FSIZE || !is_own || mm().mode.load(Ordering::Relaxed) == mode::OFF {
        let args = [pid as u64, u64::from(resource), new, old, 0, 0];
        return trap::perform(libc::SYS_prlimit64, args);
    }
    let size = size_of::<Limits>() as u64;
    let mut wanted: Limits = [0; 2];
    if new != 0 && !trap::read_user(new, wanted.as_mut_ptr() as u64, size) {
        return EFAULT;
    }
    match file_limit::change(mm(), (new != 0).then_some(wanted)) {
        Ok(before) if old != 0 && !trap::write_user(old, before.as_ptr() as u64, size) => EFAULT,
        Ok(_) => 0,
        Err(errno) => -i64::from(errno.0),
    }
}

/// setrlimit(2).
pub fn set(resource: c_uint, new: u64) -> i64 {
    if new == 0 {
        return EFAULT;
    }
    perform(0, resource, new, 0)
}

/// getrlimit(2).
pub fn get(resource: c_uint, old: u64) -> i64 {
    if old == 0 {
        return EFAULT;
    }
    perform(0, resource, 0, old)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(pid: i32, resource: c_uint, new: *const Limits, old: *mut Limits) -> c_int {
    result(perform(pid, resource, new as u64, old as u64)) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(resource: c_uint, new: *const Limits) -> c_int {
    result(set(resource, new as u64)) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrlimit(resource: c_uint, old: *mut Limits) -> c_int {
    result(get(resource, old as u64)) as c_int
}
