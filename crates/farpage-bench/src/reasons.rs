//! Why farpage loses where it does, and what would mend it: kept by hand, after the profiles in docs/profile.md. A report looks them up
//! for the rows that it finds lost; a reason whose row is not lost is not told.

/// The reason for some rows of a program on some kinds of swap.
#[derive(Debug, PartialEq, Eq)]
pub struct Reason {
    workload: &'static str,
    /// Empty: on every kind.
    backing: &'static str,
    /// How the measures' paths begin; none: of all. Of several reasons that fit the first counts.
    measures: &'static [&'static str],
    pub why: &'static str,
    pub lever: &'static str,
}

const fn reason(
    [workload, backing]: [&'static str; 2],
    measures: &'static [&'static str],
    why: &'static str,
    lever: &'static str,
) -> Reason {
    Reason {
        workload,
        backing,
        measures,
        why,
        lever,
    }
}

const REASONS: &[Reason] = &[
    reason(
        ["seq", "compressed"],
        &[],
        "both CPUs are 95 % busy, 7.8 us of CPU for a page: compressing 2.6, COPY and its fresh page 1.0, unpacking 0.7, the program 0.5. \
         Four times the kernel's speed leaves 4.0; LZ4 both ways, COPY and the program alone are 4.8",
        "pages that are not compressed at all",
    ),
    reason(
        ["seq", "file"],
        &[],
        "the reclaimer writes 1 MiB at a time and waits for it, 60 to 75 % of its time, while three threads read: farpage has two thirds to \
         all of what the disk gives both ways, with both CPUs busy half of the time (flame-seq.svg). 85 % of what it reads alone is not to \
         be had beside as many writes, nor is five times the kernel's speed on a slow day (see the notes above)",
        "huge pages: with `--huge always` it is 5.9 to 6.8 times, and 89 to 107 % of what the disk reads (128 MiB, README). For small ones it is not known: a \
         second reclaimer, so that two writes are under way, gained nothing",
    ),
    reason(
        ["random", "compressed"],
        &["t1.p50", "t1.p90_", "t2.p50", "t2.p90_"],
        "a fault costs a signal (exception, frame, sigreturn), where the kernel's own handler is shorter",
        "more pages for each fault where a region's neighbours are in the tier too; nothing shorter than a signal is known",
    ),
    reason(
        ["random", "compressed"],
        &["t1.per_s", "t2.per_s", "t2.mean"],
        "moving windows out takes 40 % of two threads' time, half of that waiting for the other CPU's TLB flush",
        "neighbouring windows carried by one mremap",
    ),
    reason(
        ["random", "compressed"],
        &["t2.p99_9"],
        "four touches in a thousand make room themselves, some 240 pages at a time in 2.7 ms (`stall_ns`, `pgreclaim_direct`; by one thread in \
         0.8), and nearly nothing else takes as long: in a run of seconds 13 waits for a CPU were over 1 ms (perf sched)",
        "smaller batches, which would move that into the 99th percentile (now 0.06 of the kernel's)",
    ),
    reason(
        ["mixed", "compressed"],
        &["readahead_hit_percent"],
        "the kernel reads nothing ahead there: its figure is of one page in one run of five",
        "none",
    ),
    reason(
        ["mixed", "compressed"],
        &["all."],
        "a fault of the random ones costs a signal, where the kernel's own handler is shorter",
        "nothing shorter than a signal is known",
    ),
    reason(
        ["random", "file"],
        &["t1."],
        "nearly all of a touch is the read of a page, 63 us of this disk by itself (a quarter of the pages is in RAM): there is a fifth to \
         be had by what stands around it, and less where the thread runs on the CPU that the disk interrupts (decision 0028)",
        "to look for the end of a read from the other CPU",
    ),
    reason(
        ["random", "file"],
        &["t2."],
        "both CPUs are busy half of the time, so that of two threads one sleeps until its read is there, and reads wait behind the writes \
         of what leaves",
        "not known: writes of 128 KiB for 1 MiB while faults read, tried, let two threads wait less (p99 0.81) and do less (0.93), and one \
         thread wait longer (p99 1.8, 0.90 of the touches)",
    ),
    reason(
        ["stride", "file"],
        &["column_to_forward"],
        "a column is single pages 32 KiB apart, of which the disk by itself gives a third to a half of what it gives of large reads (see the \
         notes above)",
        "pages written in the order of the walk, where they change",
    ),
    reason(
        ["stride", "compressed"],
        &["column"],
        "a window of a column is eight single pages. One MOVE for them needs the gaps between them filled and dropped again (decision \
         0024), which with its three flushes is 50 to 60 % of the time of the program's and the prefetching thread; each page is put in by a \
         call of its own",
        "a MOVE of several ranges: the kernel has none",
    ),
    reason(
        ["mixed", ""],
        &["random_per_s", "all.p95"],
        "the sequential writer, several times as fast as the kernel's, has the disk and the CPUs meanwhile; while faults wait for \
         single pages only one prefetch thread reads (decision 0016)",
        "a share of the reads for faults that wait",
    ),
    reason(
        ["mixed", "file"],
        &[],
        "`none`, `cluster` and `vma` are there to compare with: they read little ahead or nothing, and a fault costs a signal",
        "`adaptive`, the default",
    ),
    reason(
        ["mixed", "compressed"],
        &["sequential_kb_per_s"],
        "LZ4 both ways is most of a page's CPU time, as in `seq`",
        "pages that are not compressed at all",
    ),
    reason(
        ["solve", ""],
        &[],
        "of the tour's 24 MiB the matrix has 17 with farpage, 23 with the kernel: 3.2 are the margin below the limit, the others tables, \
         buffers, what is kept free. The kernel brings in 58,000 pages, farpage without readahead 76,000 in the same 24 MiB and 119,000 in 20.8, \
         and with readahead 200,000 by 35,000 faults for the kernel's 49,000, each of which takes twice as long beside those reads and writes of \
         1 MiB. Larger budgets are nearer to RAM (128 MiB in 64: 12.8 s where the \
         kernel killed it; NumPy's of n = 7000 in 384, which P10 means: 4.6 times its time in RAM, 131,600 faults of 170 us, and 3.3 with `--huge always`)",
        "a smaller margin; reads of faults before others",
    ),
    reason(
        ["free", "file"],
        &[],
        "three quarters of it is the kernel unmapping what is in RAM, which either side has to pay and which differs from run to run; words and \
         slots of all pages, given back by the engine, are 75 ns a page (perf)",
        "words of pages that are all swapped out looked at by the dozen",
    ),
    reason(
        ["free", "compressed"],
        &[],
        "65 % is MADV_REMOVE of zpages, half of that unmapping them from the pool's mapping",
        "zpages given back together",
    ),
    reason(
        ["swapoff", "file"],
        &[],
        "the disk: four threads read 500 to 690 MB/s of it, and eight times what the kernel empties, 60 to 145 MB/s, is more than it gives on \
         some days (see the notes above)",
        "none on such a disk",
    ),
    reason(
        ["swapoff", "compressed"],
        &[],
        "both CPUs are busy: more than half of the time in the kernel (COPY with its fresh page, zpages given back and unmapped), a quarter \
         in LZ4 and the checksum; the command itself takes 3 ms",
        "zpages given back together at the end",
    ),
    reason(
        ["huge", "compressed"],
        &[],
        "on the way out it takes more than twice the kernel's CPU time, nearly all of it in LZ4, page by page",
        "huge pages stored as they are while there is room",
    ),
    reason(
        ["huge", "memory"],
        &[],
        "ten times the kernel would be 0.12 s for a GB out and in. That is what the program alone takes to write it where nothing is swapped \
         (8.5 GB/s: fresh huge pages are zeroed and filled), and each GB is also copied to the file, read into other fresh pages, checked \
         twice and compared by the program",
        "none reaches it; where others leave meanwhile, huge pages that have been stored could be used again without zeroing",
    ),
    reason(
        ["threads", ""],
        &[],
        "of the CPU time of 16 threads on a swap file 30 % is the kernel's reading of single pages, 26 % making room themselves, since one \
         reclaimer is behind them (flame-threads.svg); none watches for the end of its read",
        "room made ahead for all of them by larger batches, or by a second reclaimer while many threads wait",
    ),
    reason(
        ["redis", ""],
        &["gets_beside", "bgsave"],
        "nothing but fork lets two processes have one page of anonymous memory, so what comes back comes back for the server and for the \
         child that saves, twice, where the kernel maps one page for both; what they still share from the fork stays as long as it is missed (decision 0043)",
        "managed memory as private mappings of a file in RAM, in which what comes back could be shared",
    ),
    reason(
        ["redis", "file"],
        &["gets_per_s", "sets_per_s"],
        "of the limit 3 MiB and a 64th are left to the kernel and more to files, where the kernel's side has all for itself, and misses are what the time goes \
         into; a miss waits for one page of the disk, on either side",
        "a smaller margin for the page tables of the child",
    ),
    reason(
        ["startup", ""],
        &[],
        "the library is loaded into each process: 0.3 to 0.8 ms, of which 16 page faults are its relocations and some 30 the start of its \
         allocator",
        "fewer relocations",
    ),
];

impl Reason {
    fn is_about(&self, workload: &str, backing: &str, measure: &str) -> bool {
        self.workload == workload
            && (self.backing.is_empty() || self.backing == backing)
            && (self.measures.is_empty() || self.measures.iter().any(|start| measure.starts_with(start)))
    }
}

/// Of a row; `None`: not looked into.
#[must_use]
pub fn of(workload: &str, backing: &str, measure: &str) -> Option<&'static Reason> {
    REASONS
        .iter()
        .find(|reason| reason.is_about(workload, backing, measure))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{Backing, Workload};
    use crate::targets::measures;

    #[test]
    fn a_reason_is_about_its_own_rows() {
        let median = of("random", "compressed", "t2.p50_us").expect("one");
        let rate = of("random", "compressed", "t2.per_s").expect("one");
        assert!(median.why.contains("signal") && rate.lever.contains("mremap"));
        assert_eq!(of("mixed", "compressed", "sequential_hit_percent"), None);
        assert_eq!(of("fill", "file", "fill_mb_per_s"), None);
        assert!(of("free", "compressed", "free_us").is_some() && of("free", "memory", "free_us").is_none());
    }

    /// A measure that was renamed would take its reason with it, unseen.
    #[test]
    fn every_reason_is_about_something() {
        let backings = [Backing::File, Backing::Compressed, Backing::Memory];
        for reason in REASONS {
            let workload = Workload::of_name(reason.workload).expect("a workload");
            let shown = backings.map(|backing| (backing.name(), measures(workload, backing)));
            let all = shown
                .iter()
                .flat_map(|(backing, all)| all.iter().map(move |one| (backing, one.path)));
            let about: Vec<_> = all
                .filter(|(backing, path)| reason.is_about(reason.workload, backing, path))
                .map(|(_, path)| path)
                .collect();
            assert!(!about.is_empty(), "{reason:?}");
            let used = |start: &&&str| about.iter().any(|path| path.starts_with(**start));
            assert_eq!(
                reason.measures.iter().filter(used).count(),
                reason.measures.len(),
                "{reason:?}"
            );
        }
    }
}
