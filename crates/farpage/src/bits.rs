//! Places in a block of frames or a window of pages, a bit each in one word.

/// The places of the bits that are set.
pub fn bits(mask: u64) -> impl DoubleEndedIterator<Item = u64> {
    (0..u64::from(u64::BITS)).filter(move |i| mask >> i & 1 == 1)
}

/// The bits of the places.
pub fn set(places: impl Iterator<Item = u64>) -> u64 {
    places.fold(0, |bits, place| bits | 1 << place)
}

/// The first `len` bits.
pub fn mask(len: u64) -> u64 {
    if len >= 64 { u64::MAX } else { (1 << len) - 1 }
}
