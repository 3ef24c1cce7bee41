/* What makes a process managed is how much it may write, each page counted once, from the call that opens it until it is unmapped.
 * mprotect counted what it opens again each time, so that a small program which opens and closes 1 MiB became managed (and gave up setuid
 * with it); munmap of memory that was only reserved took back what other memory had counted for.
 * Usage: counted HALF [GROUP]: half the budget, in MiB. It is not to be managed when it starts. */
#include "check.h"

#include <sys/mman.h>
#include <sys/wait.h>

enum { TURNS = 2000 };
#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)

/* The filter comes with management. */
static bool has_filter(void)
{
	char text[4096];
	FILE *file = fopen("/proc/self/status", "r");
	size_t len = file ? fread(text, 1, sizeof text - 1, file) : 0;
	text[len] = 0;
	if (file)
		fclose(file);
	return strstr(text, "\nSeccomp:\t2") != NULL;
}

static char *reserve(size_t len)
{
	char *p = mmap(NULL, len, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
	CHECK("reserved", p != MAP_FAILED);
	return p;
}

static void toggles(void)
{
	char *p = map_anon(MIB);
	p[0] = 1;
	for (int turn = 0; turn < TURNS; turn++) {
		CHECK_OK("closed", mprotect(p, MIB, turn % 2 ? PROT_READ : PROT_NONE));
		CHECK_OK("opened again", mprotect(p, MIB, RW));
	}
	CHECK_EQ("content", 1, p[0]);
	munmap(p, MIB);
	CHECK("it fits", !has_filter());
}

/* The same in a reservation, in parts that are not always the same. */
static void parts(void)
{
	enum { PARTS = 16 };
	char *p = reserve(PARTS * MIB);
	for (int turn = 0; turn < TURNS; turn++) {
		size_t from = (size_t)turn % PARTS, to = from + 1 + (size_t)turn / PARTS % (PARTS - from);
		CHECK_OK("opened", mprotect(p + from * MIB, (to - from) * MIB, RW));
		p[from * MIB] = 1;
		CHECK_OK("closed", mprotect(p + from * MIB, MIB, PROT_NONE));
	}
	munmap(p, PARTS * MIB);
	CHECK("it fits", !has_filter());
}

/* A heap that commits by mprotect, or by mmap, and gives back by mmap. */
static void heap(void)
{
	char *p = reserve(4 * MIB);
	for (int turn = 0; turn < TURNS; turn++) {
		if (turn % 2)
			CHECK_OK("committed", mprotect(p + MIB, 2 * MIB, RW));
		else
			CHECK("committed", mmap(p + MIB, 2 * MIB, RW, ANON | MAP_FIXED, -1, 0) == p + MIB);
		if (turn % 4 == 0)
			CHECK("once more", mmap(p + MIB, 2 * MIB, RW, ANON | MAP_FIXED, -1, 0) == p + MIB);
		p[MIB] = 1;
		CHECK("given back", mmap(p + MIB, 2 * MIB, PROT_NONE, ANON | MAP_FIXED | MAP_NORESERVE, -1, 0) == p + MIB);
	}
	munmap(p, 4 * MIB);
	CHECK("it fits", !has_filter());
}

/* What the kernel refuses, at the start and halfway. */
static void refused(void)
{
	char *p = reserve(4 * MIB);
	munmap(p + MIB, MIB);
	for (int turn = 0; turn < TURNS / 10; turn++) {
		CHECK_ERR("nothing there", ENOMEM, mprotect(p + MIB, MIB, RW));
		CHECK_ERR("a hole", ENOMEM, mprotect(p, 4 * MIB, RW));
		p[0] = 1;
		CHECK_OK("closed", mprotect(p, MIB, PROT_NONE));
	}
	munmap(p, 4 * MIB);
	CHECK("it fits", !has_filter());
}

/* Moved, grown and unmapped. */
static void moved(void)
{
	for (int turn = 0; turn < TURNS; turn++) {
		char *p = map_anon(MIB), *behind = mmap(p + MIB, PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
		char *q = mremap(p, MIB, 2 * MIB, MREMAP_MAYMOVE);
		if (!CHECK("moved", q != MAP_FAILED))
			return;
		q[2 * MIB - 1] = 1;
		CHECK_OK("closed", mprotect(q, 2 * MIB, PROT_READ));
		CHECK_OK("opened again", mprotect(q, 2 * MIB, RW));
		munmap(q, 2 * MIB);
		if (behind != MAP_FAILED)
			munmap(behind, PAGE);
	}
	CHECK("it fits", !has_filter());
}

/* Before anything else was opened or closed: here and in a child. */
static void first_in(void *unused)
{
	(void)unused;
	size_t len = size_mb / 5 * 3 * MIB;
	for (int turn = 0; turn < 3; turn++)
		munmap(map_anon(len), len);
	char *p = map_anon(len);
	CHECK_OK("closed", mprotect(p, len, PROT_READ));
	CHECK_OK("opened again", mprotect(p, len, RW));
	CHECK("it fits", !has_filter());
	munmap(p, len);
}

static void first(void)
{
	first_in(NULL);
	CHILD_EXPECT("in a child", child_start(first_in, NULL), 0);
}

/* Moved in place of memory that is open, and of such as is reserved, and given back there. */
static void moved_onto(void)
{
	enum { PLACES = 16 };
	char *open = map_anon(MIB), *reserved = reserve(PLACES * MIB);
	for (int turn = 0; turn < TURNS; turn++) {
		char *place = turn % 2 ? open : reserved + (size_t)(turn / 2 % PLACES) * MIB;
		char *p = map_anon(MIB);
		p[0] = 1;
		if (!CHECK("moved", mremap(p, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place))
			return;
		if (place != open)
			CHECK("given back", mmap(place, MIB, PROT_NONE, ANON | MAP_FIXED | MAP_NORESERVE, -1, 0) == place);
	}
	munmap(open, MIB);
	munmap(reserved, PLACES * MIB);
	CHECK("it fits", !has_filter());
}

/* Grown by being moved to where nothing is managed. */
static void moved_away(void)
{
	static char place[2 * MIB] __attribute__((aligned(4096)));
	for (int turn = 0; turn < TURNS; turn++) {
		char *p = map_anon(MIB);
		p[0] = 1;
		if (!CHECK("moved", mremap(p, MIB, sizeof place, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place))
			return;
		CHECK_EQ("content", 1, place[0]);
	}
	CHECK("it fits", !has_filter());
}

/* Read-only memory that grows by being moved. */
static void grown_closed(void)
{
	for (int turn = 0; turn < TURNS; turn++) {
		char *p = mmap(NULL, MIB, PROT_READ, ANON, -1, 0), *behind = mmap(p + MIB, PAGE, PROT_READ, ANON | MAP_FIXED_NOREPLACE, -1, 0);
		char *q = mremap(p, MIB, 2 * MIB, MREMAP_MAYMOVE);
		if (!CHECK("moved", q != MAP_FAILED))
			return;
		munmap(q, 2 * MIB);
		if (behind != MAP_FAILED)
			munmap(behind, PAGE);
	}
	CHECK("it fits", !has_filter());
}

/* Half the budget and more, opened in one way or another: managed before all of it can be touched. */
static void by_mprotect(void *unused)
{
	(void)unused;
	size_t len = (size_mb + 32) * MIB;
	char *p = reserve(len);
	for (size_t at = 0; at < len; at += MIB)
		CHECK_OK("opened", mprotect(p + at, MIB, RW));
	CHECK("it is managed", has_filter());
}

static void after_reservations(void *unused)
{
	(void)unused;
	size_t len = size_mb / 4 * 3 * MIB;
	map_anon(len);
	for (int turn = 0; turn < 4; turn++)
		munmap(reserve(len), len);
	map_anon(len);
	CHECK("it is managed", has_filter());
}

/* What MREMAP_DONTUNMAP leaves is two mappings. */
static void after_copies(void *unused)
{
	(void)unused;
	size_t len = size_mb / 4 * 3 * MIB;
	map_anon(len);
	for (size_t turn = 0; turn < 2 * size_mb; turn++) {
		char *p = map_anon(MIB), *q = mremap(p, MIB, MIB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
		CHECK("moved", q != MAP_FAILED);
		munmap(p, MIB);
		munmap(q, MIB);
	}
	map_anon(len);
	CHECK("it is managed", has_filter());
}

static void moved_closed(void *unused)
{
	(void)unused;
	size_t len = (size_mb + 32) * MIB;
	char *place = reserve(len), *p = reserve(len);
	p = mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, place);
	CHECK("moved", p == place);
	CHECK_OK("opened", mprotect(p, len, RW));
	CHECK("it is managed", has_filter());
}

/* What was mapped before a fork counts in the child when it is opened there. */
static void inherited(void *p)
{
	CHECK_OK("opened", mprotect(p, (size_mb + 32) * MIB, RW));
	CHECK("it is managed", has_filter());
}

/* Each child by itself: the last one's count is given back when the supervisor has seen its end. */
static void expect_managed(const char *what, void (*body)(void *), void *arg)
{
	sleep_ms(300);
	CHILD_EXPECT(what, child_start(body, arg), 0);
}

static void in_time(void)
{
	char *reserved = reserve((size_mb + 32) * MIB);
	expect_managed("after reservations", after_reservations, NULL);
	expect_managed("by mprotect", by_mprotect, NULL);
	expect_managed("after copies", after_copies, NULL);
	expect_managed("moved while closed", moved_closed, NULL);
	expect_managed("inherited", inherited, reserved);
	munmap(reserved, (size_mb + 32) * MIB);
	CHECK("the children were, not this one", !has_filter());
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"first", first}, {"toggles", toggles}, {"parts", parts}, {"heap", heap}, {"refused", refused}, {"moved", moved},
		{"moved_onto", moved_onto}, {"moved_away", moved_away}, {"grown_closed", grown_closed}, {"in_time", in_time},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
