//! Properties of every readahead policy, and of the estimate of its hits.

#[allow(dead_code, reason = "its tallies are for the test of the streams")]
mod memory_model;
#[allow(dead_code, reason = "the models of the other structures are for other tests")]
mod models;

use farpage_core::readahead::{Cluster, Fault, Memory, Order, Policy, Slot, Streams};
use farpage_core::sync::AtomicU64;
use memory_model::{Dice, Model};
use models::readahead::{LO, Limits, PAGES, follow, run};
use proptest::prelude::*;

fn policy() -> impl Strategy<Value = Policy> {
    prop::sample::select(&Policy::ALL[..])
}

/// A walk that mixes jumps with runs, so that there are streams in it.
fn walk() -> impl Strategy<Value = Vec<(u64, u32, bool)>> {
    let runs = (0..PAGES, 1..40u64, -9..9i64, 0..3u32, any::<bool>());
    prop::collection::vec(runs, 1..20).prop_map(|runs| {
        let runs = runs.into_iter();
        runs.flat_map(|(start, len, stride, thread, hit)| run(start, len, stride, thread, hit))
            .collect()
    })
}

proptest! {
    #[test]
    fn windows_hold_the_page_and_stay_inside(
        policy in policy(),
        walk in walk(),
        row_mask in prop_oneof![Just(0u32), Just(0xfff)],
        page_cluster in 0..40u32,
        budget in prop_oneof![0..9u32, 0..2000u32, any::<u32>()],
        window_max in prop_oneof![0..9u32, 0..2000u32, any::<u32>()],
    ) {
        follow(policy, walk, Limits { row_mask, page_cluster, budget, window_max });
    }

    #[test]
    fn any_fault_is_answered(
        policy in policy(),
        numbers: [u64; 6],
        offset in 0..4096u32,
        thread: u32,
        page_cluster: u32,
        budget: u32,
        window_max: u32,
        word: u64,
    ) {
        let (cluster, streams, word) = (Cluster::new(), Streams::new(), AtomicU64::new(word));
        let memory = Memory { cluster: &cluster, streams: &streams, history: None, page_cluster };
        let [page, lo, hi, slot, first, end] = numbers;
        for page in [page, lo, hi, lo.wrapping_add(1), lo.wrapping_add(2), u64::MAX] {
            let slot = Some(Slot { slot, first, end });
            let fault = Fault { page, offset, thread, lo, hi, word: &word, slot, budget, window_max };
            let window = policy.miss(&fault, &memory);
            prop_assert!(window.len >= 1 && window.len <= fault.most());
            let place = if window.order == Order::Device { numbers[3] } else { page };
            prop_assert!(window.holds(place), "{window:?} {fault:?}");
            let _ = policy.hit(&fault, &memory, true);
        }
    }
}

/// A stream that jumps on after runs of random length, so that a good part of its windows is read in vain;
/// the sampled estimate of its hits beside the truth.
#[test]
fn the_estimate_is_within_its_error() {
    let (mut within_one, mut rounds) = (0, 0);
    for seed in 0..60 {
        let mut model = Model::new(Policy::Adaptive, (LO, LO + (1 << 22)), 1 << 14);
        model.one_in = Some([4, 16, 64][seed as usize % 3]);
        let mut dice = Dice(seed);
        while model.tally(1).ahead < 60_000 {
            let start = LO + dice.below(1 << 21);
            let length = 20 + dice.below(600);
            (0..length).for_each(|i| model.touch(1, start + i));
        }
        let (truth, counts) = (model.tally(1), model.hits.counts());
        let estimate = counts.estimate();
        assert_eq!(estimate.pages, truth.ahead, "every page is counted");
        assert!(truth.accuracy() > 0.3 && truth.accuracy() < 0.9, "{truth:?}");
        let off = (estimate.hits - truth.used as f64).abs();
        assert!(
            off <= 4.5 * estimate.standard_error,
            "{off} {estimate:?} {truth:?}"
        );
        assert!(
            estimate.standard_error < truth.ahead as f64 * 0.02,
            "{estimate:?}"
        );
        within_one += u32::from(off <= estimate.standard_error);
        rounds += 1;
    }
    // Two thirds are expected; 60 rounds stray from that by less than 0.25.
    let share = f64::from(within_one) / f64::from(rounds);
    println!("{within_one} of {rounds} estimates within one standard error");
    assert!((0.43..0.93).contains(&share), "{share}");
}

/// With every page sampled nothing is estimated.
#[test]
fn sampling_all_is_counting() {
    let mut model = Model::new(Policy::Adaptive, (LO, LO + PAGES), 1 << 12);
    model.one_in = Some(1);
    let mut dice = Dice(1);
    for _ in 0..100 {
        let start = LO + dice.below(PAGES - 500);
        (0..dice.below(500)).for_each(|i| model.touch(1, start + i));
    }
    let (truth, estimate) = (model.tally(1), model.hits.counts().estimate());
    assert!(truth.used > 0 && truth.used < truth.ahead);
    assert_eq!((estimate.pages, estimate.standard_error), (truth.ahead, 0.0));
    assert!((estimate.hits - truth.used as f64).abs() < 1e-6 * truth.used as f64);
}
