/* Jumps out of signal handlers and calls, and the masks that they give back. Usage: sem_jumps [MIB] [GROUP]; MIB (default 16) is the size of
 * the block that makes memory cold. It starts itself as `sem_jumps --blocked`: exits with 1 if SIGBUS is blocked, 2 for SIGSYS. */
#include "check.h"

#include <setjmp.h>
#include <sys/time.h>
#include <sys/wait.h>

static sigjmp_buf jump;

static void jump_out(int signo)
{
	(void)signo;
	siglongjmp(jump, 1);
}

/* A handler that jumps out of a read() which waits, into a cold buffer, or one that is in RAM: the buffer must stay an ordinary one. */
static void jump_out_of_read(void)
{
	int fds[2];
	CHECK_OK("pipe", pipe(fds));
	struct sigaction act = {.sa_handler = jump_out}, old;
	sigaction(SIGALRM, &act, &old);
	for (volatile int i = 0; i < 12; i++) {
		char *volatile p = must_malloc(MIB);
		fill(p, MIB, (uint64_t)i);
		if (i & 1)
			chill_around();
		if (sigsetjmp(jump, 1) == 0) {
			struct itimerval once = {{0, 0}, {0, 5000}};
			setitimer(ITIMER_REAL, &once, NULL);
			ssize_t n = read(fds[0], p, i & 1 ? MIB : 4 * PAGE);
			CHECK_EQ("read must be left by a jump", -2, n);
		}
		CHECK_FILL("buffer after the jump", p, MIB, (uint64_t)i);
		chill_around();
		CHECK_FILL("buffer after the jump and chill", p, MIB, (uint64_t)i);
		CHECK_EQ("write", 3, write(fds[1], "abc", 3));
		CHECK_EQ("read into the buffer later", 3, read(fds[0], p, MIB));
		CHECK_MEM("its content", "abc", p, 3);
		free(p);
	}
	sigaction(SIGALRM, &old, NULL);
	close(fds[0]);
	close(fds[1]);
}

static volatile sig_atomic_t seen;

static void note(int signo)
{
	seen = signo;
}

static bool is_blocked(int signo)
{
	sigset_t now;
	CHECK_OK("query of the mask", sigprocmask(SIG_BLOCK, NULL, &now));
	return sigismember(&now, signo) == 1;
}

extern void __longjmp_chk(struct __jmp_buf_tag *env, int value) __attribute__((noreturn));

static void jump_from_handler(int signo)
{
	sigset_t all;
	(void)signo;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	siglongjmp(jump, 1);
}

static void jump_by(int way)
{
	if (way == 0)
		siglongjmp(jump, 1);
	else if (way == 1)
		longjmp(jump, 1);
	else if (way == 2)
		_longjmp(jump, 1);
	else if (way == 3)
		__longjmp_chk(jump, 1);
	raise(SIGUSR1);
}

/* A jump gives back the mask of its sigsetjmp, by a call of libc's own: SIGBUS and SIGSYS stayed believed blocked, what was sent waited for
 * good, and programs started later had both blocked. */
static void jump_unblocks(void)
{
	sigset_t all, before;
	char *cold = must_malloc(4 * MIB);
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, NULL, &before);
	signal(SIGBUS, note);
	signal(SIGSYS, note);
	signal(SIGUSR1, jump_from_handler);
	for (volatile int way = 0; way < 5; way++) {
		fill(cold, 4 * MIB, 70);
		chill();
		seen = 0;
		if (sigsetjmp(jump, 1) == 0) {
			sigprocmask(SIG_SETMASK, &all, NULL);
			raise(SIGBUS);
			CHECK_EQ("a blocked SIGBUS waits", 0, seen);
			sigdelset(&all, SIGUSR1);
			sigprocmask(SIG_SETMASK, &all, NULL);
			jump_by(way);
		}
		CHECK_EQ("what waited came", SIGBUS, seen);
		CHECK("the mask afterwards", !is_blocked(SIGBUS) && !is_blocked(SIGSYS) && !is_blocked(SIGUSR2));
		raise(SIGSYS);
		CHECK_EQ("a signal comes", SIGSYS, seen);
		pid_t pid = fork();
		if (pid == 0) {
			execl(self_path, self_path, "--blocked", NULL);
			_exit(99);
		}
		CHILD_EXPECT("what is started has none blocked", pid, 0);
		CHECK_FILL("cold memory", cold, 4 * MIB, 70);
		sigprocmask(SIG_SETMASK, &before, NULL);
	}
	/* One that keeps no mask changes none. */
	if (sigsetjmp(jump, 0) == 0) {
		sigprocmask(SIG_SETMASK, &all, NULL);
		siglongjmp(jump, 1);
	}
	CHECK("the mask stays", is_blocked(SIGBUS) && is_blocked(SIGUSR2));
	sigprocmask(SIG_SETMASK, &before, NULL);
	free(cold);
}

/* What was blocked at sigsetjmp is blocked after the jump: sent, it waits. */
static void jump_keeps(void)
{
	sigset_t both, before;
	sigemptyset(&both);
	sigaddset(&both, SIGBUS);
	sigaddset(&both, SIGSYS);
	signal(SIGBUS, note);
	CHECK_OK("blocked", sigprocmask(SIG_BLOCK, &both, &before));
	static volatile int turns;
	turns = 0;
	if (sigsetjmp(jump, 1) == 0 || turns < 3) {
		if (turns++ % 2)
			sigprocmask(SIG_UNBLOCK, &both, NULL);
		siglongjmp(jump, 1);
	}
	CHECK("SIGBUS is blocked still", is_blocked(SIGBUS));
	CHECK("SIGSYS is blocked still", is_blocked(SIGSYS));
	seen = 0;
	raise(SIGBUS);
	CHECK_EQ("it waits", 0, seen);
	CHECK_OK("as before", sigprocmask(SIG_SETMASK, &before, NULL));
	CHECK_EQ("it came", SIGBUS, seen);
	signal(SIGBUS, SIG_DFL);
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"jump_out_of_read", jump_out_of_read},
		{"jump_unblocks", jump_unblocks},
		{"jump_keeps", jump_keeps},
	};
	if (argc == 2 && strcmp(argv[1], "--blocked") == 0)
		return is_blocked(SIGBUS) + 2 * is_blocked(SIGSYS);
	return run_groups(argc, argv, groups, NELEM(groups));
}
