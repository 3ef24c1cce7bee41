//! The arguments of a spawn, copied out of managed memory.
//!
//! The child of posix_spawn runs with all signals blocked: a fault or a trapped system call would end it. So nothing it
//! touches may be managed: path, argument and environment strings, file actions and their paths are copied to plain memory.

use core::ffi::{CStr, c_char, c_int, c_void};

use farpage::pool::is_managed;
use farpage::sys;

/// Size of glibc's posix_spawnattr_t.
const ATTRIBUTES_LEN: usize = 336;

type Strings = *const *const c_char;

/// glibc's posix_spawn_file_actions_t, as far as it must be known: actions of 32 bytes, in which a word may be a path.
#[repr(C)]
#[derive(Clone, Copy)]
struct FileActions {
    allocated: c_int,
    used: c_int,
    actions: *const [u64; 4],
    rest: [c_int; 16],
}

pub struct Plain {
    memory: u64,
    len: u64,
    pub path: *const c_char,
    pub argv: Strings,
    pub envp: Strings,
    pub actions: *const c_void,
    pub attributes: *const c_void,
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: memory of ours that nobody refers to any more.
        let _ = unsafe { sys::munmap(self.memory, self.len) };
    }
}

/// Writes copies one after another, 8-byte aligned.
struct Writer {
    at: u64,
}

impl Writer {
    unsafe fn bytes(&mut self, from: *const u8, len: usize) -> u64 {
        let to = self.at;
        // SAFETY: `copy` sized the memory for everything that is written.
        unsafe { core::ptr::copy_nonoverlapping(from, to as *mut u8, len) };
        self.at += (len as u64).next_multiple_of(8);
        to
    }

    unsafe fn string(&mut self, text: *const c_char) -> *const c_char {
        if text.is_null() {
            return text;
        }
        // SAFETY: a C string of the caller's.
        unsafe { self.bytes(text.cast(), CStr::from_ptr(text).count_bytes() + 1) as *const c_char }
    }

    unsafe fn strings(&mut self, array: Strings) -> Strings {
        if array.is_null() {
            return array;
        }
        // SAFETY: a NULL-terminated array of C strings; the copy has as many places.
        unsafe {
            let count = count_of(array);
            let copy = self.bytes(array.cast(), (count + 1) * 8) as *mut *const c_char;
            for i in 0..count {
                let text = self.string(*array.add(i));
                copy.add(i).write(text);
            }
            copy as Strings
        }
    }

    unsafe fn actions(&mut self, actions: *const FileActions) -> *const c_void {
        if actions.is_null() {
            return actions.cast();
        }
        // SAFETY: the caller's structure with `used` actions.
        unsafe {
            let head = self.bytes(actions.cast(), size_of::<FileActions>()) as *mut FileActions;
            let used = (*actions).used.max(0) as usize;
            let list = self.bytes((*actions).actions.cast(), used * 32) as *mut [u64; 4];
            (*head).actions = list;
            for i in 0..used {
                for word in &mut *list.add(i) {
                    // The only pointers in an action are paths; its numbers are no managed addresses.
                    if is_managed(*word) {
                        *word = self.string(*word as *const c_char) as u64;
                    }
                }
            }
            head as *const c_void
        }
    }
}

unsafe fn count_of(array: Strings) -> usize {
    let mut count = 0;
    // SAFETY: a NULL-terminated array.
    while !unsafe { *array.add(count) }.is_null() {
        count += 1;
    }
    count
}

unsafe fn size_of_string(text: *const c_char) -> usize {
    if text.is_null() {
        return 0;
    }
    // SAFETY: a C string of the caller's.
    unsafe { CStr::from_ptr(text) }.count_bytes() + 16
}

unsafe fn size_of_strings(array: Strings) -> usize {
    if array.is_null() {
        return 0;
    }
    // SAFETY: a NULL-terminated array of C strings.
    unsafe {
        let count = count_of(array);
        (0..count).map(|i| size_of_string(*array.add(i))).sum::<usize>() + (count + 2) * 8
    }
}

unsafe fn size_of_actions(actions: *const FileActions) -> usize {
    // SAFETY: the caller's structure, or NULL.
    let Some(actions) = (unsafe { actions.as_ref() }) else {
        return 0;
    };
    let used = actions.used.max(0) as usize;
    // SAFETY: `used` actions; managed words in them are paths.
    let paths = (0..used)
        .flat_map(|i| unsafe { *actions.actions.add(i) })
        .filter(|&word| is_managed(word));
    // SAFETY: as above.
    let texts: usize = paths
        .map(|word| unsafe { size_of_string(word as *const c_char) })
        .sum();
    size_of::<FileActions>() + used * 32 + 64 + texts
}

impl Plain {
    /// Copies the arguments of a spawn; `None` without memory for it.
    ///
    /// # Safety
    /// The arguments of posix_spawn.
    pub unsafe fn copy(
        path: *const c_char,
        argv: Strings,
        envp: Strings,
        actions: *const c_void,
        attributes: *const c_void,
    ) -> Option<Plain> {
        let actions = actions as *const FileActions;
        // SAFETY: as the caller's; the sizes cover what is written, with room for alignment.
        unsafe {
            let len = size_of_string(path)
                + size_of_strings(argv)
                + size_of_strings(envp)
                + size_of_actions(actions)
                + ATTRIBUTES_LEN
                + 64;
            let memory = sys::engine_memory(len as u64).ok()?;
            let mut writer = Writer { at: memory };
            let (path, argv) = (writer.string(path), writer.strings(argv));
            let (envp, actions) = (writer.strings(envp), writer.actions(actions));
            let attributes = if attributes.is_null() {
                attributes
            } else {
                writer.bytes(attributes.cast(), ATTRIBUTES_LEN) as *const c_void
            };
            Some(Plain {
                memory,
                len: len as u64,
                path,
                argv,
                envp,
                actions,
                attributes,
            })
        }
    }
}
