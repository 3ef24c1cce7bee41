"""Options of `farpage run` that change no byte of a program's output: each is seen to do what its help says."""

from cases import read_stats
from checks_test import ALL, run_words
from common import FARPAGE, check
from context import test
from semantics_test import program

# What io_uring_setup answers to a null pointer: its errno.
IO_URING = """import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(425, 1, None)
print(ctypes.get_errno())"""
COUNT_OURS = ["sh", "-c", "grep -c farpage-pool /proc/self/maps; true"]


def said(context, words, **options):
    got = context.plain(words, **options)
    check(got.code == 0, f"{words}: exit code {got.code}: {got.err[-300:]}")
    return got


@test("options-ram", ALL)
def options_ram(context):
    """A percentage is one of the RAM there is; what the command line says wins over the environment."""
    budgets = {}
    for percent in (10, 40):
        path = context.directory / f"{percent}.json"
        said(context, run_words("-q", "--ram", f"{percent}%", "--stats-json", path) + ["true"])
        budgets[percent] = read_stats(path)["ram_budget_bytes"]
    check(abs(budgets[40] - 4 * budgets[10]) <= 4 * 4096, f"40 % and 10 % of the RAM: {budgets}")
    for words, mib in (([], 48), (["--ram", "64M"], 64)):
        path = context.directory / f"{mib}.json"
        said(context, run_words("-q", "--stats-json", path, *words) + ["true"], env={"FARPAGE_RAM": "48M"})
        budget = read_stats(path)["ram_budget_bytes"]
        check(budget == mib << 20, f"FARPAGE_RAM=48M and {words}: a budget of {budget}")


@test("options-quiet", ALL)
def options_quiet(context):
    """FARPAGE_QUIET=1 is -q; FARPAGE_DISABLE=1 leaves nothing of farpage in the command."""
    got = said(context, run_words("--ram", "64M") + COUNT_OURS, env={"FARPAGE_QUIET": "1"})
    check(int(got.out) > 0 and not got.err, f"FARPAGE_QUIET=1: {got.out!r} {got.err!r}")
    got = said(context, run_words("--ram", "64M") + COUNT_OURS, env={"FARPAGE_DISABLE": "1"})
    check(got.out.strip() == "0" and not got.err, f"FARPAGE_DISABLE=1: {got.out!r} {got.err!r}")


@test("options-follow", ALL)
def options_follow(context):
    """--no-follow: the command is managed, what it starts is not."""
    both = ["sh", "-c", "grep -c farpage-pool /proc/$$/maps; grep -c farpage-pool /proc/self/maps; true"]
    for words, follows in (([], True), (["--no-follow"], False)):
        got = said(context, run_words("-q", "--ram", "64M", *words) + both)
        command, child = (int(count) > 0 for count in got.out.split())
        check(command and child == follows, f"{words}: farpage in the command: {command}, in its child: {child}")


@test("options-limits", ALL)
def options_limits(context):
    """Limits of the shell that farpage's tables do not fit in: a file size limit once ended it and the command by SIGXFSZ, and under
    one of addresses a child ran without its budget and said nothing."""
    words = " ".join(map(str, run_words("--ram", "64M")))
    for limit, option in (("ulimit -f 4096", "-f"), ("ulimit -v 3000000", "-v")):
        got = context.plain(["sh", "-c", f"{limit}; exec {words} echo started"])
        check(got.code == 125 and not got.out and f"ulimit {option}" in got.err, f"{limit}: {got.code} {got.out} {got.err[-300:]}")
    got = said(context, run_words("--ram", "64M") + ["sh", "-c", "ulimit -v 3000000; expr 3 + 4; true"])
    check(got.out == "7\n" and "without a memory budget" in got.err and "ulimit -v" in got.err, f"a child: {got.out} {got.err[-400:]}")


@test("options-io-uring", ALL)
def options_io_uring(context):
    """io_uring_setup answers ENOSYS unless it is allowed; then it answers what this machine does."""
    argv = ["python3", "-c", IO_URING]
    here = said(context, argv).out
    refused = said(context, run_words("-q", "--ram", "64M", "--eager") + argv).out
    allowed = said(context, run_words("-q", "--ram", "64M", "--eager", "--allow-io-uring") + argv).out
    check(refused.strip() == "38", f"io_uring_setup answered errno {refused.strip()}, not ENOSYS")
    check(allowed == here, f"allowed, io_uring_setup answered errno {allowed.strip()}, without farpage {here.strip()}")


@test("options-stats", ALL)
def options_stats(context):
    """--stats: a line each second on stderr, of the same columns as `farpage stat`."""
    got = said(context, [FARPAGE, "run", "-q", "--stats", "--ram", "32M", "--", program("fill"), 64, 1, "mmap", 3])
    rows = [line.split() for line in got.err_lines() if line.split()[0].isdigit()]
    check(len(rows) >= 3, f"{len(rows)} lines in more than 3 seconds: {got.err[-300:]}")
    check(all(len(row) == len(rows[0]) and row[0] == "32" for row in rows), f"not of a budget of 32 MiB: {rows[:3]}")
    check(got.out.strip() == "ok fill 64", f"the program's own output: {got.out!r}")
