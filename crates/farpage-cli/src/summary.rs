//! What a person reads: the summary at the end of a run, and the figures it shares with the JSON output.

use farpage::snapshot::Snapshot;
use farpage_core::stats::{Counter, Histogram, Source};
use farpage_core::units::format_size;

/// The name of a source in words for people.
fn words(source: Source) -> &'static str {
    match source {
        Source::Cached => "swap cache",
        _ => source.name(),
    }
}

/// Fault latencies of one source or of all: how many, and the nanoseconds that a part of them kept to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    pub count: u64,
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub p99_9_ns: u64,
}

impl Latency {
    pub fn of(buckets: &[u64]) -> Self {
        let count = buckets.iter().sum();
        if count == 0 {
            return Self::default();
        }
        let at = |per_cent| Histogram::percentile(buckets, per_cent).unwrap_or(0);
        Self {
            count,
            p50_ns: at(50.0),
            p90_ns: at(90.0),
            p99_ns: at(99.0),
            p99_9_ns: at(99.9),
        }
    }

    pub fn of_all(snapshot: &Snapshot) -> Self {
        let longest = snapshot.latency.iter().map(Vec::len).max().unwrap_or(0);
        let sums = (0..longest).map(|at| {
            snapshot
                .latency
                .iter()
                .filter_map(|buckets| buckets.get(at))
                .sum()
        });
        Self::of(&sums.collect::<Vec<u64>>())
    }
}

/// Bytes before compression per byte after it; `None` if nothing was compressed.
pub fn compression_ratio(snapshot: &Snapshot) -> Option<f64> {
    let (before, after) = (
        snapshot.counter(Counter::CompressedBytesIn),
        snapshot.counter(Counter::CompressedBytesOut),
    );
    (after > 0).then(|| before as f64 / after as f64)
}

/// The summary, line by line, without the `farpage: ` in front.
pub fn lines(snapshot: &Snapshot) -> Vec<String> {
    let count = |counter| snapshot.counter(counter);
    let mut lines = vec![format!(
        "budget {}, peak of the tree {} (farpage's own books {}), {}",
        format_size(snapshot.ram_budget_bytes),
        format_size(snapshot.peak_tree_bytes),
        format_size(snapshot.peak_metadata_bytes),
        duration(snapshot.elapsed_ns)
    )];
    let all = Latency::of_all(snapshot);
    let out = [Counter::Pswpout, Counter::Zswpout, Counter::SwpoutZero].map(count);
    let is_too_much = snapshot.peak_tree_bytes > snapshot.ram_budget_bytes;
    if out.iter().sum::<u64>() == 0 && (is_too_much || all.count == 0) {
        lines.push(if is_too_much {
            "nothing could be swapped out: what was too much is not managed (README, Limits)".to_owned()
        } else {
            "it fitted: nothing was swapped out".to_owned()
        });
        lines.extend(alarms(snapshot));
        return lines;
    }
    lines.push(latency_header());
    for source in Source::ALL {
        lines.push(latency_line(
            words(source),
            Latency::of(&snapshot.latency[source as usize]),
        ));
    }
    lines.push(latency_line("all", all));
    lines.push(format!(
        "swap-out: zswpout {}, pswpout {}, swpout_zero {}, swpout_unchanged {}; {} in {} writes",
        count(Counter::Zswpout),
        count(Counter::Pswpout),
        count(Counter::SwpoutZero),
        count(Counter::SwpoutUnchanged),
        format_size(count(Counter::FileWriteBytes)),
        count(Counter::FileWrite)
    ));
    lines.push(format!(
        "swap-in:  zswpin {}, pswpin {}, swpin_zero {}; {} in {} reads; swap_ra {}, swap_ra_hit {}",
        count(Counter::Zswpin),
        count(Counter::Pswpin),
        count(Counter::SwpinZero),
        format_size(count(Counter::FileReadBytes)),
        count(Counter::FileRead),
        count(Counter::SwapRa),
        count(Counter::SwapRaHit)
    ));
    lines.push(compression_and_stall(snapshot));
    lines.extend(alarms(snapshot));
    lines
}

fn compression_and_stall(snapshot: &Snapshot) -> String {
    let stall_ns = snapshot.counter(Counter::StallNs);
    let stalled = format!(
        "stalled {} ({:.1}%)",
        duration(stall_ns),
        percent(stall_ns, snapshot.elapsed_ns)
    );
    match compression_ratio(snapshot) {
        Some(ratio) => format!(
            "compressed {} to {} ({ratio:.2}:1); {stalled}",
            format_size(snapshot.counter(Counter::CompressedBytesIn)),
            format_size(snapshot.counter(Counter::CompressedBytesOut))
        ),
        None => format!("nothing compressed; {stalled}"),
    }
}

/// Lines that are there only when something went wrong.
fn alarms(snapshot: &Snapshot) -> Vec<String> {
    let alarms = [
        (
            Counter::CrcErrors,
            "pages came back damaged from swap and were not delivered; check the device",
        ),
        (
            Counter::LimitOverrun,
            "times the budget was overrun; give it more with --ram",
        ),
    ];
    let counted = alarms.map(|(counter, words)| (snapshot.counter(counter), words));
    counted
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, words)| format!("{count} {words}"))
        .collect()
}

fn latency_header() -> String {
    format!(
        "{:<13} {:>12} {:>9} {:>9} {:>9} {:>9}",
        "faults", "count", "p50", "p90", "p99", "p99.9"
    )
}

fn latency_line(words: &str, latency: Latency) -> String {
    let time = |ns| {
        if latency.count == 0 {
            "-".to_owned()
        } else {
            duration(ns)
        }
    };
    format!(
        "  {words:<11} {:>12} {:>9} {:>9} {:>9} {:>9}",
        latency.count,
        time(latency.p50_ns),
        time(latency.p90_ns),
        time(latency.p99_ns),
        time(latency.p99_9_ns)
    )
}

/// A time with three digits or so and its unit.
pub fn duration(ns: u64) -> String {
    let value = ns as f64;
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (value / 1e3, "us"),
        1_000_000..1_000_000_000 => (value / 1e6, "ms"),
        _ => (value / 1e9, "s"),
    };
    if value < 100.0 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 * 100.0 / whole as f64
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use farpage_core::readahead::hits::Estimate;

    /// A run with some of everything.
    pub fn sample() -> Snapshot {
        let mut buckets = [const { Vec::new() }; 4];
        for (at, bucket) in buckets.iter_mut().enumerate() {
            *bucket = vec![0; 64];
            bucket[10] = 100 * at as u64;
        }
        let mut snapshot = empty();
        snapshot.latency = buckets;
        snapshot.counters = [3; Counter::COUNT];
        snapshot.counters[Counter::CrcErrors as usize] = 0;
        snapshot.counters[Counter::LimitOverrun as usize] = 0;
        snapshot.counters[Counter::CompressedBytesIn as usize] = 3 << 20;
        snapshot.counters[Counter::CompressedBytesOut as usize] = 1 << 20;
        snapshot.counters[Counter::StallNs as usize] = 500_000_000;
        snapshot
    }

    /// A run in which nothing happened.
    pub fn empty() -> Snapshot {
        Snapshot {
            ram_budget_bytes: 384 << 20,
            peak_tree_bytes: 380 << 20,
            peak_metadata_bytes: 1 << 20,
            charged_bytes: 300 << 20,
            resident_bytes: 200 << 20,
            frames_bytes: 20 << 20,
            zpool_bytes: 60 << 20,
            unmanaged_bytes: 20 << 20,
            given_bytes: 0,
            counters: [0; Counter::COUNT],
            readahead: Estimate {
                pages: 0,
                hits: 0.0,
                standard_error: 0.0,
            },
            regions: Vec::new(),
            windows: Vec::new(),
            latency: [const { Vec::new() }; 4],
            areas: Vec::new(),
            processes: Vec::new(),
            elapsed_ns: 2_000_000_000,
            supervisor_pid: 42,
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration(0), "0 ns");
        assert_eq!(duration(999), "999 ns");
        assert_eq!(duration(5_540), "5.5 us");
        assert_eq!(duration(123_456), "123 us");
        assert_eq!(duration(1_000_000), "1.0 ms");
        assert_eq!(duration(2_500_000_000), "2.5 s");
    }

    #[test]
    fn summary_of_a_run_that_swapped() {
        let lines = lines(&sample());
        assert_eq!(lines.len(), 10, "{lines:#?}");
        assert!(lines[0].starts_with("budget "));
        assert!(lines[2].contains("zero") && lines[2].ends_with('-'));
        assert!(lines[6].contains(" 600 "), "{}", lines[6]);
        assert!(
            lines[9].contains("(3.00:1); stalled 500 ms (25.0%)"),
            "{}",
            lines[9]
        );
        assert!(lines.iter().all(|line| line.len() <= 100));
    }

    #[test]
    fn summary_of_a_run_that_fitted() {
        let fitted = lines(&empty());
        assert!(fitted.len() == 2 && fitted[1].contains("it fitted"), "{fitted:?}");
        let mut over = empty();
        over.peak_tree_bytes = over.ram_budget_bytes + 1;
        assert!(lines(&over)[1].contains("not managed"));
        let mut damaged = empty();
        damaged.counters[Counter::CrcErrors as usize] = 1;
        assert!(lines(&damaged)[2].contains("damaged"));
    }

    #[test]
    fn ratio_needs_something_compressed() {
        assert_eq!(compression_ratio(&empty()), None);
        assert_eq!(compression_ratio(&sample()), Some(3.0));
    }

    #[test]
    fn latency_of_all_adds_the_sources() {
        assert_eq!(Latency::of_all(&sample()).count, 600);
        assert_eq!(Latency::of_all(&empty()), Latency::default());
    }
}
