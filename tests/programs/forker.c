/* Forks in the handler of a timer, which comes at any moment of a program of one thread, in malloc and free too; POSIX allows that.
 * Usage: forker [SECONDS] */
#include "check.h"

#include <sys/time.h>
#include <sys/wait.h>

enum { FORKS_MIN = 21 };
static volatile unsigned forks;
static uint64_t end;

/* One at a time: on a slow machine a timer that goes on by itself leaves the program no moment. */
static void set_timer(void)
{
	struct itimerval once = {{0, 0}, {0, 2000}};
	setitimer(ITIMER_REAL, &once, NULL);
}

static bool goes_on(void)
{
	return now_ns() < end || forks < FORKS_MIN;
}

static void on_alarm(int sig)
{
	int status, before = errno;
	pid_t pid = fork();
	(void)sig;
	if (pid == 0)
		_exit(7);
	if (pid > 0 && waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 7)
		forks++;
	if (goes_on())
		set_timer();
	errno = before;
}

int main(int argc, char **argv)
{
	static char *blocks[4096];
	unsigned seconds = argc > 1 ? atoi(argv[1]) : 3;
	struct sigaction action = {.sa_handler = on_alarm};
	check_init(argv);
	CHECK_OK("a handler", sigaction(SIGALRM, &action, NULL));
	end = now_ns() + seconds * 1000000000ull;
	set_timer();
	for (unsigned n = 0; goes_on(); n++) {
		free(blocks[n % NELEM(blocks)]);
		char *block = blocks[n % NELEM(blocks)] = must_malloc(16 + n * 7919 % 9000);
		block[0] = (char)n;
	}
	if (failures() == 0)
		say("ok forker");
	return failures() ? 1 : 0;
}
