//! Threads on stacks that the program supplies, where those lie in managed memory.
//!
//! libc puts a thread's descriptor and thread-local storage at the top of such a stack, and passes pointers to it to the kernel
//! while all signals are blocked: there no call can be trapped and no fault answered. So libc makes the thread on a stack of
//! its own, and only the thread's function runs on the program's, which stays in RAM meanwhile: the kernel writes signal
//! frames there.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

use farpage::births;
use farpage::mm::mm;
use farpage::pool::is_managed;
use farpage::stacks;

use crate::real::call_real;
use crate::threads::Start;

/// Threads on managed stacks at a time. Of further ones pthread_getattr_np tells libc's stack, and theirs are kept for good.
const PLACES: usize = 1024;
/// What libc's own stack has beyond the size asked for: its descriptor, and room for destructors.
const EXTRA: u64 = 128 << 10;
/// glibc's mark of attributes that hold a stack.
const ATTR_FLAG_STACKADDR: u64 = 8;

unsafe extern "C" {
    fn farpage_call_on(start: Start, argument: *mut c_void, top: u64) -> *mut c_void;
}

/// One thread's place. `base` is 0 where free, and set last; `thread` is 0 until the thread runs.
struct Place {
    base: AtomicUsize,
    len: AtomicUsize,
    thread: AtomicUsize,
}

const TAKEN: usize = 1;
static PLACED: [Place; PLACES] = [const {
    Place {
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        thread: AtomicUsize::new(0),
    }
}; PLACES];

/// A managed stack on which a thread is to run.
#[derive(Clone, Copy)]
pub struct Stack {
    base: u64,
    len: u64,
    place: usize,
}

/// The program's attributes without their stack, and that stack, where it is managed.
///
/// # Safety
/// `attributes` is the caller's, or NULL.
pub unsafe fn without_stack(
    attributes: *const libc::pthread_attr_t,
) -> Option<(libc::pthread_attr_t, Stack)> {
    let (mut base, mut len) = (core::ptr::null_mut(), 0);
    // SAFETY: the caller's attributes, seven words in glibc: flags in the second, end of the stack in the fourth, its size in
    // the fifth, which is looked at before it is believed.
    unsafe {
        if attributes.is_null()
            || libc::pthread_attr_getstack(attributes, &mut base, &mut len) != 0
            || !is_managed(base as u64)
        {
            return None;
        }
        let mut copy = *attributes;
        let words = &raw mut copy as *mut [u64; 7];
        if (*words)[3] != base as u64 + len as u64 || (*words)[4] != len as u64 {
            return None;
        }
        (*words)[1] &= !ATTR_FLAG_STACKADDR;
        (*words)[3] = 0;
        (*words)[4] = len as u64 + EXTRA;
        Some((copy, Stack::take(base as u64, len as u64)))
    }
}

impl Stack {
    /// Notes the stack before its thread exists; from here on it stays in RAM.
    fn take(base: u64, len: u64) -> Stack {
        let free = |place: &Place| {
            place
                .base
                .compare_exchange(0, TAKEN, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        };
        let found = PLACED.iter().position(free);
        if let Some(place) = found.map(|index| &PLACED[index]) {
            place.thread.store(0, Ordering::Relaxed);
            place.len.store(len as usize, Ordering::Relaxed);
            place.base.store(base as usize, Ordering::SeqCst);
        }
        // Activation may have gone through the places already.
        births::wait_for_activation(mm());
        if mm().is_active() {
            stacks::keep(base, len);
        }
        Stack {
            base,
            len,
            place: found.unwrap_or(PLACES),
        }
    }

    /// Runs a thread's function on the stack.
    pub fn run(self, start: Start, argument: *mut c_void) -> *mut c_void {
        if let Some(place) = PLACED.get(self.place) {
            // SAFETY: no preconditions.
            let me = unsafe { libc::pthread_self() };
            place.thread.store(me as usize, Ordering::Release);
        }
        let top = (self.base + self.len) & !15;
        // SAFETY: the program gave this memory to this thread as its stack.
        unsafe { farpage_call_on(start, argument, top) }
    }

    /// The thread could not be made.
    pub fn give_up(self) {
        if let Some(place) = PLACED.get(self.place) {
            place.leave();
        }
    }
}

impl Place {
    fn leave(&self) {
        let (base, len) = (
            self.base.load(Ordering::Acquire),
            self.len.load(Ordering::Relaxed),
        );
        // Activation keeps what it finds here: either it has, or it will not.
        self.base.store(TAKEN, Ordering::SeqCst);
        births::wait_for_activation(mm());
        stacks::let_go(base as u64, len as u64);
        self.thread.store(0, Ordering::Relaxed);
        self.base.store(0, Ordering::Release);
    }
}

fn of(thread: libc::pthread_t) -> Option<&'static Place> {
    PLACED.iter().find(|place| {
        place.base.load(Ordering::Acquire) > TAKEN && place.thread.load(Ordering::Acquire) == thread as usize
    })
}

/// At the end of a thread, on libc's stack: the program may do with its own what it likes.
pub fn leave() {
    // SAFETY: no preconditions.
    if let Some(place) = of(unsafe { libc::pthread_self() }) {
        place.leave();
    }
}

/// Calls `f` with address and length of every such stack, and with what of it is brought in at once.
pub fn each(f: &mut dyn FnMut(u64, u64, u64)) {
    for place in &PLACED {
        let base = place.base.load(Ordering::SeqCst);
        if base > TAKEN {
            f(base as u64, place.len.load(Ordering::Relaxed) as u64, stacks::TOP);
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_getattr_np(
    thread: libc::pthread_t,
    attributes: *mut libc::pthread_attr_t,
) -> c_int {
    let error = call_real!(
        pthread_getattr_np as fn(libc::pthread_t, *mut libc::pthread_attr_t) -> c_int,
        thread,
        attributes
    );
    if error != 0 {
        return error;
    }
    match of(thread) {
        // SAFETY: attributes that libc has just filled in.
        Some(place) => unsafe {
            libc::pthread_attr_setstack(
                attributes,
                place.base.load(Ordering::Relaxed) as *mut c_void,
                place.len.load(Ordering::Relaxed),
            )
        },
        None => 0,
    }
}
