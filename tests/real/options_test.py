"""Options of `farpage run` that change no byte of a program's output: each is seen to do what its help says."""

import re
import sys

from cases import read_stats, swapped_out
from checks_test import ALL, refused, run_words, told_with_a_fix
from common import FARPAGE, check
from context import Skip, test, until
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
    # In a tree it is about what is started with it, however that is started; limits.md had promised so.
    child = "FARPAGE_DISABLE=%s sh -c 'grep -c farpage-pool /proc/self/maps; true'"
    for value, follows in (("1", False), ("off", True), ("", True)):
        got = said(context, run_words("-q", "--ram", "64M", "--eager") + ["sh", "-c", child % value])
        check((got.out != "0\n") == follows, f"a child with FARPAGE_DISABLE={value}: {got.out}")


@test("options-environment", ALL)
def options_environment(context):
    """What is wrong with a variable is not said of an option that nobody typed, and an empty one is none (compose's ${RAM:-})."""
    got = context.plain(run_words() + ["true"], env={"FARPAGE_RAM": "2GB"})
    check(got.code == 125 and "FARPAGE_RAM=2GB" in got.err and "--ram" not in got.err, f"FARPAGE_RAM=2GB: {got.err}")
    got = context.plain(run_words() + ["true", "--huge"], env={"FARPAGE_HUGE": "x"})
    check(got.code == 125 and "FARPAGE_HUGE=x" in got.err and "madvise" in got.err, f"FARPAGE_HUGE=x: {got.err}")
    said(context, run_words("-q") + ["true"], env={"FARPAGE_RAM": "", "FARPAGE_HUGE": "", "FARPAGE_SWAP": ""})


@test("nested", ALL)
def nested(context):
    """A tree within a tree ended by "Bad file descriptor; check that it runs without farpage"."""
    for words in ([], ["--eager"], ["--eager", "--no-follow"]):
        inner = [FARPAGE, "run", "--ram", "32M", "--", "echo", "started"]
        got = context.plain(run_words("-q", "--ram", "64M", *words) + inner)
        check(got.code == 125 and not got.out, f"{words}: {got.code} {got.out} {got.err[-300:]}")
        told_with_a_fix(got, f"{words}: nested")
        check("nest" in got.err, got.err)


@test("near-the-limit", ALL)
def near_the_limit(context):
    """A budget as large as the limit that it is to stay below was accepted in silence, and the program killed."""
    got = said(context, run_words("--ram", "100%") + ["true"])
    check("--ram" in got.err and "give at most" in got.err, f"100 %: {got.err}")
    got = said(context, run_words("--ram", "80%") + ["true"])
    check("give at most" not in got.err, f"80 %: {got.err}")
    got = context.plain([FARPAGE, "doctor", "--ram", "100%"])
    check(re.search(r"^WARN +budget ", got.out, re.M), f"doctor: {got.out}")


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


@test("write-or-execute", ALL)
def write_or_execute(context):
    """Where no memory is executable that could be written (systemd's MemoryDenyWriteExecute) every process ran without its budget."""
    deny = "import ctypes, os, sys; r = ctypes.CDLL(None).prctl(65, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:]) if r == 0 else sys.exit(77)"
    stats = context.directory / "mdwe.json"
    words = map(str, run_words("--ram", "24M", "--stats-json", stats) + [program("fill"), 64, 2])
    got = context.plain(["python3", "-c", deny, *words], timeout_s=120)
    if got.code == 77:
        raise Skip("this kernel has no PR_SET_MDWE")
    check(got.code == 0 and "without a memory budget" not in got.err, f"exit code {got.code}: {got.err[-300:]}")
    check(swapped_out(read_stats(stats)) > 0, "nothing was swapped out")


@test("options-io-uring", ALL)
def options_io_uring(context):
    """io_uring_setup answers ENOSYS unless it is allowed; then it answers what this machine does."""
    argv = ["python3", "-c", IO_URING]
    # liburing's way past libc, as MariaDB takes it at its start: its process stayed without a budget.
    liburing = ["python3", "-c", "import ctypes; print(ctypes.CDLL(None).io_uring_queue_init(8, ctypes.create_string_buffer(4096), 0))"]
    got = said(context, run_words("-q", "--ram", "64M") + liburing)
    check(got.out == "-38\n", f"io_uring_queue_init: {got.out}")
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


@test("stat-beside-a-strange-pool", ALL)
def stat_beside_a_strange_pool(context):
    """What only has a pool's name, or is no pool yet, is none: farpage stat died of SIGBUS."""
    code = "import os, time; os.memfd_create('farpage-pool'); print('ready', flush=True); time.sleep(60)"
    with context.begin([sys.executable, "-c", code]) as strange:
        until("it has one", lambda: "ready" in strange.out.read_text(), job=strange)
        for words in (["stat"], ["stat", strange.process.pid], ["check", strange.process.pid]):
            got = context.plain([FARPAGE, *words])
            check(got.code in (0, 1) and len(got.err_lines()) <= 1, f"{words}: exit code {got.code}: {got.err}")


@test("options-stats-json-of-nothing", ALL)
def stats_of_nothing(context):
    """A run that is refused leaves no file for its statistics, and an old one as it is."""
    new, old = context.directory / "new.json", context.own_file("old.json", b"{}")
    for path in (new, old):
        refused(context, ["--ram", "64M", "--swap", "/nonexistent/directory/file:64M", "--stats-json", path])
    check(not new.exists() and old.read_bytes() == b"{}", "statistics of a run that was refused")
