//! How much more a tree can keep.

use core::sync::atomic::Ordering;

use farpage_core::devices::{Device, DeviceState};
use farpage_core::stats::Counter;
use farpage_core::units::PAGE_SIZE;
use farpage_core::zpool::ZPAGE_BYTES;

use super::{Area, Header, Pool, entry_state};

/// Of the limit, what stays free beside what is promised: with nothing free at all every page that comes in waits for another to be
/// tried for its place, a tenth of the speed.
const SPARE_PART: i64 = 8;
/// Of the limit, pages that may be about to leave still where all swap is full, or can't for other reasons.
const LEAVING_PART: i64 = 16;
/// Slots of a device that may be free by its count, which is kept to half of a group of 64, and are not.
const COUNT_OFF: i64 = 32;

impl Pool {
    /// Slots of files that take pages which are free. Fewer than blocks without a page: what is compressed may have one too.
    #[must_use]
    pub fn free_slots(&self) -> i64 {
        let devices = self.devices().iter().zip(self.device_states());
        let open = devices
            .zip(&self.header().area)
            .filter(|((device, state), area)| device.has_file && state.stays() && area.takes_pages());
        let free = |((device, state), _): ((&Device, &DeviceState), &Area)| {
            let slots = i64::from(state.now(device).slots) - state.used.load(Ordering::Relaxed) as i64;
            (slots - COUNT_OFF).max(0)
        };
        open.map(free).sum()
    }

    /// Those, and the ones that pages in RAM keep: given up they are free, if not where no area takes any.
    #[must_use]
    pub fn free_or_kept_slots(&self) -> i64 {
        let header = self.header();
        let takes_any = header.area.iter().any(Area::takes_pages);
        let kept = header.kept.load(Ordering::Relaxed).max(0);
        self.free_slots() + if takes_any { kept } else { 0 }
    }

    /// Pages in RAM that no tier takes. What fork shares is one's alone.
    #[must_use]
    pub fn poor_pages(&self) -> i64 {
        let there = self
            .processes()
            .iter()
            .filter(|entry| entry_state::is_occupied(entry.state.load(Ordering::Relaxed)));
        let own = |poor: i64, owed: i64| (poor - owed.max(0)).max(0);
        there
            .map(|entry| {
                own(
                    entry.poor.load(Ordering::Relaxed),
                    entry.owed.load(Ordering::Relaxed),
                )
            })
            .sum()
    }

    /// Pages that could still be stored somewhere if every program touched all it has: free RAM, free compressed storage at the
    /// ratio that what it took has had so far, free blocks of every area. Pages that no tier takes leave less RAM for compressed storage.
    #[must_use]
    pub fn room(&self) -> i64 {
        let (header, limit) = (self.header(), self.header().last_limit());
        let space = Space {
            limit,
            excess: header.excess(0),
            compressed: header.zpool_pages(),
            compressed_most: zpages(header.zpages_limit.load(Ordering::Relaxed)),
            poor: self.poor_pages(),
            slots: self.free_or_kept_slots(),
            written_back: self.with_blocks(),
            permille: header.compression_permille(),
        };
        space.room()
    }

    /// Whether all swap is full: what leaves waits for what comes back.
    #[must_use]
    pub fn is_swap_full(&self) -> bool {
        let header = self.header();
        let [used, most, charged] = [
            header.zpages_used.load(Ordering::Relaxed) as i64,
            header.zpages_limit.load(Ordering::Relaxed) as i64,
            header.charged.load(Ordering::Relaxed),
        ];
        let may_leave = charged - self.poor_pages();
        let is_tier_full = used >= most || may_leave <= header.last_limit() / LEAVING_PART;
        is_tier_full && self.are_files_full()
    }

    /// Whether files take no more pages, not even those that the compressed tier has for them.
    fn are_files_full(&self) -> bool {
        self.free_or_kept_slots() <= 0 && self.header().zpool_pages().min(self.with_blocks()) <= 0
    }

    /// Pages of the compressed tier that have a block to be written to, about.
    fn with_blocks(&self) -> i64 {
        (self.free_blocks() - self.free_slots() - COUNT_OFF * self.devices.len() as i64).max(0)
    }

    /// Blocks without a page of every area that takes some.
    fn free_blocks(&self) -> i64 {
        self.header().area.iter().filter_map(Area::free_blocks).sum()
    }
}

fn zpages(count: u64) -> i64 {
    (count * (ZPAGE_BYTES / PAGE_SIZE) as u64) as i64
}

/// What [`Pool::room`] is reckoned from, in pages.
struct Space {
    limit: i64,
    excess: i64,
    compressed: i64,
    compressed_most: i64,
    poor: i64,
    slots: i64,
    /// Pages of the compressed tier that have a block to be written to, where they take no RAM.
    written_back: i64,
    /// Bytes in for a thousand out of compression.
    permille: i64,
}

impl Space {
    fn room(&self) -> i64 {
        let spare = self.limit / SPARE_PART;
        let gone = self
            .compressed
            .min(self.written_back.max(0) * 1000 / self.permille);
        let most = self.compressed_most.min(self.limit - self.poor - spare);
        let more = (most - (self.compressed - gone)).max(0);
        self.slots - self.excess + gone - spare + more * (self.permille - 1000) / 1000
    }
}

impl Header {
    /// Zpages that the compressed tier may have beside pages that no tier takes.
    #[must_use]
    pub fn zpages_beside_poor(&self) -> u64 {
        let (limit, most) = (self.last_limit(), self.zpages_limit.load(Ordering::Relaxed));
        let left = (limit - limit / SPARE_PART - self.poor.load(Ordering::Relaxed)).max(0) as u64;
        most.min(left / (ZPAGE_BYTES / PAGE_SIZE) as u64)
    }

    /// Bytes in for a thousand out of what the compressed tier took; twice as many as long as that is known of few pages.
    fn compression_permille(&self) -> i64 {
        const UNKNOWN: i64 = 2000;
        let bytes_in = self.counted(Counter::CompressedBytesIn) as i64;
        if bytes_in < self.budget.load(Ordering::Relaxed) / 16 * PAGE_SIZE as i64 {
            return UNKNOWN;
        }
        let bytes_out = self.counted(Counter::CompressedBytesOut) as i64;
        (bytes_in * 1000 / bytes_out.max(1)).max(1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 64 MiB of which 48 may be compressed, all of it free, and a file of 128.
    fn empty() -> Space {
        Space {
            limit: 64 * 256,
            excess: -64 * 256,
            compressed: 0,
            compressed_most: 48 * 256,
            poor: 0,
            slots: 128 * 256,
            written_back: 0,
            permille: 2000,
        }
    }

    #[test]
    fn an_empty_tree_has_its_ram_its_tier_at_the_ratio_and_its_file() {
        assert_eq!(empty().room(), (64 - 8 + 48 + 128) * 256);
    }

    #[test]
    fn what_can_be_written_back_is_as_good_as_free() {
        // 96 MiB of the program in 48, all with blocks; 16 MiB in RAM.
        let full = Space {
            excess: 0,
            compressed: 48 * 256,
            slots: 32 * 256,
            written_back: 96 * 256,
            ..empty()
        };
        assert_eq!(full.room(), (32 + 48 - 8 + 48) * 256);
        let without_a_file = Space {
            slots: 0,
            written_back: 0,
            ..full
        };
        assert_eq!(without_a_file.room(), -8 * 256);
    }

    /// 100 MiB that compress to a ninth and then random data once went on to 231 MiB, 48 over the budget.
    #[test]
    fn pages_that_no_tier_takes_leave_no_room_for_compressed_ones() {
        let random = |poor: i64| Space {
            excess: (poor - 64) * 256,
            poor: poor * 256,
            slots: 0,
            permille: 9000,
            ..empty()
        };
        assert_eq!(random(16).room(), (64 - 16 - 8 + 40 * 8) * 256);
        assert_eq!(random(56).room(), 0);
        assert!(random(60).room() < 0);
    }
}
