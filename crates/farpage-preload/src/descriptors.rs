//! The tree's own descriptors survive programs that close what they do not know. The filter protects them in an active
//! process; these symbols do so in a dormant one.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use farpage::mm::{fd, mm, mode};
use farpage::{sys, trap};

use crate::real::call_real;
use crate::result;

fn is_on() -> bool {
    mm().mode.load(Ordering::Relaxed) != mode::OFF
}

fn is_protected(number: c_int) -> bool {
    is_on() && (mm().fd(0)..mm().fd(fd::COUNT)).contains(&number)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(number: c_int) -> c_int {
    if is_protected(number) {
        return 0;
    }
    call_real!(close as fn(c_int) -> c_int, number)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    if is_protected(to) {
        return result(-i64::from(libc::EBADF)) as c_int;
    }
    call_real!(dup2 as fn(c_int, c_int) -> c_int, from, to)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if is_protected(to) {
        return result(-i64::from(libc::EBADF)) as c_int;
    }
    call_real!(dup3 as fn(c_int, c_int, c_int) -> c_int, from, to, flags)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    let args = [u64::from(first), u64::from(last), flags as u64, 0, 0, 0];
    if !is_on() {
        // SAFETY: the caller's call.
        return result(unsafe { sys::raw(libc::SYS_close_range, args) }) as c_int;
    }
    result(trap::close_range(args)) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: the caller's call.
    unsafe { close_range(first.max(0) as u32, u32::MAX, 0) };
}
