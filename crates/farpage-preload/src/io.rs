//! Calls on buffers.
//!
//! Where pointers hide in memory the filter can't see them: with nothing managed to point to, libc's own function is called (it
//! is a cancellation point); else the engine does the call. Plain calls the filter does see, but a trap costs more than
//! most of them: a buffer that is in RAM is kept there and the call is made at once. Where another preloaded library stands between us and
//! libc its function is called, and sees what the program asks for.

use core::ffi::{c_int, c_ulong, c_void};

use farpage::mm::mm;
use farpage::pool::is_managed;
use farpage::trap::{self, present};
use farpage::{remote, sys, syscalls};

use crate::descriptors::answered;
use crate::real::{self, Real, call_real};
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

unsafe extern "C" {
    fn pthread_setcanceltype(new: c_int, old: *mut c_int) -> c_int;
}

/// A cancellation point, made as libc makes its own: the thread may be cancelled while it waits. Then pages stay pinned, as after a
/// jump out of a handler.
fn cancellable(call: impl FnOnce() -> i64) -> i64 {
    const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;
    let mut type_before = 0;
    // SAFETY: this thread's own setting. Whatever must not be left half done is done with signals blocked.
    unsafe { pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &mut type_before) };
    let result = call();
    // SAFETY: as above.
    unsafe { pthread_setcanceltype(type_before, &mut type_before) };
    result
}

/// A call by the engine in place of a libc function that is a cancellation point.
fn perform(nr: i64, args: [u64; 6]) -> isize {
    result(cancellable(|| trap::perform(nr, args))) as isize
}

/// The call on a buffer that is wholly in RAM; `None`: for libc's own function, and the trap.
fn at_once(nr: i64, args: [u64; 6], buffer: (u64, u64)) -> Option<i64> {
    // An offset that looks like memory is one, of /proc/PID/mem: `remote` does that.
    if args.iter().filter(|&&arg| is_managed(arg)).count() != 1 {
        return None;
    }
    let held = present::hold(buffer.0, buffer.1)?;
    // SAFETY: the caller's call.
    let raw = cancellable(|| unsafe { sys::raw(nr, args) });
    drop(held);
    Some(result(raw))
}

/// What a call gave, before which errno was `before`; one that /proc/PID/mem answered with EIO is done by the engine.
fn again(nr: i64, args: [u64; 6], given: i64, before: c_int) -> i64 {
    // SAFETY: errno of this thread.
    let errno = unsafe { &mut *libc::__errno_location() };
    if given >= 0 || *errno != libc::EIO || !mm().is_active() {
        return given;
    }
    let Some(raw) = remote::at_position(nr, args) else {
        return given;
    };
    *errno = before;
    result(raw)
}

/// What a call on a buffer gives.
macro_rules! made {
    ($name:ident $nr:ident ($($arg:ident : $ty:ty),*) -> $ret:ty, $buffer:ident for $len:expr) => {{
        let args = || {
            let mut args = [0; 6];
            for (place, value) in args.iter_mut().zip([$($arg as u64),*]) {
                *place = value;
            }
            args
        };
        let direct = is_managed($buffer as u64) && real::is_libcs(Real::$name);
        match direct.then(|| at_once(libc::$nr, args(), ($buffer as u64, $len))).flatten() {
            Some(result) => result as $ret,
            None => call_real!($name as fn($($ty),*) -> $ret, $($arg),*),
        }
    }};
}

macro_rules! plain {
    ($($name:ident $nr:ident ($($arg:ident : $ty:ty),*) -> $ret:ty, $buffer:ident for $len:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
            made!($name $nr ($($arg: $ty),*) -> $ret, $buffer for $len)
        }
    )*};
}

/// Those whose position in the file may be an address.
macro_rules! positioned {
    ($($name:ident $nr:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, buffer: Buffer, len: usize) -> isize {
            // SAFETY: errno of this thread.
            let before = unsafe { *libc::__errno_location() };
            let given = made!($name $nr (fd: c_int, buffer: Buffer, len: usize) -> isize, buffer for len as u64);
            again(libc::$nr, [fd as u64, buffer as u64, len as u64, 0, 0, 0], given as i64, before) as isize
        }
    )*};
}

type Buffer = *mut c_void;

positioned! {
    read SYS_read;
    write SYS_write;
}

plain! {
    pread SYS_pread64 (fd: c_int, buffer: Buffer, len: usize, offset: i64) -> isize, buffer for len as u64;
    pread64 SYS_pread64 (fd: c_int, buffer: Buffer, len: usize, offset: i64) -> isize, buffer for len as u64;
    pwrite SYS_pwrite64 (fd: c_int, buffer: Buffer, len: usize, offset: i64) -> isize, buffer for len as u64;
    pwrite64 SYS_pwrite64 (fd: c_int, buffer: Buffer, len: usize, offset: i64) -> isize, buffer for len as u64;
    recv SYS_recvfrom (fd: c_int, buffer: Buffer, len: usize, flags: c_int) -> isize, buffer for len as u64;
    send SYS_sendto (fd: c_int, buffer: Buffer, len: usize, flags: c_int) -> isize, buffer for len as u64;
    epoll_wait SYS_epoll_wait (fd: c_int, events: Buffer, max: c_int, timeout: c_int) -> c_int,
        events for max.max(0) as u64 * EPOLL_EVENT_LEN;
    poll SYS_poll (fds: Buffer, count: libc::nfds_t, timeout: c_int) -> c_int, fds for count.saturating_mul(POLLFD_LEN);
}

const EPOLL_EVENT_LEN: u64 = size_of::<libc::epoll_event>() as u64;
const POLLFD_LEN: u64 = size_of::<libc::pollfd>() as u64;

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
            perform(libc::$nr, args)
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
    perform(libc::SYS_sendmsg, [fd as u64, msg as u64, flags as u64, 0, 0, 0])
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
    perform(libc::SYS_recvmsg, [fd as u64, msg as u64, flags as u64, 0, 0, 0])
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
    perform(
        libc::SYS_sendmmsg,
        [fd as u64, msgs as u64, u64::from(count), flags as u64, 0, 0],
    ) as c_int
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
    perform(libc::SYS_recvmmsg, args) as c_int
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

/// The result of a call whose pointers hide in memory, which the engine makes. `None`: libc is to make it.
pub fn made_if_hiding(nr: i64, args: [u64; 6]) -> Option<i64> {
    (mm().is_active() && syscalls::hides_pointers(nr, &args)).then(|| result(trap::perform(nr, args)))
}

/// Variadic in C: the argument is passed on whether or not there is one, as libc itself does it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, command: c_ulong, argument: *mut c_void) -> c_int {
    let args = [fd as u64, command, argument as u64, 0, 0, 0];
    if let Some(answer) = answered(libc::SYS_ioctl, [fd as u64, command, argument as u64]) {
        return answer;
    }
    if let Some(made) = made_if_hiding(libc::SYS_ioctl, args) {
        return made as c_int;
    }
    call_real!(
        ioctl as fn(c_int, c_ulong, *mut c_void) -> c_int,
        fd,
        command,
        argument
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    let args = [
        fd as u64,
        level as u64,
        name as u64,
        value as u64,
        u64::from(len),
        0,
    ];
    if let Some(made) = made_if_hiding(libc::SYS_setsockopt, args) {
        return made as c_int;
    }
    call_real!(
        setsockopt as fn(c_int, c_int, c_int, *const c_void, libc::socklen_t) -> c_int,
        fd,
        level,
        name,
        value,
        len
    )
}

/// Variadic in C: the arguments are passed on whether or not they are there, as libc itself does it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    let args = [option as u64, a, b, c, d, 0];
    if let Some(made) = made_if_hiding(libc::SYS_prctl, args) {
        return made as c_int;
    }
    let done = call_real!(
        prctl as fn(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int,
        option,
        a,
        b,
        c,
        d
    );
    if !mm().is_active() {
        crate::threads::keep_named(libc::SYS_prctl, args, i64::from(done));
    }
    done
}
