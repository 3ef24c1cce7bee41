//! Refault distances beside a naive model.

#[allow(dead_code, reason = "the models of the other structures are for other tests")]
mod models;

use models::workingset::{Event, follow};
use models::{Input, events};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn follows_the_model(epoch in 1..40u64, bytes in prop::collection::vec(any::<[u8; 4]>(), 0..200)) {
        let bytes = bytes.concat();
        follow(epoch, events(Input(&bytes), Event::read));
    }
}
