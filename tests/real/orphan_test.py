"""A tree whose supervisor is stopped, or dead: what it keeps all the same."""

import os
import signal

from checks_test import refused
from common import WORK, check
from context import last_words, test, until
from swapoff_test import PYTHON, SUITES, Tree, holding, ready, start

BUDGET_MIB = 48


@test("supervisor-stopped", SUITES, per_delivery=True)
def supervisor_stopped(context):
    """A program runs itself anew again and again, and nobody sets the limit meanwhile: it was left with 2 of 48 MiB. So it was where the
    supervisor was dead and not waited for."""
    argv = [PYTHON, WORK / "anew.py", 36, 6]
    with context.start(BUDGET_MIB, argv, extra=["--eager"]) as job:
        until("the program runs", lambda: "begun" in job.out.read_text(), job=job)
        os.kill(job.process.pid, signal.SIGSTOP)
        try:
            until("the last image has ended", lambda: "resident" in job.out.read_text(), 120)
        finally:
            os.kill(job.process.pid, signal.SIGCONT)
        code = job.wait()
        check(code == 0, f"exit code {code}: {last_words(job)}")
        resident = int(job.out.read_text().split("resident ")[1].split()[0])
        check(resident > 30, f"{resident} MiB of 36 in RAM, in a budget of {BUDGET_MIB}")
        context.finish(job)


@test("refused-without-supervisor", SUITES)
def refused_without_supervisor(context):
    """Memory is refused, and nobody sets the limit meanwhile: each refusal waited half a second for it, for good."""
    go = context.directory / "go"
    with context.start(BUDGET_MIB, [PYTHON, WORK / "probes.py", 36, go], extra=["--eager", "--swap", "/var/tmp:128M"]) as job:
        until("the program runs", lambda: "begun" in job.out.read_text(), job=job)
        os.kill(job.process.pid, signal.SIGSTOP)
        try:
            go.touch()
            until("all was refused", lambda: "refused 300" in job.out.read_text(), 100)
        finally:
            os.kill(job.process.pid, signal.SIGCONT)
        code = job.wait()
        check(code == 0, f"exit code {code}: {last_words(job)}")
        context.finish(job)


@test("swapon-is-held", SUITES, per_delivery=True)
def swapon_is_held(context):
    """The supervisor is killed: a file that joined stays the tree's. Another run took it for its own, and both wrote to it."""
    joined = context.own_file("joined", bytes(96 << 20))
    with start(context, holding(context, 48), areas=("a:1G",)) as job:
        tree = Tree(context, job)
        ready(job)
        tree.swapon("joined", "96M")
        tree.swapoff("a")
        check(tree.used("joined") > 8 << 20, f"{tree.areas()}")
        os.kill(tree.pid, signal.SIGKILL)
        job.wait()
        refused(context, ["--ram", "64M", "--swap", joined], pattern="in use by another")
        (context.directory / "go").touch()
        left = job.settle(90)
        check(not left and "ok" in job.out.read_text(), f"still running: {left}; {last_words(job)}")
        context.finish(job)
