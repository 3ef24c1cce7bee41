//! What libc and the loader allocate for themselves stays out of the managed range.
//!
//! They use some of it where no fault can be answered: a new thread reads locale data before its signals are unblocked, the loader's TLS
//! blocks are touched by everything, stdio resets its locks in a forked child. Stream buffers in plain memory also spare the trap on
//! every read and write. The caller's address tells. Large requests (a line of input, a sort's buffer) are the program's data
//! whoever asks, and past a share of the budget so are small ones (a million strdup'ed names).

use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicUsize, Ordering};

use farpage::mm::{mm, mode};
use farpage::sys;
use tikv_jemalloc_sys as je;

use crate::alloc::{Hooks, HooksPtr, extent_keep, extent_merge, extent_no_range, extent_split, made};

/// Larger requests are the program's own data.
const SIZE_MAX: usize = 32 << 10;
/// Bytes that may stay unmanaged in any case.
const ALWAYS: i64 = 4 << 20;

/// Where an object's code lies: its first address, and that behind it.
struct Code([AtomicUsize; 2]);

impl Code {
    const fn none() -> Code {
        Code([AtomicUsize::new(0), AtomicUsize::new(0)])
    }

    fn holds(&self, address: usize) -> bool {
        let [start, end] = &self.0;
        address >= start.load(Ordering::Relaxed) && address < end.load(Ordering::Relaxed)
    }
}

static LIBC: Code = Code::none();
static LOADER: Code = Code::none();
/// This library's.
static OWN: Code = Code::none();
static ARENA: AtomicU32 = AtomicU32::new(0);
static TAKEN: AtomicI64 = AtomicI64::new(0);

pub static HOOKS: Hooks = Hooks(je::extent_hooks_t {
    alloc: Some(plain_alloc),
    dalloc: Some(extent_keep),
    destroy: None,
    commit: None,
    decommit: Some(extent_no_range),
    purge_lazy: Some(extent_no_range),
    purge_forced: Some(plain_purge),
    split: Some(extent_split),
    merge: Some(extent_merge),
});

/// How many calls are being made whose memory must stay out of the managed range, however much is out already.
static WANTED: AtomicU32 = AtomicU32::new(0);

/// Makes such a call.
pub fn outside<R>(call: impl FnOnce() -> R) -> R {
    WANTED.fetch_add(1, Ordering::Relaxed);
    let result = call();
    WANTED.fetch_sub(1, Ordering::Relaxed);
    result
}

/// In a forked child, which has none of the other threads.
pub fn forget() {
    WANTED.store(0, Ordering::Relaxed);
}

/// Notes whose code is whose. From now on, in a process with a budget, requests of libc and the loader go to an arena of their own.
pub fn start() {
    // SAFETY: the callback gets valid loader data.
    unsafe { libc::dl_iterate_phdr(Some(note_object), core::ptr::null_mut()) };
}

/// Whether a function is libc's.
pub fn is_libc(function: usize) -> bool {
    // Constructors of other libraries come before ours.
    if LIBC.0[1].load(Ordering::Relaxed) == 0 {
        start();
    }
    LIBC.holds(function)
}

/// Whether a function is this library's.
pub fn is_own(function: usize) -> bool {
    OWN.holds(function)
}

unsafe extern "C" fn note_object(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    _nothing: *mut c_void,
) -> c_int {
    // SAFETY: loader data, valid during the callback.
    let info = unsafe { &*info };
    let name = if info.dlpi_name.is_null() {
        b""
    } else {
        // SAFETY: the loader's own string, valid while its callback runs.
        unsafe { core::ffi::CStr::from_ptr(info.dlpi_name) }.to_bytes()
    };
    let file = name.rsplit(|&b| b == b'/').next().unwrap_or_default();
    // SAFETY: `dlpi_phnum` headers.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let is_code =
        |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0;
    for header in headers.iter().filter(is_code) {
        let start = (info.dlpi_addr + header.p_vaddr) as usize;
        let end = start + header.p_memsz as usize;
        let code = match file {
            _ if file.starts_with(b"libc.so") => &LIBC,
            _ if file.starts_with(b"ld-linux") => &LOADER,
            _ if (start..end).contains(&(note_object as *const () as usize)) => &OWN,
            _ => continue,
        };
        code.0[0].store(start, Ordering::Relaxed);
        code.0[1].store(end, Ordering::Relaxed);
    }
    0
}

/// Flags for mallocx if `caller` is libc or the loader and the request stays out of the managed range.
#[inline]
pub fn flags(caller: usize, size: usize) -> Option<c_int> {
    const NO_CACHE: c_int = 0x100;
    let is_internal = || LIBC.holds(caller) || LOADER.holds(caller);
    if size > SIZE_MAX || !is_internal() || mm().mode.load(Ordering::Relaxed) == mode::OFF {
        return None;
    }
    let share = || mm().header().budget.load(Ordering::Relaxed) * 4096 / 32;
    let room = TAKEN.load(Ordering::Relaxed) < ALWAYS
        || TAKEN.load(Ordering::Relaxed) < share()
        || WANTED.load(Ordering::Relaxed) != 0;
    if !room {
        return None;
    }
    let arena = made(&ARENA, &HOOKS);
    (arena != 0).then_some(((arena as c_int + 1) << 20) | NO_CACHE)
}

unsafe extern "C" fn plain_alloc(
    _hooks: HooksPtr,
    wanted: *mut c_void,
    size: usize,
    align: usize,
    zero: *mut bool,
    commit: *mut bool,
    _arena: c_uint,
) -> *mut c_void {
    if !wanted.is_null() {
        return core::ptr::null_mut();
    }
    let Ok(start) = sys::engine_memory((size + align) as u64) else {
        return core::ptr::null_mut();
    };
    let aligned = start.next_multiple_of(align as u64);
    let (before, after) = (aligned - start, start + align as u64 - aligned);
    // SAFETY: the ends of the mapping just made, which nobody uses; jemalloc's out parameters.
    unsafe {
        if before > 0 {
            let _ = sys::munmap(start, before);
        }
        if after > 0 {
            let _ = sys::munmap(aligned + size as u64, after);
        }
        *zero = true;
        *commit = true;
    }
    TAKEN.fetch_add(size as i64, Ordering::Relaxed);
    aligned as *mut c_void
}

unsafe extern "C" fn plain_purge(
    _hooks: HooksPtr,
    address: *mut c_void,
    _size: usize,
    offset: usize,
    length: usize,
    _arena: c_uint,
) -> bool {
    // SAFETY: jemalloc gives up the content of a range of this arena.
    unsafe { sys::madvise(address as u64 + offset as u64, length as u64, libc::MADV_DONTNEED) }.is_err()
}
