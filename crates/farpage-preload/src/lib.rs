//! The library that `farpage run` preloads: exported symbols, thin; the work is in crate `farpage`.
//!
//! # Safety
//! Every exported function has the contract of the libc function it stands for and passes its arguments on. Nothing here
//! uses Rust's allocator, `std` I/O or thread-locals with destructors: each of those would call back into these symbols.
#![allow(unsafe_code)]
// The macro that calls a real function is used inside and outside of unsafe functions.
#![allow(unused_unsafe)]

mod aliases;
mod alloc;
mod atfork;
mod confine;
mod contexts;
mod descriptors;
mod environment;
mod exec;
mod internal;
mod io;
mod jumps;
mod legacy;
mod limits;
mod loader;
mod memory;
mod placed;
mod plain;
mod process;
mod real;
mod rings;
mod shell;
mod signal;
mod threads;
mod unwind;

use core::ffi::{c_char, c_int};

/// Runs when the loader has relocated everything; symbols above may have been called before.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = construct;

extern "C" fn construct(_argc: c_int, _argv: *const *const c_char, environment: *const *const c_char) {
    real::resolve();
    alloc::find_first_realloc();
    internal::start();
    threads::start_beliefs();
    // SAFETY: glibc passes constructors the process's environment.
    unsafe { farpage::join::join(environment) };
    if farpage::mm::mm().mode.load(core::sync::atomic::Ordering::Relaxed) == farpage::mm::mode::OFF {
        return;
    }
    threads::give_alternate_stack();
    farpage::stacks::are_noted_by(threads::each_noted);
    alloc::start();
    atfork::register_first();
    if farpage::mm::mm().header().has(farpage::pool::flag::NO_FOLLOW) {
        process::stop_following();
    }
}

/// A raw result as libc gives it: -1 and errno for errors.
pub(crate) fn result(raw: i64) -> i64 {
    if (-4095..0).contains(&raw) {
        // SAFETY: errno of this thread.
        unsafe { *libc::__errno_location() = -raw as i32 };
        return -1;
    }
    raw
}
