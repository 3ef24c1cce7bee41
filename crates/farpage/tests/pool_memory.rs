//! What the books of a device of 1 TiB cost in RAM: the pool is a memory file, and the kernel tells what it holds.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};

use farpage::pool::{Geometry, Pool};
use farpage_core::slots::Request;
use farpage_core::swap_table::Backing;
use farpage_core::units::PAGE_SIZE;

const SLOTS: u64 = (1 << 40) / PAGE_SIZE as u64;
const OWNER: u16 = 3;

fn pool() -> (File, Pool) {
    let mut geometry = Geometry::default();
    geometry.area_blocks[0] = SLOTS;
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
    let (file, pool) = pool();
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
        (0.001..0.1).contains(&per_free_slot),
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
        let request = Request {
            owner: OWNER,
            cpu: 0,
            order: 0,
            want: 64,
            has_file: true,
        };
        runs.push(slots.alloc(&request).expect("room"));
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

    for slots_of_run in used.chunks(64) {
        for &slot in slots_of_run {
            let _ = pool.swap_table().put(slot, OWNER).expect("one reference");
        }
        slots.release(slots_of_run, OWNER).expect("ours");
    }
    println!(
        "{per_free_slot} bytes per free slot, {} per used one",
        table as f64 / used.len() as f64
    );
    assert_eq!(bytes(&file), free, "the words of {} free slots", used.len());
}

/// The words of a process's pages are part of the same file; here they are written as a process writes them, in place.
#[test]
fn states_of_pages() {
    let (file, pool) = pool();
    let before = bytes(&file);
    let pages = 1 << 17;
    let start = pool.layout().states + (5 << 20);
    for page in 0..pages {
        file.write_all_at(&1u64.to_le_bytes(), start + 8 * page)
            .expect("written");
    }
    assert_eq!(
        bytes(&file) - before,
        8 * pages,
        "8 bytes per page and none for the others"
    );
}
