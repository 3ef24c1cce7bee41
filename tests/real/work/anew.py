"""Fills MIB of memory, then runs itself anew TIMES times: anew.py MIB TIMES. The last one touches all of it for a second and says how many MiB
it has in RAM. Prints `begun` and `resident N`."""

import os
import sys
import time

mib, times = int(sys.argv[1]), int(sys.argv[2])
held = [bytearray(os.urandom(1 << 20)) for _ in range(mib)]
print("begun", flush=True)
if times:
    time.sleep(1.2)
    os.execv(sys.executable, [sys.executable, *sys.argv[:2], str(times - 1)])
end = time.monotonic() + 1
while time.monotonic() < end:
    for part in held:
        part[::4096] = bytes(256)
with open("/proc/self/status") as status:
    kib = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
print("resident", kib >> 10, flush=True)
