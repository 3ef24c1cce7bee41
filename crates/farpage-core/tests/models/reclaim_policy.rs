//! Each policy beside a naive one: lists that are searched from end to end.

use farpage_core::reclaim_policy::{
    Clock, Fifo, LruGen, Node, ReclaimPolicy, S3Fifo, Shadows, Sieve, SwapCache,
};

use super::Input;

const UNITS: u32 = 24;

#[derive(Debug, Clone, Copy)]
pub enum Event {
    /// With the refault distance that is told.
    Load(u32, Option<u32>),
    Touch(u32),
    Victim,
    Gone(u32),
}

impl Event {
    /// The next event that some bytes say; none at their end.
    pub fn read(input: &mut Input<'_>) -> Option<Self> {
        let (what, n) = (input.byte()?, u32::from(input.byte()?));
        let unit = n % UNITS;
        Some(match what % 12 {
            0..=3 => Self::Load(unit, u32::from(what / 12).checked_sub(1)),
            4..=7 => Self::Touch(unit),
            8..=10 => Self::Victim,
            _ => Self::Gone(unit),
        })
    }
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

fn check(mut policy: impl ReclaimPolicy, rules: &Rules, mut model: Model, events: &[Event]) {
    let mut at = [0; UNITS as usize];
    let mut shadows = Shadows::new(&mut at);
    let mut evicted: Vec<u32> = Vec::new();
    for &event in events {
        match event {
            Event::Load(unit, refault) if model.at(unit).is_none() => {
                // Since it went: each unit's shadow is used once.
                let since = evicted.iter().rev().position(|gone| *gone == unit);
                assert_eq!(shadows.returned(unit), since.map(|since| since as u32));
                for gone in evicted.iter_mut().filter(|gone| **gone == unit) {
                    *gone = UNITS;
                }
                policy.loaded(unit, refault);
                (rules.load)(&mut model, unit, refault);
            }
            // Already resident: no policy may lose its place or count it twice.
            Event::Load(unit, refault) => policy.loaded(unit, refault),
            Event::Touch(unit) => {
                let expected = model.at(unit).is_some_and(|at| (rules.touch)(&mut model, at));
                assert_eq!(policy.touched(unit), expected);
            }
            Event::Victim => {
                let victim = policy.victim();
                assert_eq!(victim, (rules.victim)(&mut model));
                if let Some(unit) = victim {
                    shadows.evicted(unit);
                    evicted.push(unit);
                }
            }
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

const FIFO: Rules = Rules {
    load: to_front,
    touch: |_, _| false,
    victim: |model| model.pop(0).map(|unit| unit.unit),
};

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

fn two_generations() -> Model {
    Model {
        youngest: 1,
        ..Model::default()
    }
}

/// Does what the events say to each policy and to a model of it; panics where they differ.
pub fn follow(events: &[Event]) {
    const NEW: [Node; UNITS as usize] = [Node::NEW; UNITS as usize];
    check(Clock::new(&mut { NEW }), &CLOCK, Model::default(), events);
    // So few units never stay: `reclaim_policy::tests` has what do.
    check(Fifo::new(&mut { NEW }), &FIFO, Model::default(), events);
    check(Sieve::new(&mut { NEW }), &SIEVE, Model::default(), events);
    check(S3Fifo::new(&mut { NEW }), &S3FIFO, Model::default(), events);
    check(LruGen::new(&mut { NEW }), &LRU_GEN, two_generations(), events);
    let (mut inner, mut waiting) = (NEW, NEW);
    let behind_cache = SwapCache::new(Clock::new(&mut inner), &mut waiting);
    check(behind_cache, &SWAP_CACHE, Model::default(), events);
}
