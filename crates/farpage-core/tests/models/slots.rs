//! The allocator and the swap table beside a map from slot to what it is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farpage_core::cluster::ORDERS;
use farpage_core::devices::{self, Device};
use farpage_core::slots::{Locked, Request};
use farpage_core::swap_table::{Backing, SlotKind, SlotWord};
use farpage_core::sync::Ordering;
use farpage_core::zpool::Handle;

use super::Input;
use super::slots_memory::Memory;

/// Two devices with a file of equal priority, one of them short, and one without a file.
const DEVICES: [Device; 3] = [
    device(1, 1000, 1, true),
    device(3, 512, 1, true),
    device(4, 1024, 0, false),
];
const CLUSTERS: u32 = 6;

const fn device(first_cluster: u32, slots: u32, priority: i32, has_file: bool) -> Device {
    Device {
        first_cluster,
        slots,
        priority,
        has_file,
        rotates: false,
        discards: has_file,
    }
}

#[derive(Debug, Clone, Copy)]
pub enum Event {
    Alloc(Request),
    /// Gives back so many of the busy slots, those longest busy first: each by itself, or those of an owner together.
    Free {
        count: usize,
        grouped: bool,
    },
    /// A busy slot gets content and one reference.
    Publish(usize),
    /// One more reference to a backed slot.
    Dup(usize),
    /// One reference less; the last leaves the slot busy.
    Put(usize),
    /// Compressed content moves to the slot's block.
    WriteBack(usize),
    /// Compressed content moves to another object, as compaction does it.
    Relocate(usize),
    /// Content moves to another slot, as swapoff does it for a shared one.
    Move(usize),
    /// A device is shut, or opened again.
    Shut(usize),
    /// A device is shut, and has so many slots less than at first; it is opened again, or not.
    Resize {
        index: usize,
        missing: u32,
        opens: bool,
    },
    /// What is compressed in the cluster that was filled longest ago goes to its blocks; the cluster comes again, or not.
    Oldest {
        again: bool,
    },
    /// Another process begins to do that, and holds the cluster until the next [`Self::Hold`].
    HoldOldest,
    /// Another process holds the lock of a cluster until the next event of this kind.
    Hold(u32),
    /// It dies.
    Die,
    /// The device is told of an empty cluster.
    Discard,
}

impl Event {
    /// The next event that some bytes say; none at their end.
    pub fn read(input: &mut Input<'_>) -> Option<Self> {
        let (what, n) = (input.byte()?, usize::from(input.word()?));
        Some(match what % 24 {
            0..=4 => Self::Alloc(Request {
                owner: u16::from((what / 24) & 1),
                cpu: u32::from(what / 48),
                order: if n % 5 == 0 { n / 5 % ORDERS } else { 0 },
                want: n / 5 % 200 + 1,
                has_file: n >> 15 == 0,
            }),
            5..=7 => Self::Free {
                count: n % 200,
                grouped: n >> 15 == 0,
            },
            8..=10 => Self::Publish(n),
            11 => Self::Dup(n),
            12..=13 => Self::Put(n),
            14 => Self::WriteBack(n),
            15 => Self::Relocate(n),
            16 => Self::Move(n),
            17 => Self::Shut(n % DEVICES.len()),
            18 => Self::Resize {
                index: n % DEVICES.len(),
                missing: n as u32 / 3 % 1030,
                opens: n >> 15 == 0,
            },
            19 => Self::Oldest { again: n % 3 == 0 },
            20 => Self::HoldOldest,
            21 => Self::Hold(1 + n as u32 % (CLUSTERS - 1)),
            22 => Self::Die,
            _ => Self::Discard,
        })
    }
}

/// The processes that allocate put and lock in the name of this one.
const MINE: u16 = 1;
/// Another process, which only locks.
const OTHER: u16 = 5;

/// What a backed slot is.
#[derive(Clone, Copy)]
struct Content {
    backing: Backing,
    count: u16,
    /// How many of the references are those of slots whose content moved here: no page's to give up.
    of_moved: u16,
    /// The word with the backing before this one.
    old: Option<SlotWord>,
}

#[derive(Default)]
struct Model {
    /// Busy slots and their owners.
    busy: BTreeMap<u32, u16>,
    /// The same, longest busy first.
    age: Vec<u32>,
    backed: BTreeMap<u32, Content>,
    held: Option<Locked>,
    /// Clusters taken out of the queue of writeback, in which nothing was allocated since.
    popped: BTreeSet<u32>,
    /// The queue was longer than it can be.
    lossy: bool,
}

impl Model {
    /// Slots of a cluster that are not free.
    fn used(&self, cluster: u32) -> usize {
        let slots = cluster * 512..(cluster + 1) * 512;
        self.busy.range(slots.clone()).count() + self.backed.range(slots).count()
    }

    /// Some backed slot of those that `fits`.
    fn pick(&self, n: usize, fits: impl Fn(&Content) -> bool) -> Option<u32> {
        let all = || self.backed.iter().filter(|(_, content)| fits(content));
        let at = n % all().count().max(1);
        all().nth(at).map(|(slot, _)| *slot)
    }

    fn publish(&mut self, memory: &Memory, slot: u32, backing: Backing) {
        memory.table().publish(slot, backing).expect("busy");
        self.busy.remove(&slot);
        let content = Content {
            backing,
            count: 1,
            of_moved: 0,
            old: None,
        };
        self.backed.insert(slot, content);
    }

    /// The backing that `rebase` gives a slot: it must do so if it is told the present word, and the slot is one it is for.
    fn rebase(
        &mut self,
        memory: &Memory,
        slot: u32,
        (backing, fits, stale): (Backing, bool, bool),
        rebase: impl FnOnce(SlotWord) -> bool,
    ) -> bool {
        let table = memory.table();
        let content = self.backed.get_mut(&slot).expect("backed");
        let now = table.load(slot);
        let old = content.old.filter(|_| stale);
        let expected = fits && old.is_none();
        assert_eq!(rebase(old.unwrap_or(now)), expected);
        assert_eq!(table.read_behind(slot, now, || ()).is_none(), expected);
        if expected {
            (content.backing, content.old) = (backing, Some(now));
        }
        expected
    }

    /// Gives up a reference, and with the last one that to the slot the content moved to. Ends because each turn but the last
    /// leaves one backed slot less.
    fn put(&mut self, memory: &Memory, slot: u32) {
        let mut slot = slot;
        loop {
            let content = self.backed.get_mut(&slot).expect("backed");
            let last = (content.count == 1).then_some(content.backing);
            assert_eq!(memory.table().put(slot, MINE), Ok(last));
            content.count -= 1;
            let Some(backing) = last else { return };
            self.backed.remove(&slot);
            self.busy.insert(slot, MINE);
            self.age.push(slot);
            let Backing::Moved { to } = backing else { return };
            self.backed.get_mut(&to).expect("referred to").of_moved -= 1;
            slot = to;
        }
    }
}

/// Does what the events say to an allocator and to a model of it; panics where they differ.
pub fn follow(events: impl IntoIterator<Item = Event>) {
    let memory = Memory::new(&DEVICES);
    let mut model = Model::default();
    for event in events {
        match event {
            Event::Alloc(request) => alloc(&memory, &mut model, &request),
            Event::Free { count, grouped } => free(&memory, &mut model, count, grouped),
            Event::Shut(_) | Event::Resize { .. } => device_changes(&memory, &mut model, event),
            Event::Oldest { .. } | Event::HoldOldest => queue(&memory, &mut model, event),
            Event::Hold(cluster) => match model.held.take() {
                Some(locked) if cluster % 2 == 0 && model.popped.remove(&locked.cluster()) => {
                    memory.slots().unlock_again(locked);
                }
                Some(locked) => memory.slots().unlock_unchanged(locked),
                // Nobody comes to a cluster that was never used but in its turn.
                None if is_reached(&memory, cluster) => {
                    model.held = memory.slots().try_lock(cluster, OTHER);
                }
                None => {}
            },
            Event::Die => {
                if let Some(locked) = model.held.take() {
                    assert!(memory.slots().mend(locked.cluster(), OTHER));
                }
            }
            Event::Discard => {
                if let Some(locked) = memory.slots().lock_discard(OTHER) {
                    assert_eq!(model.used(locked.cluster()), 0);
                    memory.slots().unlock_discarded(locked);
                }
            }
            _ => reference(&memory, &mut model, event),
        }
        model.lossy |= memory.queue_overflows();
    }
    if let Some(locked) = model.held.take() {
        memory.slots().unlock_unchanged(locked);
    }
    compare(&memory, &model);
}

fn compare(memory: &Memory, model: &Model) {
    memory.check();
    for slot in 0..CLUSTERS * 512 {
        let word = memory.table().load(slot);
        assert_eq!(word.owner(), model.busy.get(&slot).copied());
        let backed = word.backing().map(|backing| (backing, word.count()));
        let content = model.backed.get(&slot);
        assert_eq!(backed, content.map(|content| (content.backing, content.count)));
        let is_known = model.busy.contains_key(&slot) || content.is_some();
        assert_eq!(word.kind() != SlotKind::Free, is_known, "{word:?}");
    }
    let waiting: BTreeSet<u32> = memory.slots().waiting().collect();
    for cluster in (1..CLUSTERS).filter(|_| !model.lossy) {
        let word = memory.slots().cluster_word(cluster);
        assert!(
            !word.queued() || waiting.contains(&cluster),
            "{cluster} was lost from the queue"
        );
        let (_, device) = now(memory, cluster);
        let is_full = device.has_file && model.used(cluster) >= device.capacity(cluster);
        assert!(
            !is_full || waiting.contains(&cluster) || model.popped.contains(&cluster),
            "{cluster} is full and does not wait to be written"
        );
    }
}

/// The device of a cluster as it is now, and its index.
fn now(memory: &Memory, cluster: u32) -> (usize, Device) {
    let (index, device) = devices::owner_of(&DEVICES, cluster).expect("of a device");
    (index, memory.states[index].now(device))
}

fn is_reached(memory: &Memory, cluster: u32) -> bool {
    let (index, device) = now(memory, cluster);
    cluster - device.first_cluster <= memory.states[index].fresh.load(Ordering::Relaxed)
}

fn is_shut(memory: &Memory, index: usize) -> bool {
    memory.states[index].shut.load(Ordering::Relaxed) != 0
}

fn alloc(memory: &Memory, model: &mut Model, request: &Request) {
    let Some(run) = memory.slots().alloc(request) else {
        if model.held.is_none() && request.order == 0 {
            for (index, state) in memory.states.iter().enumerate() {
                let device = state.now(&DEVICES[index]);
                if device.has_file == request.has_file && !is_shut(memory, index) {
                    let mut clusters = device.first_cluster..device.end_cluster();
                    let is_full = |cluster| model.used(cluster) >= device.capacity(cluster);
                    assert!(clusters.all(is_full), "refused though not full");
                }
            }
        }
        return;
    };
    let most = 1 << request.order;
    assert!(if request.order == 0 {
        run.count <= request.want
    } else {
        run.count == most
    });
    assert!((run.first as usize).is_multiple_of(most));
    for slot in run.first..run.first + run.count as u32 {
        let (index, device) = now(memory, slot / 512);
        assert!(device.block(slot) < u64::from(device.slots), "behind the end");
        assert!(device.has_file == request.has_file && !is_shut(memory, index));
        assert!(!model.backed.contains_key(&slot), "handed out while it is backed");
        assert!(
            model.busy.insert(slot, request.owner).is_none(),
            "handed out twice"
        );
        model.age.push(slot);
        model.popped.remove(&(slot / 512));
    }
}

fn free(memory: &Memory, model: &mut Model, count: usize, grouped: bool) {
    let rest = model.age.split_off(count.min(model.age.len()));
    let gone = core::mem::replace(&mut model.age, rest);
    if let Some(first) = gone.first() {
        let owner = model.busy[first];
        assert!(memory.slots().release(&[*first], owner + 1).is_err(), "not his");
    }
    for owner in [0, MINE] {
        let his = |slot: &u32| model.busy[slot] == owner;
        let slots: Vec<u32> = gone.iter().copied().filter(his).collect();
        for group in slots.chunks(if grouped { 64 } else { 1 }) {
            memory.slots().release(group, owner).expect("his");
        }
    }
    model.busy.retain(|slot, _| !gone.contains(slot));
}

fn device_changes(memory: &Memory, model: &mut Model, event: Event) {
    let (index, opens) = match event {
        Event::Shut(index) => (index, is_shut(memory, index)),
        Event::Resize {
            index,
            missing,
            opens,
        } => {
            let state = &memory.states[index];
            state.shut.store(devices::SHUT_LEAVING, Ordering::Relaxed);
            state.missing.store(missing, Ordering::Relaxed);
            memory.slots().resized(index, MINE);
            (index, opens)
        }
        _ => return,
    };
    let state = &memory.states[index];
    if opens {
        state.shut.store(0, Ordering::Release);
        return;
    }
    state.shut.store(devices::SHUT_LEAVING, Ordering::Release);
    let device = DEVICES[index];
    let clusters = device.first_cluster..device.end_cluster();
    let used = clusters.map(|cluster| model.used(cluster) as u64).sum();
    let settled = memory.slots().settled(index);
    match model.held.as_ref().map(Locked::cluster) {
        // It is not looked at if nothing was ever allocated near it.
        Some(held) if device.owns(held) => assert!(settled.is_none_or(|settled| settled == used)),
        _ => assert_eq!((settled, memory.slots().count_used(index)), (Some(used), used)),
    }
}

/// The oldest cluster that nobody holds is taken; those before it go to the end.
fn queue(memory: &Memory, model: &mut Model, event: Event) {
    let mut waiting: VecDeque<u32> = memory.slots().waiting().collect();
    let held = model.held.as_ref().map(Locked::cluster);
    if matches!(event, Event::HoldOldest) && held.is_some() {
        return;
    }
    let mut expected = None;
    for _ in 0..16 {
        expected = waiting.pop_front();
        if expected.is_none() || expected != held {
            break;
        }
        waiting.extend(expected.take());
    }
    let owner = if matches!(event, Event::HoldOldest) {
        OTHER
    } else {
        MINE
    };
    let locked = memory.slots().lock_oldest(owner);
    let cluster = locked.as_ref().map(Locked::cluster);
    assert!(model.lossy || cluster == expected, "{cluster:?} for {expected:?}");
    let Some(locked) = locked else { return };
    let cluster = locked.cluster();
    model.popped.insert(cluster);
    let Event::Oldest { again } = event else {
        model.held = Some(locked);
        return;
    };
    let slots = model.backed.range(cluster * 512..(cluster + 1) * 512);
    for slot in slots.map(|(slot, _)| *slot).collect::<Vec<_>>() {
        write_back(memory, model, slot, 0);
    }
    if again {
        memory.slots().unlock_again(locked);
        model.popped.remove(&cluster);
        waiting.push_back(cluster);
    } else {
        memory.slots().unlock_unchanged(locked);
    }
    assert!(model.lossy || memory.slots().waiting().eq(waiting));
}

fn write_back(memory: &Memory, model: &mut Model, slot: u32, n: usize) {
    let crc = n as u32;
    let compressed = matches!(model.backed[&slot].backing, Backing::Compressed(_));
    let rule = (Backing::Device { crc }, compressed, n % 4 == 1);
    model.rebase(memory, slot, rule, |seen| {
        memory.table().written_back(slot, seen, crc)
    });
}

fn reference(memory: &Memory, model: &mut Model, event: Event) {
    let table = memory.table();
    match event {
        Event::Publish(n) if !model.age.is_empty() => {
            let slot = model.age.swap_remove(n % model.age.len());
            model.publish(memory, slot, Backing::Compressed(Handle(n as u64)));
        }
        Event::Dup(n) => {
            if let Some(slot) = model.pick(n, |_| true) {
                table.dup(slot).expect("backed");
                model.backed.entry(slot).and_modify(|content| content.count += 1);
            }
        }
        Event::Put(n) => {
            if let Some(slot) = model.pick(n, |content| content.count > content.of_moved) {
                model.put(memory, slot);
            }
        }
        Event::WriteBack(n) => {
            if let Some(slot) = model.pick(n, |_| true) {
                write_back(memory, model, slot, n);
            }
        }
        Event::Relocate(n) => {
            let slot = model.pick(n, |_| true);
            let locked = slot.and_then(|slot| memory.slots().try_lock(slot / 512, MINE));
            if let (Some(slot), Some(locked)) = (slot, locked) {
                let to = Handle(n as u64 + (1 << 16));
                let compressed = matches!(model.backed[&slot].backing, Backing::Compressed(_));
                let rule = (Backing::Compressed(to), compressed, n % 4 == 1);
                model.rebase(memory, slot, rule, |seen| table.relocated(slot, seen, to));
                memory.slots().unlock_unchanged(locked);
            }
        }
        Event::Move(n) if !model.age.is_empty() => {
            let Some(from) = model.pick(n, |_| true) else {
                return;
            };
            let to = model.age.swap_remove(n % model.age.len());
            model.publish(memory, to, Backing::Compressed(Handle(n as u64)));
            let fits = !matches!(model.backed[&from].backing, Backing::Moved { .. });
            let rule = (Backing::Moved { to }, fits, n % 4 == 1);
            if model.rebase(memory, from, rule, |seen| table.moved(from, seen, to)) {
                model.backed.get_mut(&to).expect("published").of_moved += 1;
            } else {
                model.put(memory, to);
            }
        }
        _ => {}
    }
}
