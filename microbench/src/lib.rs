//! The operations of the swap core beside what systems C and T replaced ([`farpage_sim::operations`]), to be timed and counted.
//!
//! `benches/core.rs` times them, `src/main.rs` does a given number of them so that an instruction counter can watch.

pub use farpage_sim::operations::{Operation, SIDES, Side, THREADS, side, timed};
