/* Forks in the handler of a timer, which comes at any moment of a program of one thread, in malloc and free too; POSIX allows that.
 * Usage: forker [SECONDS] */
#include "check.h"

#include <sys/time.h>
#include <sys/wait.h>

static volatile unsigned forks;

static void on_alarm(int sig)
{
	int status, before = errno;
	pid_t pid = fork();
	(void)sig;
	if (pid == 0)
		_exit(7);
	if (pid > 0 && waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 7)
		forks++;
	errno = before;
}

int main(int argc, char **argv)
{
	static char *blocks[4096];
	unsigned seconds = argc > 1 ? atoi(argv[1]) : 3;
	struct sigaction action = {.sa_handler = on_alarm};
	struct itimerval each = {{0, 1000}, {0, 1000}};
	check_init(argv);
	CHECK_OK("a handler", sigaction(SIGALRM, &action, NULL));
	CHECK_OK("a timer", setitimer(ITIMER_REAL, &each, NULL));
	uint64_t end = now_ns() + seconds * 1000000000ull;
	for (unsigned n = 0; now_ns() < end; n++) {
		free(blocks[n % NELEM(blocks)]);
		char *block = blocks[n % NELEM(blocks)] = must_malloc(16 + n * 7919 % 9000);
		block[0] = (char)n;
	}
	each = (struct itimerval){0};
	setitimer(ITIMER_REAL, &each, NULL);
	CHECK("forks", forks > 20);
	if (failures() == 0)
		say("ok forker");
	return failures() ? 1 : 0;
}
