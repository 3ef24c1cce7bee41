//! The one door to atomics.
//!
//! Every module takes its atomics from here, so that the model checker (`make loom`) stands behind the door
//! when the crate's own tests are built with `--cfg loom`. Only the plain integer atomics are offered: no
//! lock of any kind, because its holder may die or be interrupted.

#[cfg(not(all(test, loom)))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(all(test, loom))]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
