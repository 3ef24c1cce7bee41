//! What a program reads. Everything of one snapshot in one object; a field is never renamed or given another
//! unit within a version of the schema.

use std::ffi::OsString;

use farpage::snapshot::Snapshot;
use farpage_core::stats::{Counter, Source};
use serde_json::{Map, Value, json};

use crate::summary::{Latency, compression_ratio};

pub const SCHEMA: &str = "farpage.stats.1";

/// What is known of a run beyond its memory.
pub struct RunFacts<'a> {
    pub command: &'a [OsString],
    pub exit_code: i32,
}

/// The object of `--stats-json` (with `run`) and of `farpage stat --json` (without).
pub fn stats(snapshot: &Snapshot, run: Option<RunFacts<'_>>) -> Value {
    let mut object = Map::new();
    object.insert("schema".to_owned(), json!(SCHEMA));
    if let Some(run) = run {
        let words: Vec<_> = run.command.iter().map(|word| word.to_string_lossy()).collect();
        object.insert("command".to_owned(), json!(words));
        object.insert("exit_code".to_owned(), json!(run.exit_code));
    }
    let gauges = [
        ("elapsed_ns", snapshot.elapsed_ns),
        ("ram_budget_bytes", snapshot.ram_budget_bytes),
        ("peak_tree_bytes", snapshot.peak_tree_bytes),
        ("peak_metadata_bytes", snapshot.peak_metadata_bytes),
        ("charged_bytes", snapshot.charged_bytes),
        ("resident_bytes", snapshot.resident_bytes),
        ("frames_bytes", snapshot.frames_bytes),
        ("zpool_bytes", snapshot.zpool_bytes),
        ("unmanaged_bytes", snapshot.unmanaged_bytes),
        ("given_bytes", snapshot.given_bytes),
    ];
    object.extend(gauges.map(|(name, value)| (name.to_owned(), json!(value))));
    object.insert("supervisor_pid".to_owned(), json!(snapshot.supervisor_pid));
    object.extend(
        Counter::ALL
            .iter()
            .map(|c| (c.name().to_owned(), json!(snapshot.counter(*c)))),
    );
    object.insert(
        "swap_ra_hit_standard_error".to_owned(),
        json!(snapshot.readahead.standard_error),
    );
    object.insert("readahead_regions".to_owned(), regions(snapshot));
    for (name, counter) in [
        ("slot_lock_per_1000_swpout", Counter::SlotLock),
        ("slot_lock_missed_per_1000_swpout", Counter::SlotLockMissed),
    ] {
        object.insert(name.to_owned(), json!(per_1000_swpout(snapshot, counter)));
    }
    object.insert("readahead_windows".to_owned(), json!(snapshot.windows));
    object.insert("compression_ratio".to_owned(), json!(compression_ratio(snapshot)));
    let of = |source: Source| latency(Latency::of(&snapshot.latency[source as usize]));
    let mut latencies: Map<String, Value> = Source::ALL
        .iter()
        .map(|source| (source.name().to_owned(), of(*source)))
        .collect();
    latencies.insert("all".to_owned(), latency(Latency::of_all(snapshot)));
    object.insert("latency_ns".to_owned(), Value::Object(latencies));
    object.insert("areas".to_owned(), areas(snapshot));
    object.insert("processes".to_owned(), processes(snapshot));
    Value::Object(object)
}

/// Those mappings that most pages were read ahead in.
fn regions(snapshot: &Snapshot) -> Value {
    let region = |region: &farpage::snapshot::RegionReadahead| {
        json!({
            "pid": region.pid,
            "address": region.address,
            "size_bytes": region.size_bytes,
            "swap_ra": region.readahead.pages,
            "swap_ra_hit": region.readahead.hits as u64,
            "swap_ra_hit_standard_error": region.readahead.standard_error,
        })
    };
    snapshot.regions.iter().map(region).collect()
}

/// A counter per 1000 pages that got a slot; none of them: no figure.
fn per_1000_swpout(snapshot: &Snapshot, counter: Counter) -> Option<f64> {
    let written = snapshot.counter(Counter::Pswpout);
    let first_time = written.saturating_sub(snapshot.counter(Counter::Zswpwb));
    let pages = snapshot.counter(Counter::Zswpout) + first_time;
    (pages > 0).then(|| snapshot.counter(counter) as f64 * 1000.0 / pages as f64)
}

fn latency(figures: Latency) -> Value {
    json!({
        "count": figures.count,
        "p50": figures.p50_ns,
        "p90": figures.p90_ns,
        "p99": figures.p99_ns,
        "p99_9": figures.p99_9_ns,
    })
}

fn areas(snapshot: &Snapshot) -> Value {
    let area = |area: &farpage::snapshot::AreaUse| {
        json!({
            "name": area.name,
            "kind": area.kind,
            "size_bytes": area.size_bytes,
            "used_bytes": area.used_bytes,
            "priority": area.priority,
            "closed": area.closed,
            "write_error": area.write_error,
            "read_own_ns": area.read_ns[0],
            "read_median_ns": area.read_ns[1],
            "read_seek_ns": area.read_ns[2],
            "prefetch_depth": area.depth,
            "dear_seeks": area.has_dear_seeks,
        })
    };
    snapshot.areas.iter().map(area).collect()
}

fn processes(snapshot: &Snapshot) -> Value {
    let process = |process: &farpage::snapshot::ProcessUse| {
        json!({
            "pid": process.pid,
            "active": process.active,
            "resident_bytes": process.resident_bytes,
            "frames_bytes": process.frames_bytes,
            "unmanaged_bytes": process.unmanaged_bytes,
        })
    };
    snapshot.processes.iter().map(process).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::tests::sample;

    #[test]
    fn every_promised_field_is_there() {
        let command = ["python3".into(), "sort.py".into()];
        let value = stats(
            &sample(),
            Some(RunFacts {
                command: &command,
                exit_code: 3,
            }),
        );
        for name in [
            "schema",
            "ram_budget_bytes",
            "peak_tree_bytes",
            "peak_metadata_bytes",
            "pgmajfault",
            "pswpin",
            "pswpout",
            "zswpin",
            "zswpout",
            "swpin_zero",
            "swpout_zero",
            "swap_ra",
            "swap_ra_hit",
            "thp_swpout",
            "thp_swpout_fallback",
            "thp_swpin",
            "slot_lock",
            "uffd_move",
            "tlb_flush_call",
            "stall_ns",
            "areas",
            "processes",
        ] {
            assert!(!value[name].is_null(), "{name}");
        }
        assert_eq!(value["schema"], "farpage.stats.1");
        assert_eq!(value["exit_code"], 3);
        assert_eq!(value["command"][1], "sort.py");
        assert_eq!(value["compression_ratio"], 3.0);
        assert_eq!(value["latency_ns"]["all"]["count"], 600);
        assert!(value["latency_ns"]["zero"]["p50"].is_u64());
    }

    #[test]
    fn locks_are_told_per_1000_pages_that_got_a_slot() {
        let mut snapshot = sample();
        snapshot.counters[Counter::Zswpout as usize] = 1500;
        snapshot.counters[Counter::Pswpout as usize] = 1000;
        // Written from the compressed tier: they had their slots already.
        snapshot.counters[Counter::Zswpwb as usize] = 500;
        snapshot.counters[Counter::SlotLock as usize] = 300;
        snapshot.counters[Counter::SlotLockMissed as usize] = 1;
        let value = stats(&snapshot, None);
        assert_eq!(value["slot_lock_per_1000_swpout"], 150.0);
        assert_eq!(value["slot_lock_missed_per_1000_swpout"], 0.5);
    }

    #[test]
    fn every_counter_has_its_own_name() {
        let value = stats(&sample(), None);
        assert!(Counter::ALL.iter().all(|counter| value[counter.name()].is_u64()));
        assert!(value["exit_code"].is_null());
        // 21 further keys: a counter that took the name of a gauge would be missing here.
        assert_eq!(value.as_object().map(Map::len), Some(Counter::COUNT + 21));
    }
}
