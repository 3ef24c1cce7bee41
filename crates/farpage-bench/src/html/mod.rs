//! The report as one HTML file that needs nothing else: tables, and plots as inline SVG. Made from the object of
//! `--json`, so that a stored one can become a page too.
//!
//! | file | room |
//! |---|---|
//! | `plot` | bars, lines, histograms as SVG |

mod plot;

use farpage_core::units::PAGE_SIZE;
use serde_json::Value;

use crate::figures::{Spread, command, figure, items, text};
use crate::machine;
use crate::report::number;
use crate::samples;
use crate::scale::{HEAD as HEAD_OF_SCALE, Step, scales};
use crate::stored::{self, is_worse};
use crate::work::PERCENTILES;
use plot::{Bar, Curve, Line};

/// Rates below which a run has no curve.
const SAMPLES_MIN: usize = 3;

const STYLE: &str = "\
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1rem; }
th, td { padding: .15rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
.ratio { font-weight: 600; }
.met { color: #198754; } .missed { color: #c0392b; }
tr.sides th { padding-top: .7rem; white-space: normal; vertical-align: bottom; }
.note, .published { font-size: 13px; opacity: .8; }
svg { max-width: 100%; height: auto; display: block; margin: .5rem 0; }
svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
svg .title { font-weight: 600; }
pre { white-space: pre-wrap; }";

/// The page, from objects of `--json`, one after the other.
#[must_use]
pub fn page(reports: &[Value]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>farpage bench</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<style>\n{STYLE}\n</style></head><body>\n"
    );
    reports.iter().for_each(|all| page.push_str(&run(all)));
    page.push_str("</body></html>\n");
    page
}

fn run(all: &Value) -> String {
    let mut run = format!(
        "<h1>farpage bench</h1>\n<pre>{}</pre>\n<p><code>{}</code>, rounds: {}, build: {}. A ratio is farpage / the other \
         side, round by round: of a rate, more is better; of a time, less.</p>\n",
        escape(&machine::words(&all["machine"])),
        escape(&command(all)),
        stored::rounds(all),
        escape(all["build"].as_str().unwrap_or("not told"))
    );
    for note in items(&all["notes"]).iter().filter_map(Value::as_str) {
        run.push_str(&format!("<p class=\"note\">{}</p>\n", escape(note)));
    }
    for comparison in items(&all["comparisons"]) {
        run.push_str(&section(comparison));
    }
    run.push_str(&scale(items(&all["comparisons"])));
    run
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn section(comparison: &Value) -> String {
    let mut section = format!("<h2>{}</h2>\n", escape(text(comparison, "title")));
    section.push_str(&table(items(&comparison["rows"])));
    for failure in items(&comparison["failures"]).iter().filter_map(Value::as_str) {
        section.push_str(&format!("<p class=\"missed\">failed: {}</p>\n", escape(failure)));
    }
    section.push_str(&rates(items(&comparison["rows"])));
    section.push_str(&latencies(comparison));
    section.push_str(&over_time(comparison));
    section.push_str(&windows(comparison));
    if !text(comparison, "published").is_empty() {
        let published = escape(text(comparison, "published"));
        section.push_str(&format!("<p class=\"published\">{published}</p>\n"));
    }
    section
}

fn spread(value: &Value) -> String {
    match ["median", "lowest", "highest"].map(|key| value[key].as_f64()) {
        [Some(median), Some(lowest), Some(highest)] => {
            format!("{} ({} to {})", number(median), number(lowest), number(highest))
        }
        _ => "-".to_owned(),
    }
}

/// The rows, under the names of their sides.
fn table(rows: &[Value]) -> String {
    let mut table = "<table>\n".to_owned();
    let mut shown = None;
    for row in rows {
        let sides = (text(row, "side"), row["against"].as_str());
        if shown != Some(sides) {
            table.push_str(&head(sides));
            shown = Some(sides);
        }
        let class = match row["met"].as_bool() {
            Some(true) => "met",
            Some(false) => "missed",
            None => "",
        };
        let mut cells = format!("<td>{}</td>", escape(text(row, "words")));
        if sides.1.is_some() {
            let ratio = spread(&row["ratio"]);
            cells.push_str(&format!("<td class=\"ratio{}\">{ratio}</td>", behind(row)));
        }
        cells.push_str(&format!("<td>{}</td>", spread(&row["ours"])));
        if sides.1.is_some() {
            cells.push_str(&format!("<td>{}</td>", spread(&row["theirs"])));
        }
        let target = escape(text(row, "target"));
        table.push_str(&format!(
            "<tr>{cells}<td class=\"{class}\">{target} {class}</td></tr>\n"
        ));
    }
    table.push_str("</table>\n");
    table
}

fn head((side, other): (&str, Option<&str>)) -> String {
    let side = escape(side);
    let columns = match other.map(escape) {
        Some(other) => format!("<th>{side} / {other}</th><th>{side}</th><th>{other}</th>"),
        None => format!("<th>{side}</th>"),
    };
    format!("<tr class=\"sides\"><th></th>{columns}<th>target</th></tr>\n")
}

/// The class of a ratio that is worse than the kernel's.
fn behind(row: &Value) -> &'static str {
    let ratio = figure(row, "ratio.median");
    let worse = ratio.is_some_and(|ratio| is_worse(text(row, "words"), ratio));
    if worse && text(row, "against") == "kernel" {
        " missed"
    } else {
        ""
    }
}

/// Bars of every measure that is a rate: both sides, with their spreads.
fn rates(rows: &[Value]) -> String {
    let mut plots = String::new();
    let mut seen: Vec<&str> = Vec::new();
    for row in rows
        .iter()
        .filter(|row| text(row, "words").ends_with("/s") || text(row, "words").ends_with("per s"))
    {
        let words = text(row, "words");
        if seen.contains(&words) {
            continue;
        }
        seen.push(words);
        let mut bars: Vec<Bar> = Vec::new();
        for row in rows.iter().filter(|row| text(row, "words") == words) {
            for (side, values) in [("against", "theirs"), ("side", "ours")] {
                let name = text(row, side);
                if !bars.iter().any(|bar| bar.name == name) {
                    bars.extend(bar(name, &row[values]));
                }
            }
        }
        plots.push_str(&plot::bars(&escape(words), &bars));
    }
    plots
}

fn bar<'a>(name: &'a str, spread: &Value) -> Option<Bar<'a>> {
    Some(Bar {
        name,
        median: spread["median"].as_f64()?,
        lowest: spread["lowest"].as_f64()?,
        highest: spread["highest"].as_f64()?,
    })
}

/// A line per side of what part of the accesses took at most how long.
fn latencies(comparison: &Value) -> String {
    let mut plots = String::new();
    let names = [
        ("t1", "random, 1 thread"),
        ("t2", "random, 2 threads"),
        ("all", "all accesses"),
        ("sequential", "sequential writer"),
        ("random", "random ones"),
    ];
    for (key, words) in names {
        let mut lines = Vec::new();
        for side in items(&comparison["sides"]).iter().filter_map(Value::as_str) {
            let points: Vec<_> = PERCENTILES
                .iter()
                .map(|(percentile, _)| median_of(comparison, side, &format!("{key}.{percentile}")))
                .collect();
            if points.iter().any(Option::is_some) {
                lines.push(Line { name: side, points });
            }
        }
        if !lines.is_empty() {
            let ticks: Vec<_> = PERCENTILES.iter().map(|(name, _)| tick(name)).collect();
            plots.push_str(&plot::lines(
                &format!("latency of {words}, us, by percentile"),
                &ticks,
                &lines,
            ));
        }
    }
    plots
}

/// `p99_9_us` -> `99.9`.
fn tick(name: &str) -> String {
    name.trim_start_matches('p')
        .trim_end_matches("_us")
        .replace('_', ".")
}

fn median_of(comparison: &Value, side: &str, path: &str) -> Option<f64> {
    let runs = items(&comparison["runs"])
        .iter()
        .filter(|run| text(run, "side") == side);
    Spread::of(runs.filter_map(|run| figure(&run["figures"], path))).map(|spread| spread.median)
}

/// Faults during a run of each side, and the swap traffic of those that are compared in the first place.
fn over_time(comparison: &Value) -> String {
    let names: Vec<_> = items(&comparison["sides"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let labels: Vec<_> = names
        .iter()
        .map(|name| [format!("{name} in"), format!("{name} out")])
        .collect();
    let (mut faults, mut traffic) = (Vec::new(), Vec::new());
    let mut ours = names.iter().filter(|name| name.starts_with("farpage"));
    let first = ours.next();
    for (number, side) in names.iter().enumerate() {
        let Some(run) = last_run(comparison, side) else {
            continue;
        };
        let curve = |name, counter, scale: f64, dashed| {
            let rates = samples::rates(&run["facts"]["samples"], counter);
            Curve {
                name,
                side,
                number,
                dashed,
                points: rates
                    .into_iter()
                    .map(|(seconds, rate)| (seconds, rate * scale))
                    .collect(),
            }
        };
        faults.push(curve(*side, "pgmajfault", 1.0, false));
        if !side.starts_with("farpage") || Some(side) == first {
            let mb = PAGE_SIZE as f64 / 1e6;
            traffic.push(curve(&labels[number][0], "pages_in", mb, false));
            traffic.push(curve(&labels[number][1], "pages_out", mb, true));
        }
    }
    let mut plots = String::new();
    for (title, mut curves) in [
        ("major faults per second, over time", faults),
        ("swapped in and out, MB/s, over time", traffic),
    ] {
        // A run of a few samples has no course.
        curves.retain(|curve| curve.points.len() >= SAMPLES_MIN);
        let moves = |curve: &Curve<'_>| curve.points.iter().any(|(_, rate)| *rate > 0.0);
        if curves.iter().any(moves) {
            plots.push_str(&plot::curves(&format!("{title} (last run)"), &curves));
        }
    }
    plots
}

/// The last run of a side, of those that did not fail if there is one.
fn last_run<'a>(comparison: &'a Value, side: &str) -> Option<&'a Value> {
    let runs = || {
        items(&comparison["runs"])
            .iter()
            .filter(|run| text(run, "side") == side)
    };
    let good = runs().rfind(|run| run["failure"].is_null());
    good.or_else(|| runs().next_back())
}

/// What a fault costs by the size of RAM.
fn scale(comparisons: &[Value]) -> String {
    let mut text = String::new();
    for scale in scales(comparisons) {
        text.push_str(&format!(
            "<h2>scale, {}</h2>\n<p>{}</p>\n<table><tr>",
            escape(&scale.backing),
            escape(&scale.verdict())
        ));
        text.extend(HEAD_OF_SCALE.map(|head| format!("<th>{head}</th>")));
        text.push_str("</tr>\n");
        for step in &scale.steps {
            let cells = step.cells().map(|cell| format!("<td>{cell}</td>"));
            text.push_str(&format!("<tr>{}</tr>\n", cells.concat()));
        }
        text.push_str("</table>\n");
        let ticks: Vec<_> = scale.steps.iter().map(|step| step.cells()[0].clone()).collect();
        let line = |name, of: fn(&Step) -> f64| Line {
            name,
            points: scale.steps.iter().map(|step| Some(of(step))).collect(),
        };
        let lines = [
            line("mean", |step| step.fault_us),
            line("50th", |step| step.fault_p50_us),
        ];
        text.push_str(&plot::lines("a fault, us, by RAM", &ticks, &lines));
    }
    text
}

/// How many pages farpage chose to read at a time, in its last run on each side: while an area was emptied, or else ahead of faults.
fn windows(comparison: &Value) -> String {
    let mut plots = String::new();
    for side in items(&comparison["sides"]).iter().filter_map(Value::as_str) {
        let Some(run) = last_run(comparison, side) else {
            continue;
        };
        let emptied = &run["figures"]["windows"];
        let (title, counts) = if emptied.is_object() {
            let keys = ["pages_1", "pages_2", "pages_4", "pages_8_up"];
            let counts = keys.iter().filter_map(|key| emptied[key].as_u64()).collect();
            ("windows of the emptying by pages, 8 and more together", counts)
        } else {
            let counts = items(&run["facts"]["farpage"]["readahead_windows"]);
            (
                "readahead windows by pages",
                counts.iter().filter_map(Value::as_u64).collect::<Vec<_>>(),
            )
        };
        if counts.iter().any(|count| *count > 0) {
            plots.push_str(&plot::histogram(
                &format!("{}: {title} (last run)", escape(side)),
                &counts,
            ));
        }
    }
    plots
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn all() -> Value {
        let spread =
            |value: f64| json!({"median": value, "lowest": value / 2.0, "highest": value * 2.0, "count": 3});
        json!({
            "machine": {"cpu": "a <fast> one", "cpus": 2},
            "command": ["farpage", "bench"],
            "rounds": 3,
            "notes": ["a & b"],
            "comparisons": [{
                "title": "random, swap file",
                "sides": ["kernel", "farpage"],
                "rows": [{"words": "1 thread, per s", "side": "farpage", "against": "kernel", "ratio": spread(2.0),
                          "ours": spread(200.0), "theirs": spread(100.0), "target": "P5 >= 1.2", "met": true}],
                "failures": ["kernel: killed (1 of 3 runs)"],
                "runs": [
                    {"side": "kernel", "figures": {"t1": {"p50_us": 50.0, "p99_us": 900.0}}, "facts": {}},
                    {"side": "farpage", "figures": {"t1": {"p50_us": 40.0}},
                     "facts": {"farpage": {"readahead_windows": [5, 0, 7]},
                               "samples": {"seconds": [0.0, 0.1, 0.2, 0.3], "pgmajfault": [0, 5, 9, 9],
                                           "pages_in": [0, 0, 0, 0], "pages_out": [0, 0, 0, 0]}}}
                ],
                "published": "then",
            }],
        })
    }

    #[test]
    fn the_page_has_all_of_it_and_needs_nothing_else() {
        let page = page(&[all()]);
        for part in [
            "a &lt;fast&gt; one",
            "a &amp; b",
            "2.00 (1.00 to 4.00)",
            "P5 &gt;= 1.2 met",
            "killed (1 of 3 runs)",
            "latency of random, 1 thread",
            "<th>farpage / kernel</th><th>farpage</th><th>kernel</th>",
            "major faults per second",
            "readahead windows",
            "then",
        ] {
            assert!(page.contains(part), "{part}");
        }
        // Nothing was swapped: that has no plot.
        assert_eq!(page.matches("<svg").count(), 4);
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("NaN"));
    }

    #[test]
    fn what_is_behind_the_kernel_is_marked() {
        let row = |words: &str, against: &str| {
            behind(&json!({"words": words, "against": against, "ratio": {"median": 1.5}}))
        };
        assert_eq!(row("time, s", "kernel"), " missed");
        assert_eq!((row("rate, per s", "kernel"), row("time, s", "in RAM")), ("", ""));
    }

    #[test]
    fn a_run_that_failed_is_not_plotted_if_there_is_another() {
        let of = |failures: [Value; 2]| {
            let runs = failures.map(|failure| json!({"side": "kernel", "failure": failure}));
            let comparison = json!({"runs": runs});
            last_run(&comparison, "kernel").map(|run| run["failure"].clone())
        };
        assert_eq!(of([Value::Null, json!("killed")]), Some(Value::Null));
        assert_eq!(of([json!("killed"), json!("late")]), Some(json!("late")));
        assert_eq!(last_run(&json!({"runs": []}), "kernel"), None);
    }

    #[test]
    fn an_emptying_has_windows_of_its_own() {
        let run = |figures: Value| {
            let facts = json!({"farpage": {"readahead_windows": [5]}});
            windows(
                &json!({"sides": ["farpage"], "runs": [{"side": "farpage", "figures": figures, "facts": facts}]}),
            )
        };
        let emptied = run(json!({"windows": {"pages_1": 3, "pages_2": 0, "pages_4": 0, "pages_8_up": 77}}));
        assert!(
            emptied.contains("of the emptying") && emptied.contains(">77<") && !emptied.contains(">5<"),
            "{emptied}"
        );
        assert!(run(json!({})).contains("readahead windows"));
    }

    #[test]
    fn sizes_have_a_table_and_a_plot() {
        let text = scale(&crate::scale::tests::comparisons(&[50.0, 70.0]));
        assert!(
            text.contains("dearest / cheapest 1.40") && text.contains("<td>256 MiB</td>"),
            "{text}"
        );
        assert_eq!(text.matches("<svg").count(), 1);
        assert_eq!(scale(&[]), "");
    }

    #[test]
    fn ticks_are_percentiles() {
        assert_eq!(
            (tick("p99_9_us"), tick("max_us")),
            ("99.9".to_owned(), "max".to_owned())
        );
    }
}
