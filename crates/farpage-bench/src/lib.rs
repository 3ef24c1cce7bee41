//! `farpage bench`: the same programs on farpage and on the kernel's swap, under the same limit, in turn.
//!
//! | file | room |
//! |---|---|
//! | `names` | what can be asked for |
//! | `plan` | what is going to be measured, decided beforehand |
//! | `pace` | how many rounds there is time for |
//! | `work` | the programs that are measured |
//! | `side` | one run on one side; what makes the sides comparable |
//! | `program` | a program from its start to its end, and a meeting half-way |
//! | `samples` | counters while it runs |
//! | `counters` | /proc/vmstat before and after |
//! | `emptying` | a swap area is emptied while its program waits |
//! | `keeper` | makes swap and cgroups, and undoes them whatever happens |
//! | `cgroup` | a memory cgroup of our own |
//! | `disk` | what the disk gives by itself |
//! | `machine` | the machine that the figures are of |
//! | `figures` | median and spread |
//! | `targets` | which figures are shown, and their targets |
//! | `scale` | what sizes come to |
//! | `published` | the figures that the five systems were published with |
//! | `report` | what came of it, as text and as JSON |
//! | `html` | the same as a page with plots |
//! | `stored` | reports of several runs, read back and side by side |
//! | `markdown` | the same as a document: what is met, what is lost and why |
//! | `reasons` | why, kept by hand |
#![deny(unsafe_code)]

mod cgroup;
mod counters;
mod disk;
mod emptying;
mod figures;
mod html;
mod keeper;
mod machine;
mod markdown;
mod names;
mod pace;
mod plan;
mod program;
mod published;
mod reasons;
mod report;
mod samples;
mod scale;
mod side;
mod stored;
mod targets;
mod work;

use std::env;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

pub use keeper::keep;
pub use names::{Against, Subject, System, Workload};
pub use plan::Config;
pub use work::{WorkArgs, work};

use disk::Speed;
use keeper::Keeper;
use pace::Pace;
use plan::{Abilities, Comparison, Plan, Side};
use side::{Run, Runner};

/// A side of farpage's failed, or gave wrong data.
const EXIT_FARPAGE_FAILED: u8 = 1;
/// Size of what is made to see whether it can be made.
const TRIAL_BYTES: u64 = 1 << 20;

/// Measures what is asked for, hands each result to `print` as it comes, and returns the exit code: 0, or 1 if a
/// program failed or got wrong data on farpage's side. `print` answers whether anybody reads.
///
/// # Errors
/// One line, if something can't be measured or written. All that was made is undone.
pub fn bench(config: &Config, print: &mut dyn FnMut(&str) -> bool) -> Result<u8, String> {
    let mut machine = machine::machine(&config.directory);
    let mut keeper = Keeper::start(&config.program, &config.directory)?;
    let able = abilities(&mut keeper, &config.directory);
    let plan = plan::plan(config, &able)?;
    let mut notes = plan.notes.clone();
    if machine["other_swap"]
        .as_array()
        .is_some_and(|swaps| !swaps.is_empty())
    {
        notes.push(format!(
            "swap that is not ours is in use and is left alone: {}. Ours has the higher priority",
            machine["other_swap"]
        ));
    }
    let mut disk = None;
    if plan.swaps_in_order() {
        match Speed::of(&config.directory) {
            Ok(speed) => {
                notes.push(speed.words());
                machine["disk_speed"] = speed.json();
                disk = Some(speed);
            }
            Err(error) => notes.push(format!("the disk by itself is not measured: {error}")),
        }
    }
    let mut reads = print(&machine::words(&machine));
    for note in &notes {
        reads = reads && print(&format!("note: {note}"));
    }
    let mut runner = Runner {
        config,
        keeper: &mut keeper,
        cgroups: able.cgroup.is_ok(),
        seconds: plan.seconds,
        disk,
    };
    let (mut progress, mut pace) = (Progress::new(&plan), Pace::new(&plan));
    let mut results = Vec::new();
    let mut trouble = None;
    for comparison in plan.comparisons.iter().enumerate() {
        if !reads {
            break;
        }
        match compare(comparison, &mut pace, &mut runner, &mut progress) {
            Ok(result) => {
                reads = print(result.text().trim_end());
                results.push(result);
            }
            Err(error) => {
                let error = format!("{}: {error}", comparison.1.workload.name());
                notes.push(error.clone());
                trouble = Some(error);
                break;
            }
        }
    }
    progress.clear();
    keeper.end()?;
    if let Some(note) = pace.note() {
        reads = reads && print(&format!("note: {note}"));
        notes.push(note);
    }
    let all = all(config, &plan, &machine, &notes, &results);
    for scale in scale::scales(figures::items(&all["comparisons"])) {
        reads = reads && print(scale.text().trim_end());
    }
    if let Some(path) = &config.json {
        write(path, &format!("{all:#}\n"))?;
    }
    render(&[all], config.markdown.as_deref(), config.html.as_deref())?;
    if let Some(trouble) = trouble {
        return Err(trouble);
    }
    let failed = results.iter().any(report::Result::farpage_failed);
    Ok(if failed { EXIT_FARPAGE_FAILED } else { 0 })
}

/// Writes the document and the page of runs that were stored with `--json`, side by side.
///
/// # Errors
/// One line, if a report can't be read or written.
pub fn rewrite(reports: &[PathBuf], markdown: Option<&Path>, html: Option<&Path>) -> Result<(), String> {
    let read: Result<Vec<_>, _> = reports.iter().map(|path| stored::read(path)).collect();
    render(&read?, markdown, html)
}

fn render(reports: &[Value], markdown: Option<&Path>, html: Option<&Path>) -> Result<(), String> {
    if let Some(path) = markdown {
        write(path, &markdown::report(reports))?;
    }
    if let Some(path) = html {
        write(path, &html::page(reports))?;
    }
    Ok(())
}

/// Finds out by trying, with a cgroup and a swap of a megabyte that are gone again at once.
fn abilities(keeper: &mut Keeper, directory: &Path) -> Abilities {
    if !rustix::process::geteuid().is_root() {
        let why = Err("not root, who alone may make cgroups and swap; run the benchmark as root".to_owned());
        return Abilities {
            cgroup: why.clone(),
            swap_file: why.clone(),
            zram: why,
            memory: memory_ability(),
            room: machine::room(directory),
            tools: tools(),
        };
    }
    let mark = keeper.mark();
    let mut tried = |made: &dyn Fn(&mut Keeper) -> Result<PathBuf, String>| -> Result<(), String> {
        let made = made(keeper).map(|_| ());
        made.and(keeper.undo_to(mark))
    };
    Abilities {
        cgroup: tried(&|keeper| keeper.cgroup(TRIAL_BYTES, false)),
        swap_file: tried(&|keeper| keeper.swap_file(directory, TRIAL_BYTES)),
        zram: tried(&|keeper| keeper.zram(TRIAL_BYTES)),
        memory: memory_ability(),
        room: machine::room(directory),
        tools: tools(),
    }
}

/// The workloads' programs that are installed.
fn tools() -> Vec<&'static str> {
    let path = env::var_os("PATH").unwrap_or_default();
    let is_there = |tool: &&str| env::split_paths(&path).any(|directory| directory.join(tool).is_file());
    let wanted = Workload::ALL.into_iter().filter_map(Workload::tool);
    wanted.filter(is_there).collect()
}

/// Whether there is a tmpfs where farpage's file in RAM is wanted.
fn memory_ability() -> Result<(), String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let is_it = |line: &str| {
        let mut fields = line.split(' ').skip(1);
        (fields.next(), fields.next()) == (Some(plan::MEMORY_DIRECTORY), Some("tmpfs"))
    };
    if mounts.lines().any(is_it) {
        Ok(())
    } else {
        Err(format!("{} is no tmpfs", plan::MEMORY_DIRECTORY))
    }
}

/// All rounds of one comparison, the `nth`. The order of the sides is turned round each time.
fn compare(
    (nth, comparison): (usize, &Comparison),
    pace: &mut Pace,
    runner: &mut Runner<'_>,
    progress: &mut Progress,
) -> Result<report::Result, String> {
    let mut runs: Vec<Run> = Vec::new();
    let mut zram_bytes = None;
    for round in 0.. {
        let started = Instant::now();
        let mut order: Vec<usize> = (0..comparison.sides.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for side in order {
            progress.step(comparison, comparison.sides[side]);
            let run = runner.run(comparison, comparison.sides[side], zram_bytes)?;
            // One that died has not needed all.
            let peak = run.facts["zram_peak_bytes"]
                .as_u64()
                .filter(|_| run.failure.is_none());
            zram_bytes = peak.or(zram_bytes);
            runs.push(Run { side, round, ..run });
        }
        if !pace.goes_on((nth, comparison), round + 1, started.elapsed().as_secs_f64()) {
            progress.leave_out(comparison, pace.left(round + 1));
            break;
        }
    }
    progress.clear();
    Ok(report::Result {
        comparison: comparison.clone(),
        runs,
    })
}

/// The content of `--json`.
fn all(config: &Config, plan: &Plan, machine: &Value, notes: &[String], results: &[report::Result]) -> Value {
    json!({
        "schema": stored::SCHEMA,
        "build": config.build,
        "command": config.command,
        "machine": machine,
        "rounds": plan.rounds,
        "incompressible": config.incompressible,
        "run_args": config.run_args,
        "notes": notes,
        "comparisons": results.iter().map(report::Result::json).collect::<Vec<_>>(),
    })
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text)
        .map_err(|error| format!("{}: {error}; what was to be there is not kept", path.display()))
}

/// Enters a cgroup and becomes the command; returns only if that fails.
#[must_use]
pub fn enter(cgroup: &Path, command: &[String]) -> String {
    let file = cgroup.join("cgroup.procs");
    if let Err(error) = fs::write(&file, "0") {
        return format!("{}: {error}", file.display());
    }
    match command.split_first() {
        Some((program, words)) => format!("{program}: {}", Command::new(program).args(words).exec()),
        None => "no command to be run in the cgroup".to_owned(),
    }
}

/// One line on a terminal that says what runs; nothing elsewhere.
struct Progress {
    terminal: bool,
    done: u32,
    all: u32,
}

impl Progress {
    fn new(plan: &Plan) -> Self {
        let sides: usize = plan
            .comparisons
            .iter()
            .map(|comparison| comparison.sides.len())
            .sum();
        Self {
            terminal: io::stderr().is_terminal(),
            done: 0,
            all: sides as u32 * plan.rounds,
        }
    }

    fn step(&mut self, comparison: &Comparison, side: Side) {
        self.done += 1;
        if self.terminal {
            let (done, all) = (self.done, self.all);
            let (name, backing) = (comparison.workload.name(), comparison.backing.name());
            let _ = write!(
                io::stderr(),
                "\r\x1b[K[{done}/{all}] {name}, {backing}, {}",
                side.name()
            );
        }
    }

    /// So many rounds of it are not run.
    fn leave_out(&mut self, comparison: &Comparison, rounds: u32) {
        self.all -= comparison.sides.len() as u32 * rounds;
    }

    fn clear(&self) {
        if self.terminal {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
