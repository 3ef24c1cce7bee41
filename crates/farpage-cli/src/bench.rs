//! `farpage bench` and its parts: the command line of `farpage_bench`.

use std::env;
use std::path::{Path, PathBuf};

use clap::Args;
use farpage_bench::{Against, Config, Subject, System, WorkArgs, Workload};
use farpage_core::units::parse_size;

use crate::spec::DEFAULT_SWAP_DIR;
use crate::{EXIT_FAILED, Failure, print};

const BENCH_EXAMPLES: &str = "\
Examples:
  farpage bench                              the tour: most of them, small, about 3 minutes
  farpage bench seq random --ram 384M        by name, 5 pairs
  farpage bench fill --against kernel-zram --json fill.json
  farpage bench readahead                    V1 and V2 under every readahead policy
  farpage bench scale                        1 to 16 threads, and RAM of 16 MiB to 16 GiB, as far as there is room
  farpage bench --baseline V,H,O,C,T         what each of the five systems is worth: this with it beside this without
  farpage bench --report a.json b.json c.json --markdown runs.md     three runs side by side, nothing measured
  farpage bench mixed --run-args '--readahead vma --delivery thread'

Names: startup fill seq random threads faults stride chase mixed solve free usemem usemem-random
usemem-threads usemem-read swapoff huge fit build (needs gcc) redis (needs redis-server) readahead scale.

As root each program runs in a cgroup of the same hard limit on both sides, in turn; the kernel's side has a swap
file or a zram device of its own, which is gone afterwards however the run ends. Swap that is there already is not
touched. A ratio is farpage / kernel: of a rate, more is better; of a time, less.

Exit code: 0; 1 when a program failed or got wrong data on farpage's side; 125 farpage's own error; 128+N after
signal N.";

#[derive(Debug, Args)]
#[command(after_help = BENCH_EXAMPLES)]
pub struct BenchArgs {
    /// What to measure; without names a tour
    #[arg(value_name = "NAME", value_parser = Subject::parse)]
    pub names: Vec<Subject>,

    /// What each of these systems is worth: farpage with it beside farpage without (V, H, O); the core's operations beside what they
    /// replaced, measured on this machine and, for locks, modelled with 96 CPUs (C); the same, all of it measured (T)
    #[arg(long, value_name = "SYSTEM", value_delimiter = ',', value_parser = System::parse, conflicts_with_all = ["names", "against"])]
    pub baseline: Vec<System>,

    /// What to compare with: none, ram, kernel-file, kernel-zram, memmap [default: the kernel's two, as root]
    #[arg(long, value_delimiter = ',', value_parser = Against::parse)]
    pub against: Vec<Against>,

    /// RAM of every side [default: 128M; 96M for the tour, up to 16G for scale]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub ram: Option<u64>,

    /// Data of the programs, as a multiple of the RAM [default: 4]
    #[arg(long, value_name = "FACTOR")]
    pub size: Option<f64>,

    /// How often both sides run, in turn [default: 5; 1 to 3 for the tour, as its 3 minutes allow; 1 with scale]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub pairs: Option<u32>,

    /// Where both sides' swap files are
    #[arg(long, value_name = "DIRECTORY", default_value = DEFAULT_SWAP_DIR)]
    pub dir: PathBuf,

    /// Further options of `farpage run` on farpage's side, separated by blanks
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true, default_value = "")]
    pub run_args: String,

    /// Data that does not compress, instead of data that compresses to 40 %; not of usemem, solve and build
    #[arg(long)]
    pub incompressible: bool,

    /// Write all figures to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a page with tables and plots to FILE
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write a document to FILE: targets met and missed, what is lost and why, all ratios
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,

    /// What build it is, for the reports: a commit
    #[arg(long, value_name = "TEXT")]
    pub build: Option<String>,

    /// Measure nothing: write --markdown and --html from FILEs that --json wrote, those of several runs side by side
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["names", "baseline", "against", "json", "build"])]
    pub report: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub struct BenchWorkArgs {
    #[arg(value_parser = parse_workload)]
    pub workload: Workload,

    #[arg(long, value_parser = parse_bytes, default_value = "256M")]
    pub bytes: u64,

    #[arg(long, value_parser = parse_bytes, default_value = "64M")]
    pub ram: u64,

    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,

    #[arg(long, default_value_t = 2)]
    pub passes: u32,

    #[arg(long)]
    pub incompressible: bool,

    #[arg(long)]
    pub place: Option<PathBuf>,

    #[arg(long)]
    pub mapped: bool,

    #[arg(last = true)]
    pub words: Vec<String>,
}

#[derive(Debug, Args)]
pub struct BenchEnterArgs {
    pub cgroup: PathBuf,

    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|why| why.to_string())
}

fn parse_workload(name: &str) -> Result<Workload, String> {
    Workload::of_name(name).ok_or_else(|| format!("{name}: no such program"))
}

fn failed(text: String) -> Failure {
    Failure::new(EXIT_FAILED, format!("bench: {text}"))
}

pub fn bench(args: BenchArgs) -> Result<u8, Failure> {
    if !args.report.is_empty() {
        let (markdown, html) = (args.markdown.as_deref(), args.html.as_deref());
        if markdown.is_none() && html.is_none() {
            return Err(failed(
                "--report: name a file to write with --markdown or --html".to_owned(),
            ));
        }
        return farpage_bench::rewrite(&args.report, markdown, html)
            .map(|()| 0)
            .map_err(failed);
    }
    let program = env::current_exe().map_err(|error| failed(format!("own path: {error}")))?;
    let config = Config {
        subjects: args.names,
        baseline: args.baseline,
        against: args.against,
        ram_bytes: args.ram,
        factor: args.size,
        pairs: args.pairs,
        directory: args.dir,
        run_args: args.run_args.split_whitespace().map(str::to_owned).collect(),
        incompressible: args.incompressible,
        json: args.json,
        html: args.html,
        markdown: args.markdown,
        build: args.build,
        program,
        command: env::args_os()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
    };
    farpage_bench::bench(&config, &mut print).map_err(failed)
}

pub fn work(args: BenchWorkArgs) -> Result<u8, Failure> {
    let args = WorkArgs {
        workload: args.workload,
        bytes: args.bytes,
        ram_bytes: args.ram,
        seconds: args.seconds,
        passes: args.passes,
        incompressible: args.incompressible,
        words: args.words,
        place: args.place,
        mapped: args.mapped,
    };
    let figures = farpage_bench::work(&args).map_err(failed)?;
    if print(&figures.to_string()) {
        Ok(0)
    } else {
        Err(failed("nobody reads the figures".to_owned()))
    }
}

pub fn keep(directory: &Path) -> Result<u8, Failure> {
    farpage_bench::keep(directory).map_err(failed)
}

pub fn enter(args: &BenchEnterArgs) -> Result<u8, Failure> {
    Err(failed(farpage_bench::enter(&args.cgroup, &args.command)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn args(words: &[&str]) -> Result<BenchArgs, clap::Error> {
        match Cli::try_parse_from(["farpage", "bench"].iter().chain(words))?.command {
            Command::Bench(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_and_options() {
        let args = args(&[
            "seq",
            "readahead",
            "--against",
            "ram,kernel-file",
            "--ram",
            "384M",
            "--size",
            "2.5",
            "--run-args",
            "--readahead vma",
        ])
        .expect("parses");
        assert_eq!(args.names, [Subject::Workload(Workload::Seq), Subject::Readahead]);
        assert_eq!(args.against, [Against::Ram, Against::KernelFile]);
        assert_eq!((args.ram, args.size), (Some(384 << 20), Some(2.5)));
        assert_eq!(args.run_args, "--readahead vma");
    }

    #[test]
    fn stored_reports_are_written_again_and_nothing_is_measured() {
        let several = args(&["--report", "a.json", "b.json", "--markdown", "runs.md"]).expect("parses");
        assert_eq!(several.report, [PathBuf::from("a.json"), PathBuf::from("b.json")]);
        assert!(args(&["seq", "--report", "a.json", "--markdown", "runs.md"]).is_err());
        assert!(args(&["--report", "--markdown", "runs.md"]).is_err());
        let nowhere = bench(args(&["--report", "a.json"]).expect("parses"));
        assert!(
            nowhere
                .expect_err("refused")
                .text
                .contains("--markdown or --html")
        );
    }

    #[test]
    fn what_there_is_not_is_refused() {
        assert!(args(&["--pairs", "0"]).is_err());
        assert_eq!(
            args(&["--baseline", "V,O"]).expect("parses").baseline,
            [System::Readahead, System::Swapoff]
        );
        assert_eq!(
            args(&["--baseline", "V,H,O,C,T"]).expect("parses").baseline,
            System::ALL
        );
        assert!(args(&["seq", "--baseline", "V"]).is_err() && args(&["--baseline", "X"]).is_err());
        assert!(args(&["slots"]).is_err(), "only what C is worth");
        assert!(args(&["nonsense"]).is_err());
    }
}
