/* Forks into pid namespaces of their own, as sandboxes do: there a process has another number for itself, and for its children, than
 * in the table of its tree. It keeps its memory all the same, and so do its children there, killed or not, whatever is mounted at
 * /proc. (Such a child was stopped once.) */
#include "check.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define LEN (size_mb * MIB)
#define KILLED 6

static char *data;
static bool with_proc;

static void look(void *unused)
{
	(void)unused;
	CHECK_FILL("memory of before the fork", data, LEN, 7);
	fill(data, LEN, 8);
	CHECK_FILL("memory of the child's own", data, LEN, 8);
}

static void touch_for_ever(void *unused)
{
	(void)unused;
	for (;;)
		for (size_t at = 0; at < LEN; at += PAGE)
			data[at] ^= 1;
}

/* A sibling's memory, by its number here. */
static void look_into(pid_t pid)
{
	static char copy[8 * PAGE];
	struct iovec near = {copy, sizeof copy}, far = {data, sizeof copy};
	CHECK_EQ("process_vm_readv", sizeof copy, process_vm_readv(pid, &near, 1, &far, 1, 0));
	CHECK_FILL("what was read", copy, sizeof copy, 7);
}

static void wait_to_be_killed(void *unused)
{
	(void)unused;
	for (;;)
		pause();
}

static void forks_once_more(void *unused)
{
	CHILD_EXPECT("a child of a child", child_start(look, unused), 0);
	look(unused);
}

/* The first process of a namespace: its number is 1. */
static void lives_apart(void *unused)
{
	CHECK_EQ("the number of the first process", 1, getpid());
	if (with_proc) {
		CHECK_OK("unshare", unshare(CLONE_NEWNS));
		CHECK_OK("private mounts", mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
		CHECK_OK("a /proc of its own", mount("proc", "/proc", "proc", 0, NULL));
	}
	CHILD_EXPECT("a child", child_start(forks_once_more, unused), 0);
	pid_t waits = child_start(wait_to_be_killed, unused);
	chill();
	look_into(waits);
	kill(waits, SIGKILL);
	CHILD_EXPECT("a child that waits", waits, 128 + SIGKILL);
	for (unsigned i = 0; i < KILLED; i++) {
		pid_t pid = child_start(touch_for_ever, unused);
		usleep((useconds_t)(mix64(i) % 20000));
		kill(pid, SIGKILL);
		CHILD_EXPECT("a child that is killed", pid, 128 + SIGKILL);
	}
	signal(SIGCHLD, SIG_IGN);
	for (unsigned i = 0; i < KILLED; i++)
		kill(child_start(touch_for_ever, unused), SIGKILL);
	while (wait(NULL) > 0 || errno == EINTR)
		;
	signal(SIGCHLD, SIG_DFL);
	CHECK_EQ("a program", 0, system("exec true"));
	look(unused);
}

static void by_unshare(void *unused)
{
	if (CHECK_OK("unshare", unshare(CLONE_NEWPID)))
		CHILD_EXPECT("the first process", child_start(lives_apart, unused), 0);
	CHECK_FILL("the parent's memory", data, LEN, 7);
}

static int borrower(void *unused)
{
	volatile char *p = data + 5 * PAGE;
	int status = 0;
	(void)unused;
	*p = *p;
	/* It has no number in the tree that it could give: refused, or a process like any other. */
	pid_t pid = fork();
	if (pid == 0)
		_exit(first_bad(data, LEN, 7) == SIZE_MAX ? 0 : 1);
	if (pid < 0)
		return errno == EAGAIN ? 0 : 2;
	return waitpid(pid, &status, 0) == pid && status == 0 ? 0 : 3;
}

static void borrowed(void)
{
	static char stack[64 * 1024] __attribute__((aligned(16)));
	chill();
	int flags = CLONE_NEWPID | CLONE_VM | CLONE_VFORK | SIGCHLD;
	CHILD_EXPECT("a child in its parent's memory", clone(borrower, stack + sizeof stack, flags, NULL), 0);
	CHECK_FILL("the parent's memory", data, LEN, 7);
}

/* As sandboxes do it, by number. */
static void cloned(void)
{
	pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, NULL, NULL, NULL, NULL);
	if (pid == 0) {
		lives_apart(NULL);
		_exit(failures() ? 1 : 0);
	}
	CHILD_EXPECT("the first process", pid, 0);
	CHECK_FILL("the parent's memory", data, LEN, 7);
}

static void unshared(void)
{
	CHILD_EXPECT("who unshares", child_start(by_unshare, NULL), 0);
}

static void with_another_proc(void)
{
	with_proc = true;
	cloned();
	cloned();
}

/* A program in a namespace of its own, started by who has memory there, and its parent, which waits. */
static int hold(void)
{
	pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, NULL, NULL, NULL, NULL);
	if (pid == 0) {
		execlp("sleep", "sleep", "60", NULL);
		_exit(127);
	}
	say("held\n");
	CHILD_EXPECT("the program", pid, 128 + SIGKILL);
	return failures() ? 1 : 0;
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"unshared", unshared},
		{"cloned", cloned},
		{"borrowed", borrowed},
		{"with_another_proc", with_another_proc},
	};
	check_init(argv);
	if (argc > 1)
		size_mb = strtoul(argv[1], NULL, 10);
	data = map_anon(LEN);
	fill(data, LEN, 7);
	if (argc > 2 && strcmp(argv[2], "hold") == 0)
		return hold();
	return run_groups(argc, argv, groups, NELEM(groups));
}
