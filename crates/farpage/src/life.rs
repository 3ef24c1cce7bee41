//! Whether anybody of the tree lives: a pipe whose writing end each of its processes has, from fork to fork and from exec to exec.
//!
//! The books are no answer by themselves. A child that is being made, one of a dormant process, an image between an exec and its
//! constructor are in no entry yet, or in none that counts: a supervisor that went by entries alone ended while the last process was in
//! exec, or a daemon had just been made, and put the swap file's sign back over pages of theirs.
//!
//! # Safety
//! The call fills an array on the stack.
#![allow(unsafe_code)]

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsRawFd;

/// The supervisor's end.
pub struct Life {
    read: PipeReader,
    write: Option<PipeWriter>,
}

impl Life {
    /// # Errors
    /// Where no pipe can be made.
    pub fn begin() -> io::Result<Life> {
        let (read, write) = io::pipe()?;
        Ok(Life {
            read,
            write: Some(write),
        })
    }

    /// What the first process of the tree gets; -1 once it is let go.
    #[must_use]
    pub fn descriptor(&self) -> i32 {
        self.write.as_ref().map_or(-1, PipeWriter::as_raw_fd)
    }

    /// The first process has it: from now on only the tree does.
    pub fn let_go(&mut self) {
        self.write = None;
    }

    /// Whether no process has it any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let mut polled = libc::pollfd {
            fd: self.read.as_raw_fd(),
            events: 0,
            revents: 0,
        };
        // SAFETY: one pollfd.
        let ready = unsafe { libc::poll(&mut polled, 1, 0) };
        ready > 0 && polled.revents & libc::POLLHUP != 0
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn it_is_over_when_the_last_holder_has_ended() {
        let mut life = Life::begin().expect("a pipe");
        let writer = life
            .write
            .as_ref()
            .expect("not let go")
            .try_clone()
            .expect("a copy");
        let mut holder = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(writer)
            .spawn()
            .expect("cat");
        assert!(!life.is_over());
        life.let_go();
        assert!(!life.is_over());
        drop(holder.stdin.take());
        holder.wait().expect("its end");
        // What another test starts has the pipe until its exec.
        while !life.is_over() {
            std::thread::yield_now();
        }
        assert_eq!(life.descriptor(), -1);
    }
}
