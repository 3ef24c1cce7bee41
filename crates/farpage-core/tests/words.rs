//! Packed words and sizes: what goes in comes out, and nothing else changes.

use farpage_core::page_state::{FRAME_MAX, Kind, PIN_MAX, PageState};
use farpage_core::readahead::{RaWord, vma_range, window};
use farpage_core::stats::Histogram;
use farpage_core::swap_table::{Backing, SlotKind, SlotWord};
use farpage_core::units::{PAGE_SIZE, SizeError, format_size, pages, parse_size};
use farpage_core::zpool::{CLASSES, Handle, ZPAGES_MAX};
use proptest::prelude::*;

fn any_state() -> impl Strategy<Value = PageState> {
    let base = prop_oneof![
        Just(PageState::untouched()),
        any::<u32>().prop_map(|slot| PageState::resident().keeping(slot)),
        Just(PageState::zero()),
        (0..=FRAME_MAX, any::<u32>()).prop_map(|(frame, slot)| PageState::cached(frame).keeping(slot)),
        any::<u32>().prop_map(PageState::swapped),
    ];
    (base, 0..=PIN_MAX, any::<[bool; 3]>()).prop_map(|(state, pins, [locked, young, readahead])| {
        let state = state.with_pins(pins).with_young(young).with_readahead(readahead);
        if locked { state.locked() } else { state }
    })
}

fn any_backing() -> impl Strategy<Value = Backing> {
    prop_oneof![
        (0..1u64 << 40).prop_map(|handle| Backing::Compressed(Handle(handle))),
        any::<u32>().prop_map(|crc| Backing::Device { crc }),
        any::<u32>().prop_map(|to| Backing::Moved { to }),
    ]
}

/// Everything a state says, as a tuple.
fn parts(s: PageState) -> (Kind, (u64, u32), u16, bool, bool, bool) {
    (
        s.kind(),
        (s.frame(), s.slot()),
        s.pins(),
        s.is_locked(),
        s.young(),
        s.readahead(),
    )
}

proptest! {
    #[test]
    fn page_state_fields_are_independent(s in any_state(), pins in 0..=PIN_MAX, slot: u32, on: bool) {
        let (kind, payload, old_pins, locked, young, readahead) = parts(s);
        prop_assert_eq!(parts(s.with_pins(pins)), (kind, payload, pins, locked, young, readahead));
        prop_assert_eq!(parts(s.keeping(slot)), (kind, (payload.0, slot), old_pins, locked, young, readahead));
        prop_assert_eq!(parts(s.with_young(on)), (kind, payload, old_pins, locked, on, readahead));
        prop_assert_eq!(parts(s.with_readahead(on)), (kind, payload, old_pins, locked, young, on));
        prop_assert_eq!(parts(s.locked()), (kind, payload, old_pins, true, young, readahead));
        prop_assert_eq!(parts(s.unlocked()), (kind, payload, old_pins, false, young, readahead));
        prop_assert_eq!(PageState(s.raw()), s);
    }

    #[test]
    fn page_state_successors(old in any_state(), new in any_state()) {
        let (kind, payload, _, _, young, readahead) = parts(new);
        prop_assert_eq!(parts(old.replace(new)), (kind, payload, old.pins(), false, young, readahead));
        let (_, _, pins, locked, young, readahead) = parts(old);
        prop_assert_eq!(parts(old.with_kind_of(new)), (kind, payload, pins, locked, young, readahead));
    }

    #[test]
    fn page_state_payloads(frame in 0..=FRAME_MAX, slot: u32, stamp: u8) {
        prop_assert_eq!(PageState::cached(frame).frame(), frame);
        let stamped = PageState::stamped(slot, stamp);
        prop_assert_eq!((stamped.kind(), stamped.slot(), stamped.stamp()), (Kind::Swapped, slot, stamp));
        prop_assert_eq!(PageState::stamped(slot, 0), PageState::swapped(slot));
        prop_assert_eq!(PageState::swapped(slot).slot(), slot);
    }

    #[test]
    fn slot_words(start: u64, backing in any_backing(), count: u16, owner: u16) {
        let start = SlotWord(start);
        let word = start.backed(backing, count).unwrap();
        prop_assert_eq!((word.backing(), word.count(), word.owner()), (Some(backing), count, None));
        prop_assert_eq!(word.generation(), (start.generation() + 1) % 32);
        let busy = word.busy(owner);
        prop_assert_eq!((busy.kind(), busy.owner(), busy.count()), (SlotKind::Busy, Some(owner), 0));
        prop_assert_eq!((busy.backing(), busy.generation()), (None, word.generation()));
        let gone = busy.released();
        prop_assert_eq!((gone.kind(), gone.count(), gone.location()), (SlotKind::Released, 0, 0));
        prop_assert_eq!(SlotWord::taken(owner, word.generation()), busy);
    }

    #[test]
    fn same_backing_ignores_the_count_only(a in any_backing(), b in any_backing(), m: u16, n: u16) {
        let start = SlotWord(0);
        let (x, y) = (start.backed(a, m).unwrap(), start.backed(b, n).unwrap());
        prop_assert_eq!(x.same_backing(y), a == b);
        prop_assert!(!x.same_backing(x.backed(a, m).unwrap()), "another generation");
        prop_assert!(!x.busy(m).same_backing(x.busy(m)), "not backed at all");
    }

    #[test]
    fn handles(class in 0..CLASSES, zpage in 0..ZPAGES_MAX, index in 0..256usize) {
        let handle = Handle::new(class, zpage, index);
        prop_assert_eq!((handle.class(), handle.zpage(), handle.index()), (class, zpage, index));
    }

    #[test]
    fn region_words(page in 1..1u64 << 52, win in 0..64u32, hits in 0..64u32, marked: bool) {
        let word = RaWord::pack(page, win, hits);
        prop_assert_eq!(word.unpack(), (page, win, hits));
        prop_assert_eq!(word.0 >> 12, page);
        let hits = (hits + u32::from(marked)).min(63);
        prop_assert_eq!(word.hit(page ^ 1, marked).unpack(), (page ^ 1, win, hits));
    }

    #[test]
    fn windows_are_bounded(prev: u64, page: u64, hits: u32, max_log in 0..6u32, last_log in 0..6u32) {
        let (max, last) = (1 << max_log, 1 << last_log);
        let win = window(prev, page, hits, max, last);
        prop_assert!(win.is_power_of_two());
        prop_assert!(win <= max.max(last / 2) && win >= last / 2);
    }

    #[test]
    fn ranges_hold_the_page_and_stay_inside(
        prev: u64,
        page: u64,
        win in 0..64u32,
        lo: u64,
        hi: u64,
        near in -2..3i64,
    ) {
        let prev = if near.abs() < 2 { page.wrapping_add_signed(near) } else { prev };
        let (start, len) = vma_range(prev, page, win, lo, hi);
        prop_assert!(len >= 1 && len <= win.max(1));
        prop_assert!(start <= page && page - start < u64::from(len));
        if (lo..hi).contains(&page) {
            let last = start + u64::from(len - 1);
            prop_assert!(start >= lo && last < hi);
            prop_assert_eq!((start >> 9, last >> 9), (page >> 9, page >> 9), "one huge page");
        }
    }

    #[test]
    fn histogram_buckets(ns: u64, shift in 0..64u32) {
        let ns = ns >> shift;
        let bucket = Histogram::bucket_of(ns);
        prop_assert!(bucket < Histogram::BUCKETS && ns <= Histogram::upper_bound(bucket));
        prop_assert!(bucket == 0 || ns > Histogram::upper_bound(bucket - 1));
        if (64..Histogram::OVERFLOW_NS).contains(&ns) {
            prop_assert!(Histogram::upper_bound(bucket) - ns <= ns / 8, "known to 12.5 %");
        }
    }

    #[test]
    fn percentiles_match_sorting(
        mut samples in prop::collection::vec(0..1u64 << 40, 1..200),
        p in 0.0..=100.0f64,
    ) {
        let mut counts = [0u64; Histogram::BUCKETS];
        samples.iter().for_each(|&ns| counts[Histogram::bucket_of(ns)] += 1);
        samples.sort_unstable();
        let rank = ((p / 100.0 * samples.len() as f64).ceil() as usize).clamp(1, samples.len());
        let exact = Histogram::upper_bound(Histogram::bucket_of(samples[rank - 1]));
        prop_assert_eq!(Histogram::percentile(&counts, p), Some(exact.min(Histogram::OVERFLOW_NS)));
    }

    #[test]
    fn sizes_read_back(bytes: u64, shift in 0..64u32) {
        let bytes = bytes >> shift;
        let text = format_size(bytes).to_string();
        match parse_size(&text) {
            Ok(read) => prop_assert!(read.abs_diff(bytes) <= bytes / 19, "{} -> {} -> {}", bytes, text, read),
            Err(error) => prop_assert!(error == SizeError::Overflow && bytes > u64::MAX / 20 * 19),
        }
        prop_assert_eq!(parse_size(&bytes.to_string()), Ok(bytes));
    }

    #[test]
    fn size_units_agree(n in 0..1u64 << 20) {
        for (letter, shift) in [('K', 10), ('M', 20), ('G', 30), ('T', 40)] {
            for text in [format!("{n}{letter}"), format!("{n}.0{letter}iB"), format!("{n} {letter}ib")] {
                prop_assert_eq!(parse_size(&text), Ok(n << shift));
            }
            prop_assert_eq!(parse_size(&format!("{n}{letter}B")), Err(SizeError::Ambiguous(letter)));
        }
    }

    #[test]
    fn any_text_is_answered(text in "\\PC*") {
        let _ = parse_size(&text);
    }

    #[test]
    fn pages_hold_the_bytes(bytes in 0..usize::MAX - PAGE_SIZE) {
        let held = pages(bytes) * PAGE_SIZE;
        prop_assert!(held >= bytes && held - bytes < PAGE_SIZE);
    }
}
