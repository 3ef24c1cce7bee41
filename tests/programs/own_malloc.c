/* A program with an allocator of its own, as rustc, Redis or MariaDB may have: it comes before any library in the look-up of
 * symbols. Blocks are never given back.
 * Usage: own_malloc [MIB] */
#include "bump.h"
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { THREADS = 8 };

void *malloc(size_t size)
{
	return bump(size);
}

void free(void *p)
{
	if (p && !bump_has(p))
		abort();
}

void *calloc(size_t n, size_t size)
{
	return malloc(n * size);
}

void *realloc(void *p, size_t size)
{
	void *fresh = bump_again(p, size);
	free(p);
	return fresh;
}

static void *body(void *arg)
{
	uint64_t tag = (uint64_t)arg;
	size_t len = size_mb * MIB / THREADS;
	char *p = malloc(len);
	fill(p, len, tag);
	CHECK_FILL("a block", p, len, tag);
	free(p);
	free(strdup("a string of libc's"));
	p = reallocarray(NULL, 10, 100);
	CHECK("reallocarray's block is the program's", p && bump_has(p));
	free(reallocarray(p, 20, 100));
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t t[THREADS];
	check_init(argv);
	size_mb = argc > 1 ? strtoul(argv[1], NULL, 10) : 16;
	for (size_t i = 0; i < THREADS; i++)
		CHECK_EQ("pthread_create", 0, pthread_create(&t[i], NULL, body, (void *)(i + 1)));
	for (size_t i = 0; i < THREADS; i++)
		CHECK_EQ("pthread_join", 0, pthread_join(t[i], NULL));
	system("true");
	if (!failures())
		say("ok own_malloc");
	return failures() ? 1 : 0;
}
