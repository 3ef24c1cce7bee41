/* Starts hundreds of short children in three ways while it holds memory of its own.
 * Usage: spawnmany [MIB] [CHILDREN] [AT_ONCE]; defaults 16 MiB of data, 300 children, at most 8 at once.
 * Every child (`spawnmany --child SEED`) fills and verifies 1-4 MiB, prints nothing, exits with SEED % 100. */
#include "check.h"

#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

static int child(uint64_t seed)
{
	size_t len = MIB + mix64(seed) % (3 * MIB);
	char *p = must_malloc(len);
	fill(p, len, seed);
	CHECK_FILL("memory of a child", p, len, seed);
	free(p);
	return failures() ? 101 : (int)(seed % 100);
}

static pid_t start(unsigned way, char *const *argv)
{
	pid_t pid = -1;
	if (way == 2) {
		int rc = posix_spawn(&pid, self_path, NULL, NULL, argv, environ);
		CHECK_EQ("posix_spawn", 0, rc);
		return rc ? -1 : pid;
	}
	pid = way ? vfork() : fork();
	if (pid == 0) {
		execv(self_path, argv);
		_exit(99);
	}
	CHECK(way ? "vfork" : "fork", pid > 0);
	return pid;
}

struct running {
	pid_t pid;
	uint64_t seed;
};

static void finish(struct running *r, const char *way)
{
	CHILD_EXPECT(way, r->pid, (int)(r->seed % 100));
	r->pid = 0;
}

int main(int argc, char **argv)
{
	static const char *const ways[] = {"fork and exec", "vfork and exec", "posix_spawn"};
	static struct running running[256];
	check_init(argv);
	if (argc == 3 && strcmp(argv[1], "--child") == 0)
		return child(strtoull(argv[2], NULL, 10));
	size_t mb = argc > 1 ? strtoul(argv[1], NULL, 10) : 16, count = argc > 2 ? strtoul(argv[2], NULL, 10) : 300;
	size_t at_once = argc > 3 ? strtoul(argv[3], NULL, 10) : 8;
	if (mb == 0 || count == 0 || at_once == 0 || at_once > NELEM(running)) {
		say("usage: %s [MIB] [CHILDREN] [AT_ONCE]", argv[0]);
		return 2;
	}
	char *data = must_malloc(mb * MIB);
	fill(data, mb * MIB, 1);
	for (unsigned way = 0; way < NELEM(ways); way++) {
		int before = failures();
		for (uint64_t i = 0; i < count / NELEM(ways); i++) {
			struct running *r = &running[i % at_once];
			if (r->pid)
				finish(r, ways[way]);
			char *text = must_malloc(32);
			snprintf(text, 32, "%llu", (unsigned long long)i);
			char *args[] = {"spawnmany", "--child", text, NULL};
			*r = (struct running){start(way, args), i};
			free(text);
			size_t chunk = i % mb;
			fill(data + chunk * MIB, MIB, i);
			CHECK_FILL("own data while children run", data + chunk * MIB, MIB, i);
		}
		for (size_t i = 0; i < at_once; i++) {
			if (running[i].pid)
				finish(&running[i], ways[way]);
		}
		if (failures() == before)
			say("ok %s", ways[way]);
	}
	free(data);
	return failures() ? 1 : 0;
}
