//! liburing's ways to a ring, which go to the kernel past libc: answered as the system call is (`--allow-io-uring`). A process that had made
//! one before it was managed stayed without a budget, and MariaDB does so at its start; refused, it takes libaio.

use core::ffi::{c_int, c_uint, c_void};

use farpage::mm::mm;

use crate::real;
use crate::signal::refuses_rings;

const REFUSED: c_int = -libc::ENOSYS;

macro_rules! makers {
    ($($name:ident ($($arg:ident: $ty:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> c_int {
            if refuses_rings(mm()) {
                return REFUSED;
            }
            let Ok(symbol) = core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) else {
                return REFUSED;
            };
            match real::look_up(symbol) {
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
