//! The gate of one process's memory: every fault, eviction and pin passes it shared; fork, munmap, mprotect and
//! activation pass it alone. While a thread is alone inside, no page-state word is locked and none changes but by it: only pins
//! come and go.
//!
//! Who is inside is counted in one word, so the shared path is one atomic addition each way. Whoever is inside has all
//! signals but ours blocked: a signal handler of the program can therefore never run on top of a holder and wait for
//! its own thread.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::errand;
use crate::sys;

/// Set in the word while a thread is alone inside or waits to be.
const ALONE: u32 = 1 << 31;
/// One sleep of who waits, in microseconds. Who leaves wakes it; else it looks whether who is inside has died.
const NAP_US: u64 = 10_000;

pub struct Gate {
    /// Threads inside, plus [`ALONE`].
    word: AtomicU32,
}

/// Being inside with others.
pub struct Shared<'a>(&'a Gate);
/// Being inside alone, with the signal mask to restore.
pub struct Alone<'a>(&'a Gate, sys::SigMask);

impl Default for Gate {
    fn default() -> Self {
        Gate::new()
    }
}

impl Gate {
    pub const fn new() -> Gate {
        Gate {
            word: AtomicU32::new(0),
        }
    }

    /// Enters beside others. The caller has blocked signals (a handler of ours, or the reclaimer).
    #[inline]
    pub fn shared(&self) -> Shared<'_> {
        let mut since = 0;
        loop {
            // Looked at before it is counted up: who backs out wakes all that wait, and two of them would keep each other awake for as long
            // as somebody is alone inside.
            let now = self.word.load(Ordering::Relaxed);
            if now & ALONE != 0 {
                sys::futex_wait(&self.word, now, false, NAP_US);
                errand::blame(&mut since);
                continue;
            }
            if self.word.fetch_add(1, Ordering::Acquire) & ALONE == 0 {
                return Shared(self);
            }
            self.leave_shared();
        }
    }

    #[inline]
    fn leave_shared(&self) {
        let left = self.word.fetch_sub(1, Ordering::Release) - 1;
        if left == ALONE {
            sys::futex_wake(&self.word, u32::MAX >> 1, false);
        }
    }

    /// In a forked child, whose only thread is alone inside: threads of the parent that were just knocking are not here.
    pub fn forget_others(&self) {
        self.word.store(ALONE, Ordering::Relaxed);
    }

    /// In a child of a fork that did not pass the gate: nobody is inside.
    pub fn open(&self) {
        self.word.store(0, Ordering::Relaxed);
    }

    /// Enters alone: waits until the others have left; later ones wait outside. Blocks signals until dropped.
    pub fn alone(&self) -> Alone<'_> {
        let mask = sys::block_signals();
        let mut since = 0;
        let mut nap = |seen| {
            sys::futex_wait(&self.word, seen, false, NAP_US);
            errand::blame(&mut since);
        };
        loop {
            let seen = self.word.load(Ordering::Relaxed);
            if seen & ALONE != 0 {
                nap(seen);
            } else if self
                .word
                .compare_exchange(seen, seen | ALONE, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                break;
            }
        }
        loop {
            let seen = self.word.load(Ordering::Acquire);
            if seen == ALONE {
                return Alone(self, mask);
            }
            nap(seen);
        }
    }
}

impl Drop for Shared<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.leave_shared();
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.word.fetch_and(!ALONE, Ordering::Release);
        sys::futex_wake(&self.0.word, u32::MAX >> 1, false);
        sys::set_mask(self.1);
    }
}

/// A spin lock for short sections of one process; holders have signals blocked and never fault.
pub struct Spin<T> {
    held: AtomicU32,
    value: core::cell::UnsafeCell<T>,
}

/// The value behind a held [`Spin`].
pub struct SpinGuard<'a, T>(&'a Spin<T>);

mod spin_unsafe {
    //! # Safety
    //! `held` admits one guard at a time, so the value has one user.
    #![allow(unsafe_code)]
    use super::*;

    // SAFETY: access to the value goes through the lock.
    unsafe impl<T: Send> Sync for Spin<T> {}

    impl<T> core::ops::Deref for SpinGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            // SAFETY: this guard holds the lock.
            unsafe { &*self.0.value.get() }
        }
    }

    impl<T> core::ops::DerefMut for SpinGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: this guard holds the lock, alone.
            unsafe { &mut *self.0.value.get() }
        }
    }
}

impl<T> Spin<T> {
    pub const fn new(value: T) -> Spin<T> {
        Spin {
            held: AtomicU32::new(0),
            value: core::cell::UnsafeCell::new(value),
        }
    }

    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        let free = self
            .held
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        // Lazily: a guard made and dropped here would let go of a lock that somebody else holds.
        free.then(|| SpinGuard(self))
    }

    /// In a forked child, whose one thread holds no lock: lets go for a thread that is not here. True if one held it: the
    /// value may be half changed.
    pub fn abandon(&self) -> bool {
        self.held.swap(0, Ordering::AcqRel) != 0
    }

    /// Spins a little, then sleeps in short naps: the holder may have lost its CPU.
    pub fn lock(&self) -> SpinGuard<'_, T> {
        let (mut turns, mut since) = (0, 0);
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            turns += 1;
            if turns % 128 == 0 {
                sys::futex_wait(&self.held, 1, false, 50);
                errand::blame(&mut since);
            }
            core::hint::spin_loop();
        }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    fn drop(&mut self) {
        self.0.held.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// A failed `try_lock` once released the lock: `then_some` builds (and drops) its guard whether or not it is wanted. Two threads then
    /// took the same block of frames, and a page vanished while it was being written.
    #[test]
    fn a_failed_try_leaves_the_lock_held() {
        let spin = Spin::new(0u32);
        let guard = spin.lock();
        assert!(spin.try_lock().is_none());
        assert!(spin.try_lock().is_none());
        drop(guard);
        assert!(spin.try_lock().is_some());
    }

    #[test]
    fn spin_excludes() {
        let spin = Arc::new(Spin::new(0u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let spin = Arc::clone(&spin);
                std::thread::spawn(move || (0..20_000).for_each(|_| *spin.lock() += 1))
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*spin.lock(), 80_000);
    }

    /// Who counted himself in to look, and out again, woke the others, which did the same: they spun in the kernel for as long as one was
    /// alone inside.
    #[test]
    fn who_waits_to_enter_leaves_the_word_alone() {
        let gate = Arc::new(Gate::new());
        let alone = gate.alone();
        let coming = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (gate, coming) = (Arc::clone(&gate), Arc::clone(&coming));
                std::thread::spawn(move || {
                    coming.fetch_add(1, Ordering::Relaxed);
                    drop(gate.shared());
                })
            })
            .collect();
        while coming.load(Ordering::Relaxed) < 3 {
            std::thread::yield_now();
        }
        // Their naps end some ten times meanwhile.
        let began = std::time::Instant::now();
        while began.elapsed().as_micros() < 10 * u128::from(NAP_US) {
            for _ in 0..1000 {
                assert_eq!(gate.word.load(Ordering::Relaxed), ALONE);
            }
        }
        drop(alone);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn alone_excludes_shared_and_alone() {
        let gate = Arc::new(Gate::new());
        let inside = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = (0..4)
            .map(|i| {
                let (gate, inside) = (Arc::clone(&gate), Arc::clone(&inside));
                std::thread::spawn(move || {
                    for turn in 0..5_000 {
                        if (turn + i) % 16 == 0 {
                            let _alone = gate.alone();
                            assert_eq!(inside.fetch_add(1000, Ordering::SeqCst), 0);
                            inside.fetch_sub(1000, Ordering::SeqCst);
                        } else {
                            let _shared = gate.shared();
                            assert!(inside.fetch_add(1, Ordering::SeqCst) < 1000);
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
    }
}
