//! redis-server with values of a page each: filled, read at random, and saved by a forked child while values are replaced.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use farpage_core::units::PAGE_SIZE;
use serde_json::{Value, json};

use super::content::{Content, Random};
use super::latency::Latencies;
use super::{Checks, WorkArgs, succeed};

/// The server.
pub const TOOL: &str = "redis-server";
/// What it takes for a value of a page, in bytes: its allocator's next size, key and entry.
const KEY_BYTES: u64 = 5 << 10;
/// Commands sent before their replies are read.
const PIPELINE: usize = 64;
/// Values replaced between two looks at whether the child still saves.
const LOOK: usize = 50;
const START_TRIES: u32 = 1000;
const START_TRY: Duration = Duration::from_millis(10);
/// Every so many keys one is compared in the end.
const SAMPLE: usize = 7;

pub fn redis(args: &WorkArgs) -> Result<Value, String> {
    let (server, mut client) = Server::start(args.place()?)?;
    let content = Content::new(args.incompressible);
    let keys = (args.bytes / KEY_BYTES).max(1) as usize;
    let mut store = Store {
        content: &content,
        versions: vec![0; keys],
        page: vec![0; PAGE_SIZE],
        random: Random::new(21),
        checks: Checks::default(),
    };
    let mut latencies = Latencies::default();
    let told = (|| {
        let client = &mut client;
        let fill_s = store.fill(client)?;
        store.read(client, args.seconds, &mut latencies)?;
        let (bgsave_s, beside) = store.save(client)?;
        for key in (0..keys).step_by(SAMPLE) {
            store.get(client, key)?;
        }
        Ok(json!({
            "keys": keys,
            "sets_per_s": keys as f64 / fill_s,
            "gets_per_s": latencies.count() as f64 / args.seconds,
            "gets": latencies.figures(),
            "bgsave_s": bgsave_s,
            "sets_beside_per_s": beside as f64 / bgsave_s,
        }))
    })();
    let mut figures = told.map_err(|error: io::Error| format!("{TOOL}: {error}"))?;
    server.end(&mut client)?;
    store.checks.tell(&mut figures);
    Ok(figures)
}

/// A running server. Killed if it is not ended.
struct Server(Child);

impl Server {
    fn start(place: &Path) -> Result<(Self, Client), String> {
        let failed = |error: io::Error| format!("{TOOL}: {error}");
        // A socket's path may have 107 characters; through the directory it is short wherever that is.
        let directory = File::open(place).map_err(failed)?;
        let socket = format!("/proc/self/fd/{}/socket", directory.as_raw_fd());
        let child = Command::new(TOOL)
            .args([
                "--port",
                "0",
                "--unixsocket",
                "socket",
                "--save",
                "",
                "--appendonly",
                "no",
            ])
            .current_dir(place)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let mut server = Self(child.map_err(failed)?);
        for _ in 0..START_TRIES {
            if let Ok(stream) = UnixStream::connect(&socket) {
                return Ok((server, Client(BufReader::new(stream))));
            }
            if let Ok(Some(status)) = server.0.try_wait() {
                return Err(format!("{TOOL}: {status}"));
            }
            thread::sleep(START_TRY);
        }
        Err(format!("{TOOL}: does not listen"))
    }

    fn end(mut self, client: &mut Client) -> Result<(), String> {
        // The answer to this is the end of the connection.
        let _ = client.ask(&[b"SHUTDOWN", b"NOSAVE"]);
        succeed(TOOL, &mut self.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A connection; speaks the protocol RESP 2.
struct Client(BufReader<UnixStream>);

impl Client {
    fn send(&mut self, words: &[&[u8]]) -> io::Result<()> {
        let mut out = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            out.extend(format!("${}\r\n", word.len()).bytes());
            out.extend(*word);
            out.extend(b"\r\n");
        }
        self.0.get_mut().write_all(&out)
    }

    /// The text of a simple reply, or the bytes of a string; nothing where there is no such key.
    fn reply(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line)?;
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        match text.split_at_checked(1) {
            Some(("+" | ":", rest)) => Ok(rest.as_bytes().to_vec()),
            Some(("$", "-1")) => Ok(Vec::new()),
            Some(("$", length)) => {
                let length = length.parse::<usize>().map_err(io::Error::other)?;
                let mut bytes = vec![0; length + 2];
                self.0.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Ok(bytes)
            }
            Some(("-", error)) => Err(io::Error::other(error.to_owned())),
            _ => Err(io::Error::other(format!("not understood: {text:?}"))),
        }
    }

    fn ask(&mut self, words: &[&[u8]]) -> io::Result<Vec<u8>> {
        self.send(words)?;
        self.reply()
    }
}

/// What the server is to hold.
struct Store<'a> {
    content: &'a Content,
    versions: Vec<u32>,
    page: Vec<u8>,
    random: Random,
    checks: Checks,
}

impl Store<'_> {
    fn send(&mut self, client: &mut Client, key: usize) -> io::Result<()> {
        self.content.write(&mut self.page, key, self.versions[key]);
        client.send(&[b"SET", format!("key:{key}").as_bytes(), &self.page])
    }

    fn get(&mut self, client: &mut Client, key: usize) -> io::Result<()> {
        let value = client.ask(&[b"GET", format!("key:{key}").as_bytes()])?;
        let right = value.len() == PAGE_SIZE && self.content.is(&value, key, self.versions[key]);
        self.checks.note(right);
        Ok(())
    }

    /// Every key for the first time; seconds.
    fn fill(&mut self, client: &mut Client) -> io::Result<f64> {
        let start = Instant::now();
        let keys = self.versions.len();
        for first in (0..keys).step_by(PIPELINE) {
            let some = first..(first + PIPELINE).min(keys);
            some.clone().try_for_each(|key| self.send(client, key))?;
            some.map(|_| client.reply())
                .try_for_each(|reply| reply.map(|_| ()))?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    fn read(&mut self, client: &mut Client, seconds: f64, latencies: &mut Latencies) -> io::Result<()> {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        loop {
            let key = self.random.below(self.versions.len());
            let start = Instant::now();
            self.get(client, key)?;
            let now = Instant::now();
            latencies.record((now - start).as_nanos() as u64);
            if now >= end {
                return Ok(());
            }
        }
    }

    /// BGSAVE, and values replaced at random until it is done: its seconds, and their number.
    fn save(&mut self, client: &mut Client) -> io::Result<(f64, usize)> {
        let start = Instant::now();
        client.ask(&[b"BGSAVE"])?;
        let mut replaced = 0;
        loop {
            for _ in 0..LOOK {
                let key = self.random.below(self.versions.len());
                self.versions[key] += 1;
                self.send(client, key)?;
                client.reply()?;
            }
            replaced += LOOK;
            let told = client.ask(&[b"INFO", b"persistence"])?;
            let told = String::from_utf8_lossy(&told);
            if told.contains("rdb_bgsave_in_progress:0") {
                self.checks.note(told.contains("rdb_last_bgsave_status:ok"));
                return Ok((start.elapsed().as_secs_f64(), replaced));
            }
        }
    }
}
