//! Where the streams of a process are kept: 8 sets of 16.
//!
//! A stream lives in the set that its thread and the chunk (256 MiB) of its last page hash to. No stream has
//! asked for more than half a chunk beyond its last page, so whoever looks for the stream of a page looks in
//! two sets: that of the page's chunk and that of the nearer neighbour chunk.
//!
//! A set gives way to a newcomer, but not at the cost of what runs. It takes, in this order: an empty place;
//! the candidate that has been silent longest, if there are [`CANDIDATES`] or more; a running stream that is
//! long stale; that candidate, if there are [`CANDIDATES_MIN`] or more; a running stream whose confidence is
//! at its end. Where candidates are too few each newcomer takes one confidence from the running stream that
//! has been silent longest. So 8 running streams per set are safe from any number of random faults, 12 while
//! they are not [stale](Stream::is_stale), and one that ended is forgotten soon when its place is needed.

use super::columns::Columns;
use super::stream::{RUNNING, Stream};
use crate::sync::{AtomicU64, Ordering};

/// Pages in a chunk.
pub const CHUNK_PAGES: u64 = 1 << 16;

const SETS: usize = 8;
const WAYS: usize = 16;
const CANDIDATES: usize = 8;
const CANDIDATES_MIN: usize = 4;
/// How much longer than until it is stale a stream is silent before it gives way for that.
const LONG: u32 = 4;

/// The streams and column walks of a process, 6 KiB. All bytes zero is the empty table, so it may lie in fresh shared
/// memory; any other bytes are safe too.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Streams {
    sets: [Set; SETS],
    pub(super) columns: Columns,
}

#[repr(C, align(64))]
#[derive(Debug)]
struct Set {
    places: [AtomicU64; WAYS],
    deltas: [AtomicU64; WAYS],
    courses: [AtomicU64; WAYS],
    /// Counts the events of the set; the low half is the time that streams carry.
    turn: AtomicU64,
}

/// Names one place of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    set: usize,
    way: usize,
}

/// The sets that belong to a page and a thread.
#[derive(Debug, Clone, Copy)]
pub struct Home {
    own: usize,
    neighbour: usize,
}

/// The 12 bits of a thread's key that tell candidates apart.
pub const fn tag_of(thread: u32) -> u16 {
    (mix(thread as u64) >> 52) as u16
}

impl Home {
    /// The sets where the stream of `page` can be.
    pub const fn of(page: u64, tag: u16) -> Self {
        let chunk = page / CHUNK_PAGES;
        let upper = page % CHUNK_PAGES >= CHUNK_PAGES / 2;
        let nearer = if upper {
            chunk.wrapping_add(1)
        } else {
            chunk.wrapping_sub(1)
        };
        Self {
            own: set_of(chunk, tag),
            neighbour: set_of(nearer, tag),
        }
    }
}

/// Neighbouring chunks of a thread have different sets.
const fn set_of(chunk: u64, tag: u16) -> usize {
    ((mix(tag as u64) >> 32).wrapping_add(chunk) % SETS as u64) as usize
}

/// A finalizer of splitmix64: every bit of the result depends on every bit of `x`.
pub const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Default for Streams {
    fn default() -> Self {
        Self::new()
    }
}

impl Streams {
    /// Streams that a table holds.
    pub const CAPACITY: usize = SETS * WAYS;

    /// The empty table.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            sets: [const { Set::new() }; SETS],
            columns: Columns::new(),
        }
    }

    /// Every stream in the two sets, with its place.
    pub(super) fn near(&self, home: Home) -> impl Iterator<Item = (Place, Stream)> {
        let places = (0..2 * WAYS).map(move |i| Place {
            set: if i < WAYS { home.own } else { home.neighbour },
            way: i % WAYS,
        });
        places
            .map(|place| (place, self.load(place)))
            .filter(|(_, stream)| stream.exists())
    }

    /// The turn of the set at `place`.
    pub(super) fn turn(&self, place: Place) -> u32 {
        self.sets
            .get(place.set)
            .map_or(0, |set| set.turn.load(Ordering::Relaxed) as u32)
    }

    /// Puts a stream that was at `old`, if it is not new, to where its page belongs.
    pub(super) fn put(&self, stream: Stream, old: Option<Place>) {
        let home = Home::of(stream.page, stream.tag).own;
        let Some(set) = self.sets.get(home) else {
            return;
        };
        let turn = set.turn.fetch_add(1, Ordering::Relaxed) as u32;
        let stays = old.filter(|place| place.set == home);
        if stays.is_none() {
            old.inspect(|&place| self.clear(place));
        }
        if let Some(way) = stays.map(|place| place.way).or_else(|| set.room(turn)) {
            set.store(way, Stream { turn, ..stream });
        }
    }

    /// Changes a stream in its place.
    pub(super) fn update(&self, place: Place, stream: Stream) {
        if let Some(set) = self.sets.get(place.set) {
            set.store(place.way, stream);
        }
    }

    /// Forgets a stream.
    pub(super) fn clear(&self, place: Place) {
        self.update(place, Stream::default());
    }

    fn load(&self, place: Place) -> Stream {
        self.sets
            .get(place.set)
            .map_or(Stream::default(), |set| set.load(place.way))
    }

    /// The word at `index` of the table, for a test to put anything there.
    #[cfg(test)]
    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        let set = &self.sets[index / (3 * WAYS) % SETS];
        let words = [&set.places, &set.deltas, &set.courses];
        &words[index / WAYS % 3][index % WAYS]
    }
}

impl Set {
    const fn new() -> Self {
        Self {
            places: [const { AtomicU64::new(0) }; WAYS],
            deltas: [const { AtomicU64::new(0) }; WAYS],
            courses: [const { AtomicU64::new(0) }; WAYS],
            turn: AtomicU64::new(0),
        }
    }

    fn load(&self, way: usize) -> Stream {
        let words = [&self.places, &self.deltas, &self.courses];
        Stream::unpack(words.map(|of| of.get(way).map_or(0, |word| word.load(Ordering::Relaxed))))
    }

    fn store(&self, way: usize, stream: Stream) {
        let words = [&self.places, &self.deltas, &self.courses];
        for (of, value) in words.into_iter().zip(stream.pack()) {
            if let Some(word) = of.get(way) {
                word.store(value, Ordering::Relaxed);
            }
        }
    }

    /// A way for a newcomer, by the rules on top; None while nobody gives way.
    fn room(&self, turn: u32) -> Option<usize> {
        let (mut candidates, mut candidate, mut running) = (0, Silent::NONE, Silent::NONE);
        for way in 0..WAYS {
            let stream = self.load(way);
            if !stream.exists() {
                return Some(way);
            }
            let silence = stream.silence(turn);
            if stream.runs() {
                running.note(way, silence);
            } else {
                candidates += 1;
                candidate.note(way, silence);
            }
        }
        if candidates >= CANDIDATES {
            return candidate.way;
        }
        if let Some(way) = running.way
            && self.load(way).is_stale(running.silence / LONG)
        {
            return Some(way);
        }
        if candidates >= CANDIDATES_MIN {
            return candidate.way;
        }
        let aged = running.way?;
        let mut stream = self.load(aged);
        stream.confidence = stream.confidence.saturating_sub(1);
        if stream.confidence < RUNNING {
            return Some(aged);
        }
        self.store(aged, stream);
        candidate.way
    }
}

/// The way that has been silent longest of those noted.
#[derive(Clone, Copy)]
struct Silent {
    way: Option<usize>,
    silence: u32,
}

impl Silent {
    const NONE: Self = Self {
        way: None,
        silence: 0,
    };

    fn note(&mut self, way: usize, silence: u32) {
        if self.way.is_none() || silence > self.silence {
            *self = Self {
                way: Some(way),
                silence,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stream::{CONFIDENCE_MAX, Deltas};
    use super::*;
    use std::vec::Vec;

    fn running(page: u64) -> Stream {
        Stream {
            confidence: CONFIDENCE_MAX,
            log2: 10,
            stride: 1,
            ..Stream::candidate(page, 7, Deltas::default())
        }
    }

    fn pages(streams: &Streams, wanted: impl Fn(Stream) -> bool) -> Vec<u64> {
        let home = Home::of(0, 7);
        let own = streams.near(home).filter(|(place, _)| place.set == home.own);
        let mut pages: Vec<_> = own.filter(|(_, s)| wanted(*s)).map(|(_, s)| s.page).collect();
        pages.sort_unstable();
        pages
    }

    #[test]
    fn any_number_of_candidates_leaves_twelve_running_streams_alone() {
        let streams = Streams::new();
        (0..12).for_each(|i| streams.put(running(i * 1000), None));
        for page in 0..10_000 {
            streams.put(Stream::candidate(page * 6, 7, Deltas::default()), None);
        }
        assert_eq!(pages(&streams, Stream::runs).len(), 12);
        let newest = (9996..10_000).map(|page| page * 6).collect::<Vec<_>>();
        assert_eq!(pages(&streams, |s| !s.runs()), newest, "the newest candidates");
    }

    #[test]
    fn stale_streams_give_way_until_there_are_eight_candidates() {
        let streams = Streams::new();
        for page in 0..12 {
            streams.put(
                Stream {
                    log2: 1,
                    ..running(page * 1000)
                },
                None,
            );
        }
        for page in 0..10_000 {
            streams.put(Stream::candidate(page * 6, 7, Deltas::default()), None);
        }
        let kept = (4..12).map(|page| page * 1000).collect::<Vec<_>>();
        assert_eq!(pages(&streams, Stream::runs), kept);
        assert_eq!(pages(&streams, |s| !s.runs()).len(), 8);
    }

    #[test]
    fn the_most_silent_of_too_many_running_streams_gives_way() {
        let streams = Streams::new();
        (0..16).for_each(|i| streams.put(running(i), None));
        let candidate = |page| streams.put(Stream::candidate(page, 7, Deltas::default()), None);
        (100..113).for_each(candidate);
        assert_eq!(
            pages(&streams, Stream::runs).len(),
            16,
            "13 newcomers are refused"
        );
        candidate(200);
        assert_eq!(pages(&streams, Stream::runs), (1..16).collect::<Vec<_>>());
        assert_eq!(pages(&streams, |s| !s.runs()), [200]);
        (0..10_000).map(|i| i * 6).for_each(candidate);
        assert_eq!(
            pages(&streams, Stream::runs),
            (4..16).collect::<Vec<_>>(),
            "twelve stay"
        );
    }

    #[test]
    fn a_stream_moves_to_the_set_of_its_page() {
        let streams = Streams::new();
        streams.put(running(CHUNK_PAGES - 1), None);
        let home = Home::of(CHUNK_PAGES, 7);
        let (place, stream) = streams.near(home).next().expect("in the neighbour's set");
        assert_ne!(place.set, home.own);
        streams.put(
            Stream {
                page: CHUNK_PAGES,
                ..stream
            },
            Some(place),
        );
        let found: Vec<_> = streams.near(home).map(|(place, s)| (place.set, s.page)).collect();
        assert_eq!(found, [(home.own, CHUNK_PAGES)]);
    }

    #[test]
    fn its_words_are_distinct() {
        let streams = Streams::new();
        (0..Streams::CAPACITY * 3).for_each(|i| streams.word(i).store(i as u64 + 1, Ordering::Relaxed));
        assert!((0..Streams::CAPACITY * 3).all(|i| streams.word(i).load(Ordering::Relaxed) == i as u64 + 1));
    }
}
