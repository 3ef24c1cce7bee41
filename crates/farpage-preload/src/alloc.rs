//! malloc and its family: jemalloc with its extents in the managed range and its metadata outside, so that freeing a
//! swapped object touches nothing that is swapped.

use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

use farpage::commit;
use farpage::engine_stack::if_managed;
use farpage::mem;
use farpage::mm::{PAGE, mm};
use tikv_jemalloc_sys as je;

use crate::internal;

unsafe extern "C" {
    fn farpage_thread_bound() -> *mut c_int;
}

const ARENAS_MAX: usize = 16;
/// In bytes.
const LARGE: usize = 32 << 20;
static ARENAS: [AtomicU32; ARENAS_MAX] = [const { AtomicU32::new(0) }; ARENAS_MAX];
static ARENA_COUNT: AtomicU32 = AtomicU32::new(0);
static NEXT: AtomicU32 = AtomicU32::new(0);

/// jemalloc 5.3's `arena_config_t`.
#[repr(C)]
struct ArenaConfig {
    hooks: *const je::extent_hooks_t,
    metadata_use_hooks: bool,
}

pub struct Hooks(pub je::extent_hooks_t);
// SAFETY: a table of function pointers that is never written.
unsafe impl Sync for Hooks {}

static HOOKS: Hooks = Hooks(je::extent_hooks_t {
    alloc: Some(extent_alloc),
    dalloc: Some(extent_keep),
    destroy: Some(extent_destroy),
    commit: Some(extent_commit),
    decommit: Some(extent_no_range),
    purge_lazy: Some(extent_no_range),
    purge_forced: Some(extent_purge),
    split: Some(extent_split),
    merge: Some(extent_merge),
});

/// Creates an arena with these hooks and its metadata outside; its index.
fn create(hooks: &'static Hooks) -> Option<u32> {
    let config = ArenaConfig {
        hooks: &raw const hooks.0,
        metadata_use_hooks: false,
    };
    let mut index: c_uint = 0;
    let mut size = size_of::<c_uint>();
    let name = c"experimental.arenas_create_ext";
    // SAFETY: jemalloc's documented call: the index comes out, the configuration goes in.
    let error = unsafe {
        let (out, new) = (
            &mut index as *mut c_uint as *mut c_void,
            &config as *const ArenaConfig as *mut c_void,
        );
        je::mallctl(name.as_ptr(), out, &mut size, new, size_of::<ArenaConfig>())
    };
    (error == 0).then(|| {
        give_back_large(index);
        index
    })
}

/// Blocks of this arena from [`LARGE`] on give their memory back as they are freed, as with glibc's malloc (the greatest that it keeps). Else they would wait for a tick
/// that may never come, and hold RAM and swap: memory was refused of which hardly any was in use.
fn give_back_large(arena: u32) {
    let (mut name, mut len) = ([0usize; 3], 3);
    let (none, mut least) = (core::ptr::null_mut::<c_void>(), LARGE);
    // SAFETY: jemalloc's documented calls: a name becomes numbers, of which the second is the arena's, and a size goes in.
    unsafe {
        let spelled = c"arena.0.oversize_threshold".as_ptr();
        if je::mallctlnametomib(spelled, name.as_mut_ptr(), &mut len) == 0 {
            name[1] = arena as usize;
            let new = (&raw mut least).cast();
            je::mallctlbymib(name.as_ptr(), len, none, none.cast(), new, size_of::<usize>());
        }
    }
}

/// From now on threads move to arenas of ours at their next allocation. An arena is made when its first thread comes: most
/// programs have one thread, and a short one pays 40 us for each arena.
pub fn start() {
    // SAFETY: no preconditions.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.clamp(1, 8) as usize;
    ARENA_COUNT.store((cpus * 2).min(ARENAS_MAX) as u32, Ordering::Release);
}

/// The index in `place`, of an arena with these hooks; it is made now if there is none, 0 if it can't be. Of two threads that
/// make one at the same time both keep the first; nobody waits, so a fork at any moment leaves nothing half done.
pub fn made(place: &AtomicU32, hooks: &'static Hooks) -> u32 {
    let known = place.load(Ordering::Acquire);
    if known != 0 {
        return known;
    }
    let Some(index) = create(hooks) else { return 0 };
    place
        .compare_exchange(0, index, Ordering::AcqRel, Ordering::Acquire)
        .map_or_else(|first| first, |_| index)
}

/// Makes this thread use one of our arenas from now on, once they may be made.
#[cold]
fn bind() {
    let count = ARENA_COUNT.load(Ordering::Acquire);
    if count == 0 {
        return;
    }
    // SAFETY: this thread's own flag; set first, since mallctl may allocate.
    unsafe { *farpage_thread_bound() = 1 };
    let arena = made(
        &ARENAS[(NEXT.fetch_add(1, Ordering::Relaxed) % count) as usize],
        &HOOKS,
    );
    if arena == 0 {
        return;
    }
    // SAFETY: jemalloc's documented call: an arena index goes in.
    unsafe {
        let new = &arena as *const u32 as *mut c_void;
        je::mallctl(
            c"thread.arena".as_ptr(),
            core::ptr::null_mut(),
            core::ptr::null_mut(),
            new,
            size_of::<c_uint>(),
        );
    }
}

#[inline(always)]
fn ready() {
    // SAFETY: this thread's own flag.
    if unsafe { *farpage_thread_bound() } == 0 {
        bind();
    }
}

fn no_memory() -> *mut c_void {
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() = libc::ENOMEM };
    core::ptr::null_mut()
}

fn or_errno(pointer: *mut c_void) -> *mut c_void {
    if pointer.is_null() { no_memory() } else { pointer }
}

/// malloc, calloc and realloc note who calls: see [`crate::internal`].
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(_size: usize) -> *mut c_void {
    core::arch::naked_asm!("mov rsi, [rsp]", "jmp {}", sym malloc_for)
}

unsafe extern "C" fn malloc_for(size: usize, caller: usize) -> *mut c_void {
    ready();
    if let Some(flags) = internal::flags(caller, size) {
        // SAFETY: a size of at least 1 and an arena that exists.
        return or_errno(unsafe { je::mallocx(size.max(1), flags) });
    }
    // SAFETY: as the caller's.
    or_errno(unsafe { je::malloc(size) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(pointer: *mut c_void) {
    // SAFETY: errno must survive free.
    unsafe {
        let errno = *libc::__errno_location();
        je::free(pointer);
        *libc::__errno_location() = errno;
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(pointer: *mut c_void) {
    // SAFETY: as the caller's.
    unsafe { free(pointer) }
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(_count: usize, _size: usize) -> *mut c_void {
    core::arch::naked_asm!("mov rdx, [rsp]", "jmp {}", sym calloc_for)
}

unsafe extern "C" fn calloc_for(count: usize, size: usize, caller: usize) -> *mut c_void {
    ready();
    if let Some(bytes) = count.checked_mul(size)
        && let Some(flags) = internal::flags(caller, bytes)
    {
        const ZERO: c_int = 0x40;
        // SAFETY: a size of at least 1 and an arena that exists.
        return or_errno(unsafe { je::mallocx(bytes.max(1), flags | ZERO) });
    }
    // SAFETY: as the caller's.
    or_errno(unsafe { je::calloc(count, size) })
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(_pointer: *mut c_void, _size: usize) -> *mut c_void {
    core::arch::naked_asm!("mov rdx, [rsp]", "jmp {}", sym realloc_for)
}

unsafe extern "C" fn realloc_for(pointer: *mut c_void, size: usize, caller: usize) -> *mut c_void {
    if pointer.is_null() {
        // SAFETY: the same contract.
        return unsafe { malloc_for(size, caller) };
    }
    ready();
    if size == 0 && !pointer.is_null() {
        // As glibc: freed, NULL.
        // SAFETY: as the caller's.
        unsafe { free(pointer) };
        return core::ptr::null_mut();
    }
    // SAFETY: as the caller's.
    or_errno(unsafe { je::realloc(pointer, size) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(pointer: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: as the caller's.
        Some(bytes) => unsafe { realloc(pointer, bytes) },
        None => no_memory(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    ready();
    // SAFETY: as the caller's.
    unsafe { je::posix_memalign(out, align, size) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    // SAFETY: as the caller's.
    unsafe { memalign(align, size) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    ready();
    if align > usize::MAX / 2 + 1 {
        // SAFETY: errno of this thread.
        unsafe { *libc::__errno_location() = libc::EINVAL };
        return core::ptr::null_mut();
    }
    // SAFETY: a power of two of at least pointer size, as glibc rounds it up.
    or_errno(unsafe { je::aligned_alloc(align.next_power_of_two().max(8), size) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    // SAFETY: as the caller's.
    unsafe { memalign(PAGE as usize, size) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(PAGE as usize) {
        // SAFETY: as the caller's.
        Some(rounded) => unsafe { memalign(PAGE as usize, rounded) },
        None => no_memory(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(pointer: *mut c_void) -> usize {
    // SAFETY: as the caller's.
    unsafe { je::malloc_usable_size(pointer) }
}

/// Gives free memory back to the system, as in glibc; 1 if anything may have been.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_trim(_pad: usize) -> c_int {
    const ALL: &core::ffi::CStr = c"arena.4096.purge"; // MALLCTL_ARENAS_ALL
    let none = core::ptr::null_mut();
    // SAFETY: a call without arguments.
    unsafe { je::mallctl(ALL.as_ptr(), none, none.cast(), none, 0) };
    1
}

/// glibc's tuning knobs mean nothing here; 1 is success.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mallopt(_param: c_int, _value: c_int) -> c_int {
    1
}

pub type HooksPtr = *mut je::extent_hooks_t;

unsafe extern "C" fn extent_alloc(
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
    // SAFETY: out parameters of jemalloc's.
    let (zero, commit) = unsafe { (&mut *zero, &mut *commit) };
    if *commit && !may_grow(size) {
        return core::ptr::null_mut();
    }
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    match if_managed(|| mem::allocate(size as u64, prot, align as u64)) {
        Ok(address) => {
            *zero = true;
            address as *mut c_void
        }
        Err(_) => {
            if *commit {
                commit::commit(mm(), -(size as i64));
            }
            core::ptr::null_mut()
        }
    }
}

/// Counts `size` bytes as in use from now on; false when swap could not hold them.
fn may_grow(size: usize) -> bool {
    let mm = mm();
    if_managed(|| commit::grow(mm, size as u64));
    let fits = commit::room_for(mm, size as u64);
    if !fits {
        commit::commit(mm, -(size as i64));
    }
    fits
}

/// Extents are mapped writable at once; committing them is only a matter of counting.
unsafe extern "C" fn extent_commit(
    _hooks: HooksPtr,
    _address: *mut c_void,
    _size: usize,
    _offset: usize,
    length: usize,
    _arena: c_uint,
) -> bool {
    !may_grow(length)
}

pub unsafe extern "C" fn extent_no_range(
    _hooks: HooksPtr,
    _address: *mut c_void,
    _size: usize,
    _offset: usize,
    _length: usize,
    _arena: c_uint,
) -> bool {
    true
}

unsafe extern "C" fn extent_purge(
    _hooks: HooksPtr,
    address: *mut c_void,
    _size: usize,
    offset: usize,
    length: usize,
    _arena: c_uint,
) -> bool {
    if_managed(|| mem::madvise(address as u64 + offset as u64, length as u64, libc::MADV_DONTNEED)) < 0
}

/// Extents stay with jemalloc, which reuses them.
pub unsafe extern "C" fn extent_keep(
    _hooks: HooksPtr,
    _address: *mut c_void,
    _size: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    true
}

unsafe extern "C" fn extent_destroy(
    _hooks: HooksPtr,
    address: *mut c_void,
    size: usize,
    _committed: bool,
    _arena: c_uint,
) {
    if_managed(|| mem::munmap(address as u64, size as u64));
}

pub unsafe extern "C" fn extent_split(
    _hooks: HooksPtr,
    _address: *mut c_void,
    _size: usize,
    _a: usize,
    _b: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    false
}

pub unsafe extern "C" fn extent_merge(
    _hooks: HooksPtr,
    _a: *mut c_void,
    _a_size: usize,
    _b: *mut c_void,
    _b_size: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    false
}
