//! S3-FIFO: what is new has to show itself in a small queue before it gets into the main one.

use super::ReclaimPolicy;
use super::links::{Links, Node};

const SMALL: usize = 0;
const MAIN: usize = 1;
/// The small queue's part of what is resident.
const SMALL_PART: u32 = 10;
/// Touches are counted up to here.
const TOUCHES_MAX: u8 = 3;

/// See the module's table.
#[derive(Debug)]
pub struct S3Fifo<'a> {
    links: Links<'a, 2>,
    scanned: u64,
}

impl<'a> S3Fifo<'a> {
    /// Without a resident unit.
    #[must_use]
    pub fn new(nodes: &'a mut [Node]) -> Self {
        Self {
            links: Links::new(nodes),
            scanned: 0,
        }
    }
}

impl ReclaimPolicy for S3Fifo<'_> {
    fn loaded(&mut self, unit: u32, refault: Option<u32>) {
        let resident = self.links.all();
        let main_target = resident - resident / SMALL_PART;
        let soon = refault.is_some_and(|distance| distance <= main_target);
        self.links.push(if soon { MAIN } else { SMALL }, unit, 0);
    }

    fn touched(&mut self, unit: u32) -> bool {
        if let Some(mark) = self.links.mark(unit) {
            *mark = (*mark + 1).min(TOUCHES_MAX);
        }
        false
    }

    fn victim(&mut self) -> Option<u32> {
        // Each turn moves a unit to the main queue for good, counts a mark down, or ends.
        loop {
            let small_target = (self.links.all() / SMALL_PART).max(1);
            let from_small = self.links.len(SMALL) >= small_target || self.links.len(MAIN) == 0;
            self.scanned += 1;
            if from_small {
                let (unit, touches) = self.links.pop(SMALL)?;
                if touches <= 1 {
                    return Some(unit);
                }
                self.links.push(MAIN, unit, 0);
            } else {
                let (unit, touches) = self.links.pop(MAIN)?;
                if touches == 0 {
                    return Some(unit);
                }
                self.links.push(MAIN, unit, touches - 1);
            }
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
