"""--swap: what is used, and what is refused without being written to."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

from cases import swapped_out
from checks_test import ALL, refused, run_words
from common import FARPAGE, Skip, check
from context import last_words, numpy_sort, test, until
from stress_test import checked
from swapoff_test import PYTHON, Tree, finish, holding, ready
from swapoff_test import start as swapoff_start

# Needs twice its budget, then says how it has a device, or unlinked files in a directory, open itself.
HOW_OPEN = """
import os, sys
held = bytearray(b'x') * (48 << 20)
for number in os.listdir('/proc/self/fd'):
    path = f'/proc/self/fd/{number}'
    name = os.readlink(path) if os.path.islink(path) else ''
    if name == sys.argv[1] or name.startswith(sys.argv[1] + '/') and name.endswith(' (deleted)'):
        with open(f'/proc/self/fdinfo/{number}') as info:
            flags = next(line for line in info if line.startswith('flags:'))
        print('direct' if int(flags.split()[1], 8) & os.O_DIRECT else 'buffered')
"""


def past_the_page_cache(context, place, spec):
    """A managed process reads and writes its swap file without the page cache, where the file system has that."""
    got = context.budget_run(24, [PYTHON, "-c", HOW_OPEN, place], extra=["--swap", spec])
    check(got.code == 0 and swapped_out(got.stats) > 0, f"{spec}: {got.code} {got.err[-300:]}")
    wanted = "direct" if opens_direct(place) else "buffered"
    check(set(got.out.split()) == {wanted}, f"{spec} is open {got.out.split()}, not {wanted}")


def opens_direct(place):
    kind = os.O_TMPFILE if os.path.isdir(place) else 0
    try:
        os.close(os.open(place, os.O_RDWR | os.O_DIRECT | kind))
        return True
    except OSError:
        return False


@test("bad-specs", ALL)
def bad_specs(context):
    precious = context.own_file("precious", b"not yours\n" * 1000)
    for spec in (
        "",
        "compressed:banana",
        "compressed:0",
        "/nonexistent/directory/file:64M",
        f"{context.directory}:banana",
        f"{context.directory}:-1",
        f"{precious}:64M",
        f"{precious}",
        "/dev/null:64M",
        "/proc/self/mem:64M",
        "redis://127.0.0.1:1:64M",
    ):
        refused(context, ["--ram", "64M", "--swap", spec])
    check(precious.read_bytes() == b"not yours\n" * 1000, "a file that is not ours was changed")
    refused(context, ["--ram", "64M", "--swap", f"{context.directory}:64M", "--swap", "compressed:nonsense"])
    # It was used first all the same.
    for path in (f"{context.directory}:64M", f"{context.directory}:64M,pri=5"):
        refused(context, ["--ram", "64M", "--swap", path, "--swap", "compressed"], pattern="name it first")
    # A new file there would lie in RAM, where a mistyped device is meant.
    refused(context, ["--ram", "64M", "--swap", "/dev/farpage-none:64M"], pattern="there is no such device")
    refused(context, ["--ram", "64M", *["--swap", f"{context.directory}:1M"] * 9], pattern="give at most 8")


@test("swap-tiers", ("quick", "soak"), per_delivery=True)
def swap_tiers(context):
    """Each kind of place by itself and two in order; afterwards only a file that was named remains."""
    place = context.directory / "swapfile"
    for words in (
        ["--swap", f"{context.directory}:512M"],
        ["--swap", f"{place}:512M"],
        ["--swap", "compressed:16M", "--swap", f"{context.directory}:512M"],
    ):
        got = context.budget_run(32, numpy_sort(64), extra=words)
        check(got.code == 0 and "kept True sorted True" in got.out, f"{words}: {got.code} {got.err[-300:]}")
        check(swapped_out(got.stats) > 0, f"{words}: nothing swapped out")
        check(got.stats["pswpout"] > 0, f"{words}: pswpout 0, the file was not used")
    for spec in (f"{context.directory}:512M", f"{place}:512M"):
        past_the_page_cache(context, context.directory, spec)
    names = {entry.name for entry in context.directory.iterdir()}
    strange = [name for name in names if not name.startswith(("run", "stats", "tmp", "swapfile"))]
    check(not strange, f"left in the swap directory: {strange}")


class Loop:
    """A loop device of our own over a new file; detached at the end."""

    def __init__(self, file, mib):
        self.file = file
        with open(self.file, "wb") as image:
            image.truncate(mib << 20)
        made = subprocess.run(["losetup", "--find", "--show", self.file], capture_output=True, text=True)
        if made.returncode != 0:
            raise Skip(f"no loop device: {made.stderr.strip() or 'losetup failed'}")
        self.device = made.stdout.strip()
        self.mounted = None

    def mount(self, context):
        # Else ext4 itself goes on writing to the device, some seconds after the mount.
        at_once = "lazy_itable_init=0,lazy_journal_init=0"
        subprocess.run(["mkfs.ext4", "-q", "-F", "-E", at_once, self.device], check=True, capture_output=True)
        place = context.directory / "mnt"
        place.mkdir()
        if subprocess.run(["mount", self.device, place], capture_output=True).returncode != 0:
            raise Skip("mount is not permitted")
        self.mounted = place
        return place

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.mounted:
            subprocess.run(["umount", self.mounted], capture_output=True)
        subprocess.run(["losetup", "--detach", self.device], capture_output=True)


def root_only():
    if os.geteuid() != 0:
        raise Skip("loop devices need root")


@test("block-device", ("quick", "soak"), per_delivery=True)
def block_device(context):
    root_only()
    with Loop(context.directory / "disk.img", 512) as loop:
        for turn in ("first", "again"):
            got = context.budget_run(32, numpy_sort(64), extra=["--swap", loop.device])
            check(got.code == 0 and "kept True sorted True" in got.out, f"{turn}: {got.code} {got.err[-300:]}")
            check(got.stats["pswpout"] > 0, f"{turn}: the device was not used")
        past_the_page_cache(context, loop.device, loop.device)


@test("device-too-large", ("quick", "soak"))
def device_too_large(context):
    """A device with more blocks than there are slots was once used up to the last slot, and nobody was told."""
    root_only()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory, Loop(Path(directory) / "disk.img", 20 << 20) as loop:
        got = context.plain([FARPAGE, "run", "--ram", "32M", "--swap", loop.device, "--", "true"])
        told = re.search(rf"{loop.device}:\d+G", got.err)
        check(got.code == 125 and "20 TiB" in got.err and told, f"refused: {got.code} {got.err}")
        got = context.plain([FARPAGE, "run", "-q", "--ram", "32M", "--swap", told[0], "--", "true"])
        check(got.code == 0 and not got.err, f"a part of it: {got.code} {got.err}")


# Writes 64 MiB that do not compress, compares and frees them, and waits for a file after each.
FILL_AND_FREE = """
import mmap, os, sys, time
noise = os.urandom(1 << 20)
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.02)
memory = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, 64 << 20, 1 << 20):
    memory[at : at + (1 << 20)] = noise
print('full', flush=True)
wait_for(sys.argv[1])
assert all(memory[at : at + (1 << 20)] == noise for at in range(0, 64 << 20, 1 << 20))
memory.close()
wait_for(sys.argv[2])
"""


def gives_space_back(context, spec, taken):
    """What a program frees the disk has again while it runs on; `taken(job)`: bytes of the disk that the area takes."""
    full, empty = context.directory / "full", context.directory / "empty"
    with context.start(24, [PYTHON, "-c", FILL_AND_FREE, full, empty], extra=["--swap", spec]) as job:
        until("memory is full", lambda: "full" in job.out.read_text() or job.process.poll() is not None)
        check(job.process.poll() is None, f"ended with {job.process.poll()}: {last_words(job)}")
        most = taken(job)
        check(most > 32 << 20, f"only {most} bytes were written: {last_words(job)}")
        full.touch()
        until(f"the disk has {most} bytes again", lambda: taken(job) < 24 << 20)
        empty.touch()
        check(job.wait() == 0, last_words(job))
        context.finish(job)
        check(context.stats()["discard"] >= 12, f"{context.stats()['discard']} clusters of 2 MiB were given back")


@test("gives-space-back", ALL)
def gives_space_back_to_file_system(context):
    """A file that grows as it is written shrinks again."""
    gives_space_back(context, context.directory, lambda job: space_of_file(context, job))


def space_of_file(context, job):
    """Bytes of the disk that the unlinked swap file takes."""
    own = Path(f"/proc/{job.process.pid}/fd")
    mine = [own / name for name in os.listdir(own) if is_in(own / name, context.directory)]
    return sum(os.stat(entry).st_blocks * 512 for entry in mine)


# Writes so many MiB, every other page of which compresses, and waits for a file.
EVERY_OTHER = """
import mmap, os, sys, time
length = int(sys.argv[1]) << 20
memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, length, 8192):
    memory[at : at + 4096], memory[at + 4096 : at + 8192] = os.urandom(4096), b'\\x07' * 2048 + bytes(range(256)) * 8
print('full', flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
"""


@test("every-other-compresses", ALL)
def every_other_compresses(context):
    """Pages that are kept compressed end no write of those beside them: each page was a write of its own, since slots went to both kinds in
    turn. And on ext4 a file that grows takes its space by whole clusters, ahead of the writes: each that took some held up every read."""
    done = context.directory / "done"
    words = [PYTHON, "-c", EVERY_OTHER, "96", done]
    with context.start(32, words, extra=["--swap", "compressed:8M", "--swap", context.directory]) as job:
        until("memory is full", lambda: "full" in job.out.read_text() or job.process.poll() is not None)
        taken = space_of_file(context, job)
        done.touch()
        check(job.wait() == 0, last_words(job))
        context.finish(job)
    stats = context.stats()
    check(stats["zswpout"] > 4096 and stats["pswpout"] > 4096, f"both kinds left: {stats['zswpout']}, {stats['pswpout']}")
    pages = stats["file_write_bytes"] / 4096 / stats["file_write"]
    check(pages > 8, f"a write had {pages:.1f} pages")
    if subprocess.check_output(["stat", "-f", "-c", "%T", context.directory], text=True).startswith("ext"):
        # The map of the file's own blocks counts, too.
        check(taken % (2 << 20) < 1 << 16, f"{taken} bytes of the disk are no whole clusters")


# Writes pages that compress, takes every other one back and changes it, then writes others until most have been written back.
BACK_AND_OUT = """
import mmap, os
def take(mib):
    area = mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, len(area), 4096):
        area[at : at + 4096] = at.to_bytes(8, 'little') + os.urandom(1000) + bytes(3088)
    return area
first = take(32)
for at in range(0, len(first), 8192):
    first[at + 8] = 1
rest = take(64)
assert all(int.from_bytes(area[at : at + 8], 'little') == at for area in (first, rest) for at in range(0, len(area), 4096))
"""


@test("written-back-with-gaps", ALL)
def written_back_with_gaps(context):
    """Slots that pages came back from end no write of those beside them that are written back: sqlite3 did 36,000 such writes of 5 pages."""
    extra = ["--swap", "compressed:12M", "--swap", context.directory]
    got = context.budget_run(32, [PYTHON, "-c", BACK_AND_OUT], extra=extra)
    check(got.code == 0, got.err)
    back, writes = got.stats["zswpwb"], got.stats["file_write"]
    check(back > 8192 and writes * 12 < back, f"{back} pages were written back, by {writes} writes")


def is_in(descriptor, directory):
    """Whether it is an unlinked file there."""
    name = os.readlink(descriptor) if os.path.islink(descriptor) else ""
    return name.startswith(f"{directory}/") and name.endswith("(deleted)")


@test("gives-space-back-to-device", ("quick", "soak"))
def gives_space_back_to_device(context):
    """A block device that can discard is told."""
    root_only()
    with Loop(context.directory / "disk.img", 256) as loop:
        gives_space_back(context, loop.device, lambda _job: os.stat(loop.file).st_blocks * 512)


@test("swapoff-device", ("quick", "soak"), per_delivery=True)
def swapoff_device(context):
    """A block device leaves a running tree, which then has nothing of it open, and joins again."""
    root_only()
    with Loop(context.directory / "disk.img", 256) as loop:
        device, name = loop.device, Path(loop.device).name
        with swapoff_start(context, holding(context, 64), areas=(device, "b:1G")) as job:
            tree = Tree(context, job)
            ready(job)
            check(tree.used(name) > 32 << 20 and tree.holders(device), f"{tree.areas()}")
            for _ in range(2):
                report = tree.swapoff(device)
                check(report["pages_to_tiers"] * 4096 > 16 << 20, f"{report}")
                check(name not in tree.areas(), f"{tree.areas()}")
                check(not tree.holders(device), f"descriptors are left: {tree.holders(device)}")
                # Emptied the other way round, so that pages go to the device again.
                tree.swapon(device, "256M")
                tree.swapoff("b")
                check(tree.used(name) > 16 << 20, f"{tree.areas()}")
                tree.swapon("b")
            checked(context, tree.pid)
            finish(context, job)


@test("device-in-use", ("quick", "soak"))
def device_in_use(context):
    root_only()
    with Loop(context.directory / "disk.img", 64) as loop:
        place = loop.mount(context)
        (place / "file").write_text("precious")
        subprocess.run(["sync", "-f", place], check=True)
        before = loop.file.read_bytes()
        refused(context, ["--ram", "64M", "--swap", loop.device])
        subprocess.run(["sync", "-f", place], check=True)
        check((place / "file").read_text() == "precious", "a mounted device was written to")
        check(loop.file.read_bytes()[4 << 20 :] == before[4 << 20 :], "a mounted device was written to")


@test("compressed-too-large")
def compressed_too_large(context):
    """A compressed tier that the budget has no room for is cut, and that is said."""
    for beside, most, words in (([], 48, "three quarters of"), (["--swap", context.directory], 32, "half of")):
        told = context.plain(run_words("--ram", "64M", "--swap", "compressed:60M", *beside) + ["true"])
        check(told.code == 0 and f"taken as {most} MiB, {words}" in told.err, f"told: {told.err[-300:]}")
        quiet = context.plain(run_words("--ram", "64M", "--swap", f"compressed:{most}M", *beside) + ["true"])
        check("taken as" not in quiet.err, f"told for nothing: {quiet.err[-300:]}")


@test("huge-too-small")
def huge_too_small(context):
    """Huge pages in a budget that never has any: `--huge always` was taken, did nothing and said nothing."""
    told = context.plain(run_words("--ram", "32M", "--huge", "always", "--swap", context.directory) + ["true"])
    check(told.code == 0 and "there are no huge pages" in told.err, f"told: {told.err[-300:]}")
    for quiet in (["--ram", "80M", "--huge", "always"], ["--ram", "32M"]):
        got = context.plain(run_words(*quiet, "--swap", context.directory) + ["true"])
        check(got.code == 0 and "huge" not in got.err, f"{quiet}: {got.err[-300:]}")


@test("swap-in-ram")
def swap_in_ram(context):
    """A swap file in RAM frees none: that is said, and done."""
    if "tmpfs" not in (words := Path("/proc/mounts").read_text().split()) or "/dev/shm" not in words:
        raise Skip("/dev/shm is no tmpfs here")
    for place in ("/dev/shm:64M", f"/dev/shm/farpage-{os.getpid()}:64M"):
        told = context.plain(run_words("--ram", "64M", "--swap", place) + ["true"])
        check(told.code == 0 and "tmpfs" in told.err, f"{place}, told: {told.err[-300:]}")
    refused(context, ["--ram", "64M", "--swap", "/dev/shm:900T"], pattern="only .* free")
    quiet = context.plain(run_words("--ram", "64M", "--swap", context.directory) + ["true"])
    check("tmpfs" not in quiet.err, f"told for nothing: {quiet.err[-300:]}")


@test("disk-full-at-start", ("quick", "soak"))
def disk_full(context):
    root_only()
    with Loop(context.directory / "disk.img", 32) as loop:
        place = loop.mount(context)
        refused(context, ["--ram", "64M", "--swap", f"{place}:256M"], pattern="only .* free")
        check(sorted(os.listdir(place)) == ["lost+found"], f"left on the full disk: {os.listdir(place)}")


@test("default-swap-in-full-disk", ("quick", "soak"))
def spec_without_size(context):
    """A directory without a size is bounded by the free space: the run starts, and does not fill the disk up."""
    root_only()
    with Loop(context.directory / "disk.img", 96) as loop:
        place = loop.mount(context)
        look = ["sh", "-c", 'df --output=avail -k "$0" | tail -1', place]
        got = context.plain(run_words("-q", "--ram", "64M", "--swap", place) + look)
        check(got.code == 0, f"exit code {got.code}: {got.err[-200:]}")
        check(int(got.out) > 0, "the swap file took all free space of the disk")
