/* What is done with descriptors beside those that are not the program's: closing, replacing, sharing, limits; and long writes that others
 * write beside. Usage: sem_descriptors [MIB] [GROUP]; MIB (default 16) is the size of the block that makes memory cold. */
#include "check.h"

#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { LEN = 8 * MIB, LAST = 1100, WRITERS = 3, RECORDS = 12 };

static char *data;

/* Its memory is cold, and right. */
static void look(const char *what)
{
	chill();
	CHECK_FILL(what, data, LEN, 3);
}

/* By libc's syscall(), which the engine answers without the filter: the userfaultfd was closed, and pages were zeros from then on. */
static void closed_by_number(void *unused)
{
	(void)unused;
	for (long fd = 3; fd < LAST; fd++)
		syscall(SYS_close, fd);
	look("memory after closing all by number");
	for (long fd = 3; fd < LAST; fd++)
		syscall(SYS_fcntl, fd, F_SETFD, 0L);
	CHECK_OK("close_range by number", syscall(SYS_close_range, 3u, ~0u, 0u));
	look("memory after close_range by number");
	for (long fd = 3; fd < LAST; fd++) {
		syscall(SYS_dup2, 1L, fd);
		syscall(SYS_dup3, 1L, fd, (long)O_CLOEXEC);
	}
	look("memory after replacing all by number");
}

static void by_number(void)
{
	CHILD_EXPECT("a child that closes all", child_start(closed_by_number, NULL), 0);
	look("memory beside it");
}

static int look_in_child(void *unused)
{
	(void)unused;
	look("memory in a child that shares descriptors");
	return failures() ? 1 : 0;
}

/* A child that shares the descriptors and not the memory put its userfaultfd in the place of its parent's. */
static void shared_table(void)
{
	size_t size = 256 * 1024;
	char *stack = map_anon(size);
	errno = 0;
	pid_t pid = clone(look_in_child, stack + size, CLONE_FILES | SIGCHLD, NULL);
	if (pid < 0)
		CHECK_EQ("clone with CLONE_FILES alone", EINVAL, errno);
	else
		CHILD_EXPECT("a child that shares descriptors", pid, 0);
	look("memory beside a child that shared descriptors");
	munmap(stack, size);
}

/* What is open in the child of a spawn with closefrom. It never ended: what libc closed for it stayed open, so it began anew. */
static void spawn_closing(int from, const char *expected)
{
	int fds[2];
	CHECK_OK("pipe", pipe2(fds, O_CLOEXEC));
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, fds[1], 1);
	posix_spawn_file_actions_addclosefrom_np(&actions, from);
	char *argv[] = {"sh", "-c", "for fd in 3 4 5 6 7 8 9; do test -e /proc/$$/fd/$fd && echo $fd; done; echo end", NULL};
	pid_t pid = 0;
	CHECK_EQ("posix_spawn with closefrom", 0, posix_spawn(&pid, "/bin/sh", &actions, NULL, argv, environ));
	posix_spawn_file_actions_destroy(&actions);
	close(fds[1]);
	char text[64] = "";
	for (size_t at = 0; at < sizeof text - 1;) {
		ssize_t got = read(fds[0], text + at, sizeof text - 1 - at);
		if (got <= 0)
			break;
		at += got;
	}
	close(fds[0]);
	CHILD_EXPECT("a child after closefrom", pid, 0);
	CHECK("what is open after closefrom", strcmp(text, expected) == 0 || (say("%s", text), false));
}

static void close_from(void)
{
	alarm(60);
	int open5 = dup2(1, 5), open7 = dup2(1, 7);
	CHECK("descriptors to close", open5 == 5 && open7 == 7);
	spawn_closing(3, "end\n");
	spawn_closing(6, "5\nend\n");
	spawn_closing(2000, "5\n7\nend\n");
	close(5);
	close(7);
	alarm(0);
	look("memory after spawns");
}

static void look_alone(void *unused)
{
	(void)unused;
	look("memory in a child");
}

/* The numbers were chosen below a limit that is lower now. */
static void lowered(void *unused)
{
	(void)unused;
	struct rlimit limit, now;
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = 256;
	CHECK_OK("setrlimit", setrlimit(RLIMIT_NOFILE, &limit));
	CHILD_EXPECT("a child with a lower limit", child_start(look_alone, NULL), 0);
	CHECK_OK("getrlimit", getrlimit(RLIMIT_NOFILE, &now));
	CHECK_EQ("the limit afterwards", limit.rlim_cur, now.rlim_cur);
	CHECK_EQ("the hard limit afterwards", limit.rlim_max, now.rlim_max);
}

static void limits(void)
{
	CHILD_EXPECT("a child that lowers its limit", child_start(lowered, NULL), 0);
}

static void append(void *path)
{
	char *record = must_malloc(MIB);
	int fd = open(path, O_WRONLY | O_APPEND);
	for (int i = 0; i < RECORDS; i++) {
		memset(record, 'a' + getpid() % 26, MIB);
		CHECK_EQ("a record", MIB, write(fd, record, MIB));
	}
	close(fd);
	free(record);
}

/* One write is one step for who writes beside it; pieces of a long one were mixed with those of others. So they were again where children had
 * just ended, after limits(): until the supervisor came next to nothing could be pinned. */
static void appended(void)
{
	char path[] = "/tmp/sem_descriptors.XXXXXX";
	int fd = mkstemp(path);
	pid_t pids[WRITERS];
	for (size_t i = 0; i < WRITERS; i++)
		pids[i] = child_start(append, path);
	for (size_t i = 0; i < WRITERS; i++)
		CHILD_EXPECT("a writer", pids[i], 0);
	unlink(path);
	char *record = must_malloc(MIB);
	int mixed = 0, count = 0;
	for (; read(fd, record, MIB) == (ssize_t)MIB; count++)
		mixed += memcmp(record, record + 1, MIB - 1) != 0;
	CHECK_EQ("records", WRITERS * RECORDS, count);
	CHECK_EQ("mixed records", 0, mixed);
	free(record);
	close(fd);
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"by_number", by_number}, {"shared_table", shared_table}, {"close_from", close_from},
		{"limits", limits},	  {"appended", appended},
	};
	data = map_anon(LEN);
	fill(data, LEN, 3);
	return run_groups(argc, argv, groups, NELEM(groups));
}
