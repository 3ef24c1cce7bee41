//! How a process joins its tree: the preload library's constructor calls [`join`] once.
#![allow(unsafe_code)]
// SAFETY (file): reads the environment block the loader passes to constructors.

pub mod layout;

use core::ffi::CStr;
use core::sync::atomic::Ordering;

use farpage_core::kill_point;

use crate::births;
use crate::cleanup;
use crate::commit;
use crate::errand;
use crate::fork;
use crate::huge_advice;
use crate::maps::{anonymous_pages, each_mapping};
use crate::mem::{closed, managed_pages};
use crate::mm::{self, Mm, fd, mode};
use crate::pool::{MAX_PROCESSES, Pool, ProcEntry, entry_state, flag};
use crate::proc_dirs;
use crate::sigmask;
use crate::sys::{self, Errno};
use crate::trap::descriptors;
use crate::{activate, sentinel};

/// Names the pool's descriptor in the environment of every process of the tree.
pub const ENV_POOL: &CStr = c"FARPAGE_POOL_FD";
/// Leaves what is started with it alone.
pub const ENV_DISABLE: &CStr = c"FARPAGE_DISABLE";

/// Whether a switch in the environment is on: it has a value, and none that says no.
#[must_use]
pub fn says_yes(value: &[u8]) -> bool {
    const NO: [&[u8]; 7] = [b"", b"0", b"n", b"no", b"f", b"false", b"off"];
    !NO.iter().any(|no| value.eq_ignore_ascii_case(no))
}

/// Attaches this process to the tree's pool, dormant (active at once with `--eager`). Without a pool the library does nothing.
///
/// # Safety
/// `environment` is a NULL-terminated array of C strings.
pub unsafe fn join(environment: *const *const libc::c_char) {
    if mm::mm().mode.load(Ordering::Relaxed) != mode::OFF {
        return;
    }
    // SAFETY: as promised by the caller.
    let Some(pool_fd) = (unsafe { find_number(environment, ENV_POOL) }) else {
        return;
    };
    let pool = match Pool::attach(pool_fd) {
        Ok(pool) => pool,
        Err(Errno(libc::ENOMEM)) => {
            return sys::complain(&[
                "farpage: this process runs without a memory budget: its address space is limited (ulimit -v, RLIMIT_AS) to less than ",
                "farpage's tables need; raise that limit by 8 GiB, or lift it",
            ]);
        }
        // No descriptor of a pool: something else runs with this environment.
        Err(_) => return,
    };
    if pool.header().has(flag::NO_STDERR) {
        sys::be_quiet();
    }
    // Numbers of another namespace mean other processes in this table: what does not count in the supervisor's stays unmanaged.
    if !pool.header().counts_as_we_do() {
        // The supervisor finds by that that the image before is gone (`ledger::left_by_exec`).
        // SAFETY: nothing of it is used any more.
        unsafe { pool.detach() };
        return;
    }
    if layout::is_in_range() {
        // As above.
        // SAFETY: nothing of it is used any more.
        unsafe { pool.detach() };
        return sys::complain(&[
            "farpage: this process runs without a memory budget: its libraries lie where managed memory would (the legacy layout of ",
            "addresses); start it without `setarch -L`, or run `sysctl vm.legacy_va_layout=0`",
        ]);
    }
    #[cfg(feature = "kill-points")]
    {
        // SAFETY: as promised by the caller.
        let said = |name| unsafe { find(environment, name) };
        if let Some(points) = said(crate::kill::ENV_KILL_AT) {
            crate::kill::arm(&pool, points);
        }
        if let Some(pauses) = said(crate::kill::ENV_PAUSE_AT) {
            crate::kill::arm_pauses(pauses);
        }
    }
    let index = own_entry(&pool, pool_fd).unwrap_or(MAX_PROCESSES);
    if let Some(entry) = pool.processes().get(index) {
        // Not seen by the supervisor for a while yet: of five short children that was 3 MiB more than a budget of 64.
        entry.first.store(anonymous_pages(), Ordering::SeqCst);
        commit::promise(pool.header(), entry);
    }
    if mm::init(pool, index as u32).is_err() {
        return;
    }
    // Before there is another thread, which would inherit what the kernel has blocked, and could be answered no fault.
    sigmask::adopt();
    // A filter from before an exec traps calls on managed memory from the first one on: an image that stayed dormant would
    // have no handler for them and die of SIGSYS (a pipeline once did, when its shell had become active before it
    // started the next program).
    let inherited = crate::trap::is_inherited(mm::mm());
    // Such a filter lets calls from the stub alone change our descriptors.
    if !inherited || crate::signals::take().is_ok() {
        reserve_descriptors(pool_fd);
    }
    if inherited || pool.header().has(flag::EAGER) {
        activate::activate();
    }
    if inherited && !mm::mm().is_active() {
        mm::mm().mode.store(mode::OFF, Ordering::Release);
    }
}

/// Where the image before had what it had opened for itself the pool is until this image has its own, or nothing.
fn reserve_descriptors(pool_fd: i32) {
    for number in fd::OWN.map(|which| mm::mm().fd(which)) {
        descriptors::put_pool(pool_fd, number);
    }
}

/// The entry of this process: a new one, or after exec the old one, emptied.
fn own_entry(pool: &Pool, pool_fd: i32) -> Option<usize> {
    let pid = sys::getpid();
    let mine = |entry: &ProcEntry| {
        entry.state.load(Ordering::Acquire) == entry_state::LIVE && entry.pid.load(Ordering::Relaxed) == pid
    };
    if let Some(old) = pool.processes().iter().position(mine) {
        let born_ns = pool.processes()[old].born_ns.load(Ordering::Relaxed);
        cleanup::return_everything(pool, pool_fd, old, born_ns);
    }
    let index = fork::take_entry(pool, entry_state::taken_by(pid))?;
    let entry = &pool.processes()[index];
    kill_point!("join-entry");
    entry.pid.store(pid, Ordering::Relaxed);
    kill_point!("join-named");
    // Nobody gives it up while its taker lives.
    entry.state.store(entry_state::LIVE, Ordering::Release);
    Some(index)
}

unsafe fn find_number(environment: *const *const libc::c_char, name: &CStr) -> Option<i32> {
    // SAFETY: as promised by the caller.
    unsafe { find(environment, name) }?.parse().ok()
}

/// The value of a variable.
unsafe fn find(environment: *const *const libc::c_char, name: &CStr) -> Option<&'static str> {
    let name = name.to_bytes();
    let mut at = environment;
    loop {
        // SAFETY: the array ends with NULL, where the loop ends.
        let entry = unsafe { *at };
        if entry.is_null() {
            return None;
        }
        // SAFETY: entries are C strings.
        let text = unsafe { CStr::from_ptr(entry) }.to_bytes();
        if let Some(value) = text.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"=")) {
            return core::str::from_utf8(value).ok();
        }
        // SAFETY: not at the end yet.
        at = unsafe { at.add(1) };
    }
}

/// In a child forked while dormant: it is a process of its own in the table.
pub fn rejoin_after_dormant_fork() {
    let mm = mm::mm();
    let mode_now = mm.mode.load(Ordering::Relaxed);
    if mode_now == mode::ACTIVE || mm.entry_opt().is_none() {
        return;
    }
    proc_dirs::abandon_lock();
    // In a pid namespace of its own it is unmanaged, as in `join`. (The parent may have borrowed the memory, or have ended.)
    let tree = mm.header().pid_namespace.load(Ordering::Relaxed);
    let parent = sys::getppid();
    let is_another = |namespace| namespace != 0 && namespace != tree;
    let is_apart = parent == 0 || (parent != mm.number() && is_another(sys::pid_namespace()));
    if mode_now == mode::OFF || is_apart {
        mm.mode.store(mode::OFF, Ordering::Release);
        mm.index.store(MAX_PROCESSES as u32, Ordering::Relaxed);
        return;
    }
    // Another thread may have been alone inside at the fork.
    mm.gate.open();
    births::forget();
    errand::forget();
    sentinel::forget();
    abandon_locks(mm);
    let pool = mm.pool();
    let index = own_entry(pool, mm.fd(fd::POOL)).unwrap_or(MAX_PROCESSES);
    mm.index.store(index as u32, Ordering::Relaxed);
    mm.be_own(sys::getpid());
    closed::begin_anew(mm);
}

/// In a child forked while dormant: another thread of the parent may have been changing the books of what is mapped, and held
/// their lock. The child has none of what was on the way, so the kernel's list is the truth.
fn abandon_locks(mm: &Mm) {
    huge_advice::abandon_lock();
    if !mm.maps.abandon() {
        return;
    }
    let mut maps = mm.maps.lock();
    let Some(maps) = maps.as_mut() else { return };
    maps.clear();
    let read = each_mapping(|mapping| {
        managed_pages(mapping.start, mapping.end - mapping.start).map_or(Ok(()), |(lo, hi)| {
            maps.insert(lo, hi).map_err(|_| Errno(libc::ENOMEM))
        })
    });
    if read.is_err() {
        sys::die(&[
            "farpage: a forked child could not read /proc/thread-self/maps (too many open files?); ",
            "the child was stopped so that it uses no wrong data",
        ]);
    }
}
