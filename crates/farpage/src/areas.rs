//! Opening what `--swap` names: a directory, a file, a block device. Nothing that holds somebody's data is taken.
//!
//! # Safety
//! Plain system calls on descriptors of ours.
#![allow(unsafe_code)]

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
    let mut open = Vec::new();
    for spec in specs {
        if let AreaSpec::Path(spec) = spec {
            open.push(open_path(spec)?);
        }
    }
    if open.len() > MAX_AREAS {
        return Err(format!(
            "{} swap files given; at most {MAX_AREAS} can be used",
            open.len()
        ));
    }
    Ok(open)
}

/// Opens one. The error is one line that begins with `--swap`.
pub fn open_path(spec: &PathSpec) -> Result<OpenArea, String> {
    let (path, size) = (spec.path.as_path(), spec.size);
    let shown = path.display();
    let area = match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => in_directory(path, size),
        Ok(meta) if meta.file_type().is_block_device() => device(path, size),
        Ok(meta) if meta.is_file() => existing(path, size),
        Ok(_) => Err(format!(
            "--swap {shown}: is neither a directory, a file nor a block device"
        )),
        Err(e) if e.kind() == io::ErrorKind::NotFound => new_file(path, size),
        Err(e) => Err(format!("--swap {shown}: {e}")),
    };
    area.map(|area| OpenArea {
        priority: spec.priority,
        ..area
    })
}

/// Past the page cache where the file system can: swapped pages must not fill RAM a second time.
fn open_direct(options: &mut OpenOptions, path: &Path, flags: i32) -> io::Result<File> {
    options.read(true).write(true).mode(0o600);
    match options.custom_flags(flags | libc::O_DIRECT).open(path) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => options.custom_flags(flags).open(path),
        result => result,
    }
}

fn in_directory(path: &Path, size: Option<u64>) -> Result<OpenArea, String> {
    let file = open_direct(&mut OpenOptions::new(), path, libc::O_TMPFILE | libc::O_EXCL).map_err(|e| {
        format!(
            "--swap {}: cannot make an unlinked file there: {e}; name another directory",
            path.display()
        )
    })?;
    sized(file, path, size)
}

fn new_file(path: &Path, size: Option<u64>) -> Result<OpenArea, String> {
    if let Some(word) = misread_size(path) {
        return Err(format!(
            "--swap {}: {word:?} is no size (64M, 2G); a new file of that very name must be created beforehand",
            path.display()
        ));
    }
    let file = open_direct(OpenOptions::new().create_new(true), path, 0)
        .map_err(|e| format!("--swap {}: cannot be created: {e}", path.display()))?;
    // The open descriptor is all that is needed; without a name nothing can be left behind.
    fs::remove_file(path).map_err(|e| format!("--swap {}: {e}", path.display()))?;
    sized(file, path, size)
}

/// What follows the last colon of a path that does not exist, if what stands before it does: meant as a size.
fn misread_size(path: &Path) -> Option<&str> {
    let (place, word) = path.to_str()?.rsplit_once(':')?;
    (!word.contains('/') && Path::new(place).exists()).then_some(word)
}

/// Gives a file of ours its size, checked against the free space.
fn sized(file: File, path: &Path, size: Option<u64>) -> Result<OpenArea, String> {
    let shown = path.display();
    let free = free_bytes(&file).map_err(|e| format!("--swap {shown}: {e}"))?;
    let bytes = match size {
        Some(bytes) if bytes > free => {
            let (want, have) = (format_size(bytes), format_size(free));
            return Err(format!(
                "--swap {shown}: {want} asked for but only {have} free; give a smaller size or another place"
            ));
        }
        Some(bytes) => bytes,
        None => (free / FREE_SHARE.1 * FREE_SHARE.0).min(DEFAULT_MAX),
    };
    if bytes < AREA_MIN {
        let (have, min) = (format_size(bytes), format_size(AREA_MIN));
        return Err(format!(
            "--swap {shown}: {have} is too little (disk full?); at least {min} is needed"
        ));
    }
    file.set_len(bytes)
        .map_err(|e| format!("--swap {shown}: cannot be made {} long: {e}", format_size(bytes)))?;
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
        name: shown.to_string(),
        priority: None,
        head: None,
    })
}

fn existing(path: &Path, size: Option<u64>) -> Result<OpenArea, String> {
    let shown = path.display();
    refuse_active_swap(path)?;
    let mut probe = File::open(path).map_err(|e| format!("--swap {shown}: {e}"))?;
    let length = probe
        .metadata()
        .map_err(|e| format!("--swap {shown}: {e}"))?
        .len();
    if length == 0 {
        let file =
            open_direct(&mut OpenOptions::new(), path, 0).map_err(|e| format!("--swap {shown}: {e}"))?;
        fs::remove_file(path).map_err(|e| format!("--swap {shown}: {e}"))?;
        return sized(file, path, size);
    }
    let file = open_direct(&mut OpenOptions::new(), path, 0).map_err(|e| format!("--swap {shown}: {e}"))?;
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
    whole(file, head, path, length, size)
}

fn device(path: &Path, size: Option<u64>) -> Result<OpenArea, String> {
    let shown = path.display();
    refuse_active_swap(path)?;
    let file =
        open_direct(&mut OpenOptions::new(), path, libc::O_EXCL).map_err(|e| match e.raw_os_error() {
            Some(libc::EBUSY) => format!(
                "--swap {shown}: the device is in use (mounted, or part of another); unmount it first"
            ),
            _ => format!("--swap {shown}: {e}"),
        })?;
    let mut probe = File::open(path).map_err(|e| format!("--swap {shown}: {e}"))?;
    let head = nobodys_head(&mut probe).ok_or_else(|| {
        format!(
            "--swap {shown}: the device holds data; if it may be lost, clear it with `wipefs -a {shown}` and \
             zero its first 64 KiB"
        )
    })?;
    let length =
        io::Seek::seek(&mut probe, io::SeekFrom::End(0)).map_err(|e| format!("--swap {shown}: {e}"))?;
    whole(file, head, path, length, size)
}

fn whole(file: File, head: Vec<u8>, path: &Path, length: u64, size: Option<u64>) -> Result<OpenArea, String> {
    let shown = path.display();
    let bytes = size.unwrap_or(length);
    if bytes > length || bytes < AREA_MIN {
        return Err(format!(
            "--swap {shown}: is {} long; {} can't be used of it",
            format_size(length),
            format_size(bytes)
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

fn free_bytes(file: &File) -> io::Result<u64> {
    // SAFETY: statvfs is plain data; the call fills it.
    unsafe {
        let mut stat: libc::statvfs = core::mem::zeroed();
        if libc::fstatvfs(file.as_raw_fd(), &mut stat) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(stat.f_bavail * stat.f_frsize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_not_reserved_is_given_back() {
        let directory = std::env::temp_dir();
        let grows = in_directory(&directory, Some(AREA_MIN)).unwrap();
        assert_eq!(grows.traits & (trait_of::PUNCHES | trait_of::DISCARDS), 0);
        assert_ne!(
            in_directory(&directory, None).unwrap().traits & trait_of::PUNCHES,
            0
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
                let spec = PathSpec {
                    path: path.clone(),
                    size: None,
                    priority: None,
                };
                let area = open_path(&spec).expect("nobody's data");
                let direct = OpenOptions::new().write(true).open(&path).unwrap();
                direct.write_all_at(&[7; 96 << 10], 0).unwrap();
                assert!(open_path(&spec).is_err(), "somebody's data");
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
