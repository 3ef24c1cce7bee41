//! Which of those that the pool names are there still. An entry outlives its process until the supervisor has returned what that
//! held, for ever if the supervisor has ended before; and what is held in the supervisor's own name nobody gives back then.

use std::sync::atomic::Ordering;

use crate::ledger;
use crate::pool::{Pool, ProcEntry, entry_state};
use crate::recount::SUPERVISOR;

/// What one look at the processes found.
pub struct Presence<'a> {
    pool: &'a Pool,
    supervisor_ended: bool,
    /// By entry, as far as there were any: who it waits for in vain, if it does.
    ended: Vec<Option<i32>>,
}

impl<'a> Presence<'a> {
    pub fn of(pool: &'a Pool) -> Presence<'a> {
        let header = pool.header();
        // Seen from another pid namespace the numbers in the pool mean nothing: then all count as there.
        let is_known = header.counts_as_we_do();
        let supervisor_ended = is_known && !ledger::is_there(header.supervisor.load(Ordering::Relaxed));
        let missed = |entry: &ProcEntry| missed(entry, supervisor_ended).filter(|_| is_known);
        Presence {
            pool,
            supervisor_ended,
            ended: pool.processes().iter().map(missed).collect(),
        }
    }

    /// Whether nobody is there any more who would give back what `index` holds.
    pub fn is_gone(&self, index: u16) -> bool {
        if index == SUPERVISOR {
            return self.supervisor_ended;
        }
        let entry = self.pool.processes().get(usize::from(index));
        entry.is_none_or(|entry| entry.state.load(Ordering::Acquire) == entry_state::FREE)
            || self.missed(index).is_some()
    }

    /// The process that entry `index` is held for, or was being cleaned up by, if that has ended.
    pub fn missed(&self, index: u16) -> Option<i32> {
        self.ended.get(usize::from(index)).copied().flatten()
    }

    /// How messages call `index`.
    pub fn name_of(index: u16) -> String {
        match index {
            SUPERVISOR => "the supervisor".to_owned(),
            index => format!("entry {index}"),
        }
    }
}

fn missed(entry: &ProcEntry, supervisor_ended: bool) -> Option<i32> {
    let (state, pid) = (
        entry.state.load(Ordering::Acquire),
        entry.pid.load(Ordering::Relaxed),
    );
    let cleaner = entry_state::cleaner(state).or(entry_state::left_to_whom(state));
    let who = match (cleaner, entry_state::taker(state)) {
        (Some(cleaner), _) => cleaner,
        // The supervisor gives it up in its time.
        (_, Some(taker)) if pid == 0 => {
            return Some(taker).filter(|taker| supervisor_ended && !ledger::is_there(*taker));
        }
        _ if state == entry_state::FREE || pid == 0 => return None,
        _ => pid,
    };
    (!ledger::is_there(who)).then_some(who)
}
