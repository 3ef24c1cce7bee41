//! A set of bits beside the standard library's.

use std::collections::BTreeSet;

use farpage_core::bit_tree::BitTree;
use farpage_core::sync::{AtomicU64, Ordering};

use super::Input;
use super::slots_memory::zeros;

/// So many that the highest level has more than one word.
pub const LEN: usize = 64 * 64 * 64 * 2 + 100;

#[derive(Debug, Clone, Copy)]
pub enum Event {
    Insert(usize),
    Remove(usize),
    /// One who took this member out, while another one of its word was put in, dies before he looks at that again: the
    /// summary above them is clear. It stays so until the next event of this kind, which mends it.
    Die(usize),
    /// The least member from the first number on, and below the second.
    Next(usize, usize),
}

impl Event {
    /// The next event that some bytes say; none at their end.
    pub fn read(input: &mut Input<'_>) -> Option<Self> {
        let (what, n) = (input.byte()?, usize::from(input.word()?));
        // Near ones collide in words, far ones in summaries.
        let member = match what / 8 % 4 {
            0 => n % 200,
            1 => n % 200 * 64,
            2 => n % 140 * 4096 % LEN,
            _ => n * 8 % LEN,
        };
        Some(match what % 8 {
            0..=2 => Self::Insert(member),
            3..=4 => Self::Remove(member),
            5 => Self::Die(member),
            _ => Self::Next(member, (member + (n << (what >> 5))).min(LEN)),
        })
    }
}

/// Does what the events say to a set and to a model of it; panics where they differ.
pub fn follow(events: impl IntoIterator<Item = Event>) {
    let words = zeros(BitTree::words(LEN));
    let tree = BitTree::new(&words, LEN);
    let mut model = BTreeSet::new();
    let mut dead: Option<usize> = None;
    for event in events {
        match event {
            Event::Insert(member) => {
                tree.insert(member);
                model.insert(member);
            }
            Event::Remove(member) => {
                tree.remove(member);
                model.remove(&member);
            }
            Event::Die(member) => match dead.take() {
                Some(member) => tree.mend(member, model.contains(&member)),
                None => {
                    tree.remove(member);
                    model.remove(&member);
                    tree.insert(member ^ 1);
                    model.insert(member ^ 1);
                    clear_above(&words, member);
                    dead = Some(member);
                }
            },
            Event::Next(from, end) => {
                let found = tree.next(from, end);
                let first = model.range(from..end.max(from)).next().copied();
                if dead.is_none() {
                    assert_eq!(found, first);
                }
                assert!(found.is_none_or(|found| found < end && model.contains(&found)));
                assert!(first.is_none_or(|first| tree.contains(first)));
            }
        }
    }
    if let Some(member) = dead {
        tree.mend(member, model.contains(&member));
    }
    let found: BTreeSet<usize> = walk(&tree).collect();
    assert_eq!(found, model);
}

/// The summary bits above a member, as one who thinks that its word is empty clears them.
fn clear_above(words: &[AtomicU64], member: usize) {
    let first = LEN.div_ceil(64);
    let (low, high) = (member / 64, member / 4096);
    let left = words[first + low / 64].fetch_and(!(1 << (low % 64)), Ordering::Relaxed) & !(1 << (low % 64));
    if left == 0 {
        let second = first + first.div_ceil(64);
        words[second + high / 64].fetch_and(!(1 << (high % 64)), Ordering::Relaxed);
    }
}

fn walk(tree: &BitTree<'_>) -> impl Iterator<Item = usize> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let found = tree.next(at, LEN)?;
        at = found + 1;
        Some(found)
    })
}
