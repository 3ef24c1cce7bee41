//! Opening what `--swap` names: a directory, a file, a block device. Nothing that holds somebody's data is taken.
//!
//! # Safety
//! Plain system calls on descriptors of ours.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use farpage_core::units::{PAGE_SIZE, format_size};

use crate::pool::{MAX_AREAS, trait_of};
use crate::supervisor::{AreaSpec, PathSpec};

/// Largest file made without being asked for a size.
const DEFAULT_MAX: u64 = 1 << 40;
/// Share of the free space taken when no size is given: the rest of the machine needs some too.
const FREE_SHARE: (u64, u64) = (9, 10);
const AREA_MIN: u64 = 1 << 20;
/// A disk that was full has room again when so much of it is free, in bytes.
const SPACE_MIN: u64 = 4 << 20;
/// So much of a file or device is looked at for somebody's data.
const HEAD: usize = 64 << 10;
/// So much of a file is given back at once.
const SHRUNK_BY: u64 = 64 << 20;
/// What mkswap writes at the end of the first page.
const SIGNATURE: &[u8] = b"SWAPSPACE2";

/// A swap file or device ready for use.
pub struct OpenArea {
    pub file: File,
    pub blocks: u64,
    pub name: String,
    /// Bits of [`trait_of`].
    pub traits: u64,
    /// As in [`PathSpec`].
    pub priority: Option<u16>,
    /// The first page of what was there before, and is there again when the area is given back. None: made by us, without a name in any
    /// directory, and gone with what it holds when the last descriptor is closed.
    head: Option<Vec<u8>>,
}

impl OpenArea {
    /// Whether all of it is gone with its last descriptor.
    #[must_use]
    pub fn is_unlinked(&self) -> bool {
        self.head.is_none()
    }

    /// Whether its disk has room for more of it, as far as the file system tells. A device has no other.
    pub fn has_space(&self) -> bool {
        let is_file = self.file.metadata().is_ok_and(|meta| meta.is_file());
        !is_file || free_bytes(&self.file, Path::new(&self.name)).is_ok_and(|free| free >= SPACE_MIN)
    }

    /// Nothing is in it any more: the sign by which it was known to be nobody's data is, and is again next time. If that fails it is left:
    /// a place whose beginning holds data is refused. Without effect on what is unlinked.
    pub fn give_back(&self) {
        let Some(head) = &self.head else {
            return;
        };
        // Not past the page cache: this is a few bytes from wherever they lie.
        let again = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let Ok(file) = OpenOptions::new().write(true).open(again) else {
            return;
        };
        let zeros = vec![0; HEAD];
        let was_empty = head.iter().all(|&byte| byte == 0);
        let _ = file
            .write_all_at(if was_empty { &zeros } else { head }, 0)
            .and_then(|()| file.sync_data());
    }

    /// Nothing is in it any more: gives back another part of the space of what is unlinked, though processes may have it open; whether some
    /// is left. All at once may take seconds, during which nobody would watch the tree.
    pub fn shrink(&self) -> bool {
        if !self.is_unlinked() {
            return false;
        }
        let bytes = self.file.metadata().map_or(0, |meta| meta.len());
        let less = bytes.saturating_sub(SHRUNK_BY);
        self.file.set_len(less).is_ok() && less > 0
    }
}

/// Opens every path among the specs. The error is one line: what, why, how to mend it.
pub fn open_all(specs: &[AreaSpec]) -> Result<Vec<OpenArea>, String> {
    refuse_too_many(specs)?;
    paths(specs).map(open_path).collect()
}

/// Opens one. The error is one line that begins with `--swap`.
pub fn open_path(spec: &PathSpec) -> Result<OpenArea, String> {
    let (path, size) = (spec.path.as_path(), spec.size);
    let area = match look_at(path, size)? {
        Place::Whole(area) => area,
        Place::Directory => sized(unlinked_in(path)?, path, size)?,
        Place::Free => sized(without_name(created(path)?, path)?, path, size)?,
        Place::Empty(file) => sized(without_name(file, path)?, path, size)?,
    };
    Ok(OpenArea {
        priority: spec.priority,
        ..area
    })
}

/// For each path what [`open_all`] would say of it, or how many bytes it would have. Nothing is created, shortened or removed for it, but that
/// a directory has a file without a name for a moment. What is named twice is in use, or has that much less room, as there.
pub fn look_at_all(specs: &[AreaSpec]) -> Vec<(&PathSpec, Result<u64, String>)> {
    let (mut held, mut reserved) = (Vec::new(), HashMap::new());
    let mut look = |spec: &PathSpec| {
        let (path, size) = (spec.path.as_path(), spec.size);
        let on = match look_at(path, size)? {
            Place::Whole(area) => {
                let bytes = area.blocks * PAGE_SIZE as u64;
                held.push(area);
                return Ok(bytes);
            }
            Place::Directory => unlinked_in(path)?,
            Place::Free | Place::Empty(_) => directory_of(path)?,
        };
        let disk = on.metadata().map_or(0, |meta| meta.dev());
        let taken: &mut u64 = reserved.entry(disk).or_default();
        let bytes = room(path, free_bytes(&on, path)?.saturating_sub(*taken), size)?;
        *taken += size.unwrap_or(0);
        Ok(bytes)
    };
    paths(specs).map(|spec| (spec, look(spec))).collect()
}

/// # Errors
/// One line, where there are more paths than the pool has places for.
pub fn refuse_too_many(specs: &[AreaSpec]) -> Result<(), String> {
    match paths(specs).count() {
        0..=MAX_AREAS => Ok(()),
        count => Err(format!(
            "--swap: {count} files and devices are given; give at most {MAX_AREAS}"
        )),
    }
}

/// The paths among the specs.
pub fn paths(specs: &[AreaSpec]) -> impl Iterator<Item = &PathSpec> {
    specs.iter().filter_map(|spec| match spec {
        AreaSpec::Path(spec) => Some(spec),
        AreaSpec::Compressed { .. } => None,
    })
}

/// What a path turned out to be. Nothing has been created, shortened or removed for it yet.
enum Place {
    /// A file without a name is to be made there.
    Directory,
    /// No file has that name.
    Free,
    /// An empty file, which is to lose its name.
    Empty(File),
    /// Used as it is.
    Whole(OpenArea),
}

fn look_at(path: &Path, size: Option<u64>) -> Result<Place, String> {
    match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => Ok(Place::Directory),
        Ok(meta) if meta.file_type().is_block_device() => device(path, size).map(Place::Whole),
        Ok(meta) if meta.is_file() => existing(path, size),
        Ok(_) => Err(format!(
            "--swap {}: is neither a directory, a file nor a block device; name one of these",
            path.display()
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match misread_size(path) {
            None => Ok(Place::Free),
            Some(word) => Err(format!(
                "--swap {}: {word:?} is no size (64M, 2G); a new file of that very name must be created beforehand",
                path.display()
            )),
        },
        Err(error) => Err(refusal(path, "cannot be looked at", &error)),
    }
}

/// How to mend what fails for want of descriptors.
pub const MORE_FILES: &str = "raise the limit of open files: ulimit -n 1024";

/// One line: what can't be done with a path, why, and how to mend it.
fn refusal(path: &Path, what: &str, error: &io::Error) -> String {
    let shown = path.display();
    let fix = match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::PermissionDenied, _) => {
            "give this user access to it (chmod, setfacl), run as root, or name another place"
        }
        (io::ErrorKind::NotFound, _) => "make its directory first, or name another place",
        (io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded, _) => {
            "free some space, or name another place"
        }
        (_, Some(libc::EMFILE | libc::ENFILE)) => MORE_FILES,
        _ => "name another place",
    };
    format!("--swap {shown}: {what}: {error}; {fix}")
}

/// Past the page cache where the file system can: swapped pages must not fill RAM a second time.
fn open_direct(options: &mut OpenOptions, path: &Path, flags: i32) -> io::Result<File> {
    options.read(true).write(true).mode(0o600);
    match options.custom_flags(flags | libc::O_DIRECT).open(path) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => options.custom_flags(flags).open(path),
        result => result,
    }
}

fn unlinked_in(path: &Path) -> Result<File, String> {
    open_direct(&mut OpenOptions::new(), path, libc::O_TMPFILE | libc::O_EXCL).map_err(|e| {
        format!(
            "--swap {}: cannot make an unlinked file there: {e}; name another directory",
            path.display()
        )
    })
}

fn created(path: &Path) -> Result<File, String> {
    open_direct(OpenOptions::new().create_new(true), path, 0)
        .map_err(|e| refusal(path, "cannot be created", &e))
}

/// The open descriptor is all that is needed; without a name nothing can be left behind.
fn without_name(file: File, path: &Path) -> Result<File, String> {
    fs::remove_file(path).map_err(|e| refusal(path, "its name cannot be removed", &e))?;
    Ok(file)
}

/// The directory that holds the name of a path, if names may be made and removed in it.
fn directory_of(path: &Path) -> Result<File, String> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
        .open(parent.unwrap_or(Path::new(".")))
        .map_err(|e| refusal(path, "cannot be created", &e))?;
    let (raw, flags) = (directory.as_raw_fd(), libc::AT_EACCESS);
    // SAFETY: an open descriptor and a C string.
    if unsafe { libc::faccessat(raw, c".".as_ptr(), libc::W_OK | libc::X_OK, flags) } != 0 {
        return Err(refusal(
            path,
            "its directory can't be changed",
            &io::Error::last_os_error(),
        ));
    }
    Ok(directory)
}

/// What follows the last colon of a path that does not exist, if what stands before it does: meant as a size.
fn misread_size(path: &Path) -> Option<&str> {
    let (place, word) = path.to_str()?.rsplit_once(':')?;
    (!word.contains('/') && Path::new(place).exists()).then_some(word)
}

/// Bytes that a file of ours is to have where `free` are.
fn room(path: &Path, free: u64, size: Option<u64>) -> Result<u64, String> {
    let shown = path.display();
    let bytes = size.unwrap_or((free / FREE_SHARE.1 * FREE_SHARE.0).min(DEFAULT_MAX));
    let (want, min) = (format_size(bytes), format_size(AREA_MIN));
    if bytes > free {
        let have = format_size(free);
        return Err(format!(
            "--swap {shown}: {want} asked for but only {have} free; give a smaller size or another place"
        ));
    }
    match size {
        _ if bytes >= AREA_MIN => Ok(bytes),
        Some(_) => Err(format!(
            "--swap {shown}: {want} is too little; give at least {min}"
        )),
        None => Err(format!(
            "--swap {shown}: {want} can be used there, at least {min} is needed (disk full?); free some space, or name another \
             place"
        )),
    }
}

/// Gives a file of ours its size, checked against the free space.
fn sized(file: File, path: &Path, size: Option<u64>) -> Result<OpenArea, String> {
    let bytes = room(path, free_bytes(&file, path)?, size)?;
    file.set_len(bytes).map_err(|e| {
        let length = format_size(bytes);
        refusal(path, &format!("cannot be made {length} long"), &e)
    })?;
    if size.is_some() {
        // A size that was asked for is reserved now, so that it can't run out later. Not every file system can.
        // SAFETY: our own descriptor.
        unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as i64) };
    }
    // Holes in what was reserved could run out after all.
    let punches = if size.is_none() { trait_of::PUNCHES } else { 0 };
    Ok(OpenArea {
        traits: punches | traits_of_disk(&file) & trait_of::ROTATES,
        file,
        blocks: bytes / PAGE_SIZE as u64,
        name: path.display().to_string(),
        priority: None,
        head: None,
    })
}

fn existing(path: &Path, size: Option<u64>) -> Result<Place, String> {
    let shown = path.display();
    refuse_active_swap(path)?;
    let mut probe = File::open(path).map_err(|e| refusal(path, "cannot be opened", &e))?;
    let length = probe
        .metadata()
        .map_err(|e| refusal(path, "cannot be looked at", &e))?
        .len();
    let file = open_direct(&mut OpenOptions::new(), path, 0)
        .map_err(|e| refusal(path, "cannot be opened for writing", &e))?;
    if length == 0 {
        return Ok(Place::Empty(file));
    }
    // Until the last process of the tree has closed it. Two trees once wrote over each other's pages.
    if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
        return Err(format!(
            "--swap {shown}: the file is in use by another farpage run, or locked by another program; name another"
        ));
    }
    let head = nobodys_head(&mut probe).ok_or_else(|| {
        format!(
            "--swap {shown}: the file holds data that is not farpage's; name a new file or remove this one"
        )
    })?;
    whole(file, head, path, length, size).map(Place::Whole)
}

fn device(path: &Path, size: Option<u64>) -> Result<OpenArea, String> {
    let shown = path.display();
    refuse_active_swap(path)?;
    let file =
        open_direct(&mut OpenOptions::new(), path, libc::O_EXCL).map_err(|e| match e.raw_os_error() {
            Some(libc::EBUSY) => format!(
                "--swap {shown}: the device is in use (mounted, or part of another); unmount it first"
            ),
            _ => refusal(path, "the device cannot be opened", &e),
        })?;
    let mut probe = File::open(path).map_err(|e| refusal(path, "the device cannot be read", &e))?;
    let head = nobodys_head(&mut probe).ok_or_else(|| {
        format!(
            "--swap {shown}: the device holds data; if it may be lost, clear it with `wipefs -a {shown}` and \
             zero its first 64 KiB"
        )
    })?;
    let length = io::Seek::seek(&mut probe, io::SeekFrom::End(0))
        .map_err(|e| refusal(path, "the device does not tell its size", &e))?;
    whole(file, head, path, length, size)
}

fn whole(file: File, head: Vec<u8>, path: &Path, length: u64, size: Option<u64>) -> Result<OpenArea, String> {
    let shown = path.display();
    let bytes = size.unwrap_or(length);
    let (have, want, min) = (format_size(length), format_size(bytes), format_size(AREA_MIN));
    if length < AREA_MIN {
        return Err(format!(
            "--swap {shown}: is {have} long, at least {min} is needed; name a larger one"
        ));
    }
    if !(AREA_MIN..=length).contains(&bytes) {
        return Err(format!(
            "--swap {shown}: is {have} long, {want} can't be used of it; give a size from {min} to {have}, or none"
        ));
    }
    Ok(OpenArea {
        traits: traits_of_disk(&file),
        file,
        blocks: bytes / PAGE_SIZE as u64,
        name: shown.to_string(),
        priority: None,
        head: Some(head),
    })
}

/// What the kernel says of the disk that a file lies on, or that it is. Of a file that takes no space as it is written,
/// what its disk could discard is of no use.
fn traits_of_disk(file: &File) -> u64 {
    let Ok(meta) = file.metadata() else { return 0 };
    let is_disk = meta.file_type().is_block_device();
    let number = if is_disk { meta.rdev() } else { meta.dev() };
    let disk = format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number));
    // A partition has its queue one level up.
    let ask = |name: &str| {
        ["queue", "../queue"]
            .iter()
            .find_map(|queue| fs::read_to_string(format!("{disk}/{queue}/{name}")).ok())
            .is_some_and(|text| text.trim() != "0")
    };
    let mut traits = 0;
    if ask("rotational") {
        traits |= trait_of::ROTATES;
    }
    if is_disk && ask("discard_max_bytes") {
        traits |= trait_of::DISCARDS;
    }
    traits
}

/// The first page of what is empty at its beginning, or formatted as swap and not active: nobody's data.
fn nobodys_head(file: &mut File) -> Option<Vec<u8>> {
    let mut head = vec![0u8; HEAD];
    let mut filled = 0;
    while filled < head.len() {
        match file.read(&mut head[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(_) => return None,
        }
    }
    head.truncate(filled);
    let is_nobodys = head.iter().all(|&byte| byte == 0)
        || head.get(PAGE_SIZE - SIGNATURE.len()..PAGE_SIZE) == Some(SIGNATURE);
    head.truncate(PAGE_SIZE);
    head.shrink_to_fit();
    is_nobodys.then_some(head)
}

fn refuse_active_swap(path: &Path) -> Result<(), String> {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let active = swaps
        .lines()
        .skip(1)
        .any(|line| line.split_ascii_whitespace().next().map(Path::new) == Some(&real));
    if active {
        return Err(format!(
            "--swap {}: the kernel swaps to it; `swapoff {0}` first, or name another",
            path.display()
        ));
    }
    Ok(())
}

/// Of the file system that `file`, opened for `path`, lies on.
fn free_bytes(file: &File, path: &Path) -> Result<u64, String> {
    // SAFETY: statvfs is plain data; the call fills it.
    unsafe {
        let mut stat: libc::statvfs = core::mem::zeroed();
        if libc::fstatvfs(file.as_raw_fd(), &mut stat) != 0 {
            let error = io::Error::last_os_error();
            return Err(refusal(path, "the free space is not known", &error));
        }
        Ok(stat.f_bavail * stat.f_frsize)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// What is locked by nobody but a child that another test of this process is starting: until its exec it has our descriptors, and with
    /// them the lock of a file that was closed here.
    fn once_executed<T>(mut attempt: impl FnMut() -> Result<T, String>) -> Result<T, String> {
        for _ in 0..1000 {
            match attempt() {
                Err(why) if why.contains("in use by another") => thread::sleep(Duration::from_millis(10)),
                done => return done,
            }
        }
        attempt()
    }

    fn spec(path: &Path, size: Option<u64>) -> PathSpec {
        PathSpec {
            path: path.to_path_buf(),
            size,
            priority: None,
        }
    }

    #[test]
    fn only_what_was_not_reserved_is_given_back() {
        let directory = std::env::temp_dir();
        let grows = open_path(&spec(&directory, Some(AREA_MIN))).unwrap();
        assert_eq!(grows.traits & (trait_of::PUNCHES | trait_of::DISCARDS), 0);
        let whole = open_path(&spec(&directory, None)).unwrap();
        assert_ne!(whole.traits & trait_of::PUNCHES, 0);
    }

    /// The sizes and contents of all files in a directory, by name.
    fn contents(directory: &Path) -> Vec<(OsString, Vec<u8>)> {
        let entries = fs::read_dir(directory).unwrap().flatten();
        let mut all: Vec<_> = entries
            .map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap()))
            .collect();
        all.sort();
        all
    }

    #[test]
    fn looking_finds_what_opening_would_and_changes_nothing() {
        let directory = std::env::temp_dir().join(format!("farpage-look-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let place = |name: &str| directory.join(name);
        fs::write(place("empty"), "").unwrap();
        fs::write(place("zeros"), vec![0; 2 << 20]).unwrap();
        fs::write(place("short"), vec![0; 2 << 10]).unwrap();
        fs::write(place("data"), "precious".repeat(1 << 18)).unwrap();
        let before = contents(&directory);
        let look = |name: &str, size| {
            let specs = [AreaSpec::Path(spec(&place(name), size))];
            once_executed(|| look_at_all(&specs).remove(0).1)
        };
        for name in ["", "empty", "free"] {
            assert_eq!(look(name, Some(3 << 20)), Ok(3 << 20), "{name}");
            assert!(look(name, None).is_ok_and(|bytes| bytes > 3 << 20), "{name}");
        }
        assert_eq!(look("zeros", None), Ok(2 << 20));
        let refused = [
            ("", Some(1 << 60)),
            ("", Some(4096)),
            ("no/such", None),
            ("zeros", Some(3 << 20)),
            ("zeros:x", None),
            ("short", None),
            ("data", None),
        ];
        for (name, size) in refused {
            let why = look(name, size).expect_err(name);
            assert!(why.starts_with("--swap ") && why.contains("; "), "{why}");
            // How much is free may have changed in between.
            if size != Some(1 << 60) {
                let opened = once_executed(|| open_path(&spec(&place(name), size)));
                assert_eq!(opened.err(), Some(why), "{name}");
            }
        }
        let twice = [
            AreaSpec::Path(spec(&place("zeros"), None)),
            AreaSpec::Path(spec(&place("zeros"), None)),
        ];
        let second = once_executed(|| {
            let mut found = look_at_all(&twice);
            found[0].1.clone().map(|_| found.remove(1).1)
        });
        assert!(
            matches!(&second, Ok(Err(why)) if why.contains("in use")),
            "{second:?}"
        );
        assert_eq!(contents(&directory), before);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn what_is_reserved_for_one_is_not_there_for_the_next() {
        let directory = std::env::temp_dir();
        let free = free_bytes(&unlinked_in(&directory).unwrap(), &directory).unwrap();
        let half = AreaSpec::Path(spec(&directory, Some(free / 5 * 3)));
        let specs = [half.clone(), AreaSpec::Compressed { limit: None }, half];
        let found = look_at_all(&specs);
        assert!(
            found.len() == 2 && found[0].1.is_ok() && found[1].1.is_err(),
            "{found:?}"
        );
    }

    /// A device that had been used once was refused the next time, and could not join again after it had left.
    #[test]
    fn what_was_nobodys_before_is_so_afterwards() {
        let path = std::env::temp_dir().join(format!("farpage-head-{}", std::process::id()));
        let mut formatted = vec![0; 2 << 20];
        formatted[PAGE_SIZE - SIGNATURE.len()..PAGE_SIZE].copy_from_slice(SIGNATURE);
        for before in [vec![0; 2 << 20], formatted] {
            fs::write(&path, &before).unwrap();
            for _ in 0..2 {
                let spec = spec(&path, None);
                let area = once_executed(|| open_path(&spec)).expect("nobody's data");
                area.file.unlock().unwrap();
                let direct = OpenOptions::new().write(true).open(&path).unwrap();
                direct.write_all_at(&[7; 96 << 10], 0).unwrap();
                let again = once_executed(|| open_path(&spec)).err();
                assert!(again.is_some_and(|why| why.contains("holds data")), "somebody's");
                area.give_back();
            }
            assert_eq!(fs::read(&path).unwrap()[..PAGE_SIZE], before[..PAGE_SIZE]);
        }
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_word_behind_an_existing_place_was_meant_as_a_size() {
        assert_eq!(misread_size(Path::new("/tmp:banana")), Some("banana"));
        assert_eq!(misread_size(Path::new("/tmp:-1")), Some("-1"));
        assert_eq!(misread_size(Path::new("/no/such/place:x")), None);
        assert_eq!(misread_size(Path::new("/tmp/file")), None);
    }
}
