//! Each policy beside a naive one: lists that are searched from end to end.

use super::*;
use proptest::prelude::*;
use std::boxed::Box;
use std::vec;
use std::vec::Vec;

const UNITS: u32 = 24;

#[derive(Debug, Clone, Copy)]
enum Event {
    Load(u32, Option<u32>),
    Touch(u32),
    Victim,
    Gone(u32),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let unit = 0..UNITS;
    let one = prop_oneof![
        4 => (unit.clone(), proptest::option::of(0..UNITS)).prop_map(|(u, r)| Event::Load(u, r)),
        4 => unit.clone().prop_map(Event::Touch),
        3 => Just(Event::Victim),
        1 => unit.prop_map(Event::Gone),
    ];
    proptest::collection::vec(one, 0..300)
}

/// A unit of a model: which list it is on, and its mark.
#[derive(Debug, Clone, Copy)]
struct Unit {
    unit: u32,
    list: u64,
    mark: u8,
}

/// All units, those that came to their list first before those that came later.
#[derive(Default)]
struct Model {
    units: Vec<Unit>,
    /// Of SIEVE; or the youngest generation.
    hand: Option<u32>,
    youngest: u64,
}

impl Model {
    fn at(&self, unit: u32) -> Option<usize> {
        self.units.iter().position(|u| u.unit == unit)
    }

    fn count(&self, list: u64) -> usize {
        self.units.iter().filter(|u| u.list == list).count()
    }

    fn push(&mut self, unit: u32, list: u64, mark: u8) {
        self.units.push(Unit { unit, list, mark });
    }

    fn pop(&mut self, list: u64) -> Option<Unit> {
        let at = self.units.iter().position(|u| u.list == list)?;
        Some(self.units.remove(at))
    }
}

/// What differs: where a loaded unit goes, what a touch does, and who is the victim.
struct Rules {
    load: fn(&mut Model, u32, Option<u32>),
    touch: fn(&mut Model, usize) -> bool,
    victim: fn(&mut Model) -> Option<u32>,
}

fn to_front(model: &mut Model, unit: u32, _: Option<u32>) {
    model.push(unit, 0, 0);
}

fn mark(model: &mut Model, at: usize) -> bool {
    model.units[at].mark = 1;
    false
}

fn check<'a, P: ReclaimPolicy + 'a>(
    new: fn(&'a mut [Node]) -> P,
    rules: &Rules,
    model: Model,
    events: Vec<Event>,
) {
    let nodes: &'a mut [Node] = Box::leak(vec![Node::NEW; UNITS as usize].into_boxed_slice());
    let (mut policy, mut model) = (new(nodes), model);
    for event in events {
        match event {
            Event::Load(unit, refault) if model.at(unit).is_none() => {
                policy.loaded(unit, refault);
                (rules.load)(&mut model, unit, refault);
            }
            // Already resident: no policy may lose its place or count it twice.
            Event::Load(unit, refault) => policy.loaded(unit, refault),
            Event::Touch(unit) => {
                let expected = model.at(unit).is_some_and(|at| (rules.touch)(&mut model, at));
                assert_eq!(policy.touched(unit), expected);
            }
            Event::Victim => assert_eq!(policy.victim(), (rules.victim)(&mut model)),
            Event::Gone(unit) => {
                policy.gone(unit);
                if let Some(at) = model.at(unit) {
                    if model.hand == Some(unit) {
                        model.hand = model.units.get(at + 1).map(|u| u.unit);
                    }
                    model.units.remove(at);
                }
            }
        }
        assert_eq!(policy.resident() as usize, model.units.len());
    }
    policy.loaded(UNITS, None);
    policy.touched(UNITS);
    policy.gone(UNITS + 7);
    assert_eq!(
        policy.resident() as usize,
        model.units.len(),
        "what is out of range is ignored"
    );
}

const CLOCK: Rules = Rules {
    load: to_front,
    touch: mark,
    victim: |model| {
        while let Some(unit) = model.pop(0) {
            if unit.mark == 0 {
                return Some(unit.unit);
            }
            model.push(unit.unit, 0, 0);
        }
        None
    },
};

const SIEVE: Rules = Rules {
    load: to_front,
    touch: mark,
    victim: |model| {
        let mut at = model.hand.and_then(|hand| model.at(hand)).unwrap_or(0);
        if model.units.is_empty() {
            return None;
        }
        while model.units[at].mark > 0 {
            model.units[at].mark = 0;
            at = (at + 1) % model.units.len();
        }
        let victim = model.units.remove(at).unit;
        model.hand = model.units.get(at).map(|u| u.unit);
        Some(victim)
    },
};

const S3FIFO: Rules = Rules {
    load: |model, unit, refault| {
        let resident = model.units.len() as u32;
        let soon = refault.is_some_and(|distance| distance <= resident - resident / 10);
        model.push(unit, u64::from(soon), 0);
    },
    touch: |model, at| {
        model.units[at].mark = (model.units[at].mark + 1).min(3);
        false
    },
    victim: |model| {
        while !model.units.is_empty() {
            let target = (model.units.len() / 10).max(1);
            if model.count(0) >= target || model.count(1) == 0 {
                let unit = model.pop(0)?;
                if unit.mark < 2 {
                    return Some(unit.unit);
                }
                model.push(unit.unit, 1, 0);
            } else {
                let unit = model.pop(1)?;
                if unit.mark == 0 {
                    return Some(unit.unit);
                }
                model.push(unit.unit, 1, unit.mark - 1);
            }
        }
        None
    },
};

const LRU_GEN: Rules = Rules {
    load: |model, unit, _| model.push(unit, model.youngest, 0),
    touch: mark,
    victim: |model| {
        loop {
            let oldest = model.units.iter().map(|u| u.list).min()?;
            if oldest == model.youngest {
                model.youngest += 1;
                let youngest = model.youngest;
                let (touched, rest): (Vec<_>, Vec<_>) = model.units.drain(..).partition(|u| u.mark > 0);
                model.units = rest;
                touched.iter().for_each(|u| model.push(u.unit, youngest, 0));
                continue;
            }
            let unit = model.pop(oldest)?;
            if unit.mark == 0 {
                return Some(unit.unit);
            }
            model.push(unit.unit, model.youngest, 0);
        }
    },
};

const SWAP_CACHE: Rules = Rules {
    load: to_front,
    touch: |model, at| {
        let waits = model.units[at].list == 1;
        if waits {
            let unit = model.units.remove(at).unit;
            model.push(unit, 0, 0);
        }
        waits
    },
    victim: |model| {
        let target = (model.units.len() / 16).max(2);
        while model.count(1) < target {
            let Some(unit) = model.pop(0) else { break };
            model.push(unit.unit, 1, 0);
        }
        model.pop(1).map(|unit| unit.unit)
    },
};

fn behind_cache(nodes: &mut [Node]) -> SwapCache<'_, Clock<'_>> {
    let cache: &'static mut [Node] = Box::leak(vec![Node::NEW; nodes.len()].into_boxed_slice());
    SwapCache::new(Clock::new(nodes), cache)
}

fn two_generations() -> Model {
    Model {
        youngest: 1,
        ..Model::default()
    }
}

proptest! {
    #[test]
    fn each_policy_follows_the_naive_one(events in events()) {
        check(Clock::new, &CLOCK, Model::default(), events.clone());
        check(Sieve::new, &SIEVE, Model::default(), events.clone());
        check(S3Fifo::new, &S3FIFO, Model::default(), events.clone());
        check(LruGen::new, &LRU_GEN, two_generations(), events.clone());
        check(behind_cache, &SWAP_CACHE, Model::default(), events);
    }
}

#[test]
fn a_shadow_tells_how_many_went_since() {
    let mut at = [9; 5];
    let mut shadows = Shadows::new(&mut at);
    assert_eq!(shadows.returned(1), None);
    (1..4).for_each(|unit| shadows.evicted(unit));
    assert_eq!((shadows.returned(3), shadows.returned(1)), (Some(0), Some(2)));
    assert_eq!(shadows.returned(1), None, "it is used once");
    shadows.evicted(77);
    assert_eq!((shadows.returned(77), shadows.returned(2)), (None, Some(2)));
}
