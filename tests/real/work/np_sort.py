"""Sorts MIB of 64-bit integers in place, beside an unsorted copy of a quarter. Prints what must not depend on memory."""

import sys
import zlib

import numpy as np

CHUNK = 1 << 20
count = int(sys.argv[1]) * 4 // 5 * (1 << 17)
data = np.empty(count, dtype=np.int64)
rng = np.random.default_rng(20240607)
for start in range(0, count, CHUNK):
    part = data[start : start + CHUNK]
    part[:] = rng.integers(-(2**62), 2**62, part.size)
keep = data[: count // 4].copy()
before = (int(data.sum()), int(np.bitwise_xor.reduce(data)))
data.sort()
after = (int(data.sum()), int(np.bitwise_xor.reduce(data)))
sorted_all = all(
    bool((data[start : min(start + CHUNK, count - 1)] <= data[start + 1 : start + CHUNK + 1]).all())
    for start in range(0, count - 1, CHUNK)
)
print("kept", before == after, "sorted", sorted_all)
print("crc", zlib.crc32(data), zlib.crc32(keep))
print("found", int(np.searchsorted(data, keep[::997]).sum()))
