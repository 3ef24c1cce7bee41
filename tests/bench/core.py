#!/usr/bin/env python3
"""The swap core's operations beside what systems C and T replaced: instructions (valgrind) and wall time (criterion) per
operation, and ratios farpage / baseline. The operations are those of crates/farpage-sim/src/operations.rs.

Instructions are counted with one thread, as the difference between many operations and none, so they are the same on a busy
machine. Wall time is that of the whole run divided by the operations of all threads: what an operation takes of the machine, not how
long a thread waits for one. Twice as many threads that do not hinder each other, on CPUs of their own, halve it.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "microbench"
OPERATIONS = (
    "allocate+free",
    "allocate+free, grouped",
    "allocate+free, empty device",
    "look-up",
    "add+delete",
    "fork of a table",
    "in+out, anywhere",
)
SIDES = ("farpage", "baseline")
THREADS = (1, 2, 4, 8, 16)
# A multiple of the batch of 64 in which slots are allocated.
COUNT = 64 * 500


def cargo(*words):
    command = ["cargo", *words, "--manifest-path", ROOT / "microbench" / "Cargo.toml"]
    return [str(word) for word in command], {**os.environ, "CARGO_TARGET_DIR": str(TARGET)}


def instructions(operation, side, count):
    """Of a whole run that does `count` operations."""
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    command += [str(TARGET / "release" / "farpage-microbench"), operation, side, str(count)]
    run = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"I\s+refs:\s+([\d,]+)", run.stderr)
    if run.returncode or not found:
        sys.exit(f"core.py: {' '.join(command)} failed: {run.stderr.strip()[-300:]}")
    return int(found.group(1).replace(",", ""))


def per_operation(operation, side):
    return (instructions(operation, side, COUNT) - instructions(operation, side, 0)) / COUNT


def timed():
    """Runs criterion, and passes on what it prints. Returns the cluster locks by operation and threads: (taken, found held)."""
    command, env = cargo("bench", "--bench", "core")
    locks = {}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as run:
        for line in run.stdout:
            words = line.rstrip("\n").split("\t")
            if words[0] == "cluster locks":
                locks[words[1], int(words[2])] = int(words[3]), int(words[4])
            else:
                print(line, end="", flush=True)
    if run.returncode:
        sys.exit(f"core.py: {' '.join(command)} failed with {run.returncode}")
    return locks


def lock_table(locks):
    """Prints how often a cluster's lock was found held, which is passed over and never waited for. Returns the rows."""
    print(f"\ncluster locks by threads\n{'':28} {'':>8} {'taken':>12} {'held':>9} {'held/all':>10}")
    rows = []
    for (operation, threads), (taken, held) in locks.items():
        share = held / (taken + held)
        print(f"{operation:28} {threads:>8} {taken:12} {held:9} {share:10.6f}")
        rows.append({"operation": operation, "threads": threads, "unit": "cluster locks", "taken": taken, "held": held})
    return rows


def nanoseconds(operation, side, threads):
    """The median that criterion left."""
    group = re.sub(r'[?"/\\*<>:|^]', "_", operation)
    path = TARGET / "criterion" / group / side / str(threads) / "new" / "estimates.json"
    return json.loads(path.read_text())["median"]["point_estimate"]


def table(title, unit, columns, value):
    """Prints one line per operation: ratio, then both sides. Returns what it printed."""
    print(f"\n{title}\n{'':28} {'':>8} {'ratio':>7} {'farpage':>10} {'baseline':>10}  {unit}")
    rows = []
    for operation in OPERATIONS:
        for column in columns:
            ours, theirs = (value(operation, side, column) for side in SIDES)
            print(f"{operation:28} {column:>8} {ours / theirs:7.3f} {ours:10.1f} {theirs:10.1f}")
            rows.append({"operation": operation, "threads": column, "unit": unit, "farpage": ours, "baseline": theirs})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, help="write the figures there too")
    parser.add_argument("--only", choices=("instructions", "time"), help="one of the two tables")
    args = parser.parse_args()
    rows = []
    if args.only != "time":
        if not shutil.which("valgrind"):
            sys.exit("core.py: instructions are counted by valgrind, which is not installed: apt-get install valgrind, or --only time")
        command, env = cargo("build", "--release", "--bins", "--quiet")
        subprocess.run(command, env=env, check=True)
        rows += table("instructions, one thread", "instructions", (1,), lambda op, side, _: per_operation(op, side))
    if args.only != "instructions":
        locks = timed()
        rows += table("wall time by threads", "ns", THREADS, nanoseconds)
        rows += lock_table(locks)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
