/* A process whose first thread ends before its memory is managed. To /proc, and to calls that name memory by a process's number, it has none
 * from then on: it could not become active, and the supervisor counted nothing of what it had beside managed memory.
 * Usage: headless [MIB]; the size of its data, default 16 MiB. */
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/uio.h>

/* Not managed: the tree has to leave room for it. */
static char plain[24 * MIB];
static size_t len;

static bool first_has_ended(void)
{
	char stat[512] = "", *state;
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	ssize_t n = read(fd, stat, sizeof stat - 1);
	close(fd);
	state = n > 0 ? strrchr(stat, ')') : NULL;
	return state && state[2] == 'Z';
}

static void *rest_main(void *small)
{
	int fds[2];
	while (!first_has_ended())
		sleep_ms(1);
	char *data = map_anon(len);
	fill(data, len, 1);
	/* The supervisor looks each 20 ms, later where the machine is busy. */
	for (size_t at = 0; at < sizeof plain; at += MIB) {
		fill(plain + at, MIB, at);
		sleep_ms(200);
	}
	for (int round = 0; round < 2; round++) {
		CHECK_FILL("the data", data, len, 1);
		CHECK_FILL("what was there before", small, MIB, 3);
	}
	struct iovec parts[2] = {{data, 3}, {data + len - 5, 5}};
	CHECK_OK("pipe", pipe(fds));
	CHECK_EQ("writev", 8, writev(fds[1], parts, 2));
	for (size_t at = 0; at < sizeof plain; at += MIB)
		CHECK_FILL("what is not managed", plain + at, MIB, at);
	if (failures() == 0)
		say("ok headless");
	exit(failures() ? 1 : 0);
}

int main(int argc, char **argv)
{
	check_init(argv);
	pthread_t rest;
	char *small = must_malloc(MIB);
	len = (argc > 1 ? strtoul(argv[1], NULL, 10) : 16) * MIB;
	fill(small, MIB, 3);
	CHECK_EQ("a thread", 0, pthread_create(&rest, NULL, rest_main, small));
	pthread_exit(NULL);
}
