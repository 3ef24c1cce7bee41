//! The tree's own descriptors survive programs that close what they do not know. The filter protects them in an active
//! process; these symbols do so in a dormant one.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use farpage::mm::{mm, mode};
use farpage::sys;
use farpage::trap::descriptors::answer;

use crate::real::call_real;
use crate::result;

/// The answer to a call that names the tree's descriptors, which libc's own function must not make.
pub fn answered(nr: i64, args: [u64; 3]) -> Option<c_int> {
    let [a, b, c] = args;
    let is_on = mm().mode.load(Ordering::Relaxed) != mode::OFF;
    let answer = is_on.then(|| answer(mm(), nr, &[a, b, c, 0, 0, 0])).flatten();
    answer.map(|answer| result(answer) as c_int)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(number: c_int) -> c_int {
    if let Some(answer) = answered(libc::SYS_close, [number as u64, 0, 0]) {
        return answer;
    }
    call_real!(close as fn(c_int) -> c_int, number)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    if let Some(answer) = answered(libc::SYS_dup2, [from as u64, to as u64, 0]) {
        return answer;
    }
    call_real!(dup2 as fn(c_int, c_int) -> c_int, from, to)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if let Some(answer) = answered(libc::SYS_dup3, [from as u64, to as u64, flags as u64]) {
        return answer;
    }
    call_real!(dup3 as fn(c_int, c_int, c_int) -> c_int, from, to, flags)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    let [first, last] = [u64::from(first), u64::from(last)];
    if let Some(answer) = answered(libc::SYS_close_range, [first, last, flags as u64]) {
        return answer;
    }
    // SAFETY: the caller's call.
    result(unsafe { sys::raw(libc::SYS_close_range, [first, last, flags as u64, 0, 0, 0]) }) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: the caller's call.
    unsafe { close_range(first.max(0) as u32, u32::MAX, 0) };
}
