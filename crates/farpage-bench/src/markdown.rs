//! The report as Markdown, of one run or of several side by side: runs, targets, what is lost and why, published figures, all figures.
//! Made from objects of `--json`.

use serde_json::Value;

use crate::figures::{command, items, text};
use crate::machine;
use crate::published::{PUBLISHED, Published};
use crate::reasons::{self, Reason};
use crate::report::number;
use crate::scale::{HEAD as HEAD_OF_SCALE, scales};
use crate::stored::{self, Group, Line, groups};

const HEAD: &str = "\
# Performance: farpage beside this kernel's own swap

Written by `farpage bench --markdown`, not by hand. How the sides are made equal is told in [bench.md](bench.md); profiles, and what this \
command does not measure, are in [profile.md](profile.md).
A ratio is farpage / the other side, round by round: the median (lowest-highest). Of a rate more is better, of a time less. **Bold**: worse \
than the kernel, or a target missed.
";

/// Targets that no program of this command is about.
const ELSEWHERE: &str = "
Elsewhere, with figures in [the README](../README.md): P11 by `cargo test -p farpage --test pool_memory` and the test `books-per-page`, P12 of \
real programs by `make bench-fit`, P13 by `farpage bench --baseline C` and `farpage sim contention`. P12 is missed there by sqlite3 and by short programs, of which each pays for \
the loading of the library.

What is lost and no program of this command shows, with figures in the README too: NumPy's solve and sqlite3 beside the kernel's swap (`make \
bench-kernel`), both of which touch most of their memory again and again; programs that need about as much as their budget; a list followed for \
the first time (`bench chase`); a dense solve with `--readahead none`, `cluster` and `vma` (`bench readahead`).

Where the CPUs' time goes (`make flame`): random touches on compressed RAM, rewriting in order on a swap file, random touches of a swap file by 1 to \
16 threads.

![random touches on compressed RAM](flame-random.svg)

![rewriting in order on a swap file](flame-seq.svg)

![random touches of a swap file by 1 to 16 threads](flame-threads.svg)
";

/// The report, from objects of `--json`, in the order in which they are to stand.
#[must_use]
pub fn report(reports: &[Value]) -> String {
    let groups = groups(reports);
    let several = reports.len() > 1;
    let mut text = HEAD.to_owned();
    text.push_str(&runs(reports));
    text.push_str(&targets(&groups));
    text.push_str(&lost(&groups));
    text.push_str(&scale(reports));
    text.push_str(&published(&groups));
    text.push_str("\n## All figures\n");
    for group in &groups {
        text.push_str(&section(group, several));
    }
    text
}

/// What would end a cell or begin another meaning of it.
fn escape(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('\n', "; ")
}

fn table(head: &[&str]) -> String {
    let rule = "---|".repeat(head.len());
    format!("\n| {} |\n|{rule}\n", head.join(" | "))
}

fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

fn runs(reports: &[Value]) -> String {
    let mut runs = "\n## Runs\n".to_owned();
    runs.push_str(&table(&["run", "build", "command", "rounds", "machine"]));
    for (number, report) in reports.iter().enumerate() {
        runs.push_str(&row(&[
            (number + 1).to_string(),
            escape(report["build"].as_str().unwrap_or("not told")),
            format!("`{}`", escape(&command(report))),
            stored::rounds(report),
            escape(&machine::words(&report["machine"])),
        ]));
    }
    runs.push('\n');
    // What is noted of every run stands once.
    let mut told: Vec<(&str, Vec<String>)> = Vec::new();
    for (number, report) in reports.iter().enumerate() {
        for note in items(&report["notes"]).iter().filter_map(Value::as_str) {
            let run = (number + 1).to_string();
            match told.iter_mut().find(|(known, _)| *known == note) {
                Some((_, runs)) => runs.push(run),
                None => told.push((note, vec![run])),
            }
        }
    }
    for (note, of) in told {
        let of = if of.len() == reports.len() {
            String::new()
        } else {
            format!("run {}: ", of.join(", "))
        };
        runs.push_str(&format!("- {of}{}\n", note.replace('<', "&lt;")));
    }
    runs
}

/// P2 before P10; what is no target of the design last.
fn order(target: &str) -> u32 {
    let id = target.split(' ').next().and_then(|id| id.strip_prefix('P'));
    id.and_then(|number| number.parse().ok()).unwrap_or(u32::MAX)
}

fn targets(groups: &[Group<'_>]) -> String {
    let mut rows = Vec::new();
    for group in groups {
        for line in group.lines().iter().filter(|line| line.target().is_some()) {
            let judged = if line.text("judged") == "ours" {
                "ours"
            } else {
                "ratio"
            };
            let cells = [
                escape(&group.name()),
                format!("{}: {}", escape(&sides(line)), escape(line.text("words"))),
                numbers(&line.medians(judged)),
                verdict(line),
            ];
            let target = line.target().map_or("", |(target, ..)| target);
            rows.push((order(target), row(&cells)));
        }
    }
    rows.sort_by_key(|(order, _)| *order);
    let mut text = "\n## Targets\n".to_owned();
    text.push_str(&table(&[
        "work, RAM",
        "figure",
        "ratio, or farpage's own",
        "target",
    ]));
    text.extend(rows.into_iter().map(|(_, row)| row));
    text.push_str(ELSEWHERE);
    text
}

fn sides(line: &Line<'_>) -> String {
    match line.text("against") {
        "" => line.text("side").to_owned(),
        other => format!("{} / {other}", line.text("side")),
    }
}

fn numbers(values: &[f64]) -> String {
    let all: Vec<_> = values.iter().map(|value| number(*value)).collect();
    all.join(", ")
}

/// The target and whether it is met; of several runs, in how many.
fn verdict(line: &Line<'_>) -> String {
    let Some((target, met, of)) = line.target() else {
        return String::new();
    };
    let target = escape(target);
    match (met, of) {
        (1, 1) => format!("{target}: met"),
        (_, 1) => format!("{target}: **missed**"),
        _ if met == of => format!("{target}: met in {met} of {of}"),
        _ => format!("{target}: **met in {met} of {of}**"),
    }
}

/// Every row that is lost, those that have one reason together.
fn lost(groups: &[Group<'_>]) -> String {
    let mut text = "\n## What is lost\n\n".to_owned();
    let start = text.len();
    for group in groups {
        for (run, failure) in failures(group).filter(|(_, failure)| failure.starts_with("farpage")) {
            let name = escape(&group.name());
            text.push_str(&format!(
                "- {name}: **failed** in run {}: {}.\n",
                run + 1,
                escape(failure)
            ));
        }
        let (workload, backing) = (of_first(group, "workload"), of_first(group, "backing"));
        let mut told: Vec<(Option<&Reason>, Vec<String>)> = Vec::new();
        for line in group.lines().iter().filter(|line| line.is_lost()) {
            let reason = reasons::of(workload, backing, line.text("measure"));
            let words = lost_words(line);
            match told.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, rows)) => rows.push(words),
                None => told.push((reason, vec![words])),
            }
        }
        for (reason, rows) in told {
            let why = reason.map_or("Not looked into.".to_owned(), |reason| {
                format!("Why: {}. Next lever: {}.", reason.why, reason.lever)
            });
            text.push_str(&format!(
                "- {}: {}. {}\n",
                escape(&group.name()),
                rows.join("; "),
                escape(&why)
            ));
        }
    }
    if text.len() == start {
        text.push_str("Nothing: no figure is worse than the kernel's, and no target missed.\n");
    }
    text
}

/// What failed, with the number of its run.
fn failures<'a>(group: &Group<'a>) -> impl Iterator<Item = (usize, &'a str)> {
    let each = |(run, comparison): &(usize, &'a Value)| {
        let run = *run;
        items(&comparison["failures"])
            .iter()
            .filter_map(move |failure| Some((run, failure.as_str()?)))
    };
    group.runs.iter().flat_map(each)
}

fn of_first<'a>(group: &Group<'a>, key: &str) -> &'a str {
    text(group.first(), key)
}

fn lost_words(line: &Line<'_>) -> String {
    let sides = match sides(line).as_str() {
        "farpage / kernel" => String::new(),
        other => format!("{} ", escape(other)),
    };
    let mut words = format!("{sides}{}", escape(line.text("words")));
    let own = line.text("judged") == "ours";
    if line.is_behind() || line.is_missed() && !own {
        words.push_str(&format!(" **{}**", numbers(&line.medians("ratio"))));
    }
    if line.is_missed() && own {
        words.push_str(&format!(", own figure {}", numbers(&line.medians("ours"))));
    }
    match verdict(line) {
        verdict if verdict.is_empty() => words,
        verdict => format!("{words} ({verdict})"),
    }
}

/// Sizes, in the runs that went through them.
fn scale(reports: &[Value]) -> String {
    let mut text = String::new();
    for (number, report) in reports.iter().enumerate() {
        for scale in scales(items(&report["comparisons"])) {
            text.push_str(&format!(
                "\nRun {}, {}: {}.\n",
                number + 1,
                scale.backing,
                escape(&scale.verdict())
            ));
            text.push_str(&table(&HEAD_OF_SCALE));
            text.extend(scale.steps.iter().map(|step| row(&step.cells())));
        }
    }
    if !text.is_empty() {
        text.insert_str(0, "\n## Scale\n");
    }
    text
}

/// What the systems were published with, beside what farpage has over the kernel in the same program.
fn published(groups: &[Group<'_>]) -> String {
    let mut text = "\n## Published figures\n\nOf other and larger machines, before and after each change: the direction compares and the \
                    ratio, not the number. The kernel that is measured here has what was merged of them.\n"
        .to_owned();
    text.push_str(&table(&[
        "",
        "figure",
        "published",
        "after / before",
        "farpage / kernel here",
    ]));
    for one in &PUBLISHED {
        for figure in one.figures {
            text.push_str(&row(&[
                one.id.to_owned(),
                figure.words.to_owned(),
                figure.then.to_owned(),
                figure.ratio.to_owned(),
                ratios_here(groups, one, figure.path),
            ]));
        }
    }
    text.push('\n');
    for one in &PUBLISHED {
        let further = if one.further.is_empty() {
            String::new()
        } else {
            format!("; {}", one.further)
        };
        text.push_str(&format!("- {}: {}{further}.\n", one.id, one.setting));
    }
    text
}

/// The ratios of a measure in all programs that a published table stands beside.
fn ratios_here(groups: &[Group<'_>], published: &Published, path: &str) -> String {
    let mut here = Vec::new();
    for group in groups {
        if !published.stands_beside(of_first(group, "workload"), of_first(group, "backing")) {
            continue;
        }
        let lines = group.lines();
        let own = lines
            .iter()
            .find(|line| line.text("measure") == path && line.text("against") == "kernel");
        let ratios = own.map_or(String::new(), |line| numbers(&line.medians("ratio")));
        if !ratios.is_empty() {
            here.push(format!("{ratios} ({})", escape(&group.name())));
        }
    }
    if here.is_empty() {
        "not measured here".to_owned()
    } else {
        here.join("; ")
    }
}

fn section(group: &Group<'_>, several: bool) -> String {
    let mut section = format!("\n### {}\n", escape(of_first(group, "title")));
    if several {
        let of: Vec<_> = group.runs.iter().map(|(run, _)| (run + 1).to_string()).collect();
        section.push_str(&format!("\nRun {}.\n", of.join(", ")));
    }
    let lines = group.lines();
    let mut done: Vec<String> = Vec::new();
    for line in &lines {
        let sides = sides(line);
        if !done.contains(&sides) {
            let block = lines.iter().filter(|line| self::sides(line) == sides);
            section.push_str(&block_of(line, block));
            done.push(sides);
        }
    }
    for (run, failure) in failures(group) {
        let of = if several {
            format!(" in run {}", run + 1)
        } else {
            String::new()
        };
        section.push_str(&format!("\n**Failed**{of}: {}\n", escape(failure)));
    }
    section
}

/// The rows of one side beside another, or alone.
fn block_of<'a>(first: &Line<'_>, lines: impl Iterator<Item = &'a Line<'a>>) -> String {
    let (side, other) = (escape(first.text("side")), escape(first.text("against")));
    let alone = other.is_empty();
    let mut block = if alone {
        table(&["", &side, "target"])
    } else {
        table(&["", &format!("{side} / {other}"), &side, &other, "target"])
    };
    for line in lines {
        let mut cells = vec![escape(line.text("words"))];
        if !alone {
            cells.push(spreads(line, "ratio", true));
        }
        cells.push(spreads(line, "ours", false));
        if !alone {
            cells.push(spreads(line, "theirs", false));
        }
        cells.push(verdict(line));
        block.push_str(&row(&cells));
    }
    block
}

/// A figure's spread in each run.
fn spreads(line: &Line<'_>, part: &str, is_ratio: bool) -> String {
    let beside_kernel = line.text("against") == "kernel";
    let spread = |cell: &Option<&Value>| {
        let value = cell.map(|cell| &cell[part])?;
        let [median, lowest, highest] = ["median", "lowest", "highest"].map(|key| value[key].as_f64());
        let (median, lowest, highest) = (median?, lowest?, highest?);
        let worse = is_ratio && beside_kernel && line.is_worse(median);
        let bold = if worse { "**" } else { "" };
        let range = if lowest < highest {
            format!(" ({}-{})", number(lowest), number(highest))
        } else {
            String::new()
        };
        Some(format!("{bold}{}{bold}{range}", number(median)))
    };
    let all: Vec<_> = line
        .cells
        .iter()
        .map(|cell| spread(cell).unwrap_or("-".to_owned()))
        .collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stored::tests::report as stored;
    use serde_json::json;

    #[test]
    fn one_run_is_told_whole() {
        let told = report(&[stored("50th, us", 1.25, Some(false))]);
        for part in [
            "| 1 | commit abc | `/usr/bin/farpage bench random --build 'commit abc'` | 3 | x,",
            "- a note | with a bar",
            "| random, swap file, 64 MiB | farpage / kernel: 50th, us | 1.25 | P5 &lt;= 0.6: **missed** |",
            "- random, swap file, 64 MiB: 50th, us **1.25** (P5 &lt;= 0.6: **missed**). Why: nearly all of a touch is",
            "### random, swap file: touches\n\n|  | farpage / kernel | farpage | kernel | target |",
            "| 50th, us | **1.25** (0.625-2.50) | 12.5 (6.25-25.0) | 10.0 (5.00-20.0) | P5 &lt;= 0.6: **missed** |",
        ] {
            assert!(told.contains(part), "{part}\n{told}");
        }
    }

    #[test]
    fn three_runs_stand_side_by_side() {
        let runs = [0.5, 0.7, 0.4].map(|ratio| stored("50th, us", ratio, Some(ratio <= 0.6)));
        let told = report(&runs);
        assert!(
            told.contains("| 0.500, 0.700, 0.400 | P5 &lt;= 0.6: **met in 2 of 3** |"),
            "{told}"
        );
        assert!(told.contains("\nRun 1, 2, 3.\n"), "{told}");
        assert_eq!(told.matches("a note").count(), 1, "{told}");
        let met = report(&[
            stored("50th, us", 0.5, Some(true)),
            stored("50th, us", 0.5, Some(true)),
        ]);
        assert!(
            met.contains("met in 2 of 2") && met.contains("Nothing: no figure is worse"),
            "{met}"
        );
    }

    /// Of what failed there are no figures that could be behind.
    #[test]
    fn what_failed_is_lost() {
        let mut run = stored("50th, us", 0.5, None);
        run["comparisons"][0]["failures"] =
            json!(["kernel: killed (1 of 3 runs)", "farpage: killed (3 of 3 runs)"]);
        run["comparisons"][0]["rows"] = json!([]);
        let told = report(&[run]);
        assert!(
            told.contains(
                "- random, swap file, 64 MiB: **failed** in run 1: farpage: killed (3 of 3 runs).\n"
            ),
            "{told}"
        );
        assert!(
            !told.contains("**failed** in run 1: kernel") && told.contains("**Failed**: kernel: killed"),
            "{told}"
        );
    }

    #[test]
    fn a_reason_is_told_once_for_its_rows() {
        let mut run = stored("1 thread, 50th, us", 1.3, None);
        let mut second = run["comparisons"][0]["rows"][0].clone();
        second["measure"] = json!("t2.p50_us");
        second["words"] = json!("2 threads, 50th, us");
        run["comparisons"][0]["backing"] = json!("compressed");
        run["comparisons"][0]["failures"] = json!(["kernel: killed (1 of 3 runs)"]);
        if let Some(rows) = run["comparisons"][0]["rows"].as_array_mut() {
            rows.push(second);
        }
        let told = report(&[run]);
        assert_eq!(told.matches("a fault costs a signal").count(), 1, "{told}");
        assert!(
            told.contains("1 thread, 50th, us **1.30**; 2 threads, 50th, us **1.30**. Why:"),
            "{told}"
        );
        assert!(
            told.contains("**Failed**: kernel: killed (1 of 3 runs)"),
            "{told}"
        );
    }

    #[test]
    fn sizes_are_told_of_runs_that_have_them() {
        let mut run = stored("50th, us", 0.9, None);
        assert!(!report(&[run.clone()]).contains("## Scale"));
        run["comparisons"] = json!(crate::scale::tests::comparisons(&[50.0, 70.0]));
        let told = report(&[run]);
        assert!(
            told.contains("dearest / cheapest 1.40 (at the median 1.40), own &lt;= 1.2: MISSED.\n"),
            "{told}"
        );
        assert!(
            told.contains("| 64 MiB | 256 MiB | 4.50 | 70.0 | 35.0 | 1.50 | 20.0 |"),
            "{told}"
        );
    }

    #[test]
    fn published_figures_stand_beside_ours() {
        let mut run = stored("2 threads, 50th, us", 0.9, None);
        run["comparisons"][0]["rows"][0]["measure"] = json!("t2.p50_us");
        let told = report(&[run]);
        for part in [
            "| C | median software part of a fault | 15 -> 4 us | 0.27 | 0.900 (random, swap file, 64 MiB) |",
            "| T3 | random GETs | 433015 -> 431537 per s | 1.00 | not measured here |",
        ] {
            assert!(told.contains(part), "{part}\n{told}");
        }
    }

    #[test]
    fn targets_are_in_their_order() {
        assert!(order("P2 >= 5") < order("P10 <= 1.5") && order("P10 <= 1.5") < order("own >= 0.7"));
    }
}
