//! A queue of small numbers in shared words that no death can stop.
//!
//! Each end is a ticket; a ticket's place is its number modulo the length. A pusher takes a ticket and fills the place; if
//! it dies in between the place stays empty and is passed over. Entries are hints: whoever pops one checks what it names.
//! A number may be lost (its pusher died, or more were pushed than there are places) and may come twice.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The queue over shared words; all zero is an empty one.
#[derive(Debug, Clone, Copy)]
pub struct Fifo<'a> {
    /// Entries plus one; 0 is none.
    pub places: &'a [AtomicU32],
    /// The next ticket to pop and the next to push.
    pub ends: &'a [AtomicU64; 2],
}

impl<'a> Fifo<'a> {
    fn place(&self, ticket: u64) -> Option<&'a AtomicU32> {
        let len = self.places.len() as u64;
        self.places.get(ticket.checked_rem(len)? as usize)
    }

    /// Puts a number, below 2^32 - 1, at the end.
    pub fn push(&self, number: u32) {
        let ticket = self.ends[1].fetch_add(1, Ordering::AcqRel);
        if let Some(place) = self.place(ticket) {
            place.store(number.wrapping_add(1), Ordering::Release);
        }
    }

    /// The numbers that wait, as they are when looked at.
    pub fn waiting(self) -> impl Iterator<Item = u32> {
        let ends = self.ends.each_ref().map(|end| end.load(Ordering::Acquire));
        let most = ends[0].saturating_add(self.places.len() as u64);
        (ends[0]..ends[1].min(most))
            .filter_map(move |ticket| self.place(ticket)?.load(Ordering::Acquire).checked_sub(1))
    }

    /// The number at the front. Ends because each turn moves the front on, or finds that another did.
    #[must_use]
    pub fn pop(&self) -> Option<u32> {
        loop {
            let front = self.ends[0].load(Ordering::Acquire);
            if front >= self.ends[1].load(Ordering::Acquire) {
                return None;
            }
            let next = front + 1;
            let mine = self.ends[0].compare_exchange(front, next, Ordering::AcqRel, Ordering::Relaxed);
            if mine.is_ok()
                && let Some(number) = self.place(front)?.swap(0, Ordering::AcqRel).checked_sub(1)
            {
                return Some(number);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn in_order_round_and_round() {
        let places = [const { AtomicU32::new(0) }; 3];
        let ends = [const { AtomicU64::new(0) }; 2];
        let fifo = Fifo {
            places: &places,
            ends: &ends,
        };
        assert_eq!(fifo.pop(), None);
        for round in 0..5 {
            [round, 7, 9].into_iter().for_each(|n| fifo.push(n));
            assert_eq!(
                (fifo.pop(), fifo.pop(), fifo.pop(), fifo.pop()),
                (Some(round), Some(7), Some(9), None)
            );
        }
        // A pusher that died left its place empty.
        ends[1].fetch_add(1, Ordering::Relaxed);
        fifo.push(4);
        assert_eq!((fifo.pop(), fifo.pop()), (Some(4), None));
        let nowhere = Fifo {
            places: &[],
            ends: &ends,
        };
        nowhere.push(1);
        assert_eq!(nowhere.pop(), None);
    }
}
