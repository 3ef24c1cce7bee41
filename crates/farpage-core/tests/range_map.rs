//! The range map beside a naive model: a set of page numbers.

use farpage_core::range_map::{Full, Range, RangeMap};
use proptest::prelude::*;

const PAGES: u64 = 64;
const ROOM: usize = 6;

#[derive(Debug, Clone, Copy)]
enum Event {
    Insert(u64, u64),
    Remove(u64, u64),
}

fn event() -> impl Strategy<Value = Event> {
    (any::<bool>(), 0..PAGES, 0..PAGES / 2).prop_map(|(insert, start, len)| {
        let end = (start + len).min(PAGES);
        if insert {
            Event::Insert(start, end)
        } else {
            Event::Remove(start, end)
        }
    })
}

fn ranges_of(model: &[bool]) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for (page, _) in (0u64..).zip(model).filter(|(_, inside)| **inside) {
        match ranges.last_mut() {
            Some(last) if last.end == page => last.end += 1,
            _ => ranges.push(Range {
                start: page,
                end: page + 1,
            }),
        }
    }
    ranges
}

fn apply(map: &mut RangeMap<'_>, model: &mut Vec<bool>, event: Event) {
    let (start, end, inside) = match event {
        Event::Insert(start, end) => (start, end, true),
        Event::Remove(start, end) => (start, end, false),
    };
    let mut next = model.clone();
    next[start as usize..end as usize].fill(inside);
    let fits = ranges_of(&next).len() <= ROOM;
    let result = if inside {
        map.insert(start, end)
    } else {
        map.remove(start, end)
    };
    assert_eq!(result, if fits { Ok(()) } else { Err(Full) });
    if fits {
        *model = next;
    }
}

fn naive_gap(model: &[bool], lo: u64, hi: u64, pages: u64, align: u64) -> Option<u64> {
    let free = |page: u64| !model.get(page as usize).copied().unwrap_or(false);
    (lo..hi).find(|&at| pages > 0 && at % align.max(1) == 0 && at + pages <= hi && (at..at + pages).all(free))
}

proptest! {
    #[test]
    fn follows_the_model(
        events in prop::collection::vec(event(), 0..60),
        questions in prop::collection::vec((0..PAGES + 8, 0..PAGES + 8, 0..12u64, 0..9u64), 20),
    ) {
        let mut room = [Range::EMPTY; ROOM];
        let mut map = RangeMap::new(&mut room);
        let mut model = vec![false; PAGES as usize];
        for event in events {
            apply(&mut map, &mut model, event);
            prop_assert!(map.check());
            prop_assert_eq!(map.iter().collect::<Vec<_>>(), ranges_of(&model));
        }
        prop_assert_eq!(map.total_pages(), model.iter().filter(|inside| **inside).count() as u64);
        let inside = |page: u64| model.get(page as usize).copied().unwrap_or(false);
        for (lo, hi, pages, align) in questions {
            prop_assert_eq!(map.contains(lo), inside(lo));
            prop_assert_eq!(map.overlaps(lo, hi), (lo..hi).any(inside));
            prop_assert_eq!(map.covers(lo, hi), (lo..hi).all(inside));
            prop_assert_eq!(map.find_gap(lo, hi, pages, align), naive_gap(&model, lo, hi, pages, align));
        }
    }

    #[test]
    fn survives_any_numbers(numbers in prop::collection::vec(any::<[u64; 4]>(), 0..20)) {
        let mut room = [Range::EMPTY; ROOM];
        let mut map = RangeMap::new(&mut room);
        for [a, b, pages, align] in numbers {
            let _ = map.insert(a, b);
            let _ = map.remove(b, a);
            prop_assert!(map.check());
            if let Some(start) = map.find_gap(a, u64::MAX, pages, align) {
                prop_assert!(start >= a && !map.overlaps(start, start + pages));
            }
        }
    }
}
