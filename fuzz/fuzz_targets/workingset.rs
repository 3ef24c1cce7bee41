//! Refault distances beside a naive model.
#![no_main]

#[allow(dead_code, reason = "the models of the other structures are for other targets")]
#[path = "../../crates/farpage-core/tests/models/mod.rs"]
mod models;

use libfuzzer_sys::fuzz_target;
use models::workingset::{Event, follow};
use models::{Input, events};

fuzz_target!(|bytes: &[u8]| {
    if let Some((&epoch, rest)) = bytes.split_first() {
        follow(u64::from(epoch) % 40 + 1, events(Input(rest), Event::read));
    }
});
