//! The core's slots and swap cache without a program: what systems C and T are worth is what their operations take beside what
//! each replaced, a lock and a map for the device, a tree with a lock for the cache. Both sides are `farpage-sim`'s, which runs
//! the core's own structures.
//!
//! Measured with real threads on this machine; modelled with 96 CPUs, which it hardly has.

use std::thread;

use farpage_sim::contention::report::P13_CPUS;
use farpage_sim::contention::{self, Config, Row, Stage, measure};
use farpage_sim::operations::{KEPT, Operation, SIDES, THREADS, side, timed};
use serde_json::{Value, json};

use super::{Checks, WorkArgs};

/// Each figure is of a run of at least this part of the seconds given.
const PART: f64 = 1.0 / 8.0;
/// Operations of a thread in the first run, a whole number of batches; each further run has four times as many, so the last of
/// them is a thousand million.
const TIMES: usize = 4096;
const RUNS_MAX: usize = 10;

/// System C: slots are taken and given back.
pub fn slots(args: &WorkArgs) -> Result<Value, String> {
    let (name, stages) = side_of(args)?;
    let config = Config {
        cpus: Vec::new(),
        devices: Vec::new(),
        pages: contention::PAGES,
        faults: contention::FAULTS,
        seed: 1,
        costs: measure::measure()?,
    };
    let mut checks = Checks::default();
    let mut figures = json!({ "threads": threads(), "costs_ns": config.costs.json() });
    let mut last: Option<Row> = None;
    for (key, stage) in ["model", "without_t"].into_iter().zip(stages) {
        let row = match last {
            Some(row) if row.stage == stage => row,
            _ => contention::simulate(&config, stage, P13_CPUS, 1)?,
        };
        last = Some(row);
        figures[key] = json!({
            "stage": stage.name(),
            "lock_percent": row.lock_share * 100.0,
            "fault_us": row.fault_ns[0] as f64 / 1e3,
            "per_s": row.faults_per_s,
        });
    }
    for (key, operation) in [
        ("slots", Operation::AllocateFreeGrouped),
        ("pages", Operation::InOut),
    ] {
        figures[key] = both(args, name, operation, &mut checks)?;
    }
    checks.tell(&mut figures);
    Ok(figures)
}

/// System T: pages are looked up in the swap cache, put there and taken out.
pub fn cache(args: &WorkArgs) -> Result<Value, String> {
    let (name, _) = side_of(args)?;
    let mut checks = Checks::default();
    let mut figures = json!({ "threads": threads() });
    for (key, operation) in [
        ("look_up", Operation::LookUp),
        ("add_delete", Operation::AddDelete),
        ("fork", Operation::Fork),
    ] {
        figures[key] = both(args, name, operation, &mut checks)?;
    }
    checks.tell(&mut figures);
    Ok(figures)
}

/// The side that is asked for, and the stages of the model that it is: with T as well, then with C alone. The baseline is without
/// both: T's words are those of C's slots, and can't be had without.
fn side_of(args: &WorkArgs) -> Result<(&'static str, [Stage; 2]), String> {
    match args.words.as_slice() {
        [name] if name == SIDES[0] => Ok((SIDES[0], [Stage::SwapTable, Stage::PercpuSlots])),
        [name] if name == SIDES[1] => Ok((SIDES[1], [Stage::Baseline; 2])),
        other => Err(format!("{}: one of {SIDES:?} is wanted", other.join(" "))),
    }
}

/// One for each CPU of this machine.
fn threads() -> usize {
    thread::available_parallelism().map_or(1, |count| count.get().min(THREADS))
}

/// What an operation takes of the machine's time, in ns, and how many there are per second: by one thread, then by all.
fn both(args: &WorkArgs, name: &str, operation: Operation, checks: &mut Checks) -> Result<Value, String> {
    let mut figures = json!({});
    for (key, threads) in [("one", 1), ("all", threads())] {
        let side = side(name, operation).map_err(|wrong| wrong.to_string())?;
        let (mut times, mut seconds) = (TIMES, 0.0);
        for run in 0..RUNS_MAX {
            times = TIMES << (2 * run);
            let wall = timed(side.as_ref(), operation, threads, times);
            seconds = wall.map_err(|wrong| wrong.to_string())?.as_secs_f64();
            if seconds * threads as f64 >= args.seconds * PART {
                break;
            }
        }
        // A slot that was lost, or had by two, leaves another number of them.
        checks.note(side.used() == KEPT);
        figures[format!("{key}_ns")] = json!(seconds * 1e9 / times as f64);
        figures[format!("{key}_per_s")] = json!(times as f64 / seconds);
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::super::tests::args;
    use super::super::work;
    use super::*;
    use crate::figures::figure;
    use crate::names::{Backing, Workload};
    use crate::targets::{Measure, measures};

    fn figures(workload: Workload, side: &str) -> Value {
        let args = WorkArgs {
            words: vec![side.to_owned()],
            ..args(workload)
        };
        work(&args).expect("runs")
    }

    /// Both have every figure that is shown.
    #[test]
    fn the_core_stands_beside_what_it_replaced() {
        for workload in Workload::CORE {
            for side in SIDES {
                let figures = figures(workload, side);
                let all = measures(workload, Backing::File);
                let is_there = |one: &Measure| figure(&figures, one.path).is_some_and(|value| value >= 0.0);
                assert!(all.iter().all(is_there) && figures["ok"] == true, "{figures}");
            }
        }
    }

    #[test]
    fn a_side_that_is_not_there_is_refused() {
        for words in [vec![], vec!["tree".to_owned()]] {
            let args = WorkArgs {
                words,
                ..args(Workload::SwapCache)
            };
            assert!(work(&args).expect_err("refused").contains("baseline"));
        }
    }
}
