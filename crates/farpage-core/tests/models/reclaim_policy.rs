//! Each policy beside a naive one: lists that are searched from end to end.

use farpage_core::reclaim_policy::{
    Clock, Fifo, LruGen, Node, ReclaimPolicy, Retention, S3Fifo, Shadows, Sieve, SwapCache,
};

use super::Input;

/// Few, so that they meet often; and as many as it takes for a FIFO to let units stay.
const FEW: usize = 24;
const MANY: usize = 96;

#[derive(Debug, Clone, Copy)]
pub enum Event {
    /// With the refault distance that is told.
    Load(u32, Option<u32>),
    Touch(u32),
    Victim,
    Gone(u32),
    /// So many loads of one unit after the other, round and round, with room for three quarters of the units.
    Round(u32),
}

impl Event {
    /// The next event that some bytes say; none at their end.
    pub fn read(input: &mut Input<'_>) -> Option<Self> {
        let (what, n) = (input.byte()?, u32::from(input.byte()?));
        Some(match what % 13 {
            0..=3 => Self::Load(n, u32::from(what / 13).checked_sub(1)),
            4..=7 => Self::Touch(n),
            8..=10 => Self::Victim,
            11 => Self::Gone(n),
            _ => Self::Round(n / 4),
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
    /// Which of the FIFO's units stay is its say, in the model too: its arithmetic has tests of its own (`reclaim_policy::tests`).
    retention: Retention,
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

/// A policy, a model of it, and what left when.
struct Both<'a, P> {
    policy: P,
    rules: &'a Rules,
    model: Model,
    shadows: Shadows<'a>,
    evicted: Vec<u32>,
    units: u32,
    /// Of the next round.
    next: u32,
}

impl<P: ReclaimPolicy> Both<'_, P> {
    /// How many left since the unit did.
    fn since(&self, unit: u32) -> Option<u32> {
        let since = self.evicted.iter().rev().position(|gone| *gone == unit);
        since.map(|since| since as u32)
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Load(unit, refault) => self.load(unit % self.units, refault),
            Event::Touch(unit) => {
                let unit = unit % self.units;
                let at = self.model.at(unit);
                let expected = at.is_some_and(|at| (self.rules.touch)(&mut self.model, at));
                assert_eq!(self.policy.touched(unit), expected);
            }
            Event::Victim => {
                let victim = self.policy.victim();
                assert_eq!(victim, (self.rules.victim)(&mut self.model));
                if let Some(unit) = victim {
                    self.shadows.evicted(unit);
                    self.evicted.push(unit);
                }
            }
            Event::Gone(unit) => self.gone(unit % self.units),
            Event::Round(loads) => {
                for _ in 0..loads {
                    if self.policy.resident() >= self.units * 3 / 4 {
                        self.step(Event::Victim);
                    }
                    self.step(Event::Load(self.next, self.since(self.next)));
                    self.next = (self.next + 1) % self.units;
                }
            }
        }
        assert_eq!(self.policy.resident() as usize, self.model.units.len());
    }

    fn load(&mut self, unit: u32, refault: Option<u32>) {
        if self.model.at(unit).is_none() {
            assert_eq!(self.shadows.returned(unit), self.since(unit));
            // Each unit's shadow is used once.
            let units = self.units;
            self.evicted
                .iter_mut()
                .filter(|gone| **gone == unit)
                .for_each(|gone| *gone = units);
            (self.rules.load)(&mut self.model, unit, refault);
        }
        // Of one that is resident already no policy may lose the place or count it twice.
        self.policy.loaded(unit, refault);
    }

    fn gone(&mut self, unit: u32) {
        self.policy.gone(unit);
        if let Some(at) = self.model.at(unit) {
            if self.model.hand == Some(unit) {
                self.model.hand = self.model.units.get(at + 1).map(|u| u.unit);
            }
            self.model.units.remove(at);
        }
    }
}

fn check(policy: impl ReclaimPolicy, units: usize, rules: &Rules, model: Model, events: &[Event]) {
    let mut at = vec![0; units];
    let mut both = Both {
        policy,
        rules,
        model,
        shadows: Shadows::new(&mut at),
        evicted: Vec::new(),
        units: units as u32,
        next: 0,
    };
    events.iter().for_each(|event| both.step(*event));
    let Both {
        mut policy,
        model,
        units,
        ..
    } = both;
    policy.loaded(units, None);
    policy.touched(units);
    policy.gone(units + 7);
    assert_eq!(
        policy.resident() as usize,
        model.units.len(),
        "what is out of range is ignored"
    );
}

/// Near: it left within three quarters of a turnover. What was taken back from the swap cache has not been away.
fn to_front_of_retained(model: &mut Model, unit: u32, refault: Option<u32>) {
    let resident = model.count(0) as u32;
    if refault != Some(0) {
        let near = refault.is_some_and(|distance| 4 * distance <= 3 * resident);
        model.retention.came(near, 64, resident);
    }
    model.push(unit, 0, 0);
}

/// The oldest that does not stay; at most half of all do.
fn oldest_to_leave(model: &mut Model) -> Option<u32> {
    let resident = model.count(0) as u32;
    for looked_at in 0.. {
        let unit = model.pop(0)?.unit;
        if !model.retention.stays(unit.into(), resident) || looked_at == resident / 2 {
            model.retention.evicted(resident);
            return Some(unit);
        }
        model.push(unit, 0, 0);
    }
    None
}

const FIFO: Rules = Rules {
    load: to_front_of_retained,
    touch: |_, _| false,
    victim: oldest_to_leave,
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

fn taken_back(model: &mut Model, at: usize) -> bool {
    let waits = model.units[at].list == 1;
    if waits {
        let unit = model.units.remove(at).unit;
        model.push(unit, 0, 0);
    }
    waits
}

/// What `inner` gives up waits in a list of its own.
fn behind_cache(model: &mut Model, inner: fn(&mut Model) -> Option<u32>) -> Option<u32> {
    let target = (model.units.len() / 16).max(2);
    while model.count(1) < target {
        let Some(unit) = inner(model) else { break };
        model.push(unit, 1, 0);
    }
    model.pop(1).map(|unit| unit.unit)
}

const CLOCK_AND_CACHE: Rules = Rules {
    load: to_front,
    touch: taken_back,
    victim: |model| behind_cache(model, |model| model.pop(0).map(|unit| unit.unit)),
};

/// The engine's.
const FIFO_AND_CACHE: Rules = Rules {
    load: to_front_of_retained,
    touch: taken_back,
    victim: |model| behind_cache(model, oldest_to_leave),
};

fn two_generations() -> Model {
    Model {
        youngest: 1,
        ..Model::default()
    }
}

fn follow_fifo<const UNITS: usize>(events: &[Event]) {
    let (mut nodes, mut waiting) = ([Node::NEW; UNITS], [Node::NEW; UNITS]);
    check(Fifo::new(&mut nodes), UNITS, &FIFO, Model::default(), events);
    nodes = [Node::NEW; UNITS];
    let behind_cache = SwapCache::new(Fifo::new(&mut nodes), &mut waiting);
    check(behind_cache, UNITS, &FIFO_AND_CACHE, Model::default(), events);
}

/// Does what the events say to each policy and to a model of it; panics where they differ.
pub fn follow(events: &[Event]) {
    const NEW: [Node; FEW] = [Node::NEW; FEW];
    check(Clock::new(&mut { NEW }), FEW, &CLOCK, Model::default(), events);
    check(Sieve::new(&mut { NEW }), FEW, &SIEVE, Model::default(), events);
    check(S3Fifo::new(&mut { NEW }), FEW, &S3FIFO, Model::default(), events);
    check(
        LruGen::new(&mut { NEW }),
        FEW,
        &LRU_GEN,
        two_generations(),
        events,
    );
    let (mut inner, mut waiting) = (NEW, NEW);
    let behind_cache = SwapCache::new(Clock::new(&mut inner), &mut waiting);
    check(behind_cache, FEW, &CLOCK_AND_CACHE, Model::default(), events);
    follow_fifo::<FEW>(events);
    follow_fifo::<MANY>(events);
}
