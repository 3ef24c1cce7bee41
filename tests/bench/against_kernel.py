"""The same programs at several times their budget: farpage against this kernel's own swap file, in interleaved pairs.

    against_kernel.py [--pairs N] [--only NAME ...]

Needs root and a cgroup with a memory controller. Both sides run in a cgroup of our own with the same hard limit. Kernel side: a swap file
of our own on the disk that farpage's file is on too. farpage side: no swap, and all of the
limit as its budget, of which it leaves page tables, text and page cache what they need (decision 0042). All undone on every end. For each program the
median of farpage / kernel; one that is killed at the limit counts as killed.
Writes build/against-kernel.json. Exit code 1 if a program gave a wrong output on farpage's side.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "real"))

from cases import digest, farpage_run, fresh_directory, prepare, require, truth
from cgroup import Cgroup
from common import BUILD, Skip, check
from proc import Job, Limits, end_cleanly_on_signals
from programs import real_programs

PROGRAMS = ("np-sort", "np-solve", "mp-fork", "gnu-sort", "sqlite3", "gcc", "node", "java")
SWAP_MIB = 4096
# Where farpage puts its unlinked swap file, too.
SWAP_DIRECTORY = "/var/tmp"


@contextlib.contextmanager
def swap_file():
    """A swap file of our own, in use; gone afterwards. Swap that is there already is not touched, but would be used too."""
    if len(Path("/proc/swaps").read_text().splitlines()) > 1:
        raise Skip("this machine has swap in use: the kernel's side would not be measured on our file")
    handle, name = tempfile.mkstemp(prefix="farpage-bench-swap-", dir=SWAP_DIRECTORY)
    try:
        os.posix_fallocate(handle, 0, SWAP_MIB << 20)
        os.close(handle)
        subprocess.run(["mkswap", "-q", name], check=True, capture_output=True)
        subprocess.run(["swapon", name], check=True)
        try:
            yield
        finally:
            # Once begun it is not interrupted: the file must not go before the kernel has let go of it.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            subprocess.run(["swapoff", name], check=True, start_new_session=True)
    finally:
        os.unlink(name)


def kernel_side(case):
    """Seconds, or None if the kernel killed it, and the digest of its output."""
    directory = fresh_directory("bench")
    limits = Limits(case.timeout_s, case.budget_mib, swap=True)
    with Job(case.argv, limits, directory, env=case.env) as job:
        code = job.wait()
        return (job.seconds, digest(directory, case.outputs, "run")) if code == 0 else (None, None)


def farpage_side(case):
    """The same."""
    directory = fresh_directory("bench")
    words = farpage_run(case.budget_mib, "signal")
    with Job([*words, *case.argv], Limits(case.timeout_s, case.budget_mib), directory, env=case.env) as job:
        code = job.wait()
        if job.oom_kills():
            return None, None
        check(code == 0, f"with farpage: exit code {code}")
        return job.seconds, digest(directory, case.outputs, "run")


def compare(case, pairs):
    known = truth(case)
    measured = []
    for number in range(pairs):
        sides = (kernel_side, farpage_side) if number % 2 == 0 else (farpage_side, kernel_side)
        got = {side: side(case) for side in sides}
        check(got[farpage_side][1] in (None, known["digest"]), "another output with farpage than without")
        measured.append((got[kernel_side][0], got[farpage_side][0]))
    ratios = [farpage / kernel for kernel, farpage in measured if kernel and farpage]
    survived = [[seconds for seconds in side if seconds] for side in zip(*measured)]
    medians = [round(statistics.median(side), 2) if side else None for side in survived]
    return {
        "name": case.name,
        "budget_mib": case.budget_mib,
        "need_mib": known["need_mib"],
        "in_ram_s": round(known["seconds"], 2),
        "kernel_s_median": medians[0],
        "farpage_s_median": medians[1],
        "ratio_median": round(statistics.median(ratios), 3) if ratios else None,
        "ratio_min": round(min(ratios), 3) if ratios else None,
        "ratio_max": round(max(ratios), 3) if ratios else None,
        "killed": [len(measured) - len(side) for side in survived],
    }


def show(row):
    cells = [row["budget_mib"], row["need_mib"], row["in_ram_s"], row["kernel_s_median"], row["farpage_s_median"]]
    cells += [row["ratio_median"], row["ratio_min"], row["ratio_max"], *row["killed"]]
    print(f"{row['name']:10}" + "".join(f"{'-' if cell is None else format(cell, '.4g'):>10}" for cell in cells), flush=True)


def main():
    parser = argparse.ArgumentParser(description="farpage against the kernel's swap file.")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", action="append", default=[])
    options = parser.parse_args()
    end_cleanly_on_signals()
    BUILD.mkdir(exist_ok=True)
    if os.geteuid() != 0:
        print("against_kernel.py: needs root: cgroups and swapon", file=sys.stderr)
        return 2
    titles = ("limit", "need", "in RAM s", "kernel s", "farpage s", "ratio", "min", "max", "killed", "farpage")
    print(f"{'program':10}" + "".join(f"{title:>10}" for title in titles), flush=True)
    rows, failed = [], False
    cases = [case for case in real_programs(1) if case.name in (options.only or PROGRAMS)]
    try:
        Cgroup(None).remove()
        with swap_file():
            for case in cases:
                try:
                    require(case.needs)
                    prepare(case)
                    rows.append(compare(case, options.pairs))
                    show(rows[-1])
                except Skip as skip:
                    print(f"SKIP {case.name}: {skip}")
                except AssertionError as error:
                    failed = True
                    print(f"FAIL {case.name}: {error}")
    except Skip as skip:
        print(f"against_kernel.py: {skip}", file=sys.stderr)
        return 2
    (BUILD / "against-kernel.json").write_text(json.dumps(rows, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
