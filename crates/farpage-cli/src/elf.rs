//! Looks at a command before it starts: can the preload library enter it at all?
//!
//! The dynamic loader is what loads us, so a program without one (static), one whose loader ignores us
//! (setuid, file capabilities) or belongs to another C library (musl) would run unmanaged and burst its
//! budget unnoticed. Better refused in one line. Scripts are followed to their interpreter.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{env, fmt};

use object::read::elf::ElfFile64;
use object::{Endianness, Object as _, ObjectSection as _, ObjectSymbol as _, ReadCache};

use crate::probe;

/// How many `#!` lines are followed, as many as scripts of scripts are met in practice.
const SCRIPT_LEVELS: usize = 2;
/// The kernel reads no more of a `#!` line than this.
const HEAD_BYTES: usize = 256;
/// `_CS_PATH` of glibc: where execvp looks when PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

const EHDR_BYTES: usize = 64;
const PHDR_BYTES: u16 = 56;
const PHDR_COUNT_MAX: u16 = 512;
const PT_INTERP: u32 = 3;
const INTERP_BYTES_MAX: u64 = 4096;
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// Why a command cannot be run; the text is one line: what, why, how to mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It could run, but not under farpage (exit 125).
    Unmanageable(String),
    /// It cannot be executed (exit 126).
    NotExecutable(String),
    /// It does not exist (exit 127).
    NotFound(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmanageable(text) | Self::NotExecutable(text) | Self::NotFound(text) => {
                out.write_str(text)
            }
        }
    }
}

/// What the machine and the user are, as far as it matters for a program's permission bits.
#[derive(Clone, Copy, Debug)]
pub struct Credentials {
    pub euid: u32,
    pub egid: u32,
    /// With it the kernel ignores setuid bits, and so does this check.
    pub no_new_privs: bool,
}

impl Credentials {
    pub fn current() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let no_new_privs = status
            .lines()
            .any(|line| line.split_whitespace().eq(["NoNewPrivs:", "1"]));
        Self {
            euid: probe::euid(),
            egid: probe::egid(),
            no_new_privs,
        }
    }
}

/// Inspects `command` as `execvp` would find it, and returns the file that the kernel would load in the end.
///
/// # Errors
/// The refusal to be printed, with the exit code it stands for.
pub fn inspect(command: &OsStr, who: Credentials) -> Result<PathBuf, Refusal> {
    let mut path = resolve(command, env::var_os("PATH").as_deref())?;
    for _ in 0..=SCRIPT_LEVELS {
        match inspect_file(&path, who)? {
            Kind::Program => return Ok(path),
            Kind::Script(interpreter) => path = interpreter,
        }
    }
    Err(Refusal::Unmanageable(format!(
        "{}: a script run by a script, {SCRIPT_LEVELS} times over; name the real interpreter",
        command.display()
    )))
}

/// Finds the file as `execvp` does: along PATH unless the name has a slash.
fn resolve(command: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Refusal> {
    if command.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(command));
    }
    let path = path.unwrap_or(OsStr::new(DEFAULT_PATH));
    let mut denied = None;
    // execvp goes on after a file it may not execute, and tells of it only if nothing better comes.
    for directory in env::split_paths(path).filter(|_| !command.is_empty()) {
        let directory = if directory.as_os_str().is_empty() {
            PathBuf::from(".")
        } else {
            directory
        };
        let candidate = directory.join(command);
        match fs::metadata(&candidate) {
            Ok(meta) if meta.is_file() && probe::may_execute(&candidate) => return Ok(candidate),
            Ok(meta) if meta.is_file() => denied = denied.or(Some(candidate)),
            _ => {}
        }
    }
    Err(match denied {
        Some(file) => not_executable(&file),
        None => Refusal::NotFound(format!(
            "{}: not found along PATH; give its path",
            command.display()
        )),
    })
}

fn not_executable(path: &Path) -> Refusal {
    let shown = path.display();
    Refusal::NotExecutable(format!("{shown}: no permission to execute it; chmod +x {shown}"))
}

enum Kind {
    Program,
    Script(PathBuf),
}

fn inspect_file(path: &Path, who: Credentials) -> Result<Kind, Refusal> {
    let shown = path.display();
    let meta = fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            Refusal::NotFound(format!("{shown}: no such file; check the name"))
        }
        _ => Refusal::NotExecutable(format!(
            "{shown}: {error}; check the permissions of its directories"
        )),
    })?;
    if !meta.is_file() {
        return Err(Refusal::NotExecutable(format!(
            "{shown}: not a regular file; name a program"
        )));
    }
    if !probe::may_execute(path) {
        return Err(not_executable(path));
    }
    check_privileges(path, meta.mode(), meta.uid(), meta.gid(), who)?;
    let Ok(file) = File::open(path) else {
        // Executable yet unreadable: the kernel can load it, we cannot look; the loader decides.
        return Ok(Kind::Program);
    };
    let mut head = Vec::with_capacity(HEAD_BYTES);
    (&file)
        .take(HEAD_BYTES as u64)
        .read_to_end(&mut head)
        .map_err(|error| unreadable(path, &error))?;
    if head.starts_with(b"\x7fELF") {
        return check_elf(path, &head, &file).map(|()| Kind::Program);
    }
    if let Some(line) = head.strip_prefix(b"#!") {
        return script(path, line).map(Kind::Script);
    }
    if head.contains(&0) {
        return Err(Refusal::NotExecutable(format!(
            "{shown}: neither an ELF program nor a script; name a program for this machine"
        )));
    }
    Ok(Kind::Script(PathBuf::from("/bin/sh"))) // what execvp does with a text that has no #! line
}

fn unreadable(path: &Path, error: &io::Error) -> Refusal {
    Refusal::NotExecutable(format!(
        "{}: cannot be read: {error}; check the file",
        path.display()
    ))
}

/// A program that gains privileges runs in the loader's secure mode, where LD_PRELOAD is ignored.
fn check_privileges(path: &Path, mode: u32, uid: u32, gid: u32, who: Credentials) -> Result<(), Refusal> {
    if who.no_new_privs {
        return Ok(());
    }
    let gains = if mode & 0o4000 != 0 && uid != who.euid {
        "setuid"
    } else if mode & 0o2010 == 0o2010 && gid != who.egid {
        "setgid"
    } else if who.euid != 0 && probe::has_file_capabilities(path) {
        "has file capabilities"
    } else {
        return Ok(());
    };
    let shown = path.display();
    Err(Refusal::Unmanageable(format!(
        "{shown}: {gains}: the loader preloads nothing into it; run it as its owner or use a plain copy"
    )))
}

/// The interpreter of a script, given what follows `#!`.
fn script(path: &Path, line: &[u8]) -> Result<PathBuf, Refusal> {
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line
        .split(|byte| matches!(byte, b' ' | b'\t' | b'\r'))
        .filter(|word| !word.is_empty());
    let Some(interpreter) = words.next() else {
        let shown = path.display();
        return Err(Refusal::NotExecutable(format!(
            "{shown}: its #! line names no interpreter; write one"
        )));
    };
    let interpreter = PathBuf::from(OsString::from_vec(interpreter.to_vec()));
    // `#!/usr/bin/env python3`: what matters is python3. Options of env are left to env.
    let argument = words
        .next()
        .filter(|word| !word.starts_with(b"-") && !word.contains(&b'='));
    match argument {
        Some(name) if interpreter.file_name() == Some(OsStr::new("env")) => {
            resolve(OsStr::from_bytes(name), env::var_os("PATH").as_deref())
        }
        _ => Ok(interpreter),
    }
}

fn check_elf(path: &Path, head: &[u8], file: &File) -> Result<(), Refusal> {
    let shown = path.display();
    let refuse = |text: &str| Err(Refusal::Unmanageable(format!("{shown}: {text}")));
    if head.len() < EHDR_BYTES {
        return Err(Refusal::NotExecutable(format!(
            "{shown}: a damaged ELF file (cut short); install it again"
        )));
    }
    if head[4] != CLASS_64 {
        return refuse("a 32-bit program: farpage manages 64-bit programs only; use its 64-bit build");
    }
    if head[5] != LITTLE_ENDIAN || u16_at(head, 18) != MACHINE {
        return refuse("built for another architecture; use its build for this machine");
    }
    match interpreter(head, file) {
        Err(error) => Err(unreadable(path, &error)),
        Ok(Some(loader)) => match sanitizer(file) {
            Some(name) => refuse(&format!(
                "built with {name}, which brings its own memory management and suffers no other; use its plain build"
            )),
            None => check_loader(path, Path::new(&loader)),
        },
        Ok(None) if is_loader(path) => Ok(()), // the dynamic loader run by hand honours LD_PRELOAD
        Ok(None) => {
            refuse("statically linked: farpage enters through the dynamic loader; use a dynamic build")
        }
    }
}

/// The sanitizer whose runtime a program calls, or carries. A file that can't be parsed has none: the loader decides.
fn sanitizer(file: &File) -> Option<&'static str> {
    const ENTRIES: [(&[u8], &str); 4] = [
        (b"\0__asan_init\0", "AddressSanitizer"),
        (b"\0__hwasan_init\0", "HWAddressSanitizer"),
        (b"\0__msan_init\0", "MemorySanitizer"),
        (b"\0__tsan_init\0", "ThreadSanitizer"),
    ];
    let cache = ReadCache::new(file);
    let elf = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
    let names = elf.section_by_name(".dynstr")?.data().ok()?;
    let (_, sanitizer) = ENTRIES
        .iter()
        .find(|(entry, _)| names.windows(entry.len()).any(|name| name == *entry))?;
    // A library may ask whether there is one, by a weak symbol.
    let is_entry = |name: &[u8]| {
        ENTRIES
            .iter()
            .any(|(entry, _)| &entry[1..entry.len() - 1] == name)
    };
    let calls = elf
        .dynamic_symbols()
        .any(|symbol| !symbol.is_weak() && symbol.name_bytes().is_ok_and(is_entry));
    calls.then_some(*sanitizer)
}

fn check_loader(path: &Path, loader: &Path) -> Result<(), Refusal> {
    let name = loader.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    if name.starts_with("ld-musl") || name.starts_with("linker") {
        return Err(Refusal::Unmanageable(format!(
            "{}: linked with another C library than glibc (loader {}); use its glibc build",
            path.display(),
            loader.display()
        )));
    }
    if !loader.exists() {
        return Err(Refusal::NotFound(format!(
            "{}: its loader {} does not exist; install the C library it was built for",
            path.display(),
            loader.display()
        )));
    }
    Ok(())
}

fn is_loader(path: &Path) -> bool {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let name = real.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    name.starts_with("ld-linux") || name.starts_with("ld-2.")
}

/// The path in PT_INTERP, `None` if there is none (a static program).
fn interpreter(head: &[u8], file: &File) -> io::Result<Option<OsString>> {
    let table = u64_at(head, 32);
    let (size, count) = (u16_at(head, 54), u16_at(head, 56));
    if size != PHDR_BYTES || count > PHDR_COUNT_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "strange program headers",
        ));
    }
    let mut headers = vec![0; usize::from(size) * usize::from(count)];
    file.read_exact_at(&mut headers, table)?;
    let Some(header) = headers
        .chunks_exact(usize::from(size))
        .find(|header| u32_at(header, 0) == PT_INTERP)
    else {
        return Ok(None);
    };
    let (offset, length) = (u64_at(header, 8), u64_at(header, 32));
    let mut text = vec![0; length.min(INTERP_BYTES_MAX) as usize];
    file.read_exact_at(&mut text, offset)?;
    text.truncate(text.iter().position(|byte| *byte == 0).unwrap_or(text.len()));
    Ok(Some(OsString::from_vec(text)))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const ROOT: Credentials = Credentials {
        euid: 0,
        egid: 0,
        no_new_privs: false,
    };

    /// A directory of our own, gone at the end of the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let directory = env::temp_dir().join(format!("farpage-elf-{}-{name}", std::process::id()));
            fs::create_dir_all(&directory).expect("scratch directory");
            Self(directory)
        }

        fn file(&self, name: &str, content: &[u8], mode: u32) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, content).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
            path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// The smallest ELF header with one program header.
    fn elf(class: u8, machine: u16, interp: Option<&str>) -> Vec<u8> {
        let mut bytes = vec![0; EHDR_BYTES + usize::from(PHDR_BYTES)];
        bytes[..4].copy_from_slice(b"\x7fELF");
        bytes[4] = class;
        bytes[5] = LITTLE_ENDIAN;
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32..40].copy_from_slice(&(EHDR_BYTES as u64).to_le_bytes());
        bytes[54..56].copy_from_slice(&PHDR_BYTES.to_le_bytes());
        bytes[56..58].copy_from_slice(&1u16.to_le_bytes());
        if let Some(text) = interp {
            let at = bytes.len() as u64;
            bytes[64] = PT_INTERP as u8;
            bytes[72..80].copy_from_slice(&at.to_le_bytes());
            bytes[96..104].copy_from_slice(&(text.len() as u64 + 1).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes.push(0);
        bytes
    }

    fn refusal(path: &Path) -> String {
        match inspect(path.as_os_str(), ROOT) {
            Err(Refusal::Unmanageable(text)) => text,
            other => panic!("{}: {other:?}", path.display()),
        }
    }

    #[test]
    fn programs_of_this_machine_pass() {
        let found = inspect(OsStr::new("sh"), ROOT).expect("sh is a dynamic program");
        assert!(found.ends_with("sh"));
        assert!(inspect(found.as_os_str(), ROOT).is_ok());
    }

    #[test]
    fn what_cannot_be_managed_is_refused() {
        let dir = Scratch::new("refused");
        let cases = [
            (elf(CLASS_64, MACHINE, None), "statically"),
            (elf(1, 3, None), "32-bit"),
            (elf(CLASS_64, 243, None), "architecture"),
            (elf(CLASS_64, MACHINE, Some("/lib/ld-musl-x86_64.so.1")), "glibc"),
        ];
        for (bytes, word) in cases {
            let text = refusal(&dir.file("program", &bytes, 0o755));
            assert!(
                text.contains(word) && text.contains("; use") && !text.contains('\n'),
                "{text}"
            );
        }
    }

    #[test]
    fn setuid_of_another_user_is_refused() {
        let path = Path::new("/nonexistent");
        let user = Credentials {
            euid: 1000,
            egid: 1000,
            no_new_privs: false,
        };
        assert!(check_privileges(path, 0o104755, 0, 0, user).is_err());
        assert!(check_privileges(path, 0o102755, 1000, 42, user).is_err());
        assert!(check_privileges(path, 0o104755, 1000, 1000, user).is_ok());
        assert!(
            check_privileges(
                path,
                0o104755,
                0,
                0,
                Credentials {
                    no_new_privs: true,
                    ..user
                }
            )
            .is_ok()
        );
        assert!(check_privileges(path, 0o104755, 0, 0, ROOT).is_ok());
    }

    #[test]
    fn scripts_are_followed() {
        let dir = Scratch::new("scripts");
        let target = dir.file("static", &elf(CLASS_64, MACHINE, None), 0o755);
        let one = dir.file("one", format!("#! {} -x\n", target.display()).as_bytes(), 0o755);
        let two = dir.file("two", format!("#!{}\n", one.display()).as_bytes(), 0o755);
        let three = dir.file("three", format!("#!{}\n", two.display()).as_bytes(), 0o755);
        assert!(refusal(&one).contains("statically"));
        assert!(refusal(&two).contains("statically"));
        assert!(refusal(&three).contains("2 times over"));
        let env = dir.file("env", b"#!/usr/bin/env sh\n", 0o755);
        assert!(inspect(env.as_os_str(), ROOT).expect("sh").ends_with("sh"));
        let bare = dir.file("bare", b"echo hello\n", 0o755);
        assert!(inspect(bare.as_os_str(), ROOT).is_ok());
    }

    #[test]
    fn exit_codes_126_and_127() {
        let dir = Scratch::new("codes");
        let not_found = |name: &OsStr| matches!(inspect(name, ROOT), Err(Refusal::NotFound(_)));
        let no_exec = |path: &Path| matches!(inspect(path.as_os_str(), ROOT), Err(Refusal::NotExecutable(_)));
        assert!(not_found(OsStr::new("no-such-program-of-farpage")));
        assert!(not_found(OsStr::new("")));
        assert!(not_found(dir.0.join("missing").as_os_str()));
        assert!(not_found(
            dir.file("lost", &elf(CLASS_64, MACHINE, Some("/no/ld.so")), 0o755)
                .as_os_str()
        ));
        assert!(no_exec(&dir.file("plain", b"#!/bin/sh\n", 0o644)));
        assert!(no_exec(&dir.file("data", b"a\0b", 0o755)));
        assert!(no_exec(&dir.file("short", b"\x7fELF\x02\x01\0\0", 0o755)));
        assert!(no_exec(&dir.0));
    }

    #[test]
    fn path_is_searched_as_execvp_does() {
        let dir = Scratch::new("path");
        let first = dir.0.join("first");
        fs::create_dir_all(first.join("tool")).expect("a directory named as the tool");
        dir.file("tool", b"#!/bin/sh\n", 0o755);
        let path = env::join_paths([&first, &dir.0]).expect("joins");
        let found = resolve(OsStr::new("tool"), Some(&path)).expect("the second");
        assert_eq!(found, dir.0.join("tool"));
        dir.file("locked", b"#!/bin/sh\n", 0o644);
        assert!(matches!(
            resolve(OsStr::new("locked"), Some(&path)),
            Err(Refusal::NotExecutable(_))
        ));
    }
}
