//! Each reclaim policy beside a naive one.

#[allow(dead_code, reason = "the models of the other structures are for other tests")]
mod models;

use models::reclaim_policy::{Event, follow};
use models::{Input, events};
use proptest::prelude::*;

proptest! {
    #[test]
    fn each_policy_follows_the_naive_one(bytes in prop::collection::vec(any::<[u8; 2]>(), 0..300)) {
        let bytes = bytes.concat();
        let events: Vec<_> = events(Input(&bytes), Event::read).collect();
        follow(&events);
    }
}
