/* The malloc family. Usage: sem_malloc [MIB] [GROUP]; MIB (default 16) is the size of the big blocks. */
#include "check.h"

#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/uio.h>

/* Sizes no compiler can see through: they are meant to be refused. */
static volatile size_t huge_size = (size_t)1 << 62;
static volatile size_t over_ptrdiff = (size_t)PTRDIFF_MAX + 1;

static void aligned(void)
{
	for (size_t align = 16; align <= 4 * MIB; align *= 2) {
		size_t len = align * 3 < 64 * PAGE ? align * 3 : align;
		char *a = opaque(aligned_alloc(align, len));
		char *b = opaque(memalign(align, len + 7));
		if (!CHECK("aligned_alloc gives memory", a) || !CHECK("memalign gives memory", b))
			return;
		CHECK_EQ("aligned_alloc alignment", 0, (uintptr_t)a % align);
		CHECK_EQ("memalign alignment", 0, (uintptr_t)b % align);
		fill(a, len, align);
		fill(b, len + 7, align + 1);
		CHECK_FILL("aligned_alloc content", a, len, align);
		CHECK_FILL("memalign content", b, len + 7, align + 1);
		free(a);
		b = opaque(realloc(b, len * 2));
		CHECK_FILL("realloc of aligned block keeps content", b, len + 7, align + 1);
		free(b);
	}
	char *v = opaque(valloc(100)), *pv = opaque(pvalloc(PAGE + 1));
	CHECK_EQ("valloc alignment", 0, (uintptr_t)v % PAGE);
	CHECK_EQ("pvalloc alignment", 0, (uintptr_t)pv % PAGE);
	CHECK("pvalloc rounds up to pages", malloc_usable_size(pv) >= 2 * PAGE);
	fill(pv, 2 * PAGE, 5);
	CHECK_FILL("pvalloc content", pv, 2 * PAGE, 5);
	free(v);
	free(pv);
	for (size_t size = 1; size <= 100000; size = size * 3 + 1) {
		void *p = must_malloc(size);
		CHECK_EQ("malloc alignment", 0, (uintptr_t)p % (size >= 16 ? 16 : 8));
		free(p);
	}
}

static void memalign_errors(void)
{
	void *p = (void *)0x1234;
	CHECK_EQ("posix_memalign alignment 3", EINVAL, posix_memalign(&p, 3, 100));
	CHECK_EQ("posix_memalign alignment 24", EINVAL, posix_memalign(&p, 24, 100));
	CHECK_EQ("posix_memalign alignment 4", EINVAL, posix_memalign(&p, 4, 100));
	CHECK_EQ("posix_memalign alignment 0", EINVAL, posix_memalign(&p, 0, 100));
	CHECK_EQ("posix_memalign of 2^62 bytes", ENOMEM, posix_memalign(&p, 64, huge_size));
	CHECK_EQ("pointer left alone on error", 0x1234, (uintptr_t)p);
	CHECK_EQ("posix_memalign alignment 8", 0, posix_memalign(&p, 8, 100));
	fill(p, 100, 1);
	CHECK_FILL("content", p, 100, 1);
	free(p);
	CHECK_EQ("posix_memalign alignment 2 MiB", 0, posix_memalign(&p, 2 * MIB, 3 * MIB));
	CHECK_EQ("alignment", 0, (uintptr_t)p % (2 * MIB));
	fill(p, 3 * MIB, 2);
	chill();
	CHECK_FILL("content after chill", p, 3 * MIB, 2);
	free(p);
}

/* libc's, which is to come to where malloc does. */
static void array(void)
{
	char *other = must_malloc(PAGE * 16), *p = opaque(reallocarray(NULL, 16, PAGE));
	CHECK_EQ("where reallocarray allocates", is_managed(other), is_managed(p));
	fill(p, 16 * PAGE, 6);
	p = opaque(reallocarray(p, 64, PAGE));
	CHECK_EQ("where it grows", is_managed(other), is_managed(p));
	chill();
	CHECK_FILL("content after it grew", p, 16 * PAGE, 6);
	free(p);
	free(other);
}

static void limits(void)
{
	errno = 0;
	CHECK("malloc over PTRDIFF_MAX is refused", opaque(malloc(over_ptrdiff)) == NULL);
	CHECK_EQ("malloc errno", ENOMEM, errno);
	errno = 0;
	CHECK("calloc overflow is refused", opaque(calloc(huge_size, 16)) == NULL);
	CHECK_EQ("calloc errno", ENOMEM, errno);
	char *p = must_malloc(10000);
	fill(p, 10000, 3);
	errno = 0;
	CHECK("reallocarray overflow is refused", opaque(reallocarray(opaque(p), huge_size, 16)) == NULL);
	CHECK_EQ("reallocarray errno", ENOMEM, errno);
	errno = 0;
	CHECK("realloc to 2^62 is refused", opaque(realloc(opaque(p), huge_size)) == NULL);
	CHECK_EQ("realloc errno", ENOMEM, errno);
	CHECK_FILL("block kept after refused realloc", p, 10000, 3);
	free(p);
	void *a = opaque(malloc(0)), *b = opaque(malloc(0));
	CHECK("malloc(0) gives distinct pointers", a && b && a != b);
	free(a);
	free(b);
	free(NULL);
	p = opaque(realloc(NULL, 100));
	CHECK("realloc(NULL) allocates", p);
	free(opaque(realloc(p, 0)));
	errno = 77;
	free(must_malloc(8 * MIB));
	CHECK_EQ("free keeps errno", 77, errno);
}

static void realloc_huge(void)
{
	size_t top = size_mb * MIB;
	size_t len = 1000;
	char *p = must_malloc(len);
	fill(p, len, 9);
	while (len < top) {
		size_t next = len * 2 + 4096 < top ? len * 2 + 4096 : top;
		p = opaque(realloc(p, next));
		if (!CHECK("realloc grows", p))
			return;
		CHECK_FILL("grown block keeps its content", p, len, 9);
		fill(p, next, 9);
		len = next;
	}
	chill();
	while (len > 5000) {
		size_t next = len / 3;
		p = opaque(realloc(p, next));
		CHECK_FILL("shrunk block keeps its content", p, next, 9);
		len = next;
	}
	free(p);
	char *blocks[8];
	for (size_t i = 0; i < NELEM(blocks); i++) {
		blocks[i] = must_malloc(MIB);
		fill(blocks[i], MIB, i);
	}
	for (size_t round = 2; round < 6; round++) {
		for (size_t i = 0; i < NELEM(blocks); i++) {
			blocks[i] = opaque(realloc(blocks[i], round * 512 * 1024));
			CHECK_FILL("interleaved realloc", blocks[i], round > 2 ? (round - 1) * 512 * 1024 : MIB, i);
			fill(blocks[i], round * 512 * 1024, i);
		}
	}
	for (size_t i = 0; i < NELEM(blocks); i++)
		free(blocks[i]);
}

static void usable(void)
{
	for (size_t size = 1; size < 9 * MIB; size = size * 5 / 3 + 1) {
		char *p = must_malloc(size);
		size_t room = malloc_usable_size(p);
		CHECK("malloc_usable_size covers the request", room >= size);
		CHECK("malloc_usable_size is no more than twice it", room <= size * 2 + 64);
		fill(p, room, size);
		CHECK_FILL("usable room holds data", p, room, size);
		free(p);
	}
	CHECK_EQ("malloc_usable_size(NULL)", 0, malloc_usable_size(NULL));
}

static void calloc_zero(void)
{
	static void *held[64];
	for (size_t size = 16; size <= 8 * MIB; size *= 4) {
		size_t count = size > 256 * 1024 ? 2 : NELEM(held);
		for (int round = 0; round < 3; round++) {
			for (size_t i = 0; i < count; i++) {
				held[i] = must_malloc(size);
				memset(held[i], 0xff, size);
			}
			if (round == 1 && size == 65536)
				chill();
			for (size_t i = 0; i < count; i++)
				free(held[i]);
			for (size_t i = 0; i < count; i++) {
				held[i] = opaque(calloc(size / 8, 8));
				CHECK_ZERO("calloc after reuse", held[i], size);
			}
			for (size_t i = 0; i < count; i++)
				free(held[i]);
		}
	}
	size_t big = size_mb * MIB / 2;
	char *p = opaque(calloc(1, big));
	CHECK_ZERO("big calloc", p, big);
	memset(p, 0xee, big);
	free(p);
	p = opaque(calloc(big, 1));
	CHECK_ZERO("big calloc after reuse", p, big);
	free(p);
}

struct object {
	unsigned char *p;
	uint32_t len;
	uint32_t tag;
};

static void small_objects(void)
{
	size_t count = size_mb * MIB / 1024, tag = 0;
	struct object *all = calloc(count, sizeof *all);
	uint64_t r = 1;
	for (int round = 0; round < 3; round++) {
		for (size_t i = 0; i < count; i++) {
			r = mix64(r);
			if (all[i].p && (r & 3) == 0)
				continue;
			if (all[i].p) {
				CHECK_FILL("small object", all[i].p, all[i].len, all[i].tag);
				free(all[i].p);
			}
			all[i].len = 16 + (r >> 8) % ((r & 0x70) ? 500 : 6000);
			all[i].tag = (uint32_t)++tag;
			all[i].p = must_malloc(all[i].len);
			fill(all[i].p, all[i].len, all[i].tag);
		}
		chill();
	}
	for (size_t i = 0; i < count; i++) {
		size_t j = (i * 7919) % count;
		if (!all[j].p)
			continue;
		CHECK_FILL("small object at the end", all[j].p, all[j].len, all[j].tag);
		free(all[j].p);
		all[j].p = NULL;
	}
	for (size_t i = 0; i < count; i++)
		free(all[i].p);
	free(all);
}

/* Blocks freed by a thread that did not allocate them, through one slot per pair. */
static void *_Atomic exchange_slot;

static void *exchange_consumer(void *arg)
{
	(void)arg;
	for (unsigned i = 1; i <= 2000; i++) {
		unsigned char *p;
		while (!(p = __atomic_exchange_n(&exchange_slot, NULL, __ATOMIC_ACQ_REL)))
			sched_yield();
		CHECK_FILL("block from another thread", p, 16 + i * 37 % 40000, i);
		free(p);
	}
	return NULL;
}

static void cross_thread(void)
{
	pthread_t t;
	pthread_create(&t, NULL, exchange_consumer, NULL);
	for (unsigned i = 1; i <= 2000; i++) {
		size_t len = 16 + i * 37 % 40000;
		unsigned char *p = must_malloc(len);
		fill(p, len, i);
		void *none = NULL;
		while (!__atomic_compare_exchange_n(&exchange_slot, &none, (void *)p, false, __ATOMIC_ACQ_REL,
						    __ATOMIC_RELAXED)) {
			none = NULL;
			sched_yield();
		}
	}
	pthread_join(t, NULL);
}

static int compare_words(const void *a, const void *b)
{
	uint64_t x, y;
	memcpy(&x, a, 8);
	memcpy(&y, b, 8);
	return x < y ? -1 : x > y;
}

static void libc_users(void)
{
	char *text = NULL;
	size_t len = 0;
	FILE *mem = open_memstream(&text, &len);
	for (unsigned i = 0; i < 100000; i++)
		fprintf(mem, "line %u\n", i);
	fclose(mem);
	chill();
	FILE *in = fmemopen(text, len, "r");
	char *line = NULL;
	size_t room = 0;
	for (unsigned i = 0; i < 100000; i++) {
		char expected[32];
		int n = snprintf(expected, sizeof expected, "line %u\n", i);
		if (!CHECK_EQ("getline length", n, getline(&line, &room, in)))
			break;
		if (!CHECK_MEM("getline text", expected, line, (size_t)n))
			break;
	}
	fclose(in);
	free(line);
	free(text);

	size_t count = size_mb * MIB / 4 / 8;
	uint64_t *words = must_malloc(count * 8), sum = 0, after = 0;
	for (size_t i = 0; i < count; i++)
		sum += words[i] = mix64(i);
	qsort(words, count, 8, compare_words);
	for (size_t i = 0; i < count; i++) {
		after += words[i];
		if (i && !CHECK("qsort order", words[i - 1] <= words[i]))
			break;
	}
	CHECK_EQ("qsort keeps the sum", sum, after);
	free(words);
	malloc_trim(0);

	char *brk0 = sbrk(0);
	if (sbrk((intptr_t)MIB) == (void *)-1) {
		skip("sbrk", "%s", strerror(errno));
		return;
	}
	fill(brk0, MIB, 4);
	chill();
	CHECK_FILL("sbrk memory", brk0, MIB, 4);
	if (sbrk(0) == brk0 + MIB)
		sbrk(-(intptr_t)MIB);
}

/* ctypes, JNA and their like look functions up in libc by a handle of it. They came past us: libc's free got a block of ours and aborted, and
 * its readv was not told where the buffers lie. */
static void by_handle(void)
{
	void *libc = dlopen("libc.so.6", RTLD_NOW);
	if (!CHECK("dlopen", libc))
		return;
	void (*release)(void *) = (void (*)(void *))dlsym(libc, "free");
	ssize_t (*scatter)(int, const struct iovec *, int) = (ssize_t (*)(int, const struct iovec *, int))dlsym(libc, "readv");
	CHECK("found without an error", dlerror() == NULL);
	for (size_t len = 10; len < 4 * MIB; len *= 10) {
		char *p = must_malloc(len);
		memset(p, 'x', len - 1);
		p[len - 1] = 0;
		release(strdup(p));
		release(p);
	}
	int fds[2];
	char *p = must_malloc(MIB);
	CHECK_OK("pipe", pipe(fds));
	CHECK_EQ("write", 6, write(fds[1], "abcdef", 6));
	struct iovec parts[2] = {{p, 2}, {p + MIB - 4, 4}};
	chill();
	CHECK_EQ("readv into cold memory", 6, scatter(fds[0], parts, 2));
	CHECK_MEM("its content", "abcd", ((char[]){p[0], p[1], p[MIB - 4], p[MIB - 3]}), 4);
	free(p);
	close(fds[0]);
	close(fds[1]);
	CHECK("what is not there", dlsym(libc, "no_such_function_of_libc") == NULL);
	CHECK("is told of", dlerror() != NULL);
	CHECK("what only libc has", dlsym(libc, "strlen") != NULL);
	CHECK("without an error", dlerror() == NULL);
	CHECK("by name alone", dlsym(RTLD_DEFAULT, "free") != NULL && dlsym(RTLD_NEXT, "strlen") != NULL);
	dlclose(libc);
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"aligned", aligned},	      {"memalign_errors", memalign_errors},
		{"array", array},	      {"limits", limits},
		{"realloc_huge", realloc_huge},
		{"usable", usable},	      {"calloc_zero", calloc_zero},
		{"small_objects", small_objects}, {"cross_thread", cross_thread},
		{"libc_users", libc_users},   {"by_handle", by_handle},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
