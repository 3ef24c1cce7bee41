//! The rows as text and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{Kind, Outcome, Row};

/// Name and version of the JSON.
pub const SCHEMA: &str = "farpage.sim.reclaim.1";

/// Misses beyond the first of each unit, which no policy can help.
fn beyond_first(misses: u64, row: &Row) -> u64 {
    misses.saturating_sub(u64::from(row.distinct))
}

/// A table for people.
#[must_use]
pub fn text(rows: &[Row]) -> String {
    let mut out = String::new();
    let _ = write!(
        out,
        "{:12} {:>8} {:>7} {:>6} {:>7}",
        "trace", "touches", "units", "fit", "min"
    );
    for kind in Kind::ALL {
        let _ = write!(out, " {:>15}", kind.name());
    }
    out.push('\n');
    for row in rows {
        let percent = |misses: u64| misses as f64 * 100.0 / row.touches.max(1) as f64;
        let _ = write!(
            out,
            "{:12} {:>8} {:>7} {:>6} {:>6.2}%",
            row.trace,
            row.touches,
            row.distinct,
            format!("1/{}", row.part),
            percent(row.min_misses)
        );
        for (_, seen, blind) in &row.policies {
            let _ = write!(
                out,
                " {:>6.2}%/{:>6.2}%",
                percent(seen.misses),
                percent(blind.misses)
            );
        }
        out.push('\n');
    }
    out += "miss ratio of a policy that hears of every touch / of faults only (with the swap cache there is no difference)\n";
    out += &means(rows);
    out
}

/// One line per measure: what all traces say of each policy.
fn means(rows: &[Row]) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: &dyn Fn(Kind) -> String| {
        let _ = write!(out, "{name:44}");
        for kind in Kind::ALL {
            let _ = write!(out, " {:>15}", value(kind));
        }
        out.push('\n');
    };
    let of = |row: &Row, kind: Kind| row.policies.iter().find(|p| p.0 == kind).map(|p| (p.1, p.2));
    let mut parts: Vec<f64> = rows.iter().map(|row| row.part).collect();
    parts.sort_by(f64::total_cmp);
    parts.dedup();
    for part in parts {
        let name = format!("misses / min's, geometric mean, 1/{part}");
        line(&name, &|kind| {
            let mean = |pick: fn((Outcome, Outcome)) -> Outcome| {
                let ratios = rows.iter().filter(|row| row.part == part);
                let ratios: Vec<f64> = ratios
                    .filter_map(|row| Some(pick(of(row, kind)?).misses as f64 / row.min_misses.max(1) as f64))
                    .collect();
                (ratios.iter().map(|r| r.ln()).sum::<f64>() / ratios.len().max(1) as f64).exp()
            };
            format!("{:.2}/{:.2}", mean(|both| both.0), mean(|both| both.1))
        });
    }
    let sum = |kind: Kind, of_outcome: fn(&Outcome) -> u64| -> u64 {
        let seen = rows.iter().filter_map(|row| of(row, kind));
        seen.map(|(seen, _)| of_outcome(&seen)).sum()
    };
    let touches: u64 = rows.iter().map(|row| row.touches).sum();
    line("CPU, ns per touch with its replay", &|kind| {
        format!("{:.1}", sum(kind, |o| o.ns) as f64 / touches.max(1) as f64)
    });
    line("units looked at per miss", &|kind| {
        let misses = sum(kind, |o| o.misses).max(1);
        format!("{:.2}", sum(kind, |o| o.scanned) as f64 / misses as f64)
    });
    line("faults on units still in RAM, per miss", &|kind| {
        let misses = sum(kind, |o| o.misses).max(1);
        format!("{:.2}", sum(kind, |o| o.soft) as f64 / misses as f64)
    });
    line("refaults nearer than the capacity", &|kind| {
        let refaults = sum(kind, |o| o.refaults).max(1);
        format!("{:.0} %", sum(kind, |o| o.near) as f64 * 100.0 / refaults as f64)
    });
    out
}

/// The same for programs.
#[must_use]
pub fn json(rows: &[Row], pages_per_unit: u32) -> Value {
    let outcome = |row: &Row, outcome: &Outcome| {
        json!({
            "misses": outcome.misses,
            "misses_beyond_first": beyond_first(outcome.misses, row),
            "refaults": outcome.refaults,
            "refaults_near": outcome.near,
            "soft_faults": outcome.soft,
            "scanned": outcome.scanned,
            "ns": outcome.ns,
        })
    };
    let row = |row: &Row| {
        let policies = row.policies.iter();
        let policies: Vec<Value> = policies
            .map(|(kind, seen, blind)| {
                json!({"policy": kind.name(), "sees_touches": outcome(row, seen), "sees_faults": outcome(row, blind)})
            })
            .collect();
        json!({
            "trace": row.trace,
            "touches": row.touches,
            "units": row.distinct,
            "budget_part": row.part,
            "capacity_units": row.capacity,
            "min_misses": row.min_misses,
            "min_misses_beyond_first": beyond_first(row.min_misses, row),
            "policies": policies,
        })
    };
    json!({
        "schema": SCHEMA,
        "pages_per_unit": pages_per_unit,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}
