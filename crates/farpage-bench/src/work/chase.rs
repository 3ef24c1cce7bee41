//! Every page is read in an order that is none of addresses, and in the same order again: a list that is followed, what a collector
//! marks. Nothing leads from one page to the next but what came after it the last time.

use std::time::Instant;

use serde_json::{Value, json};

use super::content::{Content, Random};
use super::{Checks, Memory, WorkArgs};

/// Rounds after the first one.
const AGAIN: u32 = 3;

pub fn chase(args: &WorkArgs) -> Result<Value, String> {
    let content = Content::new(args.incompressible);
    let mut memory = Memory::map(args, args.bytes)?;
    let order = shuffled(memory.pages());
    memory.fill(&content);
    let mut checks = Checks::default();
    let mut round = || {
        let start = Instant::now();
        for number in &order {
            let number = *number as usize;
            checks.note(content.is(memory.page(number), number, 0));
        }
        start.elapsed().as_secs_f64()
    };
    let first = round();
    let again: f64 = (0..AGAIN).map(|_| round()).sum();
    let pages = order.len();
    let mut figures = json!({
        "bytes": args.bytes,
        "pages": pages,
        "first_per_s": pages as f64 / first,
        "again_per_s": f64::from(AGAIN) * pages as f64 / again,
    });
    checks.tell(&mut figures);
    Ok(figures)
}

/// The numbers below `count`, each once, in an order that is the same every time.
fn shuffled(count: usize) -> Vec<u32> {
    let (mut order, mut dice) = ((0..count as u32).collect::<Vec<_>>(), Random::new(1));
    for last in (1..count).rev() {
        order.swap(last, dice.below(last + 1));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_once_and_hardly_any_beside_the_one_before() {
        let order = shuffled(5000);
        let beside = order
            .windows(2)
            .filter(|pair| pair[0].abs_diff(pair[1]) < 64)
            .count();
        assert!(beside < 300, "{beside} of 5000");
        let mut sorted = order;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..5000));
    }
}
