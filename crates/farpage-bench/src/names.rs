//! What can be asked for, by name.

/// A program that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    Startup,
    Fill,
    Seq,
    Random,
    Stride,
    Mixed,
    Solve,
    Free,
    Usemem,
    Swapoff,
    Huge,
}

impl Workload {
    pub const ALL: [Self; 11] = [
        Self::Startup,
        Self::Fill,
        Self::Seq,
        Self::Random,
        Self::Stride,
        Self::Mixed,
        Self::Solve,
        Self::Free,
        Self::Usemem,
        Self::Swapoff,
        Self::Huge,
    ];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Fill => "fill",
            Self::Seq => "seq",
            Self::Random => "random",
            Self::Stride => "stride",
            Self::Mixed => "mixed",
            Self::Solve => "solve",
            Self::Free => "free",
            Self::Usemem => "usemem",
            Self::Swapoff => "swapoff",
            Self::Huge => "huge",
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
            Self::Stride => "scans forward, by columns of a matrix with rows of 32 KiB, backward",
            Self::Mixed => "a sequential writer beside two random ones (V1)",
            Self::Solve => "a dense system of equations larger than RAM (V2)",
            Self::Free => "time to give swapped memory back",
            Self::Usemem => "usemem --init-time -O -y -x -n 4 (T1)",
            Self::Swapoff => "a swap area is emptied under a program (O)",
            Self::Huge => "huge pages out and back in (H)",
        }
    }

    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}

/// A name of the command line: a workload, or `readahead`: V1 and V2 under every policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Workload(Workload),
    Readahead,
}

/// Known by name, and refused.
const NOT_BUILT: [&str; 3] = ["redis", "fit", "build"];

impl Subject {
    /// # Errors
    /// One line that lists what there is.
    pub fn parse(name: &str) -> Result<Self, String> {
        if name == "readahead" {
            return Ok(Self::Readahead);
        }
        if let Some(workload) = Workload::of_name(name) {
            return Ok(Self::Workload(workload));
        }
        let there_are = Workload::ALL.map(Workload::name).join(", ");
        let why = if NOT_BUILT.contains(&name) {
            "not built yet"
        } else {
            "no such benchmark"
        };
        Err(format!("{name}: {why}; there are {there_are}, readahead"))
    }
}

/// One of the five systems, which the engine can do without (`--baseline`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// VMA readahead, and what grew out of it; without: neighbours on the device, 8 pages.
    Readahead,
    /// Huge pages swapped whole; without: small pages.
    Huge,
    /// Swapoff in device order with large reads; without: clusters with windows that count their hits, as system O left it.
    Swapoff,
}

impl System {
    pub const ALL: [Self; 3] = [Self::Readahead, Self::Huge, Self::Swapoff];

    /// The letter of the design.
    #[must_use]
    pub const fn letter(self) -> &'static str {
        match self {
            Self::Readahead => "V",
            Self::Huge => "H",
            Self::Swapoff => "O",
        }
    }

    /// # Errors
    /// One line that lists what there is.
    pub fn parse(letter: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|one| one.letter() == letter);
        known.ok_or_else(|| match letter {
            "C" | "T" => format!(
                "{letter}: the engine can't do without it; use V, H, O, and for C and T `make bench-core` and `farpage sim contention`"
            ),
            _ => format!("{letter:?}: use V, H, O"),
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
}

impl Against {
    pub const ALL: [Self; 4] = [Self::None, Self::Ram, Self::KernelFile, Self::KernelZram];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Ram => "ram",
            Self::KernelFile => "kernel-file",
            Self::KernelZram => "kernel-zram",
        }
    }

    /// # Errors
    /// One line that lists what there is.
    pub fn parse(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|one| one.name() == name);
        known.ok_or_else(|| match name {
            "memmap" => "memmap: not built yet; use none, ram, kernel-file, kernel-zram".to_owned(),
            _ => format!("{name:?}: use none, ram, kernel-file, kernel-zram"),
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
        for system in System::ALL {
            assert_eq!(System::parse(system.letter()), Ok(system));
        }
    }

    #[test]
    fn what_is_not_built_is_refused_by_name() {
        for name in NOT_BUILT {
            let why = Subject::parse(name).expect_err("refused");
            assert!(why.starts_with(&format!("{name}: not built yet")), "{why}");
        }
        assert!(
            Subject::parse("x")
                .expect_err("refused")
                .contains("no such benchmark")
        );
        assert!(
            Against::parse("memmap")
                .expect_err("refused")
                .contains("not built yet")
        );
        assert!(Against::parse("disk").is_err());
        assert!(
            System::parse("C")
                .expect_err("refused")
                .contains("make bench-core")
        );
    }
}
