//! Every page is read, in three orders: forward; column by column through a matrix whose rows are 32 KiB long; and
//! backward. A readahead that sees strides and backward runs makes the three cost the same.

use std::time::Instant;

use farpage_core::units::PAGE_SIZE;
use serde_json::{Value, json};

use super::content::Content;
use super::{Checks, Memory, WorkArgs, mb_per_s};

const ROW_PAGES: usize = (32 << 10) / PAGE_SIZE;

pub fn stride(args: &WorkArgs) -> Result<Value, String> {
    let content = Content::new(args.incompressible);
    let mut memory = Memory::map(args, args.bytes.next_multiple_of((ROW_PAGES * PAGE_SIZE) as u64))?;
    memory.fill(&content);
    let pages = memory.pages();
    let mut checks = Checks::default();
    let mut scan = |order: &mut dyn Iterator<Item = usize>| {
        let start = Instant::now();
        for number in order {
            checks.note(content.is(memory.page(number), number, 0));
        }
        mb_per_s(pages, start.elapsed().as_secs_f64())
    };
    let forward = scan(&mut (0..pages));
    let column = scan(&mut columns(pages));
    // The front half comes to RAM, so that the backward scan begins with pages that are not there either.
    let front = (args.ram_bytes as usize / PAGE_SIZE * 5 / 4).min(pages / 2);
    scan(&mut (0..front));
    let backward = scan(&mut (0..pages).rev());
    let mut figures = json!({
        "bytes": args.bytes,
        "pages": pages,
        "forward_mb_per_s": forward,
        "column_mb_per_s": column,
        "backward_mb_per_s": backward,
        "column_to_forward": column / forward,
        "backward_to_forward": backward / forward,
    });
    checks.tell(&mut figures);
    Ok(figures)
}

/// Every page once: the first of each row from top to bottom, then the second of each row, and so on.
fn columns(pages: usize) -> impl Iterator<Item = usize> {
    (0..ROW_PAGES).flat_map(move |column| (column..pages).step_by(ROW_PAGES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_touch_every_page_once() {
        let order: Vec<_> = columns(24).collect();
        assert_eq!(order[..4], [0, 8, 16, 1]);
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..24).collect::<Vec<_>>());
    }
}
