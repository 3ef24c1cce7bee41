//! Handlers of pthread_atfork: ours come first, so that the window of a fork lies inside those of the program and its libraries
//! (`farpage::fork::window`), and a child is whole before they see it.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use farpage::fork::window;
use farpage::{file_limit, join, sys};

use crate::real::call_real;
use crate::shell;

type Handler = Option<unsafe extern "C" fn()>;

static REGISTERED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn prepare() {
    window::open();
}

unsafe extern "C" fn in_parent() {
    window::close();
}

unsafe extern "C" fn in_child() {
    window::close();
    join::rejoin_after_dormant_fork();
    file_limit::forget();
    shell::forget();
}

/// Registers ours, once: at the latest in the constructor.
pub fn register_first() {
    if !REGISTERED.swap(true, Ordering::Relaxed)
        && register(Some(prepare), Some(in_parent), Some(in_child)) != 0
    {
        sys::die(&[
            "farpage: no memory for the handlers without which fork is not safe; the program was stopped",
        ]);
    }
}

/// As nobody's handlers: those of a library are dropped when it is taken down at exit, and other threads may fork still.
fn register(prepare: Handler, parent: Handler, child: Handler) -> c_int {
    call_real!(
        __register_atfork as fn(Handler, Handler, Handler, *mut c_void) -> c_int,
        prepare,
        parent,
        child,
        core::ptr::null_mut()
    )
}

/// What pthread_atfork, which is linked into its callers, calls in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __register_atfork(
    prepare: Handler,
    parent: Handler,
    child: Handler,
    library: *mut c_void,
) -> c_int {
    register_first();
    call_real!(
        __register_atfork as fn(Handler, Handler, Handler, *mut c_void) -> c_int,
        prepare,
        parent,
        child,
        library
    )
}
