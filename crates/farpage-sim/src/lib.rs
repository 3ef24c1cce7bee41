//! Decisions of `farpage-core` without a machine: many CPUs in virtual time, and recorded programs.
//!
//! | module | what it answers |
//! |---|---|
//! | [`contention`] | how long faults wait for locks with 1 to 96 CPUs, before and after what farpage does |
//! | [`reclaim`] | how often reclaim policies miss on recorded programs, beside the best possible |
//! | [`rng`] | numbers that a seed repeats |
//!
//! What is simulated is time and other CPUs, never the structures: those of `farpage-core` run as they are.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod contention;
pub mod reclaim;
pub mod rng;
