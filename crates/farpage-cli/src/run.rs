//! `farpage run`: everything that can be refused is refused before the program starts, in one line.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process;

use farpage::join::{self, layout};
use farpage::snapshot::Snapshot;
use farpage::supervisor::{self, AreaSpec, Delivery, Outcome, RunConfig, RunError};
use farpage::tier_share;
use farpage_core::huge::{self, Huge};
use farpage_core::units::format_size;

use crate::args::{DeliveryArg, RunArgs};
use crate::elf::{self, Credentials, Refusal};
use crate::needs::{NEEDS, Need};
use crate::stat::Columns;
use crate::stats_file::StatsFile;
use crate::{
    EXIT_FAILED, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, Failure, closed, ignored, limits, probe, say, spec,
    summary,
};

mod preload {
    include!(concat!(env!("OUT_DIR"), "/preload.rs"));
}

/// Runs the command and returns its exit code.
pub fn run(args: RunArgs) -> Result<u8, Failure> {
    if is_disabled() {
        return Err(run_plainly(&args.command));
    }
    refuse_without_library().map_err(failed)?;
    supervisor::refuse_nesting().map_err(failed)?;
    supervisor::refuse_small_files().map_err(failed)?;
    layout::refuse_legacy().map_err(failed)?;
    let page_cluster = args.page_cluster().map_err(|why| failed(&why))?;
    let areas = spec::areas(&args.swap).map_err(failed)?;
    check_command(&args.command)?;
    let delivery = delivery(args.delivery)?;
    if let Some(trouble) = NEEDS.iter().find_map(Need::trouble) {
        return Err(failed(trouble.line()));
    }
    let available = limits::available().map_err(failed)?;
    let ram_bytes = args.ram.resolve(available.bytes);
    let stats_file = args.stats_json.as_deref().map(StatsFile::open).transpose()?;
    let too_near = available.too_near(ram_bytes);
    let ram_bytes = available.at_most(ram_bytes);
    let remarks = too_near
        .map(|trouble| format!("--ram: {}", trouble.line()))
        .into_iter()
        .chain(too_much_compressed(&areas, ram_bytes))
        .chain(too_little_for_huge(args.huge.setting(), ram_bytes));
    let remarks: Vec<_> = remarks.chain(in_memory(&areas)).filter(|_| !args.quiet).collect();
    let config = RunConfig {
        ram_bytes,
        areas,
        delivery,
        follow: !args.no_follow,
        eager: args.eager,
        allow_io_uring: args.allow_io_uring,
        ignored_signals: ignored::at_start().collect(),
        closed_files: closed::at_start().collect(),
        callers_files: stats_file.iter().map(StatsFile::descriptor).collect(),
        readahead: args.readahead.policy(),
        page_cluster,
        huge: args.huge.setting(),
        huge_swapin: args.huge_swapin.setting(),
        huge_swapout: args.huge_swapout.setting(),
        slots: args.slots.policy(),
        container: available.filled_by(ram_bytes),
        command: args.command.clone(),
        preload: preload::LIBRARY,
        on_start: Box::new(move || remarks.iter().for_each(|line| say(line))),
        on_tick: args.stats.then(ticker),
    };
    match supervisor::run(config) {
        Ok(outcome) => tell(&args, delivery, &outcome, stats_file),
        Err(error) => {
            stats_file.iter().for_each(StatsFile::abandon);
            Err(run_failure(error))
        }
    }
}

/// Tells what a run came to; its exit code.
fn tell(
    args: &RunArgs,
    delivery: Delivery,
    outcome: &Outcome,
    mut stats_file: Option<StatsFile>,
) -> Result<u8, Failure> {
    let write = |file: StatsFile| file.write(&args.command, outcome);
    // Before a second signal of who ended the program may end this process.
    let own = stats_file.take_if(|file| file.is_a_file_of_its_own()).map(write);
    outcome.signals.restore();
    if !args.quiet {
        summary::lines(&outcome.snapshot)
            .iter()
            .for_each(|line| say(line));
    }
    if let Some(hint) = hint(outcome.exit_code, delivery) {
        say(&hint);
    }
    let code = exit_code(outcome.exit_code);
    match own.or_else(|| stats_file.map(write)) {
        // The program's own failure is worth more to the caller than ours.
        Some(Err(failure)) if code == 0 => Err(failure),
        Some(Err(failure)) => {
            say(&failure.text);
            Ok(code)
        }
        Some(Ok(())) | None => Ok(code),
    }
}

/// # Errors
/// One line, where the binary was built without `make build`.
pub fn refuse_without_library() -> Result<(), String> {
    if preload::LIBRARY.is_empty() {
        Err("this binary carries no preload library; build it with `make build`".to_owned())
    } else {
        Ok(())
    }
}

/// What is said of a compressed tier that is larger than the budget allows.
fn too_much_compressed(areas: &[AreaSpec], ram_bytes: u64) -> Option<String> {
    let has_files = areas.iter().any(|area| matches!(area, AreaSpec::Path(_)));
    let (most, words) = match has_files {
        true => (
            tier_share::most_beside_files(ram_bytes),
            "half of the budget, as it has beside a file at most",
        ),
        false => (
            supervisor::compressed_max(ram_bytes),
            "three quarters of the budget",
        ),
    };
    areas.iter().find_map(|area| match area {
        AreaSpec::Compressed { limit: Some(limit) } if *limit > most => Some(format!(
            "--swap compressed:{}: taken as {}, {words}; give more --ram for a larger tier",
            format_size(*limit),
            format_size(most)
        )),
        _ => None,
    })
}

/// What is said of huge pages in a budget that never has any.
fn too_little_for_huge(setting: Huge, ram_bytes: u64) -> Option<String> {
    (setting != Huge::Never && ram_bytes < huge::BUDGET_MIN_BYTES).then(|| {
        format!(
            "--huge: in a budget of {} there are no huge pages; give more --ram for them, {} or more",
            format_size(ram_bytes),
            format_size(huge::BUDGET_MIN_BYTES)
        )
    })
}

/// What is said of swap files that lie in RAM themselves.
fn in_memory(areas: &[AreaSpec]) -> impl Iterator<Item = String> {
    areas.iter().filter_map(|area| match area {
        AreaSpec::Path(spec) if is_in_memory(&spec.path) => Some(format!(
            "--swap {}: {IN_MEMORY}; name a place on a disk",
            spec.path.display()
        )),
        _ => None,
    })
}

/// What is wrong with a swap file that lies in RAM.
pub const IN_MEMORY: &str = "is on a tmpfs, whose files lie in RAM: swapping there frees none";

pub fn is_in_memory(path: &Path) -> bool {
    // A file that is not there yet is made in the directory that it names.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let place = if path.exists() {
        path
    } else {
        directory.unwrap_or(Path::new("."))
    };
    fs::metadata(place).is_ok_and(|meta| !meta.file_type().is_block_device())
        && probe::is_tmpfs(place).unwrap_or(false)
}

fn failed(text: impl Into<String>) -> Failure {
    Failure::new(EXIT_FAILED, text)
}

/// What may have ended a command that our own signals ended.
fn hint(code: i32, delivery: Delivery) -> Option<String> {
    let name = match code - 128 {
        libc::SIGBUS => "SIGBUS",
        libc::SIGSYS => "SIGSYS",
        _ => return None,
    };
    (delivery == Delivery::Signal).then(|| {
        format!(
            "the command ended by {name}; a thread that blocks all signals ends so on swapped memory (the helpers that libc \
             starts for aio_read and SIGEV_THREAD do); if it runs without farpage, try --delivery thread"
        )
    })
}

/// The kernel keeps eight bits of an exit code.
fn exit_code(code: i32) -> u8 {
    (code & 0xFF) as u8
}

fn run_failure(error: RunError) -> Failure {
    match error {
        RunError::Setup(text) => failed(text),
        RunError::NotExecutable(text) => Failure::new(EXIT_NOT_EXECUTABLE, text),
        RunError::NotFound(text) => Failure::new(EXIT_NOT_FOUND, text),
    }
}

fn is_disabled() -> bool {
    let name = join::ENV_DISABLE.to_str().unwrap_or_default();
    env::var_os(name).is_some_and(|value| join::says_yes(value.as_bytes()))
}

/// Becomes the command; returns only if that fails.
fn run_plainly(command: &[OsString]) -> Failure {
    let Some((program, arguments)) = command.split_first() else {
        return failed("no command; name one after --");
    };
    let error = ignored::exec(process::Command::new(program).args(arguments));
    let code = if error.kind() == io::ErrorKind::NotFound {
        EXIT_NOT_FOUND
    } else {
        EXIT_NOT_EXECUTABLE
    };
    Failure::new(
        code,
        format!(
            "{}: {error}; check the name and its permissions",
            program.display()
        ),
    )
}

fn check_command(command: &[OsString]) -> Result<(), Failure> {
    let program = command
        .first()
        .ok_or_else(|| failed("no command; name one after --"))?;
    match elf::inspect(program, Credentials::current()) {
        Ok(_) => Ok(()),
        Err(Refusal::Unmanageable(text)) => Err(failed(text)),
        Err(Refusal::NotExecutable(text)) => Err(Failure::new(EXIT_NOT_EXECUTABLE, text)),
        Err(Refusal::NotFound(text)) => Err(Failure::new(EXIT_NOT_FOUND, text)),
    }
}

fn delivery(asked: DeliveryArg) -> Result<Delivery, Failure> {
    let delivery = match asked {
        DeliveryArg::Auto | DeliveryArg::Signal => Delivery::Signal,
        DeliveryArg::Thread => Delivery::Thread,
    };
    match probe::why_no_userfaultfd(matches!(delivery, Delivery::Thread)) {
        None => Ok(delivery),
        Some(trouble) => Err(failed(format!("cannot catch page faults: {}", trouble.line()))),
    }
}

/// Prints the lines of `--stats`.
fn ticker() -> Box<dyn FnMut(&Snapshot)> {
    let mut columns = Columns::default();
    Box::new(move |snapshot| {
        let row = columns.row(snapshot);
        // Nobody watches the tree while this waits for who reads it: a row is left out instead.
        if probe::takes_text(&io::stderr()) {
            let _ = writeln!(io::stderr(), "{row}");
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_pass_through() {
        assert_eq!([0, 3, 137, 255].map(exit_code), [0, 3, 137, 255]);
        assert_eq!(run_failure(RunError::NotExecutable(String::new())).code, 126);
        assert_eq!(run_failure(RunError::NotFound(String::new())).code, 127);
        assert_eq!(run_failure(RunError::Setup(String::new())).code, 125);
    }
}
