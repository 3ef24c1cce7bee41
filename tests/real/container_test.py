"""A container that the budget fills: what counts against its limit and not against the budget."""

import json
import time

from cases import farpage_run, read_stats
from common import FARPAGE, WORK, check
from context import Outcome, test
from proc import Job, Limits

LIMIT_MIB = 64


def most_given(context, job):
    """The most that the container has while the program runs: by the end some may have been had back."""
    most, end = 0, time.monotonic() + job.limits.timeout_s
    while job.process.poll() is None and time.monotonic() < end:
        seen = context.plain([FARPAGE, "stat", job.process.pid, "--json"])
        if seen.code == 0:
            most = max(most, json.loads(seen.out)["given_bytes"])
        time.sleep(0.1)
    return most


@test("fills-its-container")
def fills_its_container(context):
    """All of the limit is given as the budget, and a mapped file is used in turn with more memory than that. Programs whose text found no
    place beside their budget stood still, each page of it read again and again."""
    argv = ["python3", WORK / "full_container.py", 120, 24, 8]
    expected = context.plain(argv).out
    context.result.budget_mib = LIMIT_MIB
    stats = context.directory / "stats.json"
    words = farpage_run(LIMIT_MIB, "auto", stats)
    with Job([*words, *argv], Limits(120, LIMIT_MIB), context.directory) as job:
        most = most_given(context, job)
        got = Outcome(job.wait(), job, stats)
        check(not job.no_cgroup and job.oom_kills() == 0 and got.code == 0, f"exit code {got.code}: {got.err[-300:]}")
        context.finish(job)
    check(got.out == expected, f"{got.out!r}, in RAM {expected!r}")
    given = max(most, read_stats(stats)["given_bytes"]) / (1 << 20)
    check(4.5 < given <= LIMIT_MIB / 2, f"{given} MiB of the budget for the container: 4 at first, and what the file needs")
