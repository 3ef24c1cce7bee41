"""Several tests at a time: lines of processes, each of which takes the next test as soon as it has ended one."""

import multiprocessing
from multiprocessing import connection

FORKS = multiprocessing.get_context("fork")


def in_lines(count, plan, run):
    """Calls `run` with each item of the plan, in as many processes; yields (index, result) as they end. What a line had in hand
    when it died is not among them."""
    following = FORKS.Value("i", 0)
    lines, results = [], []
    try:
        for _ in range(count):
            reader, writer = FORKS.Pipe(duplex=False)
            line = FORKS.Process(target=work, args=(plan, run, following, writer))
            line.start()
            # The line has the only one: its end is the end of the pipe.
            writer.close()
            lines.append(line)
            results.append(reader)
        while results:
            for reader in connection.wait(results):
                try:
                    yield reader.recv()
                except EOFError:
                    results.remove(reader)
    finally:
        for line in lines:
            line.terminate()
        for line in lines:
            line.join()


def work(plan, run, following, writer):
    while True:
        with following.get_lock():
            index = following.value
            following.value += 1
        if index >= len(plan):
            return
        writer.send((index, run(plan[index])))
