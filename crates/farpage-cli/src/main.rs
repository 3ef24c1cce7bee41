//! The command `farpage`: reads what is asked, checks that it can be done, hands it to the engine and tells
//! what came of it. Under `run` stdout belongs to the program, and what farpage says goes to stderr; the other commands answer on stdout.
//!
//! | file | room |
//! |---|---|
//! | `args` | the command line as data |
//! | `run` | `farpage run`: what can be refused is refused first |
//! | `limits`, `elf` | how much RAM there is to share out; whether the program can be managed |
//! | `spec` | `--swap`: where pages are to go |
//! | `summary`, `json` | what a run tells at its end, to people and to programs |
//! | `stats_file` | the file of `--stats-json` |
//! | `stat` | `farpage stat`, and the lines of `run --stats` |
//! | `check` | `farpage check` |
//! | `swapoff` | `farpage swapoff` and `farpage swapon` |
//! | `bench` | `farpage bench`, and the parts of it that are processes of their own |
//! | `sim` | `farpage sim`: what is simulated |
//! | `doctor` | `farpage doctor` |
//! | `needs` | what `run` and `doctor` ask the kernel for |
//! | `probe` | questions to the kernel |
//! | `ignored` | signals that were ignored when farpage began |
//! | `closed` | standard files that were closed then |
#![deny(unsafe_code)]

mod args;
mod bench;
mod check;
mod closed;
mod doctor;
mod elf;
mod ignored;
mod json;
mod limits;
mod needs;
mod probe;
mod run;
mod sim;
mod spec;
mod stat;
mod stats_file;
mod summary;
mod swapoff;

use std::env;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};

use args::{Cli, Command};

/// Our own failure, as `env`, `timeout` and `docker run` have it.
pub const EXIT_FAILED: u8 = 125;
pub const EXIT_NOT_EXECUTABLE: u8 = 126;
pub const EXIT_NOT_FOUND: u8 = 127;

/// A command that ended early: the exit code, and one line that says what, why and how to mend it.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub text: String,
}

impl Failure {
    pub fn new(code: u8, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }
}

fn main() -> ExitCode {
    let cli = match args::without_empty_variables(Cli::command())
        .try_get_matches()
        .and_then(|matches| Cli::from_arg_matches(&matches))
    {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let result = match cli.command {
        Command::Run(args) => run::run(args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Stat(args) => stat::stat(&args),
        Command::Check(args) => check::check(&args),
        Command::Swapoff(args) => swapoff::swapoff(&args),
        Command::Swapon(args) => swapoff::swapon(&args),
        Command::Bench(args) => bench::bench(args),
        Command::Sim(args) => sim::sim(args),
        Command::BenchWork(args) => bench::work(args),
        Command::BenchKeep { directory } => bench::keep(&directory),
        Command::BenchEnter(args) => bench::enter(&args),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            say(&failure.text);
            ExitCode::from(failure.code)
        }
    }
}

/// Help and version go to stdout; a usage error becomes one line, like every other error.
fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            say(
                "no command: run, doctor, stat, check, swapoff, swapon, bench or sim is wanted; see farpage --help",
            );
        }
        _ if is_missing_dashes(error) => say("the command to run is wanted after --; see farpage run --help"),
        _ => {
            let (text, help) = (one_line(&error.render().to_string()), "see farpage --help");
            match variable(error) {
                // The rest of clap's words is about an option that was not given.
                Some((name, value)) => {
                    let shown = format!(
                        "' for '{}'",
                        error
                            .get(ContextKind::InvalidArg)
                            .map_or(String::new(), ToString::to_string)
                    );
                    let why = text.split_once(&shown).map_or("is not possible", |(_, why)| why);
                    say(&format!(
                        "{name}={value}: {}; {help}",
                        why.trim_start_matches([':', ' '])
                    ));
                }
                None => say(&format!("{text}; {help}")),
            }
        }
    }
    ExitCode::from(EXIT_FAILED)
}

/// The variable in the environment that an error is about, and its value: what it gives for an option that is not on the command line.
fn variable(error: &clap::Error) -> Option<(String, String)> {
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let option = shown.split([' ', '=']).next()?;
    let is_given = |word: String| word == option || word.starts_with(&format!("{option}="));
    let mut ours = env::args_os().take_while(|word| word != "--");
    if ours.any(|word| is_given(word.to_string_lossy().into_owned())) {
        return None;
    }
    let name = format!(
        "FARPAGE_{}",
        option.trim_start_matches('-').replace('-', "_").to_uppercase()
    );
    let value = env::var_os(&name)?.to_string_lossy().into_owned();
    Some((name, value))
}

/// `farpage run sort.py` or `farpage run`: a plain word where only options stand, or nothing after them.
fn is_missing_dashes(error: &clap::Error) -> bool {
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) => !word.starts_with('-'),
        (ErrorKind::MissingRequiredArgument, Some(ContextValue::Strings(missing))) => {
            missing.iter().any(|word| word.contains("CMD"))
        }
        _ => false,
    }
}

/// What clap spreads over paragraphs, without the usage that it appends.
fn one_line(rendered: &str) -> String {
    let text = rendered.split("\nUsage:").next().unwrap_or_default();
    let text = text.split("\nFor more information").next().unwrap_or_default();
    let words: Vec<_> = text
        .strip_prefix("error: ")
        .unwrap_or(text)
        .split_whitespace()
        .collect();
    words.join(" ")
}

/// One line to stderr. A closed stderr is no reason to stop.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr(), "farpage: {text}");
}

/// Text to stdout; `false` if the reader has gone, as `head` does.
#[must_use]
pub fn print(text: &str) -> bool {
    writeln!(io::stdout(), "{text}").is_ok()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn a_forgotten_separator_is_named() {
        let wrong = |words: &[&str]| Cli::try_parse_from(words).expect_err("wrong usage");
        assert!(is_missing_dashes(&wrong(&["farpage", "run", "-q", "python3"])));
        assert!(is_missing_dashes(&wrong(&["farpage", "run"])));
        assert!(!is_missing_dashes(&wrong(&[
            "farpage", "run", "--ramm", "1G", "--", "true"
        ])));
        assert!(!is_missing_dashes(&wrong(&["farpage", "swapoff"])));
    }

    #[test]
    fn usage_errors_are_one_line() {
        for words in [
            &["farpage", "run"][..],
            &["farpage", "run", "--ram", "x", "--", "a"],
            &["farpage", "what"],
        ] {
            let error = Cli::try_parse_from(words).expect_err("wrong usage");
            let line = one_line(&error.render().to_string());
            assert!(
                !line.is_empty() && !line.contains('\n') && !line.contains("Usage"),
                "{line}"
            );
        }
    }
}
