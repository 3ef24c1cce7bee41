//! A swap file that grows as it is written takes its space a cluster at a time, ahead of the writes.
//!
//! ext4 holds a file's lock alone for a write that takes space, until everything under way is over, and shared for one that does not:
//! without this, each small write to a new place held up all reads that faults wait for. Elsewhere nothing was found to gain.
//! Which clusters have been asked for theirs is noted in the pool, a bit each; holes (`discard`) and other files forget it.
//!
//! # Safety
//! Takes space in files of ours, of which no byte changes; a bit that is wrong makes a write slower and nothing else.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use farpage_core::cluster::CLUSTER_SLOTS;

use crate::mm::{Mm, PAGE};
use crate::pool::{Pool, trait_of};
use crate::sys;
use crate::tiers;

/// Where less is free, each write takes what it needs: the last of it is not to lie in clusters that others write to.
const FREE_MIN: u64 = 64 << 20;

/// Takes space for the clusters that `count` blocks from `block` on lie in, unless they have it.
pub fn ahead(mm: &Mm, area: u8, block: u64, count: u64) {
    let index = usize::from(area);
    if mm.header().area[index].traits.load(Ordering::Relaxed) & trait_of::RESERVES == 0 {
        return;
    }
    let first = u64::from(mm.pool().devices()[index].first_cluster);
    let [from, to] = [block, block + count - 1].map(|block| block / CLUSTER_SLOTS as u64);
    for cluster in from..=to {
        let bit = Bit::of(mm.pool(), first + cluster);
        if !bit.is_set() && has_room(mm, area) {
            reserve(mm, area, cluster);
            bit.set();
        }
    }
}

/// The clusters of an area have no space, or are other ones' now.
pub fn forget(pool: &Pool, clusters: Range<u64>) {
    clusters.for_each(|cluster| Bit::of(pool, cluster).clear());
}

fn has_room(mm: &Mm, area: u8) -> bool {
    let (file, _) = tiers::file_of(mm, (area, 0));
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    let args = [file as u64, stat.as_mut_ptr() as u64, 0, 0, 0, 0];
    // SAFETY: the kernel fills what has that size, if it says that it has.
    let free = unsafe { sys::call(libc::SYS_fstatfs, args).map(|_| stat.assume_init()) };
    free.is_ok_and(|stat| stat.f_bavail * stat.f_bsize as u64 >= FREE_MIN)
}

/// Takes space for a cluster of the area, counted from its first one. Where that is refused the writes there take theirs.
fn reserve(mm: &Mm, area: u8, cluster: u64) {
    let blocks = mm.header().area[usize::from(area)].blocks.load(Ordering::Relaxed);
    let from = cluster * CLUSTER_SLOTS as u64;
    let to = (from + CLUSTER_SLOTS as u64).min(blocks);
    let (file, offset) = tiers::file_of(mm, (area, from));
    let mode = libc::FALLOC_FL_KEEP_SIZE as u64;
    let args = [file as u64, mode, offset, to.saturating_sub(from) * PAGE, 0, 0];
    // SAFETY: see the file's note.
    let _ = unsafe { sys::call(libc::SYS_fallocate, args) };
}

/// A cluster's bit.
struct Bit {
    word: &'static AtomicU64,
    mask: u64,
}

impl Bit {
    fn of(pool: &Pool, cluster: u64) -> Bit {
        Bit {
            word: &pool.reserved()[(cluster / 64) as usize],
            mask: 1 << (cluster % 64),
        }
    }

    fn is_set(&self) -> bool {
        self.word.load(Ordering::Relaxed) & self.mask != 0
    }

    fn set(&self) {
        self.word.fetch_or(self.mask, Ordering::Relaxed);
    }

    fn clear(&self) {
        // Mostly it is, and what was never written is no memory.
        if self.is_set() {
            self.word.fetch_and(!self.mask, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Geometry;

    #[test]
    fn each_cluster_is_forgotten_by_itself() {
        let mut geometry = Geometry::default();
        geometry.area_blocks[0] = 1 << 20;
        let (fd, pool) = Pool::create(&geometry).unwrap();
        let has = || -> Vec<u64> {
            (0..200)
                .filter(|cluster| Bit::of(&pool, *cluster).is_set())
                .collect()
        };
        assert_eq!(has(), []);
        [1, 63, 64, 130]
            .iter()
            .for_each(|cluster| Bit::of(&pool, *cluster).set());
        assert_eq!(has(), [1, 63, 64, 130]);
        forget(&pool, 63..65);
        assert_eq!(has(), [1, 130]);
        sys::close(fd);
    }
}
