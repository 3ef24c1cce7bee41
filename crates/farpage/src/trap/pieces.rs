//! Transfers whose buffers are too long to pin: done in pieces, with the result that the kernel would give for the whole.
//!
//! # Safety
//! Calls are made with the program's own arguments, on parts of the buffers that it named.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::mm::{Mm, PAGE, mm};
use crate::pool::is_managed;
use crate::sys;
use crate::syscalls::Chunk;
use crate::trap::{perform_whole, read_user, write_user};

/// Longest buffer that is pinned as a whole: an eighth of the limit, 256 KiB to 8 MiB.
fn piece_bytes(mm: &Mm) -> u64 {
    (mm.header().limit.load(Ordering::Relaxed) / 8).clamp(64, 2048) as u64 * PAGE
}

/// The same of what the kernel does as one step: to a file at its own position, where others write and read beside it. (Three processes
/// that appended records of 1 MiB had a third of them mixed.) A quarter of the limit.
fn step_bytes(mm: &Mm) -> u64 {
    piece_bytes(mm).max(mm.header().limit.load(Ordering::Relaxed) as u64 / 4 * PAGE)
}

/// How much is pinned at first of a read that has to wait for its data: threads that wait so would keep all of their buffers in RAM, most of
/// them never touched.
const WAITING: u64 = 16 * PAGE;

/// Whether a read of a pipe or a stream has to wait, and ends with what is there then.
fn waits(nr: i64, args: [u64; 6]) -> bool {
    let by_flags = nr == libc::SYS_recvfrom && args[3] & (WHOLE | libc::MSG_WAITALL as u64) == 0;
    let is_stream = || {
        let mode = splittable(nr, args).unwrap_or(0);
        matches!(mode & libc::S_IFMT, libc::S_IFIFO | libc::S_IFSOCK)
    };
    let by_call = matches!(nr, libc::SYS_read | libc::SYS_readv);
    (by_call || by_flags) && !readable_now(args[0]) && is_stream()
}

/// Does a transfer with a long managed buffer in pieces; `None` if it need not or can't be split.
pub fn in_pieces(nr: i64, args: [u64; 6], chunk: Chunk) -> Option<i64> {
    let most = piece_bytes(mm());
    match chunk {
        Chunk::None => None,
        Chunk::ReadLike { buf, len, offset } | Chunk::WriteLike { buf, len, offset } => {
            let reads = matches!(chunk, Chunk::ReadLike { .. });
            let bytes = args[usize::from(len)];
            if bytes <= WAITING.min(most) || !is_managed(args[usize::from(buf)]) {
                return None;
            }
            let most = if waits(nr, args) {
                WAITING
            } else if bytes > most {
                longest_whole(nr, args, offset)?
            } else {
                most
            };
            if bytes <= most {
                return None;
            }
            Some(transfer(Pieces {
                nr,
                args,
                buf,
                len,
                offset,
                reads,
                most,
            }))
        }
        Chunk::ReadVec { iov, count, offset } | Chunk::WriteVec { iov, count, offset } => {
            let reads = matches!(chunk, Chunk::ReadVec { .. });
            vector(nr, args, (iov, count, offset), reads, most)
        }
    }
}

#[derive(Clone, Copy)]
struct Pieces {
    nr: i64,
    args: [u64; 6],
    buf: u8,
    len: u8,
    offset: Option<u8>,
    reads: bool,
    most: u64,
}

/// Piece after piece until a short one. A read goes on only where the kernel's single call would: data is there.
fn transfer(pieces: Pieces) -> i64 {
    let total = pieces.args[usize::from(pieces.len)].min(0x7fff_f000);
    let waits_for_all = pieces.nr == libc::SYS_recvfrom && pieces.args[3] & libc::MSG_WAITALL as u64 != 0;
    let may_block = pieces.reads && !waits_for_all && pieces.nr != libc::SYS_getrandom;
    let mut done = 0;
    while done < total {
        let mut args = pieces.args;
        let len = (total - done).min(pieces.most);
        args[usize::from(pieces.buf)] += done;
        args[usize::from(pieces.len)] = len;
        if let Some(offset) = pieces.offset
            && args[usize::from(offset)] != u64::MAX
        {
            args[usize::from(offset)] += done;
        }
        if done > 0 && (has_failed(args[0]) || may_block && !readable_now(args[0])) {
            break;
        }
        let result = perform_whole(pieces.nr, args);
        if result < 0 {
            return if done > 0 { done as i64 } else { result };
        }
        done += result as u64;
        if (result as u64) < len {
            break;
        }
    }
    done as i64
}

/// Flags of what is one call or none: a peek sees the same bytes each time, and each send from the program's own memory has a number, by
/// which the program learns when it may use that memory again.
const WHOLE: u64 = (libc::MSG_PEEK | libc::MSG_ZEROCOPY) as u64;

/// Whether a further read would not block.
fn readable_now(fd: u64) -> bool {
    let mut poll = libc::pollfd {
        fd: fd as i32,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd of ours.
    unsafe { sys::raw(libc::SYS_poll, [&mut poll as *mut _ as u64, 1, 0, 0, 0, 0]) != 0 }
}

/// Whether an error waits for the next call on a socket: it is the program's next call that is to get it, and not a further piece of this one,
/// whose result is what is done.
fn has_failed(fd: u64) -> bool {
    let mut poll = libc::pollfd {
        fd: fd as i32,
        events: 0,
        revents: 0,
    };
    // SAFETY: one pollfd of ours.
    let told = unsafe { sys::raw(libc::SYS_poll, [&mut poll as *mut _ as u64, 1, 0, 0, 0, 0]) };
    // Both: a queue of messages about sends, or a pipe without a reader, is an error alone.
    let cut = libc::POLLERR | libc::POLLHUP;
    told > 0 && poll.revents & cut == cut
}

/// How many bytes are to be one call at least; `None`: all of them. Regular files, block devices, pipes and stream sockets transfer the
/// same bytes in pieces; a peek and a datagram do not. `offset` is the argument that says where in the file.
fn longest_whole(nr: i64, args: [u64; 6], offset: Option<u8>) -> Option<u64> {
    let mode = if nr == libc::SYS_getrandom {
        0
    } else {
        splittable(nr, args)?
    };
    let place = offset.map(|offset| args[usize::from(offset)]);
    let is_own = |place: Option<u64>| place.is_none_or(|place| place == u64::MAX);
    let is_step = mode & libc::S_IFMT == libc::S_IFREG && (is_own(place) || appends(nr, args));
    Some(if is_step {
        step_bytes(mm())
    } else {
        piece_bytes(mm())
    })
}

/// Whether a write goes to the end of its file, wherever it says.
fn appends(nr: i64, args: [u64; 6]) -> bool {
    // SAFETY: asks about a descriptor.
    let flags = unsafe { sys::raw(libc::SYS_fcntl, [args[0], libc::F_GETFL as u64, 0, 0, 0, 0]) };
    let by_call = nr == libc::SYS_pwritev2 && args[5] & libc::RWF_APPEND as u64 != 0;
    by_call || (flags >= 0 && flags & i64::from(libc::O_APPEND) != 0)
}

/// The mode of a file whose transfers may be split; `None` for any other.
fn splittable(nr: i64, args: [u64; 6]) -> Option<u32> {
    if matches!(nr, libc::SYS_recvfrom | libc::SYS_sendto) && args[3] & WHOLE != 0 {
        return None;
    }
    let mut stat = [0u64; 18]; // struct stat is 144 bytes; st_mode is the u32 at byte 24
    // SAFETY: the buffer has the size of struct stat.
    if unsafe { sys::raw(libc::SYS_fstat, [args[0], stat.as_mut_ptr() as u64, 0, 0, 0, 0]) } < 0 {
        return None;
    }
    let mode = stat[3] as u32;
    let may = match mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFBLK | libc::S_IFIFO => true,
        // /dev/null, zero, full, random: major number 1; st_rdev is the u64 at byte 40.
        libc::S_IFCHR => stat[5] >> 8 & 0xfff == 1,
        libc::S_IFSOCK => {
            let (mut kind, mut len) = (0i32, 4u32);
            let out = (&mut kind as *mut _ as u64, &mut len as *mut _ as u64);
            // SAFETY: getsockopt writes an int.
            unsafe {
                sys::raw(
                    libc::SYS_getsockopt,
                    [
                        args[0],
                        libc::SOL_SOCKET as u64,
                        libc::SO_TYPE as u64,
                        out.0,
                        out.1,
                        0,
                    ],
                )
            };
            kind == libc::SOCK_STREAM
        }
        _ => false,
    };
    may.then_some(mode)
}

/// A vector transfer whose buffers together are too long: one element at a time.
fn vector(
    nr: i64,
    args: [u64; 6],
    (iov, count, offset): (u8, u8, Option<u8>),
    reads: bool,
    most: u64,
) -> Option<i64> {
    let (array, entries) = (args[usize::from(iov)], args[usize::from(count)]);
    if entries > 1024 {
        return None;
    }
    let least = WAITING.min(most);
    if !is_long(array, entries, least) {
        return None;
    }
    let most = if reads && waits(nr, args) {
        least
    } else if is_long(array, entries, most) {
        longest_whole(nr, args, offset).filter(|most| is_long(array, entries, *most))?
    } else {
        return None;
    };
    let mut done = 0u64;
    for i in 0..entries {
        let [base, len] = iov_element(array, i)?;
        let mut at = 0;
        while at < len {
            let pair = [base + at, (len - at).min(most)];
            let mut one = args;
            one[usize::from(iov)] = pair.as_ptr() as u64;
            one[usize::from(count)] = 1;
            if let Some(offset) = offset
                && one[usize::from(offset)] != u64::MAX
            {
                one[usize::from(offset)] += done;
            }
            if done > 0 && (has_failed(args[0]) || reads && !readable_now(args[0])) {
                return Some(done as i64);
            }
            let result = perform_whole(nr, one);
            if result < 0 {
                return Some(if done > 0 { done as i64 } else { result });
            }
            done += result as u64;
            at += result as u64;
            if (result as u64) < pair[1] {
                return Some(done as i64);
            }
        }
    }
    Some(done as i64)
}

/// sendmsg or recvmsg on a stream with buffers too long to pin: in pieces, name and control data with the first. A receive
/// with room for control data ends after its first piece, lest it take the control data of what follows.
pub fn message(nr: i64, args: [u64; 6]) -> Option<i64> {
    let reads = nr == libc::SYS_recvmsg;
    if !reads && nr != libc::SYS_sendmsg || args[2] & WHOLE != 0 {
        return None;
    }
    let mut header = [0u64; 7]; // name, its length, iov, count, control, its length, flags
    let user = (args[1], header.as_mut_ptr() as u64, 56);
    if !read_user(user.0, user.1, user.2) || header[3] > 1024 {
        return None;
    }
    let most = piece_bytes(mm());
    let [iov, count] = [header[2], header[3]];
    let wait = !reads || args[2] & libc::MSG_WAITALL as u64 != 0;
    let once = reads && header[5] != 0;
    // With room for control data it ends after a piece, which is an element or a part of one: not for the sake of waiting.
    let least = WAITING.min(most);
    let waits = !wait && !once && is_long(iov, count, least) && !readable_now(args[0]);
    let most = if waits { least } else { most };
    if !is_long(iov, count, most) || splittable(nr, args).is_none() {
        return None;
    }
    let mut done = 0u64;
    for i in 0..count {
        let [base, len] = iov_element(iov, i)?;
        let mut at = 0;
        while at < len {
            let pair = [base + at, (len - at).min(most)];
            let mut one = header;
            (one[2], one[3]) = (pair.as_ptr() as u64, 1);
            if done > 0 {
                (one[0], one[1], one[4], one[5]) = (0, 0, 0, 0);
            }
            if done > 0 && (once || has_failed(args[0]) || !wait && !readable_now(args[0])) {
                return Some(done as i64);
            }
            // Another reader may have been faster, and what is here already is not waited for.
            let at_once = if reads && !wait && done > 0 {
                libc::MSG_DONTWAIT as u64
            } else {
                0
            };
            let result = perform_whole(nr, [args[0], one.as_ptr() as u64, args[2] | at_once, 0, 0, 0]);
            if result < 0 {
                return Some(if done > 0 { done as i64 } else { result });
            }
            if reads && done == 0 {
                (one[2], one[3]) = (iov, count);
                write_user(args[1], one.as_ptr() as u64, 56);
            }
            done += result as u64;
            at += result as u64;
            if (result as u64) < pair[1] {
                return Some(done as i64);
            }
        }
    }
    Some(done as i64)
}

/// Base and length of an element of an iovec array of the program's.
pub fn iov_element(array: u64, i: u64) -> Option<[u64; 2]> {
    let mut pair = [0u64; 2];
    read_user(array + i * 16, pair.as_mut_ptr() as u64, 16).then_some(pair)
}

/// Whether the buffers of an iovec array hold more than `most` bytes together, and a number the kernel accepts.
fn is_long(array: u64, count: u64, most: u64) -> bool {
    let mut total = 0u64;
    for i in 0..count {
        let Some([_, len]) = iov_element(array, i) else {
            return false;
        };
        total = total.saturating_add(len);
    }
    total > most && total <= i64::MAX as u64
}
