/* A library of the user's own in LD_PRELOAD, hooked.so, which takes calls over: it sees them all, on memory that is in RAM and on memory that
 * is out. The calls on what was in RAM passed it by, and so did exec.
 * Usage: hooked [MIB]. It starts itself as `hooked --child MANAGED`. */
#include "check.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern int hooked_calls[8] __attribute__((weak)), hooked_execs __attribute__((weak)), hooked_tells __attribute__((weak));
extern char **environ;

#define TURNS 10
#define LEN (4 * PAGE)

static const char *const names[] = {"read", "write", "pread", "pwrite", "recv", "send", "poll", "epoll_wait"};

/* Each call once, on a page of `p` each. */
static void each_call(char *p, bool is_cold, int zero, int file, int ends[2], int epoll)
{
	struct pollfd *polled = (void *)(p + 6 * LEN);
	polled->fd = ends[1];
	polled->events = POLLOUT;
	fill(p + LEN, LEN, 1);
	fill(p + 3 * LEN, LEN, 3);
	fill(p + 5 * LEN, LEN, 5);
	if (is_cold)
		chill();
	CHECK_EQ("write", LEN, write(file, p + LEN, LEN));
	CHECK_EQ("pwrite", LEN, pwrite(file, p + 3 * LEN, LEN, LEN));
	CHECK_EQ("pread", LEN, pread(file, p + 2 * LEN, LEN, 0));
	CHECK_FILL("what was read", p + 2 * LEN, LEN, 1);
	CHECK_EQ("pread", LEN, pread(file, p + 2 * LEN, LEN, LEN));
	CHECK_FILL("what was read", p + 2 * LEN, LEN, 3);
	CHECK_EQ("send", LEN, send(ends[0], p + 5 * LEN, LEN, 0));
	CHECK_EQ("recv", LEN, recv(ends[1], p + 4 * LEN, LEN, MSG_WAITALL));
	CHECK_FILL("what came", p + 4 * LEN, LEN, 5);
	CHECK_EQ("read", LEN, read(zero, p, LEN));
	CHECK_ZERO("what was read", p, LEN);
	CHECK_EQ("poll", 1, poll(polled, 1, 0));
	CHECK_EQ("its answer", POLLOUT, polled->revents);
	CHECK_EQ("epoll_wait", 1, epoll_wait(epoll, (struct epoll_event *)(p + 7 * LEN), 1, 0));
	CHECK_OK("lseek", (int)lseek(file, 0, SEEK_SET));
}

static void calls(void)
{
	char *p = must_malloc(8 * LEN);
	int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC), file = temp_file(), ends[2], epoll = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = {.events = EPOLLOUT};
	CHECK_OK("socketpair", socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
	CHECK_OK("epoll_ctl", epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event));
	for (int turn = 0; turn < TURNS; turn++) {
		int before[8];
		memcpy(before, hooked_calls, sizeof before);
		each_call(p, turn % 3 == 2, zero, file, ends, epoll);
		for (size_t i = 0; i < NELEM(names); i++)
			/* What check.h does itself writes and polls nothing. */
			CHECK_EQ(names[i], i == 2 ? 2 : 1, hooked_calls[i] - before[i]);
	}
	close(zero);
	close(file);
	close(epoll);
	close(ends[0]);
	close(ends[1]);
	free(p);
}

static bool has_managed_malloc(void)
{
	char *p = must_malloc(MIB);
	bool managed = is_managed(p);
	free(p);
	return managed;
}

enum way { BY_EXECVE, BY_EXECV, BY_EXECVP, BY_FEXECVE, BY_OTHER_NAME, WITHOUT_ENVIRONMENT, WAYS };

/* All that exec reads is on pages of its own. */
static char *cold_string(const char *text)
{
	return strcpy(cold_alloc(PAGE + strlen(text)), text);
}

static void start(enum way way, char **argv, char **bare)
{
	int fd;
	switch (way) {
	case BY_EXECVE:
	case BY_OTHER_NAME:
		execve(self_path, argv, environ);
		break;
	case WITHOUT_ENVIRONMENT:
		execve(self_path, argv, bare);
		break;
	case BY_EXECV:
		execv(self_path, argv);
		break;
	case BY_EXECVP:
		execvp(self_path, argv);
		break;
	default:
		fd = open(self_path, O_RDONLY);
		fexecve(fd, argv, environ);
	}
	_exit(99);
}

static void execs(void)
{
	int ends[2];
	CHECK_OK("pipe", pipe2(ends, O_NONBLOCK | O_CLOEXEC));
	/* The library's own place, as the user named it. */
	const char *preload = getenv("HOOKED_PRELOAD");
	char *bare[2] = {cold_alloc(PAGE), NULL};
	snprintf(bare[0], PAGE, "LD_PRELOAD=%s", preload ? preload : "");
	char **argv = cold_alloc(4 * sizeof *argv);
	argv[1] = cold_string("--child");
	argv[2] = cold_string(has_managed_malloc() ? "1" : "0");
	argv[3] = NULL;
	for (int vforks = 0; vforks < 2; vforks++) {
		for (int way = 0; way < WAYS; way++) {
			/* One that it has not taken over. */
			ssize_t seen = way == BY_EXECVP ? -1 : 1;
			char said = 0;
			argv[0] = cold_string(way == BY_OTHER_NAME ? "=" : "hooked");
			/* An array that no register shows the filter. */
			char *near[4] = {argv[0], argv[1], argv[2], NULL};
			hooked_tells = ends[1];
			int before = hooked_execs;
			chill();
			pid_t pid = vforks ? vfork() : fork();
			if (pid == 0)
				start((enum way)way, way % 2 ? near : argv, bare);
			CHILD_EXPECT("the new image", pid, 7);
			hooked_tells = -1;
			if (vforks)
				CHECK_EQ("execs seen", seen > 0, hooked_execs - before);
			CHECK_EQ("what the library says", seen, syscall(SYS_read, ends[0], &said, 1));
			CHECK_EQ("which", seen < 0 ? 0 : way == BY_FEXECVE ? 'f' : 'e', said);
		}
	}
	pid_t pid = vfork();
	if (pid == 0) {
		execve("/nonexistent", argv, environ);
		_exit(errno == ENOENT ? 5 : 6);
	}
	CHILD_EXPECT("an exec of nothing", pid, 5);
	close(ends[0]);
	close(ends[1]);
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "--child") == 0)
		return has_managed_malloc() == (argv[2][0] == '1') && &hooked_execs ? 7 : 8;
	check_init(argv);
	size_mb = argc > 1 ? strtoul(argv[1], NULL, 10) : 16;
	if (!CHECK("hooked.so is preloaded", &hooked_execs))
		return 1;
	calls();
	execs();
	if (failures() == 0)
		say("ok hooked");
	return failures() ? 1 : 0;
}
