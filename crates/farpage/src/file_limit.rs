//! RLIMIT_FSIZE, which a program sets for its own files. The kernel holds it against swap files as well, since threads of the program's
//! process write them: such a write failed with EFBIG, SIGXFSZ ended the program, and the area was shut for the whole tree.
//!
//! So a write of ours that meets the limit is made again with the soft limit at the hard one. That the hard one admits it, what the
//! program makes of it is only noted, and told to who asks. What the program writes, or starts, in that moment finds the limit lifted.
//!
//! # Safety
//! Calls get and set limits of this process in arrays on the stack.
#![allow(unsafe_code)]

use crate::gate::Spin;
use crate::mm::Mm;
use crate::sys::{self, Errno, sig_bit};

/// Soft and hard limit, as the kernel has them.
pub type Limits = [u64; 2];

struct Believed {
    /// Writes of ours under way beyond the limit; the soft limit to come back after them.
    writes: u32,
    soft: u64,
    /// The hard limit as the program set it.
    hard: u64,
}

static BELIEVED: Spin<Believed> = Spin::new(Believed {
    writes: 0,
    soft: 0,
    hard: libc::RLIM_INFINITY,
});

fn kernel(new: Option<Limits>) -> Result<Limits, Errno> {
    let mut before = [0; 2];
    let new = new.as_ref().map_or(0, |new| new.as_ptr() as u64);
    let args = [
        0,
        u64::from(libc::RLIMIT_FSIZE),
        new,
        before.as_mut_ptr() as u64,
        0,
        0,
    ];
    // SAFETY: limits of ours.
    unsafe { sys::call(libc::SYS_prlimit64, args) }.map(|_| before)
}

/// A write of ours beyond the limit, until dropped.
pub struct Lifted(());

/// After a write that failed with EFBIG: what it has raised is taken back, and the limit lifted. `None`: it can't be. Signals are
/// blocked.
#[must_use]
pub fn lift() -> Option<Lifted> {
    let (set, now) = (sig_bit(libc::SIGXFSZ), [0u64; 2]);
    let args = [&raw const set as u64, 0, now.as_ptr() as u64, 8, 0, 0];
    // SAFETY: a set and a time of ours.
    let _ = unsafe { sys::call(libc::SYS_rt_sigtimedwait, args) };
    let mut believed = BELIEVED.lock();
    if believed.writes == 0 {
        let [soft, hard] = kernel(None).ok()?;
        if soft >= hard {
            return None;
        }
        believed.soft = soft;
        kernel(Some([hard, hard])).ok()?;
    }
    believed.writes += 1;
    Some(Lifted(()))
}

impl Drop for Lifted {
    fn drop(&mut self) {
        let mut believed = BELIEVED.lock();
        believed.writes -= 1;
        if believed.writes == 0
            && let Ok([_, hard]) = kernel(None)
        {
            let _ = kernel(Some([believed.soft, hard]));
        }
    }
}

/// Whether the kernel would refuse writes of ours whatever we do.
#[must_use]
pub fn is_final() -> bool {
    kernel(None).is_ok_and(|[_, hard]| hard != libc::RLIM_INFINITY)
}

/// prlimit(2) of this process for the program: the limits before, as it believes them.
///
/// # Errors
/// The call's.
pub fn change(mm: &Mm, new: Option<Limits>) -> Result<Limits, Errno> {
    let mask = sys::block_signals();
    let result = {
        let mut believed = BELIEVED.lock();
        // A child that borrows this memory (vfork) has limits of its own.
        if mm.is_own() {
            changed(&mut believed, new)
        } else {
            let mut own = Believed {
                writes: 0,
                soft: 0,
                hard: believed.hard,
            };
            changed(&mut own, new)
        }
    };
    sys::set_mask(mask);
    result
}

fn changed(believed: &mut Believed, new: Option<Limits>) -> Result<Limits, Errno> {
    let [mut soft, real] = kernel(None)?;
    let is_lifted = believed.writes > 0;
    if is_lifted {
        soft = believed.soft;
    }
    let before = [soft, real.min(believed.hard)];
    let Some([soft, hard]) = new else {
        return Ok(before);
    };
    if soft > hard {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: asks for a number.
    if hard > before[1] && unsafe { sys::raw(libc::SYS_geteuid, [0; 6]) } != 0 {
        return Err(Errno(libc::EPERM));
    }
    let real = real.max(hard);
    kernel(Some([if is_lifted { real } else { soft }, real]))?;
    (believed.soft, believed.hard) = (soft, hard);
    Ok(before)
}

/// In a forked child: another thread of the parent may have held the lock. No write was under way.
pub fn forget() {
    BELIEVED.abandon();
}
