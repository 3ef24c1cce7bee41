"""What every module of the harness shares: paths, the binary under test, results."""

import dataclasses
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
TESTS = BUILD / "tests"
WORK = Path(__file__).resolve().parent / "work"
FARPAGE = Path(os.environ.get("FARPAGE_BIN") or ROOT / "target/release/farpage").absolute()
VENV_PYTHON = ROOT / ".venv/bin/python"
MIB = 1 << 20
NOBODY = 65534


def results_of(suite):
    """Where `make test` leaves a suite's results."""
    return BUILD / f"{suite}.json"


class Skip(Exception):
    """This test can't run here; the text says why."""


@dataclasses.dataclass
class Result:
    """One line of the table. Memory in MiB, times in seconds; None where it was not measured."""

    name: str
    verdict: str = "PASS"
    why: str = ""
    budget_mib: float | None = None
    need_mib: float | None = None
    anon_peak_mib: float | None = None
    shmem_peak_mib: float | None = None
    held_peak_mib: float | None = None
    samples_per_s: float | None = None  # of these peaks
    plain_s: float | None = None
    farpage_s: float | None = None
    test_s: float | None = None
    # Parts that its programs could not run here: (name, why).
    skipped: list = dataclasses.field(default_factory=list)


def check(condition, text):
    """An assertion that stays on and says what is wrong."""
    if not condition:
        raise AssertionError(text)


# Budgets below this are tiny. For the hard limit of what is no run of a real program more are: the cgroup counts page tables and
# kernel stacks too, and some of these start hundreds of processes and threads.
TINY_MIB, TINY_FOR_MANY_MIB = 48, 160


def limit_mib(budget_mib, tiny_mib=TINY_FOR_MANY_MIB):
    """The hard limit of the cgroup that a budget must live in: + 10 %, + 16 MiB for tiny budgets."""
    return budget_mib * 1.10 + (16 if budget_mib < tiny_mib else 0)


def allowed_mib(budget_mib):
    """What the sampled anonymous memory may reach: + 5 %, + 16 MiB for tiny budgets."""
    return budget_mib * 1.05 + (16 if budget_mib < TINY_MIB else 0)
