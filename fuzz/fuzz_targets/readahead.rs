//! The promises of every readahead policy.
#![no_main]

#[allow(dead_code, reason = "the models of the other structures are for other targets")]
#[path = "../../crates/farpage-core/tests/models/mod.rs"]
mod models;

use libfuzzer_sys::fuzz_target;
use farpage_core::readahead::Policy;
use models::readahead::{Limits, follow, read};
use models::{Input, events};

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let (Some(what), Some(budget), Some(window_max)) = (input.byte(), input.word(), input.word()) else {
        return;
    };
    let limits = Limits {
        row_mask: if what & 0x40 == 0 { 0 } else { 0xfff },
        page_cluster: u32::from(what / 4),
        budget: u32::from(budget) % 2100,
        window_max: u32::from(window_max) % 2100,
    };
    let walk: Vec<_> = events(input, read).flatten().collect();
    follow(Policy::ALL[usize::from(what % 4)], walk, limits);
});
