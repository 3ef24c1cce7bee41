//! One page of code at the same address in every process: the instruction that re-issues system calls, and the
//! signal return. The seccomp filter lets calls from this page pass; filters outlive exec, so the address must be the
//! same in every image of the tree.
//!
//! # Safety
//! The page is written once before it becomes executable and never changed or unmapped.
#![allow(unsafe_code)]

use crate::pool::MANAGED_BASE;
use crate::sys::{self, Errno};

/// Just below the managed range, so never inside it.
pub const STUB_ADDR: u64 = MANAGED_BASE - STUB_LEN;
pub const STUB_LEN: u64 = 4096;
const RESTORER_OFFSET: usize = 64;

/// `extern "sysv64" fn(nr, a0..a5) -> rax`: shifts the arguments into the kernel's registers.
const CALL: [u8; 27] = [
    0x48, 0x89, 0xf8, // mov rax, rdi
    0x48, 0x89, 0xf7, // mov rdi, rsi
    0x48, 0x89, 0xd6, // mov rsi, rdx
    0x48, 0x89, 0xca, // mov rdx, rcx
    0x4d, 0x89, 0xc2, // mov r10, r8
    0x4d, 0x89, 0xc8, // mov r8, r9
    0x4c, 0x8b, 0x4c, 0x24, 0x08, // mov r9, [rsp+8]
    0x0f, 0x05, // syscall
    0xc3, 0x90, // ret
];
/// `mov eax, SYS_rt_sigreturn; syscall`, in the exact bytes that debuggers and unwinders look for.
const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05];

/// Address of the signal return for our handlers.
pub fn restorer() -> u64 {
    STUB_ADDR + RESTORER_OFFSET as u64
}

/// Maps the stub and routes [`sys`] through it.
pub fn install() -> Result<(), Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: NOREPLACE never takes a mapping away; the page is filled before it is made executable.
    unsafe {
        sys::mmap(STUB_ADDR, STUB_LEN, sys::PROT_RW, flags, -1, 0)?;
        let page = STUB_ADDR as *mut u8;
        core::ptr::copy_nonoverlapping(CALL.as_ptr(), page, CALL.len());
        core::ptr::copy_nonoverlapping(RESTORER.as_ptr(), page.add(RESTORER_OFFSET), RESTORER.len());
        sys::mprotect(STUB_ADDR, STUB_LEN, libc::PROT_READ | libc::PROT_EXEC)?;
    }
    sys::use_stub(STUB_ADDR as usize);
    Ok(())
}
