//! Readahead by memory: what was missed after this page the last time.
//!
//! A program may go over the same pages again in the same order, and that be no order of addresses: a list, a tree, what a
//! collector marks, a table of pointers that is walked. No stream is seen there, and neighbours in memory are of no use. In Linux
//! neighbours on the device are, by luck: there each page leaves by itself, in the order of its last use. Here pages leave by
//! windows of neighbours, so the order of use is kept apart: a ring of the pages missed lately, and an index that tells where in
//! it a page stands (a global history buffer, after Nesbit and Smith, HPCA 2004).
//!
//! 1. **Record.** A miss is written to the ring. Of a course, whose pages are not missed when they come before their touch, what
//!    lies between two events is written again, so that the ring tells the latest order.
//! 2. **Found.** A miss of a page whose record stands close behind that of the thread's last miss: the thread goes where one went
//!    before. It is on a *course* from there on, with a window of 2. For pages at random that is as likely as two of them being neighbours
//!    in the ring: they read nothing ahead.
//! 3. **Run.** A miss right behind what was fetched shows that the window held: it doubles. A window of at least 8 has its middle as
//!    a marker; when that is touched the next window is fetched.
//! 4. **Stray.** A miss off the course halves its window; with nothing left of it the course is forgotten. A thread that finds its
//!    way again keeps half of its window.
//!
//! The ring must hold as many pages as a round misses: when it is shorter each record is written over just before it is wanted.
//!
//! Asked only where no stream is seen, and for pages on a device: there one read after the other is what takes the time.

use super::adaptive::{mix, tag_of};
use super::{Direction, Fault, Order, Window};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Threads whose courses are kept apart.
const READERS: usize = 32;
/// So far behind the record of the last miss that of a page may stand: pages between them may have been there.
const NEAR: u64 = 4;
/// And so far behind what was fetched.
const SLACK: u64 = 8;
/// log2 of a course's first window, and of the greatest: single pages, of which a device has no more in hand at once.
const FIRST_LOG2: u8 = 1;
const LOG2_MAX: u8 = 6;
/// Smallest window that has a marker.
const MARKED_MIN: u64 = 8;

/// Where the threads of a process are in its history. All bytes zero is its initial state; any other bytes are safe too.
#[derive(Debug)]
pub struct Recall {
    /// Records ever written; the next one's place.
    head: AtomicU64,
    courses: [AtomicU64; READERS],
    /// The place of each thread's last miss, the low half.
    last: [AtomicU32; READERS],
}

/// What a process remembers of its misses: a page, and 1, for each record, and the low half of a place for each page. Both have
/// the same length; without any nothing is remembered.
#[derive(Debug, Clone, Copy)]
pub struct History<'a> {
    recall: &'a Recall,
    ring: &'a [AtomicU32],
    index: &'a [AtomicU32],
}

/// A thread that goes where one went before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Course {
    /// The record it was at last, the low half of its place.
    at: u32,
    /// Records behind it that were asked for.
    ahead: u16,
    /// log2 of its window; 0: there is no course.
    log2: u8,
    /// Of the thread, 12 bits.
    tag: u16,
}

impl Course {
    const fn pack(self) -> u64 {
        (self.at as u64) << 32
            | (self.ahead as u64) << 16
            | ((self.log2 & 0xf) as u64) << 12
            | (self.tag & 0xfff) as u64
    }

    const fn unpack(word: u64) -> Self {
        Self {
            at: (word >> 32) as u32,
            ahead: (word >> 16) as u16,
            log2: (word >> 12) as u8 & 0xf,
            tag: word as u16 & 0xfff,
        }
    }
}

impl Default for Recall {
    fn default() -> Self {
        Self::new()
    }
}

impl Recall {
    /// Nothing was missed yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            head: AtomicU64::new(0),
            courses: [const { AtomicU64::new(0) }; READERS],
            last: [const { AtomicU32::new(0) }; READERS],
        }
    }

    /// Records ever written.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.head.load(Ordering::Relaxed)
    }
}

impl<'a> History<'a> {
    /// A history in `ring` and `index`; of different lengths they remember nothing.
    #[must_use]
    pub const fn new(recall: &'a Recall, ring: &'a [AtomicU32], index: &'a [AtomicU32]) -> Self {
        let len = if ring.len() == index.len() { ring.len() } else { 0 };
        Self {
            recall,
            ring: ring.split_at(len).0,
            index: index.split_at(len).0,
        }
    }

    /// The page of a record, if there is any at that place.
    #[must_use]
    pub fn page(&self, place: u64) -> Option<u64> {
        self.entry(place).checked_sub(1).map(u64::from)
    }

    /// The window for a miss that no stream leads to, in records; it begins with the record of the page. None: the page alone.
    #[must_use]
    pub fn miss(&self, fault: &Fault<'_>) -> Option<Window> {
        let (page, reader) = self.asked(fault)?;
        let head = self.recall.records();
        let mut course = self.course(reader, fault);
        let last = self.recall.last.get(reader)?;
        let fetched = u64::from(course.ahead);
        let at = if let Some(at) = self.seek(course, fetched + SLACK, page, head) {
            let was_fetched = at <= whole(course.at, head).saturating_add(fetched);
            course.log2 = (course.log2 + u8::from(!was_fetched)).min(LOG2_MAX);
            self.repeat(course, at, head);
            Some(at)
        } else {
            let at = self.led(last.load(Ordering::Relaxed), page, head);
            let least = if at.is_some() { FIRST_LOG2 } else { 0 };
            course.log2 = course.log2.saturating_sub(1).max(least);
            self.record(page);
            at
        };
        let window = at.and_then(|at| {
            let known = self.recall.records().saturating_sub(at);
            let len = (1 << course.log2).min(u64::from(fault.most())).min(known);
            (course.at, course.ahead) = (at as u32, len.saturating_sub(1) as u16);
            (len > 1).then(|| window(at, len))
        });
        last.store(self.recall.records().wrapping_sub(1) as u32, Ordering::Relaxed);
        self.keep(reader, course);
        window
    }

    /// The window to fetch ahead after a touch of what was fetched, in records; none if it is not time for one.
    #[must_use]
    pub fn hit(&self, fault: &Fault<'_>) -> Option<Window> {
        let (page, reader) = self.asked(fault)?;
        let head = self.recall.records();
        let mut course = self.course(reader, fault);
        let fetched = u64::from(course.ahead);
        let at = self.seek(course, fetched, page, head)?;
        self.repeat(course, at, head);
        let left = whole(course.at, head).saturating_add(fetched).saturating_sub(at);
        course.at = at as u32;
        let next = at.saturating_add(left + 1);
        let is_due = left <= 1 << course.log2 >> 1;
        let len = if is_due {
            course.log2 = (course.log2 + 1).min(LOG2_MAX);
            let most = u64::from(fault.most().min(fault.budget));
            let known = self.recall.records().saturating_sub(next);
            (1 << course.log2).min(most).min(known)
        } else {
            0
        };
        course.ahead = u16::try_from(left + len).unwrap_or(u16::MAX);
        self.keep(reader, course);
        (len > 0).then(|| window(next, len))
    }

    /// The page as it stands in records, and which reader the thread is.
    fn asked(&self, fault: &Fault<'_>) -> Option<(u32, usize)> {
        let page = u32::try_from(fault.page).ok()?.checked_add(1)?;
        let reader = usize::from(tag_of(fault.thread)) % READERS;
        (!self.ring.is_empty() && fault.is_inside()).then_some((page, reader))
    }

    /// The course of the thread; one without a window if it has none.
    fn course(&self, reader: usize, fault: &Fault<'_>) -> Course {
        let word = self
            .recall
            .courses
            .get(reader)
            .map_or(0, |word| word.load(Ordering::Relaxed));
        let (course, tag) = (Course::unpack(word), tag_of(fault.thread));
        if course.tag == tag {
            course
        } else {
            Course::unpack(u64::from(tag))
        }
    }

    fn keep(&self, reader: usize, course: Course) {
        if let Some(word) = self.recall.courses.get(reader) {
            word.store(course.pack(), Ordering::Relaxed);
        }
    }

    /// The place of the page among the next `reach` records of a course.
    fn seek(&self, course: Course, reach: u64, page: u32, head: u64) -> Option<u64> {
        let at = whole(course.at, head);
        let end = at.saturating_add(reach + 1).min(head);
        let is_there = |place: &u64| self.entry(*place) == page;
        // With what strays left the round may have become longer than the ring: then it is another one's record.
        let is_known = head.wrapping_sub(at) <= self.ring.len() as u64;
        (course.log2 > 0 && is_known)
            .then(|| (at.saturating_add(1)..end).find(is_there))
            .flatten()
    }

    /// The place of the page, if it was missed soon after what was missed last.
    fn led(&self, last: u32, page: u32, head: u64) -> Option<u64> {
        let at = self.index.get(self.slot(page))?.load(Ordering::Relaxed);
        let (at, last) = (whole(at, head), self.entry(whole(last, head)));
        let is_last = |back: u64| {
            at.checked_sub(back)
                .is_some_and(|place| self.entry(place) == last)
        };
        (at < head && self.entry(at) == page && last != 0 && (1..=NEAR).any(is_last)).then_some(at)
    }

    /// Writes the records between a course and `at` again, that one too.
    fn repeat(&self, course: Course, at: u64, head: u64) {
        let pages = (whole(course.at, head).saturating_add(1)..=at).map(|place| self.entry(place));
        pages.filter(|page| *page != 0).for_each(|page| self.record(page));
    }

    fn record(&self, page: u32) {
        let place = self.recall.head.fetch_add(1, Ordering::Relaxed);
        if let Some(entry) = self.ring.get(self.turned(place)) {
            entry.store(page, Ordering::Relaxed);
        }
        if let Some(index) = self.index.get(self.slot(page)) {
            index.store(place as u32, Ordering::Relaxed);
        }
    }

    fn entry(&self, place: u64) -> u32 {
        self.ring
            .get(self.turned(place))
            .map_or(0, |entry| entry.load(Ordering::Relaxed))
    }

    fn turned(&self, place: u64) -> usize {
        place.checked_rem(self.ring.len() as u64).unwrap_or_default() as usize
    }

    /// Pages that share a slot of the index forget each other.
    fn slot(&self, page: u32) -> usize {
        let drawn = mix(u64::from(page)) >> 32;
        ((drawn * self.index.len() as u64) >> 32) as usize
    }
}

/// The last place before `head` with this low half.
const fn whole(low: u32, head: u64) -> u64 {
    head.wrapping_sub((head as u32).wrapping_sub(low) as u64)
}

fn window(first: u64, len: u64) -> Window {
    Window {
        len: len as u32,
        direction: Direction::Forward,
        order: Order::Recalled,
        marker: (len >= MARKED_MIN).then_some(first + len / 2),
        ..Window::single(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    static WORD: AtomicU64 = AtomicU64::new(0);

    struct Own {
        recall: Recall,
        ring: Vec<AtomicU32>,
        index: Vec<AtomicU32>,
    }

    impl Own {
        fn new(len: usize) -> Self {
            let zeros = || (0..len).map(|_| AtomicU32::new(0)).collect();
            Self {
                recall: Recall::new(),
                ring: zeros(),
                index: zeros(),
            }
        }

        fn history(&self) -> History<'_> {
            History::new(&self.recall, &self.ring, &self.index)
        }

        fn miss(&self, page: u64, thread: u32) -> Vec<u64> {
            let window = self.history().miss(&fault(page, thread));
            window.map_or_else(Vec::new, |window| self.pages(window))
        }

        fn hit(&self, page: u64, thread: u32) -> Vec<u64> {
            let window = self.history().hit(&fault(page, thread));
            window.map_or_else(Vec::new, |window| self.pages(window))
        }

        fn pages(&self, window: Window) -> Vec<u64> {
            assert_eq!(window.order, Order::Recalled);
            window
                .places()
                .filter_map(|place| self.history().page(place))
                .collect()
        }
    }

    fn fault(page: u64, thread: u32) -> Fault<'static> {
        Fault {
            page,
            offset: 0,
            thread,
            lo: 0,
            hi: 1 << 28,
            word: &WORD,
            slot: None,
            budget: 4096,
            window_max: 1024,
        }
    }

    /// Pages in no order, each once.
    fn scattered(count: u64) -> Vec<u64> {
        (0..count).map(|i| mix(i) % (1 << 20) * 256 + i % 256).collect()
    }

    #[test]
    fn a_course_is_found_at_its_second_page_and_its_windows_grow() {
        let (own, pages) = (Own::new(1024), scattered(200));
        assert!(
            pages.iter().all(|page| own.miss(*page, 1).is_empty()),
            "nobody went there before"
        );
        assert_eq!(own.miss(pages[10], 1), [], "nothing led there");
        assert_eq!(own.miss(pages[11], 1), pages[11..13]);
        assert_eq!(own.miss(pages[13], 1), pages[13..17], "the window held");
        assert_eq!(own.miss(pages[17], 1), pages[17..25]);
        let marker = own
            .history()
            .miss(&fault(pages[25], 1))
            .and_then(|window| window.marker);
        assert_eq!(
            marker.and_then(|place| own.history().page(place)),
            Some(pages[33])
        );
        assert_eq!(own.hit(pages[33], 1), pages[41..73], "7 are left of 16");
        assert_eq!(own.hit(pages[34], 1), [], "38 are left");
    }

    #[test]
    fn a_stray_miss_halves_the_window_and_the_course_goes_on() {
        let (own, pages) = (Own::new(1024), scattered(200));
        pages.iter().for_each(|page| assert_eq!(own.miss(*page, 1), []));
        for at in [10, 11, 13] {
            let _ = own.miss(pages[at], 1);
        }
        assert_eq!(own.miss(pages[17], 1).len(), 8);
        assert_eq!(own.miss(77, 1), []);
        assert_eq!(own.miss(pages[25], 1).len(), 8, "it had become 4");
        (100..110).for_each(|page| assert_eq!(own.miss(page, 1), []));
        assert_eq!(own.miss(pages[33], 1), [], "forgotten");
        assert_eq!(own.miss(pages[34], 1), pages[34..36]);
    }

    #[test]
    fn threads_have_courses_of_their_own() {
        let (own, pages) = (Own::new(1024), scattered(200));
        pages.iter().for_each(|page| assert_eq!(own.miss(*page, 1), []));
        for (thread, from) in [(2, 10), (3, 50)] {
            assert_eq!(own.miss(pages[from], thread), []);
        }
        for (thread, from) in [(2, 11), (3, 51), (2, 13), (3, 53)] {
            assert!(
                !own.miss(pages[from], thread).is_empty(),
                "thread {thread}, {from}"
            );
        }
    }

    #[test]
    fn pages_at_random_read_nothing_ahead() {
        let own = Own::new(1 << 14);
        let pages = (0..200_000u64).map(|i| mix(i) % 5000);
        let ahead: usize = pages.map(|page| own.miss(page, 1).len().saturating_sub(1)).sum();
        assert!(ahead < 2000, "{ahead} of 200000");
    }

    /// Where what is known ends, what came since follows: a round begins where the last one ended.
    #[test]
    fn rounds_follow_each_other() {
        let (own, pages) = (Own::new(64), scattered(20));
        pages.iter().for_each(|page| assert_eq!(own.miss(*page, 1), []));
        assert_eq!(own.miss(pages[0], 1), []);
        let mut at = 1;
        for _ in 0..40 {
            let ahead = own.miss(pages[at % 20], 1);
            assert!(ahead.len() > 1, "{at}");
            let expected: Vec<_> = (at..at + ahead.len()).map(|at| pages[at % 20]).collect();
            assert_eq!(ahead, expected, "{at}");
            at += ahead.len();
        }
    }

    /// A ring that is hardly longer than a round goes on being enough, though pages of no round are missed too; when they have made the
    /// round longer than the ring it begins anew. (What was repeated once wrote over what it was to repeat next.)
    #[test]
    fn stray_misses_push_no_course_out() {
        let (own, pages) = (Own::new(1000), scattered(900));
        let mut ahead = Vec::new();
        for round in 0..40u64 {
            let (mut came, mut there) = (0, Vec::new());
            for (at, page) in pages.iter().enumerate() {
                if at % 90 == 40 {
                    let _ = own.miss(1 + round * 100 + at as u64 % 97, 1);
                }
                let is_there = there.contains(page);
                came += usize::from(is_there);
                let window = if is_there {
                    own.hit(*page, 1)
                } else {
                    let window = own.miss(*page, 1);
                    assert!(
                        window.first().is_none_or(|first| first == page),
                        "round {round}, {at}"
                    );
                    window
                };
                there.extend(window);
            }
            ahead.push(came);
        }
        assert!(
            ahead[0] < 9 && ahead[2..9].iter().all(|came| *came > 700),
            "{ahead:?}"
        );
        let good = ahead.iter().filter(|came| **came > 700).count();
        assert!(good > 25, "{ahead:?}");
    }

    proptest! {
        #[test]
        fn a_course_reads_back(at: u32, ahead: u16, log2 in 0..16u8, tag in 0..4096u16) {
            let course = Course { at, ahead, log2, tag };
            prop_assert_eq!(Course::unpack(course.pack()), course);
        }

        /// Threads race for it: whatever stands there, windows keep to their bounds.
        #[test]
        fn any_memory_is_safe(head: u64, words: [u64; 4], lasts: [u32; 4], ring: [u32; 8], index: [u32; 8], faults in prop::collection::vec((0..9u64, 0..3u32, any::<bool>()), 1..60)) {
            let own = Own::new(8);
            own.recall.head.store(head, Ordering::Relaxed);
            for (i, word) in own.recall.courses.iter().enumerate() {
                word.store(words[i % 4], Ordering::Relaxed);
                own.recall.last[i].store(lasts[i % 4], Ordering::Relaxed);
            }
            for i in 0..8 {
                own.ring[i].store(ring[i], Ordering::Relaxed);
                own.index[i].store(index[i], Ordering::Relaxed);
            }
            for (page, thread, is_hit) in faults {
                let fault = Fault { window_max: 16, ..fault(page, thread) };
                let window = if is_hit { own.history().hit(&fault) } else { own.history().miss(&fault) };
                prop_assert!(window.is_none_or(|window| window.len <= 16 && window.marker.is_none_or(|place| window.holds(place))));
            }
        }
    }
}
