//! A set of bits beside a naive model.

#[allow(dead_code, reason = "the models of the other structures are for other tests")]
mod models;

use models::bit_tree::{Event, follow};
use models::{Input, events};
use proptest::prelude::*;

proptest! {
    #[test]
    fn follows_the_model(bytes in prop::collection::vec(any::<[u8; 3]>(), 0..200)) {
        let bytes = bytes.concat();
        follow(events(Input(&bytes), Event::read));
    }
}
