//! An area that refuses what is written to it, because its disk is full or fails: it takes no pages until the supervisor lifts that.

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::sys::Errno;

/// How long it stands at least after the latest write in vain, in nanoseconds: each is one that somebody may wait for. Twice as long each
/// time that the first write afterwards was in vain, too.
const FIRST_NS: u64 = 1_000_000_000;
const LONGEST_NS: u64 = 16 * FIRST_NS;

/// Zero: it takes pages.
#[derive(Default)]
pub struct Refusal {
    /// When a write was refused last; 0: it takes pages.
    at_ns: AtomicU64,
    errno: AtomicI32,
    /// How long it stands; 0: it never did.
    pause_ns: AtomicU64,
    lifted_ns: AtomicU64,
}

impl Refusal {
    /// A write has failed. What has to do with the process or its memory is no refusal.
    pub fn note(&self, error: Errno, now: u64) {
        const OTHERS: [i32; 7] = [
            libc::ENOMEM,
            libc::EAGAIN,
            libc::EINTR,
            libc::EFBIG,
            libc::EBADF,
            libc::EFAULT,
            libc::EINVAL,
        ];
        if OTHERS.contains(&error.0) {
            return;
        }
        if !self.stands() {
            let before = self.pause_ns.load(Ordering::Relaxed);
            let again = now.saturating_sub(self.lifted_ns.load(Ordering::Relaxed)) < FIRST_NS;
            let pause = if before > 0 && again { 2 * before } else { FIRST_NS };
            self.pause_ns.store(pause.min(LONGEST_NS), Ordering::Relaxed);
        }
        self.errno.store(error.0, Ordering::Relaxed);
        self.at_ns.store(now.max(1), Ordering::Relaxed);
    }

    pub fn lift(&self, now: u64) {
        self.lifted_ns.store(now, Ordering::Relaxed);
        self.at_ns.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub fn stands(&self) -> bool {
        self.at_ns.load(Ordering::Relaxed) != 0
    }

    /// Whether it is more than one bad block: its free ones count for nothing then.
    pub fn is_of_all(&self) -> bool {
        self.error().is_some_and(|error| {
            matches!(error.0, libc::ENOSPC | libc::EDQUOT) || self.pause_ns.load(Ordering::Relaxed) > FIRST_NS
        })
    }

    /// Whether writes may be taken again; `has_space`: whether a disk that was full has some.
    pub fn may_be_lifted(&self, now: u64, has_space: impl FnOnce() -> bool) -> bool {
        let passed = now.saturating_sub(self.at_ns.load(Ordering::Relaxed));
        let is_full = |error: Errno| error.0 == libc::ENOSPC;
        self.error().is_some_and(|error| {
            passed >= self.pause_ns.load(Ordering::Relaxed) && (!is_full(error) || has_space())
        })
    }

    /// Why it refuses.
    pub fn error(&self) -> Option<Errno> {
        self.stands().then(|| Errno(self.errno.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = FIRST_NS;

    #[test]
    fn a_full_disk_is_tried_when_it_has_space() {
        let refusal = Refusal::default();
        assert!(!refusal.stands() && !refusal.may_be_lifted(90 * S, || true));
        refusal.note(Errno(libc::ENOMEM), 1);
        assert!(!refusal.stands(), "no fault of the area's");
        refusal.note(Errno(libc::ENOSPC), 10 * S);
        assert_eq!(refusal.error(), Some(Errno(libc::ENOSPC)));
        assert!(refusal.is_of_all());
        assert!(!refusal.may_be_lifted(11 * S - 1, || true));
        assert!(!refusal.may_be_lifted(11 * S, || false));
        assert!(refusal.may_be_lifted(11 * S, || true));
        refusal.lift(11 * S);
        assert!(!refusal.stands() && refusal.error().is_none());
    }

    #[test]
    fn a_bad_disk_is_tried_ever_more_seldom_and_one_bad_block_is_not_all_of_it() {
        let refusal = Refusal::default();
        let mut now = 10 * S;
        for pause in [1, 2, 4, 8, 16, 16] {
            refusal.note(Errno(libc::ENODATA), now);
            assert_eq!(refusal.is_of_all(), pause > 1);
            assert!(!refusal.may_be_lifted(now + pause * S - 1, || false));
            now += pause * S;
            assert!(refusal.may_be_lifted(now, || false), "after {pause} s");
            refusal.lift(now);
        }
        refusal.note(Errno(libc::EIO), now + S);
        assert!(!refusal.is_of_all(), "writes were taken in between");
    }
}
