//! Sizes: of pages, and as people write them.
//!
//! All units are powers of 1024. `K`, `M`, `G`, `T` and their `KiB` forms mean the same; `GB` is refused,
//! because half of its readers mean 1000 and half 1024 and a memory budget should not depend on who reads it.
//! Arithmetic is in integers: a size written with a fraction is rounded down to a whole byte, and what
//! [`format_size`] prints [`parse_size`] reads back, within the rounding to one decimal.

use core::fmt::{self, Display, Write};

/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;
/// Bytes in a page.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;
/// Bytes in a huge page (one PMD entry).
pub const HUGE_SIZE: usize = 2 << 20;

const PREFIXES: [(u8, u32, &str); 4] = [
    (b'T', 40, "TiB"),
    (b'G', 30, "GiB"),
    (b'M', 20, "MiB"),
    (b'K', 10, "KiB"),
];
/// Digits after the point that count: 10^18 * 2^40 still fits 128 bits, and one unit of the 18th is below a
/// byte.
const FRACTION_DIGITS: usize = 18;

/// Number of pages that hold `bytes`, rounded up.
#[must_use]
pub const fn pages(bytes: usize) -> usize {
    bytes.div_ceil(PAGE_SIZE)
}

/// Why a size could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeError {
    /// Nothing but white space.
    Empty,
    /// Does not begin with a number.
    NotANumber,
    /// Begins with a minus sign.
    Negative,
    /// `GB` and the like; holds the prefix letter in upper case.
    Ambiguous(char),
    /// The unit after the number is not known.
    UnknownUnit,
    /// A fraction of a byte, such as `1.5`.
    FractionOfByte,
    /// More than 2^64 - 1 bytes.
    Overflow,
}

impl Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Empty => f.write_str("no size given; write for example 512M or 2G"),
            Self::NotANumber => f.write_str("not a number; write for example 512M, 1.5G or 2GiB"),
            Self::Negative => f.write_str("a size cannot be negative; write for example 512M or 2G"),
            Self::Ambiguous(p) => write!(
                f,
                "{p}B is ambiguous (powers of 1000 or of 1024?); write {p} or {p}iB for powers of 1024"
            ),
            Self::UnknownUnit => f.write_str("unknown unit; use K, M, G, T or KiB, MiB, GiB, TiB"),
            Self::FractionOfByte => f.write_str("a fraction of a byte; add a unit, for example 1.5G"),
            Self::Overflow => f.write_str("more than 2^64 - 1 bytes; give a smaller size"),
        }
    }
}

impl core::error::Error for SizeError {}

/// Reads a size in bytes: `4096`, `64K`, `1.5G`, `2 GiB`. Letters may be of either case.
///
/// # Errors
/// [`SizeError`] says what is wrong in words fit for the user.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(SizeError::Empty);
    }
    if text.starts_with('-') {
        return Err(SizeError::Negative);
    }
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (number, None),
    };
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || fraction.is_some_and(|s| !digits(s)) {
        return Err(SizeError::NotANumber);
    }
    let shift = unit_shift(unit.trim_start().as_bytes())?;
    let below = match fraction {
        None => 0,
        Some(_) if shift == 0 => return Err(SizeError::FractionOfByte),
        Some(digits) => fraction_bytes(digits, shift),
    };
    let whole: u64 = whole.parse().map_err(|_| SizeError::Overflow)?;
    whole
        .checked_mul(1 << shift)
        .and_then(|b| b.checked_add(below))
        .ok_or(SizeError::Overflow)
}

fn unit_shift(unit: &[u8]) -> Result<u32, SizeError> {
    let prefix = |letter: u8| {
        PREFIXES
            .iter()
            .find(|p| p.0 == letter.to_ascii_uppercase())
            .map(|p| p.1)
    };
    match *unit {
        [] | [b'B'] => Ok(0),
        [p] | [p, b'i' | b'I', b'B' | b'b'] => prefix(p).ok_or(SizeError::UnknownUnit),
        [p, b'B' | b'b'] if prefix(p).is_some() => Err(SizeError::Ambiguous(p.to_ascii_uppercase().into())),
        _ => Err(SizeError::UnknownUnit),
    }
}

/// `0.digits * 2^shift`, rounded down; `digits` are ASCII digits.
fn fraction_bytes(digits: &str, shift: u32) -> u64 {
    let (mut numerator, mut denominator) = (0u128, 1u128);
    for digit in digits.bytes().take(FRACTION_DIGITS) {
        numerator = numerator * 10 + u128::from(digit - b'0');
        denominator *= 10;
    }
    ((numerator << shift) / denominator) as u64
}

/// Bytes for people: `384 MiB`, `1.5 GiB`, at most one decimal, rounded to nearest. Honours width and
/// alignment.
pub fn format_size(bytes: u64) -> impl Display {
    SizeText(bytes)
}

struct SizeText(u64);

impl Display for SizeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = Line {
            bytes: [0; 32],
            len: 0,
        };
        match largest_unit(self.0) {
            None => write!(line, "{} B", self.0)?,
            Some((tenths, name)) if tenths % 10 == 0 => write!(line, "{} {name}", tenths / 10)?,
            Some((tenths, name)) => write!(line, "{}.{} {name}", tenths / 10, tenths % 10)?,
        }
        f.pad(core::str::from_utf8(&line.bytes[..line.len]).unwrap_or(""))
    }
}

/// Tenths of the largest unit of which there is at least one after rounding; none below 1 KiB.
fn largest_unit(bytes: u64) -> Option<(u64, &'static str)> {
    PREFIXES.iter().find_map(|&(_, shift, name)| {
        let tenths = (u128::from(bytes) * 10 + (1 << (shift - 1))) >> shift;
        (bytes >= 1024 && tenths >= 10).then_some((tenths as u64, name))
    })
}

/// A few bytes on the stack, so that padding works without allocating.
struct Line {
    bytes: [u8; 32],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let end = self.len + s.len();
        self.bytes
            .get_mut(self.len..end)
            .ok_or(fmt::Error)?
            .copy_from_slice(s.as_bytes());
        self.len = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn pages_round_up() {
        assert_eq!([pages(0), pages(1), pages(4096), pages(4097)], [0, 1, 1, 2]);
        assert_eq!(pages(usize::MAX), (usize::MAX >> PAGE_SHIFT) + 1);
    }

    #[test]
    fn reads_sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            (" 7 B ", 7),
            ("64K", 64 << 10),
            ("64kib", 64 << 10),
            ("384 MiB", 384 << 20),
            ("1.5G", 3 << 29),
            ("1.5 GiB", 3 << 29),
            ("2t", 2 << 40),
            ("0.1K", 102),
            ("16777215.999999999999999999T", u64::MAX),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_unclear() {
        for (text, error) in [
            ("", SizeError::Empty),
            ("  ", SizeError::Empty),
            ("-1G", SizeError::Negative),
            ("GB", SizeError::NotANumber),
            ("2GB", SizeError::Ambiguous('G')),
            ("2 kb", SizeError::Ambiguous('K')),
            ("1.5", SizeError::FractionOfByte),
            ("1.G", SizeError::NotANumber),
            (".5G", SizeError::NotANumber),
            ("1.2.3G", SizeError::NotANumber),
            ("+1", SizeError::NotANumber),
            ("1e3", SizeError::UnknownUnit),
            ("1P", SizeError::UnknownUnit),
            ("1bb", SizeError::UnknownUnit),
            ("1\u{b5}", SizeError::UnknownUnit),
            ("16777216T", SizeError::Overflow),
            ("99999999999999999999", SizeError::Overflow),
        ] {
            assert_eq!(parse_size(text), Err(error), "{text}");
        }
        assert!(format!("{}", SizeError::Ambiguous('G')).contains("write G or GiB"));
    }

    #[test]
    fn prints_sizes() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (384 << 20, "384 MiB"),
            (3 << 29, "1.5 GiB"),
            ((1 << 30) - 1, "1 GiB"),
            (1_000_000_000, "953.7 MiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(format!("{}", format_size(bytes)), text);
        }
        assert_eq!(
            format!("{:>10}|{:<8}|", format_size(384 << 20), format_size(5)),
            "   384 MiB|5 B     |"
        );
    }
}
