//! Threads: each gets an alternate signal stack, because a fault on a swapped page of its own stack (a coroutine on malloc'd
//! memory) can't be delivered there. Stacks the program supplies itself: [`crate::placed`].

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use farpage::activate::activate;
use farpage::births;
use farpage::dispatch;
use farpage::mm::{PAGE, mm, mode};
use farpage::pool::is_managed;
use farpage::robust;
use farpage::sigmask::{self, Belief};
use farpage::{sys, syscalls, trap};

use crate::descriptors::has_threads;
use crate::internal;
use crate::placed::{self, Stack};
use crate::real::call_real;

/// In bytes, with a page that guards it. Handlers of the program's run here too, above a call that they interrupt, and where they ask for an
/// alternate stack and their thread has none: as roomy as a thread's own stack is, where address space is not limited (ulimit -v).
const STACK_LEN: u64 = 8 << 20;
const STACK_LEN_LIMITED: u64 = 256 << 10;
/// The most rounds of destructors that libc runs (limits.h).
const PTHREAD_DESTRUCTOR_ITERATIONS: u64 = 4;
/// Finished threads' stacks kept for the next ones.
const SPARE_MAX: usize = 64;
const RANGES_MAX: usize = 256;

unsafe extern "C" {
    fn farpage_thread_stack() -> *mut *mut c_void;
    fn farpage_thread_belief() -> *mut Belief;
}

/// Which of them, chosen with the first stack.
static CHOSEN_LEN: AtomicU64 = AtomicU64::new(0);
static SPARE: [AtomicUsize; SPARE_MAX] = [const { AtomicUsize::new(0) }; SPARE_MAX];
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);
/// Ranges to keep in RAM that were named while the process was dormant: pairs of address and length.
static KEPT: [[AtomicUsize; 2]; RANGES_MAX] =
    [const { [AtomicUsize::new(0), AtomicUsize::new(0)] }; RANGES_MAX];

/// Set in a forked child, which has one thread, until it starts another. (What libc tells of its threads, it tells of the parent's in the child.)
static ALONE: AtomicBool = AtomicBool::new(false);

/// Set once a thread was made that libc does not know of.
static UNKNOWN: AtomicBool = AtomicBool::new(false);

/// In a forked child.
pub fn forget_others() {
    ALONE.store(true, Ordering::Relaxed);
    UNKNOWN.store(false, Ordering::Relaxed);
}

/// A thread is made by clone.
pub fn note_unknown() {
    UNKNOWN.store(true, Ordering::Relaxed);
}

/// Whether the program has this thread alone, as far as that is known.
pub fn is_alone() -> bool {
    is_surely_alone() || (ALONE.load(Ordering::Relaxed) && !UNKNOWN.load(Ordering::Relaxed))
}

/// The same, but in a child of a threaded parent, which libc may have started a helper in (a timer's) that did not come by here.
pub fn is_surely_alone() -> bool {
    !UNKNOWN.load(Ordering::Relaxed) && has_threads() == Some(false)
}

pub type Start = extern "C" fn(*mut c_void) -> *mut c_void;

struct Birth {
    start: Start,
    argument: *mut c_void,
    /// A managed stack of the program's.
    stack: Option<Stack>,
    /// Threads inherit the mask, so also what is only believed of it.
    blocked: sys::SigMask,
}

extern "C" fn belief() -> *mut Belief {
    // SAFETY: this thread's own storage, zeroed at first.
    unsafe { farpage_thread_belief() }
}

/// Called once, before the process can become active.
pub fn start_beliefs() {
    sigmask::keep_in(belief);
}

/// The alternate stack that this library gave this thread, or none.
pub fn own_stack() -> libc::stack_t {
    // SAFETY: this thread's own storage.
    within(unsafe { *farpage_thread_stack() })
}

/// A mapped stack as the kernel is told of it.
fn within(stack: *mut c_void) -> libc::stack_t {
    let none = stack.is_null();
    libc::stack_t {
        ss_sp: if none {
            stack
        } else {
            stack.wrapping_byte_add(PAGE as usize)
        },
        ss_flags: if none { libc::SS_DISABLE } else { 0 },
        ss_size: if none { 0 } else { (stack_len() - PAGE) as usize },
    }
}

fn stack_len() -> u64 {
    let chosen = CHOSEN_LEN.load(Ordering::Relaxed);
    if chosen != 0 {
        return chosen;
    }
    // The second counts private memory alone, which they are.
    let is_limited = [libc::RLIMIT_AS, libc::RLIMIT_DATA]
        .into_iter()
        .any(|limit| sys::soft_limit(limit) != libc::RLIM_INFINITY);
    let len = if is_limited { STACK_LEN_LIMITED } else { STACK_LEN };
    // The first to choose chooses for all.
    CHOSEN_LEN
        .compare_exchange(0, len, Ordering::Relaxed, Ordering::Relaxed)
        .map_or_else(|chosen| chosen, |_| len)
}

fn take_stack() -> u64 {
    let spare = SPARE
        .iter()
        .map(|slot| slot.swap(0, Ordering::Acquire))
        .find(|&stack| stack != 0);
    spare.map_or_else(
        || sys::engine_stack(stack_len()).unwrap_or(0),
        |stack| stack as u64,
    )
}

/// The destructor of this library's key. libc runs destructors in rounds while they set values again; those of the program
/// run first, with their alternate stack, and this one acts in the last round.
extern "C" fn leave(value: *mut c_void) {
    let round = value as u64 % PAGE + 1;
    if round < PTHREAD_DESTRUCTOR_ITERATIONS {
        // SAFETY: the key whose destructor this is.
        unsafe { libc::pthread_setspecific(KEY.load(Ordering::Relaxed), value.wrapping_byte_add(1)) };
        return;
    }
    give_back(value.wrapping_byte_sub(value as usize % PAGE as usize));
    robust::keep_list(mm());
    // The main thread frees nothing after this, and may go on to exit handlers.
    if mm().is_active() && sys::gettid() != sys::getpid() {
        dispatch::until_the_end();
    }
}

fn give_back(stack: *mut c_void) {
    placed::leave();
    // SAFETY: this thread leaves the stack before anyone else gets it.
    unsafe {
        *farpage_thread_stack() = core::ptr::null_mut();
        let off = within(core::ptr::null_mut());
        sys::raw(libc::SYS_sigaltstack, [&off as *const _ as u64, 0, 0, 0, 0, 0]);
    }
    let free = |slot: &&AtomicUsize| {
        slot.compare_exchange(0, stack as usize, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    };
    if SPARE.iter().find(free).is_none() {
        // SAFETY: the stack is ours and unused.
        let _ = unsafe { sys::munmap(stack as u64, stack_len()) };
    }
}

/// Gives this thread an alternate signal stack unless it has one.
pub fn give_alternate_stack() {
    // SAFETY: plain structures; the key's destructor runs on threads that have a value.
    unsafe {
        let mut now: libc::stack_t = core::mem::zeroed();
        sys::raw(libc::SYS_sigaltstack, [0, &mut now as *mut _ as u64, 0, 0, 0, 0]);
        if now.ss_flags & libc::SS_DISABLE == 0 {
            return;
        }
        let stack = take_stack();
        if stack == 0 {
            return;
        }
        let new = within(stack as *mut c_void);
        sys::raw(libc::SYS_sigaltstack, [&new as *const _ as u64, 0, 0, 0, 0, 0]);
        *farpage_thread_stack() = stack as *mut c_void;
        if KEY.load(Ordering::Relaxed) == u32::MAX {
            let mut key = 0;
            if libc::pthread_key_create(
                &mut key,
                Some(core::mem::transmute::<
                    extern "C" fn(*mut c_void),
                    unsafe extern "C" fn(*mut c_void),
                >(leave)),
            ) == 0
            {
                KEY.store(key, Ordering::Relaxed);
            }
        }
        libc::pthread_setspecific(KEY.load(Ordering::Relaxed), stack as *const c_void);
    }
}

extern "C" fn run_thread(birth: *mut c_void) -> *mut c_void {
    // By the thread's attributes; nothing managed is touched before.
    let adopted = sigmask::adopt();
    give_alternate_stack();
    // SAFETY: made by pthread_create below for this thread alone.
    let Birth {
        start,
        argument,
        stack,
        blocked,
    } = unsafe { (birth as *mut Birth).read() };
    // SAFETY: allocated with this library's malloc.
    unsafe { crate::alloc::free(birth) };
    if adopted == 0 {
        sigmask::believe(blocked);
    }
    match stack {
        Some(stack) => stack.run(start, argument),
        None => start(argument),
    }
}

/// The set is handed to the kernel while a thread is made, with all signals blocked: managed memory would end the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_attr_setaffinity_np(
    attributes: *mut c_void,
    len: usize,
    set: *const c_void,
) -> c_int {
    internal::outside(|| {
        call_real!(
            pthread_attr_setaffinity_np as fn(*mut c_void, usize, *const c_void) -> c_int,
            attributes,
            len,
            set
        )
    })
}

/// The same of its mask.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_attr_setsigmask_np(attributes: *mut c_void, mask: *const c_void) -> c_int {
    internal::outside(|| {
        call_real!(
            pthread_attr_setsigmask_np as fn(*mut c_void, *const c_void) -> c_int,
            attributes,
            mask
        )
    })
}

/// A thread that starts looks at the locale before it lets signals through.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setlocale(category: c_int, name: *const c_char) -> *mut c_char {
    internal::outside(|| {
        call_real!(
            setlocale as fn(c_int, *const c_char) -> *mut c_char,
            category,
            name
        )
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    type Attributes = *const libc::pthread_attr_t;
    let real = |attributes: Attributes, start: Start, argument: *mut c_void| -> c_int {
        call_real!(
            pthread_create as fn(*mut libc::pthread_t, Attributes, Start, *mut c_void) -> c_int,
            thread,
            attributes,
            start,
            argument
        )
    };
    ALONE.store(false, Ordering::Relaxed);
    if mm().mode.load(Ordering::Relaxed) == mode::OFF {
        return real(attributes, start, argument);
    }
    // SAFETY: room for one Birth.
    let birth = unsafe { crate::alloc::malloc(size_of::<Birth>()) } as *mut Birth;
    if birth.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: the caller's attributes.
    let own = unsafe { placed::without_stack(attributes) };
    let stack = own.as_ref().map(|(_, stack)| *stack);
    // SAFETY: just allocated.
    unsafe {
        birth.write(Birth {
            start,
            argument,
            stack,
            blocked: sigmask::blocked(),
        })
    };
    let attributes = own.as_ref().map_or(attributes, |(copy, _)| copy as Attributes);
    let error = real(attributes, run_thread, birth as *mut c_void);
    if error != 0 {
        if let Some(stack) = stack {
            stack.give_up();
        }
        // SAFETY: the thread does not exist.
        unsafe { crate::alloc::free(birth as *mut c_void) };
    }
    error
}

/// C11's threads are POSIX threads whose function returns an int, which `thrd_join` takes from the low half of the value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thrd_create(
    thread: *mut libc::pthread_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    const THRD_ERROR: c_int = 2;
    const THRD_NOMEM: c_int = 3;
    // SAFETY: the caller's arguments; the function's result is only looked at in its low half.
    match unsafe { pthread_create(thread, core::ptr::null(), start, argument) } {
        0 => 0,
        libc::ENOMEM => THRD_NOMEM,
        _ => THRD_ERROR,
    }
}

/// Keeps a range in RAM for good; while the process is dormant it is noted for later.
pub fn keep(address: u64, len: u64) {
    if !is_managed(address) {
        return;
    }
    if !mm().is_active() {
        if note(address, len) {
            // Activation may have gone through the notes already.
            births::wait_for_activation(mm());
        } else {
            activate();
        }
    }
    trap::keep_resident(address, len);
}

/// After a call made while dormant: what the kernel goes on to use has to be there when the memory is managed.
pub fn keep_named(nr: i64, args: [u64; 6], done: i64) {
    if done < 0 || !syscalls::keeps(nr as usize, &args) {
        return;
    }
    match nr {
        libc::SYS_rseq => keep(args[0], args[1]),
        libc::SYS_set_tid_address => keep(args[0], 4),
        // The selector of PR_SET_SYSCALL_USER_DISPATCH.
        libc::SYS_prctl => keep(args[4], 1),
        _ => {}
    }
}

/// False: there is no room for it.
fn note(address: u64, len: u64) -> bool {
    let new = [address, len].map(|number| number as usize);
    for [start, length] in &KEPT {
        match start.compare_exchange(0, new[0], Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => {
                length.store(new[1], Ordering::Release);
                return true;
            }
            // What another length was noted of may be gone, and this be all that is there now.
            Err(noted) if [noted, length.load(Ordering::Acquire)] == new => return true,
            Err(_) => {}
        }
    }
    false
}

/// For activation: see `stacks::Noted`. What was noted, and the stacks of threads that were made.
pub fn each_noted(f: &mut dyn FnMut(u64, u64, u64)) {
    placed::each(f);
    for [start, length] in &KEPT {
        let (address, len) = (start.load(Ordering::Relaxed), length.load(Ordering::Acquire));
        if address != 0 {
            f(address as u64, len as u64, len as u64);
        }
    }
}
