"""Programs on a terminal and those that leave it: job control, forkpty, daemon."""

import shlex
import signal

from cases import swapped_out
from checks_test import run_words
from common import check
from context import test

# An interactive shell on a terminal of its own starts the command, which is stopped by Ctrl-Z and goes on by `fg`.
SHELL = """
import os, pathlib, pty, select, sys, time
command, mark = sys.argv[1:]
pid, terminal = pty.fork()
if pid == 0:
    os.execvp('bash', ['bash', '--norc', '--noprofile', '-i'])
seen = b''
def expect(text, seconds=30):
    global seen
    end = time.monotonic() + seconds
    while text not in seen:
        if not select.select([terminal], [], [], max(0, end - time.monotonic()))[0]:
            sys.exit(f'no {text!r} on the terminal: {seen[-400:]!r}')
        seen += os.read(terminal, 4096)
    seen = seen.split(text, 1)[1]
def states():
    found = []
    for entry in pathlib.Path('/proc').glob('[0-9]*'):
        try:
            if mark.encode() in (entry / 'cmdline').read_bytes() and int(entry.name) != os.getpid():
                found.append((entry / 'stat').read_text().rsplit(')', 1)[1].split()[0])
        except OSError:
            pass
    return found
os.write(terminal, command.encode() + b'\\n')
expect(b'READY')
os.write(terminal, b'\\x1a')
expect(b'Stopped')
# The shell says so when farpage has stopped; each thread of the program stops when it next runs.
end = time.monotonic() + 20
while set(stopped := states()) != {'T'} and time.monotonic() < end:
    time.sleep(0.01)
os.write(terminal, b'fg\\n')
expect(mark.encode())
os.write(terminal, b'go on\\n')
expect(b'READ 5 SUM')
os.write(terminal, b'exit\\n')
os.waitpid(pid, 0)
print(' '.join(sorted(stopped)))
"""
STOPPED = """
import sys
held = bytearray(b'farpage!') * (12 << 20)
print('REA' + 'DY', flush=True)
line = sys.stdin.readline().strip()
print('READ', len(line), 'SUM' if held == bytearray(b'farpage!') * (12 << 20) else 'WRONG', flush=True)
"""

# Starts the command on a terminal of its own, and sends what the terminal sends: Ctrl-C, and that its size has changed.
TYPED = """
import fcntl, os, pty, struct, sys, termios
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
seen = b''
try:
    while part := os.read(terminal, 4096):
        seen += part
        if seen.endswith(b'READY\\r\\n'):
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('4H', 43, 101, 0, 0))
            os.write(terminal, b'\\x03')
except OSError:
    pass
print(seen.decode())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
# An interactive shell starts the command, which makes a process group of its own, and gets Ctrl-C: the shell is to be told of its end.
INTERRUPTED = """
import os, pty, re, select, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.execvp('bash', ['bash', '--norc', '--noprofile', '-i'])
seen = b''
def expect(pattern):
    global seen
    end = time.monotonic() + 30
    while not (found := re.search(pattern, seen)):
        if not select.select([terminal], [], [], max(0, end - time.monotonic()))[0]:
            sys.exit(f'no {pattern!r} on the terminal: {seen[-400:]!r}')
        seen += os.read(terminal, 4096)
    return found.group(0)
os.write(terminal, sys.argv[1].encode() + b'; echo "EN""DED $?"\\n')
expect(b'READY')
os.write(terminal, b'\\x03')
print(expect(rb'ENDED \\d+').decode())
os.write(terminal, b'exit\\n')
os.waitpid(pid, 0)
"""
# The command leads the session of a terminal that is closed when it has begun.
CLOSED = """
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
seen = b''
while b'READY' not in seen:
    seen += os.read(terminal, 4096)
os.close(terminal)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""

# Says which of both came, and a moment later how often.
COUNTED = """
import signal, time
got = []
for number in (signal.SIGINT, signal.SIGWINCH):
    signal.signal(number, lambda number, _: got.append(int(number)))
print('REA' + 'DY', flush=True)
end = time.monotonic() + 20
while len(set(got)) < 2 and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.3)
print('GOT', sorted(got))
"""

# A script's background job, which ignores Ctrl-C, with a program that has a group and a handler of its own.
BACKGROUND = """
import os, signal, time
os.setpgid(0, 0)
got = []
signal.signal(signal.SIGINT, lambda *_: got.append(1))
print('REA' + 'DY', flush=True)
time.sleep(0.5)
print('GOT', len(got), flush=True)
"""

# The same where the program has left its starter's group: by two processes, it and one that it started.
APART = """
import os, signal, sys, time
mine = os.getpid()
reading, writing = os.pipe()
os.setpgid(0, 0)
child = os.fork()
def told(number, _):
    os.write(writing, b'c' if os.getpid() != mine else b'p')
    if os.getpid() != mine:
        os._exit(0)
signal.signal(signal.SIGINT, told)
if child == 0:
    os.write(writing, b'!')
    # A signal that comes as Python begins to sleep is told of after the sleep.
    for _ in range(600):
        time.sleep(0.1)
    os._exit(1)
os.read(reading, 1)
print('REA' + 'DY', flush=True)
got = b''
while len(got) < 2:
    got += os.read(reading, 2)
time.sleep(0.3)
sys.exit(7 if sorted(got) == sorted(b'cp') else 8)
"""

# A child on a terminal of its own reads what it inherited, swapped out or not; so does a daemon, whose parent has ended.
CHILDREN = """
import ctypes, os, pty, sys
held = bytearray(b'farpage!') * (8 << 20)
same = lambda: held == bytearray(b'farpage!') * (8 << 20)
pid, terminal = pty.fork()
if pid == 0:
    print('PTY', os.isatty(0), same(), flush=True)
    os._exit(0)
seen = b''
try:
    while part := os.read(terminal, 4096):
        seen += part
except OSError:
    pass
print(seen.decode().strip(), os.waitpid(pid, 0)[1], flush=True)
reading, writing = os.pipe()
if os.fork() == 0:
    assert ctypes.CDLL(None).daemon(1, 1) == 0
    held[0] = 1
    held[0] = ord('f')
    os.write(writing, f'DAEMON {os.getpgrp() == os.getsid(0)} {same()}'.encode())
    os._exit(0)
os.close(writing)
said = b''
while part := os.read(reading, 4096):
    said += part
print(said.decode(), same())
"""


@test("job-control", ("quick", "soak"), per_delivery=True)
def job_control(context):
    """Ctrl-Z stops the program and farpage with it, so that the shell has its terminal back; `fg` goes on with both."""
    mark = f"farpage-job-{context.delivery}"
    words = run_words("-q", "--ram", "48M", "--delivery", context.delivery) + ["python3", "-c", STOPPED, mark]
    command = shlex.join(str(word) for word in words)
    got = context.plain(["python3", "-c", SHELL, command, mark], timeout_s=90)
    check(got.code == 0, f"exit code {got.code}: {got.err[-500:]}")
    check(got.out.split() and set(got.out.split()) == {"T"}, f"states of farpage and the program when stopped: {got.out!r}")


@test("terminal-signals")
def terminal_signals(context):
    """What the terminal sends to the whole group arrives once: farpage passes on only what a process sends to it."""
    words = [*run_words("-q", "--ram", "64M"), "python3", "-c", COUNTED]
    got = context.plain(["python3", "-c", TYPED, *words])
    wanted = f"GOT {sorted(map(int, (signal.SIGINT, signal.SIGWINCH)))}"
    check(got.code == 0 and wanted in got.out, f"exit code {got.code}: {got.out[-300:]!r} {got.err[-300:]}, expected {wanted}")


@test("terminal-groups")
def terminal_groups(context):
    """A program in a process group of its own (timeout makes one) is told of Ctrl-C by nobody but farpage, whose shell waits for it: it
    was not, and ran on."""
    beside = ["sh", "-c", "echo REA\"\"DY; exec sleep 60"]
    for name, argv, wanted in (("timeout", ["timeout", "60", *beside], {124, 130}), ("setpgid", ["python3", "-c", APART], {7})):
        command = shlex.join(str(word) for word in [*run_words("-q", "--ram", "64M"), *argv])
        got = context.plain(["python3", "-c", INTERRUPTED, command], timeout_s=70)
        check(got.code == 0, f"{name}: {got.err[-500:]}")
        check(got.out.strip() in {f"ENDED {code}" for code in wanted}, f"{name}: {got.out!r}, expected {wanted}")


@test("terminal-background")
def terminal_background(context):
    """Where farpage was started to ignore Ctrl-C, nobody sent it to the program's own group. farpage did."""
    words = shlex.join(str(word) for word in [*run_words("-q", "--ram", "64M"), "python3", "-c", BACKGROUND])
    script = f"trap : INT; {words} & wait; wait"
    got = context.plain(["python3", "-c", TYPED, "sh", "-c", script])
    check("GOT 0" in got.out, f"exit code {got.code}: {got.out[-300:]!r} {got.err[-300:]}")


@test("terminal-closed")
def terminal_closed(context):
    """A terminal that is closed tells the leader of its session, and by the leader's end all others. farpage that led one kept it to
    itself, and the program ran on."""
    words = [*run_words("-q", "--ram", "64M"), "sh", "-c", "echo READY; exec sleep 60"]
    got = context.plain(["python3", "-c", CLOSED, *words], timeout_s=30)
    check(got.code == 128 + signal.SIGHUP, f"exit code {got.code}: {got.err[-300:]}")


@test("terminal-and-daemon", ("quick", "soak", "user"), per_delivery=True)
def terminal_and_daemon(context):
    """forkpty and daemon(3) keep what the parent had."""
    got = context.budget_run(48, ["python3", "-c", CHILDREN], timeout_s=60)
    check(got.code == 0, f"exit code {got.code}: {got.err[-400:]}")
    wanted = ["PTY True True 0", "DAEMON True True True"]
    check(got.out.split("\n")[:2] == wanted, f"{got.out!r}, expected {wanted}")
    check(swapped_out(got.stats) > 0, "nothing was swapped out")
