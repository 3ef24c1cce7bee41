//! This process's maps, smaps and statm in /proc without allocation, for the rare moments when only the kernel knows.
//!
//! # Safety
//! Reads a file into a buffer on the stack.
#![allow(unsafe_code)]

use core::ffi::CStr;

use crate::proc_dirs;
use crate::sys::{self, Errno};

/// One mapping of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub private_anonymous: bool,
    /// As listed: `rw-p`.
    pub perms: [u8; 4],
}

impl Mapping {
    /// PROT_NONE.
    pub fn is_inaccessible(&self) -> bool {
        self.perms.starts_with(b"---")
    }

    /// PROT_READ and so on.
    pub fn protection(&self) -> i32 {
        let flags = [libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC];
        let set = flags.iter().zip(self.perms).filter(|(_, letter)| *letter != b'-');
        set.map(|(flag, _)| flag).sum()
    }
}

/// Calls `f` for every mapping, in order of address.
pub fn each_mapping(mut f: impl FnMut(Mapping) -> Result<(), Errno>) -> Result<(), Errno> {
    each_line(c"/proc/thread-self/maps", &mut |line| {
        parse(line).map_or(Ok(()), &mut f)
    })
}

/// What the program has said about a mapping by madvise and mlock, as the kernel remembers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// A forked child does not get it.
    pub not_copied: bool,
    /// A forked child gets it empty.
    pub wiped: bool,
    pub locked: bool,
}

/// Calls `f` for every mapping about which something was said.
pub fn each_said(mut f: impl FnMut(Mapping, Said) -> Result<(), Errno>) -> Result<(), Errno> {
    let mut last = None;
    each_line(c"/proc/thread-self/smaps", &mut |line| {
        last = parse(line).or(last);
        let said = flags(line);
        match last.filter(|_| said != Said::default()) {
            Some(mapping) => f(mapping, said),
            None => Ok(()),
        }
    })
}

/// `VmFlags: rd wr mr mw me dc wf`: "dc", do not copy; "wf", wipe on fork; "lo", locked. Source: proc_pid_smaps(5).
fn flags(line: &[u8]) -> Said {
    let flags = line.strip_prefix(b"VmFlags:").unwrap_or_default();
    let has = |flag: &[u8]| flags.split(|&b| b == b' ').any(|word| word == flag);
    Said {
        not_copied: has(b"dc"),
        wiped: has(b"wf"),
        locked: has(b"lo"),
    }
}

/// Anonymous pages that this process has in RAM, 0 if that can't be read.
#[must_use]
pub fn anonymous_pages() -> i64 {
    let mut pages = 0;
    let read = each_line(c"/proc/thread-self/statm", &mut |line| {
        pages = anonymous_of(core::str::from_utf8(line).unwrap_or_default());
        Ok(())
    });
    read.map_or(0, |()| pages)
}

/// Of a line of /proc/PID/statm: resident less shared pages (of files and shared memory), its second and third figure.
#[must_use]
pub fn anonymous_of(statm: &str) -> i64 {
    let mut fields = statm
        .split_ascii_whitespace()
        .map(|field| field.parse::<i64>().unwrap_or(0));
    let (resident, shared) = (fields.nth(1).unwrap_or(0), fields.next().unwrap_or(0));
    (resident - shared).max(0)
}

fn each_line(path: &CStr, f: &mut impl FnMut(&[u8]) -> Result<(), Errno>) -> Result<(), Errno> {
    let fd = proc_dirs::open(path, libc::O_RDONLY)?;
    let result = read_lines(fd, f);
    sys::close(fd);
    result
}

/// A line that is longer than the buffer (a path can be) is handed over in pieces, the first of which has all but the path.
fn read_lines(fd: i32, f: &mut impl FnMut(&[u8]) -> Result<(), Errno>) -> Result<(), Errno> {
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
            f(&buf[line_start..line_start + len])?;
            line_start += len + 1;
        }
        if got == 0 {
            return Ok(());
        }
        if line_start == 0 && filled == buf.len() {
            f(&buf)?;
            line_start = filled;
        }
        buf.copy_within(line_start..filled, 0);
        held = filled - line_start;
    }
}

/// `1000-2000 rw-p 00000000 00:00 0`: private and without an inode is anonymous.
fn parse(line: &[u8]) -> Option<Mapping> {
    // A path, which comes last, can be anything.
    let ascii = line.iter().take_while(|byte| byte.is_ascii()).count();
    let text = core::str::from_utf8(&line[..ascii]).ok()?;
    let mut fields = text.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let perms = fields.next()?;
    let inode = fields.nth(2)?;
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        private_anonymous: perms.ends_with('p') && inode == "0",
        perms: perms.as_bytes().try_into().ok()?,
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
                private_anonymous: true,
                perms: *b"rw-p",
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
        let code = parse(b"1000-2000 r-xp 00000000 00:00 0").unwrap();
        assert_eq!(code.protection(), libc::PROT_READ | libc::PROT_EXEC);
        assert!(
            parse(b"1000-2000 ---p 00000000 00:00 0")
                .unwrap()
                .is_inaccessible()
        );
        assert!(parse(b"1000-2000 r--p 00000000 fe:00 1234 /tmp/\xff\xfe").is_some());
        assert_eq!(parse(b"nonsense"), None);
    }

    #[test]
    fn what_was_said_is_read() {
        let said = |not_copied, wiped, locked| Said {
            not_copied,
            wiped,
            locked,
        };
        assert_eq!(
            flags(b"VmFlags: rd wr mr mw me dc ac sd"),
            said(true, false, false)
        );
        assert_eq!(flags(b"VmFlags: rd wr lo wf"), said(false, true, true));
        assert_eq!(flags(b"VmFlags: rd wr dc wf"), said(true, true, false));
        assert_eq!(
            flags(b"VmFlags: rd wr mr mw me lo ac sd "),
            said(false, false, true)
        );
        assert_eq!(flags(b"VmFlags: rd wr mr mw me ac sd"), said(false, false, false));
        assert_eq!(flags(b"Rss: dc wf lo"), said(false, false, false));
    }

    /// The list once ended at a line that was longer than the buffer.
    #[test]
    fn a_long_line_does_not_end_the_list() {
        let (from, mut to) = std::io::pipe().unwrap();
        let long = format!(
            "1000-2000 r--p 0 fe:00 7 /{}\n3000-4000 rw-p 0 00:00 0\n",
            "x".repeat(9000)
        );
        let writing = std::thread::spawn(move || std::io::Write::write_all(&mut to, long.as_bytes()));
        let mut starts = Vec::new();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&from);
        read_lines(fd, &mut |line| {
            starts.extend(parse(line).map(|mapping| mapping.start));
            Ok(())
        })
        .unwrap();
        writing.join().unwrap().unwrap();
        assert_eq!(starts, [0x1000, 0x3000]);
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
