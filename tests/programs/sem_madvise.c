/* madvise, mlock, mincore, msync. Usage: sem_madvise [MIB] [GROUP]; MIB (default 16) makes memory cold. */
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define LEN (4 * MIB)
/* Not in the headers of glibc 2.36. */
#define ADVICE_COLLAPSE 25
#define ADVICE_GUARD_INSTALL 102
#define ADVICE_GUARD_REMOVE 103

static void dont_need(void)
{
	char *copy = must_malloc(LEN);
	fill(copy, LEN, 1);
	for (int cold = 0; cold < 2; cold++) {
		char *p = map_anon(LEN);
		fill(p, LEN, 1);
		if (cold)
			chill();
		CHECK_OK("DONTNEED of the middle", madvise(p + 100 * PAGE, 300 * PAGE, MADV_DONTNEED));
		CHECK_ZERO("reads zeros", p + 100 * PAGE, 300 * PAGE);
		CHECK_MEM("below", copy, p, 100 * PAGE);
		CHECK_MEM("above", copy + 400 * PAGE, p + 400 * PAGE, LEN - 400 * PAGE);
		fill(p, LEN, 2);
		chill();
		CHECK_FILL("filled again", p, LEN, 2);
		CHECK_OK("single pages", madvise(p + 7 * PAGE, PAGE, MADV_DONTNEED));
		CHECK_OK("length is rounded up", madvise(p + 9 * PAGE, 1, MADV_DONTNEED));
		CHECK_ZERO("single page", p + 7 * PAGE, PAGE);
		CHECK_ZERO("rounded up", p + 9 * PAGE, PAGE);
		CHECK_OK("all of it", madvise(p, LEN, MADV_DONTNEED));
		chill();
		CHECK_ZERO("all zeros", p, LEN);
		munmap(p, LEN);
	}
	free(copy);
	char *p = map_anon(8 * PAGE);
	CHECK_ERR("odd address", EINVAL, madvise(p + 1, PAGE, MADV_DONTNEED));
	CHECK_ERR("unknown advice", EINVAL, madvise(p, PAGE, 9999));
	CHECK_OK("length 0", madvise(p, 0, MADV_DONTNEED));
	memset(p, 1, 8 * PAGE);
	munmap(p + 4 * PAGE, PAGE);
	CHECK_ERR("over a hole", ENOMEM, madvise(p, 8 * PAGE, MADV_DONTNEED));
	CHECK_ZERO("what is mapped is discarded all the same", p, 4 * PAGE);
	CHECK_ZERO("also above the hole", p + 5 * PAGE, 3 * PAGE);
	CHECK_ERR("REMOVE of private memory", EINVAL, madvise(p, PAGE, MADV_REMOVE));
	munmap(p, 8 * PAGE);
}

static sigjmp_buf jump;
static int fds[2];
static char *buffer;
static atomic_int reading;

static void jump_out(int signo)
{
	(void)signo;
	siglongjmp(jump, 1);
}

static void *read_buffer(void *arg)
{
	reading = 1;
	CHECK_EQ("read", (ssize_t)(5 * PAGE), read(fds[0], buffer, 5 * PAGE));
	return arg;
}

static pthread_t reader(void)
{
	pthread_t thread;
	reading = 0;
	CHECK_EQ("thread", 0, pthread_create(&thread, NULL, read_buffer, NULL));
	while (!reading)
		sched_yield();
	sleep_ms(50);
	return thread;
}

/* A read that is left by a jump out of a handler, or whose thread is cancelled, never lets its pins go. DONTNEED of such a page was taken
 * for one of locked memory: it answered EINVAL for ever, and the old content stayed. */
static void left_in_calls(void)
{
	char *p = map_anon(LEN);
	struct sigaction act = {.sa_handler = jump_out}, old;
	sigaction(SIGALRM, &act, &old);
	CHECK_OK("pipe", pipe(fds));
	buffer = p + 100 * PAGE;
	for (int cancelled = 0; cancelled < 2; cancelled++) {
		fill(p, LEN, 20);
		chill_around();
		if (cancelled) {
			pthread_t thread = reader();
			pthread_cancel(thread);
			pthread_join(thread, NULL);
		} else if (sigsetjmp(jump, 1) == 0) {
			struct itimerval once = {{0, 0}, {0, 20000}};
			setitimer(ITIMER_REAL, &once, NULL);
			CHECK_EQ("read must be left by a jump", -2, read(fds[0], buffer, 5 * PAGE));
		}
		for (int cold = 0; cold < 2; cold++) {
			fill(p, LEN, 21);
			if (cold)
				chill_around();
			CHECK_OK("DONTNEED around a call that was left", madvise(p + 90 * PAGE, 100 * PAGE, MADV_DONTNEED));
			CHECK_ZERO("dropped", p + 90 * PAGE, 100 * PAGE);
			CHECK_FILL("below", p, 90 * PAGE, 21);
			CHECK_OK("DONTNEED of all", madvise(p, LEN, MADV_DONTNEED));
			chill_around();
			CHECK_ZERO("dropped", p, LEN);
		}
		CHECK_OK("read-only", mprotect(p, LEN, PROT_READ));
		CHECK_OK("DONTNEED of what is read-only", madvise(p, LEN, MADV_DONTNEED));
		CHECK_OK("inaccessible", mprotect(p, LEN, PROT_NONE));
		CHECK_OK("DONTNEED of what is inaccessible", madvise(p, LEN, MADV_DONTNEED));
		CHECK_OK("writable", mprotect(p, LEN, RW));
		CHECK_ZERO("dropped", p, LEN);
	}
	fill(p, LEN, 22);
	chill_around();
	CHECK_FILL("written afterwards", p, LEN, 22);
	sigaction(SIGALRM, &old, NULL);
	close(fds[0]);
	close(fds[1]);
	munmap(p, LEN);
}

/* The buffer of a call that waits is dropped: what the call writes then lies in fresh pages. */
static void dropped_under_a_call(void)
{
	char *p = map_anon(LEN), *text = must_malloc(5 * PAGE);
	fill(text, 5 * PAGE, 24);
	buffer = p + 100 * PAGE + 100;
	for (int round = 0; round < 6; round++) {
		CHECK_OK("pipe", pipe(fds));
		fill(p, LEN, 23);
		if (round & 1)
			chill_around();
		pthread_t thread = reader();
		CHECK_OK("DONTNEED", madvise(p + 50 * PAGE, 200 * PAGE, MADV_DONTNEED));
		if (round & 2)
			chill_around();
		write_all(fds[1], text, 5 * PAGE);
		pthread_join(thread, NULL);
		CHECK_MEM("what the call has read", text, buffer, 5 * PAGE);
		CHECK_ZERO("before it", p + 50 * PAGE, 50 * PAGE + 100);
		CHECK_ZERO("behind it", buffer + 5 * PAGE, 145 * PAGE - 100);
		CHECK_FILL("below", p, 50 * PAGE, 23);
		close(fds[0]);
		close(fds[1]);
	}
	free(text);
	munmap(p, LEN);
}

/* The kernel does not let the content of sealed memory go that can't be written. The books once let it go all the same: what was out
 * came back as zeros. In a child, since what is sealed stays. */
static void sealed_child(void *arg)
{
	char *p = arg, *old = must_malloc(LEN);
	CHECK_OK("read-only", mprotect(p + LEN, LEN, PROT_READ));
	if (syscall(CALL_MSEAL, p + LEN, LEN, 0) < 0) {
		skip("sealed", "mseal: %s", strerror(errno));
		return;
	}
	fill(old, LEN, 25);
	for (int cold = 0; cold < 2; cold++) {
		if (cold)
			chill_around();
		CHECK_ERR("DONTNEED of sealed memory", EPERM, madvise(p + LEN, LEN, MADV_DONTNEED));
		CHECK_FILL("sealed", p + LEN, LEN, 26);
		CHECK_ERR("DONTNEED of a part", EPERM, madvise(p + LEN + 3 * PAGE, PAGE, MADV_DONTNEED));
		CHECK_FILL("sealed", p + LEN, LEN, 26);
		if (cold)
			chill_around();
		CHECK_ERR("DONTNEED with memory beside", EPERM, madvise(p, 3 * LEN, MADV_DONTNEED));
		CHECK_FILL("sealed", p + LEN, LEN, 26);
		CHECK_FILL("behind it", p + 2 * LEN, LEN, 27);
		/* Kernels from 6.12 on have dropped what lies before it by then. */
		if (*(uint64_t *)p == pattern_word(25, 0))
			CHECK_MEM("before it", old, p, LEN);
		else
			CHECK_ZERO("before it", p, LEN);
		fill(p, LEN, 25);
	}
	chill_around();
	CHECK_FILL("before it", p, LEN, 25);
	CHECK_FILL("sealed", p + LEN, LEN, 26);
	CHECK_FILL("behind it", p + 2 * LEN, LEN, 27);
}

static void sealed(void)
{
	char *p = map_anon(3 * LEN);
	for (uint64_t i = 0; i < 3; i++)
		fill(p + i * LEN, LEN, 25 + i);
	chill();
	CHILD_EXPECT("child", child_start(sealed_child, p), 0);
	munmap(p, 3 * LEN);
}

static void lazy_free(void)
{
	char *p = map_anon(LEN), *copy = must_malloc(LEN);
	fill(p, LEN, 3);
	fill(copy, LEN, 3);
	CHECK_OK("FREE", madvise(p, LEN, MADV_FREE));
	for (size_t off = 0; off < LEN; off += 4 * PAGE)
		p[off] = copy[off] = 'w';
	chill();
	for (size_t off = 0; off < LEN; off += PAGE) {
		/* Whole old content or zeros; a byte written after FREE stays in either case. */
		bool zero = p[off + PAGE - 1] == 0 && p[off + 1] == 0 && p[off + 2048] == 0;
		if (zero && off % (4 * PAGE))
			CHECK_ZERO("freed page", p + off, PAGE);
		else if (zero)
			CHECK("byte written after FREE", p[off] == 'w');
		else
			CHECK_MEM("kept page", copy + off, p + off, PAGE);
	}
	fill(p, LEN, 4);
	chill();
	CHECK_FILL("written after FREE", p, LEN, 4);
	free(copy);
	munmap(p, LEN);
}

static void hints(void)
{
	static const struct {
		const char *name;
		int advice;
	} all[] = {
		{"NORMAL", MADV_NORMAL},	 {"RANDOM", MADV_RANDOM},     {"SEQUENTIAL", MADV_SEQUENTIAL},
		{"WILLNEED", MADV_WILLNEED},	 {"HUGEPAGE", MADV_HUGEPAGE}, {"NOHUGEPAGE", MADV_NOHUGEPAGE},
		{"MERGEABLE", MADV_MERGEABLE}, {"UNMERGEABLE", MADV_UNMERGEABLE}, {"DONTDUMP", MADV_DONTDUMP},
		{"DODUMP", MADV_DODUMP},	 {"COLD", MADV_COLD},	      {"PAGEOUT", MADV_PAGEOUT},
		{"POPULATE_READ", MADV_POPULATE_READ}, {"POPULATE_WRITE", MADV_POPULATE_WRITE}, {"COLLAPSE", ADVICE_COLLAPSE},
	};
	char *p = map_anon(LEN);
	for (size_t i = 0; i < NELEM(all); i++) {
		fill(p, LEN, i + 10);
		if (i % 2)
			chill();
		if (madvise(p + 3 * PAGE, LEN / 2, all[i].advice) < 0) {
			if (errno == EINVAL || errno == EAGAIN)
				skip(all[i].name, "madvise: %s", strerror(errno));
			else
				fail_at(WHERE, all[i].name, "madvise got %s", strerror(errno));
		}
		CHECK_FILL(all[i].name, p, LEN, i + 10);
		chill();
		CHECK_FILL(all[i].name, p, LEN, i + 10);
	}
	CHECK_OK("munmap", munmap(p + 3 * PAGE, PAGE));
	for (size_t i = 0; i < NELEM(all) && all[i].advice != MADV_POPULATE_READ; i++)
		if (madvise(p, LEN, all[i].advice) == 0 || (errno != ENOMEM && errno != EINVAL && errno != EAGAIN))
			fail_at(WHERE, all[i].name, "over a hole, no ENOMEM");
	CHECK_OK("munmap", munmap(p, LEN));
	p = map_anon(LEN);
	CHECK_OK("WILLNEED of fresh memory", madvise(p, LEN, MADV_WILLNEED));
	CHECK_OK("PAGEOUT of fresh memory", madvise(p, LEN, MADV_PAGEOUT));
	CHECK_ZERO("fresh memory", p, LEN);
	CHECK_OK("PAGEOUT of zeros", madvise(p, LEN, MADV_PAGEOUT));
	CHECK_ZERO("paged out zeros", p, LEN);
	munmap(p, LEN);
}

/* Evicts and reads back by hint alone, whatever the budget. */
static void page_out(void)
{
	char *p = map_anon(LEN);
	for (unsigned round = 0; round < 10; round++) {
		fill(p, LEN, round + 40);
		CHECK_OK("PAGEOUT", madvise(p, LEN, MADV_PAGEOUT));
		if (round % 2)
			CHECK_OK("WILLNEED", madvise(p, LEN, MADV_WILLNEED));
		for (size_t off = 0; off < LEN; off += 3 * PAGE)
			p[off] = (char)~p[off];
		CHECK_OK("PAGEOUT", madvise(p, LEN, MADV_PAGEOUT));
		for (size_t off = 0; off < LEN; off += 3 * PAGE)
			p[off] = (char)~p[off];
		CHECK_FILL("paged out and in", p, LEN, round + 40);
	}
	munmap(p, LEN);
}

/* NumPy asks for huge pages on parts of its arrays. */
static void huge(void)
{
	char *p[4];
	for (size_t i = 0; i < NELEM(p); i++) {
		p[i] = map_anon(3 * LEN);
		size_t skip_bytes = PAGE * (i * 100 + 1);
		CHECK_OK("HUGEPAGE on a part", madvise(p[i] + skip_bytes, 3 * LEN - 2 * skip_bytes, MADV_HUGEPAGE));
		fill(p[i], 3 * LEN, i + 60);
	}
	chill();
	for (size_t i = 0; i < NELEM(p); i++) {
		CHECK_FILL("array with huge pages", p[i], 3 * LEN, i + 60);
		CHECK_OK("munmap of an odd part", munmap(p[i] + MIB + PAGE, LEN));
		CHECK_FILL("what is left", p[i], MIB + PAGE, i + 60);
		CHECK_OK("DONTNEED of an odd part", madvise(p[i] + 5 * PAGE, 100 * PAGE, MADV_DONTNEED));
		CHECK_ZERO("discarded part", p[i] + 5 * PAGE, 100 * PAGE);
		munmap(p[i], 3 * LEN);
	}
}

static void guard(void)
{
	char *p = map_anon(LEN);
	fill(p, LEN, 70);
	if (madvise(p + 10 * PAGE, 10 * PAGE, ADVICE_GUARD_INSTALL) < 0) {
		skip("guard", "MADV_GUARD_INSTALL: %s", strerror(errno));
		munmap(p, LEN);
		return;
	}
	chill();
	siginfo_t info;
	CHECK_EQ("guard page read", SIGSEGV, touch(p + 12 * PAGE, ACCESS_READ, &info));
	CHECK_EQ("guard page address", (uintptr_t)p + 12 * PAGE, (uintptr_t)info.si_addr);
	CHECK_EQ("guard page write", SIGSEGV, touch(p + 19 * PAGE, ACCESS_WRITE, &info));
	CHECK_FILL("below the guard", p, 10 * PAGE, 70);
	CHECK_OK("GUARD_REMOVE", madvise(p + 10 * PAGE, 10 * PAGE, ADVICE_GUARD_REMOVE));
	CHECK_ZERO("guard removed", p + 10 * PAGE, 10 * PAGE);
	munmap(p, LEN);
}

static void by_process(void)
{
	char *p = map_anon(LEN);
	fill(p, LEN, 80);
	int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	struct iovec *iov = cold_alloc(PAGE);
	iov[0] = (struct iovec){p, 10 * PAGE};
	iov[1] = (struct iovec){p + 20 * PAGE, 30 * PAGE};
	chill();
	ssize_t n = fd < 0 ? -1 : syscall(SYS_process_madvise, fd, iov, 2, MADV_PAGEOUT, 0);
	if (n < 0)
		skip("by_process", "process_madvise: %s", strerror(errno));
	else
		CHECK_EQ("process_madvise advised", 40 * PAGE, n);
	CHECK_FILL("content", p, LEN, 80);
	munmap(p, LEN);
	if (fd >= 0)
		close(fd);
}

/* Locks of twice what the budget has, each of a part that alone would be granted: some are refused, and the rest of memory is usable
   still. All were granted once, and nothing was left to swap out. */
static void locked_in_parts(void)
{
	size_t part = size_mb * MIB / 16;
	char *parts[32];
	int refused = 0;
	for (size_t i = 0; i < NELEM(parts); i++) {
		parts[i] = map_anon(part);
		fill(parts[i], part, 93 + i);
		if (mlock(parts[i], part) != 0)
			refused += errno == ENOMEM || errno == EPERM || errno == EAGAIN ? 1 : 1000;
	}
	CHECK("refused as beyond a limit", refused < 1000);
	chill_around();
	for (size_t i = 0; i < NELEM(parts); i++) {
		CHECK_FILL("locked or not", parts[i], part, 93 + i);
		munmap(parts[i], part);
	}
	char *again = map_anon(part);
	CHECK("what was locked and is gone does not count", mlock(again, part) == 0 || errno != ENOMEM);
	munmap(again, part);
}

/* A lock goes with its mapping, and what that grows by is locked too. */
static void locked_and_moved(size_t len)
{
	char *p = map_anon(len), *to = map_anon(4 * len);
	unsigned char vec[16];
	fill(p, len, 91);
	fill(to, 4 * len, 92);
	CHECK_OK("mlock", mlock(p, len));
	CHECK("moved and grown", mremap(p, len, 2 * len, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	chill_around();
	CHECK_OK("mincore", mincore(to, 2 * len, vec));
	for (size_t i = 0; i < NELEM(vec); i++)
		CHECK_EQ("a locked page that was moved is resident", 1, vec[i] & 1);
	CHECK_ERR("DONTNEED of locked memory", EINVAL, madvise(to, 2 * len, MADV_DONTNEED));
	CHECK_OK("DONTNEED of what lies behind it", madvise(to + 2 * len, 2 * len, MADV_DONTNEED));
	CHECK_FILL("what was moved", to, len, 91);
	CHECK_ZERO("what it grew by", to + len, len);
	CHECK_OK("munlock", munlock(to, 2 * len));
	CHECK_OK("DONTNEED", madvise(to, 2 * len, MADV_DONTNEED));
	CHECK_ZERO("what was dropped", to, 4 * len);
	munmap(to, 4 * len);
}

static void lock(void)
{
	struct rlimit lim;
	getrlimit(RLIMIT_MEMLOCK, &lim);
	char *p = map_anon(LEN);
	fill(p, LEN, 90);
	chill();
	size_t len = 8 * PAGE;
	if (lim.rlim_cur < 2 * len) {
		skip("lock", "RLIMIT_MEMLOCK is %llu", (unsigned long long)lim.rlim_cur);
		munmap(p, LEN);
		return;
	}
	CHECK_OK("mlock", mlock(p + 3 * PAGE, len));
	chill_around();
	unsigned char vec[8];
	CHECK_OK("mincore", mincore(p + 3 * PAGE, len, vec));
	for (size_t i = 0; i < 8; i++)
		CHECK_EQ("a locked page is resident", 1, vec[i] & 1);
	CHECK_ERR("DONTNEED of locked memory", EINVAL, madvise(p + 3 * PAGE, PAGE, MADV_DONTNEED));
	CHECK_FILL("content", p, LEN, 90);
	CHECK_OK("munlock", munlock(p + 3 * PAGE, len));
	CHECK_OK("mlock2 ONFAULT", mlock2(p + 30 * PAGE, len, MLOCK_ONFAULT));
	/* It once locked the memory. */
	CHECK_ERR("mlock2 with a flag that there is not", EINVAL, mlock2(p, len, MLOCK_ONFAULT | 8));
	CHECK_ERR("the same by its number", EINVAL, syscall(SYS_mlock2, p, len, 8));
	chill_around();
	CHECK_FILL("content", p, LEN, 90);
	CHECK_OK("munmap of locked memory", munmap(p + 30 * PAGE, PAGE));
	CHECK_ERR("mlock over a hole", ENOMEM, mlock(p + 29 * PAGE, 3 * PAGE));
	CHECK_OK("munlock of the rest", munlock(p, 30 * PAGE));
	munmap(p, LEN);
	locked_and_moved(len);
}

static void *unlock_one(void *page)
{
	for (int turn = 0; turn < 20000; turn++)
		CHECK_OK("munlock beside mlock", munlock(page, PAGE));
	return NULL;
}

/* A page is unlocked while another thread locks it and its neighbours: afterwards it can leave. The lock was noted before the page had it, and
 * what munlock took then was another's, so that the page stayed for good. */
static void locked_and_unlocked(void)
{
	char *p = map_window();
	const size_t len = 8 * PAGE;
	fill(p, WINDOW, 94);
	if (mlock(p, len) != 0) {
		skip("locked_and_unlocked", "mlock: %s", strerror(errno));
		return;
	}
	pthread_t other;
	CHECK_EQ("pthread_create", 0, pthread_create(&other, NULL, unlock_one, p + 7 * PAGE));
	for (int turn = 0; turn < 20000; turn++)
		CHECK_OK("mlock", mlock(p, len));
	pthread_join(other, NULL);
	CHECK_OK("munlock", munlock(p, len));
	make_cold(p, WINDOW);
	unsigned char seen[8];
	CHECK_OK("mincore", mincore(p, len, seen));
	for (size_t i = 0; getenv("EXPECT_COLD") && i < NELEM(seen); i++)
		CHECK_EQ("a page that was unlocked has left", 0, seen[i] & 1);
	CHECK_FILL("content", p, WINDOW, 94);
}

static void in_core(void)
{
	char *p = map_anon(LEN);
	unsigned char *vec = cold_alloc(LEN / PAGE);
	memset(vec, 0xee, LEN / PAGE);
	chill();
	/* In a tight budget a page may leave between the two calls, but not every time. */
	int resident = 0;
	for (int turn = 0; turn < 100 && resident < 4; turn++) {
		memset(p, 1, 4 * PAGE);
		CHECK_OK("mincore with its result in cold memory", mincore(p, LEN, vec));
		resident = (vec[0] & 1) + (vec[1] & 1) + (vec[2] & 1) + (vec[3] & 1);
	}
	CHECK_EQ("pages just written are resident", 4, resident);
	for (size_t i = 600; i < LEN / PAGE; i++)
		CHECK_EQ("a page never touched is not resident", 0, vec[i] & 1);
	CHECK_ERR("odd address", EINVAL, mincore(p + 1, PAGE, vec));
	munmap(p, LEN);
	CHECK_ERR("nothing mapped", ENOMEM, mincore(p, PAGE, vec));
}

/* All of a program with a budget can't be locked, by which way ever; by number it took the budget away. */
static void lock_all(void)
{
	long flags = MCL_FUTURE | MCL_ONFAULT, raw = SYS_mlockall;
	if (getenv("LD_PRELOAD") == NULL) /* of a program without a budget all of it can */
		return;
	CHECK_ERR("mlockall", ENOMEM, mlockall(flags));
	CHECK_ERR("mlockall by number", ENOMEM, syscall(SYS_mlockall, flags));
	__asm__ volatile("syscall" : "+a"(raw) : "D"(flags) : "rcx", "r11", "memory");
	CHECK("mlockall by instruction, which nobody sees of a program that is not managed yet", raw == -ENOMEM || raw == 0);
	munlockall();
	CHECK_ERR("mlockall without flags", EINVAL, mlockall(0));
}

static void sync_memory(void)
{
	char *p = map_anon(LEN), *back = must_malloc(LEN);
	fill(p, LEN, 100);
	chill();
	CHECK_OK("msync of anonymous memory", msync(p, LEN, MS_SYNC));
	CHECK_OK("msync ASYNC", msync(p, LEN, MS_ASYNC));
	CHECK_OK("msync INVALIDATE", msync(p, LEN, MS_SYNC | MS_INVALIDATE));
	CHECK_FILL("content", p, LEN, 100);
	CHECK_ERR("SYNC and ASYNC", EINVAL, msync(p, LEN, MS_SYNC | MS_ASYNC));
	CHECK_ERR("odd address", EINVAL, msync(p + 1, PAGE, MS_SYNC));
	munmap(p, LEN);
	CHECK_ERR("nothing mapped", ENOMEM, msync(p, LEN, MS_SYNC));
	int fd = temp_file();
	CHECK_OK("ftruncate", ftruncate(fd, (off_t)LEN));
	p = mmap(NULL, LEN, RW, MAP_SHARED, fd, 0);
	fill(p, LEN, 101);
	CHECK_OK("msync of a file", msync(p, LEN, MS_SYNC));
	CHECK_EQ("pread", (ssize_t)LEN, pread(fd, back, LEN, 0));
	CHECK_FILL("file content", back, LEN, 101);
	munmap(p, LEN);
	close(fd);
	free(back);
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"dont_need", dont_need}, {"left_in_calls", left_in_calls}, {"dropped_under_a_call", dropped_under_a_call},
		{"sealed", sealed}, {"lazy_free", lazy_free},   {"hints", hints}, {"page_out", page_out},
		{"huge", huge},		  {"guard", guard},	      {"by_process", by_process}, {"lock", lock}, {"locked_in_parts", locked_in_parts},
		{"locked_and_unlocked", locked_and_unlocked},
		{"in_core", in_core},	  {"sync_memory", sync_memory}, {"lock_all", lock_all},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
