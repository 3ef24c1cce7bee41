//! Wall time per operation with 1 to 16 threads, both sides.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use farpage_microbench::{Operation, SIDES, THREADS, side, timed};

fn core(c: &mut Criterion) {
    for operation in Operation::ALL {
        let mut group = c.benchmark_group(operation.name());
        for name in SIDES {
            let side = side(name, operation).expect("half of the device is free");
            for threads in [1, 2, 4, 8, THREADS] {
                group.bench_function(BenchmarkId::new(name, threads), |b| {
                    b.iter_custom(|times| {
                        timed(side.as_ref(), operation, threads, times as usize).expect("sound")
                    });
                });
                // Read by tests/bench/core.py.
                if let Some([taken, held]) = side.locks()
                    && taken > 0
                {
                    println!("cluster locks\t{}\t{threads}\t{taken}\t{held}", operation.name());
                }
            }
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    targets = core
}
criterion_main!(benches);
