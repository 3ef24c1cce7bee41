//! A process's entry in the table of the tree.

use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};

use farpage_core::kill_point;
use farpage_core::units::PAGE_SIZE;

use super::Header;
use crate::steps::Steps;

#[repr(C, align(128))]
pub struct ProcEntry {
    pub state: AtomicU32,
    pub pid: AtomicI32,
    /// 1 once the process manages its memory.
    pub active: AtomicU32,
    /// The number of who is in the fork that makes this process, the parent or a child that borrows its memory: until that knows
    /// the pid, nobody takes the entry for that of a dead one. 0: nobody.
    pub forking: AtomicI32,
    /// 1 between a call of exec and the new image's start.
    pub execing: AtomicU32,
    pub resident: AtomicI64,
    pub frames: AtomicI64,
    /// Of those, pages that are being stored.
    pub storing: AtomicI64,
    /// Compressed pages that it is writing to their blocks.
    pub writing_back: AtomicI64,
    /// Resident pages that no tier took (see `reclaim::poor`).
    pub poor: AtomicI64,
    /// About how many of both keep the slot they came from (see `kept`).
    pub kept: AtomicI64,
    /// What of the two above has been added to `Header::charged`.
    pub charged: AtomicI64,
    /// Pages inherited by fork and shared still, not in `charged` yet (see `debts`).
    pub owed: AtomicI64,
    /// Of `charged`, what was paid for copies of others.
    pub paid_for: AtomicI64,
    /// Index + 1 of the process that forked this one or, where that has ended, of its nearest ancestor that lives; 0: none.
    pub parent: AtomicU32,
    /// The same in all processes that come of one by forks, and in no other that lives.
    pub family: AtomicU32,
    pub unmanaged: AtomicI64,
    /// Pages beside managed ones that are mapped, whoever shares them.
    pub apart: AtomicI64,
    pub committed: AtomicI64,
    /// Anonymous pages that it had when it joined, of the loader and its libraries: none of them is in `committed`.
    pub first: AtomicI64,
    /// The most of [`ProcEntry::may_fill`] since the supervisor last looked, which the limit leaves room for while the process is dormant.
    pub promised: AtomicI64,
    pub born_ns: AtomicU64,
    /// Pages that another process asks this one to bring in (see `remote`); 0: none.
    pub wanted: AtomicU64,
    /// Steps from the change of a page's word to the put of the slot it named.
    pub puts: Steps,
    /// Steps in which slots gain references or names of slots change their place: fork, mremap.
    pub moves: Steps,
    /// Steps in which a compressed object is taken or given back, or a block counted and published.
    pub objects: Steps,
    /// `Header::area_epoch` that this process has the files of; its maximum: it needs none.
    pub area_epoch: AtomicU32,
    /// Why it could not get one of them; 0: it could.
    pub area_errno: AtomicI32,
    /// Asks a dormant process to become active (see `sentinel`).
    pub call_up: AtomicU32,
}

impl ProcEntry {
    /// Counts pages that came or, negative, went.
    pub fn charge(&self, header: &Header, pages: i64) {
        self.charged.fetch_add(pages, Ordering::Relaxed);
        kill_point!("charge-half");
        header.charged.fetch_add(pages, Ordering::Relaxed);
    }

    /// Pages that it has once all that it has mapped for writing is touched.
    pub fn may_fill(&self) -> i64 {
        let committed = self.committed.load(Ordering::SeqCst).max(0) as u64;
        self.first.load(Ordering::SeqCst) + committed.div_ceil(PAGE_SIZE as u64) as i64
    }

    /// Charges up to `pages` of what is owed; how many. Charged first, so that a death in between leaves too much charged to this
    /// process, until it ends, and not too little.
    pub fn pay(&self, header: &Header, pages: i64) -> i64 {
        let most = pages.min(self.owed.load(Ordering::Relaxed)).max(0);
        if most == 0 {
            return 0;
        }
        self.charge(header, most);
        kill_point!("pay-charged");
        let paid = self.take_owed(most);
        if paid < most {
            self.charge(header, paid - most);
        }
        paid
    }

    fn take_owed(&self, pages: i64) -> i64 {
        let mut owed = self.owed.load(Ordering::Relaxed);
        while owed > 0 {
            let taken = owed.min(pages);
            match self
                .owed
                .compare_exchange_weak(owed, owed - taken, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return taken,
                Err(now) => owed = now,
            }
        }
        0
    }
}
