"""Pages that no tier takes (decision 0038): they do not compress, and no file has room for them."""

import os
import sys

from common import WORK, check
from context import last_words, test, until
from semantics_test import failures
from stress_test import checked


@test("swap-full-harder", ("quick", "soak"), per_delivery=True)
def swap_full_harder(context):
    """What compresses has taken most slots of the file, and then comes what does not compress: memory was once refused 48 MiB over the
    budget, at 1 MiB/s."""
    swap = context.directory / "small"
    words = ["--swap", "compressed:64M", "--swap", f"{swap}:128M"]
    got = context.budget_run(64, [sys.executable, WORK / "mixed.py", "ninth:100", "random:900"], timeout_s=120, extra=words)
    check(got.code == 0 and got.out.endswith("right\n"), failures(got))
    reached = int(got.out.split()[1])
    check("refused" in got.out and reached > 150, f"{got.out!r}, with 128 MiB of swap file and 64 MiB of RAM")
    check("all swap is full" not in got.err, f"the budget was overrun: {got.err[-200:]}")


@test("poor-first", ("quick", "soak"), per_delivery=True)
def poor_first(context):
    """Where swap is compressed RAM alone, what does not compress stays in RAM and what does leaves: pages that no tier took once filled
    all frames, and 903 MiB were used of a budget of 512."""
    words = [sys.executable, WORK / "mixed.py", "random:150", "ninth:500"]
    got = context.budget_run(384, words, timeout_s=120, extra=["--swap", "compressed"])
    check(got.code == 0 and got.out.endswith("right\n"), failures(got))
    check("reached 650 MiB, all" in got.out, f"what fits was refused: {got.out!r}")
    check(got.stats["zswpout"] > 50_000 and got.stats["limit_overrun"] == 0, f"{got.stats['zswpout']}, {got.stats['limit_overrun']}")


@test("poor-books", ("quick", "soak"), per_delivery=True)
def poor_books(context):
    """Pages that no tier takes are unmapped, moved, dropped, filled with something else and forked: they stay right, and so do the books."""
    for words in ([], ["--huge", "always"]):
        reading, writing = os.pipe()
        with os.fdopen(reading), os.fdopen(writing, "w") as stays:
            # Its entry is that of one that has ended so, and been given up: what that counted was once counted on.
            one, other = (f"{sys.executable} {WORK / name}" for name in ("mixed.py random:48 ninth:240", "refused.py 32"))
            extra = ["--swap", "compressed", *words]
            with context.start(96, ["sh", "-c", f"{one} && sleep 1 && {other} && :"], stdin=f"/proc/self/fd/{reading}", extra=extra) as job:
                until("it has done all", lambda: "ready" in job.out.read_text(), seconds=200, job=job)
                checked(context, job.process.pid)
                stays.close()
                check(job.wait() == 0 and "right" in job.out.read_text(), last_words(job))
                context.finish(job)
            refused = context.stats()["swpout_refused"]
            check(refused > 64 * 256, f"{refused} pages went back")
