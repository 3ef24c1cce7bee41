/* What `behind` has preloaded: a malloc that comes behind farpage's in the look-up of symbols, as libjemalloc's does. Its behind_new stands for
 * the operator new there, which takes a block without calling malloc, and behind_delete for the operator delete, which calls free. */
#include "bump.h"

#include <stdlib.h>

/* Blocks that came to free. */
atomic_int behind_freed;

bool behind_has(const void *p)
{
	return bump_has(p);
}

void *behind_new(size_t size)
{
	return bump(size);
}

void behind_delete(void *p)
{
	free(p);
}

void *malloc(size_t size)
{
	return behind_new(size);
}

size_t malloc_usable_size(void *p)
{
	return p ? bump_size(p) : 0;
}

void free(void *p)
{
	if (!p)
		return;
	if (!behind_has(p))
		abort();
	atomic_fetch_add(&behind_freed, 1);
}

void *calloc(size_t n, size_t size)
{
	return behind_new(n * size);
}

static void *again(void *p, size_t size)
{
	if (p && !behind_has(p))
		abort();
	return bump_again(p, size);
}

void *realloc(void *p, size_t size)
{
	return again(p, size);
}

void *reallocarray(void *p, size_t n, size_t size)
{
	return again(p, n * size);
}
