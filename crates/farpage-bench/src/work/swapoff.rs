//! What an emptied swap area is emptied of: data that was pushed out, and that has room to come back to.
//!
//! Most of three quarters of the RAM is written first and kept; all else, written after them, pushes them out and is given back.
//! Then the program waits until it is told to go on, and looks at every byte of what it kept. So the area goes back to RAM
//! under the same limit on every side, and nobody needs a larger one.

use farpage_core::units::PAGE_SIZE;
use serde_json::{Value, json};

use super::content::Content;
use super::{Checks, Memory, WorkArgs, meet};

/// Of the RAM, what is kept: a part, less some bytes. The rest is for the program itself, for whoever swaps, and for what the
/// reclaimers keep ready.
const KEPT_PART: f64 = 0.75;
const OWN_BYTES: u64 = 6 << 20;

pub fn swapoff(args: &WorkArgs) -> Result<Value, String> {
    emptied(args, meet)
}

fn emptied(args: &WorkArgs, meet: impl FnOnce() -> Result<(), String>) -> Result<Value, String> {
    let content = Content::new(args.incompressible);
    let kept_bytes = kept_bytes(args.ram_bytes);
    let mut kept = Memory::anonymous(kept_bytes)?;
    let mut rest = Memory::anonymous(args.bytes.saturating_sub(kept_bytes).max(PAGE_SIZE as u64))?;
    kept.fill(&content);
    rest.fill(&content);
    drop(rest);
    meet()?;
    let mut checks = Checks::default();
    for number in 0..kept.pages() {
        checks.note(content.is(kept.page(number), number, 0));
    }
    let mut figures = json!({ "bytes": args.bytes, "kept_bytes": kept_bytes });
    checks.tell(&mut figures);
    Ok(figures)
}

fn kept_bytes(ram_bytes: u64) -> u64 {
    let part = (ram_bytes as f64 * KEPT_PART) as u64;
    part.saturating_sub(OWN_BYTES).max(PAGE_SIZE as u64)
}

#[cfg(test)]
mod tests {
    use super::super::tests::args;
    use super::*;
    use crate::names::Workload;

    #[test]
    fn all_that_is_kept_is_looked_at_after_the_meeting() {
        let mut met = 0;
        let args = WorkArgs {
            ram_bytes: 16 << 20,
            ..args(Workload::Swapoff)
        };
        let figures = emptied(&args, || {
            met += 1;
            Ok(())
        })
        .expect("runs");
        assert_eq!(
            (&figures["ok"], &figures["checked"], met),
            (&json!(true), &json!(1536), 1)
        );
        let alone = emptied(&args, || Err("gone".to_owned()));
        assert_eq!(alone, Err("gone".to_owned()));
    }
}
