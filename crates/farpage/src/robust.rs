//! The locks that a thread holds as it ends (robust mutexes).
//!
//! The kernel then walks a list through the locks themselves (set_robust_list(2)), to mark each and to wake who waits for it. However faults are
//! delivered, it waits for no page there, and stops at the first that is out: who wants a lock behind that would wait for ever. So the thread walks
//! its list before, and what the kernel is to touch stays in RAM until it has ended.

use crate::errand;
use crate::fault;
use crate::in_flight;
use crate::mm::Mm;
use crate::trap;

/// ROBUST_LIST_LIMIT: the kernel looks at no more entries.
const ENTRIES_MAX: u32 = 2048;
/// Bit of a pointer to an entry: its lock inherits priority.
const PI: u64 = 1;
const HEAD_BYTES: u64 = 24;

/// The calling thread is about to end, or about to make the call that ends it.
pub fn keep_list(mm: &Mm) {
    // What a child borrows (vfork) its parent may need back at once.
    if !mm.is_active() || !mm.is_own() {
        return;
    }
    let mut last = None;
    walk(errand::robust_list(), &mut trap::read_word, &mut |start, len| {
        let (lo, hi) = trap::managed_part(start, len).unwrap_or_default();
        for page in (lo..hi).filter(|page| last != Some(*page)) {
            if fault::pin(mm, page) {
                in_flight::keep_to_end(mm, page);
                fault::unpin(mm, page);
            }
        }
        last = hi.checked_sub(1).or(last);
    });
}

/// Emits what the kernel may touch (start, length in bytes), each before it is read: `read` gives the eight bytes at any address, or `None` for a bad
/// pointer, which ends the walk as it ends the kernel's.
fn walk(head: u64, read: &mut dyn FnMut(u64) -> Option<u64>, emit: &mut dyn FnMut(u64, u64)) {
    if head == 0 || head.checked_add(HEAD_BYTES).is_none() {
        return;
    }
    emit(head, HEAD_BYTES);
    let (Some(first), Some(offset), Some(pending)) = (read(head), read(head + 8), read(head + 16)) else {
        return;
    };
    let lock_of = |entry: u64| (entry & !PI).wrapping_add(offset);
    let mut entry = first;
    for _ in 0..ENTRIES_MAX {
        if entry & !PI == head {
            break;
        }
        emit(entry & !PI, 8);
        emit(lock_of(entry), 4);
        let Some(next) = read(entry & !PI) else { break };
        entry = next;
    }
    // The lock that it was about to take or leave.
    if pending & !PI != 0 {
        emit(lock_of(pending), 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const HEAD: u64 = 0x1000;

    fn walked(words: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let words: HashMap<u64, u64> = words.iter().copied().collect();
        let mut emitted = Vec::new();
        walk(HEAD, &mut |at| words.get(&at).copied(), &mut |start, len| {
            emitted.push((start, len))
        });
        emitted
    }

    fn head(first: u64, pending: u64) -> [(u64, u64); 3] {
        // As glibc has it: the lock lies 32 bytes before the entry.
        [
            (HEAD, first),
            (HEAD + 8, 32u64.wrapping_neg()),
            (HEAD + 16, pending),
        ]
    }

    #[test]
    fn a_list_is_walked_to_its_end() {
        assert_eq!(walked(&head(HEAD, 0)), [(HEAD, 24)]);
        let list = [
            &head(0x5020 | PI, 0x9020)[..],
            &[(0x5020, 0x7020), (0x7020, HEAD)],
        ]
        .concat();
        let expected = [
            (HEAD, 24),
            (0x5020, 8),
            (0x5000, 4),
            (0x7020, 8),
            (0x7000, 4),
            (0x9000, 4),
        ];
        assert_eq!(walked(&list), expected);
    }

    #[test]
    fn bad_pointers_and_circles_end_it() {
        assert_eq!(walked(&[]), [(HEAD, 24)]);
        assert_eq!(walked(&head(0x5020, 0)), [(HEAD, 24), (0x5020, 8), (0x5000, 4)]);
        let circle = [&head(0x5020, 0)[..], &[(0x5020, 0x5020)]].concat();
        assert_eq!(walked(&circle).len(), 1 + 2 * ENTRIES_MAX as usize);
        walk(u64::MAX - 5, &mut |_| Some(0), &mut |_, _| unreachable!());
    }
}
