use super::*;
use std::vec::Vec;

struct Memory {
    descs: Vec<AtomicU64>,
    data: Vec<AtomicU32>,
    used: AtomicU64,
}

impl Memory {
    fn new(zpages: usize) -> Self {
        let descs = (0..zpages).map(|_| AtomicU64::new(0)).collect();
        let data = (0..zpages * ZPAGE_WORDS).map(|_| AtomicU32::new(0)).collect();
        Self {
            descs,
            data,
            used: AtomicU64::new(0),
        }
    }

    fn pool(&self) -> Zpool<'_> {
        Zpool {
            descs: &self.descs,
            data: &self.data,
            used: &self.used,
        }
    }
}

#[test]
fn classes() {
    assert_eq!(
        [0, 1, 128, 129, 4096].map(class_of),
        [Some(0), Some(0), Some(0), Some(1), Some(CLASSES - 1)]
    );
    assert_eq!(class_of(4097), None);
    assert_eq!((class_objects(0), class_objects(CLASSES - 1)), (256, 8));
    for class in 0..CLASSES {
        assert_eq!(class_of(class_bytes(class)), Some(class));
        assert!(class_objects(class) * class_bytes(class) <= ZPAGE_BYTES);
        assert!(class_objects(class) <= 1 << words::INDEX_BITS);
    }
}

#[test]
fn descriptors_round_trip() {
    for class in 0..CLASSES {
        for in_use in 0..=class_objects(class) {
            let desc = Desc::active(class, in_use);
            assert_eq!(
                (desc.state(), desc.class(), desc.in_use()),
                (State::Active, class, in_use)
            );
        }
        let desc = Desc::emptying(class, u16::MAX);
        assert_eq!(
            (desc.state(), desc.class(), desc.owner()),
            (State::Emptying, class, u16::MAX)
        );
    }
    assert_eq!(Desc(0).state(), State::Free);
    assert_eq!(Desc::active(CLASSES, 1).state(), State::Invalid);
    let handle = Handle::new(CLASSES - 1, ZPAGES_MAX - 1, 255);
    assert_eq!(
        (handle.class(), handle.zpage(), handle.index()),
        (CLASSES - 1, ZPAGES_MAX - 1, 255)
    );
    assert!(Handle::new(127, ZPAGES_MAX - 1, 255).0 < 1 << 40);
}

#[test]
fn a_life() {
    let memory = Memory::new(4);
    let (pool, hints) = (memory.pool(), ZpoolHints::new());
    let handles: Vec<_> = (1..=9)
        .map(|slot| pool.alloc(&hints, 4, OBJECT_MAX, slot).unwrap())
        .collect();
    let object = |zpage, index| Handle::new(CLASSES - 1, zpage, index);
    let expected: Vec<_> = (0..8)
        .map(|index| object(0, index))
        .chain([object(1, 0)])
        .collect();
    assert_eq!(handles, expected, "eight fit a zpage");
    assert_eq!(
        (pool.offset(handles[8]), pool.capacity(handles[1])),
        (ZPAGE_BYTES, OBJECT_MAX)
    );
    assert_eq!(
        (
            pool.owner_slot(handles[8]),
            pool.owner_slot(object(1, 1)),
            pool.count_used()
        ),
        (9, 0, 2)
    );
    for (handle, slot) in handles[..8].iter().zip(1..).filter(|(_, slot)| *slot != 2) {
        assert_eq!(pool.free(*handle, slot, 7), Ok(None));
    }
    assert_eq!(pool.objects(0).collect::<Vec<_>>(), [(handles[1], 2)]);
    assert!(pool.free(handles[1], 3, 7).is_err(), "another slot's");
    assert_eq!(pool.free(handles[1], 2, 7), Ok(Some(0)));
    assert_eq!(pool.emptying_of(7).collect::<Vec<_>>(), [0]);
    assert_eq!((pool.emptying_of(6).count(), pool.objects(0).count()), (0, 0));
    assert!(pool.free(handles[1], 2, 7).is_err(), "twice");
    pool.release_zpage(1);
    pool.release_zpage(9);
    assert_eq!(pool.count_used(), 2, "not being emptied");
    pool.release_zpage(0);
    pool.release_zpage(0);
    assert_eq!((memory.used.load(Ordering::Relaxed), pool.count_used()), (1, 1));
}

/// An emptied zpage that is kept serves the next object of its class, before a fresh one; it can be emptied while nothing is in it.
#[test]
fn a_kept_zpage_is_taken_again() {
    let memory = Memory::new(4);
    let (pool, hints) = (memory.pool(), ZpoolHints::new());
    let bytes = class_bytes(3);
    let handle = pool.alloc(&hints, 4, bytes, 1).unwrap();
    let other = pool.alloc(&hints, 4, OBJECT_MAX, 2).unwrap();
    assert!(!pool.empty(handle.zpage(), 7), "an object is in it");
    assert_eq!(pool.free_keeping(&hints, handle, 1), Ok(Some(handle.zpage())));
    assert!(pool.free_keeping(&hints, handle, 1).is_err(), "twice");
    assert_eq!(pool.count_used(), 2);
    assert_eq!(
        pool.alloc(&ZpoolHints::new(), 4, bytes, 3).map(Handle::zpage),
        Some(handle.zpage())
    );
    assert_eq!(pool.free_keeping(&hints, handle, 3), Ok(Some(handle.zpage())));
    assert!(pool.empty(handle.zpage(), 7) && !pool.empty(handle.zpage(), 7));
    assert_eq!(pool.emptying_of(7).collect::<Vec<_>>(), [handle.zpage()]);
    pool.release_zpage(handle.zpage());
    assert_eq!((pool.count_used(), pool.owner_slot(other)), (1, 2));
    assert!(!pool.empty(handle.zpage(), 7), "free");
}

/// A death between the two steps of an object leaves a zpage that counts one too many. Who takes an object meanwhile changes the
/// descriptor: that once read like a count that had been mended.
#[test]
fn a_count_is_mended_only_if_nothing_has_changed() {
    let memory = Memory::new(1);
    let (pool, hints) = (memory.pool(), ZpoolHints::new());
    let class = CLASSES - 1;
    pool.alloc(&hints, 1, OBJECT_MAX, 1).unwrap();
    assert_eq!(pool.overcounted(0), Ok(None));
    memory.descs[0].store(Desc::active(class, 2).0, Ordering::Relaxed);
    let (seen, objects) = pool.overcounted(0).unwrap().unwrap();
    let other = pool.alloc(&hints, 1, OBJECT_MAX, 2).unwrap();
    assert!(!pool.settle(0, seen, objects, 7));
    let (seen, objects) = pool.overcounted(0).unwrap().unwrap();
    assert_eq!(objects, 2);
    assert!(pool.settle(0, seen, objects, 7));
    assert_eq!(pool.overcounted(0), Ok(None));
    assert_eq!(pool.free(other, 2, 7), Ok(None));
    assert_eq!(pool.emptying_of(7).count(), 0);
}

#[test]
fn every_handle_stays_inside() {
    let memory = Memory::new(2);
    let pool = memory.pool();
    assert_eq!(
        (
            pool.offset(Handle::new(0, 1, 255)),
            pool.capacity(Handle::new(0, 1, 255))
        ),
        (2 * ZPAGE_BYTES - 128, 128)
    );
    for bad in [
        Handle(!0),
        Handle::new(0, 2, 0),
        Handle::new(CLASSES - 1, 0, 8),
        Handle::new(CLASSES, 0, 0),
    ] {
        assert_eq!(
            (pool.offset(bad), pool.capacity(bad), pool.owner_slot(bad)),
            (0, 0, 0)
        );
        assert!(pool.free(bad, 1, 1).is_err());
    }
}

#[test]
fn limits_and_refusals() {
    let memory = Memory::new(3);
    let (pool, hints) = (memory.pool(), ZpoolHints::new());
    assert_eq!(pool.alloc(&hints, 3, OBJECT_MAX + 1, 1), None);
    assert_eq!(pool.alloc(&hints, 3, 64, 0), None, "slot 0 owns nothing");
    assert_eq!(pool.alloc(&hints, 0, 64, 1), None);
    let first = pool.alloc(&hints, 1, 64, 1).unwrap();
    assert_eq!(
        pool.alloc(&hints, 1, 1000, 2),
        None,
        "another class needs another zpage"
    );
    assert!(pool.alloc(&hints, 1, 64, 3).is_some());
    assert_eq!(pool.alloc(&hints, 3, 1000, 2).unwrap().zpage(), 1);
    let larger = pool.alloc(&hints, 2, 800, 4).unwrap();
    assert_eq!(
        (larger.zpage(), class_of(800)),
        (1, Some(larger.class() - 1)),
        "at the limit an object goes where it fits"
    );
    assert_eq!(pool.owner_slot(first), 1);
    assert!(pool.free(Handle::new(0, 0, 5), 1, 1).is_err(), "free object");
    assert!(pool.free(Handle::new(2, 0, 0), 1, 1).is_err(), "another class");
}

#[test]
fn emptying_zpages_are_left_alone() {
    let memory = Memory::new(1);
    let (pool, hints) = (memory.pool(), ZpoolHints::new());
    let handle = pool.alloc(&hints, 1, 64, 1).unwrap();
    assert_eq!(pool.free(handle, 1, 2), Ok(Some(0)));
    assert_eq!(pool.alloc(&hints, 1, 64, 1), None);
    pool.release_zpage(0);
    assert!(
        pool.alloc(&hints, 1, 4000, 1).is_some(),
        "any class after release"
    );
}

#[test]
fn bytes_left_behind_lose_an_object_but_nothing_else() {
    let memory = Memory::new(1);
    memory.data[header_word(Handle::new(CLASSES - 1, 0, 1))].store(99, Ordering::Relaxed);
    let (pool, hints) = (memory.pool(), ZpoolHints::new());
    let got = core::iter::from_fn(|| pool.alloc(&hints, 1, OBJECT_MAX, 1)).map(Handle::index);
    assert_eq!(got.collect::<Vec<_>>(), [0, 2, 3, 4, 5, 6, 7]);
}

/// Pages that came back once left every zpage half empty, and the tier took twice the RAM.
#[test]
fn what_is_spread_is_told_and_moves() {
    let memory = Memory::new(8);
    let (pool, hints) = (memory.pool(), ZpoolHints::new());
    let handles: Vec<_> = (1..=32)
        .map(|slot| pool.alloc(&hints, 8, OBJECT_MAX, slot).unwrap())
        .collect();
    assert_eq!(
        pool.tally()[CLASSES - 1],
        Tally {
            zpages: 4,
            objects: 32
        }
    );
    for handle in handles.iter().filter(|handle| handle.index() > 1) {
        assert_eq!(pool.free(*handle, pool.owner_slot(*handle), 1), Ok(None));
    }
    let tally = pool.tally()[CLASSES - 1];
    assert_eq!((tally.objects, tally.surplus(CLASSES - 1)), (8, 3));
    assert_eq!((pool.active(3), pool.active(4)), (Some((CLASSES - 1, 2)), None));
    memory.data[header_word(handles[24]) + 1].store(77, Ordering::Relaxed);
    let slot = pool.owner_slot(handles[24]);
    let new = pool.copy_to(handles[24], slot, 0).unwrap();
    assert_eq!((new.zpage(), pool.owner_slot(new)), (0, slot));
    assert_eq!(memory.data[header_word(new) + 1].load(Ordering::Relaxed), 77);
    assert_eq!(pool.copy_to(handles[24], slot, 7), None, "not of the class");
    assert_eq!(pool.copy_to(Handle(!0), slot, 0), None);
}
