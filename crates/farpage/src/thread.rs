//! The engine's own threads: the reclaimer, and the delivery thread where faults come by message.
//!
//! They are bare kernel threads: libc does not know them (so they never appear in its lists, and a forked child's libc
//! never looks for them). They block all signals and touch no thread-local storage.
//!
//! # Safety
//! A bare thread shares the creator's thread pointer; it must not call anything that uses errno or thread-locals.
#![allow(unsafe_code)]

use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::discard;
use crate::errand;
use crate::fault;
use crate::in_flight;
use crate::kept::{self, Which};
use crate::mm::{Mm, mm};
use crate::pool::{Header, is_managed};
use crate::prefetch;
use crate::reclaim;
use crate::remote;
use crate::swapoff;
use crate::sys::{self, Errno};
use crate::tier_files;
use crate::writeback;

/// Building the filter takes 45 KiB.
const STACK_LEN: u64 = 256 << 10;
/// How often a reclaimer looks at the tree's state on its own, in microseconds.
const PERIOD_US: u64 = 20_000;
const HEADROOM_MIN: i64 = 64;
const HEADROOM_MAX: i64 = 4096;
/// Pages of which nothing can be spared.
const HEADROOM_TIGHT: i64 = 128;
/// Most pages a reclaimer makes room for before it looks around.
const RECLAIM_MAX: i64 = 256;
static SLEEPS: AtomicU32 = AtomicU32::new(0);

/// Starts a bare thread running `body`.
pub fn spawn(body: extern "C" fn() -> !) -> Result<(), Errno> {
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM;
    let stack = sys::engine_memory(STACK_LEN)?;
    let top = stack + STACK_LEN;
    let mask = sys::set_mask(!0);
    let ret: i64;
    // SAFETY: the child runs on its own fresh stack and never returns from `body`; the parent continues behind label 2.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone => ret,
            in("rdi") flags as u64, in("rsi") top, in("rdx") 0u64, in("r10") 0u64, in("r8") 0u64,
            in("r12") body, lateout("rcx") _, lateout("r11") _,
        );
    }
    sys::set_mask(mask);
    let started = sys::check(ret);
    if started.is_err() {
        // SAFETY: mapped above for a thread that there is not.
        let _ = unsafe { sys::munmap(stack, STACK_LEN) };
    }
    started.map(|tid| sys::run_soon(tid as i32))
}

/// Starts the reclaimer of this process unless it runs.
pub fn start_reclaimer(mm: &Mm) {
    if mm.reclaimer.load(Ordering::Relaxed) != 0 {
        return;
    }
    if mm.reclaimer.swap(1, Ordering::Relaxed) == 0 && spawn(reclaimer_main).is_err() {
        mm.reclaimer.store(0, Ordering::Relaxed);
    }
}

/// Free pages the reclaimers keep ready, so that a fault seldom has to make room itself.
pub fn headroom(mm: &Mm) -> i64 {
    headroom_of(mm.header())
}

/// The same of a tree.
pub fn headroom_of(header: &Header) -> i64 {
    header.headroom.load(Ordering::Relaxed).max(HEADROOM_MIN)
}

/// The headroom that follows on `before`, 20 ms later: as little as does, since what is kept free holds no page; for a while more
/// after faults had to make room themselves (the kernel boosts its watermarks so) or many pages were read ahead.
pub fn next_headroom(before: i64, limit: i64, is_short: bool) -> i64 {
    let least = (limit / 128).clamp(HEADROOM_MIN, HEADROOM_MAX / 4);
    let most = (limit / 32).clamp(least, HEADROOM_MAX);
    let wanted = if is_short {
        2 * before
    } else {
        before - before / 32 - 1
    };
    wanted.clamp(least, most)
}

/// What a reclaimer that was woken makes ready beyond the headroom, so that it makes much room at a time and not one page for each
/// fault; nothing in a tight budget.
pub fn spare(mm: &Mm) -> i64 {
    let headroom = headroom(mm);
    (headroom - HEADROOM_TIGHT).clamp(0, headroom / 2)
}

/// Called by faults: wakes a sleeping reclaimer when room gets scarce.
#[inline]
pub fn nudge(mm: &Mm) {
    if SLEEPS.load(Ordering::Relaxed) != 0
        && !mm.who.is_by_faults()
        && mm.header().excess(headroom(mm)) > 0
        && SLEEPS.swap(0, Ordering::Relaxed) != 0
    {
        mm.header().ask_to_reclaim();
    }
}

extern "C" fn reclaimer_main() -> ! {
    let mm = mm();
    errand::keep();
    loop {
        // Before all that is looked for: who asks for it afterwards ends the sleep.
        let seq = mm.header().reclaim_seq.load(Ordering::SeqCst);
        prefetch::start_wanted(mm);
        mm.watch.make_wanted();
        swapoff::start_wanted(mm);
        if tier_files::is_behind(mm) {
            let _inside = mm.gate.shared();
            // What went wrong stands in this process's entry.
            let _ = tier_files::follow(mm);
        }
        remote::answer(mm);
        errand::start_wanted(mm);
        in_flight::watch(mm);
        let excess = mm.header().excess(headroom(mm) + spare(mm));
        let mut done = 0;
        if excess > 0
            && !reclaim::is_limit_old(mm)
            && mm.entry().resident.load(Ordering::Relaxed) + mm.entry().frames.load(Ordering::Relaxed) > 0
        {
            let _inside = mm.gate.shared();
            done = reclaim::ahead(mm, excess.min(RECLAIM_MAX));
        }
        let now = sys::now_ns();
        if mm.work_areas.are_unused(now) {
            let _inside = mm.gate.shared();
            mm.work_areas.return_unused(now);
        }
        // While room is made, doubles leave by themselves.
        let is_idle = done == 0;
        if let Some(which) = kept::are_to_go(mm).filter(|which| is_idle || *which != Which::Doubles) {
            let _inside = mm.gate.shared();
            kept::give_up_some(mm, which);
        }
        if writeback::is_due(mm) {
            let _inside = mm.gate.shared();
            done += writeback::run(mm);
        }
        if done == 0 {
            {
                let _inside = mm.gate.shared();
                discard::run(mm);
            }
            SLEEPS.store(1, Ordering::Relaxed);
            sys::futex_wait(&mm.header().reclaim_seq, seq, true, PERIOD_US);
            SLEEPS.store(0, Ordering::Relaxed);
        }
    }
}

/// Starts the thread that answers faults by message (`--delivery thread`).
pub fn start_delivery() -> Result<(), Errno> {
    spawn(delivery_main)
}

extern "C" fn delivery_main() -> ! {
    const EVENT_PAGEFAULT: u8 = 0x12;
    let mm = mm();
    let fd = mm.uffd().0;
    let mut messages = [[0u64; 4]; 16];
    loop {
        let mut poll = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one pollfd and a buffer of whole messages, both ours.
        let got = unsafe {
            sys::raw(libc::SYS_poll, [&mut poll as *mut _ as u64, 1, u64::MAX, 0, 0, 0]);
            sys::raw(
                libc::SYS_read,
                [fd as u64, messages.as_mut_ptr() as u64, 512, 0, 0, 0],
            )
        };
        for message in &messages[..(got.max(0) / 32) as usize] {
            let addr = message[2];
            if message[0] as u8 == EVENT_PAGEFAULT && is_managed(addr) {
                // Its number there: all of them would be this thread's streams else.
                fault::at_address(mm, addr, Some(message[3] as u32));
                nudge(mm);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(mut headroom: i64, limit: i64, is_short: bool, ticks: usize) -> i64 {
        for _ in 0..ticks {
            headroom = next_headroom(headroom, limit, is_short);
        }
        headroom
    }

    #[test]
    fn headroom_stays_between_a_128th_and_a_32nd_of_the_limit() {
        for limit in [0, 1000, 100_000, 10_000_000] {
            let (least, most) = (after(0, limit, false, 1000), after(0, limit, true, 1000));
            assert_eq!(
                least,
                (limit / 128).clamp(HEADROOM_MIN, HEADROOM_MAX / 4),
                "{limit}"
            );
            assert_eq!(most, (limit / 32).clamp(least, HEADROOM_MAX), "{limit}");
        }
    }

    #[test]
    fn headroom_doubles_when_short_and_goes_back_slowly() {
        let limit = 100_000;
        assert_eq!(next_headroom(1000, limit, true), 2000);
        let back = next_headroom(2000, limit, false);
        assert!((1900..2000).contains(&back), "{back}");
        // A few pages above the least it goes back too.
        assert_eq!(
            after(limit / 128 + 5, limit, false, 5),
            after(0, limit, false, 1000)
        );
    }
}
