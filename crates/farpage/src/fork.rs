//! fork: the child gets its own userfaultfd before any code of the program runs in it.
//!
//! Without a registration of its own the child would read swapped pages as zeros, silently, and libc's fork touches
//! malloc'd memory in the child before it calls anybody's handlers. So the system call itself is caught: inside libc's
//! fork, behind the program's handlers ([`window`]), this thread's calls are dispatched to us ([`crate::dispatch`]), which ends by
//! itself in the child. Calls pass until the clone; there it copies page states (sharing slots by count) with the
//! gate held alone, clones, and in the child registers everything before it returns.
//!
//! Frames need nothing: staging memory and the lists that describe it are inherited by copy-on-write.
//!
//! # Safety
//! The child's state window is mapped whole, and its entry is this thread's alone until the child lives.
#![allow(unsafe_code)]

pub mod window;

use core::sync::atomic::Ordering;

use farpage_core::kill_point;
use farpage_core::page_state::{Kind, PIN_MAX, PageState};
use farpage_core::stats::Counter;

use crate::cleanup;
use crate::commit;
use crate::cow;
use crate::engine_stack;
use crate::errand;
use crate::file_limit;
use crate::heirs;
use crate::huge_advice;
use crate::mm::{CHUNK_PAGES, Mm, PAGE, TOUCHED, fd, mm};
use crate::numbers;
use crate::pool::{Pool, ProcEntry, STATES_LEN, entry_state, flag};
use crate::proc_dirs;
use crate::residency;
use crate::sys::{self, Errno};
use crate::trap::{Pins, undisturbed};
use crate::{activate, in_flight, reclaim, swapoff, thread, tier_files, tiers};

/// A fork by number, made inside the window: the result, or `None` for any other call.
pub fn by_number(nr: i64, args: [u64; 6]) -> Option<i64> {
    match nr {
        libc::SYS_clone if args[0] & libc::CLONE_VM as u64 == 0 => Some(undisturbed(|| fork(nr, args))),
        libc::SYS_fork | libc::SYS_vfork => {
            let args = [libc::SIGCHLD as u64, 0, 0, 0, 0, 0];
            Some(undisturbed(|| fork(libc::SYS_clone, args)))
        }
        _ => None,
    }
}

/// The fork itself: 0 in the child, its pid in the parent, or `-errno`.
pub fn fork(nr: i64, args: [u64; 6]) -> i64 {
    let _watched = errand::watched(mm());
    engine_stack::blocked(|| fork_pinned(nr, args))
}

/// The kernel writes the child's number, or a descriptor of it, where the program says: in the parent while the gate is held alone, so
/// that no fault could be answered, and in the child before it has registered anything, where a page that is out would be one of
/// zeros. So those pages are there from before, in a window that is not write-protected ([`cow`]).
fn fork_pinned(nr: i64, args: [u64; 6]) -> i64 {
    let mm = mm();
    if args[0] & libc::CLONE_FILES as u64 != 0 {
        // The child's userfaultfd would take the place of the parent's, whose pages would read as zeros from then on.
        sys::complain(&[
            "farpage: a program that swaps can't share its descriptors and not its memory (clone with CLONE_FILES alone): ",
            "EINVAL; give it a larger --ram",
        ]);
        return -i64::from(libc::EINVAL);
    }
    let has_room = make_room(mm);
    let mut pins = Pins::of_call(mm, nr, &args);
    let pid = fork_alone(mm, nr, args);
    if pid == 0 {
        // They are the parent's.
        core::mem::forget(pins);
    } else {
        pins.release(mm);
        if pid > 0 && !has_room && mm.header().excess(0) > 0 {
            mm.header().count(Counter::LimitOverrun, 1);
        }
    }
    pid
}

/// Makes room for what a child is charged for at once: it has the frames too, and keeps them when this process gives its own up. (Six
/// children of a process with 4 MiB of frames once held 14 MiB too much.) False: there is none, at least not for all that may be wanted.
fn make_room(mm: &Mm) -> bool {
    if mm.is_lent() {
        return true; // it may be killed at any instruction: the less it does the better
    }
    let _inside = mm.gate.shared();
    reclaim::room_ahead(mm, || {
        mm.entry().frames.load(Ordering::Relaxed) + thread::headroom(mm)
    })
}

fn fork_alone(mm: &Mm, nr: i64, args: [u64; 6]) -> i64 {
    let _alone = mm.gate.alone();
    // A borrower in a namespace of its own can't name itself.
    let taker = match errand::LENT.load(Ordering::Relaxed) {
        0 => Some(mm.number()),
        _ => numbers::own(),
    };
    let Some(taker) = taker else {
        return -(libc::EAGAIN as i64);
    };
    let embryo = entry_state::taken_by(taker);
    let Some(index) = take_entry(mm.pool(), embryo) else {
        return -(libc::EAGAIN as i64);
    };
    let child = &mm.pool().processes()[index];
    kill_point!("fork-entry");
    let born_ns = child.born_ns.load(Ordering::Relaxed);
    child.parent.store(u32::from(mm.owner()) + 1, Ordering::Relaxed);
    child
        .family
        .store(mm.entry().family.load(Ordering::Relaxed), Ordering::Relaxed);
    child.forking.store(taker, Ordering::Release);
    // Before the first of its words is written: from now on they are to be cleaned up after.
    child.active.store(1, Ordering::Release);
    kill_point!("fork-marked");
    if copy_states(mm, index, child).is_err() {
        child.forking.store(0, Ordering::SeqCst);
        cleanup::return_everything(mm.pool(), mm.fd(fd::POOL), index, born_ns);
        return -(libc::ENOMEM as i64);
    }
    kill_point!("fork-ready");
    // Held across the clone, so that the child finds no lock held by a thread it does not have.
    let locks = (
        mm.maps.lock(),
        heirs::hold(),
        residency::LOCKED.hold(),
        huge_advice::hold(),
        proc_dirs::hold(),
    );
    let proc = numbers::open_for_child(mm, args[0]);
    // The child runs on a copy of this very stack, whatever stack was asked for (see on_dispatch).
    // SAFETY: a clone without CLONE_VM; the pointers are libc's own.
    let pid = unsafe { sys::raw(nr, [args[0], 0, args[2], args[3], args[4], args[5]]) };
    drop(locks);
    if pid != 0 {
        proc.close();
    }
    match pid {
        0 if !numbers::note_birth(mm, proc) => sys::die(&[
            "farpage: a managed program forked into a pid namespace of its own (unshare, CLONE_NEWPID) and has no /proc; ",
            "the child was stopped; mount /proc where the program runs",
        ]),
        0 => match become_child(mm, index, child, embryo) {
            Ok(()) => 0,
            Err(_) => sys::die(&[
                "farpage: a forked child could not open its own userfaultfd (too many open files, --delivery thread without root, or /dev/userfaultfd out of reach?); ",
                "the child was stopped so that it uses no wrong data",
            ]),
        },
        1.. => {
            kill_point!("fork-returned");
            // The child may have lived and died by now, or run another image. Its entry waits for this, so that the number is not
            // written into that of another process (whose pages were then given up as those of a dead one).
            let number = numbers::of(pid as i32);
            if let Ok(number) = number {
                let _ = child
                    .pid
                    .compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
            }
            kill_point!("fork-known");
            cleanup::let_go(child, taker);
            if number == Err(Errno(libc::ESRCH)) {
                // Dead and gone, maybe before it could name itself.
                cleanup::return_everything(mm.pool(), mm.fd(fd::POOL), index, born_ns);
            }
            pid
        }
        _ => {
            child.forking.store(0, Ordering::SeqCst);
            cleanup::return_everything(mm.pool(), mm.fd(fd::POOL), index, born_ns);
            pid
        }
    }
}

/// Takes a free entry of the process table.
pub fn take_entry(pool: &Pool, state: u32) -> Option<usize> {
    let free = |entry: &ProcEntry| {
        entry
            .state
            .compare_exchange(entry_state::FREE, state, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    };
    let index = pool.reach().position(free)?;
    kill_point!("entry-taken");
    let entry = &pool.processes()[index];
    entry.born_ns.store(sys::now_ns(), Ordering::Relaxed);
    // Who paid for a copy while the debtor was given up may have taken it back from here afterwards.
    let stray = entry.charged.swap(0, Ordering::Relaxed);
    pool.header().charged.fetch_sub(stray, Ordering::Relaxed);
    let births = pool.header().births.fetch_add(1, Ordering::AcqRel);
    // Its own; who is forked gets that of its parent.
    entry.family.store(births, Ordering::Relaxed);
    Some(index)
}

/// Gives the child the parent's page states: swapped pages share their slot by count, the rest is inherited memory.
fn copy_states(mm: &Mm, index: usize, child: &ProcEntry) -> Result<(), Errno> {
    let window = mm.pool().map_states(mm.fd(fd::POOL), index, None)?;
    let table = mm.pool().swap_table();
    // A slot counts the child's reference before the child's word names it. (The entry of a borrower's parent may be another
    // process's by now.)
    let in_step = if mm.is_lent() { child } else { mm.entry() };
    let step = in_step.moves.begin();
    let mut shared = 0;
    let top = mm.top_page.load(Ordering::Relaxed);
    let mut page = 0;
    while page < top {
        if mm.chunk(page).load(Ordering::Relaxed) & TOUCHED == 0 {
            page += CHUNK_PAGES;
            continue;
        }
        for page in page..page + CHUNK_PAGES {
            let state = inherited(mm.load(page));
            if state.raw() == 0 {
                continue;
            }
            if state.kind() == Kind::Swapped {
                if let Err(impossible) = table.dup(state.slot()) {
                    errand::end_if_orphan(mm);
                    tiers::stop(&impossible);
                }
                shared += 1;
                kill_point!("fork-dup");
            }
            // SAFETY: the window covers all managed pages; the entry is ours until the child lives.
            unsafe { ((window + page * 8) as *mut u64).write_volatile(state.raw()) };
        }
        page += CHUNK_PAGES;
    }
    drop(step);
    kill_point!("fork-copied");
    // SAFETY: mapped above.
    let _ = unsafe { sys::munmap(window, STATES_LEN) };
    mm.header().count(Counter::ForkShared, shared);
    let parent = mm.entry();
    let [resident, frames, poor] =
        [&parent.resident, &parent.frames, &parent.poor].map(|count| count.load(Ordering::Relaxed));
    // What was read of a parent that has ended is nothing, or another process's. The supervisor gives the child's entry up.
    errand::end_if_orphan(mm);
    child.resident.store(resident, Ordering::Relaxed);
    child.frames.store(frames, Ordering::Relaxed);
    child.poor.store(poor, Ordering::Relaxed);
    child.owed.store(resident + frames, Ordering::SeqCst);
    if cow::debtors(mm).is_empty() {
        mm.queue.begins_to_share();
    }
    let at_once = cow::before_clone(mm, index, (resident, frames), thread::headroom(mm));
    cow::reserve_for_child(mm, child);
    kill_point!("fork-owed");
    child.pay(mm.header(), at_once);
    mm.header().forks.fetch_add(1, Ordering::Release);
    let committed = parent.committed.load(Ordering::Relaxed);
    child.committed.store(committed, Ordering::Relaxed);
    child.promised.store(committed / PAGE as i64, Ordering::Relaxed);
    mm.header().committed.fetch_add(committed, Ordering::Relaxed);
    Ok(())
}

/// Pins of calls in other threads are not the child's; those for good (stacks) are. Nor are slots that pages keep.
fn inherited(state: PageState) -> PageState {
    let pins = if state.pins() == PIN_MAX { PIN_MAX } else { 0 };
    match state.kind() {
        Kind::Resident | Kind::Cached => state.with_pins(pins).keeping(0),
        _ => state.with_pins(pins),
    }
}

fn become_child(mm: &Mm, index: usize, child: &ProcEntry, embryo: u32) -> Result<(), Errno> {
    kill_point!("fork-born");
    // In its own name from here on: while the child lives nobody gives its entry up, whatever becomes of the parent.
    let number = numbers::own().ok_or(Errno(libc::ESRCH))?;
    let own = entry_state::taken_over_by(number);
    let named = child
        .state
        .compare_exchange(embryo, own, Ordering::AcqRel, Ordering::Relaxed);
    if named.is_err() {
        sys::die(&[
            "farpage: a forked child was held up for so long after its parent's death that its memory was given up; ",
            "the child was stopped",
        ]);
    }
    mm.gate.forget_others();
    reclaim::begin_patiently();
    // Before the first mapping of this process's own.
    mm.frames.inherit()?;
    mm.remap_states(index as u32)?;
    kill_point!("fork-mapped");
    activate::open_userfaultfd(mm)?;
    mm.places.reopen(mm);
    activate::register_all(mm, |_, _| Ok(()))?;
    kill_point!("fork-registered");
    cow::after_clone(mm);
    tier_files::inherit(mm, errand::LENT.load(Ordering::Relaxed) != 0)?;
    mm.be_own(number);
    child.pid.store(number, Ordering::Relaxed);
    child.state.store(entry_state::LIVE, Ordering::Release);
    kill_point!("fork-alive");
    mm.fork_lock.store(0, Ordering::Relaxed);
    window::inherit();
    mm.forget_waiters();
    mm.reclaimer.store(0, Ordering::Relaxed);
    mm.prefetcher.forget();
    mm.slot_caches.forget();
    mm.watch.forget();
    swapoff::forget();
    in_flight::forget();
    errand::forget();
    commit::forget();
    file_limit::forget();
    heirs::drop_content(mm);
    residency::forget_locks();
    if mm.header().has(flag::THREAD_DELIVERY) {
        thread::start_delivery()?;
    }
    thread::start_reclaimer(mm);
    Ok(())
}
