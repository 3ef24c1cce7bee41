//! The figures that the five systems were published with, to be printed beside ours: on other and larger machines, so that the direction
//! compares and the ratio, not the number.

use crate::names::{Backing, Workload};

/// A table of figures before and after a change.
#[derive(Debug)]
pub struct Published {
    pub id: &'static str,
    /// What stands beside it here.
    workloads: &'static [Workload],
    backing: Option<Backing>,
    pub setting: &'static str,
    pub figures: &'static [Figure],
    pub further: &'static str,
}

#[derive(Debug)]
pub struct Figure {
    pub words: &'static str,
    /// The path of the measure that stands beside it here.
    pub path: &'static str,
    /// Before -> after, with the unit.
    pub then: &'static str,
    /// After / before.
    pub ratio: &'static str,
}

const fn figure(words: &'static str, path: &'static str, then: &'static str, ratio: &'static str) -> Figure {
    Figure {
        words,
        path,
        then,
        ratio,
    }
}

pub const PUBLISHED: [Published; 8] = [
    Published {
        id: "V1",
        workloads: &[Workload::Mixed],
        backing: None,
        setting: "VMA readahead; a sequential writer of 4 processes beside a random one of 8, 72 threads, 32 GB, NVMe",
        figures: &[
            figure("throughput", "kb_per_s", "345413 -> 414029 KB/s", "1.20"),
            figure("latency, mean", "all.mean_us", "97.14 -> 61.06 us", "0.63"),
            figure("latency, 50th", "all.p50_us", "2 -> 1 us", "0.50"),
            figure("latency, 60th", "all.p60_us", "2 -> 1 us", "0.50"),
            figure("latency, 70th", "all.p70_us", "98 -> 2 us", "0.02"),
            figure("latency, 80th", "all.p80_us", "160 -> 2 us", "0.01"),
            figure("latency, 90th", "all.p90_us", "260 -> 217 us", "0.83"),
            figure("latency, 95th", "all.p95_us", "346 -> 369 us", "1.07"),
            figure("latency, 99th", "all.p99_us", "1340 -> 1090 us", "0.81"),
            figure(
                "readahead hits",
                "readahead_hit_percent",
                "52.69 -> 99.98 %",
                "1.90",
            ),
        ],
        further: "published hits are of all streams together, as this row; P6 means the sequential stream's, a row of its own",
    },
    Published {
        id: "V2",
        workloads: &[Workload::Solve],
        backing: None,
        setting: "VMA readahead; Linpack",
        figures: &[
            figure("time", "seconds", "393.49 -> 329.88 s", "0.84"),
            figure(
                "readahead hits",
                "readahead_hit_percent",
                "86.21 -> 98.82 %",
                "1.15",
            ),
        ],
        further: "",
    },
    Published {
        id: "H",
        workloads: &[Workload::Huge],
        backing: None,
        setting: "huge-page swap; 8 sequential writers, swap on a RAM-backed device",
        figures: &[figure("swap-out", "out_mb_per_s", "3.73 -> 4.31 GB/s", "1.16")],
        further: "",
    },
    Published {
        id: "O",
        workloads: &[Workload::Swapoff],
        backing: Some(Backing::File),
        setting: "swapoff readahead; swap file on a virtual disk that calls itself rotating",
        figures: &[
            figure(
                "device order, look-up counted",
                "emptied_seconds",
                "22.09 -> 23.87 s",
                "1.08",
            ),
            figure(
                "device order, hits + 1",
                "emptied_seconds",
                "22.09 -> 16.10 s",
                "0.73",
            ),
            figure(
                "device order, hits = last window",
                "emptied_seconds",
                "22.09 -> 8.81 s",
                "0.40",
            ),
            figure(
                "VMA readahead, look-up counted",
                "emptied_seconds",
                "18.20 -> 15.33 s",
                "0.84",
            ),
        ],
        further: "another run of device order with the look-up counted took about 12 s; windows of 1 / 2 / 4 / 8 pages in device order 49290 / \
                  527771 / 44151 / 36948 before, then 13093 / 123067 / 366118 / 56703, 2589 / 8016 / 566038 / 40021 and 1072 / 785 / \
                  21844 / 644168; with VMA readahead 1286 / 260815 / 6516 / 81252 and 509 / 321 / 3017 / 124090",
    },
    Published {
        id: "C",
        workloads: &[Workload::Random, Workload::Threads],
        backing: None,
        setting: "contention; 8 threads, random access, working set 2 x RAM",
        figures: &[figure(
            "median software part of a fault",
            "t2.p50_us",
            "15 -> 4 us",
            "0.27",
        )],
        further: "35 % of the CPU time had been waiting for locks; here that is `farpage sim contention`",
    },
    Published {
        id: "T1",
        workloads: &[Workload::Usemem],
        backing: None,
        setting: "swap table; usemem --init-time -O -y -x, swap on a RAM-backed device: -n 31 1G, limit 4 GB, then -n 32 1536M, 16 GB of RAM",
        figures: &[
            figure("throughput", "mb_per_s", "4775.18 -> 6381.43 MB/s", "1.34"),
            figure("system time", "system_seconds", "220.86 -> 160.42 s", "0.73"),
            figure("time to free", "free_us", "174492 -> 132122 us", "0.76"),
            figure("throughput, -n 32", "mb_per_s", "4659.89 -> 5765.80 MB/s", "1.24"),
            figure(
                "system time, -n 32",
                "system_seconds",
                "355.23 -> 295.28 s",
                "0.83",
            ),
            figure("time to free, -n 32", "free_us", "500417 -> 477098 us", "0.95"),
        ],
        further: "",
    },
    Published {
        id: "T2",
        workloads: &[Workload::Build],
        backing: None,
        setting: "swap table; kernel build in a tmpfs, 12 to 48 jobs, limits of 256 MB to 3 GB, zram and zswap",
        figures: &[figure("time", "seconds", "1 to 4 % less", "0.96 to 0.99")],
        further: "system time 2 to 11 % less",
    },
    Published {
        id: "T3",
        workloads: &[Workload::Redis],
        backing: None,
        setting: "swap table; redis-benchmark -d 1024 -c 12 -P 32 -t get, 2.5 GB of data in 1.5 GB: -r and -n 2500000, then 2000000",
        figures: &[
            figure("random GETs", "gets_per_s", "433015 -> 431537 per s", "1.00"),
            figure(
                "GETs during BGSAVE",
                "gets_beside_per_s",
                "271421 -> 290441 per s",
                "1.07",
            ),
            figure(
                "random GETs, 2000000",
                "gets_per_s",
                "446339 -> 442697 per s",
                "0.99",
            ),
            figure(
                "GETs during BGSAVE, 2000000",
                "gets_beside_per_s",
                "274845 -> 293053 per s",
                "1.07",
            ),
        ],
        further: "",
    },
];

impl Published {
    #[must_use]
    pub fn stands_beside(&self, workload: &str, backing: &str) -> bool {
        let fits = self.backing.is_none_or(|one| one.name() == backing);
        fits && self.workloads.iter().any(|one| one.name() == workload)
    }

    fn text(&self) -> String {
        let figures: Vec<_> = self
            .figures
            .iter()
            .map(|one| format!("{} {} ({})", one.words, one.then, one.ratio))
            .collect();
        let mut text = format!(
            "published ({}: {}; before -> after): {}",
            self.id,
            self.setting,
            figures.join(", ")
        );
        if !self.further.is_empty() {
            text.push_str("; ");
            text.push_str(self.further);
        }
        text
    }
}

/// What belongs beside the figures of a program.
#[must_use]
pub fn beside(workload: Workload, backing: Backing) -> Option<String> {
    let published = PUBLISHED
        .iter()
        .find(|one| one.stands_beside(workload.name(), backing.name()));
    published.map(Published::text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::measures;

    #[test]
    fn ratios_are_those_of_the_figures() {
        for figure in PUBLISHED.iter().flat_map(|one| one.figures) {
            let Some((before, after)) = figure.then.split_once(" -> ") else {
                continue;
            };
            let after = after.split(' ').next().expect("a number");
            let number = |text: &str| text.parse::<f64>().expect("a number");
            assert_eq!(
                format!("{:.2}", number(after) / number(before)),
                figure.ratio,
                "{}",
                figure.then
            );
        }
    }

    #[test]
    fn every_figure_stands_beside_one_that_is_measured() {
        for one in &PUBLISHED {
            for workload in one.workloads {
                let shown = measures(*workload, one.backing.unwrap_or(Backing::File));
                let known = |figure: &Figure| shown.iter().any(|measure| measure.path == figure.path);
                assert!(one.figures.iter().all(known), "{} {}", one.id, workload.name());
            }
        }
    }

    #[test]
    fn programs_have_theirs_beside_them() {
        let redis = beside(Workload::Redis, Backing::File).expect("T3");
        assert!(
            redis.starts_with("published (T3: ") && redis.contains("433015 -> 431537 per s (1.00)"),
            "{redis}"
        );
        assert!(
            beside(Workload::Build, Backing::Compressed)
                .expect("T2")
                .contains("system time 2 to 11 % less")
        );
        assert!(beside(Workload::Swapoff, Backing::Compressed).is_none());
        assert!(beside(Workload::Fill, Backing::File).is_none());
    }
}
