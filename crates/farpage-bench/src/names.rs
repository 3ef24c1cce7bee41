//! What can be asked for, by name.

use crate::work::{build, redis};

/// A program that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    Startup,
    Fill,
    Seq,
    Random,
    Threads,
    Faults,
    Stride,
    Chase,
    Mixed,
    Solve,
    Free,
    Usemem,
    UsememRandom,
    UsememThreads,
    UsememRead,
    Swapoff,
    Huge,
    Fit,
    Build,
    Redis,
    Slots,
    SwapCache,
}

impl Workload {
    /// The core alone, without a program and without swap: only for [`System`]s that the engine can't do without.
    pub const CORE: [Self; 2] = [Self::Slots, Self::SwapCache];

    /// Those that can be asked for by name.
    pub const ALL: [Self; 20] = [
        Self::Startup,
        Self::Fill,
        Self::Seq,
        Self::Random,
        Self::Threads,
        Self::Faults,
        Self::Stride,
        Self::Chase,
        Self::Mixed,
        Self::Solve,
        Self::Free,
        Self::Usemem,
        Self::UsememRandom,
        Self::UsememThreads,
        Self::UsememRead,
        Self::Swapoff,
        Self::Huge,
        Self::Fit,
        Self::Build,
        Self::Redis,
    ];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Fill => "fill",
            Self::Seq => "seq",
            Self::Random => "random",
            Self::Threads => "threads",
            Self::Faults => "faults",
            Self::Stride => "stride",
            Self::Chase => "chase",
            Self::Mixed => "mixed",
            Self::Solve => "solve",
            Self::Free => "free",
            Self::Usemem => "usemem",
            Self::UsememRandom => "usemem-random",
            Self::UsememThreads => "usemem-threads",
            Self::UsememRead => "usemem-read",
            Self::Swapoff => "swapoff",
            Self::Huge => "huge",
            Self::Fit => "fit",
            Self::Build => "build",
            Self::Redis => "redis",
            Self::Slots => "slots",
            Self::SwapCache => "swap-cache",
        }
    }

    /// One line for people.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Startup => "start of the command `true`",
            Self::Fill => "every page written for the first time",
            Self::Seq => "rewriting passes from front to back",
            Self::Random => "random touches of pages, 1 and 2 threads",
            Self::Threads => "random touches of pages, 1, 2, 4, 8 and 16 threads",
            Self::Faults => "what a fault costs: random touches by one thread that were no hits",
            Self::Stride => "scans forward, by columns of a matrix with rows of 32 KiB, backward",
            Self::Chase => "pages in the same order again and again, none of addresses",
            Self::Mixed => "a sequential writer beside two random ones (V1)",
            Self::Solve => "a dense system of equations larger than RAM (V2)",
            Self::Free => "time to give swapped memory back",
            Self::Usemem => "usemem --init-time -O -y -x -n 4 (T1)",
            Self::UsememRandom => "usemem, a word of 4 KiB at random, twice over",
            Self::UsememThreads => "usemem, 4 threads in place of processes",
            Self::UsememRead => "usemem, what was written is read once",
            Self::Swapoff => "a swap area is emptied under a program (O)",
            Self::Huge => "huge pages out and back in (H)",
            Self::Fit => "what it costs where nothing overflows",
            Self::Build => "C files compiled side by side, linked and run",
            Self::Redis => "redis-server: SETs, random GETs, the same during BGSAVE (T3)",
            Self::Slots => {
                "the core's, no program; with 96 CPUs in virtual time, with those of this machine in fact"
            }
            Self::SwapCache => "the core's, no program, with the CPUs of this machine",
        }
    }

    /// What it gives `usemem` beside the sizes and the published options; `None`: it is another program.
    #[must_use]
    pub const fn usemem_options(self) -> Option<&'static str> {
        match self {
            Self::Usemem => Some("-n 4"),
            Self::UsememRandom => Some("-R -j 4K -r 2 -n 4"),
            Self::UsememThreads => Some("-n 1 -t 4"),
            Self::UsememRead => Some("-o -n 4"),
            _ => None,
        }
    }

    /// Its processes, where there are several.
    #[must_use]
    pub const fn processes(self) -> u64 {
        match self {
            Self::Usemem | Self::UsememRandom | Self::UsememRead => 4,
            _ => 1,
        }
    }

    /// Whether its data is not what the other workloads fill their pages with.
    #[must_use]
    pub const fn has_own_data(self) -> bool {
        self.usemem_options().is_some() || matches!(self, Self::Solve | Self::Build)
    }

    /// Whether the tour has it.
    #[must_use]
    pub const fn is_toured(self) -> bool {
        let other_way = matches!(
            self,
            Self::Threads
                | Self::Faults
                | Self::Chase
                | Self::UsememRandom
                | Self::UsememThreads
                | Self::UsememRead
        );
        self.tool().is_none() && !other_way
    }

    /// Whether it is one of [`Self::CORE`].
    #[must_use]
    pub const fn is_core(self) -> bool {
        matches!(self, Self::Slots | Self::SwapCache)
    }

    /// The program that must be installed.
    #[must_use]
    pub const fn tool(self) -> Option<&'static str> {
        match self {
            Self::Build => Some(build::TOOL),
            Self::Redis => Some(redis::TOOL),
            _ => None,
        }
    }

    /// Whether its data can as well be in a mapped file.
    #[must_use]
    pub const fn maps(self) -> bool {
        matches!(
            self,
            Self::Fill
                | Self::Seq
                | Self::Random
                | Self::Threads
                | Self::Faults
                | Self::Stride
                | Self::Chase
                | Self::Mixed
                | Self::Free
        )
    }

    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        let all = Self::ALL.into_iter().chain(Self::CORE);
        all.into_iter().find(|one| one.name() == name)
    }
}

/// A name of the command line: a workload, `readahead`: V1 and V2 under every policy, or `scale`: what a fault costs by the
/// number of threads and by the size of RAM and data, what a start costs, and what farpage takes for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Workload(Workload),
    Readahead,
    Scale,
}

impl Subject {
    /// # Errors
    /// One line that lists what there is.
    pub fn parse(name: &str) -> Result<Self, String> {
        if name == "readahead" {
            return Ok(Self::Readahead);
        }
        if name == "scale" {
            return Ok(Self::Scale);
        }
        if let Some(workload) = Workload::ALL.into_iter().find(|one| one.name() == name) {
            return Ok(Self::Workload(workload));
        }
        let there_are = Workload::ALL.map(Workload::name).join(", ");
        Err(format!(
            "{name}: no such benchmark; there are {there_are}, readahead, scale"
        ))
    }
}

/// One of the five systems (`--baseline`). The engine can do without the first three; the core stands for the other two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// VMA readahead, and what grew out of it; without: neighbours on the device, 8 pages.
    Readahead,
    /// Huge pages swapped whole; without: split before they leave, back in small pages.
    Huge,
    /// Swapoff in device order with large reads; without: clusters with windows that count their hits, as system O left it.
    Swapoff,
    /// Clusters and slots of each CPU's; without: a lock and a map for the device.
    Contention,
    /// The swap table; without: a tree with a lock for the swap cache.
    SwapTable,
}

impl System {
    pub const ALL: [Self; 5] = [
        Self::Readahead,
        Self::Huge,
        Self::Swapoff,
        Self::Contention,
        Self::SwapTable,
    ];

    /// The letter of the design.
    #[must_use]
    pub const fn letter(self) -> &'static str {
        match self {
            Self::Readahead => "V",
            Self::Huge => "H",
            Self::Swapoff => "O",
            Self::Contention => "C",
            Self::SwapTable => "T",
        }
    }

    /// # Errors
    /// One line that lists what there is.
    pub fn parse(letter: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|one| one.letter() == letter);
        known.ok_or_else(|| {
            let there_are = Self::ALL.map(Self::letter).join(", ");
            format!("{letter:?}: use {there_are}")
        })
    }
}

/// Where pages go: the kernel's side and farpage's have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A swap file on the same disk.
    File,
    /// RAM, compressed by LZ4.
    Compressed,
    /// RAM as it is: farpage has a file on a tmpfs. The kernel swaps to no such file; beside it stands zram.
    Memory,
}

impl Backing {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Compressed => "compressed",
            Self::Memory => "memory",
        }
    }
}

/// What farpage is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// Nothing: farpage alone.
    None,
    /// The same program with all the RAM it wants.
    Ram,
    /// The kernel's swap file.
    KernelFile,
    /// The kernel's zram.
    KernelZram,
    /// The program keeps its data in a file that it maps.
    Memmap,
}

impl Against {
    pub const ALL: [Self; 5] = [
        Self::None,
        Self::Ram,
        Self::KernelFile,
        Self::KernelZram,
        Self::Memmap,
    ];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Ram => "ram",
            Self::KernelFile => "kernel-file",
            Self::KernelZram => "kernel-zram",
            Self::Memmap => "memmap",
        }
    }

    /// # Errors
    /// One line that lists what there is.
    pub fn parse(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|one| one.name() == name);
        known.ok_or_else(|| {
            let there_are = Self::ALL.map(Self::name).join(", ");
            format!("{name:?}: use {there_are}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for workload in Workload::ALL {
            assert_eq!(Subject::parse(workload.name()), Ok(Subject::Workload(workload)));
        }
        for against in Against::ALL {
            assert_eq!(Against::parse(against.name()), Ok(against));
        }
        assert_eq!(Subject::parse("readahead"), Ok(Subject::Readahead));
        assert_eq!(Subject::parse("scale"), Ok(Subject::Scale));
        for system in System::ALL {
            assert_eq!(System::parse(system.letter()), Ok(system));
        }
    }

    #[test]
    fn what_there_is_not_is_refused() {
        assert!(
            Subject::parse("x")
                .expect_err("refused")
                .contains("no such benchmark")
        );
        assert!(
            Against::parse("disk")
                .expect_err("refused")
                .ends_with("kernel-zram, memmap")
        );
        assert_eq!(System::parse("c"), Err("\"c\": use V, H, O, C, T".to_owned()));
        for core in Workload::CORE {
            assert!(core.is_core() && Subject::parse(core.name()).is_err());
            assert_eq!(Workload::of_name(core.name()), Some(core));
        }
    }
}
