//! What is counted, and the shape of latency histograms.
//!
//! Counters and histogram buckets are plain arrays of atomics in the pool; this module only says which index
//! means what. Names are the kernel's where the kernel counts the same thing, and they are stable: tools and
//! stored runs depend on them. New counters go to the end.
//!
//! A histogram is log-linear: eight equal buckets per power of two from 64 ns to 2^36 ns (69 s), so a value
//! is known to 12.5 %. Bucket 0 takes all below 64 ns and the last bucket all from 2^36 ns. Buckets are half
//! open and adjacent: `bucket_of(upper_bound(b)) == b` and `bucket_of(upper_bound(b) + 1) == b + 1`.

macro_rules! counters {
    ($($variant:ident $name:literal $what:literal,)*) => {
        /// A counter; its value is its index in the counter array.
        #[repr(usize)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Counter {
            $(#[doc = $what] $variant,)*
        }

        impl Counter {
            /// Every counter in index order.
            pub const ALL: [Self; Self::COUNT] = [$(Self::$variant,)*];
            /// How many there are.
            pub const COUNT: usize = [$($name,)*].len();

            /// The stable name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

counters! {
    PgfaultZero "pgfault_zero" "Pages of zeros that faults put in: up to 32 at once, or a huge page's 512.",
    PgfaultCached "pgfault_cached" "Faults answered from the swap cache.",
    Pgmajfault "pgmajfault" "Faults that had to decompress or read.",
    Pswpin "pswpin" "Pages read from swap areas.",
    Pswpout "pswpout" "Pages written to swap areas.",
    Zswpin "zswpin" "Pages decompressed.",
    Zswpout "zswpout" "Pages compressed and stored.",
    ZswpoutPlanes "zswpout_planes" "Of those, pages sorted into byte planes before.",
    Zswpwb "zswpwb" "Compressed pages written back to swap areas.",
    SwpinZero "swpin_zero" "Pages of zeros brought in without I/O.",
    SwpoutZero "swpout_zero" "Pages of zeros evicted without I/O.",
    SwapRa "swap_ra" "Pages brought in by readahead.",
    SwapRaHit "swap_ra_hit" "Readahead pages that were touched.",
    ThpSwpout "thp_swpout" "Huge pages evicted whole.",
    ThpSwpoutFallback "thp_swpout_fallback" "Huge pages that had to be split for eviction.",
    ThpSwpin "thp_swpin" "Huge pages brought in whole.",
    ThpFaultAlloc "thp_fault_alloc" "Huge pages given at first touch.",
    ThpFaultFallback "thp_fault_fallback" "First touches that could not get a huge page.",
    ThpCollapseAlloc "thp_collapse_alloc" "Huge pages made of the small pages that a walk had come over.",
    Pgscan "pgscan" "Pages reclaim looked at.",
    Pgsteal "pgsteal" "Pages reclaim evicted.",
    PgreclaimDirect "pgreclaim_direct" "Pages evicted by the thread that needed memory.",
    PgstealScattered "pgsteal_scattered" "Of the pages evicted, those that left by way of a scratch area: scattered, or read-only.",
    Allocstall "allocstall" "Times a thread had to make room itself because the reclaimer had not.",
    PgreclaimBusy "pgreclaim_busy" "Pages reclaim could not move because the kernel held them.",
    WorkingsetRefaultAnon "workingset_refault_anon" "Evicted pages that were touched again.",
    WorkingsetActivateAnon "workingset_activate_anon" "Of those, pages still in the swap cache, which reclaim then spares once.",
    SyscallTrap "syscall_trap" "System calls trapped because of a managed pointer.",
    ForkShared "fork_shared" "Slots shared with a child by fork.",
    ForkUnshared "fork_unshared" "Windows of 64 pages shared by fork that were then written.",
    MoveFalseEexist "move_false_eexist" "Moves that reported EEXIST after having moved.",
    StallNs "stall_ns" "Nanoseconds in which threads made room in the budget or waited for it.",
    CompressedBytesIn "compressed_bytes_in" "Bytes given to compression.",
    CompressedBytesOut "compressed_bytes_out" "Bytes that came out of compression.",
    RejectCompressPoor "reject_compress_poor" "Pages found not worth keeping compressed.",
    FileReadBytes "file_read_bytes" "Bytes read from swap areas.",
    FileWriteBytes "file_write_bytes" "Bytes written to swap areas.",
    CrcErrors "crc_errors" "Pages that could not be brought back: a wrong checksum, or an error of the device.",
    LimitOverrun "limit_overrun" "Times the budget was exceeded.",
    SlotLock "slot_lock" "Cluster locks taken: to allocate or free slots, to write back, to discard, to compact or to empty an area.",
    SlotLockMissed "slot_lock_missed" "Cluster locks found held by somebody else.",
    Discard "discard" "Empty clusters of 2 MiB that a swap area was told to forget.",
    SlotCacheHit "slot_cache_hit" "Runs of slots taken from a CPU's slot cache.",
    SlotCacheMissed "slot_cache_missed" "Slot caches found held by somebody else.",
    SwpoutUnchanged "swpout_unchanged" "Pages that left without being written: the slot they came from still had them.",
    SwpoutRefused "swpout_refused" "Pages that went back into the program: they compress poorly, and no swap area had room for them.",
    ReadWatched "read_watched" "Reads from swap areas that a fault waited for without sleeping.",
    UffdMove "uffd_move" "UFFDIO_MOVE calls; each flushes the TLBs of the program's CPUs, for each stretch of present pages.",
    TlbFlushCall "tlb_flush_call" "Other calls of reclaim's after which those TLBs are flushed: memory given back, moved, mapped anew, write-protected.",
    FileRead "file_read" "Reads from swap areas, of one page or of several side by side.",
    FileWrite "file_write" "Writes to swap areas, of one page or of several side by side.",
}

/// Where a fault found its page; there is one histogram for each.
#[repr(usize)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// Zeros, made on the spot.
    Zero,
    /// The swap cache.
    Cached,
    /// The zpool.
    Compressed,
    /// A swap area.
    File,
}

impl Source {
    /// Every source in index order.
    pub const ALL: [Self; 4] = [Self::Zero, Self::Cached, Self::Compressed, Self::File];
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zero => "zero",
            Self::Cached => "cached",
            Self::Compressed => "compressed",
            Self::File => "file",
        }
    }
}

/// The geometry of a latency histogram; the counts live with the caller.
#[derive(Debug, Clone, Copy)]
pub struct Histogram;

const SUB_SHIFT: u32 = 3;
const FIRST_SHIFT: u32 = 6;
const END_SHIFT: u32 = 36;

impl Histogram {
    /// Number of buckets, underflow and overflow included.
    pub const BUCKETS: usize = (((END_SHIFT - FIRST_SHIFT) as usize) << SUB_SHIFT) + 2;
    /// The first value of the overflow bucket, in nanoseconds.
    pub const OVERFLOW_NS: u64 = 1 << END_SHIFT;

    /// The bucket of a latency of `ns` nanoseconds.
    #[must_use]
    pub const fn bucket_of(ns: u64) -> usize {
        if ns < 1 << FIRST_SHIFT {
            return 0;
        }
        if ns >= Self::OVERFLOW_NS {
            return Self::BUCKETS - 1;
        }
        let octave = ns.ilog2();
        let sub = (ns >> (octave - SUB_SHIFT)) & ((1 << SUB_SHIFT) - 1);
        1 + (((octave - FIRST_SHIFT) as usize) << SUB_SHIFT) + sub as usize
    }

    /// The greatest latency in nanoseconds that falls in `bucket`; `u64::MAX` for the overflow bucket and
    /// beyond.
    #[must_use]
    pub const fn upper_bound(bucket: usize) -> u64 {
        if bucket == 0 {
            return (1 << FIRST_SHIFT) - 1;
        }
        if bucket >= Self::BUCKETS - 1 {
            return u64::MAX;
        }
        let octave = FIRST_SHIFT + ((bucket - 1) >> SUB_SHIFT) as u32;
        let sub = ((bucket - 1) & ((1 << SUB_SHIFT) - 1)) as u64;
        (((1 << SUB_SHIFT) + sub + 1) << (octave - SUB_SHIFT)) - 1
    }

    /// The latency in nanoseconds that `p` per cent (0 to 100) of the samples do not exceed, rounded up to
    /// its bucket's upper bound; [`Self::OVERFLOW_NS`] stands for "that or more". None without samples, or if
    /// `p` is out of range.
    #[must_use]
    pub fn percentile(counts: &[u64], p: f64) -> Option<u64> {
        let counts = counts.get(..Self::BUCKETS).unwrap_or(counts);
        let total = counts.iter().fold(0u64, |sum, &n| sum.saturating_add(n));
        if total == 0 || !(0.0..=100.0).contains(&p) {
            return None;
        }
        // In this order 99.9 % of 1000 are 999, and not a little more.
        let exact = p * total as f64 / 100.0;
        let floor = exact as u64;
        let rank = floor
            .saturating_add(u64::from(exact > floor as f64))
            .clamp(1, total);
        let mut seen = 0u64;
        for (bucket, &n) in counts.iter().enumerate() {
            seen = seen.saturating_add(n);
            if seen >= rank {
                return Some(Self::upper_bound(bucket).min(Self::OVERFLOW_NS));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_snake_case_in_index_order() {
        let mut seen = BTreeSet::new();
        for (index, counter) in Counter::ALL.into_iter().enumerate() {
            assert_eq!(counter as usize, index);
            let name = counter.name();
            assert!(
                name.bytes().all(|b| b == b'_' || b.is_ascii_lowercase()),
                "{name}"
            );
            assert!(seen.insert(name), "{name} twice");
        }
        assert_eq!(Counter::PgfaultZero.name(), "pgfault_zero");
        assert_eq!(Counter::FileWrite as usize, Counter::COUNT - 1);
        for (index, source) in Source::ALL.into_iter().enumerate() {
            assert_eq!(source as usize, index);
        }
    }

    #[test]
    fn buckets_are_adjacent() {
        assert_eq!(Histogram::BUCKETS, 242);
        assert_eq!([0, 63, 64, 71, 72].map(Histogram::bucket_of), [0, 0, 1, 1, 2]);
        for bucket in 0..Histogram::BUCKETS - 1 {
            let last = Histogram::upper_bound(bucket);
            assert_eq!(Histogram::bucket_of(last), bucket);
            assert_eq!(Histogram::bucket_of(last + 1), bucket + 1);
        }
        assert_eq!(
            Histogram::upper_bound(Histogram::BUCKETS - 2),
            Histogram::OVERFLOW_NS - 1
        );
        assert_eq!(Histogram::bucket_of(u64::MAX), Histogram::BUCKETS - 1);
    }

    /// By a rounding error it was the largest of a thousand.
    #[test]
    fn the_largest_of_a_thousand_is_not_their_99_9th() {
        let mut counts = [0; Histogram::BUCKETS];
        (counts[3], counts[40]) = (999, 1);
        let told = Histogram::percentile(&counts, 99.9);
        assert_eq!(told, Some(Histogram::upper_bound(3)));
    }

    #[test]
    fn percentiles_by_hand() {
        let mut counts = [0u64; Histogram::BUCKETS];
        assert_eq!(Histogram::percentile(&counts, 50.0), None);
        counts[Histogram::bucket_of(100)] = 98;
        counts[Histogram::bucket_of(1000)] = 1;
        counts[Histogram::BUCKETS - 1] = 1;
        assert_eq!(Histogram::percentile(&counts, 0.0), Some(103));
        assert_eq!(Histogram::percentile(&counts, 98.0), Some(103));
        assert_eq!(Histogram::percentile(&counts, 99.0), Some(1023));
        assert_eq!(
            Histogram::percentile(&counts, 100.0),
            Some(Histogram::OVERFLOW_NS)
        );
        assert_eq!(Histogram::percentile(&counts, 100.1), None);
        assert_eq!(Histogram::percentile(&counts, f64::NAN), None);
    }
}
