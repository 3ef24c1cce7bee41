//! `farpage check`: whether the pool of a running tree agrees with itself.

use farpage::check::{self, Report};
use farpage::trees;
use serde_json::json;

use crate::args::CheckArgs;
use crate::{Failure, print, stat};

const SCHEMA: &str = "farpage.check.1";

/// 0 if all is well, 1 if there is a problem.
pub fn check(args: &CheckArgs) -> Result<u8, Failure> {
    let pid = stat::choose(args.pid, trees::running)?;
    let report = check::check(pid).map_err(|why| Failure::new(1, why))?;
    let text = if args.json {
        as_json(pid, &report)
    } else {
        as_lines(pid, &report)
    };
    let _ = print(&text);
    Ok(u8::from(!report.problems.is_empty()))
}

fn as_lines(pid: i32, report: &Report) -> String {
    let mut lines = report.problems.clone();
    let verdict = match report.problems.len() {
        0 => "no problem".to_owned(),
        1 => "1 problem".to_owned(),
        many => format!("{many} problems"),
    };
    let (processes, slots, references) = (report.processes, report.slots, report.references);
    lines.push(format!(
        "pool of {pid}: {processes} processes, {slots} slots, {references} references, {} lost: {verdict}",
        report.lost
    ));
    lines.join("\n")
}

fn as_json(pid: i32, report: &Report) -> String {
    json!({
        "schema": SCHEMA,
        "supervisor_pid": pid,
        "processes": report.processes,
        "slots": report.slots,
        "references": report.references,
        "lost_references": report.lost,
        "problems": report.problems,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_problem_and_one_for_all() {
        let mut report = Report {
            processes: 2,
            slots: 30,
            references: 31,
            lost: 1,
            problems: Vec::new(),
        };
        let all_well = "pool of 7: 2 processes, 30 slots, 31 references, 1 lost: no problem";
        assert_eq!(as_lines(7, &report), all_well);
        report.problems = vec!["slot 9: bad".to_owned(), "cluster 3: bad".to_owned()];
        let text = as_lines(7, &report);
        assert!(text.starts_with("slot 9: bad\ncluster 3: bad\npool of 7") && text.ends_with(": 2 problems"));
        let value: serde_json::Value = serde_json::from_str(&as_json(7, &report)).unwrap();
        assert_eq!(
            (&value["problems"][1], &value["lost_references"]),
            (&json!("cluster 3: bad"), &json!(1))
        );
    }
}
