//! Calls whose pointers hide in memory, where the filter can't see them.
//!
//! With nothing managed to point to, libc's own function is called (it is a cancellation point); else the engine does the call.

use core::ffi::{c_int, c_void};

use farpage::mm::mm;
use farpage::pool::is_managed;
use farpage::trap;

use crate::real::call_real;
use crate::result;

fn any_managed(iov: *const libc::iovec, count: c_int) -> bool {
    if !mm().is_active() || iov.is_null() || !(0..=1024).contains(&count) {
        return false;
    }
    // SAFETY: the caller's array of `count` elements.
    is_managed(iov as u64)
        || unsafe { core::slice::from_raw_parts(iov, count as usize) }
            .iter()
            .any(|v| is_managed(v.iov_base as u64))
}

fn any_managed_in(msg: *const libc::msghdr) -> bool {
    if !mm().is_active() || msg.is_null() {
        return false;
    }
    // SAFETY: the caller's header.
    let header = unsafe { &*msg };
    is_managed(msg as u64)
        || is_managed(header.msg_name as u64)
        || is_managed(header.msg_control as u64)
        || any_managed(header.msg_iov, header.msg_iovlen as c_int)
}

macro_rules! vector {
    ($($name:ident $nr:ident ($($arg:ident : $ty:ty = $slot:literal),*);)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, iov: *const libc::iovec, count: c_int $(, $arg: $ty)*) -> isize {
            if !any_managed(iov, count) {
                return call_real!($name as fn(c_int, *const libc::iovec, c_int $(, $ty)*) -> isize, fd, iov, count $(, $arg)*);
            }
            #[allow(unused_mut)]
            let mut args = [fd as u64, iov as u64, count as u64, 0, 0, 0];
            $(args[$slot] = $arg as u64;)*
            result(trap::perform(libc::$nr, args)) as isize
        }
    )*};
}

vector! {
    readv SYS_readv ();
    writev SYS_writev ();
    preadv SYS_preadv (offset: i64 = 3);
    pwritev SYS_pwritev (offset: i64 = 3);
    preadv64 SYS_preadv (offset: i64 = 3);
    pwritev64 SYS_pwritev (offset: i64 = 3);
    preadv2 SYS_preadv2 (offset: i64 = 3, flags: c_int = 5);
    pwritev2 SYS_pwritev2 (offset: i64 = 3, flags: c_int = 5);
    preadv64v2 SYS_preadv2 (offset: i64 = 3, flags: c_int = 5);
    pwritev64v2 SYS_pwritev2 (offset: i64 = 3, flags: c_int = 5);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, msg: *const libc::msghdr, flags: c_int) -> isize {
    if !any_managed_in(msg) {
        return call_real!(
            sendmsg as fn(c_int, *const libc::msghdr, c_int) -> isize,
            fd,
            msg,
            flags
        );
    }
    result(trap::perform(
        libc::SYS_sendmsg,
        [fd as u64, msg as u64, flags as u64, 0, 0, 0],
    )) as isize
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, msg: *mut libc::msghdr, flags: c_int) -> isize {
    if !any_managed_in(msg) {
        return call_real!(
            recvmsg as fn(c_int, *mut libc::msghdr, c_int) -> isize,
            fd,
            msg,
            flags
        );
    }
    result(trap::perform(
        libc::SYS_recvmsg,
        [fd as u64, msg as u64, flags as u64, 0, 0, 0],
    )) as isize
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(fd: c_int, msgs: *mut c_void, count: u32, flags: c_int) -> c_int {
    if !mm().is_active() {
        return call_real!(
            sendmmsg as fn(c_int, *mut c_void, u32, c_int) -> c_int,
            fd,
            msgs,
            count,
            flags
        );
    }
    result(trap::perform(
        libc::SYS_sendmmsg,
        [fd as u64, msgs as u64, u64::from(count), flags as u64, 0, 0],
    )) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    msgs: *mut c_void,
    count: u32,
    flags: c_int,
    timeout: *mut libc::timespec,
) -> c_int {
    if !mm().is_active() {
        return call_real!(
            recvmmsg as fn(c_int, *mut c_void, u32, c_int, *mut libc::timespec) -> c_int,
            fd,
            msgs,
            count,
            flags,
            timeout
        );
    }
    let args = [
        fd as u64,
        msgs as u64,
        u64::from(count),
        flags as u64,
        timeout as u64,
        0,
    ];
    result(trap::perform(libc::SYS_recvmmsg, args)) as c_int
}

type Iov = *const libc::iovec;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn process_vm_readv(
    pid: c_int,
    local: Iov,
    locals: u64,
    remote: Iov,
    remotes: u64,
    flags: u64,
) -> isize {
    across(
        libc::SYS_process_vm_readv,
        pid,
        (local, locals),
        (remote, remotes),
        flags,
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn process_vm_writev(
    pid: c_int,
    local: Iov,
    locals: u64,
    remote: Iov,
    remotes: u64,
    flags: u64,
) -> isize {
    across(
        libc::SYS_process_vm_writev,
        pid,
        (local, locals),
        (remote, remotes),
        flags,
    )
}

fn across(nr: i64, pid: c_int, local: (Iov, u64), remote: (Iov, u64), flags: u64) -> isize {
    let (local, remote) = ((local.0 as u64, local.1), (remote.0 as u64, remote.1));
    let args = [pid as u64, local.0, local.1, remote.0, remote.1, flags];
    result(trap::perform(nr, args)) as isize
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn process_madvise(
    pidfd: c_int,
    ranges: Iov,
    count: usize,
    advice: c_int,
    flags: u32,
) -> isize {
    let args = [
        pidfd as u64,
        ranges as u64,
        count as u64,
        advice as u64,
        u64::from(flags),
        0,
    ];
    result(trap::perform(libc::SYS_process_madvise, args)) as isize
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmsplice(fd: c_int, iov: Iov, count: usize, flags: u32) -> isize {
    let args = [fd as u64, iov as u64, count as u64, u64::from(flags), 0, 0];
    result(trap::perform(libc::SYS_vmsplice, args)) as isize
}
