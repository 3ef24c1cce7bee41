//! Making and undoing on this machine, by the tools of util-linux and by files of /sys.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use super::list::{Undo, World};
use super::orphans;
use crate::cgroup;

/// Above any priority that swap gets by itself, so that ours is used first.
const PRIORITY: &str = "32767";
/// Tries, of 20 ms each, before what still runs in a cgroup, or still uses a device or swap, is given up on: 10 s.
const TRIES: u32 = 500;
const TRY: Duration = Duration::from_millis(20);
/// Seconds after which the kernel's swapoff is given up.
const EMPTYING_MAX_S: &str = "120";

pub struct Machine;

impl World for Machine {
    fn make(&mut self, request: &Value, undo: &mut Vec<Undo>) -> Result<String, String> {
        let bytes = request["bytes"].as_u64().unwrap_or(0);
        let directory = Path::new(request["directory"].as_str().unwrap_or("/var/tmp"));
        match request["make"].as_str() {
            Some("swap_file") => swap_file(directory, bytes, undo),
            Some("directory") => {
                let path = fresh_name(directory);
                undo.push(Undo::Unlink(path.clone()));
                let made = fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()));
                made.map(|()| path.display().to_string())
            }
            Some("zram") => zram(bytes, undo),
            Some("cgroup") => {
                let directory = cgroup::new_directory()?;
                undo.push(Undo::RemoveCgroup(directory.path.clone()));
                cgroup::make(&directory, bytes, request["swap"] == true)?;
                Ok(directory.path.display().to_string())
            }
            Some("temporary") => {
                let path = fresh_name(&std::env::temp_dir());
                undo.push(Undo::Unlink(path.clone()));
                Ok(path.display().to_string())
            }
            Some("group") => {
                let id = request["id"].as_i64().and_then(|id| i32::try_from(id).ok());
                undo.push(Undo::KillGroup(id.ok_or("keeper: no process group")?));
                Ok(String::new())
            }
            other => Err(format!("keeper: {other:?} is not known")),
        }
    }

    fn undo(&mut self, step: &Undo) -> Result<(), String> {
        match step {
            Undo::Unlink(path) => match unlink(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    Err(format!("{}: {error}", path.display()))
                }
                _ => Ok(()),
            },
            Undo::SwapOff(path) => swap_off(path),
            Undo::ZramRemove(number) => zram_remove(*number),
            Undo::RemoveCgroup(directory) => remove_cgroup(directory),
            Undo::KillGroup(group) => {
                if let Some(group) = Pid::from_raw(*group) {
                    // It fails when the group has ended, which is what is wanted.
                    let _ = kill_process_group(group, Signal::KILL);
                }
                Ok(())
            }
        }
    }

    fn empty(&mut self, swap: &Path) -> Result<u64, String> {
        let shown = swap.display().to_string();
        let start = Instant::now();
        // A signal ends it: swap is in use as before then.
        tool("timeout", &[EMPTYING_MAX_S, "swapoff", &shown])?;
        Ok(start.elapsed().as_nanos() as u64)
    }
}

/// Removes a file, or a directory with what is in it.
fn unlink(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    }
}

/// A name that nobody has: pid and time.
fn fresh_name(directory: &Path) -> PathBuf {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    directory.join(format!("{}{}-{now}", orphans::NAME, process::id()))
}

/// Runs a tool that a system directory may hold which is not in PATH.
fn tool(name: &str, words: &[&str]) -> Result<(), String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let got = Command::new(name)
        .args(words)
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{name}: {error}; install util-linux"))?;
    if got.status.success() {
        Ok(())
    } else {
        let told = String::from_utf8_lossy(&got.stderr);
        Err(format!("{name} {}: {}", words.join(" "), told.trim()))
    }
}

fn swap_file(directory: &Path, bytes: u64, undo: &mut Vec<Undo>) -> Result<String, String> {
    let path = fresh_name(directory);
    let shown = path.display().to_string();
    undo.push(Undo::Unlink(path.clone()));
    tool("fallocate", &["-l", &bytes.to_string(), &shown])?;
    use_as_swap(path, undo)?;
    Ok(shown)
}

fn use_as_swap(path: PathBuf, undo: &mut Vec<Undo>) -> Result<(), String> {
    let shown = path.display().to_string();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .map_err(|error| format!("{shown}: {error}"))?;
    tool("mkswap", &["--label", &orphans::label(process::id()), &shown])?;
    undo.push(Undo::SwapOff(path));
    tool("swapon", &["--priority", PRIORITY, &shown])
}

/// A swapoff that is at work already, of a keeper that was killed meanwhile, is waited for.
fn swap_off(path: &Path) -> Result<(), String> {
    insist(|| {
        if is_swap(path) {
            tool("swapoff", &[path.as_os_str().to_string_lossy().as_ref()])
        } else {
            Ok(())
        }
    })
}

/// Takes a step again and again until it succeeds, for a while.
fn insist(mut step: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    let mut last = step();
    for _ in 1..TRIES {
        if last.is_ok() {
            break;
        }
        thread::sleep(TRY);
        last = step();
    }
    last
}

/// Whether the kernel swaps to it now.
fn is_swap(path: &Path) -> bool {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    swap_names(&swaps).any(|name| Path::new(name) == path)
}

/// The first column of /proc/swaps. (A blank in a name is written `\040`; ours have none.)
pub fn swap_names(swaps: &str) -> impl Iterator<Item = &str> {
    swaps
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
}

fn zram(bytes: u64, undo: &mut Vec<Undo>) -> Result<String, String> {
    let control = Path::new("/sys/class/zram-control");
    if !control.is_dir() {
        tool("modprobe", &["zram"]).map_err(|why| format!("no zram in this kernel: {why}"))?;
    }
    let number =
        fs::read_to_string(control.join("hot_add")).map_err(|error| format!("zram hot_add: {error}"))?;
    let number: u32 = number
        .trim()
        .parse()
        .map_err(|_| format!("zram hot_add: {number}"))?;
    undo.push(Undo::ZramRemove(number));
    let block = PathBuf::from(format!("/sys/block/zram{number}"));
    for (file, text) in [
        ("comp_algorithm", "lz4".to_owned()),
        ("disksize", bytes.to_string()),
    ] {
        fs::write(block.join(file), text)
            .map_err(|error| format!("{}: {error}", block.join(file).display()))?;
    }
    let device = PathBuf::from(format!("/dev/zram{number}"));
    use_as_swap(device.clone(), undo)?;
    Ok(device.display().to_string())
}

/// The device is busy for a moment after swapoff: udev looks at it.
fn zram_remove(number: u32) -> Result<(), String> {
    insist(|| {
        if Path::new(&format!("/sys/block/zram{number}")).exists() {
            fs::write("/sys/class/zram-control/hot_remove", number.to_string())
                .map_err(|error| format!("zram{number}: {error}"))
        } else {
            Ok(())
        }
    })
}

fn remove_cgroup(directory: &Path) -> Result<(), String> {
    insist(|| {
        let pids = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
        for pid in pids.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
            // It may have ended meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
        match fs::remove_dir(directory) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(format!("{}: {error}", directory.display()))
            }
            _ => Ok(()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_swaps() {
        let swaps = "Filename\tType\tSize\tUsed\tPriority\n/dev/zram0  partition 1 0 -2\n/a/b file 1 0 -3\n";
        assert_eq!(swap_names(swaps).collect::<Vec<_>>(), ["/dev/zram0", "/a/b"]);
        assert_eq!(swap_names("Filename\n").count(), 0);
    }

    #[test]
    fn undoing_what_is_not_there_does_nothing() {
        let absent = fresh_name(&std::env::temp_dir());
        for step in [
            Undo::Unlink(absent.clone()),
            Undo::SwapOff(absent.clone()),
            Undo::RemoveCgroup(absent),
            Undo::ZramRemove(4_000_000),
        ] {
            assert_eq!(Machine.undo(&step), Ok(()), "{step:?}");
        }
    }

    #[test]
    fn a_temporary_name_is_unlinked() {
        let mut undo = Vec::new();
        let path = Machine
            .make(&serde_json::json!({"make": "temporary"}), &mut undo)
            .expect("a name");
        fs::write(&path, "x").expect("written");
        assert_eq!(undo, [Undo::Unlink(path.clone().into())]);
        assert_eq!(Machine.undo(&undo[0]), Ok(()));
        assert!(!Path::new(&path).exists());
    }

    #[test]
    fn a_directory_goes_with_what_is_in_it() {
        let mut undo = Vec::new();
        let request = serde_json::json!({"make": "directory", "directory": std::env::temp_dir()});
        let path = Machine.make(&request, &mut undo).expect("a directory");
        fs::write(Path::new(&path).join("file"), "x").expect("written");
        assert_eq!(Machine.undo(&undo[0]), Ok(()));
        assert!(!Path::new(&path).exists());
    }
}
