//! The file of `--stats-json`: opened before the run so that a bad path costs nothing, filled after it.
//!
//! Where what is named is a file that farpage was given (/dev/stderr, or the log that stderr goes to), the figures go on where the program
//! has stopped: opened anew it would be written from its beginning, and cut, and what stood in it was lost.
//!
//! # Safety
//! Asks about and copies descriptors by number, and waits on one.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use farpage::supervisor::Outcome;

use crate::json::{self, RunFacts};
use crate::{EXIT_FAILED, Failure};

pub struct StatsFile {
    file: File,
    path: PathBuf,
    origin: Origin,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Made for the figures.
    New,
    /// What stood in it gives way to them.
    Old,
    /// They are one text among others.
    Given,
}

impl StatsFile {
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let opened = match given(path) {
            Some(number) => copy(number).map(|file| (file, Origin::Given)),
            None => open_named(path),
        };
        match opened {
            Ok((file, origin)) => Ok(Self {
                file,
                path: path.to_owned(),
                origin,
            }),
            Err(error) => Err(Failure::new(
                EXIT_FAILED,
                format!(
                    "--stats-json {}: {error}; name a file that can be written",
                    path.display()
                ),
            )),
        }
    }

    /// The number of the descriptor that it is written by.
    pub fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Whether to write it takes no waiting for a reader, and follows no other text.
    pub fn is_a_file_of_its_own(&self) -> bool {
        self.origin != Origin::Given && self.file.metadata().is_ok_and(|meta| meta.is_file())
    }

    /// Nothing ran: a file that was made for it would be empty, which is no JSON. Another run may have filled it meanwhile, or put its own
    /// in its place.
    pub fn abandon(&self) {
        if self.origin == Origin::New
            && let Ok(ours) = self.file.metadata()
            && let Ok(named) = fs::symlink_metadata(&self.path)
            && ours.len() == 0
            && identity(&ours) == identity(&named)
        {
            let _ = fs::remove_file(&self.path);
        }
    }

    pub fn write(self, command: &[OsString], outcome: &Outcome) -> Result<(), Failure> {
        let facts = RunFacts {
            command,
            exit_code: outcome.exit_code,
        };
        let text = format!("{:#}\n", json::stats(&outcome.snapshot, Some(facts)));
        // Only a regular file has an old content to be cut; a pipe or terminal has none.
        let cut = if self.is_a_file_of_its_own() {
            self.file.set_len(0)
        } else {
            Ok(())
        };
        cut.and_then(|()| write_waiting(&self.file, text.as_bytes()))
            .map_err(|error| {
                Failure::new(
                    EXIT_FAILED,
                    format!(
                        "--stats-json {}: {error}; the figures of this run are lost",
                        self.path.display()
                    ),
                )
            })
    }
}

/// Opens a file by its name, making it where there is none.
fn open_named(path: &Path) -> io::Result<(File, Origin)> {
    let mut how = OpenOptions::new();
    how.write(true);
    match how.clone().create_new(true).open(path) {
        Ok(file) => Ok((file, Origin::New)),
        // A link that leads nowhere yet, too: what it is to lead to is not the link.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let file = how.create(true).truncate(false).open(path)?;
            Ok((file, Origin::Old))
        }
        Err(error) => Err(error),
    }
}

/// What tells a file from all others.
fn identity(meta: &fs::Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

/// The number of the descriptor that a path names, or behind which the same file is as behind stdout or stderr.
fn given(path: &Path) -> Option<i32> {
    let text = path.to_str()?;
    let numbered = ["/dev/fd/", "/proc/self/fd/", "/proc/thread-self/fd/"];
    if let Some(rest) = numbered.iter().find_map(|start| text.strip_prefix(start)) {
        return rest.parse().ok().filter(|number| *number >= 0);
    }
    match text {
        "/dev/stdin" => return Some(0),
        "/dev/stdout" => return Some(1),
        "/dev/stderr" => return Some(2),
        _ => {}
    }
    let named = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    [1, 2].into_iter().find(|&number| {
        let behind = copy(number).and_then(|file| file.metadata());
        behind.is_ok_and(|meta| identity(&meta) == identity(&named))
    })
}

/// Another descriptor for the same open file, of which no program learns.
fn copy(number: i32) -> io::Result<File> {
    // SAFETY: asks about a number, which may be nobody's.
    let how = unsafe { libc::fcntl(number, libc::F_GETFL) };
    if how < 0 {
        return Err(io::Error::last_os_error());
    }
    if how & libc::O_ACCMODE == libc::O_RDONLY {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY:
    // - it was open a moment ago, and this process has one thread.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    descriptor.try_clone_to_owned().map(File::from)
}

/// Writes all. Where the program has left its pipe or terminal non-blocking, which it shares with us, this waits for room.
fn write_waiting(mut file: &File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let mut poll = libc::pollfd {
                    fd: file.as_raw_fd(),
                    events: libc::POLLOUT,
                    revents: 0,
                };
                // SAFETY:
                // - one live `struct pollfd`.
                unsafe { libc::poll(&raw mut poll, 1, -1) };
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{env, process};

    use super::*;

    #[test]
    fn it_replaces_its_old_content() {
        let path = env::temp_dir().join(format!("farpage-stats-{}.json", process::id()));
        fs::write(&path, "x".repeat(100_000)).expect("old content");
        let outcome = Outcome {
            exit_code: 7,
            snapshot: crate::summary::tests::sample(),
            signals: farpage::supervisor::Before::default(),
        };
        let file = StatsFile::open(&path).expect("opens");
        file.write(&["true".into()], &outcome).expect("writes");
        let text = fs::read_to_string(&path).expect("reads");
        fs::remove_file(&path).expect("removed");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON and nothing else");
        assert_eq!(value["exit_code"], 7);
        assert!(StatsFile::open(Path::new("/no/such/dir/f")).is_err());
    }

    #[test]
    fn abandoned_it_goes_unless_it_is_not_what_was_made() {
        let name = |what| env::temp_dir().join(format!("farpage-stats-{what}-{}.json", process::id()));
        let open = |path: &Path| StatsFile::open(path).expect("opens");
        let [path, link] = ["new", "link"].map(name);
        open(&path).abandon();
        assert!(!path.exists(), "made for nothing");
        // Another run has filled it meanwhile.
        let first = open(&path);
        fs::write(&path, "{}").expect("filled");
        first.abandon();
        assert_eq!(fs::read_to_string(&path).expect("stays"), "{}");
        fs::remove_file(&path).expect("removed");
        // A link that leads nowhere yet.
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        open(&link).abandon();
        let stays = fs::symlink_metadata(&link).is_ok();
        for made in [&path, &link] {
            let _ = fs::remove_file(made);
        }
        assert!(stays, "the user's link");
    }

    #[test]
    fn names_of_given_files() {
        for (path, number) in [
            ("/dev/stdout", Some(1)),
            ("/dev/fd/7", Some(7)),
            ("/proc/self/fd/2", Some(2)),
            ("/dev/fd/-1", None),
            ("/dev/fd/x", None),
            ("/no/such/dir/f", None),
        ] {
            assert_eq!(given(Path::new(path)), number, "{path}");
        }
    }
}
