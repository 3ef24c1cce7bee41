//! Pages that come back from a tier, and which neighbours come with them.
//!
//! The readahead policy answers a miss with a window. The faulting thread brings in the missed page and what of the window
//! one read brings in with it; the prefetch threads bring in the rest. Pages of the
//! adaptive policy are mapped ahead of their touch, except the window's marker and a small sample, which wait in frames
//! so that their first touch is seen. For the kernel's policies all of them wait in frames, as in the kernel.

use core::ops::Range;
use core::sync::atomic::Ordering;

use farpage_core::kill_point;
use farpage_core::page_state::{Kind, PageState};
use farpage_core::readahead::{Direction, Order, PAGE_CLUSTER_MAX, Policy, hits};
use farpage_core::stats::{Counter, Source};

use crate::aio::Aio;
use crate::bits::{bits, mask, set};
use crate::fault::{self, Filled, Outcome};
use crate::huge;
use crate::kept;
use crate::mm::{Mm, SPAN, address};
use crate::prefetch;
use crate::puts;
use crate::readahead::{self, SAMPLE_ONE_IN, Touch};
use crate::reclaim;
use crate::request::{Lists, Request, Which};
use crate::runs::{GAP_BESIDE, GAP_MAX, Lies, Places, WAITED_MAX};
use crate::sys;
use crate::tiers::{self, Blocks, LoadError};
use crate::work_area::Context;

/// Of how many next pages of a window a fault looks for those to bring in with the missed one: more would let it wait.
pub const NOW_MAX: usize = 32;
/// How many pages wait for each other to be installed by one call: more would let a touch of the first of them wait.
const TOGETHER: u32 = 16;

/// Up to [`SPAN`] pages that are brought in, in the order of addresses: locked, with the slots they are in.
pub struct Batch<'a> {
    pages: &'a [u64],
    slots: &'a mut [u32; SPAN],
    places: &'a mut Places,
    /// Places whose page is locked by us, and charged.
    locked: u64,
    /// Places to be left in frames.
    held: u64,
    /// Of those, the sample.
    sampled: u64,
    /// A read of several failed: each page is read by itself, or one bad block would be tried again for each of its neighbours.
    singly: bool,
}

/// Brings `page` in, and with it what the policy expects to be touched next.
pub fn swap_in(mm: &Mm, touch: Touch, seen: PageState) -> Filled {
    let page = touch.page;
    if !mm.try_lock(page, seen) {
        return None;
    }
    let mut area = mm.context();
    let (context, lists) = area.split();
    let ahead = plan(mm, touch, seen, lists);
    huge::keep_whole(mm, &mut lists.taken, Some(page));
    let mut batch = Batch::lock(mm, lists, Some((page, seen)));
    kill_point!("swapin-locked");
    prefetch::ask(mm, &ahead);
    let at = batch.place_of(Some(page)).trailing_zeros() as usize;
    if tiers::block_of(mm, seen.slot()).is_some() {
        let now = sys::now_ns();
        mm.prefetcher.note_waiting(now);
        mm.who.note_file(now);
    }
    context.is_waited_for = true;
    let loaded = batch.load(mm, at, 0, context);
    context.is_waited_for = false;
    let (source, loaded) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => tiers::refuse_page(error, address(page)),
    };
    kill_point!("swapin-loaded");
    batch.install(mm, loaded, Some(at), context);
    if batch.locked & 1 << at != 0 {
        let outcome = fault::install(mm, page, context.bounce[at].as_ptr() as u64, seen);
        if outcome == Outcome::NotManaged {
            batch.locked &= !(1 << at);
            mm.charge(-1);
            batch.unlock_rest(mm);
            return Some(Err(outcome));
        }
        batch.arrived(mm, at..at + 1, context);
    }
    mm.header().count(Counter::Pgmajfault, 1);
    batch.bring_rest(mm, context);
    Some(Ok(source))
}

/// Brings in what is swapped of the pages taken, if there is room for them.
pub fn bring(mm: &Mm, lists: &mut Lists, aio: Option<&mut Aio>) {
    if let Some(chunk) = huge::keep_whole(mm, &mut lists.taken, None) {
        huge::fetch(mm, chunk, lists.taken.walk(), lists.taken.is_row());
    }
    let pages = lists.taken.pages().len();
    // Before anything is locked: it may take a while.
    if !reclaim::room_for_hint(mm, pages as i64) {
        return;
    }
    let mut batch = Batch::lock(mm, lists, None);
    if batch.locked != 0 {
        kill_point!("prefetch-locked");
        let from_files = lies_in(mm, batch.slots, batch.locked).count() as u64;
        mm.who.note_early(from_files);
        if from_files > 0 {
            mm.who.note_file(sys::now_ns());
        }
        let mut context = mm.context();
        if let Some(aio) = aio {
            batch.bring_at_once(mm, &mut context, aio);
        }
        batch.bring_rest(mm, &mut context);
        context.note_used(mm, pages);
    }
}

/// Takes what to bring in at once for a miss of `page`, which the caller has locked, it among it; the rest is for the prefetch
/// threads.
fn plan(mm: &Mm, touch: Touch, seen: PageState, lists: &mut Lists) -> Request {
    let page = touch.page;
    let window = readahead::miss(mm, touch, seen.slot());
    let room = room_now(mm);
    if window.order == Order::Device {
        let blocks = window.first..window.first + u64::from(window.len);
        near_on_device(mm, (page, seen.slot()), blocks, room, lists);
        return Request::none();
    }
    let mut request = Request::new(window);
    let most = if window.direction != Direction::Around {
        room.min(NOW_MAX)
    } else if room >= window.len as usize {
        // The page may lie anywhere in such a window; none is longer than a span.
        SPAN
    } else {
        lists.taken.fill([page].into_iter());
        return request;
    };
    if !request.take(mm, most, Which::With(page, seen), lists) || !lists.taken.pages().contains(&page) {
        lists.taken.fill([page].into_iter());
    }
    request
}

/// For how many pages there is room, the missed one among them, whose room was made before the work area was waited for: threads that all
/// waited once took 32 pages each for one that there was room for. The prefetch threads make room for what they bring in.
fn room_now(mm: &Mm) -> usize {
    usize::try_from(-mm.header().excess(0)).unwrap_or(0).max(1)
}

// No window of that policy brings in more.
const _: () = assert!(SPAN == 1 << PAGE_CLUSTER_MAX);

/// Takes the pages around `page` that lie in `blocks` of the file it lies in, as many as there is `room` for. (The kernel would bring in whatever lies there;
/// which page of which process that is, is not known from the slot alone.)
fn near_on_device(mm: &Mm, (page, slot): (u64, u32), blocks: Range<u64>, room: usize, lists: &mut Lists) {
    let area = tiers::block_of(mm, slot).map(|(area, _)| area);
    let lies_there = |near: &u64| {
        let state = mm.load(*near);
        *near != page
            && state.kind() == Kind::Swapped
            && tiers::block_of(mm, state.slot())
                .is_some_and(|(a, block)| Some(a) == area && blocks.contains(&block))
    };
    let start = page.saturating_sub(SPAN as u64 / 2);
    let others = (start..start + SPAN as u64).filter(lies_there).take(room - 1);
    lists.taken.fill(core::iter::once(page).chain(others));
}

/// Where those of the `locked` pages lie that are in files.
fn lies_in(mm: &Mm, slots: &[u32; SPAN], locked: u64) -> impl Iterator<Item = Lies> {
    bits(locked).filter_map(move |place| {
        let found = tiers::block_of(mm, slots[place as usize])?;
        Some(Lies::new(found, place))
    })
}

/// The read that brings in a run of at least one page, whose slots are `slots`, and the places it loads.
fn read_of(slots: &[u32; SPAN], run: &[Lies]) -> (Blocks, u64) {
    let mut blocks = Blocks::one(run[0].place(), 0, 0);
    let mut loaded = 0;
    for place in run {
        let i = (place.block() - run[0].block()) as usize;
        (blocks.slots[i], blocks.places[i]) = (slots[place.index()], place.index() as u8);
        blocks.len = i + 1;
        loaded |= 1 << place.index();
    }
    (blocks, loaded)
}

impl<'a> Batch<'a> {
    /// Locks the swapped pages among those taken, and charges them: other threads that look for room while they are read must not
    /// find the same. `held` is one of them that the caller has locked already.
    fn lock(mm: &Mm, lists: &'a mut Lists, held: Option<(u64, PageState)>) -> Batch<'a> {
        let mut batch = Batch {
            pages: lists.taken.pages(),
            slots: &mut lists.slots,
            places: &mut lists.places,
            locked: 0,
            held: 0,
            sampled: 0,
            singly: false,
        };
        for (place, &page) in batch.pages.iter().enumerate() {
            let state = match held {
                Some((held, seen)) if held == page => Some(seen),
                _ => Some(mm.load(page))
                    .filter(|s| s.kind() == Kind::Swapped && !s.is_locked() && mm.try_lock(page, *s)),
            };
            if let Some(state) = state {
                batch.slots[place] = state.slot();
                batch.locked |= 1 << place;
            }
        }
        mm.charge(i64::from(batch.locked.count_ones()));
        batch.choose_held(mm, lists.taken.marker(), held.map(|(page, _)| page));
        batch
    }

    /// A bit for the place of a page.
    fn place_of(&self, page: Option<u64>) -> u64 {
        set((0..)
            .zip(self.pages)
            .filter(|(_, held)| Some(**held) == page)
            .map(|(place, _)| place))
    }

    /// Chooses what is left in frames: never the touched page.
    fn choose_held(&mut self, mm: &Mm, marker: Option<u64>, touched: Option<u64>) {
        let rest = self.locked & !self.place_of(touched);
        if rest == 0 {
            return;
        }
        if matches!(readahead::policy(mm), Policy::Vma | Policy::Cluster) {
            self.held = rest;
            return;
        }
        let number = mm.readahead.next_window();
        let drawn = |place: &u64| hits::is_sampled(self.pages[*place as usize], number, SAMPLE_ONE_IN);
        let marker = self.place_of(marker) & rest;
        self.sampled = set(bits(rest).filter(drawn)) & !marker;
        self.held = self.sampled | marker;
    }

    /// Loads the page at `at`, and with it all that one read brings in but what is `ready` to be installed: were that read again, and found
    /// damaged, it would be installed all the same. Returns where it came from and the places now loaded.
    fn load(
        &mut self,
        mm: &Mm,
        at: usize,
        ready: u64,
        context: &mut Context,
    ) -> Result<(Source, u64), LoadError> {
        let lies = lies_in(mm, self.slots, self.locked & !ready);
        self.places.fill(lies);
        // The clock is not asked for pages that lie in no file.
        let is_short = context.is_waited_for || self.places.is_empty() || mm.prefetcher.faults_wait();
        let most = if is_short {
            WAITED_MAX
        } else {
            tiers::READ_MAX as u64
        };
        let run = self.places.around(at, GAP_MAX, most);
        if run.len() > 1 && !self.singly {
            let (blocks, loaded) = read_of(self.slots, run);
            if tiers::load_blocks(mm, &blocks, context).is_ok() {
                return Ok((Source::File, loaded));
            }
            self.singly = true;
        }
        tiers::load(mm, self.slots[at], context, at).map(|source| (source, 1 << at))
    }

    /// Brings in what lies in files, with all reads in flight together; what can't be had stays locked.
    fn bring_at_once(&mut self, mm: &Mm, context: &mut Context, aio: &mut Aio) {
        let (slots, mut places) = (*self.slots, Places::default());
        places.fill(lies_in(mm, &slots, self.locked));
        if places.runs(GAP_BESIDE).nth(1).is_none() {
            return;
        }
        let all = places.runs(GAP_BESIDE).map(|run| read_of(&slots, run).0);
        aio.read(mm, all, context, |read, context| {
            let Some(run) = places.runs(GAP_BESIDE).nth(read) else {
                return;
            };
            let (blocks, loaded) = read_of(&slots, run);
            if tiers::verify_blocks(mm, &blocks, context).is_ok() {
                self.install(mm, loaded, None, context);
            }
        });
    }

    /// Installs or holds the `loaded` places; what can't be had now stays locked.
    fn install(&mut self, mm: &Mm, loaded: u64, touched: Option<usize>, context: &Context) {
        let (mut mapped, mut sampled, mut marked) = (0, 0, 0);
        let mut left = loaded & self.locked;
        while left != 0 {
            let place = left.trailing_zeros() as usize;
            let count;
            if self.held >> place & 1 == 1 {
                count = self.neighbours(left & self.held, place);
                let done = self.hold(mm, place, count, context);
                let of_sample = u64::from((self.sampled & mask(done as u64) << place).count_ones());
                (mapped, sampled) = (mapped + of_sample, sampled + of_sample);
                marked += done as u64 - of_sample;
            } else {
                count = self.neighbours(left & !self.held, place);
                let done = self.map(mm, place, count, context);
                let is_touched = touched.is_some_and(|at| (place..place + done).contains(&at));
                mapped += done as u64 - u64::from(is_touched);
            }
            left &= !(mask(count as u64) << place);
        }
        readahead::count_ahead(mm, self.pages[0], (mapped, sampled), marked);
    }

    /// How many places from `place` on are set without a gap and hold pages that follow each other.
    fn neighbours(&self, places: u64, place: usize) -> usize {
        let pages = self.pages[place..].iter().zip(self.pages[place]..);
        let in_row = pages.take_while(|(page, expected)| *page == expected).count();
        ((!(places >> place)).trailing_zeros() as usize).min(in_row)
    }

    /// Maps `count` pages from `place` on; how many of the first of them are there now.
    fn map(&mut self, mm: &Mm, place: usize, count: usize, context: &Context) -> usize {
        let from = context.bounce[place].as_ptr() as u64;
        fault::install_run(mm, self.pages[place], from, count, |places| {
            kill_point!("swapin-copied");
            self.arrived(mm, place + places.start..place + places.end, context);
        })
    }

    /// Puts `count` pages from `place` on into frames; how many of the first of them wait there now.
    fn hold(&mut self, mm: &Mm, place: usize, count: usize, context: &Context) -> usize {
        let page = self.pages[place];
        let from = context.bounce[place].as_ptr() as u64;
        let mut kept = [0; SPAN];
        kept::keep_in_frames(mm, page, &self.slots[place..place + count], &mut kept);
        // The words are changed there: see puts::leave.
        let _step = mm.entry().puts.begin();
        let stay = |kept: &[u32]| kept.iter().filter(|slot| **slot != 0).count() as i64;
        let counted = &mm.entry().kept;
        counted.fetch_add(stay(&kept[..count]), Ordering::Relaxed);
        let done = reclaim::hold(mm, page, &kept[..count], from, self.sampled >> place) as usize;
        kill_point!("swapin-held");
        counted.fetch_sub(stay(&kept[done..count]), Ordering::Relaxed);
        self.put_but(mm, place, &kept[..done]);
        self.locked &= !(mask(done as u64) << place);
        done
    }

    /// Brings in every page that is locked still; what can't be had now stays where it is.
    fn bring_rest(&mut self, mm: &Mm, context: &mut Context) {
        let (mut tried, mut ready) = (0u64, 0u64);
        while self.locked & !tried != 0 {
            let place = (self.locked & !tried).trailing_zeros() as usize;
            tried |= 1 << place;
            if let Ok((_, loaded)) = self.load(mm, place, ready, context) {
                tried |= loaded;
                ready |= loaded;
            }
            if ready.count_ones() >= TOGETHER {
                self.install(mm, core::mem::take(&mut ready), None, context);
            }
        }
        self.install(mm, ready, None, context);
        self.unlock_rest(mm);
    }

    /// The pages at `places` are there: books, words, slots.
    fn arrived(&mut self, mm: &Mm, places: Range<usize>, context: &Context) {
        let Some(first) = places.clone().next() else {
            return;
        };
        mm.queue.arriving(self.pages[first], places.len() as u64);
        let terms = kept::terms(mm, self.pages[first]);
        let (mut kept, mut stay) = ([0; SPAN], 0);
        let most = terms.map_or(0, |_| places.len() as i64);
        mm.entry().kept.fetch_add(most, Ordering::Relaxed);
        // The words are changed here: see puts::leave.
        let _step = mm.entry().puts.begin();
        for place in places.clone() {
            let page = self.pages[place];
            if let Some(terms) = terms {
                kept[place - first] = kept::keep(mm, terms, self.slots[place], &context.bounce[place]);
                stay += i64::from(kept[place - first] != 0);
            }
            mm.note_resident(page, 1);
            kill_point!("swapin-counted");
            let there = PageState::resident().keeping(kept[place - first]);
            mm.unlock(page, mm.load(page), there);
            kill_point!("swapin-worded");
            self.locked &= !(1 << place);
        }
        mm.entry().kept.fetch_sub(most - stay, Ordering::Relaxed);
        self.put_but(mm, first, &kept[..places.len()]);
    }

    /// Puts the slots of the places from `first` on, but those that are in `kept` too.
    fn put_but(&mut self, mm: &Mm, first: usize, kept: &[u32]) {
        let (slots, mut count) = (&mut self.slots[first..], 0);
        for (place, kept) in kept.iter().enumerate() {
            if *kept == 0 {
                slots[count] = slots[place];
                count += 1;
            }
        }
        puts::put_all(mm, &slots[..count]);
    }

    /// What is locked still stays where it is.
    fn unlock_rest(&mut self, mm: &Mm) {
        if self.locked == 0 {
            return;
        }
        mm.charge(-i64::from(self.locked.count_ones()));
        for place in bits(self.locked) {
            let page = self.pages[place as usize];
            let locked = mm.load(page);
            mm.unlock(page, locked, locked);
        }
        self.locked = 0;
    }
}

const _: () = assert!(SPAN == 64 && NOW_MAX <= SPAN);
