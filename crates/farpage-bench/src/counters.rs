//! The counters of a run, the kernel's and farpage's, and the figures that they tell.

use std::fs;

use farpage_core::units::PAGE_SIZE;
use serde_json::{Value, json};

const VMSTAT: [&str; 7] = [
    "pswpin",
    "pswpout",
    "swap_ra",
    "swap_ra_hit",
    "pgmajfault",
    "thp_swpout",
    "thp_swpout_fallback",
];
/// Figures, and the counters that they are of, per GB out: farpage's own, and the machine's.
const PER_GB: [(&str, &str); 4] = [
    ("uffd_move_per_gb", "uffd_move"),
    ("tlb_flush_call_per_gb", "tlb_flush_call"),
    ("slot_lock_per_gb", "slot_lock"),
    ("tlb_ipi_per_gb", TLB_IPI),
];
/// Interrupts that make a CPU flush its TLB: the machine's, whichever side runs.
const TLB_IPI: &str = "tlb_ipi";
/// Huge pages that the kernel brought in whole: /proc/vmstat has no line for them.
const HUGE_SWPIN: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/stats/swpin";

/// The kernel's counters of swap and of TLB flushes, of the whole machine.
pub fn vmstat() -> Value {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let mut counters = json!({});
    for line in text.lines() {
        if let Some((name, number)) = line.split_once(' ')
            && VMSTAT.contains(&name)
        {
            counters[name] = json!(number.parse::<u64>().unwrap_or(0));
        }
    }
    let whole = fs::read_to_string(HUGE_SWPIN).unwrap_or_default();
    if let Ok(number) = whole.trim().parse::<u64>() {
        counters["thp_swpin"] = json!(number);
    }
    let interrupts = fs::read_to_string("/proc/interrupts").unwrap_or_default();
    if let Some(number) = tlb_ipis(&interrupts) {
        counters[TLB_IPI] = json!(number);
    }
    counters
}

/// Interrupts of all CPUs for others to flush their TLBs, as `/proc/interrupts` counts them.
fn tlb_ipis(interrupts: &str) -> Option<u64> {
    let line = interrupts
        .lines()
        .find_map(|line| line.trim_start().strip_prefix("TLB:"))?;
    Some(
        line.split_whitespace()
            .map_while(|word| word.parse::<u64>().ok())
            .sum(),
    )
}

pub fn difference(before: &Value, after: &Value) -> Value {
    let mut counters = json!({});
    for (name, value) in after.as_object().into_iter().flatten() {
        let (Some(then), Some(now)) = (before[name].as_u64(), value.as_u64()) else {
            continue;
        };
        counters[name] = json!(now.saturating_sub(then));
    }
    counters
}

/// Figures that the counters of a run tell; `machine`: those of the whole machine meanwhile.
pub fn figures(counters: &Value, machine: &Value) -> Value {
    let mut told = json!({});
    if let Some(percent) = hit_percent(counters) {
        told["readahead_hit_percent"] = json!(percent);
    }
    for name in ["thp_swpout", "thp_swpout_fallback", "thp_swpin"] {
        if !counters[name].is_null() {
            told[name] = counters[name].clone();
        }
    }
    let out_gb = gb_out(counters);
    for (name, counter) in PER_GB {
        let count = counters[counter].as_f64().or(machine[counter].as_f64());
        if let Some(count) = count.filter(|_| out_gb > 0.0) {
            told[name] = json!(count / out_gb);
        }
    }
    told
}

/// What the engine took for itself: tables, states of pages, lists; in all and for each page of the data.
pub fn engine(counters: &Value, pages: Option<f64>) -> Value {
    match (counters["peak_metadata_bytes"].as_f64(), pages) {
        (Some(bytes), Some(pages)) => json!({
            "engine_mib": bytes / f64::from(1 << 20),
            "engine_bytes_per_page": bytes / pages,
        }),
        _ => json!({}),
    }
}

/// Of pages read ahead, how many were touched. On a device as fast as RAM the kernel reads nothing ahead and counts a few hits
/// all the same.
pub fn hit_percent(counters: &Value) -> Option<f64> {
    let (ahead, hits) = (counters["swap_ra"].as_f64()?, counters["swap_ra_hit"].as_f64()?);
    (ahead > 0.0 && hits <= ahead).then(|| hits * 100.0 / ahead)
}

/// farpage's counters of the mapping that holds an address; null where there are none.
pub fn region_of<'a>(counters: &'a Value, address: &Value) -> &'a Value {
    let holds = |region: &&Value| {
        let (start, size) = (region["address"].as_u64()?, region["size_bytes"].as_u64()?);
        Some((start..start + size).contains(&address.as_u64()?))
    };
    let mut regions = counters["readahead_regions"].as_array().into_iter().flatten();
    regions
        .find(|region| holds(region) == Some(true))
        .unwrap_or(&Value::Null)
}

/// What went out, in GB.
fn gb_out(counters: &Value) -> f64 {
    let pages = |name: &str| counters[name].as_f64().unwrap_or(0.0);
    let written_back = pages("zswpwb");
    let all =
        pages("pswpout") - written_back + pages("zswpout") + pages("swpout_zero") + pages("swpout_unchanged");
    all * PAGE_SIZE as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_of_the_run() {
        let got = difference(&json!({"a": 5, "b": 7}), &json!({"a": 9, "b": 7, "c": 1}));
        assert_eq!(got, json!({"a": 4, "b": 0}));
    }

    #[test]
    fn figures_of_counters() {
        let got = figures(
            &json!({"swap_ra": 50, "swap_ra_hit": 40, "thp_swpout": 3, "pswpin": 1}),
            &Value::Null,
        );
        assert_eq!(got, json!({"readahead_hit_percent": 80.0, "thp_swpout": 3}));
        assert_eq!(
            figures(&json!({"swap_ra": 5, "swap_ra_hit": 6}), &Value::Null),
            json!({})
        );
        // 250,000 pages are 1.024 GB.
        let got = json!({"pswpout": 200_000, "zswpout": 60_000, "zswpwb": 10_000, "uffd_move": 2048});
        let got = figures(&got, &json!({"tlb_ipi": 4096}));
        assert_eq!(got, json!({"uffd_move_per_gb": 2000.0, "tlb_ipi_per_gb": 4000.0}));
    }

    #[test]
    fn interrupts_for_flushes_are_summed_over_the_cpus() {
        let text = "           CPU0       CPU1\nCAL:  7  8  Function call interrupts\nTLB:        12         30   TLB shootdowns\n";
        assert_eq!((tlb_ipis(text), tlb_ipis("CAL: 1 2\n")), (Some(42), None));
    }

    #[test]
    fn what_the_engine_takes_is_told_per_page() {
        let got = engine(&json!({"peak_metadata_bytes": 3 << 20}), Some(1024.0));
        assert_eq!(got, json!({"engine_mib": 3.0, "engine_bytes_per_page": 3072.0}));
        assert_eq!(engine(&Value::Null, Some(1.0)), json!({}));
    }

    #[test]
    fn the_writers_hits_are_those_of_its_mapping() {
        let region = |address: u64, hits: u64| json!({"address": address, "size_bytes": 4096, "swap_ra": 8, "swap_ra_hit": hits});
        let counters =
            json!({"swap_ra": 16, "swap_ra_hit": 8, "readahead_regions": [region(4096, 0), region(8192, 6)]});
        let percent = |address: Value| hit_percent(region_of(&counters, &address));
        assert_eq!(percent(json!(8192)), Some(75.0));
        assert_eq!(percent(json!(8191)), Some(0.0));
        assert_eq!((percent(json!(12288)), percent(Value::Null)), (None, None));
        assert_eq!(
            hit_percent(region_of(&json!({"swap_ra": 16}), &json!(8192))),
            None
        );
    }
}
