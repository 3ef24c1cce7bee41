//! Which window of pages reclaim looks at next: a FIFO by the time of loading, with a second chance.
//!
//! A window of 64 pages is queued when one of its pages becomes resident. Pages that arrive while it waits give it a
//! reference: at the queue's head it is then sent to the end once instead of being evicted. Nothing else is known of use
//! (a page that is there faults no more), so the age of a load stands for it; the swap cache is the second filter. Where that
//! thrashes, windows stay for another turn by chance ([`Retention`], decision 0033).
//!
//! The ring has room for a window per four pages of the budget. What finds no room there (memory touched here and there)
//! is found by the clock hand of `reclaim`, which sweeps over everything when the queue is empty.

use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use farpage_core::reclaim_policy::{CLASSES, Retention, Sharing};

use crate::cow::Shared;
use crate::gate::Spin;
use crate::mm::CHUNK_PAGES;
use crate::pool::MANAGED_PAGES;
use crate::sys::{self, Errno};

/// Pages per window.
pub const WINDOW: u64 = 64;
const WINDOWS: u64 = MANAGED_PAGES / WINDOW;
const QUEUED: u8 = 1;
const REFERENCED: u8 = 2;
/// Above these two bits: the stamp of the window's last eviction, or one of the next two.
const STAMP_SHIFT: u32 = 2;
const TAKEN_BACK: u8 = 63;
const LEFT_SHARED: u8 = 62;
const RING_MIN: u64 = 1024;
/// So many windows that all stay are enough to say that all do.
const TURN_MAX: u64 = 4096;

struct Ends {
    head: u64,
    len: u64,
    retention: Retention,
    sharing: Sharing,
}

/// All pages of a window.
pub const ALL: u64 = u64::MAX;

/// What is to leave: those pages of the window, a bit each, that can. Others are shared, and stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    pub window: u64,
    pub pages: u64,
}

/// Why no window left.
#[derive(Clone, Copy)]
enum Stayed {
    /// There is none.
    None,
    /// All that there is is shared.
    Shared,
    /// Something is not, and had a second chance.
    ForNow,
}

/// Pages of a window that were loaded, and the stamp of its last eviction.
struct Load {
    stamp: u8,
    pages: u32,
}

impl Load {
    fn new(flags: u8, pages: u32) -> Load {
        Load {
            stamp: flags >> STAMP_SHIFT,
            pages,
        }
    }
}

/// The windows of pages `page..page + count`, and how many of each.
fn windows_of(page: u64, count: u64) -> impl Iterator<Item = (u64, u32)> {
    let end = page + count;
    let pages = move |window: u64| end.min((window + 1) * WINDOW) - page.max(window * WINDOW);
    (page / WINDOW..end.div_ceil(WINDOW)).map(move |window| (window, pages(window) as u32))
}

/// The queue of one process.
pub struct Queue {
    flags: AtomicU64,
    ring: AtomicU64,
    /// Entries of the ring, a power of two.
    room: AtomicU64,
    /// Goes up with each window of which something is loaded, for the first time since it was looked at.
    loads: AtomicU32,
    ends: Spin<Ends>,
}

impl Default for Queue {
    fn default() -> Self {
        Queue::new()
    }
}

impl Queue {
    #[must_use]
    pub const fn new() -> Queue {
        Queue {
            flags: AtomicU64::new(0),
            ring: AtomicU64::new(0),
            room: AtomicU64::new(0),
            loads: AtomicU32::new(0),
            ends: Spin::new(Ends {
                head: 0,
                len: 0,
                retention: Retention::new(),
                sharing: Sharing::new(),
            }),
        }
    }

    /// Maps the queue's memory; `budget` is in pages. Called once.
    pub fn prepare(&self, budget: u64) -> Result<(), Errno> {
        let room = (budget / 4).next_power_of_two().clamp(RING_MIN, WINDOWS);
        self.flags.store(sys::engine_memory(WINDOWS)?, Ordering::Relaxed);
        self.ring.store(sys::engine_memory(room * 4)?, Ordering::Relaxed);
        self.room.store(room, Ordering::Relaxed);
        Ok(())
    }

    /// Pages `page..page + count` became resident.
    #[inline]
    pub fn loaded(&self, page: u64, count: u64) {
        for (window, pages) in windows_of(page, count) {
            let flags = self.flags_of(window);
            let mut seen = flags.load(Ordering::Relaxed);
            if seen >> STAMP_SHIFT == LEFT_SHARED {
                // It may be in the queue, for a page that stayed.
                let then = flags.fetch_and(QUEUED | REFERENCED, Ordering::Relaxed);
                if then >> STAMP_SHIFT == LEFT_SHARED {
                    self.ends.lock().sharing.back();
                }
                seen = then & (QUEUED | REFERENCED);
            }
            if seen & QUEUED == 0 {
                self.loads.fetch_add(1, Ordering::Relaxed);
                self.enqueue_loaded(window, Some(Load::new(seen, pages)));
            } else if seen & REFERENCED == 0 {
                self.loads.fetch_add(1, Ordering::Relaxed);
                flags.fetch_or(REFERENCED, Ordering::Relaxed);
            }
        }
    }

    /// Pages `page..page + count` have been read together and will be told as loaded, however few at a time.
    pub fn arriving(&self, page: u64, count: u64) {
        for (window, pages) in windows_of(page, count) {
            let seen = self.flags_of(window).load(Ordering::Relaxed);
            if Retention::is_run(pages) && seen >> STAMP_SHIFT != LEFT_SHARED {
                self.ends.lock().note(&Load::new(seen, pages));
            }
        }
    }

    /// Pages `page..page + count`, which will be told as loaded next, are taken back from the swap cache.
    #[inline]
    pub fn taken_back(&self, page: u64, count: u64) {
        for (window, _) in windows_of(page, count) {
            let flags = self.flags_of(window);
            let seen = flags.load(Ordering::Relaxed);
            // What left when it was shared is missed in any case.
            if seen & QUEUED == 0 && seen >> STAMP_SHIFT != LEFT_SHARED {
                let marked = TAKEN_BACK << STAMP_SHIFT;
                let _ = flags.compare_exchange(seen, marked, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    /// Puts a window at the end, unless it is queued already or there is no room.
    pub fn enqueue(&self, window: u64) {
        self.enqueue_loaded(window, None);
    }

    /// The same, and what was loaded of it.
    fn enqueue_loaded(&self, window: u64, load: Option<Load>) {
        let flags = self.flags_of(window);
        if flags.fetch_or(QUEUED, Ordering::AcqRel) & QUEUED != 0 {
            return;
        }
        if !self.push(window, load) {
            flags.fetch_and(!QUEUED, Ordering::Release);
        }
    }

    /// Takes the window that was loaded longest ago and not referenced since, and is not to stay; `None`: the queue is empty, or as many as `looks`
    /// were looked at in vain. `shared` tells of windows what of them is other processes' too; `resident` is how many pages the process has.
    pub fn dequeue(
        &self,
        resident: u64,
        looks: &mut u64,
        shared: impl Fn(u64) -> Option<Shared>,
    ) -> Option<Victim> {
        loop {
            let level = self.ends.lock().sharing.level();
            match self.turn_round(resident, looks, &shared) {
                Ok(victim) => return Some(victim),
                Err(_) if *looks == 0 => return None,
                // Unless another thread has, meanwhile.
                Err(Stayed::Shared) => self.ends.lock().sharing.press(level),
                Err(Stayed::ForNow) => {}
                Err(Stayed::None) => return None,
            }
        }
    }

    /// How many windows are worth to be looked at for one victim.
    pub fn looks(&self) -> u64 {
        let len = self.len();
        2 * len + u64::from(CLASSES) * len.min(TURN_MAX)
    }

    /// Looks for a victim in one turn of the queue at most.
    fn turn_round(
        &self,
        resident: u64,
        looks: &mut u64,
        shared: &impl Fn(u64) -> Option<Shared>,
    ) -> Result<Victim, Stayed> {
        let len = self.len();
        let mut stayed = Stayed::None;
        for nth in 0..=len.min(TURN_MAX) {
            *looks = looks.saturating_sub(1);
            let Some((window, stays)) = self.pop(resident) else {
                break;
            };
            let flags = self.flags_of(window);
            let referenced = flags.load(Ordering::Relaxed) & REFERENCED != 0;
            let shared = shared(window);
            let stays_shared = shared.is_some_and(|shared| {
                let pages = shared.inherited.count_ones();
                self.ends.lock().sharing.stays(window, pages)
            });
            let own = shared.map_or(ALL, |shared| shared.own);
            let can_leave = own != 0 || !stays_shared;
            let goes_round = referenced || (stays && nth < len / 2);
            if can_leave && !goes_round {
                let stamp = if stays_shared {
                    0
                } else {
                    self.ends.lock().evicted(shared.is_some())
                };
                flags.store(stamp << STAMP_SHIFT, Ordering::Release);
                let pages = if stays_shared { own } else { ALL };
                return Ok(Victim { window, pages });
            }
            stayed = match (can_leave, stayed) {
                (true, _) => Stayed::ForNow,
                (false, Stayed::None) => Stayed::Shared,
                (false, stayed) => stayed,
            };
            flags.fetch_and(!REFERENCED, Ordering::Release);
            if !self.push(window, None) {
                flags.store(0, Ordering::Release);
            }
        }
        Err(stayed)
    }

    /// This process is going to share all that it has, and shared nothing before.
    pub fn begins_to_share(&self) {
        self.ends.lock().sharing = Sharing::new();
    }

    /// Whether the next `count` windows at least are of these, and none of these was referenced.
    pub fn leads_with(&self, windows: Range<u64>, count: u64) -> bool {
        let is_referenced = |window| self.flags_of(window).load(Ordering::Relaxed) & REFERENCED != 0;
        if windows.clone().any(is_referenced) {
            return false;
        }
        let ends = self.ends.lock();
        ends.len >= count
            && (0..count).all(|nth| {
                let window = self.entry(ends.head + nth).load(Ordering::Relaxed);
                windows.contains(&u64::from(window))
            })
    }

    /// Windows waiting.
    pub fn len(&self) -> u64 {
        self.ends.lock().len
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts a window at the end, of which so much was loaded.
    fn push(&self, window: u64, load: Option<Load>) -> bool {
        let room = self.room.load(Ordering::Relaxed);
        let mut ends = self.ends.lock();
        if let Some(load) = load {
            ends.note(&load);
        }
        if ends.len >= room {
            return false;
        }
        let at = (ends.head + ends.len) & (room - 1);
        self.entry(at).store(window as u32, Ordering::Relaxed);
        ends.len += 1;
        true
    }

    /// Takes the head, and says whether it is to stay.
    fn pop(&self, resident: u64) -> Option<(u64, bool)> {
        let room = self.room.load(Ordering::Relaxed);
        let mut ends = self.ends.lock();
        let len = ends.len as u32;
        ends.len = ends.len.checked_sub(1)?;
        let window = u64::from(self.entry(ends.head).load(Ordering::Relaxed));
        ends.head = (ends.head + 1) & (room - 1);
        ends.sharing
            .looked(len, resident, self.loads.load(Ordering::Relaxed));
        let stays = ends.retention.stays(window / (CHUNK_PAGES / WINDOW), len);
        Some((window, stays))
    }
}

impl Ends {
    fn note(&mut self, load: &Load) {
        let len = self.len as u32;
        if load.stamp != TAKEN_BACK {
            self.retention.loaded(load.stamp, load.pages, len);
        }
    }

    /// One of the windows that wait, or of those taken a moment ago, is evicted; its stamp.
    fn evicted(&mut self, shared: bool) -> u8 {
        let len = self.len as u32 + 1;
        let stamp = self.retention.evicted(len);
        if shared {
            self.sharing.left();
            return LEFT_SHARED;
        }
        stamp
    }
}

mod memory {
    //! # Safety
    //! `flags` and `ring` are arrays of atomics mapped by `prepare` before the process is active and never unmapped; indexes
    //! are taken modulo their lengths.
    #![allow(unsafe_code)]
    use super::*;

    impl Queue {
        pub(super) fn flags_of(&self, window: u64) -> &AtomicU8 {
            // SAFETY: see above.
            unsafe { &*((self.flags.load(Ordering::Relaxed) + window % WINDOWS) as *const AtomicU8) }
        }

        pub(super) fn entry(&self, at: u64) -> &AtomicU32 {
            let at = at & (self.room.load(Ordering::Relaxed) - 1);
            // SAFETY: see above.
            unsafe { &*((self.ring.load(Ordering::Relaxed) + at * 4) as *const AtomicU32) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage_core::reclaim_policy::{Clock, Node, ReclaimPolicy};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn dequeue(queue: &Queue) -> Option<u64> {
        let victim = queue.dequeue(0, &mut queue.looks(), |_| None)?;
        assert_eq!(victim.pages, ALL);
        Some(victim.window)
    }

    fn queue(budget: u64) -> Queue {
        let queue = Queue::new();
        queue.prepare(budget).unwrap();
        queue
    }

    #[test]
    fn windows_leave_in_the_order_of_their_loading() {
        let queue = queue(0);
        for page in [700, 5, 64 * 9] {
            queue.loaded(page, 1);
        }
        let order: Vec<_> = std::iter::from_fn(|| dequeue(&queue)).collect();
        assert_eq!(order, [10, 0, 9]);
    }

    #[test]
    fn a_window_loaded_again_gets_a_second_chance_once() {
        let queue = queue(0);
        queue.loaded(0, 1);
        queue.loaded(64, 1);
        queue.loaded(1, 1);
        queue.loaded(2, 1);
        assert_eq!(
            [dequeue(&queue), dequeue(&queue), dequeue(&queue)],
            [Some(1), Some(0), None]
        );
    }

    #[test]
    fn a_run_queues_every_window_it_touches() {
        let queue = queue(0);
        queue.loaded(63, 66);
        let order: Vec<_> = std::iter::from_fn(|| dequeue(&queue)).collect();
        assert_eq!(order, [0, 1, 2]);
    }

    #[test]
    fn what_was_loaded_as_one_leads_as_one() {
        let queue = queue(0);
        (16..24).for_each(|window| queue.loaded(window * WINDOW, 1));
        queue.loaded(3 * WINDOW, 1);
        assert!(queue.leads_with(16..24, 8) && !queue.leads_with(16..24, 9));
        assert_eq!(dequeue(&queue), Some(16));
        assert!(queue.leads_with(16..24, 7));
        queue.loaded(20 * WINDOW, 1);
        assert!(!queue.leads_with(16..24, 7), "one was loaded again");
        dequeue(&queue);
        assert!(!queue.leads_with(3..4, 9), "there are not so many");
    }

    #[test]
    fn what_was_written_from_its_start_leads_though_its_first_windows_have_gone_round() {
        let queue = queue(0);
        (16..24).for_each(|window| queue.loaded(window * WINDOW, 64));
        // Memory that is new comes a few pages at a time at first.
        queue.loaded(16 * WINDOW, 1);
        queue.loaded(17 * WINDOW, 1);
        (40..48).for_each(|window| queue.loaded(window * WINDOW, 64));
        assert_eq!(dequeue(&queue), Some(18));
        assert!(queue.leads_with(16..24, 5) && !queue.leads_with(16..24, 6));
        queue.loaded(17 * WINDOW, 1);
        assert!(!queue.leads_with(16..24, 5), "one was loaded again");
    }

    #[test]
    fn a_full_ring_forgets_and_takes_again() {
        let queue = queue(0);
        (0..RING_MIN + 5).for_each(|window| queue.loaded(window * WINDOW, 1));
        assert_eq!(dequeue(&queue), Some(0));
        queue.loaded((RING_MIN + 2) * WINDOW, 1);
        let last = std::iter::from_fn(|| dequeue(&queue)).last();
        assert_eq!(last, Some(RING_MIN + 2));
    }

    /// Goes round in windows with room for 200 of them; how many loads of the last ten rounds, and whether each is taken back.
    fn loads_going_round(windows: u64, back: bool) -> usize {
        const ROUNDS: u64 = 50;
        let queue = queue(0);
        let mut there = vec![false; windows as usize];
        let mut loads = 0;
        for at in 0..ROUNDS * windows {
            let window = at % windows;
            if std::mem::replace(&mut there[window as usize], true) {
                continue;
            }
            loads += usize::from(at >= (ROUNDS - 10) * windows);
            if queue.len() == 200 {
                there[dequeue(&queue).unwrap() as usize] = false;
            }
            if back {
                queue.taken_back(window * WINDOW, WINDOW);
            }
            queue.loaded(window * WINDOW, 64);
        }
        loads
    }

    #[test]
    fn going_round_in_a_little_too_much_loads_little() {
        assert!(loads_going_round(240, false) < 10 * 240 * 6 / 10);
        assert_eq!(
            loads_going_round(800, false),
            10 * 800,
            "much too much: the oldest leave"
        );
        assert_eq!(loads_going_round(240, true), 10 * 240, "the swap cache has them");
    }

    /// A window of which so many pages are shared with another process, and others own.
    fn shared(inherited: u64, own: u64) -> Option<Shared> {
        Some(Shared { inherited, own })
    }

    #[test]
    fn what_fork_shares_stays_while_something_else_can_leave() {
        let queue = queue(0);
        (0..40).for_each(|window| queue.loaded(window * WINDOW, 64));
        // Of those that are shared the 7th has pages of its own.
        let kind = |window: u64| match window {
            0..30 => shared(!7, if window == 7 { 7 } else { 0 }),
            _ => None,
        };
        let all: Vec<_> = (0..11)
            .map(|_| queue.dequeue(4000, &mut queue.looks(), kind).unwrap())
            .collect();
        let own: Vec<_> = all.iter().filter(|victim| victim.pages != ALL).collect();
        assert_eq!(own, [&Victim { window: 7, pages: 7 }]);
        let mut others: Vec<_> = all
            .iter()
            .filter(|victim| victim.pages == ALL)
            .map(|victim| victim.window)
            .collect();
        others.sort_unstable();
        assert_eq!(others, (30..40).collect::<Vec<_>>());
        assert_eq!(queue.len(), 29, "the 7th is put back by who has taken its pages");
    }

    /// A parent and its child have nothing but what they share: what leaves first is the same in both, though one of them has used its windows in
    /// another order. Else as much would have to leave as is free in the end by chance.
    #[test]
    fn of_what_fork_shares_the_same_windows_leave_first_everywhere() {
        let leave = |order: &mut dyn Iterator<Item = u64>| -> BTreeSet<u64> {
            let queue = queue(0);
            order.for_each(|window| queue.loaded(window * WINDOW, 64));
            let left = |_| {
                queue
                    .dequeue(160 * 64, &mut queue.looks(), |_| shared(ALL, 0))
                    .unwrap()
                    .window
            };
            (0..10).map(left).collect()
        };
        let mut sharing = Sharing::new();
        sharing.press(2);
        let classes: BTreeSet<_> = (0..160).filter(|window| !sharing.stays(*window, 64)).collect();
        assert!(classes.len() < 40, "three of sixteen");
        for left in [leave(&mut (0..160)), leave(&mut (0..160).rev())] {
            assert!(
                left.len() == 10 && left.is_subset(&classes),
                "{left:?} {classes:?}"
            );
        }
    }

    #[test]
    fn what_left_when_it_was_shared_and_comes_back_is_missed_whatever_stayed_of_it() {
        let queue = queue(0);
        let back = || queue.ends.lock().sharing.came_back();
        for window in 0..2 {
            queue.loaded(window * WINDOW, 64);
            while queue
                .dequeue(128, &mut queue.looks(), |_| shared(ALL, 0))
                .is_none()
            {}
        }
        // A page of the second one could not be moved.
        queue.enqueue(1);
        queue.loaded(0, 1);
        queue.loaded(WINDOW, 1);
        assert_eq!(back(), 2);
        queue.loaded(5, 1);
        assert_eq!(back(), 2, "once");
    }

    const UNITS: u64 = 40;

    #[derive(Debug, Clone)]
    enum Event {
        Loaded { page: u64, count: u64 },
        Enqueue(u64),
        Dequeue,
    }

    fn event() -> impl Strategy<Value = Event> {
        let page = 0..(UNITS - 8) * WINDOW;
        prop_oneof![
            3 => (page, 1..8 * WINDOW).prop_map(|(page, count)| Event::Loaded { page, count: count / 8 + 1 }),
            1 => (0..UNITS).prop_map(Event::Enqueue),
            2 => Just(Event::Dequeue),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Without concurrency this is [`Clock`] with "touched" for "loaded while it waited" (decision 0017).
        #[test]
        fn victims_are_those_of_the_core_s_clock(events in prop::collection::vec(event(), 0..300)) {
            let queue = queue(0);
            let mut nodes = [Node::NEW; UNITS as usize];
            let mut clock = Clock::new(&mut nodes);
            let mut waits = [false; UNITS as usize];
            let drain = std::iter::repeat_n(Event::Dequeue, UNITS as usize + 1);
            for event in events.into_iter().chain(drain) {
                match event {
                    Event::Loaded { page, count } => {
                        queue.loaded(page, count);
                        for window in page / WINDOW..=(page + count - 1) / WINDOW {
                            if std::mem::replace(&mut waits[window as usize], true) {
                                clock.touched(window as u32);
                            } else {
                                clock.loaded(window as u32, None);
                            }
                        }
                    }
                    // What could not be moved out comes again, which is no use of it.
                    Event::Enqueue(window) => {
                        queue.enqueue(window);
                        waits[window as usize] = true;
                        clock.loaded(window as u32, None);
                    }
                    Event::Dequeue => {
                        let victim = dequeue(&queue);
                        prop_assert_eq!(victim, clock.victim().map(u64::from));
                        if let Some(window) = victim {
                            waits[window as usize] = false;
                        }
                    }
                }
                prop_assert_eq!(queue.len(), u64::from(clock.resident()));
            }
        }
    }
}
