//! Unwinding through the stub, from which a trapped call is made: the unwinder asks the loader which object an address belongs to.
//!
//! Without this a cancelled thread's unwinding ended at the stub: no destructor ran, and no lock of the program's or libc's was
//! given back.

use core::ffi::{c_int, c_void};

use farpage::stub::unwind::FRAMES;
use farpage::stub::{self, STUB_ADDR, STUB_LEN};

use crate::real::{self, Real, call_real};

/// struct dl_find_object (glibc 2.35).
#[repr(C)]
pub struct Found {
    flags: u64,
    map_start: u64,
    map_end: u64,
    link_map: *mut c_void,
    eh_frame: *const c_void,
    reserved: [u64; 7],
}

/// The stub counts as a part of this library. Async-signal-safe, as libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _dl_find_object(address: *mut c_void, found: *mut Found) -> c_int {
    if real::address(Real::_dl_find_object).is_null() {
        return -1; // a libc whose unwinder does not ask so
    }
    let frames = &raw const FRAMES as *mut c_void;
    let is_stub = stub::holds(address as u64);
    let known = if is_stub { frames } else { address };
    let result = call_real!(
        _dl_find_object as fn(*mut c_void, *mut Found) -> c_int,
        known,
        found
    );
    if result == 0 && is_stub {
        // SAFETY: the caller's structure, just filled in.
        let found = unsafe { &mut *found };
        (found.map_start, found.map_end) = (STUB_ADDR, STUB_ADDR + STUB_LEN);
        found.eh_frame = frames;
    }
    result
}
