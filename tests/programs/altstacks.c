/* Threads with small alternate signal stacks in managed memory that nobody has touched, while their process begins to be managed and
 * after that. Usage: altstacks [MIB]; the block that makes it so, default 16 MiB: give several times the budget. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define SMALL 8192
#define APART (64 * 1024)
#define WORKERS 8
#define TOUCHERS 4
#define OWN (4 * MIB)
#define LENGTH (8 * PAGE)
#define ROUNDS 12
#define TOUCHED (2 * MIB)
#define EARLY (8 * MIB)

struct worker {
	pthread_t thread;
	int fds[2];
	atomic_int waits;
};

static struct worker workers[WORKERS];
static char *stacks;
static atomic_int stop;

static void take_small_stack(size_t number)
{
	stack_t small = {.ss_sp = stacks + number * APART, .ss_size = SMALL};
	CHECK_OK("sigaltstack", sigaltstack(&small, NULL));
}

/* Waits in a call while the process becomes active, and then works on memory that does not fit. */
static void *worker_main(void *argument)
{
	struct worker *self = argument;
	size_t number = (size_t)(self - workers);
	char *message = must_malloc(LENGTH);
	take_small_stack(number);
	self->waits = 1;
	CHECK_EQ("a message", LENGTH, (long)recv(self->fds[0], message, LENGTH, MSG_WAITALL));
	CHECK_FILL("a message", message, LENGTH, number);
	char *own = map_anon(OWN);
	fill(own, OWN, number);
	for (int round = 0; round < ROUNDS && failures() == 0; round++)
		CHECK_FILL("a thread's own memory", own, OWN, number);
	return NULL;
}

/* Touches fresh pages all along, and sleeps in between: nobody has to look whether it is in a call, and its first fault comes at once. */
static void *toucher_main(void *argument)
{
	char *block = map_anon(TOUCHED);
	take_small_stack((size_t)argument);
	for (size_t at = 0; !stop && failures() == 0; at = (at + PAGE) % TOUCHED) {
		block[at] = 1;
		usleep(10);
		if (at == 0)
			madvise(block, TOUCHED, MADV_DONTNEED);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	check_init(argv);
	size_t len = (argc > 1 ? strtoul(argv[1], NULL, 10) : 16) * MIB;
	if (sysconf(_SC_MINSIGSTKSZ) > SMALL / 2) {
		skip("altstacks", "signal frames of %ld bytes leave no room on a stack of %d", sysconf(_SC_MINSIGSTKSZ), SMALL);
		return 0;
	}
	stacks = map_anon((WORKERS + TOUCHERS) * APART);
	for (size_t i = 0; i < WORKERS; i++) {
		CHECK_OK("a socket", socketpair(AF_UNIX, SOCK_STREAM, 0, workers[i].fds));
		CHECK_EQ("a thread", 0, pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]));
		while (!workers[i].waits)
			usleep(1000);
	}
	pthread_t touchers[TOUCHERS];
	for (size_t i = 0; i < TOUCHERS; i++)
		CHECK_EQ("a thread", 0, pthread_create(&touchers[i], NULL, toucher_main, (void *)(WORKERS + i)));
	char *early = map_anon(EARLY);
	fill(early, EARLY, 78);
	char *block = map_anon(len);
	fill(block, len / 2, 77);
	for (size_t i = 0; i < WORKERS; i++) {
		char message[LENGTH];
		fill(message, LENGTH, i);
		CHECK_EQ("a message", LENGTH, (long)write(workers[i].fds[1], message, LENGTH));
	}
	fill(block, len, 77);
	for (size_t i = 0; i < WORKERS; i++)
		CHECK_EQ("the end of a thread", 0, pthread_join(workers[i].thread, NULL));
	stop = 1;
	for (size_t i = 0; i < TOUCHERS; i++)
		CHECK_EQ("the end of a thread", 0, pthread_join(touchers[i], NULL));
	CHECK_FILL("what was there before", early, EARLY, 78);
	CHECK_FILL("the block", block, len, 77);
	if (failures() == 0)
		say("ok altstacks\n");
	return failures() ? 1 : 0;
}
