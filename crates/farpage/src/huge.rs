//! Huge pages come: at first touch, from the swap cache, from a tier; and which fault gets one.
//!
//! `farpage_core::huge` decides, here it is carried out. Steps, with what is locked in brackets: 1. charge for 512 pages, and
//! reclaim until they fit; 2. take a nursery with a fresh huge page; 3. lock the chunk's words [words]; 4. fill the nursery with
//! what they name, each page verified [words]; 5. MOVE it to its place, whole [words]; 6. counts, words, slots. If anything is in the way
//! (another thread at work in the chunk, no room, no huge page to be had) the fault is answered with small pages.
//!
//! A walk is read ahead of: the next huge pages are loaded into places of the swap cache by the prefetch thread; the first touch of
//! one moves it in and asks for the next.
//!
//! Runs with the gate held shared and signals blocked.

use core::sync::atomic::Ordering;

use farpage_core::huge::{self, HUGE_PAGES, Huge, SwapIn, Walk};
use farpage_core::kill_point;
use farpage_core::page_state::{Kind, PageState};
use farpage_core::readahead::{Direction, Window};
use farpage_core::stats::{Counter, Source};
use farpage_core::units::PAGE_SIZE;

use crate::cow;
use crate::fault::Filled;
use crate::huge_advice;
use crate::huge_out::{self, Turn};
use crate::huge_places::{
    Nursery, carry, clear_for_huge, first_frame, has_content, is_huge, lock_all, place_of, set_locked,
    unlock_same,
};
use crate::mm::{CHUNK_PAGES, Mm, RESIDENT_MASK, TOUCHED, address};
use crate::pool::MANAGED_PAGES;
use crate::prefetch;
use crate::puts::put_all;
use crate::reclaim::{self, FIRST_PLACE};
use crate::reclaim_calls::drop_frames;
use crate::request::{Request, Taken};
use crate::tiers;
use crate::work_area::Context;

/// Turns of reclaim for the room of a huge page.
const TURNS: usize = 16;
/// Pages at the end of a huge page that show whether it was written.
const TRACES: u64 = 4;
/// Words put in one go.
const GROUP: u64 = 64;

/// Answers the fault of an absent page with a huge page, if one is due: `None` if not.
#[inline]
pub fn fault(mm: &Mm, page: u64, seen: PageState) -> Filled {
    if !mm.places.is_on() {
        return None;
    }
    match seen.kind() {
        Kind::Untouched => first_touch(mm, page),
        Kind::Cached => take_back(mm, page, seen),
        Kind::Swapped | Kind::Zero => swap_in(mm, page),
        Kind::Resident | Kind::Invalid => None,
    }
}

fn chunk_of(page: u64) -> u64 {
    page / CHUNK_PAGES * CHUNK_PAGES
}

/// Whether the chunk may be huge: setting, advice, budget.
fn is_allowed(mm: &Mm, chunk: u64) -> bool {
    let setting = mm.header().huge.load(Ordering::Relaxed) as usize;
    let setting = Huge::ALL.get(setting).copied().unwrap_or_default();
    huge::affordable(mm.header().last_limit()) && setting.allows(huge_advice::of(chunk))
}

/// The walk that a touch of the page belongs to; `there` tells it of neighbours.
fn walk(mm: &Mm, page: u64, there: impl Fn(Kind) -> bool) -> Option<Walk> {
    let chunk = chunk_of(page);
    let walk = Walk::seen(page - chunk, |at| {
        let page = chunk.checked_add_signed(at);
        page.is_some_and(|page| page < MANAGED_PAGES && there(mm.load(page).kind()))
    })?;
    let from = walk.from(chunk)?;
    (!mm.places.came_lately(from)).then_some(walk)
}

/// Whether the chunk that a walk to fresh memory comes from was really walked through: of a huge page the end must show it.
fn left_traces(mm: &Mm, chunk: u64, walk: Walk) -> bool {
    let from = walk.from(chunk).unwrap_or_default();
    let end = match walk {
        Walk::Up => chunk - TRACES,
        Walk::Down => from,
    };
    mm.load(end).kind() != Kind::Resident || !is_huge(mm, from) || has_content(mm, end, TRACES)
}

/// 512 pages charged in advance.
struct Room<'a>(&'a Mm);

impl<'a> Room<'a> {
    fn charged(mm: &'a Mm) -> Room<'a> {
        mm.charge(HUGE_PAGES);
        Room(mm)
    }

    fn take(mm: &'a Mm) -> Option<Room<'a>> {
        let room = Room::charged(mm);
        for _ in 0..TURNS {
            let excess = mm.header().excess(0);
            if excess <= 0 {
                return Some(room);
            }
            if reclaim::reclaim(mm, excess) == 0 {
                break;
            }
        }
        None
    }

    /// The same, if there is room without reclaim.
    fn beside(mm: &'a Mm) -> Option<Room<'a>> {
        let room = Room::charged(mm);
        (mm.header().excess(0) <= 0).then_some(room)
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.0.charge(-HUGE_PAGES);
    }
}

/// Fresh memory: a walk has come to a chunk of which nothing was ever touched.
fn first_touch(mm: &Mm, page: u64) -> Filled {
    let chunk = chunk_of(page);
    let untouched = mm.chunk(chunk).load(Ordering::Relaxed) & (TOUCHED | RESIDENT_MASK) == 0;
    if !untouched || !is_allowed(mm, chunk) {
        return None;
    }
    let written = |kind| matches!(kind, Kind::Resident | Kind::Cached | Kind::Swapped);
    let walk = walk(mm, page, written)?;
    if !left_traces(mm, chunk, walk) {
        return None;
    }
    let arrived = give_fresh(mm, chunk);
    let is_whole = arrived.is_some() && is_huge(mm, chunk);
    let counter = if is_whole {
        Counter::ThpFaultAlloc
    } else {
        Counter::ThpFaultFallback
    };
    mm.header().count(counter, 1);
    mm.header().count(Counter::PgfaultZero, arrived?);
    if is_whole {
        mm.places.note_whole();
        join_before(mm, chunk, walk);
    }
    (page - chunk < arrived?).then_some(Ok(Source::Zero))
}

/// The small pages that a walk has come over, the first ones of it, become one: through a place, so that nobody writes them meanwhile.
fn join(mm: &Mm, chunk: u64) {
    let resident = || mm.chunk(chunk).load(Ordering::Relaxed) & RESIDENT_MASK;
    if !is_allowed(mm, chunk) || resident() < huge::USED_AS_ONE || is_huge(mm, chunk) {
        return;
    }
    // Some may have been mapped and touched before the prefetch thread says so.
    let is_free = |page: u64| {
        if mm.load(page).is_locked() {
            mm.wait_unlocked(page);
        }
        let seen = mm.load(page);
        !seen.is_locked() && seen.pins() == 0
    };
    let all_free = (chunk..chunk + CHUNK_PAGES).all(is_free);
    if !all_free || i64::from(resident()) != HUGE_PAGES || cow::any_protected(mm, chunk) {
        return;
    }
    // For the page that they become, beside them.
    let Some(room) = Room::take(mm) else { return };
    let Some(spare) = mm.places.nursery().map(|nursery| (nursery, room)) else {
        return;
    };
    let Some(place) = mm.places.take() else { return };
    // No walk leads to the first one when it comes back.
    huge_out::give_credit(mm, chunk);
    // Whatever stays in the place is like any other that was evicted: it is taken back when it is touched.
    if huge_out::move_out(mm, chunk, place) == Turn::Moved(CHUNK_PAGES)
        && bring_back(mm, chunk, place, Some(spare)).is_some()
    {
        let joined = u64::from(is_huge(mm, chunk));
        mm.header().count(Counter::ThpCollapseAlloc, joined);
    }
}

/// The chunk that a walk to this one came over becomes one, if it came in small pages: as the first of the walk, or to see whether it is
/// used as one. It was.
fn join_before(mm: &Mm, chunk: u64, walk: Walk) {
    walk.from(chunk).into_iter().for_each(|from| join(mm, from));
}

/// Pages of zeros that are in the chunk now; none if it was none.
fn give_fresh(mm: &Mm, chunk: u64) -> Option<u64> {
    let maps = |range: &farpage_core::range_map::RangeMap| range.covers(chunk, chunk + CHUNK_PAGES);
    if !mm.maps.lock().as_ref().is_some_and(maps) || holds_foreign(mm, chunk) {
        return None;
    }
    let room = Room::take(mm)?;
    let nursery = mm.places.nursery()?;
    if lock_all(mm, chunk, |_, seen| seen.kind() == Kind::Untouched).is_err() {
        return None;
    }
    kill_point!("huge-in-locked");
    let arrived = if clear_for_huge(mm, chunk) {
        carry(mm, address(chunk), nursery.address())
    } else {
        0
    };
    kill_point!("huge-in-moved");
    if arrived > 0 {
        mm.count_resident(chunk, arrived as i64);
    }
    (0..arrived).for_each(|i| set_locked(mm, chunk + i, PageState::resident()));
    mm.places.note_came(chunk);
    unlock_same(mm, chunk, chunk + CHUNK_PAGES);
    drop((nursery, room));
    (arrived > 0).then_some(arrived)
}

/// Whether the program may have mapped something there that is not managed: its pages, which no word tells of, would be dropped. The
/// kernel, which is asked to lift what is not there, refuses what is not registered.
fn holds_foreign(mm: &Mm, chunk: u64) -> bool {
    let refused = || {
        mm.uffd()
            .write_protect(address(chunk), CHUNK_PAGES * PAGE_SIZE as u64, false)
            .is_err()
    };
    mm.foreign.load(Ordering::Relaxed) != 0 && refused()
}

/// A touch of a page that waits in a place: all of it comes back.
fn take_back(mm: &Mm, page: u64, seen: PageState) -> Filled {
    let (chunk, place) = (chunk_of(page), place_of(seen.frame())?);
    let Back { arrived, ahead } = bring_back(mm, chunk, place, None)?;
    let header = mm.header();
    header.count(Counter::PgfaultCached, 1);
    if ahead.is_none() {
        header.count(Counter::WorkingsetRefaultAnon, arrived);
    }
    let walked = |walk: &Walk| walk.from(chunk).is_some_and(|from| !mm.places.came_lately(from));
    if let Some(walk) = ahead.filter(walked) {
        ask_ahead(mm, chunk, walk, huge::ahead(header.last_limit()));
        join_before(mm, chunk, walk);
    }
    (page - chunk < arrived).then_some(Ok(Source::Cached))
}

/// A huge page beside the pages that lie in a place, where there is room for it: reclaim could store these to make some.
fn spare_page(mm: &Mm) -> Option<(Nursery<'_>, Room<'_>)> {
    let room = Room::beside(mm)?;
    Some((mm.places.nursery()?, room))
}

/// What has come back of a place: so many pages, and the walk it was read ahead of.
struct Back {
    arrived: u64,
    ahead: Option<Walk>,
}

/// Brings a chunk back from its place, if all of it waits there; small pages become one on their way, `spare` or where there is room for it.
fn bring_back(mm: &Mm, chunk: u64, place: u64, spare: Option<(Nursery, Room)>) -> Option<Back> {
    let at = mm.places.get(place);
    let first = first_frame(place);
    let waits = |i: u64, seen: PageState| seen.kind() == Kind::Cached && seen.frame() == first + i;
    let joins = spare.is_none()
        && at.has_table()
        && mm.places.stay_whole()
        && is_allowed(mm, chunk)
        && (0..CHUNK_PAGES).all(|i| waits(i, mm.load(chunk + i)));
    let spare = spare.or_else(|| joins.then(|| spare_page(mm)).flatten());
    if !mm.frames.withdraw(FIRST_PLACE + place) {
        return None;
    }
    let ahead = at.ahead();
    if lock_all(mm, chunk, waits).is_err() {
        mm.frames.push(FIRST_PLACE + place);
        return None;
    }
    // Who has its id knows: that of a huge page is moved as it is.
    let spare = spare.filter(|_| at.has_table());
    let arrived = carry_back(mm, chunk, first, spare);
    if arrived > 0 {
        mm.queue.taken_back(chunk, CHUNK_PAGES);
        mm.note_resident(chunk, arrived as i64);
        mm.entry().frames.fetch_sub(arrived as i64, Ordering::Relaxed);
        let young = PageState::resident().with_young(ahead.is_none());
        (0..arrived).for_each(|i| {
            let kept = mm.load(chunk + i).slot();
            set_locked(mm, chunk + i, young.keeping(kept));
        });
    }
    kill_point!("huge-back-worded");
    if arrived < CHUNK_PAGES || !is_huge(mm, chunk) {
        at.note_table();
    }
    if arrived < CHUNK_PAGES {
        at.held.fetch_sub(arrived, Ordering::Relaxed);
        mm.frames.push(FIRST_PLACE + place);
    } else {
        mm.places.give(mm, place);
    }
    mm.places.note_came(chunk);
    unlock_same(mm, chunk, chunk + CHUNK_PAGES);
    (arrived > 0).then_some(Back { arrived, ahead })
}

/// Moves the content of the frames from `first` on, or a copy of it made in the nursery, to the chunk, whose words are locked; how many
/// of the first pages are there now, whose frames have gone.
fn carry_back(mm: &Mm, chunk: u64, first: u64, spare: Option<(Nursery, Room)>) -> u64 {
    let ready = clear_for_huge(mm, chunk);
    kill_point!("huge-back-locked");
    let frames = mm.frames.address(first);
    let arrived = match spare {
        _ if !ready => 0,
        None => carry(mm, address(chunk), frames),
        Some((mut nursery, _room)) => {
            (0..CHUNK_PAGES).for_each(|i| nursery.copy_page(i, mm.frames.address(first + i)));
            let arrived = carry(mm, address(chunk), nursery.address());
            drop_frames(mm, frames, arrived * PAGE_SIZE as u64);
            arrived
        }
    };
    kill_point!("huge-back-moved");
    arrived
}

/// A touch of a chunk that is out, all of it: it comes in as one if a walk has come to it or it was used as one before. Where the
/// touched page is to come first, the others are asked for.
fn swap_in(mm: &Mm, page: u64) -> Filled {
    let chunk = chunk_of(page);
    if !is_out(mm, chunk) || is_measured(mm, chunk) {
        return None;
    }
    let walk = walk(mm, page, |kind| matches!(kind, Kind::Resident | Kind::Cached));
    if walk.is_none() && huge::credit(mm.chunk(chunk).load(Ordering::Relaxed)) == 0 {
        return None;
    }
    if !is_one_outside(mm, chunk) {
        return None;
    }
    if walk.is_none() {
        spend_credit(mm, chunk);
    }
    if setting(mm) == SwapIn::Touched {
        let direction = walk.map_or(Direction::Forward, direction_of);
        prefetch::ask(
            mm,
            &Request::new(Window::row(chunk, HUGE_PAGES as u32, direction)),
        );
        return None;
    }
    let source = bring_at_last(mm, chunk)?;
    mm.header().count(Counter::Pgmajfault, 1);
    if let Some(walk) = walk {
        let most = huge::ahead(mm.header().last_limit());
        (1..=most).for_each(|distance| ask_ahead(mm, chunk, walk, distance));
        join_before(mm, chunk, walk);
    }
    (mm.load(page).kind() == Kind::Resident).then_some(Ok(source))
}

/// The chunk comes whole since it was used as one before, once less from now on.
fn spend_credit(mm: &Mm, chunk: u64) {
    let _ = mm
        .chunk(chunk)
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, huge::spend);
}

/// Brings a chunk into the program, though others may be at work in it: mostly a prefetch thread, which then leaves it to us or
/// has it in a place soon. Small pages would take its huge page away for good.
fn bring_at_last(mm: &Mm, chunk: u64) -> Option<Source> {
    for _ in 0..TURNS {
        match bring(mm, chunk, None) {
            Ok(source) => return Some(source),
            Err(Hindrance::At(page)) => mm.wait_unlocked(page),
            Err(Hindrance::Other) => break,
        }
        if !is_out(mm, chunk) || !may_come_whole(mm, chunk) {
            break;
        }
    }
    None
}

/// Whether nothing of the chunk is in the program's memory, as far as counts tell.
fn is_out(mm: &Mm, chunk: u64) -> bool {
    mm.chunk(chunk).load(Ordering::Relaxed) & (TOUCHED | RESIDENT_MASK) == TOUCHED
}

fn may_come_whole(mm: &Mm, chunk: u64) -> bool {
    setting(mm) == SwapIn::Whole && !is_measured(mm, chunk) && is_one_outside(mm, chunk)
}

/// Whether the chunk comes in small pages this time, so that its use can be seen.
fn is_measured(mm: &Mm, chunk: u64) -> bool {
    mm.chunk(chunk).load(Ordering::Relaxed) & huge::MEASURED != 0
}

/// How chunks are to come back that may be huge.
fn setting(mm: &Mm) -> SwapIn {
    let setting = mm.header().huge_swapin.load(Ordering::Relaxed) as usize;
    SwapIn::ALL.get(setting).copied().unwrap_or_default()
}

/// Whether the chunk may be huge, and all its pages are outside.
fn is_one_outside(mm: &Mm, chunk: u64) -> bool {
    is_allowed(mm, chunk) && (chunk..chunk + CHUNK_PAGES).all(|page| is_outside(mm.load(page)))
}

/// Whether the page is somewhere outside, and not in a place: such a chunk is wholly mapped, and was touched everywhere.
fn is_outside(seen: PageState) -> bool {
    match seen.kind() {
        Kind::Swapped | Kind::Zero => true,
        Kind::Cached => place_of(seen.frame()).is_none(),
        _ => false,
    }
}

/// Asks for the chunk that lies `distance` chunks ahead.
fn ask_ahead(mm: &Mm, chunk: u64, walk: Walk, distance: u64) {
    let at = |distance: u64| match walk {
        Walk::Up => {
            Some(chunk + distance * CHUNK_PAGES).filter(|at| *at < mm.top_page.load(Ordering::Relaxed))
        }
        Walk::Down => chunk.checked_sub(distance * CHUNK_PAGES),
    };
    // What waits in a place is asked for already.
    if let Some(next) = at(distance).filter(|next| is_out(mm, *next) && is_outside(mm.load(*next))) {
        // Beyond one that is measured only the walk itself leads on.
        if is_measured(mm, next) || walk.from(next).is_some_and(|from| is_measured(mm, from)) {
            return;
        }
        // Nothing would make one again what it comes over last.
        let goes_on = at(distance + 1).is_some_and(|beyond| is_out(mm, beyond));
        if goes_on && mm.places.measures_next() {
            mm.chunk(next).fetch_or(huge::MEASURED, Ordering::Relaxed);
            return;
        }
        // One page stands for all: several threads take from a larger request, and would get in each other's way.
        prefetch::ask(mm, &Request::new(Window::row(next, 1, direction_of(walk))));
    }
}

fn direction_of(walk: Walk) -> Direction {
    match walk {
        Walk::Up => Direction::Forward,
        Walk::Down => Direction::Backward,
    }
}

/// Whether what lies before the chunk, on this way, is there: small pages that are fetched in some order come to it in a row.
fn is_walked_to(mm: &Mm, chunk: u64, way: Walk) -> bool {
    let first = match way {
        Walk::Up => chunk,
        Walk::Down => chunk + CHUNK_PAGES - 1,
    };
    walk(mm, first, |kind| matches!(kind, Kind::Resident | Kind::Cached)).is_some()
}

/// Takes out of the pages to be brought in small those in chunks that could come whole, if they are a row or come to it as one, or the chunk was used as one
/// before; the first such chunk. `held` lies in a chunk for which that was looked at already.
pub fn keep_whole(mm: &Mm, taken: &mut Taken, held: Option<u64>) -> Option<u64> {
    if !mm.places.is_on() {
        return None;
    }
    let (mut whole, mut last, is_row, way) = (None, None, taken.is_row(), taken.walk());
    taken.retain(|page| {
        let chunk = chunk_of(page);
        let may = match last {
            Some((seen, may)) if seen == chunk => may,
            _ => {
                let used = || {
                    is_row
                        || huge::credit(mm.chunk(chunk).load(Ordering::Relaxed)) > 0
                        || is_walked_to(mm, chunk, way)
                };
                held.map(chunk_of) != Some(chunk) && is_out(mm, chunk) && used() && may_come_whole(mm, chunk)
            }
        };
        last = Some((chunk, may));
        whole = whole.or(may.then_some(chunk));
        !may
    });
    whole
}

/// A prefetch thread's part: brings a chunk that could come whole into the swap cache, if there is room.
pub fn fetch(mm: &Mm, chunk: u64, walk: Walk, is_row: bool) {
    if !is_row {
        spend_credit(mm, chunk);
    }
    let _ = bring(mm, chunk, Some(walk));
}

/// Why a chunk did not come.
enum Hindrance {
    /// This page, which somebody is at work at.
    At(u64),
    Other,
}

/// Brings a chunk in: into the program, or `ahead` of a walk into a place. Where its content came from.
fn bring(mm: &Mm, chunk: u64, ahead: Option<Walk>) -> Result<Source, Hindrance> {
    let room = Room::take(mm).ok_or(Hindrance::Other)?;
    let mut nursery = mm.places.nursery().ok_or(Hindrance::Other)?;
    let place = match ahead {
        Some(_) => Some(mm.places.take().ok_or(Hindrance::Other)?),
        None => None,
    };
    let source = lock_and_fill(mm, chunk, &mut nursery, place.is_some());
    if source.is_err() {
        place.into_iter().for_each(|place| mm.places.give(mm, place));
    }
    let source = source?;
    kill_point!("huge-in-filled");
    let arrived = match (place, ahead) {
        (Some(place), Some(walk)) => settle_ahead(mm, chunk, place, &nursery, walk),
        _ => settle_in(mm, chunk, &nursery),
    };
    drop((nursery, room));
    if arrived == CHUNK_PAGES && (ahead.is_some() || is_huge(mm, chunk)) {
        mm.header().count(Counter::ThpSwpin, 1);
    }
    if arrived > 0 {
        Ok(source)
    } else {
        Err(Hindrance::Other)
    }
}

/// Locks the words of a chunk and fills the nursery with what they name, for a place or for the program. On failure none is locked.
fn lock_and_fill(mm: &Mm, chunk: u64, nursery: &mut Nursery, in_place: bool) -> Result<Source, Hindrance> {
    let mut context = mm.context();
    lock_all(mm, chunk, |_, seen| is_outside(seen)).map_err(Hindrance::At)?;
    let source = fill(mm, chunk, nursery, &mut context);
    if let Some(source) = source.filter(|_| in_place || clear_for_huge(mm, chunk)) {
        return Ok(source);
    }
    unlock_same(mm, chunk, chunk + CHUNK_PAGES);
    Err(Hindrance::Other)
}

/// Fills the nursery with what the locked words name, verified. None: something can't be had, or not now.
fn fill(mm: &Mm, chunk: u64, nursery: &mut Nursery, context: &mut Context) -> Option<Source> {
    let mut source = Source::Zero;
    let mut i = 0;
    while i < CHUNK_PAGES {
        let seen = mm.load(chunk + i);
        let (from, pages) = match seen.kind() {
            Kind::Zero => (Source::Zero, 1),
            Kind::Cached => {
                nursery.copy_page(i, mm.frames.address(seen.frame()));
                (Source::Cached, 1)
            }
            Kind::Swapped => match row(mm, chunk, i) {
                row @ 2.. if tiers::load_row(mm, seen.slot(), nursery.pages(i, row)) => (Source::File, row),
                _ => {
                    let from = tiers::load(mm, seen.slot(), context, 0).ok()?;
                    nursery.pages(i, 1)[0].copy_from_slice(&context.bounce[0]);
                    (from, 1)
                }
            },
            _ => return None,
        };
        if from as usize > source as usize {
            source = from;
        }
        i += pages;
    }
    Some(source)
}

/// How many pages from place `i` on lie in slots in a row of one file.
fn row(mm: &Mm, chunk: u64, i: u64) -> u64 {
    let first = mm.load(chunk + i).slot();
    let Some((area, block)) = tiers::block_of(mm, first) else {
        return 0;
    };
    let follows = |nth: &u64| {
        let seen = mm.load(chunk + i + nth);
        seen.kind() == Kind::Swapped
            && u64::from(seen.slot()) == u64::from(first) + nth
            && tiers::block_of(mm, seen.slot()) == Some((area, block + nth))
    };
    (0..CHUNK_PAGES - i).take_while(follows).count() as u64
}

/// The content goes into the program; how many of the first pages are there now.
fn settle_in(mm: &Mm, chunk: u64, nursery: &Nursery) -> u64 {
    let arrived = carry(mm, address(chunk), nursery.address());
    kill_point!("huge-in-carried");
    if arrived > 0 {
        mm.count_resident(chunk, arrived as i64);
    }
    change(mm, chunk, arrived, |_| PageState::resident());
    mm.places.note_came(chunk);
    unlock_same(mm, chunk, chunk + CHUNK_PAGES);
    arrived
}

/// The content goes into a place, to be there when the walk comes to it.
fn settle_ahead(mm: &Mm, chunk: u64, place: u64, nursery: &Nursery, walk: Walk) -> u64 {
    let first = first_frame(place);
    let arrived = carry(mm, mm.frames.address(first), nursery.address());
    kill_point!("huge-in-carried");
    if arrived < CHUNK_PAGES {
        mm.places.get(place).note_table();
    }
    mm.places.get(place).fill(chunk, arrived, Some(walk));
    mm.entry().frames.fetch_add(arrived as i64, Ordering::Relaxed);
    mm.charge(arrived as i64);
    change(mm, chunk, arrived, |i| PageState::cached(first + i));
    // In the FIFO before a page can be touched: then all of it can be taken back.
    if arrived > 0 {
        mm.frames.push(FIRST_PLACE + place);
    } else {
        mm.places.give(mm, place);
    }
    unlock_same(mm, chunk, chunk + CHUNK_PAGES);
    arrived
}

/// Gives the first pages of a chunk, which stay locked, their new words, and gives up the slots that the old ones named.
fn change(mm: &Mm, chunk: u64, pages: u64, new: impl Fn(u64) -> PageState) {
    for from in (0..pages).step_by(GROUP as usize) {
        // The words are changed there: see puts::leave.
        let _step = mm.entry().puts.begin();
        let (mut slots, mut count, mut kept) = ([0u32; GROUP as usize], 0, 0);
        for i in from..(from + GROUP).min(pages) {
            let locked = mm.load(chunk + i);
            if let Some(slot) = locked.named_slot() {
                kept += i64::from(locked.kept_slot().is_some());
                slots[count] = slot;
                count += 1;
            }
            set_locked(mm, chunk + i, new(i));
        }
        kill_point!("huge-in-worded");
        put_all(mm, &slots[..count]);
        mm.entry().kept.fetch_sub(kept, Ordering::Relaxed);
    }
}

const _: () = assert!(PAGE_SIZE == 4096 && GROUP <= CHUNK_PAGES);
