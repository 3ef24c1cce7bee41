//! Signals that a process sends to `farpage run` and means for the program.
//!
//! # Safety
//! Installs handlers that read one word and make one system call.
#![allow(unsafe_code)]

use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use crate::sys;

/// Not passed on: what nobody can catch, a child's end, job control (shells continue the whole group, and would do it twice), and
/// what a fault of the supervisor's own raises.
const KEPT: [i32; 15] = [
    libc::SIGKILL,
    libc::SIGSTOP,
    libc::SIGCHLD,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGCONT,
    libc::SIGPIPE,
    libc::SIGABRT,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGSYS,
    libc::SIGTRAP,
];
/// What a terminal tells its processes.
const TERMINALS: [i32; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGWINCH];
/// Up to here the numbers are the same everywhere; real-time signals begin above what libc keeps for itself.
const STANDARD_MAX: i32 = 31;

/// The program; 0 before it is there and after its end.
static CHILD: AtomicI32 = AtomicI32::new(0);
/// Those that were ignored before, a bit each.
static IGNORED: AtomicU64 = AtomicU64::new(0);
/// Whether this process leads its session.
static LEADS: AtomicBool = AtomicBool::new(false);

/// What is passed on.
pub fn signals() -> impl Iterator<Item = i32> {
    let standard = (1..=STANDARD_MAX).filter(|sig| !KEPT.contains(sig));
    standard.chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

/// What was done with each of them before.
#[derive(Default)]
#[must_use]
pub struct Before(Vec<(i32, libc::sigaction)>);

/// From now on they go to the child.
pub fn begin(child: i32) -> Before {
    CHILD.store(child, Ordering::Relaxed);
    // SAFETY: asks for the caller's session.
    let session = unsafe { libc::getsid(0) };
    LEADS.store(session == sys::getpid(), Ordering::Relaxed);
    let mut all = Vec::new();
    // SAFETY: installs a handler that is safe at any moment; all zero is a sigaction.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = pass_on as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        for sig in signals() {
            let mut old: libc::sigaction = mem::zeroed();
            libc::sigaction(sig, &raw const action, &raw mut old);
            if old.sa_sigaction == libc::SIG_IGN {
                IGNORED.fetch_or(1 << (sig - 1), Ordering::Relaxed);
            }
            all.push((sig, old));
        }
    }
    Before(all)
}

impl Before {
    /// They are this process's own again: what it does last may wait for others, and must be able to be ended.
    pub fn restore(&self) {
        for (sig, action) in &self.0 {
            // SAFETY: what the kernel said was there.
            unsafe { libc::sigaction(*sig, action, ptr::null_mut()) };
        }
    }
}

/// The child has ended, and its number may be another's soon.
pub fn end() {
    CHILD.store(0, Ordering::Relaxed);
}

/// The terminal's signals, which the kernel sends, reach the program by its process group, and limits of CPU time are each
/// process's own. But a program that has made a group of its own, as timeout does, is not in that of the terminal's foreground any more;
/// an alarm that was set before farpage's exec is the program's; and a terminal that is closed is told to the leader of its session
/// alone, by whose end the others would learn it. What we were started to ignore, as a script's background jobs are, was not meant for a
/// group of the program's own either.
extern "C" fn pass_on(sig: i32, info: *const libc::siginfo_t, _context: *const libc::c_void) {
    // SAFETY: the kernel's siginfo.
    let code = unsafe { (*info).si_code };
    let child = CHILD.load(Ordering::Relaxed);
    // Its end is on its way then, or it has ended: nobody is to be told.
    let _ = match code {
        _ if child == 0 => Ok(()),
        libc::SI_QUEUE => sys::queue_signal(child, sig, info),
        _ if code <= 0 || sig == libc::SIGALRM => sys::kill(child, sig),
        _ if sig == libc::SIGHUP && LEADS.load(Ordering::Relaxed) => sys::kill(child, sig),
        _ if IGNORED.load(Ordering::Relaxed) & 1 << (sig - 1) != 0 => Ok(()),
        _ if TERMINALS.contains(&sig) => {
            whom_no_terminal_tells(child).map_or(Ok(()), |whom| sys::kill(whom, sig))
        }
        _ => Ok(()),
    };
}

/// Who is to be told what the terminal told our group: the child's group (as a negative number) where it leads one, or the child where it
/// is in another's. Nobody where the child was told as well, or has left for another session, whose terminal it is not.
fn whom_no_terminal_tells(child: i32) -> Option<i32> {
    // SAFETY: asks for numbers; whoever is interrupted here finds its errno as it was.
    let (ours, theirs, is_left) = unsafe {
        let errno = *libc::__errno_location();
        let (ours, theirs) = (libc::getpgrp(), libc::getpgid(child));
        let is_left = libc::getsid(child) != libc::getsid(0);
        *libc::__errno_location() = errno;
        (ours, theirs, is_left)
    };
    if theirs <= 0 || theirs == ours || is_left {
        return None;
    }
    Some(if theirs == child { -child } else { child })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_can_be_caught_and_is_not_kept() {
        let all: Vec<i32> = signals().collect();
        assert_eq!(
            all.len(),
            STANDARD_MAX as usize - KEPT.len() + (libc::SIGRTMAX() - libc::SIGRTMIN() + 1) as usize
        );
        for sig in [
            libc::SIGINT,
            libc::SIGALRM,
            libc::SIGWINCH,
            libc::SIGRTMIN(),
            libc::SIGRTMAX(),
        ] {
            assert!(all.contains(&sig), "{sig}");
        }
        assert!(KEPT.iter().all(|sig| !all.contains(sig)));
    }
}
