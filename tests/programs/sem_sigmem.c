/* Signal handlers and the program's own memory: write barriers, alternate stacks, handlers during faults, registers.
 * Usage: sem_sigmem [MIB] [GROUP]; MIB (default 16) is the size of the heap and of the block that makes memory cold. */
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#define RW (PROT_READ | PROT_WRITE)

/* A generational collector's write barrier: pages read-only, the first write to each marks it dirty. */
static char *heap;
static size_t heap_len;
static unsigned char dirty[1 << 20];
static volatile sig_atomic_t barrier_hits;

static void barrier(int signo, siginfo_t *info, void *context)
{
	(void)context;
	size_t off = (size_t)((char *)info->si_addr - heap);
	if (signo != SIGSEGV || off >= heap_len || info->si_code != SEGV_ACCERR || dirty[off / PAGE]) {
		say("FAIL gc_barrier: fault expected in heap got signal %d code %d at %p", signo, info->si_code,
		    info->si_addr);
		_exit(1);
	}
	dirty[off / PAGE] = 1;
	barrier_hits++;
	mprotect(heap + off / PAGE * PAGE, PAGE, RW);
}

static void gc_barrier(void)
{
	heap_len = size_mb * MIB < NELEM(dirty) * PAGE ? size_mb * MIB : NELEM(dirty) * PAGE;
	heap = map_anon(heap_len);
	size_t pages = heap_len / PAGE;
	for (size_t i = 0; i < pages; i++)
		fill(heap + i * PAGE, PAGE, i);
	struct sigaction act = {.sa_sigaction = barrier, .sa_flags = SA_SIGINFO}, old;
	sigaction(SIGSEGV, &act, &old);
	uint32_t *version = calloc(pages, sizeof *version);
	for (uint64_t round = 1; round <= 5; round++) {
		memset(dirty, 0, pages);
		barrier_hits = 0;
		CHECK_OK("heap to read-only", mprotect(heap, heap_len, PROT_READ));
		size_t distinct = 0;
		for (uint64_t n = 0; n < 1500; n++) {
			size_t page = mix64(round * 100000 + n) % pages;
			distinct += !dirty[page];
			/* First an unaligned write in the middle, then the whole page. */
			memset(heap + page * PAGE + 1001, 3, 11);
			version[page] = (uint32_t)round << 20;
			fill(heap + page * PAGE, PAGE, page + version[page]);
		}
		CHECK_EQ("one fault for each page written", distinct, barrier_hits);
		for (size_t i = 0; i < pages; i++)
			CHECK_FILL("page of the heap", heap + i * PAGE, PAGE, i + version[i]);
	}
	sigaction(SIGSEGV, &old, NULL);
	munmap(heap, heap_len);
	free(version);
}

#define COLD_LEN (4 * MIB)
static char *cold;
static volatile sig_atomic_t depth_reached, on_stack;
static size_t cold_bad;

static __attribute__((noinline)) int deep(int n)
{
	volatile char frame[1500];
	memset((char *)frame, n, sizeof frame);
	int below = n > 0 ? deep(n - 1) : 0;
	for (size_t i = 0; i < sizeof frame; i++) {
		if (frame[i] != (char)n)
			return -100000;
	}
	return below + 1;
}

static void deep_handler(int signo, siginfo_t *info, void *context)
{
	(void)signo;
	(void)info;
	(void)context;
	stack_t now;
	sigaltstack(NULL, &now);
	on_stack = (now.ss_flags & SS_ONSTACK) != 0;
	cold_bad = first_bad(cold, COLD_LEN, 50);
	depth_reached = deep(100);
}

/* The alternate stack itself is cold memory when the kernel must write a signal frame on it. */
static void alternate_stack(void)
{
	size_t len = 512 * 1024;
	stack_t *st = cold_alloc(PAGE), old;
	char *mem = must_malloc(len);
	cold = map_anon(COLD_LEN);
	fill(mem, len, 51);
	*st = (stack_t){.ss_sp = mem, .ss_size = len};
	CHECK_OK("sigaltstack in malloc'd memory", sigaltstack(st, &old));
	struct sigaction act = {.sa_sigaction = deep_handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	sigfillset(&act.sa_mask);
	sigaction(SIGUSR1, &act, NULL);
	sigaction(SIGSEGV, &act, NULL);
	for (int i = 0; i < 5; i++) {
		fill(cold, COLD_LEN, 50);
		chill_around();
		depth_reached = on_stack = 0;
		cold_bad = 0;
		raise(i % 2 ? SIGSEGV : SIGUSR1);
		CHECK_EQ("recursion in the handler", 101, depth_reached);
		CHECK_EQ("runs on the alternate stack", 1, on_stack);
		CHECK_EQ("cold memory read by the handler", (long long)SIZE_MAX, (long long)cold_bad);
	}
	stack_t now;
	CHECK_OK("sigaltstack query", sigaltstack(NULL, &now));
	CHECK_EQ("reported stack", (uintptr_t)mem, (uintptr_t)now.ss_sp);
	CHECK_EQ("reported size", len, now.ss_size);
	CHECK_EQ("reported flags", 0, now.ss_flags);
	*st = (stack_t){.ss_flags = SS_DISABLE};
	CHECK_OK("sigaltstack off", sigaltstack(st, NULL));
	signal(SIGUSR1, SIG_DFL);
	signal(SIGSEGV, SIG_DFL);
	free(mem);
	munmap(cold, COLD_LEN);
}

static sigjmp_buf overflow_jump;
static volatile sig_atomic_t overflows;

static void overflow_handler(int signo, siginfo_t *info, void *context)
{
	(void)signo;
	(void)info;
	(void)context;
	overflows++;
	siglongjmp(overflow_jump, 1);
}

static volatile int endless = 1;

static __attribute__((noinline)) int overflow(int n)
{
	volatile char frame[4000];
	frame[0] = (char)n;
	int r = endless ? overflow(n + 1) : 0;
	return r + frame[0];
}

static void *overflow_thread(void *arg)
{
	stack_t st = {.ss_sp = arg, .ss_size = 256 * 1024};
	CHECK_OK("sigaltstack of a thread", sigaltstack(&st, NULL));
	for (volatile int i = 0; i < 3; i++) {
		chill_around();
		if (sigsetjmp(overflow_jump, 1) == 0)
			overflow(0);
	}
	st.ss_flags = SS_DISABLE;
	sigaltstack(&st, NULL);
	return NULL;
}

/* A stack overflow caught on a cold alternate stack, as language runtimes do. */
static void stack_overflow(void)
{
	struct sigaction act = {.sa_sigaction = overflow_handler, .sa_flags = SA_SIGINFO | SA_ONSTACK}, old;
	sigaction(SIGSEGV, &act, &old);
	void *mem = must_malloc(256 * 1024);
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 256 * 1024);
	pthread_t t;
	pthread_create(&t, &attr, overflow_thread, mem);
	pthread_join(t, NULL);
	CHECK_EQ("stack overflows caught", 3, overflows);
	sigaction(SIGSEGV, &old, NULL);
	free(mem);
}

static uint64_t *_Atomic storm_block;
static size_t storm_words;
static volatile uint64_t storm_hits, storm_bad;

static void storm_handler(int signo)
{
	(void)signo;
	int saved = errno;
	uint64_t n = ++storm_hits;
	for (int i = 0; i < 4; i++) {
		size_t at = mix64(n * 4 + (uint64_t)i) % storm_words;
		if (storm_block[at] != pattern_word(60, at))
			storm_bad++;
	}
	errno = saved;
}

/* A timer signal that may come at any instruction of a fault, with a handler that faults itself. */
static void storm(void)
{
	size_t len = size_mb * MIB / 2;
	uint64_t *block = map_anon(len);
	fill(block, len, 60);
	storm_words = len / 8;
	storm_block = block;
	struct sigaction act = {.sa_handler = storm_handler, .sa_flags = SA_RESTART};
	sigaction(SIGALRM, &act, NULL);
	struct itimerval every = {{0, 1000}, {0, 1000}}, off = {{0, 0}, {0, 0}};
	setitimer(ITIMER_REAL, &every, NULL);
	uint64_t until = now_ns() + 1000000000u;
	for (uint64_t tag = 61; now_ns() < until; tag++) {
		CHECK_FILL("block under a storm of signals", block, len, 60);
		char *p = must_malloc(2 * MIB);
		fill(p, 2 * MIB, tag);
		chill();
		CHECK_FILL("malloc'd block under a storm", p, 2 * MIB, tag);
		free(p);
	}
	setitimer(ITIMER_REAL, &off, NULL);
	CHECK("handlers ran", storm_hits > 0);
	CHECK_EQ("words the handler found wrong", 0, storm_bad);
	signal(SIGALRM, SIG_DFL);
	munmap(block, len);
}

/* A fault must leave errno, vector registers and rounding alone. */
static void registers(void)
{
	size_t count = 256;
	char *p = map_anon(count * PAGE);
	for (int round = 0; round < 3; round++) {
		for (size_t i = 0; i < count; i++)
			*(double *)(void *)(p + i * PAGE) = (double)(i + 1) / 3.0;
		double expected[8] = {0}, got[8] = {0};
		for (size_t i = 0; i < count; i++) {
			for (size_t k = 0; k < 8; k++)
				expected[k] += (double)(i + 1) / 3.0 * (double)(k + 1);
		}
		chill();
#ifdef __x86_64__
		unsigned csr = _mm_getcsr();
		_mm_setcsr(csr | 0x8040); /* flush to zero, denormals are zero */
#endif
		errno = 77;
		for (size_t i = 0; i < count; i++) {
			double v = *(volatile double *)(void *)(p + i * PAGE);
			for (size_t k = 0; k < 8; k++)
				got[k] += v * (double)(k + 1);
		}
		CHECK_EQ("errno kept across faults", 77, errno);
#ifdef __x86_64__
		CHECK_EQ("MXCSR kept across faults", (csr | 0x8040) & ~0x3fu, _mm_getcsr() & ~0x3fu);
		_mm_setcsr(csr);
#endif
		CHECK_MEM("sums in registers across faults", expected, got, sizeof got);
	}
	/* One instruction that touches two cold pages on each side, and string instructions over many. */
	for (int round = 0; round < 3; round++) {
		fill(p, count * PAGE, 70);
		chill();
		uint64_t w, e[2] = {pattern_word(70, 100 * 512 - 1), pattern_word(70, 100 * 512)}, want;
		memcpy(&w, p + 100 * PAGE - 4, 8);
		memcpy(&want, (char *)e + 4, 8);
		CHECK_EQ("word over a page border", want, w);
		memmove(p + PAGE + 3, p, (count - 2) * PAGE);
		CHECK_FILL("memmove of overlapping cold pages", p + PAGE + 3, (count - 2) * PAGE, 70);
	}
	munmap(p, count * PAGE);
}

#define SENT_LEN (4 * PAGE)
static char *sent_page;
static atomic_bool sent_stop;
static atomic_int sent_hits;

static void sent_handler(int signo, siginfo_t *info, void *context)
{
	(void)signo;
	(void)context;
	CHECK_EQ("sender", getpid(), info->si_pid);
	CHECK_FILL("cold memory read by the handler", sent_page, SENT_LEN, 60);
	sent_hits++;
}

static void *sent_mapper(void *arg)
{
	(void)arg;
	while (!sent_stop) {
		char *p = map_anon(256 * 1024);
		*p = 1;
		madvise(p, 256 * 1024, MADV_DONTNEED);
		munmap(p, 256 * 1024);
	}
	return NULL;
}

/* A signal that farpage uses itself is sent to a thread that maps and unmaps, and its handler touches what is out. It was run on top of
 * the call, which held what the touch had to wait for. */
static void sent_while_mapping(void)
{
	sent_page = map_anon(256 * 1024);
	fill(sent_page, SENT_LEN, 60);
	struct sigaction act = {.sa_sigaction = sent_handler, .sa_flags = SA_SIGINFO}, old[2];
	sigaction(SIGBUS, &act, &old[0]);
	sigaction(SIGSYS, &act, &old[1]);
	pthread_t thread;
	pthread_create(&thread, NULL, sent_mapper, NULL);
	for (int i = 0; i < 400; i++) {
		madvise(sent_page, 256 * 1024, MADV_PAGEOUT);
		int before = sent_hits;
		uint64_t since = now_ns(), again = since;
		while (sent_hits == before) {
			uint64_t now = now_ns();
			if (now - since > 10000000000) {
				say("HANG sent_while_mapping: no handler for 10 s after signal %d\n", i);
				_exit(1);
			}
			/* One that comes while another of its kind is pending is lost, and under farpage a fault is one of its kind. */
			if (now >= again) {
				pthread_kill(thread, i % 4 ? SIGBUS : SIGSYS);
				again = now + 100000000;
			}
			sched_yield();
		}
	}
	sent_stop = true;
	pthread_join(thread, NULL);
	sigaction(SIGBUS, &old[0], NULL);
	sigaction(SIGSYS, &old[1], NULL);
	munmap(sent_page, 256 * 1024);
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"gc_barrier", gc_barrier}, {"alternate_stack", alternate_stack}, {"stack_overflow", stack_overflow},
		{"storm", storm},	    {"registers", registers},	  {"sent_while_mapping", sent_while_mapping},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
