"""Takes memory MiB by MiB and fills it, then looks at all of it twice. Usage: mixed.py KIND:MIB..., where KIND is `random` (does not
compress) or `ninth` (compresses to about a ninth). Prints `reached N MiB, refused` or `reached N MiB, all`, and whether all was right."""

import hashlib
import mmap
import os
import sys

MIB = 1 << 20
PAGE = 4096
KINDS = {
    "random": lambda: os.urandom(MIB),
    "ninth": lambda: b"".join(os.urandom(400).ljust(PAGE, b"\x07") for _ in range(MIB // PAGE)),
}

known = []


def take(make):
    """One MiB more; False if there is none, or none to make its content in."""
    try:
        content = make()
        area = mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, MemoryError):
        return False
    area[:] = content
    known.append((area, hashlib.sha256(content).digest()))
    return True


wanted = [KINDS[kind] for kind, mib in (word.split(":") for word in sys.argv[1:]) for _ in range(int(mib))]
all_taken = all(take(make) for make in wanted)
print(f"reached {len(known)} MiB, {'all' if all_taken else 'refused'}", flush=True)
right = all(hashlib.sha256(area).digest() == digest for _ in range(2) for area, digest in known)
print("right" if right else "WRONG", flush=True)
os._exit(not right)  # with all it has
