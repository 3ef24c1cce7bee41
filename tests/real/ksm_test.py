"""The kernel rearranges memory beside farpage: KSM merges equal pages, khugepaged and MADV_COLLAPSE make huge ones. Needs root, to start them."""

import contextlib
import os
import time
from pathlib import Path

from cases import alone
from common import Skip, check
from context import REGISTRY, Outcome, Test
from semantics_test import failures, program

KSM = Path("/sys/kernel/mm/ksm")
HUGE = Path("/sys/kernel/mm/transparent_hugepage")
HURRIED = (
    (KSM / "pages_to_scan", "4000"),
    (KSM / "sleep_millisecs", "2"),
    (HUGE / "khugepaged/scan_sleep_millisecs", "10"),
    (HUGE / "khugepaged/alloc_sleep_millisecs", "10"),
    (KSM / "run", "1"),
)
# What was merged, and is shared by a forked child, is copied for parent and child when it is taken apart, all at once, and nobody is
# asked. 25 MiB too much were seen on a busy machine; with the child stopped meanwhile the tree's memory goes from 80 MiB to 147.
TAKEN_APART_MIB = 40


@contextlib.contextmanager
def hurried():
    """ksmd and khugepaged at work all the time, for as long as the block runs."""
    if os.geteuid() != 0:
        raise Skip("ksmd and khugepaged are root's to start")
    if not (KSM / "run").exists() or not HUGE.exists():
        raise Skip("this kernel has no KSM or no huge pages")
    if "[never]" in (HUGE / "enabled").read_text():
        raise Skip("this kernel's huge pages are off")
    # Two at once left KSM running, and the one that went on found it stopped.
    with alone("ksm"):
        before = [(path, path.read_text()) for path, _ in HURRIED]
        try:
            for path, value in HURRIED:
                path.write_text(value)
            yield
        finally:
            # What was merged for us is taken apart first.
            (KSM / "run").write_text("2")
            for path, value in before:
                path.write_text(value)


def beside(words):
    """Content is right while pages are merged, collapsed and taken apart, and swapped, and parts are discarded, protected and moved."""
    def run(context):
        extra = ["--swap", "/var/tmp:2G", *words]
        argv = [program("merged"), 160, 40 if context.soak else 6]
        with hurried(), context.start(128, argv, timeout_s=600, extra=extra, kernel_mib=TAKEN_APART_MIB) as job:
            context.result.budget_mib += TAKEN_APART_MIB
            while job.process.poll() is None and time.monotonic() < job.started + job.limits.timeout_s:
                time.sleep(1)
                # All that is merged is taken apart, and merged again. One pass may take longer.
                end = time.monotonic() + 10
                while int((KSM / "pages_sharing").read_text()) <= 500 and job.process.poll() is None and time.monotonic() < end:
                    time.sleep(0.1)
                for value in ("2", "1"):
                    (KSM / "run").write_text(value)
            code = job.wait()
            context.finish(job)
        got = Outcome(code, job, context.stats_path)
        check(code == 0, failures(got))
        told = dict(line.split()[:2] for line in got.out.splitlines())
        check(int(told["merged"]) > 500, f"KSM merged hardly anything: {told}")
        check(int(told["collapsed"]) > 0, f"no huge page was made of small ones: {told}")

    return run


for _name, _words, _suites in (("never", [], ("quick", "soak")), ("always", ["--huge", "always"], ("soak",))):
    REGISTRY.append(Test(f"ksm-huge-{_name}", beside(_words), _suites, True, grows=True))
