//! Calls after which a process can't become active any more, because it gives up /proc, which says what its memory and its threads are:
//! a Landlock that forbids opening files (xz puts one on itself before it has mapped anything), a root without /proc. It becomes
//! active before them. What it needs of /proc later it can do without, as one that gave it up while active.

use core::ffi::{c_char, c_int};
use core::sync::atomic::Ordering;

use farpage::activate::activate;
use farpage::engine_stack::if_managed;
use farpage::mm::{mm, mode};
use farpage::sys;

use crate::real::call_real;

/// Called before a call that may be one of these.
pub fn prepare(nr: i64, args: [u64; 6]) {
    let gives_up = match nr {
        libc::SYS_landlock_restrict_self => true,
        libc::SYS_chroot => lacks_proc(args[0]),
        _ => false,
    };
    if gives_up && mm().mode.load(Ordering::Acquire) == mode::DORMANT {
        if_managed(activate);
    }
}

/// Whether a directory is there, but nothing of this process's below it.
fn lacks_proc(path: u64) -> bool {
    let how = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the caller's string, which the kernel looks at, as it will when it changes the root.
    let root = unsafe { sys::call(libc::SYS_open, [path, how as u64, 0, 0, 0, 0]) };
    let Ok(root) = root.map(|fd| fd as c_int) else {
        return false;
    };
    let tasks = sys::open_at(root, c"proc/self/task", how);
    sys::close(root);
    tasks.map(sys::close).is_err()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn chroot(path: *const c_char) -> c_int {
    if !mm().is_active() {
        prepare(libc::SYS_chroot, [path as u64, 0, 0, 0, 0, 0]);
    }
    call_real!(chroot as fn(*const c_char) -> c_int, path)
}
