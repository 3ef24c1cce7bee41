/* Threads that are in a system call, or make one after another, while their process begins to be managed.
 * Usage: activate [MIB [ring]]; the block that is filled meanwhile, default 16 MiB: give several times the budget. With "ring"
 * an io_uring is made first, which the library does not see.
 *
 * Each waiter blocks in a call with a buffer on the heap (touched before or not) until the block has been filled and
 * verified: by then all that could leave RAM has left. Busy threads read and write, fork and spawn all the time. */
#include "check.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <spawn.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH (8 * PAGE)

struct waiter {
	const char *name;
	void (*wait)(struct waiter *self);
	pthread_t thread;
	int fds[2];
	bool touched;
	atomic_int waits;
};

static atomic_int stop;
static char message[LENGTH];

/* Heap memory of a waiter's own, in the middle of nothing else. */
static char *buffer(struct waiter *self, size_t len)
{
	char *p = must_malloc(len + 2 * PAGE);
	p = (char *)(((uintptr_t)p + PAGE) & ~(PAGE - 1));
	if (self->touched)
		memset(p, 0x55, len);
	self->waits = 1;
	return p;
}

static void wait_read(struct waiter *self)
{
	char *p = buffer(self, LENGTH);
	CHECK_EQ(self->name, LENGTH, (long)read(self->fds[0], p, LENGTH));
	CHECK_MEM(self->name, message, p, LENGTH);
}

static void wait_readv(struct waiter *self)
{
	struct iovec *parts = (struct iovec *)buffer(self, LENGTH + PAGE);
	char *p = (char *)parts + PAGE;
	parts[0] = (struct iovec){p, PAGE};
	parts[1] = (struct iovec){p + PAGE, LENGTH - PAGE};
	CHECK_EQ(self->name, LENGTH, (long)readv(self->fds[0], parts, 2));
	CHECK_MEM(self->name, message, p, LENGTH);
}

static void wait_recvmsg(struct waiter *self)
{
	char *p = buffer(self, LENGTH + 2 * PAGE);
	struct msghdr *header = (struct msghdr *)(p + LENGTH);
	struct iovec *part = (struct iovec *)(p + LENGTH + PAGE);
	*part = (struct iovec){p, LENGTH};
	*header = (struct msghdr){.msg_iov = part, .msg_iovlen = 1};
	CHECK_EQ(self->name, LENGTH, (long)recvmsg(self->fds[0], header, MSG_WAITALL));
	CHECK_MEM(self->name, message, p, LENGTH);
}

static void wait_epoll(struct waiter *self)
{
	struct epoll_event *events = (struct epoll_event *)buffer(self, PAGE);
	struct epoll_event wanted = {.events = EPOLLIN, .data.u64 = 77};
	int epoll = epoll_create1(0);
	CHECK_OK(self->name, epoll_ctl(epoll, EPOLL_CTL_ADD, self->fds[0], &wanted));
	CHECK_EQ(self->name, 1, epoll_wait(epoll, events, 8, -1));
	CHECK_EQ(self->name, 77, events[0].data.u64);
	close(epoll);
}

static void wait_poll(struct waiter *self)
{
	struct pollfd *fds = (struct pollfd *)buffer(self, PAGE);
	*fds = (struct pollfd){.fd = self->fds[0], .events = POLLIN};
	CHECK_EQ(self->name, 1, poll(fds, 1, -1));
	CHECK_EQ(self->name, POLLIN, fds->revents);
}

static void *waiter_main(void *argument)
{
	struct waiter *self = argument;
	self->wait(self);
	return NULL;
}

/* Calls that end at once, one after another. */
static void *busy_main(void *argument)
{
	(void)argument;
	char *p = must_malloc(2 * PAGE);
	int zero[2], fds[2];
	CHECK_OK("a pipe", pipe(fds));
	zero[0] = fileno(fopen("/dev/zero", "r"));
	while (!stop && failures() == 0) {
		memset(p, 0x77, PAGE);
		CHECK_EQ("reading zeros", PAGE, (long)read(zero[0], p, PAGE));
		CHECK_ZERO("zeros read", p, PAGE);
		fill(p, PAGE, 5);
		CHECK_EQ("writing to a pipe", PAGE, (long)write(fds[1], p, PAGE));
		CHECK_EQ("reading from it", PAGE, (long)read(fds[0], p + PAGE, PAGE));
		CHECK_FILL("what was read from it", p + PAGE, PAGE, 5);
	}
	return NULL;
}

static void end_of(const char *what, pid_t pid, int expected)
{
	int status = 0;
	CHECK_EQ(what, pid, waitpid(pid, &status, 0));
	CHECK_EQ(what, expected, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/* A child that reads and makes memory, and a program that is started: one after another. */
static void *births_main(void *argument)
{
	(void)argument;
	char *data = must_malloc(2 * MIB), *argv[] = {strdup("/bin/sh"), strdup("-c"), strdup("exit 7"), NULL};
	char *environment[] = {NULL};
	fill(data, 2 * MIB, 3);
	while (!stop && failures() == 0) {
		pid_t pid = fork();
		if (pid == 0) {
			fill(must_malloc(MIB), MIB, 4);
			_exit(first_bad(data, 2 * MIB, 3) == SIZE_MAX ? 0 : 1);
		}
		end_of("a fork", pid, 0);
		CHECK_EQ("posix_spawn", 0, posix_spawn(&pid, argv[0], NULL, NULL, argv, environment));
		end_of("a program that was spawned", pid, 7);
	}
	return NULL;
}

static atomic_int settled;

static void *maps_main(void *argument)
{
	(void)argument;
	while (!settled && failures() == 0)
		munmap(map_anon(64 * PAGE), 64 * PAGE);
	return NULL;
}

/* Locks of a dormant process's books are held by other threads at many a fork, and in the child by nobody: it waited for ever. */
static void dormant_forks(void)
{
	pthread_t mapping[2];
	for (size_t i = 0; i < NELEM(mapping); i++)
		CHECK_EQ("a thread", 0, pthread_create(&mapping[i], NULL, maps_main, NULL));
	for (int i = 0; i < 200 && failures() == 0; i++) {
		pid_t pid = fork();
		if (pid == 0) {
			fill(map_anon(64 * PAGE), 64 * PAGE, 4);
			_exit(0);
		}
		end_of("a fork of a dormant process", pid, 0);
	}
	settled = 1;
	for (size_t i = 0; i < NELEM(mapping); i++)
		CHECK_EQ("the end of a thread", 0, pthread_join(mapping[i], NULL));
}

#define ADVISED (64 * PAGE)

/* What a child gets of memory that was advised before its process became active: nothing of one part, all of the others. */
static void inherits(char *advised)
{
	pid_t pid = fork();
	if (pid == 0) {
		size_t zeros = 0;
		while (zeros < ADVISED && advised[ADVISED + zeros] == 0)
			zeros++;
		bool kept = first_bad(advised, ADVISED, 5) == SIZE_MAX && first_bad(advised + 2 * ADVISED, ADVISED, 7) == SIZE_MAX;
		_exit(zeros == ADVISED && kept ? 0 : 1);
	}
	end_of("a fork after advice", pid, 0);
	CHECK_FILL("advised memory of the parent", advised + ADVISED, ADVISED, 6);
}

/* Smaller than what is mapped by all others. */
#define ROOM (ADVISED / 2)

/* Memory that was not to be dumped before its process became active, with room behind it for what mremap moves there. By that flag farpage keeps
 * such a mapping apart, until it is registered: the kernel merged the two, and what was swapped of this one read zeros. */
static char *undumped(void)
{
	char *p = map_anon(2 * ADVISED + ROOM);
	fill(p, ADVISED, 10);
	CHECK_OK("DONTDUMP", madvise(p, ADVISED, MADV_DONTDUMP));
	CHECK_OK("room behind it", munmap(p + ADVISED, ROOM));
	return p;
}

/* Nothing was touched, nor in a mapping that it could be a part of: the kernel merges such memory with any. */
static char *fresh_mapping(void)
{
	char *p = mmap(NULL, 3 * ADVISED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK("mmap", p != MAP_FAILED);
	CHECK_OK("mprotect", mprotect(p + ADVISED, ADVISED, PROT_READ | PROT_WRITE));
	return p + ADVISED;
}

static void move_beside(char *undumped, char *fresh)
{
	char *to = undumped + ADVISED;
	CHECK("moved beside it", mremap(fresh, ROOM, ROOM, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	CHECK_FILL("what is not to be dumped", undumped, ADVISED, 10);
	CHECK_ZERO("what came beside it", to, ROOM);
}

/* As libraries do that bring their own system calls. */
static long raw_io_uring_setup(void)
{
	static char parameters[120];
	long result;
	register long three asm("r10") = 0;
	asm volatile("syscall" : "=a"(result) : "a"((long)SYS_io_uring_setup), "D"(4L), "S"(parameters), "d"(0L), "r"(three) : "rcx", "r11", "memory");
	return result;
}

/* The byte that says whether calls are the program's to answer, which the kernel reads at each. Named before the process is managed it left
 * RAM, and a call of farpage's own waited for it. */
static void select_calls(char *selector, bool on)
{
	memset(selector, 0, ADVISED);
	if (prctl(59 /* PR_SET_SYSCALL_USER_DISPATCH */, on, 0, 0, on ? selector : NULL) != 0)
		skip("selector", "prctl: %s", strerror(errno));
}

static struct waiter waiters[] = {
	{.name = "read", .wait = wait_read},         {.name = "read, touched", .wait = wait_read, .touched = true},
	{.name = "readv", .wait = wait_readv},       {.name = "recvmsg", .wait = wait_recvmsg},
	{.name = "epoll_wait", .wait = wait_epoll},  {.name = "poll, touched", .wait = wait_poll, .touched = true},
};

int main(int argc, char **argv)
{
	check_init(argv);
	size_t len = (argc > 1 ? strtoul(argv[1], NULL, 10) : 16) * MIB;
	pthread_t busy[3];
	fill(message, LENGTH, 9);
	if (argc > 2) {
		CHECK("a ring of a library's", raw_io_uring_setup() >= 0);
	} else {
		CHECK_ERR("io_uring_setup", ENOSYS, syscall(SYS_io_uring_setup, 4, message));
	}
	dormant_forks();
	char *advised = map_anon(3 * ADVISED);
	for (int i = 0; i < 3; i++)
		fill(advised + i * ADVISED, ADVISED, 5 + i);
	char *locked = map_anon(ADVISED), *secret = undumped(), *fresh = fresh_mapping();
	fill(locked, ADVISED, 8);
	CHECK_OK("mlock", mlock(locked, ADVISED));
	char *selector = map_anon(ADVISED);
	select_calls(selector, true);
	CHECK_OK("WIPEONFORK", madvise(advised + ADVISED, ADVISED, MADV_WIPEONFORK));
	CHECK_OK("DONTFORK", madvise(advised + 2 * ADVISED, ADVISED, MADV_DONTFORK));
	CHECK_OK("DOFORK", madvise(advised + 2 * ADVISED, ADVISED, MADV_DOFORK));
	for (size_t i = 0; i < NELEM(waiters); i++) {
		CHECK_OK("a socket", socketpair(AF_UNIX, SOCK_STREAM, 0, waiters[i].fds));
		CHECK_EQ("a thread", 0, pthread_create(&waiters[i].thread, NULL, waiter_main, &waiters[i]));
		while (!waiters[i].waits)
			usleep(1000);
	}
	for (size_t i = 0; i < NELEM(busy); i++)
		CHECK_EQ("a thread", 0, pthread_create(&busy[i], NULL, i ? busy_main : births_main, NULL));
	usleep(100000);
	char *block = map_anon(len);
	fill(block + len / 2, len - len / 2, 1);
	inherits(advised);
	fill(block, len, 1);
	CHECK_FILL("the block", block, len, 1);
	inherits(advised);
	move_beside(secret, fresh);
	for (size_t i = 0; i < NELEM(waiters); i++) {
		CHECK_EQ("a message", LENGTH, (long)write(waiters[i].fds[1], message, LENGTH));
		CHECK_EQ("the end of a thread", 0, pthread_join(waiters[i].thread, NULL));
	}
	stop = 1;
	for (size_t i = 0; i < NELEM(busy); i++)
		CHECK_EQ("the end of a thread", 0, pthread_join(busy[i], NULL));
	CHECK_FILL("the block, again", block, len, 1);
	unsigned char there[64] = {0};
	CHECK_OK("mincore", mincore(locked, ADVISED, there));
	for (size_t i = 0; i < NELEM(there) && argc < 3; i++)
		CHECK_EQ("what was locked is in RAM", 1, there[i] & 1);
	CHECK_OK("mincore", mincore(selector, PAGE, there));
	CHECK_EQ("what the kernel reads is in RAM", 1, there[0] & 1);
	select_calls(selector, false);
	CHECK_OK("munlock", munlock(locked, ADVISED));
	CHECK_FILL("what was locked", locked, ADVISED, 8);
	if (failures() == 0)
		say("ok activate\n");
	return failures() ? 1 : 0;
}
