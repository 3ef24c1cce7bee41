//! Pages that come back from a tier, and which neighbours come with them.
//!
//! The readahead policy answers a miss with a window. The faulting thread brings in the missed page and what of the window
//! lies close by, with one read where it lies in one run of a file; the prefetch thread brings in the rest. Pages of the
//! adaptive policy are mapped ahead of their touch, except the window's marker and a small sample, which wait in frames
//! so that their first touch is seen. For the kernel's policies all of them wait in frames, as in the kernel.

use core::ops::Range;

use farpage_core::page_state::{Kind, PageState};
use farpage_core::readahead::{Direction, Order, Policy, hits};
use farpage_core::stats::{Counter, Source};

use crate::fault::{self, Filled, Outcome};
use crate::mm::{Context, Mm, PAGE, SPAN, address};
use crate::prefetch::{self, Request};
use crate::readahead::{self, SAMPLE_ONE_IN};
use crate::reclaim;
use crate::sys::Errno;
use crate::tiers::{self, LoadError};

/// Most pages read together with a missed page: more would let it wait.
const NOW_MAX: u32 = 32;
/// Pages not wanted between two wanted ones that one read passes over: reading them takes less than a second read.
const GAP_MAX: usize = 24;

/// Up to [`SPAN`] pages in a row, some of which are to be brought in: locked, with the slots they are in.
pub struct Span {
    start: u64,
    slots: [u32; SPAN],
    /// Places whose page is locked by us.
    locked: u64,
    /// Places to be left in frames.
    held: u64,
    /// Of those, the sample.
    sampled: u64,
}

/// Brings `page` in, and with it what the policy expects to be touched next.
pub fn swap_in(mm: &Mm, page: u64, seen: PageState) -> Filled {
    if !mm.try_lock(page, seen) {
        return None;
    }
    let (mut span, ahead) = plan(mm, page, seen);
    prefetch::ask(mm, ahead);
    let mut context = mm.context();
    let at = (page - span.start) as usize;
    let (source, run) = match span.load(mm, at, &mut context) {
        Ok(loaded) => loaded,
        Err(error) => tiers::refuse_page(error, address(page)),
    };
    span.install(mm, run, Some(at), &context);
    if span.locked & 1 << at != 0 {
        let outcome = fault::install(mm, page, context.bounce[at].as_ptr() as u64, seen);
        if outcome == Outcome::NotManaged {
            span.locked &= !(1 << at);
            span.unlock_rest(mm);
            return Some(Err(outcome));
        }
        span.arrived(mm, at);
    }
    mm.header().count(Counter::Pgmajfault, 1);
    span.bring_rest(mm, &mut context);
    Some(Ok(source))
}

/// Brings in what is swapped of the request's next pages. False: nothing is left of it.
pub fn serve(mm: &Mm, request: &mut Request) -> bool {
    let Some((start, wanted)) = request.next_span(u32::MAX) else {
        return false;
    };
    let mut span = Span::lock(mm, start, wanted, None);
    if span.locked != 0 {
        span.choose_held(mm, request, None);
        reclaim::ensure_room(mm, i64::from(span.locked.count_ones()));
        let mut context = mm.context();
        span.bring_rest(mm, &mut context);
    }
    true
}

/// What to bring in for a miss of `page`, which the caller has locked: at once, and by the prefetch thread.
fn plan(mm: &Mm, page: u64, seen: PageState) -> (Span, Request) {
    let window = readahead::miss(mm, page, seen.slot());
    let mut request = Request::new(window);
    let (start, wanted) = if window.order == Order::Device {
        near_on_device(
            mm,
            page,
            seen.slot(),
            window.first..window.first + u64::from(window.len),
        )
    } else if window.direction == Direction::Around {
        // The page may lie anywhere in such a window; none is longer than a span.
        let start = window.first.min(page);
        let places = window.places().filter(|place| place - start < SPAN as u64);
        (start, places.fold(0, |bits, place| bits | 1 << (place - start)))
    } else {
        request.next_span(NOW_MAX).unwrap_or((page, 1))
    };
    if window.order == Order::Device || window.direction == Direction::Around {
        request = Request::default();
    }
    let mut span = Span::lock(mm, start, wanted, Some((page, seen)));
    span.choose_held(mm, &mut request, Some(page));
    (span, request)
}

/// The pages around `page` that lie in `blocks` of the file it lies in. (The kernel would bring in whatever lies there;
/// which page of which process that is, is not known from the slot alone.)
fn near_on_device(mm: &Mm, page: u64, slot: u32, blocks: Range<u64>) -> (u64, u64) {
    let start = page.saturating_sub(SPAN as u64 / 2);
    let Some((area, _)) = tiers::block_of(mm, slot) else {
        return (page, 1);
    };
    let lies_there = |place: &u64| {
        let state = mm.load(start + place);
        state.kind() == Kind::Swapped
            && tiers::block_of(mm, state.slot())
                .is_some_and(|(a, block)| a == area && blocks.contains(&block))
    };
    let wanted = (0..SPAN as u64).filter(lies_there);
    (
        start,
        wanted.fold(1 << (page - start), |bits, place| bits | 1 << place),
    )
}

impl Span {
    /// Locks the swapped pages among the wanted ones; `held` is one that the caller has locked already.
    fn lock(mm: &Mm, start: u64, wanted: u64, held: Option<(u64, PageState)>) -> Span {
        let mut span = Span {
            start,
            slots: [0; SPAN],
            locked: 0,
            held: 0,
            sampled: 0,
        };
        for place in (0..SPAN).filter(|place| wanted >> place & 1 == 1) {
            let page = start + place as u64;
            let state = match held {
                Some((held, seen)) if held == page => Some(seen),
                _ => Some(mm.load(page))
                    .filter(|s| s.kind() == Kind::Swapped && !s.is_locked() && mm.try_lock(page, *s)),
            };
            if let Some(state) = state {
                span.slots[place] = state.slot();
                span.locked |= 1 << place;
            }
        }
        span
    }

    /// Chooses what is left in frames: never the touched page.
    fn choose_held(&mut self, mm: &Mm, request: &mut Request, touched: Option<u64>) {
        let rest = self.locked & !touched.map_or(0, |page| 1 << (page - self.start));
        if rest == 0 {
            return;
        }
        if matches!(readahead::policy(mm), Policy::Vma | Policy::Cluster) {
            self.held = rest;
            return;
        }
        let number = mm.readahead.next_window();
        let drawn =
            places(rest).filter(|&place| hits::is_sampled(self.start + place as u64, number, SAMPLE_ONE_IN));
        self.sampled = drawn.fold(0, |bits, place| bits | 1 << place);
        self.held = self.sampled;
        if let Some(marker) = request.take_marker(self.start, rest) {
            self.held |= 1 << marker;
            self.sampled &= !(1 << marker);
        }
    }

    /// Loads the page at `at`, and with it the pages of the span that lie at the same distance in the same file: one
    /// read. Returns where it came from and the places now loaded.
    fn load(&self, mm: &Mm, at: usize, context: &mut Context) -> Result<(Source, Range<usize>), LoadError> {
        if let Some((area, block)) = tiers::block_of(mm, self.slots[at]) {
            let base = block as i64 - at as i64;
            let fits = |&place: &usize| {
                let wanted = (area, (base + place as i64) as u64);
                tiers::block_of(mm, self.slots[place]) == Some(wanted)
            };
            let fitting = places(self.locked)
                .filter(fits)
                .fold(1 << at, |bits, place| bits | 1u64 << place);
            let from = reach(at, (0..at).rev().filter(|place| fitting >> place & 1 == 1));
            let to = reach(at, (at + 1..SPAN).filter(|place| fitting >> place & 1 == 1));
            let run = from..to + 1;
            // A page that is to be brought in, but not from there, must not lie between.
            if run.len() > 1 && self.locked & !fitting & mask(from, run.len()) == 0 {
                let first = (area, (base + from as i64) as u64);
                if tiers::load_blocks(mm, &self.slots[run.clone()], first, context, from).is_ok() {
                    return Ok((Source::File, run));
                }
            }
        }
        tiers::load(mm, self.slots[at], context, at).map(|source| (source, at..at + 1))
    }

    /// Installs or holds the locked places of `run`, which are loaded; what can't be had now stays locked.
    fn install(&mut self, mm: &Mm, run: Range<usize>, touched: Option<usize>, context: &Context) {
        let (mut mapped, mut sampled, mut marked) = (0, 0, 0);
        let mut place = run.start;
        while place < run.end {
            if self.locked >> place & 1 == 0 {
                place += 1;
                continue;
            }
            if self.held >> place & 1 == 1 {
                let count = contiguous(self.locked & self.held, place, run.end);
                let done = self.hold(mm, place, count, context);
                let of_sample = u64::from((self.sampled & mask(place, done)).count_ones());
                (mapped, sampled) = (mapped + of_sample, sampled + of_sample);
                marked += done as u64 - of_sample;
                place += count;
            } else {
                let count = contiguous(self.locked & !self.held, place, run.end);
                let done = self.map(mm, place, count, context);
                let is_touched = touched.is_some_and(|at| (place..place + done).contains(&at));
                mapped += done as u64 - u64::from(is_touched);
                place += count;
            }
        }
        let header = mm.header();
        header.hits.add_mapped(mapped, sampled);
        header.hits.add_marked(marked);
    }

    /// Maps `count` pages from `place` on; how many of the first of them are there now.
    fn map(&mut self, mm: &Mm, place: usize, count: usize, context: &Context) -> usize {
        let (mut done, mut step) = (0, count);
        while done < count {
            let from = context.bounce[place + done].as_ptr() as u64;
            let to = address(self.start + (place + done) as u64);
            let pages = step.min(count - done);
            let copied = mm.uffd().copy(to, from, pages as u64 * PAGE);
            let arrived = (copied.bytes / PAGE) as usize;
            (place + done..place + done + arrived).for_each(|place| self.arrived(mm, place));
            done += arrived;
            match copied.error {
                None | Some(Errno(libc::EAGAIN)) => {}
                // The run may leave the mapping that holds its first page.
                Some(Errno(libc::ENOENT)) if pages > 1 => step = 1,
                Some(_) => break,
            }
        }
        done
    }

    /// Puts `count` pages from `place` on into frames; how many of the first of them wait there now.
    fn hold(&mut self, mm: &Mm, place: usize, count: usize, context: &Context) -> usize {
        let page = self.start + place as u64;
        let from = context.bounce[place].as_ptr() as u64;
        let done = reclaim::hold(mm, page, count as u64, from, self.sampled >> place) as usize;
        (place..place + done).for_each(|place| {
            tiers::put(mm, self.slots[place]);
            self.locked &= !(1 << place);
        });
        done
    }

    /// Brings in every page that is locked still; what can't be had now stays where it is.
    fn bring_rest(&mut self, mm: &Mm, context: &mut Context) {
        let mut place = 0;
        while self.locked >> place != 0 {
            place += (self.locked >> place).trailing_zeros() as usize;
            let next = match self.load(mm, place, context) {
                Ok((_, run)) => {
                    let end = run.end;
                    self.install(mm, run, None, context);
                    end
                }
                Err(_) => place + 1,
            };
            if next >= SPAN {
                break;
            }
            place = next;
        }
        self.unlock_rest(mm);
    }

    /// The page at `place` is there: books, word, slot.
    fn arrived(&mut self, mm: &Mm, place: usize) {
        let page = self.start + place as u64;
        mm.count_resident(page, 1);
        mm.unlock(page, mm.load(page), PageState::resident());
        tiers::put(mm, self.slots[place]);
        self.locked &= !(1 << place);
    }

    fn unlock_rest(&mut self, mm: &Mm) {
        for place in places(self.locked) {
            let page = self.start + place as u64;
            mm.unlock(page, mm.load(page), PageState::swapped(self.slots[place]));
        }
        self.locked = 0;
    }
}

/// The farthest of the places, in order of distance from `at`, that is reached without too wide a gap.
fn reach(at: usize, places: impl Iterator<Item = usize>) -> usize {
    let mut last = at;
    for place in places {
        if place.abs_diff(last) > GAP_MAX + 1 {
            break;
        }
        last = place;
    }
    last
}

/// How many places from `place` on, before `end`, are set without a gap.
fn contiguous(bits: u64, place: usize, end: usize) -> usize {
    ((!(bits >> place)).trailing_zeros() as usize).min(end - place)
}

fn places(bits: u64) -> impl Iterator<Item = usize> {
    (0..SPAN).filter(move |place| bits >> place & 1 == 1)
}

fn mask(place: usize, count: usize) -> u64 {
    if count >= 64 {
        u64::MAX
    } else {
        ((1 << count) - 1) << place
    }
}

const _: () = assert!(SPAN == 64 && NOW_MAX as usize <= SPAN);
