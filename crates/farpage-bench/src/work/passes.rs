//! From front to back: the first fill, rewriting, giving memory back.

use std::time::Instant;

use serde_json::{Value, json};

use super::content::Content;
use super::{Checks, Memory, WorkArgs, mb_per_s};

/// Every so many pages one is looked at where the time for all of them would be too long.
const SAMPLE: usize = 17;

/// The first fill; the check afterwards is not timed.
pub fn fill(args: &WorkArgs) -> Result<Value, String> {
    let content = Content::new(args.incompressible);
    let mut memory = Memory::map(args, args.bytes)?;
    let seconds = memory.fill(&content);
    let mut checks = Checks::default();
    for number in (0..memory.pages()).step_by(SAMPLE) {
        checks.note(content.is(memory.page(number), number, 0));
    }
    let mut figures = json!({
        "bytes": args.bytes,
        "pages": memory.pages(),
        "seconds": seconds,
        "fill_mb_per_s": mb_per_s(memory.pages(), seconds),
    });
    checks.tell(&mut figures);
    Ok(figures)
}

/// Passes over all pages in order: each is compared with what was last written and written anew. Data greater than
/// RAM has, when a pass begins, only the pages there that it comes to last.
pub fn seq(args: &WorkArgs) -> Result<Value, String> {
    let content = Content::new(args.incompressible);
    let mut memory = Memory::map(args, args.bytes)?;
    let fill_seconds = memory.fill(&content);
    let pages = memory.pages();
    let mut checks = Checks::default();
    let mut seconds = Vec::new();
    for version in 1..=args.passes {
        let start = Instant::now();
        memory.rewrite(&content, version, &mut checks);
        seconds.push(start.elapsed().as_secs_f64());
    }
    let total: f64 = seconds.iter().sum();
    let rewritten = pages * seconds.len();
    let mut figures = json!({
        "bytes": args.bytes,
        "pages": pages,
        "seconds": total,
        "pass_seconds": seconds,
        "fill_mb_per_s": mb_per_s(pages, fill_seconds),
        "mb_per_s": mb_per_s(rewritten, total),
        "us_per_page": total * 1e6 / rewritten as f64,
    });
    checks.tell(&mut figures);
    Ok(figures)
}

/// The time to unmap data most of which is swapped out.
pub fn free(args: &WorkArgs) -> Result<Value, String> {
    let content = Content::new(args.incompressible);
    let mut memory = Memory::map(args, args.bytes)?;
    memory.fill(&content);
    let pages = memory.pages();
    let mut checks = Checks::default();
    for number in (0..pages).step_by(SAMPLE * SAMPLE) {
        checks.note(content.is(memory.page(number), number, 0));
    }
    let start = Instant::now();
    drop(memory);
    let seconds = start.elapsed().as_secs_f64();
    let mut figures = json!({
        "bytes": args.bytes,
        "pages": pages,
        "seconds": seconds,
        "free_us": seconds * 1e6,
        "free_ns_per_page": seconds * 1e9 / pages as f64,
    });
    checks.tell(&mut figures);
    Ok(figures)
}
