//! The allocator and the swap table beside a map from slot to what it is.

use std::collections::BTreeMap;

use farpage_core::cluster::ORDERS;
use farpage_core::devices::{self, Device};
use farpage_core::slots::{Locked, Request};
use farpage_core::swap_table::{Backing, SlotKind};
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
/// Slots of the devices with a file, and of the one without.
const ROOM: [usize; 2] = [1024, 1512];

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
    /// Gives back so many of the busy slots, those longest busy first.
    Free(usize),
    /// A busy slot gets content and one reference.
    Publish(usize),
    /// One more reference to a backed slot.
    Dup(usize),
    /// One reference less; the last leaves the slot busy.
    Put(usize),
    /// Compressed content moves to the slot's block.
    WriteBack(usize),
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
        Some(match what % 16 {
            0..=4 => Self::Alloc(Request {
                owner: u16::from(what >> 4 & 1),
                cpu: u32::from(what >> 5),
                order: if n % 5 == 0 { n / 5 % ORDERS } else { 0 },
                want: n / 5 % 200 + 1,
                has_file: n >> 15 == 0,
            }),
            5..=8 => Self::Free(n % 200),
            9 => Self::Publish(n),
            10 => Self::Dup(n),
            11 => Self::Put(n),
            12 => Self::WriteBack(n),
            13 => Self::Hold(1 + n as u32 % (CLUSTERS - 1)),
            14 => Self::Die,
            _ => Self::Discard,
        })
    }
}

/// Another process, which only locks.
const OTHER: u16 = 5;

#[derive(Default)]
struct Model {
    /// Busy slots and their owners.
    busy: BTreeMap<u32, u16>,
    /// The same, longest busy first.
    age: Vec<u32>,
    backed: BTreeMap<u32, (Backing, u16)>,
    held: Option<Locked>,
}

/// Does what the events say to an allocator and to a model of it; panics where they differ.
pub fn follow(events: impl IntoIterator<Item = Event>) {
    let memory = Memory::new(&DEVICES);
    let mut model = Model::default();
    for event in events {
        match event {
            Event::Alloc(request) => alloc(&memory, &mut model, &request),
            Event::Free(count) => {
                let rest = model.age.split_off(count.min(model.age.len()));
                for slot in core::mem::replace(&mut model.age, rest) {
                    let owner = model.busy.remove(&slot).expect("busy");
                    assert!(memory.slots().release(&[slot], owner + 1).is_err(), "not his");
                    memory.slots().release(&[slot], owner).expect("his");
                }
            }
            Event::Hold(cluster) => match model.held.take() {
                Some(locked) => memory.slots().unlock_unchanged(locked),
                None => model.held = memory.slots().try_lock(cluster, OTHER),
            },
            Event::Die => {
                if let Some(locked) = model.held.take() {
                    assert!(memory.slots().mend(locked.cluster(), OTHER));
                }
            }
            Event::Discard => {
                if let Some(locked) = memory.slots().lock_discard(OTHER) {
                    let of_cluster = |slot: &u32| slot / 512 == locked.cluster();
                    assert!(!model.busy.keys().chain(model.backed.keys()).any(of_cluster));
                    memory.slots().unlock_discarded(locked);
                }
            }
            _ => reference(&memory, &mut model, event),
        }
    }
    if let Some(locked) = model.held.take() {
        memory.slots().unlock_unchanged(locked);
    }
    memory.check();
    for slot in 0..CLUSTERS * 512 {
        let word = memory.table().load(slot);
        assert_eq!(word.owner(), model.busy.get(&slot).copied());
        let backed = word.backing().map(|backing| (backing, word.count()));
        assert_eq!(backed, model.backed.get(&slot).copied());
        let is_known = model.busy.contains_key(&slot) || model.backed.contains_key(&slot);
        assert_eq!(word.kind() != SlotKind::Free, is_known, "{word:?}");
    }
}

fn alloc(memory: &Memory, model: &mut Model, request: &Request) {
    let has_file = |slot: u32| {
        let (_, device) = devices::owner_of(&DEVICES, slot / 512).expect("of a device");
        assert!(device.block(slot) < u64::from(device.slots));
        device.has_file
    };
    let Some(run) = memory.slots().alloc(request) else {
        if model.held.is_none() && request.order == 0 {
            let all = model.busy.keys().chain(model.backed.keys());
            let used = all.filter(|slot| has_file(**slot) == request.has_file).count();
            assert_eq!(
                used,
                ROOM[usize::from(request.has_file)],
                "refused though not full"
            );
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
        assert_eq!(has_file(slot), request.has_file);
        assert!(!model.backed.contains_key(&slot), "handed out while it is backed");
        assert!(
            model.busy.insert(slot, request.owner).is_none(),
            "handed out twice"
        );
        model.age.push(slot);
    }
}

fn reference(memory: &Memory, model: &mut Model, event: Event) {
    let table = memory.table();
    let pick = |n: usize| model.backed.keys().nth(n % model.backed.len().max(1)).copied();
    match event {
        Event::Publish(n) if !model.age.is_empty() => {
            let slot = model.age.swap_remove(n % model.age.len());
            let backing = Backing::Compressed(Handle(n as u64));
            table.publish(slot, backing).expect("busy");
            model.busy.remove(&slot);
            model.backed.insert(slot, (backing, 1));
        }
        Event::Dup(n) => {
            if let Some(slot) = pick(n) {
                table.dup(slot).expect("backed");
                model.backed.entry(slot).and_modify(|(_, count)| *count += 1);
            }
        }
        Event::Put(n) => {
            if let Some(slot) = pick(n) {
                let (backing, count) = model.backed[&slot];
                let last = (count == 1).then_some(backing);
                assert_eq!(table.put(slot, 1), Ok(last));
                if last.is_some() {
                    model.backed.remove(&slot);
                    model.busy.insert(slot, 1);
                    model.age.push(slot);
                } else {
                    model.backed.insert(slot, (backing, count - 1));
                }
            }
        }
        Event::WriteBack(n) => {
            if let Some(slot) = pick(n) {
                let (backing, count) = model.backed[&slot];
                let compressed = matches!(backing, Backing::Compressed(_));
                let crc = n as u32;
                assert_eq!(table.written_back(slot, table.load(slot), crc), compressed);
                if compressed {
                    model.backed.insert(slot, (Backing::Device { crc }, count));
                }
            }
        }
        _ => {}
    }
}
