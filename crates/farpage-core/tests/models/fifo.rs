//! The queue of numbers beside a list of the tickets that are out.

use std::collections::VecDeque;

use farpage_core::fifo::Fifo;
use farpage_core::sync::{AtomicU32, AtomicU64, Ordering};

use super::Input;

/// Few, so that the queue gets longer than it can be.
const PLACES: usize = 6;

#[derive(Debug, Clone, Copy)]
pub enum Event {
    Push(u32),
    Pop,
    /// A pusher takes its ticket and dies.
    Die,
}

impl Event {
    /// The next event that some bytes say; none at their end.
    pub fn read(input: &mut Input<'_>) -> Option<Self> {
        let what = input.byte()?;
        Some(match what % 8 {
            0..=3 => Self::Push(u32::from(what / 8)),
            4 => Self::Die,
            _ => Self::Pop,
        })
    }
}

#[derive(Default)]
struct Model {
    /// The numbers of the tickets that are out, oldest first; none for a dead pusher's.
    tickets: VecDeque<Option<u32>>,
    /// There were more than places at a time: what waits may have been lost, and comes in another order.
    lossy: bool,
}

impl Model {
    fn came_out(&mut self, number: Option<u32>) {
        if !self.lossy {
            let oldest = self.tickets.iter().position(Option::is_some);
            let mut gone = self
                .tickets
                .drain(..oldest.map_or(self.tickets.len(), |at| at + 1));
            assert_eq!(number, gone.next_back().flatten());
            return;
        }
        let Some(number) = number else {
            (self.lossy, self.tickets) = (false, VecDeque::new());
            return;
        };
        let at = self.tickets.iter().position(|ticket| *ticket == Some(number));
        self.tickets
            .remove(at.expect("came out more often than it went in"));
    }
}

/// Does what the events say to a queue and to a model of it; panics where they differ.
pub fn follow(events: impl IntoIterator<Item = Event>) {
    let places = [const { AtomicU32::new(0) }; PLACES];
    let ends = [const { AtomicU64::new(0) }; 2];
    let fifo = Fifo {
        places: &places,
        ends: &ends,
    };
    let mut model = Model::default();
    for event in events {
        match event {
            Event::Push(number) => {
                fifo.push(number);
                model.tickets.push_back(Some(number));
            }
            Event::Pop => model.came_out(fifo.pop()),
            Event::Die => {
                ends[1].fetch_add(1, Ordering::Relaxed);
                model.tickets.push_back(None);
            }
        }
        model.lossy |= model.tickets.len() > PLACES;
        if model.lossy {
            assert!(fifo.waiting().count() <= PLACES);
        } else {
            assert!(fifo.waiting().eq(model.tickets.iter().copied().flatten()));
        }
    }
    let mut left = PLACES;
    while let Some(number) = fifo.pop() {
        model.came_out(Some(number));
        left = left.checked_sub(1).expect("no more than it has places for");
    }
    model.came_out(None);
}
