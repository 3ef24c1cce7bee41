"""What the tests that are not plain programs are written with: a registry, and a Context to run commands in."""

import dataclasses
import os
import re
import shutil
import sys
import time

from cases import check_nothing_left, farpage_run, fresh_directory, measure, read_stats, require
from common import FARPAGE, NOBODY, TINY_FOR_MANY_MIB, VENV_PYTHON, WORK, Result, Skip, check, limit_mib
from proc import Job, Leftovers, Limits

REGISTRY = []
DEADLINE_S = 60


@dataclasses.dataclass
class Test:
    """A test function and where it runs. `per_delivery`: once for each delivery of the suite, else once. `grows`: larger or longer in
    the soak, which runs of the others only what `make test` does not."""

    name: str
    function: object
    suites: tuple
    per_delivery: bool
    grows: bool = False


def test(name, suites=("quick", "soak"), per_delivery=False, grows=False):
    """Registers a function of one Context as a test."""
    def register(function):
        REGISTRY.append(Test(name, function, suites, per_delivery, grows))
        return function

    return register


def numpy_sort(mib):
    """The words of a NumPy program that needs `mib` MiB."""
    require((str(VENV_PYTHON),))
    return [VENV_PYTHON, WORK / "np_sort.py", mib]


def refusing(call):
    """The words before a command for which the kernel refuses a system call, by its number, with EPERM."""
    return [sys.executable, WORK / "refuse_call.py", call]


class Outcome:
    """What a finished command left: code, out, err (text), stats when it ran under farpage with them."""

    def __init__(self, code, job, stats_path):
        self.code = code
        self.out = job.out.read_text(errors="replace")
        self.err = job.err.read_text(errors="replace")
        self.seconds = job.seconds
        self._stats_path = stats_path

    @property
    def stats(self):
        return read_stats(self._stats_path)

    def err_lines(self):
        return [line for line in self.err.splitlines() if line.strip()]


class Context:
    """One test's name, directory, delivery and result."""

    def __init__(self, name, delivery, suite, as_user=False):
        self.delivery = delivery
        self.suite = suite
        self.as_user = as_user
        self.soak = suite == "soak"
        self.result = Result(name)
        self.directory = fresh_directory(name, as_user)
        self.leftovers = Leftovers()
        self._runs = 0

    def start(
        self, budget_mib, argv, timeout_s=240, extra=(), quiet=True, binary=FARPAGE, kernel_mib=0, tiny_mib=TINY_FOR_MANY_MIB, **job_options
    ):
        """Starts `farpage run` in a cgroup that holds it to the budget (and `kernel_mib` for page tables and stacks of many
        processes and threads, which the cgroup counts too); a Job, to be used by `with`."""
        self.result.budget_mib = budget_mib
        self._runs += 1
        self.stats_path = self.directory / f"stats{self._runs}.json"
        words = farpage_run(budget_mib, self.delivery, self.stats_path, extra, quiet)
        words[0] = binary
        limits = Limits(timeout_s, limit_mib(budget_mib, tiny_mib) + kernel_mib, self.as_user)
        return Job([*words, *argv], limits, self.directory, prefix=f"run{self._runs}", **job_options)

    def budget_run(self, budget_mib, argv, **options):
        """Runs to the end and checks what every run must keep: in time, budget kept, nothing left behind."""
        with self.start(budget_mib, argv, **options) as job:
            return self.outcome(job, argv[0])

    def outcome(self, job, name):
        """The same of one that was started."""
        code = job.wait()
        if code is None:
            raise AssertionError(f"{name}: no end within {job.limits.timeout_s:.0f} s: {last_words(job)}")
        self.finish(job)
        return self._ended(code, job, self.stats_path)

    def finish(self, job):
        """What holds at the end of every run under farpage: nothing left behind, the budget kept."""
        if job.no_cgroup:
            self.result.why = f"budget not checked: {job.no_cgroup}"
        self.result.farpage_s = (self.result.farpage_s or 0) + job.seconds
        check_nothing_left(job, self.leftovers)
        measure(self.result, job)

    def stats(self):
        """Of the latest run."""
        return read_stats(self.stats_path)

    def begin(self, argv, timeout_s=240, **job_options):
        """Starts a command as it is (it may be farpage itself with its own words), without cgroup."""
        self._runs += 1
        limits = Limits(timeout_s, None, self.as_user, use_cgroup=False)
        return Job(argv, limits, self.directory, prefix=f"run{self._runs}", **job_options)

    def plain(self, argv, timeout_s=240, **job_options):
        """Runs such a command to its end."""
        with self.begin(argv, timeout_s, **job_options) as job:
            code = job.wait()
            if code is None:
                raise AssertionError(f"{argv[0]}: no end within {timeout_s} s")
            return self._ended(code, job, None)

    def _ended(self, code, job, stats_path):
        """The outcome; what a program of tests/programs says that it can't do here is skipped by name."""
        got = Outcome(code, job, stats_path)
        parts = re.findall(r"^skip (\S+): (.+)$", got.out, re.MULTILINE)
        self.result.skipped += [part for part in parts if part not in self.result.skipped]
        return got

    def own_file(self, name, content):
        """A new file in the test's directory that belongs to the user the test runs as."""
        path = self.directory / name
        path.write_bytes(content)
        return self.own(path)

    def own(self, path):
        """Gives a file to the user the test runs as."""
        if self.as_user and os.geteuid() == 0:
            os.chown(path, NOBODY, NOBODY)
        return path


def until(what, holds, seconds=DEADLINE_S, every_s=0.02, job=None):
    """Waits until it holds; what it answered then. With a job, whose end is an error, its last words are told."""
    end = time.monotonic() + seconds
    while not (answer := holds()):
        words = f": {last_words(job)}" if job else ""
        check(not job or job.process.poll() is None, f"{what}: ended with {job and job.process.poll()}{words}")
        check(time.monotonic() < end, f"{what}: not within {seconds} s{words}")
        time.sleep(every_s)
    return answer


def last_words(job):
    lines = (job.out.read_text(errors="replace") + job.err.read_text(errors="replace")).strip().splitlines()
    return " / ".join(lines[-3:])[-400:]


def run_test(entry, delivery, suite, as_user=False):
    """Runs a registered test and returns its Result."""
    name = entry.name + (f"/{delivery}" if entry.per_delivery else "") + ("/user" if as_user else "")
    context = Context(name, delivery, suite, as_user)
    try:
        entry.function(context)
        shutil.rmtree(context.directory, ignore_errors=True)
    except Skip as skip:
        context.result.verdict, context.result.why = "SKIP", str(skip)
    except (AssertionError, OSError, ValueError) as error:
        context.result.verdict, context.result.why = "FAIL", f"{error}" or type(error).__name__
    return context.result
