//! The allocator and the swap table beside a naive model.

#[allow(dead_code, reason = "the models of the other structures are for other tests")]
mod models;

use models::slots::{Event, follow};
use models::{Input, events};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn follows_the_model(bytes in prop::collection::vec(any::<[u8; 3]>(), 0..200)) {
        let bytes = bytes.concat();
        follow(events(Input(&bytes), Event::read));
    }
}
