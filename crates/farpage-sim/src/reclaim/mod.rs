//! Reclaim policies on recorded programs: how often each misses in a part of the working set, beside the best possible
//! (issue 3 point 5; decision 0017).
//!
//! A trace is a row of pages that a program touched (`tests/bench/record.py`: the faults of a run in a budget so small that
//! what it can't see are only touches soon after another one of the same page). It is read as units of 1 page or, as the engine
//! evicts, 64; touches of one unit in a row are one. Each policy of `farpage_core::reclaim_policy` gets the trace twice:
//! once it hears of every touch, as with the hardware's accessed bits at no cost, and once only of faults, which is what a
//! user-space engine can know of resident memory.

pub mod min;
pub mod report;

use std::collections::HashMap;
use std::time::Instant;

use farpage_core::reclaim_policy::{
    Clock, Fifo, LruGen, Node, ReclaimPolicy, S3Fifo, Shadows, Sieve, SwapCache,
};

/// The first bytes of a trace file.
pub const MAGIC: &[u8; 8] = b"FPTRACE1";

/// A recorded program.
#[derive(Debug, Clone)]
pub struct Trace {
    /// What it is called.
    pub name: String,
    /// Units in the order of their touches, numbered from 0; no two equal ones follow each other.
    pub units: Vec<u32>,
    /// How many there are.
    pub distinct: u32,
}

impl Trace {
    /// Reads a file of [`MAGIC`] and little-endian 32-bit page numbers, in units of `pages_per_unit` pages.
    ///
    /// # Errors
    /// If it begins otherwise, does not end with a whole number, or holds none.
    pub fn read(name: &str, bytes: &[u8], pages_per_unit: u32) -> Result<Self, String> {
        let numbers = bytes.strip_prefix(MAGIC);
        let (pages, rest) = numbers
            .ok_or_else(|| format!("{name}: not a trace"))?
            .as_chunks::<4>();
        if pages.is_empty() || !rest.is_empty() {
            return Err(format!(
                "{name}: a trace that is empty or was cut: {} bytes",
                bytes.len()
            ));
        }
        let mut numbers = HashMap::new();
        let mut units = Vec::with_capacity(pages.len());
        for page in pages {
            let unit = u32::from_le_bytes(*page) / pages_per_unit.max(1);
            let next = numbers.len() as u32;
            let number = *numbers.entry(unit).or_insert(next);
            if units.last() != Some(&number) {
                units.push(number);
            }
        }
        Ok(Self {
            name: name.to_owned(),
            units,
            distinct: numbers.len() as u32,
        })
    }
}

/// A policy by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The engine's: a FIFO with retention, and the swap cache.
    Retaining,
    /// A plain FIFO, and the swap cache.
    SwapCache,
    /// S3-FIFO, which goes by shadows then, and the swap cache.
    S3Cache,
    /// A ring with a bit per unit.
    Clock,
    /// A FIFO with a hand.
    Sieve,
    /// A small FIFO before a main one.
    S3Fifo,
    /// Four generations.
    LruGen,
}

impl Kind {
    /// In the order of the table.
    pub const ALL: [Self; 7] = [
        Self::Retaining,
        Self::SwapCache,
        Self::S3Cache,
        Self::Clock,
        Self::Sieve,
        Self::S3Fifo,
        Self::LruGen,
    ];

    /// The stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retaining => "retaining+cache",
            Self::SwapCache => "fifo+cache",
            Self::S3Cache => "s3+cache",
            Self::Clock => "clock",
            Self::Sieve => "sieve",
            Self::S3Fifo => "s3-fifo",
            Self::LruGen => "lru-gen",
        }
    }

    /// Whether touches of units in RAM make no difference to it.
    const fn is_blind(self) -> bool {
        matches!(self, Self::Retaining | Self::SwapCache | Self::S3Cache)
    }

    fn policy<'a>(self, nodes: &'a mut [Node], waiting: &'a mut [Node]) -> Box<dyn ReclaimPolicy + 'a> {
        match self {
            Self::Retaining => Box::new(SwapCache::new(Fifo::new(nodes), waiting)),
            Self::SwapCache => Box::new(SwapCache::new(Clock::new(nodes), waiting)),
            Self::S3Cache => Box::new(SwapCache::new(S3Fifo::new(nodes), waiting)),
            Self::Clock => Box::new(Clock::new(nodes)),
            Self::Sieve => Box::new(Sieve::new(nodes)),
            Self::S3Fifo => Box::new(S3Fifo::new(nodes)),
            Self::LruGen => Box::new(LruGen::new(nodes)),
        }
    }
}

/// What a policy did with a trace.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Outcome {
    /// Touches of units that were not there, first ones included.
    pub misses: u64,
    /// Of those, units that had been there before.
    pub refaults: u64,
    /// Refaults within a distance of the capacity: what as much memory again would have kept.
    pub near: u64,
    /// Touches that faulted though the unit was still in RAM, in the swap cache.
    pub soft: u64,
    /// Units looked at to find victims.
    pub scanned: u64,
    /// Time of the policy's own code and of the replay around it, on this machine.
    pub ns: u64,
}

/// Replays a trace in `capacity` units of memory. With `sees` the policy hears of every touch, else of faults only.
#[must_use]
pub fn replay(trace: &Trace, kind: Kind, capacity: u32, sees: bool) -> Outcome {
    let units = trace.distinct as usize;
    let (mut nodes, mut waiting) = (vec![Node::NEW; units], vec![Node::NEW; units]);
    let mut clocks = vec![0; units];
    let mut resident = vec![false; units];
    let mut policy = kind.policy(&mut nodes, &mut waiting);
    let mut shadows = Shadows::new(&mut clocks);
    let mut out = Outcome::default();
    // What leaves the page tables for the swap cache faults when it is touched: no need to see more.
    let sees = sees || kind.is_blind();
    let start = Instant::now();
    for &unit in &trace.units {
        if resident[unit as usize] {
            if sees {
                out.soft += u64::from(policy.touched(unit));
            }
            continue;
        }
        out.misses += 1;
        if policy.resident() >= capacity.max(1)
            && let Some(victim) = policy.victim()
        {
            resident[victim as usize] = false;
            shadows.evicted(victim);
        }
        let refault = shadows.returned(unit);
        out.refaults += u64::from(refault.is_some());
        out.near += u64::from(refault.is_some_and(|distance| distance <= capacity));
        policy.loaded(unit, refault);
        resident[unit as usize] = true;
    }
    out.ns = start.elapsed().as_nanos() as u64;
    out.scanned = policy.scanned();
    out
}

/// All policies on a trace in one budget.
#[derive(Debug, Clone)]
pub struct Row {
    /// The trace's name.
    pub trace: String,
    /// Its touches.
    pub touches: u64,
    /// Its units.
    pub distinct: u32,
    /// The budget is the working set divided by this.
    pub part: f64,
    /// Units that fit in it.
    pub capacity: u32,
    /// Misses of the best possible.
    pub min_misses: u64,
    /// Each policy when it hears of every touch, and of faults only.
    pub policies: Vec<(Kind, Outcome, Outcome)>,
}

/// Replays a trace with every policy for every budget.
#[must_use]
pub fn rows(trace: &Trace, parts: &[f64]) -> Vec<Row> {
    let row = |part: f64| {
        let capacity = ((f64::from(trace.distinct) / part.max(1.0)) as u32).max(1);
        let both = |kind| {
            (
                kind,
                replay(trace, kind, capacity, true),
                replay(trace, kind, capacity, false),
            )
        };
        Row {
            trace: trace.name.clone(),
            touches: trace.units.len() as u64,
            distinct: trace.distinct,
            part,
            capacity,
            min_misses: min::misses(&trace.units, trace.distinct, capacity),
            policies: Kind::ALL.map(both).to_vec(),
        }
    };
    parts.iter().map(|part| row(*part)).collect()
}

#[cfg(test)]
mod tests;
