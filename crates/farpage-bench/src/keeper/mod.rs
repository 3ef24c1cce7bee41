//! The keeper: a process beside the benchmark that makes all that changes the machine (swap files, zram devices,
//! cgroups, processes' groups, temporary files) and undoes it, last first, when it is asked to or when the benchmark
//! ends, in whatever way: the keeper's input ends then, even if the benchmark was killed. It is in a process group of
//! its own and lets SIGINT, SIGTERM and SIGHUP pass, so only SIGKILL to the keeper itself can leave something behind; the
//! next keeper takes that away.
//!
//! Steps to undo are noted before the thing is made, so each of them finds out first whether there is anything to
//! undo. Only what is noted, or bears a dead keeper's name, is ever undone: swap of others is not touched.
//!
//! | file | room |
//! |---|---|
//! | `list` | the list of steps and the dialogue |
//! | `orphans` | what a keeper that was killed has left |
//! | `world` | making and undoing on this machine |
//! | `client` | the benchmark's end of the dialogue |

mod client;
mod list;
mod orphans;
mod world;

use std::io::{self, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

pub use client::Keeper;
pub use orphans::NAME;
pub use world::swap_names;

/// The keeper's life: standard input is a socket on which it is asked and answers. `directory` is where swap files are made.
///
/// # Errors
/// One line, if it can't begin. Nothing was made then.
pub fn keep(directory: &Path) -> Result<u8, String> {
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // Caught and not looked at: children that are started here have the default again.
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))
            .map_err(|error| format!("signal {signal}: {error}"))?;
    }
    let socket = io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map(UnixStream::from)
        .map_err(|error| format!("standard input: {error}"))?;
    let answers = socket.try_clone().map_err(|error| format!("socket: {error}"))?;
    tell(&list::undo_all(orphans::found(directory), &mut world::Machine));
    let troubles = list::serve(BufReader::new(socket), answers, &mut world::Machine);
    tell(&troubles);
    Ok(u8::from(!troubles.is_empty()))
}

fn tell(troubles: &[String]) {
    for trouble in troubles {
        let _ = writeln!(io::stderr(), "farpage: bench: {trouble}");
    }
}
