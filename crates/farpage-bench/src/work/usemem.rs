//! A program in the spirit of vm-scalability's usemem, written from its description: processes that write memory word
//! by word. The options that the published figures need, with their meaning there:
//!
//! | option | meaning |
//! |---|---|
//! | `-n N` | N processes, each with the whole size |
//! | `-O` | anonymous memory (the only kind here, so without effect) |
//! | `-y` | all processes begin to touch their memory together |
//! | `-x` | all processes begin to free it together |
//! | `--init-time` | the time to map the memory counts too |
//! | SIZE | bytes of each process: 64M, 1G |
//!
//! Word i of a mapping becomes i, and is compared when all are written.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;
use std::{env, fs};

use farpage_core::units::{PAGE_SIZE, parse_size};
use serde_json::{Value, json};

use super::{Checks, Memory, WorkArgs};

/// Words between two that are compared: every page is looked at, not every word.
const CHECK_STEP: usize = 509;
const PROCESSES_MAX: usize = 256;
const WORD: usize = size_of::<u64>();

#[derive(Clone, Debug, PartialEq, Eq)]
struct Options {
    processes: usize,
    bytes: u64,
    together: bool,
    free_together: bool,
    init_time: bool,
    /// This is one of the processes, not the one that starts them.
    child: bool,
}

impl Options {
    fn parse(words: &[String]) -> Result<Self, String> {
        let mut options = Self {
            processes: 1,
            bytes: 0,
            together: false,
            free_together: false,
            init_time: false,
            child: false,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "-O" => {}
                "-y" => options.together = true,
                "-x" => options.free_together = true,
                "--init-time" => options.init_time = true,
                "--child" => options.child = true,
                "-n" => {
                    let number = words.next().and_then(|word| word.parse().ok());
                    options.processes = number
                        .filter(|n| (1..=PROCESSES_MAX).contains(n))
                        .ok_or(format!("usemem: -n wants a number from 1 to {PROCESSES_MAX}"))?;
                }
                other if other.starts_with('-') => {
                    return Err(format!("usemem: {other}: not built; -n -O -y -x --init-time are"));
                }
                size => options.bytes = parse_size(size).map_err(|why| format!("usemem: {size}: {why}"))?,
            }
        }
        if options.bytes < PAGE_SIZE as u64 {
            return Err("usemem: a size of at least a page is wanted, for example 64M".to_owned());
        }
        Ok(options)
    }

    fn child_words(&self) -> Vec<String> {
        let mut words = vec!["--child".to_owned(), self.bytes.to_string()];
        let flags = [
            (self.together, "-y"),
            (self.free_together, "-x"),
            (self.init_time, "--init-time"),
        ];
        words.extend(
            flags
                .iter()
                .filter(|(on, _)| *on)
                .map(|(_, flag)| (*flag).to_owned()),
        );
        words
    }
}

pub fn usemem(args: &WorkArgs) -> Result<Value, String> {
    let options = Options::parse(&args.words)?;
    if options.child {
        child(&options)
    } else {
        parent(&options)
    }
}

/// Tells the parent that a point is reached and waits for its word.
fn meet(wanted: bool) -> Result<(), String> {
    if wanted { super::meet() } else { Ok(()) }
}

fn child(options: &Options) -> Result<Value, String> {
    let mapping = Instant::now();
    let mut memory = Memory::anonymous(options.bytes)?;
    let map_seconds = mapping.elapsed().as_secs_f64();
    meet(options.together)?;
    let start = Instant::now();
    for (number, word) in memory.0.chunks_exact_mut(WORD).enumerate() {
        word.copy_from_slice(&(number as u64).to_le_bytes());
    }
    let mut seconds = start.elapsed().as_secs_f64();
    if options.init_time {
        seconds += map_seconds;
    }
    let mut checks = Checks::default();
    for (number, word) in memory.0.chunks_exact(WORD).enumerate().step_by(CHECK_STEP) {
        checks.note(word == (number as u64).to_le_bytes());
    }
    meet(options.free_together)?;
    let start = Instant::now();
    drop(memory);
    let free_us = start.elapsed().as_secs_f64() * 1e6;
    let system_ticks = system_ticks(&fs::read_to_string("/proc/self/stat").unwrap_or_default());
    let mut figures = json!({
        "bytes": options.bytes,
        "seconds": seconds,
        "mb_per_s": options.bytes as f64 / 1e6 / seconds,
        "free_us": free_us,
        "system_ticks": system_ticks.unwrap_or(0),
    });
    checks.tell(&mut figures);
    Ok(figures)
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
    Ok(add_up(options, &results?, start.elapsed().as_secs_f64()))
}

/// Leads the processes through their meeting points, and reads what each tells at its end.
fn drive(options: &Options, workers: &mut [Worker]) -> Result<Vec<Value>, String> {
    meet_all(workers, options.together)?;
    meet_all(workers, options.free_together)?;
    let mut results = Vec::new();
    for worker in workers {
        let line = worker.line()?;
        results.push(serde_json::from_str::<Value>(&line).map_err(|error| format!("usemem: {error}"))?);
    }
    Ok(results)
}

/// As the original tells it: throughputs add up, the time to free is that of the mean process.
fn add_up(options: &Options, results: &[Value], elapsed: f64) -> Value {
    let sum = |key: &str| results.iter().filter_map(|one| one[key].as_f64()).sum::<f64>();
    let count = |key: &str| results.iter().filter_map(|one| one[key].as_u64()).sum::<u64>();
    let mut figures = json!({
        "processes": options.processes,
        "bytes": options.bytes * options.processes as u64,
        "seconds": elapsed,
        "mb_per_s": sum("mb_per_s"),
        "free_us": sum("free_us") / results.len().max(1) as f64,
        // The kernel's tick is 10 ms in all these figures.
        "system_seconds": count("system_ticks") as f64 / 100.0,
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
        let child = Options::parse(&options.child_words()).expect("parses");
        assert!(child.child && child.together && child.init_time && child.bytes == 1 << 30);
    }

    #[test]
    fn the_rest_is_refused() {
        for bad in ["", "-n 0 1G", "-n 300 1G", "-t 2 1G", "12", "-n", "many"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn figures_add_up() {
        let one = json!({"mb_per_s": 10.0, "free_us": 4.0, "system_ticks": 50, "checked": 3, "wrong": 0});
        let two = json!({"mb_per_s": 20.0, "free_us": 8.0, "system_ticks": 50, "checked": 3, "wrong": 1});
        let options = parse("-n 2 1M").expect("parses");
        let sum = add_up(&options, &[one, two], 1.5);
        assert_eq!((&sum["mb_per_s"], &sum["free_us"]), (&json!(30.0), &json!(6.0)));
        assert_eq!((&sum["system_seconds"], &sum["ok"]), (&json!(1.0), &json!(false)));
    }

    #[test]
    fn a_name_with_blanks_and_brackets() {
        let stat = "77 (a b) c) S 1 2 3 4 5 6 7 8 9 10 1234 567 8";
        assert_eq!(system_ticks(stat), Some(567));
        assert_eq!(system_ticks(""), None);
    }
}
