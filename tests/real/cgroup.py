"""Memory cgroups of our own, version 1 or 2, below the cgroup we are in (so that its limits keep holding)."""

import atexit
import contextlib
import itertools
import os
import signal
import threading
import time
from pathlib import Path

from common import MIB, Skip

BLKIO = Path("/sys/fs/cgroup/blkio")

_counter = itertools.count()
_live = set()


def _mounts():
    """(path, is_v2) of every cgroup mount that may have a memory controller."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, path, kind, options = line.split()[:4]
        if kind == "cgroup" and "memory" in options.split(","):
            yield Path(path), False
        elif kind == "cgroup2":
            yield Path(path), True


def _own_path(v2):
    """Our cgroup's path inside its hierarchy."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if (number == "0") if v2 else ("memory" in controllers.split(",")):
            return path.lstrip("/")
    return ""


def _parent():
    """(directory, is_v2) in which a cgroup with a memory controller can be made."""
    why = "no memory cgroup controller is mounted"
    for mount, v2 in _mounts():
        own = mount / _own_path(v2)
        if not own.is_dir():  # a mount made inside another cgroup namespace
            own = mount
        if not v2:
            return own, False
        for directory in [own, *own.parents]:
            try:
                if "memory" not in (directory / "cgroup.controllers").read_text().split():
                    break
                control = directory / "cgroup.subtree_control"
                if "memory" not in control.read_text().split():
                    control.write_text("+memory")
                return directory, True
            except OSError as error:
                why = f"{directory}: {error.strerror}"
            if directory == mount:
                break
    raise Skip(f"cgroup: {why}")


def _name():
    return f"farpage-test-{os.getpid()}-{next(_counter)}"


def sweep():
    """Ends what an earlier harness left that was killed itself: cgroups with our name whose maker no longer runs."""
    parents = [(BLKIO, False)]
    with contextlib.suppress(Skip):
        parents.append(_parent())
    for parent, v2 in parents:
        for path in parent.glob("farpage-test-*-*"):
            if not Path(f"/proc/{path.name.split('-')[2]}").exists():
                Cgroup.existing(path, v2).remove()


class Cgroup:
    """A cgroup with a hard limit and, unless `swap`, no swap. `limit_mib` None: only measured. Raises Skip where none can be
    made."""

    def __init__(self, limit_mib=None, swap=False):
        parent, self.v2 = _parent()
        self.path = parent / _name()
        self._make()
        try:
            self._limit(limit_mib, swap)
        except OSError as error:
            self.remove()
            raise Skip(f"cgroup: limit: {error.strerror}") from error

    @classmethod
    def existing(cls, path, v2):
        """One that is already there."""
        cgroup = cls.__new__(cls)
        cgroup.path, cgroup.v2 = path, v2
        return cgroup

    @classmethod
    def of_disks(cls):
        """One of version 1's blkio controller."""
        cgroup = cls.existing(BLKIO / _name(), v2=False)
        cgroup._make()
        return cgroup

    def _make(self):
        try:
            self.path.mkdir()
        except OSError as error:
            raise Skip(f"cgroup: {self.path.parent}: {error.strerror}") from error
        _live.add(self)

    def _limit(self, limit_mib, swap):
        if limit_mib is None:
            return
        size = str(int(limit_mib * MIB))
        names = ["memory.max"] if self.v2 else ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
        for name in names[:1] if swap else names:
            if (self.path / name).exists():
                (self.path / name).write_text(size)
        if swap:
            return
        swap = self.path / ("memory.swap.max" if self.v2 else "memory.swappiness")
        if swap.exists():
            swap.write_text("0")

    @property
    def procs_file(self):
        return self.path / "cgroup.procs"

    def pids(self):
        try:
            return [int(pid) for pid in self.procs_file.read_text().split()]
        except OSError:
            return []

    def memory(self):
        """(anonymous, shared memory) in MiB now."""
        words = (self.path / "memory.stat").read_text().split()
        stat = dict(zip(words[::2], words[1::2]))
        anon, shmem = ("anon", "shmem") if self.v2 else ("total_rss", "total_shmem")
        return int(stat[anon]) / MIB, int(stat.get(shmem, 0)) / MIB

    def oom_kills(self):
        name = "memory.events" if self.v2 else "memory.oom_control"
        for line in (self.path / name).read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return 0

    def kill(self):
        """SIGKILL to all that is left in it, until it is empty (at most 10 s)."""
        deadline = time.monotonic() + 10
        while (pids := self.pids()) and time.monotonic() < deadline:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)

    def remove(self):
        self.kill()
        for _ in range(100):
            try:
                self.path.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.05)
        _live.discard(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()


@atexit.register
def _remove_all():
    for cgroup in list(_live):
        cgroup.remove()


class Sampler(threading.Thread):
    """Reads a cgroup's memory.stat at 50 Hz and keeps the peaks (MiB): anon, shmem, and their sum."""

    def __init__(self, cgroup):
        super().__init__(daemon=True)
        self.cgroup = cgroup
        self.anon = self.shmem = self.held = 0.0
        self.processes = 0  # when most was anonymous
        self.samples = 0
        self._stop_asked = threading.Event()

    def run(self):
        due = time.monotonic()
        while not self._stop_asked.wait(max(due - time.monotonic(), 0)):
            due = max(due + 0.02, time.monotonic())
            try:
                anon, shmem = self.cgroup.memory()
            except OSError:
                continue
            self.samples += 1
            if anon > self.anon:
                self.anon, self.processes = anon, len(self.cgroup.pids())
            self.shmem = max(self.shmem, shmem)
            self.held = max(self.held, anon + shmem)

    def stop(self):
        self._stop_asked.set()
        self.join()
