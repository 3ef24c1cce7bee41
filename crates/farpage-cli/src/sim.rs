//! `farpage sim` and its parts: the command line of `farpage_sim`.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use farpage_sim::contention::costs::Costs;
use farpage_sim::contention::{self, Config, measure, report};
use farpage_sim::reclaim::{self, Trace};

use crate::{EXIT_FAILED, Failure, print};

const CONTENTION_EXAMPLES: &str = "\
Examples:
  farpage sim contention                         1 to 96 CPUs, 1 and 8 devices; costs measured here
  farpage sim contention --cpus 8,96 --devices 1 --costs fixed
  farpage sim contention --line-ns 300 --json    cache lines from another socket

Software time of a fault is its time less the device's. The baseline is what the kernel did in 2016: a lock and a map for
each device, a tree with a lock for the swap cache. The other rows run farpage's own allocator, slot caches and table.

Exit code: 0 when target P13 is met or was not simulated; 1 when it is missed; 125 farpage's own error.";

#[derive(Debug, Args)]
pub struct SimArgs {
    #[command(subcommand)]
    pub what: SimCommand,
}

#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// How long faults wait for locks, with many CPUs in virtual time
    Contention(ContentionArgs),
    /// How often reclaim policies miss on recorded programs, beside the best possible
    Reclaim(ReclaimArgs),
}

#[derive(Debug, Args)]
#[command(after_help = CONTENTION_EXAMPLES)]
pub struct ContentionArgs {
    /// Numbers of CPUs
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32,64,96"
    )]
    pub cpus: Vec<usize>,

    /// Numbers of devices of equal priority
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,8")]
    pub devices: Vec<usize>,

    /// Pages swapped out at any time; the devices have twice the slots
    #[arg(long, value_name = "N", default_value_t = contention::PAGES)]
    pub pages: usize,

    /// Faults that count, in each run
    #[arg(long, value_name = "N", default_value_t = contention::FAULTS)]
    pub faults: usize,

    /// What the random numbers start from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// What operations cost: measured (here and now, each alone) or fixed (round figures)
    #[arg(long, value_name = "WHICH", default_value = "measured", value_parser = ["measured", "fixed"])]
    pub costs: String,

    /// Nanoseconds of a fault's software that no lock covers
    #[arg(long, value_name = "NS", default_value_t = Costs::FIXED.fault)]
    pub fault_ns: u64,

    /// Nanoseconds of a read from the device
    #[arg(long, value_name = "NS", default_value_t = Costs::FIXED.read)]
    pub read_ns: u64,

    /// Nanoseconds until a cache line comes from another CPU
    #[arg(long, value_name = "NS", default_value_t = Costs::FIXED.line)]
    pub line_ns: u64,

    /// As JSON
    #[arg(long)]
    pub json: bool,
}

const RECLAIM_EXAMPLES: &str = "\
Examples:
  make traces                                    records the programs, as root (build/traces)
  farpage sim reclaim build/traces/*.trace
  farpage sim reclaim build/traces/perl.trace --pages-per-unit 1 --parts 1.25,8 --json

A trace is `FPTRACE1`, then little-endian 32-bit page numbers in the order of their touches.";

#[derive(Debug, Args)]
#[command(after_help = RECLAIM_EXAMPLES)]
pub struct ReclaimArgs {
    /// Files of page touches
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<PathBuf>,

    /// Pages that are evicted together; 64 is what the engine does
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub pages_per_unit: u32,

    /// Budgets: the working set divided by each of these, 1 or more
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "1.1,1.5,2,3,5"
    )]
    #[arg(value_parser = divisor)]
    pub parts: Vec<f64>,

    /// As JSON
    #[arg(long)]
    pub json: bool,
}

fn divisor(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(divisor) if (1.0..=1e6).contains(&divisor) => Ok(divisor),
        _ => Err("not a number from 1 to 1000000".into()),
    }
}

fn failed(text: impl std::fmt::Display) -> Failure {
    Failure::new(EXIT_FAILED, format!("sim: {text}"))
}

pub fn sim(args: SimArgs) -> Result<u8, Failure> {
    match args.what {
        SimCommand::Contention(args) => contention(args),
        SimCommand::Reclaim(args) => replay(&args),
    }
}

fn contention(args: ContentionArgs) -> Result<u8, Failure> {
    let costs = if args.costs == "fixed" {
        Costs::FIXED
    } else {
        measure::measure().map_err(failed)?
    };
    let config = Config {
        cpus: args.cpus,
        devices: args.devices,
        pages: args.pages,
        faults: args.faults,
        seed: args.seed,
        costs: Costs {
            fault: args.fault_ns,
            read: args.read_ns,
            line: args.line_ns,
            ..costs
        },
    };
    let rows = contention::run(&config).map_err(failed)?;
    let text = if args.json {
        report::json(&config, &rows).to_string()
    } else {
        report::text(&config, &rows).trim_end().to_owned()
    };
    // Who reads only the first lines is content.
    let _ = print(&text);
    Ok(u8::from(report::p13(&rows) == Some(false)))
}

fn replay(args: &ReclaimArgs) -> Result<u8, Failure> {
    let mut rows = Vec::new();
    for path in &args.traces {
        let bytes = fs::read(path).map_err(|error| failed(format!("{}: {error}", path.display())))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let trace = Trace::read(&name, &bytes, args.pages_per_unit).map_err(failed)?;
        rows.extend(reclaim::rows(&trace, &args.parts));
    }
    let text = if args.json {
        reclaim::report::json(&rows, args.pages_per_unit).to_string()
    } else {
        reclaim::report::text(&rows).trim_end().to_owned()
    };
    let _ = print(&text);
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    #[test]
    fn lists_and_costs() {
        let parse = |words: &[&str]| {
            let words = ["farpage", "sim", "contention"].iter().chain(words);
            Cli::try_parse_from(words).map(|cli| cli.command)
        };
        let Ok(Command::Sim(SimArgs {
            what: SimCommand::Contention(args),
        })) = parse(&["--cpus", "1,96", "--devices", "4", "--line-ns", "300"])
        else {
            panic!("not understood")
        };
        assert_eq!(
            (args.cpus, args.devices, args.line_ns),
            (vec![1, 96], vec![4], 300)
        );
        assert!(parse(&["--costs", "guessed"]).is_err());
        let reclaim = |words: &[&str]| {
            let words = ["farpage", "sim", "reclaim"].iter().chain(words);
            Cli::try_parse_from(words).is_ok()
        };
        assert!(!reclaim(&[]), "no trace");
        assert!(reclaim(&["a.trace", "--parts", "1,1.25,8"]));
        assert!(!reclaim(&["a.trace", "--parts", "0.9"]) && !reclaim(&["a.trace", "--parts", "nan"]));
    }
}
