//! Calls whose arguments depend on a command, and those whose structures hold pointers.
//!
//! Offsets and sizes are those of the x86_64 ABI. Every loop has a bound: the kernel's own where it has one.

use super::walks::{ARG_STRING_BYTES_MAX, OPAQUE_BYTES};
use super::{PAGE, RW_BYTES_MAX, SOCKOPT_BYTES_MAX, Walk};

const IOCBS_MAX: u64 = 4096;
const IOCB_BYTES: u64 = 64;
const SIGSET_BYTES: u64 = 8;
const TIMESPEC_BYTES: u64 = 16;

pub(super) fn futex(walk: &mut Walk<'_>) {
    const OPTIONS: u32 = (libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME) as u32;
    walk.flat(walk.val(0), 4);
    let command = walk.val32(1) & !OPTIONS;
    let is = |commands: &[libc::c_int]| commands.iter().any(|&c| c as u32 == command);
    // Others give a number where these give a pointer.
    if is(&[
        libc::FUTEX_WAIT,
        libc::FUTEX_WAIT_BITSET,
        libc::FUTEX_LOCK_PI,
        libc::FUTEX_LOCK_PI2,
        libc::FUTEX_WAIT_REQUEUE_PI,
    ]) {
        walk.flat(walk.val(3), TIMESPEC_BYTES);
    }
    if is(&[
        libc::FUTEX_REQUEUE,
        libc::FUTEX_CMP_REQUEUE,
        libc::FUTEX_WAKE_OP,
        libc::FUTEX_WAIT_REQUEUE_PI,
        libc::FUTEX_CMP_REQUEUE_PI,
    ]) {
        walk.flat(walk.val(4), 4);
    }
}

pub(super) fn futex_waitv(walk: &mut Walk<'_>) {
    walk.waiters(walk.val(0), u64::from(walk.val32(1)));
}

/// The first waiter is the source, the second the target.
pub(super) fn futex_requeue(walk: &mut Walk<'_>) {
    walk.waiters(walk.val(0), 2);
}

pub(super) const IOCTLS_NESTED: &[u32] = &[SIOCGIFCONF, SIOCETHTOOL, SG_IO, PAGEMAP_SCAN];
const SIOCGIFCONF: u32 = 0x8912;
const SIOCETHTOOL: u32 = 0x8946;
const SG_IO: u32 = 0x2285;
const PAGEMAP_SCAN: u32 = 0xc060_6610;
const TYPE_TERMINAL: u32 = b'T' as u32;
const TYPE_DEVICE_MAPPER: u32 = 0xfd;

/// An array behind a structure, whose number says nothing of it.
struct Tail {
    command: u32,
    /// Where in the structure the number of elements lies, a u32, and where the array begins.
    count_at: u64,
    begins_at: u64,
    /// Bytes of one.
    element: u64,
}

const fn tail(command: u32, count_at: u64, begins_at: u64, element: u64) -> Tail {
    Tail {
        command,
        count_at,
        begins_at,
        element,
    }
}

/// Those that may be longer than [`OPAQUE_BYTES`].
const TAILS: &[Tail] = &[
    // FS_IOC_FIEMAP, FS_IOC_GETFSMAP, BLKREPORTZONE, BTRFS_IOC_TREE_SEARCH_V2
    tail(0xc020_660b, 24, 32, 56),
    tail(0xc0c0_583b, 8, 192, 64),
    tail(0xc010_1282, 8, 16, 64),
    tail(0xc070_9411, 104, 112, 1),
];
/// `struct dm_ioctl` says at 12 how long it is with what follows.
const DEVICE_MAPPER: Tail = tail(0, 12, 0, 1);

/// How far behind its argument an ioctl may reach. The size in its number is that of a structure, which an array may follow, as KVM's,
/// vhost's and many others do; it may be a string, or there is no size. Only those of terminals are known to be as they say.
fn ioctl_bytes(walk: &mut Walk<'_>, command: u32, start: u64) -> u64 {
    let (kind, encoded) = (command >> 8 & 0xff, u64::from(command >> 16 & 0x3fff));
    // Numbers from 200 on are those of tun devices, which are longer than they say.
    if kind == TYPE_TERMINAL && command & 0xff < 200 {
        return if encoded == 0 { PAGE } else { encoded };
    }
    let tail = match kind {
        TYPE_DEVICE_MAPPER => Some(&DEVICE_MAPPER),
        _ => TAILS.iter().find(|tail| tail.command == command),
    };
    let Some(tail) = tail.filter(|_| start != 0) else {
        return OPAQUE_BYTES;
    };
    walk.flat(start, tail.count_at + 4);
    let count = start.checked_add(tail.count_at).and_then(|at| walk.u32_at(at));
    let whole = tail.begins_at + u64::from(count.unwrap_or(0)) * tail.element;
    whole.clamp(OPAQUE_BYTES, RW_BYTES_MAX)
}

pub(super) fn ioctl(walk: &mut Walk<'_>) {
    let (command, start) = (walk.val32(1), walk.val(2));
    let size = ioctl_bytes(walk, command, start);
    walk.flat(start, size);
    if start == 0 {
        return;
    }
    match command {
        SIOCGIFCONF => {
            if let Some((len, buf)) = walk.pair(start, 0) {
                walk.flat(buf, u64::from(len as u32).min(SOCKOPT_BYTES_MAX));
            }
        }
        SIOCETHTOOL => walk.scan(start, 24),
        SG_IO => sg_io(walk, start),
        PAGEMAP_SCAN => {
            // vec and vec_len (of 24 bytes each) at 40.
            if let Some((vec, len)) = walk.pair(start, 40) {
                walk.flat(vec, len.saturating_mul(24).min(RW_BYTES_MAX));
            }
        }
        _ => {}
    }
}

/// `struct sg_io_hdr`: iovec_count at 10, dxfer_len at 12, then dxferp, cmdp, sbp.
fn sg_io(walk: &mut Walk<'_>, start: u64) {
    let (Some((head, data)), Some((command, sense))) = (walk.pair(start, 8), walk.pair(start, 24)) else {
        return;
    };
    match head >> 16 & 0xffff {
        0 => walk.flat(data, (head >> 32).min(RW_BYTES_MAX)),
        count => walk.iovec(data, count),
    }
    walk.flat(command, PAGE);
    walk.flat(sense, PAGE);
}

pub(super) fn fcntl(walk: &mut Walk<'_>) {
    let bytes = match walk.val32(1) as i32 {
        libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW => 32,
        libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => 32,
        // F_SETOWN_EX, F_GETOWN_EX, F_GETOWNER_UIDS
        15..=17 => 8,
        // F_GET_RW_HINT .. F_SET_FILE_RW_HINT
        1035..=1038 => 8,
        _ => 0,
    };
    walk.flat(walk.val(2), bytes);
}

pub(super) const PRCTLS_NESTED: &[u32] = &[PR_SET_SECCOMP, PR_SET_MM];
const PR_SET_SECCOMP: u32 = 22;
const PR_SET_MM: u32 = 35;

pub(super) fn prctl(walk: &mut Walk<'_>) {
    const PR_GET_AUXV: u32 = 0x4155_5856;
    const PR_SET_VMA: u32 = 0x5356_4d41;
    match walk.val32(0) {
        // PDEATHSIG, UNALIGN, FPEMU, FPEXC, ENDIAN, TSC, CHILD_SUBREAPER
        2 | 5 | 9 | 11 | 19 | 25 | 37 => walk.flat(walk.val(1), 4),
        // SET_NAME reads up to the NUL, GET_NAME writes all.
        15 | 16 => walk.flat(walk.val(1), 16),
        PR_SET_SECCOMP => walk.sock_fprog(walk.val(2)),
        PR_SET_MM => {
            let len = walk.val(3).min(PAGE);
            match walk.val32(1) {
                // AUXV, MAP, MAP_SIZE; the others give addresses that are only stored.
                12 => walk.flat(walk.val(2), len),
                14 => {
                    walk.flat(walk.val(2), len);
                    walk.scan(walk.val(2), len);
                }
                15 => walk.flat(walk.val(2), 4),
                _ => {}
            }
        }
        // GET_TID_ADDRESS, GET_SHADOW_STACK_STATUS
        40 | 74 => walk.flat(walk.val(1), 8),
        // SET_SYSCALL_USER_DISPATCH: the selector byte, which every later call reads.
        59 => walk.flat(walk.val(4), 1),
        // SCHED_CORE
        62 => walk.flat(walk.val(4), 8),
        PR_GET_AUXV => walk.flat(walk.val(1), walk.val(2).min(PAGE)),
        PR_SET_VMA => walk.flat(walk.val(4), 80),
        _ => {}
    }
}

pub(super) fn arch_prctl(walk: &mut Walk<'_>) {
    match walk.val32(0) {
        // GET_FS, GET_GS, GET_XCOMP_SUPP, _PERM, _GUEST_PERM, GET_UNTAG_MASK, GET_MAX_TAG_BITS, SHSTK_STATUS.
        // SET_FS and SET_GS only load a register with the value.
        0x1003 | 0x1004 | 0x1021 | 0x1022 | 0x1024 | 0x4001 | 0x4003 | 0x5005 => walk.flat(walk.val(1), 8),
        _ => {}
    }
}

/// The stack is not touched by the kernel, `tls` only loaded into a register.
pub(super) fn clone(walk: &mut Walk<'_>) {
    let flags = walk.val(0);
    let has = |mask: libc::c_int| flags & mask as u32 as u64 != 0;
    if has(libc::CLONE_PARENT_SETTID | libc::CLONE_PIDFD) {
        walk.flat(walk.val(2), 4);
    }
    if has(libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID) {
        walk.flat(walk.val(3), 4);
    }
}

pub(super) fn clone3(walk: &mut Walk<'_>) {
    let (start, len) = (walk.val(0), walk.val(1).min(PAGE));
    walk.flat(start, len);
    if start == 0 || len < 64 {
        return;
    }
    // flags, pidfd; child_tid, parent_tid
    if let Some((_, pidfd)) = walk.pair(start, 0) {
        walk.flat(pidfd, 4);
    }
    if let Some((child_tid, parent_tid)) = walk.pair(start, 16) {
        walk.flat(child_tid, 4);
        walk.flat(parent_tid, 4);
    }
    if len >= 80
        && let Some((tids, count)) = walk.pair(start, 64)
    {
        walk.flat(tids, count.min(32) * 4);
    }
}

/// `stack_t`, and the stack itself: the kernel writes signal frames to it, and kills the process when it
/// can't.
pub(super) fn sigaltstack(walk: &mut Walk<'_>) {
    let start = walk.val(0);
    walk.flat(start, 24);
    walk.flat(walk.val(1), 24);
    if start == 0 {
        return;
    }
    let len = start.checked_add(16).and_then(|at| walk.u64_at(at));
    let (Some((stack, flags)), Some(len)) = (walk.pair(start, 0), len) else {
        return;
    };
    if flags as i32 & libc::SS_DISABLE == 0 {
        walk.flat(stack, len.min(RW_BYTES_MAX));
    }
}

/// The sixth argument of pselect6 and io_pgetevents: a structure of signal set and its size.
pub(super) fn sigset_argpack(walk: &mut Walk<'_>) {
    let start = walk.val(5);
    walk.flat(start, 16);
    if start != 0
        && let Some((set, _)) = walk.pair(start, 0)
    {
        walk.flat(set, SIGSET_BYTES);
    }
}

pub(super) fn io_submit(walk: &mut Walk<'_>) {
    let (array, count) = (walk.val(2), walk.val(1).min(IOCBS_MAX));
    if array == 0 {
        return;
    }
    walk.flat(array, count * 8);
    for index in 0..count {
        let Some(iocb) = array.checked_add(index * 8).and_then(|at| walk.u64_at(at)) else {
            return;
        };
        walk.flat(iocb, IOCB_BYTES);
        let (Some((word, buf)), Some((bytes, _))) = (walk.pair(iocb, 16), walk.pair(iocb, 32)) else {
            return;
        };
        match word as u16 {
            // PREAD, PWRITE
            0 | 1 => walk.flat(buf, bytes.min(RW_BYTES_MAX)),
            // PREADV, PWRITEV
            7 | 8 => walk.iovec(buf, bytes),
            _ => {}
        }
    }
}

pub(super) fn io_uring_enter(walk: &mut Walk<'_>) {
    const EXT_ARG: u32 = 1 << 3;
    let start = walk.val(4);
    if walk.val32(3) & EXT_ARG == 0 {
        walk.flat(start, SIGSET_BYTES);
        return;
    }
    walk.flat(start, 24);
    if start != 0
        && let (Some((set, _)), Some((_, timeout))) = (walk.pair(start, 0), walk.pair(start, 8))
    {
        walk.flat(set, SIGSET_BYTES);
        walk.flat(timeout, TIMESPEC_BYTES);
    }
}

pub(super) fn io_uring_register(walk: &mut Walk<'_>) {
    const REGISTER_BUFFERS: u32 = 0;
    let start = walk.val(2);
    if walk.val32(1) == REGISTER_BUFFERS {
        walk.iovec(start, u64::from(walk.val32(3)));
        return;
    }
    walk.flat(start, PAGE);
    walk.scan(start, PAGE);
}

pub(super) fn bpf(walk: &mut Walk<'_>) {
    const PROG_LOAD: u32 = 5;
    let (start, len) = (walk.val(1), u64::from(walk.val32(2)).min(PAGE));
    walk.flat(start, len);
    walk.scan(start, len);
    // insn_cnt at 4, insns at 8; log_size at 28, log_buf at 32
    if walk.val32(0) == PROG_LOAD
        && start != 0
        && len >= 40
        && let (Some((word, insns)), Some((log_word, log))) = (walk.pair(start, 0), walk.pair(start, 24))
    {
        walk.flat(insns, (word >> 32) * 8);
        walk.flat(log, (log_word >> 32).min(RW_BYTES_MAX));
    }
}

/// `struct perf_event_attr`, which names its own size, a page at most. What a probe is put on is a string at 56.
pub(super) fn perf_event_open(walk: &mut Walk<'_>) {
    let start = walk.val(0);
    walk.flat(start, PAGE);
    if start != 0
        && let Some((path, _)) = walk.pair(start, 56)
    {
        walk.string(path, PAGE);
    }
}

/// The options of a module may be longer than a path.
pub(super) fn init_module(walk: &mut Walk<'_>) {
    walk.string(walk.val(2), ARG_STRING_BYTES_MAX);
}

pub(super) fn finit_module(walk: &mut Walk<'_>) {
    walk.string(walk.val(1), ARG_STRING_BYTES_MAX);
}

pub(super) const KEYCTLS_NESTED: &[u32] = &[KEYCTL_INSTANTIATE_IOV, KEYCTL_DH_COMPUTE];
const KEYCTL_INSTANTIATE_IOV: u32 = 20;
const KEYCTL_DH_COMPUTE: u32 = 23;

pub(super) fn keyctl(walk: &mut Walk<'_>) {
    match walk.val32(0) {
        KEYCTL_INSTANTIATE_IOV => walk.iovec(walk.val(2), u64::from(walk.val32(3))),
        // UPDATE, DESCRIBE, READ, INSTANTIATE, GET_SECURITY: buffer and size_t
        2 | 6 | 11 | 12 | 17 => walk.flat(walk.val(2), walk.val(3).min(RW_BYTES_MAX)),
        KEYCTL_DH_COMPUTE => {
            walk.flat(walk.val(1), 12);
            walk.flat(walk.val(2), walk.val(3).min(RW_BYTES_MAX));
            key_derivation(walk, walk.val(4));
        }
        // Numbers are never managed addresses, so naming every argument costs nothing.
        _ => (1..5).for_each(|arg| walk.flat(walk.val(arg), PAGE)),
    }
}

/// `struct keyctl_kdf_params`: name of a hash, other data, its length.
fn key_derivation(walk: &mut Walk<'_>, start: u64) {
    walk.flat(start, 56);
    if start != 0
        && let (Some((hash, other)), Some((len, _))) = (walk.pair(start, 0), walk.pair(start, 16))
    {
        walk.string(hash, PAGE);
        walk.flat(other, u64::from(len as u32).min(PAGE));
    }
}

pub(super) const PTRACES_NESTED: &[u32] = &[PTRACE_GETREGSET, PTRACE_SETREGSET];
const PTRACE_GETREGSET: u32 = 0x4204;
const PTRACE_SETREGSET: u32 = 0x4205;

pub(super) fn ptrace(walk: &mut Walk<'_>) {
    const PEEKSIGINFO: u32 = 0x4209;
    const ARCH_PRCTL: u32 = 30;
    match walk.val32(0) {
        PTRACE_GETREGSET | PTRACE_SETREGSET => walk.iovec(walk.val(3), 1),
        // POKETEXT, POKEDATA, POKEUSR, CONT and what else has a value there
        4..=9 | 24 => {}
        // Of a register: where it goes is the address.
        ARCH_PRCTL => walk.flat(walk.val(2), 8),
        PEEKSIGINFO => {
            walk.flat(walk.val(2), 16);
            walk.flat(walk.val(3), OPAQUE_BYTES);
        }
        _ => walk.flat(walk.val(3), OPAQUE_BYTES),
    }
}

pub(super) const SECCOMP_SET_MODE_FILTER: u32 = 1;

pub(super) fn seccomp(walk: &mut Walk<'_>) {
    match walk.val32(0) {
        SECCOMP_SET_MODE_FILTER => walk.sock_fprog(walk.val(2)),
        _ => walk.flat(walk.val(2), 8),
    }
}

/// SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF, and of packet sockets PACKET_FANOUT_DATA.
pub(super) const SOCKOPTS_NESTED: &[u32] = &[26, 51, 22];

pub(super) fn setsockopt(walk: &mut Walk<'_>) {
    walk.flat(walk.val(3), u64::from(walk.val32(4)).min(SOCKOPT_BYTES_MAX));
    const FILTERS: [(i32, u32); 3] = [
        (libc::SOL_SOCKET, SOCKOPTS_NESTED[0]),
        (libc::SOL_SOCKET, SOCKOPTS_NESTED[1]),
        (libc::SOL_PACKET, SOCKOPTS_NESTED[2]),
    ];
    if FILTERS.contains(&(walk.val32(1) as i32, walk.val32(2))) {
        walk.sock_fprog(walk.val(3));
    }
}

/// The length of SO_GET_FILTER counts instructions.
pub(super) fn getsockopt(walk: &mut Walk<'_>) {
    let (start, len_ptr) = (walk.val(3), walk.val(4));
    walk.len_ptr(start, len_ptr);
    if walk.val32(1) == libc::SOL_SOCKET as u32
        && walk.val32(2) == SOCKOPTS_NESTED[0]
        && len_ptr != 0
        && let Some(count) = walk.u32_at(len_ptr)
    {
        walk.flat(start, u64::from(count as u16) * 8);
    }
}

pub(super) fn semctl(walk: &mut Walk<'_>) {
    let bytes = match walk.val32(2) & 0xff {
        // SET, STAT, INFO, SEM_STAT, SEM_INFO, SEM_STAT_ANY
        1..=3 | 18..=20 => 104,
        // GETALL, SETALL: one u16 for each of up to 32000 semaphores
        13 | 17 => 65_536,
        _ => 0,
    };
    walk.flat(walk.val(3), bytes);
}

/// msgsnd and msgrcv: a long, then the text.
pub(super) fn msgbuf(walk: &mut Walk<'_>) {
    walk.flat(walk.val(1), walk.val(2).saturating_add(8).min(RW_BYTES_MAX));
}

/// `struct sigevent`; with SIGEV_THREAD its value points to a cookie of 32 bytes.
pub(super) fn mq_notify(walk: &mut Walk<'_>) {
    let start = walk.val(1);
    walk.flat(start, 64);
    if start != 0
        && let Some((cookie, word)) = walk.pair(start, 0)
        && (word >> 32) as i32 == libc::SIGEV_THREAD
    {
        walk.flat(cookie, 32);
    }
}

/// `struct xattr_args` begins with value and size.
pub(super) fn xattr_args(walk: &mut Walk<'_>) {
    let (start, len) = (walk.val(4), walk.val(5).min(PAGE));
    walk.flat(start, len);
    if start != 0
        && len >= 16
        && let Some((value, size)) = walk.pair(start, 0)
    {
        walk.flat(value, u64::from(size as u32).min(RW_BYTES_MAX));
    }
}

pub(super) fn fsconfig(walk: &mut Walk<'_>) {
    const SET_BINARY: u32 = 2;
    match walk.val32(1) {
        SET_BINARY => walk.flat(walk.val(3), u64::from(walk.val32(4)).min(SOCKOPT_BYTES_MAX)),
        _ => {
            walk.string(walk.val(3), PAGE);
        }
    }
}

/// Segments of buffer, its size, destination, its size.
pub(super) fn kexec_load(walk: &mut Walk<'_>) {
    let (array, count) = (walk.val(2), walk.val(1).min(16));
    walk.flat(array, count * 32);
    for index in 0..count {
        if array == 0 {
            return;
        }
        let Some((buf, len)) = walk.pair(array, index * 32) else {
            return;
        };
        walk.flat(buf, len.min(RW_BYTES_MAX));
    }
}
