"""Runs one Case: without farpage to learn the truth (kept in build/truth), then under farpage, and compares."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

from common import BUILD, FARPAGE, NOBODY, TINY_MIB, Result, Skip, WORK, allowed_mib, check, limit_mib
from proc import Job, Leftovers, Limits
from programs import compile_java

TRUTH = BUILD / "truth"


def fresh_directory(name, as_user=False):
    """An empty directory build/run/NAME, the current directory of a run."""
    path = BUILD / "run" / name.replace("/", "-")
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    if as_user and os.geteuid() == 0:
        (path / "tmp").mkdir()
        os.chown(path / "tmp", NOBODY, NOBODY)
        os.chown(path, NOBODY, NOBODY)
    return path


def require(commands):
    for command in commands:
        if not shutil.which(command):
            raise Skip(f"{command} is not installed")


@contextlib.contextmanager
def alone(with_what="truth"):
    """One at a time of the tests that run side by side: they share inputs and truths, and the machine's settings."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / f"{with_what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def prepare(case):
    """Makes the input and what is compiled, once."""
    require(case.needs)
    if "javac" in case.needs:
        compile_java()
    if case.input and not Path(case.input).exists():
        Path(case.input).parent.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run([str(word) for word in case.make_input], check=True, timeout=300)
        except BaseException:
            Path(case.input).unlink(missing_ok=True)
            raise


def digest(directory, outputs, prefix):
    """Of stdout and every output file."""
    total = hashlib.sha256()
    for name in (f"{prefix}.out", *outputs):
        with open(directory / name, "rb") as source:
            while part := source.read(1 << 20):
                total.update(part)
        total.update(b"/")
    return total.hexdigest()


# A real program needs so many times its budget.
TIMES = (3, 5)


def check_times(need_mib, budget_mib):
    times = need_mib / budget_mib
    check(TIMES[0] <= times <= TIMES[1], f"it needs {times:.1f} times its budget, not {TIMES[0]} to {TIMES[1]}")


def truth(case):
    """What the program does with enough RAM: exit code, digest, seconds, MiB of anonymous memory it needs."""
    key = hashlib.sha256(repr((case.argv, case.env, case.outputs)).encode())
    for source in sorted(WORK.glob("*.*")):
        key.update(source.read_bytes())
    path = TRUTH / f"{case.name}-{key.hexdigest()[:16]}.json"
    if path.exists():
        return json.loads(path.read_text())
    directory = fresh_directory(f"{case.name}-plain")
    with Job(case.argv, Limits(case.timeout_s), directory, env=case.env, prefix="run") as job:
        code = job.wait()
        check(code is not None, f"without farpage: no end within {case.timeout_s:.0f} s")
        job.settle()
    known = {"code": code, "digest": digest(directory, case.outputs, "run"), "seconds": job.seconds}
    known["need_mib"] = job.sampler.held if job.sampler else None
    check(code == 0, f"without farpage: exit code {code}: {tail(job.err)}")
    TRUTH.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(known))
    return known


def warm(argv):
    """Reads what a program runs and is given: the cgroup's hard limit holds the page cache too. From a cold one (a machine
    restored from a snapshot, say) node's text once thrashed in what the budget left, until node was killed."""
    files = [Path(shutil.which(str(word)) or str(word)) for word in argv]
    homes = {home for program in (files[0], files[0].resolve()) for home in program.parents[1:2]} - {Path("/usr"), Path("/")}
    files += [path for home in homes for name in ("*.so", "*.so.*", "modules") for path in (home / "lib").rglob(name)]
    for path in files:
        if path.is_file():
            with path.open("rb") as source:
                while source.read(1 << 20):
                    pass


def tail(path, lines=3):
    text = Path(path).read_text(errors="replace").strip().splitlines()
    return " / ".join(text[-lines:])[-400:]


def farpage_run(budget_mib, delivery, stats=None, extra=(), quiet=True):
    """The words before the program's own."""
    words = [FARPAGE, "run", "--ram", size(budget_mib), "--delivery", delivery, *extra]
    if stats:
        words += ["--stats-json", stats]
    return [*words, *(["-q"] if quiet else []), "--"]


def size(mib):
    return f"{mib:.0f}M" if mib == int(mib) else f"{mib * 1024:.0f}K"


def read_stats(path):
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise AssertionError(f"--stats-json: {error}") from error


def swapped_out(stats):
    """Pages that left RAM as programs see it, to any tier."""
    return stats.get("pswpout", 0) + stats.get("zswpout", 0) + stats.get("swpout_zero", 0)


def measure(result, job):
    """The memory figures of a job, into the result, and the checks on them."""
    if job.sampler:
        result.anon_peak_mib = max(result.anon_peak_mib or 0, job.sampler.anon)
        result.shmem_peak_mib = max(result.shmem_peak_mib or 0, job.sampler.shmem)
        result.held_peak_mib = max(result.held_peak_mib or 0, job.sampler.held)
        rate = job.sampler.samples / job.seconds
        result.samples_per_s = min(result.samples_per_s or rate, rate)
        allowed = allowed_mib(result.budget_mib)
        check(job.oom_kills() == 0, f"{job.oom_kills()} OOM kills in the cgroup")
        peak = f"anonymous peak {job.sampler.anon:.1f} MiB, in {job.sampler.processes} processes"
        check(job.sampler.anon <= allowed, f"{peak}; allowed {allowed:.1f}")


def check_nothing_left(job, leftovers):
    # The last to end frees the swap file, which a busy disk can make long.
    check(not job.settle(30), f"still running at the end: {', '.join(job.left_behind)}")
    new = leftovers.new()
    check(not new, f"left behind: {', '.join(new)}")
    files = [entry.name for entry in (job.cwd / "tmp").iterdir()]
    check(not files, f"left in TMPDIR: {', '.join(files)}")
    # An image once could not set itself up after exec, and its program ended well, unmanaged and unseen.
    unmanaged = [line for line in job.err.read_text(errors="replace").splitlines() if "without a memory budget" in line]
    check(not unmanaged, f"a process was not managed: {unmanaged[:1]}")


def run_case(case, delivery, as_user=False, variant=("", ())):
    """The whole test of one program, with the words of a variant. Failures come as AssertionError text in the result."""
    setting, words = variant
    name = f"{case.name}{f'-{setting}' if setting else ''}/{delivery}{'/user' if as_user else ''}"
    result = Result(name, budget_mib=case.budget_mib)
    try:
        with alone():
            prepare(case)
            known = truth(case)
        result.need_mib, result.plain_s = known["need_mib"], known["seconds"]
        if case.must_swap and result.need_mib is not None:
            check_times(result.need_mib, case.budget_mib)
        _under_farpage(case, delivery, as_user, known, result, words)
    except Skip as skip:
        result.verdict, result.why = "SKIP", str(skip)
    except (AssertionError, subprocess.SubprocessError, OSError) as error:
        result.verdict, result.why = "FAIL", str(error)
    return result


def _under_farpage(case, delivery, as_user, known, result, words):
    directory = fresh_directory(result.name, as_user)
    stats = directory / "stats.json"
    leftovers = Leftovers()
    argv = farpage_run(case.budget_mib, delivery, stats, words) + case.argv
    limits = Limits(case.timeout_s, limit_mib(case.budget_mib, TINY_MIB) + case.kernel_mib, as_user)
    warm(case.argv)
    with Job(argv, limits, directory, env=case.env) as job:
        code = job.wait()
        result.farpage_s = job.seconds
        if job.no_cgroup:
            result.why = f"budget not checked: {job.no_cgroup}"
        check(code is not None, f"no end within {case.timeout_s:.0f} s: {tail(job.err)}")
        ooms = f", {job.oom_kills()} OOM kills" if job.oom_kills() else ""
        check(code == known["code"], f"exit code {code} for {known['code']}{ooms}: {tail(job.err)}")
        check_nothing_left(job, leftovers)
        check(digest(directory, case.outputs, "run") == known["digest"], "another output than without farpage")
        measure(result, job)
    if case.must_swap:
        check(swapped_out(read_stats(stats)) > 0, "nothing was swapped out: the program fits in its budget")
    shutil.rmtree(directory, ignore_errors=True)
