//! Points between two instructions at which a test kills a process (`tests/real/kill_points_test.py`).
//!
//! [`kill_point!`](crate::kill_point) marks such a place by a name of [`POINTS`], which is checked when it is compiled. Without the
//! feature `kill-points`, that is in every build but the test's, it is nothing. With it the engine is told of each pass
//! through a point and may end its process there, as a SIGKILL that came at this instruction would.

/// Every point there is. The test fails if one of them is never passed.
pub const POINTS: [&str; 142] = [
    // Clusters: allocation and free, with the cluster's lock held.
    "cluster-locked",
    "cluster-storing",
    "cluster-stored",
    "cluster-freeing",
    "cluster-freed",
    "cluster-punched",
    "cluster-relisted",
    "cluster-queued",
    "cluster-unlocked",
    "cluster-current",
    "cluster-popped",
    "queue-ticket",
    "list-entered",
    "list-halved",
    "slot-released",
    // Compressed objects.
    "zpool-reserved",
    "zpool-raised",
    "zpool-activated",
    "zpool-claimed",
    "zpool-cleared",
    "zpool-emptying",
    "zpool-punched",
    "zpool-released",
    "zpool-kept",
    "unpack-owner",
    // References of slots.
    "put-busy",
    "put-freed",
    "put-done",
    // A page comes: zeros, from its frame, from a tier.
    "charge-half",
    "zero-copied",
    "frame-copied",
    "swapin-locked",
    "watch-taken",
    "watch-read",
    "swapin-loaded",
    "swapin-copied",
    "swapin-counted",
    "swapin-worded",
    "swapin-held",
    "prefetch-popped",
    "prefetch-locked",
    // A page goes: to a frame, to a tier.
    "evict-block",
    "evict-locked",
    "evict-carried",
    "evict-moved",
    "evict-counted",
    "evict-worded",
    "evict-queued",
    "hold-copied",
    "hold-counted",
    "hold-worded",
    "store-zero",
    "store-slot",
    "store-compressed",
    "store-written",
    "block-counted",
    "store-locked",
    "store-worded",
    "store-published",
    "kept-judged",
    "kept-left",
    "frames-dropped",
    "frames-uncharged",
    // Huge pages come, come back from their place, and go.
    "huge-in-locked",
    "huge-in-moved",
    "huge-in-filled",
    "huge-in-carried",
    "huge-in-worded",
    "huge-back-locked",
    "huge-back-moved",
    "huge-back-worded",
    "huge-out-locked",
    "huge-out-moved",
    "huge-out-worded",
    "huge-out-cluster",
    "huge-out-compressed",
    "huge-out-written",
    "huge-out-dropped",
    // Compressed content goes to its block.
    "writeback-locked",
    "writeback-gathered",
    "writeback-written",
    "writeback-exchanged",
    "writeback-freed",
    // Pages leave a swap area that is to go, and space that holds nothing goes back.
    "relocate-locked",
    "relocate-loaded",
    "relocate-installed",
    "relocate-placed",
    "relocate-written",
    "relocate-counted",
    "relocate-published",
    "share-published",
    "share-moved",
    "share-freed",
    "rename-counted",
    "hole-locked",
    "hole-punched",
    // Slots kept by a CPU.
    "cache-taken",
    "cache-kept",
    "cache-drained",
    // fork, in the parent and in the child, and what it shares.
    "fork-entry",
    "fork-marked",
    "fork-dup",
    "fork-copied",
    "fork-owed",
    "fork-ready",
    "fork-returned",
    "fork-known",
    "fork-born",
    "fork-mapped",
    "fork-registered",
    "fork-alive",
    "cow-marked",
    "cow-protected",
    "cow-lifted",
    "cow-cleared",
    "cow-debt",
    "pay-charged",
    // Mappings.
    "munmap-unmapped",
    "dontneed-dropped",
    "discard-worded",
    "discard-put",
    "mremap-moved",
    "move-word",
    "commit-half",
    // The files of the tiers are exchanged.
    "follow-opened",
    "follow-exchanged",
    // A process joins, and becomes active.
    "entry-taken",
    "join-entry",
    "join-named",
    "clean-claimed",
    "clean-put",
    "activate-marked",
    "activate-registered",
    "activate-adopted",
    "exec-marked",
    // Passed by the supervisor alone.
    "compact-copied",
    "compact-exchanged",
    "compact-freed",
    "compact-emptying",
    "recount-locked",
    "recount-put",
    "area-resized",
];

/// The place of a name in [`POINTS`].
///
/// # Panics
/// When compiled: for a name that is not there.
#[must_use]
pub const fn index(name: &str) -> usize {
    let mut at = 0;
    while at < POINTS.len() {
        if same(POINTS[at].as_bytes(), name.as_bytes()) {
            return at;
        }
        at += 1;
    }
    panic!("a kill point that POINTS does not name")
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// A place where a process may be killed, by its name in [`kill::POINTS`](crate::kill::POINTS).
#[macro_export]
macro_rules! kill_point {
    ($name:literal) => {{
        const POINT: usize = $crate::kill::index($name);
        $crate::kill::passed(POINT);
    }};
}

/// Nothing: points are passed unseen.
#[cfg(not(feature = "kill-points"))]
#[inline(always)]
pub const fn passed(_point: usize) {}

#[cfg(feature = "kill-points")]
mod hook {
    extern crate std;
    use std::sync::OnceLock;

    static HOOK: OnceLock<fn(usize)> = OnceLock::new();

    /// Has `hook` called with the index of each point that is passed from now on, wherever that is: in signal context too.
    pub fn set_hook(hook: fn(usize)) {
        let _ = HOOK.set(hook);
    }

    /// Tells the engine, if it asked for it.
    pub fn passed(point: usize) {
        if let Some(hook) = HOOK.get() {
            hook(point);
        }
    }
}
#[cfg(feature = "kill-points")]
pub use hook::{passed, set_hook};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_point_has_one_name() {
        for (at, name) in POINTS.iter().enumerate() {
            assert_eq!(index(name), at, "{name} is there twice");
        }
    }
}
