//! A page on its way to the compressed tier, in which form it becomes smaller, and whether that is small enough; and back.
//!
//! LZ4 by two libraries: what compresses needs its table in a place of ours, what unpacks must be fast with runs (decision 0031).

use core::sync::atomic::Ordering;

use farpage_core::planes::{self, Form, Page};
use farpage_core::stats::Counter;
use farpage_core::units::PAGE_SIZE;
use farpage_core::zpool::HEADER_BYTES;

use crate::mm::Mm;
use crate::reclaim::BLOCK;
use crate::tiers;
use crate::work_area::Context;

/// Beyond it compressing gains nothing.
const WORTH_ALONE: usize = 4032;
/// With a file to fall back on, a page must shrink by a quarter to be kept in RAM.
const WORTH_BESIDE_FILE: usize = 3072;

/// A page compressed into `context.out`.
pub struct Compressed {
    pub length: usize,
    pub crc: u32,
    pub form: Form,
}

/// Compresses the frame at `address`, which holds `page`; `None` if it is not worth keeping in RAM.
pub fn compress(mm: &Mm, page: u64, address: u64, context: &mut Context) -> Option<Compressed> {
    let header = mm.header();
    if header.zpages_limit.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let content = tiers::content_at(address);
    let worth = if header.areas.load(Ordering::Relaxed) > 0 {
        WORTH_BESIDE_FILE
    } else {
        WORTH_ALONE
    };
    // Pages of a window are expected to suit the same form.
    let neighbourhood = page / BLOCK;
    let found = match mm.forms.next(neighbourhood) {
        Some(form) => compress_as(form, content, context).map(|length| (form, length)),
        None => {
            let best = try_both(content, worth - HEADER_BYTES, context);
            let form = best.map_or(Form::Plain, |(form, _)| form);
            mm.forms.prefer(neighbourhood, form);
            best
        }
    };
    let Some((form, length)) = found.filter(|(_, length)| length + HEADER_BYTES <= worth) else {
        header.count(Counter::RejectCompressPoor, 1);
        return None;
    };
    Some(Compressed {
        length,
        crc: crc32c::crc32c(content),
        form,
    })
}

/// Compresses in one form, into `context.out`; the length, if that is smaller than a page.
fn compress_as(form: Form, content: &Page, context: &mut Context) -> Option<usize> {
    let Context {
        out, table, planes, ..
    } = context;
    let from = match form {
        Form::Plain => content,
        Form::Planes => {
            planes::split(content, planes);
            &*planes
        }
    };
    let length = lz4_flex::block::compress_into_with_table(from, &mut out[..], table).ok()?;
    (length < PAGE_SIZE).then_some(length)
}

/// Unpacks what [`compress`] made, in the form it had; false if that is not a page. Allocates nothing, also then.
pub fn unpack(packed: &[u8], to: &mut Page) -> bool {
    matches!(lzzzz::lz4::decompress(packed, to), Ok(PAGE_SIZE))
}

/// The smaller form and its length; planes only if that makes the page worth keeping, of which they save a sixteenth.
fn try_both(content: &Page, worth: usize, context: &mut Context) -> Option<(Form, usize)> {
    let planes = compress_as(Form::Planes, content, context).filter(|length| *length <= worth);
    if let Some(length) = planes {
        // The planes have been read.
        context.planes[..length].copy_from_slice(&context.out[..length]);
    }
    let plain = compress_as(Form::Plain, content, context);
    if let Some(length) = planes.filter(|planes| plain.is_none_or(|plain| planes + plain / 16 < plain)) {
        context.out[..length].copy_from_slice(&context.planes[..length]);
        return Some((Form::Planes, length));
    }
    plain.map(|length| (Form::Plain, length))
}

#[cfg(test)]
mod tests {
    use lz4_flex::block::{CompressTable, compress_into_with_table};
    use proptest::prelude::*;

    use super::*;

    /// Pieces of a page: some bytes, repeated with a period as long as they are.
    fn page_of(pieces: &[(Vec<u8>, usize)]) -> Page {
        let bytes = pieces.iter().flat_map(|(some, times)| some.repeat(*times));
        let mut page = [0; PAGE_SIZE];
        page.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
        page
    }

    proptest! {
        /// Runs of any period: matches that overlap what they copy from, which the two libraries copy in different ways.
        #[test]
        fn what_one_library_packs_the_other_unpacks(
            pieces in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 1..40), 1..200usize), 0..30),
            cut in 0..PAGE_SIZE,
        ) {
            let (page, mut table) = (page_of(&pieces), CompressTable::small());
            let mut packed = [0; 2 * PAGE_SIZE];
            let length = compress_into_with_table(&page, &mut packed, &mut table).unwrap();
            let mut back = [1; PAGE_SIZE];
            prop_assert!(unpack(&packed[..length], &mut back));
            prop_assert_eq!(&back[..], &page[..]);
            prop_assert!(!unpack(&packed[..cut.min(length - 1)], &mut back), "a part is no page");
        }
    }
}
