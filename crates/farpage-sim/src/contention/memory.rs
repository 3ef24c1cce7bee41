//! The allocator and the swap table of `farpage-core` on the heap.

use farpage_core::cluster::{CLUSTER_SLOTS, List};
use farpage_core::devices::{Device, DeviceState};
use farpage_core::fifo::Fifo;
use farpage_core::slots::{CPUS, CURRENT_WORDS, Parts, Punch, Slots, list_words};
use farpage_core::swap_table::SwapTable;
use farpage_core::sync::{AtomicU32, AtomicU64, Ordering};

/// An allocator's memory. Giving pages of it back to the system costs nothing here and is not modelled.
#[derive(Debug)]
pub struct Memory {
    devices: Vec<Device>,
    table: Vec<AtomicU64>,
    clusters: Vec<AtomicU64>,
    lists: Vec<AtomicU64>,
    current: Vec<AtomicU64>,
    fifo: Vec<AtomicU32>,
    ends: [AtomicU64; 2],
    states: Vec<DeviceState>,
}

/// Keeps the words of emptied clusters: all of them are zero already.
#[derive(Debug, Clone, Copy)]
pub struct Keep;

impl Punch for Keep {
    fn punch(&self, _cluster: u32) {}
}

/// What of a device all CPUs share and an operation may have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceWords {
    state: [u64; 4],
}

fn zeros(len: usize) -> Vec<AtomicU64> {
    (0..len).map(|_| AtomicU64::new(0)).collect()
}

impl Memory {
    /// `count` equal devices with `slots` slots in all, each of whole clusters.
    #[must_use]
    pub fn new(count: usize, slots: usize) -> Self {
        let each = (slots / count.max(1)).div_ceil(CLUSTER_SLOTS).max(1);
        let devices: Vec<_> = (0..count)
            .map(|index| Device {
                first_cluster: (1 + index * each) as u32,
                slots: (each * CLUSTER_SLOTS) as u32,
                has_file: true,
                ..Device::default()
            })
            .collect();
        let clusters = 1 + count * each;
        Self {
            table: zeros(clusters * CLUSTER_SLOTS),
            clusters: zeros(clusters),
            lists: zeros(list_words(clusters)),
            current: zeros(CPUS * CURRENT_WORDS),
            fifo: (0..clusters).map(|_| AtomicU32::new(0)).collect(),
            ends: core::array::from_fn(|_| AtomicU64::new(0)),
            states: devices.iter().map(|_| DeviceState::default()).collect(),
            devices,
        }
    }

    /// The swap table.
    #[must_use]
    pub fn table(&self) -> SwapTable<'_> {
        SwapTable { words: &self.table }
    }

    /// A view on the allocator.
    #[must_use]
    pub fn slots(&self) -> Slots<'_, Keep> {
        let parts = Parts {
            table: self.table(),
            clusters: &self.clusters,
            lists: &self.lists,
            current: &self.current,
            fifo: Fifo {
                places: &self.fifo,
                ends: &self.ends,
            },
            devices: &self.devices,
            states: &self.states,
        };
        Slots::new(parts, Keep)
    }

    /// How many clusters there are, the first, which is nobody's, included.
    #[must_use]
    pub fn clusters(&self) -> usize {
        self.clusters.len()
    }

    /// The index of the device that owns a cluster.
    #[must_use]
    pub fn device_of(&self, cluster: u32) -> usize {
        let owner = farpage_core::devices::owner_of(&self.devices, cluster);
        owner.map_or(0, |(index, _)| index)
    }

    /// The words that steer a device, which all CPUs share.
    #[must_use]
    pub fn device_words(&self, index: usize) -> DeviceWords {
        let state = &self.states[index];
        DeviceWords {
            state: [
                u64::from(state.fresh.load(Ordering::Relaxed)),
                u64::from(state.active.load(Ordering::Relaxed)),
                state.used.load(Ordering::Relaxed),
                u64::from(state.turn.load(Ordering::Relaxed)),
            ],
        }
    }

    /// How many clusters were ever queued for writeback.
    #[must_use]
    pub fn queued(&self) -> u64 {
        self.ends[1].load(Ordering::Relaxed)
    }

    /// The list that a cluster is on: its kind, order and class of run.
    #[must_use]
    pub fn home(&self, cluster: u32) -> (List, usize, usize) {
        let word = self.slots().cluster_word(cluster);
        (word.list(), word.order(), word.run())
    }

    /// Slots taken, by the words of the table.
    #[must_use]
    pub fn used(&self) -> usize {
        let used = |word: &&AtomicU64| word.load(Ordering::Relaxed) != 0;
        self.table.iter().filter(used).count()
    }
}
