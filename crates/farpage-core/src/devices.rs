//! Devices: how the slot numbers are divided among them, and in which order they are used.
//!
//! Each device owns a range of whole clusters, so a slot's number tells its device and its block:
//!
//! ```text
//! block = slot - first_cluster * 512        clusters = ceil(blocks / 512), of which the last may be short
//! ```
//!
//! Cluster 0 belongs to nobody: slot 0 names nothing anywhere. One more device stands behind those with a
//! file: it has slots for content that lives compressed only, when no file is given or all their slots are
//! used.

use crate::cluster::CLUSTER_SLOTS;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Where a device's slots lie, and what they may hold. Fixed while the pool exists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Device {
    /// Its first cluster; 0 for a device that is not there.
    pub first_cluster: u32,
    /// Its number of slots (blocks of 4 KiB).
    pub slots: u32,
    /// Devices of higher priority are filled first, equal ones in turn. Here: if its present file has none of its own.
    pub priority: i32,
    /// Whether the slots have blocks to write to.
    pub has_file: bool,
    /// Whether seeks are dear: all CPUs then allocate side by side. Here and below: whatever file it has.
    pub rotates: bool,
    /// Whether it wants to be told of blocks that hold nothing any more ([`crate::slots::Slots::lock_discard`]).
    pub discards: bool,
}

impl Device {
    /// How many clusters it has.
    #[must_use]
    pub const fn clusters(&self) -> u32 {
        self.slots.div_ceil(CLUSTER_SLOTS as u32)
    }

    /// One past its last cluster.
    #[must_use]
    pub const fn end_cluster(&self) -> u32 {
        self.first_cluster + self.clusters()
    }

    /// Whether a cluster is one of its own.
    #[must_use]
    pub const fn owns(&self, cluster: u32) -> bool {
        cluster >= self.first_cluster && cluster < self.end_cluster()
    }

    /// Slots of one of its clusters: 512, less in a short last one. (Also for a cluster behind it: a slot of it may be taken from
    /// a time when the device was larger.)
    #[must_use]
    pub const fn capacity(&self, cluster: u32) -> usize {
        let before = (cluster - self.first_cluster) as usize * CLUSTER_SLOTS;
        let left = (self.slots as usize).saturating_sub(before);
        if left > 0 && left < CLUSTER_SLOTS {
            left
        } else {
            CLUSTER_SLOTS
        }
    }

    /// The block of one of its slots.
    #[must_use]
    pub const fn block(&self, slot: u32) -> u64 {
        slot as u64 - self.first_cluster as u64 * CLUSTER_SLOTS as u64
    }
}

/// The device that owns a cluster, and its index.
#[must_use]
pub fn owner_of(devices: &[Device], cluster: u32) -> Option<(usize, &Device)> {
    devices
        .iter()
        .enumerate()
        .find(|(_, device)| device.owns(cluster))
}

/// What changes about a device; all zero is an empty one. Only the first word decides anything that matters
/// (which clusters have ever been used); the others steer.
#[derive(Debug, Default)]
#[repr(C)]
pub struct DeviceState {
    /// Clusters below this were used at least once; those above have never been looked at.
    pub fresh: AtomicU32,
    /// Clusters that are not free.
    pub active: AtomicU32,
    /// Slots taken, about: each cluster's to the next 64.
    pub used: AtomicU64,
    /// Whose turn it is among devices of equal priority (kept by the first of them).
    pub turn: AtomicU32,
    /// Not 0: nothing is allocated here for now ([`SHUT_FAILED`], [`SHUT_LEAVING`]).
    pub shut: AtomicU32,
    /// How many slots at the end of the device's range have no block now: all of them while there is no file.
    /// Changed only while it is shut and no slot of it names anything that is read.
    pub missing: AtomicU32,
    /// What its present file wants: [`ROTATES`], [`DISCARDS`].
    pub traits: AtomicU32,
    /// Not 0: whole clusters were asked for.
    pub whole: AtomicU32,
    /// The priority of its present file, and 1; 0 if it has none of its own ([`raised`]).
    pub raised: AtomicU32,
    /// Not 0: while the clusters in use are not dense, a run of so many single slots of theirs is taken before a free cluster
    /// is ([`enough`]).
    pub enough: AtomicU32,
    /// Fills the line.
    pub padding: [AtomicU32; 5],
}

/// Bit of [`DeviceState::traits`]: as [`Device::rotates`].
pub const ROTATES: u32 = 1;
/// Bit of [`DeviceState::traits`]: as [`Device::discards`].
pub const DISCARDS: u32 = 2;
/// Bit of [`DeviceState::shut`]: writing failed. Tried again when nothing else has room.
pub const SHUT_FAILED: u32 = 1;
/// Bit of [`DeviceState::shut`]: the device is being emptied, or is not there.
pub const SHUT_LEAVING: u32 = 2;

/// A priority as it stands in [`DeviceState::raised`].
#[must_use]
pub fn raised(priority: Option<u16>) -> u32 {
    priority.map_or(0, |priority| u32::from(priority) + 1)
}

/// The priority that [`DeviceState::raised`] names.
#[must_use]
pub fn priority_of(raised: u32) -> Option<u16> {
    raised.checked_sub(1).map(|priority| priority as u16)
}

/// What [`DeviceState::enough`] is to be where the table's pages of `active` clusters are in memory and `most` would be few: the more
/// there are the shorter are the runs that do. Pages that come back one by one leave each cluster with holes of all lengths;
/// of 64 slots, side by side, one finds that many once 8 % of it are left, of 16 once 30 % are.
#[must_use]
pub const fn enough(active: u64, most: u64) -> u32 {
    match active.checked_div(most) {
        Some(0) => 0,
        Some(1) => 32,
        Some(2 | 3) => 16,
        _ => 8,
    }
}

impl DeviceState {
    /// What is added to [`Self::used`] for a cluster with `count` slots used: `count` to the next eighth of a cluster.
    #[must_use]
    pub const fn told(count: usize) -> u64 {
        const STEP: usize = if CLUSTER_SLOTS < 8 { 1 } else { CLUSTER_SLOTS / 8 };
        ((count + STEP / 2) / STEP * STEP) as u64
    }

    /// The device as it is now: with the slots that have a block, and what its present file wants.
    #[must_use]
    pub fn now(&self, device: &Device) -> Device {
        let missing = self.missing.load(Ordering::Relaxed);
        let traits = self.traits.load(Ordering::Relaxed);
        Device {
            slots: device.slots.saturating_sub(missing),
            rotates: device.rotates || traits & ROTATES != 0,
            discards: device.discards || traits & DISCARDS != 0,
            priority: priority_of(self.raised.load(Ordering::Relaxed)).map_or(device.priority, i32::from),
            ..*device
        }
    }

    /// Whether it takes slots, or will again once what failed is tried anew.
    #[must_use]
    pub fn stays(&self) -> bool {
        self.shut.load(Ordering::Relaxed) & SHUT_LEAVING == 0
    }

    /// Whether the clusters in use are dense enough to start on a free one: then what is allocated lies side
    /// by side. Otherwise half-empty clusters come first, so that table and file stay in proportion to what
    /// is used.
    #[must_use]
    pub fn dense(&self) -> bool {
        let used = self.used.load(Ordering::Relaxed);
        let active = u64::from(self.active.load(Ordering::Relaxed)) * CLUSTER_SLOTS as u64;
        active <= used.saturating_add(used / 2 + SLACK_SLOTS)
    }

    /// Whether single slots must leave free clusters alone while they find room elsewhere: huge pages take whole ones, and few
    /// are left of the `clusters` there are.
    #[must_use]
    pub fn spares_clusters(&self, clusters: u32) -> bool {
        let left = clusters.saturating_sub(self.active.load(Ordering::Relaxed));
        self.whole.load(Ordering::Relaxed) != 0 && left < clusters / SPARED_PART
    }
}

const SLACK_SLOTS: u64 = 8192;
/// Free clusters are kept for huge pages when less than this part of all is free.
const SPARED_PART: u32 = 4;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn slots_and_blocks() {
        let device = Device {
            first_cluster: 3,
            slots: 1000,
            priority: 0,
            has_file: true,
            ..Device::default()
        };
        assert_eq!((device.clusters(), device.end_cluster()), (2, 5));
        assert!(!device.owns(2) && device.owns(3) && device.owns(4) && !device.owns(5));
        assert_eq!((device.capacity(3), device.capacity(4)), (512, 488));
        assert_eq!(device.capacity(5), 512);
        assert_eq!((device.block(1536), device.block(2535)), (0, 999));
        assert!(
            !Device::default().owns(0),
            "a device that is not there owns nothing"
        );
        assert_eq!(owner_of(&[Device::default(), device], 4), Some((1, &device)));
        assert_eq!(owner_of(&[device], 5), None);
    }
}
