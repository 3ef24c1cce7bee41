#!/usr/bin/env python3
"""Records which pages real programs touch, for `farpage sim reclaim`: page faults of a run in a small budget, as root.

A touch of a page that is in RAM leaves no mark, so the budget is a small part of what the program needs and
nothing is read ahead: what is recorded is the program's touches less those that come soon after another one of the same page. The kernel's
tracepoint tells the faults (`perf record -e exceptions:page_fault_user`); only those in farpage's range are kept, of the process
that has most of them.

A trace is `FPTRACE1` and then little-endian 32-bit numbers: pages of 4 KiB from the start of the managed range.
"""

import argparse
import collections
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "real"))

import programs  # noqa: E402
from common import FARPAGE, VENV_PYTHON, WORK  # noqa: E402

RANGE = (0x2A00_0000_0000, 0x2B00_0000_0000)
EVENT = "exceptions:page_fault_user"
PAGE = 4096
# Faults recorded of a program; what comes later is left out, and said.
FAULTS_MAX = 2_000_000


def cases():
    """Name, budget in MiB, command; inputs as the tests make them, or smaller."""
    made = {case.name: case for case in programs.real_programs(1)}
    lines = programs.INPUTS / "lines-to-record.txt"
    sort = dataclasses.replace(made["gnu-sort"], input=lines, make_input=[*made["gnu-sort"].make_input[:-2], lines, 20])
    node = made["node"].argv[:-1]
    java = made["java"].argv[:-1]
    yield "np-solve", 30, [VENV_PYTHON, WORK / "np_solve.py", 1500, 2], None
    yield "np-sort", 50, [VENV_PYTHON, WORK / "np_sort.py", 128], None
    yield "sqlite3", 10, made["sqlite3"].argv, made["sqlite3"]
    yield "perl", 10, ["perl", WORK / "hash.pl", 120000], None
    yield "node", 44, [*node, 100], None
    yield "gcc", 48, made["gcc"].argv, made["gcc"]
    yield "gnu-sort", 8, ["sort", "--parallel=1", "-S", "200M", lines, "-o", "/dev/null"], sort
    yield "java", 48, [*java, 60], made["java"]


def prepare(case):
    """Makes a case's input file, unless it is there."""
    if case is None or case.make_input is None or case.input.exists():
        return
    case.input.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([str(word) for word in case.make_input], check=True)


def record(name, budget_mib, argv, seconds, directory):
    """Runs a program; the pages of its faults, in order."""
    data = directory / "perf.data"
    low, high = RANGE
    words = ["perf", "record", "-q", "-c", "1", "-e", EVENT, "--filter", f"address >= {low:#x} && address < {high:#x}", "-o", data]
    words += ["--", FARPAGE, "run", "-q", "--ram", f"{budget_mib}M", "--readahead", "none", "--swap", "compressed:2G", "--swap", "/var/tmp"]
    words += ["--", *argv]
    env = {**os.environ, "PERL_HASH_SEED": "0", "LC_ALL": "C", "OPENBLAS_NUM_THREADS": "1"}
    command = ["timeout", "-s", "INT", str(seconds), *map(str, words)]
    done = subprocess.run(command, cwd=directory, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    listed = subprocess.run(["perf", "script", "-i", data, "-F", "pid,trace"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    pages = collections.defaultdict(list)
    for line in listed.stdout.splitlines():
        pid, address = line.split()[:2]
        pages[pid].append((int(address.removeprefix("address="), 16) - low) // PAGE)
    data.unlink(missing_ok=True)
    most = max(pages.values(), key=len, default=[])
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        print(f"{name}: ended with {done.returncode} {last}; what it did until then is kept", flush=True)
    if len(most) > FAULTS_MAX:
        print(f"{name}: the first {FAULTS_MAX} of {len(most)} faults are kept", flush=True)
    return most[:FAULTS_MAX]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="programs; all without names")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "traces")
    parser.add_argument("--seconds", type=int, default=200, help="a program's time; then its trace ends")
    options = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("perf") is None:
        sys.exit("record.py: root and perf are needed (apt-get install linux-perf)")
    options.out.mkdir(parents=True, exist_ok=True)
    for name, budget_mib, argv, made in cases():
        if options.names and name not in options.names:
            continue
        if shutil.which(str(argv[0])) is None:
            print(f"{name}: skipped, {argv[0]} is not there", flush=True)
            continue
        prepare(made)
        with tempfile.TemporaryDirectory(prefix="farpage-record-") as directory:
            pages = record(name, budget_mib, argv, options.seconds, pathlib.Path(directory))
        out = options.out / f"{name}.trace"
        out.write_bytes(b"FPTRACE1" + b"".join(page.to_bytes(4, "little") for page in pages))
        print(f"{name}: {len(pages)} faults on {len(set(pages))} pages ({out})", flush=True)


if __name__ == "__main__":
    main()
