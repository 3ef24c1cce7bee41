"""farpage on a machine that swaps as well: the kernel takes pages out of RAM that farpage believes in it, and MOVE, fork and other
processes must find them all the same. Needs root."""

import contextlib
import os
import subprocess
from pathlib import Path

from cases import alone, farpage_run
from common import BUILD, Skip, check
from context import last_words, test
from proc import Job, Limits
from semantics_test import program

SWAPS = Path("/proc/swaps")
NAME = "host-swap-"


def sweep():
    """Ends what a harness left that was killed itself."""
    for line in SWAPS.read_text().splitlines()[1:] if SWAPS.exists() else ():
        path = Path(line.split()[0])
        if path.name.startswith(NAME) and BUILD in path.parents:
            subprocess.run(["swapoff", path], capture_output=True)
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def host_swap(directory, mib):
    """A swap file of the kernel's, on for as long as the block runs."""
    if os.geteuid() != 0:
        raise Skip("swapon needs root")
    # Its name tells the tests beside this one whose it is.
    path = directory / f"{NAME}{os.getpid()}.img"
    fill = ["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={mib}", "status=none"]
    try:
        for command in (fill, ["chmod", "600", path], ["mkswap", path], ["swapon", path]):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise Skip(f"{command[0]}: {done.stderr.strip()}")
        yield
    finally:
        subprocess.run(["swapoff", path], capture_output=True)
        path.unlink(missing_ok=True)


def kernel_swapped():
    """Pages that the kernel has swapped out since it started."""
    return int(next(line.split()[1] for line in Path("/proc/vmstat").read_text().splitlines() if line.startswith("pswpout ")))


@test("host-swap", ("soak",))
def host_swap_test(context):
    """The limit of the cgroup lies below the budget, so the kernel swaps what farpage keeps. Such a page was once taken for one that
    is gone, and the program stopped: in one of two runs."""
    with alone("swap"), host_swap(context.directory, 512):
        for name, mib in (("sem_fork", 24), ("sem_mremap", 48), ("sem_stacks", 48)):
            before = kernel_swapped()
            argv = [*farpage_run(40, context.delivery, extra=["--eager"]), program(name), mib]
            with Job(argv, Limits(600, 30, swap=True), context.directory, prefix=name) as job:
                code = job.wait()
                if job.no_cgroup:
                    raise Skip(job.no_cgroup)
                check(code == 0, f"{name}: exit code {code}: {last_words(job)}")
            check(kernel_swapped() > before, f"{name}: the kernel swapped nothing")
