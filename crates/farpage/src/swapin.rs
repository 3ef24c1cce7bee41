//! Pages that come back from a tier, and which neighbours come with them.
//!
//! Readahead, first form: the pages that are resident directly before the faulting page (or, for a backward scan, behind it)
//! are as many as a stream has left there, so that many are read ahead, up to [`WINDOW_MAX`]: a stream's windows double, a random access finds
//! nobody beside it. There is no state to keep and none to get wrong. A page read ahead carries a mark; when a later fault
//! finds marked pages in the run that led to it, the stream has passed them: they count as hits.

use core::ops::Range;
use core::sync::atomic::Ordering;

use farpage_core::page_state::{Kind, PageState};
use farpage_core::stats::Counter;

use crate::fault::{self, Filled, Outcome};
use crate::mm::{CHUNK_PAGES, Context, Mm, PAGE, WINDOW_MAX, address};
use crate::pool::flag;
use crate::tiers;

/// The pages that one fault brings in: locked, with the slots they are in.
struct Window {
    start: u64,
    len: usize,
    slots: [u32; WINDOW_MAX],
    /// Places whose page is locked by us.
    locked: u32,
}

/// Brings `page` in, and with it the neighbours that a stream will touch next.
pub fn swap_in(mm: &Mm, page: u64, seen: PageState) -> Filled {
    if !mm.try_lock(page, seen) {
        return None;
    }
    let mut context = mm.context();
    let window = lock_window(mm, page, seen);
    let at = (page - window.start) as usize;
    let source = match tiers::load(mm, seen.slot(), &mut context, at) {
        Ok(source) => source,
        Err(error) => tiers::refuse_page(error, address(page)),
    };
    let outcome = fault::install(mm, page, context.bounce[at].as_ptr() as u64, seen);
    if outcome == Outcome::NotManaged {
        unlock_places(mm, &window, window.locked & !(1 << at));
        return Some(Err(outcome));
    }
    arrived(mm, &window, at, PageState::resident());
    mm.header().count(Counter::Pgmajfault, 1);
    let rest = window.locked & !(1 << at);
    if rest != 0 {
        bring_rest(mm, &window, rest, &mut context);
    }
    Some(Ok(source))
}

fn lock_window(mm: &Mm, page: u64, seen: PageState) -> Window {
    let range = if mm.header().has(flag::READAHEAD) {
        choose(mm, page)
    } else {
        page..page + 1
    };
    let mut window = Window {
        start: range.start,
        len: (range.end - range.start) as usize,
        slots: [0; WINDOW_MAX],
        locked: 0,
    };
    for place in 0..window.len {
        let neighbour = window.start + place as u64;
        let state = if neighbour == page {
            seen
        } else {
            mm.load(neighbour)
        };
        let wanted = state.kind() == Kind::Swapped && !state.is_locked();
        if neighbour == page || (wanted && mm.try_lock(neighbour, state)) {
            window.slots[place] = state.slot();
            window.locked |= 1 << place;
        }
    }
    window
}

/// The pages to bring in for a fault on `page`.
fn choose(mm: &Mm, page: u64) -> Range<u64> {
    let chunk = page / CHUNK_PAGES * CHUNK_PAGES;
    let most = (WINDOW_MAX as u64).min((-mm.header().excess(0) / 4).max(1) as u64);
    let before = resident_run(mm, (chunk..page).rev());
    if before > 0 {
        return page..(page + before.clamp(1, most)).min(chunk + CHUNK_PAGES);
    }
    let behind = resident_run(mm, page + 1..chunk + CHUNK_PAGES);
    (page + 1 - behind.clamp(1, most)).max(chunk)..page + 1
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

/// Reads and installs the rest of the window; what can't be had now stays where it is.
fn bring_rest(mm: &Mm, window: &Window, rest: u32, context: &mut Context) {
    let mut loaded = 0u32;
    let mut place = 0;
    while place < window.len {
        if rest >> place & 1 == 0 {
            place += 1;
            continue;
        }
        let count = load_from(mm, window, rest, place, context);
        let got = count.unwrap_or(0);
        loaded |= mask(got) << place;
        place += got.max(1);
    }
    let marked = PageState::resident().with_readahead(true);
    let mut place = 0;
    while place < window.len {
        let run = (!(loaded >> place))
            .trailing_zeros()
            .min((window.len - place) as u32) as usize;
        if run == 0 {
            place += 1;
            continue;
        }
        let from = context.bounce[place].as_ptr() as u64;
        let done = mm
            .uffd()
            .copy(address(window.start + place as u64), from, run as u64 * PAGE);
        let installed = (done.bytes / PAGE) as usize;
        (place..place + installed).for_each(|place| arrived(mm, window, place, marked));
        if installed < run {
            unlock_places(mm, window, mask(run - installed) << (place + installed));
        }
        mm.header().count(Counter::SwapRa, installed as u64);
        place += run;
    }
    unlock_places(mm, window, rest & !loaded);
}

/// Loads the page at `place` and those after it that lie in the following blocks of the same file; how many.
fn load_from(mm: &Mm, window: &Window, rest: u32, place: usize, context: &mut Context) -> Option<usize> {
    let Some((area, block)) = tiers::block_of(mm, window.slots[place]) else {
        return tiers::load(mm, window.slots[place], context, place)
            .ok()
            .map(|_| 1);
    };
    let follows = |i: &usize| {
        let slot = window.slots[place + i];
        rest >> (place + i) & 1 == 1 && tiers::block_of(mm, slot) == Some((area, block + *i as u64))
    };
    let count = 1 + (1..window.len - place).take_while(follows).count();
    let slots = &window.slots[place..place + count];
    tiers::load_blocks(mm, slots, (area, block), context, place)
        .ok()
        .map(|_| count)
}

/// The page at `place` is there: books, word, slot.
fn arrived(mm: &Mm, window: &Window, place: usize, state: PageState) {
    let page = window.start + place as u64;
    mm.count_resident(page, 1);
    mm.unlock(page, mm.load(page), state);
    tiers::put(mm, window.slots[place]);
}

fn unlock_places(mm: &Mm, window: &Window, places: u32) {
    for place in (0..window.len).filter(|place| places >> place & 1 == 1) {
        let page = window.start + place as u64;
        mm.unlock(page, mm.load(page), PageState::swapped(window.slots[place]));
    }
}

fn mask(len: usize) -> u32 {
    if len >= 32 { u32::MAX } else { (1 << len) - 1 }
}

const _: () = assert!(WINDOW_MAX <= 32);
