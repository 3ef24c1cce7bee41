//! dlopen without RTLD_DEEPBIND. A library that is bound to libc before it is bound to us would have two mallocs: its `free` were libc's,
//! and what libc's strdup gives it is a block of ours. It would also reach libc's system calls past us.
//!
//! The loader looks at who calls: its RUNPATH and its namespace. So these are jumps, not calls.

use crate::real::{self, Real};

const RTLD_DEEPBIND: i32 = libc::RTLD_DEEPBIND;

extern "C" fn real_dlopen() -> usize {
    real::address(Real::dlopen) as usize
}

extern "C" fn real_dlmopen() -> usize {
    real::address(Real::dlmopen) as usize
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen() {
    core::arch::naked_asm!(
        "and esi, {kept}",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {real}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        kept = const !RTLD_DEEPBIND,
        real = sym real_dlopen,
    )
}

/// Only in the namespace that this library is in, LM_ID_BASE (0): another has a libc of its own.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlmopen() {
    core::arch::naked_asm!(
        "test rdi, rdi",
        "jnz 2f",
        "and edx, {kept}",
        "2:",
        "push rdi",
        "push rsi",
        "push rdx",
        "call {real}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        kept = const !RTLD_DEEPBIND,
        real = sym real_dlmopen,
    )
}
