//! The seccomp filter: which system calls of the program the engine sees.
//!
//! Rules, in this order:
//! 1. another architecture, or an x32 call: allowed, untouched.
//! 2. calls without pointers: allowed without a look at their arguments, so that the kernel's bitmap of
//!    constant answers serves them and the filter does not even run.
//! 3. calls that pass a managed pointer or address, and calls whose pointers are hidden in memory: trapped.
//! 4. calls that would close or replace a protected descriptor: answered or trapped.
//! 5. io_uring_setup and clone3: ENOSYS, so that programs and libc fall back to what the engine can follow.
//!
//! Whatever rules 3 to 5 say, a call from the stub is allowed: that is how the engine itself works. The
//! instruction pointer is looked at last, so calls that no rule holds pay nothing for it.
//!
//! The number is found by a balanced tree of comparisons over runs of numbers with the same rule.

use crate::syscalls::{self, Hidden, MANAGED_SHIFT, MANAGED_TAG};
use libc::sock_filter;

/// Room for the instructions of any configuration; the kernel's limit is 4096.
pub const CAPACITY: usize = 1280;

const ARCH_X86_64: u32 = 0xc000_003e;
const X32_BIT: u32 = 0x4000_0000;

// Offsets in struct seccomp_data.
const NR: u32 = 0;
const ARCH: u32 = 4;
const IP: u32 = 8;
const ARGS: u32 = 16;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const SHIFT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
const EQ: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const GE: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const GT: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const TRAP: u32 = libc::SECCOMP_RET_TRAP;
/// The call returns 0 and does nothing.
const PRETEND: u32 = libc::SECCOMP_RET_ERRNO;
const BAD_FD: u32 = libc::SECCOMP_RET_ERRNO | libc::EBADF as u32;
const NO_CALL: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

/// What the filter is to know. An empty range (low end above the high one) means none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterConfig {
    /// Calls whose instruction pointer (the address after the `syscall` instruction) lies in
    /// `[stub_ip_lo, stub_ip_hi)` are allowed.
    pub stub_ip_lo: u64,
    pub stub_ip_hi: u64,
    /// First protected descriptor.
    pub fd_lo: u32,
    /// Last protected descriptor.
    pub fd_hi: u32,
    /// Trap calls that pass managed pointers, and refuse clone3. Without it only calls that work on managed
    /// mappings are trapped, and descriptors protected.
    pub trap_pointers: bool,
    /// Trap calls whose pointers no register shows, whatever they are given. A filter outlives exec, and a program
    /// that does not load the engine has no handler for the trap: only for trees where every image has one.
    pub trap_hidden: bool,
    /// Answer io_uring_setup with ENOSYS.
    pub refuse_io_uring: bool,
}

/// A filter program.
#[derive(Clone, Copy)]
pub struct Program {
    pub insns: [sock_filter; CAPACITY],
    /// Instructions in use.
    pub len: usize,
}

impl Program {
    /// The instructions in use.
    #[must_use]
    pub fn as_slice(&self) -> &[sock_filter] {
        &self.insns[..self.len]
    }
}

/// What is done with one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Allow,
    Refuse,
    /// Trap when one of the arguments in `mask` is managed.
    Pointers {
        mask: u8,
    },
    /// Trap when argument `arg` is not NULL.
    Hidden {
        arg: u8,
        mask: u8,
    },
    /// As `Pointers`, and trap for the commands that [`Hidden::When`] of call `nr` names.
    HiddenWhen {
        nr: u16,
        mask: u8,
    },
    Close,
    /// dup2 and dup3.
    Dup,
    CloseRange,
    Fcntl {
        mask: u8,
    },
}

/// Builds the filter. Uses about 32 KiB of stack.
#[must_use]
pub fn build(cfg: &FilterConfig) -> Program {
    let runs = Runs::new(cfg);
    let mut asm = Assembler::new();
    asm.push(LOAD, 0, 0, ARCH);
    asm.push(EQ, 1, 0, ARCH_X86_64);
    asm.push(RETURN, 0, 0, ALLOW);
    asm.push(LOAD, 0, 0, NR);
    asm.push(GE, 0, 1, X32_BIT);
    asm.push(RETURN, 0, 0, ALLOW);
    asm.tree(runs.as_slice());
    for index in 0..runs.len {
        let rule = runs.as_slice()[index].rule;
        let seen = runs.as_slice()[..index].iter().any(|run| run.rule == rule);
        if rule != Rule::Allow && !seen {
            asm.land(Target::Rule(rule));
            asm.rule(rule, cfg);
        }
    }
    for action in [TRAP, PRETEND, BAD_FD, NO_CALL] {
        asm.land(Target::Action(action));
        asm.unless_stub(action, cfg);
    }
    asm.program
}

fn rule_of(nr: usize, cfg: &FilterConfig) -> Rule {
    let is = |number: libc::c_long| nr == number as usize;
    let (mask, memory, hidden) = syscalls::describe(nr)
        .map_or((syscalls::pointer_mask(nr), 0, Hidden::None), |call| {
            (call.pointer_mask(), call.memory, call.hidden)
        });
    let mask = if cfg.trap_pointers { mask } else { memory };
    if cfg.fd_lo <= cfg.fd_hi {
        match nr as libc::c_long {
            libc::SYS_close => return Rule::Close,
            libc::SYS_dup2 | libc::SYS_dup3 => return Rule::Dup,
            libc::SYS_close_range => return Rule::CloseRange,
            libc::SYS_fcntl => return Rule::Fcntl { mask },
            _ => {}
        }
    }
    if is(libc::SYS_io_uring_setup) && cfg.refuse_io_uring || is(libc::SYS_clone3) && cfg.trap_pointers {
        return Rule::Refuse;
    }
    if mask == 0 {
        return Rule::Allow;
    }
    match hidden {
        // Of the calls on mappings only process_madvise hides its addresses.
        Hidden::Always { arg } if cfg.trap_hidden => Rule::Hidden { arg, mask },
        Hidden::When { .. } if cfg.trap_pointers && cfg.trap_hidden => {
            Rule::HiddenWhen { nr: nr as u16, mask }
        }
        _ => Rule::Pointers { mask },
    }
}

/// The argument and its values for which call `nr` hides pointers.
fn commands(nr: u16) -> (u8, &'static [u32]) {
    match syscalls::describe(usize::from(nr)).map(|call| call.hidden) {
        Some(Hidden::When { arg, values }) => (arg, values),
        _ => (0, &[]),
    }
}

/// Numbers from `start` up to the next run's start.
#[derive(Clone, Copy)]
struct Run {
    start: u32,
    rule: Rule,
}

struct Runs {
    runs: [Run; syscalls::NUMBERS + 1],
    len: usize,
}

impl Runs {
    fn new(cfg: &FilterConfig) -> Self {
        let mut runs = Runs {
            runs: [Run {
                start: 0,
                rule: Rule::Allow,
            }; syscalls::NUMBERS + 1],
            len: 0,
        };
        // The last run is that of all numbers the table does not reach.
        for nr in 0..=syscalls::NUMBERS {
            let rule = rule_of(nr, cfg);
            if runs.len == 0 || runs.runs[runs.len - 1].rule != rule {
                runs.runs[runs.len] = Run {
                    start: nr as u32,
                    rule,
                };
                runs.len += 1;
            }
        }
        runs
    }

    fn as_slice(&self) -> &[Run] {
        &self.runs[..self.len]
    }
}

/// Where a jump goes that is not yet laid down.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Rule(Rule),
    Action(u32),
}

/// Lays instructions down in order. Jumps to what comes later are noted in `pending` (by the index of the
/// jump) and patched when their target lands.
struct Assembler {
    program: Program,
    pending: [Option<Target>; CAPACITY],
}

impl Assembler {
    fn new() -> Self {
        let unused = sock_filter {
            code: RETURN,
            jt: 0,
            jf: 0,
            k: ALLOW,
        };
        Assembler {
            program: Program {
                insns: [unused; CAPACITY],
                len: 0,
            },
            pending: [None; CAPACITY],
        }
    }

    fn push(&mut self, code: u16, jt: u8, jf: u8, k: u32) {
        self.program.insns[self.program.len] = sock_filter { code, jt, jf, k };
        self.program.len += 1;
    }

    fn jump(&mut self, target: Target) {
        self.pending[self.program.len] = Some(target);
        self.push(JUMP, 0, 0, 0);
    }

    /// Makes the next instruction the target of all jumps that wait for it.
    fn land(&mut self, target: Target) {
        let here = self.program.len;
        for (from, pending) in self.pending[..here].iter_mut().enumerate() {
            if *pending == Some(target) {
                self.program.insns[from].k = (here - from - 1) as u32;
                *pending = None;
            }
        }
    }

    /// The accumulator holds the number; every path ends in a return or a jump.
    fn tree(&mut self, runs: &[Run]) {
        if let [run] = runs {
            match run.rule {
                Rule::Allow => self.push(RETURN, 0, 0, ALLOW),
                rule => self.jump(Target::Rule(rule)),
            }
            return;
        }
        let (low, high) = runs.split_at(runs.len() / 2);
        let low_len = tree_len(low);
        match u8::try_from(low_len) {
            Ok(near) => self.push(GE, near, 0, high[0].start),
            Err(_) => {
                self.push(GE, 0, 1, high[0].start);
                self.push(JUMP, 0, 0, low_len as u32);
            }
        }
        self.tree(low);
        self.tree(high);
    }

    fn rule(&mut self, rule: Rule, cfg: &FilterConfig) {
        match rule {
            Rule::Allow => self.push(RETURN, 0, 0, ALLOW),
            Rule::Refuse => self.jump(Target::Action(NO_CALL)),
            Rule::Pointers { mask } => self.pointers(mask),
            Rule::Hidden { arg, mask } => {
                let others = mask & !(1 << arg);
                let to_trap = trap_distance(others);
                self.push(LOAD, 0, 0, low_half(arg));
                self.push(EQ, 0, to_trap + 2, 0);
                self.push(LOAD, 0, 0, low_half(arg) + 4);
                self.push(EQ, 0, to_trap, 0);
                self.pointers(others);
            }
            Rule::HiddenWhen { nr, mask } => {
                let (arg, values) = commands(nr);
                self.push(LOAD, 0, 0, low_half(arg));
                for (left, &value) in (0..values.len() as u8).rev().zip(values) {
                    self.push(EQ, trap_distance(mask) + left, 0, value);
                }
                self.pointers(mask);
            }
            Rule::Close => self.descriptor(0, PRETEND, cfg),
            Rule::Dup => self.descriptor(1, BAD_FD, cfg),
            Rule::CloseRange => {
                // first <= fd_hi and last >= fd_lo
                self.push(LOAD, 0, 0, low_half(0));
                self.push(GT, 3, 0, cfg.fd_hi);
                self.push(LOAD, 0, 0, low_half(1));
                self.push(GE, 0, 1, cfg.fd_lo);
                self.jump(Target::Action(NO_CALL));
                self.push(RETURN, 0, 0, ALLOW);
            }
            Rule::Fcntl { mask } => {
                self.push(LOAD, 0, 0, low_half(0));
                self.push(GE, 0, 5, cfg.fd_lo);
                self.push(GT, 4, 0, cfg.fd_hi);
                self.push(LOAD, 0, 0, low_half(1));
                self.push(EQ, 1, 0, libc::F_SETFD as u32);
                self.push(EQ, 0, 1, libc::F_SETFL as u32);
                self.jump(Target::Action(PRETEND));
                self.pointers(mask);
            }
        }
    }

    /// Trap when an argument in `mask` is managed, else allow. The last instruction is the jump to the trap.
    fn pointers(&mut self, mask: u8) {
        let mut left = mask;
        for arg in (0..6).filter(|arg| mask >> arg & 1 == 1) {
            left &= !(1 << arg);
            self.push(LOAD, 0, 0, low_half(arg) + 4);
            self.push(SHIFT, 0, 0, MANAGED_SHIFT - 32);
            self.push(EQ, trap_distance(left), 0, MANAGED_TAG as u32);
        }
        self.push(RETURN, 0, 0, ALLOW);
        self.jump(Target::Action(TRAP));
    }

    /// `action` when argument `arg` is a protected descriptor (the kernel takes its low half), else allow.
    fn descriptor(&mut self, arg: u8, action: u32, cfg: &FilterConfig) {
        self.push(LOAD, 0, 0, low_half(arg));
        self.push(GE, 0, 2, cfg.fd_lo);
        self.push(GT, 1, 0, cfg.fd_hi);
        self.jump(Target::Action(action));
        self.push(RETURN, 0, 0, ALLOW);
    }

    /// Allow what comes from the stub, else `action`.
    fn unless_stub(&mut self, action: u32, cfg: &FilterConfig) {
        if let Some(last) = cfg
            .stub_ip_hi
            .checked_sub(1)
            .filter(|&last| last >= cfg.stub_ip_lo)
        {
            let (lo, lo_high) = (cfg.stub_ip_lo as u32, (cfg.stub_ip_lo >> 32) as u32);
            let (hi, hi_high) = (last as u32, (last >> 32) as u32);
            self.push(LOAD, 0, 0, IP + 4);
            self.push(GT, 9, 0, hi_high);
            self.push(GE, 0, 8, lo_high);
            self.push(EQ, 0, 2, lo_high);
            self.push(LOAD, 0, 0, IP);
            self.push(GE, 0, 5, lo);
            self.push(LOAD, 0, 0, IP + 4);
            self.push(EQ, 0, 2, hi_high);
            self.push(LOAD, 0, 0, IP);
            self.push(GT, 1, 0, hi);
            self.push(RETURN, 0, 0, ALLOW);
        }
        self.push(RETURN, 0, 0, action);
    }
}

/// Instructions that [`Assembler::tree`] lays down for these runs.
fn tree_len(runs: &[Run]) -> usize {
    if runs.len() <= 1 {
        return runs.len();
    }
    let (low, high) = runs.split_at(runs.len() / 2);
    let low_len = tree_len(low);
    let node = if low_len > usize::from(u8::MAX) { 2 } else { 1 };
    node + low_len + tree_len(high)
}

/// How far the jump to the trap is from the start of what [`Assembler::pointers`] lays down for `mask`.
fn trap_distance(mask: u8) -> u8 {
    mask.count_ones() as u8 * 3 + 1
}

/// Offset of the low half of an argument.
fn low_half(arg: u8) -> u32 {
    ARGS + 8 * u32::from(arg)
}

// The test against the kernel forks and handles a signal.
#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
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
    const MANAGED: u64 = 0x1000_0000_0000;

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
        if call.arch != ARCH_X86_64
            || call.nr >= X32_BIT
            || (cfg.stub_ip_lo..cfg.stub_ip_hi).contains(&call.ip)
        {
            return ALLOW;
        }
        let protected = |fd: u64| (cfg.fd_lo..=cfg.fd_hi).contains(&(fd as u32));
        let low = |arg: usize| call.args[arg] as u32;
        match i64::from(call.nr) {
            libc::SYS_close if protected(call.args[0]) => return PRETEND,
            libc::SYS_dup2 | libc::SYS_dup3 if protected(call.args[1]) => return BAD_FD,
            libc::SYS_fcntl
                if protected(call.args[0])
                    && [libc::F_SETFD as u32, libc::F_SETFL as u32].contains(&low(1)) =>
            {
                return PRETEND;
            }
            libc::SYS_close_range if cfg.fd_lo <= cfg.fd_hi && low(0) <= cfg.fd_hi && low(1) >= cfg.fd_lo => {
                return NO_CALL;
            }
            libc::SYS_io_uring_setup if cfg.refuse_io_uring => return NO_CALL,
            libc::SYS_clone3 if cfg.trap_pointers => return NO_CALL,
            _ => {}
        }
        let description = syscalls::describe(nr);
        let mask = match (cfg.trap_pointers, description) {
            (true, _) => syscalls::pointer_mask(nr),
            (false, Some(call)) => call.memory,
            (false, None) => 0,
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
        assert_eq!(answer(libc::SYS_read, [3, 0x1100_0000_0000, 8, 0, 0, 0]), ALLOW);
        assert_eq!(answer(libc::SYS_rt_sigreturn, [p; 6]), ALLOW);
        assert_eq!(answer(libc::SYS_getppid, [p; 6]), ALLOW);
        assert_eq!(answer(libc::SYS_writev, [1, 0x7ffc_0000_0000, 1, 0, 0, 0]), TRAP);
        assert_eq!(answer(libc::SYS_writev, [1, 0, 1, 0, 0, 0]), ALLOW);
        assert_eq!(answer(libc::SYS_mremap, [8192, 4096, 4096, 3, p, 0]), TRAP);
        assert_eq!(answer(libc::SYS_close, [1003, 0, 0, 0, 0, 0]), PRETEND);
        assert_eq!(answer(libc::SYS_close, [999, 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(answer(libc::SYS_dup2, [1003, 5, 0, 0, 0, 0]), ALLOW);
        assert_eq!(answer(libc::SYS_dup3, [5, 1007, 0, 0, 0, 0]), BAD_FD);
        assert_eq!(answer(libc::SYS_close_range, [3, 0xffff_ffff, 0, 0, 0, 0]), TRAP);
        assert_eq!(answer(libc::SYS_close_range, [3, 999, 0, 0, 0, 0]), ALLOW);
        assert_eq!(
            answer(libc::SYS_clone3, [0x7ffc_0000_0000, 88, 0, 0, 0, 0]),
            NO_CALL
        );
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
                0x10ff_ffff_ffff,
                0x1100_0000_0000,
                0x10_0000_0000_0000
            ]),
            prop::sample::select(vec![0x8912u64, 22, 35, 26, 51, 20, 0x4204, 1, 0xffff_ffff]),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1500))]
        #[test]
        fn the_program_says_what_the_rules_say(
            cfg in prop::sample::select(configs()),
            nr in prop_oneof![
                0u32..600, prop::sample::select(vec![3u32, 33, 72, 292, 425, 435, 436]), any::<u32>(),
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
}
