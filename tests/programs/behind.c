/* A library with a malloc of its own, behind.so, comes behind farpage's. What it makes in its own way comes to farpage's free, realloc and
 * malloc_usable_size, beside what farpage's malloc made: each block is given back to whom it is from. C++ programs with libjemalloc
 * ended by SIGSEGV at their first delete. What farpage's malloc made came to the reallocarray there, which knows its own alone.
 * Usage: behind [MIB] */
#include "check.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>

extern void *behind_new(size_t size) __attribute__((weak));
extern void behind_delete(void *p);
extern bool behind_has(const void *p);
extern atomic_int behind_freed;
#pragma weak behind_delete
#pragma weak behind_has
#pragma weak behind_freed

enum { THREADS = 4 };

/* A block grows, with its content, and goes back. */
static void turn(char *p, size_t size, uint64_t tag)
{
	if (!CHECK("a block", p))
		return;
	bool is_others = behind_has(p);
	fill(p, size, tag);
	CHECK("its size", malloc_usable_size(p) >= size);
	p = realloc(p, 2 * size);
	CHECK_EQ("whose it is", is_others, behind_has(p));
	CHECK_FILL("its content", p, size, tag);
	p = reallocarray(p, 3, size);
	CHECK_EQ("whose it is as an array", is_others, behind_has(p));
	CHECK_FILL("an array's content", p, size, tag);
	if (is_others)
		behind_delete(p);
	else
		free(p);
}

static void *mixed(void *arg)
{
	for (uint64_t i = 1; i <= 400; i++) {
		size_t size = 8 + mix64(i) % 3000;
		turn(behind_new(size), size, i);
		turn(malloc(size), size, i + (uint64_t)arg);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	static const size_t sizes[] = {1, 100, 5000, 70000, 600000, 3 * MIB};
	pthread_t t[THREADS];
	check_init(argv);
	size_mb = argc > 1 ? strtoul(argv[1], NULL, 10) : 16;
	if (!CHECK("behind.so is preloaded", behind_new))
		return 1;
	for (size_t i = 0; i < NELEM(sizes); i++) {
		int before = behind_freed;
		turn(behind_new(sizes[i]), sizes[i], i);
		CHECK_EQ("blocks that it got back", 1, behind_freed - before);
		char *own = malloc(sizes[i]);
		int its = behind_has(own);
		turn(own, sizes[i], i);
		CHECK_EQ("blocks of malloc's that it got back", 1 + its, behind_freed - before);
	}
	/* Both may be away. */
	char *blocks[2] = {behind_new(size_mb * MIB / 2), malloc(size_mb * MIB / 2)};
	for (size_t i = 0; i < NELEM(blocks); i++)
		fill(blocks[i], size_mb * MIB / 2, i);
	for (size_t i = 0; i < NELEM(blocks); i++) {
		CHECK_FILL("a large block", blocks[i], size_mb * MIB / 2, i);
		free(blocks[i]);
	}
	for (size_t i = 0; i < THREADS; i++)
		CHECK_EQ("pthread_create", 0, pthread_create(&t[i], NULL, mixed, (void *)(i + 1)));
	for (size_t i = 0; i < THREADS; i++)
		CHECK_EQ("pthread_join", 0, pthread_join(t[i], NULL));
	if (!failures())
		say("ok behind");
	return failures() ? 1 : 0;
}
