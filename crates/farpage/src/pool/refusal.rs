//! An area that refuses what is written to it, because its disk is full or fails: it takes no pages until the supervisor lifts that.

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::sys::Errno;

/// How long it stands at least after the latest write in vain, in nanoseconds: each is one that somebody may wait for.
const FULL_NS: u64 = 1_000_000_000;
/// The same where nothing but another try tells whether it would be in vain again.
const FAILED_NS: u64 = 10_000_000_000;

/// Zero: it takes pages.
#[derive(Default)]
pub struct Refusal {
    /// When a write was refused last; 0: it takes pages.
    at_ns: AtomicU64,
    errno: AtomicI32,
}

impl Refusal {
    /// A write has failed. What has nothing to do with the area (no memory, say) is no refusal.
    pub fn note(&self, error: Errno, now: u64) {
        if matches!(error.0, libc::ENOSPC | libc::EDQUOT | libc::EIO) {
            self.errno.store(error.0, Ordering::Relaxed);
            self.at_ns.store(now.max(1), Ordering::Relaxed);
        }
    }

    pub fn lift(&self) {
        self.at_ns.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub fn stands(&self) -> bool {
        self.at_ns.load(Ordering::Relaxed) != 0
    }

    /// Whether writes may be taken again; `has_space`: whether the disk has some.
    pub fn may_be_lifted(&self, now: u64, has_space: impl FnOnce() -> bool) -> bool {
        let passed = now.saturating_sub(self.at_ns.load(Ordering::Relaxed));
        match self.error() {
            None => false,
            Some(Errno(libc::ENOSPC)) => passed >= FULL_NS && has_space(),
            Some(_) => passed >= FAILED_NS,
        }
    }

    /// Why it refuses.
    pub fn error(&self) -> Option<Errno> {
        self.stands().then(|| Errno(self.errno.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_tried_when_it_has_space_and_a_bad_one_now_and_then() {
        let refusal = Refusal::default();
        assert!(!refusal.stands() && !refusal.may_be_lifted(FAILED_NS, || true));
        refusal.note(Errno(libc::ENOMEM), 1);
        assert!(!refusal.stands(), "no fault of the area's");
        refusal.note(Errno(libc::ENOSPC), FULL_NS);
        assert_eq!(refusal.error(), Some(Errno(libc::ENOSPC)));
        assert!(!refusal.may_be_lifted(2 * FULL_NS - 1, || true));
        assert!(!refusal.may_be_lifted(2 * FULL_NS, || false));
        assert!(refusal.may_be_lifted(2 * FULL_NS, || true));
        refusal.lift();
        assert!(!refusal.stands() && refusal.error().is_none());
        refusal.note(Errno(libc::EIO), FAILED_NS);
        assert!(!refusal.may_be_lifted(2 * FAILED_NS - 1, || true));
        assert!(refusal.may_be_lifted(2 * FAILED_NS, || false));
    }
}
