//! Addresses that a program asks for and means. A hint to mmap is not an order, and managed memory goes where ours lies. But some
//! programs give a reservation back unless it is where they asked, and ask for the next place (ZGC wants its heap at one of a
//! few hundred). After [`PATIENCE`] in a row, reservations of this process with a hint are the kernel's.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const PATIENCE: u32 = 16;

/// The last reservation that went elsewhere than asked, and how many in a row were given back at once. Threads that reserve at the
/// same time may miscount: they only come later, or sooner, to where they asked.
static LAST: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
static GIVEN_BACK: AtomicU32 = AtomicU32::new(0);

/// Whether a reservation with a hint is to be where it asks.
pub fn are_meant() -> bool {
    GIVEN_BACK.load(Ordering::Relaxed) >= PATIENCE
}

/// A reservation with a hint went to `addr`.
pub fn went_elsewhere(addr: u64, len: u64) {
    if LAST[0].swap(addr, Ordering::Relaxed) != 0 {
        GIVEN_BACK.store(0, Ordering::Relaxed); // the one before was kept
    }
    LAST[1].store(len, Ordering::Relaxed);
}

/// A mapping is unmapped.
pub fn unmapped(addr: u64, len: u64) {
    if LAST[0].load(Ordering::Relaxed) == addr && LAST[1].load(Ordering::Relaxed) == len {
        LAST[0].store(0, Ordering::Relaxed);
        GIVEN_BACK.fetch_add(1, Ordering::Relaxed);
    }
}
