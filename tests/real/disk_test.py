"""A disk that stands still for moments, as disks do that are shared or tidy up. Made by a blkio cgroup, so it needs root."""

import contextlib
import os
import sys
import threading
from pathlib import Path

from cgroup import Cgroup
from common import WORK, Skip, check
from context import test
from semantics_test import failures

# Far longer than anyone waits for room while nothing is under way, and too short for a program to go on between two.
STILL_S, GOES_ON_S = 0.6, 0.05


def whole_disk(directory):
    """`MAJOR:MINOR` of the disk that a directory is on."""
    at = os.stat(directory).st_dev
    device = Path(f"/sys/dev/block/{os.major(at)}:{os.minor(at)}").resolve()
    if not device.exists():
        raise Skip(f"{directory} is on no block device")
    return ((device.parent if (device / "partition").exists() else device) / "dev").read_text().strip()


@contextlib.contextmanager
def standing_still(directory):
    """The words before a command whose reads and writes of the directory's disk stand still, again and again."""
    disk = whole_disk(directory)
    over = threading.Event()
    with Cgroup.of_disks() as cgroup:
        limits = [cgroup.path / f"blkio.throttle.{way}_bps_device" for way in ("read", "write")]

        def limit(bytes_per_s):
            for file in limits:
                file.write_text(f"{disk} {bytes_per_s}")

        def turns():
            while not over.wait(GOES_ON_S):
                limit(1 << 16)
                over.wait(STILL_S)
                limit(0)

        try:
            limit(0)
        except OSError as error:
            raise Skip(f"blkio cgroup: {error.strerror}") from error
        thread = threading.Thread(target=turns)
        thread.start()
        try:
            yield ["sh", "-c", 'echo 0 >"$0" && exec "$@"', cgroup.procs_file]
        finally:
            over.set()
            thread.join()


@test("disk-stands-still", ("quick", "soak"), per_delivery=True)
def disk_stands_still(context):
    """What a full compressed tier writes back is waited for as what is stored is. The budget was overrun a hundred times, and the user
    was told that all swap is full: nothing had left for 200 ms, since a write took 600."""
    swap = context.directory / "small"
    extra = ["--swap", "compressed:64M", "--swap", f"{swap}:128M"]
    with standing_still(context.directory) as words:
        got = context.budget_run(64, [*words, sys.executable, WORK / "mixed.py", "ninth:100", "random:900"], timeout_s=200, extra=extra)
    check(got.code == 0 and got.out.endswith("right\n") and "refused" in got.out, failures(got))
    overruns = got.stats["limit_overrun"]
    check(overruns == 0 and "all swap is full" not in got.err, f"the budget was overrun {overruns} times")
    check(got.stats["zswpwb"] > 4096, f"{got.stats['zswpwb']} pages were written back")
