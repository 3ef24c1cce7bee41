//! LU decomposition with partial pivoting, in place, right-looking and blocked, as in Golub and Van Loan, "Matrix
//! Computations", 3.2.11 and 3.4.8. Rows lie one after the other. Each step of 128 columns goes once over all that is
//! right of it and below: what swap sees is a sweep over a shrinking matrix.

use std::thread;

/// Columns of a panel.
const BLOCK: usize = 128;
/// Columns of the trailing matrix that are updated at a time: 128 rows of them fit the L2 cache.
const TILE: usize = 256;

/// A singular matrix.
#[derive(Debug, PartialEq, Eq)]
pub struct Singular;

/// Replaces the `n` by `n` matrix by its factors; returns the row that each step exchanged its own with.
pub fn decompose(a: &mut [f64], n: usize, threads: usize) -> Result<Vec<usize>, Singular> {
    let mut pivots = Vec::with_capacity(n);
    for left in (0..n).step_by(BLOCK) {
        let right = (left + BLOCK).min(n);
        panel(a, n, left..right, &mut pivots)?;
        upper(a, n, left, right);
        trailing(a, n, left..right, threads);
    }
    Ok(pivots)
}

/// The columns of one panel, all rows from its first; exchanges whole rows.
fn panel(
    a: &mut [f64],
    n: usize,
    columns: std::ops::Range<usize>,
    pivots: &mut Vec<usize>,
) -> Result<(), Singular> {
    for column in columns.clone() {
        let size = |row: &usize| a[row * n + column].abs();
        let pivot = (column..n)
            .max_by(|x, y| size(x).total_cmp(&size(y)))
            .ok_or(Singular)?;
        if size(&pivot) == 0.0 {
            return Err(Singular);
        }
        pivots.push(pivot);
        if pivot != column {
            let (upper, lower) = a.split_at_mut(pivot * n);
            upper[column * n..][..n].swap_with_slice(&mut lower[..n]);
        }
        let (upper, lower) = a.split_at_mut((column + 1) * n);
        let top = &upper[column * n..];
        for row in lower.chunks_mut(n) {
            let factor = row[column] / top[column];
            row[column] = factor;
            let rest = column + 1..columns.end;
            subtract(&mut row[rest.clone()], factor, &top[rest]);
        }
    }
    Ok(())
}

fn subtract(from: &mut [f64], factor: f64, what: &[f64]) {
    for (x, y) in from.iter_mut().zip(what) {
        *x -= factor * y;
    }
}

/// The panel's rows, right of it: solved with the panel's unit lower triangle.
fn upper(a: &mut [f64], n: usize, left: usize, right: usize) {
    for row in left + 1..right {
        let (above, rest) = a.split_at_mut(row * n);
        let this = &mut rest[..n];
        for k in left..row {
            let factor = this[k];
            subtract(&mut this[right..], factor, &above[k * n + right..][..n - right]);
        }
    }
}

/// All below and right of the panel, by several threads that have rows of their own.
fn trailing(a: &mut [f64], n: usize, panel: std::ops::Range<usize>, threads: usize) {
    let (above, below) = a.split_at_mut(panel.end * n);
    let upper = &above[panel.start * n..];
    let rows = (n - panel.end).div_ceil(threads.max(1)).max(1);
    thread::scope(|scope| {
        for part in below.chunks_mut(rows * n) {
            let panel = panel.clone();
            scope.spawn(move || {
                for tile in (panel.end..n).step_by(TILE) {
                    for row in part.chunks_mut(n) {
                        update(row, upper, n, &panel, tile..(tile + TILE).min(n));
                    }
                }
            });
        }
    });
}

/// `row[tile] -= row[panel] * upper[.., tile]`, four rows of `upper` at a time so that `row` is loaded seldom.
fn update(
    row: &mut [f64],
    upper: &[f64],
    n: usize,
    panel: &std::ops::Range<usize>,
    tile: std::ops::Range<usize>,
) {
    let (factors, rest) = row.split_at_mut(panel.end);
    let factors = &factors[panel.start..];
    let to = &mut rest[tile.start - panel.end..tile.end - panel.end];
    let line = |k: usize| &upper[k * n + tile.start..k * n + tile.end];
    let fours = factors.len() / 4 * 4;
    for k in (0..fours).step_by(4) {
        let lines = line(k).iter().zip(line(k + 1)).zip(line(k + 2)).zip(line(k + 3));
        let [f0, f1, f2, f3] = [0, 1, 2, 3].map(|i| factors[k + i]);
        for (x, (((a, b), c), d)) in to.iter_mut().zip(lines) {
            *x -= f0 * a + f1 * b + f2 * c + f3 * d;
        }
    }
    for (k, factor) in factors.iter().enumerate().skip(fours) {
        subtract(to, *factor, line(k));
    }
}

/// Solves the system whose factors are given; `b` becomes the solution.
pub fn solve(factors: &[f64], pivots: &[usize], b: &mut [f64]) {
    let n = b.len();
    for (row, pivot) in pivots.iter().enumerate() {
        b.swap(row, *pivot);
    }
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    for row in 0..n {
        let line = &factors[row * n..][..n];
        b[row] -= dot(&line[..row], &b[..row]);
    }
    for row in (0..n).rev() {
        let line = &factors[row * n..][..n];
        b[row] = (b[row] - dot(&line[row + 1..], &b[row + 1..])) / line[row];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_equations_by_hand() {
        // x = 1, y = 2, z = 3; the first pivot is not in the first row.
        let mut a = [0.0, 2.0, 1.0, 1.0, 1.0, 1.0, 4.0, -1.0, 1.0];
        let mut b = [7.0, 6.0, 5.0];
        let pivots = decompose(&mut a, 3, 1).expect("regular");
        assert_eq!(pivots[0], 2);
        solve(&a, &pivots, &mut b);
        for (x, wanted) in b.iter().zip([1.0, 2.0, 3.0]) {
            assert!((x - wanted).abs() < 1e-12, "{b:?}");
        }
    }

    #[test]
    fn blocks_and_threads_change_nothing() {
        // Several panels, the last not full, and tiles that end in the middle.
        let n = 2 * BLOCK + TILE / 2 + 13;
        let mut random = super::super::content::Random::new(4);
        let a: Vec<f64> = (0..n * n)
            .map(|_| (random.word() >> 11) as f64 / 2f64.powi(53) - 0.5)
            .collect();
        for threads in [1, 3] {
            let mut factors = a.clone();
            let mut b: Vec<f64> = a.chunks(n).map(|row| row.iter().sum()).collect();
            let pivots = decompose(&mut factors, n, threads).expect("regular");
            solve(&factors, &pivots, &mut b);
            let worst = b.iter().map(|x| (x - 1.0).abs()).fold(0.0, f64::max);
            assert!(worst < 1e-8, "{worst}");
        }
    }

    #[test]
    fn a_singular_matrix_is_told() {
        assert_eq!(decompose(&mut [1.0, 2.0, 2.0, 4.0], 2, 1), Err(Singular));
    }
}
