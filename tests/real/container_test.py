"""A container that the budget fills: what counts against its limit and not against the budget."""

from cases import farpage_run, read_stats
from common import WORK, check
from context import Outcome, test
from proc import Job, Limits

LIMIT_MIB = 64


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
        got = Outcome(job.wait(), job, stats)
        check(not job.no_cgroup and job.oom_kills() == 0 and got.code == 0, f"exit code {got.code}: {got.err[-300:]}")
        context.finish(job)
    check(got.out == expected, f"{got.out!r}, in RAM {expected!r}")
    given = read_stats(stats)["given_bytes"] / (1 << 20)
    # More than that while the file is waited for, which on a slow machine may not be so at the end any more. That it ended in time says that it was enough.
    check(4 <= given <= LIMIT_MIB / 2, f"{given} MiB of the budget for the container: 4 at first, and what the file needs")
