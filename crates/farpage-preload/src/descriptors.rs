//! The tree's own descriptors survive programs that close what they do not know. The filter protects them in an active
//! process; these symbols do so in a dormant one.

use core::ffi::{c_int, c_ulong};
use core::sync::atomic::Ordering;

use farpage::mm::{mm, mode};
use farpage::sys;
use farpage::trap::descriptors::answer;

use crate::real::{self, Real, call_real};
use crate::result;

/// The answer to a call that names the tree's descriptors, which libc's own function must not make.
pub fn answered(nr: i64, args: [u64; 3]) -> Option<c_int> {
    let [a, b, mut c] = args;
    let is_on = mm().mode.load(Ordering::Relaxed) != mode::OFF;
    if nr == libc::SYS_close_range {
        match shared_with_ours(c as c_int, libc::CLOSE_RANGE_UNSHARE as c_int) {
            Ok(flags) => c = flags as u64,
            Err(refused) => return Some(refused),
        }
    }
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

/// Under each of its names. Variadic in C: the argument is passed on whether or not there is one, as libc itself does it.
macro_rules! file_control {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(number: c_int, command: c_int, argument: c_ulong) -> c_int {
            let args = [number as u64, command as u64, argument];
            if let Some(answer) = answered(libc::SYS_fcntl, args) {
                return answer;
            }
            call_real!($name as fn(c_int, c_int, c_ulong) -> c_int, number, command, argument)
        }
    )*};
}

file_control!(fcntl fcntl64 __fcntl);

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
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    match shared_with_ours(flags, libc::CLONE_FILES) {
        Ok(flags) => call_real!(unshare as fn(c_int) -> c_int, flags),
        Err(refused) => refused,
    }
}

/// The `flags` without `own_table`, which asks for descriptors apart from the other threads'. The engine's threads, and what it knows of
/// files, would keep the old ones: pages would be written to whatever has a file's number in the new ones. A program with one thread
/// has none apart from the engine's, and misses nothing. A child of vfork has its own.
fn shared_with_ours(flags: c_int, own_table: c_int) -> Result<c_int, c_int> {
    let mm = mm();
    let is_ours = mm.entry_opt().is_some() && mm.mode.load(Ordering::Relaxed) != mode::OFF && mm.is_own();
    if flags & own_table == 0 || !is_ours {
        return Ok(flags);
    }
    if has_threads().unwrap_or(false) {
        sys::complain(&[
            "farpage: a thread of a program inside a budget can't have descriptors of its own (unshare with CLONE_FILES): EINVAL",
        ]);
        return Err(result(-i64::from(libc::EINVAL)) as c_int);
    }
    Ok(flags & !own_table)
}

/// Whether the program has started a thread, as libc remembers it; those of the engine are not libc's. `None`: an older libc (before 2.32)
/// does not say.
pub fn has_threads() -> Option<bool> {
    let single = real::address(Real::__libc_single_threaded) as *const u8;
    // SAFETY: a char of libc's that is 1 while there is one thread.
    (!single.is_null()).then(|| unsafe { single.read_volatile() } == 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: the caller's call.
    unsafe { close_range(first.max(0) as u32, u32::MAX, 0) };
}
