/* What a page must contain, and the report when it does not. See stress.h. */
#include "stress.h"

#include <stdatomic.h>
#include <sys/mman.h>

static uint64_t page_key(const struct meta *m)
{
	return mix64(options.seed ^ ((uint64_t)m->pfn << 28) ^ ((uint64_t)m->gen << 4) ^ m->kind);
}

/* Word `i` as the last whole write left it. Words 0-2 name the page, except where the kind is one value throughout. */
static uint64_t base_word(const struct meta *m, uint64_t key, uint32_t i)
{
	if (m->kind == KIND_ZERO)
		return 0;
	if (m->kind == KIND_SAME)
		return key;
	if (i == 0)
		return (uint64_t)m->pfn << 12;
	if (i == 1)
		return ((uint64_t)m->gen << 8) | m->kind;
	if (i == 2)
		return options.seed;
	if (m->kind == KIND_RANDOM)
		return mix64(key + i);
	if (m->kind == KIND_SMALL)
		return (key & 0xff) + i / 8;
	if (m->kind == KIND_TEXT)
		return 0x2064726f77206120u ^ (mix64(key + i) & 0x0303030303030303u);
	return i < PAGE_WORDS / 2 ? mix64(key + i) : 0;
}

static bool is_patched(const struct meta *m, uint32_t i)
{
	return i - m->patch_start < m->patch_len;
}

static uint64_t patch_word(const struct meta *m, uint32_t i)
{
	return mix64(options.seed ^ ((uint64_t)m->patch_gen << 12) ^ i);
}

void page_write(struct thread *t, struct region *r, uint32_t page)
{
	uint64_t *w = (uint64_t *)(r->base + (size_t)page * PAGE);
	struct meta *m = &r->meta[page];
	*m = (struct meta){.pfn = (uintptr_t)w >> 12, .gen = ++t->gen, .kind = below(t, KIND_COUNT)};
	uint64_t key = page_key(m);
	for (uint32_t i = 0; i < PAGE_WORDS; i++)
		w[i] = base_word(m, key, i);
}

void page_patch(struct thread *t, struct region *r, uint32_t page)
{
	uint64_t *w = (uint64_t *)(r->base + (size_t)page * PAGE);
	struct meta *m = &r->meta[page];
	uint32_t start = below(t, PAGE_WORDS), len = 1 + below(t, PAGE_WORDS - start);
	/* One patch at a time is remembered: a new one covers the old one. */
	if (m->patch_len) {
		uint32_t end = start + len, old_end = m->patch_start + m->patch_len;
		start = start < m->patch_start ? start : m->patch_start;
		len = (end > old_end ? end : old_end) - start;
	}
	m->patch_gen = ++t->gen;
	m->patch_start = start & 1023;
	m->patch_len = len & 1023;
	for (uint32_t i = start; i < start + len; i++)
		w[i] = patch_word(m, i);
}

static uint64_t expected_word(const struct meta *m, uint64_t key, uint32_t i)
{
	return is_patched(m, i) ? patch_word(m, i) : base_word(m, key, i);
}

/* Reads the word again later: tells a wrong page from a page that was wrong for a moment. */
static __attribute__((noreturn)) void mismatch(const struct thread *t, const uint64_t *w, const struct meta *m,
					       uint32_t i, const char *when)
{
	static atomic_flag reported = ATOMIC_FLAG_INIT;
	while (atomic_flag_test_and_set(&reported))
		sleep(1);
	uint64_t key = page_key(m), got = ((const volatile uint64_t *)w)[i];
	uint32_t wrong = 0;
	for (uint32_t j = 0; j < PAGE_WORDS; j++)
		wrong += w[j] != expected_word(m, key, j);
	usleep(200000);
	uint64_t later = ((const volatile uint64_t *)w)[i];
	die("MISMATCH pid %d proc %u thread %u op %s (%s): address %p offset %u expected %016llx got %016llx, 0.2 s "
	    "later %016llx; page: written at %#llx gen %u kind %u patch gen %llu words %u+%u; %u of 512 words wrong, "
	    "found words %016llx %016llx %016llx",
	    (int)getpid(), proc_index, t->index, op_names[t->op], when, (const void *)w, i * 8,
	    (unsigned long long)expected_word(m, key, i), (unsigned long long)got, (unsigned long long)later,
	    (unsigned long long)m->pfn << 12, (unsigned)m->gen, (unsigned)m->kind, (unsigned long long)m->patch_gen,
	    (unsigned)m->patch_start, (unsigned)m->patch_len, wrong, (unsigned long long)w[0],
	    (unsigned long long)w[1], (unsigned long long)w[2]);
}

void content_verify(const struct thread *t, const void *content, const struct meta *meta, const char *when)
{
	const uint64_t *w = content;
	uint64_t key = page_key(meta);
	for (uint32_t i = 0; i < PAGE_WORDS; i++) {
		if (w[i] != expected_word(meta, key, i))
			mismatch(t, w, meta, i, when);
	}
}

void page_verify(const struct thread *t, const struct region *r, uint32_t page, const char *when)
{
	content_verify(t, r->base + (size_t)page * PAGE, &r->meta[page], when);
}

void range_verify(const struct thread *t, const struct region *r, uint32_t first, uint32_t count, const char *when)
{
	for (uint32_t i = first; i < first + count; i++)
		page_verify(t, r, i, when);
}

void range_zero(struct region *r, uint32_t first, uint32_t count)
{
	memset(r->meta + first, 0, count * sizeof *r->meta);
}

struct region *region_random(struct thread *t)
{
	uint32_t start = below(t, t->region_count);
	for (uint32_t i = 0; i < t->region_count; i++) {
		struct region *r = &t->regions[(start + i) % t->region_count];
		if (r->base)
			return r;
	}
	return region_new(t, REGION_PAGES_MIN);
}

void range_random(struct thread *t, const struct region *r, uint32_t most, uint32_t *first, uint32_t *count)
{
	*first = below(t, r->pages);
	uint32_t room = r->pages - *first;
	*count = 1 + below(t, room < most ? room : most);
}

struct region *region_entry(struct thread *t)
{
	for (uint32_t i = 0; i < t->region_count; i++) {
		if (!t->regions[i].base)
			return &t->regions[i];
	}
	return NULL;
}

struct region *region_new(struct thread *t, uint32_t pages)
{
	struct region *r = region_entry(t);
	MUST(r, "region table");
	void *p = mmap(NULL, (size_t)pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(p != MAP_FAILED, "mmap of a region");
	r->base = p;
	r->pages = pages;
	range_zero(r, 0, pages);
	t->pages += pages;
	return r;
}

void region_drop(struct thread *t, struct region *r)
{
	MUST(munmap(r->base, (size_t)r->pages * PAGE) == 0, "munmap of a region");
	t->pages -= r->pages;
	r->base = NULL;
}

void regions_fill(struct thread *t)
{
	uint32_t most = t->pages_target / 4 < REGION_PAGES_MAX ? (uint32_t)(t->pages_target / 4) : REGION_PAGES_MAX;
	while (t->pages < t->pages_target) {
		uint32_t pages = REGION_PAGES_MIN;
		/* Big regions first need fewer entries; the last one fits. */
		if (most > pages)
			pages = most / 2 + below(t, most / 2);
		struct region *r = region_new(t, pages);
		for (uint32_t i = 0; i < pages; i++)
			page_write(t, r, i);
	}
}

void regions_verify_all(struct thread *t, const char *when)
{
	for (uint32_t i = 0; i < t->region_count; i++) {
		if (t->regions[i].base)
			range_verify(t, &t->regions[i], 0, t->regions[i].pages, when);
	}
}

void regions_free(struct thread *t)
{
	for (uint32_t i = 0; i < t->region_count; i++) {
		if (t->regions[i].base)
			region_drop(t, &t->regions[i]);
	}
}
