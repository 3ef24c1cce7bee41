//! What a running tree looks like from outside: read from its pool, at any time, by anyone who may open it.

use std::sync::atomic::Ordering;

use farpage_core::readahead::hits::Estimate;
use farpage_core::stats::Counter;
use farpage_core::units::PAGE_SIZE;

use crate::mm::address;
use crate::pool::{Area, Header, Pool, entry_state};
use crate::{ledger, sys, trees};

/// Of how many mappings readahead is told.
const REGIONS: usize = 8;

/// Use of one tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AreaUse {
    pub name: String,
    pub kind: String,
    pub size_bytes: u64,
    pub used_bytes: u64,
    pub priority: i32,
    /// Being emptied, or about to join: no page goes there now.
    pub closed: bool,
    /// Why it refuses what is written to it, if it does.
    pub write_error: Option<String>,
    /// Of short reads that faults wait for, in nanoseconds: the device's own time, the median, and that after seeks. 0: none yet.
    pub read_ns: [u64; 3],
    /// How many reads a prefetch thread has in flight beside such faults.
    pub depth: u32,
    /// The kernel says that the disk rotates, and reads have shown it.
    pub has_dear_seeks: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessUse {
    pub pid: i32,
    pub active: bool,
    pub resident_bytes: u64,
    pub frames_bytes: u64,
    pub unmanaged_bytes: u64,
}

/// Readahead in one mapping of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegionReadahead {
    pub pid: u32,
    /// Its first byte, and how many it has.
    pub address: u64,
    pub size_bytes: u64,
    pub readahead: Estimate,
}

/// The state of a tree at one moment. Sizes in bytes, times in nanoseconds.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub ram_budget_bytes: u64,
    pub peak_tree_bytes: u64,
    /// The most that the swap table, page states and lists took of it.
    pub peak_metadata_bytes: u64,
    pub charged_bytes: u64,
    pub resident_bytes: u64,
    pub frames_bytes: u64,
    pub zpool_bytes: u64,
    pub unmanaged_bytes: u64,
    /// What of the budget a container has that it nearly fills.
    pub given_bytes: u64,
    pub counters: [u64; Counter::COUNT],
    /// Pages read ahead, how many of them were touched, and the error of that estimate.
    pub readahead: Estimate,
    /// The same for those mappings that most pages were read ahead in, most first.
    pub regions: Vec<RegionReadahead>,
    /// Readahead windows chosen, by size: 1, 2, 4 ... 1024 pages.
    pub windows: Vec<u64>,
    /// Bucket counts by source of the fault (`farpage_core::stats::Source`).
    pub latency: [Vec<u64>; 4],
    pub areas: Vec<AreaUse>,
    pub processes: Vec<ProcessUse>,
    pub elapsed_ns: u64,
    pub supervisor_pid: i32,
}

impl Snapshot {
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// Reads the pool. Counts are taken one after another while programs run: sums may be off by what happened meanwhile.
    #[must_use]
    pub fn of(pool: &Pool) -> Snapshot {
        let header = pool.header();
        let bytes = |pages: i64| pages.max(0) as u64 * PAGE_SIZE as u64;
        let processes = process_uses(pool);
        let sum = |f: fn(&ProcessUse) -> u64| processes.iter().map(f).sum();
        Snapshot {
            ram_budget_bytes: bytes(header.budget.load(Ordering::Relaxed)),
            peak_tree_bytes: bytes(header.peak.load(Ordering::Relaxed)),
            peak_metadata_bytes: bytes(header.metadata_peak.load(Ordering::Relaxed)),
            charged_bytes: bytes(header.charged.load(Ordering::Relaxed) + header.zpool_pages()),
            resident_bytes: sum(|p| p.resident_bytes),
            frames_bytes: sum(|p| p.frames_bytes),
            zpool_bytes: bytes(header.zpool_pages()),
            unmanaged_bytes: bytes(header.unmanaged.load(Ordering::Relaxed)),
            given_bytes: bytes(header.given.load(Ordering::Relaxed)),
            counters: counters(header),
            readahead: header.hits.counts().estimate(),
            regions: regions(header),
            windows: header.windows.counts().to_vec(),
            latency: core::array::from_fn(|i| {
                header.latency[i]
                    .iter()
                    .map(|n| n.load(Ordering::Relaxed))
                    .collect()
            }),
            areas: area_uses(pool),
            processes,
            elapsed_ns: sys::now_ns().saturating_sub(header.start_ns.load(Ordering::Relaxed)),
            supervisor_pid: header.supervisor.load(Ordering::Relaxed),
        }
    }
}

/// The counters; those of readahead come from its own books.
fn counters(header: &Header) -> [u64; Counter::COUNT] {
    let mut counters = core::array::from_fn(|i| header.counters[i].load(Ordering::Relaxed));
    let readahead = header.hits.counts().estimate();
    counters[Counter::SwapRa as usize] = readahead.pages;
    counters[Counter::SwapRaHit as usize] = readahead.hits as u64;
    counters
}

fn regions(header: &Header) -> Vec<RegionReadahead> {
    let mut most = [None; REGIONS];
    header.region_hits.most(&mut most);
    let told = most.into_iter().flatten();
    told.map(|region| RegionReadahead {
        pid: region.id.pid,
        address: address(u64::from(region.id.start)),
        size_bytes: region.end.saturating_sub(u64::from(region.id.start)) * PAGE_SIZE as u64,
        readahead: region.readahead,
    })
    .collect()
}

fn process_uses(pool: &Pool) -> Vec<ProcessUse> {
    let bytes = |pages: i64| pages.max(0) as u64 * PAGE_SIZE as u64;
    let live = pool
        .processes()
        .iter()
        .filter(|e| e.state.load(Ordering::Acquire) == entry_state::LIVE);
    live.map(|entry| ProcessUse {
        pid: entry.pid.load(Ordering::Relaxed),
        active: entry.active.load(Ordering::Relaxed) != 0,
        resident_bytes: bytes(entry.resident.load(Ordering::Relaxed)),
        frames_bytes: bytes(entry.frames.load(Ordering::Relaxed)),
        unmanaged_bytes: bytes(entry.unmanaged.load(Ordering::Relaxed)),
    })
    .collect()
}

fn area_uses(pool: &Pool) -> Vec<AreaUse> {
    let header = pool.header();
    let mut uses = Vec::new();
    let zpages = header.zpages_limit.load(Ordering::Relaxed);
    let used = header.zpool_pages().max(0) as u64 * PAGE_SIZE as u64;
    if zpages > 0 || used > 0 {
        uses.push(AreaUse {
            name: "compressed".into(),
            kind: "compressed".into(),
            size_bytes: zpages * farpage_core::zpool::ZPAGE_BYTES as u64,
            used_bytes: used,
            priority: 0,
            closed: header.control.tier_shut.load(Ordering::Relaxed) != 0,
            ..AreaUse::default()
        });
    }
    let there = |(_, area): &(usize, &Area)| area.blocks.load(Ordering::Relaxed) > 0;
    for (i, area) in header.area.iter().enumerate().filter(there) {
        uses.push(AreaUse {
            name: area.name(),
            kind: "file".into(),
            size_bytes: area.blocks.load(Ordering::Relaxed) * PAGE_SIZE as u64,
            used_bytes: area.used.load(Ordering::Relaxed).max(0) as u64 * PAGE_SIZE as u64,
            priority: pool.device_states()[i].now(&pool.devices()[i]).priority,
            closed: area.open.load(Ordering::Relaxed) == 0,
            write_error: area.refusal.error().map(|error| error.to_string()),
            read_ns: area.pace.times_ns(),
            depth: area.pace.depth_beside(),
            has_dear_seeks: pool.device_states()[i].now(&pool.devices()[i]).rotates,
        });
    }
    uses
}

/// A view on a running tree.
pub struct Snapshotter {
    pool: Pool,
    supervisor: i32,
}

/// Attaches to the tree of `supervisor_pid`. The error says why not.
pub fn attach(supervisor_pid: i32) -> Result<Snapshotter, String> {
    match trees::open(supervisor_pid) {
        Some((_, pool)) => Ok(Snapshotter {
            pool,
            supervisor: supervisor_pid,
        }),
        None => Err(format!(
            "process {supervisor_pid} belongs to no running farpage tree that you may look at; `farpage stat` without a \
             PID lists them"
        )),
    }
}

impl Snapshotter {
    /// The tree now; `None` once it has ended.
    #[must_use]
    pub fn snapshot(&self) -> Option<Snapshot> {
        let header = self.pool.header();
        let supervisor = trees::supervisor(header).unwrap_or(self.supervisor);
        let snapshot = Snapshot {
            supervisor_pid: supervisor,
            ..Snapshot::of(&self.pool)
        };
        // Also where its parent has not taken note of that.
        let runs = !ledger::has_ended(supervisor);
        // Once it is gone nobody gives the entries of the dead up.
        let pids = || snapshot.processes.iter().map(|process| process.pid);
        let runs = runs || (header.counts_as_we_do() && pids().any(ledger::is_there));
        runs.then_some(snapshot)
    }
}
