//! The report as one HTML file that needs nothing else: tables, and plots as inline SVG. Made from the object of
//! `--json`, so that a stored one can become a page too.
//!
//! | file | room |
//! |---|---|
//! | `plot` | bars, lines, histograms as SVG |

mod plot;

use serde_json::Value;

use crate::figures::{Spread, figure, items, text};
use crate::machine;
use crate::report::number;
use crate::work::PERCENTILES;
use plot::{Bar, Line};

const STYLE: &str = "\
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1rem; }
th, td { padding: .15rem .7rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
.ratio { font-weight: 600; }
.met { color: #198754; } .missed { color: #c0392b; }
.note, .published { font-size: 13px; opacity: .8; }
svg { max-width: 100%; height: auto; display: block; margin: .5rem 0; }
svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
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
    let words: Vec<_> = items(&all["command"]).iter().filter_map(Value::as_str).collect();
    let mut run = format!(
        "<h1>farpage bench</h1>\n<pre>{}</pre>\n<p><code>{}</code>, {} rounds, build: {}. A ratio is farpage / the other \
         side, round by round: of a rate, more is better; of a time, less.</p>\n",
        escape(&machine::words(&all["machine"])),
        escape(&words.join(" ")),
        all["rounds"],
        escape(all["build"].as_str().unwrap_or("not told"))
    );
    for note in items(&all["notes"]).iter().filter_map(Value::as_str) {
        run.push_str(&format!("<p class=\"note\">{}</p>\n", escape(note)));
    }
    for comparison in items(&all["comparisons"]) {
        run.push_str(&section(comparison));
    }
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

fn table(rows: &[Value]) -> String {
    let mut table =
        "<table><tr><th></th><th>ratio</th><th>farpage</th><th>other</th><th>target</th></tr>\n".to_owned();
    for row in rows {
        let sides = match row["against"].as_str() {
            Some(other) => format!("{} / {other}", text(row, "side")),
            None => text(row, "side").to_owned(),
        };
        let class = match row["met"].as_bool() {
            Some(true) => "met",
            Some(false) => "missed",
            None => "",
        };
        table.push_str(&format!(
            "<tr><td>{}<br><small>{}</small></td><td class=\"ratio\">{}</td><td>{}</td><td>{}</td><td \
             class=\"{class}\">{} {class}</td></tr>\n",
            escape(text(row, "words")),
            escape(&sides),
            spread(&row["ratio"]),
            spread(&row["ours"]),
            spread(&row["theirs"]),
            escape(text(row, "target")),
        ));
    }
    table.push_str("</table>\n");
    table
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

/// How many pages farpage's readahead chose to read at a time, of its last run on each side.
fn windows(comparison: &Value) -> String {
    let mut plots = String::new();
    for side in items(&comparison["sides"]).iter().filter_map(Value::as_str) {
        let runs = items(&comparison["runs"])
            .iter()
            .filter(|run| text(run, "side") == side);
        let counts = runs
            .filter_map(|run| run["facts"]["farpage"]["readahead_windows"].as_array())
            .next_back();
        let counts: Vec<u64> = counts.into_iter().flatten().filter_map(Value::as_u64).collect();
        if counts.iter().any(|count| *count > 0) {
            plots.push_str(&plot::histogram(
                &format!("{side}: readahead windows by pages (last run)"),
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
                     "facts": {"farpage": {"readahead_windows": [5, 0, 7]}}}
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
            "readahead windows",
            "then",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert_eq!(page.matches("<svg").count(), 3);
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("NaN"));
    }

    #[test]
    fn ticks_are_percentiles() {
        assert_eq!(
            (tick("p99_9_us"), tick("max_us")),
            ("99.9".to_owned(), "max".to_owned())
        );
    }
}
