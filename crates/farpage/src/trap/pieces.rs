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
use crate::trap::{PINNED_MIN, issue, perform_piece, read_user, write_user};

/// Longest buffer that is pinned as a whole: an eighth of the limit, 256 KiB to 8 MiB.
fn piece_bytes(mm: &Mm) -> u64 {
    eighth(mm.header().last_limit())
}

/// The same of what the kernel does as one step: to a file at its own position, where others write and read beside it. (Three processes
/// that appended records of 1 MiB had a third of them mixed.) A quarter of the limit, and where others have most of the budget up to half. (It was
/// next to nothing for a moment after the end of a child, and a tenth of those records mixed again.)
fn step_bytes(mm: &Mm) -> u64 {
    let header = mm.header();
    let limit = (header.last_limit() - header.zpool_pages()).max(0) as u64;
    let whole = eighth(header.budget.load(Ordering::Relaxed)).min((limit / 2).max(PINNED_MIN) * PAGE);
    whole.max(limit / 4 * PAGE)
}

fn eighth(pages: i64) -> u64 {
    (pages / 8).clamp(64, 2048) as u64 * PAGE
}

/// The pages of a piece of `bytes` in `buffers`, which need not be aligned, beside what else the call names.
fn pages_of(bytes: u64, buffers: u64) -> u64 {
    bytes / PAGE + 2 * (buffers + 1)
}

/// How much is pinned at first of a read that has to wait for its data: threads that wait so would keep all of their buffers in RAM, most of
/// them never touched.
const WAITING: u64 = 16 * PAGE;

/// Whether a read of a pipe or a stream has to wait, and ends with what is there then.
fn waits(nr: i64, args: [u64; 6]) -> bool {
    let by_flags = nr == libc::SYS_recvfrom && args[3] & (WHOLE | libc::MSG_WAITALL as u64) == 0;
    let by_call = matches!(nr, libc::SYS_read | libc::SYS_readv);
    (by_call || by_flags) && !readable_now(args[0]) && is_stream(nr, args)
}

fn is_stream(nr: i64, args: [u64; 6]) -> bool {
    let mode = splittable(nr, args).unwrap_or(0);
    matches!(mode & libc::S_IFMT, libc::S_IFIFO | libc::S_IFSOCK)
}

/// Whether a read ends with its first piece, as the kernel's own may: a further one of a pipe or a stream could wait, and no flag of the call
/// forbids it. What is there when one asks another reader may take. (Two that shared a pipe waited for each other's data, and who sent it
/// for their answer.) Others go on: with O_NONBLOCK, a short read means that nothing is left.
fn ends_with_piece(nr: i64, args: [u64; 6]) -> bool {
    let by_call = matches!(nr, libc::SYS_read | libc::SYS_readv | libc::SYS_preadv2);
    by_call && is_stream(nr, args) && file_flags(args[0]) & libc::O_NONBLOCK == 0
}

fn file_flags(fd: u64) -> i32 {
    // SAFETY: asks about a descriptor.
    let flags = unsafe { sys::raw(libc::SYS_fcntl, [fd, libc::F_GETFL as u64, 0, 0, 0, 0]) };
    flags.max(0) as i32
}

/// Whether the kernel refuses a length of its own accord, before it looks at any memory: a buffer so long lies in no program. (Those of
/// sockets, and getrandom, it cuts.)
fn is_refused(nr: i64, bytes: u64) -> bool {
    let is_of_files = matches!(
        nr,
        libc::SYS_read | libc::SYS_write | libc::SYS_pread64 | libc::SYS_pwrite64
    );
    is_of_files && i64::try_from(bytes).is_err()
}

/// Does a transfer with a long managed buffer in pieces, if need be; `None` if it is short or can't be split.
pub fn in_pieces(nr: i64, args: [u64; 6], chunk: Chunk) -> Option<i64> {
    let most = piece_bytes(mm());
    match chunk {
        Chunk::None => None,
        Chunk::ReadLike { buf, len, offset } | Chunk::WriteLike { buf, len, offset } => {
            let reads = matches!(chunk, Chunk::ReadLike { .. });
            let bytes = args[usize::from(len)];
            if is_refused(nr, bytes) {
                return Some(issue(nr, args));
            }
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
    let takes_what_is_there =
        pieces.nr == libc::SYS_recvfrom && pieces.args[3] & libc::MSG_WAITALL as u64 == 0;
    let once = pieces.reads && total > pieces.most && ends_with_piece(pieces.nr, pieces.args);
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
        if done > 0 && (once || has_failed(args[0])) {
            break;
        }
        if done > 0 && takes_what_is_there {
            args[3] |= libc::MSG_DONTWAIT as u64;
        }
        let result = perform_piece(pieces.nr, args, pages_of(len, 1));
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
    let by_call = nr == libc::SYS_pwritev2 && args[5] & libc::RWF_APPEND as u64 != 0;
    by_call || file_flags(args[0]) & libc::O_APPEND != 0
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

/// Elements of one piece at most.
const PART: usize = 64;

/// What is left of the buffers of an iovec array of the program's.
struct Left {
    array: u64,
    count: u64,
    index: u64,
    /// Bytes of the element at `index` that are done.
    within: u64,
}

impl Left {
    fn of(array: u64, count: u64) -> Left {
        Left {
            array,
            count,
            index: 0,
            within: 0,
        }
    }

    /// The next buffers, `most` bytes at most, and how many there are of both: none at the end. `None`: a bad pointer.
    fn next(&mut self, most: u64, part: &mut [[u64; 2]; PART]) -> Option<(usize, u64)> {
        let (mut len, mut bytes) = (0, 0);
        while self.index < self.count && len < PART && bytes < most {
            let [base, whole] = iov_element(self.array, self.index)?;
            let piece = (whole - self.within).min(most - bytes);
            if piece > 0 {
                part[len] = [base + self.within, piece];
                len += 1;
            }
            bytes += piece;
            self.within += piece;
            if self.within == whole {
                (self.index, self.within) = (self.index + 1, 0);
            }
        }
        Some((len, bytes))
    }
}

/// A vector transfer whose buffers together are too long.
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
    let (least, total) = (WAITING.min(most), total_of(array, entries));
    if total <= least {
        return Some(perform_piece(nr, args, pages_of(least, entries)));
    }
    let most = if reads && waits(nr, args) {
        least
    } else if total > most {
        longest_whole(nr, args, offset)?
    } else {
        most
    };
    if total <= most {
        return Some(perform_piece(nr, args, pages_of(most, entries)));
    }
    let once = reads && ends_with_piece(nr, args);
    let (mut left, mut part, mut done) = (Left::of(array, entries), [[0; 2]; PART], 0u64);
    loop {
        let Some((len, bytes)) = left.next(most, &mut part) else {
            return (done > 0).then_some(done as i64);
        };
        if bytes == 0 || done > 0 && (once || has_failed(args[0])) {
            return Some(done as i64);
        }
        let mut one = args;
        one[usize::from(iov)] = part.as_ptr() as u64;
        one[usize::from(count)] = len as u64;
        if let Some(offset) = offset
            && one[usize::from(offset)] != u64::MAX
        {
            one[usize::from(offset)] += done;
        }
        let result = perform_piece(nr, one, pages_of(bytes, len as u64));
        if result < 0 {
            return Some(if done > 0 { done as i64 } else { result });
        }
        done += result as u64;
        if (result as u64) < bytes {
            return Some(done as i64);
        }
    }
}

/// sendmsg or recvmsg on a stream with buffers too long to pin: in pieces, name and control data with the first. A receive
/// with room for control data ends with the piece that such data comes with, as the kernel's own does.
pub fn message(nr: i64, args: [u64; 6]) -> Option<i64> {
    let reads = nr == libc::SYS_recvmsg;
    if !reads && nr != libc::SYS_sendmsg || args[2] & WHOLE != 0 {
        return None;
    }
    let mut asked = Header::default();
    if !read_user(args[1], &raw mut asked as u64, HEADER_BYTES) || asked.count > 1024 {
        return None;
    }
    let most = piece_bytes(mm());
    let wait = !reads || args[2] & libc::MSG_WAITALL as u64 != 0;
    let has_control = reads && asked.control_len != 0;
    let (least, total) = (WAITING.min(most), total_of(asked.iov, asked.count));
    let waits = !wait && total > least && !readable_now(args[0]);
    let most = if waits { least } else { most };
    if total <= most {
        return Some(perform_piece(nr, args, pages_of(most, asked.count)));
    }
    splittable(nr, args)?;
    let mut left = Left::of(asked.iov, asked.count);
    let (mut told, mut part, mut done) = (asked, [[0; 2]; PART], 0u64);
    loop {
        let Some((len, bytes)) = left.next(most, &mut part) else {
            return (done > 0).then_some(done as i64);
        };
        if bytes == 0 || done > 0 && has_failed(args[0]) {
            return Some(done as i64);
        }
        let mut one = asked.piece(&part[..len], done > 0, has_control);
        // Another reader may have been faster, and what is here already is not waited for.
        let flags = if reads && !wait && done > 0 {
            args[2] | libc::MSG_DONTWAIT as u64
        } else {
            args[2]
        };
        let named = [args[0], &raw mut one as u64, flags, 0, 0, 0];
        let result = perform_piece(nr, named, pages_of(bytes, len as u64));
        if result < 0 {
            return Some(if done > 0 { done as i64 } else { result });
        }
        let came = has_control && (one.control_len != 0 || one.flags & libc::MSG_CTRUNC as u64 != 0);
        if reads && (done == 0 || came) {
            told.note(&one, done == 0);
            write_user(args[1], &raw const told as u64, HEADER_BYTES);
        }
        done += result as u64;
        if came || (result as u64) < bytes {
            return Some(done as i64);
        }
    }
}

/// struct msghdr.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Header {
    name: u64,
    name_len: u64,
    iov: u64,
    count: u64,
    control: u64,
    control_len: u64,
    flags: u64,
}

const HEADER_BYTES: u64 = size_of::<Header>() as u64;

impl Header {
    /// That of a piece: a further one has no name, and control data only where that is asked for.
    fn piece(&self, part: &[[u64; 2]], is_further: bool, with_control: bool) -> Header {
        let mut piece = Header {
            iov: part.as_ptr() as u64,
            count: part.len() as u64,
            ..*self
        };
        if is_further {
            (piece.name, piece.name_len) = (0, 0);
            if !with_control {
                (piece.control, piece.control_len) = (0, 0);
            }
        }
        piece
    }

    /// What the kernel told of a piece.
    fn note(&mut self, piece: &Header, is_first: bool) {
        if is_first {
            self.name_len = piece.name_len;
        }
        (self.control_len, self.flags) = (piece.control_len, piece.flags);
    }
}

/// Base and length of an element of an iovec array of the program's.
pub fn iov_element(array: u64, i: u64) -> Option<[u64; 2]> {
    let mut pair = [0u64; 2];
    read_user(array + i * 16, pair.as_mut_ptr() as u64, 16).then_some(pair)
}

/// Bytes of the buffers of an iovec array together; 0 where the kernel refuses them: a bad pointer, or too many.
fn total_of(array: u64, count: u64) -> u64 {
    let mut total = 0u64;
    for i in 0..count {
        let Some([_, len]) = iov_element(array, i) else {
            return 0;
        };
        total = total.saturating_add(len);
    }
    if i64::try_from(total).is_ok() { total } else { 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the elements, the pieces are the same bytes in the same order, none longer than asked for.
        #[test]
        fn pieces_are_the_whole(lengths in proptest::collection::vec(0u64..300, 0..200), most in 1u64..2000) {
            let mut at = 1 << 30;
            let elements: Vec<[u64; 2]> = lengths
                .iter()
                .map(|len| {
                    at += 1 << 20;
                    [at, *len]
                })
                .collect();
            let mut left = Left::of(elements.as_ptr() as u64, elements.len() as u64);
            let (mut part, mut done) = ([[0; 2]; PART], Vec::new());
            loop {
                let (len, bytes) = left.next(most, &mut part).expect("elements of ours");
                prop_assert_eq!(bytes, part[..len].iter().map(|[_, len]| len).sum::<u64>());
                prop_assert!(bytes <= most);
                if bytes == 0 {
                    break;
                }
                done.extend(part[..len].iter().flat_map(|[base, len]| *base..base + len));
            }
            let all: Vec<u64> = elements.iter().flat_map(|[base, len]| *base..base + len).collect();
            prop_assert_eq!(done, all);
        }
    }
}
