//! The one door to atomics.
//!
//! Every module takes its atomics from here, so that a model checker can be put behind the door by changing
//! one file. Only the plain integer atomics are offered: no lock of any kind, because its holder may die or
//! be interrupted.

pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
