//! The libc functions behind the symbols this library takes over, looked up once in the constructor.

use core::ffi::{c_char, c_void};
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::internal;

macro_rules! real_functions {
    ($($name:ident)*) => {
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy)]
        pub enum Real { $($name),* }
        const NAMES: &[&core::ffi::CStr] = &[$(
            match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            }
        ),*];
    };
}

real_functions! {
    __register_atfork fork _Fork daemon forkpty clone posix_spawn posix_spawnp system popen pclose pthread_create pthread_getattr_np
    pthread_attr_setaffinity_np pthread_attr_setsigmask_np setlocale
    _dl_find_object __libc_single_threaded
    sigaction signal siginterrupt sigaltstack sigsuspend ppoll pselect epoll_pwait epoll_pwait2
    readv writev preadv pwritev preadv64 pwritev64 preadv2 pwritev2 preadv64v2 pwritev64v2
    read write pread pread64 pwrite pwrite64 recv send epoll_wait poll
    sendmsg recvmsg sendmmsg recvmmsg ioctl
    close dup2 dup3 fcntl fcntl64 __fcntl unshare ptrace prctl setsockopt
    dlopen dlmopen __ppoll_chk chroot setcontext swapcontext __sigsetjmp siglongjmp longjmp _longjmp __longjmp_chk
    execve execv execvp execvpe execl execlp execle fexecve execveat
}

static ADDRESSES: [AtomicUsize; NAMES.len()] = [const { AtomicUsize::new(0) }; NAMES.len()];

/// Whose each of them is, once somebody has asked ([`is_libcs`]).
static OWNERS: [AtomicU8; NAMES.len()] = [const { AtomicU8::new(owner::UNKNOWN) }; NAMES.len()];

mod owner {
    pub const UNKNOWN: u8 = 0;
    pub const LIBC: u8 = 1;
    pub const OTHER: u8 = 2;
}

pub fn resolve() {
    for (address, name) in ADDRESSES.iter().zip(NAMES) {
        address.store(look_up(name), Ordering::Relaxed);
    }
}

/// NULL where libc has no such function.
pub fn look_up(name: &core::ffi::CStr) -> usize {
    // SAFETY: RTLD_NEXT with a valid name.
    unsafe { dlsym(libc::RTLD_NEXT, name.as_ptr()) as usize }
}

pub type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// libc's own dlsym; that name is taken over, too (`loader`). glibc has it in libc since 2.34, the oldest that serves.
///
/// # Safety
/// As dlsym(3).
pub unsafe fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    let mut found = FOUND.load(Ordering::Relaxed);
    // SAFETY: RTLD_NEXT with valid strings; a function of this type, with the caller's arguments.
    unsafe {
        if found == 0 {
            found = libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), c"GLIBC_2.34".as_ptr()) as usize;
            FOUND.store(found, Ordering::Relaxed);
        }
        core::mem::transmute::<usize, Dlsym>(found)(handle, name)
    }
}

/// The dlsym that comes after ours: libc's, or that of another preloaded library.
pub extern "C" fn next_dlsym() -> usize {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    let mut found = FOUND.load(Ordering::Relaxed);
    if found == 0 {
        found = look_up(c"dlsym");
        FOUND.store(found, Ordering::Relaxed);
    }
    found
}

/// The address of the real function. Called before the constructor it is looked up there and then.
pub fn address(real: Real) -> *mut c_void {
    let slot = &ADDRESSES[real as usize];
    let mut found = slot.load(Ordering::Relaxed);
    if found == 0 {
        found = look_up(NAMES[real as usize]);
        slot.store(found, Ordering::Relaxed);
    }
    found as *mut c_void
}

/// Whether the next function of that name is libc's, or there is none: then nobody misses a call that is made without it. Another library that is
/// preloaded, or linked before libc, is to see the calls that it takes over. Whose it is stays as the program was loaded.
pub fn is_libcs(real: Real) -> bool {
    let slot = &OWNERS[real as usize];
    let mut found = slot.load(Ordering::Relaxed);
    if found == owner::UNKNOWN {
        let function = address(real) as usize;
        found = if function == 0 || internal::is_libc(function) {
            owner::LIBC
        } else {
            owner::OTHER
        };
        slot.store(found, Ordering::Relaxed);
    }
    found == owner::LIBC
}

/// The real function as a function pointer of the given type.
macro_rules! call_real {
    ($name:ident as fn($($ty:ty),* $(,)?) -> $ret:ty, $($arg:expr),* $(,)?) => {{
        let address = $crate::real::address($crate::real::Real::$name);
        // SAFETY: the symbol of that name has this signature in libc.
        let function: unsafe extern "C" fn($($ty),*) -> $ret = unsafe { core::mem::transmute(address) };
        // SAFETY: the caller's arguments, passed on.
        unsafe { function($($arg),*) }
    }};
}
pub(crate) use call_real;

/// The body of a naked function that goes on to the next one of its name by a jump, so that who calls stays who calls: what comes before, which
/// leaves the arguments in their registers, then a function that gets the first three and tells where to go.
macro_rules! go_on {
    ($where_to:path, [$($before:literal),*] $(, $($operands:tt)+)?) => {
        core::arch::naked_asm!(
            $($before,)*
            "push rdi",
            "push rsi",
            "push rdx",
            "call {where_to}",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "jmp rax",
            where_to = sym $where_to,
            $($($operands)+)?
        )
    };
}
pub(crate) use go_on;
