/* A malloc of a program's or a library's own: blocks one behind the other, with their sizes, never given back. */
#ifndef BUMP_H
#define BUMP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

enum { BUMP_ROOM = 1 << 30, BUMP_HEAD = 16 };
static _Atomic(char *) bump_room;
static atomic_size_t bump_used;

static inline bool bump_has(const void *p)
{
	return (const char *)p >= bump_room && (const char *)p < bump_room + BUMP_ROOM;
}

static inline size_t bump_size(const void *p)
{
	return *(const size_t *)((const char *)p - BUMP_HEAD);
}

static inline void *bump(size_t size)
{
	char *start = bump_room;
	if (!start) {
		char *fresh = mmap(NULL, BUMP_ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (fresh == MAP_FAILED)
			return NULL;
		if (!atomic_compare_exchange_strong(&bump_room, &start, fresh))
			munmap(fresh, BUMP_ROOM);
		start = bump_room;
	}
	size_t at = bump_used, len;
	do {
		len = (size + BUMP_HEAD + 15) & ~(size_t)15;
		if (at + len > BUMP_ROOM)
			return NULL;
	} while (!atomic_compare_exchange_weak(&bump_used, &at, at + len));
	*(size_t *)(start + at) = size;
	return start + at + BUMP_HEAD;
}

/* A block of another size with the same content, as far as that goes. */
static inline void *bump_again(const void *p, size_t size)
{
	void *fresh = bump(size);
	if (p && fresh)
		memcpy(fresh, p, bump_size(p) < size ? bump_size(p) : size);
	return fresh;
}

#endif
