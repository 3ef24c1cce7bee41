//! Runs a program once on one side, and gathers what is told of it.
//!
//! # Fairness
//! Every side but `in RAM` has the same hard limit, by a cgroup, on all that the program and its swap need in RAM:
//!
//! * swap file: the limit is the RAM asked for. The kernel swaps to a file of its own; farpage has `--swap DIRECTORY`
//!   alone, on the same disk, or where the file is emptied one with a name, which stays as the kernel's does. Its budget is
//!   the limit less 3 MiB and a 128th: page tables, the library and the code of the program count against the limit and not
//!   against the budget, and what goes beyond the limit is killed. For `build` and `redis`, which start processes and read and write files, it is
//!   all of the limit, of which farpage leaves 3 MiB and a 64th from the start, and more as it sees that it is needed (decision 0042).
//! * compressed RAM: the kernel does not count zram's memory to the cgroup, farpage counts its compressed pages to the
//!   budget. So farpage's limit is the RAM asked for *plus the most that zram held* in the kernel's latest run of the
//!   same program that lived: both have the same number of bytes in all. Without a kernel's run it is estimated from the content.
//! * a file in RAM: the budget is the one for a swap file. The tmpfs is counted to the cgroup of who writes to it, so the
//!   cgroup's limit is greater by what the file takes, which is no room for anything else: the budget holds.
//!
//! Operations of the core alone swap nothing, and have no limit on either side.

use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use farpage_sim::operations::SIDES;
use serde_json::{Value, json};

use crate::cgroup;
use crate::counters;
use crate::disk::Speed;
use crate::emptying;
use crate::keeper::Keeper;
use crate::names::{Backing, Workload};
use crate::plan::{Comparison, Config, HUGE_WAYS, MEMORY_DIRECTORY, Side, Way};
use crate::program::{Ended, Program, TIME_MAX};
use crate::samples::{Sampler, Source};

/// What farpage's budget leaves of the hard limit for what is not in it: so many bytes, and a part of the limit. The
/// cgroup's peak was 1.5 to 1.9 MiB above budgets of 16 to 180 MiB.
const RESERVE_BYTES: u64 = 3 << 20;
const RESERVE_PART: u64 = 128;
/// For each process but the first. Four in 68.4 MiB held 71.7 to 74.2 in all: 2.3 of the kernel's and 2.7 of the pool.
const RESERVE_PROCESS_BYTES: u64 = 1 << 20;
/// Compressed bytes per byte of content where no run of zram tells: `content` makes 0.4, and there is some waste.
const COMPRESSED_PART: (f64, f64) = (0.44, 1.05);
/// Lines of a failed program's stderr that are told.
const LINES: usize = 3;
const SWAP_SLACK: u64 = 64 << 20;
const TMPFS_LISTS_PART: u64 = 256;

/// What one run gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Index of the side.
    pub side: usize,
    pub round: u32,
    /// What the program printed; null if it failed.
    pub figures: Value,
    /// Why it failed.
    pub failure: Option<String>,
    /// All else: command, seconds, peak of the cgroup, counters of farpage or of the kernel.
    pub facts: Value,
}

/// Runs sides, one after the other.
pub struct Runner<'a> {
    pub config: &'a Config,
    pub keeper: &'a mut Keeper,
    /// Whether farpage's side can have a hard limit too.
    pub cgroups: bool,
    pub seconds: f64,
    /// What the disk gives by itself, where that is the bound.
    pub disk: Option<Speed>,
}

/// What is made for a run, by the keeper.
#[derive(Default)]
struct Place {
    cgroup: Option<PathBuf>,
    /// The kernel's swap file or device.
    swap: Option<PathBuf>,
    stats: Option<PathBuf>,
    /// The program's own directory.
    directory: Option<PathBuf>,
}

impl Runner<'_> {
    /// Runs `side` of a comparison. `zram_bytes`: the most that zram held in the kernel's latest run.
    ///
    /// # Errors
    /// One line, if the run could not be prepared or undone. That the program fails is told in the run.
    pub fn run(&mut self, of: &Comparison, side: Side, zram_bytes: Option<u64>) -> Result<Run, String> {
        let mark = self.keeper.mark();
        let ran = self.prepare(of, side, zram_bytes).and_then(|(place, words)| {
            let before = counters::vmstat();
            let told = self.execute(of, side, &words, &place)?;
            Ok(gather(&words, &place, &before, told, side))
        });
        let undone = self.keeper.undo_to(mark);
        let mut run = ran?;
        undone?;
        if let (Workload::Seq, Backing::File, Some(disk)) = (of.workload, of.backing, self.disk)
            && let Some(rate) = run.figures["mb_per_s"].as_f64()
        {
            run.figures["of_disk_percent"] = json!(rate * 100.0 / disk.read);
        }
        Ok(run)
    }

    fn prepare(
        &mut self,
        of: &Comparison,
        side: Side,
        zram_bytes: Option<u64>,
    ) -> Result<(Place, Vec<String>), String> {
        let mut place = Place::default();
        if of.workload.is_core() {
            let words = self.work_words(of, side, &place, &[]);
            return Ok((place, words));
        }
        if side == Side::Mapped || of.workload.tool().is_some() {
            place.directory = Some(self.keeper.directory(&self.config.directory)?);
        }
        match side {
            Side::Ram => {}
            Side::Mapped => place.cgroup = Some(self.keeper.cgroup(of.ram_bytes, false)?),
            Side::Kernel => {
                place.swap = Some(match of.backing {
                    Backing::File => self.keeper.swap_file(&self.config.directory, swap_bytes(of))?,
                    Backing::Compressed | Backing::Memory => self.keeper.zram(swap_bytes(of))?,
                });
                place.cgroup = Some(self.keeper.cgroup(of.ram_bytes, true)?);
            }
            Side::Farpage(_) => return self.prepare_farpage(of, side, zram_bytes, place),
        }
        let words = self.work_words(of, side, &place, &["true".to_owned()]);
        Ok((place, words))
    }

    fn prepare_farpage(
        &mut self,
        of: &Comparison,
        side: Side,
        zram_bytes: Option<u64>,
        mut place: Place,
    ) -> Result<(Place, Vec<String>), String> {
        let limit = match of.backing {
            Backing::File | Backing::Memory => of.ram_bytes,
            Backing::Compressed => {
                of.ram_bytes
                    + zram_bytes.unwrap_or(compressed_bytes(
                        of.ram_bytes,
                        of.data_bytes,
                        self.config.incompressible,
                    ))
            }
        };
        let stats = self.keeper.temporary()?;
        let swap = self.swap_spec(of, limit)?;
        let mut words = self.farpage_words(of, side, limit, &swap, &stats);
        if self.cgroups {
            place.cgroup = Some(self.keeper.cgroup(limit + tmpfs_bytes(of), false)?);
        }
        if of.workload == Workload::Startup {
            words.push("true".to_owned());
            words = self.work_words(of, side, &place, &words);
        } else {
            place.stats = Some(stats);
            words.extend(self.work_words(of, side, &place, &[]));
        }
        Ok((place, words))
    }

    /// What stands behind `--swap=`.
    fn swap_spec(&mut self, of: &Comparison, limit: u64) -> Result<String, String> {
        let directory = self.config.directory.display();
        Ok(match of.backing {
            // What has a size is allocated as a whole: that takes time, and these may be as large as the disk.
            Backing::File if matches!(of.workload, Workload::Startup | Workload::Faults) => {
                directory.to_string()
            }
            // A file with a name stays, as the kernel's does: its end is no part of the work.
            Backing::File if of.workload == Workload::Swapoff => {
                let path = self.keeper.directory(&self.config.directory)?.join("swap");
                allocate(&path, swap_bytes(of)).map_err(|error| format!("{}: {error}", path.display()))?;
                path.display().to_string()
            }
            Backing::File => format!("{directory}:{}", swap_bytes(of)),
            Backing::Memory => format!("{MEMORY_DIRECTORY}:{}", of.data_bytes),
            // The engine takes less where this is more than it can do.
            Backing::Compressed => format!("compressed:{limit}"),
        })
    }

    /// `farpage run` up to its `--`.
    fn farpage_words(
        &self,
        of: &Comparison,
        side: Side,
        limit: u64,
        swap: &str,
        stats: &Path,
    ) -> Vec<String> {
        let mut words = vec![
            self.config.program.display().to_string(),
            "run".to_owned(),
            "-q".to_owned(),
            format!("--ram={}", budget(of.workload, limit)),
            format!("--swap={swap}"),
        ];
        if of.workload != Workload::Startup {
            words.push(format!("--stats-json={}", stats.display()));
        }
        match side {
            Side::Farpage(Way::Readahead(policy)) => words.push(format!("--readahead={policy}")),
            Side::Farpage(Way::Huge(way)) => {
                let options = HUGE_WAYS.iter().find(|(name, _)| *name == way);
                words.extend(
                    options
                        .iter()
                        .flat_map(|(_, options)| options.iter().map(|word| (*word).to_owned())),
                );
            }
            _ => {}
        }
        words.extend(self.config.run_args.iter().cloned());
        words.push("--".to_owned());
        words
    }

    /// The program itself; the same words on every side, but for the name of its directory and where that is to hold the data.
    fn work_words(&self, of: &Comparison, side: Side, place: &Place, started: &[String]) -> Vec<String> {
        let mut words = vec![
            self.config.program.display().to_string(),
            "bench-work".to_owned(),
            of.workload.name().to_owned(),
            format!("--bytes={}", of.data_bytes),
            format!("--ram={}", of.ram_bytes),
            format!("--seconds={}", self.seconds),
        ];
        if self.config.incompressible {
            words.push("--incompressible".to_owned());
        }
        if let Some(directory) = &place.directory {
            words.push(format!("--place={}", directory.display()));
        }
        if side == Side::Mapped {
            words.push("--mapped".to_owned());
        }
        let startup = (of.workload == Workload::Startup).then(|| started.to_vec());
        let replaced = matches!(side, Side::Farpage(Way::Replaced(_)));
        let core = SIDES[usize::from(replaced)].to_owned();
        let core = of.workload.is_core().then(|| vec![core]);
        if let Some(further) = of.usemem_words().or(startup).or(core) {
            words.push("--".to_owned());
            words.extend(further);
        }
        words
    }

    fn execute(
        &mut self,
        of: &Comparison,
        side: Side,
        words: &[String],
        place: &Place,
    ) -> Result<Told, String> {
        let mut all = Vec::new();
        if let Some(cgroup) = &place.cgroup {
            all.push(self.config.program.display().to_string());
            all.push("bench-enter".to_owned());
            all.push(cgroup.display().to_string());
            all.push("--".to_owned());
        }
        all.extend(words.iter().cloned());
        let meets = of.workload == Workload::Swapoff;
        let mut program = Program::start(&all, meets)?;
        // Should we be killed before the keeper knows of the group, the cgroup's removal ends it too.
        let mark = self.keeper.mark();
        self.keeper.group(program.id())?;
        let sampler = self.source(of, side, program.id()).map(Sampler::start);
        let mut emptied = None;
        if meets && program.meets() {
            emptied = Some(match &place.swap {
                Some(swap) => emptying::by_kernel(self.keeper, swap),
                None => emptying::by_farpage(&self.config.program, program.id(), side, of.backing),
            });
            program.go_on();
        }
        let ended = program.end(|| self.keeper.undo_to(mark));
        let samples = sampler.map(Sampler::end);
        let ended = ended?;
        if self.keeper.mark() > mark {
            self.keeper.forget()?;
        }
        Ok(Told {
            ended,
            emptied,
            samples,
        })
    }

    /// Whose counters are looked at during the run; nobody's where nothing is swapped.
    fn source(&self, of: &Comparison, side: Side, program: u32) -> Option<Source> {
        match side {
            _ if of.workload == Workload::Startup || of.workload.is_core() => None,
            Side::Ram => None,
            Side::Kernel | Side::Mapped => Some(Source::Kernel),
            Side::Farpage(_) => Some(Source::Farpage(self.config.program.clone(), program)),
        }
    }
}

/// How a run ended, and what came of the emptying, if it came to that.
struct Told {
    ended: Ended,
    emptied: Option<Result<Value, String>>,
    samples: Option<Value>,
}

/// What the data that is not in RAM makes when it is compressed.
#[must_use]
pub fn compressed_bytes(ram_bytes: u64, data_bytes: u64, incompressible: bool) -> u64 {
    let part = if incompressible {
        COMPRESSED_PART.1
    } else {
        COMPRESSED_PART.0
    };
    (data_bytes.saturating_sub(ram_bytes) as f64 * part) as u64
}

/// A new file of that many bytes, all of them on the disk.
fn allocate(path: &Path, bytes: u64) -> io::Result<()> {
    let file = fs::File::create_new(path)?;
    Ok(rustix::fs::fallocate(
        &file,
        rustix::fs::FallocateFlags::empty(),
        0,
        bytes,
    )?)
}

/// Of a swap file or device, on either side. farpage's file in RAM is as large as the data, and no larger: it is allocated as a
/// whole, and giving that back takes time. The child that saves redis's data has copies of what the server writes to meanwhile.
fn swap_bytes(of: &Comparison) -> u64 {
    let copies = if of.workload == Workload::Redis { 2 } else { 1 };
    of.data_bytes * copies + of.data_bytes / 4 + SWAP_SLACK
}

/// What a file in RAM counts against the limit of its writer: itself, allocated as a whole, and the kernel's lists of its pages
/// (a 450th of it).
fn tmpfs_bytes(of: &Comparison) -> u64 {
    match of.backing {
        Backing::Memory => of.data_bytes + of.data_bytes / TMPFS_LISTS_PART,
        Backing::File | Backing::Compressed => 0,
    }
}

/// farpage's budget under a hard limit: see the top of this file.
fn budget(workload: Workload, limit: u64) -> u64 {
    if matches!(workload, Workload::Build | Workload::Redis) {
        return limit;
    }
    let processes = (workload.processes() - 1) * RESERVE_PROCESS_BYTES;
    limit - RESERVE_BYTES - limit / RESERVE_PART - processes
}

fn gather(words: &[String], place: &Place, before: &Value, told: Told, side: Side) -> Run {
    let ended = &told.ended;
    let (oom_kills, peak) = place.cgroup.as_deref().map_or((0, None), cgroup::tell);
    let mut facts = json!({
        "command": words,
        "seconds": ended.seconds,
        "oom_kills": oom_kills,
        "cgroup_peak_bytes": peak,
    });
    if let Some(peak) = place.swap.as_deref().and_then(zram_peak) {
        facts["zram_peak_bytes"] = json!(peak);
    }
    if let Some(samples) = told.samples {
        facts["samples"] = samples;
    }
    let machine = counters::difference(before, &counters::vmstat());
    if side == Side::Kernel {
        facts["vmstat"] = machine.clone();
    }
    if let Some(stats) = &place.stats {
        let text = fs::read_to_string(stats).unwrap_or_default();
        facts["farpage"] = serde_json::from_str(&text).unwrap_or(Value::Null);
    }
    let (mut figures, mut failure) = outcome(ended, oom_kills);
    match told.emptied {
        Some(Ok(emptied)) if figures.is_object() => merge(&mut figures, emptied),
        Some(Err(why)) => failure = failure.or(Some(format!("not emptied: {why}"))),
        _ => {}
    }
    let of_side = if side == Side::Kernel {
        &facts["vmstat"]
    } else {
        &facts["farpage"]
    };
    if figures.is_object() {
        merge(&mut figures, counters::figures(of_side, &machine));
        let pages = figures["pages"].as_f64();
        merge(&mut figures, counters::engine(&facts["farpage"], pages));
        let of_writer = counters::hit_percent(counters::region_of(of_side, &figures["sequential_address"]));
        if let Some(percent) = of_writer {
            figures["sequential_hit_percent"] = json!(percent);
        }
    }
    Run {
        side: 0,
        round: 0,
        figures,
        failure,
        facts,
    }
}

fn merge(figures: &mut Value, more: Value) {
    if let Value::Object(more) = more {
        for (name, value) in more {
            figures[name] = value;
        }
    }
}

/// What the program printed, or why it failed.
fn outcome(ended: &Ended, oom_kills: u64) -> (Value, Option<String>) {
    let status = ended.output.status;
    let errors = String::from_utf8_lossy(&ended.output.stderr);
    let mut last: Vec<_> = errors
        .lines()
        .rev()
        .filter(|line| !line.is_empty())
        .take(LINES)
        .collect();
    last.reverse();
    let last = last.join(" / ");
    if !status.success() {
        let how = match (status.signal(), oom_kills) {
            _ if ended.seconds >= TIME_MAX.as_secs_f64() => format!("no end within {} s", TIME_MAX.as_secs()),
            (_, 1..) => "killed by the kernel, out of memory".to_owned(),
            (Some(signal), _) => format!("ended by signal {signal}: {last}"),
            (None, _) => format!("exit code {}: {last}", status.code().unwrap_or(-1)),
        };
        return (Value::Null, Some(how));
    }
    match serde_json::from_slice::<Value>(&ended.output.stdout) {
        Ok(figures) if figures["ok"] == true => (figures, None),
        Ok(figures) => {
            let wrong = format!(
                "WRONG DATA: {} of {} checks",
                figures["wrong"], figures["checked"]
            );
            (figures, Some(wrong))
        }
        Err(error) => (
            Value::Null,
            Some(format!("its output is not understood: {error}")),
        ),
    }
}

/// The most memory that a zram device held, in bytes: the fifth number of its mm_stat.
fn zram_peak(device: &Path) -> Option<u64> {
    let name = device.file_name()?;
    let text = fs::read_to_string(Path::new("/sys/block").join(name).join("mm_stat")).ok()?;
    text.split_whitespace().nth(4)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{ExitStatus, Output};

    fn ended(code: i32, out: &str, err: &str) -> Ended {
        Ended {
            seconds: 1.0,
            output: Output {
                status: ExitStatus::from_raw(code),
                stdout: out.into(),
                stderr: err.into(),
            },
        }
    }

    #[test]
    fn what_a_program_left() {
        let (figures, failure) = outcome(&ended(0, "{\"ok\":true,\"x\":1}\n", ""), 0);
        assert_eq!((&figures["x"], failure), (&json!(1), None));
        let wrong = outcome(&ended(0, "{\"ok\":false,\"wrong\":2,\"checked\":9}", ""), 0).1;
        assert_eq!(wrong.as_deref(), Some("WRONG DATA: 2 of 9 checks"));
        let failed = outcome(&ended(125 << 8, "", "a\nfarpage: no\n"), 0).1;
        assert_eq!(failed.as_deref(), Some("exit code 125: a / farpage: no"));
        let killed = outcome(&ended(9, "", ""), 1).1;
        assert_eq!(killed.as_deref(), Some("killed by the kernel, out of memory"));
        assert!(outcome(&ended(0, "hello", ""), 0).1.is_some());
    }

    #[test]
    fn the_budget_is_below_the_limit() {
        assert_eq!(budget(Workload::Seq, 64 << 20), (60 << 20) + (512 << 10));
        assert_eq!(budget(Workload::Seq, 1 << 30), 1013 << 20);
        assert_eq!(budget(Workload::Usemem, 64 << 20), (57 << 20) + (512 << 10));
        assert_eq!(budget(Workload::Redis, 100 << 20), 100 << 20);
    }
}
