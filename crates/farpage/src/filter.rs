//! The seccomp filter: which system calls of the program the engine sees.
//!
//! Rules, in this order:
//! 1. another architecture, or an x32 call: allowed, untouched.
//! 2. calls without pointers: allowed without a look at their arguments, so that the kernel's bitmap of
//!    constant answers serves them and the filter does not even run.
//! 3. calls that pass a managed pointer or address, and calls whose pointers are hidden in memory: trapped.
//!    A hint for an address of ours is refused, since it need not come from a program with the engine.
//! 4. calls that would close or replace a protected descriptor: answered without being done.
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
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
/// What the kernel tells with a call that this filter traps: the program may have a filter that traps calls for a handler of its own. Of two
/// that trap a call the one installed last is heard.
pub const TRAP_MARK: u16 = 0xfa9e;
const TRAP: u32 = libc::SECCOMP_RET_TRAP | TRAP_MARK as u32;
/// A futex operation without its options.
const FUTEX_COMMAND: u32 = !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME) as u32;
/// The call returns 0 and does nothing.
const PRETEND: u32 = libc::SECCOMP_RET_ERRNO;
const BAD_FD: u32 = libc::SECCOMP_RET_ERRNO | libc::EBADF as u32;
const NO_ROOM: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOMEM as u32;
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
    /// mappings or have the kernel use managed memory at any time are trapped, and descriptors protected.
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
    LockAll,
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
    /// Trap a managed address that is an order, refuse one that is a hint: a program that does not load the engine, and that
    /// has the filter from before an exec, may happen to want it (Go chooses its heap at random), and will ask again.
    Mmap,
    /// As `Pointers`, of those arguments that the command uses: in the others callers leave what was there.
    Futex {
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
    for action in [TRAP, PRETEND, BAD_FD, NO_ROOM, NO_CALL] {
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
    let mask = if cfg.trap_pointers {
        mask
    } else {
        memory | syscalls::used_always(nr)
    };
    if cfg.fd_lo <= cfg.fd_hi {
        match nr as libc::c_long {
            libc::SYS_close => return Rule::Close,
            libc::SYS_dup2 | libc::SYS_dup3 => return Rule::Dup,
            libc::SYS_close_range => return Rule::CloseRange,
            libc::SYS_fcntl => return Rule::Fcntl { mask },
            _ => {}
        }
    }
    // All of a managed program can't be locked in RAM.
    if is(libc::SYS_mlockall) {
        return Rule::LockAll;
    }
    if is(libc::SYS_io_uring_setup) && cfg.refuse_io_uring || is(libc::SYS_clone3) && cfg.trap_pointers {
        return Rule::Refuse;
    }
    if mask == 0 {
        return Rule::Allow;
    }
    if is(libc::SYS_mmap) {
        return Rule::Mmap;
    }
    if is(libc::SYS_futex) {
        return Rule::Futex { mask };
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
            Rule::LockAll => {
                // Without flags it is refused by the kernel.
                self.push(LOAD, 0, 0, low_half(0));
                self.push(EQ, 1, 0, 0);
                self.jump(Target::Action(NO_ROOM));
                self.push(RETURN, 0, 0, ALLOW);
            }
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
            Rule::Mmap => {
                const ORDERS: u32 = (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) as u32;
                self.managed(0, 1);
                self.push(RETURN, 0, 0, ALLOW);
                self.push(LOAD, 0, 0, low_half(3));
                self.push(AND, 0, 0, ORDERS);
                self.push(EQ, 1, 0, 0);
                self.jump(Target::Action(TRAP));
                self.jump(Target::Action(NO_ROOM));
            }
            Rule::Futex { mask } => {
                const WAIT_USES: u8 = 1 << 0 | 1 << 3;
                let wait_len = trap_distance(WAIT_USES) + 1;
                self.push(LOAD, 0, 0, low_half(1));
                // Looks its address up and never there.
                self.push(EQ, 0, 1, (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as u32);
                self.push(RETURN, 0, 0, ALLOW);
                self.push(AND, 0, 0, FUTEX_COMMAND);
                self.push(EQ, 1, 0, libc::FUTEX_WAIT as u32);
                self.push(EQ, 0, wait_len, libc::FUTEX_WAIT_BITSET as u32);
                self.pointers(mask & WAIT_USES);
                self.pointers(mask);
            }
        }
    }

    /// Jumps over `distance` instructions when argument `arg` is managed.
    fn managed(&mut self, arg: u8, distance: u8) {
        self.push(LOAD, 0, 0, low_half(arg) + 4);
        self.push(SHIFT, 0, 0, MANAGED_SHIFT - 32);
        self.push(EQ, distance, 0, MANAGED_TAG as u32);
    }

    /// Trap when an argument in `mask` is managed, else allow. The last instruction is the jump to the trap.
    fn pointers(&mut self, mask: u8) {
        let mut left = mask;
        for arg in (0..6).filter(|arg| mask >> arg & 1 == 1) {
            left &= !(1 << arg);
            self.managed(arg, trap_distance(left));
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

#[cfg(test)]
mod tests;
