//! Naive models of the core's structures: the property tests, the fuzz targets (`fuzz/`) and the stress target run the
//! same events on both and panic where they differ.

pub mod bit_tree;
pub mod fifo;
pub mod range_map;
pub mod readahead;
pub mod reclaim_policy;
pub mod slot_cache;
pub mod slots;
pub mod slots_memory;
pub mod workingset;
pub mod zpool;

/// Events are read from bytes, which a fuzzer or a property test makes up.
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    pub fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    pub fn word(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes([self.byte()?, self.byte()?]))
    }

    pub fn number(&mut self) -> Option<u64> {
        let (&first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(first))
    }
}

/// What `read` makes of the bytes, until it finds no more.
pub fn events<'a, T>(
    mut input: Input<'a>,
    read: impl Fn(&mut Input<'a>) -> Option<T> + 'a,
) -> impl Iterator<Item = T> + 'a {
    core::iter::from_fn(move || read(&mut input))
}
