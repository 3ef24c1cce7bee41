"""Other roots (chroot): what a program finds there."""

import os
import re
import shutil
import subprocess
import sys

from common import FARPAGE, Skip, check
from context import test
from semantics_test import failures

WITHOUT = "farpage: programs started here run without a memory budget: there is no /proc in this root"

# Goes into a root and starts programs there in several ways.
GOES = """
import os, subprocess, sys
os.chroot(sys.argv[1])
os.chdir("/")
run = ["/bin/sh", "-c", "echo $0 ${LD_PRELOAD-none} ${FARPAGE_POOL_FD-none}"]
print(os.system("echo system ${LD_PRELOAD-none} ${FARPAGE_POOL_FD-none}"), flush=True)
print(subprocess.call([*run, "subprocess"]), flush=True)
print(os.waitpid(os.posix_spawn(run[0], [*run, "spawn"], os.environ), 0)[1], flush=True)
print(os.popen("echo popen ${LD_PRELOAD-none} ${FARPAGE_POOL_FD-none}").read().strip(), flush=True)
os.execv(run[0], [*run, "exec"])
"""


def root_with_shell(context):
    """A directory with a shell and the libraries that it needs."""
    root = context.directory / "root"
    (root / "bin").mkdir(parents=True)
    shutil.copy("/bin/sh", root / "bin")
    libraries = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"(/\S+) \(0x", libraries):
        target = root / library[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    return root


@test("root-without-proc", per_delivery=True)
def root_without_proc(context):
    """The loader can't open the library by /proc in a root that has none: each program there had a line of its complaint, and no budget, and
    nobody said so. They run as without farpage, and who starts them says so once."""
    if os.geteuid() != 0:
        raise Skip("needs root: chroot")
    root = root_with_shell(context)
    inner = "/bin/sh -c 'echo ${LD_PRELOAD-none}'; echo $(echo inner)"
    expected = [word for way in ("system", "subprocess", "spawn") for word in (f"{way} none none", "0")] + ["popen none none", "exec none none"]
    run = [FARPAGE, "run", "-q", "--ram", "64M", "--delivery", context.delivery]
    for extra in ([], ["--eager"]):
        got = context.plain([*run, *extra, "--", "chroot", root, "/bin/sh", "-c", inner])
        check(got.code == 0 and got.out.split() == ["none", "inner"], f"{extra}: {failures(got)} {got.out!r}")
        check(len(got.err_lines()) == 1 and got.err.startswith(WITHOUT), f"{extra}: told: {got.err!r}")
        got = context.plain([*run, *extra, "--", sys.executable, "-c", GOES, root])
        check(got.code == 0 and got.out.splitlines() == expected, f"{extra}: {failures(got)} {got.out!r}")
        check(len(got.err_lines()) == 1 and got.err.startswith(WITHOUT), f"{extra}: told: {got.err!r}")
    # Who has no budget says nothing of it.
    got = context.plain([*run, "--", "unshare", "-pf", "chroot", root, "/bin/sh", "-c", inner])
    check(got.code == 0 and got.out.split() == ["none", "inner"] and not got.err, f"in a namespace: {failures(got)} {got.err!r}")
    # Where it is mounted they follow.
    (root / "proc").mkdir()
    mounted = ["unshare", "-m", "sh", "-c", 'mount --rbind /proc "$0/proc" && exec chroot "$0" /bin/sh -c "echo \\$LD_PRELOAD"', root]
    got = context.plain([*run, "--", *mounted])
    check(got.code == 0 and got.out.startswith("/proc/self/fd/") and not got.err, f"with /proc: {failures(got)} {got.err!r}")
