"""Pid namespaces: there a process's number is not that in the table of its tree."""

import contextlib
import json
import os
import signal
from pathlib import Path

from common import FARPAGE, Skip, check
from context import test, until
from semantics_test import failures, program
from stress_test import checked, counted_again


@test("pid-namespaces", per_delivery=True)
def pid_namespaces(context):
    """Programs started in pid namespaces of their own have numbers that are others' in the tree's table: two of them once shared an entry, and
    each other's pages. They stay unmanaged; their parent, which is managed, goes on."""
    if os.geteuid() != 0:
        raise Skip("needs root: unshare --pid")
    stress = f"{program('stress')} --seconds 2 --threads 1 --procs 1 --mb 48 --seed"
    script = f"unshare -pf {stress} 3 & unshare -pf {stress} 4 & sleep 0.5; {stress} 5; wait"
    run = [FARPAGE, "run", "--ram", "32M", "--delivery", context.delivery]
    got = context.plain([*run, "--", "sh", "-c", script], timeout_s=120)
    check(got.code == 0 and got.out.count("ok stress") == 3, f"{failures(got)} {got.err[-500:]}")
    # Any exec in such a process was once a segmentation fault: it looked for its entry in a pool that it does not have.
    execs = ["unshare", "-pf", "sh", "-c", "/bin/echo child; exec /bin/echo last"]
    got = context.plain([*run, "-q", "--", *execs], timeout_s=60)
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
        until("the program has ended", lambda: "ended" in job.out.read_text(), 240, job=job)
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
        until("it holds memory", lambda: "held" in job.out.read_text(), job=job)
        alone = lambda: counted_again(context, job.process.pid)["processes"] == 1  # noqa: E731
        until("the entry of who started the program is given back", alone, job=job)
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


@test("stat-of-the-only-tree")
def stat_of_the_only_tree(context):
    """Without a number `farpage stat` shows the tree that there is; in a pid namespace no other can be."""
    if os.geteuid() != 0:
        raise Skip("needs root: unshare --pid")
    tree = ["unshare", "-pf", "--mount-proc", "--kill-child", FARPAGE, "run", "-q", "--ram", "64M", "--"]
    got = context.plain([*tree, FARPAGE, "stat", "--json"])
    check(got.code == 0 and json.loads(got.out)["ram_budget_bytes"] == 64 << 20, f"exit code {got.code}: {got.out} {got.err}")


@test("trees-in-containers")
def trees_in_containers(context):
    """Two trees whose supervisors are number 1 in namespaces of their own: to who looks from outside they are two. The commands once took
    one for the other, or host's init for the supervisor."""
    if os.geteuid() != 0:
        raise Skip("needs root: unshare --pid")
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(container(context, ram)) for ram in (64, 96))
        pids = [until("it runs", lambda job=job: inside(job), job=job) for job in (first, second)]
        for (supervisor, program), ram in zip(pids, (64, 96)):
            for pid in (supervisor, program):
                seen = json.loads(context.plain([FARPAGE, "stat", pid, "--json"]).out)
                told = (seen["ram_budget_bytes"], seen["supervisor_pid"])
                check(told == (ram << 20, supervisor), f"{pid} of {supervisor} in {ram}M: {told}")
            checked(context, supervisor)
            for words in (("swapon", f"{context.directory}:32M"), ("swapoff", "1")):
                got = context.plain([FARPAGE, *words, supervisor])
                check(got.code == 0, f"{words}: exit code {got.code}: {got.err}")
        several = context.plain([FARPAGE, "stat"])
        listed = set(several.err.split())
        check(several.code == 1 and {str(pid) for pid, _ in pids} <= listed, f"exit code {several.code}: {several.err}")


def container(context, ram):
    words = ["unshare", "-pf", "--mount-proc", "--kill-child", FARPAGE, "run", "-q", "--ram", f"{ram}M", "--swap", "/var/tmp:64M"]
    return context.begin([*words, "--", "sleep", "60"])


def inside(job):
    """The supervisor and the program of a container, as they are numbered here; nothing before they are there."""
    supervisor = children_of(job.process.pid)
    program = children_of(supervisor[0]) if supervisor else []
    return (*supervisor, *program) if program and name_of(program[0]) == "sleep" else None


def children_of(pid):
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@test("first-process")
def first_process(context):
    """As the first process of a container farpage is the parent of every orphan: each that had ended stayed as a zombie."""
    if os.geteuid() != 0:
        raise Skip("needs root: unshare --pid")
    script = "for i in 1 2 3 4 5 6 7 8; do (sleep 0.1 &); done; sleep 1; cat /proc/[0-9]*/stat | grep -c ' Z '; exit 5"
    words = ["unshare", "-pf", "--mount-proc", FARPAGE, "run", "-q", "--ram", "64M", "--", "sh", "-c", script]
    got = context.plain(words)
    check(got.code == 5 and got.out.strip() == "0", f"exit code {got.code}, zombies: {got.out!r} {got.err!r}")
