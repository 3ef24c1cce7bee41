//! malloc and its family: jemalloc with its extents in the managed range and its metadata outside, so that freeing a
//! swapped object touches nothing that is swapped.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use farpage::commit;
use farpage::engine_stack::if_managed;
use farpage::mem;
use farpage::mm::{PAGE, mm};
use tikv_jemalloc_sys as je;

use crate::real::call_real;
use crate::{internal, real};

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
    if BEHIND[FREE].load(Ordering::Relaxed) == UNKNOWN {
        find_next();
    }
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

/// The functions behind ours in the look-up of symbols, for blocks that are another malloc's: libjemalloc's, preloaded or linked. Its operator
/// new takes from its own arenas, as its mallocx does, but its operator delete calls `free`, which is ours.
static BEHIND: [AtomicUsize; 3] = [const { AtomicUsize::new(UNKNOWN) }; 3];
const FREE: usize = 0;
const REALLOC: usize = 1;
const USABLE_SIZE: usize = 2;
/// Nobody has looked yet.
const UNKNOWN: usize = 0;
/// `free` is libc's: no block of another malloc comes here.
const LIBCS: usize = 1;

/// Looks who comes next. What frees meanwhile (the look-up itself may) frees blocks of ours.
#[cold]
fn find_next() {
    BEHIND[FREE].store(LIBCS, Ordering::Relaxed);
    let free = real::look_up(c"free");
    if free == 0 || internal::is_libc(free) {
        return;
    }
    for (place, name) in [(REALLOC, c"realloc"), (USABLE_SIZE, c"malloc_usable_size")] {
        BEHIND[place].store(real::look_up(name), Ordering::Relaxed);
    }
    BEHIND[FREE].store(free, Ordering::Release);
}

/// The next function of that name, if the block is not ours but another malloc's.
#[inline(always)]
fn next_for(pointer: *mut c_void, place: usize) -> Option<usize> {
    if BEHIND[FREE].load(Ordering::Relaxed) == LIBCS {
        return None;
    }
    next_beside_libc(pointer, place)
}

#[inline(never)]
fn next_beside_libc(pointer: *mut c_void, place: usize) -> Option<usize> {
    if BEHIND[FREE].load(Ordering::Acquire) == UNKNOWN {
        find_next();
    }
    let is_another = BEHIND[FREE].load(Ordering::Acquire) != LIBCS;
    (is_another && !pointer.is_null() && !is_known(pointer)).then(|| BEHIND[place].load(Ordering::Relaxed))
}

unsafe extern "C" {
    /// jemalloc's map of its extents (`emap_t`), which begins with the tree (`rtree_t`) that leads from a page to its extent.
    #[link_name = "_rjem_je_arena_emap_global"]
    static EXTENTS: [u8; 0];
    /// The tree's word for an address; NULL where it has no leaf.
    #[link_name = "_rjem_je_rtree_leaf_elm_lookup_hard"]
    fn extent_word(
        thread: *mut c_void,
        tree: *const c_void,
        cache: *mut c_void,
        address: usize,
        must_exist: bool,
        make: bool,
    ) -> *const AtomicU64;
}

/// Whether our jemalloc has an extent there. Its own call for that (`arenas.lookup`) takes a lock that all threads share.
fn is_known(pointer: *mut c_void) -> bool {
    /// More than `rtree_ctx_t` has words (48), which the look-up writes to.
    const CACHE_WORDS: usize = 128;
    /// The bits of a word that name the extent; those beside them tell of what kind it is.
    const EXTENT: u64 = 0x0000_ffff_ffff_ff80;
    let mut cache = MaybeUninit::<[u64; CACHE_WORDS]>::uninit();
    // SAFETY: jemalloc 5.3's own look-up, as `emap_full_alloc_ctx_try_lookup` makes it: it asks nothing of the thread, makes nothing, reads
    // nothing of the cache but to move it, and a word that is there stays.
    unsafe {
        let tree = (&raw const EXTENTS).cast();
        let (thread, cache) = (core::ptr::null_mut(), cache.as_mut_ptr().cast());
        let word = extent_word(thread, tree, cache, pointer as usize, false, false);
        !word.is_null() && (*word).load(Ordering::Acquire) & EXTENT != 0
    }
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
    if BEHIND[FREE].load(Ordering::Relaxed) != LIBCS {
        // SAFETY: as the caller's.
        return unsafe { free_beside_others(pointer) };
    }
    // SAFETY: as the caller's.
    unsafe { free_own(pointer) }
}

#[inline(always)]
unsafe fn free_own(pointer: *mut c_void) {
    // SAFETY: errno must survive free.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        je::free(pointer);
        *errno = before;
    }
}

#[inline(never)]
unsafe extern "C" fn free_beside_others(pointer: *mut c_void) {
    type Free = unsafe extern "C" fn(*mut c_void);
    // SAFETY: a free, and a block of its malloc's; else as the caller's.
    unsafe {
        match next_beside_libc(pointer, FREE) {
            Some(next) => core::mem::transmute::<usize, Free>(next)(pointer),
            None => free_own(pointer),
        }
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

type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;

unsafe extern "C" fn realloc_for(pointer: *mut c_void, size: usize, caller: usize) -> *mut c_void {
    if pointer.is_null() {
        // SAFETY: the same contract.
        return unsafe { malloc_for(size, caller) };
    }
    if let Some(next) = next_for(pointer, REALLOC) {
        // SAFETY: a realloc, and a block of its malloc's.
        return unsafe { core::mem::transmute::<usize, Realloc>(next)(pointer, size) };
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

/// The `realloc` that comes first in the program's scope.
static FIRST: AtomicUsize = AtomicUsize::new(UNKNOWN);

/// Looks it up, from the constructor: the loader's lock, which this takes, may be held for long later on, or for good in a forked child, and
/// what `dlerror` has to tell would be lost.
pub fn find_first_realloc() -> usize {
    // The program's own scope: in that of a library which is linked symbolically, as ours is, its own names come first.
    let program = call_real!(
        dlopen as fn(*const c_char, c_int) -> *mut c_void,
        core::ptr::null(),
        libc::RTLD_LAZY
    );
    // SAFETY: a handle and a valid name.
    let found = unsafe { real::dlsym(program, c"realloc".as_ptr()) } as usize;
    FIRST.store(found, Ordering::Relaxed);
    found
}

/// As libc's it calls whichever `realloc` comes first, which may be a program's own. One behind ours would be given blocks of ours: mimalloc's
/// and that of gcc's leak checker have one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(pointer: *mut c_void, count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else {
        return no_memory();
    };
    let first = match FIRST.load(Ordering::Relaxed) {
        // A constructor's that runs before ours.
        UNKNOWN => find_first_realloc(),
        found => found,
    };
    // SAFETY: a realloc, ours or that of a program; as the caller's.
    unsafe {
        if first == UNKNOWN {
            return realloc_for(pointer, bytes, 0);
        }
        core::mem::transmute::<usize, Realloc>(first)(pointer, bytes)
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
    if let Some(next) = next_for(pointer, USABLE_SIZE) {
        type UsableSize = unsafe extern "C" fn(*mut c_void) -> usize;
        // SAFETY: a malloc_usable_size, and a block of its malloc's.
        return unsafe { core::mem::transmute::<usize, UsableSize>(next)(pointer) };
    }
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
