"""Processes killed at named points between two instructions (crates/farpage-core/src/kill.rs), in every critical section.

A tree runs in which all tiers, fork, exec and mappings are at work; each armed point kills one process, whichever of the
tree's (but the command) passes it for the n-th time. The rest must go on with the right bytes to its end, and then the
pool must agree with itself, with no reference lost: `farpage check`. A point that nobody passed is a failure too.
The supervisor dies at points of its own, in a tree that goes on without it.
And threads are held up there, as a busy machine does now and then, while the rest goes on.

What it found, mended since:
- a reference lost when a process died between a page's word and the put of its slot, and in fork and mremap between the
  slot's count and the page's word: the supervisor counts again (`recount`);
- an object that its zpage counted for ever (death between reserving and claiming it, or between the two steps of its
  return), and a zpage counted as in use: counted again too;
- a cluster taken off the queue of writeback by a process that died before it had locked it was never written back;
- an entry whose cleaner (a new image after exec) died stayed half cleaned for ever, with all its slots;
- a charge of the tree that no process had any more;
- a page with the content of another process's: its reader had been held up in the middle of a compressed object that was moved,
  and read on where the next one lay.
"""

import contextlib
import json
import os
import random
import re
import signal
import time
from pathlib import Path

from common import ROOT, Skip, check
from context import last_words, test, until
from huge_test import kernel_gives
from semantics_test import failures, program
import swapoff_test

KILL_FARPAGE = ROOT / "target/kill/kill/farpage"
SOURCE = ROOT / "crates/farpage-core/src/kill.rs"
# Points armed in one tree; at later passes fewer, so that each still kills.
TOGETHER = 15
FEW = 10
# How often what nobody passed is tried again.
AGAIN = 3
# By then all children of a tree have ended, each started anew up to a dozen times: 17 s alone, ten times that beside the soak's other lines.
ENDS_S = 600
# The pass that kills. In the soak a later one too, which rarely passed points do not come to.
PASS = 2
LATER_PASS = 40
# Passed a few times only: killed at the first pass.
SELDOM = {
    *("cluster-popped", "join-entry", "join-named", "activate-marked", "activate-registered", "activate-adopted"),
    *("share-published", "share-moved", "share-freed"),
    *("slot-released", "follow-opened", "follow-exchanged"),
}


def points():
    """The names in the one list there is."""
    found = re.search(r"POINTS: \[&str; (\d+)\] = \[(.*?)\];", SOURCE.read_text(), re.DOTALL)
    names = re.findall(r'^ +"([a-z-]+)",$', found[2], re.MULTILINE)
    check(len(names) == int(found[1]), f"{SOURCE} lists {found[1]} points, {len(names)} could be read")
    return names


def armed_at(points):
    """The points (name: pass) as the environment tells them."""
    return ",".join(f"{name}:{count}" for name, count in points.items())


def killed_at(job):
    return set(re.findall(r"^farpage: killed at ([a-z-]+)$", job.err.read_text(), re.MULTILINE))


def sound(context, job):
    """Waits until the supervisor has buried the dead; the pool must be sound then, and nothing lost."""
    deadline = time.monotonic() + 30
    while True:
        got = context.plain([KILL_FARPAGE, "check", job.process.pid, "--json"])
        report = json.loads(got.out.splitlines()[-1])
        if not report["problems"] and not report["lost_references"] and report["processes"] == 1:
            return report
        check(time.monotonic() < deadline, f"30 s after the last death: {report | {'problems': report['problems'][:5]}}")


def is_huge(name):
    return name.startswith("huge-")


def of_areas(name):
    """Points that are passed when an area is emptied, or joins, or in slot caches."""
    return name.startswith(("relocate-", "share-", "rename-", "follow-", "cache-"))


def is_of_supervisor(name):
    return name.startswith(("compact-", "recount-", "area-"))


def start(context, armed, value):
    """The tree for these points."""
    budget, mib, rounds = (24, 64, 4) if context.soak else (20, 40, 1)
    argv = [program("killpoints"), mib, 3, rounds]
    options = {"timeout_s": ENDS_S + 60, "binary": KILL_FARPAGE, "env": {"FARPAGE_KILL_AT": value}}
    if any(map(of_areas, armed)):
        areas = ("compressed:6M", "a:1G", "b:1G")
        return swapoff_test.start(context, argv, budget, areas, slots="cache", **options)
    words = ["--swap", "compressed:6M", "--swap", "/var/tmp"]
    if any(map(is_huge, armed)):
        # Each child walks through memory of its own that is kept in huge pages.
        words, budget, argv = [*words, "--eager", "--huge", "always"], 128, [argv[0], 160, *argv[2:], 48]
    return context.start(budget, argv, extra=words, **options)


def empty_areas(context, job):
    """Areas leave and join in turn until the children have ended; a death meanwhile must not hold them up."""
    tree = swapoff_test.Tree(context, job, KILL_FARPAGE)
    until("pages in the first area", lambda: tree.used("a") > 8 << 20, job=job)
    while "quiet" not in job.out.read_text():
        for area in ("a", "b"):
            tree.swapoff(area)
            tree.swapon(area)


def run_tree(context, armed):
    """One tree with the points of `armed` (name: pass); the names of those that killed."""
    value = armed_at(armed)
    with start(context, armed, value) as job:
        try:
            if any(map(of_areas, armed)):
                empty_areas(context, job)
            until("all children ended", lambda: "quiet" in job.out.read_text(), ENDS_S, job=job)
            report = sound(context, job)
            os.kill(job.process.pid, signal.SIGUSR1)
            code = job.wait()
            text = job.out.read_text()
            check(code == 0 and "ok killpoints" in text and "FAIL" not in text, f"exit code {code}: {last_words(job)}")
            check(report["slots"] > 1000, f"hardly anything was swapped: {report}")
            context.finish(job)
        except AssertionError as error:
            raise AssertionError(f"FARPAGE_KILL_AT={value}, killed at {sorted(killed_at(job))}: {error}") from error
        return killed_at(job)


@test("kill-points", per_delivery=True, grows=True)
def kill_points(context):
    """A process dies at each point; the rest goes on and the pool is sound afterwards."""
    check(os.access(KILL_FARPAGE, os.X_OK), f"{KILL_FARPAGE} is missing: make kill-build")
    names = [name for name in points() if not is_of_supervisor(name)]
    if not kernel_gives():
        context.result.skipped.append(("kill-points/huge", "this kernel gives no huge pages"))
        names = [name for name in names if not is_huge(name)]
    others = [name for name in names if not is_huge(name) and not of_areas(name)]
    kinds = [others, list(filter(is_huge, names)), list(filter(of_areas, names))]
    batches = [kind[at : at + TOGETHER] for kind in kinds for at in range(0, len(kind), TOGETHER)]
    never = set(names)
    for batch in batches:
        never -= run_tree(context, {name: 1 if name in SELDOM else PASS for name in batch})
    # Where others died first a point may have been passed too seldom: again, with fewer others and at the first pass.
    for _ in range(AGAIN):
        for kind in kinds:
            if left := [name for name in kind if name in never]:
                never -= run_tree(context, dict.fromkeys(left, 1))
    check(not never, f"points that nobody passed: {sorted(never)}")
    for kind in kinds if context.soak else ():
        for at in range(0, len(kind), FEW):
            run_tree(context, dict.fromkeys(kind[at : at + FEW], LATER_PASS))


@test("kill-in-mremap", per_delivery=True, grows=True)
def kill_in_mremap(context):
    """A process dies while it moves memory that it shares with its parent: two of its words name one reference then. Both were put, and the
    parent's page with them: an impossible swap entry, or a page of somebody else's."""
    for count in (1200, 4000):
        check(run_tree(context, {"move-word": count}), f"nobody came to pass {count}")


# Where the supervisor is killed: the points that only it passes, and of those that processes pass too what it does most.
# What `farpage check` must then say, of which nobody is left who would mend it; None: nothing is left.
LOCKED = r"cluster \d+: locked by the supervisor, which is gone"
CLEANING = r"entry \d+: process \d+, which is gone, was returning what it holds, and nobody has returned that"
LEFT_BY_SUPERVISOR = {
    "compact-copied": LOCKED,
    "compact-exchanged": LOCKED,
    "compact-freed": LOCKED,
    "compact-emptying": r"zpage \d+: being emptied by the supervisor, which is gone",
    "area-resized": None,
    "clean-claimed": CLEANING,
    "clean-put": CLEANING,
    "cluster-relisted": LOCKED,
    # These trees take longest: a child dies in them before.
    "recount-locked": LOCKED,
    "recount-put": LOCKED,
}
# A child that dies here leaves a reference to be counted again.
LEAVES_A_REFERENCE = {"kept-left": 1}


BUDGET_UNSUPERVISED = 16


class Unsupervised:
    """A tree whose supervisor dies at a point."""

    def __init__(self, context, point, jobs):
        self.context, self.point, self.jobs = context, point, jobs
        self.counts_again = point.startswith("recount-")
        self.begin()

    def start(self):
        context, point = self.context, self.point
        env = {"FARPAGE_KILL_SUPERVISOR_AT": f"{point}:1"}
        if self.counts_again:
            env["FARPAGE_KILL_AT"] = armed_at(LEAVES_A_REFERENCE)
        # What those hold that die later nobody returns: few do.
        argv = [program("killpoints"), 24, 1, 1]
        options = {"timeout_s": 480, "binary": KILL_FARPAGE, "env": env}
        if point.startswith("area-"):
            self.job = swapoff_test.start(context, argv, BUDGET_UNSUPERVISED, ("compressed:6M", "a:1G", "b:1G"), **options)
        else:
            words = ["--swap", "compressed:6M", "--swap", "/var/tmp"]
            self.job = context.start(BUDGET_UNSUPERVISED, argv, extra=words, **options)
        self.jobs.enter_context(self.job)

    def begin(self):
        """Until the program runs; an area leaves where that is what the supervisor is to do."""
        self.start()
        job, parent, found = self.job, f"PPid:\t{self.job.process.pid}\n", []

        def started():
            found.extend(pid for pid in job.alive() if parent in Path(f"/proc/{pid}/status").read_text())
            return found

        until("the program starts", started, job=job)
        self.pid = found[0]
        if self.point.startswith("area-"):
            tree = swapoff_test.Tree(self.context, job, KILL_FARPAGE)
            until("pages in the first area", lambda: tree.used("a") > 4 << 20, job=job)
            tree.command("swapoff", tree.path("a"), tree.pid)

    def has_nothing_to_count(self):
        """Whether the program has come to its end without a child that left a reference: one in some dozens."""
        job, end = self.job, time.monotonic() + 120
        while self.counts_again and job.process.poll() is None and not killed_at(job) & LEAVES_A_REFERENCE.keys():
            if "quiet" in job.out.read_text():
                return True
            check(time.monotonic() < end, f"neither quiet nor ended: {last_words(job)}")
            time.sleep(0.1)
        return False

    def go_on(self, left):
        """Until its children have ended. Then `left` must be among what `farpage check` says."""
        for _ in range(AGAIN):
            if not self.has_nothing_to_count():
                break
            os.kill(self.pid, signal.SIGUSR1)
            check(self.job.wait() == 0, f"nothing to count again: {last_words(self.job)}")
            self.context.finish(self.job)
            self.begin()
        job = self.job
        code = job.wait()
        check(code == -signal.SIGKILL and self.point in killed_at(job), f"the supervisor: {code}: {last_words(job)}")
        deadline = job.started + job.limits.timeout_s
        while "quiet" not in job.out.read_text():
            check(time.monotonic() < deadline and job.alive(), f"without supervisor: {last_words(job)}")
            time.sleep(0.1)
        got = self.context.plain([KILL_FARPAGE, "check", self.pid, "--json"])
        problems = json.loads(got.out.splitlines()[-1])["problems"] if got.out else [got.err]
        check(left is None or any(re.fullmatch(left, line) for line in problems), f"{left} is not told: {problems[:9]}")
        os.kill(self.pid, signal.SIGUSR1)

    def end(self):
        """With the right bytes, and nothing left."""
        self.job.settle(60)
        text = self.job.out.read_text()
        check("ok killpoints" in text and "FAIL" not in text, last_words(self.job))
        self.context.finish(self.job)


@test("kill-supervisor-at", ("soak",), per_delivery=True)
def kill_supervisor_at(context):
    """The supervisor is killed at each of its points: the tree goes on to its end, nothing stays behind, and what nobody gives back
    any more is told. (Nothing was: what the supervisor holds counted as held by somebody.)"""
    check(os.access(KILL_FARPAGE, os.X_OK), f"{KILL_FARPAGE} is missing: make kill-build")
    missing = set(filter(is_of_supervisor, points())) - set(LEFT_BY_SUPERVISOR)
    check(not missing, f"points of the supervisor at which it is not killed: {sorted(missing)}")
    with contextlib.ExitStack() as jobs:
        # Side by side: without a supervisor they wait most of the time, for pages that the dead are charged.
        trees = []
        for point in LEFT_BY_SUPERVISOR:
            trees.append(Unsupervised(context, point, jobs))
        steps = [(tree, lambda tree=tree: tree.go_on(LEFT_BY_SUPERVISOR[tree.point])) for tree in trees]
        for tree, step in [*steps, *((tree, tree.end) for tree in trees)]:
            try:
                step()
            except AssertionError as error:
                raise AssertionError(f"supervisor killed at {tree.point}: {error}") from error


# The point, and one pass in how many is a pause of how many microseconds.
PAUSES = (("unpack-owner", 32, 3000), ("any", 256, 2000))


@test("pauses", per_delivery=True, grows=True)
def pauses(context):
    """Threads are held up between two instructions for longer than the others take to change everything around them."""
    seconds = 180 if context.soak else 12
    for name, one_in, microseconds in PAUSES:
        # Pages of one value are small objects, which all lie in the same few zpages.
        argv = [program("stress"), "--seconds", seconds, "--threads", 2, "--procs", 4, "--mb", 32, "--seed", random.randrange(1 << 30)]
        env = {"FARPAGE_PAUSE_AT": f"{name}:{one_in}:{microseconds}"}
        got = context.budget_run(8, argv, timeout_s=300 + 3 * seconds, extra=["--eager"], binary=KILL_FARPAGE, env=env, kernel_mib=8)
        check(got.code == 0 and "ok stress" in got.out, f"{env}, {argv}: {failures(got)}")


@test("pauses-of-orphans", per_delivery=True)
def pauses_of_orphans(context):
    """A child that borrows memory (vfork) is held up in a fork of its own until its parent has ended and was cleaned up after: what it
    went on to read was zeros, and its child's memory."""
    env = {"FARPAGE_PAUSE_AT": "fork-marked:1:900000"}
    argv = [program("sem_vfork"), 16, "vfork_outlives"]
    got = context.budget_run(24, argv, timeout_s=120, binary=KILL_FARPAGE, env=env)
    check(got.code == 0 and "ok vfork_outlives" in got.out, failures(got))


@test("pauses-of-parents", per_delivery=True)
def pauses_of_parents(context):
    """A child has run another image to its end before its parent is back from the fork: the parent wrote its number into the entry of the
    next child, which was given up for dead and stopped."""
    env = {"FARPAGE_PAUSE_AT": "fork-returned:2:200000,fork-born:1:50000"}
    got = context.budget_run(32, [program("spawnmany"), 40, 48], timeout_s=120, extra=["--eager"], binary=KILL_FARPAGE, env=env)
    check(got.code == 0, failures(got))


@test("held-pages", per_delivery=True)
def held_pages(context):
    """Pages that an io_uring's registered buffers hold among others that come and go. This build moves every window with gaps by
    way of a scratch area, from which such pages must come back to their places."""
    extra = ["--eager", "--allow-io-uring"]
    got = context.budget_run(24, [program("held"), 64], timeout_s=240, extra=extra, binary=KILL_FARPAGE)
    if "skip held" in got.out + got.err:
        raise Skip("this kernel allows no io_uring")
    check(got.code == 0 and "ok held" in got.out, failures(got))
    check(got.stats["pgsteal_scattered"] > 0 and got.stats["pgreclaim_busy"] > 0, f"none was found held: {got.stats}")


@test("moved-in-pieces", per_delivery=True)
def moved_in_pieces(context):
    """Windows with gaps that are mappings of their own. This build moves each by way of a scratch area, after which the kernel did not merge
    again what mprotect takes apart: mremap of it, which takes one mapping, failed."""
    argv = [program("sem_mremap"), 16, "taken_apart"]
    got = context.budget_run(64, argv, timeout_s=120, extra=["--eager"], binary=KILL_FARPAGE, env={"EXPECT_COLD": "1"})
    check(got.code == 0, failures(got))
    check(got.stats["pgsteal_scattered"] > 0, f"no window with gaps was moved: {got.stats}")


@test("gaps-not-inherited", per_delivery=True)
def gaps_not_inherited(context):
    """Windows with gaps of memory that a child does not get (MADV_DONTFORK). This build moves each by way of a scratch area, which the child
    did not get either since: its own mappings came there, and its first window with gaps replaced them."""
    argv = [program("sem_fork"), 16, "gaps_not_inherited"]
    got = context.budget_run(64, argv, timeout_s=120, extra=["--eager"], binary=KILL_FARPAGE, env={"EXPECT_COLD": "1"})
    check(got.code == 0, failures(got))
    check(got.stats["pgsteal_scattered"] > 0, f"no window with gaps was moved: {got.stats}")
