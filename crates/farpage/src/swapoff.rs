//! Emptying an area: this process's part of `farpage swapoff`.
//!
//! Four threads of each process, started by its reclaimer when the tree has such a job, look for pages of its own that are in the
//! area, and give them another place: RAM while there is more of it free than the reclaimers keep ready, else the
//! compressed tier, else other files (`control` says how the tree agrees on it).
//!
//! Which page a slot belongs to is found by a look at all page states once per part of the area: words that name a slot of
//! the part are collected and sorted by slot, so the device is read in its own order, up to 128 blocks at a time (decision 0014). For
//! comparison there are the kernel's ways too: in the order of addresses, with a window read ahead of each page,
//! of neighbours in memory (`vma`) or in the file (`cluster`).
//!
//! Steps for a batch, with what is locked in brackets: 1. lock its pages [words]; 2. read and verify their blocks [words]; 3. install
//! them, or store each in a new slot and let its word name that one [words]; 4. unlock what could not be placed; a later pass
//! comes again. A slot that several processes share is read and stored once: its word becomes `Moved`, and each process
//! lets its own page name the new slot when it comes by.
//!
//! # Safety
//! The work memory of a thread is mapped while a job runs and belongs to that thread.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering};

use farpage_core::cluster::CLUSTER_SLOTS;
use farpage_core::readahead::window;
use farpage_core::swap_table::SlotKind;

use crate::control::Tier;
use crate::mm::{CHUNK_PAGES, Mm, TOUCHED, mm};
use crate::relocate::{Batch, GAP_MAX};
use crate::slot_caches;
use crate::sys::{self, Errno};
use crate::thread;
use crate::writeback;

/// In which order an area is emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// That of the device.
    Device,
    /// That of addresses, neighbours in memory read ahead.
    Vma,
    /// That of addresses, neighbours on the device read ahead.
    Cluster,
}

impl Order {
    /// All, by the number that stands for them in the pool.
    pub const ALL: [Order; 3] = [Order::Device, Order::Vma, Order::Cluster];
}

/// Most pages of a batch.
pub const BATCH_MAX: usize = 128;
/// Windows sized by their hits, where a page found read ahead counts as one; and where it does not.
pub const WINDOW_COUNTED: u32 = 0;
pub const WINDOW_UNCOUNTED: u32 = u32::MAX;
/// Greatest window of those (the kernel's, with a `page-cluster` of 3).
const COUNTED_MAX: u32 = 8;
/// Greatest fixed window in the order of addresses.
pub const FIXED_MAX: u32 = 64;
/// Pages of the budget for one page of a batch and for one page collected.
const PAGES_PER_BATCHED: i64 = 512;
const PAGES_PER_LISTED: i64 = 32;
const BATCH_LEAST: i64 = 32;
const LISTED: (i64, i64) = (2048, 1 << 22);
/// Sleeps between passes that found nothing, or no room, in microseconds: doubled from the first to the last.
const NAP_US: (u64, u64) = (2_000, 200_000);
const IDLE_US: u64 = 10_000_000;
/// Marks a listed page as read ahead.
const BROUGHT: u64 = 1 << 63;

/// Threads of a process: while some wait for the device another installs.
const LANES: usize = 4;
/// They take so many slots in turn, so the device is still read in its order, nearly.
const LANE_SLOTS: u32 = BATCH_MAX as u32;
/// 1 while the thread of a lane runs.
static STATES: [AtomicU32; LANES] = [const { AtomicU32::new(0) }; LANES];

/// In a forked child: the threads are not here.
pub fn forget() {
    STATES.iter().for_each(|state| state.store(0, Ordering::Relaxed));
}

/// Starts the threads if there is a job; called by the reclaimer thread.
pub fn start_wanted(mm: &Mm) {
    if mm.header().control.job.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mains: [extern "C" fn() -> !; LANES] = [main_of::<0>, main_of::<1>, main_of::<2>, main_of::<3>];
    for (state, main) in STATES.iter().zip(mains) {
        if state.swap(1, Ordering::Relaxed) == 0 && thread::spawn(main).is_err() {
            state.store(0, Ordering::Relaxed);
        }
    }
}

extern "C" fn main_of<const LANE: u32>() -> ! {
    let mm = mm();
    let control = &mm.header().control;
    loop {
        let seq = control.wake.load(Ordering::SeqCst);
        let job = control.job.load(Ordering::Acquire);
        if job == 0 || run(mm, job, LANE).is_err() {
            sys::futex_wait(&control.wake, seq, true, IDLE_US);
        }
    }
}

/// Works on a job until it is over.
fn run(mm: &Mm, number: u32, lane: u32) -> Result<(), Errno> {
    let memory = Memory::map(mm)?;
    let mut job = Job::new(mm, (number, lane), &memory);
    let mut nap = NAP_US.0;
    while job.is_on() {
        let seq = mm.header().control.wake.load(Ordering::SeqCst);
        if job.pass() > 0 {
            nap = NAP_US.0;
        } else if job.is_on() {
            sys::futex_wait(&mm.header().control.wake, seq, true, nap);
            nap = (nap * 2).min(NAP_US.1);
        }
    }
    Ok(())
}

/// What a job works with, given back when it is over.
struct Memory {
    batch: u64,
    list: u64,
    listed: usize,
}

impl Memory {
    fn map(mm: &Mm) -> Result<Memory, Errno> {
        let budget = mm.header().budget.load(Ordering::Relaxed);
        let listed = (budget / PAGES_PER_LISTED).clamp(LISTED.0, LISTED.1) as usize;
        let batch = sys::engine_memory(size_of::<Batch>() as u64)?;
        match sys::engine_memory(listed as u64 * 8) {
            Ok(list) => {
                // A forked child has no such thread.
                // SAFETY: advice on mappings of ours.
                unsafe {
                    let _ = sys::madvise(batch, size_of::<Batch>() as u64, libc::MADV_DONTFORK);
                    let _ = sys::madvise(list, listed as u64 * 8, libc::MADV_DONTFORK);
                }
                Ok(Memory { batch, list, listed })
            }
            Err(errno) => {
                // SAFETY: mapped above, nobody uses it.
                let _ = unsafe { sys::munmap(batch, size_of::<Batch>() as u64) };
                Err(errno)
            }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by map; the job that used it is over.
        unsafe {
            let _ = sys::munmap(self.batch, size_of::<Batch>() as u64);
            let _ = sys::munmap(self.list, self.listed as u64 * 8);
        }
    }
}

/// What is to be emptied.
enum What {
    /// The slots of an area.
    Slots(core::ops::Range<u32>),
    /// Whatever is compressed, in slots of any area.
    Compressed,
}

/// One area to be emptied, as one process does it.
struct Job<'a> {
    mm: &'a Mm,
    number: u32,
    lane: u32,
    order: Order,
    window: u32,
    what: What,
    batch: &'a mut Batch,
    list: &'a mut [u64],
}

impl<'a> Job<'a> {
    fn new(mm: &'a Mm, (number, lane): (u32, u32), memory: &'a Memory) -> Job<'a> {
        let control = &mm.header().control;
        let order = control.order.load(Ordering::Relaxed) as usize;
        let what = match Tier::of((number & 0xff) - 1) {
            Some(Tier::Area(area)) => {
                let device = mm.pool().devices()[area];
                let first = device.first_cluster * CLUSTER_SLOTS as u32;
                What::Slots(first..first + device.slots)
            }
            Some(Tier::Compressed) => What::Compressed,
            None => What::Slots(0..0),
        };
        let budget = mm.header().budget.load(Ordering::Relaxed);
        let most = (budget / PAGES_PER_BATCHED).clamp(BATCH_LEAST, BATCH_MAX as i64) as u32;
        let asked = control.window.load(Ordering::Relaxed);
        let order = Order::ALL.get(order).copied().unwrap_or(Order::Device);
        let sized = matches!(asked, WINDOW_COUNTED | WINDOW_UNCOUNTED);
        // SAFETY: mapped with these sizes, zeroed, and nobody else's while the job lasts; all bit patterns of both are valid.
        let (batch, list) = unsafe {
            (
                &mut *(memory.batch as *mut Batch),
                core::slice::from_raw_parts_mut(memory.list as *mut u64, memory.listed),
            )
        };
        Job {
            mm,
            number,
            lane,
            order,
            window: match (order, sized) {
                (Order::Device, true) => most,
                (_, true) => asked,
                (Order::Device, false) => asked.min(most),
                _ => asked.min(FIXED_MAX),
            },
            what,
            batch,
            list,
        }
    }

    fn is_on(&self) -> bool {
        self.mm.header().control.job.load(Ordering::Relaxed) == self.number
    }

    /// Looks at all of the area once; how many pages got another place.
    fn pass(&mut self) -> u64 {
        if slot_caches::are_on(self.mm) {
            // Slots kept there are taken, and never come back by themselves.
            let _inside = self.mm.gate.shared();
            slot_caches::drain(self.mm);
        }
        // As many of what is compressed as the list has room for; the next pass finds the next.
        let What::Slots(slots) = &self.what else {
            let homeless = || self.mm.header().control.no_room.load(Ordering::Relaxed);
            let before = homeless();
            return match self.part(0..u32::MAX) {
                0 if homeless() > before => self.write_back(),
                done => done,
            };
        };
        let slots = slots.clone();
        let mut done = 0;
        let mut from = slots.start;
        while from < slots.end && self.is_on() {
            let to = self.end_of_part(&slots, from);
            done += self.part(from..to);
            from = to;
        }
        done
    }

    /// No slot is free, maybe: what is compressed in a slot with a block needs no other.
    fn write_back(&self) -> u64 {
        let _inside = self.mm.gate.shared();
        let done = writeback::run(self.mm);
        self.mm
            .header()
            .control
            .to_tiers
            .fetch_add(done, Ordering::Relaxed);
        done
    }

    fn part(&mut self, slots: core::ops::Range<u32>) -> u64 {
        match self.order {
            Order::Device => self.by_slot(slots),
            Order::Vma | Order::Cluster => self.by_page(slots),
        }
    }

    /// The end of a part of the area, from slot `from` on, of which at most as many slots are taken as the list has room for. (A
    /// process has no more pages there: each of its pages has a slot of its own.)
    fn end_of_part(&self, slots: &core::ops::Range<u32>, from: u32) -> u32 {
        let view = self.mm.pool().slots();
        let index = (self.number & 0xff) as usize - 1;
        let fresh = self.mm.pool().device_states()[index]
            .fresh
            .load(Ordering::Acquire);
        let first = slots.start / CLUSTER_SLOTS as u32;
        let last = (first + fresh + 1).min(slots.end.div_ceil(CLUSTER_SLOTS as u32));
        let room = match self.order {
            Order::Device => self.list.len(),
            Order::Vma | Order::Cluster => self.list.len() / 2,
        };
        let (mut taken, mut cluster) = (0, from / CLUSTER_SLOTS as u32);
        while cluster < last {
            taken += view.cluster_word(cluster).count().max(1);
            if taken + CLUSTER_SLOTS > room {
                return (cluster + 1) * CLUSTER_SLOTS as u32;
            }
            cluster += 1;
        }
        slots.end
    }

    /// Collects the pages in `slots`, as slot and page, into the front of the list, at most `room`; how many.
    fn collect(&mut self, slots: core::ops::Range<u32>, room: usize) -> usize {
        let table = self.mm.pool().swap_table();
        let some_moved = self.mm.header().moved.load(Ordering::Relaxed) > 0;
        let mine = |slot: u32| match self.order {
            Order::Device => is_of(slot, self.lane),
            Order::Vma | Order::Cluster => self.lane == 0,
        };
        let by_content = some_moved || matches!(self.what, What::Compressed);
        let wanted = |slot: u32| match self.what {
            What::Slots(_) if slots.contains(&slot) => true,
            _ if !by_content => false,
            What::Slots(_) => table.load(slot).kind() == SlotKind::Moved,
            What::Compressed => matches!(table.load(slot).kind(), SlotKind::Compressed | SlotKind::Moved),
        };
        let (mut count, mut page) = (0, 0);
        let top = self.mm.top_page.load(Ordering::Relaxed);
        while page < top {
            if self.mm.chunk(page).load(Ordering::Relaxed) & TOUCHED == 0 {
                page += CHUNK_PAGES;
                continue;
            }
            for page in page..page + CHUNK_PAGES {
                let named = self.mm.load(page).named_slot();
                if let Some(slot) = named.filter(|slot| mine(*slot) && wanted(*slot))
                    && count < room
                {
                    self.list[count] = u64::from(slot) << 32 | page;
                    count += 1;
                }
            }
            page += CHUNK_PAGES;
        }
        count
    }

    /// In device order, in large reads.
    fn by_slot(&mut self, slots: core::ops::Range<u32>) -> u64 {
        let room = self.list.len();
        let count = self.collect(slots, room);
        self.list[..count].sort_unstable();
        let (mut done, mut at) = (0, 0);
        while at < count && self.is_on() {
            let rest = &self.list[at..count];
            let len = together(rest, self.window as usize);
            done += self.batch.empty(self.mm, &rest[..len], None);
            at += len;
        }
        done
    }

    /// In the order of addresses, with windows read ahead, as the kernel does it.
    fn by_page(&mut self, slots: core::ops::Range<u32>) -> u64 {
        let half = self.list.len() / 2;
        let count = self.collect(slots, half);
        let (by_slot, by_page) = self.list.split_at_mut(half);
        let (by_slot, by_page) = (&mut by_slot[..count], &mut by_page[..count]);
        for (to, from) in by_page.iter_mut().zip(by_slot.iter()) {
            *to = from.rotate_left(32);
        }
        by_slot.sort_unstable();
        by_page.sort_unstable();
        let mut sizes = Sizes::new(self.window);
        let (mut done, mut at) = (0, 0);
        let control = &self.mm.header().control;
        while at < count && control.job.load(Ordering::Relaxed) == self.number {
            let entry = by_page[at];
            at += 1;
            if entry & BROUGHT != 0 {
                sizes.found();
                continue;
            }
            let (page, slot) = (entry >> 32, entry as u32);
            let mut chosen = [0u64; FIXED_MAX as usize];
            let mut len = 0;
            let mut take = |entry: u64| {
                if len < chosen.len() {
                    chosen[len] = entry;
                    len += 1;
                }
            };
            let win = if self.order == Order::Vma {
                let win = sizes.next(page);
                let near = by_page[at - 1..].iter_mut();
                let near = near.take_while(|entry| ((**entry & !BROUGHT) >> 32) < page + u64::from(win));
                for entry in near.filter(|entry| **entry & BROUGHT == 0) {
                    take(entry.rotate_left(32));
                    *entry |= BROUGHT;
                }
                win
            } else {
                let win = sizes.next(u64::from(slot));
                let start = slot - slot % win;
                let from = by_slot.partition_point(|entry| ((entry >> 32) as u32) < start);
                let near = by_slot[from..].iter();
                for near in near.take_while(|entry| (**entry >> 32) < u64::from(start) + u64::from(win)) {
                    let key = near.rotate_left(32);
                    if let Ok(i) = by_page.binary_search_by_key(&key, |entry| entry & !BROUGHT)
                        && by_page[i] & BROUGHT == 0
                    {
                        take(*near);
                        by_page[i] |= BROUGHT;
                    }
                }
                win
            };
            chosen[..len].sort_unstable();
            done += self.batch.empty(self.mm, &chosen[..len], Some(win));
        }
        done
    }
}

/// Whether a slot is for the thread of a lane: its own, or one whose thread could not be started.
fn is_of(slot: u32, lane: u32) -> bool {
    let its = slot / LANE_SLOTS % LANES as u32;
    its == lane || STATES[its as usize].load(Ordering::Relaxed) == 0
}

/// How many of the sorted entries one read brings in: at most `most` pages, without too wide a gap.
fn together(entries: &[u64], most: usize) -> usize {
    let slot = |entry: &u64| entry >> 32;
    let close = |pair: &[u64]| slot(&pair[1]) - slot(&pair[0]) <= GAP_MAX as u64;
    let most = most.clamp(1, BATCH_MAX).min(entries.len());
    1 + entries[..most].windows(2).take_while(|pair| close(pair)).count()
}

/// The sizes of windows: fixed, or by the kernel's rule.
struct Sizes {
    window: u32,
    last: u64,
    hits: u32,
    last_window: u32,
}

impl Sizes {
    fn new(window: u32) -> Sizes {
        Sizes {
            window,
            last: 0,
            hits: 0,
            last_window: 0,
        }
    }

    /// A page was found to have been read ahead.
    fn found(&mut self) {
        self.hits += u32::from(self.window == WINDOW_COUNTED);
    }

    /// The window for a page that has to be read, at least 1.
    fn next(&mut self, place: u64) -> u32 {
        let window = match self.window {
            WINDOW_COUNTED | WINDOW_UNCOUNTED => {
                window(self.last, place, self.hits, COUNTED_MAX, self.last_window)
            }
            fixed => fixed,
        };
        (self.last, self.hits, self.last_window) = (place, 0, window);
        window.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_close_is_read_together() {
        let at = |slots: &[u64]| -> Vec<u64> { slots.iter().map(|slot| slot << 32 | 7).collect() };
        assert_eq!(together(&at(&[5]), 64), 1);
        assert_eq!(together(&at(&[5, 6, 7, 8]), 3), 3);
        let gap = GAP_MAX as u64;
        assert_eq!(together(&at(&[5, 6, 6 + gap, 7 + 2 * gap]), 64), 3);
        assert_eq!(together(&at(&[5, 6]), 0), 1);
    }

    #[test]
    fn windows_grow_only_where_hits_count() {
        let mut counted = Sizes::new(WINDOW_COUNTED);
        let mut uncounted = Sizes::new(WINDOW_UNCOUNTED);
        let mut fixed = Sizes::new(6);
        let mut last = (0, 0, 0);
        for turn in 0..10 {
            let place = 1000 * turn;
            last = (counted.next(place), uncounted.next(place), fixed.next(place));
            for _ in 0..7 {
                counted.found();
                uncounted.found();
            }
        }
        assert_eq!(last, (8, 1, 6));
    }

    #[test]
    fn a_page_and_its_slot_change_places() {
        let entry = 77u64 << 32 | 1234;
        assert_eq!(entry.rotate_left(32), 1234u64 << 32 | 77);
    }
}
