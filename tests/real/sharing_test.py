"""What fork shares stays shared (decision 0043)."""

from common import WORK, check
from context import test, until
from semantics_test import failures
from stress_test import checked


@test("shared-by-fork", ("quick", "soak", "user"), per_delivery=True)
def shared_by_fork(context):
    """80 MiB in 64, read at random by a parent and its child. Each shared window was paid for by both of them when they had moved it out, so that this freed
    nothing, and they moved out nearly all: 27,600 major faults for 19,000."""
    argv = ["python3", WORK / "shared_reads.py", 80, 20000, 1]
    got = context.budget_run(64, argv, timeout_s=120, extra=["--swap", f"{context.directory}:1G"])
    check(got.code == 0 and got.out == "filled\n0\n", failures(got))
    check(got.stats["pgmajfault"] < 24_500, f"{got.stats['pgmajfault']} major faults of 40,000 touches")


@test("shared-by-many", ("quick", "soak"), per_delivery=True)
def shared_by_many(context):
    """The same by a parent and three children, with what the tree is charged and owes looked at while it runs."""
    argv = ["python3", WORK / "shared_reads.py", 80, 12000, 3]
    with context.start(64, argv, timeout_s=180, extra=["--swap", f"{context.directory}:1G"]) as job:
        until("the memory", lambda: "filled" in job.out.read_text(), job=job)
        checked(context, job.process.pid)
        got = context.outcome(job, argv[0])
    check(got.code == 0 and got.out == "filled\n0\n", failures(got))
