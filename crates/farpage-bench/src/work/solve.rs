//! A dense system of equations, larger than RAM: system V's table V2 (Linpack), P10.

use std::thread;
use std::time::Instant;

use serde_json::{Value, json};

use super::content::Random;
use super::{Checks, WorkArgs, lu};

/// No solution of a random matrix of these sizes is farther off: rounding makes about 1e-10 of it.
const WORST: f64 = 1e-5;
const THREADS_MAX: usize = 4;

/// Every unknown is 1, so that the solution is known.
pub fn solve(args: &WorkArgs) -> Result<Value, String> {
    let n = ((args.bytes / size_of::<f64>() as u64) as f64).sqrt() as usize;
    let mut a = vec![0.0; n * n];
    let mut b = Vec::with_capacity(n);
    let mut random = Random::new(5);
    for row in a.chunks_mut(n) {
        row.fill_with(|| (random.word() >> 11) as f64 / 2f64.powi(53) - 0.5);
        b.push(row.iter().sum());
    }
    let threads = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(THREADS_MAX);
    let start = Instant::now();
    let pivots = lu::decompose(&mut a, n, threads).map_err(|_| "the matrix is singular".to_owned())?;
    lu::solve(&a, &pivots, &mut b);
    let seconds = start.elapsed().as_secs_f64();
    let worst = b.iter().map(|x| (x - 1.0).abs()).fold(0.0, f64::max);
    let mut checks = Checks::default();
    checks.note(worst < WORST);
    let mut figures = json!({
        "bytes": n * n * size_of::<f64>(),
        "n": n,
        "threads": threads,
        "seconds": seconds,
        "gflops": 2.0 / 3.0 * (n as f64).powi(3) / 1e9 / seconds,
        "error_max": worst,
    });
    checks.tell(&mut figures);
    Ok(figures)
}
