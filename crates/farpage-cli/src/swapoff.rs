//! `farpage swapoff` and `farpage swapon`: a tier leaves or joins a running tree.

use std::io::{self, IsTerminal, Write};
use std::path::{self, Path};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use farpage::areas;
use farpage::control::{self, Client, Progress, Request, Tier};
use farpage::pool::Pool;
use farpage::supervisor::{AreaSpec, PathSpec};
use farpage::swapoff::{FIXED_MAX, Order};
use farpage::trees;
use farpage_core::units::{PAGE_SIZE, format_size};
use serde_json::{Value, json};

use crate::args::{OrderArg, SwapoffArgs, SwaponArgs, WindowArg};
use crate::{Failure, print, probe, say, stat};

const SCHEMA: &str = "farpage.swapoff.1";
/// Time between two looks, and between two states of the progress bar.
const LOOK: Duration = Duration::from_millis(1);
const DRAW: Duration = Duration::from_millis(100);
const BAR: usize = 30;
/// Bytes of an area's name that the pool keeps.
const NAME_MAX: usize = 119;
/// Bytes of the longest character, before which it may be cut.
const CHAR_MAX: usize = 4;

/// Empties an area and closes it: 0, or 1 and the area is in use as before.
pub fn swapoff(args: &SwapoffArgs) -> Result<u8, Failure> {
    let (tree, pool) = tree(args.pid)?;
    let areas = control::areas_of(&pool);
    let tier = chosen(&args.area, &areas, control::has_compressed(&pool)).map_err(failed)?;
    let window = window(args)?;
    let before = Figures::of(&pool);
    let file = file_of(&pool, tier);
    let start = Instant::now();
    let request = Request::Swapoff {
        tier,
        order: Order::ALL
            .iter()
            .position(|order| *order == args.order.order())
            .unwrap_or_default() as u32,
        window: window.number(),
    };
    carry_out(pool, &request)?;
    let done = Figures::of(&pool).since(&before);
    let elapsed = start.elapsed();
    let name = areas
        .iter()
        .find(|(index, _)| Tier::Area(*index) == tier)
        .map_or("compressed", |(_, name)| name);
    let held_by = file.map_or_else(Vec::new, |file| trees::holders(&pool, file));
    if args.json {
        let _ = print(&as_json(args, tree, name, elapsed, &done, &held_by).to_string());
    } else {
        say(&format!(
            "{name}: emptied and closed in {:.1} s: {} to RAM, {} to other tiers",
            elapsed.as_secs_f64(),
            format_size(done.to_ram * PAGE_SIZE as u64),
            format_size(done.to_tiers * PAGE_SIZE as u64)
        ));
        if !held_by.is_empty() {
            let pids: Vec<_> = held_by.iter().map(i32::to_string).collect();
            say(&format!(
                "{name}: still open in processes that use none of it and let go when they end or need memory: {}",
                pids.join(" ")
            ));
        }
    }
    Ok(0)
}

/// Device and inode of a tier's file.
fn file_of(pool: &Pool, tier: Tier) -> Option<(u64, u64)> {
    let area = match tier {
        Tier::Area(index) => &pool.header().area[index],
        Tier::Compressed => return None,
    };
    let (device, inode) = (area.dev.load(Ordering::Relaxed), area.ino.load(Ordering::Acquire));
    (inode != 0).then_some((device, inode))
}

/// Adds an area: 0, or 1 and nothing has changed.
pub fn swapon(args: &SwaponArgs) -> Result<u8, Failure> {
    let (_, pool) = tree(args.pid)?;
    let spec = match &args.spec {
        AreaSpec::Compressed { limit } => return compress_again(pool, *limit),
        AreaSpec::Path(spec) => spec,
    };
    areas::refuse_bare(&spec.path).map_err(failed)?;
    // The supervisor has another current directory.
    let path =
        path::absolute(&spec.path).map_err(|error| failed(format!("{}: {error}", spec.path.display())))?;
    let request = Request::Swapon(PathSpec {
        path: path.clone(),
        ..spec.clone()
    });
    let area = carry_out(pool, &request)?;
    let bytes = pool.header().area[area].blocks.load(Ordering::Relaxed) * PAGE_SIZE as u64;
    say(&format!(
        "{}: in use as area {}, {}",
        path.display(),
        area + 1,
        format_size(bytes)
    ));
    Ok(0)
}

/// The compressed tier comes back as it was.
fn compress_again(pool: Pool, size: Option<u64>) -> Result<u8, Failure> {
    let why = match (control::has_compressed(&pool), size) {
        (None, _) => {
            "the compressed tier is part of a tree from its start or not at all; give it to farpage run --swap"
        }
        (Some(true), _) => "in use already",
        (Some(false), Some(_)) => "it comes back with the size that it had; give none",
        (Some(false), None) => {
            carry_out(pool, &Request::SwaponCompressed)?;
            say("compressed: in use again");
            return Ok(0);
        }
    };
    Err(failed(format!("compressed: {why}")))
}

fn failed(text: impl Into<String>) -> Failure {
    Failure::new(1, text)
}

fn tree(pid: Option<i32>) -> Result<(i32, Pool), Failure> {
    let pid = stat::choose(pid, trees::running)?;
    match trees::open(pid) {
        Some((_, pool)) => Ok((pid, pool)),
        None => Err(failed(format!(
            "process {pid} belongs to no running farpage tree that you may change; are you its user?"
        ))),
    }
}

fn window(args: &SwapoffArgs) -> Result<WindowArg, Failure> {
    match (args.order, args.window) {
        (OrderArg::Device, Some(WindowArg::Uncounted)) => Err(failed(
            "--window uncounted: in the device's order nothing is looked up; give a number, or --order vma or cluster",
        )),
        (OrderArg::Vma | OrderArg::Cluster, Some(WindowArg::Fixed(pages))) if pages > FIXED_MAX => {
            Err(failed(format!(
                "--window {pages}: with --order vma and cluster the greatest is {FIXED_MAX}"
            )))
        }
        (_, window) => Ok(window.unwrap_or(WindowArg::Counted)),
    }
}

/// The tier that is meant, by number or by path.
fn chosen(word: &str, areas: &[(usize, String)], has_compressed: Option<bool>) -> Result<Tier, String> {
    let listed = || {
        let lines: Vec<_> = areas
            .iter()
            .map(|(index, name)| format!("{} {name}", index + 1))
            .collect();
        match lines.is_empty() {
            true => "the tree has no swap file or device".to_owned(),
            false => format!("there are: {}", lines.join(", ")),
        }
    };
    if word == "compressed" || word == "0" {
        return match has_compressed {
            Some(true) => Ok(Tier::Compressed),
            Some(false) => Err(format!(
                "{word}: the compressed tier has been taken away already; farpage swapon compressed brings it back"
            )),
            None => Err(format!(
                "{word}: the tree has no compressed tier; name a file or device: {}",
                listed()
            )),
        };
    }
    if let Ok(number) = word.parse::<usize>() {
        let found = areas.iter().find(|(index, _)| index + 1 == number);
        return found
            .map(|(index, _)| Tier::Area(*index))
            .ok_or_else(|| format!("no area has the number {number}; {}", listed()));
    }
    let is_meant = |name: &str| {
        name == word
            || (name.len() > NAME_MAX - CHAR_MAX && word.starts_with(name))
            || path::absolute(word).is_ok_and(|path| path == Path::new(name))
    };
    let found: Vec<_> = areas.iter().filter(|(_, name)| is_meant(name)).collect();
    match found[..] {
        [(index, _)] => Ok(Tier::Area(*index)),
        [] => Err(format!("{word}: no area of this name; {}", listed())),
        _ => Err(format!(
            "{word}: several areas have this name; give a number; {}",
            listed()
        )),
    }
}

/// Puts the request and waits for its end; the area concerned.
fn carry_out(pool: Pool, request: &Request) -> Result<usize, Failure> {
    probe::catch_interrupts();
    let client = Client::ask(pool, request).map_err(failed)?;
    let mut bar = Bar::new();
    let mut cancelled = false;
    loop {
        let progress = client.look();
        match progress {
            Progress::Running { left, total } => bar.show(left, total),
            Progress::Done { area } => {
                bar.clear();
                return Ok(area);
            }
            Progress::Failed(why) => {
                bar.clear();
                return Err(failed(why));
            }
        }
        if probe::is_interrupted() && !cancelled {
            client.cancel();
            cancelled = true;
        }
        thread::sleep(LOOK);
    }
}

/// A line that is drawn anew, on a terminal only.
struct Bar {
    start: Instant,
    drawn: Option<Instant>,
    is_terminal: bool,
}

impl Bar {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            drawn: None,
            is_terminal: io::stderr().is_terminal(),
        }
    }

    fn show(&mut self, left: u64, total: u64) {
        let due = self.drawn.is_none_or(|drawn| drawn.elapsed() >= DRAW);
        if self.is_terminal && due && total > 0 {
            self.drawn = Some(Instant::now());
            let line = bar_line(left, total, self.start.elapsed().as_secs_f64());
            let _ = write!(io::stderr(), "\r{line}\x1b[K");
        }
    }

    fn clear(&self) {
        if self.drawn.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn bar_line(left: u64, total: u64, seconds: f64) -> String {
    let done = total.saturating_sub(left);
    let bytes = |pages: u64| pages * PAGE_SIZE as u64;
    let full = (done as usize * BAR) / (total.max(1) as usize);
    let speed = (bytes(done) as f64 / seconds.max(0.001)) as u64;
    format!(
        "[{:<BAR$}] {:>3}% {} of {}, {}/s",
        "#".repeat(full.min(BAR)),
        done * 100 / total.max(1),
        format_size(bytes(done)),
        format_size(bytes(total)),
        format_size(speed)
    )
}

/// Counts that only grow.
struct Figures {
    to_ram: u64,
    to_tiers: u64,
    windows: Vec<u64>,
}

impl Figures {
    fn of(pool: &Pool) -> Self {
        let control = &pool.header().control;
        let (to_ram, to_tiers) = control.placed();
        Self {
            to_ram,
            to_tiers,
            windows: control.windows.counts().to_vec(),
        }
    }

    fn since(&self, before: &Self) -> Self {
        let windows = self.windows.iter().zip(&before.windows);
        Self {
            to_ram: self.to_ram.saturating_sub(before.to_ram),
            to_tiers: self.to_tiers.saturating_sub(before.to_tiers),
            windows: windows.map(|(now, then)| now.saturating_sub(*then)).collect(),
        }
    }
}

fn as_json(
    args: &SwapoffArgs,
    tree: i32,
    name: &str,
    elapsed: Duration,
    done: &Figures,
    held_by: &[i32],
) -> Value {
    let order = format!("{:?}", args.order).to_lowercase();
    let window = match args.window {
        Some(WindowArg::Fixed(pages)) => json!(pages),
        Some(WindowArg::Uncounted) => json!("uncounted"),
        Some(WindowArg::Counted) => json!("counted"),
        None => Value::Null,
    };
    json!({
        "schema": SCHEMA,
        "supervisor_pid": tree,
        "area": name,
        "order": order,
        "window": window,
        "elapsed_ns": elapsed.as_nanos() as u64,
        "pages_to_ram": done.to_ram,
        "pages_to_tiers": done.to_tiers,
        "windows": done.windows,
        "held_by": held_by,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn areas() -> Vec<(usize, String)> {
        let area = |index, name: &str| (index, name.to_owned());
        vec![area(0, "/a"), area(2, "/b"), area(3, "/b"), area(4, "disk")]
    }

    #[test]
    fn an_area_is_named_by_number_or_path() {
        let chosen = |word| chosen(word, &areas(), None);
        let area = |index| Ok(Tier::Area(index));
        assert_eq!(
            (chosen("1"), chosen("/a"), chosen("disk")),
            (area(0), area(0), area(4))
        );
        assert_eq!(chosen("3"), area(2));
        for (word, why) in [
            ("2", "no area has the number 2"),
            ("/b", "several areas"),
            ("/c", "no area of this name; there are: 1 /a, 3 /b, 4 /b, 5 disk"),
            ("compressed", "no compressed tier"),
        ] {
            let text = chosen(word).unwrap_err();
            assert!(text.contains(why) && !text.contains('\n'), "{text}");
        }
        let long = "/".repeat(NAME_MAX);
        assert_eq!(
            super::chosen(&(long.clone() + "rest"), &[(5, long)], None),
            area(5)
        );
        assert_eq!(
            super::chosen("compressed", &areas(), Some(true)),
            Ok(Tier::Compressed)
        );
        let gone = super::chosen("0", &areas(), Some(false)).unwrap_err();
        assert!(gone.contains("swapon compressed"), "{gone}");
    }

    fn parsed(words: &[&str]) -> Option<SwapoffArgs> {
        match Cli::try_parse_from(["farpage", "swapoff"].iter().chain(words))
            .ok()?
            .command
        {
            Command::Swapoff(args) => Some(args),
            _ => None,
        }
    }

    #[test]
    fn windows_fit_the_order() {
        let number = |words: &[&str]| {
            let args = parsed(words).expect("parses");
            window(&args)
                .map(WindowArg::number)
                .map_err(|failure| failure.code)
        };
        assert_eq!(number(&["1"]), Ok(0));
        assert_eq!(number(&["1", "--window", "128"]), Ok(128));
        assert_eq!(number(&["1", "--window", "uncounted"]), Err(1));
        assert_eq!(
            number(&["1", "--order", "vma", "--window", "uncounted"]),
            Ok(u32::MAX)
        );
        assert_eq!(number(&["1", "--order", "cluster", "--window", "65"]), Err(1));
        assert!(parsed(&["1", "--window", "513"]).is_none() && parsed(&["1", "--window", "0"]).is_none());
    }

    #[test]
    fn the_bar_tells_how_far_it_is() {
        let line = bar_line(64, 256, 2.0);
        assert_eq!(
            line,
            "[######################        ]  75% 768 KiB of 1 MiB, 384 KiB/s"
        );
        assert!(bar_line(0, 0, 0.0).contains("0%"));
    }

    #[test]
    fn json_names_the_windows() {
        let args = parsed(&["1", "--order", "vma", "--window", "8"]).expect("parses");
        let done = Figures {
            to_ram: 3,
            to_tiers: 4,
            windows: vec![0, 7],
        };
        let value = as_json(&args, 9, "/a", Duration::from_micros(2), &done, &[]);
        assert_eq!((&value["order"], &value["window"]), (&json!("vma"), &json!(8)));
        assert_eq!(
            (&value["windows"][1], &value["elapsed_ns"]),
            (&json!(7), &json!(2000))
        );
    }
}
