"""Holds MIB of data and checks it when the file GO appears: hold.py MIB GO [CHILDREN [soft]]. It does not compress, but for `soft`.

Children are forked when the data is there; they check it too. Prints `ready` and `ok`."""

import hashlib
import os
import random
import sys
import time
from pathlib import Path

mib, go = int(sys.argv[1]), Path(sys.argv[2])
children = int(sys.argv[3]) if len(sys.argv) > 3 else 0
KIB = 1024


def part(number):
    """A MiB. Of what is soft each page holds the same KiB four times."""
    if sys.argv[4:] != ["soft"]:
        return random.Random(number).randbytes(KIB * KIB)
    some = random.Random(number).randbytes(KIB * KIB // 4)
    return b"".join(some[at : at + KIB] * 4 for at in range(0, len(some), KIB))


parts = [part(number) for number in range(mib)]
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
