/* Processes whose descriptors are not the ones that the rest of the tree looks after: a fork by a child of vfork, which has descriptors of its
 * own, and a process that asked for such (unshare). What they swapped out to a file that had joined the tree in between was written over
 * what the tree keeps of itself.
 * Usage: apart vfork|unshare|range MIB GO; says `ready`, and goes on once there is a file GO. */
#include "check.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static char *data;
static size_t len;
static const char *go;

static void await_go(void)
{
	struct timespec nap = {.tv_nsec = 20000000};
	while (syscall(SYS_access, go, F_OK) != 0)
		syscall(SYS_nanosleep, &nap, NULL);
}

/* Swaps out, and finds again what was there before and since. */
static int swaps(void)
{
	char *more = map_anon(len);
	fill(more, len, 4);
	bool right = first_bad(data, len, 3) == SIZE_MAX && first_bad(more, len, 4) == SIZE_MAX;
	munmap(more, len);
	return right ? 9 : 1;
}

static int forked(void)
{
	int status = -1;
	pid_t pid = fork();
	if (pid == 0)
		_exit(swaps());
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 100;
}

int main(int argc, char **argv)
{
	check_init(argv);
	if (argc != 4)
		return 2;
	len = strtoul(argv[2], NULL, 10) * MIB;
	go = argv[3];
	data = map_anon(len);
	fill(data, len, 3);
	if (strcmp(argv[1], "vfork") == 0) {
		pid_t pid = vfork();
		if (pid == 0) {
			(void)!write(1, "ready\n", 6);
			await_go();
			_exit(forked());
		}
		CHILD_EXPECT("a child of the child by vfork", pid, 9);
	} else {
		if (strcmp(argv[1], "unshare") == 0)
			CHECK_OK("unshare", unshare(CLONE_FILES));
		else
			CHECK_OK("close_range", close_range(200, 300, CLOSE_RANGE_UNSHARE));
		say("ready");
		await_go();
		CHECK_EQ("what it swaps itself", 9, swaps());
		CHECK_EQ("what its child swaps", 9, forked());
	}
	CHECK_FILL("the data", data, len, 3);
	if (failures() == 0)
		say("ok apart");
	return failures() ? 1 : 0;
}
