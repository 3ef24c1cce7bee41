"""Writes MIB of text lines with a fixed seed: keys near their final place (so that sorting has some locality), words after."""

import random
import sys

path, mib = sys.argv[1], float(sys.argv[2])
rng = random.Random(5)
lines = int(mib * 25000)
words = ["alpha", "beta", "gamma", "delta", "page", "frame", "slot", "area", "swap", "fault"]
with open(path, "w") as out:
    for start in range(0, lines, 10000):
        out.writelines(
            f"{start + i + rng.randrange(-lines // 16, lines // 16) + lines:09d} {rng.choice(words)} "
            f"{rng.randrange(10**9):09d} {words[i % 10]}\n"
            for i in range(10000)
        )
