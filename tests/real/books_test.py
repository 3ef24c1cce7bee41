"""What farpage's own books cost in RAM (target P11): the statistics of a run tell the most that its pool took."""

import json
import os

from common import FARPAGE, check
from context import last_words, test, until

# 64 GiB of addresses, of which so many MiB are touched.
TOUCH = """import mmap, sys
MAP_NORESERVE = 0x4000
memory = mmap.mmap(-1, 64 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
for page in range(int(sys.argv[1]) * 256):
    memory[page * 4096] = 1 + page % 251
print("touched", sys.argv[1])
"""
STATE_BYTES = SLOT_BYTES = 8
# What lies in whole pages: cluster words, and the ends of arrays.
SLACK = 128 << 10


@test("books-per-page", ("quick", "soak", "user"))
def books_per_page(context):
    """A page that is managed costs 8 bytes, one that is swapped out 8 more for its slot; addresses never touched cost nothing."""
    in_ram = {mib: books_of(context, mib, 512, "--eager") for mib in (64, 320)}
    swapped = {mib: books_of(context, mib, 32) for mib in (64, 320)}
    for books, each in ((in_ram, STATE_BYTES), (swapped, STATE_BYTES + SLOT_BYTES)):
        most = (320 - 64) * 256 * each
        grown = books[320] - books[64]
        check(most // 2 < grown <= most + SLACK, f"256 MiB more take {grown} bytes of books, of {most}; {books}")
    check(swapped[64] < 2 << 20, f"64 MiB in 64 GiB of addresses take {swapped[64]} bytes of books")


def books_of(context, mib, budget_mib, *words):
    """The books of so many MiB, which all stay in RAM or leave it but for what the budget holds."""
    extra = ["--swap", f"{context.directory}:1G", *words]
    got = context.budget_run(budget_mib, ["python3", "-c", TOUCH, mib], timeout_s=120, extra=extra)
    check(got.code == 0 and f"touched {mib}" in got.out, f"{mib} MiB: exit code {got.code}: {got.err[-300:]}")
    least, most = (0, 0) if mib < budget_mib else ((mib - budget_mib - 8) * 256, mib * 256)
    check(least <= got.stats["pswpout"] <= most, f"{mib} MiB in {budget_mib}: {got.stats['pswpout']} pages were written")
    return got.stats["peak_metadata_bytes"]


# Names itself with half of a character, as the kernel names a program whose name it cuts, and holds 40 MiB.
NAMED = """import ctypes, sys
ctypes.CDLL(None).prctl(15, b"\\xd0")
held = bytearray(b"farpage!") * (5 << 20)
print("ready", flush=True)
sys.stdin.read()
"""


@test("books-of-any-name", ("quick", "user"))
def books_of_any_name(context):
    """What a process has beside managed pages is counted whatever its name is. One that is no UTF-8 made all of it unseen."""
    def counted():
        got = context.plain([FARPAGE, "stat", job.process.pid, "--json"])
        used = json.loads(got.out)["processes"] if got.code == 0 else []
        return used and used[0]["unmanaged_bytes"] > 35 << 20

    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "w") as stays:
        with context.start(256, ["python3", "-c", NAMED], stdin=f"/proc/self/fd/{reading}") as job:
            until("it holds memory", lambda: "ready" in job.out.read_text(), job=job)
            until("40 MiB are counted", counted, seconds=20, job=job)
            stays.close()
            check(job.wait() == 0, last_words(job))
            context.finish(job)
