//! How much RAM there is to share out: the machine's, and what the memory cgroups (v1 and v2) leave of it.

use std::fs;
use std::path::{Path, PathBuf};

use farpage::container::Container;
use farpage::supervisor;
use farpage_core::units::format_size;

use crate::probe::Trouble;

/// Version 1 writes a number close to 2^63 for "no limit"; no machine has this much.
const UNLIMITED_BYTES_MIN: u64 = 1 << 60;

/// The tightest memory limit above this process, and the file that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLimit {
    pub bytes: u64,
    pub file: PathBuf,
}

/// RAM that farpage may share out: the smaller of the machine's and the cgroup limit.
pub struct Available {
    pub bytes: u64,
    /// Who has so much, in words.
    whose: String,
    container: Option<Container>,
}

/// # Errors
/// One line, if /proc does not tell.
pub fn available() -> Result<Available, String> {
    let ram = ram_bytes().ok_or("cannot read /proc/meminfo, and programs of a tree need /proc too; mount it: mount -t proc proc /proc")?;
    Ok(match cgroup_limit() {
        Some(limit) if limit.bytes <= ram => Available {
            bytes: limit.bytes,
            whose: format!("the memory cgroup has ({})", limit.file.display()),
            container: limit.file.parent().map(|directory| Container {
                directory: directory.to_owned(),
                limit_bytes: limit.bytes,
            }),
        },
        _ => Available {
            bytes: ram,
            whose: "this machine has".to_owned(),
            container: None,
        },
    })
}

impl Available {
    /// The largest budget that leaves enough for page tables, code and what farpage itself needs: a tenth of the budget, and in small ones
    /// this.
    fn most(&self) -> u64 {
        const LEAST_BYTES: u64 = 16 << 20;
        self.bytes.saturating_sub((self.bytes / 11).max(LEAST_BYTES))
    }

    /// A budget is at most all that there is: more would be found out by the kernel first.
    pub fn at_most(&self, budget: u64) -> u64 {
        budget.min(self.bytes.max(supervisor::RAM_MIN))
    }

    /// The container that a budget nearly fills.
    pub fn filled_by(&self, budget: u64) -> Option<Container> {
        self.container.clone().filter(|_| budget > self.most())
    }

    /// What is said of a budget so near to all of it that what comes on top finds no room: what, and how to mend it.
    pub fn too_near(&self, budget: u64) -> Option<Trouble> {
        let most = self.most();
        (budget > most).then(|| {
            let (asked, has, whose) = (format_size(budget), format_size(self.bytes), &self.whose);
            let taken = match budget > self.at_most(budget) {
                true => ", of which all is taken",
                false => "",
            };
            let held = match &self.container {
                Some(_) => ". They get what they are seen to need of it, but a program that grows at once can be killed",
                None => ", so the program can be killed",
            };
            Trouble::new(
                format!("{asked} of the {has} that {whose}{taken}: page tables, code and files come on top{held}"),
                format!("give at most {}", format_size(most)),
            )
        })
    }
}

/// RAM of the machine in bytes.
pub fn ram_bytes() -> Option<u64> {
    meminfo_total(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn meminfo_total(meminfo: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    rest.split_whitespace()
        .next()?
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

/// The tightest of the limits of this process's cgroup and its ancestors.
pub fn cgroup_limit() -> Option<CgroupLimit> {
    let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    candidate_files(&membership, &mounts)
        .into_iter()
        .filter_map(|file| {
            let bytes = parse_limit(&fs::read_to_string(&file).ok()?)?;
            Some(CgroupLimit { bytes, file })
        })
        .min_by_key(|limit| limit.bytes)
}

/// `max` and the enormous number of version 1 are no limit.
fn parse_limit(text: &str) -> Option<u64> {
    text.trim()
        .parse()
        .ok()
        .filter(|bytes| *bytes < UNLIMITED_BYTES_MIN)
}

/// The limit files of the group and of all its ancestors that the mount shows.
fn candidate_files(membership: &str, mounts: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for mount in mounts.lines().filter_map(parse_mount) {
        let name = if mount.version == 2 {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        };
        let Some(group) = membership.lines().find_map(|line| group_of(line, mount.version)) else {
            continue;
        };
        // A container sees its own group as the mount's root; the name in /proc/self/cgroup may lie above it.
        let relative = Path::new(group).strip_prefix(mount.root).unwrap_or(Path::new(""));
        let inside = mount.point.join(relative.strip_prefix("/").unwrap_or(relative));
        let up = inside
            .ancestors()
            .take_while(|directory| directory.starts_with(&mount.point));
        files.extend(up.map(|directory| directory.join(name)));
    }
    files
}

/// The group's path, if this line of /proc/self/cgroup is the memory controller's in that version.
fn group_of(line: &str, version: u8) -> Option<&str> {
    let mut fields = line.splitn(3, ':');
    let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let fits = if version == 2 {
        id == "0"
    } else {
        controllers.split(',').any(|name| name == "memory")
    };
    fits.then_some(path)
}

struct Mount<'a> {
    version: u8,
    root: &'a str,
    point: PathBuf,
}

/// One line of mountinfo, if a cgroup mount that can limit memory.
fn parse_mount(line: &str) -> Option<Mount<'_>> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, point) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let version = match right.next()? {
        "cgroup2" => 2,
        "cgroup" if right.nth(1)?.split(',').any(|option| option == "memory") => 1,
        _ => return None,
    };
    Some(Mount {
        version,
        root,
        point: PathBuf::from(point),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(membership: &str, mounts: &str) -> Vec<String> {
        candidate_files(membership, mounts)
            .iter()
            .map(|file| file.display().to_string())
            .collect()
    }

    /// A container of 64 MiB was found large enough for a budget of 58, with 6 for what comes on top.
    #[test]
    fn what_comes_on_top_is_a_tenth_and_at_least_16_mib() {
        let is_too_near = |mib: u64, budget: u64| {
            let whose = "it has".to_owned();
            let available = Available {
                bytes: mib << 20,
                whose,
                container: None,
            };
            available.too_near(budget << 20).is_some()
        };
        assert!(is_too_near(64, 49) && !is_too_near(64, 48));
        assert!(is_too_near(1100, 1001) && !is_too_near(1100, 1000));
        assert!(is_too_near(8, 1));
    }

    #[test]
    fn a_budget_of_more_than_all_is_told_to_be_all() {
        let available = Available {
            bytes: 1 << 30,
            whose: "it has".to_owned(),
            container: None,
        };
        let told = |mib: u64| available.too_near(mib << 20).expect("too near").line();
        assert!(
            told(1536).contains("1.5 GiB of the 1 GiB that it has, of which all is taken: "),
            "{}",
            told(1536)
        );
        assert!(
            told(1024).contains("1 GiB of the 1 GiB that it has: "),
            "{}",
            told(1024)
        );
    }

    #[test]
    fn version_2_walks_up() {
        let mounts = "35 24 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
        assert_eq!(
            names("0::/user.slice/a\n", mounts),
            [
                "/sys/fs/cgroup/user.slice/a/memory.max",
                "/sys/fs/cgroup/user.slice/memory.max",
                "/sys/fs/cgroup/memory.max"
            ]
        );
    }

    #[test]
    fn version_1_is_the_memory_controller() {
        let mounts = "35 31 0:32 / /cg/memory rw - cgroup cgroup rw,memory
\
                      36 31 0:33 / /cg/cpu rw - cgroup cgroup rw,cpu
";
        let membership = "5:cpu:/x\n4:memory:/job\n0::/\n";
        assert_eq!(
            names(membership, mounts),
            [
                "/cg/memory/job/memory.limit_in_bytes",
                "/cg/memory/memory.limit_in_bytes"
            ]
        );
    }

    #[test]
    fn container_without_namespace_sees_its_root() {
        let mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        assert_eq!(
            names("4:memory:/docker/abc\n", mounts),
            ["/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        );
        assert_eq!(
            names("4:memory:/elsewhere\n", mounts),
            ["/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        );
    }

    #[test]
    fn no_limit_is_none() {
        assert_eq!(parse_limit("max\n"), None);
        assert_eq!(parse_limit("9223372036854771712\n"), None);
        assert_eq!(parse_limit("402653184\n"), Some(402_653_184));
    }

    #[test]
    fn meminfo() {
        assert_eq!(
            meminfo_total("MemTotal:       1024 kB\nMemFree: 1 kB\n"),
            Some(1 << 20)
        );
        assert_eq!(meminfo_total(""), None);
        assert!(available().expect("this machine has RAM").bytes > 0);
    }
}
