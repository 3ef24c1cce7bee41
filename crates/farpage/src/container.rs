//! A memory cgroup whose limit the budget nearly fills: what the rest of the group needs.
//!
//! Page tables, the kernel's own memory for programs, and the page cache with their text count against a container's limit and not against
//! the budget. Where that leaves too little for the first the kernel kills; where too little for text, programs stand still: what is run
//! next was dropped before it is come to, and is read from the disk, again and again. (gcc with a budget of 83 MiB in a container of 88: a hundred thousand pages
//! a second were read again, for five minutes.) So the supervisor looks at the group, and gives it part of the budget.

use core::sync::atomic::Ordering;
use std::fs;
use std::path::PathBuf;

use farpage_core::units::PAGE_SIZE;

use crate::pool::Pool;

/// A cgroup with a memory limit, of version 1 or 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    pub directory: PathBuf,
    pub limit_bytes: u64,
}

/// How often the group is looked at, in nanoseconds.
const LOOK_NS: u64 = 100_000_000;
/// Text is waited for where so many pages of mapped files were between two looks, while this part of the limit was read again, or so many pages.
const WAITED_FOR: u64 = 2;
const READ_AGAIN_PART: i64 = 32;
const READ_AGAIN_MAX: u64 = 512;
/// What was given is had back where so many looks in a row, after the most has been given, still find it waited for, and more than half as much read again
/// as before.
const LOOKS_IN_VAIN: u32 = 50;
/// What is given is tried to be had back, a little, after so long without trouble, and given again no sooner than that after it was of no use; each time
/// that this goes wrong twice as long, up to the second.
const PATIENCE_NS: u64 = 10_000_000_000;
const PATIENCE_MAX_NS: u64 = 600_000_000_000;
/// In pages. The least that the tree keeps: the smallest budget.
const MIB: i64 = 256;
const TREE_MIN: i64 = 8 * MIB;

/// What the group has at one moment, in pages; counts of events since it was made.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct View {
    usage: i64,
    /// What the kernel can drop: pages of files, and in version 2 what it keeps of directories.
    droppable: i64,
    read_again: u64,
    waited_for: u64,
}

impl View {
    fn of(usage: i64, stat: &str) -> Option<View> {
        // In version 1 an entry is of the group alone, and total_ of its children too; in version 2 all are.
        let entry = |name: &str| {
            let value = |wanted: &str| {
                let mut words = stat.lines().filter_map(|line| line.split_once(' '));
                words
                    .find(|(name, _)| *name == wanted)?
                    .1
                    .trim()
                    .parse::<u64>()
                    .ok()
            };
            value(&format!("total_{name}")).or_else(|| value(name))
        };
        let cache = entry("cache").or_else(|| entry("file"))?;
        let droppable = cache.saturating_sub(entry("shmem")?) + entry("slab_reclaimable").unwrap_or(0);
        Some(View {
            usage,
            droppable: pages(droppable),
            read_again: entry("workingset_refault_file")?,
            waited_for: entry("pgmajfault")?,
        })
    }
}

fn pages(bytes: u64) -> i64 {
    (bytes / PAGE_SIZE as u64) as i64
}

/// What the group is given.
pub struct Guard {
    container: Container,
    share: Share,
    looked_ns: u64,
}

impl Guard {
    #[must_use]
    pub fn new(container: Container, budget: i64) -> Guard {
        let limit = pages(container.limit_bytes);
        Guard {
            container,
            share: Share::new(limit, budget),
            looked_ns: 0,
        }
    }

    /// Pages of the budget that the group has now.
    pub fn look(&mut self, pool: &Pool, now: u64) -> i64 {
        let since = now - self.looked_ns;
        if since >= LOOK_NS {
            self.looked_ns = now;
            match self.view() {
                Some(view) => self.share.after(view, may_give(pool), (now, since)),
                None => self.share.rests(now),
            }
        }
        self.share.given
    }

    /// `None` too where there is room: the statistics of a large group are dear.
    fn view(&self) -> Option<View> {
        let read = |name: &str| fs::read_to_string(self.container.directory.join(name)).ok();
        let usage = read("memory.current").or_else(|| read("memory.usage_in_bytes"))?;
        let usage = pages(usage.trim().parse().ok()?);
        if self.share.given == self.share.least && !self.share.is_full(usage) {
            return None;
        }
        View::of(usage, &read("memory.stat")?)
    }
}

/// Whether the tree has left what was taken before, and has where to put more.
fn may_give(pool: &Pool) -> bool {
    let header = pool.header();
    let (limit, least) = (header.last_limit(), header.least_limit());
    let has_left = header.charged.load(Ordering::Relaxed) + header.zpool_pages() <= limit;
    has_left && limit > least && !pool.is_swap_full()
}

/// The decision, without files.
struct Share {
    limit: i64,
    /// What stays free of the limit beside what the kernel cannot drop.
    reserve: i64,
    step: i64,
    /// Given in any case, and at most.
    least: i64,
    most: i64,
    given: i64,
    before: Option<View>,
    /// Looks in a row at which text was waited for, and at which nothing more could be given.
    waits: u32,
    in_vain: u32,
    /// What was read again at a look when nothing had been given.
    at_first: u64,
    /// Since when there is no trouble; until when text gets nothing.
    calm_since: u64,
    deaf_until: u64,
    patience: u64,
    /// What is had back next, and whether some was since there was trouble last.
    back: i64,
    tried: bool,
}

impl Share {
    fn new(limit: i64, budget: i64) -> Share {
        // The kernel's memory for a few processes, which a program that begins needs before it is looked at.
        let at_first = 3 * MIB + limit / 64;
        let least = (budget + at_first - limit).max(0);
        let step = (limit / 64).max(MIB);
        Share {
            limit,
            reserve: at_first / 4,
            step,
            least,
            most: (budget - (limit / 2).max(TREE_MIN)).max(least),
            given: least,
            before: None,
            waits: 0,
            in_vain: 0,
            at_first: 0,
            calm_since: 0,
            deaf_until: 0,
            patience: PATIENCE_NS,
            back: step / 2,
            tried: false,
        }
    }

    /// Whether a group that uses so much is near its limit.
    fn is_full(&self, usage: i64) -> bool {
        usage + self.reserve.max(self.limit / 32) > self.limit
    }

    /// `since`: nanoseconds since the look before. A supervisor that comes late is a sign of the same trouble, so counts are taken for [`LOOK_NS`].
    fn after(&mut self, view: View, may_give: bool, (now, since): (u64, u64)) {
        let known = self.before.is_some();
        let before = self.before.replace(view).unwrap_or(view);
        let lacks = view.usage - view.droppable + self.reserve - self.limit;
        let read_again = view.read_again.saturating_sub(before.read_again) * LOOK_NS / since.max(LOOK_NS);
        let waited_for = view.waited_for.saturating_sub(before.waited_for);
        let many = ((self.limit / READ_AGAIN_PART) as u64).min(READ_AGAIN_MAX);
        let waits = self.is_full(view.usage) && read_again >= many && waited_for >= WAITED_FOR;
        self.waits = if waits { self.waits + 1 } else { 0 };
        // Once is a start, or a file that is read.
        let stands_still = self.waits > 1 && now >= self.deaf_until;
        if !stands_still {
            self.in_vain = 0;
        }
        if lacks > 0 || stands_still {
            self.trouble(now);
            if may_give {
                self.give(lacks, read_again, now);
            }
        } else if !known {
            self.calm_since = now;
        } else {
            self.calm(now);
        }
    }

    /// There is room.
    fn rests(&mut self, now: u64) {
        self.before = None;
        self.calm(now);
    }

    fn calm(&mut self, now: u64) {
        if now.saturating_sub(self.calm_since) >= self.patience {
            self.have_back(now);
        }
    }

    fn trouble(&mut self, now: u64) {
        if core::mem::take(&mut self.tried) {
            self.lose_patience();
        }
        (self.calm_since, self.back) = (now, self.step / 2);
    }

    fn give(&mut self, lacks: i64, read_again: u64, now: u64) {
        if self.given == self.least {
            self.at_first = read_again;
        }
        if self.given < self.most {
            self.given = (self.given + lacks.max(self.step)).min(self.most);
            return;
        }
        self.in_vain += u32::from(read_again > self.at_first / 2);
        if lacks <= 0 && self.in_vain >= LOOKS_IN_VAIN {
            // A mapped file that is larger than that.
            (self.given, self.in_vain) = (self.least, 0);
            self.deaf_until = now + self.patience;
            self.lose_patience();
        }
    }

    fn lose_patience(&mut self) {
        self.patience = (self.patience * 2).min(PATIENCE_MAX_NS);
    }

    /// Twice as much each time that it goes well.
    fn have_back(&mut self, now: u64) {
        self.calm_since = now;
        let went_well = core::mem::take(&mut self.tried);
        if went_well {
            self.back = (self.back * 2).min(8 * self.step);
        }
        if went_well || self.given == self.least {
            self.patience = (self.patience / 2).max(PATIENCE_NS);
        }
        self.tried = self.given > self.least;
        self.given = (self.given - self.back).max(self.least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const LIMIT: i64 = 88 * MIB;
    const BUDGET: i64 = LIMIT - 6 * MIB;

    fn view(usage: i64, events: u64) -> View {
        View {
            usage,
            droppable: 4 * MIB,
            read_again: events * 10_000,
            waited_for: events * 5,
        }
    }

    /// So many looks at a full group, at each of which text is waited for; `events` before them.
    fn stand_still(share: &mut Share, events: u64, looks: u64) {
        (events..events + looks).for_each(|n| share.after(view(LIMIT, n), true, (n * SECOND / 10, LOOK_NS)));
    }

    #[test]
    fn groups_of_both_versions_read_back() {
        let v1 = "cache 1\nshmem 1\ncache_x 7\nworkingset_refault_file 1\npgmajfault 1\ntotal_cache 40960\ntotal_shmem 8192\n\
                  total_workingset_refault_file 77\ntotal_pgmajfault 9\n";
        let v2 = "anon 1\nfile 32768\nshmem 8192\nslab_reclaimable 8192\nworkingset_refault_file 77\npgmajfault 9\n";
        let expected = View {
            usage: 3,
            droppable: 8,
            read_again: 77,
            waited_for: 9,
        };
        assert_eq!(View::of(3, v1), Some(expected));
        assert_eq!(View::of(3, v2), Some(expected));
        assert_eq!(View::of(3, "anon 1\n"), None);
    }

    #[test]
    fn text_that_is_read_again_and_again_gets_room() {
        let mut share = Share::new(LIMIT, BUDGET);
        let step = share.step;
        stand_still(&mut share, 0, 2);
        assert_eq!(share.given, 0, "it may be a file that is read once");
        stand_still(&mut share, 2, 1);
        assert_eq!(share.given, step);
        share.after(view(LIMIT, 3), false, (SECOND, LOOK_NS));
        assert_eq!(share.given, step, "what was given is on its way");
        share.after(view(LIMIT / 2, 4), true, (SECOND, LOOK_NS));
        assert_eq!(share.given, step, "there is room");
        stand_still(&mut share, 5, 40);
        assert_eq!(share.given, BUDGET - LIMIT / 2, "half is for programs");
    }

    /// A mapped file that is larger than all of the container once took half of the budget for good.
    #[test]
    fn what_is_of_no_use_is_had_back() {
        let mut share = Share::new(LIMIT, BUDGET);
        let looks = 30 + u64::from(LOOKS_IN_VAIN);
        stand_still(&mut share, 0, looks);
        assert_eq!(share.given, 0);
        stand_still(&mut share, looks, 50);
        assert_eq!(share.given, 0, "for a while");
        stand_still(&mut share, 1000, 3);
        assert_eq!(share.given, 3 * share.step);
    }

    /// Each start of a program whose text fits into the most was once a step on the way to nothing at all.
    #[test]
    fn what_is_waited_for_now_and_then_stays() {
        let mut share = Share::new(LIMIT, BUDGET);
        stand_still(&mut share, 0, 40);
        let most = share.given;
        for start in 1..100 {
            stand_still(&mut share, start * 50, 4);
            let now = (start * 50 + 5) * SECOND / 10;
            share.after(view(LIMIT, start * 50 + 3), true, (now, LOOK_NS));
        }
        assert_eq!(share.given, most);
    }

    #[test]
    fn a_look_that_comes_late_counts_for_what_it_is_of() {
        let mut share = Share::new(LIMIT, BUDGET);
        let late = |share: &mut Share, n: u64| share.after(view(LIMIT, n), true, (n * SECOND, SECOND));
        (0..2).for_each(|n| late(&mut share, n));
        assert_eq!(share.given, 0);
        late(&mut share, 2);
        assert_eq!(share.given, share.step, "a thousand pages in a tenth of a second");
        let mut share = Share::new(LIMIT, BUDGET);
        let never =
            |share: &mut Share, n: u64| share.after(view(LIMIT, n), true, (n * 60 * SECOND, 60 * SECOND));
        (0..9).for_each(|n| never(&mut share, n));
        assert_eq!(share.given, 0, "so many in a minute are nothing");
    }

    #[test]
    fn what_is_had_back_in_vain_is_had_back_later_and_in_time_sooner() {
        let mut share = Share::new(LIMIT, BUDGET);
        let step = share.step;
        stand_still(&mut share, 0, 3);
        share.after(view(LIMIT, 2), true, (PATIENCE_NS, LOOK_NS));
        assert_eq!(share.given, step, "not yet");
        share.after(view(LIMIT, 2), true, (PATIENCE_NS + SECOND, LOOK_NS));
        assert_eq!((share.given, share.patience), (step / 2, PATIENCE_NS));
        stand_still(&mut share, 200, 20);
        assert_eq!(share.patience, 2 * PATIENCE_NS);
        let given = share.given;
        let calm = |share: &mut Share, times: u64| {
            let from = share.calm_since;
            (1..=times)
                .for_each(|n| share.after(view(LIMIT, 219), true, (from + n * 2 * PATIENCE_NS, LOOK_NS)));
        };
        calm(&mut share, 3);
        assert_eq!(
            (given - share.given, share.patience),
            (step / 2 + step + 2 * step, PATIENCE_NS)
        );
        calm(&mut share, 10);
        assert_eq!((share.given, share.tried), (0, false));
    }

    #[test]
    fn what_the_kernel_cannot_drop_has_room_from_the_start() {
        let mut share = Share::new(LIMIT, LIMIT);
        let at_first = 3 * MIB + LIMIT / 64;
        assert_eq!(share.given, at_first, "all of the container was asked for");
        share.after(view(LIMIT + 4 * MIB, 0), true, (0, LOOK_NS));
        assert_eq!(share.given, at_first + (at_first / 4).max(share.step));
        (1..100).for_each(|n| share.after(view(LIMIT / 2, 0), true, (n * 100 * SECOND, LOOK_NS)));
        assert_eq!(share.given, at_first);
        let small = Share::new(10 * MIB, 10 * MIB);
        assert!(
            small.most <= 10 * MIB - 5 * MIB,
            "the smallest budget is left, nearly"
        );
    }
}
