//! LRU by generations: a unit is as young as the generation in which its touch was last noticed. Touches are noticed when a
//! generation is opened, which looks at every resident unit (the kernel walks page tables then), and when the unit is about to be evicted.

use super::ReclaimPolicy;
use super::links::{Links, Node};

const GENERATIONS: usize = 4;
/// Generations that are kept apart at least: what came last and what is evicted are never the same one.
const KEPT: u64 = 2;

/// See the module's table.
#[derive(Debug)]
pub struct LruGen<'a> {
    links: Links<'a, GENERATIONS>,
    /// Numbers of the youngest and the oldest generation; a generation's list is its number modulo [`GENERATIONS`].
    youngest: u64,
    oldest: u64,
    scanned: u64,
}

const fn list(generation: u64) -> usize {
    (generation % GENERATIONS as u64) as usize
}

impl<'a> LruGen<'a> {
    /// Without a resident unit.
    #[must_use]
    pub fn new(nodes: &'a mut [Node]) -> Self {
        Self {
            links: Links::new(nodes),
            youngest: KEPT - 1,
            oldest: 0,
            scanned: 0,
        }
    }

    /// Opens a generation, to which all that was touched moves.
    fn age(&mut self) {
        self.youngest += 1;
        for generation in self.oldest..self.youngest {
            let mut next = self.links.oldest(list(generation));
            while let Some(unit) = next {
                next = self.links.after(unit);
                self.scanned += 1;
                if self.links.mark(unit).is_some_and(|mark| *mark > 0) {
                    self.links.take(unit);
                    self.links.push(list(self.youngest), unit, 0);
                }
            }
        }
    }
}

impl ReclaimPolicy for LruGen<'_> {
    fn loaded(&mut self, unit: u32, _refault: Option<u32>) {
        self.links.push(list(self.youngest), unit, 0);
    }

    fn touched(&mut self, unit: u32) -> bool {
        if let Some(mark) = self.links.mark(unit) {
            *mark = 1;
        }
        false
    }

    fn victim(&mut self) -> Option<u32> {
        if self.links.all() == 0 {
            return None;
        }
        // A unit is passed over once: then it is in the youngest generation without a mark.
        loop {
            while self.links.len(list(self.oldest)) == 0 && self.oldest < self.youngest {
                self.oldest += 1;
            }
            if self.youngest - self.oldest + 1 < KEPT {
                self.age();
                continue;
            }
            let (unit, mark) = self.links.pop(list(self.oldest))?;
            self.scanned += 1;
            if mark == 0 {
                return Some(unit);
            }
            self.links.push(list(self.youngest), unit, 0);
        }
    }

    fn gone(&mut self, unit: u32) {
        self.links.take(unit);
    }

    fn resident(&self) -> u32 {
        self.links.all()
    }

    fn scanned(&self) -> u64 {
        self.scanned
    }
}
