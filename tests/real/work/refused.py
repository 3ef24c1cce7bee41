"""Has pages that no tier takes and does with them all that can be done with pages; then `ready` and, at a line on stdin, looks at what
it has and prints `right`. Usage: refused.py MIB"""

import ctypes
import hashlib
import mmap
import os
import sys

MIB = 1 << 20
MAP_NORESERVE = 0x4000
mib = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
libc.mremap.restype = ctypes.c_void_p
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def mapped(mib):
    address = libc.mmap(None, mib * MIB, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    assert address not in (None, ctypes.c_void_p(-1).value), "mmap failed"
    return address


def press():
    """What compresses, four times as much as the program has else, so that all its pages are tried."""
    soft = mmap.mmap(-1, 4 * mib * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    for at in range(0, len(soft), 4096):
        soft[at : at + 64] = at.to_bytes(8, "little") * 8
    soft.close()


def read(address, length):
    return ctypes.string_at(address, length)


data = os.urandom(mib * MIB)
known = {}
address = mapped(mib)
ctypes.memmove(address, data, len(data))
del data
press()
quarter = mib * MIB // 4
# A quarter is unmapped but for its last page, a quarter moves, half of the third is dropped.
libc.munmap(address, quarter - 4096)
known[address + quarter - 4096] = (4096, hashlib.sha256(read(address + quarter - 4096, 4096)).digest())
digest = hashlib.sha256(read(address + quarter, quarter)).digest()
moved = libc.mremap(address + quarter, quarter, 2 * quarter, 1)
assert moved not in (None, ctypes.c_void_p(-1).value), "mremap failed"
known[moved] = (quarter, digest)
third = address + 2 * quarter
libc.madvise(ctypes.c_void_p(third), ctypes.c_size_t(quarter // 2), mmap.MADV_DONTNEED)
known[third] = (quarter // 2, hashlib.sha256(bytes(quarter // 2)).digest())
# The fourth compresses from now on, and children have all of it.
ctypes.memset(address + 3 * quarter, 7, quarter)
known[address + 3 * quarter] = (quarter, hashlib.sha256(b"\x07" * quarter).digest())
children = []
for number in range(2):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        children = []
        press()
        os.read(reading, 1)
        break
    os.close(reading)
    children.append((pid, writing))
else:
    press()
    print("ready", flush=True)
    sys.stdin.readline()
    for _, writing in children:
        os.close(writing)
wrong = [hex(at) for at, (length, digest) in known.items() if hashlib.sha256(read(at, length)).digest() != digest]
wrong += [pid for pid, _ in children if os.waitpid(pid, 0)[1]]
print("right" if not wrong else f"WRONG {wrong}", flush=True)
os._exit(bool(wrong))
