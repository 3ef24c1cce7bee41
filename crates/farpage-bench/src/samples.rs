//! Counters while a program runs, ten times a second: its faults and its swap traffic over time. They are looked at from outside: the
//! kernel's in /proc/vmstat, which are those of the whole machine, farpage's by `farpage stat`, a process beside the tree (a quarter of a
//! millisecond of CPU time each).

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::figures::items;
use crate::program::command;

const EVERY: Duration = Duration::from_millis(100);
/// How long after a tree was not there yet it is looked for again.
const AGAIN: Duration = Duration::from_millis(20);

/// Whose counters.
pub enum Source {
    Kernel,
    /// Of the tree that process belongs to, by this binary.
    Farpage(PathBuf, u32),
}

/// The counters at one moment, since the machine's or the tree's start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sample {
    seconds: f64,
    faults: u64,
    pages_in: u64,
    pages_out: u64,
}

/// Samples until it is ended.
pub struct Sampler {
    stop: Sender<()>,
    looker: Arc<Mutex<Looker>>,
    thread: JoinHandle<Vec<Sample>>,
}

/// The process that looks at a tree. Once it is over none is started.
#[derive(Default)]
struct Looker {
    over: bool,
    child: Option<Child>,
}

impl Sampler {
    pub fn start(source: Source) -> Self {
        let (stop, stopped) = mpsc::channel();
        let start = Instant::now();
        let looker = Arc::new(Mutex::new(Looker::default()));
        let shared = Arc::clone(&looker);
        let thread = thread::spawn(move || match source {
            Source::Kernel => of_kernel(start, &stopped),
            Source::Farpage(program, pid) => of_tree(&program, pid, start, &shared, &stopped),
        });
        Self { stop, looker, thread }
    }

    /// What was seen; a sampler that died has seen nothing.
    pub fn end(self) -> Value {
        // One that has ended by itself hears nothing, and its process is gone.
        let _ = self.stop.send(());
        if let Ok(mut looker) = self.looker.lock() {
            looker.over = true;
            if let Some(child) = &mut looker.child {
                let _ = child.kill();
            }
        }
        json(&self.thread.join().unwrap_or_default())
    }
}

fn of_kernel(start: Instant, stopped: &Receiver<()>) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut due = Duration::ZERO;
    loop {
        samples.push(of_vmstat(
            start,
            &fs::read_to_string("/proc/vmstat").unwrap_or_default(),
        ));
        due += EVERY;
        // Ends when it is told to, or nobody can tell it any more.
        if stopped.recv_timeout(due.saturating_sub(start.elapsed())) != Err(RecvTimeoutError::Timeout) {
            return samples;
        }
    }
}

fn of_vmstat(start: Instant, text: &str) -> Sample {
    let counter = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        let number = lines.find(|(known, _)| *known == name);
        number.and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
    };
    Sample {
        seconds: start.elapsed().as_secs_f64(),
        faults: counter("pgmajfault"),
        pages_in: counter("pswpin"),
        pages_out: counter("pswpout"),
    }
}

/// Looks for the tree until it is there, then goes with it to its end.
fn of_tree(
    program: &Path,
    pid: u32,
    start: Instant,
    looker: &Mutex<Looker>,
    stopped: &Receiver<()>,
) -> Vec<Sample> {
    let words = [
        program.display().to_string(),
        "stat".to_owned(),
        "--json".to_owned(),
        pid.to_string(),
        EVERY.as_secs_f64().to_string(),
    ];
    let mut samples = Vec::new();
    // Ends when it is told to, when the tree has ended, or when no process can be started.
    while samples.is_empty() && stopped.recv_timeout(AGAIN) == Err(RecvTimeoutError::Timeout) {
        let Some(output) = look(&words, looker) else {
            break;
        };
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        let all = lines.filter_map(|line| serde_json::from_str(&line).ok());
        samples.extend(all.map(|counters| of_counters(start, &counters)));
        if let Ok(mut looker) = looker.lock()
            && let Some(mut child) = looker.child.take()
        {
            // It has closed its output: it has ended, or was ended.
            let _ = child.wait();
        }
    }
    samples
}

/// Starts the process that looks, unless it is over.
fn look(words: &[String], looker: &Mutex<Looker>) -> Option<ChildStdout> {
    let mut looker = looker.lock().ok().filter(|looker| !looker.over)?;
    let mut child = command(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let output = child.stdout.take();
    looker.child = Some(child);
    output
}

fn of_counters(start: Instant, counters: &Value) -> Sample {
    let sum = |names: [&str; 2]| names.iter().filter_map(|name| counters[name].as_u64()).sum();
    Sample {
        seconds: start.elapsed().as_secs_f64(),
        faults: counters["pgmajfault"].as_u64().unwrap_or(0),
        pages_in: sum(["pswpin", "zswpin"]),
        pages_out: sum(["pswpout", "zswpout"]),
    }
}

/// In columns, each counter since the first sample.
fn json(samples: &[Sample]) -> Value {
    let first = samples.first().copied().unwrap_or_default();
    let column = |of: fn(&Sample) -> u64| -> Vec<u64> {
        samples
            .iter()
            .map(|one| of(one).saturating_sub(of(&first)))
            .collect()
    };
    json!({
        "seconds": samples.iter().map(|one| (one.seconds * 1e3).round() / 1e3).collect::<Vec<_>>(),
        "pgmajfault": column(|one| one.faults),
        "pages_in": column(|one| one.pages_in),
        "pages_out": column(|one| one.pages_out),
    })
}

/// The rate of a counter between each sample and the one before, per second: the middle of that time, and the rate.
#[must_use]
pub fn rates(samples: &Value, counter: &str) -> Vec<(f64, f64)> {
    let values = |key: &str| -> Vec<f64> { items(&samples[key]).iter().filter_map(Value::as_f64).collect() };
    let (times, counts) = (values("seconds"), values(counter));
    let pairs = times.windows(2).zip(counts.windows(2));
    let rate = |(time, count): (&[f64], &[f64])| {
        let seconds = time[1] - time[0];
        (seconds > 0.0).then(|| ((time[0] + time[1]) / 2.0, (count[1] - count[0]) / seconds))
    };
    pairs.filter_map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_both_sides() {
        let start = Instant::now();
        let kernel = of_vmstat(start, "pswpin 3\npswpout 4\nnr_x 9\npgmajfault 5\n");
        assert_eq!((kernel.faults, kernel.pages_in, kernel.pages_out), (5, 3, 4));
        let counters = json!({"pgmajfault": 7, "pswpin": 1, "zswpin": 2, "zswpout": 4});
        let tree = of_counters(start, &counters);
        assert_eq!((tree.faults, tree.pages_in, tree.pages_out), (7, 3, 4));
    }

    #[test]
    fn rates_are_between_two_samples() {
        let sample = |seconds, faults| Sample {
            seconds,
            faults,
            ..Sample::default()
        };
        let told = json(&[
            sample(0.5, 100),
            sample(1.5, 300),
            sample(1.5, 300),
            sample(2.0, 310),
        ]);
        assert_eq!(told["pgmajfault"], json!([0, 200, 200, 210]));
        assert_eq!(rates(&told, "pgmajfault"), [(1.0, 200.0), (1.75, 20.0)]);
        assert_eq!(rates(&Value::Null, "pgmajfault"), []);
    }

    #[test]
    fn the_kernel_is_looked_at_until_the_end() {
        let told = Sampler::start(Source::Kernel).end();
        assert!(!items(&told["seconds"]).is_empty(), "{told}");
    }

    #[test]
    fn a_tree_that_is_not_there_is_none() {
        let sampler = Sampler::start(Source::Farpage("/bin/false".into(), 1));
        thread::sleep(AGAIN * 3);
        assert_eq!(sampler.end()["seconds"], json!([]));
        let none = Sampler::start(Source::Farpage("/nowhere/farpage".into(), 1));
        assert_eq!(none.end()["seconds"], json!([]));
    }

    /// A tree may go on by itself: the benchmark does not wait for it.
    #[test]
    fn who_looks_is_ended() {
        let script = std::env::temp_dir().join(format!("farpage-looks-{}", std::process::id()));
        fs::write(
            &script,
            "#!/bin/sh\necho '{\"pgmajfault\": 1}'\nexec sleep 1000\n",
        )
        .expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(&script, mode).expect("set");
        let sampler = Sampler::start(Source::Farpage(script.clone(), 1));
        thread::sleep(AGAIN * 10);
        let told = sampler.end();
        fs::remove_file(&script).expect("removed");
        assert!(items(&told["seconds"]).len() <= 1, "{told}");
    }
}
