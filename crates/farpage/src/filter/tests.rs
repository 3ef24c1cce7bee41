//! The built program run by a small interpreter against the rules said plainly, and once by the kernel.
//!
//! # Safety
//! The test against the kernel forks and handles a signal.
#![allow(unsafe_code)]

use super::*;
use proptest::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};

const STUB: u64 = 0x0fff_ffff_0000;
const CFG: FilterConfig = FilterConfig {
    stub_ip_lo: STUB,
    stub_ip_hi: STUB + 0x40,
    fd_lo: 1000,
    fd_hi: 1007,
    trap_pointers: true,
    trap_hidden: true,
    refuse_io_uring: true,
};
const MANAGED: u64 = MANAGED_TAG << MANAGED_SHIFT;

#[derive(Clone, Copy, Debug)]
struct Call {
    nr: u32,
    arch: u32,
    ip: u64,
    args: [u64; 6],
}

fn call(nr: libc::c_long, args: [u64; 6]) -> Call {
    Call {
        nr: nr as u32,
        arch: ARCH_X86_64,
        ip: 0x7f00_1234_5678,
        args,
    }
}

/// Runs a program as the kernel would, and counts its steps.
fn run(program: &Program, call: &Call) -> (u32, usize) {
    let mut words = vec![call.nr, call.arch, call.ip as u32, (call.ip >> 32) as u32];
    words.extend(call.args.iter().flat_map(|&arg| [arg as u32, (arg >> 32) as u32]));
    let (mut acc, mut pc, mut steps) = (0u32, 0usize, 0usize);
    loop {
        let insn = program.as_slice()[pc];
        pc += 1;
        steps += 1;
        let branch = |taken: bool| usize::from(if taken { insn.jt } else { insn.jf });
        match insn.code {
            LOAD => acc = words[insn.k as usize / 4],
            SHIFT => acc >>= insn.k,
            AND => acc &= insn.k,
            EQ => pc += branch(acc == insn.k),
            GE => pc += branch(acc >= insn.k),
            GT => pc += branch(acc > insn.k),
            JUMP => pc += insn.k as usize,
            RETURN => return (insn.k, steps),
            code => panic!("instruction {code:#x}"),
        }
    }
}

/// The rules, said plainly.
fn model(cfg: &FilterConfig, call: &Call) -> u32 {
    let nr = call.nr as usize;
    if call.arch != ARCH_X86_64 || call.nr >= X32_BIT || (cfg.stub_ip_lo..cfg.stub_ip_hi).contains(&call.ip) {
        return ALLOW;
    }
    let protected = |fd: u64| (cfg.fd_lo..=cfg.fd_hi).contains(&(fd as u32));
    let low = |arg: usize| call.args[arg] as u32;
    match i64::from(call.nr) {
        libc::SYS_close if protected(call.args[0]) => return PRETEND,
        libc::SYS_dup2 | libc::SYS_dup3 if protected(call.args[1]) => return BAD_FD,
        libc::SYS_fcntl
            if protected(call.args[0]) && [libc::F_SETFD as u32, libc::F_SETFL as u32].contains(&low(1)) =>
        {
            return PRETEND;
        }
        libc::SYS_close_range if cfg.fd_lo <= cfg.fd_hi && low(0) <= cfg.fd_hi && low(1) >= cfg.fd_lo => {
            return NO_CALL;
        }
        libc::SYS_mmap if syscalls::is_managed(call.args[0]) => {
            return if call.args[3] & 0x10_0010 == 0 {
                NO_ROOM
            } else {
                TRAP
            };
        }
        libc::SYS_mlockall => return if low(0) == 0 { ALLOW } else { NO_ROOM },
        libc::SYS_io_uring_setup if cfg.refuse_io_uring => return NO_CALL,
        libc::SYS_clone3 if cfg.trap_pointers => return NO_CALL,
        _ => {}
    }
    let description = syscalls::describe(nr);
    let mask = match (cfg.trap_pointers, description) {
        (true, _) => syscalls::pointer_mask(nr),
        // A fault on what the kernel uses on its way out of the engine's own calls would wait for the engine, and none is waited for as a
        // thread ends.
        (false, _) if [libc::SYS_rseq, libc::SYS_set_tid_address].contains(&i64::from(call.nr)) => 1 << 0,
        (false, _) if call.nr as i64 == libc::SYS_prctl => 1 << 2 | 1 << 4,
        (false, Some(call)) => call.memory,
        (false, None) => 0,
    };
    let mask = match low(1) {
        _ if call.nr as i64 != libc::SYS_futex => mask,
        // Private wake; private and shared waits, those to a point of the wall clock too.
        129 => 0,
        0 | 128 | 256 | 384 | 9 | 137 | 265 | 393 => mask & 0b1001,
        _ => mask,
    };
    let hidden = match description.map_or(Hidden::None, |d| d.hidden) {
        Hidden::None => false,
        Hidden::Always { arg } => cfg.trap_hidden && call.args[usize::from(arg)] != 0,
        Hidden::When { arg, values } => {
            cfg.trap_pointers && cfg.trap_hidden && values.contains(&low(usize::from(arg)))
        }
    };
    let managed = (0..6).any(|arg| mask >> arg & 1 == 1 && syscalls::is_managed(call.args[arg]));
    if managed || mask != 0 && hidden {
        TRAP
    } else {
        ALLOW
    }
}

fn configs() -> Vec<FilterConfig> {
    let mut all = Vec::new();
    for flags in 0..8 {
        for (fd_lo, fd_hi) in [(1000, 1007), (5, 5), (1, 0), (0, u32::MAX)] {
            // One page, empty, and a range over a border of 4 GiB.
            for (stub_ip_lo, stub_ip_hi) in [(STUB, STUB + 64), (0, 0), (0x1_ffff_fff0, 0x3_0000_0010)] {
                let (trap_pointers, refuse_io_uring) = (flags & 1 != 0, flags & 2 != 0);
                all.push(FilterConfig {
                    stub_ip_lo,
                    stub_ip_hi,
                    fd_lo,
                    fd_hi,
                    trap_pointers,
                    trap_hidden: flags & 4 != 0,
                    refuse_io_uring,
                });
            }
        }
    }
    all
}

#[test]
fn every_jump_lands_and_every_path_ends() {
    for cfg in configs() {
        let program = build(&cfg);
        let insns = program.as_slice();
        for (at, insn) in insns.iter().enumerate() {
            let furthest = match insn.code {
                EQ | GE | GT => usize::from(insn.jt.max(insn.jf)),
                JUMP => insn.k as usize,
                _ => 0,
            };
            assert!(insn.code == RETURN || at + 1 + furthest < insns.len());
            assert!(insn.code != JUMP || insn.k > 0 || at + 1 < insns.len());
        }
    }
    let (full, mapping) = (
        build(&CFG),
        build(&FilterConfig {
            trap_pointers: false,
            trap_hidden: true,
            ..CFG
        }),
    );
    eprintln!(
        "instructions: {} with pointers, {} without",
        full.len, mapping.len
    );
    let steps = (0..600).map(|nr| run(&full, &call(nr, [0; 6])).1).max();
    eprintln!("longest path without a managed pointer: {steps:?}");
    assert!(full.len <= CAPACITY && mapping.len < full.len);
}

#[test]
fn the_rules_by_example() {
    let program = build(&CFG);
    let answer = |nr, args| run(&program, &call(nr, args)).0;
    let p = MANAGED + 0xff_ffff_ffff;
    assert_eq!(answer(libc::SYS_read, [3, p, 8, 0, 0, 0]), TRAP);
    assert_eq!(answer(libc::SYS_read, [p, MANAGED - 1, p, p, p, p]), ALLOW);
    assert_eq!(
        answer(libc::SYS_read, [3, MANAGED + (1 << 40), 8, 0, 0, 0]),
        ALLOW
    );
    assert_eq!(answer(libc::SYS_rt_sigreturn, [p; 6]), ALLOW);
    assert_eq!(answer(libc::SYS_getppid, [p; 6]), ALLOW);
    assert_eq!(answer(libc::SYS_writev, [1, 0x7ffc_0000_0000, 1, 0, 0, 0]), TRAP);
    assert_eq!(answer(libc::SYS_writev, [1, 0, 1, 0, 0, 0]), ALLOW);
    assert_eq!(answer(libc::SYS_mremap, [8192, 4096, 4096, 3, p, 0]), TRAP);
    assert_eq!(answer(libc::SYS_close, [1003, 0, 0, 0, 0, 0]), PRETEND);
    assert_eq!(answer(libc::SYS_close, [999, 0, 0, 0, 0, 0]), ALLOW);
    assert_eq!(answer(libc::SYS_dup2, [1003, 5, 0, 0, 0, 0]), ALLOW);
    assert_eq!(answer(libc::SYS_dup3, [5, 1007, 0, 0, 0, 0]), BAD_FD);
    assert_eq!(
        answer(libc::SYS_close_range, [3, 0xffff_ffff, 0, 0, 0, 0]),
        NO_CALL
    );
    assert_eq!(answer(libc::SYS_close_range, [3, 999, 0, 0, 0, 0]), ALLOW);
    assert_eq!(
        answer(libc::SYS_clone3, [0x7ffc_0000_0000, 88, 0, 0, 0, 0]),
        NO_CALL
    );
    let map = |flags| answer(libc::SYS_mmap, [p, 4096, 0, flags, 0, 0]);
    assert_eq!((map(0x22), map(0x32), map(0x10_0022)), (NO_ROOM, TRAP, TRAP));
    let futex = |command, timeout, second| answer(libc::SYS_futex, [1, command, 0, timeout, second, 0]);
    assert_eq!((futex(128, 0, p), futex(128, p, 0)), (ALLOW, TRAP));
    assert_eq!((futex(137, 0, p), futex(393, p, 0)), (ALLOW, TRAP));
    assert_eq!((futex(1, 0, p), futex(131, 7, p)), (TRAP, TRAP));
    assert_eq!(answer(libc::SYS_futex, [p, 129, 1, p, p, p]), ALLOW);
    assert_eq!(answer(libc::SYS_futex, [p, 128, 1, 0, 0, 0]), TRAP);
    assert_eq!(answer(5000, [0, 0, 0, 0, 0, p]), TRAP);
    let stub = Call {
        ip: STUB + 2,
        ..call(libc::SYS_read, [3, p, 8, 0, 0, 0])
    };
    assert_eq!(run(&program, &stub).0, ALLOW);
    let x32 = Call { nr: X32_BIT, ..stub };
    assert_eq!(run(&program, &x32).0, ALLOW);
}

/// The kernel answers such calls from a bitmap, without running the filter, if it sees that nothing but
/// the number and the architecture is looked at.
#[test]
fn calls_without_pointers_are_constant() {
    let full = build(&CFG);
    for nr in [
        libc::SYS_getppid,
        libc::SYS_sched_yield,
        libc::SYS_lseek,
        libc::SYS_rt_sigreturn,
    ] {
        let mut looked = full;
        for insn in &mut looked.insns {
            if insn.code == LOAD && insn.k >= IP {
                *insn = sock_filter {
                    code: RETURN,
                    jt: 0,
                    jf: 0,
                    k: 1,
                };
            }
        }
        assert_eq!(run(&looked, &call(nr, [MANAGED; 6])).0, ALLOW);
    }
}

fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0u64),
        0u64..70,
        990u64..1010,
        any::<u64>(),
        Just(0x7ffc_1234_5678u64),
        (0u64..1 << 40).prop_map(|low| MANAGED + low),
        prop::sample::select(vec![
            MANAGED - 1,
            MANAGED,
            MANAGED + (1 << 40) - 1,
            MANAGED + (1 << 40),
            MANAGED << 8
        ]),
        prop::sample::select(vec![
            0x8912u64,
            22,
            35,
            26,
            51,
            20,
            0x4204,
            1,
            128,
            129,
            137,
            265,
            0xffff_ffff
        ]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn the_program_says_what_the_rules_say(
        cfg in prop::sample::select(configs()),
        nr in prop_oneof![
            0u32..600, prop::sample::select(vec![3u32, 33, 72, 9, 202, 292, 425, 435, 436]), any::<u32>(),
        ],
        arch in prop_oneof![9 => Just(ARCH_X86_64), 1 => any::<u32>()],
        ip in prop_oneof![
            Just(STUB - 1), Just(STUB), Just(STUB + 63), Just(STUB + 64), Just(0x1_ffff_ffefu64),
            Just(0x1_ffff_fff0u64),
            Just(0x2_0000_0000u64),
            Just(0x3_0000_000fu64), Just(0x3_0000_0010u64),
            any::<u64>(),
        ],
        args in prop::array::uniform6(word()),
    ) {
        let call = Call { nr, arch, ip, args };
        prop_assert_eq!(run(&build(&cfg), &call).0, model(&cfg, &call));
    }
}

static TRAPS: AtomicU32 = AtomicU32::new(0);
/// What the test's handler gives as the result of a trapped call.
const TRAPPED: i64 = 77;
/// Not 0, with which a child that panics might end.
const GOOD: i32 = 42;

extern "C" fn on_sigsys(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    TRAPS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: with SA_SIGINFO the kernel passes a valid ucontext_t that nobody else refers to.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = TRAPPED;
}

/// Returns GOOD or the number of the check that failed. Runs in a forked child: system calls only.
fn child(mut program: Program, protected: i32, zero: i32) -> i32 {
    let fprog = libc::sock_fprog {
        len: program.len as u16,
        filter: program.insns.as_mut_ptr(),
    };
    // SAFETY: all pointers are to live objects; the fixed mapping replaces nothing; the handler only
    // touches an atomic and its context.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let page = libc::mmap(
            MANAGED as *mut _,
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        );
        if page as u64 != MANAGED {
            return 1;
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigsys as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        if libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()) != 0
            || libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &fprog) != 0
        {
            return 2;
        }
        let mut buf = [0u8; 64];
        let traps = || TRAPS.load(Ordering::Relaxed);
        let iov = libc::iovec {
            iov_base: page,
            iov_len: 64,
        };
        let checks = [
            libc::getppid() > 0 && traps() == 0,
            libc::read(zero, buf.as_mut_ptr().cast(), 64) == 64 && traps() == 0,
            libc::read(zero, page, 64) == TRAPPED as isize && traps() == 1,
            libc::syscall(libc::SYS_read, zero, page, 64) == 64 && traps() == 1,
            libc::readv(zero, &iov, 1) == TRAPPED as isize && traps() == 2,
            libc::close(protected) == 0 && libc::fcntl(protected, libc::F_GETFD) >= 0,
            libc::dup2(zero, protected) == -1 && *libc::__errno_location() == libc::EBADF,
            libc::fcntl(protected, libc::F_SETFD, 1) == 0 && libc::fcntl(protected, libc::F_GETFD) == 0,
            libc::munmap(page, 4096) == TRAPPED as i32 && traps() == 3,
            libc::close(zero) == 0 && libc::close(zero) == -1,
        ];
        checks
            .iter()
            .position(|&good| !good)
            .map_or(GOOD, |at| at as i32 + 10)
    }
}

#[test]
fn the_kernel_agrees() {
    // SAFETY: plain calls; the child makes no call that could wait for a lock of another thread.
    unsafe {
        let zero = libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY);
        let protected = libc::dup(zero);
        // libc's own `syscall` function serves as the stub.
        let stub = libc::syscall as *const () as u64;
        let (fd_lo, fd_hi) = (protected as u32, protected as u32);
        let program = build(&FilterConfig {
            stub_ip_lo: stub,
            stub_ip_hi: stub + 64,
            fd_lo,
            fd_hi,
            ..CFG
        });
        let pid = libc::fork();
        if pid == 0 {
            libc::_exit(child(program, protected, zero));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        assert_eq!((status & 0x7f, status >> 8), (0, GOOD), "signal, failed check");
    }
}
