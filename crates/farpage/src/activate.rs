//! From dormant to active: from here on farpage owns the content of the process's managed memory.
//!
//! Done once, with the gate held alone: other threads may run and touch memory meanwhile, but a fault of theirs that the
//! new registration catches waits at the gate until page states say what is there.
//!
//! # Safety
//! Registration is asked for ranges that this engine has mapped.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering};

use farpage_core::kill_point;
use farpage_core::page_state::{Kind, PageState};

use crate::advice;
use crate::births;
use crate::engine_stack;
use crate::file_limit;
use crate::in_flight;
use crate::mm::{CHUNK_PAGES, Mm, PAGE, address, fd, mm, mode, page_of};
use crate::pool::{MANAGED_PAGES, flag};
use crate::proc_dirs::{self, has_io_uring};
use crate::reclaim;
use crate::sys::{self, Errno};
use crate::trap::descriptors;
use crate::{signals, stacks, thread, tier_files, trap, uffd};

/// Called when the tree's sum of writable memory has grown, before this process can touch what is new: the last moment to become
/// active in time.
pub fn on_growth(mm: &Mm) {
    if mm.mode.load(Ordering::Acquire) != mode::DORMANT {
        return;
    }
    let header = mm.header();
    let mapped = header.committed.load(Ordering::Relaxed);
    let resident = header.charged.load(Ordering::Relaxed) + header.unmanaged.load(Ordering::Relaxed);
    let half = header.budget.load(Ordering::Relaxed) / 2;
    if header.has(flag::EAGER) || mapped / PAGE as i64 > half || resident > half {
        activate();
    }
}

/// Makes this process active, if it is dormant. A process that can't be is told so once and stays as it is.
pub fn activate() {
    let mm = mm();
    // A child that borrows this memory (vfork) has descriptors of its own.
    if !mm.is_own() {
        return;
    }
    let _alone = mm.gate.alone();
    // It takes some 45 KiB of stack, which is more than a thread need have (PTHREAD_STACK_MIN is 16), or a coroutine.
    engine_stack::run_within_block(|| activate_alone(mm));
}

/// With the gate held alone.
fn activate_alone(mm: &Mm) {
    if mm.mode.load(Ordering::Acquire) != mode::DORMANT {
        return;
    }
    let Some(_closed) = births::close() else {
        return;
    };
    if has_unfollowed_ring(mm) {
        switch_off(mm);
        sys::complain(&[
            "farpage: this process runs without a memory budget: it made an io_uring before its memory was managed; ",
            "run it with --eager, which refuses io_uring from the start",
        ]);
        return;
    }
    if mm.header().areas.load(Ordering::Relaxed) > 0 && file_limit::is_final() {
        switch_off(mm);
        sys::complain(&[
            "farpage: this process runs without a memory budget: its files are limited, and so swap files would be (RLIMIT_FSIZE, ",
            "the hard limit, set by a program that is not managed); lift that, or use compressed RAM alone",
        ]);
        return;
    }
    if let Err(step) = run_steps(mm) {
        switch_off(mm);
        let code = sys::Num::new(step.1.0 as u64, 10);
        let by_thread = mm.header().has(flag::THREAD_DELIVERY);
        sys::complain(&[
            "farpage: this process runs without a memory budget: ",
            step.0,
            " failed, errno ",
            code.text(),
            if by_thread && step.1 == Errno(libc::EPERM) {
                "; --delivery thread needs root, or the sysctl vm.unprivileged_userfaultfd, in every process: use --delivery signal"
            } else if step.1 == Errno(libc::ENOSYS) {
                "; if it runs under valgrind or its like, that lacks the system call: run it without, or `farpage doctor` for the kernel"
            } else {
                "; run `farpage doctor` for the fix"
            },
        ]);
    }
}

/// Whether the kernel may use memory for a ring behind our back. It waits for pages where a thread delivers them, and the user
/// may have said that these buffers need no care.
fn has_unfollowed_ring(mm: &Mm) -> bool {
    let followed = mm.header().has(flag::ALLOW_IO_URING) || mm.header().has(flag::THREAD_DELIVERY);
    // Where /proc can't be read one of the steps says so.
    !followed && has_io_uring().unwrap_or(false)
}

/// It stays the kernel's.
fn switch_off(mm: &Mm) {
    // It swaps nothing, so nobody waits for it to open what is added to the tree.
    mm.entry().area_epoch.store(u32::MAX, Ordering::Release);
    mm.mode.store(mode::OFF, Ordering::Release);
    in_flight::forget();
}

type Step = (&'static str, Errno);

fn run_steps(mm: &Mm) -> Result<(), Step> {
    // First of all: a filter from before an exec lets only calls from the stub change our descriptors.
    signals::take().map_err(|e| ("mapping the system call stub", e))?;
    mm.prepare_active().map_err(|e| ("mapping page states", e))?;
    kill_point!("activate-marked");
    tier_files::follow(mm).map_err(|e| ("opening a swap file of the tree", e))?;
    descriptors::check_place(mm).map_err(|e| ("having descriptors of its own (CLONE_FILES?)", e))?;
    open_userfaultfd(mm).map_err(|e| ("userfaultfd", e))?;
    signals::strip_masks();
    trap::install(mm).map_err(|e| ("the seccomp filter", e))?;
    in_flight::settle(mm).map_err(|e| ("reading /proc/self/task", e))?;
    stacks::make_noted_present(mm);
    take_memory_over(mm).inspect_err(|_| give_memory_back(mm))?;
    mm.mode.store(mode::ACTIVE, Ordering::Release);
    thread::start_reclaimer(mm);
    Ok(())
}

/// When memory that was registered was given back to the kernel; 0: never.
static GIVEN_BACK_NS: AtomicU64 = AtomicU64::new(0);

/// The userfaultfd goes and nothing is registered any more: who waits for a page tries again and gets it from the kernel. Its
/// number holds the pool, so that no file of the program gets it.
fn give_memory_back(mm: &Mm) {
    GIVEN_BACK_NS.store(sys::now_ns(), Ordering::SeqCst);
    descriptors::put_pool(mm.fd(fd::POOL), mm.fd(fd::UFFD));
    mm.charge(-mm.entry().resident.swap(0, Ordering::Relaxed));
}

/// Whether that was a moment ago: faults from before may arrive still.
pub fn was_given_back_lately() -> bool {
    const MOMENT_NS: u64 = 1_000_000_000;
    let then = GIVEN_BACK_NS.load(Ordering::SeqCst);
    then != 0 && sys::now_ns().saturating_sub(then) < MOMENT_NS
}

fn take_memory_over(mm: &Mm) -> Result<(), Step> {
    let pagemap = open_pagemap().map_err(|e| ("opening /proc/thread-self/pagemap", e))?;
    // Nothing but what is registered: pages of a private file mapping, too, are anonymous once they are written. They were taken for ours,
    // left, and their next touch was answered with zeros.
    let adopted = register_all(mm, |lo, hi| adopt_present(mm, pagemap, lo, hi));
    kill_point!("activate-registered");
    sys::close(pagemap);
    let adopted = adopted.map_err(|e| ("registering memory, or reading /proc/thread-self/pagemap,", e));
    adopted?;
    advice::adopt(mm, 0, MANAGED_PAGES).map_err(|e| ("reading /proc/thread-self/smaps", e))?;
    in_flight::pin(mm);
    stacks::keep_noted(mm);
    kill_point!("activate-adopted");
    reclaim::limit_is_old(mm);
    if mm.header().has(flag::THREAD_DELIVERY) {
        thread::start_delivery().map_err(|e| ("starting the delivery thread", e))?;
    }
    Ok(())
}

/// Opens this process's userfaultfd at its fixed number.
pub fn open_userfaultfd(mm: &Mm) -> Result<(), Errno> {
    let by_thread = mm.header().has(flag::THREAD_DELIVERY);
    let delivery = if by_thread {
        uffd::FEATURE_EXACT_ADDRESS | uffd::FEATURE_THREAD_ID
    } else {
        uffd::FEATURE_SIGBUS
    };
    let features = uffd::FEATURE_MOVE | delivery;
    let opened = uffd::open(by_thread, features)?;
    sys::move_fd(opened, mm.fd(fd::UFFD), false)
}

/// Registers every managed mapping and the staging area, and calls `then` with the pages of each mapping that was. Mappings of files over
/// managed addresses can't be registered and need not be.
pub fn register_all(mm: &Mm, mut then: impl FnMut(u64, u64) -> Result<(), Errno>) -> Result<(), Errno> {
    let (staging, len) = mm.frames.staging();
    mm.register(staging, len)?;
    let foreign = mm.foreign.load(Ordering::Relaxed) != 0;
    for_each_range(mm, |lo, hi| {
        let (addr, len) = (address(lo), (hi - lo) * PAGE);
        // SAFETY: advice only; uniform flags let the kernel merge the mappings, and MOVE can't cross mappings.
        let _ = unsafe { sys::madvise(addr, len, libc::MADV_NOHUGEPAGE) };
        if !foreign {
            keep_dumped(addr, len);
            if mm.register(addr, len).is_ok() {
                return then(lo, hi);
            }
        }
        register_parts(mm, addr, addr + len, &mut then)
    })
}

/// Takes over a mapping that was the kernel's: registers it, and what is present becomes resident in the books. An error
/// where it is not private anonymous memory.
pub fn adopt(mm: &Mm, lo: u64, hi: u64) -> Result<(), Errno> {
    let (start, end) = (address(lo), address(hi));
    if !is_plain(start, end)? {
        return Err(Errno(libc::EINVAL));
    }
    let pagemap = open_pagemap()?;
    let adopted = mm
        .register(start, end - start)
        .and_then(|()| adopt_present(mm, pagemap, lo, hi));
    sys::close(pagemap);
    adopted
}

/// Whether all of a range is mapped as private anonymous memory.
pub fn is_plain(start: u64, end: u64) -> Result<bool, Errno> {
    let mut plain = 0;
    each_plain_part(start, end, |from, to| {
        plain += to - from;
        Ok(())
    })?;
    Ok(plain == end - start)
}

/// Registers what can be registered of a range in which the program has mapped something else in places, and calls `then` with the pages of
/// each part.
pub fn register_parts(
    mm: &Mm,
    start: u64,
    end: u64,
    mut then: impl FnMut(u64, u64) -> Result<(), Errno>,
) -> Result<(), Errno> {
    each_plain_part(start, end, |from, to| {
        keep_dumped(from, to - from);
        mm.register(from, to - from)?;
        then(page_of(from), page_of(to))
    })
}

/// Calls `f` with each part of a range that is mapped as private anonymous memory.
pub fn each_plain_part(
    start: u64,
    end: u64,
    mut f: impl FnMut(u64, u64) -> Result<(), Errno>,
) -> Result<(), Errno> {
    crate::maps::each_mapping(|mapping| {
        let (from, to) = (mapping.start.max(start), mapping.end.min(end));
        if from < to && mapping.private_anonymous {
            f(from, to)?;
        }
        Ok(())
    })
}

/// Takes back MADV_DONTDUMP, which the program may have said while it was dormant: by that flag `mremap` keeps apart what it moves.
fn keep_dumped(addr: u64, len: u64) {
    // SAFETY: changes what a core dump would hold, no content.
    let _ = unsafe { sys::madvise(addr, len, libc::MADV_DODUMP) };
}

fn for_each_range(mm: &Mm, mut f: impl FnMut(u64, u64) -> Result<(), Errno>) -> Result<(), Errno> {
    let maps = mm.maps.lock();
    let Some(maps) = maps.as_ref() else { return Ok(()) };
    for range in maps.iter() {
        f(range.start, range.end)?;
    }
    Ok(())
}

/// Pages of a range of private anonymous memory that are there without farpage's doing (touched while dormant) become resident pages in the
/// books. Those of the kernel's huge page of zeros, too, which it lists as a file's: their first write tells nobody.
fn adopt_present(mm: &Mm, pagemap: i32, lo: u64, hi: u64) -> Result<(), Errno> {
    let mut page = lo;
    while page < hi {
        let end = ((page / CHUNK_PAGES + 1) * CHUNK_PAGES).min(hi);
        page = if adopt_chunk(mm, pagemap, page, end)? {
            end
        } else {
            next_present(pagemap, end, hi)
        };
    }
    Ok(())
}

/// The first page from `lo` on, below `hi`, that may be there: chunk by chunk a reservation of 256 GiB takes a quarter of a second.
fn next_present(pagemap: i32, lo: u64, hi: u64) -> u64 {
    use crate::huge_places::{PRESENT, SWAPPED, scan_range};
    if lo >= hi {
        return hi;
    }
    match scan_range(pagemap, address(lo)..address(hi), 0, PRESENT | SWAPPED) {
        Some((0, _)) => hi,
        Some((start, _)) => page_of(start),
        None => lo,
    }
}

/// Opens this process's page map, to be read or scanned.
pub fn open_pagemap() -> Result<i32, Errno> {
    proc_dirs::open(c"/proc/thread-self/pagemap", libc::O_RDONLY)
}

/// The same of one chunk, or a part of one; whether there were any.
fn adopt_chunk(mm: &Mm, fd: i32, lo: u64, hi: u64) -> Result<bool, Errno> {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    let mut entries = [0u64; CHUNK_PAGES as usize];
    let bytes = (hi - lo) * 8;
    // SAFETY: the buffer holds CHUNK_PAGES entries, and a chunk has no more pages.
    unsafe { sys::pread_all(fd, entries.as_mut_ptr() as u64, bytes, address(lo) / PAGE * 8)? };
    let mut present = 0;
    for (i, entry) in entries[..(hi - lo) as usize].iter().enumerate() {
        if entry & (PRESENT | SWAPPED) != 0 {
            let word = mm.word(lo + i as u64);
            let before = PageState(word.load(Ordering::Relaxed));
            if before.kind() == Kind::Untouched {
                word.store(before.replace(PageState::resident()).raw(), Ordering::Relaxed);
                present += 1;
            }
        }
    }
    if present > 0 {
        mm.count_resident(lo, present);
        mm.queue.loaded(lo, hi - lo);
    }
    Ok(present > 0)
}
