/* Threads, their stacks and locks, coroutines. Usage: sem_threads [MIB] [GROUP]; MIB (default 16) is the size of the
 * block that threads share and of the one that makes memory cold. */
#include "check.h"

#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>

#define THREADS 8

static char *block;

static void run_threads(size_t count, void *(*body)(void *))
{
	pthread_t t[32];
	for (size_t i = 0; i < count; i++)
		CHECK_EQ("pthread_create", 0, pthread_create(&t[i], NULL, body, (void *)i));
	for (size_t i = 0; i < count; i++)
		CHECK_EQ("pthread_join", 0, pthread_join(t[i], NULL));
}

static void own_rounds(uint64_t me, uint64_t rounds)
{
	for (uint64_t round = 0; round < rounds; round++) {
		size_t len = 1000 + mix64(me * 100 + round) % (2 * MIB);
		char *p = must_malloc(len), *q = map_anon(len);
		fill(p, len, me * 1000 + round);
		fill(q, len, me * 2000 + round);
		CHECK_FILL("malloc'd block of a thread", p, len, me * 1000 + round);
		p = opaque(realloc(p, len * 2));
		CHECK_FILL("realloc'd block of a thread", p, len, me * 1000 + round);
		CHECK_FILL("mapped block of a thread", q, len, me * 2000 + round);
		free(p);
		munmap(q, len);
	}
}

/* 32 threads hold some 130 MiB at a time and touch all of it in turn, so that each round moves it through swap once or twice. Few
 * rounds say as much as many: 20 were 9 GB of disk traffic, a minute on two cores. */
static void *own_blocks(void *arg)
{
	own_rounds((uintptr_t)arg, 4);
	return NULL;
}

static void allocating(void)
{
	run_threads(32, own_blocks);
}

static void *read_all_of_it(void *arg)
{
	(void)arg;
	CHECK_FILL("block read by all threads", block, size_mb * MIB, 1);
	return NULL;
}

/* All threads fault on the same pages at the same time. */
static void same_pages(void)
{
	block = map_anon(size_mb * MIB);
	fill(block, size_mb * MIB, 1);
	for (int i = 0; i < 3; i++) {
		chill();
		run_threads(THREADS, read_all_of_it);
	}
	munmap(block, size_mb * MIB);
}

static void *count_up(void *arg)
{
	size_t words = size_mb * MIB / 8, step = 509;
	atomic_ullong *w = (void *)block;
	for (size_t i = 0; i < words; i += step)
		atomic_fetch_add(&w[(i + (uintptr_t)arg * 4096) % words / step * step], 1);
	return NULL;
}

static void shared_counters(void)
{
	block = map_anon(size_mb * MIB);
	size_t words = size_mb * MIB / 8, step = 509;
	run_threads(THREADS, count_up);
	uint64_t sum = 0;
	for (size_t i = 0; i < words; i += step)
		sum += ((uint64_t *)(void *)block)[i];
	CHECK_EQ("no addition is lost", THREADS * ((words + step - 1) / step), sum);
	munmap(block, size_mb * MIB);
}

static void *write_stripes(void *arg)
{
	size_t me = (uintptr_t)arg, words = size_mb * MIB / 8;
	uint64_t *w = (void *)block;
	for (uint64_t round = 1; round <= 3; round++) {
		for (size_t i = me; i < words; i += THREADS)
			w[i] = mix64(i + round);
		for (size_t i = me; i < words; i += THREADS * 7) {
			if (!CHECK_EQ("word of a page that all threads write", mix64(i + round), w[i]))
				return NULL;
		}
	}
	return NULL;
}

/* Every page is written by every thread, each its own words. */
static void same_pages_written(void)
{
	block = map_anon(size_mb * MIB);
	run_threads(THREADS, write_stripes);
	for (size_t i = 0; i < size_mb * MIB / 8; i++) {
		if (!CHECK_EQ("word at the end", mix64(i + 3), ((uint64_t *)(void *)block)[i]))
			break;
	}
	munmap(block, size_mb * MIB);
}

static __attribute__((noinline)) uint64_t recurse(int n)
{
	volatile uint64_t frame[100];
	for (size_t i = 0; i < NELEM(frame); i++)
		frame[i] = (uint64_t)n * 100 + i;
	if (n == 300)
		chill_around();
	uint64_t below = n < 600 ? recurse(n + 1) : 0;
	for (size_t i = 0; i < NELEM(frame); i++) {
		if (frame[i] != (uint64_t)n * 100 + i)
			return 1000000;
	}
	return below + 1;
}

static void *deep_thread(void *arg)
{
	char local[3000];
	fill(local, sizeof local, 5);
	if (arg)
		CHECK("stack lies where it was set", local >= (char *)arg && local < (char *)arg + MIB);
	CHECK_EQ("recursion", 601, recurse(0));
	char *p = must_malloc(MIB);
	fill(p, MIB, 6);
	chill_around();
	CHECK_FILL("local variables", local, sizeof local, 5);
	CHECK_FILL("malloc'd block", p, MIB, 6);
	free(p);
	return (void *)0x77;
}

static volatile int alarms;
static pthread_key_t stack_key;

static void on_alarm(int signo)
{
	(void)signo;
	alarms++;
}

static void destroy_on_stack(void *p)
{
	CHECK_EQ("value given to a key's destructor", 0x99, *(int *)p);
	free(p);
}

/* Every way to the end: 0 returns, 1 exits from a depth, 2 is cancelled. Before that a signal, a child, and what the stack is said to be. */
struct placed {
	char *stack;
	size_t len;
	int end;
	volatile int ready;
};

static __attribute__((noinline)) void end_deep(struct placed *p, int n)
{
	volatile char frame[2000];
	frame[0] = frame[1999] = (char)n;
	if (n < 100)
		end_deep(p, n + 1);
	else if (p->end == 1)
		pthread_exit((void *)0x55);
	p->ready = 1;
	while (p->end == 2)
		sleep_ms(1000);
	frame[1] = frame[0];
}

static void note_cleanup(void *arg)
{
	*(int *)arg += 1;
}

static void *placed_thread(void *arg)
{
	struct placed *p = arg;
	int *value = must_malloc(sizeof *value), cleaned_here = 0, status = 0;
	*value = 0x99;
	pthread_setspecific(stack_key, value);
	char local[5000];
	fill(local, sizeof local, 11);
	CHECK("local variable lies on the stack", local >= p->stack && local < p->stack + p->len);
	pthread_attr_t attr;
	void *base = NULL;
	size_t len = 0;
	CHECK_EQ("pthread_getattr_np", 0, pthread_getattr_np(pthread_self(), &attr));
	pthread_attr_getstack(&attr, &base, &len);
	pthread_attr_destroy(&attr);
	CHECK("the stack is the program's", base == p->stack && len == p->len);
	chill_around();
	alarms = 0;
	CHECK_EQ("pthread_kill", 0, pthread_kill(pthread_self(), SIGUSR1));
	CHECK_EQ("signal on the stack", 1, alarms);
	pid_t pid = fork();
	if (pid == 0) {
		raise(SIGUSR1);
		_exit(first_bad(local, sizeof local, 11) == SIZE_MAX && alarms == 2 ? 3 : 4);
	}
	CHECK_EQ("waitpid", pid, waitpid(pid, &status, 0));
	CHECK_EQ("child forked on the stack", 3, WEXITSTATUS(status));
	pthread_cleanup_push(note_cleanup, &cleaned_here);
	end_deep(p, 0);
	pthread_cleanup_pop(1);
	CHECK_EQ("cleanup", 1, cleaned_here);
	CHECK_FILL("local variables", local, sizeof local, 11);
	return (void *)0x66;
}

/* libc puts a thread's descriptor on a stack that it is given, and hands pointers into it to the kernel with all signals blocked:
 * threads on managed stacks died at birth. */
static void stacks_ends(void)
{
	signal(SIGUSR1, on_alarm);
	pthread_key_create(&stack_key, destroy_on_stack);
	for (int round = 0; round < 6; round++) {
		void *result = NULL;
		struct placed p = {.len = round < 3 ? MIB : 768 * 1024, .end = round % 3};
		p.stack = round & 1 ? map_anon(p.len) : opaque(aligned_alloc(PAGE, p.len));
		fill(p.stack, p.len, 12);
		pthread_attr_t attr;
		pthread_t t;
		pthread_attr_init(&attr);
		CHECK_EQ("pthread_attr_setstack", 0, pthread_attr_setstack(&attr, p.stack, p.len));
		CHECK_EQ("pthread_create", 0, pthread_create(&t, &attr, placed_thread, &p));
		pthread_attr_destroy(&attr);
		if (p.end == 2) {
			while (!p.ready)
				sleep_ms(1);
			CHECK_EQ("pthread_cancel", 0, pthread_cancel(t));
		}
		CHECK_EQ("pthread_join", 0, pthread_join(t, &result));
		uintptr_t expected[] = {0x66, 0x55, (uintptr_t)PTHREAD_CANCELED};
		CHECK_EQ("result", expected[p.end], (uintptr_t)result);
		CHECK_FILL("the depth of the stack that was never used", p.stack, p.len / 8, 12);
		fill(p.stack, p.len, 13);
		chill();
		CHECK_FILL("memory that was a stack", p.stack, p.len, 13);
		if (round & 1)
			munmap(p.stack, p.len);
		else
			free(p.stack);
	}
	pthread_key_delete(stack_key);
	signal(SIGUSR1, SIG_DFL);
}

static void stacks(void)
{
	pthread_attr_t *attr = must_malloc(sizeof *attr);
	for (int mapped = 0; mapped < 2; mapped++) {
		for (int round = 0; round < 3; round++) {
			char *stack = mapped ? map_anon(MIB) : opaque(aligned_alloc(PAGE, MIB));
			pthread_t t;
			void *result = NULL;
			fill(stack, MIB, 7);
			chill();
			pthread_attr_init(attr);
			CHECK_EQ("pthread_attr_setstack", 0, pthread_attr_setstack(attr, stack, MIB));
			CHECK_EQ("pthread_create on it", 0, pthread_create(&t, attr, deep_thread, stack));
			pthread_join(t, &result);
			CHECK_EQ("result of the thread", 0x77, (uintptr_t)result);
			pthread_attr_destroy(attr);
			if (mapped)
				munmap(stack, MIB);
			else
				free(stack);
		}
	}
	free(attr);
	run_threads(1, deep_thread);
}

static int cancel_fds[2];
static volatile int cleaned, reads;
/* Of the buffer that is read into. The short one is in RAM when the read begins. */
static size_t cancel_len;

static void clean(void *arg)
{
	CHECK_FILL("buffer of a cancelled read", arg, MIB, 8);
	free(arg);
	cleaned++;
}

static void *blocked_reader(void *arg)
{
	char *p = must_malloc(MIB);
	int old;
	if (arg)
		pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
	fill(p, MIB, 8);
	pthread_cleanup_push(clean, p);
	reads = 1;
	ssize_t n = read(cancel_fds[0], p, cancel_len);
	CHECK_EQ("a cancelled read does not return", -2, n);
	pthread_cleanup_pop(1);
	return NULL;
}

static void cancel(void)
{
	CHECK_OK("pipe", pipe(cancel_fds));
	for (uintptr_t i = 0; i < 20; i++) {
		pthread_t t;
		void *result = NULL;
		cleaned = reads = 0;
		cancel_len = i & 2 ? MIB : 4 * PAGE;
		pthread_create(&t, NULL, blocked_reader, (void *)(i & 1));
		/* A thread that is cancelled at any moment may be so before it has pushed what is to be cleaned up. */
		while (!reads)
			sleep_ms(1);
		sleep_ms(20);
		chill_around();
		CHECK_EQ("pthread_cancel", 0, pthread_cancel(t));
		CHECK_EQ("pthread_join", 0, pthread_join(t, &result));
		CHECK("was cancelled", result == PTHREAD_CANCELED);
		CHECK_EQ("cleanup ran", 1, cleaned);
	}
	CHECK_EQ("the pipe is whole", 3, write(cancel_fds[1], "abc", 3));
	char *p = must_malloc(MIB);
	CHECK_EQ("read later", 3, read(cancel_fds[0], p, MIB));
	free(p);
	close(cancel_fds[0]);
	close(cancel_fds[1]);
}

static __thread char local_block[256 * 1024];
static pthread_key_t key;
static atomic_int destroyed;

static void destroy(void *p)
{
	CHECK_FILL("block given to a key's destructor", p, MIB, 9);
	free(p);
	destroyed++;
}

static void *local_user(void *arg)
{
	uint64_t me = (uintptr_t)arg;
	CHECK_ZERO("fresh thread-local memory", local_block, sizeof local_block);
	fill(local_block, sizeof local_block, me);
	char *p = must_malloc(MIB);
	fill(p, MIB, 9);
	pthread_setspecific(key, p);
	for (int i = 0; i < 3; i++) {
		own_rounds(me, 20);
		CHECK_FILL("thread-local memory", local_block, sizeof local_block, me);
	}
	return NULL;
}

static void locals(void)
{
	CHECK_EQ("pthread_key_create", 0, pthread_key_create(&key, destroy));
	destroyed = 0;
	run_threads(THREADS, local_user);
	CHECK_EQ("destructors", THREADS, destroyed);
	pthread_key_delete(key);
}

/* Locks of all kinds, each on a cold page of its own. */
struct locks {
	_Alignas(4096) pthread_mutex_t mutex;
	_Alignas(4096) pthread_rwlock_t rwlock;
	_Alignas(4096) pthread_spinlock_t spin;
	_Alignas(4096) pthread_barrier_t barrier;
	_Alignas(4096) sem_t sem;
	_Alignas(4096) uint64_t counts[4];
};
static struct locks *locks;

static void *lock_user(void *arg)
{
	for (int i = 0; i < 2000; i++) {
		pthread_mutex_lock(&locks->mutex);
		locks->counts[0]++;
		pthread_mutex_unlock(&locks->mutex);
		pthread_rwlock_wrlock(&locks->rwlock);
		locks->counts[1]++;
		pthread_rwlock_unlock(&locks->rwlock);
		pthread_rwlock_rdlock(&locks->rwlock);
		uint64_t now = locks->counts[1];
		CHECK("count under a read lock", now == locks->counts[1]);
		pthread_rwlock_unlock(&locks->rwlock);
		pthread_spin_lock(&locks->spin);
		locks->counts[2]++;
		pthread_spin_unlock(&locks->spin);
		while (sem_wait(&locks->sem) < 0)
			;
		locks->counts[3]++;
		sem_post(&locks->sem);
		if (i % 500 == 0) {
			pthread_barrier_wait(&locks->barrier);
			if (arg == NULL)
				chill();
			pthread_barrier_wait(&locks->barrier);
		}
	}
	return NULL;
}

static void locking(void)
{
	locks = opaque(aligned_alloc(PAGE, sizeof *locks));
	memset(locks, 0, sizeof *locks);
	pthread_mutex_init(&locks->mutex, NULL);
	pthread_rwlock_init(&locks->rwlock, NULL);
	pthread_spin_init(&locks->spin, 0);
	pthread_barrier_init(&locks->barrier, NULL, THREADS);
	sem_init(&locks->sem, 0, 1);
	run_threads(THREADS, lock_user);
	for (size_t i = 0; i < 4; i++)
		CHECK_EQ("count under a lock", THREADS * 2000, locks->counts[i]);
	free(locks);
}

#define ROUTINES 16
#define ROUTINE_STACK (256 * 1024)
static ucontext_t *main_context, *contexts[ROUTINES];
static size_t finished_routines;

static void routine(int me)
{
	size_t len = size_mb * MIB / ROUTINES;
	char local[20000], *p = must_malloc(len);
	for (uint64_t round = 0; round < 5; round++) {
		fill(local, sizeof local, (uint64_t)me + round);
		fill(p, len, (uint64_t)me * 10 + round);
		swapcontext(contexts[me], main_context);
		CHECK_FILL("a coroutine's stack", local, sizeof local, (uint64_t)me + round);
		CHECK_FILL("a coroutine's block", p, len, (uint64_t)me * 10 + round);
	}
	free(p);
	finished_routines++;
}

static void coroutines(void)
{
	char *stacks_[ROUTINES];
	main_context = must_malloc(sizeof *main_context);
	for (int i = 0; i < ROUTINES; i++) {
		contexts[i] = must_malloc(sizeof **contexts);
		stacks_[i] = must_malloc(ROUTINE_STACK);
		getcontext(contexts[i]);
		contexts[i]->uc_stack.ss_sp = stacks_[i];
		contexts[i]->uc_stack.ss_size = ROUTINE_STACK;
		contexts[i]->uc_link = main_context;
		makecontext(contexts[i], (void (*)(void))(void *)routine, 1, i);
	}
	for (int round = 0; round < 6; round++) {
		for (int i = 0; i < ROUTINES; i++)
			swapcontext(main_context, contexts[i]);
		chill();
	}
	CHECK_EQ("coroutines that came to their end", ROUTINES, finished_routines);
	for (int i = 0; i < ROUTINES; i++) {
		free(contexts[i]);
		free(stacks_[i]);
	}
	free(main_context);
}

static jmp_buf *far_jump;

static volatile int jump_depth;

static __attribute__((noinline)) void jump_from(int n)
{
	volatile char frame[2000];
	frame[0] = frame[1999] = (char)n;
	if (n == jump_depth)
		longjmp(*far_jump, 5);
	if (n < 1000)
		jump_from(n + 1);
	frame[1] = frame[0];
}

static void long_jumps(void)
{
	far_jump = must_malloc(sizeof *far_jump);
	for (volatile int i = 0; i < 10; i++) {
		int came = setjmp(*far_jump);
		if (came == 0) {
			chill();
			jump_depth = 200;
			jump_from(0);
		}
		CHECK_EQ("longjmp through a cold jmp_buf", 5, came);
	}
	free(far_jump);
}

static atomic_int detached_left;

/* `stack` 0: of the default size. */
static void start_detached(void *(*body)(void *), size_t count, size_t stack)
{
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (stack)
		pthread_attr_setstacksize(&attr, stack);
	detached_left = (int)count;
	for (size_t i = 0; i < count; i++) {
		pthread_t t;
		CHECK_EQ("pthread_create", 0, pthread_create(&t, &attr, body, (void *)i));
	}
}

static void await_detached(void)
{
	for (int i = 0; i < 6000 && detached_left; i++)
		sleep_ms(10);
	CHECK_EQ("detached threads left", 0, detached_left);
}

static void *detached_thread(void *arg)
{
	own_blocks(arg);
	detached_left--;
	return NULL;
}

static void detached(void)
{
	start_detached(detached_thread, THREADS, 0);
	await_detached();
}

/* More 8 MiB stacks than libc keeps (40 MiB): the threads that end last free the others' descriptors, blocks of the heap that
 * have grown cold, with all signals blocked. */
enum { ENDING = 16 };
static sem_t may_end;

static void *ending_thread(void *arg)
{
	while (sem_wait(&may_end) != 0)
		;
	detached_left--;
	return arg;
}

static void ends(void)
{
	sem_init(&may_end, 0, 0);
	for (int round = 0; round < 5; round++) {
		start_detached(ending_thread, ENDING, 8 * MIB);
		chill();
		for (int i = 0; i < ENDING; i++)
			sem_post(&may_end);
		await_detached();
	}
}

/* One page in each of 2000 windows leaves when it is asked to. (Windows take a block of the swap cache each, whose share is counted in pages:
 * once all blocks were taken nothing left any more, and no advice helped.) */
static void sparse_windows(void)
{
	size_t len = 40 * MIB, windows = 2000;
	char *rest = map_anon(len), *sparse = map_anon(windows * WINDOW);
	fill(rest, len, 1);
	for (size_t i = 0; i < windows; i++)
		fill(sparse + i * WINDOW, PAGE, i);
	make_cold(sparse, windows * WINDOW);
	for (size_t i = 0; i < windows; i++)
		CHECK_FILL("page", sparse + i * WINDOW, PAGE, i);
	CHECK_FILL("beside them", rest, len, 1);
	munmap(sparse, windows * WINDOW);
	munmap(rest, len);
}

static void *answer(void *arg)
{
	return arg;
}

/* A thread that is bound to CPUs, as OpenMP's are, after libc has taken more for itself than is left out of managed memory: it hands the set to the
 * kernel with all signals blocked, and the call that was trapped then ended the program. */
static void bound_to_cpus(void)
{
	enum { NAMES = 150000 };
	static char *names[NAMES];
	for (size_t i = 0; i < NAMES; i++)
		names[i] = strdup("the name of a file, or of a word, of some length");
	cpu_set_t all;
	pthread_attr_t attributes;
	CHECK_OK("the CPUs of this program", sched_getaffinity(0, sizeof all, &all));
	pthread_attr_init(&attributes);
	CHECK_EQ("bound", 0, pthread_attr_setaffinity_np(&attributes, sizeof all, &all));
	chill();
	pthread_t thread;
	void *result = NULL;
	CHECK_EQ("a thread", 0, pthread_create(&thread, &attributes, answer, names));
	CHECK_EQ("its end", 0, pthread_join(thread, &result));
	CHECK("what it said", result == names);
	pthread_attr_destroy(&attributes);
	/* So it does with the locale. */
	if (setlocale(LC_ALL, "C.UTF-8") == NULL)
		skip("bound_to_cpus", "no locale C.UTF-8");
	chill();
	CHECK_EQ("a thread in a locale", 0, pthread_create(&thread, NULL, answer, names));
	CHECK_EQ("its end", 0, pthread_join(thread, &result));
	setlocale(LC_ALL, "C");
	for (size_t i = 0; i < NAMES; i++)
		free(names[i]);
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"allocating", allocating}, {"same_pages", same_pages}, {"shared_counters", shared_counters},
		{"same_pages_written", same_pages_written}, {"stacks", stacks},
		{"stacks_ends", stacks_ends}, {"cancel", cancel},
		{"locals", locals},	    {"locking", locking},
		{"coroutines", coroutines}, {"long_jumps", long_jumps}, {"detached", detached},
		{"ends", ends},		    {"sparse_windows", sparse_windows}, {"bound_to_cpus", bound_to_cpus},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
