"""multiprocessing by fork: workers read a NumPy array and walk a list of objects that they inherited. Walking it counts
references, so every worker writes to (and gets its own copy of) every page of it."""

import multiprocessing
import sys
import zlib

import numpy as np

mib = int(sys.argv[1])
workers = 4
array = np.random.default_rng(3).integers(0, 1 << 40, mib * 3 // 8 * (1 << 17))
objects = [i * 7919 for i in range(mib * 3000)]


def work(number):
    part = array[number :: workers * 2]
    total = sum(objects[number::2])
    own = array[number * 1000 : number * 1000 + array.size // 8].copy()
    own.sort()
    objects[number] = -number
    return number, int(part.sum()), total, zlib.crc32(own), sum(objects[:100])


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for line in pool.map(work, range(workers * 2), chunksize=1):
            print(*line[:4])
    print("parent", sum(objects), zlib.crc32(array), "untouched", objects[3] == 3 * 7919)
