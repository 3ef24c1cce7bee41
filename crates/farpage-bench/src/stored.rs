//! Reports as they are stored by `--json`, those of several runs side by side: what they measured alike stands together.

use std::fs;
use std::path::Path;

use farpage_core::units::format_size;
use serde_json::Value;

use crate::figures::{figure, items, text};

/// Of the object of `--json`.
pub const SCHEMA: &str = "farpage.bench.1";

/// # Errors
/// One line, if the file can't be read or is no report.
pub fn read(path: &Path) -> Result<Value, String> {
    let told = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let content = fs::read_to_string(path).map_err(|error| told(&error))?;
    let report: Value = serde_json::from_str(&content).map_err(|error| told(&error))?;
    if text(&report, "schema") != SCHEMA {
        return Err(told(
            &"no report of farpage bench --json, or one of another version",
        ));
    }
    Ok(report)
}

/// Rounds of a report: what its comparisons had, the fewest to the most of them.
#[must_use]
pub fn rounds(report: &Value) -> String {
    let of = |comparison: &Value| {
        let rounds = items(&comparison["runs"])
            .iter()
            .filter_map(|run| run["round"].as_u64());
        rounds.max().map(|last| last + 1)
    };
    let comparisons = items(&report["comparisons"]);
    let least = comparisons.iter().filter_map(of).min();
    let most = comparisons.iter().filter_map(of).max();
    match least.zip(most) {
        Some((least, most)) if least < most => format!("{least} to {most}"),
        Some((_, most)) => most.to_string(),
        None => "none".to_owned(),
    }
}

/// One comparison, in every report that has it.
#[derive(Debug)]
pub struct Group<'a> {
    /// Index of the report, and the comparison there. Never empty.
    pub runs: Vec<(usize, &'a Value)>,
}

/// All comparisons in the order in which they first appear. Alike are those of the same program with the same sizes and sides.
#[must_use]
pub fn groups(reports: &[Value]) -> Vec<Group<'_>> {
    let alike = |one: &Value, other: &Value| {
        ["title", "ram_bytes", "data_bytes", "sides"]
            .iter()
            .all(|key| one[key] == other[key])
    };
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (number, report) in reports.iter().enumerate() {
        for comparison in items(&report["comparisons"]) {
            match groups.iter_mut().find(|group| alike(group.first(), comparison)) {
                Some(group) => group.runs.push((number, comparison)),
                None => groups.push(Group {
                    runs: vec![(number, comparison)],
                }),
            }
        }
    }
    groups
}

impl<'a> Group<'a> {
    #[must_use]
    pub fn first(&self) -> &'a Value {
        self.runs[0].1
    }

    /// Program, kind of swap and RAM; what of it is compared, if that is a system.
    #[must_use]
    pub fn name(&self) -> String {
        let first = self.first();
        let gain = first["gain_of"]
            .as_str()
            .map_or(String::new(), |system| format!("what {system} is worth: "));
        let swap = match text(first, "backing") {
            "compressed" => ", compressed RAM",
            "memory" => ", file in RAM",
            _ if items(&first["sides"]).iter().any(|side| side == "kernel") => ", swap file",
            _ => "",
        };
        let ram = match first["ram_bytes"].as_u64().unwrap_or(0) {
            0 => String::new(),
            bytes => format!(", {}", format_size(bytes)),
        };
        format!("{gain}{}{swap}{ram}", text(first, "workload"))
    }

    /// Its rows, each with what every run has of it.
    #[must_use]
    pub fn lines(&self) -> Vec<Line<'a>> {
        let alike = |one: &Value, other: &Value| {
            ["measure", "side", "against"]
                .iter()
                .all(|key| one[key] == other[key])
        };
        let mut lines: Vec<Line<'a>> = Vec::new();
        for (_, run) in &self.runs {
            for row in items(&run["rows"]) {
                if !lines.iter().any(|line| alike(line.any, row)) {
                    let cells = self
                        .runs
                        .iter()
                        .map(|(_, run)| items(&run["rows"]).iter().find(|other| alike(row, other)));
                    lines.push(Line {
                        cells: cells.collect(),
                        any: row,
                    });
                }
            }
        }
        lines
    }
}

/// One row in every run of its group.
#[derive(Debug)]
pub struct Line<'a> {
    pub cells: Vec<Option<&'a Value>>,
    any: &'a Value,
}

impl<'a> Line<'a> {
    /// What is the same in every run.
    #[must_use]
    pub fn text(&self, key: &str) -> &'a str {
        text(self.any, key)
    }

    /// The median of `part`, run by run.
    #[must_use]
    pub fn medians(&self, part: &str) -> Vec<f64> {
        let median = |cell: &&Value| figure(cell, &format!("{part}.median"));
        self.cells.iter().flatten().filter_map(median).collect()
    }

    /// The target, how many runs met it, and how many it was judged in.
    #[must_use]
    pub fn target(&self) -> Option<(&'a str, usize, usize)> {
        let cells = self.cells.iter().flatten();
        let judged: Vec<_> = cells
            .filter_map(|cell| Some((text(cell, "target"), cell["met"].as_bool()?)))
            .collect();
        let met = judged.iter().filter(|(_, met)| *met).count();
        judged.first().map(|(target, _)| (*target, met, judged.len()))
    }

    #[must_use]
    pub fn is_missed(&self) -> bool {
        self.target().is_some_and(|(_, met, of)| met < of)
    }

    /// Whether a ratio of it is worse than the other side's.
    #[must_use]
    pub fn is_worse(&self, ratio: f64) -> bool {
        is_worse(self.text("words"), ratio)
    }

    /// Whether farpage, as it is meant to run, is behind the kernel in a run.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        let beside_kernel = self.text("against") == "kernel" && self.any["aimed"] != false;
        beside_kernel
            && self
                .medians("ratio")
                .into_iter()
                .any(|ratio| self.is_worse(ratio))
    }

    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_missed() || self.is_behind()
    }
}

/// A ratio so near to 1 is shown as 1.
const TIE: f64 = 0.0005;

/// Whether a ratio of a measure is worse than the other side's.
#[must_use]
pub fn is_worse(words: &str, ratio: f64) -> bool {
    match Better::of(words) {
        Some(Better::More) => ratio < 1.0 - TIE,
        Some(Better::Less) => ratio > 1.0 + TIE,
        None => false,
    }
}

/// What is good of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    More,
    Less,
}

impl Better {
    /// By the unit at the end of a measure's words: of a rate and of hits more is better, of a time and of waiting less; of a count
    /// neither.
    #[must_use]
    pub fn of(words: &str) -> Option<Self> {
        match words.rsplit_once(", ")?.1 {
            "MB/s" | "KB/s" | "per s" | "per s and CPU" | "%" => Some(Self::More),
            "s" | "ms" | "us" | "ns" | "% in locks" | "CPU s per GB" | "MiB" => Some(Self::Less),
            _ => None,
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::names::{Backing, Workload};
    use crate::targets::measures;
    use serde_json::json;

    /// A report with one row.
    pub fn report(words: &str, ratio: f64, met: Option<bool>) -> Value {
        let spread = |value: f64| json!({"median": value, "lowest": value / 2.0, "highest": value * 2.0});
        json!({
            "schema": SCHEMA,
            "build": "commit abc",
            "machine": {"date": "2026-11-24 10:00 UTC", "cpu": "x"},
            "command": ["/usr/bin/farpage", "bench", "random", "--build", "commit abc"],
            "rounds": 3,
            "notes": ["a note | with a bar"],
            "comparisons": [{
                "title": "random, swap file: touches", "workload": "random", "backing": "file",
                "ram_bytes": 64 << 20, "data_bytes": 256 << 20, "sides": ["kernel", "farpage"],
                "failures": [], "published": null, "runs": [{"round": 0}, {"round": 1}, {"round": 2}],
                "rows": [{
                    "measure": "t1.p50_us", "words": words, "side": "farpage", "against": "kernel", "aimed": true,
                    "ratio": spread(ratio), "ours": spread(ratio * 10.0), "theirs": spread(10.0),
                    "target": met.map(|_| "P5 <= 0.6"), "met": met,
                }],
            }],
        })
    }

    /// The tour has fewer rounds of what takes long; its reports said that it had had three of all.
    #[test]
    fn rounds_are_those_that_were_run() {
        let comparison = |rounds: u64| json!({"runs": (0..rounds).map(|round| json!({"round": round})).collect::<Vec<_>>()});
        let of = |rounds: &[u64]| {
            let comparisons: Vec<_> = rounds.iter().map(|rounds| comparison(*rounds)).collect();
            super::rounds(&json!({"rounds": 3, "comparisons": comparisons}))
        };
        assert_eq!(of(&[3, 1, 2]), "1 to 3");
        assert_eq!(of(&[5, 5]), "5");
        assert_eq!(of(&[]), "none");
    }

    #[test]
    fn runs_stand_side_by_side() {
        let reports = [
            report("50th, us", 0.5, Some(true)),
            report("50th, us", 0.7, Some(false)),
        ];
        let groups = groups(&reports);
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].name(), "random, swap file, 64 MiB");
        let lines = groups[0].lines();
        assert_eq!(lines[0].medians("ratio"), [0.5, 0.7]);
        assert_eq!(lines[0].target(), Some(("P5 <= 0.6", 1, 2)));
        assert!(lines[0].is_missed() && lines[0].is_lost() && !lines[0].is_behind());
    }

    /// A side that was killed in the first run left its target without a name.
    #[test]
    fn a_run_without_the_other_side_judges_nothing() {
        let reports = [report("50th, us", 0.5, None), report("50th, us", 0.5, Some(true))];
        assert_eq!(groups(&reports)[0].lines()[0].target(), Some(("P5 <= 0.6", 1, 1)));
    }

    #[test]
    fn the_core_alone_has_no_size() {
        let mut reports = [report("model, 96 CPUs, % in locks", 0.5, Some(true))];
        let one = &mut reports[0]["comparisons"][0];
        (one["workload"], one["gain_of"], one["ram_bytes"]) = (json!("slots"), json!("C"), json!(0));
        one["sides"] = json!(["farpage", "farpage lock per device"]);
        let groups = groups(&reports);
        assert_eq!(groups[0].name(), "what C is worth: slots");
        assert!(groups[0].lines()[0].is_worse(1.5));
    }

    #[test]
    fn another_size_is_another_comparison() {
        let mut reports = [report("50th, us", 0.5, None), report("50th, us", 0.7, None)];
        reports[1]["comparisons"][0]["ram_bytes"] = json!(1);
        assert_eq!(groups(&reports).len(), 2);
    }

    #[test]
    fn behind_the_kernel_is_lost_either_way() {
        let lost = |words: &str, ratio: f64| groups(&[report(words, ratio, None)])[0].lines()[0].is_lost();
        assert!(lost("50th, us", 1.1) && !lost("50th, us", 0.9));
        assert!(lost("all, per s", 0.9) && !lost("all, per s", 1.1));
        assert!(!lost("thp_swpout", 0.9) && !lost("thp_swpout", 1.1));
        let mut repeated = [report("50th, us", 1.1, None)];
        repeated[0]["comparisons"][0]["rows"][0]["aimed"] = json!(false);
        assert!(!groups(&repeated)[0].lines()[0].is_lost());
    }

    /// A ratio of 0.3875 once stood as 0.387 in the report of a run, and as 0.388 in that made of what was stored.
    #[test]
    fn numbers_read_back_as_they_were() {
        for i in 1..10_000_u64 {
            let number = (i * 7_919) as f64 / (i * i + 3) as f64;
            let stored = json!({ "ratio": number }).to_string();
            let back: Value = serde_json::from_str(&stored).expect("JSON");
            assert_eq!(back["ratio"].as_f64(), Some(number), "{stored}");
        }
    }

    /// A measure with a unit that nobody knows would never count as lost.
    #[test]
    fn every_unit_is_known() {
        let counts = ["AnonHugePages before, kB", "AnonHugePages after, kB"];
        for backing in [Backing::File, Backing::Compressed, Backing::Memory] {
            let all = Workload::ALL.into_iter().chain(Workload::CORE);
            for measure in all.flat_map(|one| measures(one, backing)) {
                let has_unit = measure.words.contains(", ") && !counts.contains(&measure.words);
                assert_eq!(Better::of(measure.words).is_some(), has_unit, "{}", measure.words);
            }
        }
    }

    #[test]
    fn what_is_no_report_is_refused() {
        let path = std::env::temp_dir().join(format!("farpage-no-report-{}", std::process::id()));
        fs::write(&path, "{\"schema\": \"x\"}").expect("written");
        let refused = read(&path);
        fs::remove_file(&path).expect("removed");
        assert!(
            refused
                .expect_err("refused")
                .contains("no report of farpage bench")
        );
        assert!(read(&path).is_err());
    }
}
