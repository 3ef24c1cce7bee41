//! Byte planes: all first bytes of a page's 64-bit words, then all second ones, and so on.
//!
//! Of numbers and pointers the high bytes are alike from word to word and the low ones are not, which LZ4, looking for runs of at
//! least four bytes, can't use as they lie. Sorted by planes such pages become two thirds as large, and are compressed faster;
//! text and code become larger. Which form suits is a matter of whose memory it is, so it is tried on one page of sixteen of
//! each neighbourhood.

use crate::sync::{AtomicU32, Ordering};
use crate::units::PAGE_SIZE;

/// A page's bytes.
pub type Page = [u8; PAGE_SIZE];

/// The form in which a page is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As it is.
    Plain,
    /// By planes.
    Planes,
}

impl Form {
    /// Both, by the number that stands for them.
    pub const ALL: [Self; 2] = [Self::Plain, Self::Planes];
}

/// Words of a page, and so bytes of a plane.
const WORDS: usize = PAGE_SIZE / 8;
/// Words that are transposed together.
const BLOCK: usize = 8;

/// Sorts a page into planes.
pub fn split(page: &Page, planes: &mut Page) {
    transpose_all(page, in_page, planes, in_planes);
}

/// Puts a page together again.
pub fn join(planes: &Page, page: &mut Page) {
    transpose_all(planes, in_planes, page, in_page);
}

/// Where word `i` of a block lies in a page.
fn in_page(block: usize, i: usize) -> usize {
    (block * BLOCK + i) * 8
}

/// Where the bytes of a block that belong to plane `i` lie.
fn in_planes(block: usize, i: usize) -> usize {
    i * WORDS + block * BLOCK
}

fn transpose_all(
    from: &Page,
    from_place: impl Fn(usize, usize) -> usize,
    to: &mut Page,
    to_place: impl Fn(usize, usize) -> usize,
) {
    for block in 0..WORDS / BLOCK {
        let mut words = core::array::from_fn(|i| word_at(from, from_place(block, i)));
        transpose(&mut words);
        for (i, word) in words.iter().enumerate() {
            put_at(to, to_place(block, i), *word);
        }
    }
}

fn word_at(bytes: &Page, at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn put_at(bytes: &mut Page, at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

/// Byte `j` of word `i` becomes byte `i` of word `j`: halves of the square change places, then quarters, then bytes.
fn transpose(words: &mut [u64; BLOCK]) {
    const STEPS: [(usize, u64); 3] = [
        (4, 0x0000_0000_ffff_ffff),
        (2, 0x0000_ffff_0000_ffff),
        (1, 0x00ff_00ff_00ff_00ff),
    ];
    for (far, low) in STEPS {
        for i in (0..BLOCK).filter(|i| i & far == 0) {
            let differ = ((words[i] >> (8 * far)) ^ words[i + far]) & low;
            words[i + far] ^= differ;
            words[i] ^= differ << (8 * far);
        }
    }
}

const NEIGHBOURHOODS: usize = 256;
/// Pages between two trials.
const TRIAL_EVERY: u32 = 16;

/// The forms that neighbourhoods of pages were found to suit, each with the pages left until the next trial. A guess that a
/// race spoils makes a page larger, nothing else.
#[derive(Debug)]
pub struct Forms([AtomicU32; NEIGHBOURHOODS]);

impl Forms {
    /// Nothing is known: every neighbourhood begins with a trial.
    #[must_use]
    pub const fn new() -> Self {
        Self([const { AtomicU32::new(0) }; NEIGHBOURHOODS])
    }
}

impl Default for Forms {
    fn default() -> Self {
        Self::new()
    }
}

impl Forms {
    /// The form of the next page of a neighbourhood; none: it is time to try both.
    #[must_use]
    pub fn next(&self, neighbourhood: u64) -> Option<Form> {
        let known = self.of(neighbourhood);
        let seen = known.load(Ordering::Relaxed);
        let (left, form) = (seen / 2, seen % 2);
        known.store((left.checked_sub(1)? * 2) | form, Ordering::Relaxed);
        Some(Form::ALL[form as usize])
    }

    /// Notes the form that a trial preferred.
    pub fn prefer(&self, neighbourhood: u64, form: Form) {
        let seen = ((TRIAL_EVERY - 1) * 2) | form as u32;
        self.of(neighbourhood).store(seen, Ordering::Relaxed);
    }

    fn of(&self, neighbourhood: u64) -> &AtomicU32 {
        &self.0[neighbourhood as usize % NEIGHBOURHOODS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn naive(page: &Page) -> Vec<u8> {
        (0..8)
            .flat_map(|plane| (0..WORDS).map(move |word| page[word * 8 + plane]))
            .collect()
    }

    proptest! {
        #[test]
        fn planes_are_those_of_the_naive_way_and_join_again(bytes in prop::collection::vec(any::<u8>(), PAGE_SIZE)) {
            let page: Page = bytes.try_into().unwrap();
            let (mut planes, mut again) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
            split(&page, &mut planes);
            prop_assert_eq!(&planes[..], &naive(&page)[..]);
            join(&planes, &mut again);
            prop_assert_eq!(&again[..], &page[..]);
        }
    }

    #[test]
    fn a_form_is_kept_until_the_next_trial() {
        let forms = Forms::new();
        assert_eq!(forms.next(3), None, "nothing is known");
        forms.prefer(3, Form::Planes);
        for _ in 1..TRIAL_EVERY {
            assert_eq!(forms.next(3), Some(Form::Planes));
        }
        assert_eq!(forms.next(3), None);
        forms.prefer(3, Form::Plain);
        assert_eq!((forms.next(3), forms.next(4)), (Some(Form::Plain), None));
    }
}
