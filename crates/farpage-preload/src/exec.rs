//! exec. The new image is to load the library, and its strings may be cold.
//!
//! The search along PATH is done here, not by libc, whose calls the filter would trap: in a child of vfork that is traced
//! already (gdb makes such) a trap is a stop, and the parent that should answer waits for the exec.
//!
//! Where another preloaded library has taken over the function that the program calls, its execve is called, with the environment that is made
//! here, for each path that is tried: it is to see what is started, and may change it. libc's, which it goes on to, may be trapped.

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicI32, Ordering};

use farpage::births::{self, Birth};
use farpage::join::layout;
use farpage::mm::mm;
use farpage::trap::{self, Pins};
use farpage::{robust, sys, vfork};
use farpage_core::kill_point;

use crate::environment::Environment;
use crate::process::{Strings, environ, pin_string, pin_strings};
use crate::real::{self, Real, call_real};
use crate::result;

unsafe extern "C" {
    fn farpage_execl();
    fn farpage_execlp();
    fn farpage_execle();
    fn farpage_thread_execs() -> *mut c_int;
}

/// The child of vfork that last asked to be traced; 0: none.
static TRACED: AtomicI32 = AtomicI32::new(0);

/// The caller is one.
pub fn note_traced() {
    TRACED.store(sys::getpid(), Ordering::Relaxed);
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
        // The old memory's locks are marked when nobody is left to bring one in. Should exec fail they stay in RAM.
        robust::keep_list(mm());
        kill_point!("exec-marked");
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

/// Brings in what is read here: in a child of vfork that is traced, without a signal. Nothing is held (see [`vfork`]).
fn warm(pin: impl FnOnce(&mut Pins)) {
    if vfork::is_borrowed(mm()) {
        let mut pins = Pins::new();
        pin(&mut pins);
        pins.release(mm());
    }
}

/// Makes attempts with an environment that loads the library; they come back only with `-errno`.
fn exec(envp: Strings, attempts: impl FnOnce(Strings) -> i64) -> c_int {
    // SAFETY: the caller's environment.
    let environment = unsafe {
        warm(|pins| pin_strings(pins, envp));
        Environment::following(envp)
    };
    let exec = Exec::begin();
    // The new image is not to have its libraries among the addresses that are managed.
    let raw = layout::normally(|| attempts(environment.strings));
    drop(exec);
    drop(environment);
    result(raw) as c_int
}

/// Whether an attempt for a caller of `asked` is to be made by another library's `next`. Not if the caller is in one: it may go on to another name of exec, and we
/// would come back to it for ever. Nor in a child of vfork that is traced, or is to be from its exec on, which the engine has to see.
fn is_for_other(asked: Real, next: Real) -> bool {
    // SAFETY: this thread's own word.
    let is_inside = || unsafe { *farpage_thread_execs() } == sys::gettid();
    let is_others = !real::is_libcs(asked) && !real::is_libcs(next);
    is_others && !is_inside() && TRACED.load(Ordering::Relaxed) != sys::getpid()
}

/// An attempt by another library's function; `-errno`. All that the call names is in RAM: where no register shows it the filter lets libc's call
/// through. A child that borrows this memory holds nothing, and tries again as in [`vfork`]. It runs with our signals unblocked,
/// since it may touch what is out: of those that the program believes blocked a new image learns only where libc's call is trapped.
fn by_other(nr: i64, args: [u64; 6], call: impl Fn() -> c_int) -> i64 {
    let (own, borrowed) = (sys::gettid(), vfork::is_borrowed(mm()));
    let mut done = -i64::from(libc::EFAULT);
    for _ in 0..if borrowed { vfork::TRIES } else { 1 } {
        let mut pins = if mm().is_active() {
            Pins::of_call(mm(), nr, &args)
        } else {
            Pins::new()
        };
        if borrowed {
            pins.release(mm());
        }
        // SAFETY: this thread's own word; errno of this thread, which a function that fails has set.
        done = unsafe {
            let before = farpage_thread_execs().replace(own);
            let given = call();
            farpage_thread_execs().write(before);
            match given {
                -1 => -i64::from((*libc::__errno_location()).max(1)),
                _ => i64::from(given),
            }
        };
        if !borrowed {
            pins.release(mm());
        }
        if done != -i64::from(libc::EFAULT) {
            break;
        }
    }
    done
}

fn attempt(nr: i64, args: [u64; 6]) -> i64 {
    if mm().is_active() {
        return trap::perform(nr, args);
    }
    trap::issue(nr, args)
}

/// One attempt for a caller of `asked`.
fn attempt_path(asked: Real, path: *const c_char, argv: Strings, envp: Strings) -> i64 {
    let args = [path as u64, argv as u64, envp as u64, 0, 0, 0];
    if !is_for_other(asked, Real::execve) {
        return attempt(libc::SYS_execve, args);
    }
    by_other(libc::SYS_execve, args, || {
        call_real!(
            execve as fn(*const c_char, Strings, Strings) -> c_int,
            path,
            argv,
            envp
        )
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    by_path(Real::execve, path, argv, envp)
}

fn by_path(asked: Real, path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    exec(envp, |envp| attempt_path(asked, path, argv, envp))
}

fn by_search(asked: Real, file: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: the caller's arguments.
    exec(envp, |envp| unsafe { search(asked, file, argv, envp) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn farpage_execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    by_path(Real::execle, path, argv, envp)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(file: c_int, argv: Strings, envp: Strings) -> c_int {
    let empty = c"".as_ptr() as u64;
    let flags = libc::AT_EMPTY_PATH as u64;
    exec(envp, |envp| {
        let args = [file as u64, empty, argv as u64, envp as u64, flags, 0];
        if !is_for_other(Real::fexecve, Real::fexecve) {
            return attempt(libc::SYS_execveat, args);
        }
        by_other(libc::SYS_execveat, args, || {
            call_real!(fexecve as fn(c_int, Strings, Strings) -> c_int, file, argv, envp)
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    dir: c_int,
    path: *const c_char,
    argv: Strings,
    envp: Strings,
    flags: c_int,
) -> c_int {
    exec(envp, |envp| {
        let args = [dir as u64, path as u64, argv as u64, envp as u64, flags as u64, 0];
        type Path = *const c_char;
        if !is_for_other(Real::execveat, Real::execveat) {
            return attempt(libc::SYS_execveat, args);
        }
        by_other(libc::SYS_execveat, args, || {
            call_real!(
                execveat as fn(c_int, Path, Strings, Strings, c_int) -> c_int,
                dir,
                path,
                argv,
                envp,
                flags
            )
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the program's environment.
    by_path(Real::execv, path, argv, unsafe { environ })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the program's environment.
    by_search(Real::execvp, file, argv, unsafe { environ })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
    by_search(Real::execvpe, file, argv, envp)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn farpage_execv(path: *const c_char, argv: Strings, search: c_int) -> c_int {
    // SAFETY: the program's environment.
    let envp = unsafe { environ };
    if search != 0 {
        by_search(Real::execlp, path, argv, envp)
    } else {
        by_path(Real::execl, path, argv, envp)
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

/// The next path to try, in room of ours: a directory of PATH (nothing: the current one) and the name.
struct Candidate {
    text: [u8; PATH_MAX + 1],
}

const PATH_MAX: usize = 4096;
const NAME_MAX: usize = 255;

impl Candidate {
    fn set(&mut self, directory: &[u8], name: &[u8]) -> Option<*const c_char> {
        let slash: &[u8] = if directory.is_empty() { b"" } else { b"/" };
        let mut len = 0;
        for part in [directory, slash, name, b"\0"] {
            self.text.get_mut(len..len + part.len())?.copy_from_slice(part);
            len += part.len();
        }
        Some(self.text.as_ptr() as *const c_char)
    }
}

/// exec of one path, and of the shell for a script without an interpreter line.
unsafe fn attempt_script(asked: Real, path: *const c_char, argv: Strings, envp: Strings) -> i64 {
    let raw = attempt_path(asked, path, argv, envp);
    if raw != -i64::from(libc::ENOEXEC) {
        return raw;
    }
    // SAFETY: the caller's arguments; the array has room for one more string than argv, and for the end.
    unsafe {
        let mut count = 0;
        while !(*argv.add(count)).is_null() {
            count += 1;
        }
        let len = (count as u64 + 3) * 8;
        let Ok(memory) = sys::engine_memory(len) else {
            return -i64::from(libc::ENOMEM);
        };
        let array = memory as *mut *const c_char;
        array.write(c"/bin/sh".as_ptr());
        array.add(1).write(path);
        for index in 1..count {
            array.add(index + 1).write(*argv.add(index));
        }
        let raw = attempt_path(asked, c"/bin/sh".as_ptr(), array as Strings, envp);
        let _ = sys::munmap(memory, len);
        raw
    }
}

/// execvpe(3): a name without a slash is looked for in the directories of PATH. Returns `-errno`.
unsafe fn search(asked: Real, file: *const c_char, argv: Strings, envp: Strings) -> i64 {
    // SAFETY: the caller's arguments; PATH is a string of the environment's.
    unsafe {
        warm(|pins| {
            pin_string(pins, file);
            pin_strings(pins, argv);
        });
        let name = CStr::from_ptr(file).to_bytes();
        if name.is_empty() {
            return -i64::from(libc::ENOENT);
        }
        if name.contains(&b'/') {
            return attempt_script(asked, file, argv, envp);
        }
        if name.len() > NAME_MAX {
            return -i64::from(libc::ENAMETOOLONG);
        }
        let path = libc::getenv(c"PATH".as_ptr());
        let path = if path.is_null() {
            c"/bin:/usr/bin"
        } else {
            CStr::from_ptr(path)
        };
        let mut candidate = Candidate {
            text: [0; PATH_MAX + 1],
        };
        let mut last = libc::ENOENT;
        for directory in path.to_bytes().split(|&b| b == b':') {
            let Some(text) = candidate.set(directory, name) else {
                continue;
            };
            let raw = attempt_script(asked, text, argv, envp);
            match -raw as c_int {
                libc::EACCES => last = libc::EACCES,
                libc::ENOENT | libc::ESTALE | libc::ENOTDIR | libc::ENODEV | libc::ETIMEDOUT => {}
                _ => return raw,
            }
        }
        -i64::from(last)
    }
}
