//! The programs that are measured: ordinary ones, which know nothing of swap. The very same program runs under
//! `farpage run`, in a cgroup that the kernel swaps, and in RAM; it prints one JSON object with its figures.
//!
//! | file | room |
//! |---|---|
//! | `content` | what is written, and how it is known again |
//! | `latency` | time of single accesses |
//! | `passes` | `fill`, `seq`, `free`: from front to back |
//! | `stride` | forward, column by column, backward |
//! | `chase` | the same order again and again, none of addresses |
//! | `random` | `random`, `threads`, `faults`, and `mixed` with a sequential writer beside |
//! | `solve`, `lu` | a dense system of equations |
//! | `usemem` | the test program of the kernel's swap developers |
//! | `swapoff` | data that is swapped out while its area is emptied |
//! | `huge` | memory in huge pages, out and back in |
//! | `startup` | how long it takes to start a command |
//! | `fit` | everything fits |
//! | `build` | a parallel compile |
//! | `redis` | a server of values |
//! | `core` | no program at all: operations of the swap core, for systems C and T |
//! | `mapped` | data in a file instead of memory |

pub mod build;
mod chase;
mod content;
mod core;
mod fit;
mod huge;
mod latency;
mod lu;
mod mapped;
mod passes;
mod random;
pub mod redis;
mod solve;
mod startup;
mod stride;
mod swapoff;
mod usemem;

use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Instant;

use farpage_core::units::PAGE_SIZE;
use memmap2::{MmapMut, MmapOptions};
use serde_json::{Value, json};

use crate::names::Workload;
use content::Content;
pub use latency::PERCENTILES;

/// What a workload is told.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkArgs {
    pub workload: Workload,
    /// Bytes of data.
    pub bytes: u64,
    /// Bytes of RAM that it is going to have; a workload that goes on until old pages have left needs to know.
    pub ram_bytes: u64,
    /// How long the workloads run that would never end.
    pub seconds: f64,
    /// How often `seq` rewrites its data.
    pub passes: u32,
    pub incompressible: bool,
    /// The options of `usemem`, the command that `startup` starts, the side whose operations `core` does.
    pub words: Vec<String>,
    /// A directory that is there for this run.
    pub place: Option<PathBuf>,
    /// Data is in a file there, mapped, in place of memory.
    pub mapped: bool,
}

impl WorkArgs {
    fn place(&self) -> Result<&Path, String> {
        self.place.as_deref().ok_or_else(|| "no --place given".to_owned())
    }
}

/// Runs a workload and returns its figures; `"ok"` says whether all that was checked was right.
///
/// # Errors
/// One line, if it could not be run at all.
pub fn work(args: &WorkArgs) -> Result<Value, String> {
    let mut figures = match args.workload {
        Workload::Fill => passes::fill(args),
        Workload::Seq => passes::seq(args),
        Workload::Free => passes::free(args),
        Workload::Stride => stride::stride(args),
        Workload::Chase => chase::chase(args),
        Workload::Random => random::random(args),
        Workload::Threads => random::threads(args),
        Workload::Faults => random::faults(args),
        Workload::Mixed => random::mixed(args),
        Workload::Solve => solve::solve(args),
        Workload::Usemem | Workload::UsememRandom | Workload::UsememThreads | Workload::UsememRead => {
            usemem::usemem(args)
        }
        Workload::Swapoff => swapoff::swapoff(args),
        Workload::Huge => huge::huge(args),
        Workload::Startup => startup::startup(args),
        Workload::Fit => fit::fit(args),
        Workload::Build => build::build(args),
        Workload::Redis => redis::redis(args),
        Workload::Slots => core::slots(args),
        Workload::SwapCache => core::cache(args),
    }?;
    figures["workload"] = json!(args.workload.name());
    Ok(figures)
}

/// Memory of whole pages: a mapped file, or anonymous. Nothing is reserved for it: farpage counts its compressed storage at ratio 1 when a
/// program asks for memory with a reservation, and would refuse what the kernel's default admits. For the same reason
/// the programs make what else they need before they fill their memory.
struct Memory(MmapMut);

impl Memory {
    fn map(args: &WorkArgs, bytes: u64) -> Result<Self, String> {
        let length = (bytes as usize).next_multiple_of(PAGE_SIZE);
        if args.mapped {
            return mapped::map(args.place()?, length).map(Self);
        }
        Self::anonymous(bytes)
    }

    fn anonymous(bytes: u64) -> Result<Self, String> {
        let length = (bytes as usize).next_multiple_of(PAGE_SIZE);
        MmapOptions::new()
            .len(length)
            .no_reserve_swap()
            .map_anon()
            .map(Self)
            .map_err(|error| format!("cannot map {length} bytes: {error}"))
    }

    /// One for each of `sizes`, in bytes, none beside another: mappings that touch are one VMA of the kernel's and one region of
    /// farpage's, and both tell streams apart by those. What would touch an earlier one keeps that place taken until all are made.
    fn map_apart(args: &WorkArgs, sizes: &[u64]) -> Result<Vec<Self>, String> {
        let (mut kept, mut between) = (Vec::<Self>::new(), Vec::new());
        // Each has two ends, so no more than twice as many can touch one.
        for _ in 0..3 * sizes.len() {
            let Some(&bytes) = sizes.get(kept.len()) else {
                break;
            };
            let memory = Self::map(args, bytes)?;
            if kept.iter().any(|other| other.touches(&memory)) {
                between.push(memory);
            } else {
                kept.push(memory);
            }
        }
        if kept.len() < sizes.len() {
            return Err("mappings lie side by side wherever they are put".to_owned());
        }
        Ok(kept)
    }

    fn touches(&self, other: &Self) -> bool {
        let (one, two) = (self.0.as_ptr_range(), other.0.as_ptr_range());
        one.end == two.start || two.end == one.start
    }

    fn pages(&self) -> usize {
        self.0.len() / PAGE_SIZE
    }

    fn page(&self, number: usize) -> &[u8] {
        &self.0[number * PAGE_SIZE..][..PAGE_SIZE]
    }

    fn page_mut(&mut self, number: usize) -> &mut [u8] {
        &mut self.0[number * PAGE_SIZE..][..PAGE_SIZE]
    }

    /// Writes every page for the first time; seconds.
    fn fill(&mut self, content: &Content) -> f64 {
        let start = Instant::now();
        for number in 0..self.pages() {
            content.write(self.page_mut(number), number, 0);
        }
        start.elapsed().as_secs_f64()
    }

    /// Compares every page with what was written last, version `version` - 1, and writes it anew.
    fn rewrite(&mut self, content: &Content, version: u32, checks: &mut Checks) {
        for number in 0..self.pages() {
            let page = self.page_mut(number);
            checks.note(content.is(page, number, version - 1));
            content.write(page, number, version);
        }
    }
}

/// Waits for a program of other people, which is to succeed.
fn succeed(tool: &str, child: &mut Child) -> Result<(), String> {
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{tool}: {status}")),
        Err(error) => Err(format!("{tool}: {error}")),
    }
}

/// Counts what was looked at and what was wrong.
#[derive(Debug, Default)]
struct Checks {
    checked: u64,
    wrong: u64,
}

impl Checks {
    fn note(&mut self, right: bool) {
        self.checked += 1;
        self.wrong += u64::from(!right);
    }

    fn add(&mut self, other: &Self) {
        self.checked += other.checked;
        self.wrong += other.wrong;
    }

    /// Adds the result to figures.
    fn tell(&self, figures: &mut Value) {
        figures["checked"] = json!(self.checked);
        figures["wrong"] = json!(self.wrong);
        figures["ok"] = json!(self.wrong == 0 && self.checked > 0);
    }
}

/// Megabytes (10^6) per second.
fn mb_per_s(pages: usize, seconds: f64) -> f64 {
    (pages * PAGE_SIZE) as f64 / 1e6 / seconds
}

/// Tells whoever started this process that a point is reached, and waits for a line from there.
fn meet() -> Result<(), String> {
    let gone = || "whoever started this program has gone".to_owned();
    writeln!(io::stdout(), "ready").map_err(|_| gone())?;
    match io::stdin().lock().read_line(&mut String::new()) {
        Ok(1..) => Ok(()),
        _ => Err(gone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn args(workload: Workload) -> WorkArgs {
        WorkArgs {
            workload,
            bytes: 4 << 20,
            ram_bytes: 1 << 20,
            seconds: 0.05,
            passes: 2,
            incompressible: false,
            words: Vec::new(),
            place: None,
            mapped: false,
        }
    }

    #[test]
    fn data_in_a_file_is_the_same_and_leaves_no_file() {
        let place = std::env::temp_dir().join(format!("farpage-mapped-{}", std::process::id()));
        std::fs::create_dir(&place).expect("a directory");
        let mapped = WorkArgs {
            place: Some(place.clone()),
            mapped: true,
            ..args(Workload::Seq)
        };
        let figures = work(&mapped).expect("runs");
        assert_eq!(figures["ok"], true, "{figures}");
        std::fs::remove_dir(&place).expect("an empty directory");
        assert!(
            work(&WorkArgs {
                place: None,
                ..mapped
            })
            .is_err()
        );
    }

    /// The three mappings of `mixed` were one VMA, and the kernel's readahead and our `vma` policy saw one region with three
    /// streams in it. Sizes that no other test maps, so none of those fills a gap.
    #[test]
    fn mappings_are_kept_apart() {
        let sizes = [13 << 20, 7 << 20, 7 << 20];
        let all = Memory::map_apart(&args(Workload::Mixed), &sizes).expect("maps");
        assert_eq!(all.len(), 3);
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let mapping_of = |memory: &Memory| {
            let at = memory.0.as_ptr() as u64;
            let holds = |line: &&str| {
                let ends = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
                ends.is_some_and(|(from, to)| {
                    let [from, to] = [from, to].map(|text| u64::from_str_radix(text, 16).expect("hex"));
                    (from..to).contains(&at)
                })
            };
            maps.lines().find(holds).expect("a line of its own")
        };
        let mut lines: Vec<_> = all.iter().map(mapping_of).collect();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), 3, "{lines:?}");
    }

    #[test]
    fn every_workload_checks_what_it_did() {
        for workload in [
            Workload::Fill,
            Workload::Seq,
            Workload::Free,
            Workload::Stride,
            Workload::Chase,
            Workload::Random,
            Workload::Threads,
            Workload::Faults,
            Workload::Mixed,
            Workload::Solve,
            Workload::Huge,
            Workload::Fit,
        ] {
            let figures = work(&args(workload)).expect("runs");
            assert_eq!(figures["ok"], true, "{figures}");
            assert_eq!(figures["workload"], workload.name());
        }
    }

    #[test]
    fn nothing_checked_is_not_right() {
        let mut figures = json!({});
        Checks::default().tell(&mut figures);
        assert_eq!(figures["ok"], false);
        let mut checks = Checks::default();
        [true, true, false]
            .into_iter()
            .for_each(|right| checks.note(right));
        checks.tell(&mut figures);
        assert_eq!((&figures["wrong"], &figures["ok"]), (&json!(1), &json!(false)));
    }
}
