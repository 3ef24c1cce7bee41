//! fork, clone, spawn, and the child of vfork that wants to be traced.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use farpage::births;
use farpage::errand::{LENT, Lent};
use farpage::fork::window;
use farpage::join::{self, layout};
use farpage::mm::{PAGE, mm, mode};
use farpage::pool::is_managed;
use farpage::trap::{self, Pins};
use farpage::{fork, sigmask, sys, vfork};

use crate::environment::Environment;
use crate::io::made_if_hiding;
use crate::plain::Plain;
use crate::real::{self, Real, call_real};
use crate::{exec, result, shell};

pub type Strings = *const *const c_char;

unsafe extern "C" {
    pub static environ: Strings;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    let _birth = births::begin();
    call_real!(fork as fn() -> libc::pid_t,)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    window::within(&mut || {
        let pid = call_real!(_Fork as fn() -> libc::pid_t,);
        if pid == 0 {
            join::rejoin_after_dormant_fork();
        }
        i64::from(pid)
    }) as libc::pid_t
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn daemon(nochdir: c_int, noclose: c_int) -> c_int {
    let _birth = births::begin();
    call_real!(daemon as fn(c_int, c_int) -> c_int, nochdir, noclose)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkpty(
    master: *mut c_int,
    name: *mut c_char,
    termios: *const c_void,
    size: *const c_void,
) -> libc::pid_t {
    type Pointer = *const c_void;
    let _birth = births::begin();
    call_real!(
        forkpty as fn(*mut c_int, *mut c_char, Pointer, Pointer) -> libc::pid_t,
        master,
        name,
        termios,
        size
    )
}

/// vfork, counted while its child runs in this memory. The child comes back through the same frame first: its return address is in a
/// register meanwhile, and it leaves by a jump, so that a shadow stack still has the parent's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> libc::pid_t {
    core::arch::naked_asm!(
        "pop rdi",
        "lock inc dword ptr [rip + {lent}]",
        "mov eax, {nr}",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "lock dec dword ptr [rip + {lent}]",
        "push rdi",
        "test rax, rax",
        "js 3f",
        "ret",
        "2:",
        "jmp rdi",
        "3:",
        "mov rdi, rax",
        "jmp {failed}",
        lent = sym LENT,
        nr = const libc::SYS_vfork,
        failed = sym vfork_failed,
    )
}

extern "C" fn vfork_failed(errno: i64) -> libc::pid_t {
    result(errno) as libc::pid_t
}

/// Bytes of a clone's managed stack that stay in RAM.
const CLONE_STACK_KEPT: u64 = 256 << 10;

type CloneStart = extern "C" fn(*mut c_void) -> c_int;

struct CloneBirth {
    start: CloneStart,
    argument: *mut c_void,
}

/// libc ends a cloned child whose function returns by ending its thread; the engine's own threads would live on.
extern "C" fn run_clone(birth: *mut c_void) -> c_int {
    // SAFETY: the caller of clone's, in this process's copy of its stack.
    let CloneBirth { start, argument } = unsafe { (birth as *mut CloneBirth).read() };
    window::close();
    join::rejoin_after_dormant_fork();
    let status = start(argument);
    // SAFETY: ends this process.
    unsafe { sys::raw(libc::SYS_exit_group, [status as u64, 0, 0, 0, 0, 0]) };
    status
}

/// A clone from the stub, which may name managed words: one that is trapped would have its child begin inside the handler. The kernel writes
/// them, before the child runs and as it ends; the caller has pinned them. The child comes back by the stub's return: `-errno` or its
/// number.
unsafe fn clone_from_stub(start: CloneStart, argument: *mut c_void, stack: u64, args: [u64; 4]) -> i64 {
    let [flags, parent_tid, child_tid, tls] = args;
    let beginning: [u64; 3] = [
        begin_clone as *const () as u64,
        start as *const () as u64,
        argument as u64,
    ];
    let top = (stack & !15) - size_of_val(&beginning) as u64;
    // SAFETY: the stack that the caller gives its child, who takes off all three; the words that the flags name are the caller's.
    unsafe {
        (top as *mut [u64; 3]).write(beginning);
        sys::raw(libc::SYS_clone, [flags, top, parent_tid, child_tid, tls, 0])
    }
}

/// Where a child begins: the function and its argument are next on its stack. As in libc it ends with its function.
#[unsafe(naked)]
unsafe extern "C" fn begin_clone() {
    core::arch::naked_asm!(
        "xor ebp, ebp",
        "pop rax",
        "pop rdi",
        "call rax",
        "mov edi, eax",
        "mov eax, {exit}",
        "syscall",
        "ud2",
        exit = const libc::SYS_exit,
    )
}

fn given<T>(pointer: *mut T, named: bool) -> *mut T {
    if named { pointer } else { core::ptr::null_mut() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    start: CloneStart,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: *mut c_int,
    tls: *mut c_void,
    child_tid: *mut c_int,
) -> c_int {
    // What the flags don't name was not passed. Garbage that looks like a managed pointer would get the call trapped, and
    // its child would start on the new stack inside the handler.
    let has = |mask: c_int| flags & mask != 0;
    let parent_tid = given(parent_tid, has(libc::CLONE_PARENT_SETTID | libc::CLONE_PIDFD));
    let tls = given(tls, has(libc::CLONE_SETTLS));
    let child_tid = given(
        child_tid,
        has(libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID),
    );
    let copies = !has(libc::CLONE_VM);
    if has(libc::CLONE_THREAD) {
        crate::threads::note_unknown();
    }
    let mut birth = CloneBirth { start, argument };
    let (start, argument) = if copies {
        (run_clone as CloneStart, &raw mut birth as *mut c_void)
    } else {
        (start, argument)
    };
    let words = [parent_tid, child_tid].map(|word| word as u64);
    let names_ours = !copies && !stack.is_null() && words.into_iter().any(is_managed);
    let waits = has(libc::CLONE_VFORK);
    let _birth = (!copies && (waits || names_ours)).then(births::begin).flatten();
    let _lent = (!copies && !has(libc::CLONE_THREAD)).then(|| Lent::begin(waits));
    // A new task has no alternate signal stack: where its stack is managed, the top of it stays in RAM, so that faults deeper
    // down can be delivered there.
    let top = (stack as u64).saturating_sub(CLONE_STACK_KEPT);
    let mut pins = Pins::new();
    if !copies && waits && mm().is_active() {
        pins.add(mm(), top, CLONE_STACK_KEPT);
    } else if !copies {
        crate::threads::keep(top, CLONE_STACK_KEPT);
    }
    if names_ours {
        pins.add(mm(), words[0], size_of::<c_int>() as u64);
        // Written as the child begins and ends, when the kernel waits for no page.
        crate::threads::keep(words[1], size_of::<c_int>() as u64);
    }
    let mut real = || {
        if names_ours && sys::has_stub() {
            let args = [flags as u32 as u64, words[0], words[1], tls as u64];
            // SAFETY: the caller's arguments; its words are pinned.
            return result(unsafe { clone_from_stub(start, argument, stack as u64, args) });
        }
        i64::from(call_real!(
            clone
                as fn(
                    CloneStart,
                    *mut c_void,
                    c_int,
                    *mut c_void,
                    *mut c_int,
                    *mut c_void,
                    *mut c_int,
                ) -> c_int,
            start,
            stack,
            flags,
            argument,
            parent_tid,
            tls,
            child_tid
        ))
    };
    let done = if copies { window::within(&mut real) } else { real() };
    pins.release(mm());
    done as c_int
}

/// syscall(SYS_fork) and SYS_clone without shared memory.
pub fn raw_fork(nr: i64, args: [u64; 6]) -> i64 {
    result(forked(nr, args))
}

/// `-errno` or what the kernel gives.
fn forked(nr: i64, args: [u64; 6]) -> i64 {
    let args = match nr {
        libc::SYS_clone => args,
        _ => [libc::SIGCHLD as u64, 0, 0, 0, 0, 0],
    };
    fork::fork(libc::SYS_clone, args)
}

/// The same while dormant, or when that has just ended. The child is counted for itself from its first moment, as one of libc's fork is.
pub fn dormant_fork(nr: i64, args: [u64; 6]) -> i64 {
    let birth = births::begin();
    if birth.is_none() && mm().is_active() {
        return forked(nr, args);
    }
    let done = trap::issue(nr, args);
    if done == 0 {
        join::rejoin_after_dormant_fork();
    }
    done
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ptrace(
    request: c_int,
    pid: libc::pid_t,
    address: *mut c_void,
    data: *mut c_void,
) -> c_long {
    if request == libc::PTRACE_TRACEME as c_int && vfork::trace_later(mm()) {
        exec::note_traced();
        return 0;
    }
    let args = [request as u64, pid as u64, address as u64, data as u64, 0, 0];
    if let Some(made) = made_if_hiding(libc::SYS_ptrace, args) {
        return made;
    }
    type Pointer = *mut c_void;
    call_real!(
        ptrace as fn(c_int, libc::pid_t, Pointer, Pointer) -> c_long,
        request,
        pid,
        address,
        data
    )
}

/// With --no-follow programs started from here are not managed: the variables that would load the library go.
pub fn stop_following() {
    // SAFETY: in the constructor, before the program has threads.
    unsafe {
        libc::unsetenv(c"LD_PRELOAD".as_ptr());
        libc::unsetenv(join::ENV_POOL.as_ptr());
    }
}

/// Pins a C string, each page before it is read: a child of vfork that is traced must not get a signal.
pub unsafe fn pin_string(pins: &mut Pins, text: *const c_char) {
    let mut at = text as u64;
    while mm().is_active() && is_managed(at) {
        let rest = PAGE - at % PAGE;
        pins.add(mm(), at, rest);
        // SAFETY: the caller's string goes at least up to its first zero byte, and these bytes are of one page.
        let part = unsafe { core::slice::from_raw_parts(at as *const u8, rest as usize) };
        if part.contains(&0) {
            return;
        }
        at += rest;
    }
}

pub unsafe fn pin_strings(pins: &mut Pins, array: Strings) {
    let mut entry = array as u64;
    let mut pinned_to = 0;
    while mm().is_active() && !array.is_null() {
        if entry >= pinned_to {
            pinned_to = entry + PAGE - entry % PAGE;
            pins.add(mm(), entry, pinned_to - entry);
        }
        // SAFETY: a NULL-terminated array of C strings.
        let text = unsafe { *(entry as Strings) };
        if text.is_null() {
            return;
        }
        // SAFETY: a string of the array's.
        unsafe { pin_string(pins, text) };
        entry += 8;
    }
}

/// First of them, where the child's number or descriptor is put.
type Spawn = (
    *mut c_int,
    *const c_char,
    *const c_void,
    *const c_void,
    Strings,
    Strings,
);

/// Attributes by which a spawned program gets the mask that this thread believes in: without any it would get the kernel's.
unsafe fn with_mask(
    attributes: *const libc::posix_spawnattr_t,
    room: &mut MaybeUninit<libc::posix_spawnattr_t>,
) -> *const libc::posix_spawnattr_t {
    const SETSIGMASK: i16 = libc::POSIX_SPAWN_SETSIGMASK as i16;
    let (believed, mut flags) = (sigmask::blocked(), 0);
    if believed == 0 {
        return attributes;
    }
    // SAFETY: the caller's attributes, which are plain data, and a copy of them; the first word of a sigset_t is the kernel's mask.
    unsafe {
        match attributes.as_ref() {
            Some(theirs) => drop(room.write(*theirs)),
            None => drop(libc::posix_spawnattr_init(room.as_mut_ptr())),
        }
        libc::posix_spawnattr_getflags(room.as_ptr(), &mut flags);
        if flags & SETSIGMASK != 0 {
            return attributes;
        }
        let mut mask: libc::sigset_t = core::mem::zeroed();
        *(&raw mut mask as *mut u64) = sys::mask() | believed;
        libc::posix_spawnattr_setsigmask(room.as_mut_ptr(), &mask);
        libc::posix_spawnattr_setflags(room.as_mut_ptr(), flags | SETSIGMASK);
    }
    room.as_ptr()
}

/// Where a function of the family is: those that give a descriptor of the process came with glibc 2.39. NULL: this libc has none.
fn spawner(search: bool, gives_pidfd: bool) -> *mut c_void {
    match (gives_pidfd, search) {
        (false, false) => real::address(Real::posix_spawn),
        (false, true) => real::address(Real::posix_spawnp),
        (true, false) => real::look_up(c"pidfd_spawn") as *mut c_void,
        (true, true) => real::look_up(c"pidfd_spawnp") as *mut c_void,
    }
}

/// The child of posix_spawn runs with our signals blocked: all it touches must be in RAM. (Not if the caller's stack is managed: libc
/// blocks all signals by a call that names its own variable there, which we answer, and ours stay open in the child.)
unsafe fn spawn(request: Spawn, function: *mut c_void) -> c_int {
    let (made, path, actions, attributes, argv, envp) = request;
    if function.is_null() {
        return libc::ENOSYS;
    }
    // libc writes the number while it blocks all signals: not into the program's memory, which may be cold.
    let mut number: c_int = 0;
    let _birth = births::begin();
    // SAFETY: the caller's arguments.
    unsafe {
        let environment = Environment::following(envp);
        let mut room = MaybeUninit::uninit();
        let attributes = with_mask(attributes.cast(), &mut room).cast();
        type Pointer = *const c_void;
        // The child passes these to the kernel with SIGSYS blocked: a managed pointer would be its end.
        let is_on = mm().mode.load(Ordering::Relaxed) != mode::OFF;
        let plain = if mm().is_active() || (is_on && Plain::is_needed(actions)) {
            Plain::copy(path, argv, environment.strings, actions, attributes)
        } else {
            None
        };
        let (path, argv, envp, actions, attributes) = match &plain {
            Some(plain) => (
                plain.path,
                plain.argv,
                plain.envp,
                plain.actions,
                plain.attributes,
            ),
            None => (path, argv, environment.strings, actions, attributes),
        };
        // All of the family have this signature.
        let function: unsafe extern "C" fn(
            *mut c_int,
            *const c_char,
            Pointer,
            Pointer,
            Strings,
            Strings,
        ) -> c_int = core::mem::transmute(function);
        // A name without a path is looked for in the child, by the PATH of this process.
        let mut pins = Pins::new();
        if mm().is_active() && !CStr::from_ptr(path).to_bytes().contains(&b'/') {
            pin_strings(&mut pins, environ);
        }
        let error = layout::normally(|| function(&mut number, path, actions, attributes, argv, envp));
        pins.release(mm());
        if error == 0
            && let Some(made) = made.as_mut()
        {
            *made = number;
        }
        error
    }
}

macro_rules! spawns {
    ($($name:ident ($search:literal, $gives_pidfd:literal);)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            made: *mut c_int,
            path: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            argv: Strings,
            envp: Strings,
        ) -> c_int {
            // SAFETY: the caller's arguments.
            unsafe { spawn((made, path, actions, attributes, argv, envp), spawner($search, $gives_pidfd)) }
        }
    )*};
}

spawns! {
    posix_spawn (false, false);
    posix_spawnp (true, false);
    pidfd_spawn (false, true);
    pidfd_spawnp (true, true);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    // SAFETY: the caller's string and its environment.
    unsafe {
        if shell::is_needed() {
            return match command.is_null() {
                true => c_int::from(shell::system(c"exit 0".as_ptr()) == 0),
                false => shell::system(command),
            };
        }
        let mut pins = Pins::new();
        if !command.is_null() {
            pin_string(&mut pins, command);
            pin_strings(&mut pins, environ);
        }
        let status = layout::normally(|| call_real!(system as fn(*const c_char) -> c_int, command));
        pins.release(mm());
        status
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut c_void {
    // SAFETY: the caller's strings and its environment.
    unsafe {
        if shell::is_needed() {
            return shell::popen(command, kind);
        }
        let _birth = births::begin();
        let mut pins = Pins::new();
        pin_string(&mut pins, command);
        pin_strings(&mut pins, environ);
        let stream = layout::normally(|| {
            call_real!(
                popen as fn(*const c_char, *const c_char) -> *mut c_void,
                command,
                kind
            )
        });
        pins.release(mm());
        stream
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pclose(stream: *mut c_void) -> c_int {
    // SAFETY: the caller's stream.
    unsafe { shell::pclose(stream) }.unwrap_or_else(|| call_real!(pclose as fn(*mut c_void) -> c_int, stream))
}
