"""`make flame`: where the CPUs' time goes, of random touches and of rewriting in order, as flame graphs (SVG).

A program of the benchmark runs under `perf record`; perf can't name functions of the preload library, which lies in a memory file, so they
are named here by the symbols of the same library on disk. `inferno-flamegraph` draws.
"""

import argparse
import bisect
import collections
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FRAME = re.compile(r"\s*([0-9a-f]+)\s+(.*?)\s+\((.*)\)$")
HASH = re.compile(r"::h[0-9a-f]{16}$")


def output(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


class Symbols:
    """Functions of a library by their place in its file."""

    def __init__(self, library):
        functions = []
        for line in output("nm", "-C", "--defined-only", library).splitlines():
            address, kind, name = line.split(None, 2)
            if kind in "tTwW":
                functions.append((int(address, 16), HASH.sub("", name)))
        functions.sort()
        self.starts = [start for start, _ in functions]
        self.names = [name for _, name in functions]
        loads = re.findall(r"^\s+LOAD\s+0x(\w+)\s+0x(\w+)\s+0x\w+\s+0x(\w+)", output("readelf", "-lW", library), re.MULTILINE)
        self.segments = [tuple(int(number, 16) for number in load) for load in loads]

    def name(self, place):
        for offset, address, size in self.segments:
            if offset <= place < offset + size:
                at = bisect.bisect_right(self.starts, place - offset + address) - 1
                return self.names[at] if at >= 0 else "[library]"
        return "[library]"


def folded(data, symbols):
    """Stacks, root first and joined by `;`, with their samples."""
    stacks = collections.Counter()
    script = output("perf", "script", "-i", data, "-F", "comm,tid,ip,sym,dso")
    for sample in script.split("\n\n"):
        head, *lines = sample.strip().splitlines() or [""]
        frames = [match for match in map(FRAME.match, lines) if match]
        if not frames:
            continue
        names = []
        for ip, name, library in (frame.groups() for frame in frames):
            if "farpage_preload" in library or library.startswith("memfd"):
                name = symbols.name(int(ip, 16))
            elif "kernel" in library:
                name += "_[k]"
            names.append(name.replace(";", ":"))
        stacks[";".join([f"thread {head.split()[-1]}", *reversed(names)])] += 1
    return "".join(f"{stack} {count}\n" for stack, count in stacks.items())


# File name, options of `farpage run`, the benchmark's program, and what it shows.
GRAPHS = (
    (
        "flame-random",
        "--ram 218M --swap compressed:223M",
        "random --bytes 384M --ram 96M --seconds 4",
        "farpage, compressed RAM: fill, then random touches by one thread, then by two",
    ),
    ("flame-seq", "--ram 120M --swap /var/tmp:2G", "seq --bytes 512M --ram 128M", "farpage, swap file: fill, then rewriting in order"),
    (
        "flame-threads",
        "--ram 120M --swap /var/tmp:2G",
        "threads --bytes 512M --ram 128M --seconds 2",
        "farpage, swap file: fill, then random touches by 1, 2, 4, 8 and 16 threads",
    ),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--farpage", required=True)
    parser.add_argument("--library", required=True, help="the preload library that this farpage carries, with its symbols")
    parser.add_argument("--draw", required=True, help="inferno-flamegraph")
    parser.add_argument("--out", required=True, type=Path, help="the directory for the graphs")
    parser.add_argument("--only", help="one of them")
    arguments = parser.parse_args()
    symbols = Symbols(arguments.library)
    for name, options, work, title in GRAPHS:
        if arguments.only not in (None, name):
            continue
        words = [arguments.farpage, "run", "-q", *options.split(), "--", arguments.farpage, "bench-work", *work.split()]
        with tempfile.TemporaryDirectory() as directory:
            data = f"{directory}/perf.data"
            subprocess.run(["perf", "record", "-q", "-e", "cpu-clock", "-F", "1999", "-g", "-o", data, "--", *words], check=True)
            stacks = folded(data, symbols)
        drawn = subprocess.run([arguments.draw, "--minwidth", "0.2", "--title", title], input=stacks, check=True, capture_output=True, text=True)
        (arguments.out / f"{name}.svg").write_text(drawn.stdout)
        print(f"{name}.svg: {len(stacks.splitlines())} stacks")


if __name__ == "__main__":
    sys.exit(main())
