//! Memory that a program wants in huge pages (MADV_HUGEPAGE) leaves and comes back; system H.
//!
//! Writers, a thread for each CPU, fill half of the RAM in order, which is kept, and then all the rest of the data. The clock for
//! the way out runs from when as much is written as there is RAM: from there on each byte written pushes one out. The rest is
//! given back, so that what is kept has room; the clock for the way in runs while the same threads compare every byte of it.
//! How much of it was out by then, and how much is in huge pages before and after, is what /proc/self/smaps says. CPU time is
//! that of the process, and so without what other threads of the kernel do for it.

use std::fs;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use farpage_core::units::PAGE_SIZE;
use memmap2::Advice;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use super::content::Content;
use super::{Checks, Memory, WorkArgs};

const HUGE: usize = 2 << 20;
/// As many as there were in the published measurement.
const WRITERS_MAX: usize = 8;

/// Memory that begins where a huge page can.
struct Aligned {
    memory: Memory,
    part: Range<usize>,
}

impl Aligned {
    fn map(bytes: usize) -> Result<Self, String> {
        let length = bytes.next_multiple_of(HUGE);
        let memory = Memory::anonymous((length + HUGE) as u64)?;
        // A kernel without huge pages refuses; the figures tell then that there are none.
        let _ = memory.0.advise(Advice::HugePage);
        let first = memory.0.as_ptr().align_offset(HUGE);
        let part = first..first + length;
        Ok(Self { memory, part })
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory.0[self.part.clone()]
    }

    /// What a line of smaps says of it, in bytes: `Rss:`, `AnonHugePages:`.
    fn told(&self, key: &str) -> u64 {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let start = self.memory.0.as_ptr() as usize + self.part.start;
        sum_of(&smaps, key, start..start + self.part.len()).min(self.part.len() as u64)
    }
}

/// A key's bytes in all mappings that have something in common with `range`.
fn sum_of(smaps: &str, key: &str, range: Range<usize>) -> u64 {
    let (mut inside, mut kib) = (false, 0);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some(mapping) = addresses(first) {
            inside = mapping.start < range.end && range.start < mapping.end;
        } else if inside && first == key {
            kib += words
                .next()
                .and_then(|word| word.parse::<u64>().ok())
                .unwrap_or(0);
        }
    }
    kib * 1024
}

fn addresses(word: &str) -> Option<Range<usize>> {
    let (from, to) = word.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some(number(from)?..number(to)?)
}

/// What a step took.
struct Spent {
    seconds: f64,
    cpu_seconds: f64,
}

impl Spent {
    fn mb_per_s(&self, bytes: u64) -> Option<f64> {
        (bytes > 0).then(|| bytes as f64 / 1e6 / self.seconds)
    }

    fn cpu_s_per_gb(&self, bytes: u64) -> Option<f64> {
        (bytes > 0).then(|| self.cpu_seconds * 1e9 / bytes as f64)
    }
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Does something to each page of `bytes`, which get the numbers from `first` on: a thread for each part, from its front to
/// its back.
fn each_page(bytes: &mut [u8], first: usize, job: impl Fn(&mut [u8], usize) + Sync) -> Spent {
    let writers = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(WRITERS_MAX);
    let part = bytes.len().div_ceil(writers).next_multiple_of(HUGE).max(HUGE);
    let (start, cpu) = (Instant::now(), cpu_seconds());
    thread::scope(|scope| {
        for (at, bytes) in bytes.chunks_mut(part).enumerate() {
            let (job, first) = (&job, first + at * part / PAGE_SIZE);
            scope.spawn(move || {
                for (number, page) in bytes.chunks_mut(PAGE_SIZE).enumerate() {
                    job(page, first + number);
                }
            });
        }
    });
    Spent {
        seconds: start.elapsed().as_secs_f64(),
        cpu_seconds: cpu_seconds() - cpu,
    }
}

pub fn huge(args: &WorkArgs) -> Result<Value, String> {
    let content = Content::new(args.incompressible);
    let ram = args.ram_bytes as usize;
    let kept_bytes = (ram / 2 / HUGE * HUGE).max(HUGE);
    let rest_bytes = (args.bytes as usize).saturating_sub(kept_bytes).max(HUGE);
    let mut kept = Aligned::map(kept_bytes)?;
    let mut rest = Aligned::map(rest_bytes)?;
    let write = |page: &mut [u8], number| content.write(page, number, 0);

    each_page(kept.bytes(), 0, write);
    let huge_before = kept.told("AnonHugePages:");
    let room = ram.saturating_sub(kept_bytes).min(rest_bytes) / HUGE * HUGE;
    let (fits, beyond) = rest.bytes().split_at_mut(room);
    each_page(fits, kept_bytes / PAGE_SIZE, write);
    let out_bytes = beyond.len() as u64;
    let out = each_page(beyond, (kept_bytes + room) / PAGE_SIZE, write);
    drop(rest);

    let in_bytes = kept_bytes as u64 - kept.told("Rss:");
    let wrong = AtomicU64::new(0);
    let back = each_page(kept.bytes(), 0, |page, number| {
        wrong.fetch_add(u64::from(!content.is(page, number, 0)), Ordering::Relaxed);
    });
    let huge_after = kept.told("AnonHugePages:");
    let checks = Checks {
        checked: (kept_bytes / PAGE_SIZE) as u64,
        wrong: wrong.into_inner(),
    };
    let mut figures = json!({
        "bytes": args.bytes,
        "kept_bytes": kept_bytes,
        "out_bytes": out_bytes,
        "in_bytes": in_bytes,
        "huge_before_kb": huge_before / 1024,
        "huge_after_kb": huge_after / 1024,
        "huge_kept_percent": (huge_before > 0).then(|| huge_after as f64 * 100.0 / huge_before as f64),
    });
    rates(&mut figures, (&out, out_bytes), (&back, in_bytes));
    checks.tell(&mut figures);
    Ok(figures)
}

/// Of both ways, and of a byte that goes out and comes back.
fn rates(figures: &mut Value, (out, out_bytes): (&Spent, u64), (back, in_bytes): (&Spent, u64)) {
    let (out_rate, in_rate) = (out.mb_per_s(out_bytes), back.mb_per_s(in_bytes));
    figures["out_mb_per_s"] = json!(out_rate);
    figures["in_mb_per_s"] = json!(in_rate);
    figures["cycle_mb_per_s"] = json!(
        out_rate
            .zip(in_rate)
            .map(|(out, back)| 1.0 / (1.0 / out + 1.0 / back))
    );
    let (out_cpu, in_cpu) = (out.cpu_s_per_gb(out_bytes), back.cpu_s_per_gb(in_bytes));
    figures["out_cpu_s_per_gb"] = json!(out_cpu);
    figures["in_cpu_s_per_gb"] = json!(in_cpu);
    figures["cycle_cpu_s_per_gb"] = json!(out_cpu.zip(in_cpu).map(|(out, back)| out + back));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaps_of_a_range() {
        let smaps = "1000-3000 rw-p 00000000 00:00 0 [heap]\nRss:   8 kB\nAnonHugePages:  4 kB\n\
                     3000-5000 rw-p 0 0 0\nRss: 16 kB\n7000-8000 rw-p 0 0 0\nRss: 32 kB\n";
        assert_eq!(sum_of(smaps, "Rss:", 0x2000..0x4000), 24 << 10);
        assert_eq!(sum_of(smaps, "AnonHugePages:", 0x2000..0x4000), 4 << 10);
        assert_eq!(sum_of(smaps, "Rss:", 0x5000..0x7000), 0);
    }

    #[test]
    fn each_page_is_met_once_under_its_number() {
        let mut memory = Aligned::map(3 * HUGE).expect("memory");
        assert_eq!(memory.bytes().as_ptr() as usize % HUGE, 0);
        each_page(memory.bytes(), 7, |page, number| page[0] += number as u8);
        let mut pages = memory.bytes().chunks(PAGE_SIZE).enumerate();
        assert!(pages.all(|(at, page)| page[0] == (at + 7) as u8));
    }

    #[test]
    fn a_byte_goes_out_and_comes_back() {
        let spent = |seconds| Spent {
            seconds,
            cpu_seconds: 0.5,
        };
        let mut figures = json!({});
        rates(
            &mut figures,
            (&spent(1.0), 300_000_000),
            (&spent(1.0), 150_000_000),
        );
        assert_eq!(figures["cycle_mb_per_s"].as_f64().map(f64::round), Some(100.0));
        assert_eq!(figures["in_cpu_s_per_gb"].as_f64().map(f64::round), Some(3.0));
        rates(&mut figures, (&spent(1.0), 1), (&spent(1.0), 0));
        assert_eq!(
            (&figures["in_mb_per_s"], &figures["cycle_mb_per_s"]),
            (&Value::Null, &Value::Null)
        );
    }
}
