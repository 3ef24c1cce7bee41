//! Where each part of the pool lies.

use farpage_core::cluster::CLUSTER_SLOTS;
use farpage_core::devices::{Device, DeviceState};
use farpage_core::slots;
use farpage_core::units::PAGE_SIZE;
use farpage_core::zpool::ZPAGE_BYTES;

use super::{
    CLUSTERS_MAX, DEBTS_LEN, DEVICES, FIFO_PLACES, Header, MAX_AREAS, MAX_PROCESSES, ProcEntry, RESERVED,
    STATES_LEN,
};

/// Where each part lies, in bytes from the start of the pool. Written once, before anyone else maps it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Layout {
    /// Slot numbers of each device, of which `DeviceState::missing` have no block; the last is without a file.
    pub device_slots: [u64; DEVICES],
    pub device_states: u64,
    pub current: u64,
    pub clusters: u64,
    pub cluster_count: u64,
    pub lists: u64,
    pub fifo: u64,
    pub reserved: u64,
    pub slots: u64,
    pub descs: u64,
    pub zdata: u64,
    pub zpage_count: u64,
    pub debts: u64,
    /// End of the part that every process maps.
    pub common: u64,
    pub states: u64,
    pub total: u64,
}

/// What the tree's creator decides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Geometry {
    pub area_blocks: [u64; MAX_AREAS],
    /// Most zpages the compressed tier may use.
    pub zpages: u64,
}

impl Layout {
    #[must_use]
    pub fn new(geometry: &Geometry) -> Layout {
        const ALIGN: u64 = 2 << 20;
        let mut layout = Layout::default();
        // A compressed page is at least one 64-byte object, but 16 per page of storage is as dense as data gets
        // in practice; slots are 8 bytes of sparse memory each.
        let compressed = geometry.zpages * (ZPAGE_BYTES / PAGE_SIZE) as u64 * 16;
        let given = geometry.area_blocks.iter().sum::<u64>() + compressed;
        let spare = (CLUSTERS_MAX * CLUSTER_SLOTS as u64).saturating_sub(given) / DEVICES as u64;
        let reserved = RESERVED.min(spare / CLUSTER_SLOTS as u64 * CLUSTER_SLOTS as u64);
        let areas = geometry.area_blocks.map(|blocks| blocks.max(reserved));
        let wanted = areas.into_iter().chain([compressed]);
        // Cluster 0 is nobody's.
        layout.cluster_count = 1;
        for (slots, wanted) in layout.device_slots.iter_mut().zip(wanted) {
            let left = (CLUSTERS_MAX - layout.cluster_count) * CLUSTER_SLOTS as u64;
            *slots = wanted.min(left);
            layout.cluster_count += slots.div_ceil(CLUSTER_SLOTS as u64);
        }
        let mut at = round(
            size_of::<Header>() as u64 + (MAX_PROCESSES * size_of::<ProcEntry>()) as u64,
            ALIGN,
        );
        let mut take = |bytes: u64| {
            let start = at;
            at = round(at + bytes, ALIGN);
            start
        };
        layout.device_states = take((DEVICES * size_of::<DeviceState>()) as u64);
        layout.current = take((slots::CPUS * slots::CURRENT_WORDS * 8) as u64);
        layout.clusters = take((layout.cluster_count + layout.reserved_words()) * 8);
        layout.reserved = layout.clusters + layout.cluster_count * 8;
        layout.lists = take(slots::list_words(layout.cluster_count as usize) as u64 * 8);
        layout.fifo = take(FIFO_PLACES + layout.cluster_count * 4);
        layout.slots = take(layout.slot_count() * 8);
        layout.zpage_count = geometry.zpages;
        layout.descs = take(geometry.zpages * 8);
        layout.zdata = take(geometry.zpages * ZPAGE_BYTES as u64);
        layout.debts = take(MAX_PROCESSES as u64 * DEBTS_LEN);
        layout.common = at;
        layout.states = at;
        layout.total = layout.states + MAX_PROCESSES as u64 * STATES_LEN;
        layout
    }

    #[must_use]
    pub fn slot_count(&self) -> u64 {
        self.cluster_count * CLUSTER_SLOTS as u64
    }

    /// Words of a bit for each cluster.
    pub(super) fn reserved_words(&self) -> u64 {
        self.cluster_count.div_ceil(64)
    }

    /// Bytes of addresses that a managed process needs: for it, and for what the engine and its allocator map besides.
    #[must_use]
    pub fn addresses(&self) -> u64 {
        const BESIDES: u64 = 320 << 20;
        self.common + STATES_LEN + BESIDES
    }

    /// The devices: areas in the order given, then the one without a file.
    pub(super) fn devices(&self) -> [Device; DEVICES] {
        let mut first_cluster = 1;
        core::array::from_fn(|i| {
            let device = Device {
                first_cluster,
                slots: self.device_slots[i] as u32,
                priority: -(i as i32) - 1,
                has_file: i < MAX_AREAS,
                // Its state says what its file wants.
                rotates: false,
                discards: false,
            };
            first_cluster = device.end_cluster();
            device
        })
    }
}

fn round(value: u64, to: u64) -> u64 {
    value.div_ceil(to) * to
}
