/* Forks beside threads that touch memory at random, where memory that farpage does not manage (32-bit addresses) has all of the budget.
 * Usage: crowded [MIB [UNMANAGED_MIB [FORKS]]]. Prints `ok crowded`; FAIL where a fork takes half a minute. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { WALKERS = 4, PATIENCE_S = 30 };

static uint64_t *region;
static size_t pages;
static _Atomic int ended;

static uint64_t *word_of(size_t page)
{
	return region + page * PAGE / sizeof *region;
}

static void *walk(void *arg)
{
	uint64_t at = (uintptr_t)arg;
	while (!ended) {
		at = mix64(at);
		size_t page = at % pages;
		CHECK_EQ("a page of its own", pattern_word(1, page), *word_of(page));
	}
	return NULL;
}

static void too_long(int signo)
{
	(void)signo;
	fail_at(WHERE, "fork", "not done after %d s", PATIENCE_S);
	_exit(1);
}

static void fork_once(size_t page)
{
	alarm(PATIENCE_S);
	pid_t pid = fork();
	if (pid == 0)
		_exit(*word_of(page) == pattern_word(1, page) ? 0 : 2);
	CHECK("fork", pid > 0);
	int status = -1;
	CHECK_EQ("waitpid", pid, waitpid(pid, &status, 0));
	CHECK_EQ("the child", 0, status);
	alarm(0);
}

int main(int argc, char **argv)
{
	check_init(argv);
	signal(SIGALRM, too_long);
	size_t mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 16;
	size_t unmanaged = (argc > 2 ? strtoul(argv[2], NULL, 10) : 8) * MIB;
	unsigned long forks = argc > 3 ? strtoul(argv[3], NULL, 10) : 50;
	void *beside = mmap(NULL, unmanaged, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	CHECK("32-bit addresses", beside != MAP_FAILED);
	fill(beside, unmanaged, 2);
	region = map_anon(mib * MIB);
	pages = mib * MIB / PAGE;
	for (size_t page = 0; page < pages; page++)
		*word_of(page) = pattern_word(1, page);
	pthread_t walkers[WALKERS];
	for (uintptr_t i = 0; i < WALKERS; i++)
		CHECK_EQ("a thread", 0, pthread_create(&walkers[i], NULL, walk, (void *)(i + 1)));
	for (unsigned long i = 0; i < forks; i++)
		fork_once(mix64(i) % pages);
	ended = 1;
	for (int i = 0; i < WALKERS; i++)
		pthread_join(walkers[i], NULL);
	CHECK_FILL("what is not managed", beside, unmanaged, 2);
	if (failures() == 0)
		say("ok crowded\n");
	return failures() != 0;
}
