//! dlopen without RTLD_DEEPBIND. A library that is bound to libc before it is bound to us would have two mallocs: its `free` were libc's,
//! and what libc's strdup gives it is a block of ours. It would also reach libc's system calls past us.
//!
//! dlsym by a handle, which is how ctypes, JNA and their like call libc, would lead past us in the same way.
//!
//! The loader looks at who calls: its RUNPATH and its namespace. So these are jumps, not calls.

use core::ffi::{c_char, c_void};

use crate::internal;
use crate::real::{self, Real, go_on};

const RTLD_DEEPBIND: i32 = libc::RTLD_DEEPBIND;

extern "C" fn real_dlopen() -> usize {
    real::address(Real::dlopen) as usize
}

extern "C" fn real_dlmopen() -> usize {
    real::address(Real::dlmopen) as usize
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen() {
    go_on!(real_dlopen, ["and esi, {kept}"], kept = const !RTLD_DEEPBIND)
}

/// Only in the namespace that this library is in, LM_ID_BASE (0): another has a libc of its own.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlmopen() {
    go_on!(real_dlmopen, ["test rdi, rdi", "jnz 2f", "and edx, {kept}", "2:"], kept = const !RTLD_DEEPBIND)
}

/// By the name of a library (not RTLD_DEFAULT, 0, nor RTLD_NEXT, -1, for which the loader looks at who calls).
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym() {
    go_on!(real::next_dlsym, ["lea rax, [rdi + 1]", "cmp rax, 1", "ja {by_handle}"], by_handle = sym by_handle)
}

/// What is found in libc is ours where we stand for it: where the name leads everybody to us, and from us to libc with nobody in between
/// (another preloaded library that looks for what it stands for would call itself).
unsafe extern "C" fn by_handle(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller's arguments; the name is valid for the further look-ups too.
    unsafe {
        let found = core::mem::transmute::<usize, real::Dlsym>(real::next_dlsym())(handle, name);
        if !internal::is_libc(found as usize) {
            return found;
        }
        let first = real::dlsym(libc::RTLD_DEFAULT, name);
        let next = real::dlsym(libc::RTLD_NEXT, name);
        // That one of these may have failed is not the caller's to know.
        libc::dlerror();
        if next == found && internal::is_own(first as usize) {
            first
        } else {
            found
        }
    }
}
