//! The zpool: where compressed objects sit.
//!
//! The data area is an array of zpages of 32 KiB. A zpage in use belongs to one size class and is cut into
//! equal objects, as large as their number allows; an object begins with a header of four u32 words, of which
//! word 0, the owner slot, is the zpool's (0 = free) and words 1 to 3 are the caller's. Each zpage has one
//! descriptor word:
//!
//! ```text
//! 63            35 34            19 18        9 8        2 1   0
//! +---------------+----------------+-----------+----------+-----+
//! | 0             | owner process  | in use    | class    |state|
//! +---------------+----------------+-----------+----------+-----+
//! ```
//!
//! Taking an object is two steps. *Reserve*: CAS the descriptor from `Active, n` to `Active, n + 1`, with n
//! below the number of objects. *Claim*: CAS a free header from 0 to the slot. Giving it back is the reverse:
//! header to 0, then the descriptor from n to n - 1, or from 1 straight to `Emptying(owner)`. The owner
//! punches a hole and makes the descriptor `Free`. Or the zpage stays active with none in use, and is emptied later. Invariants:
//!
//! ```text
//! Active:    headers not 0 + reservations without an object + frees between their two steps <= in use
//! Emptying:  every header is 0, nobody has a reservation
//! Free:      every byte is 0
//! ```
//!
//! - By the first, whoever has a reservation finds a free header, if not in this pass over the headers then
//!   in a later one; and a claim happens only under a reservation, so never in a zpage that is `Emptying`.
//!   Deaths only make *in use* too high (an object and perhaps the return of its zpage are lost), never too
//!   low.
//! - A `Free` zpage is activated for any class without a look at its bytes. Where the new class has its
//!   headers the old class had payload, so it is essential that the hole is punched (or the zpage zeroed)
//!   *before* [`Zpool::release_zpage`]. A byte that was left would make an object look taken: it would be
//!   lost, but not handed out twice.
//! - A handle holds the class, so the place of an object follows from the handle alone and lies inside its
//!   zpage, whatever the zpage has become since. A handle read from a slot word may be stale when it is used:
//!   the reader compares the owner slot, the checksum and the slot word, and can at worst have read bytes
//!   that it throws away.
//! - Objects are given back in any order, so zpages are left half empty. What is spread over more zpages than it
//!   needs is moved together by the supervisor ([`Zpool::tally`], [`Zpool::copy_to`]).
//! - `used` counts zpages that are not `Free`. It is raised before and lowered after, so a death can leave it
//!   too high by one, never too low; [`Zpool::count_used`] gives the truth.

use crate::kill_point;
use crate::swap_table::Impossible;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

const WORD_BYTES: usize = 4;
const ZPAGE_WORDS: usize = ZPAGE_BYTES / WORD_BYTES;
/// Descriptors looked at before a fresh zpage is taken.
const NEAR_SCAN: usize = 64;
/// How many classes larger an object may be put that finds no room in its own.
const LARGER: usize = 3;
/// Passes over the headers before a reservation is given back.
const CLAIM_PASSES: usize = 16;

/// Where a process looks first. Only for speed: any values are correct, all zero is the start.
#[derive(Debug)]
pub struct ZpoolHints {
    /// Per class, the zpage of the last object taken.
    last: [AtomicU32; CLASSES],
    /// Per class, where the search for room goes on.
    scan: [AtomicU32; CLASSES],
    /// Where the search for a free zpage goes on.
    free: AtomicU32,
}

impl ZpoolHints {
    /// All zero.
    #[must_use]
    #[cfg(not(all(test, loom)))]
    pub const fn new() -> Self {
        Self {
            last: [const { AtomicU32::new(0) }; CLASSES],
            scan: [const { AtomicU32::new(0) }; CLASSES],
            free: AtomicU32::new(0),
        }
    }

    /// All zero. The model checker's atomics are not made at compile time.
    #[must_use]
    #[cfg(all(test, loom))]
    pub fn new() -> Self {
        Self {
            last: core::array::from_fn(|_| AtomicU32::new(0)),
            scan: core::array::from_fn(|_| AtomicU32::new(0)),
            free: AtomicU32::new(0),
        }
    }
}

impl Default for ZpoolHints {
    fn default() -> Self {
        Self::new()
    }
}

/// The zpool over shared words; all zero is an empty zpool. What is too long of `descs` or `data` is not
/// used.
#[derive(Debug, Clone, Copy)]
pub struct Zpool<'a> {
    /// One descriptor per zpage.
    pub descs: &'a [AtomicU64],
    /// The data area as words: [`ZPAGE_BYTES`] per zpage.
    pub data: &'a [AtomicU32],
    /// The shared count of zpages in use.
    pub used: &'a AtomicU64,
}

impl<'a> Zpool<'a> {
    /// Number of zpages there are.
    #[must_use]
    pub fn zpages(&self) -> usize {
        self.descs
            .len()
            .min(self.data.len() / ZPAGE_WORDS)
            .min(ZPAGES_MAX)
    }

    fn desc(&self, zpage: usize) -> Option<&'a AtomicU64> {
        self.descs.get(..self.zpages())?.get(zpage)
    }

    /// Takes an object of `bytes` (payload + [`HEADER_BYTES`]) for `slot`, whose header then names the slot.
    /// Looks in the zpage of the last success, in the next 64 zpages, takes a fresh zpage if less than
    /// `limit_zpages` are in use, and only then looks everywhere, in the next larger classes too. None if there is
    /// no room, `bytes` is above [`OBJECT_MAX`], or `slot` is 0.
    #[must_use]
    pub fn alloc(&self, hints: &ZpoolHints, limit_zpages: usize, bytes: usize, slot: u32) -> Option<Handle> {
        self.alloc_telling(hints, limit_zpages, bytes, slot, |_| ())
    }

    /// The same; `fresh` is told a zpage that was free, before anything is written to it: to get its memory at once.
    #[must_use]
    pub fn alloc_telling(
        &self,
        hints: &ZpoolHints,
        limit_zpages: usize,
        bytes: usize,
        slot: u32,
        fresh: impl FnOnce(usize),
    ) -> Option<Handle> {
        let class = class_of(bytes)?;
        let last = hints.last.get(class)?;
        if slot == 0 {
            return None;
        }
        let handle = self
            .take(last.load(Ordering::Relaxed) as usize, class, slot)
            .or_else(|| self.take_near(hints.scan.get(class)?, class, slot))
            .or_else(|| {
                let zpage = self.open_fresh(&hints.free, limit_zpages, class)?;
                fresh(zpage);
                self.claim(zpage, class, 0, slot)
            })
            .or_else(|| self.take_anywhere(class, slot))?;
        if handle.class() == class {
            last.store(handle.zpage() as u32, Ordering::Relaxed);
        }
        Some(handle)
    }

    /// Reserve and claim in one zpage, if it is of the class and has room.
    fn take(&self, zpage: usize, class: usize, slot: u32) -> Option<Handle> {
        let desc = self.desc(zpage)?;
        let mut seen = load(desc);
        while seen.state() == State::Active && seen.class() == class && seen.in_use() < class_objects(class) {
            match exchange(desc, seen, Desc::active(class, seen.in_use() + 1)) {
                Ok(()) => {
                    kill_point!("zpool-reserved");
                    return self.claim(zpage, class, seen.in_use(), slot);
                }
                Err(now) => seen = now,
            }
        }
        None
    }

    /// Makes a free header name the slot; the caller has a reservation. Begins at object `from`: zpages fill
    /// in order.
    fn claim(&self, zpage: usize, class: usize, from: usize, slot: u32) -> Option<Handle> {
        let objects = class_objects(class);
        for _ in 0..CLAIM_PASSES {
            for index in (from..objects).chain(0..from.min(objects)) {
                let handle = Handle::new(class, zpage, index);
                let header = self.data.get(header_word(handle))?;
                if header.load(Ordering::Relaxed) == 0
                    && header
                        .compare_exchange(0, slot, Ordering::AcqRel, Ordering::Relaxed)
                        .is_ok()
                {
                    kill_point!("zpool-claimed");
                    // Before what the caller writes: see `SwapTable::read_behind`.
                    fence(Ordering::Release);
                    return Some(handle);
                }
            }
        }
        self.give_back(zpage);
        None
    }

    /// Drops a reservation that found no free header. The zpage stays active even with nothing in use: only who punches holes
    /// begins to empty it.
    fn give_back(&self, zpage: usize) {
        let Some(desc) = self.desc(zpage) else { return };
        let mut seen = load(desc);
        while seen.state() == State::Active && seen.in_use() > 0 {
            match exchange(desc, seen, Desc::active(seen.class(), seen.in_use() - 1)) {
                Ok(()) => return,
                Err(now) => seen = now,
            }
        }
    }

    fn take_near(&self, cursor: &AtomicU32, class: usize, slot: u32) -> Option<Handle> {
        let (start, steps) = self.window(cursor, NEAR_SCAN);
        for zpage in self.from(start).take(steps) {
            if let Some(handle) = self.take(zpage, class, slot) {
                cursor.store(zpage as u32, Ordering::Relaxed);
                return Some(handle);
            }
        }
        cursor.store((start + steps) as u32, Ordering::Relaxed);
        None
    }

    fn take_anywhere(&self, class: usize, slot: u32) -> Option<Handle> {
        (0..self.zpages()).find_map(|zpage| {
            let there = load(self.desc(zpage)?).class();
            let fits = (class..=class + LARGER).contains(&there);
            if fits { self.take(zpage, there, slot) } else { None }
        })
    }

    /// Activates a free zpage, with one reservation, the caller's.
    fn open_fresh(&self, cursor: &AtomicU32, limit: usize, class: usize) -> Option<usize> {
        if !self.raise_used(limit.min(self.zpages())) {
            return None;
        }
        kill_point!("zpool-raised");
        let (start, steps) = self.window(cursor, self.zpages());
        let activate = |zpage: &usize| {
            self.desc(*zpage).is_some_and(|desc| {
                load(desc).state() == State::Free
                    && exchange(desc, Desc::FREE, Desc::active(class, 1)).is_ok()
            })
        };
        let Some(zpage) = self.from(start).take(steps).find(activate) else {
            self.lower_used();
            return None;
        };
        cursor.store((zpage + 1) as u32, Ordering::Relaxed);
        kill_point!("zpool-activated");
        Some(zpage)
    }

    /// Where a cursor stands, and how many zpages to look at from there.
    fn window(&self, cursor: &AtomicU32, most: usize) -> (usize, usize) {
        let at = cursor.load(Ordering::Relaxed) as usize;
        (if at < self.zpages() { at } else { 0 }, most.min(self.zpages()))
    }

    /// Every zpage once, beginning at `start`.
    fn from(&self, start: usize) -> impl Iterator<Item = usize> + use<> {
        (start..self.zpages()).chain(0..start)
    }

    fn raise_used(&self, limit: usize) -> bool {
        let mut used = self.used.load(Ordering::Relaxed);
        while used < limit as u64 {
            match self
                .used
                .compare_exchange_weak(used, used + 1, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(now) => used = now,
            }
        }
        false
    }

    fn lower_used(&self) {
        let mut used = self.used.load(Ordering::Relaxed);
        while let Some(next) = used.checked_sub(1) {
            match self
                .used
                .compare_exchange_weak(used, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => used = now,
            }
        }
    }

    /// Gives back the object of `slot`. `Some(zpage)` if that emptied its zpage, which is now `Emptying(owner)`: the
    /// caller punches a hole, then calls [`Self::release_zpage`].
    ///
    /// # Errors
    /// If the handle does not name an object in use, of that slot.
    pub fn free(&self, handle: Handle, slot: u32, owner: u16) -> Result<Option<usize>, Impossible> {
        self.drop_object(handle, slot, |class| Desc::emptying(class, owner))
    }

    /// The same, but an emptied zpage stays active, with nothing in use, and keeps its memory for the next object of its class:
    /// its headers are 0. Who was given its number calls [`Self::empty`] sooner or later.
    ///
    /// # Errors
    /// As [`Self::free`].
    pub fn free_keeping(
        &self,
        hints: &ZpoolHints,
        handle: Handle,
        slot: u32,
    ) -> Result<Option<usize>, Impossible> {
        let kept = self.drop_object(handle, slot, |class| Desc::active(class, 0))?;
        if let (Some(zpage), Some(scan)) = (kept, hints.scan.get(handle.class())) {
            // Others were left empty a moment ago, on either side.
            scan.store(zpage.saturating_sub(NEAR_SCAN / 2) as u32, Ordering::Relaxed);
        }
        Ok(kept)
    }

    /// Begins to empty an active zpage with nothing in use. True: it is `Emptying(owner)` now, as after [`Self::free`].
    #[must_use]
    pub fn empty(&self, zpage: usize, owner: u16) -> bool {
        self.desc(zpage).is_some_and(|desc| {
            let seen = load(desc);
            seen.state() == State::Active
                && seen.in_use() == 0
                && exchange(desc, seen, Desc::emptying(seen.class(), owner)).is_ok()
        })
    }

    /// Gives an object back; its zpage becomes `emptied` with the last one, and is returned.
    fn drop_object(
        &self,
        handle: Handle,
        slot: u32,
        emptied: impl Fn(usize) -> Desc,
    ) -> Result<Option<usize>, Impossible> {
        let (desc, seen, header) = self.live(handle)?;
        let taken = header.compare_exchange(slot, 0, Ordering::AcqRel, Ordering::Relaxed);
        if slot == 0 || taken.is_err() {
            return Err(impossible(slot, seen, "an object header that names its slot"));
        }
        kill_point!("zpool-cleared");
        let mut seen = load(desc);
        while seen.state() == State::Active && seen.in_use() > 0 {
            let last = seen.in_use() == 1;
            let next = if last {
                emptied(seen.class())
            } else {
                Desc::active(seen.class(), seen.in_use() - 1)
            };
            match exchange(desc, seen, next) {
                Ok(()) => return Ok(last.then_some(handle.zpage())),
                Err(now) => seen = now,
            }
        }
        Err(impossible(slot, seen, "an active zpage that counts the object"))
    }

    /// Makes an emptied zpage free, after its bytes were made zero. Does nothing to a zpage that is not being
    /// emptied: it is not the caller's.
    pub fn release_zpage(&self, zpage: usize) {
        let Some(desc) = self.desc(zpage) else { return };
        let seen = load(desc);
        if seen.state() == State::Emptying && exchange(desc, seen, Desc::FREE).is_ok() {
            kill_point!("zpool-released");
            self.lower_used();
        }
    }

    /// Zpages that process index `owner` was emptying, for cleaning after it died: punch each, then release
    /// it.
    pub fn emptying_of(&self, owner: u16) -> impl Iterator<Item = usize> + use<'a> {
        let mine = move |&(_, by): &(usize, u16)| by == owner;
        self.emptying().filter(mine).map(|(zpage, _)| zpage)
    }

    /// Zpages that are being emptied, and the process index that does it.
    pub fn emptying(&self) -> impl Iterator<Item = (usize, u16)> + use<'a> {
        self.descs.iter().enumerate().filter_map(|(zpage, desc)| {
            let seen = load(desc);
            (seen.state() == State::Emptying).then(|| (zpage, seen.owner()))
        })
    }

    /// The objects in use in a zpage with the slots that own them, as they are when looked at: for writing
    /// back in order and for cleaning after a death.
    pub fn objects(&self, zpage: usize) -> impl Iterator<Item = (Handle, u32)> + use<'a> {
        let pool = *self;
        let active = self.active(zpage).map(|(class, _)| class);
        let class = active.unwrap_or_default();
        (0..active.map_or(0, class_objects)).filter_map(move |index| {
            let handle = Handle::new(class, zpage, index);
            let slot = pool.owner_slot(handle);
            (slot != 0).then_some((handle, slot))
        })
    }

    /// The descriptor of an active zpage and how many of its headers name a slot, if those are fewer than it counts:
    /// a reservation or a free is under way, or its process died. `None`: they are not. An error: the descriptor has changed
    /// meanwhile, so it can't be told.
    ///
    /// # Errors
    /// [`Changed`].
    pub fn overcounted(&self, zpage: usize) -> Result<Option<(u64, usize)>, Changed> {
        let Some(desc) = self.desc(zpage) else {
            return Ok(None);
        };
        let seen = load(desc);
        let objects = self.objects(zpage).count();
        if load(desc) != seen {
            return Err(Changed);
        }
        Ok((seen.state() == State::Active && objects < seen.in_use()).then_some((seen.0, objects)))
    }

    /// Has a zpage, whose descriptor is still `seen`, count `objects` of which nobody takes or gives back one meanwhile: what
    /// [`Self::overcounted`] said. If that leaves none the caller goes on as after [`Self::free`]. False: the descriptor has changed.
    #[must_use]
    pub fn settle(&self, zpage: usize, seen: u64, objects: usize, owner: u16) -> bool {
        let Some(desc) = self.desc(zpage) else {
            return false;
        };
        let seen = Desc(seen);
        let next = if objects == 0 {
            Desc::emptying(seen.class(), owner)
        } else {
            Desc::active(seen.class(), objects)
        };
        exchange(desc, seen, next).is_ok()
    }

    /// Zpages that are not free, counted anew: to mend `used` after a death while nobody allocates.
    #[must_use]
    pub fn count_used(&self) -> u64 {
        self.descs
            .iter()
            .filter(|desc| load(desc).state() != State::Free)
            .count() as u64
    }

    /// Byte offset of the object in the data area; 0 for a handle that names no place in it (a damaged slot
    /// word).
    #[must_use]
    pub fn offset(&self, handle: Handle) -> usize {
        if self.names_a_place(handle) {
            header_word(handle) * WORD_BYTES
        } else {
            0
        }
    }

    /// Bytes of the object, header included; 0 for a handle that names no place in the data area.
    #[must_use]
    pub fn capacity(&self, handle: Handle) -> usize {
        if self.names_a_place(handle) {
            class_bytes(handle.class())
        } else {
            0
        }
    }

    fn names_a_place(&self, handle: Handle) -> bool {
        let class = handle.class();
        class < CLASSES && handle.index() < class_objects(class) && handle.zpage() < self.zpages()
    }

    /// The slot that owns the object; 0 if it is free or its zpage is no longer what the handle says.
    #[must_use]
    pub fn owner_slot(&self, handle: Handle) -> u32 {
        self.live(handle)
            .map_or(0, |(_, _, header)| header.load(Ordering::Acquire))
    }

    /// Descriptor, its value, and header of a handle that names an object of an active zpage of its class.
    fn live(&self, handle: Handle) -> Result<(&'a AtomicU64, Desc, &'a AtomicU32), Impossible> {
        let outside = impossible(0, Desc(handle.0), "a handle inside the data area");
        if !self.names_a_place(handle) {
            return Err(outside);
        }
        let desc = self.desc(handle.zpage()).ok_or(outside)?;
        let header = self.data.get(header_word(handle)).ok_or(outside)?;
        let seen = load(desc);
        if seen.state() != State::Active || seen.class() != handle.class() {
            return Err(impossible(0, seen, "an active zpage of the handle's class"));
        }
        Ok((desc, seen, header))
    }
}

/// The descriptor of a zpage changed while its objects were counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed;

const fn header_word(handle: Handle) -> usize {
    handle.zpage() * ZPAGE_WORDS + handle.index() * (class_bytes(handle.class()) / WORD_BYTES)
}

const fn impossible(slot: u32, desc: Desc, expected: &'static str) -> Impossible {
    Impossible {
        slot,
        word: desc.0,
        expected,
    }
}

mod compact;
pub use compact::Tally;
mod words;
pub use words::{
    CLASSES, HEADER_BYTES, Handle, OBJECT_MAX, ZPAGE_BYTES, ZPAGES_MAX, class_bytes, class_objects, class_of,
};
use words::{Desc, State, exchange, load};

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
