"""Words of the pool that say what can't be: the program that needs such a page stops, with one line that says what was found where
and what was expected, and never goes on with other bytes. It once said "its swap slot is not in use (pool damaged) 0"."""

import os
import re
import struct
from pathlib import Path

from common import WORK, check
from context import last_words, test, until
from swapoff_test import PYTHON, Tree

HEADER_MAX = 1 << 20
# From the end of the layout, which is the end of the header (crates/farpage/src/pool/layout.rs): words after `slots`, and all.
AFTER_SLOTS, LAYOUT_WORDS = 7, 23
SWAPPED, DEVICE = 3, 3
KIND, CRC_LOWEST = 7, 1 << 19

STOPPED = 128 + 6  # SIGABRT
# Spoils a word that says "in its block"; the line that the program ends with.
DAMAGES = (
    (
        "no kind of word",
        lambda word: word | KIND,
        r"farpage: impossible swap entry: slot [1-9]\d* word 0x[0-9a-f]*[7f], expected a slot with the content of a page; "
        r"the program was stopped; please report this",
    ),
    (
        "another checksum",
        lambda word: word ^ CRC_LOWEST,
        r"farpage: page 0x2[ab][0-9a-f]{10} \(slot [1-9]\d*\): its content in swap is damaged \(checksum mismatch\); the "
        r"program was stopped so that no wrong data is used; check the swap device",
    ),
)


class PoolFile:
    """A tree's pool, opened through a process that has it."""

    def __init__(self, pid):
        entries = Path(f"/proc/{pid}/fd").iterdir()
        path = next(entry for entry in entries if os.readlink(entry).startswith("/memfd:farpage-pool"))
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        words = self.words(0, HEADER_MAX)
        size = os.fstat(self.fd).st_size
        # The layout ends with where the common part ends, where the states begin (the same) and the size of it all.
        ends = [at + 1 for at, word in enumerate(words) if word == size and words[at - 1] == words[at - 2] > 0]
        check(len(ends) == 1, f"the pool's layout was found {len(ends)} times")
        layout = words[ends[0] - LAYOUT_WORDS : ends[0]]
        self.slots, self.states = layout[-AFTER_SLOTS - 1], layout[-2]

    def close(self):
        os.close(self.fd)

    def words(self, start, length):
        data = os.pread(self.fd, length, start)
        return struct.unpack(f"<{len(data) // 8}Q", data)

    def named_slots(self):
        """The slots of all pages that are swapped."""
        at, found = self.states, set()
        while True:
            try:
                at = os.lseek(self.fd, at, os.SEEK_DATA)
            except OSError:  # there is no more
                return found
            end = os.lseek(self.fd, at, os.SEEK_HOLE)
            words = self.words(at, min(end - at, HEADER_MAX))
            found |= {word >> 16 & 0xFFFFFFFF for word in words if word & KIND == SWAPPED}
            at += len(words) * 8

    def in_file(self):
        """Those slots whose page lies in its block, with their words."""
        words = ((slot, self.words(self.slots + slot * 8, 8)[0]) for slot in self.named_slots())
        return [(slot, word) for slot, word in words if word & KIND == DEVICE]

    def spoil(self, damage):
        """Damages the words of all of them."""
        for slot, word in self.in_file():
            os.pwrite(self.fd, struct.pack("<Q", damage(word)), self.slots + slot * 8)


@test("damaged-pool", ("quick", "soak", "user"), per_delivery=True)
def damaged_pool(context):
    """A program whose slots were spoiled while it slept touches its pages."""
    for what, damage, line in DAMAGES:
        go = context.directory / f"go {what}"
        extra = ["--eager", "--swap", f"{context.directory}:1G"]
        with context.start(32, [PYTHON, WORK / "hold.py", 64, go], extra=extra) as job:
            until("the data is there", lambda: "ready" in job.out.read_text() or job.process.poll() is not None)
            check(job.process.poll() is None, f"{what}: {last_words(job)}")
            Tree(context, job).settled(context.directory.name)
            pool = PoolFile(job.process.pid)
            # What leaves may stand still for a moment on a busy machine.
            until("4000 pages lie in the file", lambda: len(pool.in_file()) > 4000)
            pool.spoil(damage)
            pool.close()
            go.touch()
            code = job.wait()
            text, lines = job.out.read_text(), job.err.read_text().splitlines()
            check(code == STOPPED, f"{what}: exit code {code}: {last_words(job)}")
            check(text == "ready\n", f"{what}: the program went on: {text}")
            check(len(lines) == 1 and re.fullmatch(line, lines[0]), f"{what}: it ended with {lines}")
            context.finish(job)
