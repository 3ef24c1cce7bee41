//! What the books of a device of 1 TiB cost in RAM: the pool is a memory file, and the kernel tells what it holds.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};

use farpage::pool::{Geometry, Pool};
use farpage_core::cluster::CLUSTER_SLOTS;
use farpage_core::slots::Request;
use farpage_core::swap_table::Backing;
use farpage_core::units::PAGE_SIZE;
use std::sync::atomic::Ordering;

const SLOTS: u64 = (1 << 40) / PAGE_SIZE as u64;
const OWNER: u16 = 3;
const ONE: Request = Request {
    owner: OWNER,
    cpu: 0,
    order: 0,
    want: 64,
    has_file: true,
};

fn pool(blocks: u64) -> (File, Pool) {
    let mut geometry = Geometry::default();
    geometry.area_blocks[0] = blocks;
    let (fd, pool) = Pool::create(&geometry).expect("a pool");
    let path = format!("/proc/self/fd/{fd}");
    let file = OpenOptions::new().read(true).write(true).open(path);
    (file.expect("ours"), pool)
}

/// Bytes of RAM the pool takes.
fn bytes(file: &File) -> u64 {
    file.metadata().expect("a file").blocks() * 512
}

#[test]
fn books_of_a_large_device() {
    let (file, pool) = pool(SLOTS);
    let slots = pool.slots();
    let unused = bytes(&file);
    assert!(unused < 64 << 10, "{unused} bytes before the first slot");

    // The most that the books of the clusters (words, lists, queue) can take however the devices are used, those included that
    // may join while the tree runs.
    let layout = pool.layout();
    for page in (layout.device_states..layout.slots).step_by(PAGE_SIZE) {
        let mut first = [0];
        file.read_exact_at(&mut first, page).expect("read");
        file.write_all_at(&first, page).expect("written");
    }
    let free = bytes(&file);
    let per_free_slot = free as f64 / layout.slot_count() as f64;
    assert!(
        (0.001..0.04).contains(&per_free_slot),
        "{per_free_slot} bytes per free slot"
    );

    let wanted = 1 << 20;
    let mut runs = Vec::new();
    while runs
        .iter()
        .map(|run: &farpage_core::slots::Run| run.count)
        .sum::<usize>()
        < wanted
    {
        runs.push(slots.alloc(&ONE).expect("room"));
    }
    let used: Vec<u32> = runs
        .iter()
        .flat_map(|run| run.first..run.first + run.count as u32)
        .collect();
    for &slot in &used {
        let backing = Backing::Device { crc: slot };
        pool.swap_table().publish(slot, backing).expect("busy");
    }
    let table = bytes(&file) - free;
    assert_eq!(table, 8 * used.len() as u64, "bytes for {} slots", used.len());

    let put = |slots_of_run: &[u32]| {
        for &slot in slots_of_run {
            let _ = pool.swap_table().put(slot, OWNER).expect("one reference");
        }
        slots.release(slots_of_run, OWNER).expect("ours");
    };
    let clusters = used.chunks(CLUSTER_SLOTS);
    clusters.clone().for_each(|cluster| put(&cluster[1..]));
    let sparse = (PAGE_SIZE * clusters.len()) as u64;
    assert_eq!(
        bytes(&file) - free,
        sparse,
        "a cluster's table is there while one of its slots is used"
    );
    clusters.for_each(|cluster| put(&cluster[..1]));
    println!(
        "{per_free_slot} bytes per free slot, {} per used one",
        table as f64 / used.len() as f64
    );
    assert_eq!(bytes(&file), free, "the words of {} free slots", used.len());
}

/// The largest device there can be has slots up to the last number but a few.
#[test]
fn a_device_of_16_tib() {
    let (file, pool) = pool(1 << 32);
    let (slots, layout) = (pool.slots(), pool.layout());
    let device = layout.device_slots[0];
    assert!(
        (1 << 32) - device < 4 * CLUSTER_SLOTS as u64,
        "{device} slots of 16 TiB"
    );
    // As if all but the last two clusters had been used, and were taken.
    let clusters = (device / CLUSTER_SLOTS as u64) as u32;
    pool.device_states()[0]
        .fresh
        .store(clusters - 2, Ordering::Relaxed);
    let runs: Vec<_> = std::iter::from_fn(|| slots.alloc(&ONE)).collect();
    let taken: Vec<u32> = runs
        .iter()
        .flat_map(|run| run.first..run.first + run.count as u32)
        .collect();
    assert_eq!(taken.len(), 2 * CLUSTER_SLOTS, "one more is refused");
    let last = taken.iter().copied().max().expect("some");
    assert_eq!(u64::from(last), layout.slot_count() - 1);
    let backing = Backing::Device { crc: !last };
    pool.swap_table().publish(last, backing).expect("busy");
    assert_eq!(pool.swap_table().load(last).backing(), Some(backing));
    assert!(bytes(&file) < 1 << 20, "{} bytes", bytes(&file));
    let _ = pool.swap_table().put(last, OWNER).expect("one reference");
    slots.release(&taken, OWNER).expect("ours");
    assert_eq!(
        slots.alloc(&ONE).map(|run| run.count),
        Some(64),
        "they are free again"
    );
}
