//! liburing's ways to a ring, which go to the kernel past libc: answered as the system call is (`--allow-io-uring`). A process that had made
//! one before it was managed stayed without a budget, and MariaDB does so at its start; refused, it takes libaio.

use core::ffi::{CStr, c_int, c_uint, c_void};

use farpage::mm::mm;

use crate::real;
use crate::signal::refuses_rings;

const REFUSED: c_int = -libc::ENOSYS;

/// liburing's function of a name, which may be known to nobody but a plugin that brought it.
fn found(name: &CStr) -> usize {
    let next = real::look_up(name);
    if next != 0 {
        return next;
    }
    let mut library = [0u8; PATH_MAX];
    // SAFETY: the callback gets valid loader data and our buffer; what it wrote there ends with a NUL.
    unsafe {
        libc::dl_iterate_phdr(Some(note_library), library.as_mut_ptr().cast());
        let handle = libc::dlopen(library.as_ptr().cast(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        if library[0] == 0 || handle.is_null() {
            return 0;
        }
        let found = libc::dlsym(handle, name.as_ptr()) as usize;
        libc::dlclose(handle);
        found
    }
}

const PATH_MAX: usize = libc::PATH_MAX as usize;

/// Writes down the path of what is loaded as liburing. It is opened afterwards: the loader is locked meanwhile.
unsafe extern "C" fn note_library(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    library: *mut c_void,
) -> c_int {
    // SAFETY: loader data, valid during the callback; the buffer has room for a path.
    unsafe {
        if (*info).dlpi_name.is_null() {
            return 0;
        }
        let path = CStr::from_ptr((*info).dlpi_name).to_bytes_with_nul();
        let is_it = path.len() <= PATH_MAX && path.windows(9).any(|part| part == b"/liburing");
        if is_it {
            core::ptr::copy_nonoverlapping(path.as_ptr(), library.cast(), path.len());
        }
        c_int::from(is_it)
    }
}

macro_rules! makers {
    ($($name:ident ($($arg:ident: $ty:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> c_int {
            if refuses_rings(mm()) {
                return REFUSED;
            }
            let Ok(symbol) = CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) else {
                return REFUSED;
            };
            match found(symbol) {
                0 => REFUSED,
                // SAFETY: liburing's function of that name, with the caller's arguments.
                found => unsafe {
                    core::mem::transmute::<usize, unsafe extern "C" fn($($ty),*) -> c_int>(found)($($arg),*)
                },
            }
        }
    )*};
}

makers! {
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint);
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, params: *mut c_void);
    io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, params: *mut c_void, memory: *mut c_void, len: usize);
    io_uring_setup(entries: c_uint, params: *mut c_void);
}
