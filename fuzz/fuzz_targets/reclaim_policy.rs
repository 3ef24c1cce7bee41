//! Each reclaim policy beside a naive one.
#![no_main]

#[allow(dead_code, reason = "the models of the other structures are for other targets")]
#[path = "../../crates/farpage-core/tests/models/mod.rs"]
mod models;

use libfuzzer_sys::fuzz_target;
use models::reclaim_policy::{Event, follow};
use models::{Input, events};

fuzz_target!(|bytes: &[u8]| follow(&events(Input(bytes), Event::read).collect::<Vec<_>>()));
