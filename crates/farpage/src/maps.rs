//! /proc/self/maps without allocation, for the rare moments when only the kernel knows.
//!
//! # Safety
//! Reads a file into a buffer on the stack.
#![allow(unsafe_code)]

use crate::sys::{self, Errno};

/// One mapping of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub private_anonymous: bool,
}

/// Calls `f` for every mapping, in order of address.
pub fn each_mapping(mut f: impl FnMut(Mapping) -> Result<(), Errno>) -> Result<(), Errno> {
    let fd = sys::open(c"/proc/self/maps", libc::O_RDONLY)?;
    let result = read_lines(fd, &mut f);
    sys::close(fd);
    result
}

fn read_lines(fd: i32, f: &mut impl FnMut(Mapping) -> Result<(), Errno>) -> Result<(), Errno> {
    let mut buf = [0u8; 4096];
    let mut held = 0;
    loop {
        // SAFETY: the rest of the buffer is ours to fill.
        let got = unsafe {
            let room = (buf.len() - held) as u64;
            sys::call(
                libc::SYS_read,
                [fd as u64, buf.as_mut_ptr() as u64 + held as u64, room, 0, 0, 0],
            )? as usize
        };
        let filled = held + got;
        let mut line_start = 0;
        while let Some(len) = buf[line_start..filled].iter().position(|&b| b == b'\n') {
            if let Some(mapping) = parse(&buf[line_start..line_start + len]) {
                f(mapping)?;
            }
            line_start += len + 1;
        }
        if got == 0 {
            return Ok(());
        }
        buf.copy_within(line_start..filled, 0);
        held = filled - line_start;
    }
}

/// `1000-2000 rw-p 00000000 00:00 0`: private and without an inode is anonymous.
fn parse(line: &[u8]) -> Option<Mapping> {
    let text = core::str::from_utf8(line).ok()?;
    let mut fields = text.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let perms = fields.next()?;
    let inode = fields.nth(2)?;
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        private_anonymous: perms.ends_with('p') && inode == "0",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_lines() {
        let anon = parse(b"100000000000-100000200000 rw-p 00000000 00:00 0").unwrap();
        assert_eq!(
            anon,
            Mapping {
                start: 0x1000_0000_0000,
                end: 0x1000_0020_0000,
                private_anonymous: true
            }
        );
        assert!(
            !parse(b"7f00-7f10 r--p 00000000 fe:00 1234 /lib/x.so")
                .unwrap()
                .private_anonymous
        );
        assert!(
            !parse(b"7f00-7f10 rw-s 00000000 00:01 77 /dev/zero (deleted)")
                .unwrap()
                .private_anonymous
        );
        assert_eq!(parse(b"nonsense"), None);
    }

    #[test]
    fn finds_its_own_stack() {
        let here = 0u8;
        let address = &raw const here as u64;
        let mut found = false;
        each_mapping(|m| {
            found |= (m.start..m.end).contains(&address);
            Ok(())
        })
        .unwrap();
        assert!(found);
    }
}
