//! The command's side.

use core::cell::Cell;
use core::sync::atomic::Ordering;
use std::os::unix::ffi::OsStrExt;

use farpage_core::devices;

use super::{Request, SWAPOFF, SWAPON, SWAPON_COMPRESSED, TEXT_MAX, Tier, phase};
use crate::ledger::living;
use crate::pool::Pool;
use crate::{bell, ledger, sys, trees};

/// A supervisor that is gone for so long does not come back.
const GONE_NS: u64 = 500_000_000;
/// One that has not begun after so long, and is stopped, is not waited for.
const STOPPED_NS: u64 = 2_000_000_000;

/// How far a request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    Running {
        left: u64,
        total: u64,
    },
    /// Done, with area `area`.
    Done {
        area: usize,
    },
    Failed(String),
}

/// A request under way, on the command's side. Dropped before its end it is given up.
pub struct Client {
    pool: Pool,
    asked_ns: u64,
    /// As it was last seen.
    supervisor: Cell<i32>,
    /// Since when the supervisor has been gone.
    gone_ns: Cell<Option<u64>>,
}

impl Client {
    /// Puts a request to the tree. The error is one line.
    pub fn ask(pool: Pool, request: &Request) -> Result<Client, String> {
        let header = pool.header();
        let supervisor = trees::supervisor(header).ok_or(
            "the supervisor of this tree is in another pid namespace; ask from where farpage run was started",
        )?;
        if ledger::has_ended(supervisor) {
            return Err(
                "the supervisor of this tree has ended, so its tiers stay as they are; let the tree end"
                    .into(),
            );
        }
        let control = &header.control;
        let me = sys::getpid();
        if let Err(other) = control
            .client
            .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
        {
            return Err(format!(
                "process {other} is changing the tiers of this tree; try again when it has ended"
            ));
        }
        let client = Client {
            pool,
            asked_ns: sys::now_ns(),
            supervisor: Cell::new(supervisor),
            gone_ns: Cell::new(None),
        };
        control.cancel.store(0, Ordering::Relaxed);
        match request {
            Request::Swapoff { tier, order, window } => {
                control.area.store(tier.number(), Ordering::Relaxed);
                control.order.store(*order, Ordering::Relaxed);
                control.window.store(*window, Ordering::Relaxed);
                control.request.store(SWAPOFF, Ordering::Relaxed);
            }
            Request::Swapon(spec) => {
                let path = spec.path.as_os_str().as_bytes();
                if path.len() >= TEXT_MAX {
                    return Err("the path is too long; name a shorter one".into());
                }
                control.write(path);
                control.size.store(spec.size.unwrap_or(0), Ordering::Relaxed);
                control
                    .priority
                    .store(devices::raised(spec.priority), Ordering::Relaxed);
                control.request.store(SWAPON, Ordering::Relaxed);
            }
            Request::SwaponCompressed => control.request.store(SWAPON_COMPRESSED, Ordering::Relaxed),
        }
        control.beat.fetch_add(1, Ordering::Relaxed);
        control.phase.store(phase::ASKED, Ordering::Release);
        bell::ring(header);
        Ok(client)
    }

    /// Looks at the request; to be called every second or more often, or the supervisor takes the command for dead.
    #[must_use]
    pub fn look(&self) -> Progress {
        let given_up = || Progress::Failed("the supervisor took this command for dead and gave it up".into());
        if !self.has_the_floor() {
            return given_up();
        }
        let control = &self.pool.header().control;
        control.beat.fetch_add(1, Ordering::Relaxed);
        let area = control.area.load(Ordering::Relaxed);
        let now = control.phase.load(Ordering::Acquire);
        // Between these looks another command may have got the floor: then its was looked at.
        if !self.has_the_floor() {
            return given_up();
        }
        match now {
            phase::DONE => Progress::Done { area: area as usize },
            phase::FAILED => Progress::Failed(String::from_utf8_lossy(&control.read()).into_owned()),
            phase::IDLE => given_up(),
            phase if let Some(why) = self.stands_still(phase) => Progress::Failed(why),
            _ if self.supervisor_ended() => {
                // What is left of its work nobody else would undo.
                if let Some(tier) = self.leaving() {
                    control.set_job(0);
                    tier.reopen(&self.pool);
                }
                Progress::Failed(
                    "the supervisor of the tree has ended meanwhile; the area stays in use".into(),
                )
            }
            _ => Progress::Running {
                left: self.leaving().map_or(0, |tier| tier.left(&self.pool)),
                total: control.total.load(Ordering::Relaxed),
            },
        }
    }

    /// Whether the request that stands there is this command's. One that was stopped for long was given up, and took another's end for its own.
    fn has_the_floor(&self) -> bool {
        self.pool.header().control.client.load(Ordering::Acquire) == sys::getpid()
    }

    /// What the request takes away.
    fn leaving(&self) -> Option<Tier> {
        let control = &self.pool.header().control;
        let is_swapoff = control.request.load(Ordering::Relaxed) == SWAPOFF;
        Tier::of(control.area.load(Ordering::Relaxed)).filter(|_| is_swapoff)
    }

    /// Whether the supervisor has been gone for a while. For a moment it may be: when the command has ended and left children,
    /// another process keeps the books on.
    fn supervisor_ended(&self) -> bool {
        if ledger::has_ended(self.supervisor.get())
            && let Some(next) = trees::supervisor(self.pool.header())
        {
            self.supervisor.set(next);
        }
        let now = sys::now_ns();
        if ledger::has_ended(self.supervisor.get()) {
            let since = self.gone_ns.get().unwrap_or(now);
            self.gone_ns.set(Some(since));
            now.saturating_sub(since) > GONE_NS
        } else {
            self.gone_ns.set(None);
            false
        }
    }

    /// Why a request is not waited for any longer: it is to be given up or has not begun, and the supervisor is stopped. One that has not begun
    /// never does then.
    fn stands_still(&self, now: u32) -> Option<String> {
        let control = &self.pool.header().control;
        let is_due = match now {
            phase::ASKED => sys::now_ns().saturating_sub(self.asked_ns) > STOPPED_NS,
            _ => false,
        };
        let pid = self.supervisor.get();
        if !(is_due || control.cancel.load(Ordering::Relaxed) != 0) || !living::is_stopped(pid) {
            return None;
        }
        let takes_back =
            control
                .phase
                .compare_exchange(phase::ASKED, phase::IDLE, Ordering::Relaxed, Ordering::Relaxed);
        let then = match takes_back {
            Ok(_) => "nothing has changed",
            Err(_) => "the request is given up when it goes on",
        };
        Some(format!(
            "the supervisor of the tree, process {pid}, is stopped; {then}: let it go on (fg, or kill -CONT {pid})"
        ))
    }

    /// Asks for the request to be given up; [`Self::look`] tells when it is.
    pub fn cancel(&self) {
        if self.has_the_floor() {
            self.pool.header().control.cancel.store(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !self.has_the_floor() {
            return;
        }
        let control = &self.pool.header().control;
        self.cancel();
        let now = control.phase.load(Ordering::Acquire);
        if matches!(now, phase::IDLE | phase::DONE | phase::FAILED) {
            control.phase.store(phase::IDLE, Ordering::Relaxed);
            control.client.store(0, Ordering::Release);
        }
    }
}
