/* See check.h. */
#include "check.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#define ARENA_LEN (32 * MIB)
/* What farpage manages; just below it lies a page of its code, once a process is active at the latest (docs/architecture.md). */
#define MANAGED_LEN ((uintptr_t)1 << 40)

size_t size_mb = 16;
const char *self_path;

static char self_buf[4096];
static const char *group_name = "main";
static int failure_count;
static bool group_skipped;
static char *arena;
static size_t arena_used;
static char *chill_block;
static uint64_t chill_round;
/* How often memory was pushed out by advice, how many pages have left by it, and those that are known to stay. */
static size_t turns, pushed, kept;

void say(const char *fmt, ...)
{
	char line[1024];
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(line, sizeof line - 1, fmt, ap);
	va_end(ap);
	if (n < 0)
		return;
	if ((size_t)n > sizeof line - 2)
		n = sizeof line - 2;
	line[n++] = '\n';
	ssize_t done = write(STDOUT_FILENO, line, (size_t)n);
	(void)done;
}

void fail_at(const char *where, const char *what, const char *fmt, ...)
{
	char text[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	__atomic_fetch_add(&failure_count, 1, __ATOMIC_RELAXED);
	say("FAIL %s: %s: %s (%s)", group_name, what, text, where);
}

void skip(const char *name, const char *fmt, ...)
{
	char text[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	if (strcmp(name, group_name) == 0)
		group_skipped = true;
	say("skip %s: %s", name, text);
}

int failures(void)
{
	return __atomic_load_n(&failure_count, __ATOMIC_RELAXED);
}

void check_init(char **argv)
{
	ssize_t n = readlink("/proc/self/exe", self_buf, sizeof self_buf - 1);
	self_path = n > 0 ? self_buf : argv[0];
}

int run_groups(int argc, char **argv, const struct group *groups, size_t count)
{
	check_init(argv);
	const char *only = argc > 2 ? argv[2] : NULL;
	if (argc > 1)
		size_mb = strtoul(argv[1], NULL, 10);
	if (size_mb == 0 || argc > 3) {
		say("usage: %s [MIB] [GROUP]", argv[0]);
		return 2;
	}
	size_t ran = 0;
	for (size_t i = 0; i < count; i++) {
		if (only && strcmp(only, groups[i].name) != 0)
			continue;
		int before = failures();
		group_name = groups[i].name;
		group_skipped = false;
		groups[i].run();
		ran++;
		if (failures() == before && !group_skipped)
			say("ok %s", group_name);
	}
	if (ran == 0) {
		say("no group is called %s", only ? only : "?");
		return 2;
	}
	if (turns)
		say("cold: %zu pages pushed out in %zu turns", pushed, turns);
	return failures() ? 1 : 0;
}

bool check_eq_at(const char *where, const char *what, long long expected, long long got)
{
	if (expected == got)
		return true;
	fail_at(where, what, "expected %lld (0x%llx) got %lld (0x%llx)", expected, expected, got, got);
	return false;
}

bool check_sys_at(const char *where, const char *what, long long rc, int expected_errno)
{
	int got = rc == -1 ? errno : 0;
	if (got == expected_errno)
		return true;
	fail_at(where, what, "expected errno %d (%s) got result %lld errno %d (%s)", expected_errno,
		strerror(expected_errno), rc, got, strerror(got));
	return false;
}

bool check_mem_at(const char *where, const char *what, const void *expected, const void *got, size_t len)
{
	const unsigned char *e = expected, *g = got;
	for (size_t i = 0; i < len; i++) {
		if (e[i] != g[i]) {
			fail_at(where, what, "at %p + %zu of %zu expected byte 0x%02x got 0x%02x", got, i, len, e[i],
				g[i]);
			return false;
		}
	}
	return true;
}

bool check_byte_at(const char *where, const char *what, const void *p, size_t len, unsigned char byte)
{
	const unsigned char *g = p;
	for (size_t i = 0; i < len; i++) {
		if (g[i] != byte) {
			fail_at(where, what, "at %p + %zu of %zu expected byte 0x%02x got 0x%02x", p, i, len, byte,
				g[i]);
			return false;
		}
	}
	return true;
}

bool check_fill_at(const char *where, const char *what, const void *p, size_t len, uint64_t tag)
{
	size_t bad = first_bad(p, len, tag);
	if (bad == SIZE_MAX)
		return true;
	uint64_t word = pattern_word(tag, bad / 8);
	unsigned char expected = (unsigned char)(word >> (bad % 8 * 8));
	fail_at(where, what, "at %p + %zu of %zu tag 0x%llx expected byte 0x%02x got 0x%02x", p, bad, len,
		(unsigned long long)tag, expected, ((const unsigned char *)p)[bad]);
	return false;
}

uint64_t mix64(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

uint64_t pattern_word(uint64_t tag, size_t i)
{
	size_t page = i / (PAGE / 8);
	switch (mix64(tag ^ page) & 7) {
	case 0:
	case 1: /* incompressible */
		return mix64(tag + i);
	case 2: /* the same word over the page, zero now and then */
		return (page & 8) ? 0 : tag ^ page;
	case 3: /* few different bytes */
		return 0x2020202020202020u + (mix64(tag + i) & 0x0101010101010101u);
	default: /* small numbers, and the page's own mark */
		return (i & 15) ? i & 0xff : tag ^ (page << 20);
	}
}

void fill(void *p, size_t len, uint64_t tag)
{
	unsigned char *out = p;
	size_t words = len / 8;
	for (size_t i = 0; i < words; i++) {
		uint64_t w = pattern_word(tag, i);
		memcpy(out + i * 8, &w, 8);
	}
	uint64_t last = pattern_word(tag, words);
	memcpy(out + words * 8, &last, len % 8);
}

size_t first_bad(const void *p, size_t len, uint64_t tag)
{
	const unsigned char *in = p;
	for (size_t i = 0; i * 8 < len; i++) {
		uint64_t expected = pattern_word(tag, i), got = expected;
		size_t part = len - i * 8 < 8 ? len - i * 8 : 8;
		memcpy(&got, in + i * 8, part);
		if (got == expected)
			continue;
		return i * 8 + (size_t)__builtin_ctzll(got ^ expected) / 8;
	}
	return SIZE_MAX;
}

void *map_anon(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) {
		fail_at(WHERE, "mmap", "%zu bytes refused: %s", len, strerror(errno));
		_exit(1);
	}
	return opaque(p);
}

void *map_window(void)
{
	return (void *)(((uintptr_t)map_anon(2 * WINDOW) + WINDOW - 1) / WINDOW * WINDOW);
}

void *must_malloc(size_t len)
{
	void *p = malloc(len);
	if (!p) {
		fail_at(WHERE, "malloc", "%zu bytes refused: %s", len, strerror(errno));
		_exit(1);
	}
	return opaque(p);
}

void *cold_alloc(size_t len)
{
	if (!arena)
		arena = map_anon(ARENA_LEN);
	len = (len + PAGE - 1) / PAGE * PAGE;
	if (arena_used + len > ARENA_LEN) {
		fail_at(WHERE, "cold_alloc", "arena of %zu bytes is used up", ARENA_LEN);
		_exit(1);
	}
	void *p = arena + arena_used;
	arena_used += len;
	return p;
}

struct range {
	uintptr_t from, to;
};

/* Anonymous pages of a range that are there, as the kernel knows. With `push` the windows that they lie in are pushed out. */
static size_t there(int pagemap, struct range range, bool push)
{
	static struct region found[256];
	struct scan scan = {.size = sizeof scan, .start = range.from, .end = range.to, .vec = (uintptr_t)found, .vec_len = NELEM(found),
			    .mask = IS_PRESENT | IS_FILE, .inverted = IS_FILE, .returned = IS_PRESENT};
	size_t pages = 0;
	uintptr_t done = 0;
	/* Ends: each turn begins where the one before stopped. */
	for (int count = NELEM(found); count == NELEM(found); scan.start = scan.walk_end) {
		count = ioctl(pagemap, SCAN, &scan);
		for (int i = 0; i < count; i++) {
			uintptr_t from = found[i].start / WINDOW * WINDOW, to = (found[i].end + WINDOW - 1) / WINDOW * WINDOW;
			pages += (found[i].end - found[i].start) / PAGE;
			from = from > done ? from : done;
			/* ENOMEM where a window has a hole: what is mapped of it has left. */
			if (push && from < to)
				madvise((void *)from, to - from, MADV_PAGEOUT);
			done = to > done ? to : done;
		}
	}
	return pages;
}

static size_t all_there(int pagemap, const struct range ranges[2], bool push)
{
	return there(pagemap, ranges[0], push) + there(pagemap, ranges[1], push);
}

/* The advice is best effort: other threads bring their memory back, so it is repeated, and enough that most has left. `known` pages of it
 * can stay; with `learn` as many as do. False where that is not expected, nothing is managed, or the kernel doesn't tell. */
static bool push_out(const struct range ranges[2], size_t known, size_t *learn)
{
	unsigned char seen;
	if (!getenv("EXPECT_COLD") || mincore((void *)(MANAGED - PAGE), PAGE, &seen) != 0)
		return false;
	int pagemap = open("/proc/thread-self/pagemap", O_RDONLY | O_CLOEXEC);
	if (pagemap < 0)
		return false;
	size_t before = all_there(pagemap, ranges, true), left = all_there(pagemap, ranges, false);
	size_t may = before > known ? known + (before - known) / 2 : before;
	for (unsigned tries = 0; tries < 10 && left > may; tries++) {
		sleep_ms(tries * tries);
		all_there(pagemap, ranges, true);
		left = all_there(pagemap, ranges, false);
	}
	close(pagemap);
	turns++;
	pushed += before > left ? before - left : 0;
	if (learn)
		*learn = left;
	else if (left > may)
		fail_at(WHERE, "cold memory", "of %zu pages in RAM %zu stay, where %zu were known to", before, left, known);
	return true;
}

void make_cold(void *p, size_t len)
{
	const struct range ranges[2] = {{(uintptr_t)p / PAGE * PAGE, ((uintptr_t)p + len + PAGE - 1) / PAGE * PAGE}, {0, 0}};
	push_out(ranges, 0, NULL);
}

static void chill_and(size_t *learn)
{
	size_t len = size_mb * MIB;
	if (!chill_block)
		chill_block = map_anon(len);
	uint64_t tag = 0xc0ffee00 + ++chill_round;
	fill(chill_block, len, tag);
	CHECK_FILL("chill block", chill_block, len, tag);
	uintptr_t block = (uintptr_t)chill_block;
	const struct range others[2] = {{MANAGED, block}, {block + len, MANAGED + MANAGED_LEN}};
	/* What left last waits in the swap cache, which keeps a sixteenth of what is there, or two windows: more of the block takes its place. */
	size_t more = len / 16 + 3 * WINDOW;
	if (push_out(others, kept, learn))
		madvise(chill_block + len - more, more, MADV_PAGEOUT);
}

void chill(void)
{
	chill_and(NULL);
}

void chill_around(void)
{
	chill_and(&kept);
}

static sigjmp_buf touch_env;
static siginfo_t touch_info;

static void touch_handler(int signo, siginfo_t *info, void *context)
{
	(void)context;
	touch_info = *info;
	siglongjmp(touch_env, signo);
}

static __attribute__((noinline)) void access_now(void *addr, enum access how)
{
	volatile char *p = opaque(addr);
	if (how == ACCESS_READ)
		(void)*p;
	else if (how == ACCESS_WRITE)
		*p = 1;
	else
		((void (*)(void))(uintptr_t)p)();
}

/* Apart from touch(), whose variables must not live across sigsetjmp. */
static __attribute__((noinline)) int access_caught(void *addr, enum access how)
{
	int signo = sigsetjmp(touch_env, 1);
	if (signo == 0)
		access_now(addr, how);
	return signo;
}

int touch(void *addr, enum access how, siginfo_t *info)
{
	struct sigaction act = {.sa_sigaction = touch_handler, .sa_flags = SA_SIGINFO}, old_segv, old_bus;
	sigaction(SIGSEGV, &act, &old_segv);
	sigaction(SIGBUS, &act, &old_bus);
	memset(&touch_info, 0, sizeof touch_info);
	int signo = access_caught(addr, how);
	sigaction(SIGSEGV, &old_segv, NULL);
	sigaction(SIGBUS, &old_bus, NULL);
	if (info)
		*info = touch_info;
	return signo;
}

void check_fault_at(const char *where, const char *what, void *addr, enum access how, int signo_code)
{
	siginfo_t info;
	int signo = touch(addr, how, &info);
	int got = signo ? (signo << 8) | info.si_code : 0;
	if (got != signo_code)
		fail_at(where, what, "at %p expected signal %d code %d got signal %d code %d", addr, signo_code >> 8,
			signo_code & 255, signo, info.si_code);
	else if (signo && info.si_addr != addr)
		fail_at(where, what, "expected si_addr %p got %p", addr, info.si_addr);
}

pid_t child_start(void (*body)(void *), void *arg)
{
	pid_t pid = fork();
	if (pid < 0) {
		fail_at(WHERE, "fork", "refused: %s", strerror(errno));
		return -1;
	}
	if (pid > 0)
		return pid;
	failure_count = 0;
	body(arg);
	_exit(failures() ? 1 : 0);
}

void child_expect_at(const char *where, const char *what, pid_t pid, int expected)
{
	if (pid < 0)
		return;
	int status = 0;
	pid_t got;
	do
		got = waitpid(pid, &status, 0);
	while (got < 0 && errno == EINTR);
	if (got != pid) {
		fail_at(where, what, "waitpid expected %d got %d: %s", (int)pid, (int)got, strerror(errno));
		return;
	}
	int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
	if (code != expected)
		fail_at(where, what, "child expected status %d got %d", expected, code);
}

bool own_rseq(void *area)
{
	enum { LEN = 32, UNREGISTER = 1 };
	const unsigned signature = 0x53053053;
	char *libcs = (char *)__builtin_thread_pointer() + __rseq_offset;
	if (__rseq_size != 0 && syscall(SYS_rseq, libcs, LEN, UNREGISTER, signature) < 0)
		return false;
	memset(area, 0, LEN);
	((int *)area)[1] = RSEQ_CPU_ID_UNINITIALIZED;
	return syscall(SYS_rseq, area, LEN, 0, signature) == 0;
}

int temp_file(void)
{
	const char *dir = getenv("TMPDIR");
	int fd = open(dir ? dir : "/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd >= 0)
		return fd;
	char path[] = "/tmp/test-XXXXXX";
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0) {
		fail_at(WHERE, "temp_file", "no place for a file: %s", strerror(errno));
		_exit(1);
	}
	unlink(path);
	return fd;
}

bool write_all(int fd, const void *p, size_t len)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = write(fd, (const char *)p + done, len - done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			fail_at(WHERE, "write_all", "at %zu of %zu got %zd: %s", done, len, n, strerror(errno));
			return false;
		}
		done += (size_t)n;
	}
	return true;
}

bool read_all(int fd, void *p, size_t len)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = read(fd, (char *)p + done, len - done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			fail_at(WHERE, "read_all", "at %zu of %zu got %zd: %s", done, len, n, strerror(errno));
			return false;
		}
		done += (size_t)n;
	}
	return true;
}

void sleep_ms(unsigned ms)
{
	struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
	while (nanosleep(&t, &t) < 0 && errno == EINTR)
		;
}

uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
