//! Questions to the kernel that only a system call answers. Each is tried for real, on something thrown away
//! right after where it would stay, because version numbers and configuration files do not know about containers.
//!
//! # Safety
//! The only unsafe code of this crate but for `ignored`. Every pointer handed to the kernel is to a live local value or mapping
//! of the size that the call expects, and every descriptor that it returns is owned at once.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_int, c_ulong};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

pub const FEATURE_SIGBUS: u64 = 1 << 7;
pub const FEATURE_MOVE: u64 = 1 << 16;
/// Names of the bits that `UFFDIO_API` reports, lowest first.
pub const FEATURE_NAMES: [&str; 17] = [
    "PAGEFAULT_FLAG_WP",
    "EVENT_FORK",
    "EVENT_REMAP",
    "EVENT_REMOVE",
    "MISSING_HUGETLBFS",
    "MISSING_SHMEM",
    "EVENT_UNMAP",
    "SIGBUS",
    "THREAD_ID",
    "MINOR_HUGETLBFS",
    "MINOR_SHMEM",
    "EXACT_ADDRESS",
    "WP_HUGETLBFS_SHMEM",
    "WP_UNPOPULATED",
    "POISON",
    "WP_ASYNC",
    "MOVE",
];

/// The device that hands out full userfaultfds to whoever may open it.
pub const DEVICE: &str = "/dev/userfaultfd";

const PAGE_BYTES: usize = 4096;
const USER_MODE_ONLY: c_int = 1;
const UFFD_API: u64 = 0xAA;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;
const UFFDIO_API: c_ulong = 0xC018_AA3F; // _IOWR(0xAA, 0x3F, struct uffdio_api)
const UFFDIO_REGISTER: c_ulong = 0xC020_AA00; // _IOWR(0xAA, 0x00, struct uffdio_register)
const UFFDIO_MOVE: c_ulong = 0xC028_AA05; // _IOWR(0xAA, 0x05, struct uffdio_move)
const USERFAULTFD_IOC_NEW: c_ulong = 0xAA00; // _IO(0xAA, 0x00)
const TMPFS_MAGIC: u64 = 0x0102_1994;

#[repr(C)]
#[derive(Default)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Default)]
struct UffdioRegister {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Default)]
struct UffdioMove {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    moved: i64,
}

/// An obstacle and what to do about it, each a phrase without a full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub what: String,
    pub fix: String,
}

impl Trouble {
    pub fn new(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            fix: fix.into(),
        }
    }

    /// Both in one line.
    pub fn line(&self) -> String {
        format!("{}; {}", self.what, self.fix)
    }
}

/// What stands between this process and a userfaultfd that farpage can use: the full one that `--delivery
/// thread` needs, or the one for faults of user mode only. `None` if nothing does.
pub fn why_no_userfaultfd(full: bool) -> Option<Trouble> {
    let features = match for_user_mode().and_then(|fd| handshake(&fd, 0)) {
        Ok(features) => features,
        Err(error) => return Some(why_no_syscall(&error)),
    };
    let no_full = || (full && full_userfaultfd().is_err()).then(why_no_full);
    why_too_old(features).or_else(no_full)
}

/// What a kernel whose userfaultfd has these features lacks.
fn why_too_old(features: u64) -> Option<Trouble> {
    let has = |feature| features & feature != 0;
    (!has(FEATURE_SIGBUS) || !has(FEATURE_MOVE)).then(|| {
        let what = "the kernel's userfaultfd lacks SIGBUS or MOVE";
        Trouble::new(what, "boot Linux 6.8 or newer")
    })
}

/// Whether a line can be written there now without waiting.
pub fn takes_text(to: &impl AsRawFd) -> bool {
    let mut poll = libc::pollfd {
        fd: to.as_raw_fd(),
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY:
    // - one live `struct pollfd`; with a timeout of 0 the call does not wait.
    let ready = unsafe { libc::poll(&mut poll, 1, 0) };
    ready == 1 && poll.revents & libc::POLLOUT != 0
}

/// The features of the kernel's userfaultfd, as bits.
pub fn userfaultfd_features() -> io::Result<u64> {
    handshake(&for_user_mode()?, 0)
}

fn why_no_syscall(error: &io::Error) -> Trouble {
    let filtered = proc_status("Seccomp:").is_some_and(|mode| mode == "2");
    let profile = "give the container the device instead (docker/podman: --device /dev/userfaultfd, with access for its user), or \
                   allow userfaultfd in its seccomp profile (--security-opt seccomp=PROFILE.json; Kubernetes: seccompProfile)";
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) if filtered => Trouble::new(
            format!("a seccomp filter refuses userfaultfd(2) ({error})"),
            profile,
        ),
        Some(libc::ENOSYS) => Trouble::new(
            "this kernel has no userfaultfd",
            "boot one built with CONFIG_USERFAULTFD=y",
        ),
        Some(libc::EPERM | libc::EACCES) => Trouble::new(
            format!("a security module refuses userfaultfd(2) ({error})"),
            "allow it in the SELinux or AppArmor policy of this user",
        ),
        Some(libc::EINVAL) => Trouble::new(
            "userfaultfd without UFFD_USER_MODE_ONLY",
            "boot Linux 6.8 or newer",
        ),
        Some(libc::EMFILE | libc::ENFILE) => Trouble::new(
            format!("no file descriptor is left ({error})"),
            "raise the limit: ulimit -n 1024",
        ),
        _ => Trouble::new(
            format!("userfaultfd(2) fails: {error}"),
            "boot Linux 6.8 or newer",
        ),
    }
}

/// Called when neither the system call nor the device gives a userfaultfd that serves kernel faults too.
fn why_no_full() -> Trouble {
    let sysctl = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    let sysctl = if sysctl.trim().is_empty() {
        "?"
    } else {
        sysctl.trim()
    };
    let capability = if has_capability(19) {
        "CAP_SYS_PTRACE only in a user namespace"
    } else {
        "no CAP_SYS_PTRACE"
    };
    let (device, device_fix) = match (fs::metadata(DEVICE), open_device()) {
        (Ok(meta), Err(error)) => (
            format!(
                "{DEVICE}: mode {:04o}, owner {}: {error}",
                meta.mode() & 0o7777,
                meta.uid()
            ),
            format!("setfacl -m u:USER:rw {DEVICE}"),
        ),
        (Err(error), _) => (
            format!("{DEVICE}: {error}"),
            format!("pass it to the container (--device {DEVICE})"),
        ),
        (Ok(_), Ok(_)) => (
            format!("{DEVICE}: its ioctl is refused"),
            "allow it in the seccomp profile".to_owned(),
        ),
    };
    Trouble::new(
        format!("no full userfaultfd: vm.unprivileged_userfaultfd={sysctl}, {capability}, {device}"),
        format!(
            "as root one of: sysctl vm.unprivileged_userfaultfd=1 | {device_fix} | start it with \
             CAP_SYS_PTRACE; or use --delivery signal, which needs none"
        ),
    )
}

/// How a full userfaultfd can be had here: by the system call or by the device.
pub fn full_userfaultfd() -> io::Result<&'static str> {
    if by_call(0).is_ok() {
        return Ok("userfaultfd(2)");
    }
    by_device(0).map(|_| DEVICE)
}

/// One by the device, which may be there where a filter refuses the call.
fn by_device(flags: c_int) -> io::Result<OwnedFd> {
    let (device, flags) = (open_device()?, flags | libc::O_CLOEXEC | libc::O_NONBLOCK);
    // SAFETY:
    // - the descriptor is open for the call; the request takes its flags by value.
    own(i64::from(unsafe {
        libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW as _, flags)
    }))
}

fn open_device() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(DEVICE)
}

/// As the engine opens one for faults of user mode: by the call, else by the device. The error is the call's.
fn for_user_mode() -> io::Result<OwnedFd> {
    by_call(USER_MODE_ONLY).or_else(|why| by_device(USER_MODE_ONLY).map_err(|_| why))
}

fn by_call(flags: c_int) -> io::Result<OwnedFd> {
    // SAFETY:
    // - the call takes its flags by value.
    own(unsafe { libc::syscall(libc::SYS_userfaultfd, flags | libc::O_CLOEXEC | libc::O_NONBLOCK) })
}

fn own(result: i64) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY:
    // - a fresh descriptor that nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(result as RawFd) })
}

/// Exchanges `UFFDIO_API`; returns the features of the kernel.
fn handshake(fd: &OwnedFd, wanted: u64) -> io::Result<u64> {
    let mut api = UffdioApi {
        api: UFFD_API,
        features: wanted,
        ioctls: 0,
    };
    // SAFETY:
    // - `api` is a live `struct uffdio_api`.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API as _, &mut api) })?;
    Ok(api.features)
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Moves one page from one throw-away mapping to another.
pub fn move_works() -> io::Result<()> {
    let fd = for_user_mode()?;
    handshake(&fd, FEATURE_SIGBUS | FEATURE_MOVE)?;
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let source = Mapping::new(0, PAGE_BYTES, rw, anonymous, -1)?;
    let target = Mapping::new(0, PAGE_BYTES, rw, anonymous, -1)?;
    // SAFETY:
    // - `source` is mapped, writable and ours alone.
    unsafe { source.address.cast::<u64>().write_volatile(0xFA2) };
    let (src, dst, len) = (source.address as u64, target.address as u64, PAGE_BYTES as u64);
    let mut register = UffdioRegister {
        start: dst,
        len,
        mode: UFFDIO_REGISTER_MODE_MISSING,
        ioctls: 0,
    };
    // SAFETY:
    // - `register` is a live `struct uffdio_register` naming a mapping of ours.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER as _, &mut register) })?;
    let mut order = UffdioMove {
        dst,
        src,
        len,
        mode: 0,
        moved: 0,
    };
    // SAFETY:
    // - `order` is a live `struct uffdio_move` naming two mappings that nothing else refers to.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_MOVE as _, &mut order) })?;
    // SAFETY:
    // - the move has just put a page there, so the read cannot fault.
    let arrived = unsafe { target.address.cast::<u64>().read_volatile() };
    if arrived == 0xFA2 {
        Ok(())
    } else {
        Err(io::Error::other("the page arrived changed"))
    }
}

/// A mapping that ends with the value.
struct Mapping {
    address: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    /// `fixed` is an address to be had exactly and only if it is free, 0 for any.
    fn new(fixed: usize, len: usize, prot: c_int, flags: c_int, fd: RawFd) -> io::Result<Self> {
        let flags = if fixed == 0 {
            flags
        } else {
            flags | libc::MAP_FIXED_NOREPLACE
        };
        // SAFETY:
        // - never replaces a mapping: no MAP_FIXED without NOREPLACE.
        let address = unsafe { libc::mmap(ptr::without_provenance_mut(fixed), len, prot, flags, fd, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = Self { address, len };
        if fixed != 0 && mapping.address.addr() != fixed {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY:
        // - the range is exactly the mapping we made.
        unsafe { libc::munmap(self.address, self.len) };
    }
}

/// Whether `len` bytes of address space at `start` are free.
pub fn address_range_free(start: usize, len: usize) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    Mapping::new(start, len, libc::PROT_NONE, flags, -1).map(drop)
}

/// Whether that much more address space can be had.
pub fn address_space(bytes: u64) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    Mapping::new(0, bytes as usize, libc::PROT_NONE, flags, -1).map(drop)
}

/// Whether a seccomp filter that traps calls could be installed for all threads. None is: the kernel takes the flags, and finds no filter
/// at a null pointer.
pub fn seccomp_filter() -> io::Result<()> {
    let action: u32 = libc::SECCOMP_RET_TRAP;
    let (get, install) = (libc::SECCOMP_GET_ACTION_AVAIL, libc::SECCOMP_SET_MODE_FILTER);
    // SAFETY:
    // - `action` is a live u32.
    if unsafe { libc::syscall(libc::SYS_seccomp, get, 0, &raw const action) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let (all_threads, none) = (libc::SECCOMP_FILTER_FLAG_TSYNC, ptr::null::<libc::sock_fprog>());
    // SAFETY:
    // - no filter can be read there, so that nothing changes.
    unsafe { libc::syscall(libc::SYS_seccomp, install, all_threads, none) };
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
        error => Err(error),
    }
}

/// Has this thread's system calls dispatched for a moment, with all of them allowed.
pub fn user_dispatch() -> io::Result<()> {
    const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;
    static ALLOW: u8 = 0;
    let switch = |on: c_ulong, selector: *const u8| {
        // SAFETY:
        // - `ALLOW` is there for as long as the program runs; with its value no call is caught.
        check(unsafe {
            libc::prctl(
                PR_SET_SYSCALL_USER_DISPATCH,
                on,
                0 as c_ulong,
                0 as c_ulong,
                selector,
            )
        })
    };
    switch(1, &ALLOW)?;
    switch(0, ptr::null()).map(drop)
}

/// A sealable memory file that code can be mapped from, as the preload library is.
pub fn memory_file() -> io::Result<()> {
    let name: &CStr = c"farpage-probe";
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY:
    // - `name` is a C string that outlives the call.
    let file = File::from(own(i64::from(unsafe {
        libc::memfd_create(name.as_ptr(), flags)
    }))?);
    file.set_len(PAGE_BYTES as u64)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY:
    // - the descriptor is open; the seals are passed by value.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    let prot = libc::PROT_READ | libc::PROT_EXEC;
    Mapping::new(0, PAGE_BYTES, prot, libc::MAP_PRIVATE, file.as_raw_fd()).map(drop)
}

/// Whether an io_uring can be made.
pub fn io_uring() -> io::Result<()> {
    let mut params = [0u64; 15]; // struct io_uring_params: 120 bytes, all zero
    // SAFETY:
    // - `params` is live and of the size of the structure.
    own(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) }).map(drop)
}

/// Whether the files of `path` live in RAM.
pub fn is_tmpfs(path: &Path) -> io::Result<bool> {
    let path = c_path(path)?;
    let mut answer = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY:
    // - the path is a C string, `answer` a live `struct statfs`.
    check(unsafe { libc::statfs(path.as_ptr(), answer.as_mut_ptr()) })?;
    // SAFETY:
    // - plain integers, for which zero bytes are a value; the kernel has filled them in.
    Ok(unsafe { answer.assume_init() }.f_type as u64 == TMPFS_MAGIC)
}

/// What direct I/O demands of buffers and of file offsets, in bytes; 0 if the kernel does not say.
#[derive(Clone, Copy, Debug)]
pub struct DirectIo {
    pub memory_align: u32,
    pub offset_align: u32,
}

/// An unlinked file in `directory`, written and read past the page cache.
pub fn direct_io(directory: &Path) -> io::Result<DirectIo> {
    let flags = libc::O_TMPFILE | libc::O_DIRECT;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(flags)
        .open(directory)?;
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    let page = Mapping::new(0, PAGE_BYTES, rw, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
    // SAFETY:
    // - the mapping is live, readable, writable, PAGE_BYTES long and has no other reference.
    let buffer = unsafe { std::slice::from_raw_parts_mut(page.address.cast::<u8>(), PAGE_BYTES) };
    buffer.fill(0x5A);
    file.write_all_at(buffer, 0)?;
    buffer.fill(0);
    file.read_exact_at(buffer, 0)?;
    if buffer.iter().any(|byte| *byte != 0x5A) {
        return Err(io::Error::other("what was read is not what was written"));
    }
    let mut answer = MaybeUninit::<libc::statx>::zeroed();
    let (fd, empty) = (file.as_raw_fd(), c"".as_ptr());
    // SAFETY:
    // - an open descriptor, an empty C string, a live `struct statx`.
    check(unsafe {
        libc::statx(
            fd,
            empty,
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            answer.as_mut_ptr(),
        )
    })?;
    // SAFETY:
    // - plain integers, for which zero bytes are a value; the kernel has filled them in.
    let answer = unsafe { answer.assume_init() };
    Ok(DirectIo {
        memory_align: answer.stx_dio_mem_align,
        offset_align: answer.stx_dio_offset_align,
    })
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

pub fn euid() -> u32 {
    // SAFETY:
    // - takes nothing, cannot fail.
    unsafe { libc::geteuid() }
}

pub fn egid() -> u32 {
    // SAFETY:
    // - takes nothing, cannot fail.
    unsafe { libc::getegid() }
}

/// Whether this process may execute the file, ACLs and noexec mounts included.
#[must_use]
pub fn may_execute(path: &Path) -> bool {
    let Ok(path) = c_path(path) else { return false };
    // SAFETY:
    // - the path is a C string.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) == 0 }
}

/// Whether the file gives capabilities to whom executes it.
#[must_use]
pub fn has_file_capabilities(path: &Path) -> bool {
    let Ok(path) = c_path(path) else { return false };
    // SAFETY:
    // - both are C strings; a size of 0 asks for the length only and writes nothing.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), ptr::null_mut(), 0) > 0 }
}

/// Whether this process has the capability of that number in effect.
#[must_use]
pub fn has_capability(number: u32) -> bool {
    proc_status("CapEff:")
        .and_then(|text| u64::from_str_radix(&text, 16).ok())
        .is_some_and(|bits| bits >> number & 1 == 1)
}

fn proc_status(key: &str) -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .map(|rest| rest.trim().to_owned())
}

const _: () = {
    assert!(mem::size_of::<UffdioApi>() == 24);
    assert!(mem::size_of::<UffdioRegister>() == 32);
    assert!(mem::size_of::<UffdioMove>() == 40);
};

/// From now on a file that gets longer than the limit allows is an error (EFBIG), and does not end this process (SIGXFSZ).
pub fn survive_file_limit() {
    // SAFETY: ignores a signal that nothing here waits for.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on SIGINT, SIGTERM and SIGHUP are noted instead of ending this process.
pub fn catch_interrupts() {
    extern "C" fn note(_: c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, note as *const () as usize) };
    }
}

/// Whether one of them has come.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_returns() {
        // What they answer depends on the machine; that they leave it as it was does not.
        let _ = (
            why_no_userfaultfd(false),
            why_no_userfaultfd(true),
            move_works(),
            seccomp_filter(),
        );
        let _ = (memory_file(), io_uring(), direct_io(Path::new("/var/tmp")));
        assert!(is_tmpfs(Path::new("/")).is_ok() && is_tmpfs(Path::new("/no/such/path")).is_err());
        assert!(may_execute(Path::new("/bin/sh")) && !may_execute(Path::new("/etc/passwd")));
    }

    #[test]
    fn a_used_range_is_not_free() {
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let taken = Mapping::new(0, PAGE_BYTES, libc::PROT_NONE, anonymous, -1).expect("a page");
        assert!(address_range_free(taken.address.addr(), PAGE_BYTES).is_err());
    }

    #[test]
    fn a_kernel_without_move_is_too_old() {
        let old = why_too_old(FEATURE_SIGBUS).expect("it is");
        assert!(old.what.contains("MOVE") && old.fix.contains("Linux 6.8"));
        assert!(why_too_old(FEATURE_MOVE).is_some() && why_too_old(FEATURE_SIGBUS | FEATURE_MOVE).is_none());
    }

    #[test]
    fn refusals_name_the_cause() {
        let why = |errno| why_no_syscall(&io::Error::from_raw_os_error(errno)).what;
        assert!(why(libc::EINVAL).contains("USER_MODE_ONLY"));
        assert!(why(libc::EMFILE).contains("descriptor"));
        // In a container it may be the filter that this test runs under.
        let refused = why_no_syscall(&io::Error::from_raw_os_error(libc::EPERM));
        let by_module =
            refused.what.contains("security module") && refused.fix.contains("SELinux or AppArmor");
        let by_filter =
            refused.what.contains("seccomp filter") && refused.fix.contains("--device /dev/userfaultfd");
        assert!(by_module || by_filter, "{}", refused.line());
        let full = why_no_full();
        assert!(full.what.contains("vm.unprivileged_userfaultfd=") && full.what.contains("CAP_SYS_PTRACE"));
        assert!(full.fix.contains("--delivery signal"));
    }
}
