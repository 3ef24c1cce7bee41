//! The legacy layout of addresses, in which the kernel maps libraries, thread-local storage and stacks from 0x2aaaaaaab000 upward: among the
//! addresses that are managed, or just above them, as chance will have it. What lies there can't be told from managed memory.
//!
//! A process asks for it (`setarch -L`), and who it starts inherits that; the sysctl asks for all. So exec leaves it, a process that has it all the
//! same stays unmanaged, and under the sysctl nothing is started.
//!
//! # Safety
//! Plain calls about this process; addresses of functions, none of which is called.
#![allow(unsafe_code)]

use std::fs;

use crate::pool::is_managed;
use crate::sys;

const SYSCTL: &str = "/proc/sys/vm/legacy_va_layout";
/// Asks what the personality is.
const ASK: u64 = 0xffff_ffff;
const LEGACY: u64 = libc::ADDR_COMPAT_LAYOUT as u64;

/// Whether code of ours, of libc or of the loader lies among the managed addresses.
#[must_use]
pub fn is_in_range() -> bool {
    // SAFETY: looks into what the kernel has given the process at its start.
    let loader = unsafe { libc::getauxval(libc::AT_BASE) };
    let ours: fn() -> bool = is_in_range;
    let libcs: unsafe extern "C" fn(libc::c_ulong) -> libc::c_ulong = libc::getauxval;
    [ours as usize as u64, libcs as usize as u64, loader]
        .into_iter()
        .any(is_managed)
}

fn personality(wanted: u64) -> i64 {
    // SAFETY: a number, no pointer.
    unsafe { sys::raw(libc::SYS_personality, [wanted, 0, 0, 0, 0, 0]) }
}

/// Whether what this thread starts would get the legacy layout, because it asked for it or was started so.
#[must_use]
pub fn is_asked_for() -> bool {
    u64::try_from(personality(ASK)).is_ok_and(|now| now & LEGACY != 0)
}

/// What this thread starts from now on gets the normal layout. What it would have got, if that is another.
pub fn leave_legacy() -> Option<u64> {
    let before = u64::try_from(personality(ASK))
        .ok()
        .filter(|now| now & LEGACY != 0)?;
    personality(before & !LEGACY);
    Some(before)
}

/// Starts something in the normal layout. Where that comes back, this thread has what it had asked for.
pub fn normally<R>(start: impl FnOnce() -> R) -> R {
    let before = leave_legacy();
    let result = start();
    if let Some(before) = before {
        personality(before);
    }
    result
}

/// To be asked first.
///
/// # Errors
/// One line, where the sysctl gives all programs the legacy layout.
pub fn refuse_legacy() -> Result<(), String> {
    refuse(&fs::read_to_string(SYSCTL).unwrap_or_default())
}

/// By the text of the sysctl.
fn refuse(text: &str) -> Result<(), String> {
    match text.trim() {
        "" | "0" => Ok(()),
        value => Err(format!(
            "vm.legacy_va_layout={value}: the kernel maps libraries and stacks where managed memory has its addresses; \
             sysctl vm.legacy_va_layout=0"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sysctl_is_refused_with_its_fix() {
        assert_eq!([refuse("0\n"), refuse("")], [Ok(()), Ok(())]);
        let line = refuse("1\n").unwrap_err();
        assert!(
            line.starts_with("vm.legacy_va_layout=1: ") && line.ends_with("; sysctl vm.legacy_va_layout=0")
        );
    }

    #[test]
    fn what_was_asked_for_is_left_and_comes_back() {
        // The personality is the thread's own.
        std::thread::spawn(|| {
            assert!(!is_in_range() && !is_asked_for() && leave_legacy().is_none());
            let before = personality(ASK) as u64;
            personality(before | LEGACY);
            normally(|| assert!(!is_asked_for()));
            assert!(is_asked_for());
            let left = leave_legacy();
            assert!(left == Some(before | LEGACY) && !is_asked_for());
        })
        .join()
        .unwrap();
    }
}
