"""`make test`: unit tests, the C programs, the quick suite (as root) and the ordinary user's; then one line of totals."""

import json
import os
import re
import subprocess
import sys

from common import BUILD, HALVES, ROOT, results_of

UNIT_JSON = BUILD / "unit.json"
# What the ordinary user's suite leaves out where root's runs: the longest that both have.
ROOTS = ("sem_mmap", "sem_mremap", "sem_exec", "sem_fork", "pipeline", "swap-full", "altstacks")


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


def start(name, without=()):
    """Starts both halves of a suite: their results' paths, and what runs them."""
    left_out = [word for name in without for word in ("--without", name)]
    halves = []
    for half, words in HALVES.items():
        path = results_of(name, half)
        path.unlink(missing_ok=True)
        command = [sys.executable, ROOT / "tests/real/run.py", "--suite", name, "--json", path, *words, *left_out]
        halves.append((path, subprocess.Popen(command, cwd=ROOT)))
    return halves


def verdicts(halves):
    """How many tests of these passed, failed and were skipped. A half that crashes counts as one failure."""
    found = []
    for path, run in halves:
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
        halves = start("quick") + start("user", ROOTS)
    else:
        halves = start("user")
        print("SKIP suite quick: it needs root (cgroups, block devices, --delivery thread); the suite for ordinary users runs")
        counts.append((0, 0, 1))
    counts.append(verdicts(halves))
    passed, failed, skipped = (sum(column) for column in zip(*counts))
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
