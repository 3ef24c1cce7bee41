//! A queue of small numbers in shared words that no death can stop.
//!
//! Each end is a ticket; a ticket's place is its number modulo the length. A pusher takes a ticket and fills the place; if
//! it dies in between the place stays empty and is passed over. A pusher that lives finds that it was, and takes another
//! ticket. Entries are hints: whoever pops one checks what it names. A number may be lost (its pusher died, or more were
//! pushed than there are places) and may come twice.

use crate::kill_point;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Tickets that a pusher takes for one number. Each but the first means that a popper came between the same two instructions.
const PUSH_TRIES: usize = 16;

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
        let entry = number.wrapping_add(1);
        for _ in 0..PUSH_TRIES {
            let ticket = self.ends[1].fetch_add(1, Ordering::AcqRel);
            let Some(place) = self.place(ticket) else { return };
            kill_point!("queue-ticket");
            // Exchanged and not stored: after a popper that found the place empty, this sees the front that it moved.
            place.swap(entry, Ordering::AcqRel);
            let passed = self.ends[0].load(Ordering::Acquire) > ticket;
            let is_left = || {
                place
                    .compare_exchange(entry, 0, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            };
            if !passed || !is_left() {
                return;
            }
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
        // The front is past a ticket whose number is not there yet.
        ends[0].fetch_add(1, Ordering::Relaxed);
        fifo.push(6);
        assert_eq!((fifo.pop(), fifo.pop()), (Some(6), None));
        let nowhere = Fifo {
            places: &[],
            ends: &ends,
        };
        nowhere.push(1);
        assert_eq!(nowhere.pop(), None);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::slots::models::explore;
    use loom::sync::Arc;
    use loom::thread;
    use std::vec::Vec;

    struct Memory {
        places: [AtomicU32; 3],
        ends: [AtomicU64; 2],
    }

    impl Memory {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                places: core::array::from_fn(|_| AtomicU32::new(0)),
                ends: core::array::from_fn(|_| AtomicU64::new(0)),
            })
        }

        fn fifo(&self) -> Fifo<'_> {
            Fifo {
                places: &self.places,
                ends: &self.ends,
            }
        }
    }

    /// Seen: a popper that came between a pusher's ticket and its number passed over the place, and the number stayed there,
    /// behind the front. Its cluster said that it waits to be written back, and nobody ever came to it.
    #[test]
    fn push_against_pop() {
        explore(|| {
            let memory = Memory::new();
            let other = Arc::clone(&memory);
            let pushing = thread::spawn(move || other.fifo().push(7));
            let early = memory.fifo().pop();
            pushing.join().unwrap();
            let late = memory.fifo().pop();
            let out: Vec<u32> = early.into_iter().chain(late).collect();
            assert_eq!(out, [7], "once");
            assert_eq!(memory.fifo().pop(), None);
        });
    }

    /// Two take numbers out while a third one comes: each comes out once.
    #[test]
    fn pop_against_pop_and_push() {
        explore(|| {
            let memory = Memory::new();
            memory.fifo().push(5);
            let other = Arc::clone(&memory);
            let popping = thread::spawn(move || {
                let out = other.fifo().pop();
                other.fifo().push(6);
                out
            });
            let mine = memory.fifo().pop();
            let theirs = popping.join().unwrap();
            let rest = core::iter::from_fn(|| memory.fifo().pop());
            let mut out: Vec<u32> = mine.into_iter().chain(theirs).chain(rest).collect();
            out.sort_unstable();
            assert_eq!(out, [5, 6]);
        });
    }
}
