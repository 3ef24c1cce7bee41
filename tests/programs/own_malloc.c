/* A program with an allocator of its own, as rustc, Redis or MariaDB may have: it comes before any library in the look-up of
 * symbols. Blocks are never given back.
 * Usage: own_malloc [MIB] */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { ROOM = 1 << 30, HEAD = 16, THREADS = 8 };
static _Atomic(char *) room;
static atomic_size_t used;

void *malloc(size_t size)
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
	size_t at = used, len;
	do {
		len = (size + HEAD + 15) & ~(size_t)15;
		if (at + len > ROOM)
			return NULL;
	} while (!atomic_compare_exchange_weak(&used, &at, at + len));
	*(size_t *)(start + at) = size;
	return start + at + HEAD;
}

void free(void *p)
{
	if (p && ((char *)p < room || (char *)p >= room + ROOM))
		abort();
}

void *calloc(size_t n, size_t size)
{
	return malloc(n * size);
}

void *realloc(void *p, size_t size)
{
	void *fresh = malloc(size);
	if (p && fresh) {
		size_t before = *(size_t *)((char *)p - HEAD);
		memcpy(fresh, p, before < size ? before : size);
	}
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
	CHECK("reallocarray's block is the program's", p && p >= room && p < room + ROOM);
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
