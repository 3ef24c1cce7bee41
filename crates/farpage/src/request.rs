//! What is left to fetch of a window, and which of it one read brings in.
//!
//! Pages of a window that lie far apart in memory may be neighbours in the file, and the other way round. So the next pages of
//! the window are looked at together, up to [`SPAN`] of them: what lies in one run of a file with the first of them (or with
//! the page that is waited for) is one read. The others stay, for the next who asks.

use farpage_core::huge::Walk;
use farpage_core::page_state::{Kind, PageState};
use farpage_core::readahead::{Direction, Order, Window};

use crate::bits::{bits, mask, set};
use crate::mm::{Mm, SPAN};
use crate::runs::{GAP_MAX, Lies, Places, WAITED_MAX};
use crate::tiers::{self, READ_MAX};

/// A place in the window, in the order of use: a step, and pages of it that lie before.
#[derive(Clone, Copy)]
struct Place {
    step: u32,
    within: u64,
}

/// What is left to fetch of a window.
#[derive(Clone, Copy)]
pub struct Request {
    window: Option<Window>,
    next: Place,
    /// Pages looked at and not taken: where they begin, and a bit for each page from there on.
    seen: Place,
    left: u64,
}

/// Pages to be brought in together, in the order of addresses.
pub struct Taken {
    pages: [u64; SPAN],
    len: usize,
    marker: u64,
    walk: Walk,
    is_row: bool,
}

/// Lists of one swap-in, in a work area or on a thread's own stack: that of a signal handler has no room for them.
pub struct Lists {
    pub taken: Taken,
    walked: [u64; SPAN],
    pub places: Places,
    pub slots: [u32; SPAN],
}

const NO_MARKER: u64 = u64::MAX;
/// Pages that are a row by lying side by side: chance brings fewer together.
const ROW_MIN: usize = 16;

/// Which of the next pages of a window are taken.
#[derive(Clone, Copy)]
pub enum Which {
    /// A page that is waited for and whose word is the caller's, and what one read brings in with it.
    With(u64, PageState),
    /// What one read brings in.
    Read,
    /// All.
    All,
}

impl Which {
    fn touched(self) -> Option<(u64, PageState)> {
        match self {
            Which::With(page, state) => Some((page, state)),
            Which::Read | Which::All => None,
        }
    }
}

impl Taken {
    /// Takes the pages, each once, at most [`SPAN`].
    pub fn fill(&mut self, pages: impl Iterator<Item = u64>) {
        let mut count = 0;
        for (to, page) in self.pages.iter_mut().zip(pages) {
            *to = page;
            count += 1;
        }
        self.pages[..count].sort_unstable();
        (self.len, self.marker, self.is_row) = (count.min(1), NO_MARKER, false);
        for i in 1..count {
            if self.pages[i] != self.pages[self.len - 1] {
                self.pages[self.len] = self.pages[i];
                self.len += 1;
            }
        }
    }

    pub fn pages(&self) -> &[u64] {
        &self.pages[..self.len]
    }

    /// Keeps those pages only that `stays` is true for.
    pub fn retain(&mut self, mut stays: impl FnMut(u64) -> bool) {
        let count = self.len;
        self.len = 0;
        for i in 0..count {
            let page = self.pages[i];
            if stays(page) {
                self.pages[self.len] = page;
                self.len += 1;
            } else if self.marker == page {
                self.marker = NO_MARKER;
            }
        }
    }

    /// The way in which they are used.
    pub fn walk(&self) -> Walk {
        self.walk
    }

    /// Whether these are many, and hardly one without a neighbour.
    fn side_by_side(&self) -> bool {
        let neighbours = self.pages().windows(2).filter(|two| two[0] + 1 == two[1]);
        self.len >= ROW_MIN && neighbours.count() * 4 >= self.len * 3
    }

    /// Whether they are a row: they come of a window that leaves no page out, or lie side by side.
    pub fn is_row(&self) -> bool {
        self.is_row
    }

    /// The page to leave unmapped, if any, one of them.
    pub fn marker(&self) -> Option<u64> {
        (self.marker != NO_MARKER).then_some(self.marker)
    }
}

impl Default for Lists {
    fn default() -> Self {
        Lists {
            taken: Taken {
                pages: [0; SPAN],
                len: 0,
                marker: NO_MARKER,
                walk: Walk::Up,
                is_row: false,
            },
            walked: [0; SPAN],
            places: Places::default(),
            slots: [0; SPAN],
        }
    }
}

impl Request {
    #[must_use]
    pub const fn none() -> Request {
        let front = Place { step: 0, within: 0 };
        Request {
            window: None,
            next: front,
            seen: front,
            left: 0,
        }
    }

    #[must_use]
    pub const fn new(window: Window) -> Request {
        let mut request = Request::none();
        request.window = Some(window);
        request
    }

    #[must_use]
    pub fn is_done(&self) -> bool {
        self.left == 0 && self.window.is_none_or(|window| self.next.step >= window.len)
    }

    /// Takes some of the next `most` pages off, with those of them that are not in a file: only pages that are swapped, or the one
    /// that is waited for. False if nothing is left.
    pub fn take(&mut self, mm: &Mm, most: usize, which: Which, lists: &mut Lists) -> bool {
        while !self.is_done() {
            let Some(window) = self.window else { break };
            if self.left == 0 {
                self.look_on(window, most);
            }
            if self.take_some(mm, window, which, lists) {
                return true;
            }
            // Records may have been written over meanwhile: who waits for his page alone goes on without the others.
            if which.touched().is_some() {
                return false;
            }
        }
        false
    }

    /// Takes the next pages of the window to be looked at.
    fn look_on(&mut self, window: Window, most: usize) {
        self.seen = self.next;
        let count = walk(window, &mut self.next).take(most.min(SPAN)).count();
        self.left = mask(count as u64);
    }

    fn take_some(&mut self, mm: &Mm, window: Window, which: Which, lists: &mut Lists) -> bool {
        let touched = which.touched();
        let mut from = self.seen;
        let page_at = |place| match window.order {
            // What was written over meanwhile is any page.
            Order::Recalled => mm.readahead.recalled(place).unwrap_or_default(),
            Order::Virtual | Order::Device => place,
        };
        let pages = &mut lists.walked;
        pages
            .iter_mut()
            .zip(walk(window, &mut from))
            .for_each(|(to, place)| *to = page_at(place));
        let (mut elsewhere, mut first) = (0u64, None);
        let left = self.left;
        let lies = |i: u64| {
            let page = pages[i as usize];
            let own = touched.filter(|(touched, _)| *touched == page);
            let state = own.map_or_else(|| mm.load(page), |(_, state)| state);
            if own.is_none() && (state.kind() != Kind::Swapped || state.is_locked()) {
                self.left &= !(1 << i);
                return None;
            }
            if own.is_some() || touched.is_none() {
                first = first.or(Some(i as usize));
            }
            let place = tiers::block_of(mm, state.slot());
            elsewhere |= u64::from(place.is_none()) << i;
            place.map(|place| Lies::new(place, i))
        };
        lists.places.fill(bits(left).filter_map(lies));
        let chosen = match (which, first) {
            (Which::All, _) => self.left,
            (_, Some(first)) => {
                let is_short = touched.is_some() || mm.prefetcher.faults_wait();
                let most = if is_short { WAITED_MAX } else { READ_MAX as u64 };
                let run = lists.places.around(first, GAP_MAX, most).iter();
                elsewhere | set(run.map(|place| place.index() as u64))
            }
            (_, None) => elsewhere,
        };
        self.left &= !chosen;
        lists.taken.fill(bits(chosen).map(|i| pages[i as usize]));
        lists.taken.walk = match window.direction {
            Direction::Backward => Walk::Down,
            Direction::Forward | Direction::Around => Walk::Up,
        };
        // An order that is not that of addresses may be the same.
        lists.taken.is_row = window.is_row() || window.order != Order::Virtual && lists.taken.side_by_side();
        let touched = touched.map(|(page, _)| page);
        if window.order == Order::Recalled {
            // Such pages lie anywhere: which of them come after the marker their places tell.
            let seen = window.first + u64::from(self.seen.step);
            let page = window.marker.and_then(|marker| {
                bits(chosen)
                    .filter(|i| seen + i >= marker)
                    .map(|i| pages[i as usize])
                    .find(|page| Some(*page) != touched)
            });
            self.give_marker(&mut lists.taken, page);
        } else {
            self.take_marker(&mut lists.taken, touched);
        }
        chosen != 0
    }

    /// Gives out the window's marker if it is among the pages taken, or the one that stands for it because it was not to be had;
    /// once.
    fn take_marker(&mut self, taken: &mut Taken, touched: Option<u64>) {
        let others = taken
            .pages()
            .iter()
            .copied()
            .filter(|page| Some(*page) != touched);
        let page = self.window.and_then(|window| window.marker_in(others));
        self.give_marker(taken, page);
    }

    fn give_marker(&mut self, taken: &mut Taken, page: Option<u64>) {
        if let Some(window) = &mut self.window
            && let Some(page) = page
        {
            window.marker = None;
            taken.marker = page;
        }
    }
}

/// The pages of a window from a place on, in the order of use; the place follows.
fn walk(window: Window, place: &mut Place) -> impl Iterator<Item = u64> {
    core::iter::from_fn(move || {
        if place.step >= window.len {
            return None;
        }
        let (first, last) = window.step(place.step).into_inner();
        let page = match window.direction {
            Direction::Backward => last - place.within,
            Direction::Forward | Direction::Around => first + place.within,
        };
        place.within += 1;
        if place.within > last - first {
            *place = Place {
                step: place.step + 1,
                within: 0,
            };
        }
        Some(page)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the order of the last time a sequence was fetched in small pages, on and on, where huge ones had left.
    #[test]
    fn pages_of_another_order_are_a_row_if_they_lie_side_by_side() {
        let mut lists = Lists::default();
        let mut are_row = |pages: &mut dyn Iterator<Item = u64>| {
            lists.taken.fill(pages);
            lists.taken.side_by_side()
        };
        assert!(are_row(&mut (512..576).rev()));
        assert!(are_row(&mut (0..32).map(|i| i + i / 8)), "one in nine left out");
        assert!(!are_row(&mut (0..15)), "few");
        assert!(!are_row(&mut (0..32).map(|i| i * 2)));
        assert!(!are_row(&mut (0..48).map(|i| i + i / 2)), "one in three left out");
    }

    fn walked(window: Window) -> Vec<u64> {
        walk(window, &mut Place { step: 0, within: 0 }).collect()
    }

    #[test]
    fn pages_come_in_the_order_of_use() {
        let forward = Window {
            len: 3,
            stride: 8,
            direction: Direction::Forward,
            ..Window::single(10)
        };
        assert_eq!(walked(forward), [10, 18, 26]);
        let direction = Direction::Backward;
        assert_eq!(walked(Window { direction, ..forward }), [26, 18, 10]);
    }

    #[test]
    fn every_page_of_a_step_is_walked() {
        let forward = Window {
            len: 2,
            stride: 6,
            phase: 4000,
            reach: 200,
            direction: Direction::Forward,
            ..Window::single(10)
        };
        assert_eq!(walked(forward), [10, 11, 16, 17]);
        let direction = Direction::Backward;
        assert_eq!(walked(Window { direction, ..forward }), [17, 16, 11, 10]);
    }

    #[test]
    fn a_walk_goes_on_where_it_stopped() {
        let window = Window {
            len: 5,
            reach: 4097,
            stride: 3,
            direction: Direction::Forward,
            ..Window::single(0)
        };
        let mut at = Place { step: 0, within: 0 };
        let mut pieces = Vec::new();
        for most in [1, 4, 2, 9] {
            pieces.extend(walk(window, &mut at).take(most));
        }
        assert_eq!(pieces, walked(window));
    }

    #[test]
    fn a_request_is_looked_at_to_its_end() {
        let window = Window {
            len: 70,
            direction: Direction::Forward,
            ..Window::single(0)
        };
        let mut request = Request::new(window);
        request.look_on(window, 99);
        assert_eq!((request.left, request.next.step), (u64::MAX, 64));
        request.look_on(window, 99);
        assert_eq!((request.left, request.next.step), (mask(6), 70));
        assert!(!request.is_done());
        request.left = 0;
        assert!(request.is_done() && Request::none().is_done());
    }

    #[test]
    fn pages_are_taken_in_order_and_once() {
        let mut taken = Lists::default().taken;
        taken.fill([9, 3, 9, 4, 3].into_iter());
        assert_eq!(taken.pages(), [3, 4, 9]);
        taken.fill(core::iter::empty());
        assert_eq!(taken.pages(), []);
        taken.fill(0..100);
        assert_eq!(taken.pages().len(), SPAN);
    }

    #[test]
    fn the_marker_is_given_out_once_and_never_the_touched_page() {
        let window = Window {
            len: 64,
            direction: Direction::Forward,
            marker: Some(32),
            ..Window::single(0)
        };
        let mut request = Request::new(window);
        let mut taken = Lists::default().taken;
        for (pages, touched, expected) in [
            (0..9, Some(0), None),
            (32..40, Some(32), Some(33)),
            (40..50, None, None),
        ] {
            taken.fill(pages);
            request.take_marker(&mut taken, touched);
            assert_eq!(taken.marker(), expected);
        }
    }
}
