//! The books of a tree: who lives, what is not managed, and the limit that follows from it.
//!
//! limit = budget - what processes use beside managed memory - what dormant ones may still fill without a word - part of
//! what forked ones may still copy without a word - the pool's own metadata - what a container needs that the budget nearly fills - a margin.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::sync::atomic::Ordering;

pub mod living;

use farpage_core::stats::Counter;

use crate::cleanup;
use crate::compact;
use crate::container::{Container, Guard};
use crate::maps::anonymous_of;
use crate::orphans::Orphans;
use crate::overcommit::Overcommit;
use crate::pool::{MAX_PROCESSES, Pool, ProcEntry, entry_state};
use crate::recount;
use crate::sentinel;
use crate::slot_batch;
use crate::spare_cpus::SpareCpus;
use crate::sys;
use crate::thread::next_headroom;
use crate::tier_share::TierShare;

/// An entry taken by a parent whose child never came to life.
const EMBRYO_MAX_NS: u64 = 10_000_000_000;
/// How often the costly exact share of a process's memory is read, at most.
const SHARE_EVERY_NS: u64 = 100_000_000;
/// Reading shares takes at most one part in so many of the time.
const SHARE_COST: u64 = 50;

/// Counting again takes at most one part in so many of the time, and so does moving compressed pages together.
const JOB_COST: u64 = 20;
/// A difference between what the tree and what its processes are charged is a dead one's after so many ticks.
const DRIFT_TICKS: u32 = 8;

/// How often a process is looked at for managed pages that do not change by more than a few.
const LOOKS: u32 = 4;
const MOVED_FEW: u64 = 64;

/// How long a look may be kept from a CPU, in nanoseconds.
const HELD_NS: u64 = 5_000_000;

/// Pages read ahead between two ticks for which room should stand ready.
const AHEAD_MANY: u64 = 64;
/// Pages of the budget that are left for what is not counted yet, beside a 128th of it.
const MARGIN: i64 = 64;
/// What forked processes share beside managed pages, and may each copy, takes at most one part in so many of the limit: children
/// may go on sharing it for good.
pub const COPIES_PART: i64 = 8;

/// What was found when a process's fair share of shared memory was last read, in pages.
struct Share {
    /// Its share less what it was charged.
    uncharged: i64,
    /// Its share of its anonymous memory, in thousandths.
    permille: i64,
    /// Its anonymous less its managed pages, which tell what changed since.
    apart: i64,
    read_ns: u64,
}

pub struct Ledger {
    pool: Pool,
    pool_fd: i32,
    shares: HashMap<i32, Share>,
    live: usize,
    /// Processes alive at the tick before.
    entries: usize,
    /// Whether processes came or went since the last look: the shares of the others have changed with it.
    changed: bool,
    /// Whether shares are read at this look, those of all processes: for that reason, or as it is time.
    reads: bool,
    /// When they were last read, and how long that took.
    read_ns: u64,
    took_ns: u64,
    /// Entries ever taken before the last look, and how many deaths it found; whether some process was in a fork.
    births: u32,
    deaths: u32,
    forking: bool,
    /// Whether a process was forked meanwhile: its parent was seen before and it after, so that what both share counts one and a
    /// half times.
    torn: bool,
    /// What was not managed then.
    unmanaged: i64,
    /// What the tree was last seen to be charged more than its processes, and at how many ticks in a row.
    drift: (i64, u32),
    /// By entry: of the life that was taken at the first, field 22 of /proc/PID/stat, so that a reused pid is not taken for it. Kept
    /// here: written into the entry it once came to the next process there, which was buried alive for being another.
    starts: Vec<(u64, u64)>,
    /// By entry: whether its process was active at the last look, and what it had beside managed pages.
    lasts: Vec<(u32, i64)>,
    /// What a death left is counted again, if anything is.
    recounts: Paced,
    /// Compressed pages are moved together, if that gains anything.
    compacts: Paced,
    /// Pages that the compressed tier held then.
    objects: usize,
    /// How often faults had made room themselves at the tick before, and how many pages had come ahead of their touch.
    demand: (u64, u64),
    share: TierShare,
    orphans: Orphans,
    spare_cpus: SpareCpus,
    overcommit: Overcommit,
    guard: Option<Guard>,
}

/// A job that is done at a tick, unless it would take more than its part of the CPU's time. Holds when it is next due. What it waited for
/// a CPU meanwhile does not count: beside thirty busy threads what a death had left was once not counted for half a minute.
#[derive(Default)]
struct Paced(u64);

impl Paced {
    fn run(&mut self, now: u64, job: impl FnOnce()) {
        if now >= self.0 {
            let (start, began) = (sys::thread_ns(), sys::now_ns());
            job();
            // And as long as it took with all that it waited: it keeps the supervisor from the rest.
            let took = sys::now_ns() - began;
            self.0 = now + ((sys::thread_ns() - start) * JOB_COST).max(2 * took);
        }
    }
}

/// What a process, or the tree, has beside managed pages.
#[derive(Clone, Copy, Default)]
struct Beside {
    /// In the first view of [`Ledger::unmanaged`].
    uncharged: i64,
    /// In the second.
    unmanaged: i64,
    /// Mapped for writing by dormant processes and not touched yet: nobody is asked when it is.
    promised: i64,
    /// Shared since fork, beyond the one copy: the kernel copies it when it is written, and nobody is asked.
    copies: i64,
    /// What of that was there at the look before and is no more: the limit holds it up for one look.
    held_up: i64,
}

impl Beside {
    fn add(&mut self, other: Beside) {
        self.uncharged += other.uncharged;
        self.unmanaged += other.unmanaged;
        self.promised += other.promised;
        self.copies += other.copies;
        self.held_up += other.held_up;
    }
}

/// One process as /proc shows it.
struct Seen {
    gone: bool,
    start_time: u64,
}

impl Ledger {
    #[must_use]
    pub fn new(pool: Pool, pool_fd: i32, container: Option<Container>) -> Ledger {
        let budget = pool.header().budget.load(Ordering::Relaxed);
        Ledger {
            pool,
            pool_fd,
            shares: HashMap::new(),
            live: 0,
            entries: 0,
            changed: false,
            reads: false,
            read_ns: 0,
            took_ns: 0,
            births: 0,
            deaths: 0,
            forking: false,
            torn: false,
            unmanaged: 0,
            drift: (0, 0),
            starts: vec![(0, 0); MAX_PROCESSES],
            lasts: vec![(0, 0); MAX_PROCESSES],
            recounts: Paced::default(),
            compacts: Paced::default(),
            objects: 0,
            demand: (0, 0),
            share: TierShare::default(),
            orphans: Orphans::default(),
            spare_cpus: SpareCpus::default(),
            overcommit: Overcommit::default(),
            guard: container.map(|container| Guard::new(container, budget)),
        }
    }

    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Processes alive at the last tick, those included that only borrow the memory of one that is not.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live
    }

    /// Looks at every process once.
    pub fn tick(&mut self) {
        let (now, ran) = (sys::now_ns(), sys::thread_ns());
        let promises = self.pool.header().promises.load(Ordering::SeqCst);
        self.entries = self.live;
        let mut beside = self.look(now);
        if self.deaths > 0 || self.torn {
            // What the dead shared is the others' now.
            beside = self.look(now);
        }
        self.live += self.orphans.run(&self.pool, self.pool_fd, now);
        self.mend_charges();
        let kept = self.pool.processes().iter();
        let kept = kept.map(|entry| entry.kept.load(Ordering::Relaxed)).sum();
        self.pool.header().kept.store(kept, Ordering::Relaxed);
        let poor = self.pool.poor_pages();
        self.pool.header().poor.store(poor, Ordering::Relaxed);
        self.shares.retain(|_, share| share.read_ns >= self.read_ns);
        let own = own_pages();
        // Every page once, at whatever processes it is charged, as the kernel's own counts have it: of shares that are of one time.
        let is_whole = !self.torn && !self.forking && (self.reads || self.live < 2);
        if is_whole {
            self.note_peak(beside.uncharged - beside.held_up + own, now, ran);
        }
        beside.unmanaged = beside.unmanaged.max(beside.uncharged) + own;
        if self.forking {
            // The child's part of what both share is seen at neither.
            beside.unmanaged = beside.unmanaged.max(self.unmanaged);
        }
        self.unmanaged = beside.unmanaged;
        self.set_limit(beside, promises, now);
        self.recounts.run(now, || recount::mend(&self.pool, self.pool_fd));
        self.compacts.run(now, || self.objects = compact::run(&self.pool));
        sentinel::call_up(&self.pool);
        self.spare_cpus.look(self.pool.header());
        self.overcommit.look(&self.pool, now);
    }

    /// Looks at every process; what the tree has beside managed pages.
    fn look(&mut self, now: u64) -> Beside {
        let mut beside = Beside::default();
        let births = self.pool.header().births.load(Ordering::Acquire);
        let is_forking = |entry: &ProcEntry| entry.forking.load(Ordering::Acquire) != 0;
        let was_forking = self.pool.processes().iter().any(is_forking);
        let forked = self.torn || (self.forking && !was_forking);
        let stale = now - self.read_ns > SHARE_EVERY_NS.max(self.took_ns * SHARE_COST);
        self.changed = births != self.births || self.deaths > 0 || forked;
        self.reads = self.changed || stale;
        if self.reads {
            (self.read_ns, self.took_ns) = (now, 0);
        }
        self.births = births;
        (self.live, self.deaths, self.forking) = (0, 0, false);
        for index in 0..self.pool.processes().len() {
            let entry = &self.pool.processes()[index];
            // The life that is looked at, read first: should the entry be given up and taken anew from here on, nothing is done
            // to it. 0: taken a moment ago, the time is about to be written.
            let born = entry.born_ns.load(Ordering::Acquire);
            let state = entry.state.load(Ordering::Acquire);
            if let Some(cleaner) = entry_state::cleaner(state)
                && has_ended(cleaner)
            {
                cleanup::take_over(&self.pool, self.pool_fd, index, state);
                continue;
            }
            if let Some(forker) = entry_state::left_to_whom(state)
                && has_ended(forker)
            {
                cleanup::let_go(entry, forker);
                continue;
            }
            let taker = entry_state::taker(state);
            // In this order: what is active, not the child's and with nobody in fork has its pid, or its fork was never ended. Its
            // parent may live, in another image.
            let is_marked = entry.active.load(Ordering::Acquire) != 0;
            let forker = entry.forking.load(Ordering::Acquire);
            let unborn = entry.pid.load(Ordering::Relaxed) == 0;
            if forker != 0 && has_ended(forker) {
                // A borrower, say, whose parent was cleaned up after before it had begun.
                cleanup::let_go(entry, forker);
            } else if forker != 0 {
                // However long the parent takes (it may be stopped).
                self.live += 1;
                self.forking = true;
                beside.copies += entry.apart.load(Ordering::Relaxed);
                continue;
            }
            if taker.is_some() && born == 0 {
                // Its taker may have been killed before it wrote the time.
                let _ = entry
                    .born_ns
                    .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
            }
            // A child whose parent is gone has so long to say that it lives; after that it is stopped (`fork`).
            let old = born != 0 && now.saturating_sub(born) > EMBRYO_MAX_NS;
            let is_left = taker.is_some_and(has_ended) || (is_marked && entry_state::is_parents(state));
            if unborn && old && is_left {
                cleanup::give_up(&self.pool, self.pool_fd, index, born, state);
            }
            let lives = state == entry_state::LIVE || (taker.is_some() && !unborn);
            if !lives {
                continue;
            }
            if let Some(pages) = self.look_at(index, born, now) {
                self.live += 1;
                beside.add(pages);
            }
        }
        let more = self.pool.header().births.load(Ordering::Acquire) != births;
        self.torn = more || (was_forking && !self.forking);
        beside
    }

    /// A process killed between its own charge and the tree's leaves the two apart. So does one that is in between, but not for
    /// long; should it be stopped there for longer, what was mended wrongly is mended back once it has gone on.
    fn mend_charges(&mut self) {
        let header = self.pool.header();
        let charged = |entry: &ProcEntry| entry.charged.load(Ordering::Relaxed);
        let sum: i64 = self.pool.processes().iter().map(charged).sum();
        let drift = header.charged.load(Ordering::Relaxed) - sum;
        let ticks = if drift == self.drift.0 {
            self.drift.1 + 1
        } else {
            1
        };
        self.drift = (drift, ticks);
        if drift != 0 && ticks >= DRIFT_TICKS {
            header.charged.fetch_sub(drift, Ordering::Relaxed);
            self.drift = (0, 0);
        }
    }

    /// What a process has beside managed pages; `None` if it was found dead and cleaned up.
    fn look_at(&mut self, index: usize, born: u64, now: u64) -> Option<Beside> {
        let entry = &self.pool.processes()[index];
        let pid = entry.pid.load(Ordering::Relaxed);
        let Some(seen) = see(pid) else {
            let before = entry.unmanaged.load(Ordering::Relaxed);
            return Some(Beside {
                uncharged: before,
                unmanaged: before,
                promised: promised(entry, before),
                copies: copies(entry, before),
                held_up: 0,
            });
        };
        let known = &mut self.starts[index];
        let replaced = known.0 == born && known.1 != seen.start_time;
        if seen.gone || replaced || left_by_exec(entry, pid) {
            if entry.active.load(Ordering::Relaxed) != 0 {
                self.orphans.note_end(&self.pool);
            }
            cleanup::return_everything(&self.pool, self.pool_fd, index, born);
            self.deaths += 1;
            return None;
        }
        let active = entry.active.load(Ordering::Relaxed);
        let now_apart = apart(entry, pid);
        let last = core::mem::replace(&mut self.lasts[index], (active, now_apart));
        // What falls is believed at the second look: memory is unmapped before the books say so. What becomes managed is managed at
        // once: threads wait for the limit that knows of it.
        let apart = if known.0 == born && last.0 == active {
            now_apart.max(last.1)
        } else {
            now_apart
        };
        *known = (born, seen.start_time);
        entry.apart.store(apart.max(0), Ordering::Relaxed);
        let (uncharged, unmanaged) = self.unmanaged(entry, pid, apart, now);
        let before = entry.unmanaged.swap(unmanaged, Ordering::Relaxed);
        let header = self.pool.header();
        header.unmanaged.fetch_add(unmanaged - before, Ordering::Relaxed);
        if unmanaged > before {
            // Not only when all have been looked at.
            header.lower_limit(unmanaged - before);
        }
        Some(Beside {
            uncharged,
            unmanaged,
            promised: promised(entry, unmanaged.max(uncharged)),
            copies: copies(entry, unmanaged),
            held_up: apart.max(0) - now_apart.max(0),
        })
    }

    /// Alone, a process shares nothing. In a tree there are two views of what is not managed: shares less charges (shared pages
    /// cancel out, however they are charged), and each process's own part at the rate at which it shares. The first misses
    /// as much as is charged twice, the second what is charged to nobody: the greater sum of the two counts.
    fn unmanaged(&mut self, entry: &ProcEntry, pid: i32, apart: i64, now: u64) -> (i64, i64) {
        if self.entries < 2 && self.live == 0 && !self.changed {
            return (apart.max(0), apart.max(0));
        }
        if self.reads || !self.shares.contains_key(&pid) {
            let anon = apart + managed(entry);
            let start = sys::thread_ns();
            let charged = entry.charged.load(Ordering::Relaxed);
            // Who is ending has no memory, and is charged for it still. (What it shared was counted twice then, for all that it has in its books.)
            let pss = pss_anon(pid).unwrap_or(charged);
            let share = Share {
                uncharged: pss - charged,
                permille: (pss * 1000 / anon.max(1)).clamp(0, 1000),
                apart,
                read_ns: now,
            };
            self.took_ns += sys::thread_ns() - start;
            self.shares.insert(pid, share);
        }
        self.shares.get(&pid).map_or((apart, apart), |share| {
            (
                share.uncharged + apart - share.apart,
                apart.max(0) * share.permille / 1000,
            )
        })
    }

    /// Whether faults have had to make room themselves since the last tick, or many pages came before they were wanted: those are
    /// brought in by the dozen.
    fn has_little_headroom(&mut self) -> bool {
        let count = |counter: Counter| self.pool.header().counted(counter);
        let ahead =
            (count(Counter::Pswpin) + count(Counter::Zswpin)).saturating_sub(count(Counter::Pgmajfault));
        let now = (count(Counter::Allocstall), ahead);
        let before = core::mem::replace(&mut self.demand, now);
        // What is read to empty an area is no demand: pages it was promised room for would find none.
        let is_emptied = self.pool.header().control.job.load(Ordering::Relaxed) != 0;
        now.0 != before.0 || (now.1 >= before.1 + AHEAD_MANY && !is_emptied)
    }

    /// `promises` and `now` are of the tick's start.
    fn set_limit(&mut self, beside: Beside, promises: i64, now: u64) {
        let Beside {
            unmanaged,
            promised,
            copies,
            ..
        } = beside;
        let header = self.pool.header();
        let budget = header.budget.load(Ordering::Relaxed);
        let metadata = metadata(&self.pool, self.pool_fd);
        let margin = MARGIN + budget / 128;
        let given = self.guard.as_mut().map_or(0, |guard| guard.look(&self.pool, now));
        let rest = budget - unmanaged - promised - metadata - margin - given;
        // Made during this look, and taken off the limit that is replaced.
        let made = || header.promises.load(Ordering::SeqCst) - promises;
        let late = made();
        let limit = rest - copies.clamp(0, rest.max(0) / COPIES_PART) - late;
        let more = (header.least_limit() - limit).max(0);
        let limit = limit + more;
        header.given.store((given - more).max(0), Ordering::Relaxed);
        header.set_limit(limit, now);
        slot_batch::set_enough(&self.pool);
        let later = made() - late;
        if later > 0 {
            header.lower_limit(later);
        }
        let is_short = self.has_little_headroom();
        let headroom = header.headroom.load(Ordering::Relaxed);
        header
            .headroom
            .store(next_headroom(headroom, limit, is_short), Ordering::Relaxed);
        if header.excess(0) > 0 {
            header.ask_to_reclaim();
        }
        if header.control.tier_shut.load(Ordering::SeqCst) == 0 {
            let zpages = self.share.zpages(&self.pool, limit, self.objects);
            header.zpages_limit.store(zpages, Ordering::SeqCst);
        }
    }

    /// The most the tree was seen to have: what is held up for the limit's sake is not in it. `now`, `ran`: the time, and this thread's own,
    /// when the look began. If it was kept from a CPU since then, what was seen unmanaged may be charged by now; what is charged the tree has
    /// in any case. (On a machine with forty threads for each CPU a tree that had 94 MiB was once said to have had 138.)
    fn note_peak(&self, unmanaged: i64, now: u64, ran: u64) {
        let header = self.pool.header();
        let metadata = metadata(&self.pool, self.pool_fd);
        let charged = header.charged.load(Ordering::Relaxed);
        let held = (sys::now_ns() - now).saturating_sub(sys::thread_ns() - ran) > HELD_NS;
        let unmanaged = if held && charged > 0 { 0 } else { unmanaged };
        let total = charged + header.zpool_pages() + unmanaged + metadata;
        header.peak.fetch_max(total, Ordering::Relaxed);
        header.metadata_peak.fetch_max(metadata, Ordering::Relaxed);
    }
}

/// Pages of the pool that are not the compressed tier's.
fn metadata(pool: &Pool, pool_fd: i32) -> i64 {
    (pool_pages(pool_fd) - pool.header().zpool_pages()).max(0)
}

fn managed(entry: &ProcEntry) -> i64 {
    entry.resident.load(Ordering::Relaxed) + entry.frames.load(Ordering::Relaxed)
}

/// What a process has beside its managed pages; it runs on meanwhile, and we may be kept from running between two looks.
fn apart(entry: &ProcEntry, pid: i32) -> i64 {
    let known = entry.apart.load(Ordering::Relaxed);
    let mut before = managed(entry);
    let mut apart = known;
    for _ in 0..LOOKS {
        let anon = anon_pages(pid);
        let after = managed(entry);
        if anon == 0 && after > 0 {
            return known; // it is ending: its memory is gone or going
        }
        apart = apart_of(known, anon, before, after);
        if before.abs_diff(after) <= MOVED_FEW {
            break;
        }
        before = after;
    }
    apart
}

/// A process had `anon` pages at a time between those at which it had `before` and `after` managed ones: what is nearest to the
/// `known` rest. To take the later figure at its word once hid all of the rest for a moment, in which 32 threads filled it: 107 MiB of 96.
fn apart_of(known: i64, anon: i64, before: i64, after: i64) -> i64 {
    known.clamp(anon - before.max(after), anon - before.min(after))
}

/// Pages that a dormant process has mapped for writing beyond the `seen` ones it uses. It is not asked when it fills them, so
/// the rest of the tree leaves room for them (decision 0001).
fn promised(entry: &ProcEntry, seen: i64) -> i64 {
    if entry.active.load(Ordering::Relaxed) != 0 {
        return 0;
    }
    // What is mapped from here on is taken off the limit by the process; what was mapped before is seen by the second look.
    entry.promised.store(entry.may_fill(), Ordering::SeqCst);
    (entry.may_fill() - seen.max(0)).max(0)
}

/// Pages that a process has beside managed ones and shares since a fork, all but the `counted` ones. A dormant one has
/// promised more than them.
fn copies(entry: &ProcEntry, counted: i64) -> i64 {
    if entry.active.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    (entry.apart.load(Ordering::Relaxed) - counted).max(0)
}

/// True for a process that called exec and now runs something that has not joined the pool.
fn left_by_exec(entry: &ProcEntry, pid: i32) -> bool {
    entry.execing.load(Ordering::Relaxed) != 0 && has_no_pool(pid)
}

/// Whether it can be seen that the process has no pool mapped.
fn has_no_pool(pid: i32) -> bool {
    living::of_memory(pid, "maps").is_ok_and(|maps| !maps.contains("farpage-pool"))
}

/// Whether the process is there and, as far as can be seen, not one without a pool that was given the number of one that has ended.
#[must_use]
pub fn is_there(pid: i32) -> bool {
    !has_ended(pid) && !has_no_pool(pid)
}

/// Whether there is no such process any more, or only what its parent has not taken note of.
#[must_use]
pub fn has_ended(pid: i32) -> bool {
    see(pid).is_some_and(|seen| seen.gone)
}

/// `None`: it could not be read now, which says nothing about the process.
fn see(pid: i32) -> Option<Seen> {
    let gone = Seen {
        gone: true,
        start_time: 0,
    };
    let stat = match living::text(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat,
        Err(e) if e.kind() == ErrorKind::NotFound || e.raw_os_error() == Some(libc::ESRCH) => {
            return Some(gone);
        }
        Err(_) => return None,
    };
    // From the state on: start time is the 20th.
    let fields = living::fields(&stat)?;
    let start_time = fields.get(19)?.parse().ok()?;
    // A process whose first thread has ended lives on as a "zombie" with other threads (field 20, the 18th here).
    let threads = fields.get(17).and_then(|f| f.parse().ok()).unwrap_or(1);
    if living::is_ended(&fields) && threads <= 1 {
        return Some(gone);
    }
    Some(Seen {
        gone: false,
        start_time,
    })
}

/// Anonymous pages in RAM: resident less shared (file and shmem).
fn anon_pages(pid: i32) -> i64 {
    let Ok(statm) = living::of_memory(pid, "statm") else {
        return 0;
    };
    anonymous_of(&statm)
}

fn own_pages() -> i64 {
    anon_pages(sys::getpid())
}

/// Anonymous memory with shared pages divided among their users, in pages.
fn pss_anon(pid: i32) -> Option<i64> {
    let rollup = living::of_memory(pid, "smaps_rollup").ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss_Anon:"))?;
    line.split_ascii_whitespace()
        .next()?
        .parse::<i64>()
        .ok()
        .map(|kib| kib / 4)
}

/// Memory of the pool itself, in pages.
fn pool_pages(pool_fd: i32) -> i64 {
    use std::os::linux::fs::MetadataExt;
    fs::metadata(format!("/proc/self/fd/{pool_fd}")).map_or(0, |m| (m.st_blocks() / 8) as i64)
}

#[cfg(test)]
mod tests;
