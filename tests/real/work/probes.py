"""Holds MIB of memory, says so, and asks 300 times for more than there is room for once the file GO is there: probes.py MIB GO. Prints `begun`
and `refused N`."""

import mmap
import os
import sys
import time

mib, go = int(sys.argv[1]), sys.argv[2]
held = [bytearray(os.urandom(1 << 20)) for _ in range(mib)]
print("begun", flush=True)
while not os.path.exists(go):
    time.sleep(0.02)
refused = 0
for _ in range(300):
    try:
        mmap.mmap(-1, 2 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        refused += 1
print("refused", refused, flush=True)
