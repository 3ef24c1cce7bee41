//! CPUs in virtual time: each takes one fault after the other on a random page that is swapped out, and swaps a page out
//! for it, as in a program with random touches and a working set larger than its RAM.
//!
//! A fault is a row of steps. The CPU whose time is least takes its next step; so whoever comes to a lock first has it
//! first, and a seed repeats every run exactly.

use std::collections::{BTreeMap, VecDeque};

use farpage_core::cluster::CLUSTER_SLOTS;
use farpage_core::slot_cache::{CACHE_SLOTS, SlotCache};
use farpage_core::slots::{Locked, Run};

use super::baseline::{Map, Tree};
use super::costs::Costs;
use super::locks::Lock;
use super::ours::{Counted, Ours, Spent};
use super::{Shape, Stage};
use crate::rng::Rng;

/// Pages of a CPU that are in the swap cache because they are being written.
const WRITING: usize = 32;
/// Slots that share a tree once the cache is split: 64 MiB.
const TRUNK_SLOTS: u32 = 16384;
/// Slots asked for at once: as many as a block of frames has pages.
const AHEAD: usize = 64;

/// A page on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    /// The one that was touched.
    Coming,
    /// The one that leaves for it.
    Going,
    /// One that left before and is written now.
    Written,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// All that no lock covers.
    Trap,
    LookUp,
    Read,
    /// A slot is found for the page that leaves.
    Take,
    /// One user of the slot more, or less.
    Up(Which),
    Down(Which),
    /// Into the swap cache's tree, or out of it.
    Enter(Which),
    Leave(Which),
    /// The slot of the page that came is given back, if its last user did not do that.
    Release,
    Publish,
}

/// The kernel of 2016: the cache and the page tables each count as a user of a slot.
const BASELINE: &[Step] = &[
    Step::Trap,
    Step::LookUp,
    Step::Up(Which::Coming),
    Step::Enter(Which::Coming),
    Step::Read,
    Step::Down(Which::Coming),
    Step::Leave(Which::Coming),
    Step::Down(Which::Coming),
    Step::Take,
    Step::Enter(Which::Going),
    Step::Up(Which::Going),
    Step::Leave(Which::Written),
    Step::Down(Which::Written),
];
/// The same with slots from `farpage-core`.
const CLUSTERS: &[Step] = &[
    Step::Trap,
    Step::LookUp,
    Step::Up(Which::Coming),
    Step::Enter(Which::Coming),
    Step::Read,
    Step::Down(Which::Coming),
    Step::Leave(Which::Coming),
    Step::Down(Which::Coming),
    Step::Release,
    Step::Take,
    Step::Publish,
    Step::Enter(Which::Going),
    Step::Up(Which::Going),
    Step::Leave(Which::Written),
    Step::Down(Which::Written),
];
/// farpage: the word of the slot is all there is.
const TABLE: &[Step] = &[
    Step::Trap,
    Step::LookUp,
    Step::Read,
    Step::Down(Which::Coming),
    Step::Release,
    Step::Take,
    Step::Publish,
];

#[derive(Debug)]
struct Cpu {
    next: usize,
    coming: u32,
    going: u32,
    written: Option<u32>,
    writing: VecDeque<u32>,
    ahead: Run,
    cache: SlotCache,
    /// What a slot cache gives back, a cluster at a time.
    giving: VecDeque<Vec<u32>>,
    /// Work that others left to this CPU, to be paid with its next step.
    owed: Spent,
    fault: Spent,
}

/// The locks and structures of a stage.
#[derive(Debug)]
enum Slots {
    Baseline { maps: Vec<(Map, Lock)>, turn: usize },
    Core(Box<Ours>),
}

/// What was seen of the faults that count.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Software time of each fault.
    pub fault_ns: Vec<u64>,
    /// Sums over them.
    pub spent: Spent,
    /// From the first to the last.
    pub elapsed_ns: u64,
    /// Cluster locks.
    pub counted: Counted,
}

enum Event {
    Run(u32),
    Unlock(u32, Locked),
}

/// A machine of one stage and shape.
pub struct Machine {
    costs: Costs,
    stage: Stage,
    program: &'static [Step],
    slots: Slots,
    trees: Vec<(Tree, Lock)>,
    /// Slots of a device, for the baseline's numbers.
    device_slots: u32,
    cpus: Vec<Cpu>,
    swapped: Vec<u32>,
    /// By time, then by when it was known.
    due: BTreeMap<(u64, u64), Event>,
    numbers: u64,
    rng: Rng,
    seen: Seen,
}

/// A contradiction, which a correct simulator never meets.
type Wrong = String;

impl Machine {
    /// A machine in which `shape.pages` pages are swapped out, on devices with twice the slots.
    ///
    /// # Errors
    /// If the slots do not suffice.
    pub fn new(stage: Stage, shape: &Shape, costs: Costs) -> Result<Self, Wrong> {
        let (devices, slots) = (shape.devices, 2 * shape.pages);
        let device_slots = (slots / devices) as u32;
        let (slots, trees, program) = match stage {
            Stage::Baseline => {
                let map = |_| (Map::new(device_slots as usize), Lock::default());
                let maps = (0..devices).map(map).collect();
                (Slots::Baseline { maps, turn: 0 }, devices, BASELINE)
            }
            _ => {
                let shares_hint = stage == Stage::ClusterLocks;
                let ours = Ours::new(devices, slots, shape.cpus, costs, shares_hint);
                let trunks = (ours.memory().clusters() * CLUSTER_SLOTS).div_ceil(TRUNK_SLOTS as usize);
                let program = if stage.has_trees() { CLUSTERS } else { TABLE };
                (Slots::Core(Box::new(ours)), trunks, program)
            }
        };
        let mut machine = Self {
            costs,
            stage,
            program,
            slots,
            trees: (0..trees).map(|_| (Tree::new(), Lock::default())).collect(),
            device_slots,
            cpus: (0..shape.cpus).map(|_| Cpu::new()).collect(),
            swapped: Vec::with_capacity(shape.pages),
            due: BTreeMap::new(),
            numbers: 0,
            rng: Rng::new(shape.seed),
            seen: Seen::default(),
        };
        machine.fill(shape.pages)?;
        for cpu in 0..shape.cpus as u32 {
            machine.at(u64::from(cpu), Event::Run(cpu));
        }
        Ok(machine)
    }

    /// Swaps out the first pages, which takes no time: by all CPUs in turn, a block each.
    fn fill(&mut self, pages: usize) -> Result<(), Wrong> {
        let cpus = self.cpus.len() as u32;
        for cpu in (0..cpus).cycle() {
            let left = pages - self.swapped.len();
            if left == 0 {
                break;
            }
            for _ in 0..left.min(AHEAD) {
                let (_, token) = self.take(cpu, 0)?;
                if let Some(token) = token {
                    self.unlock(token);
                }
                let slot = self.cpus[cpu as usize].going;
                if let Slots::Core(ours) = &self.slots {
                    ours.publish(slot).map_err(|wrong| wrong.to_string())?;
                }
                self.swapped.push(slot);
            }
        }
        Ok(())
    }

    fn unlock(&self, token: Locked) -> Spent {
        match &self.slots {
            Slots::Core(ours) => ours.unlock(token),
            Slots::Baseline { .. } => Spent::default(),
        }
    }

    fn at(&mut self, ns: u64, event: Event) {
        self.numbers += 1;
        self.due.insert((ns, self.numbers), event);
    }

    /// Runs until `warm` faults are over, which do not count, and then `faults` more.
    ///
    /// # Errors
    /// If the slots do not suffice, or the structures contradict the simulator.
    pub fn run(&mut self, warm: usize, faults: usize) -> Result<Seen, Wrong> {
        let mut since_ns = 0;
        let mut done = 0;
        while let Some(((now_ns, _), event)) = self.due.pop_first() {
            match event {
                Event::Unlock(cpu, token) => {
                    let owed = self.unlock(token);
                    self.cpus[cpu as usize].owed.add(owed);
                }
                Event::Run(cpu) if self.step(cpu, now_ns)? => {
                    done += 1;
                    if done == warm {
                        self.seen = Seen::default();
                        self.take_counted();
                        since_ns = now_ns;
                    }
                    if done == warm + faults {
                        self.seen.elapsed_ns = now_ns - since_ns;
                        break;
                    }
                }
                Event::Run(_) => {}
            }
        }
        self.seen.counted = self.take_counted();
        Ok(std::mem::take(&mut self.seen))
    }

    fn take_counted(&mut self) -> Counted {
        match &mut self.slots {
            Slots::Core(ours) => std::mem::take(&mut ours.counted),
            Slots::Baseline { .. } => Counted::default(),
        }
    }

    /// Slots that somebody has, by the structures and by the simulator: equal when all is well. Ends the run: all that is
    /// locked is unlocked.
    #[must_use]
    pub fn slots_used(mut self) -> (usize, usize) {
        while let Some((_, event)) = self.due.pop_first() {
            if let Event::Unlock(_, token) = event {
                self.unlock(token);
            }
        }
        let of_structures = match &self.slots {
            Slots::Core(ours) => ours.memory().used(),
            Slots::Baseline { maps, .. } => maps.iter().map(|(map, _)| map.used()).sum(),
        };
        let of_cpu = |cpu: &Cpu| {
            let mut cache = cpu.cache;
            let kept = cache.take_run(true).map_or(0, |run| run.count);
            let giving: usize = cpu.giving.iter().map(Vec::len).sum();
            let coming = usize::from(cpu.holds_coming(self.program));
            let going = usize::from(cpu.holds_going(self.program));
            kept + cache.drain_freed().1
                + giving
                + cpu.ahead.count
                + cpu.writing.len()
                + coming
                + going
                + usize::from(cpu.written.is_some())
        };
        let known = self.swapped.len() + self.cpus.iter().map(of_cpu).sum::<usize>();
        (of_structures, known)
    }

    /// One step of a CPU; whether that was the last of a fault.
    fn step(&mut self, cpu: u32, now_ns: u64) -> Result<bool, Wrong> {
        let at = cpu as usize;
        if self.cpus[at].next == 0 {
            let picked = self.rng.below(self.swapped.len());
            if self.swapped.is_empty() {
                return Err("more CPUs than pages".to_owned());
            }
            self.cpus[at].coming = self.swapped.swap_remove(picked);
        }
        let step = self.program[self.cpus[at].next];
        let (mut spent, token) = self.perform(step, cpu, now_ns)?;
        spent.add(std::mem::take(&mut self.cpus[at].owed));
        let end_ns = now_ns + spent.all_ns;
        if let Some(token) = token {
            self.at(end_ns, Event::Unlock(cpu, token));
        }
        let me = &mut self.cpus[at];
        me.fault.add(spent);
        let goes_on = step == Step::Release && !me.giving.is_empty();
        me.next += usize::from(!goes_on);
        let is_over = me.next == self.program.len();
        if is_over {
            me.next = 0;
            let fault = std::mem::take(&mut me.fault);
            self.seen.fault_ns.push(fault.all_ns);
            self.seen.spent.add(fault);
            if !self.stage.has_trees() {
                self.swapped.push(self.cpus[at].going);
            }
        }
        let idle_ns = if step == Step::Read {
            self.around(self.costs.read)
        } else {
            0
        };
        self.at(end_ns + idle_ns, Event::Run(cpu));
        Ok(is_over)
    }

    fn perform(&mut self, step: Step, cpu: u32, now_ns: u64) -> Result<(Spent, Option<Locked>), Wrong> {
        let spent = match step {
            Step::Trap => Spent::work(self.around(self.costs.fault)),
            Step::Read => Spent::default(),
            Step::LookUp => self.look_up(cpu),
            Step::Take => return self.take(cpu, now_ns),
            Step::Release => return self.release(cpu, now_ns),
            Step::Publish => match &self.slots {
                Slots::Core(ours) => ours.publish(self.cpus[cpu as usize].going).map_err(told)?,
                Slots::Baseline { .. } => Spent::default(),
            },
            Step::Up(which) => self.count(which, cpu, now_ns, true)?,
            Step::Down(which) => self.count(which, cpu, now_ns, false)?,
            Step::Enter(which) => self.cache(which, cpu, now_ns, true)?,
            Step::Leave(which) => self.cache(which, cpu, now_ns, false)?,
        };
        Ok((spent, None))
    }

    /// Between half of `ns` and half more: with equal times CPUs would fall into step and never meet at a lock.
    fn around(&mut self, ns: u64) -> u64 {
        ns / 2 + self.rng.below(ns as usize + 1) as u64
    }

    fn look_up(&self, cpu: u32) -> Spent {
        let slot = self.cpus[cpu as usize].coming;
        match &self.slots {
            Slots::Core(ours) if !self.stage.has_trees() => ours.look_up(slot),
            _ => {
                let tree = &self.trees[self.tree_of(slot)].0;
                std::hint::black_box(tree.get(&slot));
                Spent::work(self.costs.tree_look)
            }
        }
    }

    fn tree_of(&self, slot: u32) -> usize {
        let part = match self.slots {
            Slots::Baseline { .. } => slot / self.device_slots,
            Slots::Core(_) => slot / TRUNK_SLOTS,
        };
        part as usize
    }

    fn slot_of(&self, which: Which, cpu: u32) -> Option<u32> {
        let cpu = &self.cpus[cpu as usize];
        match which {
            Which::Coming => Some(cpu.coming),
            Which::Going => Some(cpu.going),
            Which::Written => cpu.written,
        }
    }

    /// A user of a slot more or less.
    fn count(&mut self, which: Which, cpu: u32, now_ns: u64, up: bool) -> Result<Spent, Wrong> {
        let Some(slot) = self.slot_of(which, cpu) else {
            return Ok(Spent::default());
        };
        let spent = match &mut self.slots {
            Slots::Core(ours) if up => ours.dup(slot).map_err(told)?,
            Slots::Core(ours) => ours.put(cpu, slot).map_err(told)?,
            Slots::Baseline { maps, .. } => {
                let (map, lock) = &mut maps[(slot / self.device_slots) as usize];
                let at = slot % self.device_slots;
                if !(if up { map.up(at) } else { map.down(at) }) {
                    return Err(format!("slot {slot} has no user"));
                }
                let held = lock.hold(cpu, now_ns, self.costs.map_count, self.costs.line);
                Spent::waited(held.waited_ns, held.worked_ns)
            }
        };
        if which == Which::Written {
            self.swapped.push(slot);
            self.cpus[cpu as usize].written = None;
        }
        Ok(spent)
    }

    /// A page enters the swap cache's tree or leaves it.
    fn cache(&mut self, which: Which, cpu: u32, now_ns: u64, enters: bool) -> Result<Spent, Wrong> {
        let me = &mut self.cpus[cpu as usize];
        if which == Which::Going && enters {
            me.writing.push_back(me.going);
        }
        if which == Which::Written && me.writing.len() > WRITING {
            me.written = me.writing.pop_front();
        }
        let Some(slot) = self.slot_of(which, cpu) else {
            return Ok(Spent::default());
        };
        let at = self.tree_of(slot);
        let (tree, lock) = &mut self.trees[at];
        let (was_there, ns) = if enters {
            (
                tree.insert(slot, u64::from(cpu)).is_some(),
                self.costs.tree_insert,
            )
        } else {
            (tree.remove(&slot).is_some(), self.costs.tree_delete)
        };
        if was_there == enters {
            return Err(format!("slot {slot} is in the cache twice, or never was"));
        }
        let held = lock.hold(cpu, now_ns, ns, self.costs.line);
        Ok(Spent::waited(held.waited_ns, held.worked_ns))
    }

    /// A slot for the page that leaves: from what the CPU keeps, else from the structures.
    fn take(&mut self, cpu: u32, now_ns: u64) -> Result<(Spent, Option<Locked>), Wrong> {
        let full = || "the devices are full".to_owned();
        let me = &mut self.cpus[cpu as usize];
        let ours = match &mut self.slots {
            Slots::Core(ours) => ours,
            Slots::Baseline { maps, turn } => {
                *turn += 1;
                let device = *turn % maps.len();
                let (map, lock) = &mut maps[device];
                me.going = map.alloc().ok_or_else(full)? + device as u32 * self.device_slots;
                let held = lock.hold(cpu, now_ns, self.costs.map_alloc, self.costs.line);
                return Ok((Spent::waited(held.waited_ns, held.worked_ns), None));
            }
        };
        if self.stage == Stage::PercpuSlots {
            me.ahead = me.cache.take_run(true).unwrap_or(Run { first: 0, count: 0 });
        }
        let mut result = (Spent::default(), None);
        if me.ahead.count == 0 {
            let want = if self.stage == Stage::ClusterLocks {
                1
            } else {
                AHEAD
            };
            let (run, spent, token) = ours.alloc(cpu, now_ns, want).ok_or_else(full)?;
            me.ahead = run;
            result = (spent, token);
        }
        me.going = me.ahead.first;
        me.ahead.first += 1;
        me.ahead.count -= 1;
        if self.stage == Stage::PercpuSlots {
            let rest = std::mem::replace(&mut me.ahead.count, 0);
            let run = Run {
                first: me.ahead.first,
                count: rest,
            };
            if me.cache.keep_run(true, run).is_some() {
                return Err("a slot cache keeps two runs".to_owned());
            }
        }
        Ok(result)
    }

    /// The slot of the page that came is given back, alone or with those that the CPU has kept.
    fn release(&mut self, cpu: u32, now_ns: u64) -> Result<(Spent, Option<Locked>), Wrong> {
        let Slots::Core(ours) = &mut self.slots else {
            return Ok((Spent::default(), None));
        };
        let me = &mut self.cpus[cpu as usize];
        if me.giving.is_empty() {
            if self.stage == Stage::PercpuSlots {
                let all: Option<[u32; CACHE_SLOTS]> = me.cache.free(me.coming);
                let groups = all.iter().flat_map(|slots| {
                    slots.chunk_by(|a, b| a / CLUSTER_SLOTS as u32 == b / CLUSTER_SLOTS as u32)
                });
                me.giving = groups.map(<[u32]>::to_vec).collect();
            } else {
                me.giving.push_back(vec![me.coming]);
            }
        }
        match me.giving.pop_front() {
            Some(group) => ours.release(cpu, now_ns, &group).map_err(told),
            None => Ok((Spent::default(), None)),
        }
    }
}

fn told(wrong: farpage_core::swap_table::Impossible) -> Wrong {
    wrong.to_string()
}

impl Cpu {
    fn new() -> Self {
        Self {
            next: 0,
            coming: 0,
            going: 0,
            written: None,
            writing: VecDeque::new(),
            ahead: Run { first: 0, count: 0 },
            cache: SlotCache::new(),
            giving: VecDeque::new(),
            owed: Spent::default(),
            fault: Spent::default(),
        }
    }

    /// Whether the step of that kind, the last of its kind in the program, is still to come in a fault that has begun.
    fn is_before(&self, program: &[Step], step: Step) -> bool {
        let last = program.iter().rposition(|s| *s == step);
        self.next > 0 && last.is_some_and(|last| self.next <= last)
    }

    fn holds_coming(&self, program: &[Step]) -> bool {
        let frees = if program.contains(&Step::Release) {
            Step::Release
        } else {
            Step::Down(Which::Coming)
        };
        self.is_before(program, frees) && self.giving.is_empty()
    }

    fn holds_going(&self, program: &[Step]) -> bool {
        let taken = program.iter().position(|s| *s == Step::Take);
        // With a tree it is among those being written once it has entered.
        let until = program.iter().position(|s| *s == Step::Enter(Which::Going));
        let until = until.unwrap_or(program.len());
        taken.is_some_and(|taken| self.next > taken) && self.next <= until
    }
}

impl Spent {
    /// Waiting for a lock, then work.
    fn waited(waited_ns: u64, worked_ns: u64) -> Self {
        Self {
            all_ns: waited_ns + worked_ns,
            lock_ns: waited_ns,
            shared_ns: 0,
        }
    }

    fn add(&mut self, other: Self) {
        self.all_ns += other.all_ns;
        self.lock_ns += other.lock_ns;
        self.shared_ns += other.shared_ns;
    }
}
