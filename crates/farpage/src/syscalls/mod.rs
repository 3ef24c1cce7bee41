//! What every x86_64 system call may touch behind its arguments.
//!
//! The kernel answers EFAULT when a call is given a pointer to a page that is swapped out, so the trap
//! handler faults in and pins all that the call may touch before it re-issues it. Registers hold garbage for
//! arguments that a call does not have: a call that is described wrongly is either trapped for ever or fails
//! with EFAULT. Descriptions may name too much (the handler skips what is not managed), never too little.
//!
//! `Syscall::hidden` names the calls whose pointers lie in memory (an iovec array on the stack that points to
//! the heap): no register shows them to the seccomp filter, so these calls are trapped whatever they are
//! given.

mod nested;
mod table;
#[cfg(test)]
mod tests;
mod walks;

/// The managed memory of a process is `[MANAGED_TAG << 40, (MANAGED_TAG + 1) << 40)`.
///
/// 42 TiB: apart from what other runtimes want at fixed addresses or ask for first (ZGC's views of its heap at 4, 8 and 16 TiB, the
/// shadow of AddressSanitizer below 16 TiB, mimalloc from 2 to 30 TiB).
pub const MANAGED_TAG: u64 = 0x2a;
/// Bits below the tag of a managed address.
pub const MANAGED_SHIFT: u32 = 40;
/// Numbers at and above this one are unknown.
pub const NUMBERS: usize = table::NUMBERS;

const PAGE: u64 = 4096;
/// The kernel transfers no more than this in one call (MAX_RW_COUNT).
const RW_BYTES_MAX: u64 = 0x7fff_f000;
const PATH_BYTES_MAX: u64 = 4096;
/// What an argument of an unknown call may point to, in bytes.
const UNKNOWN_BYTES: u64 = 4096;
const SOCKOPT_BYTES_MAX: u64 = 16 << 20;
const FD_SET_BITS_MAX: u64 = 1 << 20;

/// How many bytes behind an argument the kernel may read or write. All fields are argument positions (0..6)
/// except `bytes`, `elem` and `mask`.
#[derive(Clone, Copy, Debug)]
pub enum Arg {
    /// NUL-terminated, at most 4096 bytes.
    Str { arg: u8 },
    /// A structure of known size.
    Fixed { arg: u8, bytes: u32 },
    /// Length in bytes is argument `len` (size_t).
    Buf { arg: u8, len: u8 },
    /// Length in bytes is the low half of argument `len` (int; the upper half is garbage).
    Buf32 { arg: u8, len: u8 },
    /// As many elements of `elem` bytes as the low half of argument `count` says.
    Array { arg: u8, count: u8, elem: u32 },
    /// Length is the u32 that argument `len_ptr` points to.
    LenPtr { arg: u8, len_ptr: u8 },
    /// Bit mask of argument `bits` bits, at most one page (NUMA nodes).
    Bits { arg: u8, bits: u8 },
    /// One byte per page of argument `len` bytes (mincore).
    PageVec { arg: u8, len: u8 },
    /// Bit mask of as many descriptors as argument `nfds` says (select).
    FdSet { arg: u8, nfds: u8 },
    /// `struct iovec` array and the buffers.
    Iovec { arg: u8, count: u8 },
    /// `struct msghdr` with name, iovec array, buffers and control data.
    Msghdr { arg: u8 },
    /// `struct mmsghdr` array.
    Mmsghdr { arg: u8, count: u8 },
    /// NULL-terminated array of strings (argv, envp).
    StrArray { arg: u8 },
    /// Depends on a command or is nested in its own way. `mask`: bits of the arguments that may be pointers.
    Custom { mask: u8, walk: fn(&mut Walk<'_>) },
}

/// Pointers that no register shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hidden {
    None,
    /// Whenever argument `arg` is not NULL.
    Always {
        arg: u8,
    },
    /// When the low half of argument `arg` is one of `values`.
    When {
        arg: u8,
        values: &'static [u32],
    },
}

/// Calls whose long buffers may be done in pieces. Fields are argument positions.
///
/// The pieces end at the first short count or error; an error after a first piece is reported as the bytes
/// done so far. `offset`, where there is one, advances with the bytes done, except for the value -1 of
/// preadv2 and pwritev2 (current position). Only regular files, block devices, pipes and stream sockets may
/// be served in pieces, so the handler asks what the descriptor is; a call with MSG_PEEK is never split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk {
    None,
    /// The kernel fills the buffer.
    ReadLike {
        buf: u8,
        len: u8,
        offset: Option<u8>,
    },
    /// The kernel reads the buffer.
    WriteLike {
        buf: u8,
        len: u8,
        offset: Option<u8>,
    },
    /// The kernel fills the buffers of an iovec array of `count` elements.
    ReadVec {
        iov: u8,
        count: u8,
        offset: Option<u8>,
    },
    /// The kernel reads the buffers of an iovec array.
    WriteVec {
        iov: u8,
        count: u8,
        offset: Option<u8>,
    },
}

/// One system call.
#[derive(Clone, Copy, Debug)]
pub struct Syscall {
    pub name: &'static str,
    pub args: &'static [Arg],
    pub restart: Chunk,
    /// Bits of the arguments that are addresses of mappings, not pointers to data: the call changes or asks
    /// for mappings and is emulated for managed addresses. See [`memory_call`].
    pub memory: u8,
    pub hidden: Hidden,
    /// The kernel keeps a pointer and touches it after the call has returned: the ranges stay pinned while
    /// the thread lives (or until the next such call replaces them). See [`keeps`].
    pub kept: bool,
    /// The effect of the call is on something that the return from a signal handler undoes (signal mask,
    /// alternate stack), is inherited by what it starts (mask at exec), or it resumes on another stack
    /// (clone): it can't simply be re-issued inside the handler.
    pub frame: bool,
}

impl Syscall {
    const fn new(name: &'static str, args: &'static [Arg]) -> Self {
        Syscall {
            name,
            args,
            restart: Chunk::None,
            memory: 0,
            hidden: Hidden::None,
            kept: false,
            frame: false,
        }
    }

    const fn chunk(mut self, restart: Chunk) -> Self {
        self.restart = restart;
        self
    }

    const fn memory(mut self, mask: u8) -> Self {
        self.memory = mask;
        self
    }

    const fn hidden(mut self, arg: u8) -> Self {
        self.hidden = Hidden::Always { arg };
        self
    }

    const fn hidden_when(mut self, arg: u8, values: &'static [u32]) -> Self {
        self.hidden = Hidden::When { arg, values };
        self
    }

    const fn kept(mut self) -> Self {
        self.kept = true;
        self
    }

    const fn frame(mut self) -> Self {
        self.frame = true;
        self
    }

    /// Bits of the arguments that may be pointers or addresses of mappings.
    #[must_use]
    pub fn pointer_mask(&self) -> u8 {
        self.args.iter().fold(self.memory, |mask, arg| mask | arg.mask())
    }
}

impl Arg {
    fn mask(self) -> u8 {
        match self {
            Arg::LenPtr { arg, len_ptr } => 1 << arg | 1 << len_ptr,
            Arg::Custom { mask, .. } => mask,
            Arg::Str { arg }
            | Arg::Fixed { arg, .. }
            | Arg::Buf { arg, .. }
            | Arg::Buf32 { arg, .. }
            | Arg::Array { arg, .. }
            | Arg::Bits { arg, .. }
            | Arg::PageVec { arg, .. }
            | Arg::FdSet { arg, .. }
            | Arg::Iovec { arg, .. }
            | Arg::Msghdr { arg }
            | Arg::Mmsghdr { arg, .. }
            | Arg::StrArray { arg } => 1 << arg,
        }
    }
}

/// Whether an address lies in the managed range.
#[must_use]
pub const fn is_managed(addr: u64) -> bool {
    addr >> MANAGED_SHIFT == MANAGED_TAG
}

/// The description of call number `nr`; None for a number that this table does not know.
#[must_use]
pub fn describe(nr: usize) -> Option<&'static Syscall> {
    table::TABLE.get(nr)?.as_ref()
}

/// Bits of the arguments of call `nr` that may be pointers: what the filter looks at. All six for unknown
/// numbers.
#[must_use]
pub fn pointer_mask(nr: usize) -> u8 {
    describe(nr).map_or(0x3f, Syscall::pointer_mask)
}

/// Whether this call works on managed mappings, and so must be emulated instead of passed on.
///
/// process_madvise is one whenever it is trapped: its addresses are in the iovec array, and only the engine
/// can tell whether they are managed (and the process is this one).
#[must_use]
pub fn memory_call(nr: usize, args: &[u64; 6]) -> bool {
    let Some(call) = describe(nr) else { return false };
    if nr == libc::SYS_process_madvise as usize {
        return true;
    }
    // Their offset is an address only in /proc/PID/mem: see `remote`, which is asked first.
    if nr == libc::SYS_pread64 as usize || nr == libc::SYS_pwrite64 as usize {
        return false;
    }
    // Of prctl's commands only PR_SET_VMA (names a mapping, which splits it) has an address there.
    if nr == libc::SYS_prctl as usize && args[0] as u32 != libc::PR_SET_VMA as u32 {
        return false;
    }
    (0..6).any(|arg| call.memory >> arg & 1 == 1 && is_managed(args[arg]))
}

/// Whether pointers of this call lie in memory, where the filter does not look.
#[must_use]
pub fn hides_pointers(nr: i64, args: &[u64; 6]) -> bool {
    match describe(nr as usize).map(|call| call.hidden) {
        Some(Hidden::Always { arg }) => args[usize::from(arg)] != 0,
        Some(Hidden::When { arg, values }) => values.contains(&(args[usize::from(arg)] as u32)),
        Some(Hidden::None) | None => false,
    }
}

/// The arguments of call `nr`, one bit each, that name memory the kernel uses when nobody can bring it in: whenever the thread enters or
/// leaves it, from the engine, too, which may hold a lock, or as the thread ends.
#[must_use]
pub fn used_always(nr: usize) -> u8 {
    match nr as libc::c_long {
        libc::SYS_rseq | libc::SYS_set_tid_address => 1 << 0,
        // PR_SET_SYSCALL_USER_DISPATCH: the selector.
        libc::SYS_prctl => 1 << 4,
        _ => 0,
    }
}

/// Whether the kernel keeps a pointer that this call gives it: see [`Syscall::kept`].
#[must_use]
pub fn keeps(nr: usize, args: &[u64; 6]) -> bool {
    const PR_SET_SYSCALL_USER_DISPATCH: u32 = 59;
    const RSEQ_FLAG_UNREGISTER: u64 = 1;
    let kept = describe(nr).is_some_and(|call| call.kept);
    if nr == libc::SYS_clone as usize {
        return kept && args[0] & libc::CLONE_CHILD_CLEARTID as u64 != 0;
    }
    if nr == libc::SYS_prctl as usize {
        return kept && args[0] as u32 == PR_SET_SYSCALL_USER_DISPATCH;
    }
    if nr == libc::SYS_rseq as usize {
        return kept && args[2] & RSEQ_FLAG_UNREGISTER == 0;
    }
    kept
}

/// Emits every flat range (start, length in bytes) that call `nr` with these arguments may touch.
///
/// `read` returns the eight bytes at an address that is a multiple of eight, or None where nothing can be
/// read. It is given the program's pointers, whatever they are, so it must survive bad ones. A structure is
/// emitted before it is read, so that `emit` can fault it in. Strings in managed memory are emitted page by
/// page up to their end; others only up to the end of their page, unread. Lengths are not checked against
/// what is mapped.
pub fn ranges(
    nr: usize,
    args: &[u64; 6],
    read: &mut dyn FnMut(u64) -> Option<u64>,
    emit: &mut dyn FnMut(u64, u64),
) {
    let mut walk = Walk { args, read, emit };
    match describe(nr) {
        Some(call) => call.args.iter().for_each(|&arg| walk.arg(arg)),
        None => args.iter().for_each(|&start| walk.flat(start, UNKNOWN_BYTES)),
    }
}

/// One walk over the arguments of one call.
pub struct Walk<'a> {
    args: &'a [u64; 6],
    read: &'a mut dyn FnMut(u64) -> Option<u64>,
    emit: &'a mut dyn FnMut(u64, u64),
}

impl Walk<'_> {
    fn val(&self, arg: u8) -> u64 {
        self.args[usize::from(arg)]
    }

    fn val32(&self, arg: u8) -> u32 {
        self.val(arg) as u32
    }

    /// Emits a range, unless it is empty, NULL or wraps around (the kernel refuses that).
    fn flat(&mut self, start: u64, len: u64) {
        if start != 0 && len != 0 && start.checked_add(len).is_some() {
            (self.emit)(start, len);
        }
    }

    /// Reads eight bytes at any address. Only aligned words are read, so no read crosses a page.
    fn u64_at(&mut self, addr: u64) -> Option<u64> {
        let shift = (addr & 7) * 8;
        let low = (self.read)(addr & !7)?;
        if shift == 0 {
            return Some(low);
        }
        let high = (self.read)((addr & !7).checked_add(8)?)?;
        Some(low >> shift | high << (64 - shift))
    }

    fn u32_at(&mut self, addr: u64) -> Option<u32> {
        if addr & 7 <= 4 {
            return Some(((self.read)(addr & !7)? >> ((addr & 7) * 8)) as u32);
        }
        self.u64_at(addr).map(|word| word as u32)
    }

    fn arg(&mut self, arg: Arg) {
        match arg {
            Arg::Str { arg } => {
                self.string(self.val(arg), PATH_BYTES_MAX);
            }
            Arg::Fixed { arg, bytes } => self.flat(self.val(arg), u64::from(bytes)),
            Arg::Buf { arg, len } => self.flat(self.val(arg), self.val(len).min(RW_BYTES_MAX)),
            Arg::Buf32 { arg, len } => self.flat(self.val(arg), u64::from(self.val32(len)).min(RW_BYTES_MAX)),
            Arg::Array { arg, count, elem } => {
                let len = u64::from(self.val32(count)) * u64::from(elem);
                self.flat(self.val(arg), len.min(RW_BYTES_MAX));
            }
            Arg::LenPtr { arg, len_ptr } => self.len_ptr(self.val(arg), self.val(len_ptr)),
            Arg::Bits { arg, bits } => {
                let len = self.val(bits).div_ceil(64).saturating_mul(8);
                self.flat(self.val(arg), len.min(PAGE));
            }
            Arg::PageVec { arg, len } => {
                self.flat(self.val(arg), self.val(len).div_ceil(PAGE).min(RW_BYTES_MAX))
            }
            Arg::FdSet { arg, nfds } => {
                // A negative number of descriptors is EINVAL; the kernel clamps a large one to the open ones.
                let bits = (self.val32(nfds) as i32).max(0) as u64;
                self.flat(self.val(arg), bits.min(FD_SET_BITS_MAX).div_ceil(64) * 8);
            }
            Arg::Iovec { arg, count } => self.iovec(self.val(arg), self.val(count)),
            Arg::Msghdr { arg } => self.msghdr(self.val(arg)),
            Arg::Mmsghdr { arg, count } => self.mmsghdr(self.val(arg), self.val32(count)),
            Arg::StrArray { arg } => self.str_array(self.val(arg)),
            Arg::Custom { walk, .. } => walk(self),
        }
    }
}
