//! redis-server with values of 1 KiB, as system T was measured with: filled, read at random by pipelining clients, and read in the same
//! way while a forked child saves it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::mem;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::content::{Content, Random};
use super::{Checks, WorkArgs, succeed};

/// The server.
pub const TOOL: &str = "redis-server";
const VALUE_BYTES: usize = 1 << 10;
/// What it takes for a value, in bytes: its allocator's next size, key and entry.
const KEY_BYTES: u64 = 1400;
/// Connections that read, and commands sent on each before their replies are read.
const CLIENTS: usize = 12;
const PIPELINE: usize = 32;
const START_TRIES: u32 = 1000;
const START_TRY: Duration = Duration::from_millis(10);

pub fn redis(args: &WorkArgs) -> Result<Value, String> {
    let failed = |error: io::Error| format!("{TOOL}: {error}");
    let server = Server::start(args.place()?)?;
    let mut control = server.connect().map_err(failed)?;
    let clients = (0..CLIENTS).map(|_| server.connect()).collect::<io::Result<_>>();
    let mut store = Store {
        content: Content::new(args.incompressible),
        keys: (args.bytes / KEY_BYTES).max(1) as usize,
        clients: clients.map_err(failed)?,
        random: Random::new(21),
        checks: Checks::default(),
    };
    let mut figures = store.measure(&mut control, args.seconds).map_err(failed)?;
    server.end(&mut control)?;
    store.checks.tell(&mut figures);
    Ok(figures)
}

/// A running server. Killed if it is not ended.
struct Server {
    child: Child,
    directory: File,
}

impl Server {
    fn start(place: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("{TOOL}: {error}");
        let directory = File::open(place).map_err(failed)?;
        let words = [
            "--port",
            "0",
            "--unixsocket",
            "socket",
            "--appendonly",
            "no",
            "--save",
            "",
        ];
        let child = Command::new(TOOL)
            .args(words)
            .current_dir(place)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let child = child.map_err(failed)?;
        let mut server = Self { child, directory };
        for _ in 0..START_TRIES {
            if server.connect().is_ok() {
                return Ok(server);
            }
            if let Ok(Some(status)) = server.child.try_wait() {
                return Err(format!("{TOOL}: {status}"));
            }
            thread::sleep(START_TRY);
        }
        Err(format!("{TOOL}: does not listen"))
    }

    fn connect(&self) -> io::Result<Client> {
        // A socket's path may have 107 characters; through the directory it is short wherever that is.
        let socket = format!("/proc/self/fd/{}/socket", self.directory.as_raw_fd());
        Ok(Client {
            stream: BufReader::with_capacity(PIPELINE * VALUE_BYTES, UnixStream::connect(socket)?),
            commands: Vec::new(),
        })
    }

    fn end(mut self, control: &mut Client) -> Result<(), String> {
        // The answer to this is the end of the connection.
        let _ = control.ask(&[b"SHUTDOWN", b"NOSAVE"]);
        succeed(TOOL, &mut self.child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It fails only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection; speaks the protocol RESP 2.
struct Client {
    stream: BufReader<UnixStream>,
    /// What is to be sent.
    commands: Vec<u8>,
}

impl Client {
    fn command(&mut self, words: &[&[u8]]) {
        self.commands.extend(format!("*{}\r\n", words.len()).bytes());
        for word in words {
            self.commands.extend(format!("${}\r\n", word.len()).bytes());
            self.commands.extend(*word);
            self.commands.extend(b"\r\n");
        }
    }

    fn send(&mut self) -> io::Result<()> {
        self.stream.get_mut().write_all(&self.commands)?;
        self.commands.clear();
        Ok(())
    }

    /// The text of a simple reply, or the bytes of a string; nothing where there is no such key.
    fn reply(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        match text.split_at_checked(1) {
            Some(("+" | ":", rest)) => Ok(rest.as_bytes().to_vec()),
            Some(("$", "-1")) => Ok(Vec::new()),
            Some(("$", length)) => {
                let length = length.parse::<usize>().map_err(io::Error::other)?;
                let mut bytes = vec![0; length + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Ok(bytes)
            }
            Some(("-", error)) => Err(io::Error::other(error.to_owned())),
            _ => Err(io::Error::other(format!("not understood: {text:?}"))),
        }
    }

    fn ask(&mut self, words: &[&[u8]]) -> io::Result<Vec<u8>> {
        self.command(words);
        self.send()?;
        self.reply()
    }
}

/// What the server holds, and who asks for it.
struct Store {
    content: Content,
    keys: usize,
    clients: Vec<Client>,
    random: Random,
    checks: Checks,
}

impl Store {
    fn measure(&mut self, control: &mut Client, seconds: f64) -> io::Result<Value> {
        let fill_s = self.fill()?;
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let gets_per_s = self.read(|| Ok(Instant::now() >= end))?;
        let start = Instant::now();
        control.ask(&[b"BGSAVE"])?;
        let mut told = String::new();
        let gets_beside_per_s = self.read(|| {
            told = String::from_utf8_lossy(&control.ask(&[b"INFO", b"persistence"])?).into_owned();
            Ok(told.contains("rdb_bgsave_in_progress:0"))
        })?;
        let bgsave_s = start.elapsed().as_secs_f64();
        self.checks.note(told.contains("rdb_last_bgsave_status:ok"));
        Ok(json!({
            "keys": self.keys,
            "sets_per_s": self.keys as f64 / fill_s,
            "gets_per_s": gets_per_s,
            "gets_beside_per_s": gets_beside_per_s,
            "bgsave_s": bgsave_s,
        }))
    }

    /// Every key; seconds.
    fn fill(&mut self) -> io::Result<f64> {
        let start = Instant::now();
        let client = &mut self.clients[0];
        let mut value = [0; VALUE_BYTES];
        for first in (0..self.keys).step_by(PIPELINE) {
            let some = first..(first + PIPELINE).min(self.keys);
            for key in some.clone() {
                self.content.write(&mut value, key, 0);
                client.command(&[b"SET", format!("key:{key}").as_bytes(), &value]);
            }
            client.send()?;
            some.map(|_| client.reply())
                .try_for_each(|reply| reply.map(|_| ()))?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// GETs of keys at random by all clients, until `done`, which is asked once a round: how many per second.
    fn read(&mut self, mut done: impl FnMut() -> io::Result<bool>) -> io::Result<f64> {
        let start = Instant::now();
        let mut clients = mem::take(&mut self.clients);
        let mut asked = Vec::with_capacity(clients.len());
        for client in &mut clients {
            asked.push(self.ask(client)?);
        }
        let (mut count, mut ends) = (0, false);
        while !ends {
            ends = done()?;
            for (client, keys) in clients.iter_mut().zip(&mut asked) {
                for key in mem::take(keys) {
                    let value = client.reply()?;
                    let right = value.len() == VALUE_BYTES && self.content.is(&value, key, 0);
                    self.checks.note(right);
                    count += 1;
                }
                if !ends {
                    *keys = self.ask(client)?;
                }
            }
        }
        self.clients = clients;
        Ok(f64::from(count) / start.elapsed().as_secs_f64())
    }

    /// Sends GETs; their keys.
    fn ask(&mut self, client: &mut Client) -> io::Result<Vec<usize>> {
        let keys: Vec<_> = (0..PIPELINE).map(|_| self.random.below(self.keys)).collect();
        for key in &keys {
            client.command(&[b"GET", format!("key:{key}").as_bytes()]);
        }
        client.send()?;
        Ok(keys)
    }
}
