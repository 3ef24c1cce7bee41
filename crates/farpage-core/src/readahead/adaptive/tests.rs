//! The adaptive policy by hand, under racing threads and with anything in its words.

use super::*;
use crate::sync::{AtomicU64, Ordering};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::vec::Vec;

static WORD: AtomicU64 = AtomicU64::new(0);

fn fault(page: u64, thread: u32) -> Fault<'static> {
    Fault {
        page,
        offset: 0,
        thread,
        lo: 1000,
        hi: 100_000,
        word: &WORD,
        slot: None,
        budget: 4096,
        window_max: 1024,
    }
}

fn miss(streams: &Streams, page: u64) -> (u64, u32, Option<u64>) {
    let window = streams.miss(&fault(page, 1));
    assert_eq!(window.order, Order::Virtual);
    (window.first, window.len, window.marker)
}

#[test]
fn a_forward_stream_by_hand() {
    let streams = Streams::new();
    assert_eq!(miss(&streams, 2000), (2000, 1, None));
    assert_eq!(miss(&streams, 2001), (2001, 1, None));
    assert_eq!(miss(&streams, 2002), (2002, 2, None), "2002 and 2003");
    assert_eq!(miss(&streams, 2004), (2004, 4, None), "to 2007");
    assert_eq!(miss(&streams, 2008), (2008, 8, Some(2012)), "to 2015");
    let ahead = streams.hit(&fault(2012, 1)).expect("the marker");
    assert_eq!((ahead.first, ahead.len, ahead.marker), (2016, 16, Some(2024)));
    assert_eq!(streams.hit(&fault(2013, 1)), None, "19 pages are left");
    let ahead = streams.hit(&fault(2024, 1)).expect("the marker");
    assert_eq!((ahead.first, ahead.len, ahead.marker), (2032, 32, Some(2048)));
    assert_eq!(
        miss(&streams, 9000),
        (9000, 1, None),
        "off the course: alone at once"
    );
    assert_eq!(
        miss(&streams, 2064),
        (2064, 64, Some(2096)),
        "the stream kept its window"
    );
}

#[test]
fn a_backward_and_a_strided_stream_by_hand() {
    let streams = Streams::new();
    for page in [5000, 4999] {
        assert_eq!(miss(&streams, page), (page, 1, None));
    }
    assert_eq!(miss(&streams, 4998), (4997, 2, None));
    assert_eq!(miss(&streams, 4996), (4993, 4, None));
    assert_eq!(miss(&streams, 4992), (4985, 8, Some(4988)));
    let ahead = streams.hit(&fault(4988, 1)).expect("the marker");
    assert_eq!((ahead.first, ahead.len, ahead.marker), (4969, 16, Some(4976)));
    assert_eq!(ahead.direction, Direction::Backward);
    for page in [20_000, 20_100, 20_200] {
        assert_eq!(miss(&streams, page), (page, 1, None));
    }
    let window = streams.miss(&fault(20_300, 1));
    assert_eq!((window.first, window.len, window.stride), (20_300, 2, 100));
    assert_eq!(miss(&streams, 20_500), (20_500, 4, None));
}

#[test]
fn windows_end_with_the_region_and_the_budget() {
    let streams = Streams::new();
    for page in [99_990, 99_991, 99_992, 99_994] {
        let _ = streams.miss(&fault(page, 1));
    }
    assert_eq!(miss(&streams, 99_998), (99_998, 2, None), "clipped from 8");
    assert_eq!(streams.hit(&fault(99_999, 1)), None, "nothing is left");
    let poor = |page, budget| Fault {
        budget,
        ..fault(page, 2)
    };
    for page in [3000, 3001, 3002, 3004] {
        let _ = streams.miss(&poor(page, 100));
    }
    assert_eq!(streams.miss(&poor(3008, 3)).len, 3);
    assert_eq!(streams.miss(&poor(3011, 0)).len, 1);
    assert_eq!(streams.hit(&poor(3012, 0)), None);
    assert_eq!(
        streams.miss(&poor(3013, 4096)).len,
        64,
        "the window grew meanwhile"
    );
}

#[test]
fn other_threads_and_other_pages_do_not_disturb() {
    let streams = Streams::new();
    for page in [2000, 2001, 2002] {
        for thread in 1..9 {
            let window = streams.miss(&fault(page + 5000 * u64::from(thread), thread));
            assert_eq!(window.len, if page == 2002 { 2 } else { 1 }, "thread {thread}");
        }
    }
}

#[test]
fn threads_that_take_turns_are_no_stream() {
    // About one in eight of them shares its set with thread 1.
    for other in 2..100 {
        let streams = Streams::new();
        for (page, thread) in [(2000, 1), (2001, other), (2002, 1), (2003, other)] {
            assert_eq!(streams.miss(&fault(page, thread)).len, 1, "thread {other}");
        }
    }
}

#[test]
fn pages_gone_before_their_touch_halve_the_window() {
    let streams = Streams::new();
    for page in [2000, 2001, 2002, 2004, 2008, 2016, 2032] {
        let _ = streams.miss(&fault(page, 1));
    }
    // 2032 to 2063 were fetched.
    for page in [2040, 2041] {
        assert_eq!(miss(&streams, page).1, 1);
    }
    assert_eq!(miss(&streams, 2042), (2042, 16, Some(2050)));
    assert_eq!(miss(&streams, 2064).1, 1, "the old stream is forgotten");
}

/// What a thread that touches `pages` has fetched for it: where, and which windows, of which the pages come that `stays` is true for. Of
/// what is there only markers and a sample are seen to be touched.
fn opened(pages: impl Iterator<Item = u64>, stays: impl Fn(u64) -> bool) -> Vec<(u64, Window)> {
    let streams = Streams::new();
    let (mut there, mut seen, mut opened) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for page in pages {
        let window = if there.insert(page) {
            Some(streams.miss(&fault(page, 1)))
        } else if seen.contains(&page) || mix(page).is_multiple_of(64) {
            streams.hit(&fault(page, 1))
        } else {
            None
        };
        if let Some(window) = window {
            there.extend(window.places().filter(|page| stays(*page)));
            seen.extend(window.marker);
            opened.push((page, window));
        }
    }
    opened
}

/// A thread walks through memory in steps of seven pages, seven times, and then page by page: it is on the course of all seven walks. They went on
/// from hit to hit, and a sequence was fetched in windows of single pages.
#[test]
fn walks_that_lead_to_every_page_become_a_sequence() {
    let walks = (2000..2007).flat_map(|first| (0..40).map(move |step| first + 7 * step));
    let opened = opened(walks.chain(2280..12_000), |_| true);
    let is_in_steps = |(page, window): &&(u64, Window)| *page >= 2280 && window.stride != 1;
    assert!(opened.iter().filter(is_in_steps).count() < 8, "{opened:?}");
}

/// Of what was read ahead of a sequence each seventh page had gone for a while: its misses were taken for a walk in steps of seven, which lay on
/// the way from then on. The longest windows brought a seventh of huge pages that would have come whole.
#[test]
fn a_sequence_goes_before_a_strided_stream_on_its_way() {
    let opened = opened(2000..12_000, |page| page > 2300 || page % 7 != 0);
    let mut in_steps = opened.iter().filter(|(_, window)| window.stride == 7);
    assert!(in_steps.all(|(_, window)| window.len <= 2), "{opened:?}");
}

#[test]
fn pages_that_were_there_cost_no_window() {
    let streams = Streams::new();
    for page in [2000, 2001, 2002, 2004, 2008, 2016, 2032] {
        let _ = streams.miss(&fault(page, 1));
    }
    for page in [2070, 2071] {
        assert_eq!(miss(&streams, page).1, 1);
    }
    assert_eq!(miss(&streams, 2072).1, 32);
}

#[test]
fn a_stale_stream_begins_again() {
    let streams = Streams::new();
    for page in [2000, 2001, 2002, 2004, 2008] {
        let _ = streams.miss(&fault(page, 1));
    }
    let far = |i: u64| 10_000 + mix(i) % 50_000;
    (0..130).for_each(|i| assert_eq!(miss(&streams, far(i)).1, 1));
    assert_eq!(miss(&streams, 2016).1, 16, "not yet: 16 events per page");
    (0..300).for_each(|i| assert_eq!(miss(&streams, far(i + 130)).1, 1));
    assert_eq!(miss(&streams, 2032).1, 2);
    assert_eq!(miss(&streams, 2034).1, 4);
}

#[test]
fn threads_may_race() {
    let streams = Streams::new();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let streams = &streams;
            scope.spawn(move || {
                for i in 0..20_000 {
                    let page = 1000 + (i * (1 + thread % 2) + thread / 2 * 7) % 99_000;
                    // All pretend to be one thread, so that they race for the same words.
                    check(&fault(page, 1), Some(streams.miss(&fault(page, 1))), true);
                    check(&fault(page, 1), streams.hit(&fault(page, 1)), false);
                }
            });
        }
    });
}

fn check(fault: &Fault<'_>, window: Option<Window>, is_miss: bool) {
    let Some(window) = window else {
        return;
    };
    let bounds = (window.first, window.places().last().unwrap_or(u64::MAX));
    assert_eq!(window.holds(fault.page), is_miss, "{window:?} {fault:?}");
    assert!(
        window.len >= 1 && window.len <= fault.most(),
        "{window:?} {fault:?}"
    );
    let alone = window.len == 1 && is_miss;
    assert!(
        alone || fault.lo <= bounds.0 && bounds.1 < fault.hi,
        "{window:?} {fault:?}"
    );
    assert!(window.marker.is_none_or(|page| window.holds(page)), "{window:?}");
}

fn any_page() -> impl Strategy<Value = u64> {
    prop_oneof![
        1000..1300u64,
        any::<u64>(),
        (0..2 * PAGE_MAX),
        Just(PAGE_MAX),
        Just(u64::MAX),
        (0..100u64).prop_map(|i| u64::MAX - i),
    ]
}

proptest! {
    #[test]
    fn any_words_and_any_faults_are_answered(
        words in prop::collection::vec((0..Streams::CAPACITY * 3, any::<u64>()), 0..400),
        near in prop::collection::vec((0..1300u64, any::<u8>(), any::<[i16; 4]>()), 0..40),
        faults in prop::collection::vec(
            (any_page(), 0..4u32, any_page(), any_page(), any::<u32>(), 0..2000u32),
            1..60,
        ),
    ) {
        let streams = Streams::new();
        for (index, value) in words {
            streams.word(index).store(value, Ordering::Relaxed);
        }
        for (i, (page, level, [stride, ahead, ..])) in near.into_iter().enumerate() {
            let (confidence, log2) = (level & 15, level >> 4);
            let ahead = ahead as u16;
            let tag = tag_of(1);
            let stream = Stream { page, tag, confidence, log2, stride, ahead, ..Stream::default() };
            for set in 0..8 {
                for (word, value) in stream.pack().into_iter().enumerate() {
                    streams.word(set * 48 + word * 16 + i % 16).store(value, Ordering::Relaxed);
                }
            }
        }
        for (page, thread, lo, hi, budget, window_max) in faults {
            let (lo, hi, budget) = (lo.min(page), hi.max(page.saturating_add(1)), budget >> (page % 32));
            let fault = Fault { lo, hi, budget, window_max, ..fault(page, thread) };
            let window = streams.miss(&fault);
            check(&fault, Some(window), true);
            check(&fault, streams.hit(&fault), false);
            let outside = Fault { hi: lo, ..fault };
            check(&outside, Some(streams.miss(&outside)), true);
        }
    }

    #[test]
    fn streams_of_any_stride_are_followed(stride in 1..=REACH as i64, down: bool, start in 2000..60_000u64) {
        let streams = Streams::new();
        let stride = if down { -stride } else { stride };
        let at = |page| Fault { lo: 0, hi: 1 << 40, ..fault(page, 1) };
        let page = |i: i64| (start + (1 << 30)).saturating_add_signed(stride * i);
        let sizes = [0, 1, 2, 3, 5].map(|i| streams.miss(&at(page(i))).len);
        prop_assert_eq!(&sizes[..2], &[1, 1]);
        // A neighbour is believed after two steps, another stride after three.
        let third = if stride.abs() == 1 { 2 } else { 1 };
        prop_assert_eq!(sizes[2], third);
        prop_assert!(stride.abs() == 1 || (sizes[3], sizes[4]) == (2, 4), "{sizes:?}");
    }
}
