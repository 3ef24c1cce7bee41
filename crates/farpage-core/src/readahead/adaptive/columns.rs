//! Walks whose step is no whole number of pages: down a column of a row-major matrix, along a field of large records.
//!
//! In pages such a walk has no stride (6, 7, 6, 6, 7 ... for rows of 26400 bytes), but the *first* touch of a page happens at
//! an address, and from one row to the next these differ by the same number of bytes. So here each thread has up to four
//! walks, found by byte address:
//!
//! 1. A touch within 16 MiB of a walk's last one gives a delta; the third equal delta in a row makes the walk *run*.
//! 2. A touch a whole number of deltas after the last one, not far beyond what was fetched, is on its course. The window
//!    doubles like a stream's, and the next one is asked for when half of it is used up.
//! 3. A touch of the first byte of a page says nothing of the step: it is what comes after the page before. If that page is
//!    of one of the walk's last steps, steps *reach* at least so far, and from then on are fetched with what lies in reach.
//!
//! Steps of whole pages are the streams' affair. Where touches come without their offset (all 0), nothing here ever runs.

use super::super::{Direction, Fault, WINDOW_MAX, Window};
use super::{Event, MARKED_MIN, SPAN_MAX, mix, tag_of};
use crate::sync::{AtomicU64, Ordering};
use crate::units::PAGE_SIZE;

const SETS: usize = 32;
const WAYS: usize = 4;
const PAGE: i64 = PAGE_SIZE as i64;
/// Greatest distance of two steps, in bytes.
const DELTA_MAX: i64 = 16 << 20;
/// Equal deltas that make a walk run.
const RUNNING: u8 = 3;
/// The reach is known from below, in steps of a cache line, so that it is soon known.
const GRAIN: u64 = 64;
/// Steps that a touch may lie beyond what was fetched: pages in between were still there.
const SLACK: i64 = 16;
/// Most bytes that a step can reach over.
const REACH_MAX: i64 = (1 << 15) - 1;
/// Steps of a walk that are looked back at for the page before an extension.
const BACK: i64 = 4;
const LOG2_MAX: u8 = 10;
/// Addresses fit so many bits; the rest of the first word is the thread's.
const ADDRESS_BITS: u32 = 52;

/// The walks of a process, 3 KiB. All bytes zero is the empty table; any other bytes are safe too.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Columns {
    sets: [[Words; WAYS]; SETS],
}

/// ```text
/// last    | thread 12 | byte address of the last step 52                                  |
/// course  | delta in bytes, signed 26 | steps ahead 11 | 0 | reach 15 | log2 4 | equal deltas 4 |
/// ```
#[derive(Debug)]
struct Words {
    last: AtomicU64,
    course: AtomicU64,
}

/// A walk outside its words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Walk {
    last: i64,
    tag: u16,
    delta: i32,
    /// Steps asked for beyond `last`.
    ahead: u16,
    /// Bytes of a step, as far as is known.
    reach: u16,
    /// log2 of the last window, in steps.
    log2: u8,
    equal: u8,
}

const DELTA_SHIFT: u32 = 38;
const AHEAD_SHIFT: u32 = 27;
const AHEAD_MAX: i64 = (1 << 11) - 1;
const REACH_SHIFT: u32 = 8;

impl Walk {
    const fn unpack(last: u64, course: u64) -> Self {
        Self {
            last: (last & ((1 << ADDRESS_BITS) - 1)) as i64,
            tag: (last >> ADDRESS_BITS) as u16,
            delta: (course as i64 >> DELTA_SHIFT) as i32,
            ahead: (course >> AHEAD_SHIFT & AHEAD_MAX as u64) as u16,
            reach: (course >> REACH_SHIFT & REACH_MAX as u64) as u16,
            log2: (course >> 4 & 15) as u8,
            equal: (course & 15) as u8,
        }
    }

    const fn pack(self) -> [u64; 2] {
        let level = (self.log2 as u64) << 4 | self.equal as u64;
        let ahead = (self.ahead as u64) << AHEAD_SHIFT | (self.reach as u64) << REACH_SHIFT;
        [
            (self.tag as u64) << ADDRESS_BITS | self.last as u64,
            (self.delta as i64 as u64) << DELTA_SHIFT | ahead | level,
        ]
    }

    const fn runs(self) -> bool {
        let delta = self.delta as i64;
        self.equal >= RUNNING && delta.abs() > PAGE && delta % PAGE != 0
    }

    /// Steps from the last one to `address`, if it is on the course.
    fn steps_to(self, address: i64) -> Option<i64> {
        let distance = address - self.last;
        let delta = i64::from(self.delta);
        if !self.runs() || distance % delta != 0 {
            return None;
        }
        Some(distance / delta).filter(|steps| (1..=i64::from(self.ahead) + SLACK).contains(steps))
    }

    /// How far a step reaches at least if one of the last steps goes on at the beginning of `page`: not a page further than is
    /// known, for then the page is another step's.
    fn reach_to(self, page: i64) -> Option<u16> {
        let known = i64::from(self.reach);
        // A step that reached the next one would be a sequence.
        let most = (i64::from(self.delta).abs() - PAGE).min(REACH_MAX);
        (0..BACK)
            .map(|back| page * PAGE + 1 - (self.last - back * i64::from(self.delta)))
            .find(|reach| (known + 1..=(known + PAGE).min(most)).contains(reach))
            .map(|reach| (reach as u64).next_multiple_of(GRAIN).min(REACH_MAX as u64) as u16)
    }
}

impl Default for Columns {
    fn default() -> Self {
        Self::new()
    }
}

impl Columns {
    /// The empty table.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            sets: [const {
                [const {
                    Words {
                        last: AtomicU64::new(0),
                        course: AtomicU64::new(0),
                    }
                }; WAYS]
            }; SETS],
        }
    }

    /// Notes a touch. The outer `None`: no walk of this thread leads there, ask the streams. The inner one: it does, and there
    /// is nothing to fetch now.
    pub(super) fn event(&self, fault: &Fault<'_>, event: Event) -> Option<Option<Window>> {
        if fault.page >= 1 << (ADDRESS_BITS - 12) || !fault.is_inside() {
            return None;
        }
        let tag = tag_of(fault.thread);
        let set = self.sets.get(mix(u64::from(tag)) as usize % SETS)?;
        if fault.offset == 0 {
            return extend(set, tag, fault.page as i64, event);
        }
        let address = fault.page as i64 * PAGE + i64::from(fault.offset);
        for words in set {
            let mut walk = words.load();
            if walk.tag == tag
                && let Some(steps) = walk.steps_to(address)
            {
                let window = walk.advance(fault, event, steps);
                words.store(walk);
                return Some(window);
            }
        }
        collect(set, tag, address);
        None
    }
}

/// What follows the page of a step belongs to that step.
fn extend(set: &[Words; WAYS], tag: u16, page: i64, event: Event) -> Option<Option<Window>> {
    for words in set {
        let walk = words.load();
        if walk.tag == tag
            && walk.runs()
            && let Some(reach) = walk.reach_to(page)
        {
            words.store(Walk { reach, ..walk });
            return (event == Event::Hit).then_some(None);
        }
    }
    None
}

/// One more delta for the nearest walk that does not run, or a new walk in the place of one that never did, else of any.
fn collect(set: &[Words; WAYS], tag: u16, address: i64) {
    let mut chosen = (&set[(address / PAGE) as usize % WAYS], i64::MAX);
    for words in set {
        let walk = words.load();
        let distance = (address - walk.last).abs();
        if walk.tag == tag && !walk.runs() && distance <= DELTA_MAX && distance < chosen.1 {
            chosen = (words, distance);
        }
    }
    let (words, distance) = chosen;
    let before = words.load();
    let mut walk = Walk {
        last: address,
        tag,
        reach: 1,
        ..Walk::default()
    };
    if distance <= DELTA_MAX {
        walk.delta = (address - before.last) as i32;
        walk.equal = if walk.delta == before.delta {
            (before.equal + 1).min(RUNNING)
        } else {
            1
        };
    } else if before.runs() && before.equal > RUNNING {
        // A running walk gives way to the second stranger, not to the first.
        walk = Walk {
            equal: before.equal - 1,
            ..before
        };
    }
    words.store(walk);
}

impl Walk {
    /// The walk is where it was expected, `steps` after its last one.
    fn advance(&mut self, fault: &Fault<'_>, event: Event, steps: i64) -> Option<Window> {
        self.last += steps * i64::from(self.delta);
        self.ahead = self
            .ahead
            .saturating_sub(u16::try_from(steps).unwrap_or(u16::MAX));
        self.equal = (self.equal + 1).min(RUNNING + 4);
        let is_due = u32::from(self.ahead) <= 1 << self.log2 >> 1;
        if event == Event::Hit && !is_due {
            return None;
        }
        let in_span = (SPAN_MAX as i64 * PAGE / i64::from(self.delta).abs()).max(1) as u64;
        let allowed = fault.window_max.clamp(1, WINDOW_MAX) / self.pages();
        let most = u64::from(allowed.max(1)).min(in_span).ilog2() as u8;
        self.log2 = (self.log2 + 1).min(most).min(LOG2_MAX);
        self.open(fault, event)
    }

    /// Most pages that a step can lie in.
    fn pages(self) -> u32 {
        2 + u32::from(self.reach.max(1) - 1) / PAGE as u32 - u32::from(self.reach <= 1)
    }

    /// The next window: from the touched step after a miss, from the first one not asked for after a hit.
    fn open(&mut self, fault: &Fault<'_>, event: Event) -> Option<Window> {
        let delta = i64::from(self.delta);
        let (skip, pages) = match event {
            Event::Miss => (0, fault.most()),
            Event::Hit => (i64::from(self.ahead) + 1, fault.most().min(fault.budget)),
        };
        let first = self.last + skip * delta;
        let (begin, end) = (fault.lo as i64 * PAGE, fault.hi as i64 * PAGE);
        let reach = if pages < self.pages() {
            1
        } else {
            self.reach.max(1)
        };
        // Steps in this direction that lie in the region with all they reach.
        let room = if delta > 0 {
            (end - i64::from(reach) - first).div_euclid(delta)
        } else {
            (first - begin).div_euclid(-delta)
        };
        let per_step = if reach == 1 { 1 } else { self.pages() };
        let len = (1i64 << self.log2).min(i64::from(pages / per_step)).min(room + 1);
        if len <= 0 || first + i64::from(reach) > end {
            return None;
        }
        self.ahead = (skip + len - 1).min(AHEAD_MAX) as u16;
        let lowest = if delta > 0 {
            first
        } else {
            first + (len - 1) * delta
        };
        let mut window = Window {
            len: len as u32,
            stride: (delta.abs() / PAGE) as u32,
            fraction: (delta.abs() % PAGE) as u32,
            phase: lowest.rem_euclid(PAGE) as u32,
            reach: u32::from(reach),
            direction: if delta > 0 {
                Direction::Forward
            } else {
                Direction::Backward
            },
            ..Window::single(lowest.div_euclid(PAGE) as u64)
        };
        if window.len >= MARKED_MIN {
            window.marker = Some(window.at(window.len / 2));
        }
        Some(window)
    }
}

impl Words {
    fn load(&self) -> Walk {
        Walk::unpack(
            self.last.load(Ordering::Relaxed),
            self.course.load(Ordering::Relaxed),
        )
    }

    fn store(&self, walk: Walk) {
        let [last, course] = walk.pack();
        self.last.store(last, Ordering::Relaxed);
        self.course.store(course, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_survives_its_words() {
        let walk = Walk {
            last: 0x1234_5678_9abc,
            tag: 0xfff,
            delta: -26_400,
            ahead: 1999,
            reach: 32_767,
            log2: 10,
            equal: 7,
        };
        let [last, course] = walk.pack();
        assert_eq!(Walk::unpack(last, course), walk);
    }
}
