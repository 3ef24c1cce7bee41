"""Needs more than its budget while the disk of its swap file is filled by somebody else. Usage: disk_fills.py DIRECTORY"""

import hashlib
import mmap
import os
import sys
import time
from pathlib import Path

MIB = 1 << 20
directory = Path(sys.argv[1])


def mapped(mib):
    return mmap.mmap(-1, mib * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def filled(area):
    """The digests of what does not compress, of which it is full now."""
    for at in range(0, len(area), MIB):
        area[at : at + MIB] = os.urandom(MIB)
    return digests(area)


def digests(area):
    return [hashlib.sha256(area[at : at + MIB]).digest() for at in range(0, len(area), MIB)]


def room_for(mib):
    try:
        return len(bytearray(mib * MIB)) == mib * MIB
    except MemoryError:
        return False


# Both are promised while there is room.
first, second = mapped(40), mapped(12)
known = filled(first)
filler = directory / "filler"
with open(filler, "wb", buffering=0) as file:
    try:
        while True:
            file.write(os.urandom(MIB))
    except OSError:
        pass
known += filled(second)
print("right" if digests(first) + digests(second) == known else "WRONG")
print("refused" if not room_for(16) else "promised")
filler.unlink()
end = time.monotonic() + 60
while not room_for(16) and time.monotonic() < end:
    time.sleep(0.1)
print("room again" if room_for(16) else "no room")
print("right" if digests(first) + digests(second) == known else "WRONG")
