//! Data in a file that is mapped, which is what programs do about data larger than RAM where there is no swap.
//!
//! # Safety
//! The file has no other user: it was made here, and has no name any more.
#![allow(unsafe_code)]

use std::fs::{self, OpenOptions};
use std::path::Path;

use memmap2::MmapMut;

const NAME: &str = "data";

pub fn map(directory: &Path, length: usize) -> Result<MmapMut, String> {
    let path = directory.join(NAME);
    let failed = |error| format!("{}: {error}", path.display());
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .map_err(failed)?;
    fs::remove_file(&path).map_err(failed)?;
    file.set_len(length as u64).map_err(failed)?;
    // SAFETY: nobody else writes to it or cuts it short: see the top.
    unsafe { MmapMut::map_mut(&file) }.map_err(failed)
}
