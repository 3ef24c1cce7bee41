//! Latencies of single accesses: a log-linear histogram, 64 equal buckets per power of two, so that a percentile is
//! known to 1.6 %. 16 KiB whatever is counted: a list of all samples would itself have to be swapped.

use serde_json::{Value, json};

const SUB_SHIFT: u32 = 6;
const SUBS: usize = 1 << SUB_SHIFT;
/// 2^40 ns are 18 minutes; what takes longer counts as that.
const OCTAVES: usize = 40;
/// The percentiles that are told, with their names.
pub const PERCENTILES: [(&str, f64); 10] = [
    ("p50_us", 50.0),
    ("p60_us", 60.0),
    ("p70_us", 70.0),
    ("p80_us", 80.0),
    ("p90_us", 90.0),
    ("p95_us", 95.0),
    ("p99_us", 99.0),
    ("p99_9_us", 99.9),
    ("p99_99_us", 99.99),
    ("max_us", 100.0),
];

/// Counts of latencies in nanoseconds.
pub struct Latencies {
    buckets: Vec<u64>,
    count: u64,
    sum_ns: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            buckets: vec![0; OCTAVES * SUBS],
            count: 0,
            sum_ns: 0,
        }
    }
}

fn bucket_of(ns: u64) -> usize {
    if ns < SUBS as u64 {
        return ns as usize;
    }
    let octave = ns.ilog2();
    let sub = (ns >> (octave - SUB_SHIFT)) as usize & (SUBS - 1);
    ((octave - SUB_SHIFT + 1) as usize * SUBS + sub).min(OCTAVES * SUBS - 1)
}

/// The greatest latency of a bucket.
fn upper_bound(bucket: usize) -> u64 {
    if bucket < SUBS {
        return bucket as u64;
    }
    let (octave, sub) = (bucket / SUBS - 1, bucket % SUBS);
    (((SUBS + sub + 1) as u64) << octave) - 1
}

impl Latencies {
    pub fn record(&mut self, ns: u64) {
        self.buckets[bucket_of(ns)] += 1;
        self.count += 1;
        self.sum_ns += ns;
    }

    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum_ns += other.sum_ns;
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Nanoseconds that `percent` per cent of the samples do not exceed; `None` without samples.
    pub fn percentile(&self, percent: f64) -> Option<u64> {
        let rank = ((percent * self.count as f64 / 100.0).ceil() as u64).max(1);
        let mut seen = 0;
        self.buckets
            .iter()
            .position(|count| {
                seen += count;
                seen >= rank
            })
            .filter(|_| self.count > 0)
            .map(upper_bound)
    }

    /// Count, mean and percentiles, in microseconds.
    pub fn figures(&self) -> Value {
        let mut figures = json!({ "count": self.count });
        if self.count > 0 {
            figures["mean_us"] = json!(self.sum_ns as f64 / self.count as f64 / 1e3);
        }
        for (name, percent) in PERCENTILES {
            if let Some(ns) = self.percentile(percent) {
                figures[name] = json!(ns as f64 / 1e3);
            }
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_adjacent_and_narrow() {
        for bucket in 0..OCTAVES * SUBS - 1 {
            let last = upper_bound(bucket);
            assert_eq!(bucket_of(last), bucket);
            assert_eq!(bucket_of(last + 1), bucket + 1);
        }
        assert_eq!(bucket_of(u64::MAX), OCTAVES * SUBS - 1);
    }

    #[test]
    fn percentiles_by_hand() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile(50.0), None);
        (1..=100).for_each(|us| latencies.record(us * 1000));
        for (percent, ns) in [(50.0, 50_000.0), (99.0, 99_000.0), (100.0, 100_000.0)] {
            let got = latencies.percentile(percent).expect("samples") as f64;
            assert!((ns..ns * 1.016).contains(&got), "{percent}: {got}");
        }
        let mut twice = Latencies::default();
        twice.add(&latencies);
        twice.add(&latencies);
        assert_eq!(twice.count(), 200);
        assert_eq!(twice.percentile(50.0), latencies.percentile(50.0));
        assert_eq!(twice.figures()["mean_us"], 50.5);
    }
}
