//! References to slots are given up, and what nobody refers to any more is freed: a slot, and behind it an object of the
//! compressed tier or a block.
//!
//! Many at once where pages go or come in a row: one step, one visit of each cluster, and the memory of neighbouring zpages given
//! back by one system call.

use core::sync::atomic::Ordering;

use farpage_core::kill_point;
use farpage_core::swap_table::Backing;
use farpage_core::zpool::Handle;

use crate::mm::Mm;
use crate::pool::Pool;
use crate::slot_caches;
use crate::steps::Step;
use crate::tiers::{count_locks, place_of, stop};

/// Most slots given up together.
const GROUP: usize = 64;
/// Most zpages whose memory is given back together.
const EMPTY_MAX: usize = 32;

/// Changes a page's word so that it names `slot` no more, then gives that reference up.
pub fn leave(mm: &Mm, slot: u32, change: impl FnOnce()) {
    // A death between the two leaves a reference that nobody holds: the supervisor counts again (`recount`).
    let _step = mm.entry().puts.begin();
    change();
    put(mm, slot);
}

/// Gives up one reference to `slot`; the last one frees what is behind it. The caller is in a step of `ProcEntry::puts` that
/// began before the word was changed.
pub fn put(mm: &Mm, slot: u32) {
    match mm.pool().swap_table().put(slot, mm.owner()) {
        Ok(Some(backing)) => {
            kill_point!("put-busy");
            match backing {
                Backing::Compressed(handle) => {
                    Objects::new(mm.pool(), mm.owner()).free_keeping(mm, handle, slot);
                }
                _ => free_backing(mm.pool(), slot, backing, mm.owner()),
            }
            kill_point!("put-freed");
            release(mm, &[slot]);
        }
        Ok(None) => {}
        Err(impossible) => stop(&impossible),
    }
    kill_point!("put-done");
}

/// The same for many slots, one reference to each.
pub fn put_all(mm: &Mm, slots: &[u32]) {
    let mut objects = Objects::new(mm.pool(), mm.owner());
    for group in slots.chunks(GROUP) {
        put_group(mm, group, &mut objects);
    }
}

/// At most [`GROUP`] of them.
fn put_group(mm: &Mm, slots: &[u32], objects: &mut Objects<'_>) {
    let table = mm.pool().swap_table();
    let (mut freed, mut count) = ([0u32; GROUP], 0);
    for &slot in slots {
        match table.put(slot, mm.owner()) {
            Ok(Some(backing)) => {
                kill_point!("put-busy");
                match backing {
                    Backing::Compressed(handle) => objects.free_keeping(mm, handle, slot),
                    _ => free_backing(mm.pool(), slot, backing, mm.owner()),
                }
                freed[count] = slot;
                count += 1;
            }
            Ok(None) => {}
            Err(impossible) => stop(&impossible),
        }
    }
    kill_point!("put-freed");
    if count > 0 {
        release(mm, &freed[..count]);
    }
    kill_point!("put-done");
}

/// Frees the storage behind a slot that has no reference left. The slot is still busy.
pub fn free_backing(pool: &Pool, slot: u32, backing: Backing, owner: u16) {
    match backing {
        Backing::Compressed(handle) => Objects::new(pool, owner).free(handle, slot),
        Backing::Device { .. } => {
            if let Some((area, _)) = place_of(pool, slot) {
                pool.header().area[usize::from(area)]
                    .used
                    .fetch_sub(1, Ordering::AcqRel);
            }
        }
        // The caller's step covers this put too: no page names `to` by way of this slot any more.
        Backing::Moved { to } => {
            pool.header().moved.fetch_sub(1, Ordering::AcqRel);
            put_for(pool, to, owner);
        }
    }
}

/// Gives up one reference to `slot` in the name of `owner`, who is not this thread's process or whose step covers it. What
/// does not fit costs a slot, not the tree: a busy slot of a dead process, say, which `cleanup` deals with.
pub fn put_for(pool: &Pool, slot: u32, owner: u16) {
    if let Ok(Some(backing)) = pool.swap_table().put(slot, owner) {
        free_backing(pool, slot, backing, owner);
        release_for(pool, slot, owner);
    }
}

/// Gives back a slot of `owner`'s that has no content. Fails for one that is not: then it is somebody's, who knows it.
pub fn release_for(pool: &Pool, slot: u32, owner: u16) {
    let view = pool.slots();
    let _ = view.release(&[slot], owner);
    count_locks(pool, &view);
}

/// Frees the object of `slot` at `handle` that no word names, if it is there still: somebody else may have found it, too.
pub fn free_left_over(pool: &Pool, handle: Handle, slot: u32, owner: u16) {
    let mut objects = Objects::new(pool, owner);
    if let Ok(Some(zpage)) = pool.zpool().free(handle, slot, owner) {
        objects.emptied(zpage);
    }
}

/// Compressed objects being freed in the name of `owner`. The zpages that they leave empty give their memory back together when
/// this is dropped, or there are many.
pub struct Objects<'a> {
    pool: &'a Pool,
    owner: u16,
    /// In state Emptying, and so ours.
    empty: [u32; EMPTY_MAX],
    len: usize,
    _step: Option<Step<'a>>,
}

impl<'a> Objects<'a> {
    pub fn new(pool: &'a Pool, owner: u16) -> Self {
        let entry = pool.processes().get(usize::from(owner));
        Objects {
            pool,
            owner,
            empty: [0; EMPTY_MAX],
            len: 0,
            _step: entry.map(|entry| entry.objects.begin()),
        }
    }

    pub fn free(&mut self, handle: Handle, slot: u32) {
        match self.pool.zpool().free(handle, slot, self.owner) {
            Ok(Some(zpage)) => self.emptied(zpage),
            Ok(None) => {}
            Err(impossible) => stop(&impossible),
        }
    }

    /// The same; the zpages emptied last keep their memory, for what is compressed next.
    pub fn free_keeping(&mut self, mm: &Mm, handle: Handle, slot: u32) {
        match self.pool.zpool().free_keeping(&mm.zhints, handle, slot) {
            Ok(Some(zpage)) => {
                let older = self.pool.header().keep_zpage(zpage);
                kill_point!("zpool-kept");
                if let Some(older) = older
                    && self.pool.zpool().empty(older, self.owner)
                {
                    self.emptied(older);
                }
            }
            Ok(None) => {}
            Err(impossible) => stop(&impossible),
        }
    }

    fn emptied(&mut self, zpage: usize) {
        kill_point!("zpool-emptying");
        self.empty[self.len] = zpage as u32;
        self.len += 1;
        if self.len == EMPTY_MAX {
            self.give_back();
        }
    }

    /// The memory of neighbours goes back by one call.
    fn give_back(&mut self) {
        let empty = &mut self.empty[..core::mem::take(&mut self.len)];
        empty.sort_unstable();
        for run in empty.chunk_by(|a, b| a + 1 == *b) {
            self.pool.punch_zpages(run[0] as usize, run.len());
            kill_point!("zpool-punched");
            for &zpage in run {
                self.pool.zpool().release_zpage(zpage as usize);
            }
        }
    }
}

impl Drop for Objects<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Gives back slots of this process that have no content.
pub fn release(mm: &Mm, slots: &[u32]) {
    if !slot_caches::free(mm, slots) {
        release_now(mm, slots);
    }
}

/// The same, past the slot caches; neighbours in one step.
pub fn release_now(mm: &Mm, slots: &[u32]) {
    let view = mm.pool().slots();
    if let Err(impossible) = view.release(slots, mm.owner()) {
        stop(&impossible);
    }
    count_locks(mm.pool(), &view);
}
