//! What the reads of a device take: how many prefetch reads may be in flight beside those that faults wait for, and whether seeks
//! are dear.
//!
//! Both are told by the short reads that a fault waits for and nothing else follows: they are few, one at a time for each thread,
//! and what they take beyond the device's own time is what they wait behind others.
//!
//! **Depth.** Reads in flight beyond what keeps a device busy only wait in its queue, and so does the fault that comes behind them.
//! Of the times of short reads two figures are kept: the time that one in 64 stays below, which is about what the device takes by
//! itself, since now and then nothing is in flight, and the median, which a few that come behind a long write do not move. While
//! that is more than [`SLOWER`] times the former the depth falls by a quarter every [`ROUND`] reads, to [`DEPTH_MIN`] at least,
//! else it rises by two. Where no fault has waited for a while there is nobody to wait: then it is the greatest.
//!
//! **Seeks.** The median time of short reads that lie far from the one before. The kernel calls a disk rotating on its own word, and
//! hypervisors' disks say so whatever lies beneath: so that is believed only once [`SEEKS`] such reads took [`SEEK_NS`].
//!
//! All of it is words that threads of all processes race for: a lost update is a lost measurement.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Most reads in flight.
pub const DEPTH_MAX: u32 = 64;
/// And fewest: a stream in small pieces goes on beside faults, which gain little by less.
const DEPTH_MIN: u32 = 4;
/// How many times as long as by itself the device may take beside prefetch reads. On a fast disk with busy CPUs it is up to 5 without
/// any queue.
const SLOWER: u64 = 10;
/// Reads between two changes of the depth.
const ROUND: u32 = 32;
/// A read of more blocks takes noticeably longer than one of a single block.
const SHORT: u64 = 4;
/// For how long after a fault's read others are held back.
const BESIDE_NS: u64 = 10_000_000;
/// A read so many blocks from the last one is a seek.
const FAR: u64 = 1024;
/// What seeks take where they are dear (a disk that turns 15,000 times a minute needs 2 ms for half a turn), and how many tell.
const SEEK_NS: u64 = 2_000_000;
const SEEKS: u32 = 64;

/// A read that a fault waited for.
#[derive(Debug, Clone, Copy)]
pub struct Read {
    /// The first block, and how many.
    pub block: u64,
    /// How many blocks.
    pub blocks: u64,
    /// When it was over, in nanoseconds of any clock that all callers have.
    pub over_ns: u64,
    /// How long it took.
    pub took_ns: u64,
}

/// What is known of a device. All bytes zero is the initial state.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Pace {
    /// What one in 64 short reads stays below, and the median; 0 before the first.
    own_ns: AtomicU64,
    median_ns: AtomicU64,
    /// [`DEPTH_MAX`] less the depth.
    held_back: AtomicU32,
    noted: AtomicU32,
    /// When a fault's read was last over.
    waited_ns: AtomicU64,
    /// Behind the last read.
    next_block: AtomicU64,
    /// The median of short reads that lie far from the one before, and how many there were, up to [`SEEKS`].
    seek_ns: AtomicU64,
    seeks: AtomicU32,
}

/// Moves `word` on towards what `below` in 64 samples are less than.
fn follow(word: &AtomicU64, sample: u64, below: u64) {
    let now = word.load(Ordering::Relaxed);
    let step = now / 1024 + 1;
    let next = match now {
        0 => sample,
        _ if sample < now => now.saturating_sub(step * (64 - below)).max(sample),
        _ => (now + step * below).min(sample),
    };
    word.store(next.max(1), Ordering::Relaxed);
}

impl Pace {
    /// Another file has this place: nothing is known of it.
    pub fn forget(&self) {
        for word in [
            &self.own_ns,
            &self.median_ns,
            &self.waited_ns,
            &self.next_block,
            &self.seek_ns,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.held_back, &self.noted, &self.seeks] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// A fault has waited for a read.
    pub fn note(&self, read: Read) {
        self.waited_ns.store(read.over_ns, Ordering::Relaxed);
        let behind = self.next_block.load(Ordering::Relaxed);
        self.next_block.store(read.block + read.blocks, Ordering::Relaxed);
        if read.blocks > SHORT {
            return;
        }
        if behind.abs_diff(read.block) >= FAR {
            follow(&self.seek_ns, read.took_ns, 32);
            let seeks = self.seeks.load(Ordering::Relaxed);
            self.seeks.store((seeks + 1).min(SEEKS), Ordering::Relaxed);
        }
        follow(&self.own_ns, read.took_ns, 1);
        follow(&self.median_ns, read.took_ns, 32);
        if self.noted.fetch_add(1, Ordering::Relaxed) % ROUND == ROUND - 1 {
            self.adjust();
        }
    }

    fn adjust(&self) {
        let depth = self.depth_beside();
        let [own, median, _] = self.times_ns();
        let next = if median > own.saturating_mul(SLOWER) {
            depth - depth.div_ceil(4)
        } else {
            depth + 2
        };
        self.held_back
            .store(DEPTH_MAX - next.clamp(DEPTH_MIN, DEPTH_MAX), Ordering::Relaxed);
    }

    /// What is known of short reads that faults wait for, in nanoseconds: the device's own time, the median, and that of those that
    /// lie far from the one before. 0 before the first.
    #[must_use]
    pub fn times_ns(&self) -> [u64; 3] {
        [&self.own_ns, &self.median_ns, &self.seek_ns].map(|word| word.load(Ordering::Relaxed))
    }

    /// The depth beside faults that wait.
    #[must_use]
    pub fn depth_beside(&self) -> u32 {
        DEPTH_MAX - self.held_back.load(Ordering::Relaxed).min(DEPTH_MAX - DEPTH_MIN)
    }

    /// How many reads that nobody waits for a thread may have in flight now.
    #[must_use]
    pub fn depth(&self, now_ns: u64) -> usize {
        if now_ns.saturating_sub(self.waited_ns.load(Ordering::Relaxed)) > BESIDE_NS {
            return DEPTH_MAX as usize;
        }
        self.depth_beside() as usize
    }

    /// Whether seeks are dear, as far as that was measured.
    #[must_use]
    pub fn has_dear_seeks(&self) -> bool {
        self.seeks.load(Ordering::Relaxed) >= SEEKS && self.seek_ns.load(Ordering::Relaxed) >= SEEK_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const US: u64 = 1000;

    /// Notes `count` short reads far from each other, at one moment.
    fn note(pace: &Pace, count: u64, took_ns: impl Fn(u64) -> u64) {
        for nth in 0..count {
            pace.note(Read {
                block: nth * 7919 % 100_000,
                blocks: 1,
                over_ns: 1_000_000_000,
                took_ns: took_ns(nth),
            });
        }
    }

    /// A device that does `channels` reads at a time, each in `own_ns`, with a prefetch thread that begins 64 reads again and again, as many
    /// at a time as it may; the depth that comes of it, and the median time of faults.
    fn beside_prefetch(pace: &Pace, channels: u64, own_ns: u64) -> (usize, u64) {
        let now = 1_000_000_001;
        for turn in 0..20_000u64 {
            let over = turn * 31 % 68;
            let flying = (pace.depth(now) as u64).min(64u64.saturating_sub(over));
            note(pace, 1, |_| own_ns * (flying / channels + 1));
        }
        (pace.depth(now), pace.times_ns()[1])
    }

    #[test]
    fn the_depth_is_what_the_device_can_do_at_a_time() {
        let pace = Pace::default();
        // A disk with one arm, and one that does 32 reads at a time.
        let (depth, median) = beside_prefetch(&pace, 1, 4000 * US);
        assert!((6..=16).contains(&depth), "{depth}");
        assert!(median <= 14 * 4000 * US, "{median}");
        assert_eq!(beside_prefetch(&Pace::default(), 32, 80 * US).0, 64);
        assert_eq!(pace.depth(1_000_000_001 + BESIDE_NS), 64, "nobody waits any more");
        note(&pace, 6400, |_| 4000 * US);
        assert_eq!(pace.depth(1_000_000_001), 64, "nothing in flight beside");
    }

    #[test]
    fn a_slow_device_is_no_reason() {
        let pace = Pace::default();
        note(&pace, 3200, |nth| (9 + nth % 3) * 1000 * US);
        assert_eq!(pace.depth(1_000_000_001), 64);
    }

    #[test]
    fn seeks_are_dear_where_many_took_long() {
        let pace = Pace::default();
        note(&pace, 63, |_| 8000 * US);
        assert!(!pace.has_dear_seeks(), "too few to tell");
        note(&pace, 10, |_| 8000 * US);
        assert!(pace.has_dear_seeks());
        pace.forget();
        assert!(!pace.has_dear_seeks());
        // A few that had to wait.
        note(
            &pace,
            640,
            |nth| if nth % 10 == 0 { 20_000 * US } else { 90 * US },
        );
        assert!(!pace.has_dear_seeks());
    }

    #[test]
    fn neighbours_and_long_reads_are_no_seeks() {
        let pace = Pace::default();
        for nth in 0..1000 {
            let read = |block, blocks| Read {
                block,
                blocks,
                over_ns: 1,
                took_ns: 9000 * US,
            };
            pace.note(read(nth * 8, 1));
            pace.note(read(nth * 8 + 1, 7));
        }
        assert!(!pace.has_dear_seeks());
    }

    proptest! {
        #[test]
        fn any_times_are_answered(times in prop::collection::vec((any::<u64>(), 0..1u64 << 40, 0..1u64 << 40, 1..9u64), 0..300)) {
            let pace = Pace::default();
            for (over_ns, took_ns, block, blocks) in times {
                pace.note(Read { block, blocks, over_ns, took_ns });
                prop_assert!((4..=64).contains(&pace.depth(over_ns)));
            }
        }
    }
}
