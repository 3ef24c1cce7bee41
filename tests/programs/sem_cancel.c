/* Threads that are cancelled, or end in a handler, while they wait in a call on cold memory. Usage: sem_cancel [MIB] [GROUP]; MIB
 * (default 16) is the size of the block that makes memory cold. Built with -fexceptions: what is to be cleaned up is found by unwinding, as
 * destructors of C++ are. */
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/uio.h>

/* How a thread waits. */
enum { READ_PRESENT, READ_COLD, READV, FREAD, WAYS };
static const char *const way_names[] = {"read", "read into cold memory", "readv", "fread"};

struct waiter {
	int way;
	int fds[2];
	FILE *file;
	char *stack;
	pthread_mutex_t mutex;
	volatile int inner, outer, pushed, waits;
};

static void count(int **place)
{
	++**place;
}

static void release(pthread_mutex_t **mutex)
{
	pthread_mutex_unlock(*mutex);
}

static void count_pushed(void *place)
{
	++*(volatile int *)place;
}

static __attribute__((noinline)) void wait_for_data(struct waiter *w)
{
	__attribute__((cleanup(count))) int *inner = (int *)&w->inner;
	char *p = cold_alloc(MIB);
	struct iovec iov = {p, MIB};
	if (w->way == READ_PRESENT)
		memset(p, 1, PAGE);
	w->waits = 1;
	for (;;) {
		if (w->way == READV)
			CHECK_EQ("readv of a cancelled thread", -2, readv(w->fds[0], &iov, 1));
		else if (w->way == FREAD)
			CHECK_EQ("fread of a cancelled thread", -2, fread(p, 1, MIB, w->file));
		else
			CHECK_EQ("read of a cancelled thread", -2, read(w->fds[0], p, w->way == READ_COLD ? MIB : PAGE));
	}
	(void)inner;
}

static void *waiter_thread(void *arg)
{
	struct waiter *w = arg;
	pthread_mutex_lock(&w->mutex);
	__attribute__((cleanup(release))) pthread_mutex_t *held = &w->mutex;
	__attribute__((cleanup(count))) int *outer = (int *)&w->outer;
	pthread_cleanup_push(count_pushed, (void *)&w->pushed);
	wait_for_data(w);
	pthread_cleanup_pop(1);
	(void)held;
	(void)outer;
	return NULL;
}

static void leave(int signo)
{
	(void)signo;
	pthread_exit(PTHREAD_CANCELED);
}

static void end_waiter(int way, bool by_handler, bool placed)
{
	struct waiter w = {.way = way, .mutex = PTHREAD_MUTEX_INITIALIZER};
	pthread_attr_t attr;
	pthread_t t;
	void *result = NULL;
	CHECK_OK("pipe", pipe(w.fds));
	w.file = fdopen(w.fds[0], "r");
	pthread_attr_init(&attr);
	if (placed) {
		w.stack = map_anon(MIB);
		pthread_attr_setstack(&attr, w.stack, MIB);
	}
	CHECK_EQ("pthread_create", 0, pthread_create(&t, &attr, waiter_thread, &w));
	pthread_attr_destroy(&attr);
	while (!w.waits)
		sleep_ms(1);
	sleep_ms(20);
	chill_around();
	if (by_handler)
		CHECK_EQ("pthread_kill", 0, pthread_kill(t, SIGUSR1));
	else
		CHECK_EQ("pthread_cancel", 0, pthread_cancel(t));
	CHECK_EQ("pthread_join", 0, pthread_join(t, &result));
	CHECK("was cancelled", result == PTHREAD_CANCELED);
	CHECK_EQ(way_names[way], 1, w.inner);
	CHECK_EQ("the function that called it", 1, w.outer);
	CHECK_EQ("what was pushed", 1, w.pushed);
	CHECK_EQ("the lock it held", 0, pthread_mutex_trylock(&w.mutex));
	if (CHECK_EQ("libc's lock of the stream", 0, ftrylockfile(w.file))) {
		funlockfile(w.file);
		fclose(w.file);
	}
	close(w.fds[1]);
	if (placed)
		munmap(w.stack, MIB);
}

/* Unwinding ended at the stub, from which a trapped call is made: of what a thread should have given back only what was pushed by
 * pthread_cleanup_push in plain C was. */
static void cancelled(void)
{
	for (int round = 0; round < 3; round++) {
		for (int way = 0; way < WAYS; way++)
			end_waiter(way, false, false);
	}
}

static void on_own_stack(void)
{
	for (int way = 0; way < WAYS; way++)
		end_waiter(way, false, true);
}

static void in_handler(void)
{
	signal(SIGUSR1, leave);
	for (int way = 0; way < WAYS; way++)
		end_waiter(way, true, way & 1);
	signal(SIGUSR1, SIG_DFL);
}

static void *busy_thread(void *arg)
{
	struct waiter *w = arg;
	__attribute__((cleanup(count))) int *outer = (int *)&w->outer;
	char *p = must_malloc(16 * PAGE);
	w->waits = 1;
	for (;;) {
		if (write(w->fds[1], p, 16 * PAGE) < 0 || read(w->fds[0], p, 16 * PAGE) < 0)
			break;
	}
	(void)outer;
	return NULL;
}

/* Wherever in a call it is. */
static void while_busy(void)
{
	for (unsigned i = 0; i < 100; i++) {
		struct waiter w = {.way = READ_PRESENT};
		pthread_t t;
		CHECK_OK("pipe", pipe(w.fds));
		CHECK_EQ("pthread_create", 0, pthread_create(&t, NULL, busy_thread, &w));
		while (!w.waits)
			sched_yield();
		usleep(i * 37 % 1000);
		pthread_cancel(t);
		pthread_join(t, NULL);
		CHECK_EQ("cleanup of a busy thread", 1, w.outer);
		close(w.fds[0]);
		close(w.fds[1]);
	}
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"cancelled", cancelled},
		{"on_own_stack", on_own_stack},
		{"in_handler", in_handler},
		{"while_busy", while_busy},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
