//! CLOCK: a FIFO in which a unit touched since the hand last passed goes round once more.

use super::ReclaimPolicy;
use super::links::{Links, Node};

/// See the module's table.
#[derive(Debug)]
pub struct Clock<'a> {
    links: Links<'a, 1>,
    scanned: u64,
}

impl<'a> Clock<'a> {
    /// Without a resident unit.
    #[must_use]
    pub fn new(nodes: &'a mut [Node]) -> Self {
        Self {
            links: Links::new(nodes),
            scanned: 0,
        }
    }
}

impl ReclaimPolicy for Clock<'_> {
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
            let (unit, mark) = self.links.pop(0)?;
            self.scanned += 1;
            if mark == 0 {
                return Some(unit);
            }
            self.links.push(0, unit, 0);
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
