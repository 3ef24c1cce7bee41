//! The part of a thread's signal mask that is only believed: SIGBUS and SIGSYS, which the kernel must never block.
//!
//! A program may block them and must then see them blocked and pending, while faults still come through. What a thread
//! believes is in thread-local storage that the preload library owns; a signal sent meanwhile is kept there and sent
//! again, as it was, when the program lets it through. Handlers of the program do not change the belief. Faults of the thread that
//! found nothing managed are counted there too.
//!
//! # Safety
//! The cell is this thread's own: only its code and handlers that interrupt it touch it, through volatile accesses.
#![allow(unsafe_code)]

use core::ptr::{addr_of, addr_of_mut};
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::mm::mm;
use crate::sys::{self, OURS, SigMask, sig_bit};

/// One thread's belief. The shim has room for it, zeroed.
#[repr(C)]
pub struct Belief {
    blocked: SigMask,
    pending: SigMask,
    /// What was sent: siginfo of SIGBUS and SIGSYS.
    info: [[u64; 16]; 2],
    /// See [`count_stray`]: a page and how often, as one word.
    stray: u64,
    /// See [`faults_come`]: how many such stretches this thread is in.
    open: u64,
}

static CELL: AtomicUsize = AtomicUsize::new(0);
/// Bits of ours that the program put in the mask of each signal's action.
static IN_ACTION: [AtomicU8; 65] = [const { AtomicU8::new(0) }; 65];

/// Says where threads keep their belief.
pub fn keep_in(cell: extern "C" fn() -> *mut Belief) {
    CELL.store(cell as *const () as usize, Ordering::Release);
}

fn cell() -> Option<*mut Belief> {
    let cell = CELL.load(Ordering::Acquire);
    if cell == 0 {
        return None;
    }
    // SAFETY: only keep_in stores here, and only a function of this type.
    let cell: extern "C" fn() -> *mut Belief = unsafe { core::mem::transmute(cell) };
    Some(cell())
}

/// Those of our signals that this thread believes blocked.
pub fn blocked() -> SigMask {
    // SAFETY: see the file's note.
    cell().map_or(0, |cell| unsafe { addr_of!((*cell).blocked).read_volatile() })
}

/// Those of our signals that wait for this thread to let them through.
pub fn pending() -> SigMask {
    // SAFETY: see the file's note.
    cell().map_or(0, |cell| unsafe { addr_of!((*cell).pending).read_volatile() })
}

/// The kernel's mask of this thread may hold our signals where it did not come through us: from before an exec, or by attributes of the thread. From
/// here on they are believed blocked, and the kernel lets them through. Returns which they are.
pub fn adopt() -> SigMask {
    let real = sys::mask();
    if real & OURS != 0 {
        believe(real);
        // Without a place for the belief, or for the handlers, it stays as it is.
        sys::set_mask(real & !blocked());
    }
    real & OURS
}

/// Makes a call by which another image gets the kernel's mask (exec), with what this thread believes of it, and with what waits to be let through.
pub fn handed_on<R>(call: impl FnOnce() -> R) -> R {
    let believed = blocked();
    if believed == 0 {
        return call();
    }
    let real = sys::mask();
    sys::set_mask(real | believed);
    // A child that borrows this memory has no signals that wait.
    if let Some(cell) = cell().filter(|_| mm().is_own()) {
        // SAFETY: this thread's cell.
        unsafe { send_again(cell, believed) };
    }
    let result = call();
    // What was sent comes, and is held again.
    sys::set_mask(real);
    result
}

/// Sends those of `signals` that wait, as they were.
///
/// # Safety
/// `cell` is this thread's.
unsafe fn send_again(cell: *mut Belief, signals: SigMask) {
    for (place, sig) in [libc::SIGBUS, libc::SIGSYS].into_iter().enumerate() {
        // SAFETY: see the file's note; the siginfo is one the kernel gave for this signal.
        unsafe {
            let waiting = addr_of!((*cell).pending).read_volatile();
            if waiting & signals & sig_bit(sig) == 0 {
                continue;
            }
            let info = addr_of!((*cell).info[place]).read_volatile();
            addr_of_mut!((*cell).pending).write_volatile(waiting & !sig_bit(sig));
            send_to_self(sig, info.as_ptr() as u64);
        }
    }
}

/// # Safety
/// A siginfo that the kernel gave for this signal lies at `info`.
unsafe fn send_to_self(sig: i32, info: u64) {
    let (pid, tid) = (sys::getpid() as u64, sys::gettid() as u64);
    // SAFETY: the kernel reads the siginfo.
    unsafe { sys::raw(libc::SYS_rt_tgsigqueueinfo, [pid, tid, sig as u64, info, 0, 0]) };
}

/// Sets the belief to the bits of ours in `mask`; what waited and may come now is delivered before this returns.
pub fn believe(mask: SigMask) {
    let Some(cell) = cell() else { return };
    if mask & OURS != 0 && crate::signals::take().is_err() {
        return; // no room for the stub's page: activation will say so
    }
    // SAFETY: this thread's cell.
    unsafe {
        addr_of_mut!((*cell).blocked).write_volatile(mask & OURS);
        // What waits is the parent's where a child borrows this memory (vfork).
        if !mm().is_lent() {
            send_again(cell, !mask);
        }
    }
}

/// Keeps a signal that was sent while the thread believes it blocked; false if it may come. One of a kind waits.
///
/// # Safety
/// `info` is the kernel's siginfo.
pub unsafe fn hold(sig: i32, info: *const libc::siginfo_t) -> bool {
    // SAFETY: the caller's word.
    blocked() & sig_bit(sig) != 0 && unsafe { keep(sig, info) }
}

/// Puts a signal off that was sent while the engine is at work: its handler would wait for what the engine holds. The signal is blocked in
/// `mask`, that of the interrupted code, and comes when the engine sets its mask back. In a stretch where faults must come it waits for the
/// end of that. The caller's own handler returns now. False: there is no place for a signal that waits.
///
/// # Safety
/// `info` is the kernel's siginfo.
pub unsafe fn put_off(sig: i32, info: *const libc::siginfo_t, mask: &mut SigMask) -> bool {
    let Some(cell) = cell() else { return false };
    // SAFETY: this thread's cell; the caller's word.
    unsafe {
        if addr_of!((*cell).open).read_volatile() != 0 {
            return keep(sig, info);
        }
        *mask |= sig_bit(sig);
        // The handler of SIGBUS has that blocked. From its return on the frame's mask counts.
        sys::block_traps();
        send_to_self(sig, info as u64);
    }
    true
}

/// From here on this thread may touch managed memory though all signals but ours are blocked, until [`faults_came`].
pub fn faults_come() {
    change_open(|open| open + 1);
}

/// The end of such a stretch, whose mask is set back: what was sent meanwhile comes.
pub fn faults_came() {
    if change_open(|open| open.saturating_sub(1)) == 0
        && let Some(cell) = cell()
    {
        // SAFETY: this thread's cell.
        unsafe { send_again(cell, !blocked()) };
    }
}

/// Returns the new count.
fn change_open(change: impl FnOnce(u64) -> u64) -> u64 {
    // SAFETY: this thread's cell.
    cell().map_or(0, |cell| unsafe {
        let open = change(addr_of!((*cell).open).read_volatile());
        addr_of_mut!((*cell).open).write_volatile(open);
        open
    })
}

/// In a forked child, for which no signal waits.
pub fn forget_pending() {
    if let Some(cell) = cell() {
        // SAFETY: this thread's cell.
        unsafe { addr_of_mut!((*cell).pending).write_volatile(0) };
    }
}

/// # Safety
/// `info` is the kernel's siginfo.
unsafe fn keep(sig: i32, info: *const libc::siginfo_t) -> bool {
    let (Some(cell), bit) = (cell(), sig_bit(sig)) else {
        return false;
    };
    // SAFETY: see the file's note; a siginfo has 128 bytes.
    unsafe {
        let waiting = addr_of!((*cell).pending).read_volatile();
        if waiting & bit == 0 {
            let place = usize::from(sig == libc::SIGSYS);
            addr_of_mut!((*cell).info[place]).write_volatile(*(info as *const [u64; 16]));
            addr_of_mut!((*cell).pending).write_volatile(waiting | bit);
        }
    }
    true
}

/// How many bits of [`Belief::stray`] count.
const STRAY_BITS: u32 = 8;

/// One fault more of this thread's that could not be answered; how many there were in a row on this page, with this one.
pub fn count_stray(page: u64) -> u64 {
    let Some(cell) = cell() else { return u64::MAX };
    // SAFETY: see the file's note.
    unsafe {
        let seen = addr_of!((*cell).stray).read_volatile();
        let before = if seen >> STRAY_BITS == page {
            seen & ((1 << STRAY_BITS) - 1)
        } else {
            0
        };
        let count = (before + 1).min((1 << STRAY_BITS) - 1);
        addr_of_mut!((*cell).stray).write_volatile(page << STRAY_BITS | count);
        count
    }
}

/// The row of faults on this page has ended.
pub fn end_strays(page: u64) {
    let Some(cell) = cell() else { return };
    // SAFETY: see the file's note.
    unsafe {
        if addr_of!((*cell).stray).read_volatile() >> STRAY_BITS == page {
            addr_of_mut!((*cell).stray).write_volatile(0);
        }
    }
}

/// The mask after rt_sigprocmask(`how`, `wanted`) on `before`; `None` for a `how` there is not.
#[must_use]
pub fn changed(before: SigMask, how: i32, wanted: SigMask) -> Option<SigMask> {
    match how {
        libc::SIG_BLOCK => Some(before | wanted),
        libc::SIG_UNBLOCK => Some(before & !wanted),
        libc::SIG_SETMASK => Some(wanted),
        _ => None,
    }
}

/// rt_sigprocmask of this thread outside of handlers of ours: the mask before, as believed, or `-errno`.
pub fn change(how: i32, wanted: Option<SigMask>) -> Result<SigMask, i64> {
    let real = sys::set_mask(!OURS);
    let before = (real & !OURS) | blocked();
    let after = wanted.map_or(Some(before), |wanted| changed(before, how, wanted));
    let Some(after) = after else {
        sys::set_mask(real);
        return Err(-i64::from(libc::EINVAL));
    };
    sys::set_mask(after & !OURS);
    if wanted.is_some() {
        believe(after);
    }
    Ok(before)
}

/// Notes the mask of the action for `sig`; returns the bits of ours that the one before had.
pub fn action_mask(sig: i32, new: Option<SigMask>) -> SigMask {
    let Some(noted) = usize::try_from(sig).ok().and_then(|sig| IN_ACTION.get(sig)) else {
        return 0;
    };
    let both = [libc::SIGBUS, libc::SIGSYS];
    let before = match new {
        None => noted.load(Ordering::Relaxed),
        Some(mask) => {
            let bits = both.map(|ours| u8::from(mask & sig_bit(ours) != 0));
            noted.swap(bits[0] | (bits[1] << 1), Ordering::Relaxed)
        }
    };
    (u64::from(before & 1) * sig_bit(libc::SIGBUS)) | (u64::from((before >> 1) & 1) * sig_bit(libc::SIGSYS))
}
