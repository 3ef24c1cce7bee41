"""The C programs of tests/programs: memory semantics, no memory left."""

import json
import os
import re
import sys
import time

from cases import swapped_out
from common import FARPAGE, TESTS, WORK, Skip, check
from context import REGISTRY, Test, last_words, test

SEMANTICS = (
    "sem_malloc sem_mmap sem_mremap sem_protect sem_madvise sem_signals sem_jumps sem_sigmem sem_fork sem_atfork sem_exec sem_syscalls "
    "sem_files sem_task sem_ipc sem_remote sem_sockets sem_wait sem_bigio sem_threads sem_ends sem_cancel sem_stacks sem_vfork "
    "sem_descriptors"
).split()
AS_USER = ("sem_mmap", "sem_mremap", "sem_fork", "sem_exec", "sem_syscalls", "sem_files", "sem_task", "sem_ipc",
           "sem_descriptors")
OF_MAPPINGS = ("sem_mmap", "sem_mremap", "sem_protect", "sem_madvise")
# Budget and data, MiB: what makes some tens of thousands of pages leave, and no hundreds of thousands.
SIZES = {
    "sem_malloc": (16, 16),
    "sem_mmap": (16, 16),
    "sem_mremap": (40, 32),
    "sem_protect": (40, 32),
    "sem_madvise": (20, 16),
    "sem_signals": (24, 16),
    "sem_jumps": (24, 16),
    "sem_sigmem": (40, 32),
    "sem_fork": (64, 16),
    "sem_atfork": (24, 16),
    "sem_exec": (24, 16),
    "sem_syscalls": (20, 16),
    "sem_files": (24, 16),
    "sem_task": (24, 16),
    "sem_ipc": (24, 16),
    "sem_remote": (40, 32),
    "sem_sockets": (21, 20),
    "sem_wait": (20, 16),
    "sem_bigio": (24, 32),
    "sem_threads": (64, 8),
    "sem_ends": (24, 16),
    "sem_cancel": (24, 16),
    "sem_stacks": (20, 22),
    "sem_vfork": (24, 16),
    "sem_descriptors": (24, 16),
}


def program(name):
    path = TESTS / name
    if not path.exists():
        raise Skip(f"{path} is not built (make programs)")
    return path


def failures(got):
    """The lines in which a program says what is wrong, or how it ended."""
    lines = [line for line in (got.out + got.err).splitlines() if line.startswith(("FAIL", "MISMATCH", "HANG"))]
    return f"exit code {got.code}: " + (" / ".join(lines[:4]) or (got.out + got.err)[-300:])


def semantics(name):
    """The test of one sem_ program, managed from the first byte. What makes its memory cold is a walk through data of an eighth of its
    budget up to more than that, and then advice (chill() in tests/programs/check.c), whatever the walk has left there."""
    def run(context):
        # Up to 50 times all of that goes out to the disk and comes back.
        budget, mib = SIZES[name]
        got = context.budget_run(budget, [program(name), mib], timeout_s=240, extra=["--eager"], env={"EXPECT_COLD": "1"})
        check(got.code == 0, failures(got))
        check(swapped_out(got.stats) > 0, "nothing was swapped out")
        # Said where the program found itself managed; it fails where most of what it pushes out stays.
        check(re.search(r"^cold: \d+ pages pushed out in \d+ turns$", got.out, re.MULTILINE), "no memory was made cold")

    return run


for _name in SEMANTICS:
    _suites = ("quick", "soak", "user") if _name in AS_USER else ("quick", "soak")
    REGISTRY.append(Test(_name, semantics(_name), _suites, True))


@test("semantics-dormant", per_delivery=True, grows=True)
def semantics_dormant(context):
    """The same groups in a program that fits in its budget: nothing is managed yet, and all of libc goes through farpage. (mremap of a range
    with a sealed part lost what lay before that.)"""
    for name in SEMANTICS if context.soak else OF_MAPPINGS:
        got = context.budget_run(512, [program(name), 16], timeout_s=120)
        check(got.code == 0, f"{name}: {failures(got)}")
        check(swapped_out(got.stats) == 0, f"{name}: it was to fit in its budget: {got.stats}")


@test("semantics-plain", grows=True)
def semantics_plain(context):
    """Without farpage the same programs pass: what they ask for is what this kernel does."""
    for name in SEMANTICS if context.soak else OF_MAPPINGS:
        got = context.plain([program(name), 16], timeout_s=120)
        check(got.code == 0, f"{name}: {failures(got)}")


# Says how many of 3072 pages are in RAM when just written, after MADV_PAGEOUT and after MADV_WILLNEED (which fetches a quarter of the
# budget at most).
ADVISED = """
import ctypes, mmap, time
libc = ctypes.CDLL(None, use_errno=True)
size = 12 << 20
area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area[:] = bytes(range(1, 129)) * (size // 128)
start = ctypes.addressof(ctypes.c_char.from_buffer(area))
def resident():
    seen = ctypes.create_string_buffer(size // 4096)
    assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), seen) == 0
    return sum(byte & 1 for byte in seen.raw)
print(resident())
assert libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), 21) == 0
print(resident())
assert libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), 3) == 0
end = time.monotonic() + 20
while resident() < 3000 and time.monotonic() < end:
    time.sleep(0.05)
print(resident(), area[:] == bytes(range(1, 129)) * (size // 128))
"""


@test("advised", ("quick", "soak", "user"), per_delivery=True)
def advised(context):
    """MADV_PAGEOUT really lets pages go, MADV_WILLNEED really fetches them before they are touched."""
    got = context.budget_run(64, ["python3", "-c", ADVISED], timeout_s=60, extra=["--eager"])
    check(got.code == 0, failures(got))
    written, out, back, same = got.out.split()
    check(int(written) > 3000 and int(out) < 100, f"pages in RAM: {written} of 3072 when written, {out} after PAGEOUT")
    check(int(back) >= 3000 and same == "True", f"pages in RAM after WILLNEED: {back} of 3072; content as written: {same}")


@test("crowded", ("quick", "soak", "user"), per_delivery=True)
def crowded(context):
    """A fork where the budget leaves hardly any room: it wanted more than there could be, and waited for good as long as others went on,
    with malloc's locks held."""
    got = context.budget_run(8, [program("crowded"), 16, 8, 30], timeout_s=120)
    check(got.code == 0 and "ok crowded" in got.out, failures(got))


@test("movers", per_delivery=True)
def movers(context):
    """Processes that at the same moment each move much memory in place of other. What moves is brought in and pinned where another thread may
    touch it, half the limit at most: of each process, once, and of those without another thread too. Four took 95 MiB of 64."""
    for threads in (0, 1):
        got = context.budget_run(64, [program("movers"), 24, 4, 3, threads], timeout_s=120)
        check(got.code == 0 and "ok movers" in got.out, failures(got))
        overruns = got.stats["limit_overrun"]
        check(overruns == 0, f"{threads} other threads: {overruns} times the budget was overrun")


@test("swap-full", ("quick", "soak", "user"), per_delivery=True)
def swap_full(context):
    """All swap is full: allocation says so (NULL, ENOMEM) and the program ends as it wants, with its data intact. A heap that was
    reserved and is opened piece by piece, as java does, was once never refused."""
    swap = context.directory / "small"
    words = ["--swap", "compressed:64M", "--swap", f"{swap}:128M"]
    for way in ("malloc", "fixed", "protect"):
        got = context.budget_run(64, [program("pressure"), 2048, 1024, way], timeout_s=120, extra=words)
        check(got.code == 0, f"{way}: {failures(got)}")
        check("refused" in got.out, f"{way} never failed: {got.out[-100:]}")
        reached = int(got.out.split("reached ")[1].split()[0])
        check(reached > 128, f"{way} failed at {reached} MiB, with 128 MiB of swap file and 64 MiB of RAM")
        check("all swap is full" not in got.err, f"{way}: the budget was overrun: {got.err[-200:]}")


@test("swap-overfull", per_delivery=True)
def swap_overfull(context):
    """More is promised (MAP_NORESERVE) than RAM and swap can hold: the program goes on over its budget, with its data intact, and
    the user is told once what to do. It once went on at 4 MB/s, without a word."""
    got = context.budget_run(24, [program("fill"), 52, 1, "noreserve"], timeout_s=60, extra=["--swap", "compressed"])
    check(got.code == 0, failures(got))
    check(got.err.count("all swap is full") == 1, f"what the user was told: {got.err[-200:]}")
    check(got.stats["limit_overrun"] > 0, "the budget was not overrun")


@test("swap-overfull-random", per_delivery=True)
def swap_overfull_random(context):
    """The same, touched at random: what comes back leaves its place to what leaves. All of the program once waited in frames, moved
    out and taken back for each page that found a place: 2,000 touches in a minute."""
    words = [FARPAGE, "bench-work", "random", "--bytes", "64M", "--ram", "32M", "--seconds", 1]
    # It goes on over its budget: here it may.
    got = context.budget_run(32, words, timeout_s=60, extra=["--swap", "compressed:12M"], kernel_mib=64)
    check(got.code == 0 and '"ok":true' in got.out, failures(got))
    check(got.err.count("all swap is full") == 1, f"what the user was told: {got.err[-200:]}")


@test("disk-fills", per_delivery=True)
def disk_fills(context):
    """Somebody else fills the disk of the swap file: the user is told once, memory is refused as where all swap is full, nothing is lost,
    and when there is space again it goes on. Each fault once tried all its pages in vain, without a word."""
    if os.geteuid() != 0:
        raise Skip("needs root: a small disk of its own")
    disk = context.directory / "disk"
    disk.mkdir()
    run = [FARPAGE, "run", "--ram", "32M", "--swap", disk, "-q", "--delivery", context.delivery, "--", sys.executable, WORK / "disk_fills.py", disk]
    words = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64M none "$0" && exec "$@"', disk, *run]
    got = context.plain(words, timeout_s=120)
    check(got.out.split("\n")[:-1] == ["right", "refused", "room again", "right"], f"exit code {got.code}: {got.out!r} {got.err[-300:]}")
    told = [line for line in got.err_lines() if "takes no more pages" in line]
    check(len(told) == 1 and "No space left" in told[0] and "; " in told[0], f"what the user was told: {got.err!r}")


@test("ragged", per_delivery=True, grows=True)
def ragged(context):
    """Threads write at random what is on its way out, in windows with gaps: no write is lost (see decision 0024)."""
    touches = 400_000 if context.soak else 40_000
    extra = ["--swap", "compressed:8M", "--swap", context.directory]
    got = context.budget_run(20, [program("ragged"), 64, 4, touches], timeout_s=300, extra=extra)
    check(got.code == 0 and "ok ragged" in got.out, failures(got))
    check(swapped_out(got.stats) > 10_000, "hardly anything was swapped out")


@test("late", per_delivery=True)
def late(context):
    """Four processes map most of the budget each and fill it at the same moment: the first was dormant when it did, and the rest
    once learned of its memory when it was there; they overran the budget by up to 42 MiB."""
    got = context.budget_run(240, [program("late"), 96, 4], timeout_s=120)
    check(got.code == 0, failures(got))
    check("ok late" in got.out, f"ended without 'ok late': {got.out[-200:]}")


@test("early-calls", per_delivery=True)
def early_calls(context):
    """What a process asked of the kernel while it was small comes true when it is managed: pages that it had given up by MADV_FREE were
    dropped later, out of the books, and the program stopped for them; a page that the kernel writes to (rseq) was moved out."""
    got = context.budget_run(48, [program("early"), 96], timeout_s=60)
    check(got.code == 0 and "ok early" in got.out, failures(got))
    check("lazily freed 0 KiB" in got.out, f"left to the kernel: {got.out[-200:]}")
    check(swapped_out(got.stats) > 0, "nothing was swapped out")


@test("own-malloc", per_delivery=True)
def own_malloc(context):
    """A program that brings its own malloc. rustc does, and died when its first thread began: a block of its malloc went to our
    free. So did what one got from reallocarray, which was ours, to its free."""
    got = context.budget_run(32, [program("own_malloc"), 96], timeout_s=60, extra=["--eager"])
    check(got.code == 0 and "ok own_malloc" in got.out, failures(got))
    check(swapped_out(got.stats) > 0, "nothing was swapped out")


LIBJEMALLOC = "libjemalloc.so.2"


@test("malloc-behind", ("quick", "soak", "user"), per_delivery=True)
def malloc_behind(context):
    """A library with a malloc that comes behind ours. libjemalloc's operator delete calls `free`, with a block of its own operator new: our
    jemalloc was given it, and the program ended by SIGSEGV."""
    words = ["/usr/bin/env", f"LD_PRELOAD={program('behind.so')}", program("behind")]
    for budget, extra in ((512, []), (32, ["--eager"])):
        got = context.budget_run(budget, [*words, 96], timeout_s=120, extra=extra)
        check(got.code == 0 and "ok behind" in got.out, f"{budget} MiB: {failures(got)}")
    check(swapped_out(got.stats) > 0, "nothing was swapped out")
    got = context.plain([*words, 96])
    check(got.code == 0 and "ok behind" in got.out, f"without farpage: {failures(got)}")
    # The real one, where it is, in a C++ program.
    real = ["/usr/bin/env", f"LD_PRELOAD={LIBJEMALLOC}", "apt-cache", "show", "bash"]
    plain = context.plain(real)
    if plain.code != 0 or plain.err:
        context.result.skipped.append(("libjemalloc", f"{LIBJEMALLOC} or apt-cache is not here"))
        return
    for extra in ([], ["--eager"]):
        got = context.budget_run(64, real, extra=extra)
        check(got.code == 0 and got.out == plain.out, f"libjemalloc: {failures(got)}")


@test("deepbound", ("quick", "soak", "user"), per_delivery=True)
def deepbound(context):
    """A library that is loaded with RTLD_DEEPBIND has the program's malloc, managed or not. PHP up to 8.4, which loads its extensions so,
    ended with "free(): invalid pointer"."""
    for budget, extra in ((512, []), (32, ["--eager"])):
        got = context.budget_run(budget, [program("deepbound"), 48], timeout_s=60, extra=extra)
        check(got.code == 0 and "ok deepbound" in got.out, f"{budget} MiB: {failures(got)}")
    check(swapped_out(got.stats) > 0, "nothing was swapped out")


@test("hooked", ("quick", "soak", "user"), per_delivery=True)
def hooked(context):
    """A library of the user's own in LD_PRELOAD sees the calls that it takes over, small or managed: where a buffer was in RAM the call was made
    without it, and exec always was."""
    library = program("hooked.so")
    words = ["/usr/bin/env", f"LD_PRELOAD={library}", f"HOOKED_PRELOAD={library}"]
    for budget, extra, env in ((512, [], {}), (24, ["--eager"], {"EXPECT_COLD": "1"})):
        got = context.budget_run(budget, [*words, program("hooked"), 16], timeout_s=120, extra=extra, env=env)
        check(got.code == 0 and "ok hooked" in got.out, f"{budget} MiB: {failures(got)}")
    check(swapped_out(got.stats) > 0, "nothing was swapped out")
    got = context.plain([*words, program("hooked"), 16], timeout_s=60)
    check(got.code == 0 and "ok hooked" in got.out, f"without farpage: {failures(got)}")


@test("libc-helpers", per_delivery=True)
def libc_helpers(context):
    """Threads that libc starts for aio_read and SIGEV_THREAD block all signals. With thread delivery they work; with signals they
    end the program, and the user is told what to do."""
    for group in ("aio", "timer"):
        got = context.budget_run(36, [program("helpers"), 32, group], timeout_s=60, extra=["--eager"])
        told = context.delivery == "signal" and "try --delivery thread" in got.err
        check(got.code == 0 or told, f"{group}: {failures(got)}")


@test("called-up", per_delivery=True)
def called_up(context):
    """A process that fitted when it grew gives its memory up when another needs it. It once kept all of it to its end, and
    what was left was too little for the rest: under a hard limit one of them was killed."""
    go = context.directory / "go"
    hold = f"'{sys.executable}' '{WORK / 'hold.py'}' 18 '{go}'"
    script = f"{hold} & sleep 3; '{program('fill')}' 120 1 mmap & wait $!; code=$?; touch '{go}'; wait; exit $code"
    shown = {}
    with context.start(64, ["sh", "-c", script], timeout_s=120) as job:
        while job.process.poll() is None:
            got = context.plain([FARPAGE, "stat", job.process.pid, "--json"])
            for process in json.loads(got.out)["processes"] if got.code == 0 and got.out else []:
                if process["active"]:
                    shown[process["pid"]] = process
            time.sleep(0.1)
        text = job.out.read_text()
        check(job.wait() == 0 and "ok" in text and "FAIL" not in text, f"{text} {last_words(job)}")
        context.finish(job)
    check(len(shown) == 2, f"active: {shown}")


@test("activate", per_delivery=True, grows=True)
def activate(context):
    """Threads are in system calls while their process begins to be managed. What waited in the kernel then got EFAULT, and what
    made a call at that moment was ended by SIGSYS."""
    for _ in range(5 if context.soak else 1):
        got = context.budget_run(48, [program("activate"), 96], timeout_s=120)
        check(got.code == 0, failures(got))
        check("ok activate" in got.out, f"ended without 'ok activate': {got.out[-200:]}")
        check(swapped_out(got.stats) > 0, "nothing was swapped out")


@test("born-blocked", per_delivery=True)
def born_blocked(context):
    """All signals are blocked from the start, for good, in threads that are there before the process is managed: only the one that made it so
    had SIGBUS let through, and the first fault of another ended it."""
    run = [FARPAGE, "run", "--ram", "48M", "--delivery", context.delivery, "--", program("activate"), 96]
    got = context.plain(["env", "--block-signal", *run], timeout_s=120)
    check(got.code == 0 and "ok activate" in got.out, failures(got))


@test("filtered", per_delivery=True)
def filtered(context):
    """A seccomp filter of the program's own traps calls too, and was there first. Every trap was taken for one of ours, made again, and
    trapped again, until the stack ended."""
    got = context.budget_run(48, [program("filtered"), 96], timeout_s=120)
    check(got.code == 0 and "ok filtered" in got.out, failures(got))
    check(swapped_out(got.stats) > 0, "nothing was swapped out")


@test("altstacks", ("quick", "soak", "user"), per_delivery=True, grows=True)
def altstacks(context):
    """Small alternate stacks that nobody has touched. The first fault of a thread was its last: the kernel could not write its frame
    there. And a thread that was asked whether its call had ended, while a fault of its was answered elsewhere, lost the frame of that
    fault (any Rust program with threads did)."""
    for _ in range(10 if context.soak else 2):
        got = context.budget_run(48, [program("altstacks"), 96], timeout_s=120)
        if "skip altstacks" in got.out:
            raise Skip(got.out.strip())
        check(got.code == 0 and "ok altstacks" in got.out, failures(got))


@test("small-stacks", ("quick", "soak", "user"), per_delivery=True)
def small_stacks(context):
    """What makes the process managed is asked for on a stack of 32 KiB: a thread's ended there, a coroutine's went over what lies below."""
    for where in ("thread", "context"):
        got = context.budget_run(48, [program("small"), 96, where], timeout_s=60)
        check(got.code == 0 and "ok small" in got.out, f"{where}: {failures(got)}")
        check(swapped_out(got.stats) > 0, f"{where}: nothing was swapped out")


# Marks all descriptors that are not its own, as programs do before they start another (java, glib), and starts one that needs its budget.
MARKS = """
import fcntl, os, sys
for number in range(3, 1024):
    for mark in (lambda: fcntl.fcntl(number, fcntl.F_SETFD, fcntl.FD_CLOEXEC), lambda: fcntl.ioctl(number, 0x5451)):
        try:
            mark()
        except OSError:
            pass
os.execv(sys.executable, [sys.executable, "-c", "print(len(bytearray(b'farpage!') * (12 << 20)))"])
"""


@test("descriptors-marked", ("quick", "soak", "user"), per_delivery=True)
def descriptors_marked(context):
    """A program that marks descriptors which it does not know to be closed by exec. The tree's were, too: what it started ran without
    a budget, and the loader complained of a library that was not there."""
    got = context.budget_run(48, ["/usr/bin/env", "python3", "-c", MARKS], timeout_s=60)
    check(got.code == 0 and got.out.strip() == str(96 << 20), f"exit code {got.code}: {got.out!r} {got.err!r}")
    check(not got.err and swapped_out(got.stats) > 0, f"without a budget? {got.err!r}")


# Forks by number while it is small.
FORKS = """
import ctypes, os
if ctypes.CDLL(None).syscall(57) == 0:
    data = bytearray(b'farpage!') * (12 << 20)
    print("child", data.count(b'farpage!') == 12 << 20, flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@test("forked-by-number", ("quick", "soak", "user"), per_delivery=True)
def forked_by_number(context):
    """A child that a small process makes by syscall(SYS_fork) is managed like any other: it was not, and took what it wanted."""
    got = context.budget_run(48, ["/usr/bin/env", "python3", "-c", FORKS], timeout_s=60)
    check(got.out.split() == ["child", "True", "0"], f"exit code {got.code}: {got.out!r} {got.err!r}")
    check(swapped_out(got.stats) > 0, "nothing was swapped out")


# A soft limit of open files below farpage's numbers, set before the memory is used; random bytes from the kernel then, into all of it.
LIMITED = """
import ctypes, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
data = bytearray(b'farpage!') * (12 << 20)
place = ctypes.addressof(ctypes.c_char.from_buffer(data))
libc = ctypes.CDLL(None)
print(all(libc.getrandom(ctypes.c_void_p(place + at), ctypes.c_size_t(8), 0) == 8 for at in range(0, len(data), 4096)))
"""


@test("few-files", ("quick", "soak", "user"), per_delivery=True)
def few_files(context):
    """A process that is managed under such a limit had no filter: calls on memory that was out were answered with EFAULT."""
    got = context.budget_run(48, ["/usr/bin/env", "python3", "-c", LIMITED], timeout_s=60)
    check(got.code == 0 and got.out.strip() == "True", f"exit code {got.code}: {got.out!r} {got.err!r}")
    check(swapped_out(got.stats) > 0, "nothing was swapped out")


# What is managed lowers the limit, and becomes another program, or its child does.
LOWERED = """
import os, resource, sys
size = 8 << 20
data = bytearray(b'farpage!') * size
resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
again = "data = bytearray(b'farpage!') * (8 << 20); print(data.count(b'farpage!') == 8 << 20)"
if sys.argv[1] == 'fork' and os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
os.execv(sys.executable, [sys.executable, '-c', again])
"""


@test("few-files-exec", ("quick", "soak", "user"), per_delivery=True)
def few_files_exec(context):
    """A managed process that lowers the limit of open files and execs: its userfaultfd stayed at its number, was taken for another process's by the
    new image, and that ran without a budget."""
    for way in ("exec", "fork"):
        got = context.budget_run(48, ["/usr/bin/env", "python3", "-c", LOWERED, way], timeout_s=60)
        check(got.code == 0 and got.out.strip() == "True", f"{way}: exit code {got.code}: {got.out!r} {got.err!r}")
        check(not got.err, f"{way}: {got.err!r}")
        # 64 MiB of either image: the first leaves at least 16 of them, and the second as much again.
        check(swapped_out(got.stats) > 7000, f"{way}: {swapped_out(got.stats)} pages were swapped out")


# Starts the same program without any environment, in three ways.
CLEARED = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
child = f"{sys.executable} -c \\"print(len(bytearray(b'farpage!') * (12 << 20)), flush=True)\\""
libc.clearenv()
if sys.argv[1] == "system":
    print(libc.system(child.encode()))
elif sys.argv[1] == "popen":
    libc.popen.restype = ctypes.c_void_p
    print(libc.pclose(ctypes.c_void_p(libc.popen(child.encode(), b"w"))))
else:
    strings = (ctypes.c_char_p * 4)(b"sh", b"-c", child.encode(), None)
    libc.execve(b"/bin/sh", strings, None)
"""


@test("cleared-environment", ("quick", "soak", "user"), per_delivery=True)
def cleared_environment(context):
    """What a program starts that has no environment at all (clearenv) is managed, too: it ran without a budget."""
    for way in ("system", "popen", "execve"):
        got = context.budget_run(48, ["/usr/bin/env", "python3", "-c", CLEARED, way], timeout_s=60)
        words = got.out.split()
        check(got.code == 0 and words[0] == str(96 << 20), f"{way}: exit code {got.code}: {got.out!r} {got.err!r}")
        check(not got.err and swapped_out(got.stats) > 0, f"{way}: without a budget? {got.err!r}")


@test("fork-in-handler", ("quick", "soak", "user"), per_delivery=True)
def fork_in_handler(context):
    """A program of one thread forks in a signal's handler, which may have come in the middle of malloc: it waited for a lock of its own."""
    got = context.budget_run(48, [program("forker"), 3], timeout_s=60)
    check(got.code == 0 and "ok forker" in got.out, failures(got))


# Reserves addresses and opens them 64 KiB at a time, as some collectors do.
OPENS = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
total, step = int(sys.argv[1]) << 20, 65536
start = libc.mmap(None, ctypes.c_size_t(1 << 30), 0, 0x4022, -1, ctypes.c_long(0))
for at in range(0, total, step):
    assert libc.mprotect(ctypes.c_void_p(start + at), ctypes.c_size_t(step), 3) == 0
    ctypes.memset(start + at, 1 + at // step % 250, step)
    time.sleep(0.001)  # what is not counted beforehand is seen every 20 ms
wrong = sum(ctypes.string_at(start + at, step) != bytes([1 + at // step % 250]) * step for at in range(0, total, step))
print("wrong", wrong)
"""


@test("opened-in-pieces", ("quick", "soak", "user"), per_delivery=True)
def opened_in_pieces(context):
    """Memory that is opened in pieces of 64 KiB, none of which is counted: the process was never managed, and had no budget."""
    got = context.budget_run(40, ["/usr/bin/env", "python3", "-c", OPENS, 160], timeout_s=60)
    check(got.code == 0 and got.out.strip() == "wrong 0", f"exit code {got.code}: {got.out!r} {got.err!r}")
    check(swapped_out(got.stats) > 0, "nothing was swapped out")


# One block at a time, each larger than the one before.
BLOCKS = """
import os
for mib in range(40, 200, 20):
    block = bytearray(os.urandom(1 << 20)) * mib
    del block
print("all", mib)
"""


@test("large-blocks-freed", ("quick", "soak", "user"), per_delivery=True)
def large_blocks_freed(context):
    """What is freed is there for the next block, however large: memory was refused while hardly any was in use."""
    swap = context.directory / "small"
    words = ["-q", "--ram", "64M", "--swap", f"{swap}:256M", "--delivery", context.delivery]
    got = context.plain([FARPAGE, "run", *words, "--", "/usr/bin/env", "python3", "-c", BLOCKS], timeout_s=60)
    check(got.code == 0 and got.out.strip() == "all 180", f"exit code {got.code}: {got.out!r} {got.err[-300:]!r}")


@test("daemon", per_delivery=True)
def daemon(context):
    """A daemon that has given root up could not read its own page map when it was to become active; what was registered stayed so, and
    its next fault ended it. One that was to give up all of /proc is managed before it does. Where nobody sees that it goes on
    without a budget, and says so."""
    if os.geteuid() != 0:
        raise Skip("needs root: a daemon that gives it up")
    by_thread = context.delivery == "thread"
    empty = context.directory / "empty"
    empty.mkdir()
    # What answers faults by message needs root itself.
    for words in ([] if by_thread else [[]]) + [[empty], [empty, "number"]]:
        got = context.budget_run(48, [program("daemon"), 96, *words], timeout_s=120)
        check(got.code == 0 and "ok daemon" in got.out, failures(got))
        check(swapped_out(got.stats) > 0, "nothing was swapped out")
    words = [FARPAGE, "run", "--ram", "48M", "--delivery", context.delivery, "--", program("daemon"), 96, empty, "own"]
    got = context.plain(words, timeout_s=60)
    check(got.code == 0 and "ok daemon" in got.out, failures(got))
    missing = "userfaultfd" if by_thread else "/proc"
    check("without a memory budget: " in got.err and missing in got.err, f"told: {got.err[-300:]}")


@test("landlocked", ("quick", "soak", "user"), per_delivery=True)
def landlocked(context):
    """A program that forbids itself all files (xz 5.6) becomes active before it does, for later it could not read /proc."""
    got = context.budget_run(48, [program("landlocked"), 96], timeout_s=120)
    if "skip landlocked" in got.out:
        raise Skip(got.out.strip())
    check(got.code == 0 and "ok landlocked" in got.out, failures(got))
    check(swapped_out(got.stats) > 0, "nothing was swapped out")


@test("headless", ("quick", "soak", "user"), per_delivery=True)
def headless(context):
    """The first thread has ended when the process is to become active: it went on without a budget (errno 3), and what it had beside
    managed memory was not counted."""
    got = context.budget_run(64, [program("headless"), 96], timeout_s=120)
    check(got.code == 0 and "ok headless" in got.out, failures(got))
    check(swapped_out(got.stats) > 0, "nothing was swapped out")


@test("early-ring")
def early_ring(context):
    """A library that brings its own system calls made an io_uring before the process was active: the kernel would use memory
    for it behind our back. The process stays as it is, and says so."""
    got = context.plain([FARPAGE, "run", "--ram", "48M", "--", program("activate"), 96, "ring"], timeout_s=120)
    if "a ring of a library's" in got.out + got.err:
        raise Skip("this kernel allows no io_uring")
    check(got.code == 0 and "ok activate" in got.out, failures(got))
    # Its children inherit the ring: each that would be managed says so for itself.
    lines = [line for line in got.err.splitlines() if "io_uring" in line]
    check(lines and all("--eager" in line for line in lines), f"told: {got.err[-400:]}")
    got = context.plain([FARPAGE, "run", "--eager", "--ram", "48M", "--", program("activate"), 96, "ring"], timeout_s=120)
    check("a ring of a library's" in got.out + got.err, f"a ring in a managed process: {got.out[-200:]} {got.err[-200:]}")


@test("tiny-budget", ("quick", "soak", "user"), per_delivery=True)
def tiny_budget(context):
    got = context.budget_run(16, [program("fill"), 64, 2], timeout_s=120)
    check(got.code == 0, failures(got))
    check(swapped_out(got.stats) > 0, "nothing was swapped out")


@test("writeback", ("quick", "soak"), per_delivery=True)
def writeback(context):
    """The compressed tier is too small for it all: what has lain there longest is written to the file, the rest goes on there."""
    swap = context.directory / "file"
    words = ["--swap", "compressed:12M", "--swap", f"{swap}:512M"]
    got = context.budget_run(48, [program("fill"), 160, 2], timeout_s=120, extra=words)
    check(got.code == 0, failures(got))
    check(got.stats["zswpwb"] > 0, "nothing was written back")
    check(got.stats["crc_errors"] == 0, f"{got.stats['crc_errors']} checksum errors")
