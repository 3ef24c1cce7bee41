/* What `behind` has preloaded: a malloc that comes behind farpage's in the look-up of symbols, as libjemalloc's does. Its behind_new stands for
 * the operator new there, which takes a block without calling malloc, and behind_delete for the operator delete, which calls free. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ROOM = 1 << 30, HEAD = 16 };
static _Atomic(char *) room;
static atomic_size_t used;
/* Blocks that came to free. */
atomic_int behind_freed;

bool behind_has(const void *p)
{
	return (const char *)p >= room && (const char *)p < room + ROOM;
}

/* Blocks are never given back. */
void *behind_new(size_t size)
{
	char *start = room;
	if (!start) {
		char *fresh = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (fresh == MAP_FAILED)
			return NULL;
		if (!atomic_compare_exchange_strong(&room, &start, fresh))
			munmap(fresh, ROOM);
		start = room;
	}
	size_t len = (size + HEAD + 15) & ~(size_t)15;
	size_t at = atomic_fetch_add(&used, len);
	if (at + len > ROOM)
		return NULL;
	*(size_t *)(start + at) = size;
	return start + at + HEAD;
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
	return p ? *(size_t *)((char *)p - HEAD) : 0;
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

void *realloc(void *p, size_t size)
{
	void *fresh = behind_new(size);
	if (p && fresh) {
		if (!behind_has(p))
			abort();
		size_t before = *(size_t *)((char *)p - HEAD);
		memcpy(fresh, p, before < size ? before : size);
	}
	return fresh;
}
