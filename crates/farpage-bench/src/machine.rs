//! The machine that the figures are of: without it they say nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::statvfs;
use serde_json::{Value, json};

use crate::keeper::swap_names;
use crate::plan::Room;

/// CPU, kernel, RAM, the disk under `directory`, settings of the kernel's swap, load, date.
#[must_use]
pub fn machine(directory: &Path) -> Value {
    let line = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let swaps = line("/proc/swaps");
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    json!({
        "cpu": cpu_model(&line("/proc/cpuinfo")),
        "cpus": thread::available_parallelism().map_or(1, usize::from),
        "kernel": line("/proc/sys/kernel/osrelease"),
        "ram_bytes": meminfo_bytes(&line("/proc/meminfo"), "MemTotal:"),
        "directory": directory,
        "disk": disk(directory),
        "transparent_hugepage": chosen(&line("/sys/kernel/mm/transparent_hugepage/enabled")),
        "page_cluster": line("/proc/sys/vm/page-cluster"),
        "vma_readahead": line("/sys/kernel/mm/swap/vma_ra_enabled"),
        "swappiness": line("/proc/sys/vm/swappiness"),
        "other_swap": swap_names(&swaps).collect::<Vec<_>>(),
        "load_before": line("/proc/loadavg").split(' ').next(),
        "date": utc(seconds),
        "farpage": env!("CARGO_PKG_VERSION"),
    })
}

/// The machine in two lines for people.
#[must_use]
pub fn words(machine: &Value) -> String {
    let text = |key: &str| machine[key].as_str().unwrap_or("?").to_owned();
    let gib = machine["ram_bytes"].as_f64().unwrap_or(0.0) / (1u64 << 30) as f64;
    format!(
        "{}, {} CPUs, {gib:.1} GiB, Linux {}, load {} before, {}\n{} on {}; THP {}, page-cluster {}, VMA readahead {}",
        text("cpu"),
        machine["cpus"],
        text("kernel"),
        text("load_before"),
        text("date"),
        text("directory"),
        text("disk"),
        text("transparent_hugepage"),
        text("page_cluster"),
        text("vma_readahead"),
    )
}

fn cpu_model(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
    let name = line.and_then(|rest| rest.split_once(':'));
    name.map_or("unknown CPU", |(_, name)| name.trim()).to_owned()
}

/// What it has to spare now.
#[must_use]
pub fn room(directory: &Path) -> Room {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    Room {
        ram: meminfo_bytes(&meminfo, "MemAvailable:").unwrap_or(0),
        disk: statvfs(directory).map_or(0, |disk| disk.f_bavail * disk.f_frsize),
    }
}

fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    Some(rest.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// `always [madvise] never` -> `madvise`.
fn chosen(setting: &str) -> String {
    let inner = setting.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inner.map_or(setting, |(word, _)| word).to_owned()
}

/// Name and kind of the disk that a directory is on.
fn disk(directory: &Path) -> String {
    let Ok(meta) = fs::metadata(directory) else {
        return "no such directory".to_owned();
    };
    let (major, minor) = numbers(meta.dev());
    let link = format!("/sys/dev/block/{major}:{minor}");
    let Ok(device) = fs::canonicalize(&link) else {
        return format!("device {major}:{minor}");
    };
    let read = |path: &Path| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    // A partition has neither a queue nor a model; the disk above it has.
    let whole = if device.join("queue").is_dir() {
        device.clone()
    } else {
        device.parent().unwrap_or(&device).to_owned()
    };
    let name = device
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let model = read(&whole.join("device/model")).unwrap_or_default();
    let rotational = match read(&whole.join("queue/rotational")).as_deref() {
        // Beside any such swap area the kernel reads ahead in the order of the device.
        Some("1") => "calls itself rotating: without VMA readahead in the kernel",
        Some(_) => "not rotating",
        None => "no queue",
    };
    format!("{name} {model} ({rotational})").replace("  ", " ")
}

/// Major and minor number, as glibc's gnu_dev_major has them.
fn numbers(device: u64) -> (u64, u64) {
    let major = ((device >> 8) & 0xFFF) | ((device >> 32) & !0xFFF);
    let minor = (device & 0xFF) | ((device >> 12) & !0xFF);
    (major, minor)
}

/// `2026-11-21 04:05 UTC`. Days to a date as in Hinnant, "chrono-compatible low-level date algorithms".
fn utc(seconds: u64) -> String {
    let days = (seconds / 86_400) as i64 + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let (hour, minute) = (seconds % 86_400 / 3600, seconds % 3600 / 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(utc(1_795_233_900), "2026-11-21 04:05 UTC");
    }

    #[test]
    fn texts_of_the_kernel() {
        assert_eq!(cpu_model("processor : 0\nmodel name\t: AMD EPYC\n"), "AMD EPYC");
        assert_eq!(
            meminfo_bytes("MemFree: 1 kB\nMemTotal:  2 kB\n", "MemTotal:"),
            Some(2048)
        );
        assert_eq!(chosen("always [madvise] never"), "madvise");
        assert_eq!(chosen("x"), "x");
        assert_eq!(numbers(0xFE00), (254, 0));
        assert_eq!(numbers((1 << 20) | 0x103), (1, 0x103));
    }

    #[test]
    fn this_machine_is_told_in_two_lines() {
        let machine = machine(Path::new("/tmp"));
        let room = room(Path::new("/tmp"));
        assert!(room.ram > 0 && room.disk > 0, "{room:?}");
        assert!(machine["ram_bytes"].as_u64().is_some_and(|bytes| bytes > 0));
        assert_eq!(words(&machine).lines().count(), 2);
    }
}
