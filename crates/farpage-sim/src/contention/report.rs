//! The rows as text and as JSON, with the published figures beside them.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{Config, Row, Stage};

/// Name and version of the JSON.
pub const SCHEMA: &str = "farpage.sim.contention.1";
/// CPUs of system C's measurement (8 threads, random touches, working set of twice the RAM).
pub const PUBLISHED_CPUS: usize = 8;
/// Its share of CPU time in lock contention before, and the median software part of a fault before and after, in ns.
pub const PUBLISHED: (f64, u64, u64) = (0.35, 15_000, 4_000);
/// Target P13: the share of fault time that lock waiting stays below, with [`P13_CPUS`] CPUs.
pub const P13_SHARE: f64 = 0.01;
/// See [`P13_SHARE`].
pub const P13_CPUS: usize = 96;

/// Whether P13 is met: by each run with 96 CPUs of what farpage is; none if there was no such run.
#[must_use]
pub fn p13(rows: &[Row]) -> Option<bool> {
    let mut shares = rows
        .iter()
        .filter(|row| row.cpus == P13_CPUS && row.stage == Stage::SwapTable)
        .map(|row| row.lock_share)
        .peekable();
    shares.peek()?;
    Some(shares.all(|share| share < P13_SHARE))
}

/// A table for people.
#[must_use]
pub fn text(config: &Config, rows: &[Row]) -> String {
    let mut out = String::new();
    let given = config.costs.rows().into_iter();
    let costs: Vec<_> = given.map(|(name, ns, _)| format!("{name} {ns}")).collect();
    let _ = writeln!(out, "costs, ns: {}", costs.join(", "));
    let _ = writeln!(
        out,
        "{} pages swapped out, {} faults in each run, seed {}",
        config.pages, config.faults, config.seed
    );
    for &devices in &config.devices {
        let _ = writeln!(out, "\ndevices: {devices}");
        let _ = writeln!(
            out,
            "{:>4}  {:16} {:>7} {:>7} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7}",
            "CPUs", "", "locks", "shared", "p50 us", "p99 us", "mean us", "k/s", "locks", "missed"
        );
        for row in rows.iter().filter(|row| row.devices == devices) {
            let us = row.fault_ns.map(|ns| ns as f64 / 1000.0);
            let _ = writeln!(
                out,
                "{:>4}  {:16} {:>6.2}% {:>6.2}% {:>9.2} {:>9.2} {:>9.2} {:>9.0} {:>7.0} {:>7.2}",
                row.cpus,
                row.stage.name(),
                row.lock_share * 100.0,
                row.shared_share * 100.0,
                us[0],
                us[1],
                us[2],
                row.faults_per_s / 1000.0,
                row.locks_per_1000[0],
                row.locks_per_1000[1],
            );
        }
    }
    out += "\nlocks: share of the software time of faults spent waiting for locks; shared: for words that all CPUs change;\n\
            locks, missed: cluster locks taken and found held, per 1000 faults.\n";
    out += &beside_published(rows);
    out
}

fn beside_published(rows: &[Row]) -> String {
    let mut out = String::new();
    let (share, before, after) = PUBLISHED;
    let of = |stage| {
        let mut same = rows.iter().filter(|row| row.cpus == PUBLISHED_CPUS);
        same.find(|row| row.stage == stage)
    };
    let _ = writeln!(
        out,
        "published (system C, kernel, {PUBLISHED_CPUS} threads): {:.0} % in locks before; median software time {} -> {} us",
        share * 100.0,
        before / 1000,
        after / 1000
    );
    if let (Some(old), Some(new)) = (of(Stage::Baseline), of(Stage::SwapTable)) {
        let us = |row: &Row| row.fault_ns[0] as f64 / 1000.0;
        let _ = writeln!(
            out,
            "here ({PUBLISHED_CPUS} CPUs, {} device): {:.0} % in locks before, {:.2} % after; {:.1} -> {:.1} us",
            old.devices,
            old.lock_share * 100.0,
            new.lock_share * 100.0,
            us(old),
            us(new)
        );
    }
    if let Some(met) = p13(rows) {
        let worst = rows
            .iter()
            .filter(|row| row.cpus == P13_CPUS && row.stage == Stage::SwapTable);
        let worst = worst.map(|row| row.lock_share).fold(0.0, f64::max);
        let _ = writeln!(
            out,
            "P13, lock waiting at {P13_CPUS} CPUs below 1 % of fault time: {:.3} %, {}",
            worst * 100.0,
            if met { "met" } else { "missed" }
        );
    }
    out
}

/// The same for programs.
#[must_use]
pub fn json(config: &Config, rows: &[Row]) -> Value {
    let row = |row: &Row| {
        json!({
            "stage": row.stage.name(),
            "cpus": row.cpus,
            "devices": row.devices,
            "lock_share": row.lock_share,
            "shared_share": row.shared_share,
            "fault_software_p50_ns": row.fault_ns[0],
            "fault_software_p99_ns": row.fault_ns[1],
            "fault_software_mean_ns": row.fault_ns[2],
            "faults_per_s": row.faults_per_s,
            "slot_lock_per_1000_faults": row.locks_per_1000[0],
            "slot_lock_missed_per_1000_faults": row.locks_per_1000[1],
        })
    };
    let (share, before, after) = PUBLISHED;
    json!({
        "schema": SCHEMA,
        "costs_ns": config.costs.json(),
        "pages": config.pages,
        "faults": config.faults,
        "seed": config.seed,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "published": {
            "cpus": PUBLISHED_CPUS,
            "lock_share_before": share,
            "fault_software_p50_before_ns": before,
            "fault_software_p50_after_ns": after,
        },
        "p13_met": p13(rows),
    })
}
