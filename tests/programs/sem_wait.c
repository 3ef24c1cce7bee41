/* Calls that wait, with every pointer in cold memory: poll, select, epoll, futex, timers, eventfd, inotify, message queues.
 * Usage: sem_wait [MIB] [GROUP]; MIB (default 16) is the size of the block that makes memory cold. */
#include "check.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>

static void *cold_page(int byte)
{
	void *p = cold_alloc(PAGE);
	memset(p, byte, PAGE);
	return p;
}

static int fds[2];

static void *write_later(void *arg)
{
	sleep_ms(20);
	CHECK("write", write_all(fds[1], arg, 1));
	return NULL;
}

/* Runs `wait` while another thread writes one byte to the pipe a moment later, then reads that byte. */
static int with_writer(int (*wait)(void))
{
	pthread_t t;
	char got = 0;
	CHECK_EQ("pthread_create", 0, pthread_create(&t, NULL, write_later, "x"));
	int result = wait();
	pthread_join(t, NULL);
	CHECK("read", read_all(fds[0], &got, 1));
	CHECK_EQ("byte", 'x', got);
	return result;
}

static struct pollfd *poll_fds;
static struct timespec *wait_time;
static sigset_t *wait_mask;
static fd_set *read_set, *write_set;
static struct timeval *wait_timeval;
static struct epoll_event *events;
static int epoll_fd;

static int wait_poll(void)
{
	return poll(poll_fds, 2, 5000);
}

static int wait_ppoll(void)
{
	return ppoll(poll_fds, 2, wait_time, wait_mask);
}

static int wait_select(void)
{
	return select(fds[1] + 1, read_set, NULL, NULL, wait_timeval);
}

static int wait_pselect(void)
{
	return pselect(fds[1] + 1, read_set, NULL, NULL, wait_time, wait_mask);
}

static int wait_epoll(void)
{
	return epoll_wait(epoll_fd, events, 100, 5000);
}

static int wait_epoll_pwait(void)
{
	return epoll_pwait(epoll_fd, events, 100, 5000, wait_mask);
}

static int wait_epoll_pwait2(void)
{
	return (int)syscall(SYS_epoll_pwait2, epoll_fd, events, 100, wait_time, wait_mask, 8);
}

static void polls(void)
{
	CHECK_OK("pipe", pipe(fds));
	poll_fds = cold_page(0);
	wait_time = cold_page(0);
	wait_mask = cold_page(0);
	sigemptyset(wait_mask);
	for (int way = 0; way < 2; way++) {
		poll_fds[0] = (struct pollfd){.fd = fds[0], .events = POLLIN, .revents = 77};
		poll_fds[1] = (struct pollfd){.fd = -1, .events = POLLIN, .revents = 77};
		*wait_time = (struct timespec){5, 0};
		chill();
		CHECK_EQ("poll", 1, with_writer(way ? wait_ppoll : wait_poll));
		CHECK_EQ("revents", POLLIN, poll_fds[0].revents);
		CHECK_EQ("revents of no descriptor", 0, poll_fds[1].revents);
	}
	chill();
	CHECK_EQ("poll times out", 0, poll(poll_fds, 2, 10));
	for (int i = 0; i < 400; i++)
		poll_fds[i] = (struct pollfd){.fd = fds[1], .events = POLLOUT};
	chill();
	CHECK_EQ("poll of many", 400, poll(poll_fds, 400, 1000));
	read_set = cold_page(0);
	write_set = cold_page(0);
	wait_timeval = cold_page(0);
	for (int way = 0; way < 2; way++) {
		FD_ZERO(read_set);
		FD_SET(fds[0], read_set);
		*wait_timeval = (struct timeval){5, 0};
		chill();
		CHECK_EQ("select", 1, with_writer(way ? wait_pselect : wait_select));
		CHECK("select result", FD_ISSET(fds[0], read_set));
	}
	FD_SET(fds[1], write_set);
	*wait_timeval = (struct timeval){0, 10000};
	chill();
	CHECK_EQ("select for both", 1, select(fds[1] + 1, read_set, write_set, NULL, wait_timeval));
	CHECK("select: not readable", !FD_ISSET(fds[0], read_set));
	CHECK("select: writable", FD_ISSET(fds[1], write_set));
	*wait_timeval = (struct timeval){0, 10000};
	chill();
	CHECK_EQ("select times out", 0, select(0, NULL, NULL, NULL, wait_timeval));
	close(fds[0]);
	close(fds[1]);
}

static void epolls(void)
{
	CHECK_OK("pipe", pipe(fds));
	events = cold_page(0);
	wait_time = cold_page(0);
	wait_mask = cold_page(0);
	sigemptyset(wait_mask);
	*wait_time = (struct timespec){5, 0};
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	events[0] = (struct epoll_event){.events = EPOLLIN, .data.u64 = 0x1234567890};
	chill();
	CHECK_OK("epoll_ctl", epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fds[0], events));
	static int (*const ways[])(void) = {wait_epoll, wait_epoll_pwait, wait_epoll_pwait2};
	for (size_t i = 0; i < NELEM(ways); i++) {
		memset(events, 0, PAGE);
		chill();
		CHECK_EQ("epoll wait", 1, with_writer(ways[i]));
		CHECK_EQ("event", EPOLLIN, events[0].events);
		CHECK_EQ("event data", 0x1234567890, events[0].data.u64);
	}
	chill();
	CHECK_EQ("epoll_wait times out", 0, epoll_wait(epoll_fd, events, 100, 10));
	close(epoll_fd);
	close(fds[0]);
	close(fds[1]);
}

static uint32_t *futex_word;

static long futex(uint32_t *word, int op, uint32_t value, const struct timespec *t, uint32_t *other)
{
	return syscall(SYS_futex, word, op, value, t, other, 0);
}

static void *futex_waker(void *arg)
{
	(void)arg;
	sleep_ms(20);
	__atomic_store_n(futex_word, 1, __ATOMIC_SEQ_CST);
	CHECK("futex wake", futex(futex_word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL) >= 0);
	return NULL;
}

static void futexes(void)
{
	pthread_t t;
	char *block = must_malloc(64 * PAGE);
	struct timespec *ts = cold_page(0);
	futex_word = (uint32_t *)(void *)(block + 33 * PAGE);
	memset(block, 0, 64 * PAGE);
	ts->tv_nsec = 5000000;
	chill();
	CHECK_ERR("futex wait times out", ETIMEDOUT, futex(futex_word, FUTEX_WAIT_PRIVATE, 0, ts, NULL));
	chill();
	CHECK_ERR("futex wait on another value", EAGAIN, futex(futex_word, FUTEX_WAIT, 9, NULL, NULL));
	chill();
	CHECK_EQ("futex wake of nobody", 0, futex(futex_word, FUTEX_WAKE, 1, NULL, NULL));
	for (int i = 0; i < 5; i++) {
		*futex_word = 0;
		pthread_create(&t, NULL, futex_waker, NULL);
		chill();
		while (__atomic_load_n(futex_word, __ATOMIC_SEQ_CST) == 0)
			futex(futex_word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL);
		pthread_join(t, NULL);
	}
	/* The word goes cold while a thread waits on it. */
	for (int i = 0; i < 3; i++) {
		*futex_word = 0;
		pthread_create(&t, NULL, futex_waker, NULL);
		while (__atomic_load_n(futex_word, __ATOMIC_SEQ_CST) == 0) {
			futex(futex_word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL);
			chill();
		}
		pthread_join(t, NULL);
	}
	chill();
	*futex_word = 0;
	chill();
	CHECK_EQ("futex requeue", 0, futex(futex_word, FUTEX_CMP_REQUEUE, 1, (void *)1, futex_word + 2 * PAGE));
	free(block);
}

static void *setter(void *arg)
{
	sleep_ms(30);
	pthread_mutex_lock(arg);
	futex_word[4096] = 1;
	pthread_cond_signal((pthread_cond_t *)((char *)arg + PAGE));
	pthread_mutex_unlock(arg);
	return NULL;
}

/* A waiter whose mutex and condition are evicted while it sleeps. */
static void conditions(void)
{
	char *block = must_malloc(64 * PAGE);
	pthread_mutex_t *m = (void *)block;
	pthread_cond_t *c = (void *)(block + PAGE);
	futex_word = (uint32_t *)(void *)(block + 2 * PAGE);
	pthread_mutex_init(m, NULL);
	pthread_cond_init(c, NULL);
	for (int i = 0; i < 3; i++) {
		pthread_t t;
		futex_word[4096] = 0;
		pthread_create(&t, NULL, setter, m);
		chill();
		pthread_mutex_lock(m);
		while (!futex_word[4096])
			pthread_cond_wait(c, m);
		pthread_mutex_unlock(m);
		pthread_join(t, NULL);
	}
	struct timespec *until = cold_page(0);
	clock_gettime(CLOCK_REALTIME, until);
	chill();
	pthread_mutex_lock(m);
	CHECK_EQ("pthread_cond_timedwait", ETIMEDOUT, pthread_cond_timedwait(c, m, until));
	pthread_mutex_unlock(m);
	pthread_cond_destroy(c);
	pthread_mutex_destroy(m);
	free(block);
}

static volatile sig_atomic_t timer_hits;

static void on_timer(int signo, siginfo_t *info, void *context)
{
	(void)signo;
	(void)context;
	timer_hits += info->si_value.sival_int == 55;
}

static void timers(void)
{
	struct itimerspec *its = cold_page(0), *old = cold_page(0xee);
	uint64_t *count = cold_page(0);
	int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
	its->it_value.tv_nsec = 3000000;
	chill();
	CHECK_OK("timerfd_settime", timerfd_settime(fd, 0, its, old));
	CHECK_EQ("old value", 0, old->it_value.tv_nsec);
	chill();
	CHECK_EQ("read of a timerfd", 8, read(fd, count, 8));
	CHECK_EQ("expirations", 1, *count);
	chill();
	CHECK_OK("timerfd_gettime", timerfd_gettime(fd, old));
	close(fd);
	fd = eventfd(0, EFD_CLOEXEC);
	*count = 41;
	chill();
	CHECK_EQ("write of an eventfd", 8, write(fd, count, 8));
	*count = 0;
	chill();
	CHECK_EQ("read of an eventfd", 8, read(fd, count, PAGE));
	CHECK_EQ("its count", 41, *count);
	close(fd);
	struct sigevent *sev = cold_page(0);
	timer_t *id = cold_page(0);
	struct sigaction act = {.sa_sigaction = on_timer, .sa_flags = SA_SIGINFO};
	sigaction(SIGUSR2, &act, NULL);
	sev->sigev_notify = SIGEV_SIGNAL;
	sev->sigev_signo = SIGUSR2;
	sev->sigev_value.sival_int = 55;
	chill();
	CHECK_OK("timer_create", timer_create(CLOCK_MONOTONIC, sev, id));
	chill();
	CHECK_OK("timer_settime", timer_settime(*id, 0, its, NULL));
	for (int i = 0; i < 100 && !timer_hits; i++)
		sleep_ms(10);
	CHECK_EQ("timer signal", 1, timer_hits);
	timer_delete(*id);
	struct itimerval *itv = cold_page(0xee);
	chill();
	CHECK_OK("getitimer", getitimer(ITIMER_REAL, itv));
	CHECK_EQ("getitimer value", 0, itv->it_value.tv_sec);
	signal(SIGUSR2, SIG_DFL);
}

static void notifications(void)
{
	int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	char *path = cold_page(0), *buf = cold_page(0xee);
	if (fd < 0) {
		skip("notifications", "inotify: %s", strerror(errno));
		return;
	}
	strcpy(path, "/tmp/watch-XXXXXX");
	CHECK("mkdtemp", mkdtemp(path));
	chill();
	int wd = inotify_add_watch(fd, path, IN_DELETE_SELF);
	CHECK("inotify_add_watch", wd >= 0);
	rmdir(path);
	chill();
	ssize_t n = read(fd, buf, PAGE);
	CHECK("read of inotify", n >= (ssize_t)sizeof(struct inotify_event));
	CHECK_EQ("inotify watch", wd, ((struct inotify_event *)(void *)buf)->wd);
	CHECK_EQ("inotify event", IN_DELETE_SELF, ((struct inotify_event *)(void *)buf)->mask & IN_DELETE_SELF);
	close(fd);
}

static void queues(void)
{
	struct mq_attr *attr = cold_page(0);
	char *name = cold_page(0), *buf = cold_alloc(2 * PAGE);
	unsigned *prio = cold_page(0);
	snprintf(name, 64, "/farpage-test-%d", (int)getpid());
	attr->mq_maxmsg = 4;
	attr->mq_msgsize = 2 * PAGE;
	chill();
	mqd_t q = mq_open(name, O_CREAT | O_RDWR, 0600, attr);
	if (q == (mqd_t)-1) {
		skip("queues", "mq_open: %s", strerror(errno));
		return;
	}
	mq_unlink(name);
	fill(buf, 2 * PAGE, 9);
	chill();
	CHECK_OK("mq_send", mq_send(q, buf, 2 * PAGE, 3));
	memset(buf, 0, 2 * PAGE);
	chill();
	CHECK_EQ("mq_receive", 2 * PAGE, mq_receive(q, buf, 2 * PAGE, prio));
	CHECK_FILL("mq content", buf, 2 * PAGE, 9);
	CHECK_EQ("mq priority", 3, *prio);
	mq_close(q);
}

/* What ppoll is called as by a program that was built with _FORTIFY_SOURCE. */
extern int __ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t);

static char *touched;
static volatile size_t wrong;

static void touch_cold(int sig)
{
	(void)sig;
	wrong = first_bad(touched, PAGE, 4) == SIZE_MAX ? 0 : 1;
}

/* A handler that runs while the mask of the call holds, and touches cold memory: with SIGBUS blocked that was the program's end. */
static void masked(void)
{
	/* Again, should this thread have to wait for a CPU until after the first. */
	const struct itimerval soon = {.it_value = {.tv_usec = 20000}, .it_interval = {.tv_usec = 200000}}, never = {0};
	const struct timespec limit = {10, 0};
	sigset_t most;
	touched = cold_alloc(PAGE);
	fill(touched, PAGE, 4);
	sigfillset(&most);
	sigdelset(&most, SIGALRM);
	void (*old)(int) = signal(SIGALRM, touch_cold);
	for (int way = 0; way < 3; way++) {
		wrong = 2;
		chill();
		setitimer(ITIMER_REAL, &soon, NULL);
		int done = way == 0 ? ppoll(NULL, 0, &limit, &most) : way == 1 ? __ppoll_chk(NULL, 0, &limit, &most, 0)
									       : pselect(0, NULL, NULL, NULL, &limit, &most);
		setitimer(ITIMER_REAL, &never, NULL);
		CHECK_EQ("a call that a signal ends", -1, done);
		CHECK_EQ("what the handler saw", 0, wrong);
	}
	signal(SIGALRM, old);
}

enum { READERS = 8, ROOM = 8 * WINDOW };
static int ends[READERS][2];
static char *rooms[READERS];

static void *reads(void *number)
{
	int i = (int)(intptr_t)number;
	struct iovec into[2] = {{rooms[i], ROOM / 2}, {rooms[i] + ROOM / 2, ROOM / 2}};
	struct msghdr header = {.msg_iov = into, .msg_iovlen = 2};
	CHECK_EQ("what came", 5, i % 2 ? recvmsg(ends[i][0], &header, 0) : readv(ends[i][0], into, 2));
	return NULL;
}

/* Threads that wait for data, each with room for a lot of it: all that room stayed in RAM, many times the budget. */
static void waiting_readers(void)
{
	pthread_t threads[READERS];
	char *all = cold_alloc(READERS * ROOM);
	fill(all, READERS * ROOM, 7);
	for (int i = 0; i < READERS; i++) {
		rooms[i] = all + i * ROOM;
		CHECK_OK("a connection", socketpair(AF_UNIX, SOCK_STREAM, 0, ends[i]));
		CHECK_EQ("a reader", 0, pthread_create(&threads[i], NULL, reads, (void *)(intptr_t)i));
	}
	sleep_ms(100);
	make_cold(all, READERS * ROOM);
	for (int i = 0; i < READERS; i++) {
		CHECK("data", write_all(ends[i][1], "hello", 5));
		pthread_join(threads[i], NULL);
		CHECK("it is here", memcmp(rooms[i], "hello", 5) == 0);
		close(ends[i][0]);
		close(ends[i][1]);
	}
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"polls", polls},   {"epolls", epolls},		      {"futexes", futexes}, {"conditions", conditions},
		{"timers", timers}, {"notifications", notifications}, {"queues", queues},
		{"masked", masked}, {"waiting_readers", waiting_readers},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
