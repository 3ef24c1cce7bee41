/* Huge pages: whole cycles, changes to parts of them, fork. Usage: sem_huge [MIB] [GROUP]; MIB (default 16) makes memory cold.
 * With EXPECT_HUGE=1 in the environment memory walked through must be in huge pages; content is checked in any case. */
#include "check.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define RW (PROT_READ | PROT_WRITE)
#define HUGE (2 * MIB)
#define LEN (8 * HUGE)

static bool expected(void)
{
	const char *value = getenv("EXPECT_HUGE");
	return value && *value == '1';
}

/* Huge pages among the aligned 2 MiB from `p` on. */
static size_t huge_pages(char *p, size_t len)
{
	size_t found = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	for (size_t at = 0; at < len; at += HUGE) {
		struct region region = {0};
		struct scan scan = {.size = sizeof scan, .start = (uintptr_t)p + at, .end = (uintptr_t)p + at + HUGE,
				    .vec = (uintptr_t)&region, .vec_len = 1, .mask = IS_HUGE, .returned = IS_HUGE};
		found += ioctl(fd, SCAN, &scan) == 1 && region.end - region.start == HUGE;
	}
	close(fd);
	return found;
}

/* Aligned memory, filled by a walk: in huge pages, if that is expected, but the first. */
static char *walked(size_t len, uint64_t tag)
{
	char *p = map_anon(len + HUGE);
	char *aligned = (char *)(((uintptr_t)p + HUGE - 1) & ~(HUGE - 1));
	fill(aligned, len, tag);
	if (expected())
		CHECK("a walk gets huge pages", huge_pages(aligned, len) + 2 >= len / HUGE);
	return aligned;
}

/* The budget holds all of it and what a walk reads ahead of itself beyond the end: what was pushed out again is not huge either. */
static void cycle(void)
{
	size_t len = 52 * HUGE;
	char *p = walked(len, 1);
	size_t before = huge_pages(p, len);
	for (int round = 0; round < 2; round++) {
		chill();
		CHECK_FILL("after a cycle", p, len, 1);
		size_t after = huge_pages(p, len);
		say("huge pages before %zu, after %zu of %zu", before, after, len / HUGE);
		if (expected())
			CHECK("as many as before, within 2 per cent", after * 100 >= before * 98 && after * 98 <= before * 100);
	}
	munmap(p, len);
}

/* Page `i` of `p` has content of its own. */
static void fill_pages(char *p, size_t len)
{
	for (size_t i = 0; i < len / PAGE; i++)
		fill(p + i * PAGE, PAGE, 100 + i);
}

static void check_page(const char *what, char *p, size_t i)
{
	CHECK_FILL(what, p + i * PAGE, PAGE, 100 + i);
}

/* Huge pages do not decay: after many cycles, in each of which some come back in small pages, there are as many as before. */
static void lasting(void)
{
	size_t len = 52 * HUGE, before, after = 0, rounds = size_mb > 256 ? 24 : 8;
	char *p = walked(len, 1);
	fill_pages(p, len);
	before = huge_pages(p, len);
	for (size_t round = 0; round < rounds && failures() == 0; round++) {
		chill();
		/* Where a page in the middle comes first nothing tells that all of them will be used. */
		for (size_t n = 0; n < 3 && round + 2 < rounds; n++)
			check_page("one of them", p, mix64(round * 3 + n) % (len / PAGE));
		for (size_t i = 0; i < len / PAGE; i++)
			check_page("after a cycle", p, i);
		/* One may be in small pages, to be measured; not the same twice. */
		size_t now = huge_pages(p, len);
		after = round + 2 < rounds || now > after ? now : after;
	}
	say("huge pages before %zu, after %zu cycles %zu of %zu", before, rounds, after, len / HUGE);
	if (expected())
		CHECK("as many as before many cycles, within 2 per cent", after * 100 >= before * 98 && after * 98 <= before * 100);
	munmap(p, len);
}

/* Memory that was used as a whole and is used in part from then on: the first word of each huge page, in order, as a walk would. It came
 * back whole each time; now that is found out and it comes back in small pages. */
static void in_part(void)
{
	size_t len = 40 * HUGE, rounds = 8, found = 0;
	char *p = walked(len, 1);
	fill_pages(p, len);
	for (size_t round = 0; round < rounds && failures() == 0; round++) {
		chill();
		/* What leads to the second one as a walk would. */
		for (size_t i = HUGE / PAGE - WINDOW / PAGE; i < HUGE / PAGE; i++)
			check_page("the end of the first huge page", p, i);
		for (size_t i = HUGE / PAGE; i < len / PAGE; i += HUGE / PAGE) {
			check_page("the first of a huge page", p, i);
			sleep_ms(1);
		}
		found = huge_pages(p, len);
		say("round %zu: %zu of %zu came back whole", round, found, len / HUGE);
	}
	if (expected())
		CHECK("what is used in part comes back in part", found <= len / HUGE * 9 / 10);
	for (size_t i = 0; i < len / PAGE; i++)
		check_page("all of them", p, i);
	munmap(p, len);
}

static void parts(void)
{
	for (int cold = 0; cold < 2; cold++) {
		char *p = walked(LEN, 0);
		fill_pages(p, LEN);
		if (cold)
			chill();
		size_t a = HUGE + 100 * PAGE, b = 2 * HUGE + 7 * PAGE, c = 3 * HUGE + 255 * PAGE, n = 50 * PAGE;
		CHECK_OK("drop a part", madvise(p + a, n, MADV_DONTNEED));
		CHECK_OK("unmap a part", munmap(p + b, n));
		CHECK_OK("part to PROT_NONE", mprotect(p + c, n, PROT_NONE));
		char *moved = mremap(p + 4 * HUGE + 3 * PAGE, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, map_anon(n));
		CHECK("move a part", moved != MAP_FAILED);
		char *whole = mremap(p + 5 * HUGE, 2 * HUGE, 2 * HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, walked(2 * HUGE, 5));
		CHECK("move two", whole != MAP_FAILED);
		chill_around();
		CHECK_OK("part back", mprotect(p + c, n, RW));
		for (size_t i = 0; i < LEN / PAGE; i++) {
			size_t at = i * PAGE, m = 4 * HUGE + 3 * PAGE;
			if (at >= a && at < a + n)
				CHECK_ZERO("dropped", p + at, PAGE);
			else if (at >= m && at < m + n)
				CHECK_FILL("moved part", moved + at - m, PAGE, 100 + i);
			else if (at >= 5 * HUGE && at < 7 * HUGE)
				CHECK_FILL("moved whole", whole + at - 5 * HUGE, PAGE, 100 + i);
			else if (at < b || at >= b + n)
				CHECK_FILL("kept", p + at, PAGE, 100 + i);
		}
		munmap(p, LEN);
		munmap(moved, n);
		munmap(whole, 2 * HUGE);
	}
}

/* Pages that are there of the 2 MiB at `p`. */
static size_t there(char *p)
{
	unsigned char seen[HUGE / PAGE];
	size_t found = 0;
	CHECK_OK("mincore", mincore(p, HUGE, seen));
	for (size_t i = 0; i < NELEM(seen); i++)
		found += seen[i] & 1;
	return found;
}

/* A page that is locked keeps itself in RAM, and not the 511 others. */
static void locked(void)
{
	char *p = walked(LEN, 9);
	for (size_t at = 0; at < LEN; at += HUGE)
		CHECK_OK("mlock", mlock(p + at + 77 * PAGE, PAGE));
	chill_around();
	chill_around();
	size_t left = 0;
	for (size_t at = 0; at < LEN; at += HUGE)
		left += there(p + at);
	say("pages left there beside locked ones: %zu of %zu", left, LEN / PAGE);
	if (expected())
		CHECK("others leave", left < LEN / PAGE / 8);
	for (size_t at = 0; at < LEN; at += HUGE) {
		CHECK("a locked one stays", expected() == 0 || there(p + at) > 0);
		CHECK_OK("munlock", munlock(p + at + 77 * PAGE, PAGE));
	}
	CHECK_FILL("locked and not", p, LEN, 9);
	munmap(p, LEN);
}

static char *shared;

static void child(void *arg)
{
	(void)arg;
	CHECK_FILL("inherited", shared, LEN / 2, 3);
	fill(shared, LEN / 2, 4);
	chill();
	CHECK_FILL("written by the child", shared, LEN / 2, 4);
	CHECK_FILL("inherited, cold", shared + LEN / 2, LEN / 2, 6);
}

static void forked(void)
{
	for (int cold = 0; cold < 2; cold++) {
		shared = walked(LEN, 3);
		fill(shared, LEN / 2, 3);
		fill(shared + LEN / 2, LEN / 2, 6);
		if (cold)
			chill();
		pid_t pid = child_start(child, NULL);
		fill(shared + LEN / 2, LEN / 2, 5);
		chill();
		CHECK_FILL("parent's first half", shared, LEN / 2, 3);
		CHECK_FILL("parent's second half", shared + LEN / 2, LEN / 2, 5);
		CHILD_EXPECT("child", pid, 0);
		chill();
		CHECK_FILL("afterwards", shared, LEN / 2, 3);
		munmap(shared, LEN);
	}
}

static void sparse(void)
{
	size_t len = 64 * HUGE;
	char *p = map_anon(len + HUGE);
	char *aligned = (char *)(((uintptr_t)p + HUGE - 1) & ~(HUGE - 1));
	for (size_t at = 0; at < len; at += HUGE)
		fill(aligned + at, PAGE, at);
	if (expected())
		/* The first one may lie behind memory that was walked through. */
		CHECK("a sparse toucher has no huge pages", huge_pages(aligned, len) <= 1);
	chill();
	for (size_t at = 0; at < len; at += HUGE)
		CHECK_FILL("sparse", aligned + at, PAGE, at);
	if (expected())
		CHECK("nor when its pages are back", huge_pages(aligned, len) <= 1);
	munmap(p, len + HUGE);
}

static void declined(void)
{
	char *p = map_anon(LEN + HUGE);
	CHECK_OK("MADV_NOHUGEPAGE", madvise(p, LEN + HUGE, MADV_NOHUGEPAGE));
	fill(p, LEN, 8);
	char *aligned = (char *)(((uintptr_t)p + HUGE - 1) & ~(HUGE - 1));
	CHECK_EQ("huge pages where none are wanted", 0, huge_pages(aligned, LEN - HUGE));
	chill();
	CHECK_FILL("content", p, LEN, 8);
	CHECK_EQ("none after a cycle", 0, huge_pages(aligned, LEN - HUGE));
	CHECK_OK("MADV_HUGEPAGE", madvise(p, LEN + HUGE, MADV_HUGEPAGE));
	chill();
	CHECK_FILL("content, wanted huge", p, LEN, 8);
	munmap(p, LEN + HUGE);
}

/* 2 MiB with a border of mappings in them can't be moved as one. Each try to do so spared all their pages for a turn, so that they never
 * left. */
static void bordered(void)
{
	char *p = walked(LEN, 7);
	CHECK_OK("part to PROT_READ", mprotect(p + 2 * HUGE + 255 * PAGE, 50 * PAGE, PROT_READ));
	make_cold(p + 2 * HUGE, HUGE);
	CHECK_FILL("content", p, LEN, 7);
	munmap(p, LEN);
}

static void nothing(void *arg)
{
	(void)arg;
}

/* Once shared by fork, and their first pages given up: MOVE refuses every other page of such a huge page, since it asks only the first
 * whether another process has them too (seen in Linux 6.18), and five windows of one stayed in RAM for good. */
static void beheaded(void)
{
	size_t head = WINDOW;
	char *p = walked(LEN, 7);
	for (size_t at = 0; at < LEN; at += HUGE)
		fill(p + at + head, HUGE - head, 8);
	pid_t pid = child_start(nothing, NULL);
	CHILD_EXPECT("child", pid, 0);
	for (size_t at = 0; at < LEN; at += HUGE)
		CHECK_OK("drop the first pages", madvise(p + at, head, MADV_DONTNEED));
	make_cold(p, LEN);
	for (size_t at = 0; at < LEN; at += HUGE) {
		CHECK_ZERO("dropped", p + at, head);
		CHECK_FILL("rest", p + at + head, HUGE - head, 8);
	}
	munmap(p, LEN);
}

static void random_order(void)
{
	char *p = walked(LEN, 0);
	for (size_t i = 0; i < LEN / PAGE; i++)
		fill(p + i * PAGE, PAGE, 900 + i);
	for (int round = 0; round < 2; round++) {
		chill();
		for (size_t n = 0; n < LEN / PAGE; n++) {
			size_t i = (n * 2654435761u + (size_t)round) % (LEN / PAGE);
			CHECK_FILL("in random order", p + i * PAGE, PAGE, 900 + i);
		}
	}
	munmap(p, LEN);
}

/* What was used as one comes back with its touched page first, and the others after that (--huge-swapin touched). */
static void rest_follows(void)
{
	char *p = walked(LEN, 11), *chunk = p + 4 * HUGE, *others = map_anon(size_mb * MIB);
	fill(others, size_mb * MIB, 12);
	CHECK_FILL("back in small pages", p, LEN, 11);
	/* Not paged out: what was used as one is seen when reclaim comes to it. */
	fill(others, size_mb * MIB, 13);
	const char *value = getenv("EXPECT_FOLLOW");
	if (value && *value == '1') {
		size_t found = there(chunk);
		CHECK("all of it is out", found == 0);
		say("touched one of what begins with %d", chunk[100 * PAGE]);
		for (int wait = 0; wait < 500 && found < HUGE / PAGE * 7 / 8; wait++) {
			found = there(chunk);
			sleep_ms(10);
		}
		say("pages there after one was touched: %zu", found);
		CHECK("the rest followed", found >= HUGE / PAGE * 7 / 8);
	}
	CHECK_FILL("in small pages again", p, LEN, 11);
	munmap(p, LEN);
	munmap(others, size_mb * MIB);
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"cycle", cycle}, {"lasting", lasting}, {"in_part", in_part}, {"parts", parts},	  {"forked", forked},
		{"locked", locked}, {"sparse", sparse}, {"declined", declined}, {"random_order", random_order},
		{"bordered", bordered}, {"beheaded", beheaded}, {"rest_follows", rest_follows},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
