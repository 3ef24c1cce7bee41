"""What a command leaves behind that goes on: its supervisor stays with it, and nobody else gets its swap file."""

import os
import time

from common import FARPAGE, check
from context import last_words, test, until
from proc import command_name
from semantics_test import program
from swapoff_test import PYTHON

ROUNDS = 12
DORMANT_ROUNDS = 40
SWAP_BYTES = 192 << 20


def stays(context, mib, images, ram="24M"):
    """A daemon's swap file is in use until it ends, and free afterwards. Its supervisor once went by entries of processes that were there: it
    ended when it looked between the fork of a dormant process and the child's constructor, or while the last process was in
    exec, and the next tree on the same file wrote over the daemon's pages."""
    directory = context.directory / f"{mib}-{images}-{time.monotonic_ns()}"
    directory.mkdir()
    ready, go, swap = directory / "ready", directory / "go", directory / "swap"
    with swap.open("wb") as file:
        file.truncate(SWAP_BYTES)
    run = [FARPAGE, "run", "-q", "--ram", ram, "--delivery", context.delivery, "--swap", swap, "--"]
    with context.begin([*run, program("reexec"), mib, images, ready, go], timeout_s=120) as job:
        code = job.wait()
        check(code == 0, f"exit code {code}: {last_words(job)}")
        pid = until("the last image is there", lambda: ready.exists() and ready.read_text().strip())
        joined = context.plain([FARPAGE, "swapon", f"{directory}:32M", pid])
        check(joined.code == 0, f"swapon, which the supervisor does: {joined.err!r}")
        second = context.plain([*run, "true"])
        check(second.code == 125 and "in use" in second.err, f"a second tree: {second.code} {second.err!r}")
        go.touch()
        until("the daemon has ended", lambda: "ok reexec" in job.out.read_text())
        until("its file is free", lambda: context.plain([*run, "true"]).code == 0)
        check(not job.err.read_text(), last_words(job))


@test("daemon-of-dormant", ("quick", "soak"), per_delivery=True)
def daemon_of_dormant(context):
    """One that was small when it left its parent."""
    for _ in range(DORMANT_ROUNDS):
        stays(context, 0, 1)


@test("daemon-in-exec", ("quick", "soak"), per_delivery=True)
def daemon_in_exec(context):
    """One that executes itself with memory in swap."""
    stays(context, 48, ROUNDS)


# A daemon as it should be: no terminal, no directory, no files of whoever started it.
LEAVES = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    os.chdir("/")
    os.closerange(0, 1000)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
"""


@test("daemon-lets-go", ("quick", "user"))
def daemon_lets_go(context):
    """A lock that farpage was started under is free when the command has ended and its daemon has closed everything. Who keeps the daemon's
    books in the background held it, and the caller's directory."""
    lock, go = context.directory / "lock", context.directory / "go"
    lock.touch()
    context.own(lock)
    with context.begin(["flock", lock, FARPAGE, "run", "--ram", "64M", "--", PYTHON, "-c", LEAVES, go]) as job:
        check(job.wait() == 0, last_words(job))
        (keeper,) = [pid for pid in job.alive() if command_name(pid) == "farpage"]
        until("the daemon has closed its files", lambda: context.plain(["flock", "-n", lock, "true"]).code == 0, seconds=20)
        # farpage has closed the lock before it, and it may not have begun yet.
        until("the keeper has left where it was started", lambda: os.readlink(f"/proc/{keeper}/cwd") == "/", seconds=20)
        check(context.plain([FARPAGE, "stat", keeper]).code == 0, "the keeper has ended")
        go.touch()
        until("the tree has ended", lambda: not job.alive())
