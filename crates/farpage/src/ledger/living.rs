//! Processes whose first thread has ended before the others (pthread_exit in main). To /proc that thread is the process: it has
//! neither memory nor descriptors any more, so its files are empty or can't be read, while those of another thread tell all.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What a file of /proc says. Names of processes and files may be in any encoding, and those of processes are cut anywhere.
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = fs::read(path)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What /proc/PID/status has behind `key`.
pub fn status(pid: i32, key: &str) -> Option<String> {
    let status = text(format!("/proc/{pid}/status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(key))?;
    Some(value.trim().to_owned())
}

/// What a file of /proc says about the memory of a process.
pub fn of_memory(pid: i32, name: &str) -> io::Result<String> {
    let of_first = text(format!("/proc/{pid}/{name}"));
    if !is_silent(&of_first) {
        return of_first;
    }
    match thread(pid) {
        Some(living) => text(living.join(name)),
        None => of_first,
    }
}

/// The directory in /proc of a thread that lives, where the first of its process does not. Ends with the list of its threads.
#[must_use]
pub fn thread(pid: i32) -> Option<PathBuf> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    if lives(&process) {
        return None;
    }
    let threads = fs::read_dir(process.join("task")).ok()?.flatten();
    threads.map(|thread| thread.path()).find(|thread| lives(thread))
}

/// Whether a process is stopped, by a signal or a debugger: it answers nobody.
#[must_use]
pub fn is_stopped(pid: i32) -> bool {
    let directory = thread(pid).unwrap_or_else(|| PathBuf::from(format!("/proc/{pid}")));
    state_is(&directory, |fields| matches!(fields.first(), Some(&"T" | &"t")))
}

/// As maps, statm and smaps_rollup are without memory.
fn is_silent(text: &io::Result<String>) -> bool {
    match text {
        Ok(text) => text.is_empty() || text.starts_with("0 "),
        Err(e) => e.raw_os_error() == Some(libc::ESRCH),
    }
}

fn lives(directory: &Path) -> bool {
    state_is(directory, |fields| !is_ended(fields))
}

/// False, too, where it can't be read.
fn state_is(directory: &Path, wanted: impl Fn(&[&str]) -> bool) -> bool {
    let stat = text(directory.join("stat")).unwrap_or_default();
    fields(&stat).is_some_and(|fields| wanted(&fields))
}

/// The fields of /proc/PID/stat from the third on, the state. The name before it, in parentheses, may hold anything.
pub fn fields(stat: &str) -> Option<Vec<&str>> {
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_ascii_whitespace().collect())
}

/// Whether these fields are of a thread that has ended.
pub fn is_ended(fields: &[&str]) -> bool {
    matches!(fields.first(), Some(&"Z" | &"X"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    fn becomes(pid: i32, stopped: bool) -> bool {
        let end = Instant::now() + Duration::from_secs(60);
        while is_stopped(pid) != stopped && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        is_stopped(pid) == stopped
    }

    /// It ends with its input.
    #[test]
    fn who_is_stopped() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat");
        let pid = i32::try_from(child.id()).expect("a pid");
        for (signal, stopped) in [("-STOP", true), ("-CONT", false)] {
            let sent = Command::new("kill").args([signal, &pid.to_string()]).status();
            assert!(sent.is_ok_and(|status| status.success()), "{signal}");
            assert!(becomes(pid, stopped), "{signal}");
        }
        drop(child.stdin.take());
        assert!(child.wait().expect("its end").success());
        assert!(!is_stopped(pid), "ended");
    }
}
