/* Stress operations on memory. See stress.h. */
#include "stress.h"

#include <malloc.h>
#include <sys/mman.h>

static char *at(const struct region *r, uint32_t page)
{
	return r->base + (size_t)page * PAGE;
}

void op_write(struct thread *t)
{
	struct region *r = region_random(t);
	uint32_t first, count;
	range_random(t, r, 32, &first, &count);
	for (uint32_t i = 0; i < count; i++)
		page_write(t, r, first + i);
}

void op_verify(struct thread *t)
{
	for (int n = 0; n < 8; n++) {
		struct region *r = region_random(t);
		page_verify(t, r, below(t, r->pages), "random");
	}
}

void op_patch(struct thread *t)
{
	for (int n = 0; n < 8; n++) {
		struct region *r = region_random(t);
		page_patch(t, r, below(t, r->pages));
	}
}

void op_scan(struct thread *t)
{
	struct region *r = region_random(t);
	range_verify(t, r, 0, r->pages, "scan");
}

void op_copy(struct thread *t)
{
	struct region *a = region_random(t), *b = region_random(t);
	uint32_t from, count, to = below(t, b->pages);
	range_random(t, a, 64, &from, &count);
	if (count > b->pages - to)
		count = b->pages - to;
	memmove(at(b, to), at(a, from), (size_t)count * PAGE);
	memmove(b->meta + to, a->meta + from, count * sizeof *a->meta);
	range_verify(t, b, to, count, "copied");
}

void op_discard(struct thread *t)
{
	static const int hints[] = {MADV_PAGEOUT, MADV_COLD, MADV_WILLNEED, MADV_SEQUENTIAL, MADV_RANDOM};
	struct region *r = region_random(t);
	uint32_t first, count;
	range_random(t, r, 128, &first, &count);
	uint32_t which = below(t, 12), peek = first + below(t, count);
	if (which < 5) {
		int rc = madvise(at(r, first), (size_t)count * PAGE, hints[which]);
		MUST(rc == 0 || errno == EINVAL, "madvise hint");
		/* SEQUENTIAL and RANDOM split the kernel's mapping, and mremap works on one mapping. */
		MUST(madvise(r->base, (size_t)r->pages * PAGE, MADV_NORMAL) == 0, "madvise NORMAL");
		page_verify(t, r, peek, "after a hint");
		return;
	}
	if (which == 5) {
		/* Each page keeps its content or reads zeros: writing settles it. */
		MUST(madvise(at(r, first), (size_t)count * PAGE, MADV_FREE) == 0, "madvise FREE");
		for (uint32_t i = first; i < first + count; i++)
			page_write(t, r, i);
		return;
	}
	MUST(madvise(at(r, first), (size_t)count * PAGE, MADV_DONTNEED) == 0, "madvise DONTNEED");
	range_zero(r, first, count);
	if (which < 9)
		range_verify(t, r, first, count, "discarded");
	else
		page_verify(t, r, peek, "discarded");
}

static uint32_t pages_new(struct thread *t)
{
	uint64_t most = t->pages_target / 4;
	if (most > REGION_PAGES_MAX)
		most = REGION_PAGES_MAX;
	if (most <= REGION_PAGES_MIN)
		return REGION_PAGES_MIN;
	/* Small ones more often: every power of two is as likely. */
	uint32_t room = REGION_PAGES_MIN << below(t, 9);
	return REGION_PAGES_MIN + below(t, (room < most ? room : most) - REGION_PAGES_MIN + 1);
}

void op_unmap(struct thread *t)
{
	struct region *r = region_random(t);
	if (t->pages < r->pages + t->pages_target * 3 / 4)
		return;
	if (below(t, 2))
		range_verify(t, r, 0, r->pages, "before munmap");
	region_drop(t, r);
}

void op_map(struct thread *t)
{
	uint32_t pages = pages_new(t);
	while (t->pages + pages > t->pages_target * 5 / 4 + 2 * REGION_PAGES_MIN || !region_entry(t))
		region_drop(t, region_random(t));
	struct region *r = region_new(t, pages);
	uint32_t how = below(t, 4), first, count;
	if (how == 0)
		return;
	range_random(t, r, pages, &first, &count);
	if (how == 1)
		range_verify(t, r, first, count, "fresh mapping");
	else
		for (uint32_t i = first; i < first + count; i++)
			page_write(t, r, i);
}

/* Unmaps pages [first, first + count) of a region: its head, its tail, or a hole that leaves two regions. */
void op_punch(struct thread *t)
{
	struct region *r = region_random(t);
	uint32_t first, count, old = r->pages;
	range_random(t, r, r->pages / 2 + 1, &first, &count);
	if (count >= old || t->pages < count + t->pages_target * 3 / 4)
		return;
	struct region *rest = NULL;
	if (first > 0 && first + count < old && !(rest = region_entry(t)))
		return;
	MUST(munmap(at(r, first), (size_t)count * PAGE) == 0, "partial munmap");
	t->pages -= count;
	uint32_t after = old - first - count;
	if (first == 0) {
		r->base = at(r, count);
		r->pages = after;
		memmove(r->meta, r->meta + count, after * sizeof *r->meta);
		rest = r;
	} else {
		r->pages = first;
		if (after > 0) {
			rest->base = at(r, first + count);
			rest->pages = after;
			memcpy(rest->meta, r->meta + first + count, after * sizeof *r->meta);
		}
	}
	page_verify(t, r, r->pages - 1, "below a hole");
	if (rest)
		page_verify(t, rest, 0, "above a hole");
}

static void remap_resize(struct thread *t, struct region *r)
{
	uint32_t pages = pages_new(t);
	if (pages > r->pages && t->pages + (pages - r->pages) > t->pages_target * 5 / 4)
		return;
	if (pages < r->pages && t->pages < r->pages - pages + t->pages_target * 3 / 4)
		return;
	void *p = mremap(r->base, (size_t)r->pages * PAGE, (size_t)pages * PAGE, MREMAP_MAYMOVE);
	MUST(p != MAP_FAILED, "mremap to another size");
	if (pages > r->pages)
		range_zero(r, r->pages, pages - r->pages);
	t->pages = t->pages + pages - r->pages;
	r->base = p;
	r->pages = pages;
}

static void remap_move(struct region *r)
{
	size_t len = (size_t)r->pages * PAGE;
	void *to = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	MUST(to != MAP_FAILED, "mmap of a place to move to");
	MUST(mremap(r->base, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to, "mremap to a fixed place");
	r->base = to;
}

static void remap_leave(struct thread *t, struct region *r)
{
	size_t len = (size_t)r->pages * PAGE;
	void *to = mremap(r->base, len, len, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	MUST(to != MAP_FAILED, "mremap DONTUNMAP");
	struct meta zero = {0};
	content_verify(t, at(r, below(t, r->pages)), &zero, "left behind by DONTUNMAP");
	MUST(munmap(r->base, len) == 0, "munmap of what DONTUNMAP left");
	r->base = to;
}

void op_remap(struct thread *t)
{
	struct region *r = region_random(t);
	uint32_t how = below(t, 4);
	if (how < 2)
		remap_resize(t, r);
	else if (how == 2)
		remap_move(r);
	else
		remap_leave(t, r);
	page_verify(t, r, below(t, r->pages), "after mremap");
	if (below(t, 4) == 0)
		range_verify(t, r, 0, r->pages, "after mremap");
}

void op_protect(struct thread *t)
{
	struct region *r = region_random(t);
	uint32_t first, count;
	range_random(t, r, 64, &first, &count);
	size_t len = (size_t)count * PAGE;
	bool none = below(t, 2);
	MUST(mprotect(at(r, first), len, none ? PROT_NONE : PROT_READ) == 0, "mprotect");
	if (none) {
		ssize_t n = write(t->pipe[1], at(r, first + below(t, count)), 1);
		MUST(n == -1 && errno == EFAULT, "write from PROT_NONE");
	} else {
		ssize_t n = pread(t->file, at(r, first + below(t, count)), 1, 0);
		MUST(n == 0 || (n == -1 && errno == EFAULT), "read into PROT_READ");
		range_verify(t, r, first, count, "read-only");
	}
	MUST(mprotect(at(r, first), len, PROT_READ | PROT_WRITE) == 0, "mprotect back");
	range_verify(t, r, first, count, "after mprotect");
}

static void block_fill(uint64_t *p, size_t len, uint64_t key)
{
	bool flat = key & 1;
	for (size_t i = 0; i < len / 8; i++)
		p[i] = flat ? key : mix64(key + i);
}

static void block_verify(const uint64_t *p, size_t len, uint64_t key)
{
	bool flat = key & 1;
	for (size_t i = 0; i < len / 8; i++) {
		uint64_t expected = flat ? key : mix64(key + i);
		if (p[i] != expected)
			die("MISMATCH pid %d malloc'd block %p of %zu bytes at %zu: expected %016llx got %016llx",
			    (int)getpid(), (const void *)p, len, i * 8, (unsigned long long)expected, (unsigned long long)p[i]);
	}
}

void op_malloc(struct thread *t)
{
	size_t most = t->pages_target * PAGE / 4, used = 0;
	if (most > 8u << 20)
		most = 8u << 20;
	struct {
		uint64_t *p;
		size_t len;
		uint64_t key;
	} held[16];
	uint32_t count = 1 + below(t, 16);
	for (uint32_t i = 0; i < count; i++) {
		size_t room = (size_t)64 << below(t, 18);
		held[i].len = 16 + below(t, room < most - used ? room : 64);
		held[i].key = rnd(t);
		held[i].p = (held[i].key & 2) ? calloc(1, held[i].len) : malloc(held[i].len);
		MUST(held[i].p && malloc_usable_size(held[i].p) >= held[i].len, "malloc");
		for (size_t j = 0; (held[i].key & 2) && j < held[i].len / 8; j++)
			MUST(held[i].p[j] == 0, "calloc gives zeros");
		block_fill(held[i].p, held[i].len, held[i].key);
		used += held[i].len;
	}
	for (uint32_t i = 0; i < count; i++) {
		block_verify(held[i].p, held[i].len, held[i].key);
		if (held[i].key & 4) {
			size_t next = 16 + below(t, held[i].len * 2);
			held[i].p = realloc(held[i].p, next);
			MUST(held[i].p, "realloc");
			block_verify(held[i].p, next < held[i].len ? next : held[i].len, held[i].key);
		}
		free(held[i].p);
	}
}
