//! Handlers of pthread_atfork: ours come first, so that the window of a fork lies inside those of the program and its libraries
//! (`farpage::fork::window`), and a child is whole before they see it.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use farpage::fork::window;
use farpage::{file_limit, join, sys};

use crate::descriptors::has_threads;
use crate::internal;
use crate::real::call_real;
use crate::{shell, threads};

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
    internal::forget();
    threads::forget_others();
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

unsafe extern "C" {
    /// What the handlers of this library are registered with.
    static __dso_handle: u8;
}

/// jemalloc's: before a fork, in the parent, in the child.
static OF_MALLOC: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
/// Whether the fork under way goes without them.
static WITHOUT: AtomicBool = AtomicBool::new(false);

fn call_of_malloc(which: usize) {
    let address = OF_MALLOC[which].load(Ordering::Relaxed);
    if address != 0 && !WITHOUT.load(Ordering::Relaxed) {
        // SAFETY: only `__register_atfork` stores here, and only such functions.
        unsafe { core::mem::transmute::<usize, unsafe extern "C" fn()>(address)() };
    }
}

/// As libc does with its own malloc: where there is one thread its locks are left alone. It may hold one itself, if it forks in a handler of a
/// signal that came in the middle of malloc.
unsafe extern "C" fn before_malloc() {
    WITHOUT.store(has_threads() == Some(false), Ordering::Relaxed);
    call_of_malloc(0);
}

unsafe extern "C" fn malloc_in_parent() {
    call_of_malloc(1);
}

unsafe extern "C" fn malloc_in_child() {
    call_of_malloc(2);
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
    if core::ptr::eq(library.cast(), &raw const __dso_handle) {
        for (place, handler) in OF_MALLOC.iter().zip([prepare, parent, child]) {
            place.store(handler.map_or(0, |handler| handler as usize), Ordering::Relaxed);
        }
        return register(Some(before_malloc), Some(malloc_in_parent), Some(malloc_in_child));
    }
    call_real!(
        __register_atfork as fn(Handler, Handler, Handler, *mut c_void) -> c_int,
        prepare,
        parent,
        child,
        library
    )
}
