//! Swap-in: what happens between a touch of a page that is not there and the page being there.
//!
//! Steps: 1 make room; 2 lock the page's word; 3 find the content (zero, frame, compressed, file) and verify it;
//! 4 install it with one atomic COPY; 5 write the new state, which unlocks; 6 give up the slot. A second thread that
//! touches the page meanwhile waits for the word, or finds the page there.
//!
//! Runs in signal context or in the delivery thread: no allocation, no lock a signal could interrupt its holder of.

use core::ops::Range;
use core::sync::atomic::Ordering;

use farpage_core::kill_point;
use farpage_core::page_state::{Kind, PIN_MAX, PageState};
use farpage_core::stats::{Counter, Source};

use crate::cow;
use crate::engine_stack;
use crate::errand;
use crate::gate::Alone;
use crate::huge;
use crate::kept;
use crate::mm::{CHUNK_PAGES, Mm, PAGE, address, mode, page_of};
use crate::pool::{MANAGED_PAGES, flag};
use crate::prefetch;
use crate::readahead::{self, Touch};
use crate::reclaim;
use crate::request::Request;
use crate::swapin;
use crate::sys::{self, Errno};

/// Most pages of fresh memory installed by one fault.
const ZERO_RUN_MAX: u64 = 32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The page is there (or another thread made it so): the instruction may try again.
    Done,
    /// No registered memory at that address: it never was, or its mapping has gone or was replaced since it was touched.
    NotManaged,
}

/// Brings `page` in, on behalf of code that may run on any stack.
pub fn fault(mm: &Mm, page: u64) -> Outcome {
    if let Some(outcome) = errand::fault(mm, address(page)) {
        return outcome;
    }
    engine_stack::blocked(|| touched(mm, Touch::of_page(page)))
}

/// Brings the page of a managed address in that `thread` touched. The caller has blocked signals, and is no child that borrows this
/// memory.
pub fn at_address(mm: &Mm, address: u64, thread: Option<u32>) -> Outcome {
    let touch = Touch {
        page: page_of(address),
        offset: (address % PAGE) as u32,
        thread,
    };
    touched(mm, touch)
}

fn touched(mm: &Mm, touch: Touch) -> Outcome {
    let _inside = mm.gate.shared();
    match mm.mode.load(Ordering::Relaxed) {
        mode::ACTIVE => bring_in(mm, touch),
        // The activation that it waited for has failed: the kernel's again.
        mode::OFF => Outcome::Done,
        _ => Outcome::NotManaged,
    }
}

/// [`fault`] and [`pin`] in one, with the gate held alone. The page is resident until [`unpin`], unless it is not managed.
pub fn pin_alone(mm: &Mm, page: u64, _alone: &Alone) -> Outcome {
    add_pin(mm, page);
    while mm.load(page).kind() != Kind::Resident {
        if bring_in(mm, Touch::of_page(page)) == Outcome::NotManaged {
            unpin(mm, page);
            return Outcome::NotManaged;
        }
    }
    Outcome::Done
}

/// The caller is in the gate.
fn bring_in(mm: &Mm, touch: Touch) -> Outcome {
    let page = touch.page;
    let start = sys::now_ns();
    mm.header().watch_limit(start);
    let mut spurious = 0;
    loop {
        let seen = mm.load(page);
        if !mm.has_entry_still() {
            errand::end_orphan();
        }
        if seen.is_locked() {
            mm.wait_unlocked(page);
            continue;
        }
        if seen.kind() == Kind::Resident {
            if cow::is_protected(mm, page) {
                cow::on_write(mm, page);
                wake_waiters(mm, page);
                return Outcome::Done;
            }
            if spurious >= 3 || is_present(page) {
                wake_waiters(mm, page);
                return Outcome::Done;
            }
            spurious += 1;
            absent_though_resident(mm, page, seen, spurious);
            continue;
        }
        let huge = huge::fault(mm, page, seen);
        if huge.is_none() {
            reclaim::ensure_room(mm, 1);
        }
        let source = huge.or_else(|| match seen.kind() {
            Kind::Untouched | Kind::Zero => zero_fill(mm, page, seen),
            Kind::Cached => from_frame(mm, touch, seen),
            Kind::Swapped => swapin::swap_in(mm, touch, seen),
            Kind::Resident | Kind::Invalid => impossible(page, seen),
        });
        match source {
            Some(Ok(source)) => {
                let ns = sys::now_ns() - start;
                mm.header().record_latency(source, ns);
                mm.who.note_touched();
                let refaults = matches!(source, Source::Compressed | Source::File);
                mm.header()
                    .count(Counter::WorkingsetRefaultAnon, u64::from(refaults));
                mm.header().workingset.refault(seen.stamp(), source, ns);
                return Outcome::Done;
            }
            Some(Err(outcome)) => {
                // Whatever is there by now, who sleeps learns it from the kernel.
                wake_waiters(mm, page);
                return outcome;
            }
            None => {}
        }
    }
}

fn impossible(page: u64, seen: PageState) -> ! {
    let (at, word) = (sys::Num::new(address(page), 16), sys::Num::new(seen.raw(), 16));
    sys::die(&[
        "farpage: page 0x",
        at.text(),
        " has the state 0x",
        word.text(),
        ", expected was untouched, zero, resident, cached or swapped; the program was stopped",
    ])
}

/// `None`: the word changed under us, look again.
pub type Filled = Option<Result<Source, Outcome>>;

/// First touch (or a page that left as zeros): as many fresh pages as the run of pages before this one suggests.
fn zero_fill(mm: &Mm, page: u64, seen: PageState) -> Filled {
    if !mm.try_lock(page, seen) {
        return None;
    }
    let mut run = 1;
    if seen.kind() == Kind::Untouched {
        let wanted = run_before(mm, page).clamp(1, ZERO_RUN_MAX);
        let end = (page / CHUNK_PAGES + 1) * CHUNK_PAGES;
        while run < wanted && page + run < end && mm.header().excess(run as i64 + 1) <= 0 {
            let next = mm.load(page + run);
            if next.raw() != 0 || !mm.try_lock(page + run, next) {
                break;
            }
            run += 1;
        }
    }
    // Charged first: other threads that look for room meanwhile must not find the same.
    mm.charge(run as i64);
    let installed = install_zeros(mm, page, run);
    kill_point!("zero-copied");
    if installed > 0 {
        // Counted before they are unlocked: a page may be evicted from then on, and a count below zero would borrow from
        // the flags beside it (a chunk once lost its mark that way, and a forked child its pages).
        mm.note_resident(page, installed as i64);
    }
    if installed < run {
        mm.charge(installed as i64 - run as i64);
    }
    for i in 0..run {
        let locked = mm.load(page + i);
        let new = if i < installed {
            PageState::resident()
        } else {
            locked
        };
        mm.unlock(page + i, locked, new);
    }
    if installed == 0 {
        return Some(Err(Outcome::NotManaged));
    }
    let header = mm.header();
    if seen.kind() == Kind::Zero {
        header.count(Counter::SwpinZero, 1);
    } else {
        header.count(Counter::PgfaultZero, installed);
    }
    Some(Ok(Source::Zero))
}

/// How many pages directly before `page` have been touched: a sequential writer has left many.
fn run_before(mm: &Mm, page: u64) -> u64 {
    let room = page.min(ZERO_RUN_MAX);
    (1..=room)
        .take_while(|back| mm.load(page - back).kind() != Kind::Untouched)
        .count() as u64
}

/// How long a page that the kernel has no memory for is tried again. Counted, tries were over at once where many threads wake each other.
#[derive(Default)]
struct Patience {
    since_ns: Option<u64>,
}

impl Patience {
    const NS: u64 = 5_000_000_000;

    fn lasts(&mut self) -> bool {
        let now = sys::now_ns();
        now.saturating_sub(*self.since_ns.get_or_insert(now)) < Self::NS
    }
}

/// Installs zero pages over `run` locked pages; returns how many of them are there now.
fn install_zeros(mm: &Mm, page: u64, run: u64) -> u64 {
    let zeros = mm.frames.zeros();
    let mut done = 0;
    let mut patience = Patience::default();
    let mut run = run;
    while done < run {
        let result = mm.uffd().copy(address(page + done), zeros, (run - done) * PAGE);
        done += result.bytes / PAGE;
        match result.error {
            None => {}
            // There since before activation: what is there stays.
            Some(Errno(libc::EEXIST)) => done += 1,
            Some(Errno(libc::EAGAIN)) => {}
            // The run leaves the mapping that holds its first page.
            Some(Errno(libc::ENOENT)) if done == 0 && run > 1 => run = 1,
            Some(Errno(libc::ENOMEM)) if patience.lasts() => {
                reclaim::reclaim(mm, 64);
                mm.header().nap(1000);
            }
            Some(_) => break,
        }
    }
    done.min(run)
}

/// A page evicted a moment ago, still in its frame: the second chance.
fn from_frame(mm: &Mm, touch: Touch, seen: PageState) -> Filled {
    let page = touch.page;
    if !mm.try_lock(page, seen) {
        return None;
    }
    let outcome = install(mm, page, mm.frames.address(seen.frame()), seen);
    if outcome == Outcome::NotManaged {
        return Some(Err(outcome));
    }
    kill_point!("frame-copied");
    mm.queue.taken_back(page, 1);
    mm.count_resident(page, 1);
    kept::taken_back(
        mm,
        page,
        seen,
        PageState::resident().with_young(!seen.readahead()),
    );
    let header = mm.header();
    header.count(Counter::PgfaultCached, 1);
    if seen.readahead() {
        readahead::count_touch(mm, page, mm.frames.is_sample(seen.frame()));
    } else {
        header.count(Counter::WorkingsetRefaultAnon, 1);
        // Young: reclaim spares it once.
        header.count(Counter::WorkingsetActivateAnon, 1);
    }
    if let Some(window) = readahead::hit(mm, touch, seen.readahead()) {
        prefetch::ask(mm, &Request::new(window));
    }
    Some(Ok(Source::Cached))
}

/// With the gate held alone: takes a page out of its frame if it waits in one, without making room first. False: it is
/// still there.
pub fn unframe(mm: &Mm, page: u64) -> bool {
    let seen = mm.load(page);
    seen.kind() != Kind::Cached || matches!(from_frame(mm, Touch::of_page(page), seen), Some(Ok(_)))
}

/// Installs the page at `from` as `page`, whose lock we hold; on `NotManaged` the word is put back.
pub fn install(mm: &Mm, page: u64, from: u64, seen: PageState) -> Outcome {
    let mut patience = Patience::default();
    loop {
        let result = mm.uffd().copy(address(page), from, PAGE);
        match result.error {
            None => return Outcome::Done,
            Some(Errno(libc::EAGAIN)) => {}
            Some(Errno(libc::ENOMEM)) if patience.lasts() => {
                // The caller holds a work area, which reclaiming needs too: the reclaimers' affair.
                mm.header().ask_to_reclaim();
                mm.header().nap(1000);
            }
            Some(Errno(libc::ENOENT)) => {
                mm.unlock(page, mm.load(page), seen);
                return Outcome::NotManaged;
            }
            Some(errno) => {
                let (at, code) = (
                    sys::Num::new(address(page), 16),
                    sys::Num::new(errno.0 as u64, 10),
                );
                sys::die(&[
                    "farpage: page 0x",
                    at.text(),
                    " could not be installed, errno ",
                    code.text(),
                    "; the program was stopped so that no wrong data is used",
                ])
            }
        }
    }
}

/// Copies `count` pages from `from` on to locked pages from `page` on; how many of the first of them are there now. `arrived`
/// gets the places of those that each call has brought, to write their words.
pub fn install_run(
    mm: &Mm,
    page: u64,
    from: u64,
    count: usize,
    mut arrived: impl FnMut(Range<usize>),
) -> usize {
    let (mut done, mut step) = (0, count);
    while done < count {
        let pages = step.min(count - done) as u64;
        let offset = done as u64 * PAGE;
        let copied = mm
            .uffd()
            .copy(address(page) + offset, from + offset, pages * PAGE);
        let end = done + (copied.bytes / PAGE) as usize;
        arrived(done..end);
        done = end;
        match copied.error {
            None | Some(Errno(libc::EAGAIN)) => {}
            // The run may leave the mapping that holds its first page.
            Some(Errno(libc::ENOENT)) if pages > 1 => step = 1,
            Some(_) => break,
        }
    }
    done
}

/// Whether the kernel has a page at that address now.
pub fn is_present(page: u64) -> bool {
    reclaim::presence(address(page), 1) & 1 == 1
}

/// A fault on a page whose word says resident: either another thread is between two steps, or somebody dropped the page
/// behind our back (a raw system call before activation). The latter must not become an endless loop or silent zeros.
fn absent_though_resident(mm: &Mm, page: u64, seen: PageState, times: u32) {
    mm.header().nap(1000);
    if times == 3 && mm.load(page) == seen && !is_present(page) {
        let at = sys::Num::new(address(page), 16);
        sys::die(&[
            "farpage: page 0x",
            at.text(),
            " was dropped without farpage's knowledge; the program was stopped ",
            "so that no wrong data is used",
        ]);
    }
}

/// Under thread delivery a thread that faulted on a page that is there by now, or is not ours any more, still sleeps.
fn wake_waiters(mm: &Mm, page: u64) {
    if mm.header().has(flag::THREAD_DELIVERY) {
        mm.uffd().wake(address(page), PAGE);
    }
}

/// Makes `page` resident and writable, and keeps it so until [`unpin`]. False: there is no managed memory.
pub fn pin(mm: &Mm, page: u64) -> bool {
    add_pin(mm, page);
    let is_there = bring_pinned(mm, page);
    if !is_there {
        unpin(mm, page);
    }
    is_there
}

/// The same of a page that has its pin. False: there is no managed memory.
pub fn bring_pinned(mm: &Mm, page: u64) -> bool {
    while mm.load(page).kind() != Kind::Resident || cow::is_protected(mm, page) {
        if fault(mm, page) == Outcome::NotManaged {
            return false;
        }
    }
    true
}

/// The same for a page that may be known to be there; false: it is not.
pub fn pin_present(mm: &Mm, page: u64) -> bool {
    let present = mm.load(page).kind() == Kind::Resident;
    if present {
        add_pin(mm, page);
    }
    present
}

/// The same without waiting for anything: only a page that is resident and may be written, whose word nobody else changes now.
pub fn pin_now(mm: &Mm, page: u64) -> bool {
    let seen = mm.load(page);
    if seen.is_locked() || seen.kind() != Kind::Resident || !replace_pins(mm, page, seen, pin_more) {
        return false;
    }
    // A fork marks its windows first and looks for pins after that: one of the two is seen.
    let may_write = !cow::is_protected(mm, page);
    if !may_write {
        unpin(mm, page);
    }
    may_write
}

/// Makes `page` resident until it is unmapped, in forked children too.
pub fn pin_for_good(mm: &Mm, page: u64) {
    if pin(mm, page) {
        set_pins(mm, page, PIN_MAX);
    }
}

/// Pins of pages that are kept for good (the maximum) or let go again (0), wherever their content is.
pub fn set_pins(mm: &Mm, page: u64, pins: u16) {
    change_pins(mm, page, |_| pins);
}

/// A pin alone, wherever the page's content is; false: its word is locked, or was changed by others just now.
pub fn try_pin(mm: &Mm, page: u64) -> bool {
    let seen = mm.load(page);
    !seen.is_locked() && replace_pins(mm, page, seen, pin_more)
}

/// A pin alone, on a page that is there: one of a process that is becoming active and has swapped nothing yet.
pub fn add_pin(mm: &Mm, page: u64) {
    change_pins(mm, page, pin_more);
}

/// Undoes one [`pin`]. A count at its maximum stays there: the page stays resident for good.
pub fn unpin(mm: &Mm, page: u64) {
    change_pins(mm, page, |pins| {
        if pins == PIN_MAX {
            pins
        } else {
            pins.saturating_sub(1)
        }
    });
}

fn pin_more(pins: u16) -> u16 {
    (pins + 1).min(PIN_MAX)
}

fn change_pins(mm: &Mm, page: u64, change: impl Fn(u16) -> u16) {
    debug_assert!(page < MANAGED_PAGES);
    loop {
        let seen = mm.load(page);
        if seen.is_locked() {
            mm.wait_unlocked(page);
        } else if replace_pins(mm, page, seen, &change) {
            return;
        }
    }
}

/// Changes the pins of a page whose word is still as `seen`; false: it is not.
fn replace_pins(mm: &Mm, page: u64, seen: PageState, change: impl Fn(u16) -> u16) -> bool {
    let then = seen.with_pins(change(seen.pins()));
    let word = mm.word(page);
    word.compare_exchange(seen.raw(), then.raw(), Ordering::SeqCst, Ordering::Relaxed)
        .is_ok()
}
