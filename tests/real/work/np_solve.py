"""Dense solve of order N by LAPACK with several BLAS threads. The answer is known to be integers, so it can be compared
exactly; the integer matrix product is exact in floating point whatever the order of the sums."""

import os
import sys

os.environ["OPENBLAS_NUM_THREADS"] = sys.argv[2]

import zlib

import numpy as np

order = int(sys.argv[1])
rng = np.random.default_rng(7)
matrix = np.empty((order, order))
for row in range(0, order, 256):
    part = matrix[row : row + 256]
    part[:] = rng.integers(-9, 10, part.shape)
matrix[np.arange(order), np.arange(order)] += 40 * np.sqrt(order)
wanted = rng.integers(-100, 101, (order, 4)).astype(float)
matrix = np.rint(matrix)
right = matrix @ wanted
got = np.linalg.solve(matrix, right)
print("solved", bool(np.abs(got - wanted).max() < 1e-6), zlib.crc32(np.rint(got).astype(np.int64)))
small = matrix[:, : order // 8]
product = small.T @ small
print("product", zlib.crc32(product.astype(np.int64)))
