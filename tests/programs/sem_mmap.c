/* mmap and munmap. Usage: sem_mmap [MIB] [GROUP]; MIB (default 16) is the size of the block that makes memory cold. */
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define LEN (2 * MIB)

static void basic(void)
{
	static const size_t lens[] = {PAGE, 3 * PAGE, 65536, 100 * 1000, MIB + PAGE, 5 * MIB + 3 * PAGE};
	char *maps[NELEM(lens)];
	for (size_t i = 0; i < NELEM(lens); i++) {
		maps[i] = map_anon(lens[i]);
		CHECK_EQ("page aligned", 0, (uintptr_t)maps[i] % PAGE);
		CHECK_ZERO("fresh mapping", maps[i], lens[i]);
		fill(maps[i], lens[i], i);
	}
	chill();
	for (size_t i = 0; i < NELEM(lens); i++) {
		CHECK_FILL("mapping after chill", maps[i], lens[i], i);
		CHECK_OK("munmap", munmap(maps[i], lens[i]));
		CHECK_FAULT("touch after munmap", maps[i], ACCESS_READ, SEGV_UNMAPPED);
	}
	char *big = map_anon(size_mb * MIB);
	for (size_t off = 0; off < size_mb * MIB; off += 16 * PAGE)
		big[off + off / PAGE % 64] = 1;
	size_t sum = 0;
	for (size_t off = 0; off < size_mb * MIB; off++)
		sum += (unsigned char)big[off];
	CHECK_EQ("sparsely touched mapping", (size_mb * MIB + 16 * PAGE - 1) / (16 * PAGE), sum);
	CHECK_OK("munmap of all", munmap(big, size_mb * MIB));
}

static void errors(void)
{
	CHECK_ERR("mmap of 0 bytes", EINVAL, mmap(NULL, 0, RW, ANON, -1, 0));
	CHECK_ERR("mmap without a type", EINVAL, mmap(NULL, PAGE, RW, MAP_ANONYMOUS, -1, 0));
	CHECK_ERR("mmap of a bad descriptor", EBADF, mmap(NULL, PAGE, RW, MAP_PRIVATE, 9999, 0));
	CHECK_ERR("mmap at an odd fixed address", EINVAL, mmap((void *)0x100001, PAGE, RW, ANON | MAP_FIXED, -1, 0));
	CHECK_ERR("mmap at an odd offset of nothing", EINVAL, mmap(NULL, MIB, RW, ANON, -1, 1));
	CHECK_ERR("mmap of 2^62 bytes", ENOMEM, mmap(NULL, (size_t)1 << 62, RW, ANON, -1, 0));
	int fd = temp_file();
	CHECK_ERR("mmap at an odd file offset", EINVAL, mmap(NULL, PAGE, RW, MAP_PRIVATE, fd, 100));
	close(fd);
	char *p = map_anon(4 * PAGE);
	CHECK_ERR("munmap at an odd address", EINVAL, munmap(p + 1, PAGE));
	CHECK_ERR("munmap of 0 bytes", EINVAL, munmap(p, 0));
	CHECK_OK("munmap rounds up", munmap(p, PAGE + 1));
	CHECK_FAULT("second page is gone", p + PAGE, ACCESS_READ, SEGV_UNMAPPED);
	CHECK_NO_FAULT("third page stays", p + 2 * PAGE, ACCESS_READ);
	CHECK_OK("munmap of a hole", munmap(p, 2 * PAGE));
	CHECK_OK("munmap of hole and mapping", munmap(p, 4 * PAGE));
}

/* A hole in cold memory: neighbours stay, the hole faults, what is mapped there next is zero. */
static void partial_munmap(void)
{
	for (int cold = 0; cold < 2; cold++) {
		char *p = map_anon(LEN);
		fill(p, LEN, 7);
		if (cold)
			chill();
		size_t from = 64 * PAGE, to = 200 * PAGE;
		CHECK_OK("munmap of the middle", munmap(p + from, to - from));
		CHECK_FAULT("first byte of the hole", p + from, ACCESS_READ, SEGV_UNMAPPED);
		CHECK_FAULT("inside the hole", p + from + 5 * PAGE + 123, ACCESS_WRITE, SEGV_UNMAPPED);
		CHECK_FAULT("last byte of the hole", p + to - 1, ACCESS_READ, SEGV_UNMAPPED);
		CHECK_FILL("below the hole", p, from, 7);
		char *copy = must_malloc(LEN);
		fill(copy, LEN, 7);
		CHECK_MEM("above the hole", copy + to, p + to, LEN - to);
		void *again = mmap(p + from, to - from, RW, ANON | MAP_FIXED, -1, 0);
		CHECK_EQ("mapped again at the same place", (uintptr_t)(p + from), (uintptr_t)again);
		CHECK_ZERO("old content must not come back", p + from, to - from);
		fill(p + from, to - from, 8);
		chill();
		CHECK_FILL("new content of the hole", p + from, to - from, 8);
		CHECK_FILL("below, later", p, from, 7);
		CHECK_MEM("above, later", copy + to, p + to, LEN - to);
		CHECK_OK("munmap of the head", munmap(p, 3 * PAGE));
		CHECK_OK("munmap of the tail", munmap(p + LEN - 5 * PAGE, 5 * PAGE));
		CHECK_FAULT("head", p + 2 * PAGE, ACCESS_WRITE, SEGV_UNMAPPED);
		CHECK_FAULT("tail", p + LEN - 5 * PAGE, ACCESS_WRITE, SEGV_UNMAPPED);
		CHECK_MEM("after the head", copy + 3 * PAGE, p + 3 * PAGE, from - 3 * PAGE);
		CHECK_OK("munmap of the rest over all holes", munmap(p, LEN));
		free(copy);
	}
}

/* Pages discarded by munmap while others take their place, many times: no page of an earlier life appears. */
static void reuse(void)
{
	char *p = map_anon(LEN);
	for (unsigned round = 1; round < 40; round++) {
		size_t from = mix64(round) % 256 * PAGE, len = (1 + mix64(round + 99) % 255) * PAGE;
		fill(p, LEN, round);
		if (round % 8 == 0)
			chill();
		void *q = mmap(p + from, len, RW, ANON | MAP_FIXED, -1, 0);
		if (!CHECK_EQ("MAP_FIXED over part", (uintptr_t)(p + from), (uintptr_t)q))
			return;
		CHECK_ZERO("mapped over", p + from, len);
		CHECK_FILL("below", p, from, round);
	}
	munmap(p, LEN);
}

static void fixed_over(void)
{
	int fd = temp_file();
	char *text = must_malloc(64 * PAGE), *all = must_malloc(LEN);
	fill(text, 64 * PAGE, 21);
	fill(all, LEN, 22);
	write_all(fd, text, 64 * PAGE);
	char *p = map_anon(LEN);
	fill(p, LEN, 22);
	chill();
	char *mid = p + 100 * PAGE;
	void *q = mmap(mid, 64 * PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0);
	CHECK_EQ("a file over managed memory", (uintptr_t)mid, (uintptr_t)q);
	CHECK_MEM("file content", text, mid, 64 * PAGE);
	CHECK_FAULT("file is read-only", mid + 100, ACCESS_WRITE, SEGV_DENIED);
	chill();
	CHECK_MEM("below the file", all, p, 100 * PAGE);
	CHECK_MEM("above the file", all + 164 * PAGE, p + 164 * PAGE, LEN - 164 * PAGE);
	q = mmap(mid, 64 * PAGE, RW, ANON | MAP_FIXED, -1, 0);
	CHECK_EQ("anonymous memory over the file", (uintptr_t)mid, (uintptr_t)q);
	CHECK_ZERO("is zero", mid, 64 * PAGE);
	q = mmap(mid + PAGE, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	CHECK_EQ("shared memory over it", (uintptr_t)mid + PAGE, (uintptr_t)q);
	mid[PAGE] = 5;
	CHECK_ERR("MAP_FIXED_NOREPLACE over it", EEXIST,
		  mmap(mid, PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0));
	CHECK_MEM("above the file, later", all + 164 * PAGE, p + 164 * PAGE, LEN - 164 * PAGE);
	CHECK_OK("munmap of all kinds at once", munmap(p, LEN));
	CHECK_FAULT("gone", mid, ACCESS_READ, SEGV_UNMAPPED);
	q = mmap(mid, PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
	CHECK_EQ("MAP_FIXED_NOREPLACE where nothing is", (uintptr_t)mid, (uintptr_t)q);
	munmap(mid, PAGE);
	close(fd);
	free(text);
	free(all);
}

/* What the kernel refuses leaves what was there; it was once dropped first. */
static void fixed_refused(void)
{
	int fd = temp_file();
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	int unwritable = open(path, O_RDONLY | O_CLOEXEC);
	CHECK("the file again, to read", unwritable >= 0);
	char *p = map_anon(LEN), *mid = p + 100 * PAGE;
	fill(p, LEN, 23);
	chill();
	CHECK_ERR("a descriptor of nothing", EBADF, mmap(mid, 64 * PAGE, RW, MAP_PRIVATE | MAP_FIXED, 777, 0));
	CHECK_ERR("a file that can't be written", EACCES, mmap(mid, 64 * PAGE, RW, MAP_SHARED | MAP_FIXED, unwritable, 0));
	CHECK_ERR("an odd offset", EINVAL, mmap(mid, 64 * PAGE, RW, MAP_PRIVATE | MAP_FIXED, fd, 5));
	CHECK_FILL("after what was refused", p, LEN, 23);
	munmap(p, LEN);
	close(unwritable);
	close(fd);
}

/* Reserve with PROT_NONE, commit pieces with MAP_FIXED beside each other, as runtimes do. */
static void fixed_beside(void)
{
	char *base = mmap(NULL, 16 * LEN, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
	CHECK("reservation", base != MAP_FAILED);
	CHECK_FAULT("reserved only", base + LEN, ACCESS_READ, SEGV_DENIED);
	for (unsigned i = 0; i < 16; i += 2) {
		void *q = mmap(base + i * LEN, LEN, RW, ANON | MAP_FIXED, -1, 0);
		CHECK_EQ("commit", (uintptr_t)base + i * LEN, (uintptr_t)q);
		fill(base + i * LEN, LEN, i);
	}
	for (unsigned i = 1; i < 16; i += 2) {
		void *q = mmap(base + i * LEN, LEN, RW, ANON | MAP_FIXED, -1, 0);
		CHECK_EQ("commit beside", (uintptr_t)base + i * LEN, (uintptr_t)q);
		fill(base + i * LEN, LEN, i);
	}
	chill();
	for (unsigned i = 0; i < 16; i++)
		CHECK_FILL("piece", base + i * LEN, LEN, i);
	void *q = mmap(base + LEN / 2, 3 * LEN, PROT_NONE, ANON | MAP_NORESERVE | MAP_FIXED, -1, 0);
	CHECK_EQ("decommit across pieces", (uintptr_t)base + LEN / 2, (uintptr_t)q);
	CHECK_FAULT("decommitted", base + LEN, ACCESS_READ, SEGV_DENIED);
	CHECK_FILL("before the decommitted", base, LEN / 2, 0);
	CHECK_OK("munmap of a run of pieces", munmap(base, 16 * LEN));
}

static void files(void)
{
	int fd = temp_file();
	char *text = must_malloc(LEN), *back = must_malloc(LEN);
	fill(text, LEN, 31);
	write_all(fd, text, LEN);
	char *priv = mmap(NULL, LEN, RW, MAP_PRIVATE, fd, 0);
	char *shared = mmap(NULL, LEN, RW, MAP_SHARED, fd, 0);
	CHECK("file mappings", priv != MAP_FAILED && shared != MAP_FAILED);
	fill(priv + 10 * PAGE, 50 * PAGE, 32);
	chill();
	CHECK_MEM("private copy: untouched part", text, priv, 10 * PAGE);
	CHECK_FILL("private copy: written part", priv + 10 * PAGE, 50 * PAGE, 32);
	CHECK_EQ("pread", (ssize_t)LEN, pread(fd, back, LEN, 0));
	CHECK_MEM("file not changed by the private mapping", text, back, LEN);
	fill(shared, LEN, 33);
	CHECK_EQ("pread", (ssize_t)LEN, pread(fd, back, LEN, 0));
	CHECK_FILL("file changed by the shared mapping", back, LEN, 33);
	munmap(priv, LEN);
	munmap(shared, LEN);
	close(fd);
	int zero = open("/dev/zero", O_RDWR | O_CLOEXEC);
	char *z = mmap(NULL, LEN, RW, MAP_PRIVATE, zero, 0);
	CHECK("mapping of /dev/zero", z != MAP_FAILED);
	CHECK_ZERO("/dev/zero", z, LEN);
	fill(z, LEN, 34);
	chill();
	CHECK_FILL("private mapping of /dev/zero", z, LEN, 34);
	munmap(z, LEN);
	close(zero);
	free(text);
	free(back);
}

static void noreserve(void)
{
	size_t len = (size_t)64 << 30, step = 64 * MIB;
	char *p = mmap(NULL, len, RW, ANON | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED) {
		skip("noreserve", "mmap of 64 GiB: %s", strerror(errno));
		return;
	}
	for (size_t off = 0; off < len; off += step)
		fill(p + off + off / step * PAGE, PAGE, off);
	chill();
	for (size_t off = 0; off < len; off += step) {
		CHECK_FILL("touched page", p + off + off / step * PAGE, PAGE, off);
		if (off % (16 * step) == 0)
			CHECK_ZERO("page next to it", p + off + (off / step + 1) * PAGE, PAGE);
	}
	CHECK_OK("munmap of half", munmap(p, len / 2));
	CHECK_FILL("other half", p + len / 2 + len / 2 / step * PAGE, PAGE, len / 2);
	CHECK_OK("munmap of the rest", munmap(p, len));
	p = mmap(NULL, len, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
	CHECK("reservation of 64 GiB", p != MAP_FAILED);
	munmap(p, len);
}

static void grows_down(void)
{
	char *area = mmap(NULL, 8 * MIB, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
	munmap(area, 8 * MIB);
	char *top = area + 6 * MIB;
	char *p = mmap(top - 16 * PAGE, 16 * PAGE, RW, ANON | MAP_GROWSDOWN | MAP_FIXED_NOREPLACE, -1, 0);
	if (p == MAP_FAILED) {
		skip("grows_down", "MAP_GROWSDOWN: %s", strerror(errno));
		return;
	}
	fill(p, 16 * PAGE, 41);
	for (size_t i = 17; i <= 400; i++) {
		top[-(ptrdiff_t)(i * PAGE)] = (char)i;
		CHECK_EQ("rest of a page grown into", 0, top[-(ptrdiff_t)(i * PAGE) + 100]);
	}
	chill_around();
	CHECK_FILL("first pages", p, 16 * PAGE, 41);
	for (size_t i = 17; i <= 400; i++)
		CHECK_EQ("grown page", (char)i, top[-(ptrdiff_t)(i * PAGE)]);
	CHECK_OK("munmap of the grown mapping", munmap(top - 400 * PAGE, 400 * PAGE));
}

static void flags(void)
{
	char *p = mmap(NULL, LEN, RW, ANON | MAP_POPULATE, -1, 0);
	CHECK("MAP_POPULATE", p != MAP_FAILED);
	CHECK_ZERO("populated", p, LEN);
	fill(p, LEN, 51);
	char *low = mmap(NULL, LEN, RW, ANON | MAP_32BIT, -1, 0);
	CHECK("MAP_32BIT", low != MAP_FAILED);
	CHECK("lies below 2 GiB", (uintptr_t)low < (uintptr_t)1 << 31);
	fill(low, LEN, 52);
	char *locked = mmap(NULL, 16 * PAGE, RW, ANON | MAP_LOCKED, -1, 0);
	if (locked == MAP_FAILED)
		skip("flags/MAP_LOCKED", "%s", strerror(errno));
	else
		fill(locked, 16 * PAGE, 53);
	chill();
	CHECK_FILL("MAP_POPULATE content", p, LEN, 51);
	CHECK_FILL("MAP_32BIT content", low, LEN, 52);
	if (locked != MAP_FAILED)
		CHECK_FILL("MAP_LOCKED content", locked, 16 * PAGE, 53);
	munmap(p, LEN);
	munmap(low, LEN);
	char *stack = mmap(NULL, LEN, RW, ANON | MAP_STACK | MAP_NORESERVE, -1, 0);
	fill(stack, LEN, 54);
	char *hint = mmap(stack + 16 * LEN, PAGE, RW, ANON, -1, 0);
	CHECK("mmap with a hint", hint != MAP_FAILED);
	CHECK_FILL("MAP_STACK content", stack, LEN, 54);
	munmap(stack, LEN);
	munmap(hint, PAGE);
	char *huge = mmap(NULL, LEN, RW, ANON | MAP_HUGETLB, -1, 0);
	if (huge == MAP_FAILED) {
		skip("flags/MAP_HUGETLB", "%s", strerror(errno));
		return;
	}
	fill(huge, LEN, 55);
	CHECK_FILL("MAP_HUGETLB content", huge, LEN, 55);
	munmap(huge, LEN);
}

/* Conservative collectors read their roots from /proc/self/maps. */
static void proc_maps(void)
{
	char *p = map_anon(LEN), line[512];
	fill(p, LEN, 61);
	uintptr_t covered = (uintptr_t)p, end = covered + LEN;
	FILE *f = fopen("/proc/self/maps", "re");
	while (fgets(line, sizeof line, f)) {
		unsigned long from, to;
		char perm[8];
		if (sscanf(line, "%lx-%lx %7s", &from, &to, perm) != 3 || from > covered || to <= covered)
			continue;
		CHECK_MEM("permissions in /proc/self/maps", "rw-p", perm, 4);
		covered = to;
	}
	fclose(f);
	CHECK("/proc/self/maps covers the mapping", covered >= end);
	munmap(p, LEN);
}

static void raw_calls(void)
{
	char *p = (char *)syscall(SYS_mmap, NULL, LEN, RW, ANON, -1, 0);
	char *q = map_anon(LEN);
	fill(p, LEN, 71);
	fill(q, LEN, 72);
	chill();
	CHECK_FILL("raw mmap", p, LEN, 71);
	CHECK_OK("raw munmap of part of a libc mapping", syscall(SYS_munmap, q + LEN / 2, LEN / 2));
	CHECK_FAULT("raw munmap took effect", q + LEN / 2, ACCESS_READ, SEGV_UNMAPPED);
	CHECK_FILL("rest of the libc mapping", q, LEN / 2, 72);
	CHECK_OK("raw madvise DONTNEED", syscall(SYS_madvise, q, 4 * PAGE, MADV_DONTNEED));
	CHECK_ZERO("raw madvise took effect", q, 4 * PAGE);
	CHECK_OK("raw mprotect", syscall(SYS_mprotect, q + 8 * PAGE, PAGE, PROT_NONE));
	CHECK_FAULT("raw mprotect took effect", q + 8 * PAGE, ACCESS_READ, SEGV_DENIED);
	CHECK_OK("raw mprotect back", syscall(SYS_mprotect, q + 8 * PAGE, PAGE, RW));
	char *r = (char *)syscall(SYS_mmap, q + LEN / 4, LEN / 4, RW, ANON | MAP_FIXED, -1, 0);
	CHECK_EQ("raw MAP_FIXED", (uintptr_t)q + LEN / 4, (uintptr_t)r);
	CHECK_ZERO("raw MAP_FIXED gives zeros", r, LEN / 4);
	r = (char *)syscall(SYS_mremap, q, LEN / 4, LEN, MREMAP_MAYMOVE);
	CHECK("raw mremap", r != MAP_FAILED);
	CHECK_ZERO("raw mremap: discarded part", r, 4 * PAGE);
	char *copy = must_malloc(LEN / 4);
	fill(copy, LEN / 4, 72);
	CHECK_MEM("raw mremap: kept part", copy + 4 * PAGE, r + 4 * PAGE, LEN / 4 - 4 * PAGE);
	CHECK_ZERO("raw mremap: new part", r + LEN / 4, LEN - LEN / 4);
	free(copy);
	CHECK_OK("libc munmap of raw mapping", munmap(p, LEN));
	CHECK_OK("raw munmap", syscall(SYS_munmap, r, LEN));
	CHECK_FAULT("gone", r, ACCESS_WRITE, SEGV_UNMAPPED);
}

/* A reservation that must be at one of some hundred places, as ZGC makes for its heap: what lies elsewhere is given back. */
static void meant_hints(void)
{
	size_t len = 64 * MIB;
	int found = 0;
	for (uint64_t at = 4ull << 40; at < (4ull << 40) + 300 * len && !found; at += len) {
		char *p = mmap((void *)at, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		CHECK("a reservation", p != MAP_FAILED);
		found = p == (char *)at;
		if (found) {
			char *in = mmap(p + MIB, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
			CHECK("memory in it", in == p + MIB);
			fill(in, MIB, 1);
			CHECK_FILL("memory in it", in, MIB, 1);
		}
		CHECK_EQ("munmap", 0, munmap(p, len));
	}
	CHECK("a reservation where it was asked", found);
}

static sigjmp_buf walk_env;
static atomic_size_t walked;
static char *walked_block;
static const size_t walk_len = 64 * MIB;

static void leave_walk(int signo)
{
	siglongjmp(walk_env, signo);
}

static void *walk(void *arg)
{
	(void)arg;
	int signo = sigsetjmp(walk_env, 1);
	if (signo != 0)
		return (void *)(intptr_t)signo;
	for (size_t off = 0; off < walk_len; off += PAGE, walked++)
		(void)*(volatile char *)(walked_block + off);
	return NULL;
}

/* A thread touches memory at the moment at which another unmaps it, or maps a file there. Its fault found nothing managed: the whole
 * process lost its handler of SIGBUS, and died at the next page that was out; under thread delivery the thread slept for ever. */
static void touched_as_it_goes(void)
{
	struct sigaction act = {.sa_handler = leave_walk}, old;
	char *other = map_anon(LEN);
	int fd = temp_file();
	fill(other, LEN, 81);
	CHECK_OK("file", ftruncate(fd, (off_t)walk_len));
	sigaction(SIGSEGV, &act, &old);
	for (size_t round = 0; round < 24; round++) {
		pthread_t thread;
		void *signo;
		walked = 0;
		walked_block = mmap(NULL, walk_len, RW, ANON | MAP_NORESERVE, -1, 0);
		CHECK("block", walked_block != MAP_FAILED);
		CHECK_EQ("thread", 0, pthread_create(&thread, NULL, walk, NULL));
		while (walked < 200 + round * 10)
			sched_yield();
		if (round & 1)
			CHECK("mapped over", mmap(walked_block, walk_len, RW, MAP_SHARED | MAP_FIXED, fd, 0) == walked_block);
		else
			CHECK_OK("munmap", munmap(walked_block, walk_len));
		pthread_join(thread, &signo);
		CHECK("how the walk ended", walked == walk_len / PAGE || (intptr_t)signo == SIGSEGV);
		if (round & 1)
			CHECK_OK("munmap", munmap(walked_block, walk_len));
		if (round % 8 == 7)
			chill();
		CHECK_FILL("other memory", other, LEN, 81);
	}
	sigaction(SIGSEGV, &old, NULL);
	munmap(other, LEN);
	close(fd);
}

static void read_behind_the_end(void *arg)
{
	(void)*(volatile char *)arg;
}

/* A file that is shorter than its mapping, where managed memory was: its SIGBUS is the program's, each time. */
static void short_file(void)
{
	int fd = temp_file();
	CHECK_OK("file of two pages", ftruncate(fd, (off_t)(2 * PAGE)));
	char *p = map_anon(LEN);
	fill(p, LEN, 82);
	CHECK("mapped over", mmap(p + LEN / 2, 8 * PAGE, RW, MAP_SHARED | MAP_FIXED, fd, 0) == p + LEN / 2);
	char *behind = p + LEN / 2 + 2 * PAGE;
	for (int round = 0; round < 3; round++) {
		CHECK_NO_FAULT("in the file", behind - 1, ACCESS_READ);
		CHECK_FAULT("behind its end", behind, ACCESS_READ, BUS_NO_PAGE);
		CHECK_FAULT("behind its end", behind, ACCESS_WRITE, BUS_NO_PAGE);
		CHECK_FAULT("the next page", behind + PAGE, ACCESS_READ, BUS_NO_PAGE);
		CHILD_EXPECT("without a handler", child_start(read_behind_the_end, behind), 128 + SIGBUS);
		CHECK_OK("a longer file", ftruncate(fd, (off_t)(4 * PAGE)));
		CHECK_ZERO("what was behind its end", behind, 2 * PAGE);
		CHECK_OK("a shorter file", ftruncate(fd, (off_t)(2 * PAGE)));
		chill();
		CHECK_FILL("below", p, LEN / 2, 82);
	}
	munmap(p, LEN);
	close(fd);
}

/* A mapping right behind managed memory, where its hint wants it. */
static char *hinted(char *behind, size_t len, int prot, int flags, int fd)
{
	char *p = mmap(behind, len, prot, flags, fd, 0);
	CHECK("a place near the hint or elsewhere", p != MAP_FAILED);
	return p;
}

/* The kernel honours a hint if nothing is there. What it had put among managed memory so, unknown to the map of that, made each
   later allocation fail: the same gap was found for ever (Guile's collector asks for 64 KiB behind what it has). */
static void hints_among_managed(void)
{
	int fd = temp_file();
	CHECK_OK("file", ftruncate(fd, (off_t)(16 * PAGE)));
	static const int unmanaged[] = {ANON, ANON | MAP_STACK, ANON | MAP_GROWSDOWN, MAP_SHARED | MAP_ANONYMOUS};
	char *block = map_anon(4 * MIB), *near[NELEM(unmanaged) + 2], *more[64];
	fill(block, 4 * MIB, 83);
	char *behind = block + 4 * MIB;
	for (size_t i = 0; i < NELEM(unmanaged); i++) {
		near[i] = hinted(behind, 16 * PAGE, RW, unmanaged[i], -1);
		fill(near[i], 16 * PAGE, 84 + i);
		behind = near[i] + 16 * PAGE;
	}
	near[4] = hinted(behind, 16 * PAGE, RW, MAP_SHARED, fd);
	fill(near[4], 16 * PAGE, 88);
	near[5] = hinted(near[4] + 16 * PAGE, MIB, RW | PROT_EXEC, ANON, -1);
	fill(near[5], MIB, 89);
	for (size_t i = 0; i < NELEM(more); i++) {
		more[i] = map_anon(MIB);
		fill(more[i], MIB, 90 + i);
	}
	char *heap = malloc(8 * MIB);
	CHECK("malloc", heap != NULL);
	free(heap);
	chill_around();
	char *grown = mremap(more[0], MIB, 8 * MIB, MREMAP_MAYMOVE);
	CHECK("mremap finds a place too", grown != MAP_FAILED);
	CHECK_FILL("moved", grown, MIB, 90);
	CHECK_ZERO("grown", grown + MIB, 7 * MIB);
	CHECK_FILL("before", block, 4 * MIB, 83);
	for (size_t i = 0; i < NELEM(near); i++) {
		CHECK_FILL("hinted", near[i], i < 5 ? 16 * PAGE : MIB, 84 + i);
		CHECK_OK("munmap", munmap(near[i], i < 5 ? 16 * PAGE : MIB));
	}
	for (size_t i = 1; i < NELEM(more); i++) {
		CHECK_FILL("mapped after", more[i], MIB, 90 + i);
		munmap(more[i], MIB);
	}
	munmap(grown, 8 * MIB);
	munmap(block, 4 * MIB);
	close(fd);
}

/* A file in memory over part of a reservation, as virtual machines have it: what is asked of it is the kernel's to do. It was answered with ENOMEM. */
static void foreign_populated(void)
{
	char *p = mmap(NULL, 64 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int fd = memfd_create("guest", MFD_CLOEXEC);
	CHECK_OK("a file", ftruncate(fd, MIB));
	CHECK("over the reservation", mmap(p + MIB, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == p + MIB);
	int done = madvise(p + MIB, MIB, MADV_POPULATE_WRITE);
	if (done < 0 && errno == EINVAL)
		skip("foreign_populated", "MADV_POPULATE_WRITE: %s", strerror(errno));
	else
		CHECK_EQ("populated", 0, done);
	fill(p + MIB, MIB, 95);
	chill();
	CHECK_FILL("content", p + MIB, MIB, 95);
	munmap(p, 64 * MIB);
	close(fd);
}

/* A WebAssembly memory reserves 8 GiB of addresses, of which it uses little. Hundreds of them took all that farpage manages, and malloc failed
   from then on; what is reserved beyond is the kernel's. */
static void reservations(void)
{
	enum { COUNT = 160 };
	const size_t len = (size_t)8 << 30;
	static char *reserved[COUNT];
	for (int i = 0; i < COUNT; i++) {
		reserved[i] = mmap(NULL, len, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
		CHECK("a reservation", reserved[i] != MAP_FAILED);
		CHECK_OK("opened", mprotect(reserved[i], 64 * 1024, RW));
		fill(reserved[i], 64 * 1024, i);
	}
	char *block = malloc(40 * MIB);
	CHECK("malloc beside them", block != NULL);
	fill(block, MIB, 96);
	chill();
	CHECK_FILL("block", block, MIB, 96);
	for (int i = 0; i < COUNT; i++) {
		CHECK_FILL("opened part", reserved[i], 64 * 1024, i);
		munmap(reserved[i], len);
	}
	free(block);
}

/* Not where this program runs by itself. */
static void check_managed(const char *what, const char *p)
{
	CHECK(what, getenv("FARPAGE_POOL_FD") == NULL || is_managed(p));
}

/* Heaps of other languages: their reservations were a little, or a lot, larger than what is managed, and all of the heap was the kernel's. */
static void large_heaps(void)
{
	const size_t gib = (size_t)1 << 30;
	char *net = mmap(NULL, 256 * gib + PAGE, PROT_NONE, ANON, -1, 0);
	CHECK("256 GiB and a page, as .NET has it", net != MAP_FAILED);
	check_managed("they are", net);
	CHECK_OK("opened", mprotect(net + MIB, MIB, RW));
	fill(net + MIB, MIB, 97);
	/* GHC: less and less until it is given some. */
	size_t len = 1024 * gib;
	char *hint = (char *)0x4200000000, *heap = MAP_FAILED;
	for (int turn = 0; heap == MAP_FAILED && turn < 100; turn++) {
		heap = mmap(hint + turn * PAGE, len, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
		if (heap == MAP_FAILED)
			len -= len / 8;
	}
	CHECK("a heap of GHC's", heap != MAP_FAILED && len > 64 * gib);
	check_managed("it is", heap);
	CHECK("a part of it", mmap(heap + 4 * MIB, MIB, RW, ANON | MAP_NORESERVE | MAP_FIXED, -1, 0) == heap + 4 * MIB);
	fill(heap + 4 * MIB, MIB, 98);
	chill();
	CHECK_FILL(".NET's", net + MIB, MIB, 97);
	CHECK_FILL("GHC's", heap + 4 * MIB, MIB, 98);
	munmap(net, 256 * gib + PAGE);
	munmap(heap, len);
}

/* Names and NUMA policies, which the kernel keeps for each mapping: of managed memory nothing of them is kept, and nothing is lost by
 * asking for them. Kernels without either say EINVAL or ENOSYS. */
static void named(void)
{
	char *p = map_anon(LEN), *name = p + MIB;
	fill(p, MIB, 99);
	strcpy(name, "a name");
	chill();
	int set = prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, p, MIB, name);
	CHECK("named", set == 0 || errno == EINVAL);
	long placed = syscall(SYS_mbind, p, MIB, 0L, NULL, 0L, 0L);
	CHECK("placed", placed == 0 || errno == EINVAL || errno == ENOSYS);
	CHECK_ERR("pages of no file in another order", EINVAL, syscall(SYS_remap_file_pages, p, PAGE, 0L, 1L, 0L));
	CHECK("the name", strcmp(name, "a name") == 0);
	CHECK_FILL("what was named", p, MIB, 99);
	munmap(p, LEN);
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"basic", basic},	  {"errors", errors},	  {"partial_munmap", partial_munmap},
		{"reuse", reuse},	  {"fixed_over", fixed_over}, {"fixed_refused", fixed_refused}, {"fixed_beside", fixed_beside},
		{"files", files},	  {"noreserve", noreserve},   {"grows_down", grows_down},
		{"flags", flags},	  {"proc_maps", proc_maps},   {"raw_calls", raw_calls},
		{"large_heaps", large_heaps}, /* before hints are meant in this process */
		{"meant_hints", meant_hints}, {"touched_as_it_goes", touched_as_it_goes}, {"short_file", short_file},
		{"hints_among_managed", hints_among_managed}, {"foreign_populated", foreign_populated},
		{"reservations", reservations}, {"named", named},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
