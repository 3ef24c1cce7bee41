/* A tree in which every part of farpage is at work, for a test that has processes kill themselves at named points.
 * Usage: killpoints [MIB] [CHILDREN] [ROUNDS] [OWN]; defaults 96 MiB, 3 children, 6 rounds each, 6 MiB of each child's own.
 * The children share the parent's data by fork; they verify it, rewrite parts of it, map, move and discard memory, fork
 * children of their own and start programs (`killpoints --leaf SEED MIB`). Whoever dies by SIGKILL is started anew or done
 * without. When all have ended the parent verifies its data, prints `quiet`, waits for SIGUSR1, verifies once more and prints
 * `ok killpoints`. Every page tells its address, generation and seed; a wrong byte is a FAIL and exit status 1. */
#include "check.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define CHUNK (16 * PAGE)
#define OWN (own_mb * MIB)

static char *data;
static size_t chunks;
static size_t own_mb = 6;
static uint8_t version[1 << 16];

static uint64_t tag(size_t i)
{
	return i + ((uint64_t)version[i] << 32);
}

/* A third of the chunks are the same byte all over or zeros: what compresses well stays in RAM for a while. */
static void put_at(char *p, size_t i)
{
	fill(p, CHUNK, tag(i));
	if (i % 3 == 0)
		for (size_t at = 0; at < CHUNK; at += PAGE)
			memset(p + at + 64, i % 2 ? (int)(i & 0xff) : 0, PAGE - 64);
	if (i % 17 == 0)
		memset(p, 0, CHUNK);
}

static void put(size_t i)
{
	put_at(data + i * CHUNK, i);
}

static void verify(const char *what, size_t i)
{
	static char expected[CHUNK];
	put_at(expected, i);
	CHECK_MEM(what, expected, data + i * CHUNK, CHUNK);
}

static void end_of(pid_t pid, const char *what)
{
	int status = 0;
	if (!CHECK(what, pid > 0 && waitpid(pid, &status, 0) == pid))
		return;
	if (!(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
		CHECK_EQ(what, 0, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/* A program of its own: active soon, its memory swapped, then another image in the same process, or the end. */
static int leaf(uint64_t seed, size_t mb)
{
	char *p = map_anon(mb * MIB);
	fill(p, mb * MIB, seed);
	CHECK_FILL("memory of a program", p, mb * MIB, seed);
	if (failures() == 0 && mb > 4) {
		char text[32];
		snprintf(text, sizeof(text), "%llu", (unsigned long long)seed + 1);
		execl(self_path, self_path, "--leaf", text, "4", (char *)NULL);
		return 1;
	}
	return failures() ? 1 : 0;
}

static void start_leaf(uint64_t seed)
{
	pid_t pid = fork();
	if (pid == 0) {
		char text[32];
		snprintf(text, sizeof(text), "%llu", (unsigned long long)seed);
		execl(self_path, self_path, "--leaf", text, "12", (char *)NULL);
		_exit(1);
	}
	end_of(pid, "a program ends well or is killed");
}

/* What a grandchild shares with its parent moves: who dies on the way must not give up the parent's part of it. It takes so long that
 * only those do it that are to die there. */
static void move_shared(void)
{
	const char *armed = getenv("FARPAGE_KILL_AT");
	if (armed == NULL || strstr(armed, "move-word") == NULL)
		return;
	size_t size = chunks * CHUNK;
	char *to = map_anon(size);
	char *q = mremap(data, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	if (CHECK("mremap of shared memory", q == to))
		data = q;
}

static void grandchild(uint64_t seed)
{
	move_shared();
	for (size_t n = 0; n < chunks / 8; n++) {
		size_t i = mix64(seed + n) % chunks;
		verify("chunk in a grandchild", i);
		version[i]++;
		put(i);
	}
	_exit(failures() ? 1 : 0);
}

/* Memory of the child's own: written, gone cold, moved, partly discarded, unmapped. */
static void own_memory(uint64_t seed)
{
	char *p = map_anon(OWN);
	fill(p, OWN, seed);
	madvise(p, OWN, MADV_PAGEOUT);
	madvise(p, OWN, MADV_PAGEOUT);
	for (size_t i = 0; i < chunks; i += 7)
		verify("chunk after own memory went cold", i);
	/* Large memory comes back by a walk. Less stays out, to be moved and discarded there. */
	if (OWN >= 16 * MIB)
		CHECK_FILL("own memory gone cold", p, OWN, seed);
	char *q = mremap(p, OWN, OWN + MIB, MREMAP_MAYMOVE);
	if (!CHECK("mremap", q != MAP_FAILED))
		return;
	char *to = map_anon(OWN + MIB);
	q = mremap(q, OWN + MIB, OWN + MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	if (!CHECK("mremap to another place", q == to))
		return;
	CHECK_FILL("moved memory", q, OWN / 2, seed);
	CHECK_OK("discard", madvise(q + OWN / 2, OWN / 4, MADV_DONTNEED));
	CHECK_ZERO("discarded memory", q + OWN / 2, OWN / 4);
	CHECK_OK("munmap", munmap(q, OWN + MIB));
}

static void child(uint64_t seed, size_t rounds)
{
	for (uint64_t n = 0; n < rounds && failures() == 0; n++) {
		for (size_t i = 0; i < chunks; i++)
			verify("chunk in a child, in order", (n & 1) ? chunks - 1 - i : i);
		for (size_t k = 0; k < chunks / 4; k++) {
			size_t i = mix64(seed + n * 1000 + k) % chunks;
			verify("chunk in a child", i);
			version[i]++;
			put(i);
		}
		pid_t pid = fork();
		if (pid == 0)
			grandchild(seed + n);
		own_memory(seed ^ n);
		end_of(pid, "a grandchild ends well or is killed");
		start_leaf(seed + n);
		start_leaf(seed - n);
	}
	_exit(failures() ? 1 : 0);
}

static pid_t start(uint64_t seed, size_t rounds)
{
	pid_t pid = fork();
	if (pid == 0)
		child(seed << 40, rounds);
	CHECK("fork", pid > 0);
	return pid;
}

int main(int argc, char **argv)
{
	static pid_t pids[16];
	check_init(argv);
	if (argc > 3 && strcmp(argv[1], "--leaf") == 0)
		return leaf(strtoull(argv[2], NULL, 10), strtoul(argv[3], NULL, 10));
	size_t mb = argc > 1 ? strtoul(argv[1], NULL, 10) : 96, count = argc > 2 ? strtoul(argv[2], NULL, 10) : 3;
	size_t rounds = argc > 3 ? strtoul(argv[3], NULL, 10) : 6;
	own_mb = argc > 4 ? strtoul(argv[4], NULL, 10) : own_mb;
	chunks = mb * MIB / CHUNK;
	if (mb == 0 || count == 0 || count > NELEM(pids) || chunks > NELEM(version) || own_mb == 0) {
		say("usage: %s [MIB] [CHILDREN] [ROUNDS] [OWN]", argv[0]);
		return 2;
	}
	sigset_t go;
	sigemptyset(&go);
	sigaddset(&go, SIGUSR1);
	sigprocmask(SIG_BLOCK, &go, NULL);
	/* Orphans of a killed child are waited for too. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	data = map_anon(mb * MIB);
	for (size_t i = 0; i < chunks; i++)
		put(i);
	for (size_t i = 0; i < count; i++)
		pids[i] = start(i + 1, rounds);
	uint64_t seed = count, again = 4 * count;
	for (int status; failures() == 0;) {
		pid_t pid = wait(&status);
		if (pid < 0)
			break;
		bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
		if (!killed)
			CHECK_EQ("a child ends well or is killed", 0, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
		for (size_t i = 0; i < count && killed && again > 0; i++)
			if (pids[i] == pid) {
				pids[i] = start(++seed, rounds);
				again--;
			}
	}
	for (size_t i = 0; i < chunks; i++)
		verify("chunk in the parent", i);
	say("quiet");
	int sig;
	sigwait(&go, &sig);
	for (size_t i = 0; i < chunks; i++)
		verify("chunk in the parent at the end", i);
	if (failures() == 0)
		say("ok killpoints");
	return failures() ? 1 : 0;
}
