//! The environment of a new image: with the library in it, even if the program cleared its own, or without, where it says so
//! (`FARPAGE_DISABLE`), and where the loader could not open it (a root without /proc).

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicBool, Ordering};

use farpage::join::{self, ENV_DISABLE, ENV_POOL};
use farpage::mm::{fd, mm, mode};
use farpage::pool::flag;
use farpage::sys::{self, Errno};

use crate::process::Strings;

const PRELOAD: &CStr = c"LD_PRELOAD";
const DESCRIPTORS: &[u8] = b"/proc/self/fd/";
/// Room for the text of both variables, beside the program's own LD_PRELOAD.
const TEXT_LEN: u64 = 4096;

unsafe extern "C" {
    fn farpage_thread_left() -> *mut [u64; 2];
}

/// Puts `made` where a child that borrows this thread (vfork) leaves it, should it become another program and drop nothing. What the
/// one before it left, for which this thread has waited, is given back: two pages stayed with each such exec.
fn leave(made: (u64, u64)) {
    // SAFETY: the thread's own storage, which the child has to itself; memory of ours, and the exec that it was made for is over.
    unsafe {
        let [memory, len] = farpage_thread_left().replace([made.0, made.1]);
        if len != 0 {
            let _ = sys::munmap(memory, len);
        }
    }
}

/// The value, if a string of an environment is that of a variable.
fn value_of<'a>(text: &'a [u8], name: &CStr) -> Option<&'a [u8]> {
    text.strip_prefix(name.to_bytes())?.strip_prefix(b"=")
}

/// What an environment says of the library.
struct Found<'a> {
    /// How many strings it has.
    count: usize,
    preload: &'a [u8],
    has_pool: bool,
    /// Whether the new image is to be left alone.
    is_off: bool,
}

impl Found<'_> {
    /// # Safety
    /// `envp` is a NULL-terminated array of C strings, or none (clearenv leaves none).
    unsafe fn of<'a>(envp: Strings) -> Found<'a> {
        let mut found = Found {
            count: 0,
            preload: &[],
            has_pool: false,
            is_off: false,
        };
        // SAFETY: as promised by the caller.
        unsafe {
            while !envp.is_null() && !(*envp.add(found.count)).is_null() {
                let text = CStr::from_ptr(*envp.add(found.count)).to_bytes();
                found.has_pool |= value_of(text, ENV_POOL).is_some();
                found.is_off |= value_of(text, ENV_DISABLE).is_some_and(join::says_yes);
                found.preload = value_of(text, PRELOAD).unwrap_or(found.preload);
                found.count += 1;
            }
        }
        found
    }

    /// What it preloads, item by item.
    fn items(&self) -> impl Iterator<Item = &[u8]> {
        let items = self.preload.split(|&b| b == b':' || b == b' ');
        items.filter(|item| !item.is_empty())
    }
}

/// Whether a new image's loader will find what [`DESCRIPTORS`] names.
fn has_proc() -> bool {
    let path = c"/proc/self/fd".as_ptr() as u64;
    // A call that loaders make, too, and filters of programs' own let pass for that.
    // SAFETY: a string of ours.
    let seen = unsafe { sys::call(libc::SYS_access, [path, libc::F_OK as u64, 0, 0, 0, 0]) };
    !matches!(seen, Err(Errno(libc::ENOENT | libc::ENOTDIR)))
}

/// Whether what is started here can follow; says so once in a process if it can't.
fn may_follow() -> bool {
    static SAID: AtomicBool = AtomicBool::new(false);
    let can = has_proc();
    if !can && !SAID.swap(true, Ordering::Relaxed) {
        sys::complain(&[
            "farpage: programs started here run without a memory budget: there is no /proc in this root (chroot); mount it there",
        ]);
    }
    can
}

/// An environment for a new image. Holds what it made.
pub struct Environment {
    pub strings: Strings,
    made: Option<(u64, u64)>,
}

impl Environment {
    /// Whether an image that is started with this would not follow though it should, or would though it should not.
    pub unsafe fn is_missing(envp: Strings) -> bool {
        // SAFETY: the caller's array.
        let following = unsafe { Environment::following(envp) };
        following.made.is_some()
    }

    /// `envp` itself where nothing is missing (or nothing should follow).
    pub unsafe fn following(envp: Strings) -> Environment {
        let plain = Environment {
            strings: envp,
            made: None,
        };
        let mm = mm();
        let is_on = mm.mode.load(Ordering::Relaxed) != mode::OFF;
        if is_on && mm.header().has(flag::NO_FOLLOW) {
            return plain;
        }
        // SAFETY: the caller's array.
        let found = unsafe { Found::of(envp) };
        // What has no budget makes nothing follow. What it was started with only goes where a loader could but complain of it.
        if !is_on && (!found.has_pool || has_proc()) {
            return plain;
        }
        let digits_of = |which| sys::Num::new(if is_on { mm.fd(which) as u64 } else { 0 }, 10);
        let library = digits_of(fd::LIBRARY);
        let library = library.text().as_bytes();
        let is_ours = |item: &[u8]| {
            let digits = item.strip_prefix(DESCRIPTORS);
            digits.is_some_and(|digits| !is_on || digits == library)
        };
        let loaded = found.items().any(is_ours);
        let follows = is_on && !found.is_off && may_follow();
        if (loaded, found.has_pool) == (follows, follows) {
            return plain;
        }
        let array_len = ((found.count + 3) * 8) as u64;
        let len = array_len + TEXT_LEN + found.preload.len() as u64;
        let Ok(memory) = sys::engine_memory(len) else {
            return plain;
        };
        if !mm.is_own() {
            leave((memory, len));
        }
        let mut text = Text(memory + array_len);
        let ours = text.at();
        text.put(&[PRELOAD.to_bytes(), b"="]);
        let mut separator: &[u8] = b"";
        if follows {
            text.put(&[DESCRIPTORS, library]);
            separator = b":";
        }
        for item in found.items().filter(|item| !is_ours(item)) {
            text.put(&[separator, item]);
            separator = b":";
        }
        let preload = (!separator.is_empty()).then_some(ours);
        text.put(&[b"\0"]);
        let pool = follows.then(|| text.at());
        let number = digits_of(fd::POOL);
        text.put(&[ENV_POOL.to_bytes(), b"=", number.text().as_bytes(), b"\0"]);
        let array = memory as *mut *const c_char;
        let mut at = 0;
        // SAFETY: the array has room for count + 3 pointers; the source holds count strings.
        unsafe {
            for i in 0..found.count {
                let entry = *envp.add(i);
                let bytes = CStr::from_ptr(entry).to_bytes();
                if value_of(bytes, PRELOAD).is_none() && value_of(bytes, ENV_POOL).is_none() {
                    array.add(at).write(entry);
                    at += 1;
                }
            }
            for entry in [preload, pool].into_iter().flatten() {
                array.add(at).write(entry);
                at += 1;
            }
        }
        Environment {
            strings: array as Strings,
            made: Some((memory, len)),
        }
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        let Some((memory, len)) = self.made else { return };
        if !mm().is_own() {
            return leave((0, 0));
        }
        // SAFETY: memory of ours that nobody refers to any more.
        let _ = unsafe { sys::munmap(memory, len) };
    }
}

/// Where the next text goes to: what is put there fits [`TEXT_LEN`] and the program's own LD_PRELOAD.
struct Text(u64);

impl Text {
    fn at(&self) -> *const c_char {
        self.0 as *const c_char
    }

    fn put(&mut self, parts: &[&[u8]]) {
        for part in parts {
            // SAFETY: there is room for it, see above; fresh memory overlaps nothing.
            unsafe { core::ptr::copy_nonoverlapping(part.as_ptr(), self.0 as *mut u8, part.len()) };
            self.0 += part.len() as u64;
        }
    }
}
