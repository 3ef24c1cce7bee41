//! A program in the spirit of vm-scalability's usemem, written from its description: processes that write memory word
//! by word. The options that the published figures and their other ways need, with their meaning there:
//!
//! | option | meaning |
//! |---|---|
//! | `-n N` | N processes, each with the whole size |
//! | `-t N` | each of them N threads, each with the whole size |
//! | `-O` | anonymous memory (the only kind here, so without effect) |
//! | `-y` | all begin to touch their memory together |
//! | `-x` | all begin to free it together |
//! | `-R` | as many words as there are, but at random |
//! | `-o` | reads only. Memory that nobody wrote holds nothing to be swapped: here it is written before, which does not count |
//! | `-j N` | a word every N bytes; with `-R` that many fewer |
//! | `-r N` | all of it N times |
//! | `--init-time` | the time to map the memory counts too |
//! | SIZE | bytes of each process or thread: 64M, 1G |
//!
//! Word i of a mapping becomes i, and is compared when all are written.

use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::time::Instant;
use std::{env, fs, thread};

use farpage_core::units::{PAGE_SIZE, parse_size};
use serde_json::{Value, json};

use super::content::Random;
use super::{Checks, Memory, WorkArgs};

/// Accesses between two that are compared afterwards: every page of those in order is looked at, not every word.
const CHECK_STEP: usize = 509;
const PROCESSES_MAX: usize = 256;
const REPEATS_MAX: usize = 1000;
const WORD: usize = size_of::<u64>();

#[derive(Clone, Debug, PartialEq, Eq)]
struct Options {
    processes: usize,
    threads: usize,
    bytes: u64,
    together: bool,
    free_together: bool,
    init_time: bool,
    random: bool,
    read_only: bool,
    /// Words from one access to the next.
    step: usize,
    repeats: usize,
    /// This is one of the processes, not the one that starts them.
    child: bool,
}

impl Options {
    fn parse(words: &[String]) -> Result<Self, String> {
        let mut options = Self {
            processes: 1,
            threads: 1,
            bytes: 0,
            together: false,
            free_together: false,
            init_time: false,
            random: false,
            read_only: false,
            step: 1,
            repeats: 1,
            child: false,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "-O" => {}
                "-y" => options.together = true,
                "-x" => options.free_together = true,
                "-R" => options.random = true,
                "-o" => options.read_only = true,
                "--init-time" => options.init_time = true,
                "--child" => options.child = true,
                "-n" => options.processes = count(word, words.next(), PROCESSES_MAX)?,
                "-t" => options.threads = count(word, words.next(), PROCESSES_MAX)?,
                "-r" => options.repeats = count(word, words.next(), REPEATS_MAX)?,
                "-j" => options.step = bytes(words.next().map_or("", String::as_str))? as usize / WORD,
                other if other.starts_with('-') => {
                    return Err(format!(
                        "usemem: {other}: not built; -n -t -O -y -x -R -o -j -r --init-time are"
                    ));
                }
                size => options.bytes = bytes(size)?,
            }
        }
        if options.bytes < PAGE_SIZE as u64 {
            return Err("usemem: a size of at least a page is wanted, for example 64M".to_owned());
        }
        if options.step == 0 {
            return Err(format!("usemem: -j wants at least {WORD} bytes"));
        }
        Ok(options)
    }

    fn child_words(&self) -> Vec<String> {
        let (threads, step, repeats) = (self.threads, self.step * WORD, self.repeats);
        let numbers = format!("--child -t {threads} -j {step} -r {repeats} {}", self.bytes);
        let flags = [
            (self.together, "-y"),
            (self.free_together, "-x"),
            (self.init_time, "--init-time"),
            (self.random, "-R"),
            (self.read_only, "-o"),
        ];
        let set = flags.iter().filter(|(on, _)| *on).map(|(_, flag)| *flag);
        numbers.split(' ').chain(set).map(str::to_owned).collect()
    }
}

fn count(option: &str, word: Option<&String>, most: usize) -> Result<usize, String> {
    let number = word.and_then(|word| word.parse().ok());
    number
        .filter(|n| (1..=most).contains(n))
        .ok_or(format!("usemem: {option} wants a number from 1 to {most}"))
}

fn bytes(size: &str) -> Result<u64, String> {
    parse_size(size).map_err(|why| format!("usemem: {size}: {why}"))
}

pub fn usemem(args: &WorkArgs) -> Result<Value, String> {
    let options = Options::parse(&args.words)?;
    if options.child {
        child(&options)
    } else {
        parent(&options)
    }
}

/// Tells the parent that all threads have come to a point, and waits for its word.
fn meet(wanted: bool, threads: &Barrier) -> Result<(), String> {
    if !wanted {
        return Ok(());
    }
    let met = if threads.wait().is_leader() {
        super::meet()
    } else {
        Ok(())
    };
    threads.wait();
    met
}

/// The threads of one process. A single one is the process's own, as in the original.
fn child(options: &Options) -> Result<Value, String> {
    let barrier = &Barrier::new(options.threads);
    let mut mapped = Vec::new();
    for _ in 0..options.threads {
        let mapping = Instant::now();
        let memory = Memory::anonymous(options.bytes)?;
        mapped.push((memory, mapping.elapsed().as_secs_f64()));
    }
    let results = match mapped.pop() {
        Some((memory, seconds)) if mapped.is_empty() => vec![unit(options, 0, memory, seconds, barrier)],
        last => thread::scope(|scope| {
            let threads: Vec<_> = mapped
                .into_iter()
                .chain(last)
                .enumerate()
                .map(|(nth, (memory, seconds))| {
                    scope.spawn(move || unit(options, nth as u64, memory, seconds, barrier))
                })
                .collect();
            let ended = threads.into_iter().map(|one| one.join());
            ended
                .map(|one| one.unwrap_or_else(|_| Err("usemem: a thread panicked".to_owned())))
                .collect()
        }),
    };
    let results: Result<Vec<Value>, String> = results.into_iter().collect();
    let mut figures = add_up(&results?);
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    figures["system_ticks"] = json!(system_ticks(&stat).unwrap_or(0));
    Ok(figures)
}

/// One thread's work on its memory.
fn unit(
    options: &Options,
    seed: u64,
    mut memory: Memory,
    map_seconds: f64,
    threads: &Barrier,
) -> Result<Value, String> {
    let words = memory.0.len() / WORD;
    let order = Order {
        words,
        step: options.step,
        random: options.random.then_some(seed),
    };
    let mut checks = Checks::default();
    meet(options.together, threads)?;
    if options.read_only {
        // What meeting needs is there by now: a small allocation is refused while compressed RAM is counted at a ratio that it beats.
        write(&mut memory, 0..words);
        meet(options.together, threads)?;
    }
    let start = Instant::now();
    for _ in 0..options.repeats {
        if options.read_only {
            checks.note(read(&memory, order.places()));
        } else {
            write(&mut memory, order.places());
        }
    }
    let mut seconds = start.elapsed().as_secs_f64();
    if options.init_time {
        seconds += map_seconds;
    }
    for place in order.places().step_by(CHECK_STEP.div_ceil(options.step)) {
        checks.note(word(&memory, place) == place as u64);
    }
    meet(options.free_together, threads)?;
    let start = Instant::now();
    drop(memory);
    let free_us = start.elapsed().as_secs_f64() * 1e6;
    let bytes = options.bytes * options.repeats as u64;
    let mut figures = json!({
        "bytes": options.bytes,
        "seconds": seconds,
        "mb_per_s": bytes as f64 / 1e6 / seconds,
        "free_us": free_us,
    });
    checks.tell(&mut figures);
    Ok(figures)
}

/// Which words are accessed, one after the other; the same ones each time.
struct Order {
    words: usize,
    step: usize,
    /// The seed.
    random: Option<u64>,
}

impl Order {
    fn places(&self) -> impl Iterator<Item = usize> + use<> {
        let mut random = self.random.map(Random::new);
        let words = self.words;
        (0..words)
            .step_by(self.step)
            .map(move |place| random.as_mut().map_or(place, |random| random.below(words)))
    }
}

fn word(memory: &Memory, place: usize) -> u64 {
    let bytes = &memory.0[place * WORD..][..WORD];
    u64::from_le_bytes(bytes.try_into().unwrap_or_default())
}

fn write(memory: &mut Memory, places: impl Iterator<Item = usize>) {
    for place in places {
        memory.0[place * WORD..][..WORD].copy_from_slice(&(place as u64).to_le_bytes());
    }
}

/// Whether all that was read was right, as far as their sum tells.
fn read(memory: &Memory, places: impl Iterator<Item = usize>) -> bool {
    let (mut sum, mut expected) = (0_u64, 0_u64);
    for place in places {
        sum = sum.wrapping_add(word(memory, place));
        expected = expected.wrapping_add(place as u64);
    }
    black_box(sum) == expected
}

/// The time in the kernel, from the text of /proc/PID/stat, whose second field may hold blanks.
fn system_ticks(stat: &str) -> Option<u64> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    after_name.split_whitespace().nth(12)?.parse().ok()
}

struct Worker {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Worker {
    fn start(options: &Options) -> Result<Self, String> {
        let program = env::current_exe().map_err(|error| format!("usemem: {error}"))?;
        let mut child = Command::new(program)
            .args(["bench-work", "usemem", "--"])
            .args(options.child_words())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("usemem: cannot start a process: {error}"))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(to), Some(from)) => Ok(Self {
                child,
                to,
                from: BufReader::new(from),
            }),
            _ => Err("usemem: a process without pipes".to_owned()),
        }
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.from.read_line(&mut line) {
            Ok(1..) => Ok(line),
            _ => Err("usemem: a process ended early".to_owned()),
        }
    }
}

/// Waits until all have come to the point, then lets all go on.
fn meet_all(workers: &mut [Worker], wanted: bool) -> Result<(), String> {
    if wanted {
        for worker in workers.iter_mut() {
            worker.line()?;
        }
        for worker in workers.iter_mut() {
            writeln!(worker.to, "go").map_err(|error| format!("usemem: {error}"))?;
        }
    }
    Ok(())
}

fn parent(options: &Options) -> Result<Value, String> {
    let mut workers = Vec::with_capacity(options.processes);
    for _ in 0..options.processes {
        workers.push(Worker::start(options)?);
    }
    let start = Instant::now();
    let results = drive(options, &mut workers);
    for worker in &mut workers {
        if results.is_err() {
            // One that has ended already is what is wanted.
            let _ = worker.child.kill();
        }
        worker.child.wait().map_err(|error| format!("usemem: {error}"))?;
    }
    let mut figures = add_up(&results?);
    figures["processes"] = json!(options.processes);
    figures["seconds"] = json!(start.elapsed().as_secs_f64());
    // The kernel's tick is 10 ms in all these figures.
    figures["system_seconds"] = json!(figures["system_ticks"].as_f64().unwrap_or(0.0) / 100.0);
    Ok(figures)
}

/// Leads the processes through their meeting points, and reads what each tells at its end.
fn drive(options: &Options, workers: &mut [Worker]) -> Result<Vec<Value>, String> {
    meet_all(workers, options.together)?;
    meet_all(workers, options.together && options.read_only)?;
    meet_all(workers, options.free_together)?;
    let mut results = Vec::new();
    for worker in workers {
        let line = worker.line()?;
        results.push(serde_json::from_str::<Value>(&line).map_err(|error| format!("usemem: {error}"))?);
    }
    Ok(results)
}

/// As the original tells it: throughputs add up, the time to free is that of the mean process or thread.
fn add_up(results: &[Value]) -> Value {
    let sum = |key: &str| results.iter().filter_map(|one| one[key].as_f64()).sum::<f64>();
    let count = |key: &str| results.iter().filter_map(|one| one[key].as_u64()).sum::<u64>();
    let mut figures = json!({
        "bytes": count("bytes"),
        "mb_per_s": sum("mb_per_s"),
        "free_us": sum("free_us") / results.len().max(1) as f64,
        "system_ticks": count("system_ticks"),
    });
    Checks {
        checked: count("checked"),
        wrong: count("wrong"),
    }
    .tell(&mut figures);
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, String> {
        Options::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_published_command_is_understood() {
        let options = parse("--init-time -O -y -x -n 31 1G").expect("parses");
        assert_eq!((options.processes, options.bytes), (31, 1 << 30));
        assert!(options.together && options.free_together && options.init_time && !options.child);
    }

    #[test]
    fn a_process_is_told_all_of_it() {
        let options = parse("-y -x --init-time -R -o -j 4096 -r 2 -t 3 -n 5 1G").expect("parses");
        let child = Options::parse(&options.child_words()).expect("parses");
        let expected = Options {
            processes: 1,
            child: true,
            ..options
        };
        assert_eq!(child, expected);
    }

    #[test]
    fn the_rest_is_refused() {
        for bad in [
            "",
            "-n 0 1G",
            "-n 300 1G",
            "-t 0 1G",
            "-f x 1G",
            "12",
            "-n",
            "many",
            "-j 4 1G",
            "-j",
            "-r 0 1G",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_way_of_access_is_checked() {
        for way in [
            "",
            "-R",
            "-o",
            "-R -o",
            "-R -j 4096 -r 3",
            "-t 3",
            "-t 2 -R -o -j 64",
        ] {
            let figures = child(&parse(&format!("{way} 1M")).expect("parses")).expect("runs");
            assert_eq!(figures["ok"], true, "{way}: {figures}");
        }
    }

    #[test]
    fn a_wrong_word_is_noticed() {
        let order = Order {
            words: 1024,
            step: 1,
            random: None,
        };
        let mut memory = Memory::anonymous(8192).expect("memory");
        write(&mut memory, order.places());
        assert!(read(&memory, order.places()));
        memory.0[4100] ^= 1;
        assert!(!read(&memory, order.places()));
    }

    #[test]
    fn random_places_are_the_same_each_time_and_spread() {
        let order = Order {
            words: 4096,
            step: 2,
            random: Some(7),
        };
        let places: Vec<_> = order.places().collect();
        assert_eq!(places.len(), 2048);
        assert!(order.places().eq(places.iter().copied()));
        let firsts = places.iter().filter(|place| **place < 1024).count();
        assert!((256..768).contains(&firsts), "{firsts}");
    }

    #[test]
    fn figures_add_up() {
        let one = json!({"mb_per_s": 10.0, "free_us": 4.0, "system_ticks": 50, "checked": 3, "wrong": 0});
        let two = json!({"mb_per_s": 20.0, "free_us": 8.0, "system_ticks": 50, "checked": 3, "wrong": 1});
        let sum = add_up(&[one, two]);
        assert_eq!((&sum["mb_per_s"], &sum["free_us"]), (&json!(30.0), &json!(6.0)));
        assert_eq!((&sum["system_ticks"], &sum["ok"]), (&json!(100), &json!(false)));
    }

    #[test]
    fn a_name_with_blanks_and_brackets() {
        let stat = "77 (a b) c) S 1 2 3 4 5 6 7 8 9 10 1234 567 8";
        assert_eq!(system_ticks(stat), Some(567));
        assert_eq!(system_ticks(""), None);
    }
}
