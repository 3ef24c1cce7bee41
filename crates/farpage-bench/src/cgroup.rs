//! A memory cgroup of our own, version 1 or 2, below the one we are in, so that that one's limits keep holding.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::keeper;

/// Where a cgroup is going to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    pub path: PathBuf,
    pub version: u8,
}

/// A mount that may have a memory controller.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    point: PathBuf,
    version: u8,
}

fn mounts(text: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let mut fields = line.split(' ').skip(1);
        let (point, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let version = match kind {
            "cgroup" if options.split(',').any(|option| option == "memory") => 1,
            "cgroup2" => 2,
            _ => return None,
        };
        Some(Mount {
            point: point.into(),
            version,
        })
    };
    text.lines().filter_map(mount).collect()
}

/// The path of our own cgroup inside a hierarchy, from the text of /proc/self/cgroup.
fn own_path(text: &str, version: u8) -> &str {
    let line = text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let fits = if version == 2 {
            number == "0"
        } else {
            controllers.split(',').any(|name| name == "memory")
        };
        fits.then_some(path)
    });
    line.unwrap_or("/").trim_start_matches('/')
}

/// The directory in which cgroups with a memory controller can be made.
///
/// # Errors
/// One line, where there is none.
pub fn parent() -> Result<Directory, String> {
    let mut why = "no memory cgroup controller is mounted".to_owned();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    for Mount { point, version } in mounts(&fs::read_to_string("/proc/self/mounts").unwrap_or_default()) {
        let inside = point.join(own_path(&own, version));
        // A mount that was made inside another cgroup namespace shows other paths.
        let inside = if inside.is_dir() { inside } else { point.clone() };
        if version == 1 {
            return Ok(Directory {
                path: inside,
                version,
            });
        }
        for path in inside.ancestors().take_while(|path| path.starts_with(&point)) {
            match delegates_memory(path) {
                Ok(()) => {
                    let path = path.to_owned();
                    return Ok(Directory { path, version });
                }
                Err(error) => why = error,
            }
        }
    }
    Err(format!("no cgroup can be made: {why}"))
}

/// Sees to it that children of a version 2 cgroup have the memory controller. One with processes in it can't.
fn delegates_memory(path: &Path) -> Result<(), String> {
    let told = |error| format!("{}: {error}", path.display());
    let has = |file: &str| -> Result<bool, String> {
        let words = fs::read_to_string(path.join(file)).map_err(told)?;
        Ok(words.split_whitespace().any(|word| word == "memory"))
    };
    if !has("cgroup.controllers")? {
        return Err(format!("{}: no memory controller", path.display()));
    }
    if has("cgroup.subtree_control")? {
        return Ok(());
    }
    fs::write(path.join("cgroup.subtree_control"), "+memory").map_err(told)
}

/// A name for a cgroup that does not exist yet.
///
/// # Errors
/// One line, where none can be made.
pub fn new_directory() -> Result<Directory, String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let parent = parent()?;
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    Ok(Directory {
        path: parent
            .path
            .join(format!("{}{}-{number}", keeper::NAME, process::id())),
        version: parent.version,
    })
}

/// Makes it, limited to `bytes`.
///
/// # Errors
/// One line; what was made by then is left to be removed.
pub fn make(directory: &Directory, bytes: u64, swap: bool) -> Result<(), String> {
    let told = |error| format!("{}: {error}", directory.path.display());
    fs::create_dir(&directory.path).map_err(told)?;
    for (number, (file, text)) in settings(directory.version, bytes, swap).into_iter().enumerate() {
        let file = directory.path.join(file);
        // The limit itself comes first and must be there; the others are missing where swap is not accounted.
        if number == 0 || file.exists() {
            fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        }
    }
    Ok(())
}

/// What is written to which file, in order.
fn settings(version: u8, bytes: u64, swap: bool) -> Vec<(&'static str, String)> {
    let limit = bytes.to_string();
    match (version, swap) {
        (1, true) => vec![("memory.limit_in_bytes", limit)],
        (1, false) => vec![
            ("memory.limit_in_bytes", limit.clone()),
            ("memory.memsw.limit_in_bytes", limit),
            ("memory.swappiness", "0".to_owned()),
        ],
        (_, true) => vec![("memory.max", limit)],
        (_, false) => vec![("memory.max", limit), ("memory.swap.max", "0".to_owned())],
    }
}

/// Processes that the kernel killed in it for want of memory, and the most it held in bytes.
pub fn tell(directory: &Path) -> (u64, Option<u64>) {
    let read = |file: &str| fs::read_to_string(directory.join(file)).ok();
    let kills = ["memory.oom_control", "memory.events"]
        .iter()
        .filter_map(|file| oom_kills(&read(file)?))
        .sum();
    let peak = ["memory.max_usage_in_bytes", "memory.peak"]
        .iter()
        .find_map(|file| read(file)?.trim().parse().ok());
    (kills, peak)
}

fn oom_kills(text: &str) -> Option<u64> {
    let number = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_with_a_memory_controller() {
        let text = "cgroup /cg/cpu cgroup rw,cpu 0 0\ncgroup /cg/mem cgroup rw,memory 0 0\nc2 /cg/u cgroup2 rw 0 0\n";
        let found = mounts(text);
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].point.as_path(), found[0].version),
            (Path::new("/cg/mem"), 1)
        );
        assert_eq!(
            (found[1].point.as_path(), found[1].version),
            (Path::new("/cg/u"), 2)
        );
    }

    #[test]
    fn own_cgroup_of_either_version() {
        let text = "5:cpu:/x\n4:memory:/job/a\n0::/unified\n";
        assert_eq!((own_path(text, 1), own_path(text, 2)), ("job/a", "unified"));
        assert_eq!(own_path("", 1), "");
    }

    #[test]
    fn without_swap_the_kernel_may_swap_nothing() {
        assert_eq!(
            settings(1, 64, true),
            [("memory.limit_in_bytes", "64".to_owned())]
        );
        assert_eq!(settings(1, 64, false)[2], ("memory.swappiness", "0".to_owned()));
        assert_eq!(settings(2, 64, false)[1], ("memory.swap.max", "0".to_owned()));
        assert_eq!(settings(2, 64, true).len(), 1);
    }

    #[test]
    fn kills_are_read() {
        assert_eq!(
            oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
            Some(3)
        );
        assert_eq!(oom_kills("low 0\n"), None);
    }
}
