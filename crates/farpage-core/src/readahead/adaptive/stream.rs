//! One stream: three words, and the vote on where it goes.
//!
//! ```text
//!         63                20 19            8 7        4 3        0
//! place   +-------------------+---------------+----------+----------+
//!         | last page         | thread        | confid.  | log2 win |     confidence 0 = no stream
//!         +-------------------+---------------+----------+----------+
//!         63            48 47            32 31            16 15            0
//! deltas  +---------------+----------------+----------------+---------------+
//!         | oldest        |                |                | newest        |     0 = none
//!         +---------------+----------------+----------------+---------------+
//!         63                              32 31            16 15            0
//! course  +---------------------------------+----------------+---------------+
//!         | turn of the last event          | ahead          | stride        |
//!         +---------------------------------+----------------+---------------+
//! ```
//!
//! A stream is a *candidate* (confidence 1) that collects deltas, or *runs* (from 2) with the stride they
//! voted for; `ahead` counts the steps beyond the last page that were asked for. The words are read and
//! written one by one, so a racing reader may see the half of one stream beside the half of another; each
//! combination decodes to something that is safe to follow.

/// Greatest page number that can be followed: 64 PiB of addresses.
pub const PAGE_MAX: u64 = (1 << (64 - PAGE_SHIFT)) - 1;
/// A stream with this confidence or more runs.
pub const RUNNING: u8 = 2;
/// The greatest confidence.
pub const CONFIDENCE_MAX: u8 = 15;
/// Candidates look back no further than this, in pages; the greatest stride.
pub const REACH: u64 = 4096;

const PAGE_SHIFT: u32 = 20;
const TAG_SHIFT: u32 = 8;
const TAG_MASK: u64 = (1 << (PAGE_SHIFT - TAG_SHIFT)) - 1;
const DELTAS: usize = 4;
/// Events per page of a stream's window after which it is stale.
const STALE: u32 = 16;
/// Four deltas in one direction that sum up to no more than this are a sequence with gaps.
const GAPPY_SUM: u64 = 8;

/// A stream outside its words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stream {
    /// The page of its last event.
    pub page: u64,
    /// Of the thread; 12 bits.
    pub tag: u16,
    /// 0 for none, 1 for a candidate; 4 bits.
    pub confidence: u8,
    /// log2 of the last window; 4 bits.
    pub log2: u8,
    /// What led to the last page, while a candidate.
    pub deltas: Deltas,
    /// Pages per step while running; negative is backward.
    pub stride: i16,
    /// Steps asked for beyond `page` while running.
    pub ahead: u16,
    /// When the last event was, in turns of its set.
    pub turn: u32,
}

impl Stream {
    /// A stream of one page.
    pub const fn candidate(page: u64, tag: u16, deltas: Deltas) -> Self {
        Self {
            page,
            tag,
            confidence: 1,
            log2: 0,
            deltas,
            stride: 0,
            ahead: 0,
            turn: 0,
        }
    }

    /// From its words: place, deltas, course.
    pub const fn unpack([place, deltas, course]: [u64; 3]) -> Self {
        Self {
            page: place >> PAGE_SHIFT,
            tag: (place >> TAG_SHIFT & TAG_MASK) as u16,
            confidence: (place >> 4 & 15) as u8,
            log2: (place & 15) as u8,
            deltas: Deltas(deltas),
            stride: course as i16,
            ahead: (course >> 16) as u16,
            turn: (course >> 32) as u32,
        }
    }

    /// To its words; fields that are too great lose their high bits.
    pub const fn pack(self) -> [u64; 3] {
        let tag = (self.tag as u64 & TAG_MASK) << TAG_SHIFT;
        let level = (self.confidence as u64 & 15) << 4 | self.log2 as u64 & 15;
        let course = (self.turn as u64) << 32 | (self.ahead as u64) << 16 | self.stride as u16 as u64;
        [self.page << PAGE_SHIFT | tag | level, self.deltas.0, course]
    }

    /// Whether there is one.
    pub const fn exists(self) -> bool {
        self.confidence > 0
    }

    /// Whether it has a stride to follow.
    pub const fn runs(self) -> bool {
        self.confidence >= RUNNING
    }

    /// Steps from the last page to `page`, if the stream leads there.
    pub fn steps_to(self, page: u64) -> Option<u64> {
        let forward = page > self.page;
        let distance = page.abs_diff(self.page);
        let stride = u64::from(self.stride.unsigned_abs());
        let leads = distance > 0 && stride > 0 && forward == (self.stride > 0);
        (leads && distance.is_multiple_of(stride)).then(|| distance / stride)
    }

    /// Events of its set since its last one, when the set's turn is `turn`.
    pub const fn silence(self, turn: u32) -> u32 {
        turn.wrapping_sub(self.turn)
    }

    /// Whether a silence of so many events is too long for a stream that has a window like this to go
    /// through: who is found on its course after that is there by chance.
    pub const fn is_stale(self, silence: u32) -> bool {
        silence >> (self.log2 & 15) > STALE
    }

    /// The step after the last that was asked for.
    pub const fn frontier(self) -> u64 {
        self.ahead as u64 + 1
    }
}

/// The last four steps of a candidate, newest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Deltas(pub u64);

impl Deltas {
    /// With one more; the oldest is forgotten.
    #[must_use]
    pub const fn push(self, delta: i16) -> Self {
        Self(self.0 << 16 | delta as u16 as u64)
    }

    fn newest_first(self) -> [i16; DELTAS] {
        [0, 16, 32, 48].map(|shift| (self.0 >> shift) as i16)
    }

    /// The stride that these steps speak for, if any. In the manner of Leap (Al Maruf and Chowdhury, ATC
    /// 2020) a short look comes first, then a longer one: the last two steps if both go to the same
    /// neighbour, else the value that more than half of the last four have (Boyer and Moore's vote). Beyond
    /// that, four short steps in one direction are a sequence with gaps, of stride 1.
    pub fn vote(self) -> Option<i16> {
        let deltas = self.newest_first();
        if deltas[0] == deltas[1] && deltas[0].unsigned_abs() == 1 {
            return Some(deltas[0]);
        }
        if let Some(stride) = majority(&deltas) {
            return Some(stride);
        }
        let sum: u64 = deltas.iter().map(|d| u64::from(d.unsigned_abs())).sum();
        let one_way = deltas.iter().all(|&d| d != 0 && (d > 0) == (deltas[0] > 0));
        (one_way && sum <= GAPPY_SUM).then(|| deltas[0].signum())
    }
}

/// The value other than 0 that more than half of `deltas` have.
fn majority(deltas: &[i16]) -> Option<i16> {
    let (mut winner, mut lead) = (0, 0);
    for &delta in deltas {
        if lead == 0 {
            (winner, lead) = (delta, 1);
        } else if delta == winner {
            lead += 1;
        } else {
            lead -= 1;
        }
    }
    let votes = deltas.iter().filter(|&&delta| delta == winner).count();
    (winner != 0 && votes * 2 > deltas.len()).then_some(winner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vote(oldest_first: &[i16]) -> Option<i16> {
        let deltas = oldest_first
            .iter()
            .fold(Deltas::default(), |d, &delta| d.push(delta));
        deltas.vote()
    }

    #[test]
    fn votes_by_hand() {
        assert_eq!(vote(&[]), None);
        assert_eq!(vote(&[1]), None, "one step is no trend");
        assert_eq!(vote(&[1, 1]), Some(1));
        assert_eq!(vote(&[-300, 90, -1, -1]), Some(-1), "the newest two");
        assert_eq!(vote(&[8, 8]), None, "two far steps are chance");
        assert_eq!(vote(&[8, 8, 8]), Some(8));
        assert_eq!(vote(&[8, 700, 8, 8]), Some(8), "one stray step");
        assert_eq!(vote(&[8, 8, 9, 9]), None, "half is no majority");
        assert_eq!(vote(&[-4096, -4096, -4096]), Some(-4096));
        assert_eq!(vote(&[1, 3, 2, 2]), Some(1), "with gaps");
        assert_eq!(vote(&[-3, -2, -1, -2]), Some(-1), "with gaps, backward");
        assert_eq!(vote(&[1, 3, -2, 2]), None);
        assert_eq!(vote(&[3, 2, 4, 5]), None, "too many gaps");
        assert_eq!(vote(&[0, 0, 0, 0]), None);
        assert_eq!(vote(&[i16::MIN; 4]), Some(i16::MIN));
    }

    #[test]
    fn steps_by_hand() {
        let mut stream = Stream::candidate(100, 0, Deltas::default());
        assert_eq!(stream.steps_to(101), None, "no stride");
        stream.stride = 8;
        assert_eq!(
            [100, 92, 107, 108, 124].map(|p| stream.steps_to(p)),
            [None, None, None, Some(1), Some(3)]
        );
        stream.stride = -1;
        assert_eq!(
            [101, 99, 0].map(|p| stream.steps_to(p)),
            [None, Some(1), Some(100)]
        );
        stream.stride = i16::MIN;
        assert_eq!(stream.steps_to(0), None);
    }

    proptest! {
        #[test]
        fn words_round_trip(words: [u64; 3]) {
            prop_assert_eq!(Stream::unpack(words).pack(), words);
        }

        #[test]
        fn a_vote_is_a_trend(deltas: [i16; 4]) {
            if let Some(stride) = vote(&deltas) {
                let same_way = |d: &i16| *d != 0 && (*d > 0) == (stride > 0);
                prop_assert!(stride != 0 && deltas.iter().filter(|d| same_way(d)).count() >= 2);
            }
        }

        #[test]
        fn steps_lead_there(page in 0..=PAGE_MAX, stride: i16, steps in 1..4096u64) {
            let stream = Stream { page, stride, ..Stream::default() };
            let there = page.checked_add_signed(i64::from(stride) * steps as i64);
            if let Some(there) = there.filter(|_| stride != 0) {
                prop_assert_eq!(stream.steps_to(there), Some(steps));
            }
        }
    }
}
