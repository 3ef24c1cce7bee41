//! Pages that come back from a tier, and which neighbours come with them.
//!
//! The readahead policy answers a miss with a window. The faulting thread brings in the missed page and what of the window
//! lies close by, with one read where it lies in one run of a file; the prefetch thread brings in the rest. Pages of the
//! adaptive policy are mapped ahead of their touch, except the window's marker and a small sample, which wait in frames
//! so that their first touch is seen. For the kernel's policies all of them wait in frames, as in the kernel.

use core::ops::Range;

use farpage_core::kill_point;
use farpage_core::page_state::{Kind, PageState};
use farpage_core::readahead::{Direction, Order, Policy, hits};
use farpage_core::stats::{Counter, Source};

use crate::fault::{self, Filled, Outcome};
use crate::mm::{Context, Mm, PAGE, SPAN, address};
use crate::prefetch::{self, Request};
use crate::readahead::{self, SAMPLE_ONE_IN, Touch};
use crate::reclaim::{self, bits, mask, set};
use crate::sys::Errno;
use crate::tiers::{self, Blocks, LoadError, READ_MAX};

/// Most pages read together with a missed page: more would let it wait.
const NOW_MAX: u32 = 32;
/// Distance in blocks of two wanted pages that one read spans: reading what lies between takes less than a second read.
const GAP_MAX: u64 = 24;

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
pub fn swap_in(mm: &Mm, touch: Touch, seen: PageState) -> Filled {
    let page = touch.page;
    if !mm.try_lock(page, seen) {
        return None;
    }
    let (mut span, ahead) = plan(mm, touch, seen);
    kill_point!("swapin-locked");
    prefetch::ask(mm, ahead);
    let mut context = mm.context();
    let at = (page - span.start) as usize;
    let (source, loaded) = match span.load(mm, at, &mut context) {
        Ok(loaded) => loaded,
        Err(error) => tiers::refuse_page(error, address(page)),
    };
    kill_point!("swapin-loaded");
    span.install(mm, loaded, Some(at), &context);
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
    let swapped = |place: &u64| mm.load(start + place).kind() == Kind::Swapped;
    let count = bits(wanted).filter(swapped).count();
    if count == 0 {
        return true;
    }
    // Before anything is locked: it may take a while.
    reclaim::ensure_room(mm, count as i64);
    let mut span = Span::lock(mm, start, wanted, None);
    if span.locked != 0 {
        span.choose_held(mm, request, None);
        kill_point!("prefetch-locked");
        let mut context = mm.context();
        span.bring_rest(mm, &mut context);
    }
    true
}

/// What to bring in for a miss of `page`, which the caller has locked: at once, and by the prefetch thread.
fn plan(mm: &Mm, touch: Touch, seen: PageState) -> (Span, Request) {
    let page = touch.page;
    let window = readahead::miss(mm, touch, seen.slot());
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
        let places = window.places().map(|page| page - start);
        (start, set(places.filter(|place| *place < SPAN as u64)))
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
    let wanted = set((0..SPAN as u64).filter(lies_there));
    (start, wanted | 1 << (page - start))
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
        let drawn = |place: &u64| hits::is_sampled(self.start + place, number, SAMPLE_ONE_IN);
        self.sampled = set(bits(rest).filter(drawn));
        self.held = self.sampled;
        if let Some(marker) = request.take_marker(self.start, rest) {
            self.held |= 1 << marker;
            self.sampled &= !(1 << marker);
        }
    }

    /// Loads the page at `at`, and with it pages of the span that lie beside it in the same file, in the same order: one
    /// read. Returns where it came from and the places now loaded.
    fn load(&self, mm: &Mm, at: usize, context: &mut Context) -> Result<(Source, u64), LoadError> {
        if let Some(first) = tiers::block_of(mm, self.slots[at]) {
            let (blocks, loaded) = self.gather(mm, at, first);
            if loaded.count_ones() > 1 && tiers::load_blocks(mm, &blocks, context).is_ok() {
                return Ok((Source::File, loaded));
            }
        }
        tiers::load(mm, self.slots[at], context, at).map(|source| (source, 1 << at))
    }

    /// What one read brings in with the page at `at`, which lies in `block`: locked places before and behind it whose blocks
    /// go down and up from there without too wide a gap.
    fn gather(&self, mm: &Mm, at: usize, (area, block): (u8, u64)) -> (Blocks, u64) {
        let in_area = |place: usize| match tiers::block_of(mm, self.slots[place]) {
            Some((a, block)) if a == area => Some(block),
            _ => None,
        };
        let mut low = block;
        let mut chosen = [u64::MAX; SPAN];
        chosen[at] = block;
        for place in (0..at).rev().filter(|place| self.locked >> place & 1 == 1) {
            if let Some(b) =
                in_area(place).filter(|b| *b < low && low - b <= GAP_MAX && block - b < SPAN as u64 / 2)
            {
                (chosen[place], low) = (b, b);
            }
        }
        let mut high = block;
        for place in (at + 1..SPAN).filter(|place| self.locked >> place & 1 == 1) {
            if let Some(b) =
                in_area(place).filter(|b| *b > high && b - high <= GAP_MAX && b - low < READ_MAX as u64)
            {
                (chosen[place], high) = (b, b);
            }
        }
        let mut blocks = Blocks::one((area, low), 0, 0);
        blocks.len = (high - low) as usize + 1;
        let mut loaded = 0;
        for (place, b) in chosen.iter().enumerate().filter(|(_, b)| **b != u64::MAX) {
            let i = (b - low) as usize;
            (blocks.slots[i], blocks.places[i]) = (self.slots[place], place as u8);
            loaded |= 1 << place;
        }
        (blocks, loaded)
    }

    /// Installs or holds the `loaded` places; what can't be had now stays locked.
    fn install(&mut self, mm: &Mm, loaded: u64, touched: Option<usize>, context: &Context) {
        let (mut mapped, mut sampled, mut marked) = (0, 0, 0);
        let mut left = loaded & self.locked;
        while left != 0 {
            let place = left.trailing_zeros() as usize;
            let count;
            if self.held >> place & 1 == 1 {
                count = contiguous(left & self.held, place);
                let done = self.hold(mm, place, count, context);
                let of_sample = u64::from((self.sampled & mask(done as u64) << place).count_ones());
                (mapped, sampled) = (mapped + of_sample, sampled + of_sample);
                marked += done as u64 - of_sample;
            } else {
                count = contiguous(left & !self.held, place);
                let done = self.map(mm, place, count, context);
                let is_touched = touched.is_some_and(|at| (place..place + done).contains(&at));
                mapped += done as u64 - u64::from(is_touched);
            }
            left &= !(mask(count as u64) << place);
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
            kill_point!("swapin-copied");
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
        // The words are changed there: see tiers::leave.
        let _step = mm.entry().puts.begin();
        let done = reclaim::hold(mm, page, count as u64, from, self.sampled >> place) as usize;
        kill_point!("swapin-held");
        (place..place + done).for_each(|place| {
            tiers::put(mm, self.slots[place]);
            self.locked &= !(1 << place);
        });
        done
    }

    /// Brings in every page that is locked still; what can't be had now stays where it is.
    fn bring_rest(&mut self, mm: &Mm, context: &mut Context) {
        let mut tried = 0u64;
        while self.locked & !tried != 0 {
            let place = (self.locked & !tried).trailing_zeros() as usize;
            tried |= 1 << place;
            if let Ok((_, loaded)) = self.load(mm, place, context) {
                self.install(mm, loaded, None, context);
                tried |= loaded;
            }
        }
        self.unlock_rest(mm);
    }

    /// The page at `place` is there: books, word, slot.
    fn arrived(&mut self, mm: &Mm, place: usize) {
        let page = self.start + place as u64;
        mm.count_resident(page, 1);
        kill_point!("swapin-counted");
        tiers::leave(mm, self.slots[place], || {
            mm.unlock(page, mm.load(page), PageState::resident());
            kill_point!("swapin-worded");
        });
        self.locked &= !(1 << place);
    }

    fn unlock_rest(&mut self, mm: &Mm) {
        for place in bits(self.locked) {
            let page = self.start + place;
            mm.unlock(
                page,
                mm.load(page),
                PageState::swapped(self.slots[place as usize]),
            );
        }
        self.locked = 0;
    }
}

/// How many places from `place` on are set without a gap.
fn contiguous(bits: u64, place: usize) -> usize {
    (!(bits >> place))
        .trailing_zeros()
        .min(SPAN as u32 - place as u32) as usize
}

const _: () = assert!(SPAN == 64 && NOW_MAX as usize <= SPAN);
