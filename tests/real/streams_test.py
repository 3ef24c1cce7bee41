"""What farpage does with the files that it was given: they are the program's, and farpage is as if it were not there."""

import json
import shlex

from checks_test import ALL, run_words
from common import check
from context import test


def shell(context, line, *options, timeout_s=30, env=None):
    """Runs a line of the shell, in which `farpage` stands for the words of `farpage run` with a small budget."""
    words = shlex.join(str(word) for word in run_words("-q", "--ram", "64M", *options))
    # No function: a shell that runs one holds its streams.
    return context.plain(["bash", "-c", line.replace("farpage ", f"{words} ")], timeout_s=timeout_s, env=env or {})


@test("stats-in-a-log", ALL)
def stats_in_a_log(context):
    """--stats-json /dev/stderr opened the log that stderr went to anew, cut it and left only the figures."""
    for name, redirect, option in (
        ("stderr", "2>>", "/dev/stderr"),
        ("stdout", ">>", "/dev/stdout"),
        ("over", "2>", "/proc/self/fd/2"),
        ("other", "3>>", "/dev/fd/3"),
        ("named", "2>>", None),
    ):
        log = context.own_file(f"{name}.log", b"old line\n")
        number = redirect[0] if redirect[0].isdigit() else "1"
        line = f"farpage sh -c 'echo important >&{number}' {redirect}{shlex.quote(str(log))}"
        got = shell(context, line, "--stats-json", option or log)
        text = log.read_text()
        before = "important\n" if redirect == "2>" else "old line\nimportant\n"
        check(got.code == 0 and text.startswith(before + "{"), f"{name}: {got.code} {got.err[-300:]} {text[:200]!r}")
        check(json.loads(text[len(before) :])["exit_code"] == 0, f"{name}: {text[-200:]!r}")
    got = shell(context, "farpage true 3</dev/null", "--stats-json", "/dev/fd/3")
    check(got.code == 125 and "name a file" in got.err, f"a descriptor for reading: {got.code} {got.err[-300:]}")


@test("stats-of-a-daemon", ALL)
def stats_of_a_daemon(context):
    """Who keeps the books of what the command leaves behind does not hold the file of the figures open: its reader sees their end."""
    left = "setsid sh -c 'until test -e done; do sleep 0.1; done' </dev/null >/dev/null 2>&1 &"
    got = shell(context, f"farpage sh -c {shlex.quote(left)} | cat; touch done", "--stats-json", "/dev/stdout")
    check(json.loads(got.out)["exit_code"] == 0, f"{got.out[-300:]!r} {got.err[-300:]}")


@test("streams-end", ALL)
def streams_end(context):
    """farpage held stdin, stdout and other files open as long as the program ran: who waited for their end waited for the program's."""
    # Each line says when the other side has seen the end, of a program that runs on: it is told to end by that.
    done = context.directory / "done"
    wait = 'n=0; while ! test -e "$DONE" && test $n -lt 150; do sleep 0.1; n=$((n+1)); done; test -e "$DONE"'
    for name, line in (
        ("stdout", f"farpage sh -c 'exec >&-; {wait}' | {{ cat; touch \"$DONE\"; }}; exit ${{PIPESTATUS[0]}}"),
        ("stdin", f"{{ yes; touch \"$DONE\"; }} | farpage sh -c 'exec <&-; {wait}'"),
        ("inherited", f"farpage sh -c 'exec 9>&-; {wait}' 9>&1 >/dev/null | {{ cat; touch \"$DONE\"; }}; exit ${{PIPESTATUS[0]}}"),
        ("lock", f"exec 9>lock; flock 9; farpage sh -c 'exec 9>&-; {wait}' & exec 9>&-; flock lock touch \"$DONE\"; wait $!"),
    ):
        done.unlink(missing_ok=True)
        got = shell(context, line, env={"DONE": str(done)})
        check(got.code == 0, f"{name}: its end was not seen while the program ran: {got.code} {got.err[-300:]}")


@test("streams-closed", ALL)
def streams_closed(context):
    """A standard file that was closed was /dev/null in the program, which wrote to it and learned of nothing."""
    say = """sh -c '/bin/echo hi 2>/dev/null; echo "st $?" >&2' >&-"""
    which = "import os; print([n for n in range(3) if os.path.exists(f'/proc/self/fd/{n}')], file=open('which', 'w'))"
    look = f"""python3 -c {shlex.quote(which)}"""
    for disabled in ({}, {"FARPAGE_DISABLE": "1"}):
        got = shell(context, f"farpage {say}", env=disabled)
        check(got.err == "st 1\n", f"{disabled}: echo to a closed stdout: {got.err!r}")
        for closing in ("", ">&-", "<&-", "2>&-", "<&- >&- 2>&-"):
            found = []
            for words in (look, f"farpage {look}"):
                got = shell(context, f"{words} {closing}", "--eager", env=disabled)
                check(got.code == 0, f"{disabled} {words} {closing}: {got.code} {got.err[-300:]}")
                found.append((context.directory / "which").read_text())
            check(found[0] == found[1], f"{disabled} {closing}: open under farpage {found[1]}, without {found[0]}")


# Opens a file, which has the number of stderr then (python3 may be a script, whose shell has that), and asks for what is refused to a
# program with threads, in a line.
REFUSED = """
import ctypes, os, threading
end = threading.Event()
number = os.dup2(os.open('data', os.O_RDWR | os.O_CREAT | os.O_TRUNC), 2)
thread = threading.Thread(target=end.wait)
thread.start()
refused = ctypes.CDLL(None).unshare(0x400)
end.set()
os.write(number, b'mine')
print(number, refused)
"""


@test("stderr-closed", ALL)
def stderr_closed(context):
    """The first file of a program without stderr has its number: what farpage had to say was written into it."""
    got = shell(context, f"farpage python3 -c {shlex.quote(REFUSED)} 2>&-")
    check(got.out == "2 -1\n", f"{got.code} {got.out!r} {got.err[-300:]}")
    data = (context.directory / "data").read_bytes()
    check(data == b"mine", f"{data!r}")


# A pipe that is full, whose reader does not read, left non-blocking: the figures wait for room in it.
FULL = """
import os, subprocess, sys, time
reading, writing = os.pipe()
os.set_blocking(writing, False)
try:
    while os.write(writing, b' ' * 4096):
        pass
except BlockingIOError:
    pass
job = subprocess.Popen(sys.argv[1:], stdout=writing)
end = time.monotonic() + 20
while time.monotonic() < end and os.path.exists('running'):
    time.sleep(0.01)
time.sleep(0.3)
assert job.poll() is None, job.returncode
# Again: between the program's end and the figures it is not farpage's own.
while job.poll() is None:
    job.terminate()
    time.sleep(0.1)
print(job.wait())
"""


@test("stats-not-read", ALL)
def stats_not_read(context):
    """Figures that nobody reads wait, and could not be ended but by SIGKILL."""
    (context.directory / "running").touch()
    words = [*run_words("-q", "--ram", "64M", "--stats-json", "/dev/stdout"), "rm", "running"]
    got = context.plain(["python3", "-c", FULL, *words], timeout_s=60)
    check(got.out == "-15\n", f"{got.code} {got.out!r} {got.err[-300:]}")
