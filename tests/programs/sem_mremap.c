/* mremap. Usage: sem_mremap [MIB] [GROUP]; MIB (default 16) is the size of the block that makes memory cold. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define LEN (2 * MIB)

static char *mapped(uint64_t tag, bool cold)
{
	char *p = map_anon(LEN);
	fill(p, LEN, tag);
	if (cold)
		chill();
	return p;
}

/* Room of `len` bytes where nothing is mapped at this moment. */
static char *free_room(size_t len)
{
	char *p = mmap(NULL, len, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
	munmap(p, len);
	return p;
}

static void shrink(void)
{
	for (int cold = 0; cold < 2; cold++) {
		char *p = mapped(1, cold);
		CHECK_EQ("mremap shrinks in place", (uintptr_t)p, (uintptr_t)mremap(p, LEN, LEN / 4, 0));
		CHECK_FAULT("tail is gone", p + LEN / 4, ACCESS_READ, SEGV_UNMAPPED);
		CHECK_FAULT("last byte is gone", p + LEN - 1, ACCESS_WRITE, SEGV_UNMAPPED);
		CHECK_FILL("head stays", p, LEN / 4, 1);
		char *q = mremap(p, LEN / 4, LEN, MREMAP_MAYMOVE);
		CHECK("grow again", q != MAP_FAILED);
		CHECK_FILL("head after growing again", q, LEN / 4, 1);
		CHECK_ZERO("cut tail does not come back", q + LEN / 4, LEN - LEN / 4);
		munmap(q, LEN);
	}
}

static void grow(void)
{
	for (int cold = 0; cold < 2; cold++) {
		size_t len = LEN;
		char *p = mapped(2, cold);
		while (len < size_mb * MIB / 2 || len < 4 * LEN) {
			char *q = mremap(p, len, len * 2, MREMAP_MAYMOVE);
			if (!CHECK("mremap grows", q != MAP_FAILED))
				return;
			CHECK_FILL("content after growing", q, len, 2);
			CHECK_ZERO("new part", q + len, len);
			if (q != p)
				CHECK_FAULT("old place", p, ACCESS_READ, SEGV_UNMAPPED);
			p = q;
			len *= 2;
			fill(p, len, 2);
		}
		chill();
		CHECK_FILL("content at the end", p, len, 2);
		munmap(p, len);
	}
}

static void in_place(void)
{
	char *room = free_room(4 * LEN);
	char *p = mmap(room, LEN, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
	CHECK_EQ("mapped in free room", (uintptr_t)room, (uintptr_t)p);
	fill(p, LEN, 3);
	CHECK_EQ("grows into free room", (uintptr_t)p, (uintptr_t)mremap(p, LEN, 2 * LEN, 0));
	CHECK_FILL("content", p, LEN, 3);
	CHECK_ZERO("new part", p + LEN, LEN);
	fill(p, 2 * LEN, 4);
	void *wall = mmap(p + 2 * LEN, PAGE, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	CHECK_EQ("a mapping behind it", (uintptr_t)p + 2 * LEN, (uintptr_t)wall);
	CHECK_ERR("no room to grow", ENOMEM, mremap(p, 2 * LEN, 3 * LEN, 0));
	chill();
	CHECK_FILL("content after the refusal", p, 2 * LEN, 4);
	CHECK_EQ("same size", (uintptr_t)p, (uintptr_t)mremap(p, 2 * LEN, 2 * LEN, 0));
	munmap(p, 2 * LEN + PAGE);
}

static void fixed(void)
{
	for (int cold = 0; cold < 2; cold++) {
		char *from = mapped(5, false), *to = mapped(6, cold);
		char *q = mremap(from, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, to);
		CHECK_EQ("moved onto another mapping", (uintptr_t)to, (uintptr_t)q);
		CHECK_FILL("content moved", to, LEN, 5);
		CHECK_FAULT("old place", from, ACCESS_READ, SEGV_UNMAPPED);
		from = mapped(7, false);
		q = mremap(from, LEN, LEN / 2, MREMAP_MAYMOVE | MREMAP_FIXED, to);
		CHECK_EQ("moved and shrunk", (uintptr_t)to, (uintptr_t)q);
		CHECK_FILL("moved and shrunk: content", to, LEN / 2, 7);
		CHECK_FAULT("moved and shrunk: old tail", from + LEN - 1, ACCESS_READ, SEGV_UNMAPPED);
		chill();
		char *copy = must_malloc(LEN);
		fill(copy, LEN, 5);
		CHECK_MEM("rest of the target stays", copy + LEN / 2, to + LEN / 2, LEN / 2);
		free(copy);
		char *room = free_room(4 * LEN);
		q = mremap(to, LEN / 2, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, room);
		CHECK_EQ("moved and grown", (uintptr_t)room, (uintptr_t)q);
		CHECK_FILL("moved and grown: content", room, LEN / 2, 7);
		CHECK_ZERO("moved and grown: new part", room + LEN / 2, LEN / 2);
		munmap(room, LEN);
		munmap(to, LEN);
	}
}

static void part(void)
{
	for (int cold = 0; cold < 2; cold++) {
		char *p = mapped(8, cold), *copy = must_malloc(LEN);
		fill(copy, LEN, 8);
		size_t from = 100 * PAGE, len = 128 * PAGE;
		char *room = free_room(LEN);
		char *q = mremap(p + from, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, room);
		CHECK_EQ("middle of a mapping moved", (uintptr_t)room, (uintptr_t)q);
		CHECK_MEM("moved middle", copy + from, q, len);
		CHECK_FAULT("hole left behind", p + from, ACCESS_READ, SEGV_UNMAPPED);
		CHECK_MEM("below", copy, p, from);
		CHECK_MEM("above", copy + from + len, p + from + len, LEN - from - len);
		chill();
		char *r = mremap(q, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, p + from);
		CHECK_EQ("moved back", (uintptr_t)p + from, (uintptr_t)r);
		CHECK_MEM("whole again", copy, p, LEN);
		munmap(p, LEN);
		free(copy);
	}
}

static void dont_unmap(void)
{
	for (int cold = 0; cold < 2; cold++) {
		char *p = mapped(9, cold);
		char *q = mremap(p, LEN, LEN, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
		if (q == MAP_FAILED) {
			skip("dont_unmap", "%s", strerror(errno));
			return;
		}
		CHECK("another place", q != p);
		CHECK_ZERO("old place reads zeros", p, LEN);
		CHECK_FILL("new place has the content", q, LEN, 9);
		fill(p, LEN, 10);
		chill();
		CHECK_FILL("old place again in use", p, LEN, 10);
		CHECK_FILL("new place later", q, LEN, 9);
		/* Beside managed memory, or far from it. */
		char *room = cold ? free_room(LEN) : (char *)0x100000000000;
		char *r = mremap(q, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, room);
		CHECK_EQ("DONTUNMAP to a fixed place", (uintptr_t)room, (uintptr_t)r);
		CHECK_FILL("its content", room, LEN, 9);
		CHECK_ZERO("what it left", q, LEN);
		fill(q, LEN, 12);
		chill();
		CHECK_FILL("what it left, in use again", q, LEN, 12);
		CHECK_FILL("its content later", room, LEN, 9);
		munmap(p, LEN);
		munmap(q, LEN);
		munmap(room, LEN);
	}
}

static void errors(void)
{
	char *p = mapped(11, true);
	CHECK_ERR("odd old address", EINVAL, mremap(p + 1, PAGE, PAGE, MREMAP_MAYMOVE));
	CHECK_ERR("new size 0", EINVAL, mremap(p, LEN, 0, MREMAP_MAYMOVE));
	CHECK_ERR("unknown flag", EINVAL, mremap(p, LEN, LEN, 64));
	CHECK_ERR("FIXED without MAYMOVE", EINVAL, mremap(p, LEN, LEN, MREMAP_FIXED, p + LEN));
	CHECK_ERR("old and new overlap", EINVAL,
		  mremap(p, LEN / 2, LEN / 2, MREMAP_MAYMOVE | MREMAP_FIXED, p + PAGE));
	CHECK_ERR("old size 0 of private memory", EINVAL, mremap(p, 0, PAGE, MREMAP_MAYMOVE));
	CHECK_ERR("DONTUNMAP with another size", EINVAL,
		  mremap(p, LEN, LEN / 2, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL));
	CHECK_ERR("new size too big", ENOMEM, mremap(p, LEN, (size_t)1 << 46, MREMAP_MAYMOVE));
	CHECK_FILL("content after the refusals", p, LEN, 11);
	munmap(p, LEN);
	CHECK_ERR("nothing mapped", EFAULT, mremap(p, LEN, 2 * LEN, MREMAP_MAYMOVE));
}

/* The classic growing array, beside others that grow as well. */
static void arrays(void)
{
	enum { COUNT = 6 };
	char *p[COUNT];
	size_t len[COUNT];
	for (size_t i = 0; i < COUNT; i++) {
		len[i] = (i + 1) * 16 * PAGE;
		p[i] = map_anon(len[i]);
		fill(p[i], len[i], i + 100);
	}
	for (unsigned round = 0; round < 60; round++) {
		size_t i = mix64(round) % COUNT, next = (1 + mix64(round * 3 + 1) % 300) * PAGE;
		size_t kept = next < len[i] ? next : len[i];
		char *q = mremap(p[i], len[i], next, MREMAP_MAYMOVE);
		if (!CHECK("mremap", q != MAP_FAILED))
			return;
		CHECK_FILL("kept part", q, kept, i + 100);
		CHECK_ZERO("new part", q + kept, next - kept);
		p[i] = q;
		len[i] = next;
		fill(p[i], len[i], i + 100);
		if (round % 20 == 10)
			chill();
	}
	for (size_t i = 0; i < COUNT; i++) {
		CHECK_FILL("array at the end", p[i], len[i], i + 100);
		munmap(p[i], len[i]);
	}
}

static atomic_bool enough;

static void *press(void *arg)
{
	char *block = arg;
	for (unsigned round = 0; !enough; round++)
		for (size_t at = 0; at < 2 * size_mb * MIB && !enough; at += PAGE)
			block[at] = (char)round;
	return NULL;
}

/* Memory that is moved away from the managed addresses at once after its first touch, beside others that make room dear. The touch
   goes on before the books say that the page is there: it was not looked after, evicted, and its write lost (by --delivery thread). */
static void touched_and_moved_away(void)
{
	enum { AREAS = 256 };
	static char *areas[AREAS];
	/* Small enough for a place that is not managed. */
	const size_t head = 40 * PAGE, tail = 24 * PAGE;
	char *block = map_anon(2 * size_mb * MIB);
	pthread_t thread;
	enough = false;
	CHECK_EQ("pthread_create", 0, pthread_create(&thread, NULL, press, block));
	for (size_t i = 0; i < AREAS; i++) {
		areas[i] = map_anon(head + tail);
		fill(areas[i], head, i);
	}
	for (size_t i = 0; i < AREAS; i++) {
		size_t at = mix64(i) % 24 * PAGE;
		char *to = mmap(NULL, tail, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		fill(areas[i] + head + at, PAGE, i + 1);
		char *moved = mremap(areas[i] + head, tail, tail, MREMAP_MAYMOVE | MREMAP_FIXED, to);
		if (!CHECK("mremap", moved == to))
			break;
		CHECK_FILL("what was written", to + at, PAGE, i + 1);
		munmap(to, tail);
	}
	for (size_t i = 0; i < AREAS; i++) {
		CHECK_FILL("what stayed", areas[i], head, i);
		munmap(areas[i], head);
	}
	enough = true;
	pthread_join(thread, NULL);
	munmap(block, 2 * size_mb * MIB);
}

#define TARGET_LEN (256 * PAGE)
static char *target;
static atomic_int round_now;
static atomic_bool stop_reading;

static void *read_target(void *arg)
{
	(void)arg;
	for (size_t i = 0; !stop_reading; i = (i + 1) % (TARGET_LEN / PAGE)) {
		int since = round_now;
		uint64_t seen = *(volatile uint64_t *)(target + i * PAGE);
		if (seen < (uint64_t)since || seen > (uint64_t)round_now + 1) {
			say("FAIL onto_what_others_read: page %zu in round %d: %llu\n", i, since, (unsigned long long)seen);
			_exit(1);
		}
	}
	return NULL;
}

/* What is out is moved in place of memory that another thread reads. For a moment nobody answered its faults there: it saw zeros, and they
 * stayed. */
static void onto_what_others_read(void)
{
	target = map_anon(TARGET_LEN);
	for (size_t i = 0; i < TARGET_LEN / PAGE; i++)
		*(uint64_t *)(target + i * PAGE) = 1;
	round_now = 1;
	pthread_t thread;
	pthread_create(&thread, NULL, read_target, NULL);
	for (int round = 2; round < 42; round++) {
		char *p = map_anon(TARGET_LEN);
		for (size_t i = 0; i < TARGET_LEN / PAGE; i++) {
			fill(p + i * PAGE, PAGE, (uint64_t)round << 20 | i);
			*(uint64_t *)(p + i * PAGE) = (uint64_t)round;
		}
		make_cold(p, TARGET_LEN);
		CHECK("moved", mremap(p, TARGET_LEN, TARGET_LEN, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target);
		round_now = round;
		for (size_t i = 0; i < TARGET_LEN / PAGE; i++) {
			CHECK_EQ("first word", round, *(uint64_t *)(target + i * PAGE));
			CHECK_EQ("last word", pattern_word((uint64_t)round << 20 | i, PAGE / 8 - 1),
				 *(uint64_t *)(target + (i + 1) * PAGE - 8));
		}
	}
	stop_reading = true;
	pthread_join(thread, NULL);
	munmap(target, TARGET_LEN);
}

/* More than may be in RAM is moved to where it would have to be. Each page of it once waited for room that there was not, and with it all
 * others of the process: moved, or refused, but soon. */
static void away_and_large(void)
{
	size_t len = 2 * size_mb * MIB;
	/* Shared memory is not managed, nor is what comes to its place. */
	char *p = map_anon(len), *q = mmap(NULL, len, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	fill(p, len, 60);
	/* What a refused call would have cut off stays, too. */
	if (mremap(p, len, len - LEN, MREMAP_MAYMOVE | MREMAP_FIXED, q) == q) {
		CHECK_FILL("content that moved", q, len - LEN, 60);
		munmap(q, len);
		p = map_anon(len);
		q = mmap(NULL, len, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		fill(p, len, 60);
	} else {
		CHECK_EQ("too large to leave", ENOMEM, errno);
		CHECK_FILL("content after the refusal", p, len, 60);
	}
	/* It waited for good. */
	char *moved = mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, q);
	CHECK("moved or refused", moved == q || (moved == MAP_FAILED && errno == ENOMEM));
	p = moved == q ? q : p;
	CHECK_FILL("content", p, len, 60);
	munmap(p, len);
	if (p != q)
		munmap(q, len);
}

/* What lies at managed addresses by order and is not managed: a file, shared memory. That it could not be registered at its new place once
 * ended the program. */
static void foreign(void)
{
	char *p = map_anon(4 * LEN), *content = map_anon(LEN);
	int file = temp_file();
	fill(content, LEN, 40);
	CHECK("written", write_all(file, content, LEN));
	CHECK("a file", mmap(p, LEN, RW, MAP_PRIVATE | MAP_FIXED, file, 0) == p);
	CHECK("shared memory", mmap(p + LEN, LEN, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p + LEN);
	fill(p + LEN, LEN, 41);
	fill(p + 2 * LEN, LEN, 42);
	for (int round = 0; round < 2; round++) {
		/* Each into the gap that the one before has left. */
		for (int i = 0; i < 3; i++) {
			char *from = p + i * LEN, *to = p + (i + 3) % 4 * LEN;
			CHECK("moved", mremap(from, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
		}
		make_cold(p + LEN, LEN);
		CHECK_FILL("a file that was moved", p + 3 * LEN, LEN, 40 + 10 * round);
		CHECK_FILL("shared memory that was moved", p, LEN, 41 + 10 * round);
		CHECK_FILL("managed memory that was moved", p + LEN, LEN, 42 + 10 * round);
		for (int i = 0; i < 3; i++)
			fill(p + (i + 3) % 4 * LEN, LEN, 50 + i);
		for (int i = 2; i >= 0; i--) {
			char *to = p + i * LEN, *from = p + (i + 3) % 4 * LEN;
			CHECK("moved back", mremap(from, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
		}
		make_cold(p + 2 * LEN, LEN);
		for (int i = 0; i < 3; i++)
			CHECK_FILL("moved back", p + i * LEN, LEN, 50 + i);
	}
	munmap(p, 4 * LEN);
	munmap(content, LEN);
	close(file);
}

/* A window that is a mapping of its own, of which some pages are out, below others. Once it was in the swap cache nothing was left of what
 * makes the kernel merge mappings: what mprotect had taken apart stayed so, and mremap, which takes one mapping, said EFAULT. */
static char *apart(void)
{
	const size_t window = 64 * PAGE;
	char *room = free_room(6 * window), *p = room + 3 * window - (uintptr_t)room % window;
	for (int place = 0; place < 3; place++) {
		/* The last of them comes between the others, to which the kernel can add it as to one only. */
		static const int order[] = {0, -2, -1};
		char *at = p + order[place] * (ptrdiff_t)window;
		CHECK("mapped", mmap(at, window, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == at);
		fill(at, window, 70);
	}
	CHECK_OK("no readahead", madvise(p - 2 * window, 3 * window, MADV_RANDOM));
	make_cold(p, window);
	for (size_t page = 0; page < 64; page += page == 62 ? 1 : 2)
		*(volatile char *)(p + page * PAGE) = p[page * PAGE];
	make_cold(p, window);
	CHECK_OK("read-only middle", mprotect(p + 16 * PAGE, 32 * PAGE, PROT_READ));
	*(volatile char *)(p + 60 * PAGE) = p[60 * PAGE];
	*(volatile char *)(p + 2 * PAGE) = p[2 * PAGE];
	CHECK_OK("writable middle", mprotect(p + 16 * PAGE, 32 * PAGE, RW));
	return p;
}

/* There the kernel was asked alone, and said EFAULT. */
static void moved_on(char *p, size_t len)
{
	char *q = mremap(p, len, 2 * len, MREMAP_MAYMOVE);
	if (!CHECK("grown where nothing is managed", q != MAP_FAILED))
		return;
	CHECK_FILL("what was there", q, len, 70);
	CHECK_ZERO("what it grew by", q + len, len);
	char *left = mremap(q, len, len, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	if (!CHECK("left mapped where nothing is managed", left != MAP_FAILED))
		return;
	CHECK_FILL("what left", left, len, 70);
	CHECK_ZERO("what it left", q, len);
	munmap(q, 2 * len);
	CHECK_ERR("less of it, onto the rest", EINVAL, mremap(left, len, len - 3 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, left + len - 3 * PAGE));
	CHECK_FILL("after that", left, len, 70);
	char *small = mmap(NULL, len, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK_EQ("less of it", (uintptr_t)small, (uintptr_t)mremap(left, len, len - 3 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, small));
	CHECK_FILL("what there is of it", small, len - 3 * PAGE, 70);
	CHECK_FAULT("the rest", left + len - 1, ACCESS_READ, SEGV_UNMAPPED);
	left = small;
	len -= 3 * PAGE;
	char *room = free_room(len);
	CHECK_EQ("onto managed addresses", (uintptr_t)room, (uintptr_t)mremap(left, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, room));
	make_cold(room, len);
	CHECK_FILL("managed again", room, len, 70);
	munmap(room, len);
	munmap(small + len, 3 * PAGE);
}

static void taken_apart(void)
{
	const size_t window = 64 * PAGE;
	char *p = apart(), *room = free_room(window);
	CHECK_EQ("to a fixed place", (uintptr_t)room, (uintptr_t)mremap(p, window, window, MREMAP_MAYMOVE | MREMAP_FIXED, room));
	CHECK_FILL("at a fixed place", room, window, 70);
	CHECK_FAULT("old place", p + window - 1, ACCESS_READ, SEGV_UNMAPPED);
	munmap(room, window);
	p = apart();
	room = mmap(NULL, window, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK_EQ("away", (uintptr_t)room, (uintptr_t)mremap(p, window, window, MREMAP_MAYMOVE | MREMAP_FIXED, room));
	CHECK_FILL("where nothing is managed", room, window, 70);
	moved_on(room, window);
	p = apart();
	CHECK_ERR("too large", ENOMEM, mremap(p, window, (size_t)1 << 46, MREMAP_MAYMOVE));
	/* Refused when a part of it had moved, and the program was ended for that. */
	struct rlimit limit;
	CHECK_OK("getrlimit", getrlimit(RLIMIT_DATA, &limit));
	CHECK_OK("setrlimit", setrlimit(RLIMIT_DATA, &(struct rlimit){MIB, limit.rlim_max}));
	CHECK_ERR("more than the limit", ENOMEM, mremap(p, window, 4 * LEN, MREMAP_MAYMOVE));
	CHECK_OK("setrlimit", setrlimit(RLIMIT_DATA, &limit));
	CHECK_FILL("content after the refusals", p, window, 70);
	char *q = mremap(p, window, 4 * LEN, MREMAP_MAYMOVE);
	if (CHECK("grown", q != MAP_FAILED)) {
		CHECK_FILL("content of what has grown", q, window, 70);
		CHECK_ZERO("what it grew by", q + window, 4 * LEN - window);
		munmap(q, 4 * LEN);
	}
	p = apart();
	q = mremap(p, window, window, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	if (CHECK("left mapped", q != MAP_FAILED)) {
		CHECK_FILL("content of what left", q, window, 70);
		CHECK_ZERO("what it left", p, window);
		munmap(q, window);
	}
	munmap(p, window);
}

/* The program's own mappings, many of them. Those that the kernel does not merge again grow as many in a child of fork, where a limit of 64 said
 * EFAULT. */
static void many_mappings(void)
{
	struct utsname name;
	unsigned major = 0, minor = 0;
	uname(&name);
	sscanf(name.release, "%u.%u", &major, &minor);
	for (int cold = 0; cold < 2; cold++) {
		char *p = mapped(90, cold), *room = free_room(LEN);
		for (size_t at = PAGE; at < LEN; at += 2 * PAGE)
			CHECK_OK("read-only page", mprotect(p + at, PAGE, PROT_READ));
		char *q = mremap(p, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, room);
		if (q == MAP_FAILED && errno == EFAULT && (major < 6 || (major == 6 && minor < 17))) {
			skip("many_mappings", "Linux %u.%u moves one mapping", major, minor);
			return;
		}
		CHECK_EQ("moved", (uintptr_t)room, (uintptr_t)q);
		CHECK_FILL("content", room, LEN, 90);
		CHECK_FAULT("read-only page", room + 11 * PAGE, ACCESS_WRITE, SEGV_DENIED);
		CHECK_FAULT("old place", p + LEN - 1, ACCESS_READ, SEGV_UNMAPPED);
		munmap(room, LEN);
	}
}

/* A part of it must stay where it is: no page is lost. (The kernel by itself may have moved those before.) */
static void sealed_part(void)
{
	const size_t window = 64 * PAGE;
	char *p = mapped(80, true), *room = free_room(LEN);
	if (syscall(CALL_MSEAL, p + window, window, 0) != 0) {
		skip("sealed_part", "mseal: %s", strerror(errno));
		return;
	}
	CHECK("left mapped", mremap(p, LEN, LEN, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL) == MAP_FAILED);
	CHECK_FILL("content after a refusal", p, LEN, 80);
	CHECK_ERR("moved", EPERM, mremap(p, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, room));
	char *copy = must_malloc(LEN);
	fill(copy, LEN, 80);
	for (int round = 0; round < 2; round++) {
		for (size_t at = 0; at < LEN; at += PAGE) {
			unsigned char there;
			CHECK_MEM("a page", copy + at, (mincore(p + at, PAGE, &there) == 0 ? p : room) + at, PAGE);
		}
		chill();
	}
	free(copy);
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"shrink", shrink},	      {"grow", grow},	  {"in_place", in_place}, {"fixed", fixed}, {"part", part},
		{"dont_unmap", dont_unmap}, {"errors", errors}, {"arrays", arrays},
		{"touched_and_moved_away", touched_and_moved_away}, {"foreign", foreign},
		{"onto_what_others_read", onto_what_others_read},     {"away_and_large", away_and_large},
		{"taken_apart", taken_apart}, {"many_mappings", many_mappings}, {"sealed_part", sealed_part},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
