//! A program that is measured, from its start to its end. One that meets the benchmark half-way prints a line there and waits
//! for one.

use std::env;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// What runs longer than this is ended and counts as failed.
pub const TIME_MAX: Duration = Duration::from_secs(180);

/// A running program, in a process group of its own.
pub struct Program {
    id: u32,
    start: Instant,
    to: Option<ChildStdin>,
    heard: Receiver<Heard>,
}

enum Heard {
    /// It is where it wanted to meet; false: it has ended before.
    Met(bool),
    End(io::Result<Output>),
}

/// How a program ended.
pub struct Ended {
    pub seconds: f64,
    pub output: Output,
}

/// A command without settings of farpage in its environment.
pub fn command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    for (name, _) in env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"FARPAGE_") {
            command.env_remove(name);
        }
    }
    command
}

impl Program {
    /// # Errors
    /// One line, if it can't be started.
    pub fn start(words: &[String], meets: bool) -> Result<Self, String> {
        let start = Instant::now();
        let input = if meets { Stdio::piped() } else { Stdio::null() };
        let mut child = command(words)
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| format!("{}: {error}", words[0]))?;
        let (id, to) = (child.id(), child.stdin.take());
        let (sender, heard) = mpsc::channel();
        thread::spawn(move || listen(child, meets, &sender));
        Ok(Self { id, start, to, heard })
    }

    /// Its process, and its group.
    pub fn id(&self) -> u32 {
        self.id
    }

    fn left(&self) -> Duration {
        TIME_MAX.saturating_sub(self.start.elapsed())
    }

    /// Waits for the meeting; false if the program ends without it, or takes too long.
    pub fn meets(&self) -> bool {
        matches!(self.heard.recv_timeout(self.left()), Ok(Heard::Met(true)))
    }

    /// Lets it go on. One that has ended meanwhile tells so by its end.
    pub fn go_on(&mut self) {
        if let Some(mut to) = self.to.take() {
            let _ = writeln!(to, "go");
        }
    }

    /// Waits for the end; what takes too long is ended by `kill`.
    ///
    /// # Errors
    /// One line.
    pub fn end(mut self, kill: impl FnOnce() -> Result<(), String>) -> Result<Ended, String> {
        let output = match self.hear_end() {
            Some(output) => Some(output),
            None => {
                self.to = None;
                kill()?;
                self.heard.iter().find_map(Heard::end)
            }
        };
        let output = output.ok_or("waiting for a program: nobody listens to it")?;
        Ok(Ended {
            seconds: self.start.elapsed().as_secs_f64(),
            output: output.map_err(|error| format!("waiting for a program: {error}"))?,
        })
    }

    fn hear_end(&self) -> Option<io::Result<Output>> {
        // It tells of one meeting at most, then of its end.
        loop {
            let heard = self.heard.recv_timeout(self.left()).ok()?;
            if let Some(output) = heard.end() {
                return Some(output);
            }
        }
    }
}

impl Heard {
    fn end(self) -> Option<io::Result<Output>> {
        match self {
            Self::Met(_) => None,
            Self::End(output) => Some(output),
        }
    }
}

/// Tells of the meeting and of the end. Nobody hears it if the benchmark has given up.
fn listen(mut child: Child, meets: bool, sender: &Sender<Heard>) {
    if meets && let Some(output) = &mut child.stdout {
        let _ = sender.send(Heard::Met(line_comes(output)));
    }
    let _ = sender.send(Heard::End(child.wait_with_output()));
}

/// Reads to the end of the line and no further: the rest is the figures. False at the end of the output.
fn line_comes(output: &mut impl Read) -> bool {
    let mut byte = [0];
    while matches!(output.read(&mut byte), Ok(1)) {
        if byte[0] == b'\n' {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, meets: bool) -> Program {
        Program::start(&["sh".to_owned(), "-c".to_owned(), script.to_owned()], meets).expect("starts")
    }

    #[test]
    fn a_program_waits_at_the_meeting() {
        let mut program = shell("echo ready; read word; echo $word", true);
        assert!(program.meets());
        program.go_on();
        let ended = program.end(|| Err("late".to_owned())).expect("ends");
        assert_eq!(ended.output.stdout, b"go\n");
    }

    #[test]
    fn one_that_ends_early_does_not_come() {
        let mut program = shell("printf no; exit 3", true);
        assert!(!program.meets());
        program.go_on();
        let ended = program.end(|| Err("late".to_owned())).expect("ends");
        assert_eq!(ended.output.status.code(), Some(3));
        let ended = shell("echo all", false).end(|| Ok(())).expect("ends");
        assert_eq!(ended.output.stdout, b"all\n");
    }
}
