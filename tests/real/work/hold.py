"""Holds MIB of data that does not compress and checks it when the file GO appears: hold.py MIB GO [CHILDREN].

Children are forked when the data is there; they check it too. Prints `ready` and `ok`."""

import hashlib
import os
import random
import sys
import time
from pathlib import Path

mib, go = int(sys.argv[1]), Path(sys.argv[2])
children = int(sys.argv[3]) if len(sys.argv) > 3 else 0
parts = [random.Random(number).randbytes(1 << 20) for number in range(mib)]
known = [hashlib.blake2b(part).digest() for part in parts]
pids = []
for _ in range(children):
    pid = os.fork()
    if pid == 0:
        pids = []
        break
    pids.append(pid)
else:
    print("ready", flush=True)
while not go.exists():
    time.sleep(0.02)
wrong = [number for number, part in enumerate(parts) if hashlib.blake2b(part).digest() != known[number]]
for pid in pids:
    wrong += [pid] if os.waitpid(pid, 0)[1] else []
if wrong:
    print("FAIL: wrong parts", wrong, flush=True)
    os._exit(1)
if pids or not children:
    print("ok", flush=True)
os._exit(0)
