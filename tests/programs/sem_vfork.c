/* Children by vfork, which run in their parent's memory, killed or stopped at any moment: while they touch memory that is swapped out, in
 * calls on it, in calls on mappings. What they leave must not be the parent's: a child that was killed in the middle of a page
 * fault once took with it its place in the gate of its parent's memory, the lock of the page's word and a work area, and the parent
 * waited for ever at its next munmap, at its next fork, or at a touch of that page. */
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define LEN (2 * MIB)
#define AREA (1 * MIB)
#define STUCK_NS 40000000000u

static char *data, *area;
static int full[2], empty[2];
static char **cold_argv;
static volatile pid_t victim;
static volatile unsigned turn;
static volatile uint64_t moved_ns;

static void spin_us(unsigned us)
{
	for (uint64_t end = now_ns() + us * 1000u; now_ns() < end;)
		;
}

/* Says so where nothing has moved for long. */
static void *watch(void *unused)
{
	for (;;) {
		sleep_ms(500);
		/* Read before the clock: a turn in between was once a hang. */
		uint64_t since = moved_ns;
		if (now_ns() - since > STUCK_NS) {
			say("HANG: nothing moves since turn %u", turn);
			_exit(3);
		}
	}
	return unused;
}

static void move(void)
{
	moved_ns = now_ns();
	turn++;
}

/* What a child does until it is killed. */

static void touches(void)
{
	for (;;)
		for (size_t at = 0; at < LEN; at += PAGE) {
			volatile char *p = data + (at * 7 + turn * PAGE) % LEN;
			*p = *p;
		}
}

static void touches_and_drops(void)
{
	for (;;) {
		for (size_t at = 0; at < LEN; at += PAGE)
			(void)*(volatile char *)(data + at);
		syscall(SYS_madvise, data, LEN, MADV_PAGEOUT);
	}
}

static void reads(void)
{
	read(empty[0], area + (turn % 64) * PAGE + 5, 40 * PAGE);
}

static void reads_by_number(void)
{
	syscall(SYS_read, empty[0], area + (turn % 64) * PAGE + 5, 40 * PAGE);
}

static void writes(void)
{
	for (;;)
		syscall(SYS_write, full[1], area, 100 * PAGE);
}

static void opens(void)
{
	for (;;)
		for (size_t at = 0; at < AREA; at += PAGE)
			syscall(SYS_access, area + at, F_OK);
}

static void maps(void)
{
	for (;;) {
		mprotect(area, AREA / 2, PROT_READ);
		mprotect(area, AREA / 2, PROT_READ | PROT_WRITE);
		madvise(area, AREA / 4, MADV_DONTNEED);
		munmap(area + AREA / 2, AREA / 2);
		mmap(area + AREA / 2, AREA / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		area[AREA - 1] = 1;
		char *p = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		*p = 1;
		munmap(p, AREA);
	}
}

static void execs(void)
{
	execve(cold_argv[0], cold_argv, environ);
}

static void forks(void)
{
	for (;;) {
		pid_t pid = (pid_t)syscall(SYS_fork);
		if (pid == 0)
			syscall(SYS_exit_group, 0);
		waitpid(pid, NULL, 0);
	}
}

/* The parent's other thread, which goes on while the one that called vfork waits. */

static unsigned wait_us;
static int how;
static void (*meanwhile)(void);

static void *ender(void *unused)
{
	while (victim == 0)
		sched_yield();
	spin_us(wait_us);
	if (meanwhile) {
		kill(victim, SIGSTOP);
		spin_us(300);
		meanwhile();
	}
	kill(victim, how);
	return unused;
}

static void vfork_and_end(void (*body)(void), unsigned us, void (*then)(void))
{
	pthread_t thread;
	victim = 0;
	wait_us = us;
	how = SIGKILL;
	meanwhile = then;
	CHECK_EQ("a thread", 0, pthread_create(&thread, NULL, ender, NULL));
	pid_t pid = vfork();
	if (pid == 0) {
		victim = (pid_t)syscall(SYS_getpid);
		body();
		_exit(0);
	}
	pthread_join(thread, NULL);
	int status = 0;
	CHECK_EQ("waitpid", pid, waitpid(pid, &status, 0));
	bool ended = WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0;
	CHECK("the child was killed, or had ended", ended);
	move();
}

static void verify_in_child(void *unused)
{
	(void)unused;
	CHECK_FILL("memory in a forked child", data, LEN, 5);
}

/* The gate is free, every page is right, and every page can go. */
static void goes_on(unsigned round)
{
	char *p = map_anon(AREA);
	p[PAGE] = 1;
	CHECK_OK("munmap", munmap(p, AREA));
	CHECK_FILL("memory that the child touched", data, LEN, 5);
	if (round % 16 == 0)
		CHECK_EQ("a forked child", 0, ({ int s = 1; waitpid(child_start(verify_in_child, NULL), &s, 0); s; }));
	move();
}

static unsigned rounds(unsigned quick)
{
	return size_mb > 64 ? 8 * quick : quick;
}

static void killed_in_faults(void)
{
	for (unsigned round = 0; round < rounds(300); round++) {
		make_cold(data, LEN);
		vfork_and_end(round % 4 ? touches : touches_and_drops, (unsigned)(mix64(round) % 1500), NULL);
		goes_on(round);
	}
}

static void renew_area(void)
{
	CHECK("an area", mmap(area, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == area);
	for (size_t at = 0; at < AREA; at += PAGE)
		memcpy(area + at, "/nonexistent/name", 18);
}

/* Pages of a buffer that stayed locked for a dead child's call could not be dropped any more. */
static void killed_in_calls(void)
{
	static void (*const bodies[])(void) = {reads, reads_by_number, writes, opens};
	for (unsigned round = 0; round < rounds(80); round++) {
		renew_area();
		if (round & 4)
			make_cold(area, AREA);
		vfork_and_end(bodies[round % NELEM(bodies)], (unsigned)(mix64(round) % 4000), NULL);
		CHECK_OK("the buffer is dropped", madvise(area, AREA, MADV_DONTNEED));
		CHECK_ZERO("what was dropped", area, AREA);
		goes_on(round);
		fcntl(full[1], F_SETFL, O_NONBLOCK);
		char *junk = data;
		while (write(full[1], junk, PAGE) > 0)
			;
		fcntl(full[1], F_SETFL, 0);
	}
}

static void killed_in_mappings(void)
{
	for (unsigned round = 0; round < rounds(100); round++) {
		renew_area();
		make_cold(data, LEN);
		vfork_and_end(maps, (unsigned)(mix64(round) % 1000), NULL);
		goes_on(round);
	}
}

static void killed_at_exec(void)
{
	for (unsigned round = 0; round < rounds(60); round++) {
		/* What a killed child's exec was reading stays there. */
		madvise(cold_argv, 2 * MIB, MADV_PAGEOUT);
		vfork_and_end(execs, (unsigned)(mix64(round) % 3000), NULL);
		goes_on(round);
	}
	CHECK_OK("the strings are dropped", madvise(cold_argv, 2 * MIB, MADV_DONTNEED));
}

static void other_thread_goes_on(void)
{
	goes_on(1);
	CHECK_FILL("memory beside a stopped child", data, LEN, 5);
}

static void stopped(void)
{
	for (unsigned round = 0; round < rounds(100); round++) {
		make_cold(data, LEN);
		vfork_and_end(touches, (unsigned)(mix64(round) % 1000), other_thread_goes_on);
		goes_on(round);
	}
}

static void end_forking_children(void *unused)
{
	(void)unused;
	alarm(120);
	for (unsigned round = 0; round < rounds(40) && failures() == 0; round++) {
		vfork_and_end(forks, (unsigned)(mix64(round) % 3000), NULL);
		goes_on(round);
	}
}

/* A fork is the one thing that nobody can do for the child: its parent may be stopped with one line, but does not wait for ever. */
static void killed_in_fork(void)
{
	for (unsigned round = 0; round < rounds(2); round++) {
		int status = 0;
		CHECK("the parent", waitpid(child_start(end_forking_children, NULL), &status, 0) > 0);
		if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
			CHECK_EQ("status of the parent, which goes on or is stopped", 0, status);
		move();
	}
}

static int borrower(void *body)
{
	((void (*)(void))(uintptr_t)body)();
	return 0;
}

/* The same without waiting for the child: several at a time in one memory. */
static void beside(void)
{
	static char stacks[3][64 * 1024] __attribute__((aligned(16)));
	for (unsigned round = 0; round < rounds(60); round++) {
		pid_t pids[NELEM(stacks)];
		make_cold(data, LEN);
		for (size_t i = 0; i < NELEM(stacks); i++)
			pids[i] = clone(borrower, stacks[i] + sizeof stacks[i], CLONE_VM | SIGCHLD, (void *)(uintptr_t)touches);
		spin_us((unsigned)(mix64(round) % 2000));
		for (size_t i = 0; i < NELEM(stacks); i++) {
			kill(pids[i], SIGKILL);
			CHILD_EXPECT("a child beside", pids[i], 128 + SIGKILL);
		}
		goes_on(round);
	}
}

static char *outlived;
static int outlived_report;

static bool outlived_is_right(void)
{
	return first_bad(outlived, 4 * MIB, 11) == SIZE_MAX;
}

static bool forked_child_is_right(void)
{
	pid_t pid = fork();
	if (pid == 0)
		_exit(outlived_is_right() ? 0 : 1);
	int status = -1;
	waitpid(pid, &status, 0);
	return status == 0;
}

static int outlived_file;
static bool outlived_was_out;

/* Where nothing was swapped it is the kernel's call; otherwise whoever comes back from it was not stopped. */
static bool maps_a_file(void)
{
	char *p = mmap(outlived, MIB, PROT_READ, MAP_PRIVATE | MAP_FIXED, outlived_file, 0);
	return !outlived_was_out && p == outlived;
}

struct outliving {
	bool (*is_right)(void);
	const char *name;
	/* From vfork on; the parent ends after 100. */
	long wait_ms;
};

/* The child of vfork, in its parent's memory, when that has ended, or is about to: right, or wrong. */
static void *outlive(void *how)
{
	const struct outliving *way = how;
	pid_t pid = vfork();
	if (pid == 0) {
		struct timespec wait = {.tv_nsec = way->wait_ms * 1000000};
		syscall(SYS_nanosleep, &wait, NULL);
		bool right = way->is_right();
		_exit(write(outlived_report, right ? "r" : "w", 1) != 1);
	}
	return NULL;
}

static void ends_before_its_vfork(void *how)
{
	outlived = map_anon(4 * MIB);
	fill(outlived, 4 * MIB, 11);
	outlived_file = temp_file();
	CHECK_OK("ftruncate", ftruncate(outlived_file, MIB));
	/* More than the budget together with what makes memory cold. */
	fill(map_anon(size_mb * MIB), size_mb * MIB, 12);
	chill();
	unsigned char seen = 0;
	outlived_was_out = getenv("FARPAGE_POOL_FD") && mincore(outlived, PAGE, &seen) == 0 && !(seen & 1);
	pthread_t thread;
	pthread_create(&thread, NULL, outlive, how);
	sleep_ms(100);
	kill(getpid(), SIGKILL);
}

/* A thread's child by vfork runs on when another thread ends the process. What that had swapped out is gone then: the child is
 * stopped. It once read zeros; then only one that touched memory itself was stopped, while a child that it forked read zeros, and
 * a file that it mapped there was taken off the books of whoever had the process's place by then. */
static void vfork_outlives(void)
{
	move();
	static struct outliving ways[] = {
		{outlived_is_right, "memory", 600},
		{forked_child_is_right, "memory of a child", 600},
		{forked_child_is_right, "memory of a child that is forked meanwhile", 50},
		{maps_a_file, "a file's mapping", 600},
	};
	for (size_t i = 0; i < NELEM(ways); i++) {
		int ends[2];
		CHECK_OK("pipe", pipe(ends));
		outlived_report = ends[1];
		pid_t pid = child_start(ends_before_its_vfork, &ways[i]);
		close(ends[1]);
		CHILD_EXPECT("the parent of the vfork child", pid, 128 + SIGKILL);
		char said = 'r';
		ssize_t got = read(ends[0], &said, 1);
		if (got != 0 && said != 'r')
			fail_at(WHERE, ways[i].name, "of a vfork child that outlives its parent is wrong, and it was not stopped");
		close(ends[0]);
	}
}

/* A vfork child maps a file in place of its parent's memory, which needs a descriptor of its own. */
static void vfork_maps_a_file(void)
{
	move();
	char *p = map_anon(4 * MIB), *text = must_malloc(MIB);
	for (int way = 0; way < 2; way++) {
		int kind = way ? MAP_SHARED : MAP_PRIVATE;
		fill(p, 4 * MIB, 5);
		fill(text, MIB, 6);
		chill();
		pid_t pid = vfork();
		if (pid == 0) {
			int fd = temp_file();
			if (!write_all(fd, text, MIB))
				_exit(1);
			if (mmap(p + MIB, MIB, PROT_READ | PROT_WRITE, kind | MAP_FIXED, 999, 0) != MAP_FAILED || errno != EBADF)
				_exit(2);
			if (first_bad(p, 4 * MIB, 5) != SIZE_MAX)
				_exit(3);
			if (mmap(p + MIB, MIB - 5, PROT_READ | PROT_WRITE, kind | MAP_FIXED, fd, 0) != p + MIB)
				_exit(4);
			_exit(memcmp(p + MIB, text, MIB) == 0 ? 7 : 5);
		}
		CHILD_EXPECT("vfork child that maps a file", pid, 7);
		chill();
		CHECK_MEM("the file's content", text, p + MIB, MIB);
		CHECK_FILL("memory before it", p, MIB, 5);
		p[MIB] = 'x';
		CHECK_EQ("a byte of the mapping", 'x', p[MIB]);
		CHECK("memory again", mmap(p, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
		CHECK_ZERO("and empty", p, 4 * MIB);
	}
	munmap(p, 4 * MIB);
	free(text);
}

static int hold_up[2];

static int clone_main(void *argument)
{
	char byte;
	bool right = argument == full && read(hold_up[0], &byte, 1) == 1;
	return right ? 7 : 1;
}

/* A child in this memory, whose numbers the kernel is to write to memory that is out, once as it ends: it began with another argument, and
 * by thread its end was not told. */
static void clone_writes_numbers(void)
{
	move();
	const size_t stack_len = 64 * PAGE;
	const int flags = CLONE_VM | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD;
	char *stack = map_anon(stack_len), *words = map_window();
	volatile int *parents = (int *)words, *childs = (int *)(words + PAGE);
	CHECK_OK("pipe", pipe(hold_up));
	for (int round = 0; round < 3; round++) {
		memset(words, 1, WINDOW);
		chill_around();
		pid_t pid = clone(clone_main, stack + stack_len, flags, full, parents, NULL, childs);
		CHECK("clone", pid > 0);
		CHECK_EQ("the number for the parent", pid, *parents);
		memset(words + 2 * PAGE, 1, WINDOW - 2 * PAGE);
		make_cold(words, WINDOW);
		CHECK_EQ("write", 1, write(hold_up[1], "x", 1));
		CHILD_EXPECT("a child by clone", pid, 7);
		CHECK_EQ("the number of a child that has ended", 0, *childs);
	}
}

static int end_at_once(void *argument)
{
	return argument == full ? 7 : 1;
}

/* One word for both numbers, which the kernel clears as the child ends: its maker wrote the number to it afterwards, and who waits for the end
 * waited for good. Or the maker's own stack is out, and the child began in the middle of its memory. */
static void *clone_clears_the_number(void *unused)
{
	const size_t stack_len = 64 * PAGE;
	const int flags = CLONE_VM | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD;
	char *stack = map_anon(stack_len), *words = map_window();
	volatile int *number = (int *)words;
	for (int round = 0; round < 200; round++) {
		int waits = round % 2 ? CLONE_VFORK : 0;
		move();
		memset(words, 1, WINDOW);
		make_cold(words, WINDOW);
		pid_t pid = clone(end_at_once, stack + stack_len, flags | waits, full, number, NULL, number);
		CHECK("clone", pid > 0);
		CHECK("its number, or that it has ended", *number == 0 || (*number == pid && !waits));
		CHILD_EXPECT("a child by clone", pid, 7);
		CHECK_EQ("the number of a child that has ended", 0, *number);
	}
	munmap(stack, stack_len);
	return unused;
}

static void clone_clears(void)
{
	clone_clears_the_number(NULL);
	pthread_attr_t attr;
	pthread_t thread;
	char *stack = map_anon(MIB);
	pthread_attr_init(&attr);
	CHECK_EQ("pthread_attr_setstack", 0, pthread_attr_setstack(&attr, stack, MIB));
	CHECK_EQ("pthread_create", 0, pthread_create(&thread, &attr, clone_clears_the_number, NULL));
	pthread_join(thread, NULL);
	pthread_attr_destroy(&attr);
	munmap(stack, MIB);
}

static void on_bus(int sig)
{
	(void)sig;
}

/* A child resets all signals before its exec, as Qt, Ruby and gdb do. Those that are farpage's own were its parent's, too: a handler for the end
 * of a mapped file was gone. */
static void resets_signals(void)
{
	move();
	struct sigaction mine = {.sa_handler = on_bus}, before[2], now;
	static const int signals[2] = {SIGBUS, SIGSYS};
	for (size_t i = 0; i < 2; i++)
		CHECK_OK("a handler", sigaction(signals[i], &mine, &before[i]));
	pid_t pid = vfork();
	if (pid == 0) {
		for (int sig = 1; sig < NSIG; sig++)
			signal(sig, SIG_DFL);
		execl(self_path, self_path, "--leaf", NULL);
		_exit(1);
	}
	int status = -1;
	CHECK_EQ("the child", pid, waitpid(pid, &status, 0));
	CHECK_EQ("its end", 0, status);
	for (size_t i = 0; i < 2; i++) {
		CHECK_OK("asked", sigaction(signals[i], &before[i], &now));
		CHECK("the parent's handler", now.sa_handler == on_bus);
	}
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"killed_in_faults", killed_in_faults}, {"killed_in_calls", killed_in_calls},
		{"killed_in_mappings", killed_in_mappings}, {"killed_at_exec", killed_at_exec},
		{"killed_in_fork", killed_in_fork},	{"stopped", stopped},
		{"beside", beside}, {"vfork_outlives", vfork_outlives}, {"vfork_maps_a_file", vfork_maps_a_file}, {"clone_writes_numbers", clone_writes_numbers},
		{"clone_clears", clone_clears}, {"resets_signals", resets_signals},
	};
	if (argc > 1 && strcmp(argv[1], "--leaf") == 0)
		return 0;
	check_init(argv);
	move();
	pthread_t watcher;
	pthread_create(&watcher, NULL, watch, NULL);
	data = map_anon(LEN);
	fill(data, LEN, 5);
	area = map_anon(AREA);
	CHECK_OK("pipe", pipe2(full, O_CLOEXEC));
	CHECK_OK("pipe", pipe2(empty, O_CLOEXEC));
	cold_argv = map_anon(2 * MIB);
	for (size_t i = 2; i < 200; i++)
		cold_argv[i] = strcpy((char *)cold_argv + (i + 1) * 2 * PAGE - 5, "argument");
	cold_argv[0] = strcpy((char *)cold_argv + PAGE, self_path);
	cold_argv[1] = strcpy((char *)cold_argv + 2 * PAGE, "--leaf");
	return run_groups(argc, argv, groups, NELEM(groups));
}
