"""Starting processes so that all of them end: own session, cgroup, time limit; a look for what was left behind."""

import atexit
import dataclasses
import os
import select
import signal
import subprocess
import time
import uuid
from pathlib import Path

from cgroup import Cgroup, Sampler
from common import NOBODY, Skip

MARK = "FARPAGE_TEST_RUN"
_live = set()


@dataclasses.dataclass
class Limits:
    """How a command is run: seconds, the cgroup's limit (None: none), whether as an ordinary user,
    whether the kernel may swap it."""

    timeout_s: float = 120
    limit_mib: float | None = None
    as_user: bool = False
    use_cgroup: bool = True
    swap: bool = False


class Job:
    """A started command. Use as a context manager: whatever of it is alive at the end is killed."""

    def __init__(self, argv, limits, cwd, stdin=None, env=None, prefix="run"):
        self.limits = limits
        self.cwd = Path(cwd)
        self.mark = uuid.uuid4().hex
        self.out = self.cwd / f"{prefix}.out"
        self.err = self.cwd / f"{prefix}.err"
        self.cgroup = self.sampler = None
        self.no_cgroup = ""
        self.left_behind = []
        if limits.use_cgroup:
            try:
                self.cgroup = Cgroup(limits.limit_mib, limits.swap)
            except Skip as skip:
                self.no_cgroup = str(skip)
        _live.add(self)
        self.started = time.monotonic()
        with open(stdin or os.devnull, "rb") as source, open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                self._wrap([str(word) for word in argv]),
                cwd=self.cwd,
                stdin=source,
                stdout=out,
                stderr=err,
                env={**self._environment(), **(env or {}), MARK: self.mark},
                start_new_session=True,
            )
        if self.cgroup:
            self.sampler = Sampler(self.cgroup)
            self.sampler.start()

    def _environment(self):
        """Ours without the variables that farpage reads, with a TMPDIR that must be empty at the end."""
        words = {name: value for name, value in os.environ.items() if not name.startswith("FARPAGE_")}
        words["TMPDIR"] = str(temporary(self.cwd))
        if self.limits.as_user:  # directories of root's own in PATH would answer EACCES
            words |= {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(self.cwd)}
        return words

    def _wrap(self, argv):
        if self.limits.as_user and os.geteuid() == 0:
            user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all", "--"]
            argv = user + argv
        if self.cgroup:
            argv = ["sh", "-c", 'echo 0 >"$0" && exec "$@"', str(self.cgroup.procs_file), *argv]
        return argv

    def alive(self):
        """Pids of ours that still run: the cgroup's, or those that carry our mark in their environment."""
        if self.cgroup:
            return self.cgroup.pids()
        mark = f"{MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                pass
        return found

    def wait(self):
        """The exit code (-N for signal N), or None when the time limit passed and all was killed."""
        self._sleep_to_end()
        try:
            code = self.process.wait(max(0.1, self.limits.timeout_s - (time.monotonic() - self.started)))
        except subprocess.TimeoutExpired:
            code = None
        self.seconds = time.monotonic() - self.started
        return code

    def _sleep_to_end(self):
        """Until the process ends or its time is over. Popen.wait with a limit looks only every 50 ms: too coarse to time by."""
        try:
            ended = os.pidfd_open(self.process.pid)
        except OSError:  # it has ended, and was waited for
            return
        try:
            left = self.limits.timeout_s - (time.monotonic() - self.started)
            select.select([ended], [], [], max(0.1, left))
        finally:
            os.close(ended)

    def settle(self, seconds=3.0):
        """Waits until nothing of the job runs; what still does then is named in `left_behind`."""
        deadline = time.monotonic() + seconds
        while (pids := self.alive()) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.left_behind = [f"{pid} ({command_name(pid)})" for pid in pids]
        return self.left_behind

    def oom_kills(self):
        return self.cgroup.oom_kills() if self.cgroup else 0

    def close(self):
        if self.sampler:
            self.sampler.stop()
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        if self.cgroup:
            self.cgroup.remove()
        else:
            for pid in self.alive():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.process.wait()
        _live.discard(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def temporary(directory):
    """The TMPDIR of a run: it must be empty at its end."""
    path = directory / "tmp"
    path.mkdir(exist_ok=True)
    return path


def command_name(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "ended"


@atexit.register
def _close_all():
    for job in list(_live):
        job.close()


def end_cleanly_on_signals():
    """SIGTERM, SIGHUP and Ctrl-C leave by the ordinary way, so that every job is closed. The first one: a second would cut that short
    (Ctrl-C reaches a line of tests itself, and then the SIGTERM of who started it)."""
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

    def leave(number, _frame):
        for later in numbers:
            signal.signal(later, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in numbers:
        signal.signal(number, leave)


class Leftovers:
    """What lies about in the shared places. Other people's files there are not ours to judge: in /tmp and /run only
    names that tell of farpage count; in /var/tmp and /dev/shm every new one does."""

    PLACES = {"/tmp": False, "/run": False, "/var/tmp": True, "/dev/shm": True}

    def __init__(self):
        self.before = self._look()

    def _look(self):
        names = set()
        for place, all_of_them in self.PLACES.items():
            for entry in Path(place).iterdir() if Path(place).is_dir() else ():
                told = "farpage" in entry.name.lower()
                if (all_of_them or told) and not (told and names_a_live_process(entry.name)):
                    names.add(str(entry))
        areas = [line.split()[0] for line in Path("/proc/swaps").read_text().splitlines()[1:]]
        names.update(f"swap area {area}" for area in areas if not names_a_live_process(Path(area).name))
        return names

    def new(self, patience_s=30):
        """What came and stays. (Tests run side by side: what another one has about goes away.)"""
        end = time.monotonic() + patience_s
        while (new := self._look() - self.before) and time.monotonic() < end:
            time.sleep(0.5)
        return sorted(new)


def names_a_live_process(name):
    """Whether a number in the name is the pid of a running process (another farpage at work)."""
    numbers = "".join(letter if letter.isdigit() else " " for letter in name).split()
    return any(Path(f"/proc/{number}").is_dir() for number in numbers)
