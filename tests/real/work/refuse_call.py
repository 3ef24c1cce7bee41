"""NUMBER CMD ARGS: becomes CMD, for which the kernel refuses the system call of that number with EPERM, as a container's filter may."""

import ctypes
import os
import struct
import sys

EPERM = 1
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, FILTER = 22, 38, 2
LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
ERRNO, ALLOW = 0x00050000, 0x7FFF0000

libc = ctypes.CDLL(None, use_errno=True)
words = [(LOAD, 0, 0, 0), (JUMP_EQUAL, 0, 1, int(sys.argv[1])), (RETURN, 0, 0, ERRNO | EPERM), (RETURN, 0, 0, ALLOW)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *word) for word in words))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(words), ctypes.addressof(code)))
for call in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, FILTER, program, 0, 0)):
    if libc.prctl(*call):
        sys.exit(f"prctl {call[0]}: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[2], sys.argv[2:])
