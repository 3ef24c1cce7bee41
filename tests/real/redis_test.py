"""redis-server at several times its budget: filled, read back, benchmarked, saved while written to, and the dump loaded
by a redis-server without farpage."""

import random
import re
import subprocess
import time
from pathlib import Path

from cases import check_times, require, swapped_out, tail
from common import TINY_MIB, check
from context import test
from resp import Redis

BATCH = 500


def value(key):
    """The value that a key has until it is updated: 700 to 1200 bytes, different in every key."""
    rng = random.Random(key)
    return rng.randbytes(350 + key % 250).hex().encode()


def server_words(context, name):
    words = ["redis-server", "--port", "0", "--unixsocket", socket_path(context, name), "--dir", context.directory]
    words += ["--save", "", "--appendonly", "no", "--enable-debug-command", "yes", "--dbfilename", "dump.rdb"]
    return [*words, "--daemonize", "no", "--activerehashing", "no", "--set-proc-title", "no"]


def socket_path(context, name):
    return context.directory / f"{name}.sock"


def fill(redis, count):
    for start in range(0, count, BATCH):
        redis.pipeline(("SET", f"key:{i}", value(i)) for i in range(start, min(start + BATCH, count)))
    for i in range(200):
        redis.pipeline(("HSET", f"hash:{i}", f"f{j}", f"v{i * j}") for j in range(50))
        redis.pipeline(("RPUSH", f"list:{i}", f"element {i} {j}" * 3) for j in range(50))
        redis.pipeline(("ZADD", f"zset:{i}", str((i * 7919 + j * 31) % 1009), f"m{j}") for j in range(50))


def read_back(redis, count, picks, updated=0):
    """Random keys hold what they must: the first `updated` keys hold their new value."""
    rng = random.Random(11)
    for _ in range(picks // BATCH):
        keys = [rng.randrange(count) for _ in range(BATCH)]
        for key, got in zip(keys, redis.pipeline(("GET", f"key:{key}") for key in keys)):
            wanted = value(key)[::-1] if key < updated else value(key)
            check(got == wanted, f"key:{key} holds {got[:20]!r}..., expected {wanted[:20]!r}...")


def benchmark(context, requests):
    """redis-benchmark SET and GET over its own random keys."""
    words = ["redis-benchmark", "-s", socket_path(context, "redis"), "-q", "-t", "set,get"]
    words += ["-n", requests, "-r", 20000, "-d", 1000]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300)
    check(done.returncode == 0, f"redis-benchmark: {done.returncode} {done.stdout[-200:]} {done.stderr[-200:]}")


def save_while_writing(redis, count):
    """BGSAVE, then updates of random keys until the child is done. Returns the digest at the time of the fork."""
    before = redis.call("DEBUG", "DIGEST")
    redis.call("BGSAVE")
    updated = 0
    deadline = time.monotonic() + 600
    while b"rdb_bgsave_in_progress:1" in redis.call("INFO", "persistence"):
        check(time.monotonic() < deadline, "BGSAVE did not end in 600 s")
        if updated + BATCH <= count // 2:
            redis.pipeline(("SET", f"key:{i}", value(i)[::-1]) for i in range(updated, updated + BATCH))
            updated += BATCH
        else:
            time.sleep(0.05)
    check(b"rdb_last_bgsave_status:ok" in redis.call("INFO", "persistence"), "BGSAVE failed")
    return before, updated


def digest_of_dump(context):
    """DEBUG DIGEST of a plain redis-server that loaded the dump. What it needs for that is the test's need."""
    path = socket_path(context, "plain")
    path.unlink(missing_ok=True)
    words = [str(word) for word in server_words(context, "plain")]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, cwd=context.directory, start_new_session=True) as server:
        try:
            redis = Redis(path)
            for _ in range(600):
                if b"\nloading:0" in redis.call("INFO", "persistence"):
                    status = Path(f"/proc/{server.pid}/status").read_text()
                    context.result.need_mib = int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) / 1024
                    return redis.call("DEBUG", "DIGEST")
                time.sleep(0.1)
            raise AssertionError("the dump was not loaded within 60 s")
        finally:
            server.kill()


@test("redis", ("quick", "soak"), per_delivery=True, grows=True)
def redis_server(context):
    require(("redis-server", "redis-benchmark"))
    # The dump is written in the order of a hash: a page at random for each key.
    scale, budget = (8, 56) if context.soak else (1, 10)
    count = 20000 * scale
    with context.start(budget, server_words(context, "redis"), timeout_s=1500, tiny_mib=TINY_MIB) as job:
        redis = Redis(socket_path(context, "redis"))
        fill(redis, count)
        read_back(redis, count, 5000 * scale)
        benchmark(context, 5000 * scale)
        before, updated = save_while_writing(redis, count)
        check(digest_of_dump(context) == before, "the dump of BGSAVE differs from what redis held at the fork")
        read_back(redis, count, 5000 * scale, updated)
        final = redis.call("DEBUG", "DIGEST")
        redis.call("SAVE")
        check(digest_of_dump(context) == final, "the dump of SAVE differs from what redis holds")
        check_times(context.result.need_mib, budget)
        redis.send(("SHUTDOWN", "NOSAVE"))
        code = job.wait()
        check(code == 0, f"exit code {code}: {tail(job.out)} {tail(job.err)}")
        context.finish(job)
    check(swapped_out(context.stats()) > 0, "nothing was swapped out")
