/* Processes that map memory at once and fill it later, all at the same time, without another call in between.
 * Usage: late [MIB] [PROCESSES]; defaults 16 MiB each, 4 processes. */
#include "check.h"

#include <sys/wait.h>

/* `begin` ends once all have mapped. */
static int child(size_t len, uint64_t seed, int mapped, int begin)
{
	char *p = map_anon(len), c = 0;
	CHECK_EQ("write", 1, (long)write(mapped, "m", 1));
	CHECK_EQ("the end of the pipe", 0, (long)read(begin, &c, 1));
	fill(p, len, seed);
	CHECK_FILL("memory of a child", p, len, seed);
	return failures() ? 1 : 0;
}

int main(int argc, char **argv)
{
	check_init(argv);
	size_t mb = argc > 1 ? strtoul(argv[1], NULL, 10) : 16, count = argc > 2 ? strtoul(argv[2], NULL, 10) : 4;
	pid_t pids[64];
	int mapped[2], begin[2];
	if (mb == 0 || count == 0 || count > NELEM(pids)) {
		say("usage: %s [MIB] [PROCESSES]", argv[0]);
		return 2;
	}
	CHECK_EQ("pipe", 0, pipe(mapped));
	CHECK_EQ("pipe", 0, pipe(begin));
	for (size_t i = 0; i < count; i++) {
		pids[i] = fork();
		CHECK("fork", pids[i] >= 0);
		if (pids[i] == 0) {
			close(begin[1]);
			_exit(child(mb * MIB, i + 1, mapped[1], begin[0]));
		}
	}
	for (size_t i = 0; i < count; i++) {
		char c = 0;
		CHECK_EQ("a child has mapped", 1, (long)read(mapped[0], &c, 1));
	}
	close(begin[1]);
	for (size_t i = 0; i < count; i++)
		CHILD_EXPECT("a child", pids[i], 0);
	if (!failures())
		say("ok late");
	return failures() ? 1 : 0;
}
