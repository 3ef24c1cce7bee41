//! The search for free words in a cluster.

use super::Request;
use crate::sync::{AtomicU64, Ordering};

/// Free words to take.
pub(super) struct Found {
    pub(super) start: usize,
    /// 0: there are none.
    pub(super) count: usize,
    /// They reach from where the last allocation ended to the end of the cluster.
    pub(super) is_rest: bool,
    /// The longest run beside this one, where all was looked at.
    pub(super) longest_left: Option<usize>,
}

/// The free words to take: a whole aligned group, or for order 0 what follows `from` if that is enough or all, else the
/// first run of the length wanted, else the longest there is. Looks from `from` to the end, then from the front.
pub(super) fn find(words: &[AtomicU64], from: usize, request: &Request) -> Found {
    let is_free = |word: &AtomicU64| word.load(Ordering::Relaxed) == 0;
    let from = from.min(words.len());
    let at = |start, count| Found {
        start,
        count,
        is_rest: false,
        longest_left: None,
    };
    if request.order > 0 {
        let len = 1 << request.order;
        let first = from.next_multiple_of(len);
        let mut starts = (first..words.len()).step_by(len).chain((0..first).step_by(len));
        let whole = |start: &usize| {
            words
                .get(*start..*start + len)
                .is_some_and(|g| g.iter().all(is_free))
        };
        return starts.find(whole).map_or(at(0, 0), |start| at(start, len));
    }
    let ahead = words
        .iter()
        .skip(from)
        .take(request.want)
        .take_while(|word| is_free(word))
        .count();
    if ahead == request.want || (ahead > 0 && from + ahead == words.len()) {
        return Found {
            is_rest: true,
            ..at(from, ahead)
        };
    }
    // Not from the middle of a run.
    let behind = words.iter().take(from).rev().take_while(|word| is_free(word));
    let from = from - behind.count();
    // The longest run, and the longest but that.
    let (mut best, mut longest, mut second) = (0, 0, 0);
    for (lo, hi) in [(from, words.len()), (0, from)] {
        let mut run = 0;
        let part = words.iter().enumerate().take(hi).skip(lo);
        for (at_word, is_free) in part.map(|(at, word)| (at, is_free(word))).chain([(hi, false)]) {
            if is_free {
                run += 1;
                if run == request.want {
                    return at(at_word + 1 - run, run);
                }
                continue;
            }
            if run > longest {
                (best, second, longest) = (at_word - run, longest, run);
            } else {
                second = second.max(run);
            }
            run = 0;
        }
    }
    Found {
        longest_left: Some(second),
        ..at(best, longest)
    }
}
