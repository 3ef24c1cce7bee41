//! What a user-space engine can do: what another policy gives up waits in the swap cache first, where a touch is seen because
//! it faults. Nothing is asked of the hardware. Around [`super::Fifo`] this is the engine's policy.

use super::ReclaimPolicy;
use super::links::{Links, Node};

/// The swap cache's part of what is resident, and the least it holds.
const CACHE_PART: u32 = 16;
const CACHE_MIN: u32 = 2;

/// See the module's table.
#[derive(Debug)]
pub struct SwapCache<'a, P> {
    inner: P,
    waiting: Links<'a, 1>,
}

impl<'a, P: ReclaimPolicy> SwapCache<'a, P> {
    /// Around a policy without a resident unit, with nodes of its own.
    #[must_use]
    pub fn new(inner: P, nodes: &'a mut [Node]) -> Self {
        Self {
            inner,
            waiting: Links::new(nodes),
        }
    }
}

impl<P: ReclaimPolicy> ReclaimPolicy for SwapCache<'_, P> {
    fn loaded(&mut self, unit: u32, refault: Option<u32>) {
        if self.waiting.list_of(unit).is_none() {
            self.inner.loaded(unit, refault);
        }
    }

    /// Of a unit in RAM proper nothing is seen. One taken back has been gone for no time.
    fn touched(&mut self, unit: u32) -> bool {
        let waits = self.waiting.take(unit).is_some();
        if waits {
            self.inner.loaded(unit, Some(0));
        }
        waits
    }

    fn victim(&mut self) -> Option<u32> {
        let target = (self.resident() / CACHE_PART).max(CACHE_MIN);
        while self.waiting.len(0) < target {
            let Some(unit) = self.inner.victim() else { break };
            self.waiting.push(0, unit, 0);
        }
        self.waiting.pop(0).map(|(unit, _)| unit)
    }

    fn gone(&mut self, unit: u32) {
        if self.waiting.take(unit).is_none() {
            self.inner.gone(unit);
        }
    }

    fn resident(&self) -> u32 {
        self.inner.resident() + self.waiting.all()
    }

    fn scanned(&self) -> u64 {
        self.inner.scanned()
    }
}
