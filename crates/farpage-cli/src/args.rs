//! The command line: what can be asked, and how each word is read. Nothing here touches the machine.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::bench::{BenchArgs, BenchEnterArgs, BenchWorkArgs};
use crate::sim::SimArgs;
use crate::spec::parse_swap;
use clap::builder::{FalseyValueParser, OsStr, OsStringValueParser, Resettable, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use farpage::supervisor::AreaSpec;
use farpage::swapoff::{self, Order};
use farpage_core::huge::{Huge, SwapIn, SwapOut};
use farpage_core::readahead::{PAGE_CLUSTER_DEFAULT, Policy};
use farpage_core::slot_cache::SlotPolicy;
use farpage_core::units::parse_size;

const EXAMPLES: &str = "\
Examples:
  farpage run --ram 2G -- python3 sort.py
  farpage run --ram 50% --swap compressed --swap /mnt/ssd:64G -- ./solver --input big.dat
  farpage doctor ./solver
  farpage stat 1";

const RUN_EXAMPLES: &str = "\
Examples:
  farpage run --ram 384M -- python3 sort.py
  farpage run --ram 50% --swap /mnt/ssd:64G -- redis-server
  farpage run --ram 2G --swap compressed:1G --swap /var/tmp --stats-json s.json -- make -j4

Sizes are powers of 1024: 512K, 384M, 2G, 1T. Each option can also be given in the environment
(FARPAGE_RAM=2G, FARPAGE_SWAP=compressed,/mnt/ssd:64G, FARPAGE_QUIET=1 ...); the option on the command
line wins. FARPAGE_DISABLE=1 runs the command plainly, without farpage.

Exit code: that of the command; 128+N if signal N ended it; 125 farpage's own error; 126 the command cannot
be executed; 127 it was not found.";

const DOCTOR_EXAMPLES: &str = "\
Examples:
  farpage doctor              check this machine
  farpage doctor ./solver     ... and whether farpage can run this program
  farpage doctor --ram 2G --swap compressed --swap /mnt/ssd:64G     ... and swap there
  farpage doctor --json

Exit code: 0 when `farpage run` can work here, 1 when something marked FAIL is in its way, 125 for wrong usage.";

const STAT_EXAMPLES: &str = "\
Examples:
  farpage stat                the one running tree, since its start
  farpage stat 4711 1         tree 4711 (the pid of `farpage run` or of any process in it), every second
  farpage stat 2 10           the one running tree, every 2 seconds, 10 lines

Memory is in MiB, swap traffic in KiB/s, faults per second. `stl%` is the time in which all threads together made
room in the budget or waited for it, as a part of the elapsed time; how long faults took in all is in --json.

Exit code: 0; 1 when there is no such tree, or several and none is named; 125 for wrong usage.";

const SWAPOFF_EXAMPLES: &str = "\
Examples:
  farpage swapoff /var/tmp            empty and close that area of the one running tree
  farpage swapoff 1 4711              the first file of tree 4711, by its number
  farpage swapoff compressed          the compressed tier: from now on nothing is compressed
  farpage swapoff 1 --json            what was done, and the windows that were read, as JSON
  farpage swapoff 1 --order vma --window counted      as the kernel does it, for comparison

The programs run on meanwhile. Pages go to RAM where the budget has room, else to the other tiers. Interrupted (Ctrl-C,
SIGTERM), the area takes pages again, and so it does if the rest finds no room.

Exit code: 0 when the area is empty and closed; 1 if it is not: refused because there is no room, interrupted,
or failed; 125 for wrong usage.";

const SWAPON_EXAMPLES: &str = "\
Examples:
  farpage swapon /mnt/ssd:64G         a new unlinked file there, for the one running tree
  farpage swapon /dev/sdb,pri=5 4711  a block device, for tree 4711, before areas of lower priority
  farpage swapon compressed           the compressed tier that was taken away, as it was

Without pri=N it is filled when those before it are full. It is checked as `farpage run --swap` checks it. At most 8 files and devices
at a time, of at most 256G each.

Exit code: 0 when pages may go there; 1 if not; 125 for wrong usage.";

/// The command line that takes a variable without a value for none, as scripts set them.
pub fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |arg: &clap::Arg| {
        let name = arg.get_env();
        name.and_then(std::env::var_os)
            .is_some_and(|value| value.is_empty())
    };
    let names: Vec<_> = command
        .get_subcommands()
        .map(|sub| sub.get_name().to_owned())
        .collect();
    names.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |sub| {
            sub.mut_args(|arg| match is_empty(&arg) {
                true => arg.env(Resettable::<OsStr>::Reset),
                false => arg,
            })
        })
    })
}

/// Lets unmodified programs use more memory than the RAM they are given: swap in user space.
#[derive(Debug, Parser)]
#[command(name = "farpage", bin_name = "farpage", version, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program inside a RAM budget; what does not fit is swapped out
    Run(RunArgs),
    /// Check beforehand what `farpage run` needs, with the fix beside each
    Doctor(DoctorArgs),
    /// Show a running tree in columns, as vmstat does
    Stat(StatArgs),
    /// Check that the pool of a running tree agrees with itself
    Check(CheckArgs),
    /// Empty a swap file or device of a running tree and close it
    Swapoff(SwapoffArgs),
    /// Add a swap file or device to a running tree
    Swapon(SwaponArgs),
    /// Measure farpage against the kernel's own swap, on this machine
    Bench(BenchArgs),
    /// Simulate: lock waiting with many CPUs, reclaim policies on recorded programs
    Sim(SimArgs),
    /// A program that `bench` measures
    #[command(hide = true)]
    BenchWork(BenchWorkArgs),
    /// Keeps the swap and the cgroups that `bench` makes, and undoes them
    #[command(hide = true)]
    BenchKeep {
        /// Where swap files are made
        directory: PathBuf,
    },
    /// Runs a command of `bench` in a cgroup
    #[command(hide = true)]
    BenchEnter(BenchEnterArgs),
}

#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub struct RunArgs {
    /// RAM of the whole process tree: a size, or a percentage of the smaller of RAM and the cgroup limit
    #[arg(long, value_name = "SIZE|PERCENT", env = "FARPAGE_RAM")]
    #[arg(default_value = "50%", value_parser = parse_ram)]
    pub ram: RamSpec,

    /// Where pages go, in order of priority: compressed[:SIZE] or PATH[:SIZE][,pri=N] (directory, file, block device)
    ///
    /// Compressed RAM comes before all files and is named first. In a directory an unlinked file is used. A new or
    /// empty file loses its name at once, and goes with the tree; a file or device whose first MiB is neither zeros
    /// nor of mkswap(8) is refused, and that MiB is never written. Areas with pri=N (0 to 32767) are filled before
    /// those without, the highest first, equal ones in turn. Default: compressed RAM, then an unlinked file under /var/tmp bounded by free space.
    /// [env: FARPAGE_SWAP, separated by commas]
    #[arg(long, value_name = "SPEC", value_parser = OsStringValueParser::new().try_map(parse_swap))]
    pub swap: Vec<AreaSpec>,

    /// How a fault reaches farpage; auto picks signal
    #[arg(long, value_enum, env = "FARPAGE_DELIVERY", default_value_t = DeliveryArg::Auto)]
    pub delivery: DeliveryArg,

    /// Which managed memory is kept in huge pages of 2 MiB
    #[arg(long, value_enum, env = "FARPAGE_HUGE", default_value_t = HugeArg::Never)]
    pub huge: HugeArg,

    /// How what is kept in huge pages comes back from swap
    #[arg(long, value_enum, env = "FARPAGE_HUGE_SWAPIN", default_value_t = HugeSwapinArg::Whole)]
    pub huge_swapin: HugeSwapinArg,

    /// How what is kept in huge pages leaves
    #[arg(long, value_enum, env = "FARPAGE_HUGE_SWAPOUT", default_value_t = HugeSwapoutArg::Whole)]
    pub huge_swapout: HugeSwapoutArg,

    /// What is read ahead when a page is swapped in
    #[arg(long, value_enum, env = "FARPAGE_READAHEAD", default_value_t = Readahead::Adaptive)]
    pub readahead: Readahead,

    /// Greatest window of --readahead cluster (up to 6) and vma (up to 5): 2^N pages, as vm.page-cluster; 3 by default, 0: none is read ahead
    #[arg(long, value_name = "N", env = "FARPAGE_PAGE_CLUSTER")]
    pub page_cluster: Option<u32>,

    /// How slots of the swap areas are taken and given back
    #[arg(long, value_enum, env = "FARPAGE_SLOTS", default_value_t = SlotsArg::PercpuCluster)]
    pub slots: SlotsArg,

    /// Print a line of figures to stderr each second
    #[arg(long, env = "FARPAGE_STATS", value_parser = FalseyValueParser::new())]
    pub stats: bool,

    /// Write all figures to FILE as JSON when the command ends (exit code 125 if only that fails)
    #[arg(long, value_name = "FILE", env = "FARPAGE_STATS_JSON")]
    pub stats_json: Option<PathBuf>,

    /// Manage only the command itself, not the programs it starts
    #[arg(long, env = "FARPAGE_NO_FOLLOW", value_parser = FalseyValueParser::new())]
    pub no_follow: bool,

    /// Let the program use io_uring (its buffers must then not be swapped out); refused by default
    #[arg(long, env = "FARPAGE_ALLOW_IO_URING", value_parser = FalseyValueParser::new())]
    pub allow_io_uring: bool,

    /// Manage memory from the first byte instead of when the budget fills up (for tests)
    #[arg(long, env = "FARPAGE_EAGER", value_parser = FalseyValueParser::new())]
    pub eager: bool,

    /// No summary at the end
    #[arg(short, long, env = "FARPAGE_QUIET", value_parser = FalseyValueParser::new())]
    pub quiet: bool,

    /// The command and its arguments, after --
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub struct DoctorArgs {
    /// Machine-readable output
    #[arg(long)]
    pub json: bool,

    /// The budget, as `farpage run --ram` is told it
    #[arg(long, value_name = "SIZE|PERCENT", env = "FARPAGE_RAM")]
    #[arg(default_value = "50%", value_parser = parse_ram)]
    pub ram: RamSpec,

    /// Where pages are to go, as `farpage run --swap` is told it; nothing is created or changed there [env: FARPAGE_SWAP]
    #[arg(long, value_name = "SPEC", value_parser = OsStringValueParser::new().try_map(parse_swap))]
    pub swap: Vec<AreaSpec>,

    /// A program to be inspected as well
    pub command: Option<OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = STAT_EXAMPLES)]
pub struct StatArgs {
    /// One JSON object per sample
    #[arg(long)]
    pub json: bool,

    /// [PID] [interval in seconds [count]]; PID may be left out when one tree runs and the interval is at most 60
    #[arg(value_name = "PID INTERVAL COUNT", num_args = 0..=3, value_parser = parse_positive)]
    pub values: Vec<f64>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 if all is well; 1 if there is a problem, or no such tree; 125 for wrong usage."
)]
pub struct CheckArgs {
    /// One JSON object
    #[arg(long)]
    pub json: bool,

    /// The tree; may be left out when one runs
    pub pid: Option<i32>,
}

#[derive(Debug, Args)]
#[command(after_help = SWAPOFF_EXAMPLES)]
pub struct SwapoffArgs {
    /// In which order its pages are looked for: the device's, or, as the kernel does it, that of addresses with
    /// neighbours in memory (vma) or in the file (cluster) read ahead
    #[arg(long, value_enum, default_value = "device", value_name = "ORDER")]
    pub order: OrderArg,

    /// Pages read at a time: a number, or as the kernel sizes windows, with pages found read ahead counted as hits
    /// (counted) or not (uncounted) [default, and the most in the device's order: 128, less in a budget under 256M; with vma and cluster counted, 64 at most]
    #[arg(long, value_parser = parse_window, value_name = "N|counted|uncounted")]
    pub window: Option<WindowArg>,

    /// What was done as one JSON object
    #[arg(long)]
    pub json: bool,

    /// The area: its path as it was given, its number (1 is the first file or device), or `compressed` (also 0)
    pub area: String,

    /// The tree; may be left out when one runs
    pub pid: Option<i32>,
}

#[derive(Debug, Args)]
#[command(after_help = SWAPON_EXAMPLES)]
pub struct SwaponArgs {
    /// PATH[:SIZE][,pri=N]: a directory (an unlinked file is made there), a file or a block device; or `compressed`
    #[arg(value_parser = OsStringValueParser::new().try_map(parse_swap), value_name = "SPEC")]
    pub spec: AreaSpec,

    /// The tree; may be left out when one runs
    pub pid: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrderArg {
    Device,
    Vma,
    Cluster,
}

impl OrderArg {
    #[must_use]
    pub fn order(self) -> Order {
        match self {
            Self::Device => Order::Device,
            Self::Vma => Order::Vma,
            Self::Cluster => Order::Cluster,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowArg {
    Fixed(u32),
    Counted,
    Uncounted,
}

impl WindowArg {
    /// The number that stands for it.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Fixed(pages) => pages,
            Self::Counted => swapoff::WINDOW_COUNTED,
            Self::Uncounted => swapoff::WINDOW_UNCOUNTED,
        }
    }
}

fn parse_window(text: &str) -> Result<WindowArg, String> {
    match (text, text.parse::<u32>()) {
        ("counted", _) => Ok(WindowArg::Counted),
        ("uncounted", _) => Ok(WindowArg::Uncounted),
        (_, Ok(pages)) if (1..=swapoff::BATCH_MAX as u32).contains(&pages) => Ok(WindowArg::Fixed(pages)),
        _ => Err(format!(
            "a number of pages from 1 to {}, counted or uncounted is wanted",
            swapoff::BATCH_MAX
        )),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeliveryArg {
    Auto,
    /// SIGBUS on the faulting thread; needs no privilege
    Signal,
    /// A handler thread; needs the full userfaultfd
    Thread,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HugeArg {
    /// None
    Never,
    /// What a program asks for with madvise
    Madvise,
    /// All that is used from end to end, but what a program declines with madvise
    Always,
}

impl HugeArg {
    #[must_use]
    pub fn setting(self) -> Huge {
        match self {
            Self::Never => Huge::Never,
            Self::Madvise => Huge::Madvise,
            Self::Always => Huge::Always,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HugeSwapinArg {
    /// As a whole where all of it will be used
    Whole,
    /// The touched page first, the rest in small pages after it
    Touched,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HugeSwapoutArg {
    /// As a whole
    Whole,
    /// Split before anything else: in small pages
    SplitEarly,
    /// Moved out and given its slots as a whole, then written in small pages
    SplitLate,
}

impl HugeSwapoutArg {
    #[must_use]
    pub fn setting(self) -> SwapOut {
        match self {
            Self::Whole => SwapOut::Whole,
            Self::SplitEarly => SwapOut::SplitEarly,
            Self::SplitLate => SwapOut::SplitLate,
        }
    }
}

impl HugeSwapinArg {
    #[must_use]
    pub fn setting(self) -> SwapIn {
        match self {
            Self::Whole => SwapIn::Whole,
            Self::Touched => SwapIn::Touched,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Readahead {
    /// Nothing
    None,
    /// Neighbours in the swap file, up to 8 pages or 2^N of --page-cluster N, as Linux does on rotating disks
    Cluster,
    /// Neighbours in memory, up to 8 pages or 2^N of --page-cluster N, as Linux does otherwise
    Vma,
    /// Streams of each thread (forward, backward, strided), up to a 64th of the budget and 4 MiB; without one, the order of the last time
    Adaptive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SlotsArg {
    /// In runs from the cluster that the CPU took last, each given back when it is free
    PercpuCluster,
    /// Kept by each CPU, 64 to take and 64 to give back, as Linux did before
    Cache,
}

impl SlotsArg {
    #[must_use]
    pub fn policy(self) -> SlotPolicy {
        match self {
            Self::PercpuCluster => SlotPolicy::PercpuCluster,
            Self::Cache => SlotPolicy::Cache,
        }
    }
}

impl RunArgs {
    /// What `--page-cluster` comes to.
    ///
    /// # Errors
    /// One line, where it would make no difference.
    pub fn page_cluster(&self) -> Result<u32, String> {
        let Some(wanted) = self.page_cluster else {
            return Ok(PAGE_CLUSTER_DEFAULT);
        };
        let policy = self.readahead.policy();
        match policy.page_cluster_max() {
            Some(most) if wanted <= most => Ok(wanted),
            Some(most) => Err(format!(
                "--page-cluster {wanted}: windows of --readahead {policy} have at most {} pages; give 0 to {most}",
                1 << most
            )),
            None => Err(format!(
                "--page-cluster {wanted}: --readahead {policy} has no windows of such a size; give --readahead vma or cluster \
                 with it"
            )),
        }
    }
}

impl Readahead {
    #[must_use]
    pub fn policy(self) -> Policy {
        match self {
            Self::None => Policy::None,
            Self::Cluster => Policy::Cluster,
            Self::Vma => Policy::Vma,
            Self::Adaptive => Policy::Adaptive,
        }
    }
}

/// `--ram` as written; a percentage is resolved against the machine later.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RamSpec {
    Bytes(u64),
    Percent(f64),
}

impl RamSpec {
    /// Bytes of the budget, where `available` is the smaller of RAM and the cgroup limit.
    #[must_use]
    pub fn resolve(self, available: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (available as f64 * percent / 100.0) as u64,
        }
    }
}

fn parse_ram(text: &str) -> Result<RamSpec, String> {
    if let Some(number) = text.strip_suffix('%') {
        return match number.parse::<f64>() {
            Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(RamSpec::Percent(percent)),
            _ => Err("a percentage lies above 0% and up to 100%".to_owned()),
        };
    }
    match parse_size(text) {
        Ok(0) => Err("a budget of nothing cannot work; use for example 384M or 50%".to_owned()),
        Ok(bytes) => Ok(RamSpec::Bytes(bytes)),
        Err(why) => Err(format!("{why}; use for example 384M, 2G or 50%")),
    }
}

fn parse_positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("a number above 0 is wanted".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_args(words: &[&str]) -> Result<RunArgs, clap::Error> {
        let words = ["farpage", "run"].iter().chain(words);
        match Cli::try_parse_from(words)?.command {
            Command::Run(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ram_is_a_size_or_a_percentage() {
        assert_eq!(parse_ram("384M"), Ok(RamSpec::Bytes(384 << 20)));
        assert_eq!(parse_ram("50%"), Ok(RamSpec::Percent(50.0)));
        assert_eq!(parse_ram("12.5%"), Ok(RamSpec::Percent(12.5)));
        for bad in ["", "0", "0%", "-5%", "101%", "nan%", "%", "many", "12Q"] {
            assert!(parse_ram(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn percentage_is_of_what_is_available() {
        assert_eq!(RamSpec::Percent(50.0).resolve(8 << 30), 4 << 30);
        assert_eq!(RamSpec::Percent(12.5).resolve(1 << 30), 1 << 27);
        assert_eq!(RamSpec::Bytes(5).resolve(8 << 30), 5);
    }

    #[test]
    fn command_is_verbatim() {
        let args = run_args(&["--ram", "1G", "--", "sh", "-c", "x", "--", "-q", "--ram"]).expect("parses");
        assert_eq!(args.command, ["sh", "-c", "x", "--", "-q", "--ram"]);
        assert_eq!(args.ram, RamSpec::Bytes(1 << 30));
        assert!(!args.quiet);
        assert!(run_args(&["--ram", "1G"]).is_err());
        assert!(run_args(&["--ramm", "1G", "--", "true"]).is_err());
        assert!(run_args(&["--swap", "compressed:x", "--", "true"]).is_err());
    }

    #[test]
    fn settings_reach_the_engine() {
        let args = run_args(&["--huge", "always", "--readahead", "vma", "--", "true"]).expect("parses");
        assert_eq!(args.huge.setting(), Huge::Always);
        assert_eq!(args.huge_swapin.setting(), SwapIn::Whole);
        assert_eq!(args.readahead.policy(), Policy::Vma);
        let args = run_args(&["--huge-swapin", "touched", "--", "true"]).expect("parses");
        assert_eq!(args.huge_swapin.setting(), SwapIn::Touched);
        assert_eq!(args.huge_swapout.setting(), SwapOut::Whole);
        let args = run_args(&["--huge-swapout", "split-late", "--", "true"]).expect("parses");
        assert_eq!(args.huge_swapout.setting(), SwapOut::SplitLate);
        assert_eq!(args.huge.setting(), Huge::Never);
        assert_eq!(args.readahead.policy(), Policy::default());
        assert_eq!(args.slots.policy(), SlotPolicy::default());
        let args = run_args(&["--slots", "cache", "--", "true"]).expect("parses");
        assert_eq!(args.slots.policy(), SlotPolicy::Cache);
    }

    #[test]
    fn page_cluster_is_refused_where_it_makes_no_difference() {
        let of = |words: &[&str]| {
            run_args(&[words, &["--", "true"]].concat())
                .expect("parses")
                .page_cluster()
        };
        assert_eq!(of(&[]), Ok(3));
        assert_eq!(of(&["--readahead", "vma", "--page-cluster", "5"]), Ok(5));
        assert_eq!(of(&["--readahead", "cluster", "--page-cluster", "6"]), Ok(6));
        assert_eq!(of(&["--readahead", "cluster", "--page-cluster", "0"]), Ok(0));
        let refused = |words| of(words).expect_err("refused");
        assert!(refused(&["--readahead", "vma", "--page-cluster", "6"]).contains("give 0 to 5"));
        assert!(refused(&["--readahead", "cluster", "--page-cluster", "7"]).contains("at most 64 pages"));
        assert!(refused(&["--page-cluster", "3"]).contains("--readahead adaptive has no windows"));
        assert!(refused(&["--readahead", "none", "--page-cluster", "3"]).contains("--readahead none"));
        assert!(run_args(&["--page-cluster", "x", "--", "true"]).is_err());
    }

    #[test]
    fn definition_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
