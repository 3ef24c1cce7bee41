//! A memory cgroup whose limit the budget nearly fills: what the rest of the group needs.
//!
//! Page tables, the kernel's own memory for programs, and the page cache with their text count against a container's limit and not against
//! the budget. Where that leaves too little for the first the kernel kills; where too little for text, programs stand still: what is run
//! next was dropped before it is come to, and is read from the disk, again and again. (gcc with a budget of 83 MiB in a container of 88: a hundred thousand pages
//! a second were read again, for five minutes.) So the supervisor looks at the group, and gives it part of the budget.

use std::fs;
use std::path::{Path, PathBuf};

use farpage_core::units::PAGE_SIZE;

use crate::pool::Header;

/// A cgroup with a memory limit, of version 1 or 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    pub directory: PathBuf,
    pub limit_bytes: u64,
}

/// How often the group is looked at, in nanoseconds.
const LOOK_NS: u64 = 100_000_000;
/// Between two looks, in a group that is full: text that was waited for, and pages of files that were there not long ago. Fewer are no standstill.
const WAITED_FOR: u64 = 2;
const READ_AGAIN: u64 = 32;
/// What is given is tried to be had back, a little, after so long without trouble; each time that fails after twice as long, up to this.
const PATIENCE_NS: u64 = 10_000_000_000;
const PATIENCE_MAX_NS: u64 = 600_000_000_000;

/// In pages.
const MIB: i64 = 256;

/// What the group has at one moment, in pages; counts of events since it was made.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct View {
    usage: i64,
    /// Pages of files, which the kernel can drop.
    file: i64,
    read_again: u64,
    waited_for: u64,
}

impl View {
    fn of(usage_bytes: &str, stat: &str) -> Option<View> {
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
        let pages = |bytes: u64| (bytes / PAGE_SIZE as u64) as i64;
        let cache = entry("cache").or_else(|| entry("file"))?;
        Some(View {
            usage: pages(usage_bytes.trim().parse().ok()?),
            file: pages(cache.saturating_sub(entry("shmem")?)),
            read_again: entry("workingset_refault_file")?,
            waited_for: entry("pgmajfault")?,
        })
    }
}

/// What the group is given.
pub struct Guard {
    container: Container,
    share: Share,
    next_ns: u64,
}

impl Guard {
    #[must_use]
    pub fn new(container: Container, budget: i64) -> Guard {
        let limit = (container.limit_bytes / PAGE_SIZE as u64) as i64;
        Guard {
            container,
            share: Share::new(limit, budget),
            next_ns: 0,
        }
    }

    /// Pages of the budget that the group has now.
    pub fn look(&mut self, header: &Header, now: u64) -> i64 {
        if now >= self.next_ns {
            self.next_ns = now + LOOK_NS;
            if let Some(view) = self.view() {
                self.share.after(view, header.excess(0) <= 0, now);
            }
        }
        self.share.given
    }

    fn view(&self) -> Option<View> {
        let read = |name: &str| fs::read_to_string(self.container.directory.join(name)).ok();
        let usage = read("memory.current").or_else(|| read("memory.usage_in_bytes"))?;
        View::of(&usage, &read("memory.stat")?)
    }
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
    calm_since: u64,
    patience: u64,
    /// Whether some was had back since there was trouble last.
    tried: bool,
}

impl Share {
    fn new(limit: i64, budget: i64) -> Share {
        // The kernel's memory for a few processes, which a program that begins needs before it is looked at.
        let at_first = 3 * MIB + limit / 64;
        let least = (budget + at_first - limit).max(0);
        Share {
            limit,
            reserve: at_first / 2,
            step: (limit / 64).max(MIB),
            least,
            most: (budget - limit / 2).max(least),
            given: least,
            before: None,
            calm_since: 0,
            patience: PATIENCE_NS,
            tried: false,
        }
    }

    /// `is_settled`: the tree is within its limit, so what was given has been left.
    fn after(&mut self, view: View, is_settled: bool, now: u64) {
        let before = self.before.replace(view).unwrap_or(view);
        let lacks = view.usage - view.file + self.reserve - self.limit;
        let is_full = view.usage + self.limit / 32 > self.limit;
        let stands_still = is_full
            && view.read_again.saturating_sub(before.read_again) >= READ_AGAIN
            && view.waited_for.saturating_sub(before.waited_for) >= WAITED_FOR;
        if lacks > 0 || stands_still {
            if core::mem::take(&mut self.tried) {
                self.patience = (self.patience * 2).min(PATIENCE_MAX_NS);
            }
            self.calm_since = now;
            if is_settled {
                self.given = (self.given + lacks.max(self.step)).min(self.most);
            }
        } else if self.given > self.least && now.saturating_sub(self.calm_since) >= self.patience {
            (self.calm_since, self.tried) = (now, true);
            self.given = (self.given - self.step / 2).max(self.least);
        }
    }
}

/// The group of a limit file.
#[must_use]
pub fn of_limit_file(file: &Path, limit_bytes: u64) -> Option<Container> {
    Some(Container {
        directory: file.parent()?.to_owned(),
        limit_bytes,
    })
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
            file: 4 * MIB,
            read_again: events * 100,
            waited_for: events * 5,
        }
    }

    #[test]
    fn groups_of_both_versions_read_back() {
        let v1 = "cache 1\nshmem 1\ncache_x 7\nworkingset_refault_file 1\npgmajfault 1\ntotal_cache 40960\ntotal_shmem 8192\n\
                  total_workingset_refault_file 77\ntotal_pgmajfault 9\n";
        let v2 = "anon 1\nfile 40960\nshmem 8192\nworkingset_refault_file 77\npgmajfault 9\n";
        let expected = View {
            usage: 3,
            file: 8,
            read_again: 77,
            waited_for: 9,
        };
        assert_eq!(View::of("12288\n", v1), Some(expected));
        assert_eq!(View::of("12288\n", v2), Some(expected));
        assert_eq!(View::of("12288\n", "anon 1\n"), None);
    }

    #[test]
    fn text_that_is_read_again_and_again_gets_room() {
        let mut share = Share::new(LIMIT, BUDGET);
        let step = share.step;
        share.after(view(LIMIT, 0), true, 0);
        assert_eq!(share.given, 0, "it may be a file that is read once");
        share.after(view(LIMIT, 1), true, SECOND);
        assert_eq!(share.given, step);
        share.after(view(LIMIT, 2), false, 2 * SECOND);
        assert_eq!(share.given, step, "what was given is on its way");
        share.after(view(LIMIT / 2, 3), true, 3 * SECOND);
        assert_eq!(share.given, step, "there is room");
        (4..400).for_each(|n| share.after(view(LIMIT, n), true, n * SECOND));
        assert_eq!(share.given, BUDGET - LIMIT / 2, "half is for programs");
    }

    #[test]
    fn what_is_had_back_in_vain_is_had_back_later() {
        let mut share = Share::new(LIMIT, BUDGET);
        share.after(view(LIMIT, 0), true, 0);
        share.after(view(LIMIT, 1), true, 0);
        share.after(view(LIMIT, 1), true, PATIENCE_NS - 1);
        assert_eq!(share.given, share.step);
        share.after(view(LIMIT, 1), true, PATIENCE_NS);
        assert_eq!(share.given, share.step / 2);
        share.after(view(LIMIT, 2), true, PATIENCE_NS);
        assert_eq!(share.patience, 2 * PATIENCE_NS);
        (0..100).for_each(|n| share.after(view(LIMIT, 2), true, n * 100 * SECOND));
        assert_eq!(share.given, 0);
    }

    #[test]
    fn what_the_kernel_cannot_drop_has_room_from_the_start() {
        let mut share = Share::new(LIMIT, LIMIT);
        let at_first = 3 * MIB + LIMIT / 64;
        assert_eq!(share.given, at_first, "all of the container was asked for");
        share.after(view(LIMIT + 4 * MIB, 0), true, 0);
        assert_eq!(share.given, at_first + at_first / 2);
        (0..100).for_each(|n| share.after(view(LIMIT / 2, 0), true, n * 100 * SECOND));
        assert_eq!(share.given, at_first);
    }
}
