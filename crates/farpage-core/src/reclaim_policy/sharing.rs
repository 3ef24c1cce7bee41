//! Which units that fork shares stay while others leave.
//!
//! A shared unit is memory of several processes and takes that of one, and to evict it frees nothing before each of them has done so. So such
//! units stay longer than those of one's own, and those that leave are the same ones everywhere: they leave class by class, by a hash of where they
//! lie. A process turns to the next class
//! - when it finds nothing else, or less than an eighth of its pages in a turn of its queue: what it loads needs a place to stay a while;
//! - turn by turn, faster and faster, once it is told that the classes that have left are not missed: a server whose children use what they were forked
//!   with no more is not to be left with an eighth of the memory. From time to time it asks anew.

use super::retention::mixed;

/// Classes of shared units.
pub const CLASSES: u32 = 16;
/// One page in so many, at least, is none that stays for being shared.
const OWN: u64 = 8;
/// A turn counts once so many of its units, at least, were loaded.
const LOADS_PART: u32 = 4;
/// Fewer that left tell nothing.
const LEFT_MIN: u32 = 4;
/// So many classes leave at least once it is told that they are not missed.
const STEP_TOLD: u32 = 4;
/// After so many turns in which nothing was told a class leaves to ask.
const SILENT_MAX: u32 = 128;

/// What leaves, and what became of shared units that left in this turn of the queue and the one before. Pure, no allocation.
#[derive(Debug, Clone, Copy)]
pub struct Sharing {
    /// Classes below this one leave.
    level: u32,
    /// Units to be looked at until this turn is over, pages that stayed in it, and loads when the last one was that counts.
    to_look: u32,
    stayed: u64,
    loads: u32,
    left: [u32; 2],
    back: [u32; 2],
    missed: bool,
    /// Classes to leave next, as long as they are not missed.
    step: u32,
    /// Turns since it was told whether they are.
    silent: u32,
}

impl Default for Sharing {
    fn default() -> Self {
        Self::new()
    }
}

impl Sharing {
    /// Of a process that shares, since a moment ago, all that it has.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            level: 0,
            to_look: 0,
            stayed: 0,
            loads: 0,
            left: [0; 2],
            back: [0; 2],
            missed: true,
            step: 1,
            silent: 0,
        }
    }

    /// One of so many units is looked at, of a process that has so many pages; `loads` goes up with each unit of which something is loaded.
    pub fn looked(&mut self, units: u32, pages: u64, loads: u32) {
        if let Some(to_look) = self.to_look.checked_sub(1) {
            self.to_look = to_look;
            return;
        }
        let stayed = core::mem::replace(&mut self.stayed, 0);
        self.to_look = units;
        // A queue in which nearly all stays is gone round before anything can have come back.
        if loads.wrapping_sub(self.loads) >= units / LOADS_PART {
            self.loads = loads;
            self.turned(stayed, pages);
        }
    }

    /// A turn is over in which something was loaded, and so many of the pages stayed.
    fn turned(&mut self, stayed: u64, pages: u64) {
        self.silent += 1;
        // Those that left in the turn before had all of this one to come back in, the others half of it. Few tell nothing yet.
        let (left, back) = (self.left[1] + self.left[0] / 2, self.back[0] + self.back[1]);
        let is_told = self.left[1] >= LEFT_MIN;
        if is_told {
            (self.missed, self.silent) = (back * 2 >= left, 0);
            (self.left, self.back) = ([0, self.left[0]], [0, self.back[0]]);
        } else {
            self.left = [0, self.left[0] + self.left[1]];
            self.back = [0, self.back[0] + self.back[1]];
        }
        if self.silent > SILENT_MAX {
            (self.missed, self.silent) = (false, 0);
        }
        if self.missed {
            self.step = 1;
        } else if stayed > 0 {
            if is_told {
                self.step = (2 * self.step).clamp(STEP_TOLD, CLASSES);
            }
            self.level = (self.level + self.step).min(CLASSES);
        }
        if stayed > pages - pages / OWN {
            self.press(self.level);
        }
    }

    /// Whether a unit, the `unit`th from address 0, of which so many pages are shared, stays.
    pub fn stays(&mut self, unit: u64, pages: u32) -> bool {
        let stays = mixed(unit) % u64::from(CLASSES) >= u64::from(self.level);
        self.stayed += if stays { pages.into() } else { 0 };
        stays
    }

    /// How many classes leave.
    #[must_use]
    pub const fn level(&self) -> u32 {
        self.level
    }

    /// The next class leaves too, after these.
    pub fn press(&mut self, level: u32) {
        self.level = self.level.max((level + 1).min(CLASSES));
    }

    /// A shared unit leaves.
    pub fn left(&mut self) {
        self.left[0] += 1;
    }

    /// One that left when it was shared is loaded again.
    pub fn back(&mut self) {
        self.back[0] += 1;
    }

    /// How many were, in this turn.
    #[must_use]
    pub const fn came_back(&self) -> u32 {
        self.back[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const UNITS: u32 = 320;

    /// A turn of a queue of [`UNITS`] units, `shared` of which are; of those that leave, which are no more in the queue then, `back` per cent come
    /// back. How many stayed.
    fn turn(sharing: &mut Sharing, shared: u32, back: u32) -> u32 {
        let mut stayed = 0;
        for unit in 0..UNITS {
            look(sharing);
            if unit >= shared {
                continue;
            }
            if sharing.stays(unit.into(), 64) {
                stayed += 1;
            } else {
                sharing.left();
                if unit * 37 % 100 < back {
                    sharing.back();
                }
            }
        }
        // Of the turn's end.
        look(sharing);
        stayed
    }

    /// Something is loaded whenever something is looked at.
    fn look(sharing: &mut Sharing) {
        sharing.looked(UNITS, u64::from(UNITS) * 64, sharing.loads + UNITS);
    }

    /// Nearly everything stayed, so the queue was gone round many times while nothing was loaded, and what had left seemed not to be missed.
    #[test]
    fn turns_without_loads_tell_nothing() {
        let mut sharing = Sharing::new();
        sharing.press(0);
        turn(&mut sharing, UNITS, 0);
        let loads = sharing.loads;
        (0..9 * UNITS).for_each(|_| sharing.looked(UNITS, 1, loads));
        assert_eq!(sharing.level(), 1);
    }

    fn turns(sharing: &mut Sharing, count: u32, shared: u32, back: u32) {
        for _ in 0..count {
            turn(sharing, shared, back);
        }
    }

    #[test]
    fn all_stay_where_there_is_enough_else() {
        let mut sharing = Sharing::new();
        (0..9).for_each(|_| assert_eq!(turn(&mut sharing, UNITS / 2, 100), UNITS / 2));
    }

    #[test]
    fn an_eighth_is_left_for_what_is_not_shared() {
        let mut sharing = Sharing::new();
        turns(&mut sharing, 9, UNITS, 100);
        let stay = turn(&mut sharing, UNITS, 100);
        assert!((UNITS * 5 / 8..=UNITS * 7 / 8).contains(&stay), "{stay}");
    }

    /// So few that a class of them tells nothing.
    #[test]
    fn small_sets_are_asked_about_too() {
        let mut sharing = Sharing::new();
        sharing.press(0);
        turns(&mut sharing, 9, 40, 100);
        assert!(turn(&mut sharing, 40, 100) >= 32);
        let mut sharing = Sharing::new();
        sharing.press(0);
        turns(&mut sharing, 9, 40, 0);
        assert_eq!(turn(&mut sharing, 40, 0), 0);
    }

    /// What was missed once may be used no more.
    #[test]
    fn where_nothing_was_told_for_long_a_class_leaves_to_ask() {
        let mut sharing = Sharing::new();
        turns(&mut sharing, 4, UNITS / 2, 100);
        // What has come back is the process's own from then on.
        let stay = |sharing: &mut Sharing| {
            (0..=UNITS).for_each(|_| look(sharing));
            (0..UNITS / 2)
                .filter(|unit| sharing.stays((*unit).into(), 64))
                .count()
        };
        let first = stay(&mut sharing);
        (1..SILENT_MAX / 2).for_each(|_| assert_eq!(stay(&mut sharing), first));
        assert!((0..SILENT_MAX).any(|_| stay(&mut sharing) < first));
    }

    #[test]
    fn what_is_not_missed_goes_on_leaving() {
        let mut sharing = Sharing::new();
        sharing.press(0);
        turns(&mut sharing, 5, UNITS / 2, 20);
        let some = turn(&mut sharing, UNITS / 2, 20);
        assert!(some < UNITS / 2 * 9 / 10, "{some}");
        turns(&mut sharing, 6, UNITS / 2, 20);
        assert_eq!(turn(&mut sharing, UNITS / 2, 20), 0);
    }

    #[test]
    fn what_is_missed_again_stays() {
        let mut sharing = Sharing::new();
        sharing.press(0);
        turns(&mut sharing, 2, UNITS / 2, 20);
        turns(&mut sharing, 3, UNITS / 2, 100);
        let stay = turn(&mut sharing, UNITS / 2, 100);
        (0..9).for_each(|_| assert_eq!(turn(&mut sharing, UNITS / 2, 100), stay));
        assert!(stay > 0);
    }

    /// Units that leave in one process and stay in the other free nothing.
    #[test]
    fn what_leaves_is_the_same_everywhere() {
        let (mut one, mut other) = (Sharing::new(), Sharing::new());
        (0..3).for_each(|_| one.press(one.level()));
        (0..5).for_each(|_| other.press(other.level()));
        let leaves = |sharing: &mut Sharing| {
            (0..UNITS)
                .filter(|unit| !sharing.stays((*unit).into(), 64))
                .collect::<Vec<_>>()
        };
        let (few, more) = (leaves(&mut one), leaves(&mut other));
        assert!(few.len() > 30 && more.len() > few.len() && few.iter().all(|unit| more.contains(unit)));
        (0..CLASSES).for_each(|_| one.press(one.level()));
        assert_eq!(leaves(&mut one).len(), UNITS as usize);
    }
}
