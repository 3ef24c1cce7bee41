//! The other names under which libc exports functions that this library takes over. A program bound to one of them would
//! reach libc past us: zstd, built as strict C, calls `__sysv_signal` for `signal` ([`crate::legacy`]).

macro_rules! aliases {
    ($($alias:ident = $target:path;)*) => {
        $(
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $alias() {
                core::arch::naked_asm!("jmp {}", sym $target)
            }
        )*
    };
}

aliases! {
    __libc_malloc = crate::alloc::malloc;
    __libc_calloc = crate::alloc::calloc;
    __libc_realloc = crate::alloc::realloc;
    __libc_free = crate::alloc::free;
    __libc_memalign = crate::alloc::memalign;
    __libc_valloc = crate::alloc::valloc;
    __libc_pvalloc = crate::alloc::pvalloc;
    __libc_mallopt = crate::alloc::mallopt;
    __fork = crate::process::fork;
    __clone = crate::process::clone;
    setrlimit64 = crate::limits::setrlimit;
    getrlimit64 = crate::limits::getrlimit;
    prlimit64 = crate::limits::prlimit;
    _IO_popen = crate::process::popen;
    __close = crate::descriptors::close;
    __dup2 = crate::descriptors::dup2;
    __sigaction = crate::signal::sigaction;
    __sigsuspend = crate::signal::sigsuspend;
    bsd_signal = crate::signal::signal;
    ssignal = crate::signal::signal;
    sysv_signal = crate::legacy::__sysv_signal;
}
