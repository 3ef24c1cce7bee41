//! fork, exec, spawn.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::Ordering;

use farpage::births::{self, Birth};
use farpage::mm::{fd, mm, mode};
use farpage::pool::{flag, is_managed};
use farpage::trap::{self, Pins};
use farpage::{fork, join, sys, vfork};

use crate::plain::Plain;
use crate::real::call_real;
use crate::result;

type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: Strings;
    fn farpage_execl();
    fn farpage_execlp();
    fn farpage_execle();
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    fork::window(&mut || i64::from(call_real!(fork as fn() -> libc::pid_t,))) as libc::pid_t
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    fork::window(&mut || {
        let pid = call_real!(_Fork as fn() -> libc::pid_t,);
        if pid == 0 {
            join::rejoin_after_dormant_fork();
        }
        i64::from(pid)
    }) as libc::pid_t
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn daemon(nochdir: c_int, noclose: c_int) -> c_int {
    fork::window(&mut || i64::from(call_real!(daemon as fn(c_int, c_int) -> c_int, nochdir, noclose)))
        as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkpty(
    master: *mut c_int,
    name: *mut c_char,
    termios: *const c_void,
    size: *const c_void,
) -> libc::pid_t {
    type Pointer = *const c_void;
    fork::window(&mut || {
        i64::from(call_real!(
            forkpty as fn(*mut c_int, *mut c_char, Pointer, Pointer) -> libc::pid_t,
            master,
            name,
            termios,
            size
        ))
    }) as libc::pid_t
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
    join::rejoin_after_dormant_fork();
    let status = start(argument);
    // SAFETY: ends this process.
    unsafe { sys::raw(libc::SYS_exit_group, [status as u64, 0, 0, 0, 0, 0]) };
    status
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
    let copies = flags & libc::CLONE_VM == 0;
    let mut birth = CloneBirth { start, argument };
    let (start, argument) = if copies {
        (run_clone as CloneStart, &raw mut birth as *mut c_void)
    } else {
        (start, argument)
    };
    // A new task has no alternate signal stack: where its stack is managed, the top of it stays in RAM, so that faults deeper
    // down can be delivered there.
    let top = (stack as u64).saturating_sub(CLONE_STACK_KEPT);
    let _birth = (!copies && flags & libc::CLONE_VFORK != 0)
        .then(births::begin)
        .flatten();
    let mut pins = Pins::new();
    if !copies && flags & libc::CLONE_VFORK != 0 && mm().is_active() {
        pins.add(mm(), top, CLONE_STACK_KEPT);
    } else if !copies {
        crate::threads::keep(top, CLONE_STACK_KEPT);
    }
    // What the flags don't name was not passed. Garbage that looks like a managed pointer would get the call trapped, and
    // its child would start on the new stack inside the handler.
    let has = |mask: c_int| flags & mask != 0;
    let parent_tid = given(parent_tid, has(libc::CLONE_PARENT_SETTID | libc::CLONE_PIDFD));
    let tls = given(tls, has(libc::CLONE_SETTLS));
    let child_tid = given(
        child_tid,
        has(libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID),
    );
    let mut real = || {
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
    let done = if copies { fork::window(&mut real) } else { real() };
    pins.release(mm());
    done as c_int
}

/// syscall(SYS_fork) and SYS_clone without shared memory.
pub fn raw_fork(args: [u64; 6]) -> i64 {
    result(fork::fork(libc::SYS_clone, args))
}

/// With --no-follow programs started from here are not managed: the variables that would load the library go.
pub fn stop_following() {
    // SAFETY: in the constructor, before the program has threads.
    unsafe {
        libc::unsetenv(c"LD_PRELOAD".as_ptr());
        libc::unsetenv(join::ENV_POOL.as_ptr());
    }
}

/// An environment for a new image that loads the library, even if the program cleared its own. Holds what it made.
struct Environment {
    strings: Strings,
    made: Option<(u64, u64)>,
}

impl Environment {
    /// `envp` itself where nothing is missing (or nothing should follow).
    unsafe fn following(envp: Strings) -> Environment {
        const PRELOAD: &[u8] = b"LD_PRELOAD=";
        const TEXT_LEN: u64 = 4096;
        let plain = Environment {
            strings: envp,
            made: None,
        };
        let mm = mm();
        if envp.is_null() || mm.mode.load(Ordering::Relaxed) == mode::OFF || mm.header().has(flag::NO_FOLLOW)
        {
            return plain;
        }
        let library = sys::Num::new(mm.fd(fd::LIBRARY) as u64, 10);
        let pool = sys::Num::new(mm.fd(fd::POOL) as u64, 10);
        let (mut count, mut preload, mut has_pool) = (0usize, None, false);
        // SAFETY: a NULL-terminated array of C strings.
        unsafe {
            while !(*envp.add(count)).is_null() {
                let text = CStr::from_ptr(*envp.add(count)).to_bytes();
                has_pool |= text
                    .strip_prefix(join::ENV_POOL.to_bytes())
                    .is_some_and(|rest| rest.first() == Some(&b'='));
                if text.starts_with(PRELOAD) {
                    preload = Some(&text[PRELOAD.len()..]);
                }
                count += 1;
            }
        }
        let path = [b"/proc/self/fd/".as_slice(), library.text().as_bytes()];
        let loaded = preload.is_some_and(|value| {
            value
                .split(|&b| b == b':' || b == b' ')
                .any(|item| item.strip_prefix(path[0]) == Some(path[1]))
        });
        let theirs = preload.unwrap_or_default();
        let len = ((count + 3) * 8) as u64 + TEXT_LEN + theirs.len() as u64;
        if loaded && has_pool {
            return plain;
        }
        let Ok(memory) = sys::engine_memory(len) else {
            return plain;
        };
        let array = memory as *mut *const c_char;
        let mut text = memory + ((count + 3) * 8) as u64;
        let mut put = |parts: &[&[u8]]| {
            let start = text;
            for part in parts.iter().chain(&[b"\0".as_slice()]) {
                // SAFETY: both variables fit TEXT_LEN plus the program's own LD_PRELOAD.
                unsafe { core::ptr::copy_nonoverlapping(part.as_ptr(), text as *mut u8, part.len()) };
                text += part.len() as u64;
            }
            start as *const c_char
        };
        let colon: &[u8] = if theirs.is_empty() { b"" } else { b":" };
        let ours = [
            put(&[PRELOAD, path[0], path[1], colon, theirs]),
            put(&[join::ENV_POOL.to_bytes(), b"=", pool.text().as_bytes()]),
        ];
        let mut at = 0;
        // SAFETY: the array has room for count + 3 pointers; the source holds count strings.
        unsafe {
            for i in 0..count {
                let entry = *envp.add(i);
                let bytes = CStr::from_ptr(entry).to_bytes();
                let replaced = bytes.starts_with(PRELOAD) || bytes.starts_with(b"FARPAGE_POOL_FD=");
                if !replaced {
                    array.add(at).write(entry);
                    at += 1;
                }
            }
            for entry in ours {
                array.add(at).write(entry);
                at += 1;
            }
        }
        Environment {
            strings: array as Strings,
            made: Some((memory, len)),
        }
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        if let Some((memory, len)) = self.made {
            // SAFETY: memory of ours that nobody refers to any more.
            let _ = unsafe { sys::munmap(memory, len) };
        }
    }
}

/// An exec under way: tells the supervisor that what comes next may not be ours any more. A dormant process stays so, or the new image
/// might get a signal that was meant for the old one. Undone if exec fails.
struct Exec {
    own: bool,
    _birth: Option<Birth>,
}

impl Exec {
    fn begin() -> Exec {
        // A child that borrows its parent's memory does not speak for it.
        let own = mm().is_own();
        let exec = Exec {
            own,
            _birth: own.then(births::begin).flatten(),
        };
        exec.mark(true);
        exec
    }

    fn mark(&self, on: bool) {
        if let Some(entry) = mm().entry_opt().filter(|_| self.own) {
            entry.execing.store(u32::from(on), Ordering::Relaxed);
        }
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        self.mark(false);
    }
}

fn exec(nr: i64, args: impl Fn(Strings) -> [u64; 6], envp: Strings) -> c_int {
    // SAFETY: the caller's environment.
    let environment = unsafe { Environment::following(envp) };
    let exec = Exec::begin();
    let args = args(environment.strings);
    let raw = if mm().is_active() {
        trap::perform(nr, args)
    } else {
        // SAFETY: the caller's call.
        unsafe { sys::raw(nr, args) }
    };
    drop(exec);
    drop(environment);
    result(raw) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    exec(
        libc::SYS_execve,
        |envp| [path as u64, argv as u64, envp as u64, 0, 0, 0],
        envp,
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn farpage_execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { execve(path, argv, envp) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(file: c_int, argv: Strings, envp: Strings) -> c_int {
    let empty = c"".as_ptr() as u64;
    let flags = libc::AT_EMPTY_PATH as u64;
    exec(
        libc::SYS_execveat,
        |envp| [file as u64, empty, argv as u64, envp as u64, flags, 0],
        envp,
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    dir: c_int,
    path: *const c_char,
    argv: Strings,
    envp: Strings,
    flags: c_int,
) -> c_int {
    exec(
        libc::SYS_execveat,
        |envp| [dir as u64, path as u64, argv as u64, envp as u64, flags as u64, 0],
        envp,
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the caller's arguments and its environment.
    unsafe { execve(path, argv, environ) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the caller's arguments and its environment.
    unsafe { execvpe(file, argv, environ) }
}

/// The search along PATH is libc's; every string it may pass to the kernel is kept in RAM meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        let environment = Environment::following(envp);
        let borrowed = vfork::is_borrowed(mm());
        let _exec = Exec::begin();
        let mut done = -1;
        for _ in 0..vfork::TRIES {
            let mut pins = Pins::new();
            pin_string(&mut pins, file);
            pin_strings(&mut pins, argv);
            pin_strings(&mut pins, environment.strings);
            if borrowed {
                pins.release(mm());
                pins = Pins::new();
            }
            done = call_real!(
                execvpe as fn(*const c_char, Strings, Strings) -> c_int,
                file,
                argv,
                environment.strings
            );
            pins.release(mm());
            if !borrowed || *libc::__errno_location() != libc::EFAULT {
                break;
            }
        }
        done
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn farpage_execv(path: *const c_char, argv: Strings, search: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        if search != 0 {
            execvp(path, argv)
        } else {
            execv(path, argv)
        }
    }
}

/// Variadic: the C shim collects the arguments.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execl() {
    core::arch::naked_asm!("jmp {}", sym farpage_execl)
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execlp() {
    core::arch::naked_asm!("jmp {}", sym farpage_execlp)
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execle() {
    core::arch::naked_asm!("jmp {}", sym farpage_execle)
}

unsafe fn pin_string(pins: &mut Pins, text: *const c_char) {
    if mm().is_active() && is_managed(text as u64) {
        // SAFETY: a C string of the caller's.
        let len = unsafe { CStr::from_ptr(text) }.count_bytes() as u64 + 1;
        pins.add(mm(), text as u64, len);
    }
}

unsafe fn pin_strings(pins: &mut Pins, array: Strings) {
    if !mm().is_active() || array.is_null() {
        return;
    }
    // SAFETY: a NULL-terminated array of C strings.
    unsafe {
        let mut count = 0;
        while !(*array.add(count)).is_null() {
            pin_string(pins, *array.add(count));
            count += 1;
        }
        pins.add(mm(), array as u64, (count as u64 + 1) * 8);
    }
}

type Spawn = (
    *mut libc::pid_t,
    *const c_char,
    *const c_void,
    *const c_void,
    Strings,
    Strings,
);

/// The child of posix_spawn runs with our signals blocked: all it touches must be in RAM.
unsafe fn spawn(request: Spawn, search: bool) -> c_int {
    let (pid, path, actions, attributes, argv, envp) = request;
    // libc writes the pid while it blocks all signals: not into the program's memory, which may be cold.
    let mut started: libc::pid_t = 0;
    let _birth = births::begin();
    // SAFETY: the caller's arguments.
    unsafe {
        let environment = Environment::following(envp);
        type Pointer = *const c_void;
        // The child passes these to the kernel with SIGSYS blocked: a managed pointer would be its end.
        let plain = if mm().is_active() {
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
        let error = if search {
            call_real!(
                posix_spawnp
                    as fn(*mut libc::pid_t, *const c_char, Pointer, Pointer, Strings, Strings) -> c_int,
                &mut started,
                path,
                actions,
                attributes,
                argv,
                envp
            )
        } else {
            call_real!(
                posix_spawn
                    as fn(*mut libc::pid_t, *const c_char, Pointer, Pointer, Strings, Strings) -> c_int,
                &mut started,
                path,
                actions,
                attributes,
                argv,
                envp
            )
        };
        if error == 0
            && let Some(pid) = pid.as_mut()
        {
            *pid = started;
        }
        error
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    argv: Strings,
    envp: Strings,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { spawn((pid, path, actions, attributes, argv, envp), false) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    argv: Strings,
    envp: Strings,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { spawn((pid, path, actions, attributes, argv, envp), true) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    // SAFETY: the caller's string and its environment.
    unsafe {
        let mut pins = Pins::new();
        if !command.is_null() {
            pin_string(&mut pins, command);
            pin_strings(&mut pins, environ);
        }
        let status = call_real!(system as fn(*const c_char) -> c_int, command);
        pins.release(mm());
        status
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut c_void {
    // SAFETY: the caller's strings and its environment.
    unsafe {
        let _birth = births::begin();
        let mut pins = Pins::new();
        pin_string(&mut pins, command);
        pin_strings(&mut pins, environ);
        let stream = call_real!(
            popen as fn(*const c_char, *const c_char) -> *mut c_void,
            command,
            kind
        );
        pins.release(mm());
        stream
    }
}
