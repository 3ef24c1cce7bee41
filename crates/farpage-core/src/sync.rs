//! The one door to atomics.
//!
//! Every module takes its atomics from here, so that the model checker (`make loom`) stands behind the door
//! when the crate's own tests are built with `--cfg loom`. Only the plain integer atomics are offered: no
//! lock of any kind, because its holder may die or be interrupted.

#[cfg(not(all(test, loom)))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(all(test, loom))]
pub use modelled::{AtomicU32, AtomicU64, Ordering, fence};

/// loom's atomics, and with them its blind spot: of the accesses to a word it remembers the last one only, so a thread's own
/// load hides that of another from the change it makes next, and "A looks after B's change" is never run (loom's issues 166
/// and 392). All changes here are a load and an exchange. So each load is preceded by a store to a word beside it, which
/// loom orders with all others of its kind; it is relaxed, so nothing is seen sooner for it.
#[cfg(all(test, loom))]
mod modelled {
    use core::ops::Deref;

    use loom::sync::atomic::{self, AtomicBool};
    pub use loom::sync::atomic::{Ordering, fence};

    macro_rules! atomic {
        ($name:ident, $value:ty) => {
            /// The model checker's.
            #[derive(Debug, Default)]
            pub struct $name {
                word: atomic::$name,
                looks: AtomicBool,
            }

            impl $name {
                /// As the model checker's.
                pub fn new(value: $value) -> Self {
                    let (word, looks) = (atomic::$name::new(value), AtomicBool::new(false));
                    Self { word, looks }
                }

                /// As the model checker's, and seen by it.
                pub fn load(&self, order: Ordering) -> $value {
                    self.looks.store(true, Ordering::Relaxed);
                    self.word.load(order)
                }
            }

            impl Deref for $name {
                type Target = atomic::$name;

                fn deref(&self) -> &Self::Target {
                    &self.word
                }
            }
        };
    }
    atomic!(AtomicU32, u32);
    atomic!(AtomicU64, u64);

    /// Of one thread that looks and another that changes a word each outcome is run, whichever of the two begins.
    #[test]
    fn models_look_before_and_after_a_change() {
        use loom::sync::Arc;
        use std::sync::Mutex;

        for main_looks in [true, false] {
            let seen = std::sync::Arc::new(Mutex::new([false; 2]));
            let outcomes = std::sync::Arc::clone(&seen);
            crate::slots::models::explore(move || {
                let word = Arc::new(AtomicU32::new(0));
                let other = Arc::clone(&word);
                let change = |word: &AtomicU32| {
                    let now = word.load(Ordering::Acquire);
                    assert_eq!(
                        word.compare_exchange(now, 1, Ordering::AcqRel, Ordering::Acquire),
                        Ok(0)
                    );
                    0
                };
                let look = |word: &AtomicU32| word.load(Ordering::Acquire) as usize;
                let spawned =
                    loom::thread::spawn(move || if main_looks { change(&other) } else { look(&other) });
                let mine = if main_looks { look(&word) } else { change(&word) };
                let outcome = mine + spawned.join().unwrap();
                outcomes.lock().unwrap()[outcome] = true;
            });
            assert_eq!(*seen.lock().unwrap(), [true, true]);
        }
    }
}
