//! The benchmark's end: asks the keeper, and sees to it that a signal ends the benchmark only when all is undone.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::orphans::KEEPER;

/// A running keeper.
pub struct Keeper {
    child: Child,
    socket: BufReader<UnixStream>,
    /// How many things are made and not undone.
    made: usize,
    /// A signal has come: the thread that waits for signals is going to end the process.
    ending: Arc<AtomicBool>,
}

impl Keeper {
    /// Starts `program bench-keep`, which first undoes what others that were killed have left. `directory` is where
    /// swap files are going to be. Takes SIGINT, SIGTERM and SIGHUP over: the keeper undoes all, then the process
    /// exits with 128 + the signal's number.
    ///
    /// # Errors
    /// One line.
    pub fn start(program: &Path, directory: &Path) -> Result<Self, String> {
        let failed = |error| format!("cannot start the keeper of swap and cgroups: {error}");
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(failed)?;
        // Whoever ends all processes that carry some mark of his in their environment does not mean this one.
        let needed = ["PATH", "TMPDIR"].map(|name| (name, env::var_os(name)));
        let mut child = Command::new(program)
            .arg(KEEPER)
            .arg(directory)
            .env_clear()
            .envs(
                needed
                    .into_iter()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let alive = child.stdout.take();
        let socket = ours.try_clone().map_err(failed)?;
        let ending = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ending);
        thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                seen.store(true, Ordering::SeqCst);
                end_by_signal(signal, &ours, alive);
            }
        });
        Ok(Self {
            child,
            socket: BufReader::new(socket),
            made: 0,
            ending,
        })
    }

    /// What fails once a signal has come fails because of it, and is not told.
    fn wait_if_ending(&self) {
        // Ends with the process.
        while self.ending.load(Ordering::SeqCst) {
            thread::park();
        }
    }

    fn ask(&mut self, request: &Value) -> Result<String, String> {
        let answer = self.ask_once(request);
        if answer.is_err() {
            self.wait_if_ending();
        }
        answer
    }

    fn ask_once(&mut self, request: &Value) -> Result<String, String> {
        let gone = |error| format!("the keeper of swap and cgroups is gone: {error}");
        writeln!(self.socket.get_mut(), "{request}").map_err(gone)?;
        let mut line = String::new();
        self.socket.read_line(&mut line).map_err(gone)?;
        let answer: Value = serde_json::from_str(&line).map_err(|error| gone(error.into()))?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if answer["error"].is_null() {
            Ok(text(&answer["ok"]))
        } else {
            Err(text(&answer["error"]))
        }
    }

    fn make(&mut self, request: &Value) -> Result<String, String> {
        let made = self.ask(request)?;
        self.made += 1;
        Ok(made)
    }

    /// A swap file of `bytes` in a directory, in use; its path.
    pub fn swap_file(&mut self, directory: &Path, bytes: u64) -> Result<PathBuf, String> {
        self.make(&json!({ "make": "swap_file", "directory": directory, "bytes": bytes }))
            .map(PathBuf::from)
    }

    /// A zram device for `bytes` of data, in use as swap; its path.
    pub fn zram(&mut self, bytes: u64) -> Result<PathBuf, String> {
        self.make(&json!({ "make": "zram", "bytes": bytes }))
            .map(PathBuf::from)
    }

    /// A cgroup that is limited to `bytes`; its directory. What is in it may be swapped by the kernel if `swap`.
    pub fn cgroup(&mut self, bytes: u64, swap: bool) -> Result<PathBuf, String> {
        self.make(&json!({ "make": "cgroup", "bytes": bytes, "swap": swap }))
            .map(PathBuf::from)
    }

    /// The name of a temporary file that is there while the keeper is.
    pub fn temporary(&mut self) -> Result<PathBuf, String> {
        self.make(&json!({ "make": "temporary" })).map(PathBuf::from)
    }

    /// A new directory in `directory`, which goes with all that is in it.
    pub fn directory(&mut self, directory: &Path) -> Result<PathBuf, String> {
        self.make(&json!({ "make": "directory", "directory": directory }))
            .map(PathBuf::from)
    }

    /// A process group that is to be killed.
    pub fn group(&mut self, group: u32) -> Result<(), String> {
        self.make(&json!({ "make": "group", "id": group })).map(|_| ())
    }

    /// Takes what was made last off the list, without undoing it.
    pub fn forget(&mut self) -> Result<(), String> {
        self.ask(&json!({ "forget": true }))?;
        self.made -= 1;
        Ok(())
    }

    /// Takes a swap file or device that was made here away from the kernel, and tells how long that took.
    ///
    /// # Errors
    /// One line; it is in use as before.
    pub fn empty(&mut self, swap: &Path) -> Result<Duration, String> {
        let time = self.ask(&json!({ "empty": swap }))?;
        let nanoseconds = time
            .parse()
            .map_err(|error| format!("keeper: {time:?}: {error}"))?;
        Ok(Duration::from_nanos(nanoseconds))
    }

    /// How much is made now, to come back to.
    pub fn mark(&self) -> usize {
        self.made
    }

    /// Undoes all that was made since the mark, last first.
    ///
    /// # Errors
    /// What could not be undone.
    pub fn undo_to(&mut self, mark: usize) -> Result<(), String> {
        let mut troubles = Vec::new();
        while self.made > mark {
            self.made -= 1;
            troubles.extend(self.ask(&json!({ "undo": true })).err());
        }
        if troubles.is_empty() {
            Ok(())
        } else {
            Err(troubles.join("; "))
        }
    }

    /// Undoes all and waits for the keeper's end.
    ///
    /// # Errors
    /// If something is left; the keeper has said what.
    pub fn end(mut self) -> Result<(), String> {
        let _ = self.socket.get_ref().shutdown(Shutdown::Write);
        let ended = self.child.wait();
        self.wait_if_ending();
        match ended {
            Ok(status) if status.success() => Ok(()),
            _ => Err("not everything could be undone; see /proc/swaps".to_owned()),
        }
    }
}

/// The keeper's output, which it never writes to, ends when the keeper does.
fn end_by_signal(signal: i32, socket: &UnixStream, alive: Option<ChildStdout>) -> ! {
    let _ = socket.shutdown(Shutdown::Write);
    if let Some(mut alive) = alive {
        let _ = alive.read_to_end(&mut Vec::new());
    }
    process::exit(128 + signal)
}
