//! What came of it: rows of ratios and figures, as text and as JSON. Only data; nothing is measured here.

use serde_json::{Value, json};

use crate::figures::{Spread, figure};
use crate::names::System;
use crate::plan::{Comparison, Side};
use crate::published;
use crate::side::Run;
use crate::targets::{Measure, Target, measures};

/// Characters of a line of text that is no row.
const WIDTH: usize = 124;

/// Both sides of one measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub measure: Measure,
    pub side: Side,
    pub against: Option<Side>,
    /// farpage / the other, round by round.
    pub ratio: Option<Spread>,
    pub ours: Spread,
    pub theirs: Option<Spread>,
    pub target: Option<(String, bool)>,
}

/// The runs of a comparison, all rounds.
#[derive(Clone, Debug)]
pub struct Result {
    pub comparison: Comparison,
    pub runs: Vec<Run>,
}

impl Result {
    /// A figure of a side in each round, `None` where the side failed.
    fn of_side(&self, side: usize, path: &str) -> Vec<Option<f64>> {
        let rounds = self.runs.iter().map(|run| run.round + 1).max().unwrap_or(0);
        let in_round = |round| {
            self.runs
                .iter()
                .find(|run| run.side == side && run.round == round)
        };
        let good = |run: &Run| {
            run.failure
                .is_none()
                .then(|| figure(&run.figures, path))
                .flatten()
        };
        (0..rounds).map(|round| in_round(round).and_then(good)).collect()
    }

    /// Every farpage side against every other side; against nothing, if there is none. Of a gain: with against without.
    #[must_use]
    pub fn blocks(&self) -> Vec<(Side, Option<Side>, Vec<Row>)> {
        let sides = &self.comparison.sides;
        if self.comparison.gain.is_some() {
            return vec![(sides[0], Some(sides[1]), self.rows(0, Some(1)))];
        }
        let mut others: Vec<_> = (0..sides.len())
            .filter(|at| !sides[*at].is_farpage())
            .map(Some)
            .collect();
        // The kernel first: RAM is only there to tell what swapping costs at all.
        others.sort_by_key(|at| at.map(|at| (sides[at] == Side::Ram, sides[at] == Side::Mapped)));
        if others.is_empty() {
            others.push(None);
        }
        let ours = (0..sides.len()).filter(|at| sides[*at].is_farpage());
        ours.flat_map(|side| others.iter().map(move |other| (side, *other)))
            .map(|(side, other)| {
                let against = other.map(|other| sides[other]);
                (sides[side], against, self.rows(side, other))
            })
            .collect()
    }

    fn rows(&self, side: usize, other: Option<usize>) -> Vec<Row> {
        let sides = &self.comparison.sides;
        let shown = measures(self.comparison.workload, self.comparison.backing);
        let row = |measure: Measure| {
            let ours = self.of_side(side, measure.path);
            let theirs = other.map_or(Vec::new(), |other| self.of_side(other, measure.path));
            let ratio = Spread::of_ratios(&ours, &theirs);
            let ours = Spread::of(ours.into_iter().flatten())?;
            let against = other.map(|other| sides[other]);
            let target = measure
                .target
                .filter(|_| sides[side].is_aimed())
                .and_then(|target| target.judge(against, ratio.map(|ratio| ratio.median), ours.median));
            Some(Row {
                measure,
                side: sides[side],
                against,
                ratio,
                ours,
                theirs: Spread::of(theirs.into_iter().flatten()),
                target,
            })
        };
        shown.into_iter().filter_map(row).collect()
    }

    /// What failed, a line for each kind of failure.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let mut lines: Vec<(String, usize)> = Vec::new();
        for run in &self.runs {
            let Some(failure) = &run.failure else { continue };
            let line = format!("{}: {failure}", self.comparison.sides[run.side].name());
            match lines.iter_mut().find(|(known, _)| *known == line) {
                Some((_, count)) => *count += 1,
                None => lines.push((line, 1)),
            }
        }
        let rounds = self.runs.iter().map(|run| run.round + 1).max().unwrap_or(0);
        let told = lines.into_iter();
        told.map(|(line, count)| format!("{line} ({count} of {rounds} runs)"))
            .collect()
    }

    /// Whether farpage did wrong: a failure on its side.
    #[must_use]
    pub fn farpage_failed(&self) -> bool {
        let sides = &self.comparison.sides;
        self.runs
            .iter()
            .any(|run| run.failure.is_some() && sides[run.side].is_farpage())
    }

    /// The result for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("\n{}\n", self.comparison.title());
        for (side, against, rows) in self.blocks() {
            text.push_str(&header(side, against));
            rows.iter().for_each(|row| text.push_str(&line(row)));
        }
        for failure in self.failures() {
            text.push_str(&format!("  FAILED {failure}\n"));
        }
        if let Some(published) = published::beside(self.comparison.workload, self.comparison.backing) {
            text.push_str(&wrapped(&published));
        }
        text
    }

    /// Everything.
    #[must_use]
    pub fn json(&self) -> Value {
        let spread = |spread: &Option<Spread>| spread.map(|spread| spread.json());
        let row = |row: &Row| {
            json!({
                "measure": row.measure.path,
                "words": row.measure.words,
                "side": row.side.name(),
                "against": row.against.map(Side::name),
                "aimed": row.side.is_aimed(),
                "ratio": spread(&row.ratio),
                "ours": row.ours.json(),
                "theirs": spread(&row.theirs),
                "target": row.target.as_ref().map(|(target, _)| target),
                "met": row.target.as_ref().map(|(_, met)| met),
                "judged": row.measure.target.map(Target::judged),
            })
        };
        let rows: Vec<_> = self
            .blocks()
            .iter()
            .flat_map(|(_, _, rows)| rows.iter().map(row))
            .collect();
        let run = |run: &Run| {
            json!({
                "side": self.comparison.sides[run.side].name(),
                "round": run.round,
                "figures": run.figures,
                "failure": run.failure,
                "facts": run.facts,
            })
        };
        json!({
            "workload": self.comparison.workload.name(),
            "title": self.comparison.title(),
            "gain_of": self.comparison.gain.map(System::letter),
            "backing": self.comparison.backing.name(),
            "ram_bytes": self.comparison.ram_bytes,
            "data_bytes": self.comparison.data_bytes,
            "sides": self.comparison.sides.iter().map(|side| side.name()).collect::<Vec<_>>(),
            "rows": rows,
            "failures": self.failures(),
            "published": published::beside(self.comparison.workload, self.comparison.backing),
            "runs": self.runs.iter().map(run).collect::<Vec<_>>(),
        })
    }
}

fn header(side: Side, against: Option<Side>) -> String {
    let ours = side.name();
    match against {
        Some(other) => format!(
            "  {:<26} {:>8} {:>8} {:>8} |{:>28} |{:>28} | target\n",
            format!("{ours} / {}", other.name()),
            "ratio",
            "lowest",
            "highest",
            format!("{ours} (lowest, highest)"),
            format!("{} (lowest, highest)", other.name()),
        ),
        None => format!("  {ours:<26} {:>28} | target\n", "median (lowest, highest)"),
    }
}

fn line(row: &Row) -> String {
    let target = row.target.as_ref().map_or(String::new(), |(target, met)| {
        format!(" {target}: {}", if *met { "met" } else { "MISSED" })
    });
    let words = row.measure.words;
    if row.against.is_none() {
        return format!("  {words:<26} {:>28} |{target}\n", spread(&row.ours));
    }
    let ratio = row.ratio.map_or([const { String::new() }; 3], |ratio| {
        [ratio.median, ratio.lowest, ratio.highest].map(number)
    });
    let theirs = row.theirs.map_or("-".to_owned(), |theirs| spread(&theirs));
    format!(
        "  {words:<26} {:>8} {:>8} {:>8} |{:>28} |{theirs:>28} |{target}\n",
        ratio[0],
        ratio[1],
        ratio[2],
        spread(&row.ours),
    )
}

fn spread(spread: &Spread) -> String {
    let [median, lowest, highest] = [spread.median, spread.lowest, spread.highest].map(number);
    format!("{median} ({lowest}, {highest})")
}

/// In lines of at most `WIDTH` characters, set in like the rows.
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut length = WIDTH;
    for word in text.split(' ') {
        if length + 1 + word.len() > WIDTH {
            let start = if lines.is_empty() { " " } else { "\n   " };
            lines.push_str(start);
            length = start.len();
        }
        lines.push(' ');
        lines.push_str(word);
        length += 1 + word.len();
    }
    lines.push('\n');
    lines
}

/// Three digits that count, or all before the point.
#[must_use]
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::names::{Backing, Workload};
    use crate::plan::Way;

    pub fn result(workload: Workload, sides: Vec<Side>, figures: &[(usize, Value)]) -> Result {
        let count = sides.len() as u32;
        let run = |(at, (side, figures)): (usize, &(usize, Value))| Run {
            side: *side,
            round: at as u32 / count,
            figures: figures.clone(),
            failure: figures.is_null().then(|| "killed".to_owned()),
            facts: json!({}),
        };
        Result {
            comparison: Comparison {
                workload,
                backing: Backing::File,
                sides,
                gain: None,
                ram_bytes: 64 << 20,
                data_bytes: 256 << 20,
            },
            runs: figures.iter().enumerate().map(run).collect(),
        }
    }

    const FARPAGE: Side = Side::Farpage(Way::Own);

    fn rate(value: f64) -> Value {
        json!({ "mb_per_s": value })
    }

    #[test]
    fn ratios_come_first_and_targets_are_judged() {
        let runs = [
            (0, rate(100.0)),
            (1, rate(600.0)),
            (1, rate(440.0)),
            (0, rate(110.0)),
        ];
        let result = result(Workload::Seq, vec![Side::Kernel, FARPAGE], &runs);
        let text = result.text();
        let row = text
            .lines()
            .find(|line| line.contains("rewrite"))
            .expect("the row");
        assert!(
            row.starts_with("  rewrite, MB/s                  5.00     4.00     6.00 |"),
            "{row}"
        );
        assert!(
            row.contains("520 (440, 600)") && row.contains("105 (100, 110)"),
            "{row}"
        );
        assert!(row.ends_with("P2 >= 5: met"), "{row}");
        assert!(!result.farpage_failed());
        assert_eq!(result.json()["rows"][0]["ratio"]["median"], 5.0);
    }

    #[test]
    fn a_killed_side_is_told_and_not_counted() {
        let runs = [
            (0, Value::Null),
            (1, rate(600.0)),
            (0, rate(100.0)),
            (1, rate(300.0)),
        ];
        let result = result(Workload::Seq, vec![Side::Kernel, FARPAGE], &runs);
        assert_eq!(result.failures(), ["kernel: killed (1 of 2 runs)"]);
        assert!(!result.farpage_failed());
        let (_, _, rows) = &result.blocks()[0];
        assert_eq!(
            rows[0].ratio.map(|ratio| (ratio.median, ratio.count)),
            Some((3.0, 1))
        );
        assert_eq!(rows[0].target, Some(("P2 >= 5".to_owned(), false)));
    }

    #[test]
    fn farpage_alone_has_no_ratio() {
        let result = result(Workload::Seq, vec![FARPAGE], &[(0, rate(600.0))]);
        let text = result.text();
        assert!(
            text.contains("600 (600, 600)") && !text.contains("P2 >="),
            "{text}"
        );
        assert_eq!(result.json()["rows"][0]["ratio"], Value::Null);
    }

    #[test]
    fn a_failure_of_farpage_is_one() {
        let result = result(Workload::Seq, vec![FARPAGE], &[(0, Value::Null)]);
        assert!(result.farpage_failed());
        assert!(result.text().contains("FAILED farpage: killed (1 of 1 runs)"));
    }

    #[test]
    fn solve_is_judged_against_ram() {
        let seconds = |value: f64| json!({ "seconds": value });
        let runs = [(0, seconds(2.0)), (1, seconds(9.0)), (2, seconds(2.8))];
        let result = result(Workload::Solve, vec![Side::Ram, Side::Kernel, FARPAGE], &runs);
        let blocks = result.blocks();
        assert_eq!(blocks[0].1, Some(Side::Kernel));
        assert_eq!(blocks[0].2[0].target, None);
        assert_eq!(blocks[1].2[0].target, Some(("P10 <= 1.5".to_owned(), true)));
    }

    #[test]
    fn long_text_is_wrapped() {
        let text = wrapped(&"word ".repeat(60));
        assert!(
            text.lines().count() > 2 && text.lines().all(|line| line.len() <= WIDTH),
            "{text}"
        );
        assert!(text.starts_with("  word word"), "{text}");
        assert_eq!(text.matches("word").count(), 60);
    }

    #[test]
    fn numbers_for_people() {
        let values = [0.0, 0.1234, 1.234, 12.34, 123.4, 12_345.6];
        assert_eq!(values.map(number), ["0", "0.123", "1.23", "12.3", "123", "12346"]);
    }
}
