//! `microbench OPERATION SIDE TIMES`: does it so many times, for an instruction counter (`tests/bench/core.py`).

use std::env;
use std::process::ExitCode;

use farpage_microbench::{Operation, SIDES, side};

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let [operation, name, times] = words.as_slice() else {
        eprintln!("usage: microbench OPERATION SIDE TIMES");
        return ExitCode::from(2);
    };
    let known = Operation::ALL.into_iter().find(|known| known.name() == operation);
    let (Some(operation), true, Ok(times)) = (known, SIDES.contains(&name.as_str()), times.parse()) else {
        eprintln!("microbench: {words:?}: not an operation, a side and a number");
        return ExitCode::from(2);
    };
    match side(name, operation).and_then(|side| side.work(operation, 0, times)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            eprintln!("microbench: {wrong}");
            ExitCode::FAILURE
        }
    }
}
