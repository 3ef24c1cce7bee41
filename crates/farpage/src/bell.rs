//! How a command wakes the supervisor between two ticks: a pipe of the supervisor's, which whoever may open the tree's pool may
//! write to.
//!
//! # Safety
//! The call fills an array on the stack.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering;
use std::fs::OpenOptions;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};

use crate::pool::Header;
use crate::trees;

/// The supervisor's end.
pub struct Bell {
    rung: PipeReader,
    _ringer: PipeWriter,
}

impl Bell {
    /// Hangs one up and writes its number into the pool, for a supervisor that is the caller.
    pub fn hang(header: &Header) -> io::Result<Bell> {
        let (rung, ringer) = io::pipe()?;
        header
            .control
            .bell
            .store(rung.as_raw_fd() as u32, Ordering::Release);
        Ok(Bell {
            rung,
            _ringer: ringer,
        })
    }

    /// Returns when it is rung, when `other` can be read (-1: there is none), after a signal, or after `ms` milliseconds.
    pub fn wait(&mut self, other: i32, ms: i32) {
        let mut polled = [self.rung.as_raw_fd(), other].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        // SAFETY: two pollfds.
        let ready = unsafe { libc::poll(polled.as_mut_ptr(), 2, ms) };
        if ready > 0 && polled[0].revents & libc::POLLIN != 0 {
            // What is there is read at once; a few rings more cost a look each.
            let _ = self.rung.read(&mut [0; 64]);
        }
    }
}

/// Wakes the supervisor of a tree. It looks by itself a little later where this can't be done.
pub fn ring(header: &Header) {
    let number = header.control.bell.load(Ordering::Acquire);
    let Some(supervisor) = trees::supervisor(header).filter(|_| number != 0) else {
        return;
    };
    let opened = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(format!("/proc/{supervisor}/fd/{number}"));
    if let Ok(mut pipe) = opened
        && pipe.metadata().is_ok_and(|meta| meta.file_type().is_fifo())
    {
        let _ = pipe.write_all(&[0]);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::pool::{Geometry, Pool};
    use crate::sys;

    #[test]
    fn who_waits_is_woken_once_for_a_ring() {
        let (_, pool) = Pool::create(&Geometry::default()).expect("a pool");
        let header = pool.header();
        ring(header);
        header.supervisor.store(sys::getpid(), Ordering::Relaxed);
        header
            .pid_namespace
            .store(sys::pid_namespace(), Ordering::Relaxed);
        let mut bell = Bell::hang(header).expect("a pipe");
        ring(header);
        let start = Instant::now();
        bell.wait(-1, 60_000);
        assert!(start.elapsed() < Duration::from_secs(30), "it was rung before");
        let start = Instant::now();
        bell.wait(-1, 50);
        assert!(
            start.elapsed() >= Duration::from_millis(50),
            "nobody has rung since"
        );
    }
}
