"""`farpage bench`: it measures both sides, and leaves the machine as it was however it ends."""

import functools
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

from cases import alone
from common import FARPAGE, Skip, check
from context import test, until
from huge_test import whole_pages

TINY = ["--ram", "32M", "--size", "3"]


class Machine:
    """What a benchmark in `directory` can leave on the machine. What lay about before the test began is not its doing."""

    def __init__(self, directory):
        self.directory = directory
        self.before = self._look()

    def _look(self):
        found = {line.split()[0] for line in Path("/proc/swaps").read_text().splitlines() if str(self.directory) in line}
        found.update(str(path) for path in self.directory.glob("farpage-bench-*"))
        found.update(str(path) for path in Path("/sys/block").glob("zram*"))
        for path in Path("/sys/fs/cgroup").rglob("farpage-bench-*"):
            if not Path(f"/proc/{path.name.split('-')[2]}").exists():
                found.add(str(path))
        return found

    def left(self):
        """Swap and files in the directory, zram devices, cgroups of a process that has ended."""
        return sorted(self._look() - self.before)

    def zrams(self):
        return [path for path in self.left() if path.startswith("/sys/block/")]


def swaps_alone(run):
    """The kernel has one swap for all: what is on for one test is used, emptied and found by those beside it."""

    @functools.wraps(run)
    def by_itself(context):
        with alone("swap"):
            run(context)

    return by_itself


def start(context, *words):
    """Where what started the tests ignores SIGINT (a script's background job does), a benchmark would too."""
    return subprocess.Popen(
        ["env", "--default-signal=INT", FARPAGE, "bench", *words, "--dir", context.directory],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kernel_sides():
    """The kernel's sides that can be had here."""
    if os.geteuid() != 0:
        raise Skip("the kernel's swap needs root")
    return ["kernel-file"] + (["kernel-zram"] if Path("/sys/class/zram-control").is_dir() else [])


@test("bench-smoke", ("quick", "soak"))
@swaps_alone
def bench_smoke(context):
    """A tiny run gives ratios; it, and runs that are ended in the middle of the kernel's side, leave nothing behind."""
    sides, machine = kernel_sides(), Machine(context.directory)
    report = context.directory / "bench.json"
    words = ["fill", "random", *TINY, "--pairs", "1", "--against", ",".join(sides), "--dir", context.directory]
    got = context.plain([FARPAGE, "bench", *words, "--json", report], timeout_s=120)
    check(got.code == 0, f"exit code {got.code}: {got.err[-300:]} {got.out[-300:]}")
    comparisons = json.loads(report.read_text())["comparisons"]
    check(len(comparisons) == 2 * len(sides), f"{len(comparisons)} comparisons of 2 programs on {sides}")
    for one in comparisons:
        name = f"{one['workload']}, {one['backing']}"
        ran = {run["side"]: run for run in one["runs"]}
        check(not ran["farpage"]["failure"], f"{name}: farpage: {ran['farpage']['failure']}")
        stats = ran["farpage"]["facts"]["farpage"]
        check(stats["pswpout"] + stats["zswpout"] > 0, f"{name}: farpage did not swap")
        check(ran["kernel"]["facts"]["vmstat"]["pswpout"] > 0, f"{name}: the kernel did not swap: {ran['kernel']}")
        for side, run in ran.items():
            samples = run["facts"]["samples"]
            if one["workload"] == "random" and not run["failure"]:
                check(len(samples["seconds"]) > 10, f"{name}, {side}: {len(samples['seconds'])} samples")
                check(samples["pages_out"][-1] > 0 and samples["pgmajfault"][-1] > 0, f"{name}, {side}: {samples}")
        # In so little RAM the kernel kills now and then, although its swap is not full.
        killed = "killed by the kernel" in (ran["kernel"]["failure"] or "")
        ratios = [row["ratio"] and row["ratio"]["count"] for row in one["rows"]]
        check(ratios and set(ratios) == ({None} if killed else {1}), f"{name}: ratios {ratios}, {one['failures']}")
    check(not machine.left(), f"left after success: {machine.left()}")
    for side in sides:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            ended_in_the_middle(context, side, number, machine)


def empties(directory):
    """Whether the kernel's swapoff is at work on a file in `directory`."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if words.startswith(b"swapoff\0") and os.fsencode(directory) in words:
            return True
    return False


def ended_in_the_middle(context, side, number, machine, name="seq"):
    """Ends a benchmark by a signal while the kernel swaps to what it made, or empties that."""
    running = start(context, name, *TINY, "--pairs", "1000", "--against", side)
    try:
        if name == "swapoff":
            until("a swapoff at work", lambda: empties(context.directory))
        elif side == "kernel-file":
            until("a swap file in use", lambda: str(context.directory) in Path("/proc/swaps").read_text())
        else:
            until("a zram device", machine.zrams)
        running.send_signal(number)
        code = running.wait(60)
        if number == signal.SIGKILL:
            # The keeper learns of the death by the end of its input; nobody waits for it.
            until("undone after SIGKILL", lambda: not machine.left())
        else:
            check(code == 128 + number, f"{side}: exit code {code} after signal {number}")
        check(not machine.left(), f"{side}: left after signal {number}: {machine.left()}")
    finally:
        running.kill()
        running.wait()


@test("bench-report", ("quick", "soak"))
@swaps_alone
def bench_report(context):
    """A document says what was measured; it can be written again from what is stored, and of several runs side by side."""
    sides, stored = kernel_sides(), [context.directory / name for name in ("a.json", "b.json")]
    first, again = context.directory / "first.md", context.directory / "again.md"
    # Four processes in less RAM are killed now and then where the machine is busy.
    common = ["--ram", "64M", "--size", "3", "--pairs", "1", "--dir", context.directory, "--build", "of a test"]
    for names, against, file in (
        (["startup", "faults"], "none", stored[0]),
        (["usemem-random", "usemem-threads", "usemem-read"], sides[0], stored[1]),
    ):
        words = [*names, *common, "--against", against, "--json", file, "--markdown", first]
        got = context.plain([FARPAGE, "bench", *words], timeout_s=180)
        check(got.code == 0, f"exit code {got.code}: {got.err[-300:]} {got.out[-1500:]}")
        comparisons = json.loads(file.read_text())["comparisons"]
        check({one["workload"] for one in comparisons} == set(names), f"{[one['title'] for one in comparisons]}")
        for figures in (run["figures"] for one in comparisons for run in one["runs"] if one["workload"] == "faults"):
            check(figures["fault"]["count"] > 100 and figures["engine_bytes_per_page"] > 8, f"{figures}")
    told = first.read_text()
    for part in ("| of a test |", "## What is lost", "### usemem-read, swap file"):
        check(part in told, f"{part!r} is not in {told[:3000]}")
    for files, part in ((stored[1:], told), (stored[:1] * 2, "own &lt;= 50: met in 2 of 2"), (stored, "### faults, swap file")):
        got = context.plain([FARPAGE, "bench", "--report", *files, "--markdown", again])
        check(got.code == 0 and part in again.read_text(), f"exit code {got.code}: {got.err[-300:]} {again.read_text()[:3000]}")
    refused = context.plain([FARPAGE, "bench", "--report", first, "--markdown", again])
    check(refused.code == 125 and str(first) in refused.err, f"exit code {refused.code}: {refused.err[-300:]}")


@test("bench-programs", ("soak",))
@swaps_alone
def bench_programs(context):
    """Programs of other people, one that fits, and data in a mapped file; what they made is gone afterwards."""
    for tool in ("gcc", "redis-server"):
        if not shutil.which(tool):
            raise Skip(f"{tool} is not installed")
    sides, machine = kernel_sides(), Machine(context.directory)
    report = context.directory / "bench.json"
    words = ["--ram", "64M", "--size", "2", "--pairs", "1", "--dir", context.directory, "--json", report]
    for names, against in ((["fit", "build", "redis"], sides[0]), (["seq"], "memmap")):
        got = context.plain([FARPAGE, "bench", *names, *words, "--against", against], timeout_s=300)
        check(got.code == 0, f"{names}: exit code {got.code}: {got.err[-300:]} {got.out[-600:]}")
        comparisons = json.loads(report.read_text())["comparisons"]
        check({one["workload"] for one in comparisons} == set(names), f"{names}: {[one['title'] for one in comparisons]}")
        for run in (run for one in comparisons for run in one["runs"]):
            check(not run["failure"] and run["figures"]["checked"] > 0, f"{names}, {run['side']}: {run['failure']}")
    check("memmap" in {run["side"] for run in comparisons[0]["runs"]}, f"no side with a mapped file: {comparisons[0]['sides']}")
    check(not machine.left(), f"left: {machine.left()}")


def spared_by_the_kernel(context, words):
    """The comparisons of a benchmark: of another, where the kernel killed its own side in so little RAM."""
    report = context.directory / "bench.json"
    for _ in range(3):
        got = context.plain([FARPAGE, "bench", *words, "--dir", context.directory, "--json", report])
        check(got.code == 0, f"exit code {got.code}: {got.err[-300:]} {got.out[-300:]}")
        comparisons = json.loads(report.read_text())["comparisons"]
        runs = [run for one in comparisons for run in one["runs"] if run["side"].startswith("kernel")]
        if not any("killed by the kernel" in (run["failure"] or "") for run in runs):
            break
    return comparisons


@test("bench-swapoff", ("quick", "soak"))
@swaps_alone
def bench_swapoff(context):
    """Both sides empty an area, in every order; a benchmark that is ended while the kernel does leaves nothing behind."""
    sides, machine = kernel_sides(), Machine(context.directory)
    words = ["swapoff", *TINY, "--pairs", "1", "--against", ",".join(sides)]
    comparisons = {one["backing"]: one for one in spared_by_the_kernel(context, words)}
    check(list(comparisons) == ["file", "compressed"][: len(sides)], f"{list(comparisons)} on {sides}")
    for backing, one in comparisons.items():
        for run in one["runs"]:
            check(not run["failure"], f"{backing}, {run['side']}: {run['failure']}")
            figures = run["figures"]
            check(figures["emptied_pages"] > 3000 and figures["checked"] == 4608, f"{backing}, {run['side']}: {figures}")
    ways = {run["side"]: run["figures"].get("windows") for run in comparisons["file"]["runs"]}
    check(len(ways) == 8, f"{list(ways)}")
    large, small = ways["farpage"], ways["farpage vma uncounted"]
    check(large["pages_8_up"] > 10 and small["pages_1"] + small["pages_2"] > 1000, f"windows: {ways}")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        ended_in_the_middle(context, "kernel-file", number, machine, "swapoff")


@test("bench-huge", ("quick", "soak"))
@swaps_alone
def bench_huge(context):
    """Huge pages leave and come back on every kind of swap; where they are switched off there are none."""
    sides, machine = kernel_sides(), Machine(context.directory)
    words = ["huge", "--ram", "96M", "--size", "2", "--pairs", "1", "--against", ",".join(sides)]
    comparisons = spared_by_the_kernel(context, words)
    backings = [one["backing"] for one in comparisons]
    check(backings == ["file", "compressed", "memory"][: 2 * len(sides) - 1], f"{backings} on {sides}")
    for one in comparisons:
        for run in one["runs"]:
            name, figures = f"{one['backing']}, {run['side']}", run["figures"]
            check(not run["failure"], f"{name}: {run['failure']}")
            check(figures["checked"] == 48 << 8 and figures["in_bytes"] > 16 << 20, f"{name}: {figures}")
            check(figures["cycle_mb_per_s"] > 0, f"{name}: {figures}")
            if run["side"] == "farpage huge never":
                check(figures["huge_before_kb"] == figures["thp_swpout"] == 0, f"{name}: {figures}")
            elif run["side"] == "farpage huge always" and whole_pages(context):
                check(figures["thp_swpout"] > 0 and figures["thp_swpin"] > 0, f"{name}: {figures}")
    check(not machine.left(), f"left: {machine.left()}")


@test("bench-baseline", ("quick", "soak"))
def bench_baseline(context):
    """What a system is worth: farpage with it beside farpage without; the report is one page."""
    page, report = context.directory / "bench.html", context.directory / "bench.json"
    words = ["--baseline", "V,C,T", *TINY, "--pairs", "1", "--dir", context.directory]
    got = context.plain([FARPAGE, "bench", *words, "--json", report, "--html", page], timeout_s=200)
    check(got.code == 0, f"exit code {got.code}: {got.err[-300:]} {got.out[-300:]}")
    comparisons = json.loads(report.read_text())["comparisons"]
    check([one["gain_of"] for one in comparisons] == ["V", "C", "T"], f"{comparisons}")
    for one in comparisons:
        sides = {run["side"]: run for run in one["runs"]}
        check(len(sides) == 2 and not any(run["failure"] for run in sides.values()), f"{one}")
        check(any(row["ratio"] for row in one["rows"]), f"no ratio: {one['rows']}")
    locks = comparisons[1]["rows"][0]
    check(locks["met"] and locks["theirs"]["median"] > 10 * locks["ours"]["median"], f"{locks}")
    text = page.read_text()
    check("mixed" in text and "swap-cache" in text and "<svg" in text and "http://" not in text.replace("http://www.w3.org", ""), "not one page by itself")


@test("bench-orphans", ("quick", "soak"))
@swaps_alone
def bench_orphans(context):
    """What a benchmark left that was killed with its keeper (cgroup, swap, file) is taken away by the next one.

    An environment that was shut down in the middle of a benchmark left an empty cgroup, and every later test saw it."""
    kernel_sides()
    machine = Machine(context.directory)
    running = start(context, "seq", *TINY, "--pairs", "1000", "--against", "kernel-file")
    try:
        until("swapped pages", lambda: swapped_kib(context.directory))
        for pid in [*keepers_of(running.pid), running.pid]:
            os.kill(pid, signal.SIGKILL)
    finally:
        running.kill()
        running.wait()
    until("what the dead keeper left", machine.left)
    got = context.plain([FARPAGE, "bench", "fill", *TINY, "--pairs", "1", "--dir", context.directory], timeout_s=120)
    check(got.code == 0, f"exit code {got.code}: {got.err[-300:]} {got.out[-300:]}")
    check(not machine.left(), f"left: {machine.left()}; {got.err[-300:]}")


def swapped_kib(directory):
    """What the kernel has put into swap files in `directory`."""
    areas = [line.split() for line in Path("/proc/swaps").read_text().splitlines() if str(directory) in line]
    return sum(int(area[3]) for area in areas)


def keepers_of(parent):
    """The processes that undo what a benchmark made."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if b"bench-keep" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@test("bench-alone", ("user",))
def bench_alone(context):
    """An ordinary user gets farpage's figures, and is told what is missing."""
    got = context.plain([FARPAGE, "bench", "fill", *TINY, "--pairs", "1", "--dir", context.directory], timeout_s=120)
    check(got.code == 0, f"exit code {got.code}: {got.err[-300:]} {got.out[-300:]}")
    check("not root" in got.out and "fill, MB/s" in got.out, f"told: {got.out[-600:]}")
    refused = context.plain([FARPAGE, "bench", "fill", *TINY, "--against", "kernel-file", "--dir", context.directory])
    check(refused.code == 125 and "root" in refused.err, f"exit code {refused.code}: {refused.err[-300:]}")
