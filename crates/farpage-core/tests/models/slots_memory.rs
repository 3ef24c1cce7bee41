//! The memory of an allocator, on the heap: for all tests, models and benchmarks of it.

use std::vec::Vec;

use farpage_core::cluster::{self, CLUSTER_SLOTS};
use farpage_core::devices::{Device, DeviceState};
use farpage_core::fifo::Fifo;
use farpage_core::slots::{CPUS, CURRENT_WORDS, Parts, Punch, Slots, list_words};
use farpage_core::swap_table::SwapTable;
use farpage_core::sync::{AtomicU32, AtomicU64, Ordering};

/// An allocator of its own.
pub struct Memory {
    pub devices: &'static [Device],
    pub table: Vec<AtomicU64>,
    pub clusters: Vec<AtomicU64>,
    lists: Vec<AtomicU64>,
    current: Vec<AtomicU64>,
    fifo: Vec<AtomicU32>,
    ends: [AtomicU64; 2],
    pub states: Vec<DeviceState>,
    /// Clusters whose words were given back.
    pub punched: AtomicU64,
}

/// Words of zeros.
pub fn zeros(len: usize) -> Vec<AtomicU64> {
    (0..len).map(|_| AtomicU64::new(0)).collect()
}

impl Memory {
    /// An empty one of `devices`.
    pub fn new(devices: &'static [Device]) -> Self {
        let ends = devices.iter().map(|device| device.end_cluster() as usize);
        let clusters = ends.max().unwrap_or(1);
        Self {
            devices,
            table: zeros(clusters * CLUSTER_SLOTS),
            clusters: zeros(clusters),
            lists: zeros(list_words(clusters)),
            current: zeros(CPUS * CURRENT_WORDS),
            fifo: (0..clusters).map(|_| AtomicU32::new(0)).collect(),
            ends: core::array::from_fn(|_| AtomicU64::new(0)),
            states: devices.iter().map(|_| DeviceState::default()).collect(),
            punched: AtomicU64::new(0),
        }
    }

    pub fn table(&self) -> SwapTable<'_> {
        SwapTable { words: &self.table }
    }

    pub fn slots(&self) -> Slots<'_, &Self> {
        let parts = Parts {
            table: self.table(),
            clusters: &self.clusters,
            lists: &self.lists,
            current: &self.current,
            fifo: Fifo {
                places: &self.fifo,
                ends: &self.ends,
            },
            devices: self.devices,
            states: &self.states,
        };
        Slots::new(parts, self)
    }

    /// Whether more clusters were put into the queue of writeback than it has places for: it may have lost some.
    pub fn queue_overflows(&self) -> bool {
        let [front, end] = self.ends.each_ref().map(|end| end.load(Ordering::Relaxed));
        end.saturating_sub(front) > self.fifo.len() as u64
    }

    /// Slots that are not free.
    pub fn used(&self) -> usize {
        let used = |word: &&AtomicU64| word.load(Ordering::Relaxed) != 0;
        self.table.iter().filter(used).count()
    }

    /// Every count is that of the words, every cluster on the list it names, every device told of its slots.
    pub fn check(&self) {
        let slots = self.slots();
        for cluster in 0..self.clusters.len() as u32 {
            let (fault, word) = (slots.fault_of(cluster), slots.cluster_word(cluster));
            assert_eq!(fault, None, "cluster {cluster}: {word:?}");
        }
        let used: u64 = self.states.iter().map(|s| s.used.load(Ordering::Relaxed)).sum();
        let clusters = self.clusters.iter().map(cluster::load);
        assert_eq!(used, clusters.map(|word| DeviceState::told(word.count())).sum());
    }
}

impl Punch for &Memory {
    fn punch(&self, cluster: u32) {
        let start = cluster as usize * CLUSTER_SLOTS;
        for word in &self.table[start..start + CLUSTER_SLOTS] {
            assert_eq!(word.load(Ordering::Relaxed), 0, "used words punched");
            // What a reader of the page that was given back finds there.
            word.store(0, Ordering::Relaxed);
        }
        self.punched.fetch_add(1, Ordering::Relaxed);
    }
}
