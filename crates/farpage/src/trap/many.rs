//! Calls on an array of messages or requests, of which the kernel may do fewer than it is asked for: sendmmsg, recvmmsg, io_submit.
//!
//! All their buffers may be more than one call may pin. The kernel takes a datagram off its queue before it finds that there is no buffer for it,
//! so it is asked only for those whose buffers are pinned: for one at least, and if that has more than can be pinned it does not use all of it.
//!
//! # Safety
//! Calls are made with the program's own arguments, but for how many.
#![allow(unsafe_code)]

use super::{Pins, managed_part, read_word};
use crate::mm::{Mm, mm};
use crate::pool::flag;
use crate::sys;
use crate::syscalls;

/// The most of each that the kernel takes, or a call is described for.
const ELEMENTS_MAX: u64 = 1024;
/// recvmmsg's.
const TIMEOUT: usize = 4;

/// Positions of the array and of its length among the arguments, and an element's size in bytes.
fn array_of(nr: i64) -> Option<(usize, usize, u64)> {
    match nr {
        libc::SYS_sendmmsg | libc::SYS_recvmmsg => Some((1, 2, 64)),
        libc::SYS_io_submit => Some((2, 1, 8)),
        _ => None,
    }
}

/// Does such a call for the program; `None`: it is another, or one for a single element.
pub fn perform(nr: i64, mut args: [u64; 6]) -> Option<i64> {
    let (_, count, _) = array_of(nr)?;
    // int of the one, long of the other; what is negative the kernel refuses.
    let asked = if nr == libc::SYS_io_submit {
        args[count]
    } else {
        u64::from(args[count] as u32)
    };
    let mm = mm();
    // Where a thread delivers pages the kernel waits for them.
    if asked < 2 || i64::try_from(asked).is_err() || !mm.is_active() || mm.header().has(flag::THREAD_DELIVERY)
    {
        return None;
    }
    let mut pins = Pins::new();
    args[count] = pin_first(mm, &mut pins, nr, args, asked.min(ELEMENTS_MAX));
    // SAFETY: the program's own call, for the first of its elements.
    let result = unsafe { sys::raw(nr, args) };
    pins.release(mm);
    Some(result)
}

/// How many of the first `asked` elements are pinned with all that they name; 1 if not even one is.
fn pin_first(mm: &Mm, pins: &mut Pins, nr: i64, args: [u64; 6], asked: u64) -> u64 {
    let Some((array, count, bytes)) = array_of(nr) else {
        return 1;
    };
    for index in 0..asked {
        let mut one = args;
        one[array] = args[array].wrapping_add(index * bytes);
        one[count] = 1;
        if index > 0 {
            one[TIMEOUT] = 0; // pinned with the first
        }
        let mut whole = true;
        syscalls::ranges(nr as usize, &one, &mut read_word, &mut |start, len| {
            pins.add(mm, start, len);
            whole &= managed_part(start, len).is_none() || pins.has(start, len);
        });
        if !whole {
            return index.max(1);
        }
    }
    asked
}
