//! Stacks of the engine's own, for work that must not fault on the stack it runs on.
//!
//! A coroutine may run on managed memory. Were its next stack page touched while this thread is alone in the gate, or has a page
//! locked, the fault would wait for the very thread that it interrupted. So such work runs elsewhere. It also needs more room than
//! a small alternate stack of the program's has left below a handler's frame.
//!
//! Signals are blocked meanwhile: nobody jumps out of here, and the stack always comes back. SIGBUS is, too: to the kernel a thread
//! that is here has left its alternate stack, and it would write the next frame over the one of the handler that called.
//!
//! # Safety
//! A stack has one user at a time: whoever took its address out of [`SPARE`], or has just mapped it.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::pool::is_managed;
use crate::sigmask;
use crate::sys;

/// In bytes.
const LEN: u64 = 256 << 10;
/// Stacks that nobody is on: as many as threads are likely to need at once.
static SPARE: [AtomicU64; 32] = [const { AtomicU64::new(0) }; 32];

fn take() -> Option<u64> {
    let there = |place: &&AtomicU64| place.load(Ordering::Relaxed) != 0;
    let spare = SPARE
        .iter()
        .filter(there)
        .map(|place| place.swap(0, Ordering::Acquire));
    if let Some(stack) = spare.into_iter().find(|&stack| stack != 0) {
        return Some(stack);
    }
    sys::engine_stack(LEN).ok()
}

fn give_back(stack: u64) {
    let free = |place: &AtomicU64| {
        place.load(Ordering::Relaxed) == 0
            && place
                .compare_exchange(0, stack, Ordering::Release, Ordering::Relaxed)
                .is_ok()
    };
    if !SPARE.iter().any(free) {
        // SAFETY: ours, and nobody is on it.
        let _ = unsafe { sys::munmap(stack, LEN) };
    }
}

/// Runs `work` on a stack of the engine's if the caller's is managed memory, with signals blocked.
#[inline]
pub fn if_managed<R>(work: impl FnOnce() -> R) -> R {
    let here = 0u8;
    if !is_managed(&raw const here as u64) {
        return work();
    }
    blocked(work)
}

/// Runs `work` on a stack of the engine's with signals blocked.
pub fn blocked<R>(work: impl FnOnce() -> R) -> R {
    let may_fault = may_fault_here();
    let mask = if may_fault {
        sigmask::faults_come();
        sys::block_signals()
    } else {
        sys::block_faults()
    };
    let result = run(work);
    sys::set_mask(mask);
    if may_fault {
        sigmask::faults_came();
    }
    result
}

/// Whether the caller's stack may be away before it is used again: a coroutine's in managed memory, while its thread's alternate stack
/// is free for the fault. (A managed alternate stack stays in RAM.)
fn may_fault_here() -> bool {
    let here = 0u8;
    if !is_managed(&raw const here as u64) {
        return false;
    }
    !is_on_alternate()
}

fn is_on_alternate() -> bool {
    let mut alternate = libc::stack_t {
        ss_sp: core::ptr::null_mut(),
        ss_flags: 0,
        ss_size: 0,
    };
    // SAFETY: asks about this thread's alternate stack.
    unsafe { sys::raw(libc::SYS_sigaltstack, [0, &raw mut alternate as u64, 0, 0, 0, 0]) };
    alternate.ss_flags & libc::SS_ONSTACK != 0
}

/// Runs `work` on a stack of the engine's; the caller has blocked all signals but ours.
pub fn run_within_block<R>(work: impl FnOnce() -> R) -> R {
    if !is_on_alternate() {
        return run(work);
    }
    let mask = sys::block_faults();
    let result = run(work);
    sys::set_mask(mask);
    result
}

/// Runs `work` on a stack of the engine's, or on the caller's if there is no memory for one. The caller has blocked signals,
/// SIGBUS too if it is on its alternate stack.
pub fn run<R>(work: impl FnOnce() -> R) -> R {
    struct Call<F, R> {
        work: Option<F>,
        result: MaybeUninit<R>,
    }
    extern "sysv64" fn enter<F: FnOnce() -> R, R>(call: *mut c_void) {
        // SAFETY: `run` passes its own Call, which it does not use until this returns.
        let call = unsafe { &mut *(call as *mut Call<F, R>) };
        if let Some(work) = call.work.take() {
            call.result.write(work());
        }
    }
    fn entry<F: FnOnce() -> R, R>(_: &Call<F, R>) -> extern "sysv64" fn(*mut c_void) {
        enter::<F, R>
    }
    let Some(stack) = take() else { return work() };
    let mut call = Call {
        work: Some(work),
        result: MaybeUninit::uninit(),
    };
    let function = entry(&call);
    // SAFETY: the stack is ours alone and aligned; r12 survives the function, which returns (a panic aborts).
    unsafe {
        core::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {function}",
            "mov rsp, r12",
            top = in(reg) stack + LEN,
            function = in(reg) function,
            in("rdi") &raw mut call,
            out("r12") _,
            clobber_abi("sysv64"),
        );
    }
    give_back(stack);
    // SAFETY: `enter` has run, and found the work.
    unsafe { call.result.assume_init() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_elsewhere_and_its_result_comes_back() {
        let here = 0u8;
        let outside = &raw const here as u64;
        let mut seen = 0;
        let result = run(|| {
            let inside = 0u8;
            seen = &raw const inside as u64;
            let nested = run(|| [3u64; 9]);
            nested.iter().sum::<u64>() + 1
        });
        assert_eq!(result, 28);
        assert!(
            seen.abs_diff(outside) > LEN / 2,
            "{seen:x} lies beside {outside:x}"
        );
        assert!(SPARE.iter().any(|place| place.load(Ordering::Relaxed) != 0));
    }

    #[test]
    fn threads_never_share_a_stack() {
        let threads: Vec<_> = (0..12u64)
            .map(|thread| {
                std::thread::spawn(move || {
                    for turn in 0..2_000u64 {
                        let sum = run(|| {
                            let mut words = [thread; 512];
                            std::hint::black_box(&mut words);
                            std::thread::yield_now();
                            words.iter().sum::<u64>() + turn
                        });
                        assert_eq!(sum, thread * 512 + turn);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
