"""Pid namespaces: there a process's number is not that in the table of its tree."""

import os
import signal
import time
from pathlib import Path

from common import FARPAGE, Skip, check
from context import test
from semantics import failures, program
from stress import counted_again


@test("pid-namespaces")
def pid_namespaces(context):
    """Programs started in pid namespaces of their own have numbers that are others' in the tree's table: two of them once shared an entry, and
    each other's pages. They stay unmanaged; their parent, which is managed, goes on."""
    if os.geteuid() != 0:
        raise Skip("needs root: unshare --pid")
    stress = f"{program('stress')} --seconds 2 --threads 1 --procs 1 --mb 48 --seed"
    script = f"unshare -pf {stress} 3 & unshare -pf {stress} 4 & sleep 0.5; {stress} 5; wait"
    got = context.plain([FARPAGE, "run", "--ram", "32M", "--", "sh", "-c", script], timeout_s=120)
    check(got.code == 0 and got.out.count("ok stress") == 3, f"{failures(got)} {got.err[-500:]}")
    # Any exec in such a process was once a segmentation fault: it looked for its entry in a pool that it does not have.
    execs = ["unshare", "-pf", "sh", "-c", "/bin/echo child; exec /bin/echo last"]
    got = context.plain([FARPAGE, "run", "--ram", "32M", "-q", "--", *execs], timeout_s=60)
    check(got.code == 0 and got.out.split() == ["child", "last"], f"exec: exit code {got.code}: {got.out[-200:]} {got.err[-200:]}")


@test("forks-into-namespaces", ("quick", "soak"), per_delivery=True)
def forks_into_namespaces(context):
    """A managed program may fork into a pid namespace of its own: there nobody's number is that in the tree's table. Such a child was
    stopped once. What it held, and what its children held that were killed there, returns to the pool."""
    if os.geteuid() != 0:
        raise Skip("needs root: unshare, CLONE_NEWPID")
    done = context.directory / "done"
    script = f"{program('newpid')} 16; code=$?; echo ended; while [ ! -e {done} ]; do sleep 0.1; done; exit $code"
    with context.start(24, ["sh", "-c", script], timeout_s=240, extra=["--eager"]) as job:
        while "ended" not in job.out.read_text() and job.process.poll() is None:
            time.sleep(0.1)
        report = counted_again(context, job.process.pid)
        done.touch()
        code = job.wait()
        context.finish(job)
    text = job.out.read_text()
    check(code == 0 and text.count("ok ") == 4, f"exit code {code}: {text[-400:]} {job.err.read_text()[-300:]}")
    check(report["processes"] <= 3, f"entries of the dead: {report}")


@test("program-in-namespace", ("quick", "soak"), per_delivery=True)
def program_in_namespace(context):
    """A process that was forked into a namespace starts a program there, which is unmanaged: what the process held is given back while
    the program runs."""
    if os.geteuid() != 0:
        raise Skip("needs root: CLONE_NEWPID")
    with context.start(24, [program("newpid"), 40, "hold"], timeout_s=60, extra=["--eager"]) as job:
        deadline = time.monotonic() + 20
        while "held" not in job.out.read_text():
            check(time.monotonic() < deadline and job.process.poll() is None, "it holds nothing")
            time.sleep(0.05)
        while (report := counted_again(context, job.process.pid))["processes"] > 1:
            check(time.monotonic() < deadline, f"the entry of who started the program: {report}")
            time.sleep(0.05)
        sleeping = [pid for pid in job.alive() if name_of(pid) == "sleep"]
        check(len(sleeping) == 1, f"{len(sleeping)} programs")
        os.kill(sleeping[0], signal.SIGKILL)
        code = job.wait()
        context.finish(job)
    check(code == 0, f"exit code {code}: {job.out.read_text()[-300:]} {job.err.read_text()[-300:]}")


def name_of(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
