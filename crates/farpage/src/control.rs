//! Changing the tiers of a running tree: how a command asks, and what the supervisor does.
//!
//! A command writes its request into the pool's header; the supervisor looks at it each tick, carries it out step by
//! step between its other duties, and answers there. One request at a time. A command that stops counting up its `beat` is gone,
//! and its request is given up: an area that was being emptied takes pages again.
//!
//! The compressed tier is taken away like an area, but for the file; it comes back at once, as it was.
//!
//! Taking an area away: 1. is there room for its pages elsewhere? 2. no slot of it is handed out any more; 3. every process
//! empties it of its own pages (`swapoff`); 4. when no slot is taken the tree forgets the file; 5. the processes
//! drop their descriptors (`tier_files`), the supervisor its own. Adding one: 1. open the file as `farpage run` does; 2. the processes
//! fetch a descriptor each; 3. when all have it, slots are handed out.

mod client;
mod tier;

use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use farpage_core::devices::{self, SHUT_FAILED};
use farpage_core::readahead::hits::WindowCounts;
use farpage_core::units::{PAGE_SIZE, format_size};

use crate::areas::{self, OpenArea};
use crate::ledger::living;
use crate::pool::{Area, MAX_AREAS, Pool, ProcEntry, entry_state};
use crate::supervisor::PathSpec;
use crate::tier_files::{self, Followed};
use crate::{check, compact, sys, thread};

pub use client::{Client, Progress};
pub use tier::{Tier, areas_of, has_compressed};

/// A command is gone when it has not beaten for so long, in nanoseconds.
const BEAT_MAX_NS: u64 = 5_000_000_000;
/// How long it is waited for processes that do nothing of what they are asked, in nanoseconds: if some process of the tree is stopped,
const PATIENCE_NS: u64 = 4_000_000_000;
/// and else. (On a busy machine with a slow disk no slot of an area became free for four seconds, and all processes ran.)
const PATIENCE_MOST_NS: u64 = 30_000_000_000;
/// How long at most those that share what was compressed may take to name its new place.
const RENAME_NS: u64 = 1_000_000_000;
/// Looks that must find that no page names what is left, and the time before each.
const LOOKS: u32 = 5;
const LOOK_NS: u64 = 300_000_000;
/// How long processes may take to close the file of an area taken away.
const CLOSE_NS: u64 = 1_000_000_000;
/// Longest path, and longest answer, in bytes.
pub const TEXT_MAX: usize = 4096;

/// Values of [`Control::phase`].
mod phase {
    pub const IDLE: u32 = 0;
    pub const ASKED: u32 = 1;
    pub const RUNNING: u32 = 2;
    pub const DONE: u32 = 3;
    pub const FAILED: u32 = 4;
}

const SWAPOFF: u32 = 1;
const SWAPON: u32 = 2;
const SWAPON_COMPRESSED: u32 = 3;

/// The part of the pool's header in which commands and the supervisor meet, and processes find what they are to empty.
#[repr(C)]
pub struct Control {
    /// The command that has the floor, by its pid; 0: none.
    client: AtomicI32,
    beat: AtomicU32,
    /// The supervisor's bell: a descriptor of its, 0 if there is none.
    pub bell: AtomicU32,
    phase: AtomicU32,
    request: AtomicU32,
    cancel: AtomicU32,
    /// Number of the tier that is meant, or index of the area that was chosen.
    area: AtomicU32,
    /// Bytes of a new area; 0: as many as there are.
    size: AtomicU64,
    /// As in `DeviceState::raised`.
    priority: AtomicU32,
    /// Slots to be emptied at the start.
    total: AtomicU64,
    /// 1: nothing is to be compressed, the tier leaves or has left; and its limit before, in zpages.
    pub tier_shut: AtomicU32,
    tier_limit: AtomicU64,
    /// What processes are to empty: number of the tier + 1, and a number that differs from the last one's above; 0: nothing.
    pub job: AtomicU32,
    /// How: `swapoff::Order` as a number, and the size of windows.
    pub order: AtomicU32,
    pub window: AtomicU32,
    /// A futex: changes with `job`.
    pub wake: AtomicU32,
    /// Pages that found no place, or could not be read.
    pub no_room: AtomicU64,
    pub unreadable: AtomicU64,
    /// Pages that went to RAM and to other tiers; windows that were read.
    pub to_ram: AtomicU64,
    pub to_tiers: AtomicU64,
    pub windows: WindowCounts,
    text: [AtomicU8; TEXT_MAX],
}

impl Control {
    /// Pages that were given another place since the tree began: in RAM, and in other tiers.
    #[must_use]
    pub fn placed(&self) -> (u64, u64) {
        (
            self.to_ram.load(Ordering::Relaxed),
            self.to_tiers.load(Ordering::Relaxed),
        )
    }

    fn write(&self, text: &[u8]) {
        let bytes = text.iter().copied().take(TEXT_MAX - 1);
        for (to, byte) in self.text.iter().zip(bytes.chain([0])) {
            to.store(byte, Ordering::Relaxed);
        }
    }

    fn read(&self) -> Vec<u8> {
        let bytes = self.text.iter().map(|byte| byte.load(Ordering::Relaxed));
        bytes.take_while(|&byte| byte != 0).collect()
    }

    /// Whether there is a request, which the command can't take back from now on.
    fn takes_on(&self) -> bool {
        let begun =
            self.phase
                .compare_exchange(phase::ASKED, phase::RUNNING, Ordering::Acquire, Ordering::Relaxed);
        begun.is_ok()
    }

    fn set_job(&self, job: u32) {
        self.job.store(job, Ordering::Release);
        self.wake.fetch_add(1, Ordering::SeqCst);
        sys::futex_wake(&self.wake, u32::MAX >> 1, true);
    }
}

/// What a command may ask for.
#[derive(Clone, Debug)]
pub enum Request {
    Swapoff {
        tier: Tier,
        order: u32,
        window: u32,
    },
    Swapon(PathSpec),
    /// The compressed tier that was taken away.
    SwaponCompressed,
}

/// What the supervisor is about.
enum Work {
    Idle,
    Emptying {
        tier: Tier,
        left: u64,
        since_ns: u64,
        /// How often in a row the rest was found to be named by no page, and when to look again.
        looks: u32,
        look_ns: u64,
        no_room: u64,
        unreadable: u64,
    },
    /// Processes open the file of a new area.
    Adding {
        index: usize,
        since_ns: u64,
    },
    /// Processes close the file of an area taken away.
    Closing {
        index: usize,
        since_ns: u64,
    },
}

/// The supervisor's side.
pub struct Server {
    pool: Pool,
    pool_fd: i32,
    files: [Option<OpenArea>; MAX_AREAS],
    work: Work,
    beat: u32,
    beat_ns: u64,
    jobs: u32,
    /// The space of an area taken away is being given back.
    is_shrinking: bool,
    patience: Patience,
}

impl Server {
    #[must_use]
    pub fn new(pool: Pool, pool_fd: i32, open: Vec<OpenArea>) -> Server {
        let mut open = open.into_iter();
        Server {
            pool,
            pool_fd,
            files: core::array::from_fn(|_| open.next()),
            work: Work::Idle,
            beat: 0,
            beat_ns: 0,
            jobs: 0,
            is_shrinking: false,
            patience: Patience::default(),
        }
    }

    /// Whether the next tick should come soon.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !matches!(self.work, Work::Idle)
    }

    /// Whether it should come at once.
    #[must_use]
    pub fn is_shrinking(&self) -> bool {
        self.is_shrinking
    }

    /// The tree has ended: so has the request.
    pub fn end(&mut self) {
        let phase = self.pool.header().control.phase.load(Ordering::Acquire);
        if matches!(phase, phase::ASKED | phase::RUNNING) {
            self.fail("the tree has ended meanwhile");
        }
    }

    /// Carries the request on by a step.
    pub fn tick(&mut self) {
        tier_files::note_seeks(&self.pool);
        let now = sys::now_ns();
        self.lift_refusals(now);
        let control = &self.pool.header().control;
        let gone = self.client_is_gone(now);
        let cancelled = gone || control.cancel.load(Ordering::Relaxed) != 0;
        match self.work {
            Work::Idle if gone => {
                control.phase.store(phase::IDLE, Ordering::Relaxed);
                control.client.store(0, Ordering::Release);
            }
            Work::Idle if control.takes_on() => {
                let begun = match control.request.load(Ordering::Relaxed) {
                    SWAPOFF => self.begin_swapoff(now),
                    SWAPON => self.begin_swapon(now),
                    _ => {
                        Tier::Compressed.reopen(&self.pool);
                        self.answer(phase::DONE);
                        Ok(())
                    }
                };
                if let Err(why) = begun {
                    self.fail(&why);
                }
            }
            Work::Idle => {}
            Work::Emptying { tier, .. } if cancelled => self.give_up(tier, "interrupted"),
            Work::Emptying { .. } => self.watch_emptying(now),
            Work::Adding { index, since_ns } => self.watch_adding(index, since_ns, now, cancelled),
            Work::Closing { index, since_ns } => self.watch_closing(index, since_ns, now),
        }
    }

    /// Areas that refused what was written to them and may take it by now are open again.
    fn lift_refusals(&self, now: u64) {
        let refuse = self.files.iter().zip(&self.pool.header().area).enumerate();
        for (index, (file, area)) in refuse.filter(|(_, (_, area))| area.refusal.stands()) {
            let has_space = || file.as_ref().is_some_and(OpenArea::has_space);
            if area.refusal.may_be_lifted(now, has_space) {
                area.refusal.lift(now);
                self.pool.device_states()[index]
                    .shut
                    .fetch_and(!SHUT_FAILED, Ordering::Relaxed);
            }
        }
    }

    fn client_is_gone(&mut self, now: u64) -> bool {
        let control = &self.pool.header().control;
        let beat = control.beat.load(Ordering::Relaxed);
        if control.client.load(Ordering::Relaxed) == 0 || beat != self.beat {
            (self.beat, self.beat_ns) = (beat, now);
        }
        now.saturating_sub(self.beat_ns) > BEAT_MAX_NS
    }

    fn answer(&mut self, phase: u32) {
        self.work = Work::Idle;
        let control = &self.pool.header().control;
        control.phase.store(phase, Ordering::Release);
    }

    fn fail(&mut self, why: &str) {
        self.pool.header().control.write(why.as_bytes());
        self.answer(phase::FAILED);
    }

    fn area(&self, index: usize) -> &'static Area {
        &self.pool.header().area[index]
    }

    fn begin_swapoff(&mut self, now: u64) -> Result<(), String> {
        let header = self.pool.header();
        let control = &header.control;
        let tier = Tier::of(control.area.load(Ordering::Relaxed))
            .filter(|tier| tier.is_open(&self.pool))
            .ok_or("there is no such area any more; farpage stat --json lists them")?;
        let pages = tier.pages(&self.pool);
        // What is compressed takes RAM as it is.
        let in_ram = (tier.ram(&self.pool) - header.excess(thread::headroom_of(header))).max(0);
        let others = areas_of(&self.pool).into_iter().map(|(index, _)| index);
        let elsewhere: i64 = others
            .filter(|other| Tier::Area(*other) != tier)
            .filter_map(|other| self.area(other).free_blocks())
            .sum();
        if pages > in_ram + elsewhere {
            let bytes = |pages: i64| format_size(pages as u64 * PAGE_SIZE as u64);
            return Err(format!(
                "{}: the {} in it do not fit elsewhere: {} of the budget and {} of other areas are free, {} too little; add \
                 one with farpage swapon first",
                tier.name(&self.pool),
                bytes(pages),
                bytes(in_ram),
                bytes(elsewhere),
                bytes(pages - in_ram - elsewhere)
            ));
        }
        tier.shut(&self.pool);
        let left = tier.left(&self.pool);
        control.total.store(left, Ordering::Relaxed);
        self.work = Work::Emptying {
            tier,
            left,
            since_ns: now,
            looks: 0,
            look_ns: now + LOOK_NS,
            no_room: control.no_room.load(Ordering::Relaxed),
            unreadable: control.unreadable.load(Ordering::Relaxed),
        };
        self.jobs = self.jobs.wrapping_add(1) & 0xff_ffff;
        control.set_job(self.jobs << 8 | (tier.number() + 1));
        header.ask_to_reclaim();
        Ok(())
    }

    fn watch_emptying(&mut self, now: u64) {
        let Work::Emptying {
            tier,
            left,
            since_ns,
            looks,
            look_ns,
            no_room,
            unreadable,
        } = &mut self.work
        else {
            return;
        };
        let (tier, control) = (*tier, &self.pool.header().control);
        let used = tier.left(&self.pool);
        if used < *left {
            (*left, *since_ns, *looks, *look_ns) = (used, now, 0, now + LOOK_NS);
            *no_room = control.no_room.load(Ordering::Relaxed);
            *unreadable = control.unreadable.load(Ordering::Relaxed);
        }
        if let Tier::Area(index) = tier
            && used > 0
            && now >= *look_ns
        {
            // A process that died between two steps may have left a reference that no page holds. Counting again gives it up
            // (`recount`) unless a process stands still that could; nobody needs what it refers to. Its slot stays taken
            // until then, without a file.
            let lost = check::lost_slots(&self.pool, self.pool_fd, index);
            *looks = if lost == Some(used) { *looks + 1 } else { 0 };
            *look_ns = now + LOOK_NS;
        }
        let idle_ns = now.saturating_sub(*since_ns);
        if (used == 0 || *looks >= LOOKS) && tier.is_settled(&self.pool, used, idle_ns) {
            control.set_job(0);
            self.close(tier, now);
            return;
        }
        if idle_ns < PATIENCE_NS {
            return;
        }
        let why = if control.unreadable.load(Ordering::Relaxed) > *unreadable {
            "some of its pages can't be read; check the device"
        } else if control.no_room.load(Ordering::Relaxed) > *no_room {
            "the rest of its pages finds no room; add an area with farpage swapon"
        } else if self.patience.lasts(&self.pool, idle_ns, now) {
            return;
        } else {
            "a process that has pages in it does not answer; let it run on if it is stopped"
        };
        self.give_up(tier, why);
    }

    /// Nothing is in it any more.
    fn close(&mut self, tier: Tier, now: u64) {
        match tier {
            Tier::Area(index) => {
                tier_files::forget(&self.pool, index);
                tier_files::announce(&self.pool);
                self.work = Work::Closing { index, since_ns: now };
            }
            Tier::Compressed => {
                compact::give_back_empty(&self.pool);
                self.answer(phase::DONE);
            }
        }
    }

    /// It takes pages again.
    fn give_up(&mut self, tier: Tier, why: &str) {
        self.pool.header().control.set_job(0);
        tier.reopen(&self.pool);
        let name = tier.name(&self.pool);
        self.fail(&format!("{name}: {why}; it stays in use"));
    }

    fn begin_swapon(&mut self, now: u64) -> Result<(), String> {
        let control = &self.pool.header().control;
        let spec = PathSpec {
            path: OsString::from_vec(control.read()).into(),
            size: Some(control.size.load(Ordering::Relaxed)).filter(|size| *size > 0),
            priority: devices::priority_of(control.priority.load(Ordering::Relaxed)),
        };
        let used = |index: &usize| self.files[*index].is_some();
        // Behind the others, if there is a place: what joins last is filled last.
        let behind = (0..MAX_AREAS).rfind(used).map_or(0, |last| last + 1);
        let index = Some(behind)
            .filter(|index| *index < MAX_AREAS)
            .or_else(|| (0..MAX_AREAS).find(|index| !used(index)))
            .ok_or_else(|| {
                format!(
                    "{MAX_AREAS} swap files are in use, which is the most; take one away with farpage swapoff"
                )
            })?;
        let shown = spec.path.display();
        let file = areas::open_path(&spec).map_err(|why| bare(&why))?;
        let room = self.pool.layout().device_slots[index];
        if spec.size.is_some() && file.blocks > room {
            return Err(format!(
                "{shown}: {} is more than can be added to a running tree; give at most {}",
                format_size(file.blocks * PAGE_SIZE as u64),
                format_size(room * PAGE_SIZE as u64)
            ));
        }
        tier_files::describe(&self.pool, index, &file).map_err(|why| format!("{shown}: {why}"))?;
        control.area.store(index as u32, Ordering::Relaxed);
        self.files[index] = Some(file);
        self.work = Work::Adding { index, since_ns: now };
        tier_files::announce(&self.pool);
        Ok(())
    }

    fn watch_adding(&mut self, index: usize, since_ns: u64, now: u64, cancelled: bool) {
        let why = match tier_files::followed(&self.pool) {
            _ if cancelled => "interrupted".to_owned(),
            Followed::All => {
                tier_files::open_to_pages(&self.pool, index);
                self.answer(phase::DONE);
                return;
            }
            Followed::Waiting(_) if self.patience.lasts(&self.pool, now.saturating_sub(since_ns), now) => {
                return;
            }
            Followed::Waiting(pid) => {
                format!("process {pid} does not answer; let it run on if it is stopped")
            }
            Followed::Failed(pid, errno) => format!(
                "process {pid} can't open it ({errno}); it needs /proc and the user of farpage run, or root"
            ),
        };
        let name = self.area(index).name();
        tier_files::forget(&self.pool, index);
        tier_files::announce(&self.pool);
        self.files[index] = None;
        self.fail(&format!("{name}: {why}"));
    }

    /// A process that does not answer, or is dormant, keeps its descriptor a little longer: the space is given back all the same.
    fn watch_closing(&mut self, index: usize, since_ns: u64, now: u64) {
        let all = tier_files::followed(&self.pool) == Followed::All;
        if !all && now.saturating_sub(since_ns) < CLOSE_NS {
            return;
        }
        self.is_shrinking = self.files[index].as_ref().is_some_and(OpenArea::shrink);
        if self.is_shrinking {
            return;
        }
        self.files[index] = None;
        self.answer(phase::DONE);
    }
}

/// How long processes are waited for that do nothing.
#[derive(Default)]
struct Patience {
    /// When it was last asked whether one is stopped, and the answer: the kernel reads all of a process's threads for that.
    asked_ns: u64,
    is_one_stopped: bool,
}

impl Patience {
    /// Whether processes that have not done anything for so long, in nanoseconds, are waited for.
    fn lasts(&mut self, pool: &Pool, idle_ns: u64, now: u64) -> bool {
        if idle_ns >= PATIENCE_NS && now.saturating_sub(self.asked_ns) >= LOOK_NS {
            let is_stopped = |entry: &ProcEntry| {
                let pid = entry.pid.load(Ordering::Relaxed);
                entry.state.load(Ordering::Relaxed) == entry_state::LIVE && living::is_stopped(pid)
            };
            self.asked_ns = now;
            self.is_one_stopped = pool.processes().iter().any(is_stopped);
        }
        idle_ns < PATIENCE_NS || (idle_ns < PATIENCE_MOST_NS && !self.is_one_stopped)
    }
}

/// The text of a refusal without the option's name before it.
fn bare(why: &str) -> String {
    why.strip_prefix("--swap ").unwrap_or(why).to_owned()
}
