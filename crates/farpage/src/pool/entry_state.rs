//! States of a process entry.

pub const FREE: u32 = 0;
/// Taken for a process that does not live yet; who has taken it stands above these two bits.
const EMBRYO: u32 = 1;
/// Set in the state of an entry whose process has taken it over in its own name from the parent. No number reaches to here.
const OWN: u32 = 1 << 31;
pub const LIVE: u32 = 2;
/// What a dead process held is being returned; the cleaner's pid stands above these two bits.
pub const CLEANING: u32 = 3;

/// The state in which `pid` cleans up.
#[must_use]
pub const fn cleaned_by(pid: i32) -> u32 {
    CLEANING | (pid as u32) << 2
}

/// The state of an entry that `pid` has taken, for itself or its child.
#[must_use]
pub const fn taken_by(pid: i32) -> u32 {
    EMBRYO | (pid as u32) << 2
}

/// The state of an entry that the forked child `pid` has taken over from its parent.
#[must_use]
pub const fn taken_over_by(pid: i32) -> u32 {
    taken_by(pid) | OWN
}

/// Whether it is taken by who has forked, or is to fork, and not by the child.
#[must_use]
pub const fn is_parents(state: u32) -> bool {
    state & 3 == EMBRYO && state & OWN == 0
}

/// Who has taken it, if it is taken and nobody's yet.
#[must_use]
pub const fn taker(state: u32) -> Option<i32> {
    if state & 3 == EMBRYO {
        Some(((state & !OWN) >> 2) as i32)
    } else {
        None
    }
}

/// The state of an entry that is empty and becomes free once `pid`, who is still in the fork that made its process, lets it go.
#[must_use]
pub const fn left_to(pid: i32) -> u32 {
    LIVE | (pid as u32) << 2
}

/// Who has to let it go, if it is empty and somebody has.
#[must_use]
pub const fn left_to_whom(state: u32) -> Option<i32> {
    if state & 3 == LIVE && state != LIVE {
        Some((state >> 2) as i32)
    } else {
        None
    }
}

/// Whether it is somebody's, or is to be.
#[must_use]
pub const fn is_occupied(state: u32) -> bool {
    state == LIVE || taker(state).is_some()
}

/// Who cleans up, if anybody does.
#[must_use]
pub const fn cleaner(state: u32) -> Option<i32> {
    if state & 3 == CLEANING {
        Some((state >> 2) as i32)
    } else {
        None
    }
}
