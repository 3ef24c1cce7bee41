//! Space that holds nothing any more goes back: holes in a swap file that grows as it is written, discards on a block device.
//!
//! What the allocator takes again first needs none of it, so this is done only by a reclaimer thread that has nothing else to do.
//! The cluster is locked meanwhile: nobody gets its blocks. A thread killed in here leaves the cluster to be told of again.
//!
//! # Safety
//! Only blocks of a locked cluster without a used slot are given up.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering};

use farpage_core::cluster::CLUSTER_SLOTS;
use farpage_core::devices;
use farpage_core::kill_point;
use farpage_core::stats::Counter;

use crate::mm::{Mm, PAGE};
use crate::pool::trait_of;
use crate::reserve;
use crate::sys;
use crate::tiers;

/// Clusters given back in one turn: 16 MiB.
const TURN: usize = 8;
/// `_IO(0x12, 119)` of linux/fs.h: [start, length] in bytes.
const BLKDISCARD: u64 = 0x1277;
/// Areas, a bit each, that have refused: they are not asked again.
static REFUSED: AtomicU32 = AtomicU32::new(0);

/// The area at `index` has another file now, which has refused nothing.
pub fn ask_again(index: usize) {
    REFUSED.fetch_and(!(1 << index), Ordering::Relaxed);
}

/// Tells the areas of some empty clusters. The gate is held shared.
pub fn run(mm: &Mm) {
    let view = mm.pool().slots();
    for _ in 0..TURN {
        let Some(locked) = view.lock_discard(mm.owner()) else {
            break;
        };
        kill_point!("hole-locked");
        if forget(mm, locked.cluster()) {
            mm.header().count(Counter::Discard, 1);
        }
        kill_point!("hole-punched");
        view.unlock_discarded(locked);
    }
    tiers::count_locks(mm.pool(), &view);
}

/// True if the area did it.
fn forget(mm: &Mm, cluster: u32) -> bool {
    let Some((index, device)) = devices::owner_of(mm.pool().devices(), cluster) else {
        return false;
    };
    let state = &mm.pool().device_states()[index];
    let device = state.now(device);
    // While the cluster is locked an area that stays can't leave, nor its number get another file; one that leaves may have
    // none by now.
    let gone = !state.stays() || !device.owns(cluster) || !device.discards;
    if gone || REFUSED.load(Ordering::Relaxed) & 1 << index != 0 {
        return false;
    }
    let traits = mm.header().area[index].traits.load(Ordering::Relaxed);
    let block = u64::from(cluster - device.first_cluster) * CLUSTER_SLOTS as u64;
    let (file, from) = tiers::file_of(mm, (index as u8, block));
    let len = device.capacity(cluster) as u64 * PAGE;
    let range = [from, len];
    // SAFETY: the blocks of a locked empty cluster, see the file's note; range outlives the call.
    let result = unsafe {
        if traits & trait_of::PUNCHES != 0 {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            sys::call(libc::SYS_fallocate, [file as u64, mode as u64, from, len, 0, 0])
        } else {
            sys::call(
                libc::SYS_ioctl,
                [file as u64, BLKDISCARD, range.as_ptr() as u64, 0, 0, 0],
            )
        }
    };
    let cluster = u64::from(cluster);
    reserve::forget(mm.pool(), cluster..cluster + 1);
    if result.is_err() {
        REFUSED.fetch_or(1 << index, Ordering::Relaxed);
    }
    result.is_ok()
}
