//! How long a command takes from its start to its end, for a command that does nothing.

use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use super::{Checks, WorkArgs};

const RUNS: usize = 20;

pub fn startup(args: &WorkArgs) -> Result<Value, String> {
    let (program, words) = args.words.split_first().ok_or("startup: no command given")?;
    let mut checks = Checks::default();
    let mut times_ms = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let start = Instant::now();
        let ended = Command::new(program).args(words).stdin(Stdio::null()).status();
        times_ms.push(start.elapsed().as_secs_f64() * 1e3);
        let status = ended.map_err(|error| format!("{program}: {error}"))?;
        if !status.success() {
            return Err(format!("{program} {}: {status}", words.join(" ")));
        }
        checks.note(true);
    }
    times_ms.sort_by(f64::total_cmp);
    let mut figures = json!({
        "runs": RUNS,
        "start_ms": times_ms[RUNS / 2],
        "start_ms_min": times_ms[0],
        "start_ms_max": times_ms[RUNS - 1],
    });
    checks.tell(&mut figures);
    Ok(figures)
}
