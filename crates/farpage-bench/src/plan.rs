//! What is going to be measured: which sides, with how much RAM and data. Decided before anything runs.

mod scale;

use std::path::PathBuf;

use farpage_core::huge;
use farpage_core::units::{PAGE_SIZE, format_size};

use crate::names::{Against, Backing, Subject, System, Workload};
pub use scale::Room;

/// RAM and rounds of the tour, which is to end within minutes on a disk, and of what is asked for by name. `scale` takes minutes
/// for a single round.
const TOUR: (u64, u32) = (96 << 20, 3);
const NAMED: (u64, u32) = (128 << 20, 5);
const SCALE_ROUNDS: u32 = 1;
/// The tour has fewer rounds where it would take longer, in seconds.
const TOUR_SECONDS: f64 = 180.0;
const FACTOR: f64 = 4.0;
/// `solve` goes over its matrix again and again, which is at most so many times its RAM; in the tour less.
const SOLVE_FACTOR_MAX: f64 = 2.0;
const SOLVE_FACTOR_TOUR: f64 = 1.5;
/// Below this farpage's own needs, and the kernel's for a process, are most of it.
const RAM_MIN: u64 = 16 << 20;
/// Processes or threads of `usemem`, which share the data out.
const USEMEM_SHARES: u64 = 4;
/// The policies of `readahead`'s rows.
const POLICIES: [&str; 4] = ["none", "cluster", "vma", "adaptive"];
/// The kernel's ways of emptying an area, as `farpage swapoff` repeats them: order and window.
const ORDERS: [(&str, &str); 6] = [
    ("cluster", "8"),
    ("cluster", "counted"),
    ("cluster", "uncounted"),
    ("vma", "8"),
    ("vma", "counted"),
    ("vma", "uncounted"),
];
/// `fit` has so much data for its RAM at most.
const FIT_FACTOR: f64 = 0.75;
/// A workload that pushes some of its data out with the rest of it needs at least so many times its RAM.
const PUSHED_FACTOR_MIN: f64 = 2.0;
/// The one of [`HUGE_WAYS`] that Linux had before system H.
pub const HUGE_SPLIT: &str = "split-early";
/// How huge pages are swapped, the first as by itself, and the options for it: whole; split before they leave; given their place and
/// cluster whole, then written in small pages; none. What was split comes back in small pages, as in Linux.
pub const HUGE_WAYS: [(&str, &[&str]); 4] = [
    ("always", &["--huge=always"]),
    (
        "split-late",
        &[
            "--huge=always",
            "--huge-swapout=split-late",
            "--huge-swapin=touched",
        ],
    ),
    (
        HUGE_SPLIT,
        &[
            "--huge=always",
            "--huge-swapout=split-early",
            "--huge-swapin=touched",
        ],
    ),
    ("never", &["--huge=never"]),
];
/// Where farpage's file in RAM is.
pub const MEMORY_DIRECTORY: &str = "/dev/shm";

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// None: the tour.
    pub subjects: Vec<Subject>,
    /// What each of these systems is worth, and nothing else: farpage with it beside farpage without.
    pub baseline: Vec<System>,
    /// None: what this user can do.
    pub against: Vec<Against>,
    pub ram_bytes: Option<u64>,
    /// Data per RAM.
    pub factor: Option<f64>,
    /// Rounds; in each every side runs once.
    pub pairs: Option<u32>,
    /// Where both sides' swap files are.
    pub directory: PathBuf,
    /// Further options of `farpage run`.
    pub run_args: Vec<String>,
    pub incompressible: bool,
    pub json: Option<PathBuf>,
    pub html: Option<PathBuf>,
    pub markdown: Option<PathBuf>,
    /// What build it is, for the reports.
    pub build: Option<String>,
    /// The binary `farpage`, which is also the workloads' and the keeper's.
    pub program: PathBuf,
    /// The command as it was given.
    pub command: Vec<String>,
}

/// Who runs the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Nobody: all the RAM it wants.
    Ram,
    /// Nobody, in a cgroup, with data in a mapped file.
    Mapped,
    /// The kernel swaps it in a cgroup.
    Kernel,
    /// `farpage run`, in a cgroup too where that can be.
    Farpage(Way),
}

/// How farpage does it, where that is compared too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As it does by itself.
    Own,
    /// With this readahead policy.
    Readahead(&'static str),
    /// An area emptied in this order, with such windows.
    Emptied {
        order: &'static str,
        window: &'static str,
    },
    /// With this one of [`HUGE_WAYS`].
    Huge(&'static str),
    /// What a system replaced, in place of that part of the core.
    Replaced(&'static str),
}

impl Side {
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Ram => "in RAM".to_owned(),
            Self::Mapped => "memmap".to_owned(),
            Self::Kernel => "kernel".to_owned(),
            Self::Farpage(Way::Own) => "farpage".to_owned(),
            Self::Farpage(Way::Readahead(policy)) => format!("farpage {policy}"),
            Self::Farpage(Way::Emptied { order, window }) => format!("farpage {order} {window}"),
            Self::Farpage(Way::Huge(setting)) => format!("farpage huge {setting}"),
            Self::Farpage(Way::Replaced(part)) => format!("farpage {part}"),
        }
    }

    /// Whether the targets are about it: not where it does as the kernel does, or without what is measured.
    #[must_use]
    pub fn is_aimed(self) -> bool {
        match self {
            Self::Farpage(Way::Emptied { .. } | Way::Replaced(_)) => false,
            Self::Farpage(Way::Huge(way)) => way == HUGE_WAYS[0].0,
            _ => true,
        }
    }

    #[must_use]
    pub const fn is_farpage(self) -> bool {
        matches!(self, Self::Farpage(_))
    }
}

/// One program, run by several sides in turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    pub workload: Workload,
    pub backing: Backing,
    pub sides: Vec<Side>,
    /// What the first side has and the second does without, if that is what is compared.
    pub gain: Option<System>,
    /// 0 of the core alone, as is the data.
    pub ram_bytes: u64,
    pub data_bytes: u64,
}

impl Comparison {
    /// For people: what is run, on what, how large.
    #[must_use]
    pub fn title(&self) -> String {
        if self.workload == Workload::Startup {
            let ram = format_size(self.ram_bytes);
            return format!("startup: {}; {ram} of RAM", self.workload.about());
        }
        let gain = self.gain.map_or(String::new(), |system| {
            format!("what {} is worth: ", system.letter())
        });
        if self.workload.is_core() {
            return format!("{gain}{}: {}", self.workload.name(), self.workload.about());
        }
        let backing = match self.backing {
            Backing::File => "swap file",
            Backing::Compressed => "compressed RAM",
            Backing::Memory => "file in RAM (kernel: zram)",
        };
        format!(
            "{gain}{}, {backing}: {}; {} of data, {} of RAM",
            self.workload.name(),
            self.workload.about(),
            format_size(self.data_bytes),
            format_size(self.ram_bytes)
        )
    }

    /// The options of `usemem`, if it is that.
    #[must_use]
    pub fn usemem_words(&self) -> Option<Vec<String>> {
        let options = self.workload.usemem_options()?;
        let each = self.data_bytes / USEMEM_SHARES;
        let words = format!("--init-time -O -y -x {options} {each}");
        Some(words.split(' ').map(str::to_owned).collect())
    }
}

/// All that is going to be measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub comparisons: Vec<Comparison>,
    pub rounds: u32,
    /// In how many seconds it is to end, if with fewer rounds.
    pub within_seconds: Option<f64>,
    /// How long the workloads run that would never end, in seconds.
    pub seconds: f64,
    /// What is left out, and why.
    pub notes: Vec<String>,
}

impl Plan {
    /// Whether a disk is read and written from front to back: then what it gives by itself is the bound.
    #[must_use]
    pub fn swaps_in_order(&self) -> bool {
        self.comparisons
            .iter()
            .any(|one| one.workload == Workload::Seq && one.backing == Backing::File)
    }
}

/// What can be done on this machine by this user; the text says why not.
#[derive(Clone, Debug, PartialEq)]
pub struct Abilities {
    pub cgroup: Result<(), String>,
    pub swap_file: Result<(), String>,
    pub zram: Result<(), String>,
    /// A tmpfs for farpage's file.
    pub memory: Result<(), String>,
    /// For `scale`.
    pub room: Room,
    /// What is installed of what workloads need.
    pub tools: Vec<&'static str>,
}

impl Abilities {
    fn can_run(&self, workload: Workload) -> Result<(), String> {
        match workload.tool() {
            Some(tool) if !self.tools.contains(&tool) => {
                Err(format!("{}: {tool} is not in PATH; install it", workload.name()))
            }
            _ => Ok(()),
        }
    }
}

/// Decides. Where the kernel's side can't be made only farpage is measured, and a note says what is missing.
///
/// # Errors
/// One line, for what can't be done.
pub fn plan(config: &Config, able: &Abilities) -> Result<Plan, String> {
    let tour = config.subjects.is_empty() && config.baseline.is_empty();
    let (ram, mut rounds) = if tour { TOUR } else { NAMED };
    if config.subjects.contains(&Subject::Scale) {
        rounds = SCALE_ROUNDS;
    }
    let ram_bytes = config.ram_bytes.unwrap_or(ram);
    let factor = config.factor.unwrap_or(FACTOR);
    if ram_bytes < RAM_MIN {
        return Err(format!(
            "--ram {}: at least {} is wanted",
            format_size(ram_bytes),
            format_size(RAM_MIN)
        ));
    }
    if !(1.0..=64.0).contains(&factor) {
        return Err(format!("--size {factor}: a factor from 1 to 64 is wanted"));
    }
    let mut notes = Vec::new();
    if let Err(why) = &able.cgroup {
        notes.push(format!("no hard limit around farpage: {why}"));
    }
    let sizes = Sizes {
        ram_bytes,
        factor,
        tour,
    };
    for subject in &config.subjects {
        if let Subject::Workload(workload) = subject {
            able.can_run(*workload)?;
            if config.incompressible && workload.has_own_data() {
                return Err(format!(
                    "{}: its data is its own, --incompressible is not for it",
                    workload.name()
                ));
            }
        }
    }
    if tour && config.incompressible {
        let own = Workload::ALL
            .into_iter()
            .filter(|one| one.is_toured() && one.has_own_data())
            .map(Workload::name);
        notes.push(format!(
            "--incompressible: not of {}",
            own.collect::<Vec<_>>().join(", ")
        ));
    }
    let comparisons = if config.baseline.is_empty() {
        let against = sides_wanted(config, able, &mut notes)?;
        of_subjects(config, &against, sizes, able, &mut notes)
    } else {
        of_baseline(&config.baseline, sizes, able, &mut notes)
    };
    let has_huge = comparisons.iter().any(|one| one.workload == Workload::Huge);
    if has_huge && ram_bytes < huge::BUDGET_MIN_BYTES {
        notes.push(format!(
            "huge: farpage has no huge pages in {}; give --ram {} or more",
            format_size(ram_bytes),
            format_size(huge::BUDGET_MIN_BYTES)
        ));
    }
    Ok(Plan {
        comparisons,
        rounds: config.pairs.unwrap_or(rounds),
        within_seconds: (tour && config.pairs.is_none()).then_some(TOUR_SECONDS),
        seconds: if tour { 1.0 } else { 2.0 },
        notes,
    })
}

/// What is asked for by name, or the tour.
fn of_subjects(
    config: &Config,
    against: &[Against],
    sizes: Sizes,
    able: &Abilities,
    notes: &mut Vec<String>,
) -> Vec<Comparison> {
    let subjects = if sizes.tour {
        let (toured, named): (Vec<_>, Vec<_>) = Workload::ALL.into_iter().partition(|one| one.is_toured());
        let named: Vec<_> = named.into_iter().map(Workload::name).collect();
        notes.push(format!("not in the tour, but by name: {}", named.join(", ")));
        toured.into_iter().map(Subject::Workload).collect()
    } else {
        config.subjects.clone()
    };
    let mut comparisons = Vec::new();
    for subject in subjects {
        match subject {
            Subject::Workload(workload) => {
                let backings = backings(workload, able, notes);
                if against.contains(&Against::Memmap) && !workload.maps() {
                    notes.push(format!(
                        "{}: memmap left out, its data is no mapping",
                        workload.name()
                    ));
                }
                of_workload(workload, against, sizes, &backings, &mut comparisons)
            }
            Subject::Readahead => of_readahead(against, sizes, &mut comparisons),
            Subject::Scale => {
                let ram_bytes = config.ram_bytes.unwrap_or(scale::RAM_MAX);
                let sizes = (Sizes { ram_bytes, ..sizes }, config.incompressible);
                scale::of_scale(against, sizes, able, notes, &mut comparisons);
            }
        }
    }
    comparisons
}

/// The sides asked for, or all that can be made. What is asked for by name and can't be made is an error.
fn sides_wanted(config: &Config, able: &Abilities, notes: &mut Vec<String>) -> Result<Vec<Against>, String> {
    let mut wanted = config.against.clone();
    if wanted.is_empty() {
        wanted = vec![Against::KernelFile, Against::KernelZram];
    }
    let mut can = Vec::new();
    for against in wanted {
        let able = match against {
            Against::None | Against::Ram => Ok(()),
            Against::KernelFile => able.cgroup.clone().and(able.swap_file.clone()),
            Against::KernelZram => able.cgroup.clone().and(able.zram.clone()),
            Against::Memmap => able.cgroup.clone(),
        };
        match able {
            Ok(()) => can.push(against),
            Err(why) if config.against.is_empty() => {
                notes.push(format!("{} left out: {why}", against.name()))
            }
            Err(why) => return Err(format!("--against {}: {why}", against.name())),
        }
    }
    Ok(can)
}

#[derive(Clone, Copy)]
struct Sizes {
    ram_bytes: u64,
    factor: f64,
    tour: bool,
}

impl Sizes {
    /// The part of the RAM asked for that a program gets: less for what takes long.
    fn part(self, workload: Workload, backing: Backing) -> f64 {
        match (workload, backing, self.tour) {
            (Workload::Solve, _, true) => 0.25,
            (Workload::Solve, _, false) => 0.5,
            (Workload::Stride, Backing::File, true) => 0.5,
            (Workload::Huge, ..) => 1.0,
            (_, Backing::File, true) => 0.75,
            _ => 1.0,
        }
    }

    fn comparison(self, workload: Workload, backing: Backing, sides: Vec<Side>) -> Comparison {
        if workload.is_core() {
            return Comparison {
                workload,
                backing,
                sides,
                gain: None,
                ram_bytes: 0,
                data_bytes: 0,
            };
        }
        let page = PAGE_SIZE as f64;
        let whole = |bytes: f64| ((bytes / page) as u64) * PAGE_SIZE as u64;
        let ram_bytes = whole(self.ram_bytes as f64 * self.part(workload, backing)).max(RAM_MIN);
        let factor = match workload {
            Workload::Fit => FIT_FACTOR,
            Workload::Solve if self.tour => self.factor.min(SOLVE_FACTOR_TOUR),
            Workload::Solve => self.factor.min(SOLVE_FACTOR_MAX),
            Workload::Swapoff | Workload::Huge => self.factor.max(PUSHED_FACTOR_MIN),
            _ => self.factor,
        };
        Comparison {
            workload,
            backing,
            sides,
            gain: None,
            ram_bytes,
            data_bytes: whole(ram_bytes as f64 * factor),
        }
    }
}

const FARPAGE: Side = Side::Farpage(Way::Own);

/// The kinds of swap that a workload is run on, each with the kernel's side beside it; notes on what is left out.
fn backings(workload: Workload, able: &Abilities, notes: &mut Vec<String>) -> Vec<(Backing, Against)> {
    let mut found = vec![(Backing::File, Against::KernelFile)];
    if workload == Workload::Solve {
        notes.push("solve: left out for compressed RAM, since random floats do not compress".to_owned());
    } else {
        found.push((Backing::Compressed, Against::KernelZram));
    }
    if workload == Workload::Huge {
        found.extend(in_memory(workload, able, notes).map(|backing| (backing, Against::KernelZram)));
    }
    found
}

/// A file in RAM, or a note that there can be none.
fn in_memory(workload: Workload, able: &Abilities, notes: &mut Vec<String>) -> Option<Backing> {
    match &able.memory {
        Ok(()) => Some(Backing::Memory),
        Err(why) => {
            notes.push(format!("{}: no file in RAM: {why}", workload.name()));
            None
        }
    }
}

fn of_workload(
    workload: Workload,
    against: &[Against],
    sizes: Sizes,
    backings: &[(Backing, Against)],
    comparisons: &mut Vec<Comparison>,
) {
    // Nothing is swapped there.
    if matches!(workload, Workload::Startup | Workload::Fit) {
        let sides = vec![Side::Ram, FARPAGE];
        comparisons.push(sizes.comparison(workload, Backing::File, sides));
        return;
    }
    // P10 is about the time in RAM.
    let in_ram = match workload {
        Workload::Solve => true,
        Workload::Swapoff | Workload::Huge => false,
        _ => against.contains(&Against::Ram),
    };
    let alone = !against
        .iter()
        .any(|one| matches!(one, Against::KernelFile | Against::KernelZram | Against::Memmap));
    for (backing, kernel) in backings {
        let with_kernel = against.contains(kernel);
        let with_mapped = *backing == Backing::File && against.contains(&Against::Memmap) && workload.maps();
        if !with_kernel && !with_mapped && !alone {
            continue;
        }
        let mut sides = Vec::new();
        if in_ram {
            sides.push(Side::Ram);
        }
        if with_kernel {
            sides.push(Side::Kernel);
        }
        if with_mapped {
            sides.push(Side::Mapped);
        }
        sides.extend(
            ways(workload, *backing, sizes.tour)
                .into_iter()
                .map(Side::Farpage),
        );
        comparisons.push(sizes.comparison(workload, *backing, sides));
    }
}

/// The ways of farpage that are measured. The tour has one of each.
fn ways(workload: Workload, backing: Backing, tour: bool) -> Vec<Way> {
    let mut ways = vec![match workload {
        Workload::Huge => Way::Huge("always"),
        _ => Way::Own,
    }];
    match (workload, backing) {
        _ if tour => {}
        (Workload::Huge, _) => ways.extend(HUGE_WAYS[1..].iter().map(|(name, _)| Way::Huge(name))),
        (Workload::Swapoff, Backing::File) => {
            ways.extend(ORDERS.map(|(order, window)| Way::Emptied { order, window }));
        }
        _ => {}
    }
    ways
}

/// Each system's workload on farpage with it and without.
fn of_baseline(
    systems: &[System],
    sizes: Sizes,
    able: &Abilities,
    notes: &mut Vec<String>,
) -> Vec<Comparison> {
    let mut comparisons = Vec::new();
    for system in systems {
        let (workload, with, without) = match system {
            System::Readahead => (Workload::Mixed, Way::Own, Way::Readahead("cluster")),
            System::Huge => (Workload::Huge, Way::Huge("always"), Way::Huge(HUGE_SPLIT)),
            System::Swapoff => {
                let (order, window) = ("cluster", "counted");
                (Workload::Swapoff, Way::Own, Way::Emptied { order, window })
            }
            System::Contention => (Workload::Slots, Way::Own, Way::Replaced("lock per device")),
            System::SwapTable => (Workload::SwapCache, Way::Own, Way::Replaced("cache tree")),
        };
        let mut backings = vec![Backing::File];
        if *system == System::Huge {
            backings.extend(in_memory(workload, able, notes));
        }
        comparisons.extend(backings.into_iter().map(|backing| Comparison {
            gain: Some(*system),
            ..sizes.comparison(
                workload,
                backing,
                vec![Side::Farpage(with), Side::Farpage(without)],
            )
        }));
    }
    comparisons
}

/// V1 and V2 under every policy, on a swap file: in compressed RAM nothing is read ahead from a device. Then what random touches pay
/// for readahead that is of no use to them.
fn of_readahead(against: &[Against], sizes: Sizes, comparisons: &mut Vec<Comparison>) {
    for workload in [Workload::Mixed, Workload::Solve] {
        let kernel = against.contains(&Against::KernelFile).then_some(Side::Kernel);
        let ours = POLICIES.map(|policy| Side::Farpage(Way::Readahead(policy)));
        let sides = kernel.into_iter().chain(ours).collect();
        comparisons.push(sizes.comparison(workload, Backing::File, sides));
    }
    for backing in [Backing::File, Backing::Compressed] {
        let sides = ["adaptive", "none"].map(|policy| Side::Farpage(Way::Readahead(policy)));
        comparisons.push(Comparison {
            gain: Some(System::Readahead),
            ..sizes.comparison(Workload::Random, backing, sides.into())
        });
    }
}

#[cfg(test)]
pub mod tests;
