/* Memory that the kernel rearranges while it is swapped in and out: KSM merges its pages, khugepaged and MADV_COLLAPSE make huge ones of
 * them. Usage: merged MIB [ROUNDS] [SEED]. Prints `merged N` and `collapsed N`: pages seen merged at most, and 2 MiB collapsed by request.
 *
 * The first part is advised while the process is small, so that farpage passes the advice on; the rest is marked by prctl. */
#include "check.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define RW (PROT_READ | PROT_WRITE)
#define HUGE (2 * MIB)
#define EARLY (32 * MIB)
/* Different pages; most pages are equal to many others. */
#define CONTENTS 16
#define PAGES_MAX ((size_t)1 << 18)
#define SET_MEMORY_MERGE 67
#define COLLAPSE 25

static char *parts[2];
static size_t lens[2];
/* What each page is filled with; 0: it reads as zeros. */
static uint32_t tags[2][PAGES_MAX];
static uint64_t state, unique = CONTENTS;
static size_t merged_most, collapsed;

static size_t below(size_t bound)
{
	state = mix64(state + 1);
	return state % bound;
}

static uint32_t some_tag(void)
{
	return (uint32_t)(below(8) ? 1 + below(CONTENTS) : ++unique);
}

static void write_page(int part, size_t page)
{
	tags[part][page] = some_tag();
	fill(parts[part] + page * PAGE, PAGE, tags[part][page]);
}

static void compare(int part, size_t page)
{
	char *p = parts[part] + page * PAGE;
	if (tags[part][page])
		CHECK_FILL("content", p, PAGE, tags[part][page]);
	else
		CHECK_ZERO("discarded", p, PAGE);
}

static char *aligned(size_t len)
{
	char *p = map_anon(len + HUGE);
	return (char *)(((uintptr_t)p + HUGE - 1) & ~(HUGE - 1));
}

static void note_merged(void)
{
	char text[32] = {0};
	int fd = open("/proc/self/ksm_merging_pages", O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read(fd, text, sizeof text - 1) <= 0)
		return;
	close(fd);
	size_t now = strtoul(text, NULL, 10);
	merged_most = now > merged_most ? now : merged_most;
}

static void child(void *arg)
{
	(void)arg;
	for (int part = 0; part < 2; part++)
		for (size_t page = 0; page < lens[part] / PAGE; page += 7) {
			compare(part, page);
			if (page % 3 == 0)
				write_page(part, page);
		}
}

/* One change to a part of some huge page. */
static void change(int part)
{
	size_t pages = lens[part] / PAGE, count = 1 + below(700), first = below(pages - count);
	char *p = parts[part] + first * PAGE, *to = p;
	/* Mapped anew the first part would lack its advice, and be several mappings, which not every kernel moves by one call. */
	switch (below(part == 0 ? 3 : 4)) {
	case 0:
		CHECK_OK("discard", madvise(p, count * PAGE, MADV_DONTNEED));
		memset(&tags[part][first], 0, count * sizeof tags[part][0]);
		break;
	case 1:
		CHECK_OK("read-only", mprotect(p, count * PAGE, PROT_READ));
		compare(part, first + below(count));
		sleep_ms(2);
		CHECK_OK("writable", mprotect(p, count * PAGE, RW));
		break;
	case 2:
		to = map_anon(count * PAGE);
		CHECK("away", mremap(p, count * PAGE, count * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
		sleep_ms(2);
		CHECK("back", mremap(to, count * PAGE, count * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, p) == p);
		break;
	default:
		CHECK_OK("unmap", munmap(p, count * PAGE));
		CHECK("map anew", mmap(p, count * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
		memset(&tags[part][first], 0, count * sizeof tags[part][0]);
	}
}

static void round_of(unsigned round)
{
	for (int part = 0; part < 2; part++) {
		size_t pages = lens[part] / PAGE;
		for (size_t n = 0; n < pages / 8; n++)
			write_page(part, below(pages));
		for (unsigned n = 0; n < 8; n++)
			change(part);
		for (size_t page = 0; page < pages; page++)
			compare(part, page);
		for (unsigned n = 0; n < 8; n++) {
			char *chunk = parts[part] + below(lens[part] / HUGE) * HUGE;
			/* Refused where a page is out. */
			collapsed += madvise(chunk, HUGE, COLLAPSE) == 0;
			if (below(2))
				madvise(chunk, HUGE, MADV_PAGEOUT);
		}
		note_merged();
	}
	if (round % 4 == 3)
		CHILD_EXPECT("child", child_start(child, NULL), 0);
}

int main(int argc, char **argv)
{
	check_init(argv);
	lens[0] = EARLY;
	lens[1] = (argc > 1 ? strtoul(argv[1], NULL, 10) : 16) * MIB / HUGE * HUGE;
	unsigned rounds = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 8;
	state = argc > 3 ? strtoul(argv[3], NULL, 10) : 1;
	if (lens[1] / PAGE > PAGES_MAX || lens[1] < HUGE) {
		say("%s: 2 to %zu MiB", argv[0], PAGES_MAX * PAGE / MIB);
		return 2;
	}
	parts[0] = aligned(lens[0]);
	madvise(parts[0], lens[0], MADV_MERGEABLE);
	madvise(parts[0], lens[0], MADV_HUGEPAGE);
	for (size_t page = 0; page < lens[0] / PAGE; page++)
		write_page(0, page);
	/* Kernels without it have merged the first part alone. */
	prctl(SET_MEMORY_MERGE, 1, 0, 0, 0);
	parts[1] = aligned(lens[1]);
	for (size_t page = 0; page < lens[1] / PAGE; page++)
		write_page(1, page);
	for (unsigned round = 0; round < rounds && failures() == 0; round++)
		round_of(round);
	say("merged %zu", merged_most);
	say("collapsed %zu", collapsed);
	if (failures() == 0)
		say("ok merged %zu", (lens[0] + lens[1]) / MIB);
	return failures() ? 1 : 0;
}
