"""Runs a command in a memory cgroup with a hard limit and no swap: in_cgroup.py MIB -- CMD ARGS.

Says what came of it. Exit code 0 when it was killed for want of memory, and when no cgroup can be made here (a line that
begins with SKIP says why); 1 when it was not killed. The cgroup is always removed.
"""

import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/real"))

from cgroup import Cgroup
from common import Skip


def main():
    limit_mib, command = int(sys.argv[1]), sys.argv[3:]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        cgroup = Cgroup(limit_mib)
    except Skip as skip:
        print(f"SKIP cgroup comparison: {skip}")
        return 0
    with cgroup:
        enter = ["sh", "-c", 'echo 0 >"$0" && exec "$@"', cgroup.procs_file, *command]
        code = subprocess.run(enter).returncode
        kills = cgroup.oom_kills()
    if kills:
        print(f"killed by the kernel: out of memory ({kills} OOM kill in the cgroup)")
        return 0
    print(f"it ended with exit code {code} and was not killed")
    return 1


if __name__ == "__main__":
    sys.exit(main())
