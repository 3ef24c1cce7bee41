//! What it costs to run under something that could swap, for a program that never needs it (P12): small objects, then memory
//! that is filled and worked through, first a third of the RAM, then three quarters. A process of farpage's that fits is managed
//! from half of its budget on, so the two parts tell the price before and after.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Value, json};

use super::content::{Content, Random};
use super::{Checks, Memory, WorkArgs};

/// Objects made in all, of which half are freed again along the way, and their greatest length.
const OBJECTS: usize = 400_000;
const OBJECT_BYTES_MAX: usize = 400;
/// The part of the RAM that those take which are there at a time, and what that is for each one made: an allocator keeps
/// what it was given back, and with three quarters on top all of it must fit.
const OBJECTS_PART: u64 = 16;
const OBJECT_BYTES_MEAN: u64 = 128;
/// How often the filled memory is worked through; each time a pass in order and as many pages at random.
const PASSES: u32 = 4;

pub fn fit(args: &WorkArgs) -> Result<Value, String> {
    let content = Content::new(args.incompressible);
    let mut checks = Checks::default();
    let start = Instant::now();
    let at_a_time = (args.ram_bytes / OBJECTS_PART / OBJECT_BYTES_MEAN).max(1) as usize;
    for _ in 0..OBJECTS.div_ceil(at_a_time) {
        objects(at_a_time, &mut checks);
    }
    let objects_s = start.elapsed().as_secs_f64();
    let third = filled(args, args.ram_bytes / 3, &content, &mut checks)?;
    let most = filled(args, args.ram_bytes / 4 * 3, &content, &mut checks)?;
    let mut figures = json!({
        "seconds": start.elapsed().as_secs_f64(),
        "objects_s": objects_s,
        "third": third,
        "most": most,
    });
    checks.tell(&mut figures);
    Ok(figures)
}

/// A map of small objects that comes and goes: the allocator's part.
fn objects(count: usize, checks: &mut Checks) {
    let mut random = Random::new(3);
    let mut kept: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
    for number in 0..count {
        let length = 1 + random.below(OBJECT_BYTES_MAX);
        kept.insert(number, vec![length as u8; length]);
        let gone = random.below(number + 1);
        if number % 2 == 1
            && let Some(object) = kept.remove(&gone)
        {
            checks.note(object.last() == Some(&(object.len() as u8)));
        }
    }
}

/// Fills memory and works through it; the seconds of both.
fn filled(args: &WorkArgs, bytes: u64, content: &Content, checks: &mut Checks) -> Result<Value, String> {
    let mut memory = Memory::map(args, bytes)?;
    let fill_s = memory.fill(content);
    let pages = memory.pages();
    let mut random = Random::new(9);
    let start = Instant::now();
    for version in 1..=PASSES {
        memory.rewrite(content, version, checks);
        for _ in 0..pages {
            let number = random.below(pages);
            checks.note(content.has_stamp(memory.page(number), number, version));
        }
    }
    Ok(json!({
        "bytes": bytes,
        "fill_s": fill_s,
        "passes_s": start.elapsed().as_secs_f64(),
    }))
}
