//! What a disk gives by itself, past the page cache: nobody swaps to it faster. Rewriting reads as much as it writes, so it is measured
//! both ways: reads and writes alone, and beside as many writes. A walk by columns reads single pages, so they are measured too.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::Instant;

use memmap2::MmapMut;
use rustix::fs::OFlags;
use serde_json::{Value, json};

/// Reads or writes of `block` bytes, `step` bytes apart: `at_once` under way at a time, each the next of `each`.
struct Pattern {
    block: usize,
    step: u64,
    at_once: u64,
    each: u64,
}

const STREAM: Pattern = Pattern {
    block: 1 << 20,
    step: 1 << 20,
    at_once: 4,
    each: 128,
};
/// Pages of one column of the matrix that `stride` walks through, over the file that the stream has written.
const COLUMN: Pattern = Pattern {
    block: 4 << 10,
    step: 32 << 10,
    at_once: 32,
    each: 512,
};

/// MB/s of a file without a name in `directory`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    pub read: f64,
    write: f64,
    read_beside: f64,
    write_beside: f64,
    read_column: f64,
}

impl Speed {
    /// # Errors
    /// The file system's, one that has no room or no O_DIRECT among them.
    pub fn of(directory: &Path) -> io::Result<Self> {
        let flags = OFlags::TMPFILE | OFlags::DIRECT;
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(flags.bits() as i32);
        let file = &options.open(directory)?;
        let write = STREAM.run(file, |_| true)?[1];
        let read = STREAM.run(file, |_| false)?[0];
        let [read_beside, write_beside] = STREAM.run(file, |nth| nth % 2 == 1)?;
        let read_column = COLUMN.run(file, |_| false)?[0];
        Ok(Self {
            read,
            write,
            read_beside,
            write_beside,
            read_column,
        })
    }

    pub fn words(self) -> String {
        format!(
            "the disk by itself, past the page cache, {} MiB at a time by {}: {:.0} MB/s read, {:.0} written; {:.0} read beside {:.0} written; \
             single pages {} KiB apart by {}: {:.0} read",
            STREAM.block >> 20,
            STREAM.at_once,
            self.read,
            self.write,
            self.read_beside,
            self.write_beside,
            COLUMN.step >> 10,
            COLUMN.at_once,
            self.read_column
        )
    }

    pub fn json(self) -> Value {
        json!({
            "read_mb_per_s": self.read,
            "write_mb_per_s": self.write,
            "read_beside_writes_mb_per_s": self.read_beside,
            "write_beside_reads_mb_per_s": self.write_beside,
            "read_column_mb_per_s": self.read_column,
        })
    }
}

impl Pattern {
    /// Every thread goes through its own part of the file, reading or writing as `writes` says of it; MB/s of those that read and of
    /// those that write.
    fn run(&self, file: &File, writes: impl Fn(u64) -> bool) -> io::Result<[f64; 2]> {
        let start = Instant::now();
        let each = |nth: u64, writes: bool| -> io::Result<f64> {
            // Page-aligned, as O_DIRECT wants it.
            let mut block = MmapMut::map_anon(self.block)?;
            block.fill(nth as u8 + 1);
            for at in (nth * self.each..(nth + 1) * self.each).map(|at| at * self.step) {
                if writes {
                    file.write_all_at(&block, at)?;
                } else {
                    file.read_exact_at(&mut block, at)?;
                }
            }
            Ok(start.elapsed().as_secs_f64())
        };
        let mut done = [(0.0, 0.0_f64); 2];
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.at_once)
                .map(|nth| (writes(nth), nth))
                .map(|(writes, nth)| (writes, scope.spawn(move || each(nth, writes))))
                .collect();
            for (writes, thread) in threads {
                let seconds = thread
                    .join()
                    .map_err(|_| io::Error::other("a thread panicked"))??;
                let (blocks, longest) = &mut done[usize::from(writes)];
                *blocks += self.each as f64;
                *longest = longest.max(seconds);
            }
            Ok(done.map(|(blocks, seconds)| blocks * self.block as f64 / 1e6 / seconds.max(1e-9)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_read_and_written() {
        let speed = Speed::of(Path::new("/var/tmp")).expect("a disk");
        assert!(
            speed.read > 0.0
                && speed.write > 0.0
                && speed.read_beside > 0.0
                && speed.write_beside > 0.0
                && speed.read_column > 0.0
        );
        assert!(speed.words().contains("MB/s read"));
        assert!(Speed::of(Path::new("/proc")).is_err());
    }
}
