//! The policies on streams of touches, against a naive memory. `--nocapture` prints what each stream got.

mod memory_model;

use farpage_core::readahead::Policy;
use memory_model::{Dice, Model, Tally};

const GIB: u64 = 1 << 18;

fn adaptive(pages: u64, capacity: usize) -> Model {
    // A region that begins in the middle of a chunk.
    let lo = (0x1000_0000_0000 >> 12) + 12_345;
    Model::new(Policy::Adaptive, (lo, lo + pages), capacity)
}

fn report(name: &str, tally: &Tally) {
    println!(
        "{name:32} touches {:7} misses {:6} alone {:6} hit faults {:5} ahead {:7} accuracy {:6.2} % \
         coverage {:6.2} % waste per miss {:.3} window {}",
        tally.touches,
        tally.misses,
        tally.alone,
        tally.hit_faults,
        tally.ahead,
        tally.accuracy() * 100.0,
        tally.coverage() * 100.0,
        tally.waste(),
        tally.window_max
    );
}

/// At least 99 % of what was read ahead is used, and at least `coverage` of what is touched was read ahead.
fn assert_stream(name: &str, tally: &Tally, coverage: f64) {
    report(name, tally);
    assert!(tally.accuracy() >= 0.99, "{name}: {tally:?}");
    assert!(tally.coverage() >= coverage, "{name}: {tally:?}");
}

/// At least 95 % of the misses are answered with the page alone, and at most 5 % of them read a page in vain.
fn assert_random(name: &str, tally: &Tally) {
    report(name, tally);
    assert!(tally.alone * 100 >= tally.misses * 95, "{name}: {tally:?}");
    assert!(tally.waste() <= 0.05, "{name}: {tally:?}");
}

#[test]
fn sequential_forward_and_backward() {
    let pages = GIB / 4;
    for backward in [false, true] {
        let mut model = adaptive(pages, 8192);
        for i in 0..pages {
            let i = if backward { pages - 1 - i } else { i };
            model.touch(1, model.lo + i);
        }
        let name = if backward {
            "sequential backward"
        } else {
            "sequential forward"
        };
        assert_stream(name, &model.tally(1), 0.999);
        assert!(
            model.tally(1).misses <= 8,
            "after the start only markers fault: {:?}",
            model.tally(1)
        );
    }
}

#[test]
fn windows_double_from_two_to_the_greatest() {
    let mut model = adaptive(GIB, 1 << 16);
    let mut sizes = Vec::new();
    for i in 0..20_000 {
        let before = model.tally(1).ahead;
        let (misses, lo) = (model.tally(1).misses, model.lo);
        model.touch(1, lo + i);
        let read = model.tally(1).ahead - before + model.tally(1).misses - misses;
        if read > 0 {
            sizes.push(read);
        }
    }
    let doubling = [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024];
    assert_eq!(sizes[..doubling.len()], doubling);
    assert!(
        sizes[doubling.len()..].iter().all(|&size| size == 1024),
        "{sizes:?}"
    );
}

#[test]
fn strides() {
    for stride in [2, 3, 8, 100, 1000] {
        let mut model = adaptive(20_000 * stride as u64, 8192);
        for page in (model.lo..model.hi).step_by(stride) {
            model.touch(1, page);
        }
        let coverage = if stride <= 8 { 0.999 } else { 0.95 };
        assert_stream(&format!("stride {stride}"), &model.tally(1), coverage);
    }
}

#[test]
fn interleaved_sequential() {
    for (streams, distance) in [(8, 10_000), (8, 100_000), (8, 1000), (12, 20_000)] {
        let mut model = adaptive(4 * GIB, 60_000);
        let each = distance.min(8192);
        for i in 0..each {
            for stream in 0..streams {
                model.touch(1, model.lo + stream * distance + i);
            }
        }
        let name = format!("{streams} interleaved, {distance} apart");
        let tally = model.tally(1);
        report(&name, &tally);
        // The last window of a stream that ends inside the region is of no use.
        assert!(tally.accuracy() >= 0.8, "{name}: {tally:?}");
        assert!(tally.misses <= streams * 16, "{name}: {tally:?}");
    }
}

#[test]
fn interleaved_streams_keep_their_windows() {
    let mut model = adaptive(2 * GIB, 60_000);
    let mut dice = Dice(5);
    let mut next = [0u64; 8];
    // In bursts of random length, in random order.
    while next.iter().any(|&i| i < 40_000) {
        let stream = dice.below(8) as usize;
        for _ in 0..dice.below(40) {
            model.touch(1, model.lo + stream as u64 * 50_000 + next[stream]);
            next[stream] = (next[stream] + 1).min(40_000);
        }
    }
    let tally = model.tally(1);
    report("8 interleaved in bursts", &tally);
    assert!(tally.misses <= 8 * 16 && tally.accuracy() >= 0.97, "{tally:?}");
}

#[test]
fn a_sequential_writer_beside_random_threads() {
    for (seed, random_pages) in [(1, GIB / 2), (2, GIB / 8), (3, 1 << 13)] {
        let mut model = adaptive(GIB / 2 + random_pages, 1 << 14);
        let mut dice = Dice(seed);
        let writer_pages = GIB / 2;
        for i in 0..writer_pages {
            model.touch(100, model.lo + i);
            if i % 4 == 0 {
                let page = model.lo + writer_pages + dice.below(random_pages);
                model.touch(dice.below(8) as u32, page);
            }
        }
        assert_stream(
            &format!("writer beside {random_pages} random"),
            &model.tally(100),
            0.99,
        );
        let mut random = Tally::default();
        for thread in 0..8 {
            let tally = model.tally(thread);
            random.misses += tally.misses;
            random.alone += tally.alone;
            random.ahead += tally.ahead;
            random.used += tally.used;
        }
        assert_random("  its random neighbours", &random);
    }
}

#[test]
fn random_touches_in_the_thread_and_region_of_a_stream() {
    let pages = GIB;
    let mut model = adaptive(pages, 1 << 14);
    let mut dice = Dice(9);
    let (stream_pages, mut missed) = (GIB / 8, 0);
    for i in 0..stream_pages {
        let before = model.tally(1).misses;
        model.touch(1, model.lo + i);
        missed += model.tally(1).misses - before;
        for _ in 0..5 {
            model.touch(1, model.lo + dice.below(pages));
        }
    }
    let tally = model.tally(1);
    report("a stream and 5 random per page", &tally);
    println!("  the stream itself missed {missed} of {stream_pages}");
    assert!(missed * 50 <= stream_pages, "{missed} of {stream_pages}");
    assert!(tally.waste() <= 0.05, "{tally:?}");
}

#[test]
fn random_reads_nothing_ahead() {
    for (seed, pages) in [
        (1, GIB * 4),
        (2, GIB / 4),
        (3, 1 << 14),
        (4, 1 << 11),
        (5, 1 << 8),
    ] {
        let mut model = adaptive(pages, pages as usize / 4);
        let mut dice = Dice(seed);
        for _ in 0..50_000 {
            model.touch(1, model.lo + dice.below(pages));
        }
        assert_random(&format!("random in {pages} pages"), &model.tally(1));
    }
}

#[test]
fn a_random_phase_after_a_stream_reads_nothing_ahead() {
    let pages = 1 << 15;
    let mut model = adaptive(pages, 4096);
    (0..pages / 2).for_each(|i| model.touch(1, model.lo + i));
    let before = model.tally(1);
    let mut dice = Dice(7);
    for _ in 0..50_000 {
        model.touch(1, model.lo + dice.below(pages));
    }
    let after = model.tally(1);
    let random = Tally {
        touches: after.touches - before.touches,
        misses: after.misses - before.misses,
        alone: after.alone - before.alone,
        hit_faults: after.hit_faults - before.hit_faults,
        ahead: after.ahead - before.ahead,
        used: after.used - before.used,
        window_max: after.window_max,
    };
    report("random after a stream", &random);
    assert!(random.alone * 100 >= random.misses * 95, "{random:?}");
    // The stream's last marker may still be met by chance, once or twice.
    let in_vain = random.ahead - random.used;
    assert!(in_vain <= 2 * 1536 + random.misses / 20, "{random:?}");
}

#[test]
fn a_column_walk_of_a_row_major_matrix() {
    // Rows of 128 KiB of 8-byte elements: a column is a stride of 32 pages, 512 columns share a page.
    let (rows, row_pages) = (2048, 32);
    let mut model = adaptive(rows * row_pages, 4096);
    for column in (0..row_pages * 512).step_by(64) {
        for row in 0..rows {
            model.touch(1, model.lo + row * row_pages + column / 512);
        }
    }
    assert_stream("column walk", &model.tally(1), 0.99);
}

/// Down the columns of a matrix in blocks: `tall` bytes of each row of `row` bytes, each thread in a block of its own.
fn walk_columns(model: &mut Model, row: i64, tall: i64, (rows, threads): (i64, u32)) {
    let start = if row > 0 { 700 } else { -row * rows };
    for i in 0..rows {
        for thread in 1..=threads {
            let at = start + i * row + i64::from(thread - 1) * 40_000;
            for page in at / 4096..=(at + tall - 1) / 4096 {
                model.offset = if page == at / 4096 { (at % 4096) as u32 } else { 0 };
                model.touch(thread, model.lo + page as u64);
            }
        }
    }
}

#[test]
fn a_walk_down_columns_whose_rows_are_no_whole_pages() {
    for (row, tall, threads) in [(26_400, 2560, 1), (-26_400, 3000, 1), (100_008, 9000, 2)] {
        let mut model = adaptive(GIB, 8192);
        walk_columns(&mut model, row, tall, (8000, threads));
        for thread in 1..=threads {
            report(
                &format!("rows of {row}, block {tall}, thread {thread}"),
                &model.tally(thread),
            );
            assert!(model.tally(thread).coverage() >= 0.9, "{:?}", model.tally(thread));
            assert!(model.tally(thread).accuracy() >= 0.9, "{:?}", model.tally(thread));
        }
    }
}

#[test]
fn random_addresses_make_no_column_walk() {
    let mut model = adaptive(GIB, 8192);
    let mut dice = Dice(11);
    for _ in 0..20_000 {
        let at = dice.below(GIB * 4096);
        model.offset = (at % 4096) as u32;
        model.touch(1, model.lo + at / 4096);
    }
    assert_random("random addresses", &model.tally(1));
}

#[test]
fn a_loop_over_more_than_fits() {
    let pages = 20_000;
    let mut model = adaptive(pages, 8192);
    for _ in 0..10 {
        (0..pages).for_each(|i| model.touch(1, model.lo + i));
    }
    assert_stream("loop over 2.4 times the memory", &model.tally(1), 0.999);
}

#[test]
fn a_stream_over_memory_that_is_partly_there() {
    let pages = 1 << 16;
    let mut model = adaptive(pages, 1 << 17);
    let mut dice = Dice(3);
    // Another thread touched a third of the pages.
    for _ in 0..pages * 2 / 5 {
        model.touch(9, model.lo + dice.below(pages));
    }
    (0..pages).for_each(|i| model.touch(1, model.lo + i));
    assert_stream("a third is there already", &model.tally(1), 0.97);
}

#[test]
fn a_stream_with_gaps() {
    // Two of three pages are touched, in no rhythm.
    let pages = 1 << 16;
    let mut model = adaptive(pages, 8192);
    let mut dice = Dice(11);
    for i in 0..pages {
        if dice.below(3) > 0 {
            model.touch(1, model.lo + i);
        }
    }
    let tally = model.tally(1);
    report("two of three pages", &tally);
    assert!(tally.accuracy() >= 0.6 && tally.coverage() >= 0.8, "{tally:?}");
}

#[test]
fn windows_that_do_not_fit_shrink() {
    // Eight streams in memory for 512 pages: windows of 1024 would evict each other.
    let mut model = adaptive(GIB, 512);
    for i in 0..8192 {
        for stream in 0..8 {
            model.touch(1, model.lo + stream * 20_000 + i);
        }
    }
    let tally = model.tally(1);
    report("8 interleaved, too little memory", &tally);
    assert!(tally.accuracy() >= 0.4 && tally.coverage() >= 0.85, "{tally:?}");
}

#[test]
fn the_kernel_s_ways_on_the_same_streams() {
    // System V: a sequential writer beside random threads, each in a mapping of its own. Slots were given to
    // the pages in the order they were evicted: here, one after the other.
    let share = |policy: Policy, own_regions: bool| {
        let writer_pages = 1 << 16;
        let mut model = Model::new(policy, (1 << 20, (1 << 20) + 4 * writer_pages), 1 << 13);
        model.own_regions = own_regions;
        let mut dice = Dice(2);
        for i in 0..writer_pages {
            model.touch(100, model.lo + i);
            for _ in 0..2 {
                let page = model.lo + writer_pages + dice.below(3 * writer_pages);
                model.touch(dice.below(8) as u32, page);
            }
        }
        let tally = model.tally(100);
        report(&format!("writer, {policy}, own mappings {own_regions}"), &tally);
        tally.coverage()
    };
    assert!(share(Policy::None, true) == 0.0);
    assert!(share(Policy::Cluster, true) < 0.1, "one history for all");
    assert!(share(Policy::Vma, true) > 0.8, "a history per mapping");
    assert!(share(Policy::Vma, false) < 0.1, "one mapping for all");
    assert!(share(Policy::Adaptive, true) > 0.999);
    assert!(share(Policy::Adaptive, false) > 0.999);
}
