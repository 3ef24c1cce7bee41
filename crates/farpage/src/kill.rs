//! Kills processes of a tree at named points, for the test of what a death leaves behind (feature `kill-points` only).
//!
//! `FARPAGE_KILL_AT=NAME:COUNT,...` arms points of [`POINTS`]. Passes are counted over the whole tree, those of the command itself
//! apart: whoever passes a point for the COUNT-th time sends itself SIGKILL, so each armed point kills one process and the
//! tree goes on.
//!
//! # Safety
//! Reads the environment block the loader passes to constructors; sends a signal to this process.
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::OnceLock;

use farpage_core::kill::{POINTS, set_hook};

use crate::pool::Pool;
use crate::sys;

pub const ENV_KILL_AT: &CStr = c"FARPAGE_KILL_AT";
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
    for (name, count) in value.split(',').filter_map(|armed| armed.split_once(':')) {
        let point = POINTS.iter().position(|point| *point == name);
        let (Some(point), Ok(count)) = (point, count.parse()) else {
            sys::die(&["farpage: FARPAGE_KILL_AT names a point that is not there: ", name]);
        };
        AT[point].store(count, Ordering::Relaxed);
    }
    let _ = POOL.set(*pool);
    set_hook(pass);
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
        sys::complain(&["farpage: killed at ", POINTS[point]]);
        // SAFETY: SIGKILL to this process: no instruction of this thread follows.
        unsafe { sys::raw(libc::SYS_kill, [pid as u64, libc::SIGKILL as u64, 0, 0, 0, 0]) };
    }
}
