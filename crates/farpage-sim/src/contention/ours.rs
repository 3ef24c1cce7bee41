//! The allocator and table of `farpage-core`, called as they are, with what the other CPUs would see of each call.
//!
//! A call is made in one go at the virtual time it begins. The cluster it worked in is then locked again, through the same
//! interface, until the virtual time it ends: calls that other CPUs make meanwhile find it held, and do what the code
//! does in that case. That is conservative: for a part of the time the lock would not have been held.

use farpage_core::cluster::{CLUSTER_SLOTS, List};
use farpage_core::slots::{Locked, Request, Run};
use farpage_core::swap_table::{Backing, Impossible};

use super::costs::Costs;
use super::locks::Line;
use super::memory::Memory;

/// What an operation took of a CPU's time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// All of it.
    pub all_ns: u64,
    /// Of that: waiting for locks, finding them held, and doing the work that others left for the holder.
    pub lock_ns: u64,
    /// Of that: until words came that all CPUs change.
    pub shared_ns: u64,
}

impl Spent {
    /// Work without waiting.
    #[must_use]
    pub const fn work(all_ns: u64) -> Self {
        Self {
            all_ns,
            lock_ns: 0,
            shared_ns: 0,
        }
    }
}

/// Cluster locks, as the code counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Taken.
    pub locks: u64,
    /// Found held.
    pub missed: u64,
}

/// The structures, and which CPU was where last.
#[derive(Debug)]
pub struct Ours {
    memory: Memory,
    costs: Costs,
    /// Of each cluster: the CPU that worked in it last, and the list it was on then.
    last: Vec<Option<u32>>,
    homes: Vec<(List, usize, usize)>,
    /// Of each device: the line that steers it, and its lists.
    steers: Vec<Line>,
    lists: Vec<Line>,
    queue: Line,
    /// Where a CPU allocated last, if all share that word.
    hint: Option<Line>,
    current: Vec<Option<u32>>,
    /// Cluster locks taken and missed since last asked.
    pub counted: Counted,
}

impl Ours {
    /// Empty structures of `devices` devices with `slots` slots in all. With `shares_hint` the CPUs have one current cluster.
    #[must_use]
    pub fn new(devices: usize, slots: usize, cpus: usize, costs: Costs, shares_hint: bool) -> Self {
        let memory = Memory::new(devices, slots);
        let clusters = memory.clusters();
        Self {
            costs,
            last: vec![None; clusters],
            homes: (0..clusters as u32).map(|c| memory.home(c)).collect(),
            steers: vec![Line::default(); devices],
            lists: vec![Line::default(); devices],
            queue: Line::default(),
            hint: shares_hint.then(Line::default),
            current: vec![None; cpus],
            counted: Counted::default(),
            memory,
        }
    }

    /// The structures themselves.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Up to `want` slots for CPU `cpu`, which comes at `now_ns`; the token is to be handed to [`Self::unlock`] when the time
    /// spent is over. None if the devices are full.
    pub fn alloc(&mut self, cpu: u32, now_ns: u64, want: usize) -> Option<(Run, Spent, Option<Locked>)> {
        let before = self.shared_words();
        let view = self.memory.slots();
        let request = Request {
            owner: cpu as u16,
            cpu: if self.hint.is_some() { 0 } else { cpu },
            order: 0,
            want,
            has_file: true,
        };
        let run = view.alloc(&request)?;
        let tally = view.take_tally();
        let cluster = run.first / CLUSTER_SLOTS as u32;
        let device = self.memory.device_of(cluster);
        let mut spent = self.locked(cpu, now_ns, cluster, &before);
        self.count(tally.locks, tally.missed, &mut spent);
        let visit = if want == 1 {
            self.costs.visit_one
        } else {
            self.costs.visit
        };
        spent.all_ns += tally.locks * visit;
        // Lists are read, and each cluster that was looked into for nothing may have got another place.
        let is_current = self.current.get(cpu as usize) == Some(&Some(cluster));
        let on_lists = u64::from(!is_current) + tally.locks.saturating_sub(1);
        for _ in 0..on_lists {
            spent.shared_ns += self.lists[device].touch_ns(cpu, now_ns, self.costs.line);
        }
        if let Some(hint) = &mut self.hint {
            spent.shared_ns += hint.touch_ns(cpu, now_ns, self.costs.line);
        }
        if let Some(current) = self.current.get_mut(cpu as usize) {
            *current = Some(cluster);
        }
        spent.all_ns += spent.shared_ns;
        let token = self.memory.slots().try_lock(cluster, cpu as u16);
        Some((run, spent, token))
    }

    /// Gives slots of one cluster back. Without a token the holder of its lock was told to.
    ///
    /// # Errors
    /// The first slot that is not the CPU's.
    pub fn release(
        &mut self,
        cpu: u32,
        now_ns: u64,
        slots: &[u32],
    ) -> Result<(Spent, Option<Locked>), Impossible> {
        let before = self.shared_words();
        let view = self.memory.slots();
        view.release(slots, cpu as u16)?;
        let tally = view.take_tally();
        let cluster = slots.first().map_or(0, |slot| slot / CLUSTER_SLOTS as u32);
        let mut spent = if tally.locks > 0 {
            self.locked(cpu, now_ns, cluster, &before)
        } else {
            Spent::default()
        };
        self.count(tally.locks, tally.missed, &mut spent);
        spent.all_ns += self.costs.release + self.costs.release_next * (slots.len() as u64).saturating_sub(1);
        spent.all_ns += spent.shared_ns;
        let token = (tally.locks > 0).then(|| self.memory.slots().try_lock(cluster, cpu as u16));
        Ok((spent, token.flatten()))
    }

    /// Unlocks what a call held; the time it takes if others have left work there.
    pub fn unlock(&self, token: Locked) -> Spent {
        let view = self.memory.slots();
        let has_more = view.cluster_word(token.cluster()).pending();
        view.unlock_unchanged(token);
        let ns = u64::from(has_more) * self.costs.sweep;
        Spent {
            all_ns: ns,
            lock_ns: ns,
            shared_ns: 0,
        }
    }

    /// A slot that was taken gets content.
    ///
    /// # Errors
    /// If nobody has taken it.
    pub fn publish(&self, slot: u32) -> Result<Spent, Impossible> {
        self.memory.table().publish(slot, Backing::Device { crc: slot })?;
        Ok(Spent::work(self.costs.publish))
    }

    /// One reference more.
    ///
    /// # Errors
    /// If the slot has no content.
    pub fn dup(&self, slot: u32) -> Result<Spent, Impossible> {
        self.memory.table().dup(slot)?;
        Ok(Spent::work(self.costs.put))
    }

    /// One reference less; the last leaves the slot busy with the CPU. The word's line comes from whoever wrote it.
    ///
    /// # Errors
    /// If the slot has no content.
    pub fn put(&self, cpu: u32, slot: u32) -> Result<Spent, Impossible> {
        let is_last = self.memory.table().put(slot, cpu as u16)?.is_some();
        let last = self.last.get(slot as usize / CLUSTER_SLOTS).copied().flatten();
        let comes = is_last && last != Some(cpu);
        Ok(Spent::work(self.costs.put + u64::from(comes) * self.costs.line))
    }

    /// A look at a slot's word.
    #[must_use]
    pub fn look_up(&self, slot: u32) -> Spent {
        core::hint::black_box(self.memory.table().load(slot).backing());
        Spent::work(self.costs.look_up)
    }

    fn shared_words(&self) -> (Vec<super::memory::DeviceWords>, u64) {
        let devices = 0..self.steers.len();
        let words = devices.map(|index| self.memory.device_words(index)).collect();
        (words, self.memory.queued())
    }

    /// The lines that a call which locked `cluster` needed: the cluster's, and of what all CPUs share those that changed.
    fn locked(
        &mut self,
        cpu: u32,
        now_ns: u64,
        cluster: u32,
        before: &(Vec<super::memory::DeviceWords>, u64),
    ) -> Spent {
        let line = self.costs.line;
        let mut spent = Spent::default();
        if self.last[cluster as usize] != Some(cpu) {
            spent.all_ns += 2 * line;
        }
        self.last[cluster as usize] = Some(cpu);
        let home = self.memory.home(cluster);
        if self.homes[cluster as usize] != home {
            let device = self.memory.device_of(cluster);
            spent.shared_ns += self.lists[device].touch_ns(cpu, now_ns, line);
        }
        self.homes[cluster as usize] = home;
        for (index, words) in before.0.iter().enumerate() {
            if self.memory.device_words(index) != *words {
                spent.shared_ns += self.steers[index].touch_ns(cpu, now_ns, line);
            }
        }
        if self.memory.queued() != before.1 {
            spent.shared_ns += self.queue.touch_ns(cpu, now_ns, line);
        }
        spent
    }

    fn count(&mut self, locks: u64, missed: u64, spent: &mut Spent) {
        self.counted.locks += locks;
        self.counted.missed += missed;
        // Who finds a lock held has waited for the line of its word.
        spent.lock_ns += missed * self.costs.line;
        spent.all_ns += missed * self.costs.line;
    }
}
