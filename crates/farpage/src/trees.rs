//! Running trees, found through /proc by whoever may open their pools.
//!
//! A tree goes by the number of its supervisor, as the process that asks counts. The pool has it as the supervisor itself counts: in two
//! containers both may be number 1.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use crate::ledger::living;
use crate::pool::{Header, Pool, entry_state};

/// How /proc shows a descriptor of a pool, at its beginning.
pub const POOL_LINK: &str = "/memfd:farpage-pool";

/// Supervisors of running trees whose pool this user may open. One that can't be seen goes by a process of its tree.
#[must_use]
pub fn running() -> Vec<i32> {
    let mut found: Vec<((u64, i32), i32)> = Vec::new();
    for pid in pids() {
        let Some((_, pool)) = open_pool(pid) else {
            continue;
        };
        let tree = identity(pool.header());
        if found.iter().all(|(known, _)| *known != tree) {
            found.push((tree, supervisor(pool.header()).unwrap_or(pid)));
        }
    }
    let mut supervisors: Vec<i32> = found.into_iter().map(|(_, supervisor)| supervisor).collect();
    supervisors.sort_unstable();
    supervisors
}

/// What no two trees have in common that run at a time: a pid namespace, and a number there.
fn identity(header: &Header) -> (u64, i32) {
    (
        header.pid_namespace.load(Ordering::Relaxed),
        header.supervisor.load(Ordering::Relaxed),
    )
}

/// The number here of the supervisor of a tree, which may have ended; `None`: it can't be seen from here.
#[must_use]
pub fn supervisor(header: &Header) -> Option<i32> {
    let (namespace, number) = identity(header);
    if header.counts_as_we_do() {
        return Some(number);
    }
    let is_it = |pid: &i32| {
        // The last one is as itself counts.
        let numbers = living::status(*pid, "NSpid:").unwrap_or_default();
        let inside = numbers.split_ascii_whitespace().last();
        inside.and_then(|last| last.parse().ok()) == Some(number)
            && fs::metadata(format!("/proc/{pid}/ns/pid")).is_ok_and(|found| found.ino() == namespace)
    };
    pids().find(is_it)
}

/// The supervisor of the tree that process `pid` belongs to, or supervises; `pid` itself where that can't be seen.
#[must_use]
pub fn supervisor_of(pid: i32) -> Option<i32> {
    if let Some((_, pool)) = open_pool(pid) {
        return Some(supervisor(pool.header()).unwrap_or(pid));
    }
    // A process may hide what it has open.
    let has_it = |tree: &i32| open(*tree).is_some_and(|(_, pool)| names(&pool, pid));
    running().into_iter().find(has_it)
}

fn names(pool: &Pool, pid: i32) -> bool {
    members(pool).any(|member| member == pid)
}

/// The processes of a tree; none where they are counted in another pid namespace.
fn members(pool: &Pool) -> impl Iterator<Item = i32> {
    let is_ours = pool.header().counts_as_we_do();
    let entries = pool.processes().iter().filter(move |_| is_ours);
    entries
        .filter(|entry| entry.state.load(Ordering::Acquire) == entry_state::LIVE)
        .map(|entry| entry.pid.load(Ordering::Relaxed))
}

/// Processes of a tree that have a file open, by its device and inode.
#[must_use]
pub fn holders(pool: &Pool, file: (u64, u64)) -> Vec<i32> {
    let has_it = |pid: &i32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten()
            .flatten();
        open.filter_map(|entry| fs::metadata(entry.path()).ok())
            .any(|found| (found.dev(), found.ino()) == file)
    };
    members(pool).filter(has_it).collect()
}

/// Opens the pool of the tree of a supervisor, which may have ended: then as another process of the tree has it.
#[must_use]
pub fn open(supervisor: i32) -> Option<(File, Pool)> {
    let is_its = |pool: &Pool| {
        pool.header().counts_as_we_do() && pool.header().supervisor.load(Ordering::Relaxed) == supervisor
    };
    let of_member = |pid| open_pool(pid).filter(|(_, pool)| is_its(pool));
    open_pool(supervisor).or_else(|| pids().find_map(of_member))
}

/// Opens the pool that process `pid` (a supervisor or a member of its tree) has among its descriptors.
fn open_pool(pid: i32) -> Option<(File, Pool)> {
    pool_among(Path::new(&format!("/proc/{pid}"))).or_else(|| pool_among(&living::thread(pid)?))
}

/// The pool among the descriptors of the process or thread that a directory of /proc is about.
fn pool_among(directory: &Path) -> Option<(File, Pool)> {
    for entry in fs::read_dir(directory.join("fd")).ok()?.flatten() {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        if target.to_string_lossy().starts_with(POOL_LINK) {
            let file = fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(entry.path())
                .ok()?;
            let pool = Pool::attach(file.as_raw_fd()).ok()?;
            return Some((file, pool));
        }
    }
    None
}

/// Of all processes.
fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
