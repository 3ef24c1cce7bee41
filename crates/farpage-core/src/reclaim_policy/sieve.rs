//! SIEVE: the hand goes from the oldest to the newest, clears marks, and evicts the first unit without one; nothing is
//! moved, so what came after the hand is judged on its next round only.

use super::ReclaimPolicy;
use super::links::{Links, Node};

/// See the module's table.
#[derive(Debug)]
pub struct Sieve<'a> {
    links: Links<'a, 1>,
    /// Where the hand looks next; none: at the oldest.
    hand: Option<u32>,
    scanned: u64,
}

impl<'a> Sieve<'a> {
    /// Without a resident unit.
    #[must_use]
    pub fn new(nodes: &'a mut [Node]) -> Self {
        Self {
            links: Links::new(nodes),
            hand: None,
            scanned: 0,
        }
    }

    fn remove(&mut self, unit: u32) {
        if self.hand == Some(unit) {
            self.hand = self.links.after(unit);
        }
        self.links.take(unit);
    }
}

impl ReclaimPolicy for Sieve<'_> {
    fn loaded(&mut self, unit: u32, _refault: Option<u32>) {
        self.links.push(0, unit, 0);
    }

    fn touched(&mut self, unit: u32) -> bool {
        if let Some(mark) = self.links.mark(unit) {
            *mark = 1;
        }
        false
    }

    fn victim(&mut self) -> Option<u32> {
        // Each turn clears a mark or ends.
        loop {
            let unit = self.hand.or_else(|| self.links.oldest(0))?;
            self.scanned += 1;
            let mark = self.links.mark(unit)?;
            if *mark == 0 {
                self.remove(unit);
                return Some(unit);
            }
            *mark = 0;
            self.hand = self.links.after(unit);
        }
    }

    fn gone(&mut self, unit: u32) {
        self.remove(unit);
    }

    fn resident(&self) -> u32 {
        self.links.all()
    }

    fn scanned(&self) -> u64 {
        self.scanned
    }
}
