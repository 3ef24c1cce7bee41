"""Fills, sorts and checks about 1.5 GB of integers with NumPy: 720 MB to be sorted, 720 MB as they were before.

The same numbers on every machine, so the checksum is known. Exit code 1 if anything is wrong.
"""

import sys
import time
import zlib

import numpy as np

COUNT = 90_000_000
CHUNK = 1_000_000
CHECKSUM = 0xAF2DF501
started = time.monotonic()


def say(text):
    print(f"{time.monotonic() - started:6.1f} s  {text}", flush=True)


def mixed_numbers(start, count):
    """Numbers `start` and up, mixed by splitmix64: random enough, and the same with every NumPy."""
    word = np.arange(start, start + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((word ^ (word >> np.uint64(31))) >> np.uint64(24)).astype(np.int64)


def chunks(array):
    return (array[start : start + CHUNK] for start in range(0, array.size, CHUNK))


def facts(array):
    """(sum, xor) of all numbers: the same in any order."""
    total = sum(int(part.sum()) for part in chunks(array))
    mixed = 0
    for part in chunks(array):
        mixed ^= int(np.bitwise_xor.reduce(part))
    return total, mixed


def is_sorted(array):
    inside = all(bool((part[:-1] <= part[1:]).all()) for part in chunks(array))
    edges = array[CHUNK - 1 :: CHUNK][: array.size // CHUNK - 1] <= array[CHUNK::CHUNK]
    return inside and bool(edges.all())


def main():
    data = np.empty(COUNT, dtype=np.int64)
    for number, part in enumerate(chunks(data)):
        part[:] = mixed_numbers(number * CHUNK, part.size)
    say(f"filled {COUNT:,} integers, {data.nbytes / 1e6:.0f} MB")
    before = data.copy()
    say(f"copied them, {2 * data.nbytes / 1e6:.0f} MB in all")
    data.sort()
    say("sorted")

    ordered = is_sorted(data)
    same = facts(data) == facts(before)
    probes = np.sort(before[:: 1000])
    found = bool((data[np.searchsorted(data, probes)] == probes).all())
    checksum = 0
    for part in chunks(data):
        checksum = zlib.crc32(part, checksum)
    say(f"in order: {ordered}; sum and xor unchanged: {same}; {probes.size:,} numbers looked up: {found}")
    say(f"checksum {checksum:08x}, expected {CHECKSUM:08x}")
    return 0 if ordered and same and found and checksum == CHECKSUM else 1


if __name__ == "__main__":
    sys.exit(main())
