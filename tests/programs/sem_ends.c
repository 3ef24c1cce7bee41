/* How threads end: the first before the others, or with locks in their hands. Usage: sem_ends [MIB] [GROUP]; MIB (default 16) is the size of the
 * block that makes memory cold. */
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

/* Returns once the first thread of this process has ended: to /proc it is the process, a zombie from then on. */
static void await_end_of_first(void)
{
	char path[64], stat[512], *state = NULL;
	snprintf(path, sizeof path, "/proc/%d/stat", (int)getpid());
	for (int i = 0; i < 5000 && !(state && state[2] == 'Z'); i++) {
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		ssize_t n = read(fd, stat, sizeof stat - 1);
		close(fd);
		stat[n > 0 ? n : 0] = 0;
		state = strrchr(stat, ')');
		sleep_ms(1);
	}
	CHECK("the first thread has ended", state && state[2] == 'Z');
}

static void *left_alone(void *arg)
{
	char *p = arg;
	int fds[2];
	await_end_of_first();
	CHECK_OK("pipe", pipe(fds));
	struct iovec parts[2] = {{p, 5}, {p + size_mb * MIB - 7, 7}};
	chill();
	CHECK_EQ("writev from cold memory", 12, writev(fds[1], parts, 2));
	struct iovec *cold = cold_alloc(PAGE);
	cold[0] = (struct iovec){p + MIB, 4};
	cold[1] = (struct iovec){p + MIB + 4, 8};
	chill();
	CHECK_EQ("readv into cold memory by a cold array", 12, readv(fds[0], cold, 2));
	CHECK_MEM("its content", p, p + MIB, 5);
	CHECK_MEM("its content", p + size_mb * MIB - 7, p + MIB + 5, 7);
	fill(p, size_mb * MIB, 9);
	sigset_t *set = cold_alloc(PAGE);
	sigemptyset(set);
	chill();
	CHECK_OK("rt_sigprocmask by number", syscall(SYS_rt_sigprocmask, SIG_BLOCK, set, set, 8));
	pid_t pid = fork();
	if (pid == 0) {
		chill();
		CHECK_FILL("memory of a child", p, size_mb * MIB, 9);
		_exit(failures() ? 1 : 0);
	}
	CHILD_EXPECT("a child", pid, 0);
	CHECK_FILL("memory", p, size_mb * MIB, 9);
	_exit(failures() ? 1 : 0);
}

static void end_first(void *arg)
{
	pthread_t t;
	CHECK_EQ("pthread_create", 0, pthread_create(&t, NULL, left_alone, arg));
	pthread_exit(NULL);
}

/* The engine read the program's memory by the process's number, which is its first thread's: once that had ended before the others all
 * calls on hidden pointers answered EFAULT. */
static void first_ends(void)
{
	char *p = must_malloc(size_mb * MIB);
	fill(p, size_mb * MIB, 8);
	CHILD_EXPECT("a process without its first thread", child_start(end_first, p), 0);
	free(p);
}

static void *die_with_lock(void *arg)
{
	pthread_mutex_lock(arg);
	return NULL;
}

static void robust(void)
{
	pthread_mutexattr_t attr;
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_t *m = (void *)((char *)must_malloc(4 * PAGE) + PAGE);
	pthread_mutex_init(m, &attr);
	for (int i = 0; i < 3; i++) {
		pthread_t t;
		pthread_create(&t, NULL, die_with_lock, m);
		pthread_join(t, NULL);
		chill();
		CHECK_EQ("lock of a dead owner", EOWNERDEAD, pthread_mutex_lock(m));
		CHECK_EQ("made consistent", 0, pthread_mutex_consistent(m));
		CHECK_EQ("unlock", 0, pthread_mutex_unlock(m));
	}
	free((char *)m - PAGE);
	pthread_mutex_t *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(shared, &attr);
	pid_t pid = fork();
	if (pid == 0) {
		pthread_mutex_lock(shared);
		_exit(0);
	}
	CHILD_EXPECT("child that dies with a lock", pid, 0);
	CHECK_EQ("lock of a dead process", EOWNERDEAD, pthread_mutex_lock(shared));
	CHECK_EQ("made consistent", 0, pthread_mutex_consistent(shared));
	/* Or it stays in this thread's list. */
	CHECK_EQ("unlock", 0, pthread_mutex_unlock(shared));
	munmap(shared, sizeof *shared);
}

/* Robust mutexes, each in the middle of so much memory that its page leaves by MADV_PAGEOUT, and the ways for a thread that holds all of them to
 * end. */
enum end { END_RETURN, END_EXIT, END_CANCEL, END_BY_NUMBER, ENDS };
enum { HELD = 5 };
#define AROUND (64 * PAGE)
static pthread_mutex_t *held[HELD];

static void *end_with_cold_locks(void *how)
{
	for (size_t i = 0; i < HELD; i++)
		pthread_mutex_lock(held[i]);
	chill();
	for (size_t i = 0; i < HELD; i++)
		make_cold(held[i], sizeof *held[i]);
	switch ((enum end)(intptr_t)how) {
	case END_EXIT:
		pthread_exit(NULL);
	case END_CANCEL:
		pthread_cancel(pthread_self());
		pthread_testcancel();
		break;
	case END_BY_NUMBER:
		syscall(SYS_exit, 0);
		break;
	default:
		break;
	}
	return NULL;
}

static void check_left_locks(void)
{
	for (size_t i = 0; i < HELD; i++) {
		struct timespec until;
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += 10;
		if (!CHECK_EQ("cold lock of a dead owner", EOWNERDEAD, pthread_mutex_timedlock(held[i], &until)))
			return;
		CHECK_EQ("made consistent", 0, pthread_mutex_consistent(held[i]));
		CHECK_EQ("unlock", 0, pthread_mutex_unlock(held[i]));
	}
}

/* An exec ends them as well, when nobody is left in the old memory to bring a page in: it waited for good, by thread. */
static void exec_with_locks(void *shared)
{
	static char *const argv[] = {(char *)"true", NULL};
	alarm(20);
	/* The last that the kernel comes to. */
	pthread_mutex_lock(shared);
	for (size_t i = 0; i < HELD; i++)
		pthread_mutex_lock(held[i]);
	chill();
	for (size_t i = 0; i < HELD; i++)
		make_cold(held[i], sizeof *held[i]);
	execv("/bin/true", argv);
	_exit(1);
}

static void *check_after_first(void *arg)
{
	(void)arg;
	await_end_of_first();
	check_left_locks();
	_exit(failures() ? 1 : 0);
}

static void end_first_with_locks(void *arg)
{
	pthread_t t;
	CHECK_EQ("pthread_create", 0, pthread_create(&t, NULL, check_after_first, arg));
	end_with_cold_locks((void *)END_EXIT);
}

/* The kernel goes through these locks as their holder ends, and once stopped at the first that was out: who waited for one waited for ever. */
static void robust_cold(void)
{
	pthread_mutexattr_t attr;
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	for (size_t i = 0; i < HELD; i++) {
		held[i] = (void *)((char *)cold_alloc(2 * AROUND) + AROUND);
		pthread_mutexattr_setprotocol(&attr, i == 2 ? PTHREAD_PRIO_INHERIT : PTHREAD_PRIO_NONE);
		CHECK_EQ("pthread_mutex_init", 0, pthread_mutex_init(held[i], &attr));
	}
	for (intptr_t how = 0; how < ENDS && !failures(); how++) {
		pthread_t t;
		pthread_create(&t, NULL, end_with_cold_locks, (void *)how);
		pthread_join(t, NULL);
		check_left_locks();
	}
	CHILD_EXPECT("a first thread that ends with locks", child_start(end_first_with_locks, NULL), 0);
	pthread_mutex_t *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_NONE);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(shared, &attr);
	CHILD_EXPECT("an exec with locks", child_start(exec_with_locks, shared), 0);
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 5;
	if (CHECK_EQ("lock of an image that has gone", EOWNERDEAD, pthread_mutex_timedlock(shared, &until))) {
		pthread_mutex_consistent(shared);
		pthread_mutex_unlock(shared);
	}
	munmap(shared, sizeof *shared);
}

/* A program's only thread that ends itself by number ended alone: the process lived on with the engine's threads. */
static void by_number(void)
{
	for (int managed = 0; managed < 2; managed++) {
		pid_t pid = fork();
		if (pid == 0) {
			if (managed)
				chill();
			syscall(SYS_exit, 3);
		}
		CHILD_EXPECT(managed ? "a child that ends by number" : "a small child that ends by number", pid, 3);
	}
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"first_ends", first_ends},
		{"robust", robust},
		{"robust_cold", robust_cold},
		{"by_number", by_number},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
