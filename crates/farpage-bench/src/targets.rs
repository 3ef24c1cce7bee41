//! What of a workload's figures is shown, and the target of each.

use farpage_sim::contention::report::P13_SHARE;

use crate::names::{Backing, Workload};
use crate::plan::{HUGE_SPLIT, Side, Way};

/// A target, as a bound on a ratio or on farpage's own figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// farpage / kernel at least so much.
    RatioAtLeast(&'static str, f64),
    /// farpage / kernel at most so much.
    RatioAtMost(&'static str, f64),
    /// farpage / the same in RAM at most so much.
    RamRatioAtMost(&'static str, f64),
    /// farpage / farpage that reads nothing ahead at most so much.
    NoneRatioAtMost(&'static str, f64),
    /// farpage / farpage that splits huge pages before they leave at most so much.
    SplitRatioAtMost(&'static str, f64),
    /// farpage's own figure at most so much, beside a lock for each device.
    LocksAtMost(&'static str, f64),
    /// farpage's own figure from the first to the second.
    Within(&'static str, f64, f64),
    /// farpage's own figure at least so much.
    AtLeast(&'static str, f64),
    /// farpage's own figure at most so much.
    AtMost(&'static str, f64),
}

impl Target {
    /// The target for people, and whether it is met; `None` if it is not about these two sides.
    #[must_use]
    pub fn judge(self, against: Option<Side>, ratio: Option<f64>, value: f64) -> Option<(String, bool)> {
        let beside_other = !matches!(against, Some(Side::Farpage(_)));
        if let Self::Within(id, low, high) = self {
            let met = (low..=high).contains(&value);
            return beside_other.then(|| (format!("{id} {low} to {high}"), met));
        }
        let (id, sign, bound, measured) = match (self, against) {
            (Self::RatioAtLeast(id, bound), Some(Side::Kernel)) => (id, ">=", bound, ratio?),
            (Self::RatioAtMost(id, bound), Some(Side::Kernel)) => (id, "<=", bound, ratio?),
            (Self::RamRatioAtMost(id, bound), Some(Side::Ram)) => (id, "<=", bound, ratio?),
            (Self::NoneRatioAtMost(id, bound), Some(Side::Farpage(Way::Readahead("none")))) => {
                (id, "<=", bound, ratio?)
            }
            (Self::SplitRatioAtMost(id, bound), Some(Side::Farpage(Way::Huge(HUGE_SPLIT)))) => {
                (id, "<=", bound, ratio?)
            }
            (Self::LocksAtMost(id, bound), Some(Side::Farpage(Way::Replaced(_)))) => (id, "<=", bound, value),
            (Self::AtLeast(id, bound), _) if beside_other => (id, ">=", bound, value),
            (Self::AtMost(id, bound), _) if beside_other => (id, "<=", bound, value),
            _ => return None,
        };
        let met = if sign == ">=" {
            measured >= bound
        } else {
            measured <= bound
        };
        Some((format!("{id} {sign} {bound}"), met))
    }

    /// Which part of a row is judged.
    #[must_use]
    pub const fn judged(self) -> &'static str {
        match self {
            Self::AtLeast(..) | Self::AtMost(..) | Self::LocksAtMost(..) | Self::Within(..) => "ours",
            Self::RatioAtLeast(..)
            | Self::RatioAtMost(..)
            | Self::RamRatioAtMost(..)
            | Self::NoneRatioAtMost(..)
            | Self::SplitRatioAtMost(..) => "ratio",
        }
    }
}

/// A figure that is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measure {
    /// Its path in the workload's figures.
    pub path: &'static str,
    /// For people, with the unit.
    pub words: &'static str,
    pub target: Option<Target>,
}

const fn shown(path: &'static str, words: &'static str) -> Measure {
    Measure {
        path,
        words,
        target: None,
    }
}

const fn aimed(path: &'static str, words: &'static str, target: Target) -> Measure {
    Measure {
        path,
        words,
        target: Some(target),
    }
}

/// A start takes at most so long, whatever the budget.
const START_MS_MAX: f64 = 50.0;

/// What is shown of a workload.
#[must_use]
pub fn measures(workload: Workload, backing: Backing) -> Vec<Measure> {
    use Target::{AtLeast, RamRatioAtMost, RatioAtLeast};
    let compressed = backing == Backing::Compressed;
    match workload {
        Workload::Startup => vec![aimed(
            "start_ms",
            "start, ms",
            Target::AtMost("own", START_MS_MAX),
        )],
        Workload::Fill => vec![aimed("fill_mb_per_s", "fill, MB/s", RatioAtLeast("P3", 1.5))],
        Workload::Seq if compressed => {
            vec![aimed("mb_per_s", "rewrite, MB/s", RatioAtLeast("P1", 4.0))]
        }
        Workload::Seq => vec![
            aimed("mb_per_s", "rewrite, MB/s", RatioAtLeast("P2", 5.0)),
            aimed(
                "of_disk_percent",
                "of what the disk reads, %",
                AtLeast("P2", 85.0),
            ),
        ],
        Workload::Random => random(compressed),
        Workload::Threads => threads(),
        Workload::Faults => vec![
            shown("fault.mean_us", "a fault, us"),
            shown("fault.p50_us", "a fault, 50th, us"),
            shown("fault.p99_us", "a fault, 99th, us"),
            shown("per_s", "touches, per s"),
            shown("engine_mib", "farpage's own memory, MiB"),
            shown("engine_bytes_per_page", "its bytes per page of data"),
        ],
        Workload::Stride => vec![
            shown("forward_mb_per_s", "forward, MB/s"),
            shown("column_mb_per_s", "columns, MB/s"),
            shown("backward_mb_per_s", "backward, MB/s"),
            aimed("column_to_forward", "columns / forward", AtLeast("own", 0.7)),
            aimed("backward_to_forward", "backward / forward", AtLeast("own", 0.7)),
        ],
        Workload::Chase => vec![
            shown("first_per_s", "first round, per s"),
            shown("again_per_s", "further rounds, per s"),
        ],
        Workload::Mixed => vec![
            shown("kb_per_s", "all, KB/s"),
            aimed("sequential_kb_per_s", "sequential, KB/s", RatioAtLeast("P6", 3.0)),
            shown("random_per_s", "random, per s"),
            shown("all.mean_us", "latency mean, us"),
            shown("all.p50_us", "latency 50th, us"),
            shown("all.p60_us", "latency 60th, us"),
            shown("all.p70_us", "latency 70th, us"),
            shown("all.p80_us", "latency 80th, us"),
            shown("all.p90_us", "latency 90th, us"),
            shown("all.p95_us", "latency 95th, us"),
            shown("all.p99_us", "latency 99th, us"),
            shown("readahead_hit_percent", "readahead hits, all, %"),
            aimed(
                "sequential_hit_percent",
                "readahead hits, writer, %",
                AtLeast("P6", 99.0),
            ),
        ],
        Workload::Solve => vec![
            aimed("seconds", "time, s", RamRatioAtMost("P10", 1.5)),
            shown("readahead_hit_percent", "readahead hits, %"),
        ],
        Workload::Free => vec![shown("free_us", "free, us")],
        Workload::Usemem | Workload::UsememRandom | Workload::UsememThreads | Workload::UsememRead => vec![
            shown("mb_per_s", "throughput, MB/s"),
            shown("system_seconds", "system time, s"),
            shown("free_us", "free, us"),
        ],
        Workload::Swapoff => vec![
            aimed(
                "emptied_mb_per_s",
                "emptied, MB/s",
                RatioAtLeast("P7", if backing == Backing::File { 8.0 } else { 3.0 }),
            ),
            shown("emptied_seconds", "time, s"),
            shown("emptied_pages", "pages emptied"),
            shown("windows.pages_1", "windows of 1 page"),
            shown("windows.pages_2", "windows of 2 or 3"),
            shown("windows.pages_4", "windows of 4 to 7"),
            shown("windows.pages_8_up", "windows of 8 and more"),
        ],
        Workload::Huge => huge(backing),
        Workload::Fit => vec![
            aimed("seconds", "all of it, s", RamRatioAtMost("P12", 1.03)),
            shown("objects_s", "small objects, s"),
            shown("third.fill_s", "fill a third, s"),
            shown("third.passes_s", "work on a third, s"),
            shown("most.fill_s", "fill 3/4, s"),
            shown("most.passes_s", "work on 3/4, s"),
        ],
        Workload::Build => vec![shown("seconds", "build, s")],
        Workload::Redis => {
            let (gets, beside) = if compressed { (1.2, 1.5) } else { (2.0, 2.0) };
            vec![
                shown("sets_per_s", "SETs, per s"),
                aimed("gets_per_s", "random GETs, per s", RatioAtLeast("P9", gets)),
                aimed(
                    "gets_beside_per_s",
                    "GETs during BGSAVE, per s",
                    RatioAtLeast("P9", beside),
                ),
                shown("bgsave_s", "BGSAVE, s"),
            ]
        }
        Workload::Slots => slots(),
        Workload::SwapCache => vec![
            shown("look_up.one_ns", "look-up, 1 thread, ns"),
            shown("look_up.all_ns", "look-up, all CPUs, ns"),
            shown("add_delete.one_ns", "add+delete, 1 thread, ns"),
            shown("add_delete.all_ns", "add+delete, all CPUs, ns"),
            shown("fork.one_ns", "fork, 1 thread, ns"),
            shown("fork.all_ns", "fork, all CPUs, ns"),
        ],
    }
}

fn slots() -> Vec<Measure> {
    vec![
        aimed(
            "model.lock_percent",
            "model, 96 CPUs, % in locks",
            Target::LocksAtMost("P13", 100.0 * P13_SHARE),
        ),
        shown("model.fault_us", "model, 96 CPUs, fault, us"),
        shown("model.per_s", "model, 96 CPUs, per s"),
        shown("without_t.lock_percent", "model, C alone, % in locks"),
        shown("without_t.fault_us", "model, C alone, fault, us"),
        shown("without_t.per_s", "model, C alone, per s"),
        shown("slots.one_per_s", "slots, 1 thread, per s"),
        shown("slots.all_per_s", "slots, all CPUs, per s"),
        shown("pages.one_per_s", "in+out, 1 thread, per s"),
        shown("pages.all_per_s", "in+out, all CPUs, per s"),
    ]
}

fn huge(backing: Backing) -> Vec<Measure> {
    let (cycle, cheaper) = match backing {
        Backing::Memory => (
            Some(Target::RatioAtLeast("P8", 10.0)),
            Some(Target::SplitRatioAtMost("own", 0.333)),
        ),
        _ => (None, None),
    };
    vec![
        shown("out_mb_per_s", "out, MB/s"),
        shown("in_mb_per_s", "in, MB/s"),
        Measure {
            path: "cycle_mb_per_s",
            words: "out and in, MB/s",
            target: cycle,
        },
        shown("out_cpu_s_per_gb", "out, CPU s per GB"),
        shown("in_cpu_s_per_gb", "in, CPU s per GB"),
        Measure {
            path: "cycle_cpu_s_per_gb",
            words: "out and in, CPU s per GB",
            target: cheaper,
        },
        shown("huge_before_kb", "AnonHugePages before, kB"),
        shown("huge_after_kb", "AnonHugePages after, kB"),
        aimed(
            "huge_kept_percent",
            "after / before, %",
            Target::Within("P8", 98.0, 102.0),
        ),
        shown("thp_swpout", "thp_swpout"),
        shown("thp_swpout_fallback", "thp_swpout_fallback"),
        shown("thp_swpin", "thp_swpin"),
        shown("uffd_move_per_gb", "MOVE calls / GB out"),
        shown("tlb_flush_call_per_gb", "other flushes / GB out"),
        shown("tlb_ipi_per_gb", "TLB interrupts / GB out"),
        shown("slot_lock_per_gb", "cluster locks / GB out"),
    ]
}

fn random(compressed: bool) -> Vec<Measure> {
    use Target::{NoneRatioAtMost, RatioAtLeast, RatioAtMost};
    let (id, rate, p99) = if compressed {
        ("P4", 1.5, 0.3)
    } else {
        ("P5", 1.2, 0.6)
    };
    let median = |path, words| {
        if compressed {
            aimed(path, words, RatioAtMost(id, 1.0))
        } else {
            shown(path, words)
        }
    };
    vec![
        aimed("t1.per_s", "1 thread, per s", RatioAtLeast(id, rate)),
        median("t1.p50_us", "1 thread, 50th, us"),
        aimed("t1.mean_us", "1 thread, mean, us", NoneRatioAtMost("own", 1.05)),
        shown("t1.p90_us", "1 thread, 90th, us"),
        aimed("t1.p99_us", "1 thread, 99th, us", RatioAtMost(id, p99)),
        shown("t1.p99_9_us", "1 thread, 99.9th, us"),
        aimed("t2.per_s", "2 threads, per s", RatioAtLeast(id, rate)),
        median("t2.p50_us", "2 threads, 50th, us"),
        aimed("t2.mean_us", "2 threads, mean, us", NoneRatioAtMost("own", 1.05)),
        shown("t2.p90_us", "2 threads, 90th, us"),
        aimed("t2.p99_us", "2 threads, 99th, us", RatioAtMost(id, p99)),
        shown("t2.p99_9_us", "2 threads, 99.9th, us"),
    ]
}

fn threads() -> Vec<Measure> {
    vec![
        shown("t1.per_s_and_cpu", "1 thread, per s and CPU"),
        shown("t1.p50_us", "1 thread, 50th, us"),
        shown("t2.per_s_and_cpu", "2 threads, per s and CPU"),
        shown("t2.p50_us", "2 threads, 50th, us"),
        shown("t4.per_s_and_cpu", "4 threads, per s and CPU"),
        shown("t4.p50_us", "4 threads, 50th, us"),
        shown("t8.per_s_and_cpu", "8 threads, per s and CPU"),
        shown("t8.p50_us", "8 threads, 50th, us"),
        shown("t16.per_s_and_cpu", "16 threads, per s and CPU"),
        shown("t16.p50_us", "16 threads, 50th, us"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_about_its_own_side() {
        let target = Target::RatioAtLeast("P1", 4.0);
        assert_eq!(
            target.judge(Some(Side::Kernel), Some(4.5), 0.0),
            Some(("P1 >= 4".to_owned(), true))
        );
        assert_eq!(target.judge(Some(Side::Ram), Some(4.5), 0.0), None);
        assert_eq!(target.judge(None, None, 9.0), None);
        let most = Target::RatioAtMost("P4", 0.3);
        assert_eq!(
            most.judge(Some(Side::Kernel), Some(0.31), 0.0),
            Some(("P4 <= 0.3".to_owned(), false))
        );
        let own = Target::AtLeast("P6", 99.0);
        assert_eq!(own.judge(None, None, 99.5), Some(("P6 >= 99".to_owned(), true)));
        let none = Side::Farpage(Way::Readahead("none"));
        assert_eq!(own.judge(Some(none), Some(1.0), 99.5), None);
        let within = Target::Within("P8", 98.0, 102.0);
        assert_eq!(
            within.judge(Some(Side::Kernel), None, 109.0),
            Some(("P8 98 to 102".to_owned(), false))
        );
        assert_eq!(within.judge(Some(none), None, 100.0), None);
        let cheaper = Target::SplitRatioAtMost("own", 0.333);
        let split = Side::Farpage(Way::Huge(HUGE_SPLIT));
        assert_eq!(
            cheaper.judge(Some(split), Some(0.3), 0.0),
            Some(("own <= 0.333".to_owned(), true))
        );
        assert_eq!(cheaper.judge(Some(Side::Kernel), Some(0.3), 0.0), None);
        let locks = Target::LocksAtMost("P13", 1.0);
        let replaced = Side::Farpage(Way::Replaced("lock per device"));
        assert_eq!(
            locks.judge(Some(replaced), Some(0.01), 1.2),
            Some(("P13 <= 1".to_owned(), false))
        );
        assert_eq!(locks.judge(Some(Side::Kernel), Some(0.01), 0.2), None);
        let cost = Target::NoneRatioAtMost("own", 1.05);
        assert_eq!(cost.judge(Some(Side::Kernel), Some(0.5), 0.0), None);
        assert_eq!(
            cost.judge(Some(none), Some(1.06), 0.0),
            Some(("own <= 1.05".to_owned(), false))
        );
    }

    #[test]
    fn the_same_work_has_other_targets_on_disk() {
        let first = |backing| measures(Workload::Seq, backing)[0].target;
        assert_eq!(first(Backing::File), Some(Target::RatioAtLeast("P2", 5.0)));
        assert_eq!(first(Backing::Compressed), Some(Target::RatioAtLeast("P1", 4.0)));
        let emptied = |backing| measures(Workload::Swapoff, backing)[0].target;
        assert_eq!(emptied(Backing::File), Some(Target::RatioAtLeast("P7", 8.0)));
        assert_eq!(
            emptied(Backing::Compressed),
            Some(Target::RatioAtLeast("P7", 3.0))
        );
        let p50 = |backing| measures(Workload::Random, backing)[1].target;
        assert_eq!(p50(Backing::File), None);
        assert_eq!(p50(Backing::Compressed), Some(Target::RatioAtMost("P4", 1.0)));
    }
}
