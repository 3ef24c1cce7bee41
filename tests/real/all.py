"""`make test`: unit tests, the C programs, the quick suite (as root) and the ordinary user's; then one line of totals."""

import json
import os
import re
import subprocess
import sys

from common import BUILD, ROOT, results_of

UNIT_JSON = BUILD / "unit.json"
# What takes longest first: then the lines end at about the same time.
FIRST = ("kill-points", "bench-report", "sem_stacks", "gcc", "bench-smoke", "sem_madvise", "huge-always", "bench-huge", "np-solve", "node", "sem_")
# What the ordinary user's suite leaves out where root's runs: the longest that both have.
ROOTS = (
    "sem_mmap",
    "sem_mremap",
    "sem_exec",
    "sem_fork",
    "pipeline",
    "swap-full",
    "altstacks",
    "supervisor-stopped",
    "swapoff-interrupted",
    "kill-supervisor",
)


def unit_tests():
    """Runs `cargo test`, shows it as it goes, and returns (passed, failed, names of ignored tests)."""
    passed = failed = 0
    ignored = []
    command = [os.environ.get("CARGO", "cargo"), "test", "--workspace", "--no-fail-fast"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as cargo:
        for line in cargo.stdout:
            print(line, end="", flush=True)
            if result := re.match(r"test result: .*? (\d+) passed; (\d+) failed", line):
                passed += int(result[1])
                failed += int(result[2])
            elif skipped := re.match(r"test (.+) \.\.\. ignored", line):
                ignored.append(skipped[1])
    if cargo.returncode != 0 and failed == 0:
        failed = 1  # it did not compile, or a test binary crashed
    UNIT_JSON.write_text(json.dumps({"passed": passed, "failed": failed, "skipped": ignored}))
    return passed, failed, len(ignored)


def start(name, lines, **names):
    """Starts a suite, so many tests at a time: its results' path, and what runs it."""
    words = [word for option, starts in names.items() for each in starts for word in (f"--{option}", each)]
    path = results_of(name)
    path.unlink(missing_ok=True)
    command = [sys.executable, ROOT / "tests/real/run.py", "--suite", name, "--lines", str(lines), "--json", path, *words]
    return path, subprocess.Popen(command, cwd=ROOT)


def verdicts(suites):
    """How many tests of these passed, failed and were skipped. A suite that crashes counts as one failure."""
    found = []
    for path, run in suites:
        run.wait()
        try:
            found += [result["verdict"] for result in json.loads(path.read_text())["results"]]
        except (OSError, ValueError):
            print(f"FAIL {path.name} was not written")
            found.append("FAIL")
    return tuple(map(found.count, ("PASS", "FAIL", "SKIP")))


def main():
    BUILD.mkdir(exist_ok=True)
    counts = [unit_tests()]
    made = subprocess.run(["make", "--no-print-directory", "programs"], cwd=ROOT)
    if made.returncode != 0:
        counts.append((0, 1, 0))
        print("FAIL tests/programs: they did not build")
    # Side by side: most tests wait for disks and timers half of the time.
    if os.geteuid() == 0:
        suites = [start("quick", 3, first=FIRST), start("user", 1, without=ROOTS)]
    else:
        suites = [start("user", 2)]
        print("SKIP suite quick: it needs root (cgroups, block devices, --delivery thread); the suite for ordinary users runs")
        counts.append((0, 0, 1))
    counts.append(verdicts(suites))
    passed, failed, skipped = (sum(column) for column in zip(*counts))
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
