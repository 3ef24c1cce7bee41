/* Forked children that share filled memory and go on verifying and writing until somebody kills them.
 * Usage: killme [MIB] [CHILDREN] [RESPAWNS] [SECONDS]; defaults 16 MiB, 4 children, 20 respawns, 60 seconds.
 * Prints `parent PID`, then `child PID` for each one started: kill children with SIGKILL at any moment. A killed child
 * is started anew, RESPAWNS times in all; then, or after SECONDS, the parent kills the rest, verifies its own data and
 * prints `ok killme`. A child that finds a wrong byte prints FAIL and exits 1; so does the parent. */
#include "check.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define CHUNK (16 * PAGE)

static char *data;
static size_t chunks;

static void child(uint64_t seed)
{
	static uint8_t version[1 << 20];
	for (uint64_t n = 1; failures() == 0; n++) {
		uint64_t r = mix64(seed + n);
		size_t i = r % chunks;
		CHECK_FILL("chunk in a child", data + i * CHUNK, CHUNK, i + ((uint64_t)version[i] << 32));
		if (r & (1u << 30)) {
			version[i] = (uint8_t)(r >> 40);
			fill(data + i * CHUNK, CHUNK, i + ((uint64_t)version[i] << 32));
		}
		if (n % 64 == 0) {
			size_t len = 1000 + (r >> 32) % (2 * MIB);
			char *p = must_malloc(len), *q = map_anon(len);
			fill(p, len, n);
			fill(q, len, n + 1);
			CHECK_FILL("malloc'd block in a child", p, len, n);
			CHECK_FILL("mapped block in a child", q, len, n + 1);
			free(p);
			munmap(q, len);
		}
	}
	_exit(1);
}

static pid_t start(uint64_t seed)
{
	pid_t parent = getpid(), pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() == parent)
			child(seed);
		_exit(0);
	}
	if (CHECK("fork", pid > 0))
		say("child %d", (int)pid);
	return pid;
}

static void verify(const char *what)
{
	for (size_t i = 0; i < chunks; i++)
		CHECK_FILL(what, data + i * CHUNK, CHUNK, i);
}

int main(int argc, char **argv)
{
	static pid_t pids[64];
	check_init(argv);
	size_t mb = argc > 1 ? strtoul(argv[1], NULL, 10) : 16, count = argc > 2 ? strtoul(argv[2], NULL, 10) : 4;
	unsigned long respawns = argc > 3 ? strtoul(argv[3], NULL, 10) : 20, seconds = argc > 4 ? strtoul(argv[4], NULL, 10) : 60;
	chunks = mb * MIB / CHUNK;
	if (mb == 0 || count == 0 || count > NELEM(pids) || chunks > 1 << 20) {
		say("usage: %s [MIB] [CHILDREN] [RESPAWNS] [SECONDS]", argv[0]);
		return 2;
	}
	data = map_anon(mb * MIB);
	for (size_t i = 0; i < chunks; i++)
		fill(data + i * CHUNK, CHUNK, i);
	say("parent %d", (int)getpid());
	uint64_t until = now_ns() + seconds * 1000000000ull, seed = 0, turn = 0;
	for (size_t i = 0; i < count; i++)
		pids[i] = start(seed++ << 40);
	while (failures() == 0 && now_ns() < until && respawns > 0) {
		size_t at = turn++ % chunks;
		CHECK_FILL("chunk in the parent", data + at * CHUNK, CHUNK, at);
		if (turn % 16 == 0)
			sleep_ms(1);
		int status = 0;
		pid_t pid = waitpid(-1, &status, WNOHANG);
		if (pid <= 0)
			continue;
		CHECK_EQ("a child ends by SIGKILL only", SIGKILL, WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status));
		for (size_t i = 0; i < count; i++) {
			if (pids[i] == pid) {
				pids[i] = start(seed++ << 40);
				respawns--;
			}
		}
	}
	verify("parent while children live");
	for (size_t i = 0; i < count; i++) {
		if (pids[i] <= 0)
			continue;
		kill(pids[i], SIGKILL);
		CHILD_EXPECT("child at the end", pids[i], 128 + SIGKILL);
	}
	verify("parent at the end");
	if (failures() == 0)
		say("ok killme");
	return failures() ? 1 : 0;
}
