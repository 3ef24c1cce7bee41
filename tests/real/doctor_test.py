"""`farpage doctor`: what `farpage run` would refuse is marked FAIL beforehand, with the fix beside it."""

import json
import os
import re
import subprocess
from pathlib import Path

from cases import read_stats, swapped_out
from checks_test import ALL, doctored, run_words, told_with_a_fix
from common import FARPAGE, check
from context import Skip, refusing, test
from semantics_test import program
from swapspec_test import Loop, root_only

DOCTOR = [FARPAGE, "doctor", "--json"]
# System calls that a container may refuse, and what is said then.
CALLS = {
    "userfaultfd": (323, "userfaultfd"),
    "seccomp": (317, "seccomp filter"),
    "prctl": (157, "dispatch"),
    "memfd_create": (319, "memory file"),
}


@test("doctor", ALL)
def doctor(context):
    """Where farpage run works nothing fails; as text it is the same."""
    got = context.plain([*DOCTOR, "true"])
    failed = doctored(got, "doctor")
    check(not failed, f"doctor where farpage run works: {failed}")
    text = context.plain([FARPAGE, "doctor", "true"])
    for entry in json.loads(got.out)["checks"]:
        line = rf"^{entry['status'].upper()} +{re.escape(entry['name'])} "
        check(re.search(line, text.out, re.M), f"{entry['name']} is not in the text: {text.out}")
    for words, name in ((["/no/such/program"], "command"), (["--ram", "64K"], "budget")):
        [failed] = doctored(context.plain([*DOCTOR, *words]), words)
        check(failed["name"] == name, f"{words}: {failed}")


@test("doctor-limits", ALL)
def doctor_limits(context):
    """It once said that farpage run can work here under limits of the shell under which that refuses."""
    for limit, option in (("ulimit -f 4096", "-f"), ("ulimit -v 3000000", "-v"), ("ulimit -n 40", "-n")):
        got = context.plain(["sh", "-c", f'{limit}; exec "$@"', "sh", *DOCTOR, "--ram", "64M"])
        failed = doctored(got, limit)
        check(len(failed) == 1 and f"ulimit {option}" in failed[0]["fix"], f"{limit}: {failed}")
        got = context.plain(["sh", "-c", f'{limit}; exec "$@"', "sh", *run_words("--ram", "64M"), "echo", "started"])
        check(got.code == 125 and not got.out, f"run, {limit}: {got.code} {got.out}")
        told_with_a_fix(got, f"run, {limit}")


@test("refused-by-filter", ALL)
def refused_by_filter(context):
    """Under a container's filter the program once ran without its budget, or was stopped at its first fork."""
    for call, (number, word) in CALLS.items():
        under = refusing(number)
        if call == "userfaultfd" and has_device(context):
            under = [*without_device(context), *under]
        got = context.plain([*under, *run_words("--ram", "64M"), "echo", "started"])
        check(got.code == 125 and not got.out, f"{call} refused: {got.code} {got.out} {got.err[-300:]}")
        told_with_a_fix(got, f"{call} refused")
        check(word in got.err and "seccomp profile" in got.err, f"{call} refused: {got.err}")
        failed = doctored(context.plain([*under, *DOCTOR]), f"{call} refused")
        check(any("seccomp profile" in entry["fix"] for entry in failed), f"{call} refused, doctor: {failed}")


DEVICE = Path("/dev/userfaultfd")


def has_device(context):
    if context.as_user:
        return DEVICE.exists() and DEVICE.stat().st_mode & 0o006 == 0o006
    return os.access(DEVICE, os.R_OK | os.W_OK)


def without_device(context):
    """What is started by these words can't open it: nobody opens devices below a mount with `nodev`."""
    hide = f'mount --bind {DEVICE} {DEVICE} && mount -o remount,bind,nodev {DEVICE} && exec "$@"'
    return ["unshare", "-rm" if context.as_user or os.geteuid() != 0 else "-m", "sh", "-c", hide, "sh"]


@test("userfaultfd-by-device", per_delivery=True)
def userfaultfd_by_device(context):
    """Where a container's filter refuses the call, the device does: docker run --device /dev/userfaultfd."""
    if not has_device(context):
        raise Skip("/dev/userfaultfd can't be opened")
    filtered = [*refusing(CALLS["userfaultfd"][0])]
    check(not doctored(context.plain([*filtered, *DOCTOR]), "a device"), "doctor, with the device")
    stats = context.directory / "device.json"
    words = run_words("-q", "--ram", "24M", "--delivery", context.delivery, "--stats-json", stats)
    got = context.plain([*filtered, *words, program("fill"), 64, 2], timeout_s=120)
    check(got.code == 0 and not got.err, f"exit code {got.code}: {got.err[-300:]}")
    check(swapped_out(read_stats(stats)) > 0, "nothing was swapped out")


def contents(directory):
    """Names of the files in a directory, and what changes when they do."""
    files = [path for path in directory.iterdir() if path.is_file() and not path.name.startswith("run")]
    return sorted((path.name, path.stat().st_ino, path.stat().st_size, path.stat().st_mtime_ns) for path in files)


@test("doctor-swap", ALL)
def doctor_swap(context):
    """--swap: it finds what farpage run would, and nothing is created, shortened or removed."""
    place = context.directory
    empty, zeros = context.own_file("empty", b""), context.own_file("zeros", bytes(2 << 20))
    precious = context.own_file("precious", b"not yours\n" * 1000)
    secret = context.own_file("secret", bytes(2 << 20))
    secret.chmod(0)
    before = contents(place)
    table = {
        "compressed": None,
        f"{place}:64M": None,
        f"{place}/new:64M": None,
        f"{empty}:64M": None,
        zeros: None,
        f"{zeros}:3M": "give a size",
        precious: "holds data",
        "/dev/null": "neither",
        f"{place}:banana": "no size",
        f"{place}:900T": "only .* free",
        f"{place}:4K": "at least 1",
        "compresed:64M": "./compresed",
        f"{place}/no/new:64M": "directory",
    }
    if context.as_user:
        table[secret] = "permission denied"
    for spec, why in table.items():
        failed = doctored(context.plain([*DOCTOR, "--swap", spec]), spec)
        check(len(failed) == (why is not None), f"{spec}: {failed}")
        if why:
            got = context.plain([*run_words("--ram", "64M", "--swap", spec), "true"])
            said = f"{failed[0]['detail']}; {failed[0]['fix']}"
            check(re.search(why, said, re.I), f"{spec}: {said}")
            check(why.startswith("only") or said in got.err, f"{spec}: {said}, but run: {got.err}")
    check(contents(place) == before, f"changed: {contents(place)}, before {before}")
    for listed, fix in ((f"compressed,{precious}", "remove this one"), (f"{place}:1M,compressed", "name it first")):
        [failed] = doctored(context.plain(DOCTOR, env={"FARPAGE_SWAP": listed}), listed)
        check(fix in failed["fix"], f"FARPAGE_SWAP={listed}: {failed}")
    got = context.plain([*DOCTOR, "--swap", f"{place}:64M"], env={"FARPAGE_SWAP": str(precious)})
    check(not doctored(got, "an option"), f"the option wins over the environment: {got.out}")


@test("doctor-device", ("quick", "soak"))
def doctor_device(context):
    """A device is looked at as farpage run looks at it: in use, with data, or nobody's; it stays as it is."""
    root_only()
    with Loop(context.directory / "disk.img", 64) as loop:
        free = doctored(context.plain([*DOCTOR, "--swap", loop.device]), "an empty device")
        check(not free and loop.file.read_bytes().count(0) == 64 << 20, f"an empty device: {free}")
        place = loop.mount(context)
        [failed] = doctored(context.plain([*DOCTOR, "--swap", loop.device]), "a mounted device")
        check("unmount" in failed["fix"], f"a mounted device: {failed}")
        [failed] = doctored(context.plain([*DOCTOR, "--swap", f"{place}:256M"]), "a full disk")
        check("only" in failed["detail"] and sorted(os.listdir(place)) == ["lost+found"], f"a full disk: {failed}")
        subprocess.run(["umount", place], check=True)
        loop.mounted = None
        [failed] = doctored(context.plain([*DOCTOR, "--swap", loop.device]), "a device with data")
        check("wipefs" in failed["fix"], f"a device with data: {failed}")
