/* fork, clone and what a child may do with its memory. Usage: sem_fork [MIB] [GROUP]; MIB (default 16) is the size of
 * the data shared over fork and of the block that makes memory cold. exec and spawn: sem_exec; handlers: sem_atfork. */
#include "check.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define LEN (2 * MIB)

static char *data;
static size_t half;

/* Chunks of 64 pages, so that parent and child write disjoint parts all over the block. */
#define CHUNK (64 * PAGE)

static void data_fill(uint64_t tag)
{
	if (!data)
		data = map_anon(size_mb * MIB);
	half = size_mb * MIB / CHUNK / 2;
	for (size_t i = 0; i < 2 * half; i++)
		fill(data + i * CHUNK, CHUNK, tag + i);
}

static void data_write(size_t parity, uint64_t tag)
{
	for (size_t i = parity; i < 2 * half; i += 2)
		fill(data + i * CHUNK, CHUNK, tag + i);
}

static void data_check(const char *what, size_t parity, uint64_t tag)
{
	for (size_t i = parity; i < 2 * half; i += 2)
		CHECK_FILL(what, data + i * CHUNK, CHUNK, tag + i);
}

static void cow_child(void *arg)
{
	(void)arg;
	data_check("child: even chunks as at the fork", 0, 1000);
	data_write(0, 2000);
	data_check("child: its own even chunks", 0, 2000);
	data_check("child: odd chunks as at the fork", 1, 1000);
	data_write(1, 3000);
	chill();
	data_check("child: even chunks later", 0, 2000);
	data_check("child: odd chunks later", 1, 3000);
}

static void cow(void)
{
	for (int round = 0; round < 3; round++) {
		data_fill(1000);
		if (round)
			chill();
		pid_t pid = child_start(cow_child, NULL);
		data_write(1, 4000);
		data_check("parent: even chunks as at the fork", 0, 1000);
		data_check("parent: its own odd chunks", 1, 4000);
		if (round == 2)
			chill();
		CHILD_EXPECT("child", pid, 0);
		data_check("parent: even chunks after the child", 0, 1000);
		data_check("parent: odd chunks after the child", 1, 4000);
	}
}

static void level(void *arg)
{
	uint64_t depth = (uintptr_t)arg;
	/* What each ancestor wrote last, in the quarter it wrote. */
	for (uint64_t d = 0; d <= depth; d++) {
		for (size_t i = d; i < 2 * half; i += 4)
			CHECK_FILL("what an ancestor wrote", data + i * CHUNK, CHUNK, (d ? 5000 + d * 1000 : 5000) + i);
	}
	if (depth == 3)
		return;
	for (size_t i = depth + 1; i < 2 * half; i += 4)
		fill(data + i * CHUNK, CHUNK, 5000 + (depth + 1) * 1000 + i);
	pid_t pid = child_start(level, (void *)(uintptr_t)(depth + 1));
	for (size_t i = depth; i < 2 * half; i += 4)
		fill(data + i * CHUNK, CHUNK, 1);
	CHILD_EXPECT("next level", pid, 0);
	for (size_t i = depth; i < 2 * half; i += 4)
		CHECK_FILL("own part after the next level", data + i * CHUNK, CHUNK, 1);
	for (size_t i = depth + 1; i < 2 * half; i += 4)
		CHECK_FILL("part handed down", data + i * CHUNK, CHUNK, 5000 + (depth + 1) * 1000 + i);
}

static void multi_level(void)
{
	data_fill(5000);
	level((void *)0);
}

static void many_child(void *arg)
{
	uint64_t me = (uintptr_t)arg;
	data_check("many: even chunks", 0, 7000);
	data_write(me & 1, 7000 + me * 5000);
	char *own = must_malloc(LEN);
	fill(own, LEN, me);
	data_check("many: own chunks", me & 1, 7000 + me * 5000);
	data_check("many: other chunks", !(me & 1), 7000);
	CHECK_FILL("many: malloc'd block", own, LEN, me);
	free(own);
	munmap(data, size_mb * MIB);
}

static void many_children(void)
{
	pid_t pids[6];
	data_fill(7000);
	for (size_t i = 0; i < NELEM(pids); i++)
		pids[i] = child_start(many_child, (void *)(uintptr_t)(i + 1));
	for (size_t i = 0; i < NELEM(pids); i++)
		CHILD_EXPECT("one of many", pids[i], 0);
	data_check("parent of many: even", 0, 7000);
	data_check("parent of many: odd", 1, 7000);
}

static void killed_child(void *arg)
{
	(void)arg;
	for (uint64_t n = 0;; n++)
		data_write(n & 1, n);
}

static void killed(void)
{
	data_fill(8000);
	for (int i = 0; i < 6; i++) {
		pid_t pid = child_start(killed_child, NULL);
		sleep_ms(10 + (unsigned)i * 17);
		kill(pid, SIGKILL);
		CHILD_EXPECT("killed child", pid, 128 + SIGKILL);
		data_check("parent after the kill: even", 0, 8000);
		data_check("parent after the kill: odd", 1, 8000);
	}
}

static void grandchild(void *arg)
{
	CHECK_FILL("what the child mapped in a gap", arg, LEN, 100);
}

static void advice_child(void *arg)
{
	char *p = arg;
	CHECK_FILL("copied part", p, LEN, 90);
	CHECK_ZERO("WIPEONFORK part in the child", p + LEN, LEN);
	CHECK_FAULT("DONTFORK part in the child", p + 2 * LEN, ACCESS_READ, SEGV_UNMAPPED);
	CHECK_FAULT("DONTFORK part, last byte", p + 3 * LEN - 1, ACCESS_WRITE, SEGV_UNMAPPED);
	CHECK_FILL("KEEPONFORK part", p + 3 * LEN, LEN, 93);
	CHECK_FILL("DOFORK part", p + 4 * LEN, LEN, 94);
	fill(p + LEN, LEN, 99);
	chill();
	CHECK_FILL("WIPEONFORK part written by the child", p + LEN, LEN, 99);
	void *q = mmap(p + 2 * LEN, LEN, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
	CHECK_EQ("DONTFORK part is free room", (uintptr_t)p + 2 * LEN, (uintptr_t)q);
	CHECK_ZERO("mapped there", q, LEN);
	/* What was said of the mapping that is not here is not said of this one. Its pages were once empty in the next child. */
	fill(q, LEN, 100);
	make_cold(q, LEN);
	CHILD_EXPECT("child of the child", child_start(grandchild, q), 0);
	CHECK_FILL("the child's own", q, LEN, 100);
}

static void later_child(void *arg)
{
	char *p = arg;
	for (size_t i = 0; i < 5; i++)
		CHECK_FILL("later mapping in the child", p + i * LEN, LEN, 95 + i);
}

static void moved_child(void *arg)
{
	CHECK_ZERO("moved WIPEONFORK part in the child", arg, LEN);
}

static void resized_child(void *arg)
{
	char **parts = arg;
	CHECK_ZERO("grown WIPEONFORK mapping in the child", parts[0], 2 * LEN);
	CHECK_ZERO("shrunk WIPEONFORK mapping in the child", parts[1], LEN / 2);
	CHECK_FILL("what lies behind it", parts[1] + LEN / 2, LEN / 2, 89);
}

/* Advice grows with its mapping, and what is moved and shrunk does not speak for what lies behind it. */
static void resized_advice(void)
{
	for (int fixed = 0; fixed < 2; fixed++) {
		char *grown = map_anon(LEN), *shrunk = map_anon(LEN), *parts[2];
		fill(grown, LEN, 87);
		fill(shrunk, LEN, 88);
		CHECK_OK("WIPEONFORK", madvise(grown, LEN, MADV_WIPEONFORK));
		CHECK_OK("WIPEONFORK", madvise(shrunk, LEN, MADV_WIPEONFORK));
		char *room = mmap(NULL, 2 * LEN, PROT_NONE, ANON | MAP_NORESERVE, -1, 0), *target = map_anon(LEN);
		fill(target + LEN / 2, LEN / 2, 89);
		parts[0] = fixed ? mremap(grown, LEN, 2 * LEN, MREMAP_MAYMOVE | MREMAP_FIXED, room) : mremap(grown, LEN, 2 * LEN, MREMAP_MAYMOVE);
		parts[1] = mremap(shrunk, LEN, LEN / 2, MREMAP_MAYMOVE | MREMAP_FIXED, target);
		CHECK("resized", parts[0] != MAP_FAILED && parts[1] == target);
		fill(parts[0], 2 * LEN, 86);
		chill();
		CHILD_EXPECT("child of resized mappings", child_start(resized_child, parts), 0);
		CHECK_FILL("the parent's grown one", parts[0], 2 * LEN, 86);
		CHECK_FILL("the parent's shrunk one", parts[1], LEN / 2, 88);
		munmap(parts[0], 2 * LEN);
		munmap(target, LEN);
		if (!fixed)
			munmap(room, 2 * LEN);
	}
}

static void fork_advice(void)
{
	char *p = map_anon(5 * LEN);
	for (size_t i = 0; i < 5; i++)
		fill(p + i * LEN, LEN, 90 + i);
	CHECK_OK("WIPEONFORK", madvise(p + LEN, LEN, MADV_WIPEONFORK));
	CHECK_OK("DONTFORK", madvise(p + 2 * LEN, LEN, MADV_DONTFORK));
	CHECK_OK("WIPEONFORK", madvise(p + 3 * LEN, LEN, MADV_WIPEONFORK));
	CHECK_OK("KEEPONFORK", madvise(p + 3 * LEN, LEN, MADV_KEEPONFORK));
	CHECK_OK("DONTFORK", madvise(p + 4 * LEN, LEN, MADV_DONTFORK));
	CHECK_OK("DOFORK", madvise(p + 4 * LEN, LEN, MADV_DOFORK));
	for (int cold = 0; cold < 2; cold++) {
		if (cold)
			chill();
		CHILD_EXPECT("child", child_start(advice_child, p), 0);
		for (size_t i = 0; i < 5; i++)
			CHECK_FILL("parent keeps all", p + i * LEN, LEN, 90 + i);
	}
	char *moved = map_anon(LEN);
	CHECK_EQ("moved", (uintptr_t)moved,
		 (uintptr_t)mremap(p + LEN, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, moved));
	munmap(p, 5 * LEN);
	/* Advice goes with the mapping. It once stayed with the address: a later mapping there was empty in a child. */
	char *again = mmap(p, 5 * LEN, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
	CHECK_EQ("mapped again", (uintptr_t)p, (uintptr_t)again);
	for (size_t i = 0; i < 5; i++)
		fill(p + i * LEN, LEN, 95 + i);
	chill();
	CHILD_EXPECT("child of a later mapping", child_start(later_child, p), 0);
	CHILD_EXPECT("child of a moved mapping", child_start(moved_child, moved), 0);
	munmap(p, 5 * LEN);
	munmap(moved, LEN);
	resized_advice();
}

static void both_child(void *arg)
{
	char *p = arg;
	CHECK_ZERO("WIPEONFORK, then DOFORK", p, LEN);
	CHECK_FAULT("both, then KEEPONFORK", p + LEN, ACCESS_READ, SEGV_UNMAPPED);
	CHECK_ZERO("both, then DOFORK", p + 2 * LEN, LEN);
	CHECK_FILL("both, then both taken back", p + 3 * LEN, LEN, 333);
	char *q = mmap(p + LEN, LEN, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
	CHECK_EQ("the gap is free room", (uintptr_t)p + LEN, (uintptr_t)q);
	CHECK_ZERO("mapped there", q, LEN);
}

#define RANGES 4200
static size_t wiped;

static void wiped_child(void *arg)
{
	char *p = arg;
	for (size_t i = 0; i < RANGES; i++) {
		if (i < wiped)
			CHECK_ZERO("wiped page", p + 2 * i * PAGE, PAGE);
		else
			CHECK_FILL("a page that could not be said to be wiped", p + 2 * i * PAGE, PAGE, 340 + i);
	}
}

/* The kernel keeps DONTFORK and WIPEONFORK apart: taking one back leaves the other. Both were one, and DOFORK brought a child the content of
 * a mapping that it gets empty. */
static void advice_apart(void)
{
	char *p = map_anon(4 * LEN);
	for (size_t i = 0; i < 4; i++) {
		fill(p + i * LEN, LEN, 330 + i);
		CHECK_OK("WIPEONFORK", madvise(p + i * LEN, LEN, MADV_WIPEONFORK));
		if (i)
			CHECK_OK("DONTFORK", madvise(p + i * LEN, LEN, MADV_DONTFORK));
	}
	CHECK_OK("DOFORK", madvise(p, LEN, MADV_DOFORK));
	CHECK_OK("KEEPONFORK", madvise(p + LEN, LEN, MADV_KEEPONFORK));
	CHECK_OK("DOFORK", madvise(p + 2 * LEN, 2 * LEN, MADV_DOFORK));
	CHECK_OK("KEEPONFORK", madvise(p + 3 * LEN, LEN, MADV_KEEPONFORK));
	make_cold(p, 4 * LEN);
	CHILD_EXPECT("child", child_start(both_child, p), 0);
	for (size_t i = 0; i < 4; i++)
		CHECK_FILL("the parent's", p + i * LEN, LEN, 330 + i);
	munmap(p, 4 * LEN);
	/* More ranges than can be noted: refused, not forgotten. */
	p = map_anon(2 * RANGES * PAGE);
	for (size_t i = 0; i < RANGES; i++)
		fill(p + 2 * i * PAGE, PAGE, 340 + i);
	for (wiped = 0; wiped < RANGES; wiped++) {
		if (madvise(p + 2 * wiped * PAGE, PAGE, MADV_WIPEONFORK)) {
			CHECK_EQ("errno", ENOMEM, errno);
			break;
		}
	}
	CHECK("thousands of ranges", wiped >= 4000);
	chill();
	CHILD_EXPECT("child of many ranges", child_start(wiped_child, p), 0);
	munmap(p, 2 * RANGES * PAGE);
}

enum { SMALL = 64 };
#define SMALL_LEN (64 * 1024)

/* Every second page comes back and leaves again, with the pages between them out. */
static void push_out_with_gaps(char *p, uint64_t tag)
{
	fill(p, LEN, tag);
	make_cold(p, LEN);
	for (size_t at = 0; at < LEN; at += 2 * PAGE)
		((volatile char *)p)[at] = p[at];
	make_cold(p, LEN);
}

static void gaps_child(void *arg)
{
	static char *small[SMALL];
	(void)arg;
	for (size_t i = 0; i < SMALL; i++) {
		small[i] = map_anon(SMALL_LEN);
		fill(small[i], SMALL_LEN, 300 + i);
	}
	char *p = map_anon(LEN);
	push_out_with_gaps(p, 310);
	for (size_t i = 0; i < SMALL; i++)
		CHECK_FILL("small mapping of the child", small[i], SMALL_LEN, 300 + i);
	CHECK_FILL("what the child pushed out", p, LEN, 310);
}

/* Pages with gaps, under DONTFORK, pushed out before a fork. Their way out may lead through memory of the engine's that then was not
 * inherited either: a child's mappings that came there were lost when it pushed something out itself. */
static void gaps_not_inherited(void)
{
	char *p = map_anon(LEN);
	CHECK_OK("DONTFORK", madvise(p, LEN, MADV_DONTFORK));
	push_out_with_gaps(p, 320);
	CHILD_EXPECT("child", child_start(gaps_child, NULL), 0);
	CHECK_FILL("the parent's pages", p, LEN, 320);
	munmap(p, LEN);
}

static void shared_child(void *arg)
{
	char *p = arg;
	CHECK_FILL("shared memory in the child", p, LEN, 110);
	fill(p, LEN, 111);
}

static void shared(void)
{
	char *p = mmap(NULL, LEN, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	fill(p, LEN, 110);
	chill();
	CHILD_EXPECT("child", child_start(shared_child, p), 0);
	CHECK_FILL("shared memory as the child left it", p, LEN, 111);
	munmap(p, LEN);
}

/* Child sides of clone: no libc state is set up for them, so they only check and return a status. */
static int clone_body(void *arg)
{
	char *p = arg;
	for (size_t i = 0; i < 2 * half; i++) {
		if (first_bad(data + i * CHUNK, CHUNK, 9000 + i) != SIZE_MAX)
			return 2;
		fill(data + i * CHUNK, CHUNK, 9500 + i);
	}
	for (size_t i = 0; i < 2 * half; i++) {
		if (first_bad(data + i * CHUNK, CHUNK, 9500 + i) != SIZE_MAX)
			return 3;
	}
	return first_bad(p, 10000, 120) == SIZE_MAX ? 42 : 4;
}

static void cloned(void)
{
	char *stack = must_malloc(256 * 1024), *p = must_malloc(10000);
	fill(p, 10000, 120);
	data_fill(9000);
	chill();
	pid_t pid = clone(clone_body, stack + 256 * 1024, SIGCHLD, p);
	CHECK("clone without CLONE_VM", pid > 0);
	CHILD_EXPECT("clone on a malloc'd stack", pid, 42);
	data_check("after clone: even", 0, 9000);
	data_check("after clone: odd", 1, 9000);
	pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	if (pid == 0)
		_exit(clone_body(p));
	CHILD_EXPECT("raw clone", pid, 42);
	data_check("after raw clone: even", 0, 9000);
	struct clone_args *args = cold_alloc(PAGE);
	memset(args, 0, sizeof *args);
	args->exit_signal = SIGCHLD;
	chill();
	pid = (pid_t)syscall(SYS_clone3, args, sizeof *args);
	if (pid == 0)
		_exit(clone_body(p));
	if (pid < 0)
		skip("cloned/clone3", "%s", strerror(errno));
	else
		CHILD_EXPECT("raw clone3", pid, 42);
	data_check("after raw clone3: even", 0, 9000);
#ifdef SYS_fork
	pid = (pid_t)syscall(SYS_fork);
	if (pid == 0)
		_exit(clone_body(p));
	CHILD_EXPECT("raw fork", pid, 42);
#endif
	data_check("at the end: odd", 1, 9000);
	free(stack);
	free(p);
}

/* The word at `word` is the kernel's, the rest of its page was filled with `tag`. */
static int page_around(char *word, uint64_t tag)
{
	char page[PAGE];
	fill(page, PAGE, tag);
	memcpy(page, word, sizeof(int));
	return memcmp(page, word, PAGE) ? 5 : 0;
}

/* The kernel writes the child's number where clone's caller says, in the child too, where nothing was registered yet: a page that was out
 * was one of zeros there. In the parent nobody could bring it in, so that a descriptor found no place, or both waited for ever. */
static void told_in_cold_memory(void)
{
	static const unsigned long all[] = {CLONE_CHILD_SETTID, CLONE_PARENT_SETTID, CLONE_PIDFD,
					    CLONE_CHILD_SETTID | CLONE_PARENT_SETTID};
	char *p = map_anon(LEN);
	data_fill(9700);
	for (size_t i = 0; i < 2 * NELEM(all); i++) {
		unsigned long flags = all[i / 2];
		char *in_parent = p + 100 * PAGE, *in_child = p + 300 * PAGE;
		fill(in_parent, PAGE, 140 + i);
		fill(in_child, PAGE, 160 + i);
		if (i % 2 == 0)
			chill();
		pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD | flags, NULL, in_parent, in_child, NULL);
		if (pid == 0) {
			int told = *(int *)in_child == getpid(), asked = !!(flags & CLONE_CHILD_SETTID);
			_exit(told != asked ? 6 : page_around(in_child, 160 + i) | page_around(in_parent, 140 + i));
		}
		CHECK("clone", pid > 0);
		CHILD_EXPECT("what the child finds", pid, 0);
		CHECK_EQ("the parent is told a number", !!(flags & CLONE_PARENT_SETTID), *(int *)in_parent == pid);
		if (flags & CLONE_PIDFD)
			CHECK_OK("the parent is told a descriptor", close(*(int *)in_parent));
		CHECK_EQ("the parent's page", 0, page_around(in_parent, 140 + i));
		CHECK_FILL("the child's page in the parent", in_child, PAGE, 160 + i);
	}
	data_check("after clone: even", 0, 9700);
	munmap(p, LEN);
}

static void sequence_child(void *arg)
{
	chill_around();
	sleep_ms(2);
	CHECK("the kernel writes in the child", *(unsigned *)arg < 4096);
	data_check("child: even", 0, 9800);
}

static void sequence_parent(void *arg)
{
	if (!own_rseq(arg)) {
		skip("restartable", "rseq: %s", strerror(errno));
		return;
	}
	for (int round = 0; round < 3; round++) {
		chill_around();
		CHILD_EXPECT("child", child_start(sequence_child, arg), 0);
	}
}

/* Restartable sequences in managed memory: a forked child inherits the registration, and forgot that the page has to stay. */
static void restartable(void)
{
	data_fill(9800);
	CHILD_EXPECT("a process with a registration of its own", child_start(sequence_parent, cold_alloc(PAGE)), 0);
}

static void block_child(void *arg)
{
	CHECK_FILL("block in a child after closing all", arg, LEN, 1);
	fill(arg, LEN, 2);
}

static void close_all(void *arg)
{
	int way = (int)(intptr_t)arg;
	if (way == 0)
		CHECK_OK("close_range", close_range(3, ~0U, 0));
	else if (way == 1)
		closefrom(3);
	else if (way == 2)
		CHECK_OK("raw close_range", syscall(SYS_close_range, 3u, ~0u, 0u));
	else if (way == 3)
		CHECK_OK("close_range CLOEXEC", close_range(3, ~0U, CLOSE_RANGE_CLOEXEC));
	else
		for (int fd = 3; fd < 4096; fd++)
			close(fd);
	data_check("after closing all: even", 0, 10000);
	data_write(0, 11000);
	data_write(1, 12000);
	chill();
	data_check("written after closing all: even", 0, 11000);
	data_check("written after closing all: odd", 1, 12000);
	if (way != 3) {
		int fd = open("/dev/null", O_RDWR);
		CHECK_EQ("lowest free descriptor", 3, fd);
		CHECK_EQ("next one", 4, dup(fd));
	}
	char *p = must_malloc(LEN);
	fill(p, LEN, 1);
	CHILD_EXPECT("a child after closing all", child_start(block_child, p), 0);
	CHECK_FILL("malloc'd after closing all", p, LEN, 1);
	pid_t pid = fork();
	if (pid == 0)
		_exit(first_bad(data, CHUNK, 11000) == SIZE_MAX ? 7 : 8);
	CHILD_EXPECT("a child that reads", pid, 7);
}

static void closing(void)
{
	data_fill(10000);
	for (intptr_t way = 0; way < 5; way++)
		CHILD_EXPECT("child that closes all descriptors", child_start(close_all, (void *)way), 0);
	data_check("parent", 0, 10000);
}

static void daemon_body(int fd)
{
	setsid();
	if (chdir("/") != 0)
		_exit(1);
	pid_t pid = fork();
	if (pid != 0)
		_exit(pid < 0);
	int null = open("/dev/null", O_RDWR);
	dup2(null, 0);
	data_check("daemon: even", 0, 13000);
	data_write(1, 14000);
	chill();
	data_check("daemon: odd", 1, 14000);
	int result[2] = {failures(), getppid()};
	write_all(fd, result, sizeof result);
	_exit(0);
}

static void daemonize(void)
{
	int fds[2], result[2] = {-1, 0};
	data_fill(13000);
	CHECK_OK("pipe", pipe(fds));
	pid_t pid = fork();
	if (pid == 0)
		daemon_body(fds[1]);
	CHILD_EXPECT("first child", pid, 0);
	close(fds[1]);
	CHECK("report of the daemon", read_all(fds[0], result, sizeof result));
	CHECK_EQ("failures in the daemon", 0, result[0]);
	CHECK("daemon has another parent", result[1] != getpid());
	close(fds[0]);
	data_check("after the daemon: odd", 1, 13000);
}

static volatile int stop_writers;

static void *writer(void *arg)
{
	size_t me = (uintptr_t)arg;
	char *p = map_anon(LEN);
	for (uint64_t n = 0; !stop_writers; n++) {
		fill(p, LEN, n + me);
		CHECK_FILL("block of a thread while others fork", p, LEN, n + me);
		char *m = must_malloc(100 + n % 50000);
		memset(m, 1, 100 + n % 50000);
		free(m);
	}
	munmap(p, LEN);
	return NULL;
}

static void thread_child(void *arg)
{
	(void)arg;
	data_check("fork beside threads: even", 0, 15000);
	data_write(0, 16000);
	data_check("fork beside threads: written", 0, 16000);
	char *p = must_malloc(LEN);
	fill(p, LEN, 5);
	CHECK_FILL("malloc in the child of a threaded process", p, LEN, 5);
	free(p);
	pthread_t t;
	stop_writers = 1;
	CHECK_EQ("thread in the child", 0, pthread_create(&t, NULL, writer, (void *)9));
	pthread_join(t, NULL);
}

static void beside_threads(void)
{
	pthread_t t[3];
	stop_writers = 0;
	data_fill(15000);
	for (size_t i = 0; i < NELEM(t); i++)
		pthread_create(&t[i], NULL, writer, (void *)(i * 100));
	for (int i = 0; i < 6; i++)
		CHILD_EXPECT("child of a threaded process", child_start(thread_child, NULL), 0);
	stop_writers = 1;
	for (size_t i = 0; i < NELEM(t); i++)
		pthread_join(t[i], NULL);
	data_check("parent: even", 0, 15000);
	data_check("parent: odd", 1, 15000);
}

static void exits(void *arg)
{
	_exit((int)(intptr_t)arg);
}

static void waits(void)
{
	siginfo_t *info = cold_alloc(PAGE);
	int *status = cold_alloc(PAGE);
	struct rusage *usage = cold_alloc(PAGE);
	pid_t pid = child_start(exits, (void *)33);
	memset(info, 0, PAGE);
	chill();
	CHECK_OK("waitid into cold memory", waitid(P_PID, (id_t)pid, info, WEXITED));
	CHECK_EQ("waitid pid", pid, info->si_pid);
	CHECK_EQ("waitid status", 33, info->si_status);
	pid = child_start(exits, (void *)34);
	*status = 0;
	memset(usage, 0xff, sizeof *usage);
	chill();
	CHECK_EQ("wait4 into cold memory", pid, wait4(pid, status, 0, usage));
	CHECK_EQ("wait4 status", 34, WEXITSTATUS(*status));
	CHECK("wait4 usage", usage->ru_nswap == 0 && usage->ru_minflt >= 0);
	CHECK_ERR("no child left", ECHILD, waitpid(-1, status, 0));
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"cow", cow},	      {"multi_level", multi_level}, {"many_children", many_children},
		{"killed", killed},   {"fork_advice", fork_advice}, {"shared", shared},
		{"advice_apart", advice_apart},			    {"gaps_not_inherited", gaps_not_inherited},
		{"cloned", cloned},   {"told_in_cold_memory", told_in_cold_memory},
		{"restartable", restartable},			    {"closing", closing},
		{"daemonize", daemonize},			    {"beside_threads", beside_threads},
		{"waits", waits},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
