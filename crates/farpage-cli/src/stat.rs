//! `farpage stat` and the lines of `farpage run --stats`: a running tree in columns, as vmstat does.

use std::thread;
use std::time::{Duration, Instant};

use farpage::snapshot::{self, Snapshot, Snapshotter};
use farpage::trees;
use farpage_core::stats::{Counter, Source};

use crate::args::StatArgs;
use crate::{Failure, json, print};

/// Rows between two headers.
const HEADER_ROWS: u32 = 20;
const PAGE_KIB: f64 = 4.0;
/// A first number up to this is an interval if no tree has it as its pid.
const INTERVAL_MAX: f64 = 60.0;
const HEADER: &str = "\
----------------- memory MiB ----------------- --- swap-in KiB/s --- -- swap-out KiB/s --- ---- faults/s ----
 budget charged  resid  frames   zpool   other  si-zpool    si-file   so-zpool    so-file    minor   major stl%";

/// What the row before said, as far as rates need it. All zero is the start of the run.
struct Before {
    elapsed_ns: u64,
    minor: u64,
    counters: [u64; Counter::COUNT],
}

impl Default for Before {
    fn default() -> Self {
        Self {
            elapsed_ns: 0,
            minor: 0,
            counters: [0; Counter::COUNT],
        }
    }
}

/// Turns snapshots into rows. Rates are since the row before, in the first row since the start of the run.
#[derive(Default)]
pub struct Columns {
    before: Before,
    rows: u32,
}

impl Columns {
    /// One row, with the header above it when it is due.
    pub fn row(&mut self, now: &Snapshot) -> String {
        let header = if self.rows.is_multiple_of(HEADER_ROWS) {
            format!("{HEADER}\n")
        } else {
            String::new()
        };
        self.rows = self.rows.wrapping_add(1);
        let row = self.figures(now);
        self.before = Before {
            elapsed_ns: now.elapsed_ns,
            minor: minor(now),
            counters: now.counters,
        };
        header + &row
    }

    fn figures(&self, now: &Snapshot) -> String {
        let seconds = now.elapsed_ns.saturating_sub(self.before.elapsed_ns).max(1) as f64 / 1e9;
        let rate = |counter: Counter| {
            now.counter(counter)
                .saturating_sub(self.before.counters[counter as usize]) as f64
                / seconds
        };
        let mib = |bytes: u64| bytes >> 20;
        format!(
            "{:>7} {:>7} {:>6} {:>7} {:>7} {:>7} {:>9.0} {:>10.0} {:>10.0} {:>10.0} {:>8.0} {:>7.0} {:>4.0}",
            mib(now.ram_budget_bytes),
            mib(now.charged_bytes),
            mib(now.resident_bytes),
            mib(now.frames_bytes),
            mib(now.zpool_bytes),
            mib(now.unmanaged_bytes),
            rate(Counter::Zswpin) * PAGE_KIB,
            rate(Counter::Pswpin) * PAGE_KIB,
            rate(Counter::Zswpout) * PAGE_KIB,
            rate(Counter::Pswpout) * PAGE_KIB,
            minor(now).saturating_sub(self.before.minor) as f64 / seconds,
            rate(Counter::Pgmajfault),
            rate(Counter::StallNs) / 1e7,
        )
    }
}

/// Faults that were answered without decompressing or reading.
fn minor(now: &Snapshot) -> u64 {
    let of = |source: Source| now.latency[source as usize].iter().sum::<u64>();
    of(Source::Zero) + of(Source::Cached)
}

/// What the numbers on the command line mean.
#[derive(Debug, PartialEq)]
struct Plan {
    pid: Option<i32>,
    interval: Option<Duration>,
    /// Samples to be shown; `None`: until the tree ends.
    count: Option<u64>,
}

/// Shows a tree; ends with the tree, after the count, or when the reader has gone.
pub fn stat(args: &StatArgs) -> Result<u8, Failure> {
    let plan = plan(&args.values, |pid| trees::supervisor_of(pid).is_some())?;
    let supervisor_pid = choose(plan.pid, trees::running)?;
    let tree = snapshot::attach(supervisor_pid).map_err(|why| Failure::new(1, why))?;
    show(&tree, &plan, args.json);
    Ok(0)
}

fn show(tree: &Snapshotter, plan: &Plan, as_json: bool) {
    let mut columns = Columns::default();
    let start = Instant::now();
    let mut shown = 0;
    while let Some(sample) = tree.snapshot() {
        let text = if as_json {
            json::stats(&sample, None).to_string()
        } else {
            columns.row(&sample)
        };
        shown += 1;
        let Some(interval) = plan
            .interval
            .filter(|_| plan.count.is_none_or(|count| shown < count))
        else {
            let _ = print(&text);
            return;
        };
        if !print(&text) {
            return;
        }
        // By the clock, not by the sleep before: the rows do not drift.
        let due = interval.saturating_mul(u32::try_from(shown).unwrap_or(u32::MAX));
        thread::sleep(due.saturating_sub(start.elapsed()));
    }
}

/// Tells pid, interval and count apart: the first number is a pid if a tree has it.
fn plan(values: &[f64], is_tree: impl Fn(i32) -> bool) -> Result<Plan, Failure> {
    let as_pid = |value: f64| (value.fract() == 0.0 && value <= f64::from(i32::MAX)).then_some(value as i32);
    let first_pid = values
        .first()
        .and_then(|value| as_pid(*value))
        .filter(|pid| is_tree(*pid));
    let (pid, rest) = match (first_pid, values) {
        (Some(pid), [_, rest @ ..]) => (Some(pid), rest),
        (None, [number] | [number, _]) if *number > INTERVAL_MAX => return Err(no_tree(*number)),
        (None, [number, _, _]) => return Err(no_tree(*number)),
        (_, rest) => (None, rest),
    };
    let interval = match rest.first().map(|seconds| Duration::try_from_secs_f64(*seconds)) {
        Some(Err(_)) => return Err(Failure::new(1, "the interval is too long; give seconds")),
        Some(Ok(interval)) => Some(interval),
        None => None,
    };
    match rest {
        [_, count] if count.fract() != 0.0 => Err(Failure::new(1, "the count is a whole number; give one")),
        [_, count] => Ok(Plan {
            pid,
            interval,
            count: Some(*count as u64),
        }),
        [_, _, _, ..] => Err(Failure::new(1, "too many numbers; see farpage stat --help")),
        _ => Ok(Plan {
            pid,
            interval,
            count: None,
        }),
    }
}

fn no_tree(pid: f64) -> Failure {
    Failure::new(
        1,
        format!(
            "no running tree of yours has process {pid}; give that of a farpage run or of a process in its tree"
        ),
    )
}

/// The supervisor's pid of the tree that is meant; `trees` tells which there are.
pub fn choose(pid: Option<i32>, trees: impl FnOnce() -> Vec<i32>) -> Result<i32, Failure> {
    if let Some(pid) = pid {
        return trees::supervisor_of(pid).ok_or_else(|| no_tree(f64::from(pid)));
    }
    match trees()[..] {
        [only] => Ok(only),
        [] => Err(Failure::new(
            1,
            "no tree of yours is running that this build of farpage started; start one with farpage run",
        )),
        ref many => {
            let pids: Vec<_> = many.iter().map(i32::to_string).collect();
            Err(Failure::new(
                1,
                format!("several trees are running; name one: {}", pids.join(" ")),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::tests::{empty, sample};

    fn planned(values: &[f64]) -> Result<Plan, String> {
        plan(values, |pid| pid == 4711 || pid == 7).map_err(|failure| failure.text)
    }

    #[test]
    fn numbers_are_told_apart() {
        let plan = |pid, seconds: Option<f64>, count| {
            Ok(Plan {
                pid,
                interval: seconds.map(Duration::from_secs_f64),
                count,
            })
        };
        assert_eq!(planned(&[]), plan(None, None, None));
        assert_eq!(planned(&[4711.0]), plan(Some(4711), None, None));
        assert_eq!(planned(&[4711.0, 0.5]), plan(Some(4711), Some(0.5), None));
        assert_eq!(planned(&[4711.0, 1.0, 5.0]), plan(Some(4711), Some(1.0), Some(5)));
        assert_eq!(planned(&[2.0, 10.0]), plan(None, Some(2.0), Some(10)));
        assert_eq!(planned(&[2.0]), plan(None, Some(2.0), None));
        assert!(planned(&[4712.0]).is_err());
        assert!(planned(&[4712.0, 1.0]).is_err());
        assert!(planned(&[4712.0, 1.0, 5.0]).is_err());
        assert!(planned(&[4711.0, 1.0, 5.5]).is_err());
    }

    #[test]
    fn one_tree_is_chosen_and_several_are_listed() {
        assert_eq!(choose(None, || vec![5]).expect("the only one"), 5);
        // A named one is asked for itself, not looked up among the others.
        assert!(choose(Some(0), || vec![0]).is_err(), "no process has that number");
        assert!(
            choose(None, Vec::new)
                .expect_err("none")
                .text
                .contains("farpage run")
        );
        assert!(
            choose(None, || vec![5, 6])
                .expect_err("two")
                .text
                .ends_with("5 6")
        );
    }

    #[test]
    fn header_stands_above_every_twentieth_row() {
        let mut columns = Columns::default();
        let rows: Vec<_> = (0..41).map(|_| columns.row(&empty())).collect();
        let headed: Vec<_> = (0..41).filter(|at| rows[*at].contains("budget")).collect();
        assert_eq!(headed, [0, 20, 40]);
    }

    #[test]
    fn rates_are_since_the_row_before() {
        let mut columns = Columns::default();
        let mut now = sample();
        let width = |row: &str| row.lines().last().map(str::len);
        let first = columns.row(&now);
        assert_eq!(width(&first), first.lines().nth(1).map(str::len), "{first}");
        now.elapsed_ns += 1_000_000_000;
        now.counters[Counter::Pswpin as usize] += 256;
        now.counters[Counter::Pgmajfault as usize] += 300;
        now.counters[Counter::StallNs as usize] += 250_000_000;
        let second = columns.row(&now);
        let figures: Vec<_> = second.split_whitespace().collect();
        assert_eq!(
            figures,
            [
                "384", "300", "200", "20", "60", "20", "0", "1024", "0", "0", "0", "300", "25"
            ]
        );
    }
}
