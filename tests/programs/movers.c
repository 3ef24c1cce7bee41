/* Processes that at the same moment move most of what half the budget holds in place of other memory of theirs, alone or beside a thread.
 * Usage: movers [MIB [PROCESSES [ROUNDS [THREADS]]]], MIB and other threads of each process. Prints `ok movers`; a wrong byte is a FAIL and exit status 1. */
#include "check.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

static size_t rounds = 3, threads;
static pthread_barrier_t *together;

static void *wait_for_the_end(void *arg)
{
	pause();
	return arg;
}

static void mover(void *arg)
{
	uint64_t tag = (uintptr_t)arg;
	pthread_t thread;
	for (size_t i = 0; i < threads; i++)
		CHECK_EQ("pthread_create", 0, pthread_create(&thread, NULL, wait_for_the_end, NULL));
	size_t len = size_mb * MIB;
	char *p = map_anon(len);
	fill(p, len, tag);
	for (size_t round = 0; round < rounds; round++) {
		char *to = map_anon(len);
		pthread_barrier_wait(together);
		if (!CHECK("mremap in place of other memory", mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to))
			return;
		p = to;
		CHECK_FILL("memory that moved", p, len, tag);
	}
}

int main(int argc, char **argv)
{
	pid_t pids[16];
	check_init(argv);
	size_mb = argc > 1 ? strtoul(argv[1], NULL, 10) : size_mb;
	size_t count = argc > 2 ? strtoul(argv[2], NULL, 10) : 4;
	rounds = argc > 3 ? strtoul(argv[3], NULL, 10) : rounds;
	threads = argc > 4 ? strtoul(argv[4], NULL, 10) : 0;
	if (size_mb == 0 || count == 0 || count > NELEM(pids)) {
		say("usage: %s [MIB [PROCESSES [ROUNDS [THREADS]]]]", argv[0]);
		return 2;
	}
	together = mmap(NULL, sizeof(*together), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_barrierattr_t shared;
	pthread_barrierattr_init(&shared);
	pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	CHECK_EQ("pthread_barrier_init", 0, pthread_barrier_init(together, &shared, (unsigned)count));
	for (size_t i = 0; i < count; i++)
		pids[i] = child_start(mover, (void *)(uintptr_t)(i + 1));
	for (size_t i = 0; i < count; i++)
		CHILD_EXPECT("a process that moves its memory", pids[i], 0);
	if (failures() == 0)
		say("ok movers");
	return failures() ? 1 : 0;
}
