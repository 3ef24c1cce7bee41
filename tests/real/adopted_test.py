"""What a process has when it begins to be managed, and what the programs get that it starts."""

import sys

from cases import require
from common import check
from context import test
from programs import INPUTS, compile_java
from semantics_test import failures, program


@test("adopted", ("quick", "soak", "user"), per_delivery=True)
def adopted(context):
    """Private pages of files in the place of managed memory were taken for ours when they had been written before the process was managed: what
    came back was zeros, or the program was stopped. Memory that had only been read was never ours, and never left."""
    got = context.budget_run(80, [program("adopted"), 160], timeout_s=120, env={"EXPECT_COLD": "1"})
    check(got.code == 0 and "ok adopted" in got.out, failures(got))
    check(got.stats["limit_overrun"] == 0, f"{got.stats['limit_overrun']} overruns")


@test("java-grows", per_delivery=True)
def java_grows(context):
    """A JVM that starts with a small heap maps its archive of classes over its reservation while it still fits in its budget."""
    require(("java", "javac"))
    compile_java()
    heap = ["-Xms8m", "-Xmx600m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1"]
    words = ["java", *heap, "-cp", INPUTS, "Big", 200]
    truth = context.plain(words, timeout_s=60)
    got = context.budget_run(144, words, timeout_s=150)
    check(got.code == 0 and got.out == truth.out, failures(got))


# Fills its budget.
FILLS = """
block = bytearray(60 << 20)
for at in range(0, len(block), 4096):
    block[at] = 1
"""
# Then starts a program that is not managed.
STARTER = f"""{FILLS}
import os, subprocess, sys
assert b"Seccomp:\\t2" in open("/proc/self/status", "rb").read(), "not managed"
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[1]], env={{**os.environ, "FARPAGE_DISABLE": "1"}}).returncode)
"""
# Opens more files than its soft limit of before, closes each, and looks which are closed.
OPENER = """
import os, resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(1200)]
kept = []
for number in opened:
    os.close(number)
    try:
        os.fstat(number)
        kept.append(number)
    except OSError:
        pass
print(len(opened), "opened,", kept, "not closed")
"""


@test("unmanaged-child-files", ("quick", "soak", "user"), per_delivery=True)
def unmanaged_child_files(context):
    """The filter outlives exec, and with it the numbers that it protects: a program that is not managed once got a file of its own there,
    which it could not close."""
    got = context.budget_run(48, [sys.executable, "-c", STARTER, OPENER], timeout_s=60)
    check(got.code == 0 and got.out == "1200 opened, [] not closed\n", f"{got.out!r} {failures(got)}")


# Fills its budget, makes a pid namespace, and starts a program in there that is not managed.
APART = f"""{FILLS}
import ctypes, os
assert ctypes.CDLL(None, use_errno=True).unshare(0x20000000) == 0, ctypes.get_errno()
child = os.fork()
if child == 0:
    os.environ["FARPAGE_DISABLE"] = "1"
    os.execvp("ls", ["ls", "-l", "/proc/self/fd"])
os.waitpid(child, 0)
"""


@test("no-way-out", ("quick", "soak"), per_delivery=True)
def no_way_out(context):
    """A process of another pid namespace has /proc open, to be found by its number in the tree: what it starts does not, in another root say."""
    got = context.budget_run(48, [sys.executable, "-c", APART], timeout_s=60)
    check(got.code == 0 and " -> " in got.out, failures(got))
    check(not [line for line in got.out.splitlines() if line.endswith(" -> /proc")], got.out)
