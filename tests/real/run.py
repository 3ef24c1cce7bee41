"""Real programs under farpage, inside a memory cgroup that holds them to their budget.

    run.py [--suite quick|soak|user] [--only NAME ...] [--without NAME ...] [--delivery signal|thread|both]
           [--first NAME ...] [--lines N] [--list] [--json FILE]

quick: what `make test` runs. soak: larger and longer. user: as an ordinary user (uid 65534 when we are root), who has
only UFFD_USER_MODE_ONLY. Exit code 0 when nothing failed.
"""

import argparse
import dataclasses
import importlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

import host_swap_test
import huge_test
from cases import fresh_directory, run_case
from cgroup import Cgroup, sweep
from common import BUILD, FARPAGE, NOBODY, Result, Skip
from context import REGISTRY, run_test
from lines import in_lines
from proc import Job, Limits, end_cleanly_on_signals
from programs import real_programs

for _path in sorted(Path(__file__).resolve().parent.glob("*_test.py")):
    importlib.import_module(_path.stem)  # registers its tests

COLUMNS = (
    ("budget", "budget_mib", "{:.0f}"),
    ("need", "need_mib", "{:.0f}"),
    ("anon", "anon_peak_mib", "{:.1f}"),
    ("shmem", "shmem_peak_mib", "{:.1f}"),
    ("both", "held_peak_mib", "{:.1f}"),
    ("plain s", "plain_s", "{:.2f}"),
    ("farpage s", "farpage_s", "{:.2f}"),
    ("test s", "test_s", "{:.0f}"),
)


# Run by --delivery thread in `make test` too; the others in the soak only. On a machine whose page faults cost five times
# what they should, all of it has to end within half an hour.
THREAD_IN_QUICK = (
    *("gnu-sort", "stress-32M-8t", "kill-children", "swap-overfull", "libc-helpers", "sem_"),
    *("swapoff-runs", "swapoff-to-ram", "swapoff-shared", "swapoff-device"),
)
# But not these, which take longest.
SIGNAL_IN_QUICK = (
    *("sem_stacks", "sem_vfork", "sem_madvise", "sem_bigio", "sem_malloc", "sem_sockets"),
    *("sem_mmap", "sem_mremap", "sem_exec", "sem_signals"),
)


# Settings that the soak runs the programs of `make test` with, too, and the scale of their sizes: there are huge pages in
# budgets of 70 MiB and more.
SETTINGS = (
    *((f"readahead-{policy}", ("--readahead", policy), 1) for policy in ("none", "cluster", "vma")),
    ("huge-madvise", huge_test.SETTINGS["madvise"], 2),
    ("huge-always", ("--huge", "always"), 2),
    ("huge-touched", huge_test.SETTINGS["touched"], 2),
    ("huge-split", huge_test.SETTINGS["split-early"], 2),
    ("huge-split-late", huge_test.SETTINGS["split-late"], 2),
)


def wanted(name, suite, deliveries):
    """By which of them a test of that name runs."""
    in_quick = name.startswith(THREAD_IN_QUICK) and not name.startswith(SIGNAL_IN_QUICK)
    return deliveries if suite == "soak" or in_quick else deliveries[:1]


def runs_of(entry, suite, deliveries):
    """By which of them a registered test runs; the soak leaves out what `make test` runs at the same size."""
    runs = wanted(entry.name, suite, deliveries) if entry.per_delivery else ["auto"]
    if suite != "soak" or "quick" not in entry.suites or entry.grows:
        return runs
    return [delivery for delivery in runs if delivery not in runs_of(entry, "quick", ["signal", "thread"])]


def with_settings():
    """(name, function) of real programs with settings, by signal."""
    plan = []
    for setting, words, scale in SETTINGS:
        for case in real_programs(scale):
            if not (case.quick and case.settings):
                continue
            # Without readahead and beside three other lines np-sort did not end in 150 s, which is enough for it alone.
            case.timeout_s *= 3
            run = lambda case=case, variant=(setting, words): run_case(case, "signal", variant=variant)  # noqa: E731
            plan.append((f"{case.name}-{setting}/signal", run))
    return plan


def programs(suite, deliveries):
    """(name, function that runs it) of every run of a real program in a suite."""
    as_user = suite == "user"
    plan = []
    for case in real_programs(3 if suite == "soak" else 1):
        if (as_user and not case.as_user) or (suite == "quick" and not case.quick):
            continue
        for delivery in wanted(case.name, suite, deliveries):
            name = f"{case.name}/{delivery}{'/user' if as_user else ''}"
            plan.append((name, lambda case=case, delivery=delivery: run_case(case, delivery, as_user)))
    return plan + (with_settings() if suite == "soak" and "signal" in deliveries else [])


def registered(suite, deliveries):
    """The same of the tests that are functions."""
    as_user = suite == "user"
    plan = []
    for entry in REGISTRY:
        if suite not in entry.suites:
            continue
        for delivery in runs_of(entry, suite, deliveries):
            name = entry.name + (f"/{delivery}" if entry.per_delivery else "") + ("/user" if as_user else "")
            plan.append((name, lambda entry=entry, delivery=delivery: run_test(entry, delivery, suite, as_user)))
    return plan


def row(result):
    cells = [f"{result.verdict:4} {result.name:36}"]
    for title, field, form in COLUMNS:
        value = getattr(result, field)
        cells.append(("-" if value is None else form.format(value)).rjust(len(title) + 1))
    return " ".join(cells) + (f"  {result.why}" if result.why else "")


def header():
    return f"     {'MiB, seconds':36} " + " ".join(title.rjust(len(title) + 1) for title, _, _ in COLUMNS)


def budget_skip():
    """A result that says by name that budgets can't be checked here, or None."""
    try:
        Cgroup(None).remove()
        return None
    except Skip as skip:
        return Result("budget-check", "SKIP", str(skip))


def user_skip(suite):
    """A result that says that the ordinary user can't reach this checkout (it lies in root's home, say), or None."""
    if suite != "user" or os.geteuid() != 0:
        return None
    limits = Limits(10, as_user=True, use_cgroup=False)
    directory = fresh_directory(f"reach-{os.getpid()}", True)
    with Job(["test", "-x", FARPAGE], limits, directory) as job:
        reached = job.wait() == 0
    shutil.rmtree(directory)
    return None if reached else Result("user-suite", "SKIP", f"uid {NOBODY} can't reach {FARPAGE}")


def run_one(name, function):
    """The result of one test; a defect of the harness itself is a failure too."""
    started = time.monotonic()
    try:
        result = function()
    except Exception as error:  # a harness bug must not hide the other tests
        result = Result(name, "FAIL", f"{type(error).__name__}: {error}")
    result.test_s = time.monotonic() - started
    if result.verdict == "SKIP":
        print(f"SKIP {result.name}: {result.why}", flush=True)
    else:
        print(row(result), flush=True)
    for part, why in result.skipped:
        print(f"SKIP {part} of {result.name}: {why}", flush=True)
    return result


def run_plan(plan, lines):
    """The results of all tests of the plan, in its order."""
    if lines == 1:
        return [run_one(*item) for item in plan]
    ended = dict(in_lines(lines, plan, lambda item: run_one(*item)))
    died = "the line of tests that it was in has died"
    return [ended.get(index) or Result(name, "FAIL", died) for index, (name, _) in enumerate(plan)]


def arguments():
    parser = argparse.ArgumentParser(description="Real programs under farpage.")
    parser.add_argument("--suite", choices=("quick", "soak", "user"), default="quick")
    parser.add_argument("--only", action="append", default=[], help="tests whose name starts with this")
    parser.add_argument("--without", action="append", default=[], help="not those whose name starts with this")
    parser.add_argument("--delivery", choices=("signal", "thread", "both"))
    parser.add_argument("--first", action="append", default=[], help="those whose name starts with this come first, in this order")
    parser.add_argument("--lines", type=int, default=1, help="so many tests at a time")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json", default=BUILD / "real.json")
    return parser.parse_args()


def main():
    options = arguments()
    end_cleanly_on_signals()
    # An ordinary user has no full userfaultfd, so the thread delivery is not tested as one.
    chosen = options.delivery or ("signal" if options.suite == "user" else "both")
    deliveries = ["signal", "thread"] if chosen == "both" else [chosen]
    plan = programs(options.suite, deliveries) + registered(options.suite, deliveries)
    if options.only:
        plan = [item for item in plan if item[0].startswith(tuple(options.only))]
    plan = [item for item in plan if not item[0].startswith(tuple(options.without))]
    plan.sort(key=lambda item: next((n for n, name in enumerate(options.first) if item[0].startswith(name)), len(options.first)))
    if options.list:
        print("\n".join(name for name, _ in plan))
        return 0
    if not plan:
        print(f"run.py: suite {options.suite} has no such test: --list names them", file=sys.stderr)
        return 2
    if not os.access(FARPAGE, os.X_OK):
        print(f"run.py: {FARPAGE} is missing: make build", file=sys.stderr)
        return 2
    BUILD.mkdir(exist_ok=True)
    sweep()
    host_swap_test.sweep()
    started = time.monotonic()
    who = f"uid {NOBODY}" if options.suite == "user" and os.geteuid() == 0 else f"uid {os.geteuid()}"
    print(f"suite {options.suite}: {len(plan)} tests as {who}\n{header()}", flush=True)
    results = []
    if skip := budget_skip():
        print(f"SKIP {skip.name}: {skip.why}")
        results.append(skip)
    if skip := user_skip(options.suite):
        print(f"SKIP {skip.name}: {skip.why}")
        results.append(skip)
        plan = []
    results += run_plan(plan, options.lines)
    return report(options, results, time.monotonic() - started)


def report(options, results, seconds):
    counts = {verdict: sum(result.verdict == verdict for result in results) for verdict in ("PASS", "FAIL", "SKIP")}
    told = f"{counts['PASS']} passed, {counts['FAIL']} failed, {counts['SKIP']} skipped"
    print(f"suite {options.suite}: {told}, {seconds:.0f} s")
    for result in results:
        if result.verdict == "FAIL":
            print(f"FAIL {result.name}: {result.why}")
    with open(options.json, "w") as out:
        rows = [dataclasses.asdict(result) for result in results]
        json.dump({"suite": options.suite, "seconds": round(seconds, 1), "results": rows}, out, indent=1)
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
