//! Kills processes of a tree at named points, for the test of what a death leaves behind (feature `kill-points` only).
//!
//! `FARPAGE_KILL_AT=NAME:COUNT,...` arms points of [`POINTS`]. Passes are counted over the whole tree, those of the command itself
//! apart: whoever passes a point for the COUNT-th time sends itself SIGKILL, so each armed point kills one process and the
//! tree goes on. `FARPAGE_KILL_SUPERVISOR_AT` does the same to the supervisor, whose passes are counted for themselves.
//!
//! `FARPAGE_PAUSE_AT=NAME:ONE_IN:MICROSECONDS,...` has threads sleep so long at one pass in so many of a point, or of `any`: what a
//! busy machine does between two instructions now and then, often. At most two points.
//!
//! # Safety
//! Reads the environment block the loader passes to constructors; sleeps.
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::OnceLock;

use farpage_core::kill::{POINTS, set_hook};

use crate::pool::Pool;
use crate::sys;

pub const ENV_KILL_AT: &CStr = c"FARPAGE_KILL_AT";
const ENV_KILL_SUPERVISOR_AT: &str = "FARPAGE_KILL_SUPERVISOR_AT";
pub const ENV_PAUSE_AT: &CStr = c"FARPAGE_PAUSE_AT";
/// The pass of each point that kills; 0: none.
static AT: [AtomicU64; POINTS.len()] = [const { AtomicU64::new(0) }; POINTS.len()];
/// The command itself, which stays alive.
static SPARED: AtomicI32 = AtomicI32::new(0);
/// Where passes are counted.
static POOL: OnceLock<Pool> = OnceLock::new();

/// Arms the points that the environment names. Called once, before the process takes an entry.
pub fn arm(pool: &Pool, value: &str) {
    // SAFETY: no arguments.
    let parent = unsafe { sys::raw(libc::SYS_getppid, [0; 6]) } as i32;
    if parent == pool.header().supervisor.load(Ordering::Relaxed) {
        SPARED.store(sys::getpid(), Ordering::Relaxed);
    }
    arm_points(value);
    let _ = POOL.set(*pool);
    set_hook(pass);
}

/// Arms the points that the supervisor is to die at, in the supervisor.
pub fn arm_supervisor() {
    if let Ok(value) = std::env::var(ENV_KILL_SUPERVISOR_AT) {
        arm_points(&value);
        set_hook(pass_in_supervisor);
    }
}

fn arm_points(value: &str) {
    for (name, count) in value.split(',').filter_map(|armed| armed.split_once(':')) {
        let point = POINTS.iter().position(|point| *point == name);
        let (Some(point), Ok(count)) = (point, count.parse()) else {
            sys::die(&["farpage: a point to be killed at is not there: ", name]);
        };
        AT[point].store(count, Ordering::Relaxed);
    }
}

/// Where passes are pauses.
struct Pauses {
    /// None: at any point.
    point: Option<usize>,
    one_in: u64,
    microseconds: u64,
}

static PAUSES: [OnceLock<Pauses>; 2] = [const { OnceLock::new() }; 2];
static PASSED: AtomicU64 = AtomicU64::new(0);

/// Arms pauses.
pub fn arm_pauses(value: &str) {
    for (place, pauses) in PAUSES.iter().zip(value.split(',')) {
        let Some(pauses) = pauses_of(pauses) else {
            sys::die(&[
                "farpage: FARPAGE_PAUSE_AT is not NAME:ONE_IN:MICROSECONDS: ",
                value,
            ]);
        };
        let _ = place.set(pauses);
    }
    set_hook(pause);
}

fn pauses_of(text: &str) -> Option<Pauses> {
    let mut words = text.split(':');
    let name = words.next().unwrap_or_default();
    let point = POINTS.iter().position(|point| *point == name);
    let mut number = || words.next().and_then(|word| word.parse().ok());
    let (one_in, microseconds) = (number()?, number()?);
    (point.is_some() || name == "any").then_some(Pauses {
        point,
        one_in,
        microseconds,
    })
}

fn pause(point: usize) {
    let is_meant = |pauses: &&Pauses| pauses.point.is_none_or(|at| at == point);
    let mut armed = PAUSES.iter().filter_map(OnceLock::get);
    let Some(pauses) = armed.find(is_meant) else {
        return;
    };
    // Spread over the points that are passed one after the other: Knuth's multiplicative hash.
    let pass = PASSED
        .fetch_add(1, Ordering::Relaxed)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        >> 32;
    if pass.is_multiple_of(pauses.one_in) {
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: (pauses.microseconds * 1000) as i64,
        };
        // SAFETY: a timespec that outlives the call.
        unsafe { sys::raw(libc::SYS_nanosleep, [&raw const time as u64, 0, 0, 0, 0, 0]) };
    }
}

/// The pass that kills is counted down.
fn pass_in_supervisor(point: usize) {
    let at = &AT[point];
    if at.load(Ordering::Relaxed) != 0 && at.fetch_sub(1, Ordering::Relaxed) == 1 {
        die_at(sys::getpid(), point);
    }
}

fn die_at(pid: i32, point: usize) {
    sys::complain(&["farpage: killed at ", POINTS[point]]);
    let _ = sys::kill(pid, libc::SIGKILL);
}

fn pass(point: usize) {
    let at = AT[point].load(Ordering::Relaxed);
    let Some(pool) = POOL.get().filter(|_| at != 0) else {
        return;
    };
    let pid = sys::getpid();
    if pid == SPARED.load(Ordering::Relaxed) {
        return;
    }
    if pool.header().kill_passes[point].fetch_add(1, Ordering::Relaxed) + 1 == at {
        die_at(pid, point);
    }
}
