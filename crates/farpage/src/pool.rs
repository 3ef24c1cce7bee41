//! The pool: one shared memory object for a process tree. Offsets, never pointers; every word an atomic.
//!
//! ```text
//! header | process table | device states | current clusters | cluster words | lists | queue | swap table |
//! zpool descriptors | zpool data | debts | page states x MAX_PROCESSES
//! ```
//! Everything is sparse: what was never touched costs nothing. A process that is killed at any instruction leaves
//! nothing that others wait for; what it held is named by its process entry and found again by the supervisor (`cleanup`).
//!
//! # Safety
//! The mapping covers the layout that the header states, is page-aligned, zero-filled at creation, and never unmapped
//! while a `Pool` exists. All parts are arrays of atomics, so a shared reference to them is sound whoever writes.
#![allow(unsafe_code)]

use core::mem::offset_of;
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};

use farpage_core::cluster::CLUSTER_SLOTS;
use farpage_core::devices::{Device, DeviceState, SHUT_LEAVING};
use farpage_core::fifo::Fifo;
use farpage_core::pace::Pace;
use farpage_core::readahead::Cluster;
use farpage_core::readahead::hits::{Hits, WindowCounts};
use farpage_core::readahead::regions::RegionHits;
use farpage_core::slots::{self, Parts, Punch, Slots};
use farpage_core::stats::{Counter, Histogram, Source};
use farpage_core::swap_table::{self, SwapTable};
use farpage_core::units::PAGE_SIZE;
use farpage_core::workingset::Workingset;
use farpage_core::zpool::{ZPAGE_BYTES, Zpool};

use crate::control::Control;
use crate::queue::WINDOW;
use crate::sys::{self, Errno};
use crate::syscalls::{MANAGED_SHIFT, MANAGED_TAG};
use crate::watch::TURNS;

/// First managed address, in every process.
pub const MANAGED_BASE: u64 = MANAGED_TAG << MANAGED_SHIFT;
/// Length of the managed range in bytes.
pub const MANAGED_LEN: u64 = 1 << MANAGED_SHIFT;
pub const MANAGED_PAGES: u64 = MANAGED_LEN / PAGE_SIZE as u64;
pub const MAX_PROCESSES: usize = 1024;
// A slot is named by one page of each process at most, and by one slot that has moved: its count can't overflow.
const _: () = assert!(MAX_PROCESSES < swap_table::COUNT_MAX as usize);
pub const MAX_AREAS: usize = 8;
const KEPT_ZPAGES: usize = 64;
/// Swap areas, and the device of what lives compressed only.
pub const DEVICES: usize = MAX_AREAS + 1;
/// Bytes before the places of the queue of full clusters: its two ends.
const FIFO_PLACES: u64 = 64;
/// Slot numbers have 32 bits, and so has the number behind the last one.
const CLUSTERS_MAX: u64 = (1 << 32) / CLUSTER_SLOTS as u64 - 1;
/// Slots reserved for each area of a running tree, if there are so many: what a file can have that is added to it.
const RESERVED: u64 = (256 << 30) / PAGE_SIZE as u64;
/// Of a pool that is laid out as this build has it: the words of another build's are elsewhere.
const MAGIC: u64 = {
    let shape = [
        size_of::<Header>(),
        size_of::<ProcEntry>(),
        offset_of!(Header, counters),
        offset_of!(Header, control),
        offset_of!(Header, layout),
        size_of::<Layout>(),
    ];
    let (mut magic, mut i) = (0x6661_7270_6167_6532u64, 0); // "farpage2"
    while i < shape.len() {
        magic = (magic ^ shape[i] as u64).wrapping_mul(0x0100_0000_01b3);
        i += 1;
    }
    magic
};
/// Bytes of one process's debts: a bit for each window of 64 pages.
pub const DEBTS_LEN: u64 = MANAGED_PAGES / WINDOW / 8;
/// Bytes of one process's page-state array.
pub const STATES_LEN: u64 = MANAGED_PAGES * 8;

/// True where an address is farpage's to manage.
#[inline]
#[must_use]
pub fn is_managed(addr: u64) -> bool {
    addr.wrapping_sub(MANAGED_BASE) < MANAGED_LEN
}

mod entry;
pub mod entry_state;
mod layout;
mod limit;
mod refusal;
mod space;
pub use entry::ProcEntry;
pub use layout::{Geometry, Layout};
use refusal::Refusal;

/// What is to be known of a swap area.
pub mod trait_of {
    /// The kernel says that seeks are dear, which is to be seen (`Pace::has_dear_seeks`).
    pub const ROTATES: u64 = 1;
    /// A file of ours that takes space as it is written: holes give it back.
    pub const PUNCHES: u64 = 2;
    /// A block device that discards.
    pub const DISCARDS: u64 = 4;
    /// A file of ours whose writes are better not the ones that take its space (`reserve`).
    pub const RESERVES: u64 = 8;
}

/// One swap file or device. All zero where there is none.
#[repr(C)]
pub struct Area {
    pub blocks: AtomicU64,
    /// Blocks that hold a page.
    pub used: AtomicI64,
    /// The supervisor's descriptor of it.
    pub descriptor: AtomicI32,
    /// 1 while pages may be written to it.
    pub open: AtomicU32,
    pub refusal: Refusal,
    /// Where its first block lies in the file, in bytes.
    pub start: AtomicU64,
    /// What tells its descriptors from others: device and inode (0: no file), and the flags to open it with.
    pub dev: AtomicU64,
    pub ino: AtomicU64,
    pub flags: AtomicI32,
    /// Bits of [`trait_of`].
    pub traits: AtomicU64,
    /// What its reads take.
    pub pace: Pace,
    /// File or block device path, NUL-padded, for people to read.
    pub name: [AtomicU8; 120],
}

#[repr(C, align(128))]
pub struct Header {
    pub magic: AtomicU64,
    pub supervisor: AtomicI32,
    /// The pid namespace whose numbers stand in the process table.
    pub pid_namespace: AtomicU64,
    pub flags: AtomicU32,
    pub fd_base: AtomicU32,
    /// How many areas pages may be written to.
    pub areas: AtomicU32,
    /// Changes with the set of files: each active process follows (`tier_files`).
    pub area_epoch: AtomicU32,
    /// Entries of the process table ever taken.
    pub births: AtomicU32,
    /// Entries of it, from the first on, that were ever looked at to be taken.
    pub entries: AtomicU32,
    /// Slots whose content is in another slot.
    pub moved: AtomicI64,
    /// The budget as the user gave it, in pages.
    pub budget: AtomicI64,
    /// What charged pages and zpages together may reach: budget less the unmanaged rest, set by the supervisor.
    pub limit: AtomicI64,
    /// What of the budget a container has that it nearly fills.
    pub given: AtomicI64,
    /// What it was when the supervisor last set it: more than it is, once some was taken off.
    pub limit_set: AtomicI64,
    /// How often the supervisor has set it.
    pub limits_set: AtomicU32,
    /// Forks of managed processes so far.
    pub forks: AtomicU32,
    /// When the limit was last set, and how often it was lowered since for that being long ago.
    pub limit_set_ns: AtomicU64,
    pub late_steps: AtomicU32,
    /// Free pages that the reclaimers keep ready, set by the supervisor.
    pub headroom: AtomicI64,
    /// Resident managed pages + frames of the whole tree.
    pub charged: AtomicI64,
    /// About how many of them keep a slot, which can be given up at any time; set by the supervisor.
    pub kept: AtomicI64,
    /// Pages that no tier takes; set by the supervisor.
    pub poor: AtomicI64,
    /// Bytes of managed memory mapped for writing in the whole tree (an upper bound of what can become resident).
    pub committed: AtomicI64,
    /// Pages that dormant processes ever mapped for writing: what the supervisor has not seen yet is in no sum of its.
    pub promises: AtomicI64,
    pub unmanaged: AtomicI64,
    pub peak: AtomicI64,
    /// The most pages of the pool that were its own: swap table, page states, lists.
    pub metadata_peak: AtomicI64,
    pub zpages_used: AtomicU64,
    pub zpages_limit: AtomicU64,
    /// Zpages, and 1, that were emptied last and keep their memory: a ring.
    pub kept_zpages: [AtomicU32; KEPT_ZPAGES],
    pub kept_at: AtomicU32,
    /// 1: all swap is full, and programs do little but wait for room; set by the supervisor.
    pub hopeless: AtomicU32,
    /// CPUs that have nothing to do, set by the supervisor, and whose threads keep one busy while they wait for a read (process
    /// index + 1).
    pub spare_cpus: AtomicU32,
    pub watching: [AtomicU32; TURNS],
    /// The process that has memory pinned to move it (index + 1); a futex.
    pub mover: AtomicU32,
    /// Bumped to ask every process to reclaim; a futex.
    pub reclaim_seq: AtomicU32,
    /// Pages that came back from the compressed tier, and pages that it wrote back: lately, both halved now and then.
    pub tier_hits: AtomicU64,
    pub tier_writebacks: AtomicU64,
    pub start_ns: AtomicU64,
    /// Index of the readahead policy in `Policy::ALL`.
    pub readahead: AtomicU32,
    /// log2 of the greatest window of the policies `cluster` and `vma`.
    pub page_cluster: AtomicU32,
    /// The one history of the policy `cluster`.
    pub cluster: Cluster,
    /// Index of the setting in `Huge::ALL`, of how huge pages come back in `SwapIn::ALL`, and leave in `SwapOut::ALL`.
    pub huge: AtomicU32,
    pub huge_swapin: AtomicU32,
    pub huge_swapout: AtomicU32,
    /// Slot caches are used while so many slots are free; 0: never.
    pub slot_cache_floor: AtomicU64,
    pub workingset: Workingset,
    pub hits: Hits,
    pub region_hits: RegionHits,
    pub windows: WindowCounts,
    pub area: [Area; MAX_AREAS],
    pub counters: [AtomicU64; Counter::COUNT],
    pub latency: [[AtomicU64; Histogram::BUCKETS]; 4],
    pub control: Control,
    /// Not 0: a process was found dead in one of its steps, or a cleaner was; the supervisor is to count again (`recount`).
    pub recount: AtomicU32,
    /// Passes of each point of the test that kills.
    #[cfg(feature = "kill-points")]
    pub kill_passes: [AtomicU64; farpage_core::kill::POINTS.len()],
    layout: [AtomicU64; size_of::<Layout>() / 8],
}

/// Bits of [`Header::flags`].
pub mod flag {
    pub const THREAD_DELIVERY: u32 = 1;
    pub const EAGER: u32 = 2;
    pub const NO_FOLLOW: u32 = 4;
    pub const ALLOW_IO_URING: u32 = 8;
    /// The command was started without a stderr: what has that number in a program is a file of its own.
    pub const NO_STDERR: u32 = 16;
}

/// A mapped pool.
#[derive(Clone, Copy)]
pub struct Pool {
    base: u64,
    layout: Layout,
    devices: [Device; DEVICES],
}

impl Pool {
    /// Creates the pool's memory object and maps its common part.
    pub fn create(geometry: &Geometry) -> Result<(i32, Pool), Errno> {
        let layout = Layout::new(geometry);
        let name = c"farpage-pool";
        // SAFETY: creates a descriptor; ftruncate on it touches nothing else.
        let fd = unsafe {
            let fd = sys::call(
                libc::SYS_memfd_create,
                [name.as_ptr() as u64, libc::MFD_CLOEXEC as u64, 0, 0, 0, 0],
            )?;
            sys::call(libc::SYS_ftruncate, [fd, layout.total, 0, 0, 0, 0])?;
            fd as i32
        };
        let pool = Pool {
            base: map_shared(fd, 0, layout.common, None)?,
            layout,
            devices: layout.devices(),
        };
        let words = pool.header().layout.iter();
        // SAFETY: Layout is repr(C) and made of u64 only, so it is exactly this many words.
        let values: [u64; size_of::<Layout>() / 8] = unsafe { core::mem::transmute(layout) };
        for (word, value) in words.zip(values) {
            word.store(value, Ordering::Relaxed);
        }
        let devices = pool.devices.iter().zip(pool.device_states());
        for ((device, state), blocks) in devices.zip(geometry.area_blocks) {
            state.missing.store(
                u64::from(device.slots).saturating_sub(blocks) as u32,
                Ordering::Relaxed,
            );
            let shut = if blocks == 0 { SHUT_LEAVING } else { 0 };
            state.shut.store(shut, Ordering::Relaxed);
        }
        pool.header().magic.store(MAGIC, Ordering::Release);
        Ok((fd, pool))
    }

    /// Maps the pool behind `fd`; EINVAL where it is none, none yet, or one of another build of farpage.
    pub fn attach(fd: i32) -> Result<Pool, Errno> {
        let len = sys::stat(fd)?.st_size as u64;
        if len < size_of::<Header>() as u64 {
            return Err(Errno(libc::EINVAL));
        }
        let head = map_shared(fd, 0, size_of::<Header>() as u64, None)?;
        // SAFETY: the file is at least a header long, and atomics may hold any bits.
        let header = unsafe { &*(head as *const Header) };
        let valid = header.magic.load(Ordering::Acquire) == MAGIC;
        let values: [u64; size_of::<Layout>() / 8] =
            core::array::from_fn(|i| header.layout[i].load(Ordering::Relaxed));
        // SAFETY: see create.
        let layout: Layout = unsafe { core::mem::transmute(values) };
        // SAFETY: nothing refers to the short mapping any more.
        let _ = unsafe { sys::munmap(head, size_of::<Header>() as u64) };
        if !valid || layout.common > len {
            return Err(Errno(libc::EINVAL));
        }
        Ok(Pool {
            base: map_shared(fd, 0, layout.common, None)?,
            layout,
            devices: layout.devices(),
        })
    }

    /// Unmaps it.
    ///
    /// # Safety
    /// Nobody uses it any more, nor what came from it.
    pub unsafe fn detach(self) {
        // SAFETY: as promised by the caller.
        let _ = unsafe { sys::munmap(self.base, self.layout.common) };
    }

    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    #[must_use]
    pub fn header(&self) -> &'static Header {
        // SAFETY: the common part starts with the header; see the file's safety note.
        unsafe { &*(self.base as *const Header) }
    }

    #[must_use]
    pub fn processes(&self) -> &'static [ProcEntry] {
        let reached = self.header().entries.load(Ordering::Acquire) as usize;
        &self.process_table()[..reached.min(MAX_PROCESSES)]
    }

    fn process_table(&self) -> &'static [ProcEntry] {
        self.part(size_of::<Header>() as u64, MAX_PROCESSES as u64)
    }

    /// Every entry there may be, one by one, each counted among those reached before it is looked at. (Looking at all of them at
    /// every tick would fill their memory, a quarter of a MiB.)
    pub fn reach(&self) -> impl Iterator<Item = &'static ProcEntry> {
        let reached = &self.header().entries;
        (1..).zip(self.process_table()).map(|(count, entry)| {
            reached.fetch_max(count, Ordering::AcqRel);
            entry
        })
    }

    #[must_use]
    pub fn swap_table(&self) -> SwapTable<'static> {
        SwapTable {
            words: self.part(self.layout.slots, self.layout.slot_count()),
        }
    }

    /// Bits of clusters whose blocks have their space (`reserve`).
    #[must_use]
    pub fn reserved(&self) -> &'static [AtomicU64] {
        self.part(self.layout.reserved, self.layout.reserved_words())
    }

    #[must_use]
    pub fn devices(&self) -> &[Device; DEVICES] {
        &self.devices
    }

    #[must_use]
    pub fn device_states(&self) -> &'static [DeviceState] {
        self.part(self.layout.device_states, DEVICES as u64)
    }

    /// A view on the slot allocator.
    #[must_use]
    pub fn slots(&self) -> Slots<'_, &Pool> {
        let clusters = self.layout.cluster_count;
        let parts = Parts {
            table: self.swap_table(),
            clusters: self.part(self.layout.clusters, clusters),
            lists: self.part(self.layout.lists, slots::list_words(clusters as usize) as u64),
            current: self.part(self.layout.current, (slots::CPUS * slots::CURRENT_WORDS) as u64),
            fifo: Fifo {
                places: self.part(self.layout.fifo + FIFO_PLACES, clusters),
                ends: &self.part(self.layout.fifo, 1)[0],
            },
            devices: &self.devices,
            states: self.device_states(),
        };
        Slots::new(parts, self)
    }

    #[must_use]
    pub fn zpool(&self) -> Zpool<'static> {
        Zpool {
            descs: self.part(self.layout.descs, self.layout.zpage_count),
            data: self.part(
                self.layout.zdata,
                self.layout.zpage_count * (ZPAGE_BYTES as u64 / 4),
            ),
            used: &self.header().zpages_used,
        }
    }

    /// Address of byte `offset` of the zpool's data in this process.
    #[must_use]
    pub fn zdata(&self, offset: u64) -> u64 {
        self.base + self.layout.zdata + offset
    }

    /// Gives the memory of empty zpages back; they read as zeros afterwards, though the kernel may refuse (a mapping that is locked in
    /// RAM).
    pub fn punch_zpages(&self, first: usize, count: usize) {
        let (at, len) = (self.zdata((first * ZPAGE_BYTES) as u64), count * ZPAGE_BYTES);
        // SAFETY: the zpages are in state Emptying and ours, so nobody reads or writes them.
        unsafe {
            if sys::madvise(at, len as u64, libc::MADV_REMOVE).is_err() {
                core::ptr::write_bytes(at as *mut u8, 0, len);
            }
        }
    }

    /// Gets the memory of a fresh zpage by one call: a fault for each page of it costs several times as much, and threads that store
    /// side by side wait for each other's.
    pub fn populate_zpage(&self, zpage: usize) {
        let at = self.zdata((zpage * ZPAGE_BYTES) as u64);
        // SAFETY: changes no content. Where it fails, the first write to each page gets its memory.
        let _ = unsafe { sys::madvise(at, ZPAGE_BYTES as u64, libc::MADV_POPULATE_WRITE) };
    }

    /// What the process at `index` owes for (see `debts`): a byte for each chunk of 512 pages, a bit of it for each window of 64.
    #[must_use]
    pub fn debts(&self, index: usize) -> &'static [AtomicU8] {
        debug_assert!(index < MAX_PROCESSES);
        self.part(self.layout.debts + index as u64 * DEBTS_LEN, DEBTS_LEN)
    }

    /// Gives their memory back.
    pub fn punch_debts(&self, index: usize) {
        let start = self.base + self.layout.debts + index as u64 * DEBTS_LEN;
        // SAFETY: a part of the common mapping, all zeros, that reads as zeros afterwards too.
        let _ = unsafe { sys::madvise(start, DEBTS_LEN, libc::MADV_REMOVE) };
    }

    fn part<T>(&self, offset: u64, count: u64) -> &'static [T] {
        // SAFETY: offsets come from the layout, whose parts are aligned to 2 MiB (the process table to the header's
        // size, a multiple of ProcEntry's alignment) and lie inside the mapping; T is a struct of atomics.
        unsafe { core::slice::from_raw_parts((self.base + offset) as *const T, count as usize) }
    }

    /// Maps the page states of process `index`, over the mapping `at` where given; returns their address.
    pub fn map_states(&self, fd: i32, index: usize, at: Option<u64>) -> Result<u64, Errno> {
        map_shared(fd, self.layout.states + index as u64 * STATES_LEN, STATES_LEN, at)
    }
}

/// Left out of core dumps: a dump of gigabytes of holes would fill them, in RAM and on the disk.
fn map_shared(fd: i32, offset: u64, len: u64, at: Option<u64>) -> Result<u64, Errno> {
    let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
    // SAFETY: a fixed address is an older mapping of the same kind that the caller gives up.
    unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | fixed;
        let base = sys::mmap(at.unwrap_or(0), len, sys::PROT_RW, flags, fd, offset)?;
        let _ = sys::madvise(base, len, libc::MADV_DONTDUMP);
        Ok(base)
    }
}

impl Punch for &Pool {
    fn punch(&self, cluster: u32) {
        let words = CLUSTER_SLOTS as u64 * 8;
        // SAFETY: the cluster's words are all free and its lock is held, so nobody writes them; readers get zeros.
        let _ = unsafe {
            sys::madvise(
                self.base + self.layout.slots + u64::from(cluster) * words,
                words,
                libc::MADV_REMOVE,
            )
        };
    }
}

impl Area {
    /// Its name as the user gave it, as far as it fits.
    #[must_use]
    pub fn name(&self) -> String {
        let bytes = self.name.iter().map(|b| b.load(Ordering::Relaxed));
        let name: Vec<u8> = bytes.take_while(|&b| b != 0).collect();
        String::from_utf8_lossy(&name).into_owned()
    }

    /// Blocks that hold no page; `None`: it takes none.
    pub fn free_blocks(&self) -> Option<i64> {
        let free = || self.blocks.load(Ordering::Relaxed) as i64 - self.used.load(Ordering::Relaxed);
        self.takes_pages().then(free)
    }

    /// Whether what is written to it now may be kept there.
    pub fn takes_pages(&self) -> bool {
        self.open.load(Ordering::Relaxed) != 0 && !self.refusal.is_of_all()
    }
}

impl Header {
    /// Notes an emptied zpage that keeps its memory: at most one in 128 of the tier's. One that was noted before, and is perhaps in use
    /// again, for the caller to empty.
    pub fn keep_zpage(&self, zpage: usize) -> Option<usize> {
        let limit = self.zpages_limit.load(Ordering::Relaxed) as usize;
        let places = (limit / 128).clamp(1, KEPT_ZPAGES);
        let place = self.kept_at.fetch_add(1, Ordering::Relaxed) as usize % places;
        let older = self.kept_zpages[place].swap(zpage as u32 + 1, Ordering::Relaxed);
        older.checked_sub(1).map(|older| older as usize)
    }

    pub fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }

    #[inline]
    pub fn count(&self, counter: Counter, n: u64) {
        self.counters[counter as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// What a counter stands at.
    pub fn counted(&self, counter: Counter) -> u64 {
        self.counters[counter as usize].load(Ordering::Relaxed)
    }

    pub fn record_latency(&self, source: Source, ns: u64) {
        self.latency[source as usize][Histogram::bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// Pages of compressed storage in use.
    pub fn zpool_pages(&self) -> i64 {
        (self.zpages_used.load(Ordering::Relaxed) * (ZPAGE_BYTES / PAGE_SIZE) as u64) as i64
    }

    /// How many pages the tree is over its limit if `more` are added (negative: room left).
    #[inline]
    pub fn excess(&self, more: i64) -> i64 {
        self.charged.load(Ordering::Relaxed) + self.zpool_pages() + more - self.limit.load(Ordering::Relaxed)
    }

    /// What the limit leaves for pages that are not compressed.
    pub fn room_at_most(&self) -> i64 {
        (self.limit.load(Ordering::Relaxed) - self.zpool_pages()).max(2)
    }

    /// The limit never falls below this: a program needs some pages at a time, beside what is compressed already.
    pub fn least_limit(&self) -> i64 {
        self.zpool_pages() + (self.budget.load(Ordering::Relaxed) / 16).max(256)
    }

    /// Whether the numbers of processes here are those of the caller's pid namespace.
    #[must_use]
    pub fn counts_as_we_do(&self) -> bool {
        self.pid_namespace.load(Ordering::Relaxed) == sys::pid_namespace()
    }

    /// Asks every process of the tree to reclaim.
    pub fn ask_to_reclaim(&self) {
        self.reclaim_seq.fetch_add(1, Ordering::Relaxed);
        sys::futex_wake(&self.reclaim_seq, u32::MAX >> 1, true);
    }

    /// Sleeps until somebody asks for reclaim, at most `us` microseconds.
    pub fn nap(&self, us: u64) {
        let seq = self.reclaim_seq.load(Ordering::Relaxed);
        sys::futex_wait(&self.reclaim_seq, seq, true, us);
    }

    /// Pages that have ever left the programs of the tree for good, each counted on its way to a frame and from there, and where it left the
    /// compressed tier for a file: does not stand still while any process makes room.
    pub fn pages_left(&self) -> u64 {
        let ways = [
            Counter::Pgsteal,
            Counter::Zswpout,
            Counter::Zswpwb,
            Counter::Pswpout,
            Counter::SwpoutZero,
            Counter::SwpoutUnchanged,
        ];
        let left = ways.map(|way| self.counted(way)).into_iter();
        left.fold(0, u64::wrapping_add)
            .wrapping_sub(self.counted(Counter::SwpoutRefused))
    }

    /// Whether it has been full for so long, with programs waiting for room, that there is no hope of any.
    pub fn is_hopeless(&self) -> bool {
        self.hopeless.load(Ordering::Relaxed) != 0
    }
}
