//! Every system call of one thread, caught by Syscall User Dispatch (Linux 5.11 or later): around the clone in libc's fork
//! ([`crate::fork::window`]), and at a thread's end.
//!
//! A thread that ends blocks all signals by a call that no filter can tell from others (its mask lies in unmanaged memory,
//! and a filter that trapped every change of a mask would end the children of posix_spawn, which have no handler). Then
//! libc frees blocks of the heap: a page of them that is out, or a call that the filter traps, would end the program, since
//! the kernel does not wait for a blocked SIGBUS or SIGSYS to be let through. So the thread's last calls are
//! dispatched, and both signals are only believed blocked.
//!
//! # Safety
//! The selector bytes are statics; the dispatch range is the stub page.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU8, Ordering};

use crate::pool::is_managed;
use crate::sigmask;
use crate::stub::{STUB_ADDR, STUB_LEN};
use crate::sys::{self, OURS};
use crate::{fork, trap};

const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;
/// Whether calls are dispatched around a fork. One thread forks at a time.
static FORKING: AtomicU8 = AtomicU8::new(0);
/// The same for threads that end: always.
static ENDING: AtomicU8 = AtomicU8::new(1);

/// This thread's calls are dispatched until this is dropped; in a forked child that ends by itself.
pub struct Dispatched(());

impl Dispatched {
    /// Begins it, or ends the program: without it a fork is not safe.
    pub fn begin() -> Dispatched {
        FORKING.store(1, Ordering::SeqCst);
        if !switch(Some(&FORKING)) {
            sys::die(&[
                "farpage: this kernel can't dispatch system calls to user space (Linux 5.11 or later can), so fork is not ",
                "safe; the program was stopped",
            ]);
        }
        Dispatched(())
    }
}

impl Drop for Dispatched {
    fn drop(&mut self) {
        FORKING.store(0, Ordering::SeqCst);
        switch(None);
    }
}

/// This thread has run the last code of the program's: from here to its end its calls are dispatched, with all signals
/// but ours blocked (a handler of the program's would return by a call that can't be dispatched). A kernel that
/// can't do it leaves the thread as it is.
pub fn until_the_end() {
    sigmask::faults_come();
    let mask = sys::set_mask(!OURS);
    if !switch(Some(&ENDING)) {
        sys::set_mask(mask);
        sigmask::faults_came();
    }
}

fn switch(selector: Option<&'static AtomicU8>) -> bool {
    let args = selector.map_or([PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0, 0], |selector| {
        let byte = selector.as_ptr() as u64;
        [PR_SET_SYSCALL_USER_DISPATCH, 1, STUB_ADDR, STUB_LEN, byte, 0]
    });
    // SAFETY: see the file's note.
    unsafe { sys::raw(libc::SYS_prctl, args) == 0 }
}

/// One call that was dispatched.
pub fn on_dispatch(context: &mut libc::ucontext_t) {
    let (nr, args) = trap::call_of(context);
    let result = match nr {
        libc::SYS_clone3 => -i64::from(libc::ENOSYS),
        // It would come back from the stub on the stack that it is given. No code of the program's runs here to ask for one.
        libc::SYS_clone if args[0] & libc::CLONE_VM as u64 != 0 => -i64::from(libc::EAGAIN),
        // libc gives back all of its stack but PTHREAD_STACK_MIN below this handler's frame: no way for deep calls.
        // SAFETY: the program's own call, on memory that is not managed.
        libc::SYS_madvise if !is_managed(args[0]) => unsafe { sys::raw(nr, args) },
        _ => fork::by_number(nr, args).unwrap_or_else(|| trap::perform_in(context, nr, args)),
    };
    if result == 0 && nr == libc::SYS_clone && args[1] != 0 {
        // The child asked for a stack of its own; it starts there when this handler returns.
        context.uc_mcontext.gregs[libc::REG_RSP as usize] = args[1] as i64;
    }
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = result;
}
