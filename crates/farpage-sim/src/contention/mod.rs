//! Lock waiting with many CPUs: what systems C and T replaced, step by step, beside what farpage has (issue 3 point 8, P13).
//!
//! A discrete-event model. CPUs, their clocks, and the lines and locks that they take from each other are simulated;
//! allocator, lists, swap table and slot cache are those of `farpage-core`, called in the order of virtual time
//! ([`ours`]), and the baseline's map and trees are real as well ([`baseline`]). So how many clusters an allocation
//! looks through, how fragmented a device is and how often a lock is found held comes from the code. What a call costs
//! comes from [`costs`]: measured here, each call alone ([`measure`]), or given.
//!
//! What the model leaves out: readahead, the device's queue (every read takes the same time), sockets that are far
//! from each other, waiting CPUs that slow down the holder of a lock, interrupts, the call that gives an emptied
//! cluster's page of words back to the kernel under the cluster's lock. All of these make locks dearer.

pub mod baseline;
pub mod costs;
pub mod locks;
pub mod machine;
pub mod measure;
pub mod memory;
pub mod ours;
pub mod report;

use costs::Costs;
use farpage_core::slot_cache::FREE_MIN_PER_CPU;
use machine::Machine;

/// What is simulated: each stage has what those before it have, but for trees and slot caches, which the last does without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// A lock and a map per device, a tree with a lock per device.
    Baseline,
    /// Slots from `farpage-core`, with one current cluster for all CPUs; a tree with a lock per 64 MiB of slots.
    ClusterLocks,
    /// A current cluster and a slot cache for each CPU.
    PercpuSlots,
    /// No trees: the word of the slot. As farpage runs by default, without slot caches.
    SwapTable,
}

impl Stage {
    /// In their order.
    pub const ALL: [Self; 4] = [
        Self::Baseline,
        Self::ClusterLocks,
        Self::PercpuSlots,
        Self::SwapTable,
    ];

    /// The stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::ClusterLocks => "cluster locks",
            Self::PercpuSlots => "+ per-CPU slots",
            Self::SwapTable => "+ swap table",
        }
    }

    /// Whether the swap cache is made of trees.
    #[must_use]
    pub const fn has_trees(self) -> bool {
        !matches!(self, Self::SwapTable)
    }
}

/// The size of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// CPUs, each with a program that faults.
    pub cpus: usize,
    /// Devices of equal priority.
    pub devices: usize,
    /// Pages that are swapped out at any time; the devices have twice the slots.
    pub pages: usize,
    /// What the random numbers start from.
    pub seed: u64,
}

/// Pages swapped out, and faults that count, where nobody says otherwise.
pub const PAGES: usize = 131_072;
/// See [`PAGES`].
pub const FAULTS: usize = 50_000;

/// What is to be simulated.
#[derive(Debug, Clone)]
pub struct Config {
    /// Numbers of CPUs, 1 to 256 each.
    pub cpus: Vec<usize>,
    /// Numbers of devices, 1 to 64 each.
    pub devices: Vec<usize>,
    /// As in [`Shape`]; the least is 320 pages per CPU.
    pub pages: usize,
    /// Faults that count, in each run. As many as there are pages come before.
    pub faults: usize,
    /// As in [`Shape`].
    pub seed: u64,
    /// What operations cost.
    pub costs: Costs,
}

/// What came of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// What was simulated.
    pub stage: Stage,
    /// With so many CPUs.
    pub cpus: usize,
    /// With so many devices.
    pub devices: usize,
    /// Share of the software time of faults that went into waiting for locks, and finding them held; 0 to 1.
    pub lock_share: f64,
    /// Share that went into waiting for words which all CPUs change; 0 to 1.
    pub shared_share: f64,
    /// Software time of a fault, its wait for the device not counted: median, 99 of 100, mean.
    pub fault_ns: [u64; 3],
    /// Faults per second of all CPUs.
    pub faults_per_s: f64,
    /// Cluster locks taken per 1000 faults, and found held.
    pub locks_per_1000: [f64; 2],
}

/// Runs every stage with every number of CPUs and devices.
///
/// # Errors
/// If a number is out of range, or the structures contradict the simulator.
pub fn run(config: &Config) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for &devices in &config.devices {
        for &cpus in &config.cpus {
            for stage in Stage::ALL {
                rows.push(simulate(config, stage, cpus, devices)?);
            }
        }
    }
    Ok(rows)
}

/// Runs one stage with so many CPUs and devices, whatever numbers `config` lists.
///
/// # Errors
/// If a number is out of range, or the structures contradict the simulator.
pub fn simulate(config: &Config, stage: Stage, cpus: usize, devices: usize) -> Result<Row, String> {
    // Below that farpage rests its slot caches too: what they keep would be missed.
    let least = FREE_MIN_PER_CPU as usize * cpus;
    if !(1..=256).contains(&cpus) || !(1..=64).contains(&devices) {
        return Err(format!(
            "{cpus} CPUs and {devices} devices: 1 to 256 and 1 to 64 are possible"
        ));
    }
    if config.pages < least || config.faults == 0 {
        return Err(format!(
            "{cpus} CPUs and {devices} devices need {least} pages and some faults"
        ));
    }
    let shape = Shape {
        cpus,
        devices,
        pages: config.pages,
        seed: config.seed,
    };
    let mut machine = Machine::new(stage, &shape, config.costs)?;
    let mut seen = machine.run(config.pages, config.faults)?;
    seen.fault_ns.sort_unstable();
    let faults = seen.fault_ns.len();
    let rank = |percent: usize| seen.fault_ns.get(faults * percent / 100).copied().unwrap_or(0);
    let share = |ns: u64| ns as f64 / seen.spent.all_ns.max(1) as f64;
    let per_1000 = |count: u64| count as f64 * 1000.0 / faults.max(1) as f64;
    Ok(Row {
        stage,
        cpus,
        devices,
        lock_share: share(seen.spent.lock_ns),
        shared_share: share(seen.spent.shared_ns),
        fault_ns: [rank(50), rank(99), seen.spent.all_ns / faults.max(1) as u64],
        faults_per_s: faults as f64 * 1e9 / seen.elapsed_ns.max(1) as f64,
        locks_per_1000: [per_1000(seen.counted.locks), per_1000(seen.counted.missed)],
    })
}

#[cfg(test)]
mod tests;
