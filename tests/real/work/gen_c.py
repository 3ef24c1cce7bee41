"""Writes a C file with a fixed seed: FUNCTIONS functions, one large function and large tables, so that cc1 needs memory."""

import random
import sys

path, functions, table = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(99)
with open(path, "w") as out:
    out.write("struct entry { const char *name; double weight; int id; struct { short a, b; } pair; };\n")
    for number in range(functions):
        out.write(f"static int f{number}(int *p, int n) {{ int s = {rng.randrange(1000)};\n")
        for _ in range(12):
            a, b = rng.randrange(64), rng.randrange(1, 99)
            out.write(f" if (p[{a}] > n) s += p[{a}] * {b} ^ n; else p[{a}] = s % {b} + p[{(a * 7) % 64}];\n")
        out.write(" return s; }\n")
    out.write("struct entry table[] = {\n")
    for number in range(table):
        out.write(f'{{"name{number}", {rng.random():.6f}, {rng.randrange(1 << 20)}, {{{number % 99}, -3}}}},\n')
    out.write("};\nint (*all[])(int *, int) = {\n")
    out.write("".join(f"f{number},\n" for number in range(functions)))
    out.write("};\n")
