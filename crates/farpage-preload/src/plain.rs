//! The arguments of a spawn, copied out of managed memory.
//!
//! The child of posix_spawn runs with all signals blocked: a fault or a trapped system call would end it. So nothing it
//! touches may be managed: path, argument and environment strings, file actions and their paths are copied to plain memory. A dormant
//! process copies them where actions would close the tree's descriptors.

use core::ffi::{CStr, c_char, c_int, c_void};

use farpage::mm::{fd, mm};
use farpage::pool::is_managed;
use farpage::sys;

/// Tags of actions, in the low half of their first word. A close has its descriptor in the low half of the second, closefrom its first.
const CLOSE: u32 = 0;
const CLOSE_FROM: u32 = 5;
/// Size of glibc's posix_spawnattr_t.
const ATTRIBUTES_LEN: usize = 336;

type Strings = *const *const c_char;
type Action = [u64; 4];

/// glibc's posix_spawn_file_actions_t, as far as it must be known: actions of 32 bytes, in which a word may be a path.
#[repr(C)]
#[derive(Clone, Copy)]
struct FileActions {
    allocated: c_int,
    used: c_int,
    actions: *const Action,
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
            let (list, mut used) = (self.at as *mut Action, 0);
            each_made(actions, |action| {
                self.bytes((&raw const action).cast(), size_of::<Action>());
                used += 1;
            });
            (*head).actions = list;
            (*head).used = used as c_int;
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

/// The caller's actions.
unsafe fn each_action(actions: *const FileActions) -> impl Iterator<Item = Action> {
    // SAFETY: the caller's structure with `used` actions, or NULL.
    let actions = unsafe { actions.as_ref() };
    actions.into_iter().flat_map(|actions| {
        // SAFETY: as above.
        (0..actions.used.max(0) as usize).map(|i| unsafe { *actions.actions.add(i) })
    })
}

/// What is made of the caller's actions: a closefrom that would reach the tree's descriptors closes what is below them, and what is
/// above. (The filter answers as if they were closed, so that libc, which looks for what is open still, closed them for ever.)
unsafe fn each_made(actions: *const FileActions, mut make: impl FnMut(Action)) {
    let (lo, hi) = (mm().fd(0), mm().fd(fd::COUNT - 1));
    // SAFETY: as the caller's.
    for action in unsafe { each_action(actions) } {
        let number = action[1] as i32;
        match action[0] as u32 {
            CLOSE if (lo..=hi).contains(&number) => {}
            CLOSE_FROM if number <= hi => {
                // Closing what is not open is no error up to the limit.
                let open = c_int::try_from(sys::soft_limit(libc::RLIMIT_NOFILE))
                    .unwrap_or(c_int::MAX)
                    .min(lo);
                (number..open).for_each(|below| make([CLOSE.into(), below as u64, 0, 0]));
                make([CLOSE_FROM.into(), hi as u64 + 1, 0, 0]);
            }
            _ => make(action),
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
    let mut size = size_of::<FileActions>() + 64;
    // SAFETY: as the caller's; managed words in actions are paths.
    unsafe {
        each_made(actions, |action| {
            let paths = action.iter().filter(|&&word| is_managed(word));
            let texts: usize = paths.map(|&word| size_of_string(word as *const c_char)).sum();
            size += size_of::<Action>() + texts;
        });
    }
    size
}

impl Plain {
    /// Whether the actions would close descriptors of the tree's.
    ///
    /// # Safety
    /// The file actions of a spawn, or NULL.
    pub unsafe fn is_needed(actions: *const c_void) -> bool {
        let (lo, hi) = (mm().fd(0), mm().fd(fd::COUNT - 1));
        let closes = |action: Action| match (action[0] as u32, action[1] as i32) {
            (CLOSE, number) => (lo..=hi).contains(&number),
            (CLOSE_FROM, number) => number <= hi,
            _ => false,
        };
        // SAFETY: as the caller's.
        unsafe { each_action(actions.cast()) }.any(closes)
    }

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
