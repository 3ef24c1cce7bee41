//! Random touches of pages, each timed by itself: by one thread, by several, and beside a sequential writer.

use std::ops::DerefMut;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use farpage_core::units::PAGE_SIZE;
use serde_json::{Value, json};

use super::content::{Content, Random};
use super::latency::Latencies;
use super::{Checks, Memory, WorkArgs};

/// The byte of a page that counts its touches; the stamps at both ends are what is checked.
const COUNT_AT: usize = PAGE_SIZE / 2;
/// Threads that touch at random beside the sequential writer (system V's table has two for each).
const BESIDE: usize = 2;
/// Of the data of `mixed`, the sequential writer has 5 parts and the random ones together 3, as in system V's table.
const SEQUENTIAL_PARTS: (u64, u64) = (5, 8);

/// What one thread did. Made before memory gets scarce: what is measured allocates nothing.
#[derive(Default)]
struct Done {
    latencies: Latencies,
    checks: Checks,
    pages: u64,
}

impl Done {
    /// Counts a page whose touch began at `start`; the time it ended.
    fn note(&mut self, start: Instant, right: bool) -> Instant {
        let now = Instant::now();
        self.latencies.record((now - start).as_nanos() as u64);
        self.checks.note(right);
        self.pages += 1;
        now
    }
}

/// `random`: every touch reads a page's stamp and adds one to its count.
pub fn random(args: &WorkArgs) -> Result<Value, String> {
    by_threads(args, &[1, 2])
}

/// `threads`: the same by more threads than there are CPUs.
pub fn threads(args: &WorkArgs) -> Result<Value, String> {
    by_threads(args, &[1, 2, 4, 8, 16])
}

/// What takes longer was a fault: the shortest, of a page in compressed RAM, takes 3 us, and a hit a tenth of that.
const FAULT_NS: u64 = 2_000;

/// `faults`: one thread's touches, those that were faults by themselves.
pub fn faults(args: &WorkArgs) -> Result<Value, String> {
    let content = &Content::new(args.incompressible);
    let mut memory = Memory::map(args, args.bytes)?;
    let (mut all, mut faults) = (Done::default(), Latencies::default());
    let mut random = Random::new(77);
    let pages = memory.pages();
    let fill_seconds = memory.fill(content);
    let end = Instant::now() + Duration::from_secs_f64(args.seconds);
    // Ends with the time: every touch takes some.
    loop {
        let number = random.below(pages);
        let page = memory.page_mut(number);
        let start = Instant::now();
        let right = content.has_stamp(page, number, 0);
        page[COUNT_AT] = page[COUNT_AT].wrapping_add(1);
        let now = all.note(start, right);
        let ns = (now - start).as_nanos() as u64;
        if ns >= FAULT_NS {
            faults.record(ns);
        }
        if now >= end {
            break;
        }
    }
    drop(memory);
    let mut figures = json!({
        "bytes": args.bytes,
        "pages": pages,
        "fill_seconds": fill_seconds,
        "per_s": all.pages as f64 / args.seconds,
        "fault": faults.figures(),
    });
    all.checks.tell(&mut figures);
    Ok(figures)
}

/// A stretch of the data, with the content's number of its first page.
struct Part<'a> {
    first: usize,
    bytes: &'a mut [u8],
}

/// Touches by as many threads as each of `counts` says, one count after the other; the threads share the data among them.
fn by_threads(args: &WorkArgs, counts: &[usize]) -> Result<Value, String> {
    let content = &Content::new(args.incompressible);
    let mut memory = Memory::map(args, args.bytes)?;
    let pages = memory.pages();
    let most = counts.iter().copied().max().unwrap_or(1);
    let each = pages.div_ceil(most);
    let all: Vec<_> = memory
        .0
        .chunks_mut(each * PAGE_SIZE)
        .enumerate()
        .map(|(nth, bytes)| {
            Mutex::new(Part {
                first: nth * each,
                bytes,
            })
        })
        .collect();
    let (parts, turn) = (&all[..], &Barrier::new(most + 1));
    let done: Vec<Vec<Done>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..most)
            .map(|nth| {
                let made = counts.iter().map(|_| Done::default()).collect();
                scope.spawn(move || take_turns(nth, counts, parts, turn, (content, args.seconds), made))
            })
            .collect();
        turn.wait();
        fill(parts, content);
        for _ in counts {
            turn.wait();
            turn.wait();
        }
        workers
            .into_iter()
            .filter_map(|worker| worker.join().ok())
            .collect()
    });
    // With all swap full there is none for the figures otherwise.
    drop(all);
    drop(memory);
    let mut figures = json!({ "bytes": args.bytes, "pages": pages, "seconds": args.seconds });
    tell_threads(&mut figures, counts, &done, args.seconds);
    Ok(figures)
}

fn fill(parts: &[Mutex<Part<'_>>], content: &Content) {
    for mut part in parts.iter().filter_map(|part| part.lock().ok()) {
        let first = part.first;
        for (number, page) in (first..).zip(part.bytes.chunks_mut(PAGE_SIZE)) {
            content.write(page, number, 0);
        }
    }
}

/// Thread `nth`'s part of each count's touches: every so-manieth part of the data. What it needs is made before memory gets scarce.
fn take_turns(
    nth: usize,
    counts: &[usize],
    parts: &[Mutex<Part<'_>>],
    turn: &Barrier,
    (content, seconds): (&Content, f64),
    made: Vec<Done>,
) -> Vec<Done> {
    let mut own = Vec::with_capacity(parts.len());
    let mut all = Vec::with_capacity(made.len());
    turn.wait();
    for (count, done) in counts.iter().zip(made) {
        turn.wait();
        if nth < *count {
            own.extend(
                parts
                    .iter()
                    .skip(nth)
                    .step_by(*count)
                    .filter_map(|part| part.lock().ok()),
            );
        }
        all.push(if own.is_empty() {
            done
        } else {
            touch(&mut own, content, seconds, done)
        });
        own.clear();
        turn.wait();
    }
    all
}

/// What all threads did, count by count.
fn tell_threads(figures: &mut Value, counts: &[usize], done: &[Vec<Done>], seconds: f64) {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let mut checks = Checks::default();
    for (turn, count) in counts.iter().enumerate() {
        let mut latencies = Latencies::default();
        for one in done.iter().filter_map(|all| all.get(turn)) {
            latencies.add(&one.latencies);
            checks.add(&one.checks);
        }
        let per_s = latencies.count() as f64 / seconds;
        let key = format!("t{count}");
        figures[&key] = latencies.figures();
        figures[&key]["per_s"] = json!(per_s);
        figures[&key]["per_s_and_cpu"] = json!(per_s / cpus.min(*count) as f64);
    }
    checks.tell(figures);
}

/// Touches pages of `parts`, all of the same length but the last, until the time is over.
fn touch<'a>(
    parts: &mut [impl DerefMut<Target = Part<'a>>],
    content: &Content,
    seconds: f64,
    mut done: Done,
) -> Done {
    let mut random = Random::new(parts[0].first as u64 + 77);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let each = parts[0].bytes.len() / PAGE_SIZE;
    let pages = parts.iter().map(|part| part.bytes.len() / PAGE_SIZE).sum();
    loop {
        let number = random.below(pages);
        let Part { first, bytes } = &mut *parts[number / each];
        let page = &mut bytes[number % each * PAGE_SIZE..][..PAGE_SIZE];
        let start = Instant::now();
        let right = content.has_stamp(page, *first + number % each, 0);
        page[COUNT_AT] = page[COUNT_AT].wrapping_add(1);
        if done.note(start, right) >= end {
            return done;
        }
    }
}

/// Rewrites `part` from front to back, again and again, until the time is over.
fn rewrite(part: &mut [u8], content: &Content, seconds: f64, mut done: Done) -> Done {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    // Ends with the time: every page takes some.
    for version in 1.. {
        for (number, page) in part.chunks_mut(PAGE_SIZE).enumerate() {
            let start = Instant::now();
            let right = content.is(page, number, version - 1);
            content.write(page, number, version);
            if done.note(start, right) >= end {
                return done;
            }
        }
    }
    done
}

/// `mixed`: system V's table V1 with threads in place of processes, each with a mapping of its own that touches no other.
pub fn mixed(args: &WorkArgs) -> Result<Value, String> {
    let content = &Content::new(args.incompressible);
    let sequential_bytes = args.bytes / SEQUENTIAL_PARTS.1 * SEQUENTIAL_PARTS.0;
    let each_bytes = (args.bytes - sequential_bytes) / BESIDE as u64;
    let mut sizes = [each_bytes; 1 + BESIDE];
    sizes[0] = sequential_bytes;
    let mut all = Memory::map_apart(args, &sizes)?;
    let [sequential, beside @ ..] = &mut all[..] else {
        return Err("no mapping for the sequential writer".to_owned());
    };
    let filled = &Barrier::new(1 + BESIDE);
    let (one, others) = thread::scope(|scope| {
        let others: Vec<_> = beside
            .iter_mut()
            .map(|memory| {
                let done = Done::default();
                scope.spawn(move || {
                    memory.fill(content);
                    filled.wait();
                    let mut part = Part {
                        first: 0,
                        bytes: &mut memory.0,
                    };
                    touch(&mut [&mut part], content, args.seconds, done)
                })
            })
            .collect();
        let done = Done::default();
        sequential.fill(content);
        filled.wait();
        let one = rewrite(&mut sequential.0, content, args.seconds, done);
        let others: Vec<_> = others.into_iter().filter_map(|one| one.join().ok()).collect();
        (one, others)
    });
    let mut figures = tell_mixed(args, &one, &others);
    figures["sequential_address"] = json!(sequential.0.as_ptr() as usize);
    Ok(figures)
}

fn tell_mixed(args: &WorkArgs, one: &Done, others: &[Done]) -> Value {
    let (mut all, mut random) = (Latencies::default(), Latencies::default());
    let mut checks = Checks::default();
    all.add(&one.latencies);
    checks.add(&one.checks);
    for other in others {
        all.add(&other.latencies);
        random.add(&other.latencies);
        checks.add(&other.checks);
    }
    let kb_per_s = |pages: u64| (pages * PAGE_SIZE as u64) as f64 / 1024.0 / args.seconds;
    let mut figures = json!({
        "bytes": args.bytes,
        "seconds": args.seconds,
        "kb_per_s": kb_per_s(one.pages + random.count()),
        "sequential_kb_per_s": kb_per_s(one.pages),
        "random_per_s": random.count() as f64 / args.seconds,
        "all": all.figures(),
        "sequential": one.latencies.figures(),
        "random": random.figures(),
    });
    checks.tell(&mut figures);
    figures
}
