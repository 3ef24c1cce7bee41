//! The range map beside a vector of booleans.

use farpage_core::range_map::{Full, Range, RangeMap};

use super::Input;

pub const PAGES: u64 = 64;
const ROOM: usize = 6;

#[derive(Debug, Clone, Copy)]
pub enum Event {
    Insert(u64, u64),
    Remove(u64, u64),
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

impl Event {
    /// Of pages `start..start + len`, as far as there are so many.
    pub fn new(insert: bool, start: u64, len: u64) -> Self {
        let end = (start + len).min(PAGES);
        if insert {
            Self::Insert(start, end)
        } else {
            Self::Remove(start, end)
        }
    }

    /// The next event that some bytes say; none at their end.
    pub fn read(input: &mut Input<'_>) -> Option<Self> {
        let (what, start, len) = (input.byte()?, input.byte()?, input.byte()?);
        let (start, len) = (u64::from(start) % PAGES, u64::from(len) % (PAGES / 2));
        Some(Self::new(what % 2 == 0, start, len))
    }
}

/// A question about a range: from, to, pages and alignment.
pub type Question = (u64, u64, u64, u64);

/// Does what the events say to a map and to a model of it, then asks both.
pub fn follow(events: impl IntoIterator<Item = Event>, questions: impl IntoIterator<Item = Question>) {
    let mut room = [Range::EMPTY; ROOM];
    let mut map = RangeMap::new(&mut room);
    let mut model = vec![false; PAGES as usize];
    for event in events {
        apply(&mut map, &mut model, event);
        assert!(map.check());
        assert_eq!(map.iter().collect::<Vec<_>>(), ranges_of(&model));
    }
    assert_eq!(
        map.total_pages(),
        model.iter().filter(|inside| **inside).count() as u64
    );
    let inside = |page: u64| model.get(page as usize).copied().unwrap_or(false);
    for (lo, hi, pages, align) in questions {
        assert_eq!(map.contains(lo), inside(lo));
        assert_eq!(map.overlaps(lo, hi), (lo..hi).any(inside));
        assert_eq!(map.covers(lo, hi), (lo..hi).all(inside));
        assert_eq!(
            map.find_gap(lo, hi, pages, align),
            naive_gap(&model, lo, hi, pages, align)
        );
    }
}

/// No numbers, whatever they are, break the map.
pub fn survive(numbers: impl IntoIterator<Item = [u64; 4]>) {
    let mut room = [Range::EMPTY; ROOM];
    let mut map = RangeMap::new(&mut room);
    for [a, b, pages, align] in numbers {
        let _ = map.insert(a, b);
        let _ = map.remove(b, a);
        assert!(map.check());
        if let Some(start) = map.find_gap(a, u64::MAX, pages, align) {
            assert!(start >= a && !map.overlaps(start, start + pages));
        }
    }
}
