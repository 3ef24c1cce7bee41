/* Pages that are written at random while they are on their way out: no write may be lost.
 * Usage: ragged [MIB] [THREADS] [TOUCHES]; defaults 64 MiB, 4 threads, 100000 touches each.
 * Threads add one to a counter in a random page, each page shared by all. Windows of pages come to have gaps.
 * In the end the counters' sum is the number of touches. */
#include "check.h"

#include <pthread.h>

static char *data;
static size_t pages;
static size_t touches = 100000;

static void *adder(void *argument)
{
	uint64_t seed = (uint64_t)(uintptr_t)argument << 40;
	for (size_t n = 0; n < touches; n++) {
		uint64_t random = mix64(seed + n);
		char *page = data + random % pages * PAGE;
		/* Any of the page's words: the checks of what left must cover all of it. */
		__atomic_fetch_add((uint64_t *)page + (random >> 32) % (PAGE / 8), 1, __ATOMIC_RELAXED);
		/* A page just written is written again a moment later: it may be leaving by then. */
		if (n % 8 == 0)
			__atomic_fetch_add((uint64_t *)(data + mix64(seed + n - n % 64) % pages * PAGE), 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	static pthread_t threads[32];
	check_init(argv);
	size_t mb = argc > 1 ? strtoul(argv[1], NULL, 10) : 64, count = argc > 2 ? strtoul(argv[2], NULL, 10) : 4;
	touches = argc > 3 ? strtoul(argv[3], NULL, 10) : touches;
	if (mb == 0 || count == 0 || count > NELEM(threads)) {
		say("usage: %s [MIB] [THREADS] [TOUCHES]", argv[0]);
		return 2;
	}
	pages = mb * MIB / PAGE;
	data = map_anon(mb * MIB);
	for (size_t i = 0; i < count; i++)
		CHECK_EQ("pthread_create", 0, pthread_create(&threads[i], NULL, adder, (void *)(uintptr_t)(i + 1)));
	for (size_t i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	uint64_t sum = 0;
	for (size_t i = 0; i < pages * PAGE / 8; i++)
		sum += ((uint64_t *)data)[i];
	CHECK_EQ("the sum of all counters", count * (touches + (touches + 7) / 8), sum);
	if (failures() == 0)
		say("ok ragged");
	return failures() ? 1 : 0;
}
