"""farpage swapoff and swapon: areas leave and join a running tree, whose programs see nothing of it but time."""

import json
import os
import random
import re
import signal
import sys
from pathlib import Path

from common import FARPAGE, WORK, check
from context import DEADLINE_S, last_words, test, until
from semantics_test import program
from stress_test import checked

# One that every user may run.
PYTHON = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
SUITES = ("quick", "soak", "user")


class Tree:
    """A running tree with areas `a` and `b`, unlinked files in directories of these names."""

    def __init__(self, context, job, binary=FARPAGE):
        self.context, self.job, self.pid, self.binary = context, job, job.process.pid, binary

    def command(self, *words):
        # Beside the soak's other lines an area took more than a minute to empty.
        return self.context.plain([self.binary, *words], timeout_s=5 * DEADLINE_S)

    def stat(self):
        got = self.command("stat", self.pid, "--json")
        # Not begun yet, or ended.
        return json.loads(got.out) if got.code == 0 else {}

    def areas(self):
        return {Path(area["name"]).name: area for area in self.stat().get("areas", [])}

    def used(self, name):
        return self.areas().get(name, {}).get("used_bytes", 0)

    def settled(self, area):
        """What the area holds once nothing leaves any more: what was resident at a fork leaves each process by itself."""
        seen = [-1, self.used(area)]

        def still():
            seen[:] = [seen[1], self.used(area)]
            return seen[0] == seen[1]

        until("nothing leaves any more", still, every_s=0.3)
        return seen[1]

    def swapoff(self, area, *words):
        got = self.command("swapoff", self.path(area), self.pid, "--json", *words)
        check(got.code == 0, f"swapoff {area} {words}: exit code {got.code}: {got.err}{last_words(self.job)}")
        return json.loads(got.out)

    def swapon(self, area, size="1G"):
        got = self.command("swapon", self.spec(area, size), self.pid)
        check(got.code == 0, f"swapon {area}: exit code {got.code}: {got.err}{last_words(self.job)}")

    def path(self, area):
        return area if area == "compressed" else self.context.directory / area

    def spec(self, area, size="1G"):
        return area if area == "compressed" else f"{self.path(area)}:{size}"

    def holders(self, area):
        """Descriptors of an area in any process of the tree."""
        found = []
        for pid in {self.pid, *self.job.alive()}:
            try:
                names = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
            except OSError:
                continue
            path = str(self.path(area))
            found += [(pid, name) for name in names if name == path or name.startswith(f"{path}/")]
        return found


def start(context, argv, budget=32, areas=("a:1G", "b:1G"), timeout_s=120, slots="percpu-cluster", **options):
    """Starts a program in a tree with these areas; it is not to end before `finish`."""
    (context.directory / "go").unlink(missing_ok=True)
    for area in ("a", "b"):
        (context.directory / area).mkdir(exist_ok=True)
        context.own(context.directory / area)
    tiers = [area if area.startswith("compressed") else context.directory / area for area in areas]
    extra = ["--slots", slots, *(word for tier in tiers for word in ("--swap", tier))]
    return context.start(budget, argv, timeout_s=timeout_s, extra=extra, **options)


def holding(context, mib, children=0, *kind):
    return [PYTHON, WORK / "hold.py", mib, context.directory / "go", children, *kind]


def ready(job):
    until("the program is ready", lambda: "ready" in job.out.read_text() or job.process.poll() is not None)
    check(job.process.poll() is None, f"ended early: {last_words(job)}")


def beside_one_that_ends(context, argv):
    """The words of a program, and of another that then fills most of 96 MiB and ends."""
    other = context.directory / "other"
    script = f'"$@" & until [ -e "{other}" ]; do sleep 0.02; done; "{program("fill")}" 80 1 mmap; echo filled; wait $!'
    return ["sh", "-c", script, "sh", *argv]


def pushed_out(context, job):
    """The tree, once that other program has pushed the first one out and has ended."""
    ready(job)
    (context.directory / "other").touch()
    until("the other program has ended", lambda: "filled" in job.out.read_text())
    tree = Tree(context, job)
    until("what it had is given back", lambda: 0 < tree.stat().get("charged_bytes", 0) < 48 << 20, job=job)
    return tree


def finish(context, job):
    (context.directory / "go").touch()
    code = job.wait()
    check(code == 0 and "ok" in job.out.read_text(), f"exit code {code}: {last_words(job)}")
    context.finish(job)


@test("swapoff-runs", SUITES, per_delivery=True)
def swapoff_runs(context):
    """An area leaves while a program works on what lies in it."""
    with start(context, [program("fill"), 64, 1000, "mmap", context.directory / "go"]) as job:
        tree = Tree(context, job)
        until("pages in the first area", lambda: tree.used("a") > 16 << 20)
        report = tree.swapoff("a")
        check("a" not in tree.areas(), "the area is still there")
        # Who was busy with the old file closes it a little later.
        until("nobody has it open", lambda: not tree.holders("a"))
        check(sum(report["windows"]) > 0 and report["pages_to_tiers"] > 0, f"{report}")
        checked(context, tree.pid)
        until("pages in the other area", lambda: tree.used("b") > 16 << 20, job=job)
        finish(context, job)


@test("swapoff-caches", SUITES, per_delivery=True)
def swapoff_caches(context):
    """Slots that a program keeps for its CPUs go back with the area, though it takes and frees none any more."""
    with start(context, holding(context, 64), slots="cache") as job:
        tree = Tree(context, job)
        ready(job)
        check(tree.used("a") > 16 << 20, f"{tree.areas()}")
        tree.swapoff("a")
        tree.swapon("a")
        tree.swapoff("b")
        check(not tree.holders("b"), f"descriptors are left: {tree.holders('b')}")
        report = checked(context, tree.pid)
        check(report["lost_references"] == 0, f"{report}")
        finish(context, job)


@test("swapoff-to-ram", SUITES, per_delivery=True)
def swapoff_to_ram(context):
    """When another process of the tree has ended there is room in RAM; without any area left swapoff and swapon still work."""
    with start(context, beside_one_that_ends(context, holding(context, 40)), budget=96, areas=("a:256M",)) as job:
        tree = pushed_out(context, job)
        check(tree.used("a") > 8 << 20, f"{tree.areas()}")
        report = tree.swapoff("a")
        check(report["pages_to_ram"] > 2000 and report["pages_to_tiers"] == 0, f"{report}")
        check(not tree.areas() and not tree.holders("a"), f"{tree.areas()} {tree.holders('a')}")
        checked(context, tree.pid)
        tree.swapon("b")
        check(tree.areas()["b"]["size_bytes"] == 1 << 30, f"{tree.areas()}")
        finish(context, job)


@test("swapoff-compressed", SUITES, per_delivery=True)
def swapoff_compressed(context):
    """The compressed tier leaves, with what forked processes share in it, for a file; it comes back as it was."""
    check(any(compressed_leaves(context) for _ in range(5)), "nothing stays compressed")


def given_up_as_empty(tree, area):
    """Before a file the compressed tier follows refault distances: on a busy machine it was seen to shrink to nothing. Then the
    program ends, and another try is worth it."""
    if tree.settled(area) > 1 << 18:
        return False
    finish(tree.context, tree.job)
    return True


def compressed_leaves(context):
    """Whether there was anything compressed to leave; what holds then is checked."""
    with start(context, holding(context, 96, 1, "soft"), budget=64, areas=("compressed:32M", "a:1G")) as job:
        tree = Tree(context, job)
        ready(job)
        if given_up_as_empty(tree, "compressed"):
            return False
        report = tree.swapoff("compressed")
        check(report["pages_to_ram"] + report["pages_to_tiers"] > 64 and report["area"] == "compressed", f"{report}")
        check("compressed" not in tree.areas(), f"{tree.areas()}")
        got = tree.command("swapoff", "compressed", tree.pid)
        check(got.code == 1 and "already" in got.err, f"exit code {got.code}: {got.err}")
        report = checked(context, tree.pid)
        check(report["lost_references"] == 0, f"{report}")
        tree.swapon("compressed")
        check(not tree.areas()["compressed"]["closed"], f"{tree.areas()}")
        got = tree.command("swapon", "compressed", tree.pid)
        check(got.code == 1 and "in use already" in got.err, f"exit code {got.code}: {got.err}")
        finish(context, job)
        return True


@test("swapoff-compressed-to-ram", SUITES, per_delivery=True)
def swapoff_compressed_to_ram(context):
    """With no other tier what is compressed goes to RAM where that has room, which it takes uncompressed; if it has not, nothing changes."""
    held = holding(context, 40, 0, "soft")
    with start(context, beside_one_that_ends(context, held), budget=96, areas=("compressed",)) as job:
        tree = pushed_out(context, job)
        check(tree.used("compressed") > 2 << 20, f"{tree.areas()}")
        for order in ("vma", "device"):
            report = tree.swapoff("compressed", "--order", order)
            check(report["pages_to_tiers"] == 0 and not tree.areas(), f"{report} {tree.areas()}")
            tree.swapon("compressed")
            check(order == "device" or report["pages_to_ram"] > 1000, f"{report}")
        checked(context, tree.pid)
        finish(context, job)
    with start(context, holding(context, 32, 0, "soft"), areas=("compressed",)) as job:
        tree = Tree(context, job)
        ready(job)
        got = tree.command("swapoff", "compressed", tree.pid)
        check(got.code == 1 and "do not fit elsewhere" in got.err, f"exit code {got.code}: {got.err}")
        check(not tree.areas()["compressed"]["closed"], f"{tree.areas()}")
        finish(context, job)


@test("swapoff-refused", SUITES, per_delivery=True)
def swapoff_refused(context):
    """No room: exit code 1, one line, nothing changed. With another area there is."""
    with start(context, holding(context, 64), areas=("a:256M",)) as job:
        tree = Tree(context, job)
        ready(job)
        before = tree.used("a")
        check(before > 32 << 20, f"only {before} bytes in the area")
        got = tree.command("swapoff", tree.path("a"), tree.pid)
        check(got.code == 1 and len(got.err_lines()) == 1 and "swapon" in got.err, f"{got.code}: {got.err}")
        check(tree.used("a") > before // 2 and not tree.areas()["a"]["closed"], f"{tree.areas()}")
        for words in (["swapoff", "7"], ["swapoff", "compressed"], ["swapoff", "/none"], ["swapon", "compressed"]):
            got = tree.command(*words, tree.pid)
            check(got.code == 1 and len(got.err_lines()) == 1, f"{words}: {got.code}: {got.err}")
        tree.swapon("b")
        tree.swapoff("a")
        check(tree.used("b") > 32 << 20, f"{tree.areas()}")
        checked(context, tree.pid)
        finish(context, job)


@test("swapoff-interrupted", SUITES, per_delivery=True)
def swapoff_interrupted(context):
    """SIGINT while an area is being emptied (the program stands still, so it does not end): it takes pages again. A program
    that stands still for good ends the command by itself."""
    for areas in (("a:1G", "b:1G"), ("compressed:16M", "a:1G")):
        check(any(interrupted(context, areas) for _ in range(5)), f"{areas[0]} stays empty")


def interrupted(context, areas):
    """Whether there was anything in the first area to move; what holds then is checked."""
    area = areas[0].partition(":")[0]
    with start(context, holding(context, 64, 0, "soft"), areas=areas) as job:
        tree = Tree(context, job)
        ready(job)
        if given_up_as_empty(tree, area):
            return False
        before = tree.used(area)
        stopped = [pid for pid in job.alive() if pid != tree.pid]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        words = [FARPAGE, "swapoff", tree.path(area), tree.pid]
        for by_signal in (True, False):
            job_off = context.begin(words)
            with job_off:
                until("the area is closed", lambda: tree.areas()[area]["closed"])
                if by_signal:
                    job_off.process.send_signal(signal.SIGINT)
                code, said = job_off.wait(), job_off.err.read_text()
            check(code == 1 and "stays in use" in said, f"exit code {code}: {said}")
            check(not tree.areas()[area]["closed"], f"{tree.areas()}")
            if not by_signal:
                check("does not answer" in said, said)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        check(tree.used(area) >= before - (1 << 20), f"{before} bytes before, {tree.areas()}")
        checked(context, tree.pid)
        tree.swapoff(area)
        finish(context, job)
    return True


@test("swapoff-of-a-stopped-tree", SUITES, per_delivery=True)
def swapoff_of_a_stopped_tree(context):
    """The supervisor is stopped, as by Ctrl-Z: nobody does what a command asks for, and it waited for good, SIGINT or not."""
    with start(context, holding(context, 48)) as job:
        tree = Tree(context, job)
        ready(job)
        words = [FARPAGE, "swapoff", tree.path("a"), tree.pid]
        for by_signal in (True, False):
            os.kill(tree.pid, signal.SIGSTOP)
            with context.begin(words) as asked:
                if by_signal:
                    until("it asks", lambda: asks(asked.process.pid))
                    asked.process.send_signal(signal.SIGINT)
                code, said = asked.wait(), asked.err.read_text()
            os.kill(tree.pid, signal.SIGCONT)
            check(code == 1 and said.count("\n") == 1 and "is stopped" in said, f"exit code {code}: {said}")
            check(not tree.areas()["a"]["closed"], f"{tree.areas()}")
        tree.swapoff("a")
        finish(context, job)


@test("swapoff-tells-who-holds", SUITES)
def swapoff_tells_who_holds(context):
    """A shell that is not managed keeps what it inherited open: the file system can't be unmounted yet, and the user is told why."""
    with start(context, ["sh", "-c", '"$@"; true', "sh", *holding(context, 48)]) as job:
        tree = Tree(context, job)
        ready(job)
        report = tree.swapoff("a")
        holders = sorted({pid for pid, _ in tree.holders("a")})
        check(len(holders) == 1 and report["held_by"] == holders, f"{report}; {holders} have it open")
        finish(context, job)


@test("swapoff-given-up", SUITES)
def swapoff_given_up(context):
    """A command that was stopped for long is given up, and another has its turn: it took the other's end for its own, and said of an area in
    use that it was empty."""
    with start(context, holding(context, 64), areas=("a:1G,pri=5", "b:1G,pri=5")) as job:
        tree = Tree(context, job)
        ready(job)
        stopped = [pid for pid in job.alive() if pid != tree.pid]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        with context.begin([FARPAGE, "swapoff", tree.path("a"), tree.pid]) as first:
            until("the area is closed", lambda: tree.areas()["a"]["closed"])
            first.process.send_signal(signal.SIGSTOP)
            # What can't be done changes nothing.
            taken = lambda: "is changing the tiers" in tree.command("swapon", "/nonexistent/directory/file:64M", tree.pid).err
            until("it is given up", lambda: not taken())
            with context.begin([FARPAGE, "swapoff", tree.path("b"), tree.pid]) as second:
                until("the other area is closed", lambda: tree.areas()["b"]["closed"], job=second)
                first.process.send_signal(signal.SIGCONT)
                code, said = first.wait(), first.err.read_text()
                check(code == 1 and "took this command for dead" in said, f"exit code {code}: {said}")
                for pid in stopped:
                    os.kill(pid, signal.SIGCONT)
                code, said = second.wait(), second.err.read_text()
                check(code == 0 and "b" not in tree.areas(), f"exit code {code}: {said}")
        checked(context, tree.pid)
        finish(context, job)


def asks(pid):
    """Whether a command sleeps between two looks at its request: then it has been made, and signals are caught."""
    try:
        return "nanosleep" in Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return False


@test("swapoff-shared", SUITES, per_delivery=True)
def swapoff_shared(context):
    """Slots that forked processes share move once and stay shared."""
    with start(context, holding(context, 64, children=3)) as job:
        tree = Tree(context, job)
        ready(job)
        before = tree.settled("a")
        tree.swapoff("a")
        # What was resident makes room for what is read: a page of before the fork leaves each process into a slot of its own.
        # With every slot its own, 180 MiB more would lie there.
        check(tree.used("b") < before + (64 << 20), f"{before} bytes became {tree.used('b')}")
        report = checked(context, tree.pid)
        check(report["references"] > report["slots"] * 2, f"no longer shared: {report}")
        check(report["lost_references"] == 0, f"{report}")
        finish(context, job)


@test("priorities", SUITES, per_delivery=True)
def priorities(context):
    """Areas of equal priority are filled side by side, before one without a priority that is named earlier; one that joins with
    a higher one takes what leaves from then on."""
    (context.directory / "plain").mkdir()
    context.own(context.directory / "plain")
    with start(context, holding(context, 64), areas=("plain:1G", "a:1G,pri=3", "b:1G,pri=3")) as job:
        tree = Tree(context, job)
        ready(job)
        used = {name: area["used_bytes"] >> 20 for name, area in tree.areas().items()}
        check(used["a"] > 12 and abs(used["a"] - used["b"]) <= 6 and used["plain"] == 0, f"MiB {used}")
        check({name: area["priority"] for name, area in tree.areas().items()} == {"plain": -1, "a": 3, "b": 3}, f"{tree.areas()}")
        tree.swapoff("a")
        tree.swapon("a", "1G,pri=9")
        tree.swapoff("b")
        used = {name: area["used_bytes"] >> 20 for name, area in tree.areas().items()}
        check(used["a"] > 12 and used["plain"] == 0 and "b" not in used, f"MiB {used}")
        checked(context, tree.pid)
        finish(context, job)


@test("swapon-apart", SUITES, per_delivery=True)
def swapon_apart(context):
    """A file joins while a process of the tree has descriptors of its own: its pages were written over the pool."""
    for way in ("vfork", "unshare", "range"):
        go = context.directory / way
        with start(context, [program("apart"), way, 64, go], areas=("a:1G",)) as job:
            tree = Tree(context, job)
            ready(job)
            tree.swapon("b", "1G,pri=9")
            go.touch()
            finish(context, job)


@test("swapoff-orders", ("quick", "soak"), per_delivery=True)
def swapoff_orders(context):
    """The kernel's ways, for comparison: windows are as fixed, or as their hits make them."""
    with start(context, holding(context, 64)) as job:
        tree = Tree(context, job)
        ready(job)
        full, empty, mean = "a", "b", {}
        for order in ("vma", "cluster"):
            for window in ("8", "counted", "uncounted"):
                windows = tree.swapoff(full, "--order", order, "--window", window)["windows"]
                chosen = {2**i: count for i, count in enumerate(windows) if count}
                check(max(chosen) <= 8, f"{order} {window}: {chosen}")
                mean[order, window] = sum(size * count for size, count in chosen.items()) / sum(chosen.values())
                tree.swapon(full)
                full, empty = empty, full
            check(mean[order, "8"] == 8, f"{mean}")
            check(mean[order, "counted"] > 1.5 * mean[order, "uncounted"], f"{mean}")
        checked(context, tree.pid)
        finish(context, job)


@test("swapoff-stress", ("quick", "soak"), per_delivery=True, grows=True)
def swapoff_stress(context):
    """Areas leave and join in turn, with compressed pages beside them, while processes fork and touch everything."""
    # Where it is slow, an area once took more than a minute to empty.
    times = (120, 480) if context.soak else (9, 36, 144)
    check(any(leave_and_join(context, seconds) >= 2 for seconds in times), "no two areas left and joined")


def leave_and_join(context, seconds):
    """How many areas did while the program ran for so long."""
    seed = random.randrange(1 << 30)
    argv = [program("stress"), "--seconds", seconds, "--threads", 2, "--procs", 3, "--mb", 128, "--seed", seed]
    areas = ("a:1G", "b:1G") if seed % 2 else ("compressed:8M", "a:1G", "b:1G")
    slots = "cache" if seed % 3 == 0 else "percpu-cluster"
    with start(context, argv, areas=areas, timeout_s=seconds * 3 + 90, slots=slots) as job:
        tree, turns = Tree(context, job), 0
        until("pages in the first area", lambda: tree.used("a") > 8 << 20 or job.process.poll() is not None)
        while job.process.poll() is None:
            area = areas[turns % len(areas)].partition(":")[0]
            for command in ("swapoff", "swapon"):
                spec = tree.path(area) if command == "swapoff" else tree.spec(area)
                got = tree.command(command, spec, tree.pid)
                if got.code != 0:
                    # The end of the tree is no failure; that of the command is seen a little later.
                    ended = re.search("has ended|no running tree", got.err)
                    check(ended, f"seed {seed}: {command} {area}: exit code {got.code}: {got.err or got.out[-200:]}")
                    until("the end of the tree", lambda: job.process.poll() is not None)
                    break
            else:
                turns += 1
        code = job.wait()
        text = job.out.read_text()
        check(code == 0 and "ok stress" in text, f"seed {seed}: exit code {code}: {last_words(job)}")
        context.finish(job)
        return turns
