/* Handlers around fork, and the mask that a child begins with. Usage: sem_atfork [MIB] [GROUP]; MIB (default 16) is the size of the block
 * that makes memory cold. */
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>

#define LEN (2 * MIB)

static int atfork_ran[3];
static char *atfork_block;

static void atfork_prepare(void)
{
	atfork_ran[0] += first_bad(atfork_block, LEN, 130) == SIZE_MAX;
}

static void atfork_parent(void)
{
	atfork_ran[1] += first_bad(atfork_block, LEN, 130) == SIZE_MAX;
}

static void atfork_child(void)
{
	atfork_ran[2] += first_bad(atfork_block, LEN, 130) == SIZE_MAX;
}

static void atfork_body(void *arg)
{
	(void)arg;
	CHECK_EQ("child handler ran on good memory", 1, atfork_ran[2]);
}

static void handlers(void)
{
	atfork_block = map_anon(LEN);
	fill(atfork_block, LEN, 130);
	CHECK_EQ("pthread_atfork", 0, pthread_atfork(atfork_prepare, atfork_parent, atfork_child));
	chill();
	CHILD_EXPECT("child", child_start(atfork_body, NULL), 0);
	CHECK_EQ("prepare handler", 1, atfork_ran[0]);
	CHECK_EQ("parent handler", 1, atfork_ran[1]);
}

static int made[3], making;

static bool mask_is_ours(void)
{
	sigset_t mask;
	pthread_sigmask(SIG_BLOCK, NULL, &mask);
	return sigismember(&mask, SIGUSR2) && !sigismember(&mask, SIGUSR1) && !sigismember(&mask, SIGSEGV);
}

static void *made_thread(void *arg)
{
	char *p = must_malloc(LEN);
	fill(p, LEN, 131);
	bool good = mask_is_ours() && first_bad(atfork_block, LEN, 130) == SIZE_MAX && first_bad(p, LEN, 131) == SIZE_MAX;
	free(p);
	return good ? arg : NULL;
}

/* A thread, and a program that a signal ends unless it was given a full mask. What these make calls no further handlers. */
static void make(int where)
{
	static char *const words[] = {"sh", "-c", "kill -USR1 $$; exit 3", NULL};
	pthread_t t;
	pid_t pid = -1;
	void *result = NULL;
	if (making++)
		return;
	CHECK("the mask of a handler", mask_is_ours());
	CHECK_EQ("pthread_create", 0, pthread_create(&t, NULL, made_thread, &made[where]));
	CHECK_EQ("pthread_join", 0, pthread_join(t, &result));
	CHECK("a thread that a handler started", result == &made[where]);
	CHECK_EQ("posix_spawn", 0, posix_spawn(&pid, "/bin/sh", NULL, NULL, words, environ));
	CHILD_EXPECT("a program that a handler started", pid, 128 + SIGUSR1);
	made[where]++;
	making--;
}

static void make_before(void)
{
	make(0);
}

static void make_after(void)
{
	make(1);
}

static void make_in_child(void)
{
	make(2);
}

static void made_body(void *arg)
{
	(void)arg;
	CHECK_EQ("handler in the child", 1, made[2]);
}

static void make_body(void *arg)
{
	sigset_t mask;
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR2);
	sigprocmask(SIG_SETMASK, &mask, NULL);
	atfork_block = arg;
	CHECK_EQ("pthread_atfork", 0, pthread_atfork(make_before, make_after, make_in_child));
	for (int round = 1; round <= 3; round++) {
		chill();
		CHILD_EXPECT("child", child_start(made_body, NULL), 0);
		CHECK_EQ("handler before the fork", round, made[0]);
		CHECK_EQ("handler after the fork", round, made[1]);
	}
}

/* All system calls of libc's fork were dispatched, handlers of pthread_atfork included: a clone that one of them asked for came back
 * from the stub, on the stack that libc had prepared for another instruction, and the process crashed. */
static void handlers_make(void)
{
	char *p = map_anon(LEN);
	fill(p, LEN, 130);
	CHILD_EXPECT("process with such handlers", child_start(make_body, p), 0);
	munmap(p, LEN);
}

/* A clone started with all signals blocked: its parent's mask around the call was never taken off it. */
static int clone_mask(void *arg)
{
	(void)arg;
	sigset_t mask;
	sigprocmask(SIG_BLOCK, NULL, &mask);
	return sigismember(&mask, SIGUSR1) ? 2 : sigismember(&mask, SIGUSR2) ? 42 : 3;
}

static void cloned_mask(void)
{
	char *stack = must_malloc(256 * 1024);
	sigset_t mask, old;
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR2);
	sigprocmask(SIG_SETMASK, &mask, &old);
	chill();
	pid_t pid = clone(clone_mask, stack + 256 * 1024, SIGCHLD, NULL);
	CHILD_EXPECT("mask of a clone", pid, 42);
	sigprocmask(SIG_SETMASK, &old, NULL);
	free(stack);
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"handlers", handlers}, {"handlers_make", handlers_make}, {"cloned_mask", cloned_mask},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
