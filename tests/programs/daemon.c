/* A daemon: gives root up, and the file system too if told so, before it needs its memory. Usage: daemon [MIB [DIR [WAY]]]; the size of
 * its data, default 16 MiB, where its root is to be, and how it does that: by libc's `call` (the default), by `number`, or by an
 * instruction of its `own`, which nobody sees. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#define NOBODY 65534

static atomic_int stop;

/* Touches fresh pages while the process becomes active, or fails to. */
static void *toucher_main(void *argument)
{
	char *data = argument;
	for (size_t at = 0; !stop; at = (at + PAGE) % (8 * MIB))
		data[at] = 1;
	return NULL;
}

static int change_root(const char *to, const char *way)
{
	if (strcmp(way, "own") != 0)
		return strcmp(way, "number") == 0 ? (int)syscall(SYS_chroot, to) : chroot(to);
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "0"((long)SYS_chroot), "D"(to) : "rcx", "r11", "memory");
	return result < 0 ? -1 : 0;
}

int main(int argc, char **argv)
{
	check_init(argv);
	size_t len = (argc > 1 ? strtoul(argv[1], NULL, 10) : 16) * MIB;
	const char *way = argc > 3 ? argv[3] : "call";
	if (argc > 2 && !(CHECK_OK("chroot", change_root(argv[2], way)) && CHECK_OK("chdir", chdir("/"))))
		return 1;
	if (geteuid() == 0) {
		CHECK_OK("setgroups", syscall(SYS_setgroups, 0, NULL));
		CHECK_OK("setgid", setgid(NOBODY));
		CHECK_OK("setuid", setuid(NOBODY));
	}
	pthread_t toucher;
	CHECK_EQ("a thread", 0, pthread_create(&toucher, NULL, toucher_main, map_anon(8 * MIB)));
	char *data = map_anon(len);
	for (int round = 0; round < 2; round++) {
		fill(data, len, 5);
		CHECK_FILL("the data", data, len, 5);
	}
	stop = 1;
	CHECK_EQ("the end of a thread", 0, pthread_join(toucher, NULL));
	if (failures() == 0)
		say("ok daemon\n");
	return failures() ? 1 : 0;
}
