use super::*;
use crate::rng::Rng;

fn trace(pages: impl IntoIterator<Item = u32>, pages_per_unit: u32) -> Trace {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(pages.into_iter().flat_map(u32::to_le_bytes));
    Trace::read("made up", &bytes, pages_per_unit).expect("a trace")
}

/// The least misses there can be, by trying every victim.
fn least(units: &[u32], resident: &mut Vec<u32>, capacity: usize) -> u64 {
    let Some((&unit, rest)) = units.split_first() else {
        return 0;
    };
    if resident.contains(&unit) {
        return least(rest, resident, capacity);
    }
    if resident.len() < capacity {
        resident.push(unit);
        let found = 1 + least(rest, resident, capacity);
        resident.pop();
        return found;
    }
    let best = (0..capacity).map(|at| {
        let mut other = resident.clone();
        other[at] = unit;
        least(rest, &mut other, capacity)
    });
    1 + best.min().unwrap_or(0)
}

#[test]
fn pages_become_units_and_repeats_are_one_touch() {
    let trace = trace([640, 641, 703, 704, 5, 640], 64);
    assert_eq!((trace.units, trace.distinct), (vec![0, 1, 2, 0], 3));
    for wrong in [&b"FPTRACE1"[..], b"FPTRACE1abc", b"text of 12 b", b""] {
        assert!(Trace::read("wrong", wrong, 1).is_err(), "{wrong:?}");
    }
}

#[test]
fn min_is_the_least_there_can_be() {
    let mut rng = Rng::new(11);
    for _ in 0..40 {
        let trace = trace((0..14).map(|_| rng.below(5) as u32), 1);
        for capacity in 1..4 {
            let expected = least(&trace.units, &mut Vec::new(), capacity);
            let found = min::misses(&trace.units, trace.distinct, capacity as u32);
            assert_eq!(found, expected, "{:?} in {capacity}", trace.units);
        }
    }
}

#[test]
fn no_policy_beats_the_best_and_none_misses_what_fits() {
    let mut rng = Rng::new(5);
    let trace = trace((0..3000).map(|_| (rng.below(60) * rng.below(60) / 60) as u32), 1);
    for row in rows(&trace, &[1.0, 1.25, 2.0, 3.0, 5.0]) {
        for (kind, seen, blind) in &row.policies {
            for outcome in [seen, blind] {
                assert!(outcome.misses >= row.min_misses, "{kind:?} 1/{}", row.part);
                assert_eq!(outcome.misses, outcome.refaults + u64::from(row.distinct));
                assert!(outcome.near <= outcome.refaults);
            }
            if row.capacity == trace.distinct {
                assert_eq!(seen.misses, u64::from(trace.distinct));
            }
        }
    }
}

#[test]
fn what_is_touched_often_stays_only_if_touches_are_seen() {
    // Two hot units between touches of ever new ones.
    let hot = |at: u32| [0, 1 + at % 2, 3 + at % 200];
    let trace = trace((0..4000).flat_map(hot), 1);
    let misses = |kind, sees| replay(&trace, kind, 10, sees).misses;
    for kind in [Kind::Clock, Kind::Sieve, Kind::S3Fifo, Kind::LruGen] {
        assert!(misses(kind, true) < 4100, "{kind:?}");
    }
    for kind in [Kind::Clock, Kind::Sieve, Kind::LruGen] {
        assert!(misses(kind, false) > 4300, "{kind:?}");
    }
    assert!(
        misses(Kind::S3Fifo, false) < 4100,
        "shadows tell it of the hot ones"
    );
    let engine = replay(&trace, Kind::SwapCache, 10, false);
    assert!(engine.soft > 0 && engine.misses < misses(Kind::Clock, false));
    let retaining = replay(&trace, Kind::Retaining, 10, false);
    assert_eq!(
        (retaining.misses, retaining.soft),
        (engine.misses, engine.soft),
        "it goes on"
    );
}

#[test]
fn the_table_has_a_line_for_each_budget() {
    let trace = trace((0..500).map(|at| at * at % 37), 1);
    let rows = rows(&trace, &[1.5, 5.0]);
    let text = report::text(&rows);
    assert_eq!(text.matches("made up").count(), 2, "{text}");
    assert_eq!(report::json(&rows, 1)["rows"][1]["budget_part"], 5.0);
}
