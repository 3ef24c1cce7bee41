//! Walks over structures that hold pointers.
//!
//! Offsets and sizes are those of the x86_64 ABI. Every loop has a bound: the kernel's own where it has one.

use super::{PAGE, RW_BYTES_MAX, SOCKOPT_BYTES_MAX, Walk, is_managed};

/// UIO_MAXIOV: the kernel refuses longer iovec arrays, and truncates longer mmsghdr arrays to it.
const IOV_MAX: u64 = 1024;
const IOVEC_BYTES: u64 = 16;
const MSGHDR_BYTES: u64 = 56;
const MMSGHDR_BYTES: u64 = 64;
/// MAX_ARG_STRLEN.
pub(super) const ARG_STRING_BYTES_MAX: u64 = 131_072;
/// The kernel stops at 6 MiB for all strings of an exec and the pointers to them.
const ARG_STRINGS_BYTES_MAX: u64 = 8 << 20;
const WAITERS_MAX: u64 = 128;
const WAITER_BYTES: u64 = 24;
/// Behind a pointer whose target's size we do not know.
pub(super) const OPAQUE_BYTES: u64 = 65_536;
/// How much of a structure is searched for managed pointers.
const SCAN_BYTES_MAX: u64 = 4096;

impl Walk<'_> {
    /// Emits a string page by page until its end is found. Returns the bytes emitted.
    pub(super) fn string(&mut self, start: u64, limit: u64) -> u64 {
        let mut done = 0;
        while start != 0 && done < limit {
            let Some(at) = start.checked_add(done) else { break };
            let piece = (PAGE - at % PAGE).min(limit - done);
            self.flat(at, piece);
            if !is_managed(at) {
                break;
            }
            if let Some(length) = self.string_end(at, piece) {
                // Its true length: ten thousand short arguments in a few pages are not ten thousand pages.
                done += length;
                break;
            }
            done += piece;
        }
        done
    }

    /// Bytes up to and with the first NUL in `[start, start + len)`, which lies in one page; all of them if the page can't
    /// be read; None without a NUL.
    fn string_end(&mut self, start: u64, len: u64) -> Option<u64> {
        let mut at = start & !7;
        while at < start + len {
            let Some(word) = (self.read)(at) else {
                return Some(len);
            };
            let skip = start.saturating_sub(at);
            if let Some(byte) = (skip..8).find(|byte| (word >> (byte * 8)) as u8 == 0) {
                return Some((at + byte + 1 - start).min(len));
            }
            at += 8;
        }
        None
    }

    pub(super) fn len_ptr(&mut self, start: u64, len_ptr: u64) {
        self.flat(len_ptr, 4);
        if start == 0 || len_ptr == 0 {
            return;
        }
        if let Some(len) = self.u32_at(len_ptr) {
            self.flat(start, u64::from(len).min(SOCKOPT_BYTES_MAX));
        }
    }

    pub(super) fn iovec(&mut self, array: u64, count: u64) {
        if array == 0 || count > IOV_MAX {
            return;
        }
        self.flat(array, count * IOVEC_BYTES);
        let mut total = 0;
        for index in 0..count {
            let Some((base, len)) = self.pair(array, index * IOVEC_BYTES) else {
                return;
            };
            if len > i64::MAX as u64 {
                return; // EINVAL
            }
            // The kernel truncates the whole call, not each buffer.
            let len = len.min(RW_BYTES_MAX - total);
            total += len;
            self.flat(base, len);
        }
    }

    /// Two u64 at `base + offset`.
    pub(super) fn pair(&mut self, base: u64, offset: u64) -> Option<(u64, u64)> {
        let at = base.checked_add(offset)?;
        Some((self.u64_at(at)?, self.u64_at(at.checked_add(8)?)?))
    }

    pub(super) fn msghdr(&mut self, header: u64) {
        if header == 0 {
            return;
        }
        self.flat(header, MSGHDR_BYTES);
        let Some((name, name_len)) = self.pair(header, 0) else {
            return;
        };
        let Some((iov, iov_len)) = self.pair(header, 16) else {
            return;
        };
        let Some((control, control_len)) = self.pair(header, 32) else {
            return;
        };
        self.flat(name, u64::from(name_len as u32).min(PAGE));
        self.flat(control, control_len.min(SOCKOPT_BYTES_MAX));
        self.iovec(iov, iov_len);
    }

    pub(super) fn mmsghdr(&mut self, array: u64, count: u32) {
        let count = u64::from(count).min(IOV_MAX);
        self.flat(array, count * MMSGHDR_BYTES);
        for index in 0..count {
            let Some(header) = array.checked_add(index * MMSGHDR_BYTES) else {
                return;
            };
            self.msghdr(header);
        }
    }

    pub(super) fn str_array(&mut self, array: u64) {
        if array == 0 {
            return;
        }
        let (mut bytes, mut at, mut emitted_to) = (0, array, array);
        while bytes <= ARG_STRINGS_BYTES_MAX {
            // A slot may straddle two pages: emit up to the end of the page that holds its last byte.
            let Some(end) = at
                .checked_add(8)
                .and_then(|end| end.checked_next_multiple_of(PAGE))
            else {
                return;
            };
            if end > emitted_to {
                self.flat(emitted_to, end - emitted_to);
                emitted_to = end;
            }
            match self.u64_at(at) {
                None | Some(0) => return,
                Some(string) => bytes += 8 + self.string(string, ARG_STRING_BYTES_MAX),
            }
            at += 8;
        }
    }

    /// Emits what the managed pointers among the u64 of a structure may point to. For structures that come in
    /// too many kinds.
    pub(super) fn scan(&mut self, start: u64, len: u64) {
        if start == 0 {
            return;
        }
        for offset in (0..len.min(SCAN_BYTES_MAX) / 8 * 8).step_by(8) {
            let Some(value) = start.checked_add(offset).and_then(|at| self.u64_at(at)) else {
                return;
            };
            if is_managed(value) {
                self.flat(value, OPAQUE_BYTES);
            }
        }
    }

    /// `struct sock_fprog`.
    pub(super) fn sock_fprog(&mut self, start: u64) {
        if start == 0 {
            return;
        }
        self.flat(start, 16);
        if let Some((len, filter)) = self.pair(start, 0) {
            self.flat(filter, u64::from(len as u16) * 8);
        }
    }

    pub(super) fn waiters(&mut self, array: u64, count: u64) {
        if array == 0 || count > WAITERS_MAX {
            return;
        }
        self.flat(array, count * WAITER_BYTES);
        for index in 0..count {
            let Some((_, futex)) = self.pair(array, index * WAITER_BYTES) else {
                return;
            };
            // With FUTEX2_NUMA a node number follows the word.
            self.flat(futex, 16);
        }
    }
}
