//! system and popen by posix_spawn, which copies what it hands over (`plain`) and has what is started follow. For an active process whose
//! `environ` is an array in managed memory: libc's own would hand that to execve in a child that the filter's signal ends. And for one that has
//! cleared it: libc's own knows of nothing that follows.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use farpage::gate::Spin;
use farpage::mm::mm;
use farpage::pool::is_managed;
use farpage::sys;

use crate::environment::Environment;
use crate::process::{Strings, environ, posix_spawn};
use crate::result;

/// Streams that popen made here and pclose has not ended; more are libc's.
const STREAMS_MAX: usize = 64;
/// What the exit code of a shell that could not be started is.
const NOT_STARTED: c_int = 127 << 8;

/// Whether libc's own would lose its child, or who follows it.
pub fn is_needed() -> bool {
    // SAFETY: the program's pointer, and what it points to.
    unsafe { (mm().is_active() && is_managed(environ as u64)) || Environment::is_missing(environ) }
}

/// Starts the shell with a command. `attributes` and `actions` are a spawn's, or NULL.
unsafe fn start(
    command: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
) -> Result<libc::pid_t, c_int> {
    let argv = [c"sh".as_ptr(), c"-c".as_ptr(), command, null()];
    let mut pid = 0;
    // SAFETY: the caller's string, and what is made of it.
    let error = unsafe {
        posix_spawn(
            &mut pid,
            c"/bin/sh".as_ptr(),
            actions,
            attributes,
            argv.as_ptr() as Strings,
            environ,
        )
    };
    if error == 0 { Ok(pid) } else { Err(error) }
}

/// Waits for a child, whatever signals come; its status, or -1 and errno.
unsafe fn wait_for(pid: libc::pid_t) -> c_int {
    let mut status = 0;
    // SAFETY: our own child.
    unsafe {
        while libc::waitpid(pid, &mut status, 0) < 0 {
            if *libc::__errno_location() != libc::EINTR {
                return -1;
            }
        }
    }
    status
}

/// What SIGINT and SIGQUIT did before the first of the commands that run, and how many run.
struct Ignored {
    commands: u32,
    before: [libc::sigaction; 2],
}

const INTERRUPTS: [c_int; 2] = [libc::SIGINT, libc::SIGQUIT];
static IGNORED: Spin<Ignored> = Spin::new(Ignored {
    commands: 0,
    // SAFETY: all zero is a sigaction.
    before: [unsafe { core::mem::zeroed() }; 2],
});

/// In a forked child: another thread of the parent may have held the lock.
pub fn forget() {
    IGNORED.abandon();
}

/// Counts a command more or less; what the interrupts did before the first.
fn change_ignored(begin: bool) -> [libc::sigaction; 2] {
    let mask = sys::block_signals();
    let mut ignored = IGNORED.lock();
    // SAFETY: valid actions.
    unsafe {
        if begin && ignored.commands == 0 {
            let mut ignore: libc::sigaction = core::mem::zeroed();
            ignore.sa_sigaction = libc::SIG_IGN;
            for (signal, before) in INTERRUPTS.into_iter().zip(&mut ignored.before) {
                libc::sigaction(signal, &ignore, before);
            }
        }
        if !begin && ignored.commands == 1 {
            for (signal, before) in INTERRUPTS.into_iter().zip(&ignored.before) {
                libc::sigaction(signal, before, null_mut());
            }
        }
    }
    ignored.commands = if begin {
        ignored.commands + 1
    } else {
        ignored.commands.saturating_sub(1)
    };
    let before = ignored.before;
    drop(ignored);
    sys::set_mask(mask);
    before
}

/// system(3) of a command.
///
/// # Safety
/// A C string.
pub unsafe fn system(command: *const c_char) -> c_int {
    let before = change_ignored(true);
    // SAFETY: sets and attributes are ours; the rest is the caller's.
    let status = unsafe {
        let (mut child, mut blocked, mut default): (libc::sigset_t, libc::sigset_t, libc::sigset_t) =
            core::mem::zeroed();
        libc::sigaddset(&mut child, libc::SIGCHLD);
        libc::pthread_sigmask(libc::SIG_BLOCK, &child, &mut blocked);
        for (signal, before) in INTERRUPTS.into_iter().zip(&before) {
            if before.sa_sigaction != libc::SIG_IGN {
                libc::sigaddset(&mut default, signal);
            }
        }
        let mut attributes: libc::posix_spawnattr_t = core::mem::zeroed();
        libc::posix_spawnattr_init(&mut attributes);
        libc::posix_spawnattr_setsigmask(&mut attributes, &blocked);
        libc::posix_spawnattr_setsigdefault(&mut attributes, &default);
        let flags = libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF;
        libc::posix_spawnattr_setflags(&mut attributes, flags as i16);
        let status = match start(command, null(), (&raw const attributes).cast()) {
            Ok(pid) => wait_for(pid),
            Err(_) => NOT_STARTED,
        };
        libc::posix_spawnattr_destroy(&mut attributes);
        libc::pthread_sigmask(libc::SIG_SETMASK, &blocked, null_mut());
        status
    };
    change_ignored(false);
    status
}

/// A stream of popen's and its child; NULL: free.
struct Stream {
    file: AtomicPtr<c_void>,
    pid: AtomicI32,
}

static STREAMS: [Stream; STREAMS_MAX] = [const {
    Stream {
        file: AtomicPtr::new(null_mut()),
        pid: AtomicI32::new(0),
    }
}; STREAMS_MAX];

/// popen(3).
///
/// # Safety
/// C strings.
pub unsafe fn popen(command: *const c_char, kind: *const c_char) -> *mut c_void {
    // SAFETY: the caller's string.
    let words = unsafe { core::ffi::CStr::from_ptr(kind) }.to_bytes();
    let (reads, closes) = (words.contains(&b'r'), words.contains(&b'e'));
    let place = STREAMS.iter().find(|stream| {
        stream
            .pid
            .compare_exchange(0, -1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    });
    let (Some(place), true) = (place, reads != words.contains(&b'w')) else {
        let error = if place.is_some() {
            libc::EINVAL
        } else {
            libc::EMFILE
        };
        if let Some(place) = place {
            place.pid.store(0, Ordering::Release);
        }
        result(-i64::from(error));
        return null_mut();
    };
    let mut ends = [0; 2];
    // SAFETY: fills two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        place.pid.store(0, Ordering::Release);
        return null_mut();
    }
    let (ours, theirs, number) = if reads {
        (ends[0], ends[1], 1)
    } else {
        (ends[1], ends[0], 0)
    };
    // SAFETY: our descriptors and actions, the caller's command.
    unsafe {
        let mut actions: libc::posix_spawn_file_actions_t = core::mem::zeroed();
        libc::posix_spawn_file_actions_init(&mut actions);
        // The ends of earlier ones are not the child's.
        let earlier = STREAMS.iter().map(|stream| stream.file.load(Ordering::Acquire));
        for file in earlier.filter(|file| !file.is_null()) {
            let other = libc::fileno(file.cast());
            if other != number {
                libc::posix_spawn_file_actions_addclose(&mut actions, other);
            }
        }
        libc::posix_spawn_file_actions_adddup2(&mut actions, theirs, number);
        let started = start(command, (&raw const actions).cast(), null());
        libc::posix_spawn_file_actions_destroy(&mut actions);
        libc::close(theirs);
        let file = match started {
            Ok(_) => libc::fdopen(ours, if reads { c"r".as_ptr() } else { c"w".as_ptr() }),
            Err(_) => null_mut(),
        };
        match started {
            Ok(pid) if !file.is_null() => {
                if !closes {
                    libc::fcntl(ours, libc::F_SETFD, 0);
                }
                place.pid.store(pid, Ordering::Relaxed);
                place.file.store(file.cast(), Ordering::Release);
                return file.cast();
            }
            Ok(pid) => {
                libc::close(ours);
                wait_for(pid);
            }
            Err(error) => {
                libc::close(ours);
                result(-i64::from(error));
            }
        }
        place.pid.store(0, Ordering::Release);
        null_mut()
    }
}

/// pclose(3) of a stream that was made here; `None` for any other.
///
/// # Safety
/// A stream.
pub unsafe fn pclose(file: *mut c_void) -> Option<c_int> {
    let place = STREAMS
        .iter()
        .find(|stream| stream.file.load(Ordering::Acquire) == file && !file.is_null())?;
    let pid = place.pid.load(Ordering::Relaxed);
    place.file.store(null_mut(), Ordering::Relaxed);
    place.pid.store(0, Ordering::Release);
    // SAFETY: the caller's stream, and its child.
    unsafe {
        libc::fclose(file.cast());
        Some(wait_for(pid))
    }
}
