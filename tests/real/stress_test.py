"""The stress program in many shapes, and processes killed at random moments: no wrong byte, hang or leak."""

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import time

from cases import alone, digest, require, truth
from common import FARPAGE, VENV_PYTHON, WORK, check
from context import REGISTRY, Test, last_words, test, until
from programs import Case
from semantics_test import failures, program

# budget MiB, threads, processes, timer signals per second
QUICK_SHAPES = ((8, 1, 1, 0), (32, 8, 1, 200), (32, 2, 4, 0), (96, 32, 1, 0), (96, 8, 4, 200))
# Each, filling its memory included, and half of that by thread; with the other tests that run it (swapoff-stress, pauses,
# pid-namespaces) less than two minutes.
QUICK_SECONDS = 10
SOAK_SHAPES = tuple(
    (budget, threads, procs, hertz)
    for (budget, threads, procs), hertz in zip(
        itertools.product((8, 32, 128), (1, 2, 8, 32), (1, 4)), itertools.cycle((0, 200, 0))
    )
    if threads * procs <= 2 * budget  # what 32 threads and their children have beside managed memory is more than 8 MiB
)
SOAK_SECONDS = 90  # each; 20 shapes by two deliveries: an hour


# The shell stays when its program has ended, until its input ends.
STAYS = '"$@" </dev/null; code=$?; echo over $code; read -r line; exit $code'
# What it has itself where it is managed too (--eager), in pages, at most; and what the compressed tier has for that, or keeps where
# nobody compacts (with slot caches: 64 empty zpages of 32 KiB).
SHELL_PAGES, ZPAGES_BYTES = 256, 2 << 20


def run_without_leak(context, budget_mib, argv, extra, **options):
    """Context.budget_run in a tree that lives on when the program has ended: nothing of it may be in a slot, in a swap file or in the
    compressed tier then."""
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "w") as stays:
        words = ["sh", "-c", STAYS, "sh", *argv]
        with context.start(budget_mib, words, extra=extra, stdin=f"/proc/self/fd/{reading}", **options) as job:
            deadline = job.started + job.limits.timeout_s
            while "over " not in job.out.read_text() and job.process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            if "over 0\n" in job.out.read_text():
                emptied(context, job.process.pid, extra)
            stays.close()
            return context.outcome(job, argv[0])


def emptied(context, pid, extra, seconds=30):
    """Waits until the tree of a shell, whose program has ended, holds nothing but what is the shell's own."""
    pages = SHELL_PAGES if "--eager" in extra else 0
    most = {"file": pages * 4096, "compressed": ZPAGES_BYTES if pages or "cache" in extra else 0}
    deadline = time.monotonic() + seconds
    while True:
        report = counted_again(context, pid)
        areas = json.loads(context.plain([FARPAGE, "stat", pid, "--json"]).out)["areas"]
        full = [area for area in areas if area["used_bytes"] > most[area["kind"]]]
        if report["processes"] == 1 and report["slots"] <= pages and not full:
            return
        check(time.monotonic() < deadline, f"{seconds} s after the program's end: {report}, {areas}")
        time.sleep(0.05)


def stress(shape, seconds, words=()):
    budget, threads, procs, hertz = shape

    def run(context):
        seed = random.randrange(1 << 30)
        lasts = seconds // 2 if context.suite == "quick" and context.delivery == "thread" else seconds
        argv = [program("stress"), "--seconds", lasts, "--threads", threads, "--procs", procs, "--mb", budget * 4]
        argv += ["--seed", seed, *(["--signal", hertz] if hertz else [])]
        extra = (["--eager"] if seed % 2 else []) + (["--slots", "cache"] if seed % 3 == 0 else []) + list(words)
        try:
            # Each process forks and starts others, with as many threads: page tables of 300 KiB, stacks of 16 KiB.
            kernel_mib = procs * 2 + procs * threads // 16
            got = run_without_leak(context, budget, argv, extra, timeout_s=seconds * 3 + 120, kernel_mib=kernel_mib)
            check(got.code == 0, failures(got))
            check("ok stress" in got.out, f"ended without 'ok stress': {got.out[-200:]}")
        except AssertionError as error:
            raise AssertionError(f"seed {seed} {' '.join(extra)}: {error}") from error

    return run


for _suite, _shapes, _seconds in (("quick", QUICK_SHAPES, QUICK_SECONDS), ("soak", SOAK_SHAPES, SOAK_SECONDS)):
    for _shape in _shapes:
        _name = "stress-{}M-{}t-{}p{}".format(*_shape[:3], "-signals" if _shape[3] else "")
        REGISTRY.append(Test(_name, stress(_shape, _seconds), (_suite,), True))
REGISTRY.append(Test("stress-32M-4t-2p-user", stress((32, 4, 2, 0), 10), ("user",), True))


@test("stress-busy-machine", ("quick", "soak"), per_delivery=True, grows=True)
def stress_busy_machine(context):
    """32 threads that fork where others want the CPUs too. What was missing each once moved out by itself, of what fork shares; and
    when their process had nothing left, they took hundreds of pages beyond the budget while its children stored theirs."""
    seed = random.randrange(1 << 30)
    argv = [program("stress"), "--seconds", 60 if context.soak else 8, "--threads", 32, "--procs", 1, "--mb", 384, "--seed", seed]
    with contextlib.ExitStack() as stack:
        for _ in range(4 * os.cpu_count()):
            busy = stack.enter_context(subprocess.Popen(["sh", "-c", "while :; do :; done"]))
            stack.callback(busy.kill)
        got = context.budget_run(96, argv, timeout_s=240, kernel_mib=4)
    check(got.code == 0, f"seed {seed}: {failures(got)}")
    overruns = got.stats["limit_overrun"]
    check(overruns == 0, f"seed {seed}: {overruns} times the budget was overrun")


@test("kill-children", per_delivery=True, grows=True)
def kill_children(context):
    """SIGKILL to children at random moments: the rest of the tree goes on with the right bytes."""
    kills, seconds = (600, 180) if context.soak else (20, 15)
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    argv = [program("killme"), 160, 4, kills, seconds]
    with context.start(48, argv, timeout_s=seconds * 3 + 60) as job:
        killed = set()
        while job.process.poll() is None and time.monotonic() - job.started < seconds * 2:
            time.sleep(rng.choice((0.01, 0.1, 0.2, 0.5)))
            children = {int(line.split()[1]) for line in job.out.read_text().splitlines() if line.startswith("child ")}
            if running := sorted((children - killed) & set(job.alive())):
                victim = rng.choice(running)
                killed.add(victim)
                os.kill(victim, signal.SIGKILL)
        code = job.wait()
        check(code == 0, f"seed {seed}, {len(killed)} killed: exit code {code}: {last_words(job)}")
        text = job.out.read_text()
        check("ok killme" in text and "FAIL" not in text, f"seed {seed}: {last_words(job)}")
        check(len(killed) >= kills // 4, f"only {len(killed)} children could be killed")
        context.finish(job)


def checked(context, pid):
    """What `farpage check` says of a running tree: no problem."""
    got = context.plain([FARPAGE, "check", pid, "--json"])
    report = json.loads(got.out.splitlines()[-1])
    check(got.code == 0 and not report["problems"], f"exit code {got.code}: {report['problems'][:5]}")
    return report


def counted_again(context, pid, seconds=30):
    """The same once the supervisor has given up what nobody holds, which takes a moment when nobody is in the middle of a step."""
    deadline = time.monotonic() + seconds
    while (report := checked(context, pid))["lost_references"]:
        check(time.monotonic() < deadline, f"{seconds} s after the last death: {report}")
    return report


@test("check-after-kills", ("quick", "soak"), per_delivery=True, grows=True)
def check_after_kills(context):
    """SIGKILL to children at random moments, inside cluster locks too: the pool agrees with itself all the while, and no reference
    stays lost."""
    kills = 400 if context.soak else 10
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    with context.start(48, [program("killme"), 160, 4, kills * 2, 300], timeout_s=300) as job:
        killed, report = set(), None
        while len(killed) < kills and job.process.poll() is None:
            time.sleep(rng.choice((0.01, 0.1, 0.2, 0.5)))
            children = {int(line.split()[1]) for line in job.out.read_text().splitlines() if line.startswith("child ")}
            for victim in rng.sample(running := sorted((children - killed) & set(job.alive())), min(1, len(running))):
                killed.add(victim)
                os.kill(victim, signal.SIGKILL)
            if killed and len(killed) % 5 == 0 and job.process.poll() is None:
                try:
                    report = counted_again(context, job.process.pid)
                except AssertionError as error:
                    raise AssertionError(f"seed {seed}, {len(killed)} kills: {error}") from error
        check(len(killed) >= kills, f"seed {seed}: exit code {job.process.poll()} after {len(killed)} kills: {last_words(job)}")
        check(report and report["slots"] > 1000, f"seed {seed}: {report}")
        job.process.terminate()
        job.wait()
        context.finish(job)


SORT = Case("np-sort", 32, [VENV_PYTHON, WORK / "np_sort.py", 96], (str(VENV_PYTHON),))


@test("kill-supervisor", ("quick", "soak", "user"), per_delivery=True, grows=True)
def kill_supervisor(context):
    """SIGKILL to `farpage run` itself: the tree goes on with the right bytes, and nothing is left behind."""
    require(SORT.needs)
    with alone():
        known = truth(SORT)
    for delay in (0.05, 0.5, 1.5) if context.soak else (0.5,):
        with context.start(SORT.budget_mib, SORT.argv) as job:
            until("the program runs", lambda: len(job.alive()) > 1)
            time.sleep(delay)
            os.kill(job.process.pid, signal.SIGKILL)
            job.wait()
            left = job.settle(90)
            check(not left, f"90 s after the supervisor's end still running: {left}")
            got = digest(context.directory, (), job.out.stem)
            check(got == known["digest"], f"the tree did not go on, or computed something else: {last_words(job)}")
            context.finish(job)


@test("terminate-supervisor", ("quick", "soak", "user"))
def terminate_supervisor(context):
    """SIGTERM to `farpage run` reaches the program or ends the tree; nothing is left behind."""
    with context.start(SORT.budget_mib, ["sh", "-c", "echo ready; exec sleep 30"]) as job:
        until("the program runs", lambda: "ready" in job.out.read_text())
        os.kill(job.process.pid, signal.SIGTERM)
        code = job.wait()
        check(code == 143, f"exit code {code} after SIGTERM, expected 143")
        context.finish(job)
