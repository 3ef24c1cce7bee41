//! One page of code at the same address in every process: the instruction that re-issues system calls, the
//! signal return, and a change of the alternate stack. The seccomp filter lets calls from this page pass; filters
//! outlive exec, so the address must be the same in every image of the tree.
//!
//! # Safety
//! The page is written once before it becomes executable and never changed or unmapped.
#![allow(unsafe_code)]

pub mod unwind;

use crate::pool::MANAGED_BASE;
use crate::sys::{self, Errno};

/// Just below the managed range, so never inside it.
pub const STUB_ADDR: u64 = MANAGED_BASE - STUB_LEN;
pub const STUB_LEN: u64 = 4096;
const RESTORER_OFFSET: usize = 64;
const ALTSTACK_OFFSET: usize = 128;

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

/// `extern "sysv64" fn(new, sp) -> rax`: sigaltstack(new, NULL) with the stack pointer at `sp`.
const ALTSTACK: [u8; 19] = [
    0x48, 0x89, 0xe2, // mov rdx, rsp
    0x48, 0x89, 0xf4, // mov rsp, rsi
    0x31, 0xf6, // xor esi, esi
    0xb8, 0x83, 0x00, 0x00, 0x00, // mov eax, SYS_sigaltstack
    0x0f, 0x05, // syscall
    0x48, 0x89, 0xd4, // mov rsp, rdx
    0xc3, // ret
];

/// Sets the alternate stack as code whose stack pointer is `sp` would: a handler that runs on the one before could not. `-errno` on
/// failure.
pub fn set_altstack(new: &libc::stack_t, sp: u64) -> i64 {
    // A frame that the kernel put at the top of the stack we run on, since `sp` is not on it, would be written over ours.
    let mask = sys::set_mask(!0);
    // SAFETY: the page is mapped before any call is trapped; nothing touches memory while the stack pointer is elsewhere.
    let result = unsafe {
        type Set = unsafe extern "sysv64" fn(*const libc::stack_t, u64) -> i64;
        let set: Set = core::mem::transmute(STUB_ADDR as usize + ALTSTACK_OFFSET);
        set(new, sp)
    };
    sys::set_mask(mask);
    result
}

/// Whether an address, or that of the instruction behind a call, lies in the stub.
#[must_use]
pub fn holds(address: u64) -> bool {
    address.wrapping_sub(STUB_ADDR) < STUB_LEN
}

/// Address of the signal return for our handlers.
pub fn restorer() -> u64 {
    STUB_ADDR + RESTORER_OFFSET as u64
}

/// Maps the stub and routes [`sys`] through it.
pub fn install() -> Result<(), Errno> {
    const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: NOREPLACE never takes a mapping away; the page is ours, and filled before it is made executable.
    unsafe {
        sys::mmap(STUB_ADDR, STUB_LEN, sys::PROT_RW, FLAGS, -1, 0)?;
        fill();
        if sys::mprotect(STUB_ADDR, STUB_LEN, libc::PROT_READ | libc::PROT_EXEC).is_err() {
            map_file()?;
        }
    }
    sys::use_stub(STUB_ADDR as usize);
    Ok(())
}

/// Writes the code to its page.
///
/// # Safety
/// The page is mapped, writable and nobody else's.
unsafe fn fill() {
    let page = STUB_ADDR as *mut u8;
    // SAFETY: all of it fits the page.
    unsafe {
        core::ptr::copy_nonoverlapping(CALL.as_ptr(), page, CALL.len());
        core::ptr::copy_nonoverlapping(RESTORER.as_ptr(), page.add(RESTORER_OFFSET), RESTORER.len());
        core::ptr::copy_nonoverlapping(ALTSTACK.as_ptr(), page.add(ALTSTACK_OFFSET), ALTSTACK.len());
    }
}

/// Puts a file with the same content in the place of the filled page: where memory that could be written is never made executable (systemd's
/// MemoryDenyWriteExecute, SELinux) a file may be.
///
/// # Safety
/// The page is filled, and nobody uses it yet.
unsafe fn map_file() -> Result<(), Errno> {
    let name = c"farpage-stub".as_ptr() as u64;
    let flags = u64::from(libc::MFD_CLOEXEC);
    // SAFETY: makes a descriptor, of which nobody else knows; the page is replaced by what it holds.
    unsafe {
        let file = sys::call(libc::SYS_memfd_create, [name, flags, 0, 0, 0, 0])? as i32;
        let mut pieces = [[STUB_ADDR, STUB_LEN]];
        let mapped = sys::transfer_all(file, true, &mut pieces, 0).and_then(|()| {
            let prot = libc::PROT_READ | libc::PROT_EXEC;
            sys::mmap(
                STUB_ADDR,
                STUB_LEN,
                prot,
                libc::MAP_PRIVATE | libc::MAP_FIXED,
                file,
                0,
            )
        });
        sys::close(file);
        mapped.map(drop)
    }
}
