//! Pages that come back from a tier, and which neighbours come with them.
//!
//! Readahead, first form: the pages that are resident directly before the faulting page (or, for a backward scan, behind it)
//! are as many as a stream has left there, so that many are read ahead, up to [`NOW_MAX`] with the faulting page itself; a long
//! run has the pages after those fetched by the prefetch thread meanwhile. A stream's windows double, a random access finds
//! nobody beside it. There is no state to keep and none to get wrong. A page read ahead carries a mark; when a later fault
//! finds marked pages in the run that led to it, the stream has passed them: they count as hits.

use core::ops::Range;
use core::sync::atomic::Ordering;

use farpage_core::page_state::{Kind, PageState};
use farpage_core::stats::{Counter, Source};

use crate::fault::{self, Filled, Outcome};
use crate::mm::{Context, Mm, PAGE, WINDOW_MAX, address};
use crate::pool::{MANAGED_PAGES, flag};
use crate::prefetch;
use crate::reclaim;
use crate::sys::Errno;
use crate::tiers::{self, LoadError};

/// Most pages read together with a faulting page: more would let it wait.
const NOW_MAX: u64 = 32;
/// Resident pages in a row that make a stream worth a prefetch, and most pages of one.
const STREAM: u64 = 16;
const AHEAD_MAX: u64 = 256;

/// What to read for a fault.
struct Plan {
    /// With the faulting page, by the faulting thread.
    now: Range<u64>,
    /// By the prefetch thread; often nothing.
    ahead: prefetch::Request,
}

/// The pages that one turn brings in: locked, with the slots they are in.
struct Window {
    start: u64,
    len: usize,
    slots: [u32; WINDOW_MAX],
    /// Places whose page is locked by us.
    locked: u64,
}

/// Brings `page` in, and with it the neighbours that a stream will touch next.
pub fn swap_in(mm: &Mm, page: u64, seen: PageState) -> Filled {
    if !mm.try_lock(page, seen) {
        return None;
    }
    let plan = plan(mm, page);
    prefetch::ask(mm, plan.ahead);
    let mut context = mm.context();
    let mut window = Window::lock(mm, plan.now, Some((page, seen)));
    let at = (page - window.start) as usize;
    let (source, run) = match window.load(mm, at, &mut context) {
        Ok(loaded) => loaded,
        Err(error) => tiers::refuse_page(error, address(page)),
    };
    window.install(mm, run, Some(at), &context);
    if window.locked & 1 << at != 0 {
        let outcome = fault::install(mm, page, context.bounce[at].as_ptr() as u64, seen);
        if outcome == Outcome::NotManaged {
            window.locked &= !(1 << at);
            window.unlock_rest(mm);
            return Some(Err(outcome));
        }
        window.arrived(mm, at, PageState::resident());
    }
    mm.header().count(Counter::Pgmajfault, 1);
    window.bring_rest(mm, &mut context);
    Some(Ok(source))
}

/// Brings in what is swapped of at most [`WINDOW_MAX`] pages, ahead of any touch.
pub fn bring(mm: &Mm, pages: Range<u64>) {
    let mut window = Window::lock(mm, pages, None);
    if window.locked == 0 {
        return;
    }
    reclaim::ensure_room(mm, i64::from(window.locked.count_ones()));
    let mut context = mm.context();
    window.bring_rest(mm, &mut context);
}

/// What to bring in for a fault on `page`.
fn plan(mm: &Mm, page: u64) -> Plan {
    let header = mm.header();
    if !header.has(flag::READAHEAD) {
        return Plan {
            now: page..page + 1,
            ahead: prefetch::Request::default(),
        };
    }
    let most = (-header.excess(0) / 4).clamp(1, NOW_MAX as i64) as u64;
    let ahead_most = (header.limit.load(Ordering::Relaxed) / 16).clamp(0, AHEAD_MAX as i64) as u64;
    let ahead_of = |run: u64| {
        if run < STREAM {
            0
        } else {
            (4 * run).min(ahead_most)
        }
    };
    let before = resident_run(mm, (0..page).rev());
    if before > 0 {
        let end = (page + before.clamp(1, most)).min(MANAGED_PAGES);
        let ahead = end..(end + ahead_of(before)).min(MANAGED_PAGES);
        return Plan {
            now: page..end,
            ahead: prefetch::Request::new(ahead, false),
        };
    }
    let behind = resident_run(mm, page + 1..MANAGED_PAGES);
    let start = (page + 1).saturating_sub(behind.clamp(1, most));
    Plan {
        now: start..page + 1,
        ahead: prefetch::Request::new(start.saturating_sub(ahead_of(behind))..start, true),
    }
}

/// How many pages of the sequence are resident without a gap, at most a window; marked ones among them were hits.
fn resident_run(mm: &Mm, pages: impl Iterator<Item = u64>) -> u64 {
    let (mut run, mut hits) = (0, 0);
    for page in pages.take(WINDOW_MAX) {
        let state = mm.load(page);
        if state.kind() != Kind::Resident || state.is_locked() {
            break;
        }
        if state.readahead() {
            let plain = state.with_readahead(false);
            let word = mm.word(page);
            hits += u64::from(
                word.compare_exchange(state.raw(), plain.raw(), Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok(),
            );
        }
        run += 1;
    }
    if hits > 0 {
        mm.header().count(Counter::SwapRaHit, hits);
    }
    run
}

impl Window {
    /// Locks the swapped pages of the range; `held` is one that the caller has locked already.
    fn lock(mm: &Mm, range: Range<u64>, held: Option<(u64, PageState)>) -> Window {
        let mut window = Window {
            start: range.start,
            len: ((range.end - range.start) as usize).min(WINDOW_MAX),
            slots: [0; WINDOW_MAX],
            locked: 0,
        };
        for place in 0..window.len {
            let page = window.start + place as u64;
            let state = match held {
                Some((held, seen)) if held == page => Some(seen),
                _ => Some(mm.load(page))
                    .filter(|s| s.kind() == Kind::Swapped && !s.is_locked() && mm.try_lock(page, *s)),
            };
            if let Some(state) = state {
                window.slots[place] = state.slot();
                window.locked |= 1 << place;
            }
        }
        window
    }

    /// Loads the page at `at`, and with it the pages of the window that lie beside it in the same file: one read. Returns
    /// where it came from and the places now loaded.
    fn load(&self, mm: &Mm, at: usize, context: &mut Context) -> Result<(Source, Range<usize>), LoadError> {
        if let Some((area, block)) = tiers::block_of(mm, self.slots[at]) {
            let beside = |place: usize, block: u64| {
                self.locked >> place & 1 == 1 && tiers::block_of(mm, self.slots[place]) == Some((area, block))
            };
            let before = (1..=at).take_while(|&i| block >= i as u64 && beside(at - i, block - i as u64));
            let from = at - before.count();
            let after = (1..self.len - at).take_while(|&i| beside(at + i, block + i as u64));
            let run = from..at + 1 + after.count();
            let first = (area, block - (at - from) as u64);
            if run.len() > 1 && tiers::load_blocks(mm, &self.slots[run.clone()], first, context, from).is_ok()
            {
                return Ok((Source::File, run));
            }
        }
        tiers::load(mm, self.slots[at], context, at).map(|source| (source, at..at + 1))
    }

    /// Installs the loaded places `run`; what can't be had now stays locked. All but `touched` are marked as read ahead.
    fn install(&mut self, mm: &Mm, run: Range<usize>, touched: Option<usize>, context: &Context) {
        let marked = PageState::resident().with_readahead(true);
        let mut place = run.start;
        let mut step = run.len();
        let mut ahead = 0;
        while place < run.end {
            let (to, from) = (
                address(self.start + place as u64),
                context.bounce[place].as_ptr() as u64,
            );
            let pages = step.min(run.end - place);
            let done = mm.uffd().copy(to, from, pages as u64 * PAGE);
            for _ in 0..done.bytes / PAGE {
                let is_touched = touched == Some(place);
                self.arrived(mm, place, if is_touched { PageState::resident() } else { marked });
                ahead += u64::from(!is_touched);
                place += 1;
            }
            match done.error {
                None | Some(Errno(libc::EAGAIN)) => {}
                // The run may leave the mapping that holds its first page.
                Some(Errno(libc::ENOENT)) if pages > 1 => step = 1,
                Some(_) => break,
            }
        }
        mm.header().count(Counter::SwapRa, ahead);
    }

    /// Brings in every page that is locked still; what can't be had now stays where it is.
    fn bring_rest(&mut self, mm: &Mm, context: &mut Context) {
        let mut place = 0;
        while place < self.len {
            if self.locked >> place & 1 == 0 {
                place += 1;
                continue;
            }
            match self.load(mm, place, context) {
                Ok((_, run)) => {
                    place = run.end;
                    self.install(mm, run, None, context);
                }
                Err(_) => place += 1,
            }
        }
        self.unlock_rest(mm);
    }

    /// The page at `place` is there: books, word, slot.
    fn arrived(&mut self, mm: &Mm, place: usize, state: PageState) {
        let page = self.start + place as u64;
        mm.count_resident(page, 1);
        mm.unlock(page, mm.load(page), state);
        tiers::put(mm, self.slots[place]);
        self.locked &= !(1 << place);
    }

    fn unlock_rest(&mut self, mm: &Mm) {
        for place in (0..self.len).filter(|place| self.locked >> place & 1 == 1) {
            let page = self.start + place as u64;
            mm.unlock(page, mm.load(page), PageState::swapped(self.slots[place]));
        }
        self.locked = 0;
    }
}

const _: () = assert!(WINDOW_MAX <= 64 && NOW_MAX as usize <= WINDOW_MAX);
