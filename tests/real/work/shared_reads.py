"""shared_reads.py MIB TOUCHES CHILDREN: memory that is filled, shared by fork, and read at random, page by page, by the children and their parent at the same time.
Prints a word once it is filled, and then how many pages held something else."""

import mmap
import os
import random
import sys

PAGE = 4096
mib, touches, children = map(int, sys.argv[1:])
pages = (mib << 20) // PAGE
data = mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(pages):
    # Half of it is different in each page.
    data[page * PAGE : page * PAGE + 2048] = random.Random(page).randbytes(2048)


def wrong(seed):
    picks = random.Random(seed)
    count = 0
    for page in (picks.randrange(pages) for _ in range(touches)):
        count += data[page * PAGE : page * PAGE + 8] != random.Random(page).randbytes(2048)[:8]
    return count


print("filled", flush=True)
pids = []
for child in range(children):
    pid = os.fork()
    if pid == 0:
        os._exit(min(wrong(child), 100))
    pids.append(pid)
total = wrong(children)
for pid in pids:
    total += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(total)
