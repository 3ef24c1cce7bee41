"""full_container.py MIB FILE_MIB ROUNDS: anonymous memory, and in turn with it a mapped file, as programs' text is, that is not in the page cache at first.
Prints a sum of both."""

import mmap
import os
import sys

PAGE = 4096
mib, file_mib, rounds = map(int, sys.argv[1:])
with open("text", "wb") as file:
    for number in range(file_mib):
        file.write(bytes([number % 251 + 1]) * (1 << 20))
    file.flush()
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
with open("text", "rb") as file:
    text = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
os.unlink("text")
text.madvise(mmap.MADV_RANDOM)
data = mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(data), PAGE):
    data[at] = at // PAGE % 256
total = 0
for number in range(rounds):
    for at in range(number % 8 * PAGE, len(data), 8 * PAGE):
        data[at] = (data[at] + 1) % 256
        total += data[at]
    for at in range(0, len(text), PAGE):
        total += text[at]
print(total)
