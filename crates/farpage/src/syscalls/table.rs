//! The table: one line for each x86_64 system call of Linux 6.18 and for the dead ones that older kernels
//! had.
//!
//! `s` string, `f` fixed structure, `b` buffer with size_t length, `w` buffer with 32-bit length, `a` array,
//! `l` buffer whose length is pointed to, `c` by command or nested in its own way. Argument positions from 0.

use super::nested;
use super::{Arg, Chunk, Syscall, Walk};

pub(super) const NUMBERS: usize = 470;

const fn s(arg: u8) -> Arg {
    Arg::Str { arg }
}

const fn f(arg: u8, bytes: u32) -> Arg {
    Arg::Fixed { arg, bytes }
}

const fn b(arg: u8, len: u8) -> Arg {
    Arg::Buf { arg, len }
}

const fn w(arg: u8, len: u8) -> Arg {
    Arg::Buf32 { arg, len }
}

const fn a(arg: u8, count: u8, elem: u32) -> Arg {
    Arg::Array { arg, count, elem }
}

const fn l(arg: u8, len_ptr: u8) -> Arg {
    Arg::LenPtr { arg, len_ptr }
}

const fn bits(arg: u8, bits: u8) -> Arg {
    Arg::Bits { arg, bits }
}

const fn fds(arg: u8) -> Arg {
    Arg::FdSet { arg, nfds: 0 }
}

const fn iov(arg: u8, count: u8) -> Arg {
    Arg::Iovec { arg, count }
}

const fn c(mask: u8, walk: fn(&mut Walk<'_>)) -> Arg {
    Arg::Custom { mask, walk }
}

const fn rd(offset: Option<u8>) -> Chunk {
    Chunk::ReadLike {
        buf: 1,
        len: 2,
        offset,
    }
}

const fn wr(offset: Option<u8>) -> Chunk {
    Chunk::WriteLike {
        buf: 1,
        len: 2,
        offset,
    }
}

const fn rdv(offset: Option<u8>) -> Chunk {
    Chunk::ReadVec {
        iov: 1,
        count: 2,
        offset,
    }
}

const fn wrv(offset: Option<u8>) -> Chunk {
    Chunk::WriteVec {
        iov: 1,
        count: 2,
        offset,
    }
}

const STAT: u32 = 144;
const STATFS: u32 = 120;
const TIMESPEC: u32 = 16;
const ITIMER: u32 = 32;
const RUSAGE: u32 = 144;
const RLIMIT: u32 = 16;
const TIMEX: u32 = 208;
const SIGSET: u32 = 8;
const SIGACTION: u32 = 32;
const SIGINFO: u32 = 128;
const SIGEVENT: u32 = 64;
const SCHED_PARAM: u32 = 4;
const OFFSET: u32 = 8;
const EPOLL_EVENT: u32 = 12;
const POLLFD: u32 = 8;
const IO_EVENT: u32 = 32;
/// file_handle with MAX_HANDLE_SZ bytes.
const HANDLE: u32 = 136;
/// Structures that name their own size, which the kernel limits to a page.
const SELF_SIZED: u32 = 4096;

macro_rules! table {
    ($($nr:literal $name:ident [$($arg:expr),*] $(. $with:ident ($($value:expr),*))*;)*) => {
        const fn build() -> [Option<Syscall>; NUMBERS] {
            let mut table = [None; NUMBERS];
            $(
                const { assert!($nr < NUMBERS) };
                assert!(table[$nr].is_none(), "number listed twice");
                table[$nr] = Some({
                    const ARGS: &[Arg] = &[$($arg),*];
                    Syscall::new(stringify!($name), ARGS)$(.$with($($value),*))*
                });
            )*
            table
        }
    };
}

pub(super) static TABLE: [Option<Syscall>; NUMBERS] = build();

table! {
    0 read [b(1, 2)].chunk(rd(None));
    1 write [b(1, 2)].chunk(wr(None));
    2 open [s(0)];
    3 close [];
    4 stat [s(0), f(1, STAT)];
    5 fstat [f(1, STAT)];
    6 lstat [s(0), f(1, STAT)];
    7 poll [a(0, 1, POLLFD)];
    8 lseek [];
    9 mmap [].memory(1 << 0);
    10 mprotect [].memory(1 << 0);
    11 munmap [].memory(1 << 0);
    // The heap it moves is never managed, and the address is not followed.
    12 brk [];
    13 rt_sigaction [f(1, SIGACTION), f(2, SIGACTION)];
    14 rt_sigprocmask [f(1, SIGSET), f(2, SIGSET)].frame();
    // Takes all from the stack; every register is the interrupted program's.
    15 rt_sigreturn [].frame();
    16 ioctl [c(1 << 2, nested::ioctl)].hidden_when(1, nested::IOCTLS_NESTED);
    // An offset that looks managed may be an address in /proc/PID/mem.
    17 pread64 [b(1, 2)].chunk(rd(Some(3))).memory(1 << 3);
    18 pwrite64 [b(1, 2)].chunk(wr(Some(3))).memory(1 << 3);
    19 readv [iov(1, 2)].chunk(rdv(None)).hidden(1);
    20 writev [iov(1, 2)].chunk(wrv(None)).hidden(1);
    21 access [s(0)];
    22 pipe [f(0, 8)];
    23 select [fds(1), fds(2), fds(3), f(4, TIMESPEC)];
    24 sched_yield [];
    // The new address counts only with MREMAP_FIXED.
    25 mremap [].memory(1 << 0 | 1 << 4);
    26 msync [].memory(1 << 0);
    27 mincore [Arg::PageVec { arg: 2, len: 1 }].memory(1 << 0);
    28 madvise [].memory(1 << 0);
    29 shmget [];
    // With SHM_REMAP it replaces what is mapped at the address.
    30 shmat [].memory(1 << 1);
    31 shmctl [f(2, 112)];
    32 dup [];
    33 dup2 [];
    34 pause [];
    35 nanosleep [f(0, TIMESPEC), f(1, TIMESPEC)];
    36 getitimer [f(1, ITIMER)];
    37 alarm [];
    38 setitimer [f(1, ITIMER), f(2, ITIMER)];
    39 getpid [];
    40 sendfile [f(2, OFFSET)];
    41 socket [];
    42 connect [w(1, 2)];
    43 accept [l(1, 2)];
    44 sendto [b(1, 2), w(4, 5)].chunk(wr(None));
    45 recvfrom [b(1, 2), l(4, 5)].chunk(rd(None));
    46 sendmsg [Arg::Msghdr { arg: 1 }].hidden(1);
    47 recvmsg [Arg::Msghdr { arg: 1 }].hidden(1);
    48 shutdown [];
    49 bind [w(1, 2)];
    50 listen [];
    51 getsockname [l(1, 2)];
    52 getpeername [l(1, 2)];
    53 socketpair [f(3, 8)];
    54 setsockopt [c(1 << 3, nested::setsockopt)].hidden_when(2, nested::SOCKOPTS_NESTED);
    55 getsockopt [c(1 << 3 | 1 << 4, nested::getsockopt)];
    // The kernel clears child_tid when the thread ends.
    56 clone [c(1 << 2 | 1 << 3, nested::clone)].kept().frame();
    57 fork [].frame();
    58 vfork [].frame();
    59 execve [s(0), Arg::StrArray { arg: 1 }, Arg::StrArray { arg: 2 }].hidden(0).frame();
    60 exit [];
    61 wait4 [f(1, 4), f(3, RUSAGE)];
    62 kill [];
    63 uname [f(0, 390)];
    64 semget [];
    65 semop [a(1, 2, 6)];
    66 semctl [c(1 << 3, nested::semctl)];
    67 shmdt [].memory(1 << 0);
    68 msgget [];
    69 msgsnd [c(1 << 1, nested::msgbuf)];
    70 msgrcv [c(1 << 1, nested::msgbuf)];
    71 msgctl [f(2, 120)];
    72 fcntl [c(1 << 2, nested::fcntl)];
    73 flock [];
    74 fsync [];
    75 fdatasync [];
    76 truncate [s(0)];
    77 ftruncate [];
    78 getdents [w(1, 2)];
    79 getcwd [b(0, 1)];
    80 chdir [s(0)];
    81 fchdir [];
    82 rename [s(0), s(1)];
    83 mkdir [s(0)];
    84 rmdir [s(0)];
    85 creat [s(0)];
    86 link [s(0), s(1)];
    87 unlink [s(0)];
    88 symlink [s(0), s(1)];
    89 readlink [s(0), w(1, 2)];
    90 chmod [s(0)];
    91 fchmod [];
    92 chown [s(0)];
    93 fchown [];
    94 lchown [s(0)];
    95 umask [];
    96 gettimeofday [f(0, TIMESPEC), f(1, 8)];
    97 getrlimit [f(1, RLIMIT)];
    98 getrusage [f(1, RUSAGE)];
    99 sysinfo [f(0, 112)];
    100 times [f(0, 32)];
    // addr is the tracee's except for one command.
    101 ptrace [c(1 << 2 | 1 << 3, nested::ptrace)].hidden_when(0, nested::PTRACES_NESTED);
    102 getuid [];
    103 syslog [w(1, 2)];
    104 getgid [];
    105 setuid [];
    106 setgid [];
    107 geteuid [];
    108 getegid [];
    109 setpgid [];
    110 getppid [];
    111 getpgrp [];
    112 setsid [];
    113 setreuid [];
    114 setregid [];
    115 getgroups [a(1, 0, 4)];
    116 setgroups [a(1, 0, 4)];
    117 setresuid [];
    118 getresuid [f(0, 4), f(1, 4), f(2, 4)];
    119 setresgid [];
    120 getresgid [f(0, 4), f(1, 4), f(2, 4)];
    121 getpgid [];
    122 setfsuid [];
    123 setfsgid [];
    124 getsid [];
    125 capget [f(0, 8), f(1, 24)];
    126 capset [f(0, 8), f(1, 24)];
    127 rt_sigpending [f(0, SIGSET)];
    128 rt_sigtimedwait [f(0, SIGSET), f(1, SIGINFO), f(2, TIMESPEC)];
    129 rt_sigqueueinfo [f(2, SIGINFO)];
    130 rt_sigsuspend [f(0, SIGSET)];
    131 sigaltstack [c(1 << 0 | 1 << 1, nested::sigaltstack)].hidden(0).kept().frame();
    132 utime [s(0), f(1, 16)];
    133 mknod [s(0)];
    134 uselib [s(0)];
    135 personality [];
    136 ustat [f(1, 32)];
    137 statfs [s(0), f(1, STATFS)];
    138 fstatfs [f(1, STATFS)];
    139 sysfs [s(1), f(2, 4096)];
    140 getpriority [];
    141 setpriority [];
    142 sched_setparam [f(1, SCHED_PARAM)];
    143 sched_getparam [f(1, SCHED_PARAM)];
    144 sched_setscheduler [f(2, SCHED_PARAM)];
    145 sched_getscheduler [];
    146 sched_get_priority_max [];
    147 sched_get_priority_min [];
    148 sched_rr_get_interval [f(1, TIMESPEC)];
    149 mlock [].memory(1 << 0);
    150 munlock [].memory(1 << 0);
    151 mlockall [];
    152 munlockall [];
    153 vhangup [];
    154 modify_ldt [b(1, 2)];
    155 pivot_root [s(0), s(1)];
    156 _sysctl [];
    // args[2] is the start of a mapping for PR_SET_VMA.
    157 prctl [c(1 << 1 | 1 << 2 | 1 << 4, nested::prctl)].memory(1 << 2)
        .hidden_when(0, nested::PRCTLS_NESTED).kept();
    158 arch_prctl [c(1 << 1, nested::arch_prctl)];
    159 adjtimex [f(0, TIMEX)];
    160 setrlimit [f(1, RLIMIT)];
    161 chroot [s(0)];
    162 sync [];
    163 acct [s(0)];
    164 settimeofday [f(0, TIMESPEC), f(1, 8)];
    165 mount [s(0), s(1), s(2), f(4, 4096)];
    166 umount2 [s(0)];
    167 swapon [s(0)];
    168 swapoff [s(0)];
    169 reboot [s(3)];
    170 sethostname [w(0, 1)];
    171 setdomainname [w(0, 1)];
    172 iopl [];
    173 ioperm [];
    174 create_module [];
    175 init_module [b(0, 1), c(1 << 2, nested::init_module)];
    176 delete_module [s(0)];
    177 get_kernel_syms [];
    178 query_module [];
    179 quotactl [s(1), f(3, 4096)];
    180 nfsservctl [];
    181 getpmsg [];
    182 putpmsg [];
    183 afs_syscall [];
    184 tuxcall [];
    185 security [];
    186 gettid [];
    187 readahead [];
    188 setxattr [s(0), s(1), b(2, 3)];
    189 lsetxattr [s(0), s(1), b(2, 3)];
    190 fsetxattr [s(1), b(2, 3)];
    191 getxattr [s(0), s(1), b(2, 3)];
    192 lgetxattr [s(0), s(1), b(2, 3)];
    193 fgetxattr [s(1), b(2, 3)];
    194 listxattr [s(0), b(1, 2)];
    195 llistxattr [s(0), b(1, 2)];
    196 flistxattr [b(1, 2)];
    197 removexattr [s(0), s(1)];
    198 lremovexattr [s(0), s(1)];
    199 fremovexattr [s(1)];
    200 tkill [];
    201 time [f(0, 8)];
    202 futex [c(1 << 0 | 1 << 3 | 1 << 4, nested::futex)];
    203 sched_setaffinity [w(2, 1)];
    204 sched_getaffinity [w(2, 1)];
    205 set_thread_area [];
    206 io_setup [f(1, 8)];
    207 io_destroy [];
    208 io_getevents [a(3, 2, IO_EVENT), f(4, TIMESPEC)];
    209 io_submit [c(1 << 2, nested::io_submit)].hidden(2);
    210 io_cancel [f(1, 64), f(2, IO_EVENT)];
    211 get_thread_area [];
    212 lookup_dcookie [b(1, 2)];
    213 epoll_create [];
    214 epoll_ctl_old [];
    215 epoll_wait_old [];
    216 remap_file_pages [].memory(1 << 0);
    217 getdents64 [w(1, 2)];
    // Cleared when the thread ends.
    218 set_tid_address [f(0, 4)].kept();
    219 restart_syscall [];
    220 semtimedop [a(1, 2, 6), f(3, TIMESPEC)];
    221 fadvise64 [];
    222 timer_create [f(1, SIGEVENT), f(2, 4)];
    223 timer_settime [f(2, ITIMER), f(3, ITIMER)];
    224 timer_gettime [f(1, ITIMER)];
    225 timer_getoverrun [];
    226 timer_delete [];
    227 clock_settime [f(1, TIMESPEC)];
    228 clock_gettime [f(1, TIMESPEC)];
    229 clock_getres [f(1, TIMESPEC)];
    230 clock_nanosleep [f(2, TIMESPEC), f(3, TIMESPEC)];
    231 exit_group [];
    232 epoll_wait [a(1, 2, EPOLL_EVENT)];
    233 epoll_ctl [f(3, EPOLL_EVENT)];
    234 tgkill [];
    235 utimes [s(0), f(1, 32)];
    236 vserver [];
    237 mbind [bits(3, 4)].memory(1 << 0);
    238 set_mempolicy [bits(1, 2)];
    // With MPOL_F_ADDR it faults the page of the address in.
    239 get_mempolicy [f(0, 4), bits(1, 2), f(3, 1)];
    240 mq_open [s(0), f(3, 64)];
    241 mq_unlink [s(0)];
    242 mq_timedsend [b(1, 2), f(4, TIMESPEC)];
    243 mq_timedreceive [b(1, 2), f(3, 4), f(4, TIMESPEC)];
    244 mq_notify [c(1 << 1, nested::mq_notify)].hidden(1);
    245 mq_getsetattr [f(1, 64), f(2, 64)];
    246 kexec_load [c(1 << 2, nested::kexec_load)].hidden(2);
    247 waitid [f(2, SIGINFO), f(4, RUSAGE)];
    248 add_key [s(0), s(1), b(2, 3)];
    249 request_key [s(0), s(1), s(2)];
    250 keyctl [c(0b1_1110, nested::keyctl)].hidden_when(0, nested::KEYCTLS_NESTED);
    251 ioprio_set [];
    252 ioprio_get [];
    253 inotify_init [];
    254 inotify_add_watch [s(1)];
    255 inotify_rm_watch [];
    256 migrate_pages [bits(2, 1), bits(3, 1)];
    257 openat [s(1)];
    258 mkdirat [s(1)];
    259 mknodat [s(1)];
    260 fchownat [s(1)];
    261 futimesat [s(1), f(2, 32)];
    262 newfstatat [s(1), f(2, STAT)];
    263 unlinkat [s(1)];
    264 renameat [s(1), s(3)];
    265 linkat [s(1), s(3)];
    266 symlinkat [s(0), s(2)];
    267 readlinkat [s(1), w(2, 3)];
    268 fchmodat [s(1)];
    269 faccessat [s(1)];
    270 pselect6 [fds(1), fds(2), fds(3), f(4, TIMESPEC), c(1 << 5, nested::sigset_argpack)].hidden(5);
    271 ppoll [a(0, 1, POLLFD), f(2, TIMESPEC), f(3, SIGSET)];
    272 unshare [];
    // The head is read when the thread ends, and so are the locks in the list: see `robust`.
    273 set_robust_list [f(0, 24)].kept();
    274 get_robust_list [f(1, 8), f(2, 8)];
    275 splice [f(1, OFFSET), f(3, OFFSET)];
    276 tee [];
    277 sync_file_range [];
    278 vmsplice [iov(1, 2)].hidden(1);
    // The addresses in the array at 2 are only looked up.
    279 move_pages [a(2, 1, 8), a(3, 1, 4), a(4, 1, 4)];
    280 utimensat [s(1), f(2, 32)];
    281 epoll_pwait [a(1, 2, EPOLL_EVENT), f(4, SIGSET)];
    282 signalfd [f(1, SIGSET)];
    283 timerfd_create [];
    284 eventfd [];
    285 fallocate [];
    286 timerfd_settime [f(2, ITIMER), f(3, ITIMER)];
    287 timerfd_gettime [f(1, ITIMER)];
    288 accept4 [l(1, 2)];
    289 signalfd4 [f(1, SIGSET)];
    290 eventfd2 [];
    291 epoll_create1 [];
    292 dup3 [];
    293 pipe2 [f(0, 8)];
    294 inotify_init1 [];
    295 preadv [iov(1, 2)].chunk(rdv(Some(3))).hidden(1);
    296 pwritev [iov(1, 2)].chunk(wrv(Some(3))).hidden(1);
    297 rt_tgsigqueueinfo [f(3, SIGINFO)];
    298 perf_event_open [c(1 << 0, nested::perf_event_open)].hidden(0);
    299 recvmmsg [Arg::Mmsghdr { arg: 1, count: 2 }, f(4, TIMESPEC)].hidden(1);
    300 fanotify_init [];
    301 fanotify_mark [s(4)];
    302 prlimit64 [f(2, RLIMIT), f(3, RLIMIT)];
    303 name_to_handle_at [s(1), f(2, HANDLE), f(3, 8)];
    304 open_by_handle_at [f(1, HANDLE)];
    305 clock_adjtime [f(1, TIMEX)];
    306 syncfs [];
    307 sendmmsg [Arg::Mmsghdr { arg: 1, count: 2 }].hidden(1);
    308 setns [];
    309 getcpu [f(0, 4), f(1, 4)];
    // Of the remote side only the array of addresses is ours.
    310 process_vm_readv [iov(1, 2), a(3, 4, 16)].hidden(1);
    311 process_vm_writev [iov(1, 2), a(3, 4, 16)].hidden(1);
    312 kcmp [];
    313 finit_module [c(1 << 1, nested::finit_module)];
    314 sched_setattr [f(1, SELF_SIZED)];
    315 sched_getattr [w(1, 2)];
    316 renameat2 [s(1), s(3)];
    317 seccomp [c(1 << 2, nested::seccomp)].hidden_when(0, &[nested::SECCOMP_SET_MODE_FILTER]);
    318 getrandom [b(0, 1)].chunk(Chunk::ReadLike { buf: 0, len: 1, offset: None });
    319 memfd_create [s(0)];
    320 kexec_file_load [b(3, 2)];
    321 bpf [c(1 << 1, nested::bpf)].hidden(1);
    322 execveat [s(1), Arg::StrArray { arg: 2 }, Arg::StrArray { arg: 3 }].hidden(1).frame();
    323 userfaultfd [];
    324 membarrier [];
    325 mlock2 [].memory(1 << 0);
    326 copy_file_range [f(1, OFFSET), f(3, OFFSET)];
    327 preadv2 [iov(1, 2)].chunk(rdv(Some(3))).hidden(1);
    328 pwritev2 [iov(1, 2)].chunk(wrv(Some(3))).hidden(1);
    329 pkey_mprotect [].memory(1 << 0);
    330 pkey_alloc [];
    331 pkey_free [];
    332 statx [s(1), f(4, 256)];
    333 io_pgetevents [a(3, 2, IO_EVENT), f(4, TIMESPEC), c(1 << 5, nested::sigset_argpack)].hidden(5);
    // Read and written by the kernel whenever the thread was preempted: a miss there is SIGSEGV.
    334 rseq [w(0, 1)].kept();
    // Called by trampolines in the middle of functions: registers are the program's.
    335 uretprobe [].frame();
    336 uprobe [].frame();
    424 pidfd_send_signal [f(2, SIGINFO)];
    425 io_uring_setup [f(1, 120)];
    426 io_uring_enter [c(1 << 4, nested::io_uring_enter)].hidden(4);
    427 io_uring_register [c(1 << 2, nested::io_uring_register)].hidden(2);
    428 open_tree [s(1)];
    429 move_mount [s(1), s(3)];
    430 fsopen [s(0)];
    431 fsconfig [s(2), c(1 << 3, nested::fsconfig)];
    432 fsmount [];
    433 fspick [s(1)];
    434 pidfd_open [];
    435 clone3 [c(1 << 0, nested::clone3)].hidden(0).kept().frame();
    436 close_range [];
    437 openat2 [s(1), b(2, 3)];
    438 pidfd_getfd [];
    439 faccessat2 [s(1)];
    // The addresses are in the array, and those of this process itself may be managed.
    440 process_madvise [a(1, 2, 16)].memory(1 << 1).hidden(1);
    441 epoll_pwait2 [a(1, 2, EPOLL_EVENT), f(3, TIMESPEC), f(4, SIGSET)];
    442 mount_setattr [s(1), b(3, 4)];
    443 quotactl_fd [f(3, 4096)];
    444 landlock_create_ruleset [b(0, 1)];
    445 landlock_add_rule [f(2, 16)];
    446 landlock_restrict_self [];
    447 memfd_secret [];
    448 process_mrelease [];
    449 futex_waitv [c(1 << 0, nested::futex_waitv), f(3, TIMESPEC)].hidden(0);
    450 set_mempolicy_home_node [].memory(1 << 0);
    451 cachestat [f(1, 16), f(2, 40)];
    452 fchmodat2 [s(1)];
    453 map_shadow_stack [].memory(1 << 0);
    454 futex_wake [f(0, 16)];
    455 futex_wait [f(0, 16), f(4, TIMESPEC)];
    456 futex_requeue [c(1 << 0, nested::futex_requeue)].hidden(0);
    457 statmount [f(0, SELF_SIZED), b(1, 2)];
    458 listmount [f(0, SELF_SIZED), a(1, 2, 8)];
    459 lsm_get_self_attr [l(1, 2)];
    460 lsm_set_self_attr [b(1, 2)];
    461 lsm_list_modules [l(0, 1)];
    462 mseal [].memory(1 << 0);
    463 setxattrat [s(1), s(3), c(1 << 4, nested::xattr_args)].hidden(4);
    464 getxattrat [s(1), s(3), c(1 << 4, nested::xattr_args)].hidden(4);
    465 listxattrat [s(1), b(3, 4)];
    466 removexattrat [s(1), s(3)];
    467 open_tree_attr [s(1), b(3, 4)];
    468 file_getattr [s(1), b(2, 3)];
    469 file_setattr [s(1), b(2, 3)];
}
