/* Traffic of 4 KiB, 64 KiB and 2 MiB side by side, in the spirit of Linux' thp_swap_allocator_test: rounds of random discard,
 * swap-in and swap-out, with every byte compared. Usage: swapsizes LIVE_MIB [ROUNDS] [SEED]: so much is alive at most, and out after each
 * round. Of 100 pages SMALL are in pieces of each of the smaller sizes. */
#include "check.h"

#include <sys/mman.h>

#define HUGE (2 * MIB)
#define PAGES_MAX ((size_t)1 << 17)
#define SMALL 15

/* Pieces of one size. */
struct pieces {
	const char *name;
	size_t size, count;
	/* Of 100 pages. */
	unsigned share;
	char *base;
	/* What each is filled with; 0: it reads as zeros. */
	uint64_t *tags;
	/* Pages `from` to `to` of each were discarded since. */
	struct hole {
		uint16_t from, to;
	} *holes;
};

static uint64_t all_tags[2 * PAGES_MAX];
static struct hole all_holes[2 * PAGES_MAX];
static struct pieces kinds[] = {
	{.name = "4 KiB", .size = PAGE, .share = SMALL},
	{.name = "64 KiB", .size = 16 * PAGE, .share = SMALL},
	{.name = "2 MiB", .size = HUGE, .share = 100 - 2 * SMALL},
};
static uint64_t state, next_tag = 1;
static size_t live;

static size_t below(size_t bound)
{
	state = mix64(state + 1);
	return state % bound;
}

static char *at(const struct pieces *of, size_t i)
{
	return of->base + i * of->size;
}

/* Maps half as much again as may be alive of each size. */
static void map(size_t live_max)
{
	size_t used = 0;
	for (struct pieces *of = kinds; of < kinds + NELEM(kinds); of++) {
		of->count = live_max / 100 * of->share * 3 / 2 / of->size;
		char *p = map_anon(of->count * of->size + HUGE);
		of->base = (char *)(((uintptr_t)p + HUGE - 1) & ~(HUGE - 1));
		of->tags = all_tags + used;
		of->holes = all_holes + used;
		used += of->count;
	}
}

static void discard(struct pieces *of, size_t i)
{
	if (of->tags[i] == 0)
		return;
	size_t pages = of->size / PAGE;
	struct hole *hole = &of->holes[i];
	/* Of one in 32 only a part goes. */
	if (pages > 1 && hole->to == 0 && below(32) == 0) {
		hole->from = (uint16_t)below(pages);
		hole->to = (uint16_t)(hole->from + 1 + below(pages - hole->from));
		CHECK_OK("discard a part", madvise(at(of, i) + hole->from * PAGE, (size_t)(hole->to - hole->from) * PAGE, MADV_DONTNEED));
		return;
	}
	CHECK_OK("discard", madvise(at(of, i), of->size, MADV_DONTNEED));
	of->tags[i] = 0;
	*hole = (struct hole){0};
	live -= of->size;
}

/* Swap-in, if it is out. */
static void compare(const struct pieces *of, size_t i)
{
	if (of->tags[i] == 0) {
		CHECK_ZERO(of->name, at(of, i), of->size);
		return;
	}
	struct hole hole = of->holes[i];
	for (size_t page = 0; page < of->size / PAGE; page++) {
		if (page >= hole.from && page < hole.to)
			CHECK_ZERO("discarded", at(of, i) + page * PAGE, PAGE);
		else
			CHECK_FILL(of->name, at(of, i) + page * PAGE, PAGE, of->tags[i] + page);
	}
}

static void write_all_of(struct pieces *of, size_t i)
{
	live += of->tags[i] == 0 ? of->size : 0;
	of->tags[i] = next_tag;
	of->holes[i] = (struct hole){0};
	next_tag += of->size / PAGE;
	for (size_t page = 0; page < of->size / PAGE; page++)
		fill(at(of, i) + page * PAGE, PAGE, of->tags[i] + page);
}

/* So many pages' worth of new pieces of one size. */
static void grow(struct pieces *of, size_t pages)
{
	for (size_t tries = 0; pages >= of->size / PAGE && tries < 4096; tries++) {
		size_t i = below(of->count);
		if (of->tags[i])
			continue;
		write_all_of(of, i);
		pages -= of->size / PAGE;
	}
}

static void round_of(size_t live_max)
{
	for (struct pieces *of = kinds; of < kinds + NELEM(kinds); of++) {
		for (size_t n = 0; n < of->count / 10; n++)
			discard(of, below(of->count));
		for (size_t n = 0; n < of->count / 10; n++) {
			size_t i = below(of->count);
			if (of->tags[i] == 0)
				continue;
			compare(of, i);
			/* Half of them are changed too, and so need another place. */
			if (below(2))
				write_all_of(of, i);
		}
	}
	for (size_t tries = 0; live + HUGE <= live_max && tries < 256; tries++) {
		size_t drawn = below(100);
		grow(&kinds[drawn < SMALL ? 0 : drawn < 2 * SMALL ? 1 : 2], HUGE / PAGE);
	}
	for (const struct pieces *of = kinds; of < kinds + NELEM(kinds); of++)
		CHECK_OK("swap-out", madvise(of->base, of->count * of->size, MADV_PAGEOUT));
}

int main(int argc, char **argv)
{
	check_init(argv);
	size_t live_max = (argc > 1 ? strtoul(argv[1], NULL, 10) : 16) * MIB;
	unsigned rounds = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 100;
	state = argc > 3 ? strtoul(argv[3], NULL, 10) : 1;
	if (live_max / PAGE > PAGES_MAX) {
		say("%s: at most %zu MiB", argv[0], PAGES_MAX * PAGE / MIB);
		return 2;
	}
	map(live_max);
	for (unsigned round = 0; round < rounds && failures() == 0; round++)
		round_of(live_max);
	for (const struct pieces *of = kinds; of < kinds + NELEM(kinds); of++)
		for (size_t i = 0; i < of->count && failures() == 0; i++)
			compare(of, i);
	if (failures() == 0)
		say("ok swapsizes %zu", live / MIB);
	return failures() ? 1 : 0;
}
