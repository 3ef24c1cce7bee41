//! The range map beside a naive model: a set of page numbers.

#[allow(dead_code, reason = "the models of the other structures are for other tests")]
mod models;

use models::range_map::{Event, PAGES, follow, survive};
use proptest::prelude::*;

fn event() -> impl Strategy<Value = Event> {
    (any::<bool>(), 0..PAGES, 0..PAGES / 2).prop_map(|(insert, start, len)| Event::new(insert, start, len))
}

proptest! {
    #[test]
    fn follows_the_model(
        events in prop::collection::vec(event(), 0..60),
        questions in prop::collection::vec((0..PAGES + 8, 0..PAGES + 8, 0..12u64, 0..9u64), 20),
    ) {
        follow(events, questions);
    }

    #[test]
    fn survives_any_numbers(numbers in prop::collection::vec(any::<[u64; 4]>(), 0..20)) {
        survive(numbers);
    }
}
