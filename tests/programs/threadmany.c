/* Thousands of short threads, at most 32 at once; each allocates, fills, verifies and frees, some read a common block.
 * Usage: threadmany [MIB] [THREADS] [AT_ONCE]; defaults 16 MiB of common data, 3000 threads, 32 at once. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>

static char *common;
static size_t common_mb;
static atomic_ulong lives;

static void *life(void *arg)
{
	uint64_t me = (uintptr_t)arg, r = mix64(me);
	size_t len = 16 + r % (me % 50 == 0 ? 2 * MIB : 60000);
	char *p = must_malloc(len);
	fill(p, len, me);
	if (me % 4 == 0) {
		size_t chunk = (r >> 20) % common_mb;
		CHECK_FILL("common block", common + chunk * MIB, MIB, chunk);
	}
	if (me % 8 == 1) {
		p = opaque(realloc(p, len * 2));
		CHECK_FILL("realloc'd block of a short thread", p, len, me);
	}
	CHECK_FILL("block of a short thread", p, len, me);
	free(p);
	lives++;
	return arg;
}

int main(int argc, char **argv)
{
	static pthread_t running[32];
	check_init(argv);
	common_mb = argc > 1 ? strtoul(argv[1], NULL, 10) : 16;
	size_t count = argc > 2 ? strtoul(argv[2], NULL, 10) : 3000, at_once = argc > 3 ? strtoul(argv[3], NULL, 10) : 32;
	if (common_mb == 0 || at_once == 0 || at_once > NELEM(running)) {
		say("usage: %s [MIB] [THREADS] [AT_ONCE]", argv[0]);
		return 2;
	}
	common = must_malloc(common_mb * MIB);
	for (size_t i = 0; i < common_mb; i++)
		fill(common + i * MIB, MIB, i);
	for (size_t i = 0; i < count + at_once; i++) {
		pthread_t *t = &running[i % at_once];
		void *result = NULL;
		if (i >= at_once && i - at_once < count) {
			CHECK_EQ("pthread_join", 0, pthread_join(*t, &result));
			CHECK_EQ("result of a thread", i - at_once, (uintptr_t)result);
		}
		if (i < count && !CHECK_EQ("pthread_create", 0, pthread_create(t, NULL, life, (void *)i)))
			_exit(1);
	}
	CHECK_EQ("threads that lived", count, lives);
	for (size_t i = 0; i < common_mb; i++)
		CHECK_FILL("common block at the end", common + i * MIB, MIB, i);
	free(common);
	if (failures() == 0)
		say("ok threadmany");
	return failures() ? 1 : 0;
}
