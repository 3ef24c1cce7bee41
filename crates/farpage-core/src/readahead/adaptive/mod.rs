//! Readahead by streams: the default.
//!
//! The kernel keeps one history per mapping, so two loops over one array spoil each other's windows, and its
//! windows end at 32 pages. Here each *stream* (a thread going through memory in equal steps) has its own
//! history and its own window, found by thread and place.
//!
//! 1. **Detect.** A fault that no running stream leads to belongs to the nearest candidate of its thread
//!    within 4096 pages, and the distance is a delta of that candidate. A near one (within 16)
//!    moves the candidate; a far one leaves it and founds another that inherits its deltas, so that
//!    interleaved streams stay apart. When the last deltas agree the candidate runs, with
//!    a window of 2 pages. Everything else gets a window of 1: a random fault reads nothing ahead.
//! 2. **Run.** A fault exactly where the stream was to be missed next (its *frontier*), or a hit on what was
//!    fetched for it, shows that the window held: it doubles, up to the fault's `window_max` and
//!    a span of 64 MiB.
//! 3. **Ahead.** A window of at least 8 pages has its middle as a marker; when that is touched
//!    the next window is fetched while the stream goes through the other half. Whatever hit finds less than
//!    half a window left does the same.
//! 4. **Break.** A fault off the course is not the stream's: window 1 at once. The stream itself stays as it
//!    was, for another thread or a stray access may have caused it. If the stream goes on from there (the
//!    candidate runs within two windows of the old stream's course) it takes over the old window: whole, if
//!    it had only skipped pages that were there; half, if pages were gone again before they were touched.
//! 5. **Crowd.** Whoever goes through memory page by page is on the course of every strided stream that leads through
//!    it. Where streams of one thread and one step take turns and lead to more than half of the pages, they become one
//!    sequence. (Columns walked one after the other are taken for that where each has an event or two in a set: the end
//!    of their matrix is read along.) What a sequence of the thread is to come to is not theirs either.
//! 6. **Doubt.** A stream that has been silent for 16 events of its set per page of its window is stale: a
//!    fault on its course is most likely there by chance, and begins again with a window of 2.
//!
//! Walks with a step of no whole number of pages are followed by `columns`, which is asked first.
//!
//! Which streams a set keeps is told in `table`; what a stream remembers in `stream`. Cost per fault: a look
//! at two sets, 32 to 96 words; at twice as many on the course of a strided stream.

mod columns;
mod stream;
mod table;
#[cfg(test)]
mod tests;

pub use table::Streams;
pub(super) use table::{mix, tag_of};

use super::{Direction, Fault, Order, WINDOW_MAX, Window};
use stream::{CONFIDENCE_MAX, PAGE_MAX, REACH, RUNNING, Stream};
use table::{Home, Place};

/// Within this many pages a fault moves a candidate on.
const NEAR: u64 = 16;
/// Greatest window times stride, in pages (64 MiB): with half a window left it keeps a stream's frontier
/// within half a chunk of its last page.
const SPAN_MAX: u64 = 1 << 14;
/// Smallest window that has a marker; below, the extra fault costs more than it hides.
const MARKED_MIN: u32 = 8;
/// log2 of a stream's first window.
const FIRST_LOG2: u8 = 1;
/// Greatest stride of a crowd: of a greater one more than half would be more streams than a set is sure to keep.
const CROWD_STRIDE_MAX: u64 = 15;
/// Events of their set within which each of a crowd is heard of.
const TURNS_MAX: u32 = 64;

/// What a fault is to the table.
enum Found {
    /// Where a running stream leads, so many steps from its last page.
    OnCourse(Place, Stream, u64),
    /// The same, but one of many such streams, which lead to most pages there.
    Crowd(Stream),
    /// So many pages from the last page of a candidate.
    Near(Place, Stream, i16),
    /// The last page of a stream of this thread.
    Again,
    /// Nothing.
    Stranger,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Miss,
    Hit,
}

impl Streams {
    /// The window for a miss: 1 page unless a stream is noticed.
    #[must_use]
    pub fn miss(&self, fault: &Fault<'_>) -> Window {
        self.event(fault, Event::Miss)
            .unwrap_or(Window::single(fault.page))
    }

    /// The window to fetch ahead after a hit, if any; it begins at the stream's frontier.
    #[must_use]
    pub fn hit(&self, fault: &Fault<'_>) -> Option<Window> {
        self.event(fault, Event::Hit)
    }

    fn event(&self, fault: &Fault<'_>, event: Event) -> Option<Window> {
        if !fault.is_inside() || fault.page > PAGE_MAX {
            return None;
        }
        if let Some(window) = self.columns.event(fault, event) {
            return window;
        }
        match self.seek(fault, event) {
            Found::OnCourse(place, stream, steps) => self.run(fault, event, (place, stream), steps),
            Found::Crowd(stream) => self.merge(fault, event, stream),
            Found::Near(place, stream, delta) => self.collect(fault, event, (place, stream), delta),
            Found::Again => None,
            Found::Stranger => {
                let tag = tag_of(fault.thread);
                self.put(Stream::candidate(fault.page, tag, Default::default()), None);
                None
            }
        }
    }

    /// A stream that misses anywhere but at its frontier is not on its course: what lies before was fetched. What the thread's own sequence is
    /// to come to is no short-stepped stream's, even if it has gone again.
    fn seek(&self, fault: &Fault<'_>, event: Event) -> Found {
        let tag = tag_of(fault.thread);
        let (mut found, mut nearest) = (Found::Stranger, REACH + 1);
        let (mut on_course, mut in_sequence) = (None, false);
        for (place, stream) in self.near(Home::of(fault.page, tag)) {
            if stream.runs()
                && let Some(steps) = stream.steps_to(fault.page)
                && steps <= stream.frontier()
            {
                let is_own = stream.stride.unsigned_abs() == 1 && stream.tag == tag;
                let leads = is_own && stream.silence(self.turn(place)) <= TURNS_MAX;
                in_sequence |= leads;
                if steps == stream.frontier() || event == Event::Hit {
                    if leads || on_course.is_none() && !is_crowdable(stream) {
                        return self.on_course(fault, (place, stream), steps);
                    }
                    on_course = on_course.or(Some((place, stream, steps)));
                    continue;
                }
            }
            if stream.tag != tag {
                continue;
            }
            let distance = fault.page.abs_diff(stream.page);
            if distance == 0 {
                (found, nearest) = (Found::Again, 0);
            } else if !stream.runs() && distance < nearest {
                let delta = distance as i16;
                let delta = if fault.page > stream.page { delta } else { -delta };
                (found, nearest) = (Found::Near(place, stream, delta), distance);
            }
        }
        match on_course {
            Some((place, stream, steps)) if !in_sequence => self.on_course(fault, (place, stream), steps),
            _ => found,
        }
    }

    fn on_course(&self, fault: &Fault<'_>, (place, stream): (Place, Stream), steps: u64) -> Found {
        if self.is_crowd(fault, stream) {
            Found::Crowd(stream)
        } else {
            Found::OnCourse(place, stream, steps)
        }
    }

    /// Those of the stream's thread that run with its stride.
    fn alike(&self, page: u64, one: Stream) -> impl Iterator<Item = (Place, Stream)> {
        self.near(Home::of(page, one.tag))
            .filter(move |(_, stream)| stream.runs() && stream.tag == one.tag && stream.stride == one.stride)
    }

    /// Whether streams like this one, each of other pages, lead to more than half of the pages where `fault` is. They take turns, where
    /// those of one column after the other are silent while the next is walked.
    fn is_crowd(&self, fault: &Fault<'_>, one: Stream) -> bool {
        if !is_crowdable(one) {
            return false;
        }
        let stride = u64::from(one.stride.unsigned_abs());
        let mut phases = 0u32;
        for (place, stream) in self.alike(fault.page, one) {
            let passed = (fault.page < stream.page) == (stream.stride > 0);
            let reach = if passed { 1 } else { stream.frontier() } * stride;
            let takes_turns = stream.silence(self.turn(place)) <= TURNS_MAX;
            if takes_turns && fault.page.abs_diff(stream.page) <= reach {
                phases |= 1 << (stream.page % stride);
            }
        }
        u64::from(phases.count_ones()) * 2 > stride
    }

    /// One sequence takes the place of all streams like this one.
    fn merge(&self, fault: &Fault<'_>, event: Event, one: Stream) -> Option<Window> {
        let stride = one.stride.signum();
        let mut log2 = one.log2 + one.stride.unsigned_abs().ilog2() as u8;
        for (place, stream) in self.alike(fault.page, one) {
            log2 = log2.max(stream.log2);
            self.clear(place);
        }
        let mut stream = Stream {
            stride,
            confidence: RUNNING,
            log2: log2.min(log2_max(fault, stride)),
            ..Stream::candidate(fault.page, one.tag, Default::default())
        };
        let window = open(fault, event, &mut stream);
        self.put(stream, None);
        window
    }

    /// The stream is where it was expected, `steps` after its last page.
    fn run(
        &self,
        fault: &Fault<'_>,
        event: Event,
        (place, mut stream): (Place, Stream),
        steps: u64,
    ) -> Option<Window> {
        stream.page = fault.page;
        stream.ahead = stream
            .ahead
            .saturating_sub(u16::try_from(steps).unwrap_or(u16::MAX));
        stream.confidence = (stream.confidence + 1).min(CONFIDENCE_MAX);
        if stream.is_stale(stream.silence(self.turn(place))) {
            (stream.log2, stream.confidence) = (0, RUNNING);
        }
        let is_due = u32::from(stream.ahead) <= 1 << stream.log2 >> 1;
        let window = if event == Event::Miss || is_due {
            stream.log2 = (stream.log2 + 1).min(log2_max(fault, stream.stride));
            open(fault, event, &mut stream)
        } else {
            None
        };
        self.put(stream, Some(place));
        window
    }

    /// One more delta for a candidate, which may make it run.
    fn collect(
        &self,
        fault: &Fault<'_>,
        event: Event,
        (place, candidate): (Place, Stream),
        delta: i16,
    ) -> Option<Window> {
        let old = (u64::from(delta.unsigned_abs()) <= NEAR).then_some(place);
        let deltas = candidate.deltas.push(delta);
        let mut stream = Stream::candidate(fault.page, candidate.tag, deltas);
        let mut window = None;
        if let Some(stride) = deltas.vote() {
            stream.stride = stride;
            stream.confidence = RUNNING;
            stream.log2 = self
                .take_over(&stream)
                .unwrap_or(FIRST_LOG2)
                .min(log2_max(fault, stride));
            window = open(fault, event, &mut stream);
        }
        self.put(stream, old);
        window
    }

    /// The window (log2) of the running stream that `new` continues, which is forgotten.
    fn take_over(&self, new: &Stream) -> Option<u8> {
        for (place, old) in self.near(Home::of(new.page, new.tag)) {
            let is_stale = old.is_stale(old.silence(self.turn(place)));
            if !old.runs() || is_stale || old.tag != new.tag || old.stride != new.stride {
                continue;
            }
            let Some(steps) = old.steps_to(new.page) else {
                continue;
            };
            if steps <= old.frontier() + (1 << old.log2) {
                self.clear(place);
                let was_fetched = steps < old.frontier();
                return Some(old.log2.saturating_sub(u8::from(was_fetched)).max(FIRST_LOG2));
            }
        }
        None
    }
}

/// Whether a stream's step is so short that it may be a sequence's in truth.
fn is_crowdable(stream: Stream) -> bool {
    (2..=CROWD_STRIDE_MAX).contains(&u64::from(stream.stride.unsigned_abs()))
}

/// log2 of the greatest window that the fault and the stride allow; a greatest window that is no power of two
/// is reached by clipping.
fn log2_max(fault: &Fault<'_>, stride: i16) -> u8 {
    let span = SPAN_MAX / u64::from(stride.unsigned_abs()).max(1);
    let most = u64::from(fault.window_max.clamp(1, WINDOW_MAX)).next_power_of_two();
    span.clamp(1, most).ilog2() as u8
}

/// The next window of a stream that is at the faulting page: from that page after a miss, from the frontier
/// after a hit. Clipped to what the fault allows and to the region; none if nothing is left of it.
fn open(fault: &Fault<'_>, event: Event, stream: &mut Stream) -> Option<Window> {
    let stride = u64::from(stream.stride.unsigned_abs()).max(1);
    let forward = stream.stride > 0;
    // Steps from the faulting page to the last page of the region in the stream's direction.
    let room = if forward {
        fault.hi - 1 - fault.page
    } else {
        fault.page - fault.lo
    } / stride;
    let skip = match event {
        Event::Miss => 0,
        Event::Hit => stream.frontier(),
    };
    let most = match event {
        Event::Miss => fault.most(),
        Event::Hit => fault.most().min(fault.budget),
    };
    let len = u64::from((1 << stream.log2).min(most)).min((room + 1).saturating_sub(skip));
    if len == 0 {
        return None;
    }
    let (near, far) = (skip * stride, (skip + len - 1) * stride);
    let len = len as u32;
    stream.ahead = u16::try_from(skip + u64::from(len) - 1).unwrap_or(u16::MAX);
    let mut window = Window {
        first: if forward {
            fault.page + near
        } else {
            fault.page - far
        },
        len,
        stride: stride as u32,
        direction: if forward {
            Direction::Forward
        } else {
            Direction::Backward
        },
        order: Order::Virtual,
        ..Window::single(fault.page)
    };
    if len >= MARKED_MIN {
        window.marker = Some(window.at(len / 2));
    }
    Some(window)
}
