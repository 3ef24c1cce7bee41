//! Decisions of `farpage-core` without a program under it: many CPUs in virtual time, its operations by themselves, recorded programs.
//!
//! | module | what it answers |
//! |---|---|
//! | [`contention`] | how long faults wait for locks with 1 to 96 CPUs, before and after what farpage does |
//! | [`operations`] | what an operation on slots and swap cache takes on this machine, beside what systems C and T replaced |
//! | [`reclaim`] | how often reclaim policies miss on recorded programs, beside the best possible |
//! | [`rng`] | numbers that a seed repeats |
//!
//! What is simulated is time and other CPUs, never the structures: those of `farpage-core` run as they are.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod contention;
pub mod operations;
pub mod reclaim;
pub mod rng;
