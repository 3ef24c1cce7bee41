//! A swap area is emptied while its program waits: by the kernel's swapoff on its side, by `farpage swapoff` on ours. Both are
//! timed from the start of the command to its end.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::{Duration, Instant};

use farpage_core::units::PAGE_SIZE;
use serde_json::{Value, json};

use crate::keeper::Keeper;
use crate::names::Backing;
use crate::plan::{Side, Way};
use crate::program;

/// How `farpage swapoff` calls the only tier that farpage has.
fn area(backing: Backing) -> &'static str {
    match backing {
        Backing::Compressed => "compressed",
        Backing::File | Backing::Memory => "1",
    }
}

/// The kernel's side.
///
/// # Errors
/// One line: why it was not emptied.
pub fn by_kernel(keeper: &mut Keeper, swap: &Path) -> Result<Value, String> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let pages = used_pages(&swaps, swap).ok_or_else(|| format!("{}: not in /proc/swaps", swap.display()))?;
    Ok(figures(pages, keeper.empty(swap)?))
}

/// farpage's side: the area of the tree whose first process, and whose group, is `tree`.
///
/// # Errors
/// One line: why it was not emptied.
pub fn by_farpage(program: &Path, tree: u32, side: Side, backing: Backing) -> Result<Value, String> {
    let mut words = vec![
        program.display().to_string(),
        "swapoff".to_owned(),
        "--json".to_owned(),
    ];
    if let Side::Farpage(Way::Emptied { order, window }) = side {
        words.push(format!("--order={order}"));
        words.push(format!("--window={window}"));
    }
    words.extend([area(backing).to_owned(), tree.to_string()]);
    let start = Instant::now();
    // It is ended with the tree, if that has to be.
    let got = program::command(&words)
        .process_group(tree as i32)
        .output()
        .map_err(|error| format!("{}: {error}", words.join(" ")))?;
    let time = start.elapsed();
    if !got.status.success() {
        return Err(String::from_utf8_lossy(&got.stderr).trim().to_owned());
    }
    told(&got.stdout, time)
}

/// Figures from what `farpage swapoff --json` printed.
fn told(output: &[u8], time: Duration) -> Result<Value, String> {
    let done: Value = serde_json::from_slice(output)
        .map_err(|error| format!("farpage swapoff is not understood: {error}"))?;
    let pages = |key: &str| done[key].as_u64().unwrap_or(0);
    let mut figures = figures(pages("pages_to_ram") + pages("pages_to_tiers"), time);
    figures["emptied_to_tiers_pages"] = done["pages_to_tiers"].clone();
    figures["windows"] = windows(&done["windows"]);
    Ok(figures)
}

fn figures(pages: u64, time: Duration) -> Value {
    let seconds = time.as_secs_f64();
    json!({
        "emptied_pages": pages,
        "emptied_seconds": seconds,
        "emptied_mb_per_s": (pages * PAGE_SIZE as u64) as f64 / 1e6 / seconds,
    })
}

/// Windows by their size, as the published tables have them. The counts are of 1, 2, 4 ... pages.
fn windows(counts: &Value) -> Value {
    let counts: Vec<u64> = counts
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_u64)
        .collect();
    let of = |bucket: usize| counts.get(bucket).copied().unwrap_or(0);
    json!({
        "pages_1": of(0),
        "pages_2": of(1),
        "pages_4": of(2),
        "pages_8_up": counts.iter().skip(3).sum::<u64>(),
    })
}

/// The fourth column of /proc/swaps, which is in KiB.
fn used_pages(swaps: &str, swap: &Path) -> Option<u64> {
    let mut lines = swaps.lines().skip(1).map(str::split_whitespace);
    let mut line = lines.find(|line| line.clone().next().is_some_and(|name| Path::new(name) == swap))?;
    let used_kib: u64 = line.nth(3)?.parse().ok()?;
    Some(used_kib * 1024 / PAGE_SIZE as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_in_use() {
        let swaps = "Filename Type Size Used Priority\n/a/b file 4096 400 -2\n/a partition 100 8 5\n";
        assert_eq!(used_pages(swaps, Path::new("/a/b")), Some(100));
        assert_eq!(used_pages(swaps, Path::new("/a")), Some(2));
        assert_eq!(used_pages(swaps, Path::new("/c")), None);
    }

    #[test]
    fn what_swapoff_tells() {
        let text = br#"{"pages_to_ram":500,"pages_to_tiers":12,"windows":[1,2,3,4,5]}"#;
        let figures = told(text, Duration::from_millis(500)).expect("figures");
        assert_eq!(
            (&figures["emptied_pages"], &figures["emptied_to_tiers_pages"]),
            (&json!(512), &json!(12))
        );
        assert_eq!(figures["emptied_mb_per_s"], json!(512.0 * 4096.0 / 1e6 / 0.5));
        assert_eq!(
            figures["windows"],
            json!({"pages_1": 1, "pages_2": 2, "pages_4": 3, "pages_8_up": 9})
        );
        assert!(told(b"", Duration::ZERO).is_err());
    }
}
