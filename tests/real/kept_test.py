"""Slots that stay with pages that came back (decision 0027): what leaves unchanged is not written again, and no slot is missing
for that where they are scarce, or their area leaves."""

import json
import time

from common import FARPAGE, check
from context import last_words, test, until
from semantics_test import failures, program
from stress_test import checked
from swapoff_test import Tree, finish, start

PAGES_PER_MIB = 256


def filled(mib, *words):
    """The program that writes so much memory once and then reads it twice, from front to back and scattered."""
    return [program("fill"), mib, *words]


@test("kept-unchanged", ("quick", "soak", "user"), per_delivery=True)
def kept_unchanged(context):
    """Memory that is read and not changed is written to the file once. It was written each time that it left."""
    extra = ["--swap", f"{context.directory}:1G"]
    got = context.budget_run(32, filled(128, 1, "mmap"), timeout_s=120, extra=extra)
    check(got.code == 0 and "ok fill" in got.out, failures(got))
    pages, written, spared = 128 * PAGES_PER_MIB, got.stats["pswpout"], got.stats["swpout_unchanged"]
    check(spared > pages // 2, f"of {pages} pages, read twice, {spared} left unwritten")
    check(written < pages * 5 // 4, f"{written} pages were written, of {pages} that changed once")


@test("kept-of-children", per_delivery=True)
def kept_of_children(context):
    """What processes share since a fork they read from one slot, wherever it lies, and leave it there. Each wrote a copy of its own, which
    doubled the compressed tier."""
    for budget, words, way in ((24, ["--swap", f"{context.directory}:1G"], "pswpout"), (48, ["--swap", "compressed"], "zswpout")):
        got = context.budget_run(budget, [program("readers"), 64, 1, 2], timeout_s=120, extra=words)
        check(got.code == 0 and "ok readers" in got.out, failures(got))
        stored, spared = got.stats[way], got.stats["swpout_unchanged"]
        check(spared > 64 * PAGES_PER_MIB // 4, f"{budget} MiB: {stored} pages stored, {spared} left unchanged")


@test("kept-doubles", per_delivery=True)
def kept_doubles(context):
    """What kept its place in the compressed tier because children had it too lies there twice when they have ended: that is given up."""
    with context.start(48, [program("readers"), 64, 1, 1, 10], extra=["--swap", "compressed"]) as job:
        until("the child's end", lambda: "children ended" in job.out.read_text())
        seen = []

        def once():
            report = checked(context, job.process.pid)
            stat = json.loads(context.plain([FARPAGE, "stat", job.process.pid, "--json"]).out)
            resident = (stat["resident_bytes"] + stat["frames_bytes"]) // 4096
            seen[:] = [report["slots"], resident, stat["swpout_unchanged"]]
            return report["slots"] + resident <= 64 * PAGES_PER_MIB + 64

        until("each page in one place", once, seconds=8, job=job)
        check(seen[2] > 0, f"slots, resident pages, pages left unchanged: {seen}")
        check(job.wait() == 0, last_words(job))
        context.finish(job)


@test("kept-scarce", per_delivery=True)
def kept_scarce(context):
    """Swap that is more than half full: what one process's pages keep is there for the other's, and all that fits fits."""
    extra = ["--swap", f"{context.directory}:112M"]
    one, other = (" ".join(map(str, filled(*words))) for words in ((48, 1, "mmap", 6), (72, 2, "mmap")))
    # 120 MiB of data, of which 16 or more stay in RAM.
    got = context.budget_run(32, ["sh", "-c", f"{one} & sleep 2; {other}; wait"], timeout_s=240, extra=extra)
    check(got.code == 0 and got.out.count("ok fill") == 2, failures(got))


@test("kept-swapoff", per_delivery=True)
def kept_swapoff(context):
    """An area leaves while pages in RAM keep slots of it: their content stays, and nothing of the area is held."""
    with start(context, filled(64, 1, "mmap", context.directory / "go")) as job:
        tree = Tree(context, job)
        until("pages in the first area", lambda: tree.used("a") > 40 << 20)
        # Until it has been read and is held only.
        tree.settled("a")
        time.sleep(0.5)
        tree.swapoff("a")
        check("a" not in tree.areas(), "the area is still there")
        until("nobody has it open", lambda: not tree.holders("a"))
        checked(context, tree.pid)
        finish(context, job)


@test("small-alternate-stack", ("quick", "soak", "user"))
def small_alternate_stack(context):
    """A Rust program: its threads have alternate stacks of 8 KiB, of which the kernel's frame takes up to half. What a fault did on
    the rest, making room by the way, once wrote below it (in 9 of 12 runs)."""
    words = [FARPAGE, "bench-work", "random", "--bytes", "128M", "--ram", "32M", "--seconds", 2]
    for extra in (["--swap", f"{context.directory}:1G"], []):
        got = context.budget_run(32, words, timeout_s=60, extra=extra)
        check(got.code == 0 and '"ok":true' in got.out, failures(got))
