use std::vec;
use std::vec::Vec;

use super::*;

#[test]
fn a_shadow_tells_how_many_went_since() {
    let mut at = [9; 5];
    let mut shadows = Shadows::new(&mut at);
    assert_eq!(shadows.returned(1), None);
    (1..4).for_each(|unit| shadows.evicted(unit));
    assert_eq!((shadows.returned(3), shadows.returned(1)), (Some(0), Some(2)));
    assert_eq!(shadows.returned(1), None, "it is used once");
    shadows.evicted(77);
    assert_eq!((shadows.returned(77), shadows.returned(2)), (None, Some(2)));
}

const MEMORY: u32 = 200;

/// Touches units in memory of so many; how many of the last half of touches missed, of a hundred.
fn misses(policy: &mut dyn ReclaimPolicy, units: u32, touches: impl IntoIterator<Item = u32>) -> usize {
    let (mut at, mut resident) = (vec![0; units as usize], vec![false; units as usize]);
    let mut shadows = Shadows::new(&mut at);
    let mut missed = Vec::new();
    for unit in touches {
        let is_there = resident[unit as usize];
        missed.push(!is_there);
        if is_there {
            continue;
        }
        if policy.resident() >= MEMORY {
            let victim = policy.victim().unwrap();
            resident[victim as usize] = false;
            shadows.evicted(victim);
        }
        policy.loaded(unit, shadows.returned(unit));
        resident[unit as usize] = true;
    }
    let half = &missed[missed.len() / 2..];
    half.iter().filter(|missed| **missed).count() * 100 / half.len()
}

/// Those of a FIFO with retention, and of one without.
fn both(units: u32, touches: impl IntoIterator<Item = u32> + Clone) -> [usize; 2] {
    let mut nodes = vec![Node::NEW; units as usize];
    let retaining = misses(&mut Fifo::new(&mut nodes), units, touches.clone());
    [retaining, misses(&mut Clock::new(&mut nodes), units, touches)]
}

#[test]
fn going_round_in_a_little_too_much_does_not_thrash() {
    for (units, most) in [(210, 25), (220, 35), (250, 55), (300, 75)] {
        let [retaining, fifo] = both(units, (0..60 * units).map(|at| at % units));
        assert!(fifo == 100 && retaining < most, "{units}: {retaining} % miss");
    }
}

#[test]
fn going_on_leaves_the_order_of_age() {
    // Four times the memory in turn, and a stretch of 0.7 times the memory that moves on.
    let scan = (0..20_000).map(|at| at % 800);
    assert_eq!(both(800, scan), [100, 100]);
    let moving = (0..40_000u32).map(|at| (at / 8 + at.wrapping_mul(2_654_435_761) % 140) % 6000);
    let [retaining, fifo] = both(6000, moving);
    assert_eq!(retaining, fifo);
}

#[test]
fn random_touches_are_no_worse() {
    let touches = (0..40_000u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u32 % 260);
    let [retaining, fifo] = both(260, touches);
    assert!(retaining <= fifo + 3, "{retaining} for {fifo} %");
}

#[test]
fn units_of_a_group_stay_or_leave_together() {
    let mut retention = Retention::new();
    for _ in 0..100 {
        let stamp = retention.evicted(MEMORY);
        retention.loaded(stamp, 64, MEMORY);
    }
    assert!(
        retention.is_on(MEMORY) && !retention.is_on(8),
        "most loads left a moment ago"
    );
    let answers: Vec<_> = (0..MEMORY)
        .map(|unit| retention.stays(u64::from(unit) / 8, MEMORY))
        .collect();
    let kept = answers.iter().filter(|stays| **stays).count();
    assert!((120..180).contains(&kept), "{kept} of 200 stay");
    let whole = answers
        .chunks(8)
        .filter(|group| group.iter().all(|stays| *stays == group[0]));
    assert!(whole.count() >= 24, "of 25 one may lie where a turn begins");
    for _ in 0..100 {
        retention.loaded(0, 64, MEMORY);
    }
    assert!(!retention.is_on(MEMORY), "what was never there tells of going on");
}

#[test]
fn a_stamp_is_near_for_three_quarters_of_a_turnover() {
    for (evictions, near) in [(0, true), (140, true), (180, false), (900, false)] {
        let mut retention = Retention::new();
        let mut evict = |count: u32| (0..count).fold(0, |_, _| retention.evicted(MEMORY));
        let stamp = evict(51);
        evict(evictions);
        (0..200).for_each(|_| retention.loaded(stamp, 64, MEMORY));
        assert_eq!(retention.is_on(MEMORY), near, "{evictions} evictions ago");
    }
}

#[test]
fn a_few_runs_among_all_that_leaves_do_not_count() {
    let mut retention = Retention::new();
    for at in 0..10_000 {
        let stamp = retention.evicted(MEMORY);
        if at % 3 == 0 {
            retention.loaded(stamp, 64, MEMORY);
        }
    }
    assert!(
        !retention.is_on(MEMORY),
        "a solve that walked by columns was slower by a seventh"
    );
}

#[test]
fn single_pages_that_come_back_soon_do_not_count() {
    let mut retention = Retention::new();
    for _ in 0..10_000 {
        let stamp = retention.evicted(MEMORY);
        retention.loaded(stamp, 1, MEMORY);
    }
    assert!(!retention.is_on(MEMORY));
}
