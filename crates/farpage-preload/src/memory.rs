//! mmap and its kin.

use core::ffi::{c_int, c_void};

use farpage::engine_stack::if_managed;
use farpage::mem::{self, Map};
use farpage::mremap::{self, Remap};
use farpage::{mm::mm, residency, trap};

use crate::result;
use crate::threads::is_surely_alone;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    map(addr as u64, len as u64, [prot, flags, fd], offset as u64)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    map(addr as u64, len as u64, [prot, flags, fd], offset as u64)
}

/// Both of them. Not by the name of the other, which the linker takes for the raw call (build.rs) unless the compiler has inlined it: no mapping
/// of python3, node or java was managed in such a build.
fn map(addr: u64, len: u64, [prot, flags, fd]: [c_int; 3], offset: u64) -> *mut c_void {
    let request = Map {
        addr,
        len,
        prot,
        flags,
        fd,
        offset,
    };
    result(if_managed(|| mem::mmap(request))) as *mut c_void
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(addr: *mut c_void, len: usize) -> c_int {
    result(if_managed(|| mem::munmap(addr as u64, len as u64))) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(addr: *mut c_void, len: usize, prot: c_int) -> c_int {
    result(if_managed(|| mem::mprotect(addr as u64, len as u64, prot, None))) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pkey_mprotect(addr: *mut c_void, len: usize, prot: c_int, pkey: c_int) -> c_int {
    result(if_managed(|| {
        mem::mprotect(addr as u64, len as u64, prot, Some(pkey))
    })) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    result(if_managed(|| mem::madvise(addr as u64, len as u64, advice))) as c_int
}

/// Returns the error number; DONTNEED does nothing here, as in glibc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    -(if_managed(|| mem::madvise(addr as u64, len as u64, advice)).min(0)) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let request = Remap {
        old: old as u64,
        old_len: old_len as u64,
        new_len: new_len as u64,
        flags,
        new: new as u64,
        alone: is_surely_alone(),
    };
    result(if_managed(|| mremap::mremap(request))) as *mut c_void
}

fn lock(nr: i64, addr: *const c_void, len: usize, flags: u64, on: bool) -> c_int {
    let done = if_managed(|| mem::mlock(addr as u64, len as u64, on));
    result(done.unwrap_or_else(|| trap::perform(nr, [addr as u64, len as u64, flags, 0, 0, 0]))) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(addr: *const c_void, len: usize) -> c_int {
    lock(libc::SYS_mlock, addr, len, 0, true)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(addr: *const c_void, len: usize, flags: c_int) -> c_int {
    if !mem::are_lock_flags(flags) {
        return result(-i64::from(libc::EINVAL)) as c_int;
    }
    lock(libc::SYS_mlock2, addr, len, flags as u64, true)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn munlock(addr: *const c_void, len: usize) -> c_int {
    lock(libc::SYS_munlock, addr, len, 0, false)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn munlockall() -> c_int {
    if_managed(residency::munlock_all);
    result(trap::perform(libc::SYS_munlockall, [0; 6])) as c_int
}

/// All of a managed program can't be locked in RAM: that is what its budget is for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    if flags != 0 && mm().mode.load(core::sync::atomic::Ordering::Relaxed) != farpage::mm::mode::OFF {
        return result(-i64::from(libc::ENOMEM)) as c_int;
    }
    result(trap::perform(libc::SYS_mlockall, [flags as u64, 0, 0, 0, 0, 0])) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mincore(addr: *mut c_void, len: usize, vec: *mut u8) -> c_int {
    result(trap::perform(
        libc::SYS_mincore,
        [addr as u64, len as u64, vec as u64, 0, 0, 0],
    )) as c_int
}
