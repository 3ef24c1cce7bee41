//! A batch of swapped pages that get another place: see `swapoff`.
//!
//! # Safety
//! A batch is one thread's; its pages are read into and copied from by the kernel while that thread waits.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering;

use farpage_core::cluster::CLUSTER_SLOTS;
use farpage_core::kill_point;
use farpage_core::page_state::{Kind, PageState};
use farpage_core::stats::Counter;
use farpage_core::swap_table::{Backing, SlotWord};
use farpage_core::units::PAGE_SIZE;

use crate::compress;
use crate::kept;
use crate::mm::{Mm, PAGE};
use crate::pool::Area;
use crate::slot_batch::SlotBatch;
use crate::swapoff::BATCH_MAX;
use crate::sys;
use crate::work_area::Context;
use crate::{fault, puts, thread, tiers, writeback};

/// Most blocks that a read spans without wanting them: less than a second read costs.
pub const GAP_MAX: usize = 32;

/// What is known of one page of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Not ours: somebody else works on it, or it is elsewhere by now.
    Gone,
    /// Its word is locked by us.
    Locked,
    /// Locked, and its content is here.
    Loaded,
    /// Locked, and on its way to a new slot.
    Placed,
}

/// The pages, in the order of their slots.
#[repr(C, align(4096))]
pub struct Batch {
    content: [[u8; PAGE_SIZE]; BATCH_MAX],
    scratch: [[u8; PAGE_SIZE]; GAP_MAX],
    len: usize,
    states: [u8; BATCH_MAX],
    pages: [u64; BATCH_MAX],
    slots: [u32; BATCH_MAX],
    /// Where a page goes to.
    targets: [u32; BATCH_MAX],
    seen: [u64; BATCH_MAX],
    pieces: [sys::Piece; 2 * BATCH_MAX],
}

impl Batch {
    /// Gives the pages of `entries` (slot << 32 | page, ascending) another place, as many as have one; how many. Windows are
    /// counted by reads, or where it is given as `window`.
    pub fn empty(&mut self, mm: &Mm, entries: &[u64], window: Option<u32>) -> u64 {
        let _inside = mm.gate.shared();
        let control = &mm.header().control;
        if let Some(pages) = window {
            control.windows.add(pages);
        }
        let mut done = self.lock(mm, entries);
        kill_point!("relocate-locked");
        self.load(mm, window.is_none());
        kill_point!("relocate-loaded");
        let to_ram = self.install_where_room(mm, has_free_area(mm));
        done += to_ram.unwrap_or(0);
        if self.count(State::Loaded) > 0 {
            let stored = self.store(mm);
            control.to_tiers.fetch_add(stored, Ordering::Relaxed);
            done += stored;
        }
        if to_ram.is_some() && self.count(State::Loaded) > 0 {
            // The area that was to take what is shared has no slot.
            done += self.install_where_room(mm, false).unwrap_or(0);
        }
        self.unlock_rest(mm);
        done
    }

    fn state(&self, at: usize) -> State {
        match self.states[at] {
            1 => State::Locked,
            2 => State::Loaded,
            3 => State::Placed,
            _ => State::Gone,
        }
    }

    fn set(&mut self, at: usize, state: State) {
        self.states[at] = match state {
            State::Gone => 0,
            State::Locked => 1,
            State::Loaded => 2,
            State::Placed => 3,
        };
    }

    fn count(&self, state: State) -> u64 {
        (0..self.len).filter(|at| self.state(*at) == state).count() as u64
    }

    fn content(&self, at: usize) -> u64 {
        self.content[at].as_ptr() as u64
    }

    /// Locks what is still where it was; pages whose content has moved already name its new slot from now on, and those that only
    /// keep the slot none. How many those are.
    fn lock(&mut self, mm: &Mm, entries: &[u64]) -> u64 {
        let table = mm.pool().swap_table();
        let mut renamed = 0;
        self.len = entries.len().min(BATCH_MAX);
        for (at, entry) in entries.iter().take(BATCH_MAX).enumerate() {
            let (slot, page) = ((entry >> 32) as u32, entry & 0xffff_ffff);
            let seen = mm.load(page);
            if kept::leave(mm, page, slot) {
                self.set(at, State::Gone);
                renamed += 1;
                continue;
            }
            let there = seen.kind() == Kind::Swapped && seen.slot() == slot && !seen.is_locked();
            let locked = there && mm.try_lock(page, seen);
            (self.pages[at], self.slots[at]) = (page, slot);
            self.set(at, if locked { State::Locked } else { State::Gone });
            if !locked {
                continue;
            }
            let word = table.load(slot);
            self.seen[at] = word.raw();
            if let Some(Backing::Moved { to }) = word.backing()
                && rename(mm, page, slot, to)
            {
                self.set(at, State::Gone);
                renamed += 1;
            }
        }
        renamed
    }

    fn load(&mut self, mm: &Mm, count_windows: bool) {
        let mut at = 0;
        while at < self.len {
            match SlotWord(self.seen[at]).backing() {
                Some(Backing::Device { .. }) if self.state(at) == State::Locked => {
                    at = self.read_from(mm, at, count_windows);
                }
                Some(Backing::Compressed(_)) if self.state(at) == State::Locked => {
                    // Faults want work areas too: none is held while a device is waited for.
                    let Context { out, .. } = &mut *mm.context();
                    let page = &mut self.content[at];
                    let seen = SlotWord(self.seen[at]);
                    if tiers::unpack(mm.pool(), self.slots[at], seen, out, page).is_some() {
                        self.set(at, State::Loaded);
                    } else {
                        self.not_loaded(mm, at);
                    }
                    at += 1;
                }
                _ => at += 1,
            }
        }
    }

    /// Reads the blocks of the pages from `first` on that lie in one run of the file; one past the last of them.
    fn read_from(&mut self, mm: &Mm, first: usize, count_windows: bool) -> usize {
        let Some(place) = tiers::place_of(mm.pool(), self.slots[first]) else {
            return first + 1;
        };
        let (mut used, mut wanted, mut next) = (0, 0, self.slots[first]);
        let mut end = first;
        for at in first..self.len {
            let is_here = matches!(SlotWord(self.seen[at]).backing(), Some(Backing::Device { .. }));
            if self.state(at) != State::Locked || !is_here {
                continue;
            }
            let gap = (self.slots[at] - next) as usize;
            if gap > GAP_MAX {
                break;
            }
            if gap > 0 {
                self.pieces[used] = [self.scratch.as_mut_ptr() as u64, gap as u64 * PAGE];
                used += 1;
            }
            let to = self.content[at].as_mut_ptr() as u64;
            match self.pieces[..used].last_mut() {
                // What goes to one stretch of memory is one piece: the kernel looks for the pages of each.
                Some([from, len]) if *from + *len == to => *len += PAGE,
                _ => {
                    self.pieces[used] = [to, PAGE];
                    used += 1;
                }
            }
            (wanted, next, end) = (wanted + 1, self.slots[at] + 1, at + 1);
        }
        let (file, offset) = tiers::file_of(mm, place);
        // SAFETY: the pieces are pages of this batch and its scratch pages.
        let read = unsafe { sys::transfer_all(file, false, &mut self.pieces[..used], offset) };
        let header = mm.header();
        if read.is_ok() {
            tiers::count_read(mm, wanted, u64::from(next - self.slots[first]));
        }
        if count_windows {
            header.control.windows.add(wanted as u32);
        }
        for at in first..end {
            let Some(Backing::Device { crc }) = SlotWord(self.seen[at]).backing() else {
                continue;
            };
            if self.state(at) != State::Locked {
                continue;
            }
            let right = match read {
                Ok(()) => true,
                Err(_) => {
                    let behind = u64::from(self.slots[at] - self.slots[first]) * PAGE;
                    self.read_one(file, at, offset + behind)
                }
            };
            if right && tiers::checksum(self.content(at)) == crc {
                self.set(at, State::Loaded);
            } else {
                self.not_loaded(mm, at);
            }
        }
        end.max(first + 1)
    }

    /// After a read of many failed: one page of them may be readable.
    fn read_one(&mut self, file: i32, at: usize, offset: u64) -> bool {
        let mut piece = [[self.content[at].as_mut_ptr() as u64, PAGE]];
        // SAFETY: a page of this batch.
        unsafe { sys::transfer_all(file, false, &mut piece, offset) }.is_ok()
    }

    /// The content is not what it should be. If the slot's word has changed it is elsewhere, and a later pass finds it.
    fn not_loaded(&mut self, mm: &Mm, at: usize) {
        let now = mm.pool().swap_table().load(self.slots[at]);
        if now.same_backing(SlotWord(self.seen[at])) {
            mm.header().control.unreadable.fetch_add(1, Ordering::Relaxed);
            mm.header().count(Counter::CrcErrors, 1);
        }
    }

    /// Puts loaded pages into RAM where the limit has room for all of them; how many.
    fn install_where_room(&mut self, mm: &Mm, not_shared: bool) -> Option<u64> {
        /// Threads that charge at the same time take the room away from each other, and try again.
        const TRIES: u32 = 8;
        let (loaded, headroom) = (self.count(State::Loaded) as i64, thread::headroom(mm));
        let header = mm.header();
        for _ in 0..TRIES {
            if header.excess(loaded + headroom) > 0 {
                return None;
            }
            // Charged first: other threads that look for room meanwhile must not find the same.
            mm.charge(loaded);
            if header.excess(headroom) <= 0 {
                let installed = self.install(mm, not_shared);
                mm.charge(installed as i64 - loaded);
                header.control.to_ram.fetch_add(installed, Ordering::Relaxed);
                return Some(installed);
            }
            mm.charge(-loaded);
            core::hint::spin_loop();
        }
        None
    }

    /// Puts loaded pages, which are charged, into RAM, without those that processes share if they can stay shared elsewhere; how many.
    fn install(&mut self, mm: &Mm, not_shared: bool) -> u64 {
        let table = mm.pool().swap_table();
        let mut done = 0;
        let mut at = 0;
        while at < self.len {
            let goes = |batch: &Batch, at: usize| {
                batch.state(at) == State::Loaded && !(not_shared && table.load(batch.slots[at]).count() > 1)
            };
            let mut count = 0;
            while at + count < self.len
                && goes(self, at + count)
                && self.pages[at + count] == self.pages[at] + count as u64
            {
                count += 1;
            }
            if count == 0 {
                at += 1;
                continue;
            }
            done += self.map(mm, at, count) as u64;
            at += count;
        }
        done
    }

    /// Maps `count` pages from `first` on, which follow each other in memory; how many are there now.
    fn map(&mut self, mm: &Mm, first: usize, count: usize) -> usize {
        let (page, from) = (self.pages[first], self.content(first));
        fault::install_run(mm, page, from, count, |places| {
            let places = first + places.start..first + places.end;
            // The words are changed here: see puts::leave.
            let _leaving = mm.entry().puts.begin();
            for at in places.clone() {
                let page = self.pages[at];
                mm.note_resident(page, 1);
                mm.unlock(page, mm.load(page), PageState::resident());
                self.set(at, State::Gone);
            }
            kill_point!("relocate-installed");
            puts::put_all(mm, &self.slots[places]);
        })
    }

    /// Stores loaded pages in new slots; how many.
    fn store(&mut self, mm: &Mm) -> u64 {
        let mut slots = SlotBatch::default();
        let (mut done, mut left) = (0, self.count(State::Loaded) as usize);
        for at in 0..self.len {
            if self.state(at) != State::Loaded {
                continue;
            }
            let stored = self.store_compressed(mm, at, left, &mut slots);
            done += u64::from(stored);
            if !stored && let Some(slot) = slots.for_file(mm, left) {
                self.targets[at] = slot;
                self.set(at, State::Placed);
            }
            left -= 1;
        }
        kill_point!("relocate-placed");
        slots.finish(mm);
        done += self.write_placed(mm);
        done
    }

    /// Into the compressed tier, unless that is nearly full itself.
    fn store_compressed(&mut self, mm: &Mm, at: usize, left: usize, slots: &mut SlotBatch) -> bool {
        if writeback::is_due(mm) || mm.header().excess(1) > 0 {
            return false;
        }
        let context = &mut *mm.context();
        let Some(compressed) = compress::compress(mm, self.pages[at], self.content(at), context) else {
            return false;
        };
        let Some(slot) = slots.for_compressed(mm, left) else {
            return false;
        };
        let Some(backing) = tiers::store_compressed(mm, slot, &compressed, context) else {
            puts::release(mm, &[slot]);
            return false;
        };
        self.hand_over(mm, at, slot, backing)
    }

    /// Writes what is to lie in files, neighbours with one write; how many.
    fn write_placed(&mut self, mm: &Mm) -> u64 {
        let (mut done, mut at) = (0, 0);
        while at < self.len {
            if self.state(at) != State::Placed {
                at += 1;
                continue;
            }
            let mut run = [0usize; tiers::WRITE_MAX];
            let mut len = 0;
            let first = self.targets[at];
            let place = tiers::place_of(mm.pool(), first);
            for next in at..self.len {
                if self.state(next) != State::Placed {
                    continue;
                }
                // The slot behind an area's last may be the first of the next.
                let here = tiers::place_of(mm.pool(), self.targets[next]);
                if len == run.len() || here != place.map(|(area, block)| (area, block + len as u64)) {
                    break;
                }
                run[len] = next;
                len += 1;
            }
            let written = tiers::write_run(mm, run[..len].iter().map(|at| Some(self.content(*at))), first);
            kill_point!("relocate-written");
            for &at in &run[..len] {
                self.set(at, State::Loaded);
                let slot = self.targets[at];
                if written {
                    let crc = tiers::checksum(self.content(at));
                    done += u64::from(self.hand_over(mm, at, slot, Backing::Device { crc }));
                } else {
                    puts::release(mm, &[slot]);
                }
            }
            at = run[..len].last().map_or(at, |last| *last) + 1;
        }
        done
    }

    /// The content is in slot `to`, which is busy and ours, too: the page names that one from now on. False: the content has
    /// changed its place meanwhile.
    fn hand_over(&mut self, mm: &Mm, at: usize, to: u32, backing: Backing) -> bool {
        let table = mm.pool().swap_table();
        let (page, from, seen) = (self.pages[at], self.slots[at], SlotWord(self.seen[at]));
        let _counted = matches!(backing, Backing::Device { .. }).then(|| tiers::count_block(mm, to));
        let word = table.load(from);
        if !word.same_backing(seen) {
            puts::free_backing(mm.pool(), to, backing, mm.owner());
            puts::release(mm, &[to]);
            self.set(at, State::Locked);
            return false;
        }
        if word.count() == 1 {
            // Ours alone, and nobody can come by another reference while this page is locked.
            // As in `store`, the word names the new slot before that counts the reference.
            puts::leave(mm, from, || {
                let locked = mm.load(page);
                let named = locked.replace(PageState::swapped(to));
                mm.word(page).store(named.locked().raw(), Ordering::Release);
                kill_point!("relocate-counted");
                publish(mm, to, backing);
                kill_point!("relocate-published");
                mm.unlock(page, locked, PageState::swapped(to));
            });
            self.set(at, State::Gone);
            return true;
        }
        // Until slot `from` names it the new slot counts a reference that nobody has, which a death leaves behind: the
        // supervisor counts again, and not while this goes on (`recount`).
        let _step = mm.entry().moves.begin();
        publish(mm, to, backing);
        kill_point!("share-published");
        let renamed = share(mm, from, seen, to) && rename(mm, page, from, to);
        self.set(at, if renamed { State::Gone } else { State::Locked });
        renamed
    }

    fn unlock_rest(&mut self, mm: &Mm) {
        let homeless = self.count(State::Loaded);
        mm.header().control.no_room.fetch_add(homeless, Ordering::Relaxed);
        for at in 0..self.len {
            if self.state(at) != State::Gone {
                let page = self.pages[at];
                let locked = mm.load(page);
                mm.unlock(page, locked, locked);
            }
        }
        self.len = 0;
    }
}

/// Whether another file has free blocks.
fn has_free_area(mm: &Mm) -> bool {
    let mut free = mm.header().area.iter().filter_map(Area::free_blocks);
    free.any(|blocks| blocks > 0)
}

fn publish(mm: &Mm, slot: u32, backing: Backing) {
    if let Err(impossible) = mm.pool().swap_table().publish(slot, backing) {
        tiers::stop(&impossible);
    }
}

/// The content of a shared slot is in slot `to`, whose one reference becomes that of slot `from`. False: it was moved by somebody
/// else, or can't be now. The caller is in a step of `ProcEntry::moves` that began before `to` was published.
fn share(mm: &Mm, from: u32, seen: SlotWord, to: u32) -> bool {
    let (pool, header) = (mm.pool(), mm.header());
    let view = pool.slots();
    // An object that no word names is freed by whoever cleans up after us only if we held its cluster.
    let compressed = matches!(seen.backing(), Some(Backing::Compressed(_)));
    let lock = if compressed {
        view.try_lock(from / CLUSTER_SLOTS as u32, mm.owner())
    } else {
        None
    };
    let moved = compressed == lock.is_some() && {
        header.moved.fetch_add(1, Ordering::AcqRel);
        let moved = pool.swap_table().moved(from, seen, to);
        kill_point!("share-moved");
        match seen.backing() {
            Some(backing) if moved => puts::free_backing(pool, from, backing, mm.owner()),
            _ => {
                header.moved.fetch_sub(1, Ordering::AcqRel);
            }
        }
        moved
    };
    if let Some(lock) = lock {
        view.unlock_unchanged(lock);
    }
    kill_point!("share-freed");
    tiers::count_locks(pool, &view);
    if !moved {
        puts::put(mm, to);
    }
    moved
}

/// The locked page named slot `from`, whose content is in `to`: it names that one from now on, and is unlocked.
fn rename(mm: &Mm, page: u64, from: u32, to: u32) -> bool {
    // A slot gains a reference, and a page another name.
    let _step = mm.entry().moves.begin();
    if mm.pool().swap_table().dup(to).is_err() {
        return false;
    }
    kill_point!("rename-counted");
    puts::leave(mm, from, || {
        mm.unlock(page, mm.load(page), PageState::swapped(to));
    });
    true
}
