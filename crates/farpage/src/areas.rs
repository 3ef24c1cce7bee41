//! Opening what `--swap` names: a directory, a file, a block device. Nothing that holds somebody's data is taken.
//!
//! # Safety
//! Plain system calls on descriptors of ours.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
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
/// So much of a file or device is looked at for somebody's data, and is never written: what was nobody's stays so, whatever ends the tree. All
/// common file systems have their mark in it (btrfs 64 KiB from the beginning).
const HEAD: usize = 1 << 20;
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
    /// Where its first block lies, in bytes.
    pub start: u64,
    /// Made by us, or empty before, without a name in any directory: gone with what it holds when the last descriptor is closed.
    is_unlinked: bool,
}

impl OpenArea {
    /// Whether all of it is gone with its last descriptor.
    #[must_use]
    pub fn is_unlinked(&self) -> bool {
        self.is_unlinked
    }

    /// Whether its disk has room for more of it, as far as the file system tells. A device has no other.
    pub fn has_space(&self) -> bool {
        let is_file = self.file.metadata().is_ok_and(|meta| meta.is_file());
        !is_file || free_bytes(&self.file, Path::new(&self.name)).is_ok_and(|free| free >= SPACE_MIN)
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
        Place::Empty(file) => {
            // What is refused keeps its name, and takes no space.
            let area = sized(file, path, size)?;
            remove_name(&area.file, path).inspect_err(|_| {
                let _ = area.file.set_len(0);
            })?;
            area
        }
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
                let bytes = area.start + area.blocks * PAGE_SIZE as u64;
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
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_of_devices(path) => Err(format!(
            "--swap {}: there is no such device; check the name",
            path.display()
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match misread_size(path) {
            None => refuse_bare(path).map(|()| Place::Free),
            Some(word) => Err(format!(
                "--swap {}: {word:?} is no size (64M, 2G); a new file of that very name must be created beforehand",
                path.display()
            )),
        },
        Err(error) => Err(refusal(path, "cannot be looked at", &error)),
    }
}

/// Whether a name would be one among devices, where no new file is meant: it would lie in RAM.
fn is_of_devices(path: &Path) -> bool {
    path.starts_with("/dev") && !path.starts_with("/dev/shm")
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
    match open_direct(&mut OpenOptions::new(), path, libc::O_TMPFILE | libc::O_EXCL) {
        // Not every file system has files that never had a name (NFS, FAT, 9p).
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)
            ) =>
        {
            // A run of the same number, as in containers, may have been killed before it removed its name.
            let names = (0..).map(|nth| path.join(format!(".farpage-{}-{nth}", std::process::id())));
            let name = names.into_iter().find(|name| !name.exists()).unwrap_or_default();
            without_name(created(&name)?, &name)
        }
        Err(e) => Err(refusal(path, "cannot make an unlinked file there", &e)),
        Ok(file) => Ok(file),
    }
}

fn created(path: &Path) -> Result<File, String> {
    open_direct(OpenOptions::new().create_new(true), path, 0)
        .map_err(|e| refusal(path, "cannot be created", &e))
}

/// The open descriptor is all that is needed; without a name nothing can be left behind.
fn without_name(file: File, path: &Path) -> Result<File, String> {
    remove_name(&file, path).map(|()| file)
}

/// Of a link the file loses its own name: it would stay with what was swapped to it.
fn remove_name(file: &File, path: &Path) -> Result<(), String> {
    let named = |e: io::Error| refusal(path, "its name cannot be removed", &e);
    let real = fs::canonicalize(path).map_err(named)?;
    let (by_name, open) = (
        fs::symlink_metadata(&real).map_err(named)?,
        file.metadata().map_err(named)?,
    );
    if (by_name.dev(), by_name.ino()) != (open.dev(), open.ino()) {
        return Err(format!(
            "--swap {}: its name leads to another file by now; name another place",
            path.display()
        ));
    }
    fs::remove_file(real).map_err(named)
}

/// A single word that names nothing is mistyped, or meant as something else: no new file is made of it.
///
/// # Errors
/// One line that begins with `--swap`.
pub fn refuse_bare(path: &Path) -> Result<(), String> {
    let is_bare = path.parent().is_some_and(|parent| parent.as_os_str().is_empty());
    if is_bare && !path.exists() {
        return Err(format!(
            "--swap {0}: there is no such file, device or directory; check the word (compressed?), or give ./{0} for a new file of that name",
            path.display()
        ));
    }
    Ok(())
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
        reserve(&file, bytes).map_err(|e| {
            let _ = file.set_len(0);
            refusal(path, &format!("{} can't be reserved", format_size(bytes)), &e)
        })?;
    }
    // Holes in what was reserved could run out after all.
    let grows = match size {
        None if is_ext4(&file) => trait_of::PUNCHES | trait_of::RESERVES,
        None => trait_of::PUNCHES,
        Some(_) => 0,
    };
    Ok(OpenArea {
        traits: grows | traits_of_disk(&file) & trait_of::ROTATES,
        file,
        blocks: bytes / PAGE_SIZE as u64,
        name: path.display().to_string(),
        priority: None,
        start: 0,
        is_unlinked: true,
    })
}

/// A size that was asked for is reserved at once, so that it can't run out later. Not every file system can.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    loop {
        // SAFETY: our own descriptor.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as i64) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => return Err(error),
            _ => return Ok(()),
        }
    }
}

fn existing(path: &Path, size: Option<u64>) -> Result<Place, String> {
    let shown = path.display();
    refuse_active_swap(path)?;
    let mut probe = File::open(path).map_err(|e| refusal(path, "cannot be opened", &e))?;
    let meta = probe
        .metadata()
        .map_err(|e| refusal(path, "cannot be looked at", &e))?;
    let file = open_direct(&mut OpenOptions::new(), path, 0)
        .map_err(|e| refusal(path, "cannot be opened for writing", &e))?;
    // Until the last process of the tree has closed it. Two trees once wrote over each other's pages.
    if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
        return Err(format!(
            "--swap {shown}: the file is in use by another farpage run, or locked by another program; name another"
        ));
    }
    match (meta.len(), meta.nlink()) {
        (0, 1) => Ok(Place::Empty(file)),
        (0, _) => Err(format!(
            "--swap {shown}: the file has other names (hard links), by which it would stay; name a new file"
        )),
        _ if !is_nobodys(&mut probe) => Err(format!(
            "--swap {shown}: the file holds data that is not farpage's; name a new file or remove this one"
        )),
        (length, _) => whole(file, path, length, size).map(Place::Whole),
    }
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
    if !is_nobodys(&mut probe) {
        return Err(format!(
            "--swap {shown}: the device holds data; if it may be lost, clear it with `wipefs -a {shown}` and \
             `dd if=/dev/zero of={shown} bs=1M count=1`"
        ));
    }
    let length = io::Seek::seek(&mut probe, io::SeekFrom::End(0))
        .map_err(|e| refusal(path, "the device does not tell its size", &e))?;
    whole(file, path, length, size)
}

fn whole(file: File, path: &Path, length: u64, size: Option<u64>) -> Result<OpenArea, String> {
    let shown = path.display();
    let bytes = size.unwrap_or(length);
    let least = HEAD as u64 + AREA_MIN;
    let (have, want, min) = (format_size(length), format_size(bytes), format_size(least));
    if length < least {
        return Err(format!(
            "--swap {shown}: is {have} long, at least {min} is needed; name a larger one"
        ));
    }
    if !(least..=length).contains(&bytes) {
        return Err(format!(
            "--swap {shown}: is {have} long, {want} can't be used of it; give a size from {min} to {have}, or none"
        ));
    }
    Ok(OpenArea {
        traits: traits_of_disk(&file),
        file,
        blocks: (bytes - HEAD as u64) / PAGE_SIZE as u64,
        name: shown.to_string(),
        priority: None,
        start: HEAD as u64,
        is_unlinked: false,
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

/// Whether it is empty at its beginning, or formatted as swap and not active.
fn is_nobodys(file: &mut File) -> bool {
    let mut head = vec![0u8; HEAD];
    let mut filled = 0;
    while filled < head.len() {
        match file.read(&mut head[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(_) => return false,
        }
    }
    head.truncate(filled);
    head.iter().all(|&byte| byte == 0) || head.get(PAGE_SIZE - SIGNATURE.len()..PAGE_SIZE) == Some(SIGNATURE)
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

/// Whether the file is one of ext4 (or its forerunners, which have the same number).
fn is_ext4(file: &File) -> bool {
    // SAFETY: statfs is plain data; the call fills it.
    unsafe {
        let mut stat: libc::statfs = core::mem::zeroed();
        libc::fstatfs(file.as_raw_fd(), &mut stat) == 0 && stat.f_type == libc::EXT4_SUPER_MAGIC
    }
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
mod tests;
