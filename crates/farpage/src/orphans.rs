//! Children that borrowed the memory of a process (vfork) and outlive it, where faults come by message.
//!
//! The thread that would answer them has ended with the process, so a touch of what was swapped out waits for ever. What it waits
//! for is gone: the child is stopped, as one that is told of its faults by signal stops itself (`fault`). One that touches no
//! such page goes on.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::sync::atomic::Ordering;

use farpage_core::units::PAGE_SIZE;

use crate::ledger::living;
use crate::pool::{Pool, STATES_LEN, entry_state, flag};
use crate::sys;

/// How often those that are known are looked at, in nanoseconds: one that has not run between two looks waits for good.
const EVERY_NS: u64 = 250_000_000;

/// One that was found, and how often it had been given a CPU then.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Orphan {
    pid: i32,
    switches: u64,
}

#[derive(Default)]
pub struct Orphans {
    /// A process that answered its own faults has ended since the last look.
    is_due: bool,
    found: Vec<Orphan>,
    looked_ns: u64,
}

impl Orphans {
    /// An active process has ended.
    pub fn note_end(&mut self, pool: &Pool) {
        self.is_due |= pool.header().has(flag::THREAD_DELIVERY);
    }

    /// Looks for them if there can be any, and stops those that wait; how many there are.
    pub fn run(&mut self, pool: &Pool, pool_fd: i32, now: u64) -> usize {
        if self.is_due || (!self.found.is_empty() && now.saturating_sub(self.looked_ns) >= EVERY_NS) {
            self.is_due = false;
            self.looked_ns = now;
            let before = std::mem::replace(&mut self.found, find(pool, pool_fd));
            for orphan in self.found.iter().filter(|orphan| before.contains(orphan)) {
                if waits_for_a_page(orphan.pid) {
                    stop(orphan.pid);
                }
            }
        }
        self.found.len()
    }
}

fn stop(pid: i32) {
    if sys::kill(pid, libc::SIGKILL).is_ok() {
        let who =
            format!("farpage: process {pid} was stopped: the process whose memory it borrowed (vfork) ");
        sys::complain(&[&who, "has ended, and what that had swapped out with it"]);
    }
}

fn waits_for_a_page(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/wchan")).is_ok_and(|at| at == "handle_userfault")
}

/// Processes with page states of this pool mapped that neither are of the tree nor have a parent in it.
fn find(pool: &Pool, pool_fd: i32) -> Vec<Orphan> {
    let Ok(inode) = fs::metadata(format!("/proc/self/fd/{pool_fd}")).map(|pool| pool.st_ino()) else {
        return Vec::new();
    };
    let table = pool.processes().iter();
    let live = table.filter(|entry| entry.state.load(Ordering::Acquire) == entry_state::LIVE);
    let known: Vec<i32> = live.map(|entry| entry.pid.load(Ordering::Relaxed)).collect();
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_orphan = |pid: &i32| {
        *pid != sys::getpid()
            && has_room_for_states(*pid)
            && !known.contains(pid)
            && parent_of(*pid).is_some_and(|parent| !known.contains(&parent))
            && maps_states(*pid, inode)
    };
    let found = pids.filter(is_orphan);
    found
        .filter_map(|pid| {
            Some(Orphan {
                pid,
                switches: switches_of(pid)?,
            })
        })
        .collect()
}

/// Whether its address space is large enough to have page states: few are.
fn has_room_for_states(pid: i32) -> bool {
    let statm = living::of_memory(pid, "statm").unwrap_or_default();
    let pages = statm
        .split(' ')
        .next()
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.is_some_and(|pages| pages >= STATES_LEN / PAGE_SIZE as u64)
}

fn parent_of(pid: i32) -> Option<i32> {
    living::status(pid, "PPid:")?.parse().ok()
}

/// How often it has run and stopped to.
fn switches_of(pid: i32) -> Option<u64> {
    let count = |key| living::status(pid, key)?.parse::<u64>().ok();
    Some(count("voluntary_ctxt_switches:")? + count("nonvoluntary_ctxt_switches:")?)
}

/// Whether it maps page states: what lies behind the part of the pool that every process, the supervisor too, has from its start.
fn maps_states(pid: i32, inode: u64) -> bool {
    let maps = living::of_memory(pid, "maps").unwrap_or_default();
    let (inode, name) = (inode.to_string(), "/memfd:farpage-pool");
    maps.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(2);
        let offset = fields
            .next()
            .is_some_and(|offset| offset.bytes().any(|digit| digit != b'0'));
        offset && fields.nth(1) == Some(&inode) && fields.next().is_some_and(|path| path.starts_with(name))
    })
}
