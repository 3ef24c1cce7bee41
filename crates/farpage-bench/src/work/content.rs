//! What the workloads write. Real data compresses to about 40 %, so the pages do too: a page is 64 records of 64
//! bytes, each 20 random bytes followed by 44 that are the same in all records of the page. LZ4 makes 2.4 to 2.6
//! of it. With `incompressible` all bytes are random.
//!
//! Pages are copied from a set of 256 made beforehand, so that making them costs next to nothing beside a fault; the
//! first and the last word tell page and version, so that a page that came back as another one, or as an older
//! version of itself, is noticed.

use farpage_core::units::PAGE_SIZE;

const TEMPLATES: usize = 256;
const RECORD_BYTES: usize = 64;
const RANDOM_BYTES: usize = 20;
const WORD: usize = size_of::<u64>();

/// A generator of numbers that look random (splitmix64): the next state and the number of one step.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0; the bias of the method is below `end` / 2^64.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.word()) * end as u128) >> 64) as usize
    }

    fn bytes(&mut self, to: &mut [u8]) {
        for part in to.chunks_mut(WORD) {
            part.copy_from_slice(&self.word().to_le_bytes()[..part.len()]);
        }
    }
}

/// The pages of a run. The same for every run with the same flag.
pub struct Content {
    templates: Vec<u8>,
}

impl Content {
    pub fn new(incompressible: bool) -> Self {
        let mut random = Random::new(1);
        let mut templates = vec![0; TEMPLATES * PAGE_SIZE];
        for page in templates.chunks_mut(PAGE_SIZE) {
            random.bytes(page);
            if !incompressible {
                let (first, rest) = page.split_at_mut(RECORD_BYTES);
                for record in rest.chunks_mut(RECORD_BYTES) {
                    record[RANDOM_BYTES..].copy_from_slice(&first[RANDOM_BYTES..]);
                }
            }
        }
        Self { templates }
    }

    fn template(&self, number: usize, version: u32) -> &[u8] {
        let at = number.wrapping_mul(7).wrapping_add(version as usize) % TEMPLATES * PAGE_SIZE;
        &self.templates[at..at + PAGE_SIZE]
    }

    /// Writes the whole of `page`, which may be shorter than one, but not than two words.
    pub fn write(&self, page: &mut [u8], number: usize, version: u32) {
        let end = page.len();
        page.copy_from_slice(&self.template(number, version)[..end]);
        let stamp = stamp(number, version).to_le_bytes();
        page[..WORD].copy_from_slice(&stamp);
        page[end - WORD..].copy_from_slice(&stamp);
    }

    /// Whether `page` begins and ends as [`Self::write`] left it.
    #[must_use]
    pub fn has_stamp(&self, page: &[u8], number: usize, version: u32) -> bool {
        let stamp = stamp(number, version).to_le_bytes();
        page[..WORD] == stamp && page[page.len() - WORD..] == stamp
    }

    /// Whether `page` is, to the byte, what [`Self::write`] wrote.
    #[must_use]
    pub fn is(&self, page: &[u8], number: usize, version: u32) -> bool {
        let inner = WORD..page.len() - WORD;
        self.has_stamp(page, number, version) && page[inner.clone()] == self.template(number, version)[inner]
    }
}

/// Never zero, and different for every page and version.
fn stamp(number: usize, version: u32) -> u64 {
    ((number as u64 + 1) << 24) | u64::from(version & 0xFF_FFFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(incompressible: bool) -> f64 {
        let content = Content::new(incompressible);
        let (mut page, mut out) = (vec![0; PAGE_SIZE], vec![0; 2 * PAGE_SIZE]);
        let stored: usize = (0..TEMPLATES)
            .map(|number| {
                content.write(&mut page, number, 3);
                let length = lz4_flex::block::compress_into(&page, &mut out).expect("room");
                length.min(PAGE_SIZE)
            })
            .sum();
        (TEMPLATES * PAGE_SIZE) as f64 / stored as f64
    }

    #[test]
    fn compresses_like_data() {
        let (data, noise) = (ratio(false), ratio(true));
        assert!((2.3..2.7).contains(&data), "{data}");
        assert!(noise < 1.01, "{noise}");
    }

    #[test]
    fn another_page_or_version_is_noticed() {
        let content = Content::new(false);
        let mut page = vec![0; PAGE_SIZE];
        content.write(&mut page, 5, 2);
        assert!(content.is(&page, 5, 2));
        assert!(!content.is(&page, 5, 1) && !content.is(&page, 5 + TEMPLATES, 2));
        for at in [0, 8, 2000, PAGE_SIZE - 1] {
            page[at] ^= 1;
            assert!(!content.is(&page, 5, 2), "byte {at}");
            page[at] ^= 1;
        }
    }

    #[test]
    fn a_part_of_a_page_is_compared_whole() {
        let content = Content::new(false);
        let mut part = [0; 1024];
        content.write(&mut part, 5, 0);
        assert!(content.is(&part, 5, 0));
        for at in [7, 8, 1015, 1023] {
            part[at] ^= 1;
            assert!(!content.is(&part, 5, 0), "byte {at}");
            part[at] ^= 1;
        }
    }

    #[test]
    fn numbers_below_an_end_reach_all_of_them() {
        let mut random = Random::new(9);
        let mut seen = [false; 7];
        (0..200).for_each(|_| seen[random.below(7)] = true);
        assert_eq!(seen, [true; 7]);
    }
}
