//! What a keeper left behind that was killed itself. Each thing carries the pid of the keeper that made it, in its name or,
//! a device, in its label; where no process has that pid any more, nobody else is going to undo it.

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::list::Undo;
use super::world::swap_names;
use crate::cgroup;

/// The word of the command line that makes a process a keeper.
pub const KEEPER: &str = "bench-keep";
/// Begins the name of all that a keeper makes; its pid follows.
pub const NAME: &str = "farpage-bench-";
/// Begins the label of a device, which has room for 15 characters; the pid follows.
const LABEL: &str = "fpbench-";
/// Where the label is in a swap area's header, in bytes, and how long it can be. Source: mkswap(8), `union swap_header`.
const LABEL_AT: u64 = 1024 + 3 * 4 + 16;
const LABEL_BYTES: usize = 16;

/// The label of swap on a device that process `pid` makes.
pub fn label(pid: u32) -> String {
    format!("{LABEL}{pid}")
}

/// Steps that undo what dead keepers made, to be taken from the last to the first: cgroups, with what runs in them, go
/// first. Swap files are looked for in `directory`, and wherever they are in use.
pub fn found(directory: &Path) -> Vec<Undo> {
    let mut steps = Vec::new();
    for place in [&env::temp_dir(), directory] {
        steps.extend(of_the_dead(place).map(Undo::Unlink));
    }
    let in_use = swaps();
    let files = in_use.iter().filter(|area| is_dead(name_of(area), NAME));
    steps.extend(files.cloned().map(Undo::Unlink));
    steps.extend(zrams().map(Undo::ZramRemove));
    steps.extend(in_use.into_iter().map(Undo::SwapOff));
    let cgroups = cgroup::parent().map(|parent| of_the_dead(&parent.path));
    steps.extend(cgroups.into_iter().flatten().map(Undo::RemoveCgroup));
    steps
}

/// The entries of a directory that bear a dead keeper's name.
fn of_the_dead(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    entries(directory).filter(|path| is_dead(name_of(path), NAME))
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

fn name_of(path: &Path) -> &str {
    path.file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default()
}

/// Numbers of the zram devices that a dead keeper labelled, in use or not.
fn zrams() -> impl Iterator<Item = u32> {
    entries(Path::new("/sys/block")).filter_map(|path| {
        let number = name_of(&path).strip_prefix("zram")?.parse().ok()?;
        labelled(&Path::new("/dev").join(name_of(&path))).then_some(number)
    })
}

/// Areas in use as swap that a dead keeper made.
fn swaps() -> Vec<PathBuf> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let areas = swap_names(&swaps).map(PathBuf::from);
    areas
        .filter(|area| is_dead(name_of(area), NAME) || labelled(area))
        .collect()
}

fn labelled(area: &Path) -> bool {
    label_of(area).is_ok_and(|label| is_dead(&label, LABEL))
}

/// The label in the header of a swap area.
fn label_of(area: &Path) -> io::Result<String> {
    let mut label = [0; LABEL_BYTES];
    File::open(area)?.read_exact_at(&mut label, LABEL_AT)?;
    let text = label.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// Whether a name tells of a keeper that is no more.
fn is_dead(name: &str, begins: &str) -> bool {
    let pid = name
        .strip_prefix(begins)
        .map(|rest| rest.split_once('-').map_or(rest, |(pid, _)| pid));
    pid.is_some_and(|pid| pid.parse::<u32>().is_ok() && !is_keeper(pid))
}

/// Whether a keeper runs under this pid: not one that ended and was not waited for, nor who got its pid afterwards.
fn is_keeper(pid: &str) -> bool {
    let words = fs::read(Path::new("/proc").join(pid).join("cmdline")).unwrap_or_default();
    words
        .split(|byte| *byte == 0)
        .any(|word| word == KEEPER.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::process;

    use super::*;

    #[test]
    fn only_a_dead_keepers_name_counts() {
        // Above any pid there can be; this process, which is no keeper.
        for pid in [4_194_305, process::id()] {
            assert!(is_dead(&format!("{NAME}{pid}-1"), NAME), "{pid}");
            assert!(is_dead(&label(pid), LABEL), "{pid}");
        }
        for name in ["farpage-bench-", "farpage-bench-x-1", "fpbench-", "swapfile", ""] {
            assert!(!is_dead(name, NAME) && !is_dead(name, LABEL), "{name}");
        }
        assert!(label(4_194_304).len() < LABEL_BYTES);
    }

    #[test]
    fn a_keeper_at_work_is_not_dead() {
        let mut child = process::Command::new("sh")
            .args(["-c", "echo; read line", "sh", KEEPER])
            .stdin(process::Stdio::piped())
            .stdout(process::Stdio::piped())
            .spawn()
            .expect("a child");
        // Its command line is not there at once.
        let mut told = [0];
        let output = child.stdout.as_mut().expect("its output");
        io::Read::read_exact(output, &mut told).expect("its word");
        let pid = child.id();
        let at_work = !is_dead(&label(pid), LABEL);
        drop(child.stdin.take());
        child.wait().expect("its end");
        assert!(at_work);
        assert!(is_dead(&label(pid), LABEL));
    }

    #[test]
    fn a_label_is_read_where_mkswap_writes_it() {
        let path = env::temp_dir().join(format!("farpage-label-{}", process::id()));
        let mut header = vec![0_u8; 4096];
        header[1024..1028].copy_from_slice(&1_u32.to_le_bytes());
        header[1052..1052 + 9].copy_from_slice(b"fpbench-7");
        fs::write(&path, &header).expect("written");
        let label = label_of(&path);
        fs::remove_file(&path).expect("removed");
        assert_eq!(label.expect("read"), "fpbench-7");
    }
}
