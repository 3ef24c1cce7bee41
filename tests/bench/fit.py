"""What farpage costs a program that fits in its budget: pairs of runs, A B A B, without and with
`farpage run -q --ram 4G --`.

    fit.py [--pairs N] [--only NAME ...] [--ram SIZE] [--eager]

Below half of the budget a process is not managed yet; with --eager it is from its start.

The order within a pair alternates. For each program: the median of the ratios with / without, the lowest and highest,
and the median times. Writes build/fit.json. Exit code 1 if a program failed or gave another output with farpage.
"""

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "real"))

from cases import digest, fresh_directory, prepare, require
from common import BUILD, FARPAGE, Skip, VENV_PYTHON, check
from proc import Job, Limits, end_cleanly_on_signals
from programs import Case, real_programs
from redis_test import BATCH, server_words, socket_path, value
from resp import Redis

PROGRAMS = ("np-sort", "gcc", "xz-9", "sqlite3", "perl", "gnu-sort")
REDIS_KEYS = 50000
REDIS_REQUESTS = 300000


@dataclasses.dataclass
class Place:
    """What server_words needs of a test."""

    directory: Path


def time_case(case, prefix):
    """Seconds of one run with these words before it, and the digest of its output."""
    directory = fresh_directory("fit")
    with Job([*prefix, *case.argv], Limits(300, use_cgroup=False), directory, env=case.env) as job:
        code = job.wait()
        check(code == 0, f"exit code {code} {job.err.read_text()[-200:]}")
        return job.seconds, digest(directory, case.outputs, "run")


def time_redis(prefix):
    """Seconds of redis-benchmark's GETs against a filled redis-server; and what it held."""
    require(("redis-server", "redis-benchmark"))
    place = Place(fresh_directory("fit"))
    path = socket_path(place, "redis")
    with Job([*prefix, *server_words(place, "redis")], Limits(300, use_cgroup=False), place.directory) as job:
        redis = Redis(path)
        for start in range(0, REDIS_KEYS, BATCH):
            redis.pipeline(("SET", f"key:{i:012d}", value(i)) for i in range(start, start + BATCH))
        words = ["redis-benchmark", "-s", path, "-n", REDIS_REQUESTS, "-r", REDIS_KEYS, "-P", "4", "--csv", "-t", "get"]
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=200)
        check(done.returncode == 0, f"redis-benchmark: {done.stderr[-200:]}")
        per_second = float(done.stdout.splitlines()[-1].split(",")[1].strip('"'))
        held = redis.call("DEBUG", "DIGEST")
        redis.send(("SHUTDOWN", "NOSAVE"))
        check(job.wait() == 0, "redis-server failed")
        return REDIS_REQUESTS / per_second, held.decode()


def pairs(run, count, prefix):
    """[(seconds without, seconds with)], after one run of each that is not counted."""
    outputs = {run(())[1], run(prefix)[1]}
    measured = []
    for number in range(count):
        order = ((), prefix) if number % 2 == 0 else (prefix, ())
        seconds = {}
        for which in order:
            seconds[which], output = run(which)
            outputs.add(output)
        measured.append((seconds[()], seconds[prefix]))
    check(len(outputs) == 1, "another output with farpage than without")
    return measured


def summary(name, measured):
    ratios = [farpage / plain for plain, farpage in measured]
    return {
        "name": name,
        "ratio_median": round(statistics.median(ratios), 4),
        "ratio_min": round(min(ratios), 4),
        "ratio_max": round(max(ratios), 4),
        "plain_s_median": round(statistics.median(plain for plain, _ in measured), 4),
        "farpage_s_median": round(statistics.median(farpage for _, farpage in measured), 4),
        "pairs_s": [[round(value, 4) for value in pair] for pair in measured],
    }


def runs():
    """(name, function of the words before it that runs it once, how to prepare it)."""
    cases = {case.name: case for case in real_programs(1)}
    nothing = Case("python-start", 0, [VENV_PYTHON, "-c", "import numpy"])
    many = Case("shell-400-children", 0, ["sh", "-c", "for i in $(seq 400); do /bin/true; done"])
    for case in [*(cases[name] for name in PROGRAMS), nothing, many]:
        yield case.name, lambda prefix, case=case: time_case(case, prefix), lambda case=case: prepare(case)
    yield "redis-get", time_redis, lambda: None


def main():
    parser = argparse.ArgumentParser(description="The cost of farpage for programs that fit in their budget.")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--ram", default="4G")
    parser.add_argument("--eager", action="store_true")
    options = parser.parse_args()
    end_cleanly_on_signals()
    BUILD.mkdir(exist_ok=True)
    words = ("--ram", options.ram, *(["--eager"] if options.eager else []))
    prefix = (FARPAGE, "run", "-q", *words, "--")
    print(f"with / without farpage, {options.pairs} pairs, {' '.join(words)}")
    print(f"{'program':20} {'median':>8} {'min':>8} {'max':>8} {'without s':>10} {'with s':>10}", flush=True)
    results, failed = [], False
    for name, run, ready in runs():
        if options.only and name not in options.only:
            continue
        try:
            ready()
            got = summary(name, pairs(run, options.pairs, prefix))
        except Skip as skip:
            print(f"SKIP {name}: {skip}", flush=True)
            continue
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            print(f"FAIL {name}: {error}", flush=True)
            failed = True
            continue
        results.append(got)
        figures = " ".join(f"{got[key]:8.3f}" for key in ("ratio_median", "ratio_min", "ratio_max"))
        print(f"{name:20} {figures} {got['plain_s_median']:10.2f} {got['farpage_s_median']:10.2f}", flush=True)
    (BUILD / "fit.json").write_text(json.dumps({"ram": options.ram, "eager": options.eager, "programs": results}, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
