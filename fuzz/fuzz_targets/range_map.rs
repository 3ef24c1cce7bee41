//! The range map beside a naive model, and with any numbers.
#![no_main]

#[allow(dead_code, reason = "the models of the other structures are for other targets")]
#[path = "../../crates/farpage-core/tests/models/mod.rs"]
mod models;

use libfuzzer_sys::fuzz_target;
use models::range_map::{Event, follow, survive};
use models::{Input, events};

fuzz_target!(|bytes: &[u8]| {
    let questions = bytes
        .chunks_exact(4)
        .take(8)
        .map(|q| (u64::from(q[0] % 72), u64::from(q[1] % 72), u64::from(q[2] % 12), u64::from(q[3] % 9)));
    follow(events(Input(bytes), Event::read), questions);
    survive(events(Input(bytes), |input| {
        Some([input.number()?, input.number()?, input.number()?, input.number()?])
    }));
});
