/* A program in the legacy layout of addresses (setarch -L), where libraries, thread-local storage and stacks lie among the addresses that are
 * managed: a thread's first access to its own storage ended it.
 * Usage: layout MIB libc|raw: asks for that layout, and becomes itself by libc's exec or by a system call instruction of its own; then uses so
 * much memory, starts a thread, and forks. Prints `ok layout`. */
#include "check.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static void *thread_main(void *unused)
{
	char *p = must_malloc(MIB);
	fill(p, MIB, 2);
	CHECK_FILL("a thread's own", p, MIB, 2);
	free(p);
	return unused;
}

static void in_child(void *p)
{
	CHECK_FILL("in a child", p, size_mb * MIB, 1);
}

static void use(void)
{
	size_t len = size_mb * MIB;
	char *p = must_malloc(len);
	fill(p, len, 1);
	CHECK_FILL("content", p, len, 1);
	pthread_t thread;
	CHECK_EQ("a thread", 0, pthread_create(&thread, NULL, thread_main, NULL));
	CHECK_EQ("its end", 0, pthread_join(thread, NULL));
	CHILD_EXPECT("a child", child_start(in_child, p), 0);
	CHECK_FILL("content", p, len, 1);
	CHECK_EQ("a shell", 0, system("exit 0"));
}

static long execve_by_itself(const char *path, char **argv, char **envp)
{
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "0"(SYS_execve), "D"(path), "S"(argv), "d"(envp) : "rcx", "r11", "memory");
	return result;
}

int main(int argc, char **argv)
{
	check_init(argv);
	size_mb = argc > 1 ? strtoul(argv[1], NULL, 10) : size_mb;
	const char *way = argc > 2 ? argv[2] : "used";
	char *again[] = {argv[0], argc > 1 ? argv[1] : "16", NULL};
	unsigned long legacy = ADDR_COMPAT_LAYOUT | ADDR_NO_RANDOMIZE;
	if (strcmp(way, "used") != 0) {
		CHECK("personality", personality(legacy) >= 0);
		char *fails[] = {"/no/such/program", NULL};
		CHECK_ERR("exec of nothing", ENOENT, execv(fails[0], fails));
		CHECK_EQ("what was asked for stays", legacy, personality(0xffffffff));
		CHECK_EQ("a shell that is asked for", 0, system("exit 0"));
		FILE *stream = popen("exit 0", "r");
		CHECK_EQ("another", 0, pclose(stream));
		CHECK_EQ("what was asked for still stays", legacy, personality(0xffffffff));
	}
	if (strcmp(way, "libc") == 0)
		execv("/proc/self/exe", again);
	else if (strcmp(way, "raw") == 0)
		execve_by_itself("/proc/self/exe", again, environ);
	if (strcmp(way, "used") == 0)
		use();
	else
		CHECK("exec", false);
	if (failures() == 0)
		say("ok layout");
	return failures() ? 1 : 0;
}
