/* Signal handlers, masks and waiting for signals. Usage: sem_signals [MIB] [GROUP]; MIB (default 16) is the size of
 * the block that makes memory cold. Faults on memory of the program itself: sem_sigmem. */
#include "check.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>

#ifndef SYS_SECCOMP
#define SYS_SECCOMP 1
#endif

static volatile sig_atomic_t seen;
static siginfo_t seen_info;
static char *cold;
#define COLD_LEN (4 * MIB)

static void note(int signo, siginfo_t *info, void *context)
{
	(void)context;
	seen_info = *info;
	seen = signo;
}

static void set(int signo, void (*handler)(int, siginfo_t *, void *), int flags)
{
	struct sigaction act = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
	CHECK_OK("sigaction", sigaction(signo, &act, NULL));
}

static void cold_fill(uint64_t tag)
{
	if (!cold)
		cold = map_anon(COLD_LEN);
	fill(cold, COLD_LEN, tag);
	chill();
}

/* What sigaction reports is what the program set, also for the signals farpage lives on. */
static void reports(void)
{
	static const int all[] = {SIGSEGV, SIGBUS, SIGSYS, SIGTRAP, SIGUSR1, SIGCHLD};
	struct sigaction *act = cold_alloc(PAGE), *old = cold_alloc(PAGE);
	for (size_t i = 0; i < NELEM(all); i++) {
		CHECK_OK("sigaction query", sigaction(all[i], NULL, old));
		CHECK("default at the start", old->sa_handler == SIG_DFL);
		memset(act, 0, sizeof *act);
		act->sa_sigaction = note;
		act->sa_flags = SA_SIGINFO | SA_RESTART | SA_NODEFER;
		sigaddset(&act->sa_mask, SIGUSR2);
		sigaddset(&act->sa_mask, SIGBUS);
		if (i % 2)
			chill();
		CHECK_OK("sigaction from cold memory", sigaction(all[i], act, old));
		memset(old, 0, sizeof *old);
		CHECK_OK("sigaction into cold memory", sigaction(all[i], NULL, old));
		CHECK("handler reported", old->sa_sigaction == note);
		CHECK_EQ("flags reported", act->sa_flags, old->sa_flags & ~0x04000000);
		CHECK_EQ("mask reported: SIGUSR2", 1, sigismember(&old->sa_mask, SIGUSR2));
		CHECK_EQ("mask reported: SIGBUS", 1, sigismember(&old->sa_mask, SIGBUS));
		CHECK_EQ("mask reported: SIGTERM", 0, sigismember(&old->sa_mask, SIGTERM));
		cold_fill(all[i]);
		CHECK_FILL("cold memory with a handler installed", cold, COLD_LEN, all[i]);
		CHECK("signal() returns the old handler", signal(all[i], SIG_IGN) == (sighandler_t)(void *)note);
		cold_fill(all[i]);
		CHECK_FILL("cold memory with the signal ignored", cold, COLD_LEN, all[i]);
		CHECK("signal() returns SIG_IGN", signal(all[i], SIG_DFL) == SIG_IGN);
	}
	CHECK_ERR("sigaction of SIGKILL", EINVAL, sigaction(SIGKILL, act, NULL));
	CHECK_ERR("sigaction of signal 200", EINVAL, sigaction(200, act, NULL));
}

/* Signals sent by a process reach the handler as sent, also those that farpage uses itself. */
static void sent(void)
{
	static const int all[] = {SIGSEGV, SIGBUS, SIGSYS, SIGUSR1};
	for (size_t i = 0; i < NELEM(all); i++) {
		cold_fill(i);
		set(all[i], note, 0);
		seen = 0;
		CHECK_OK("kill", kill(getpid(), all[i]));
		CHECK_EQ("kill reaches the handler", all[i], seen);
		CHECK_EQ("si_code of kill", SI_USER, seen_info.si_code);
		CHECK_EQ("si_pid of kill", getpid(), seen_info.si_pid);
		seen = 0;
		CHECK_EQ("raise", 0, raise(all[i]));
		CHECK_EQ("raise reaches the handler", all[i], seen);
		seen = 0;
		CHECK_OK("sigqueue", sigqueue(getpid(), all[i], (union sigval){.sival_int = 4711}));
		CHECK_EQ("si_code of sigqueue", SI_QUEUE, seen_info.si_code);
		CHECK_EQ("si_value of sigqueue", 4711, seen_info.si_value.sival_int);
		CHECK_FILL("cold memory", cold, COLD_LEN, i);
		set(all[i], note, SA_RESETHAND);
		raise(all[i]);
		struct sigaction old;
		sigaction(all[i], NULL, &old);
		CHECK("SA_RESETHAND resets", old.sa_handler == SIG_DFL);
	}
}

static void die_null(void *arg)
{
	(void)arg;
	cold_fill(1);
	*(volatile char *)opaque(NULL) = 1;
}

static char *truncated_page(void)
{
	int fd = temp_file();
	CHECK_OK("ftruncate", ftruncate(fd, 4 * PAGE));
	char *p = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK("mmap of a file", p != MAP_FAILED);
	memset(p, 7, 4 * PAGE);
	CHECK_OK("ftruncate to one page", ftruncate(fd, PAGE));
	close(fd);
	return p;
}

static void die_truncated(void *arg)
{
	signal(SIGBUS, arg ? SIG_IGN : SIG_DFL);
	cold_fill(2);
	*(volatile char *)opaque(truncated_page() + 2 * PAGE) = 1;
}

static void die_raised(void *arg)
{
	cold_fill(3);
	raise((int)(intptr_t)arg);
}

static void die_blocked(void *arg)
{
	(void)arg;
	sigset_t all;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	cold_fill(4);
	*(volatile char *)opaque((char *)64) = 1;
}

static void defaults(void)
{
	CHILD_EXPECT("null pointer kills", child_start(die_null, NULL), 128 + SIGSEGV);
	CHILD_EXPECT("null pointer kills with all signals blocked", child_start(die_blocked, NULL), 128 + SIGSEGV);
	CHILD_EXPECT("truncated file kills", child_start(die_truncated, NULL), 128 + SIGBUS);
	CHILD_EXPECT("truncated file kills with SIGBUS ignored", child_start(die_truncated, cold), 128 + SIGBUS);
	static const int all[] = {SIGSEGV, SIGBUS, SIGSYS, SIGABRT, SIGTERM};
	for (size_t i = 0; i < NELEM(all); i++)
		CHILD_EXPECT("raise kills", child_start(die_raised, (void *)(intptr_t)all[i]), 128 + all[i]);
}

/* SIGBUS from a truncated file: the program's, not farpage's. */
static void bus_error(void)
{
	char *p = truncated_page();
	cold_fill(5);
	CHECK_FAULT("read past the end of a file", p + PAGE, ACCESS_READ, BUS_NO_PAGE);
	CHECK_FAULT("write past the end of a file", p + 3 * PAGE + 17, ACCESS_WRITE, BUS_NO_PAGE);
	CHECK_NO_FAULT("page that is left", p + 100, ACCESS_READ);
	CHECK_FILL("cold memory after bus errors", cold, COLD_LEN, 5);
	int fd = temp_file();
	CHECK_EQ("write from a truncated mapping fails", -1, write(fd, p + PAGE, 10));
	CHECK_EQ("with EFAULT", EFAULT, errno);
	close(fd);
	munmap(p, 4 * PAGE);
}

static void wild(void)
{
	cold_fill(6);
	CHECK_FAULT("null pointer", NULL, ACCESS_READ, SEGV_UNMAPPED);
	CHECK_FAULT("small address", (void *)0x123, ACCESS_WRITE, SEGV_UNMAPPED);
	CHECK_FAULT("call of a null pointer", NULL, ACCESS_EXEC, SEGV_UNMAPPED);
	CHECK_FAULT("far address", (void *)0x7000deadbeef, ACCESS_READ, SEGV_UNMAPPED);
	CHECK_FAULT("inside the range farpage uses", (void *)0x2affff123456, ACCESS_READ, SEGV_UNMAPPED);
	siginfo_t info;
	CHECK_EQ("address that is none", SIGSEGV, touch((void *)0xdead000000000000, ACCESS_READ, &info));
	CHECK_FILL("cold memory", cold, COLD_LEN, 6);
}

static void full_mask(void)
{
	sigset_t *all = cold_alloc(PAGE), *old = cold_alloc(PAGE), *got = cold_alloc(PAGE);
	sigfillset(all);
	for (int way = 0; way < 3; way++) {
		chill();
		if (way == 0)
			CHECK_OK("sigprocmask", sigprocmask(SIG_SETMASK, all, old));
		else if (way == 1)
			CHECK_EQ("pthread_sigmask", 0, pthread_sigmask(SIG_BLOCK, all, old));
		else
			CHECK_OK("raw rt_sigprocmask", syscall(SYS_rt_sigprocmask, SIG_SETMASK, all, old, 8));
		for (uint64_t round = 0; round < 3; round++) {
			cold_fill(round + 10);
			CHECK_FILL("cold memory with all signals blocked", cold, COLD_LEN, round + 10);
			char *p = must_malloc(3 * MIB);
			fill(p, 3 * MIB, round);
			CHECK_FILL("malloc with all signals blocked", p, 3 * MIB, round);
			free(p);
		}
		sigemptyset(got);
		CHECK_OK("query of the mask", sigprocmask(SIG_BLOCK, NULL, got));
		static const int some[] = {SIGSEGV, SIGBUS, SIGSYS, SIGUSR1, SIGTERM};
		for (size_t i = 0; i < NELEM(some); i++) {
			CHECK_EQ("mask says blocked", 1, sigismember(got, some[i]));
			CHECK_EQ("old mask says not blocked", 0, sigismember(old, some[i]));
		}
		set(SIGBUS, note, 0);
		seen = 0;
		raise(SIGBUS);
		CHECK_EQ("a blocked SIGBUS waits", 0, seen);
		CHECK_OK("sigpending", sigpending(got));
		CHECK_EQ("SIGBUS is pending", 1, sigismember(got, SIGBUS));
		cold_fill(13);
		CHECK_FILL("cold memory with SIGBUS pending", cold, COLD_LEN, 13);
		CHECK_OK("mask back", sigprocmask(SIG_SETMASK, old, NULL));
		CHECK_EQ("SIGBUS came when let through", SIGBUS, seen);
		signal(SIGBUS, SIG_DFL);
	}
}

static void *masked_thread(void *arg)
{
	sigset_t got;
	CHECK_FILL("cold memory in a thread with all signals blocked", cold, COLD_LEN, 14);
	sigemptyset(&got);
	CHECK_OK("query of the mask", sigprocmask(SIG_BLOCK, NULL, &got));
	CHECK_EQ("mask says blocked", 1, sigismember(&got, SIGBUS));
	return arg;
}

/* A thread's attributes give it a mask that the kernel sets itself: its first fault was its end. */
static void thread_mask(void)
{
	pthread_attr_t attr;
	pthread_t t;
	sigset_t all;
	sigfillset(&all);
	pthread_attr_init(&attr);
	CHECK_EQ("pthread_attr_setsigmask_np", 0, pthread_attr_setsigmask_np(&attr, &all));
	cold_fill(14);
	CHECK_EQ("pthread_create", 0, pthread_create(&t, &attr, masked_thread, NULL));
	CHECK_EQ("pthread_join", 0, pthread_join(t, NULL));
	pthread_attr_destroy(&attr);
}

static void mask_handler(int signo)
{
	(void)signo;
	if (first_bad(cold, COLD_LEN, 20) == SIZE_MAX)
		fill(cold, COLD_LEN, 21);
	char *p = must_malloc(MIB);
	fill(p, MIB, 1);
	free(p);
	seen++;
}

static void full_handler_mask(void)
{
	struct sigaction act = {.sa_handler = mask_handler};
	sigfillset(&act.sa_mask);
	sigaction(SIGUSR1, &act, NULL);
	for (int i = 0; i < 3; i++) {
		cold_fill(20);
		seen = 0;
		raise(SIGUSR1);
		CHECK_EQ("handler ran", 1, seen);
		chill();
		CHECK_FILL("handler's work with all signals blocked", cold, COLD_LEN, 21);
	}
	signal(SIGUSR1, SIG_DFL);
}

static void waiting(void)
{
	sigset_t *set_ = cold_alloc(PAGE);
	siginfo_t *info = cold_alloc(PAGE);
	struct timespec *ts = cold_alloc(PAGE);
	int *number = cold_alloc(PAGE);
	sigset_t old;
	sigemptyset(set_);
	sigaddset(set_, SIGUSR1);
	sigaddset(set_, SIGUSR2);
	sigprocmask(SIG_BLOCK, set_, &old);
	kill(getpid(), SIGUSR1);
	chill();
	CHECK_EQ("sigwait", 0, sigwait(set_, number));
	CHECK_EQ("sigwait signal", SIGUSR1, *number);
	sigqueue(getpid(), SIGUSR2, (union sigval){.sival_int = 99});
	chill();
	CHECK_EQ("sigwaitinfo", SIGUSR2, sigwaitinfo(set_, info));
	CHECK_EQ("sigwaitinfo value", 99, info->si_value.sival_int);
	*ts = (struct timespec){0, 1000000};
	chill();
	CHECK_ERR("sigtimedwait times out", EAGAIN, sigtimedwait(set_, info, ts));
	int fd = signalfd(-1, set_, SFD_CLOEXEC | SFD_NONBLOCK);
	CHECK("signalfd", fd >= 0);
	struct signalfd_siginfo *ssi = cold_alloc(PAGE);
	sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = 123});
	chill();
	CHECK_EQ("read of a signalfd", sizeof *ssi, read(fd, ssi, PAGE));
	CHECK_EQ("signalfd signal", SIGUSR1, ssi->ssi_signo);
	CHECK_EQ("signalfd value", 123, ssi->ssi_int);
	CHECK_ERR("signalfd is empty", EAGAIN, read(fd, ssi, PAGE));
	close(fd);
	set(SIGUSR1, note, 0);
	kill(getpid(), SIGUSR1);
	seen = 0;
	sigemptyset(set_);
	chill();
	CHECK_ERR("sigsuspend", EINTR, sigsuspend(set_));
	CHECK_EQ("sigsuspend let it through", SIGUSR1, seen);
	sigprocmask(SIG_SETMASK, &old, NULL);
	signal(SIGUSR1, SIG_DFL);
}

static int tick_fd;

static void tick(int signo)
{
	(void)signo;
	ssize_t n = tick_fd >= 0 ? write(tick_fd, "tick", 4) : 0;
	(void)n;
	seen++;
}

static void interrupted(void)
{
	int fds[2];
	CHECK_OK("pipe", pipe(fds));
	char *p = must_malloc(MIB);
	/* Again, should this thread have to wait for a CPU, or for its pages, until after the first. */
	const struct itimerval once = {{0, 0}, {0, 20000}}, often = {{0, 200000}, {0, 20000}}, never = {0};
	struct sigaction act = {.sa_handler = tick};
	fill(p, MIB, 30);
	tick_fd = -1;
	sigaction(SIGALRM, &act, NULL);
	chill();
	setitimer(ITIMER_REAL, &often, NULL);
	CHECK_ERR("read is interrupted", EINTR, read(fds[0], p, MIB));
	setitimer(ITIMER_REAL, &never, NULL);
	CHECK_FILL("buffer of the interrupted read", p, MIB, 30);
	tick_fd = fds[1];
	act.sa_flags = SA_RESTART;
	sigaction(SIGALRM, &act, NULL);
	chill();
	setitimer(ITIMER_REAL, &once, NULL);
	CHECK_EQ("read is restarted", 4, read(fds[0], p, MIB));
	CHECK_MEM("what the handler wrote", "tick", p, 4);
	tick_fd = -1;
	act.sa_flags = 0;
	sigaction(SIGALRM, &act, NULL);
	fill(p, MIB, 31);
	chill();
	setitimer(ITIMER_REAL, &often, NULL);
	CHECK_EQ("a write that fills a pipe returns its part", 65536, write(fds[1], p, MIB));
	setitimer(ITIMER_REAL, &never, NULL);
	char *q = must_malloc(MIB);
	CHECK_EQ("read", 65536, read(fds[0], q, MIB));
	CHECK_FILL("the part", q, 65536, 31);
	free(p);
	free(q);
	close(fds[0]);
	close(fds[1]);
	signal(SIGALRM, SIG_DFL);
}

static volatile sig_atomic_t thread_seen;

static void thread_note(int signo)
{
	(void)signo;
	thread_seen++;
}

static void *cold_reader(void *arg)
{
	(void)arg;
	for (int i = 0; i < 20; i++)
		CHECK_FILL("cold memory under directed signals", cold, COLD_LEN, 40);
	return NULL;
}

static void directed(void)
{
	struct sigaction act = {.sa_handler = thread_note, .sa_flags = SA_RESTART};
	sigaction(SIGUSR1, &act, NULL);
	cold_fill(40);
	pthread_t t[4];
	for (size_t i = 0; i < NELEM(t); i++)
		pthread_create(&t[i], NULL, cold_reader, NULL);
	for (int i = 0; i < 200; i++) {
		pthread_kill(t[i % 4], SIGUSR1);
		if (i % 50 == 0)
			chill_around();
		usleep(200);
	}
	for (size_t i = 0; i < NELEM(t); i++)
		pthread_join(t[i], NULL);
	CHECK("handlers ran", thread_seen > 0);
	signal(SIGUSR1, SIG_DFL);
}

/* The calls of System V and BSD, which libc makes of its own sigaction and sigprocmask. zstd, built as strict C, takes SIGBUS
 * by one of them; it once died at its first fault. */
extern __sighandler_t __sysv_signal(int, __sighandler_t);
static volatile int legacy_seen;

static void on_legacy(int sig)
{
	legacy_seen = sig;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static void legacy(void)
{
	static const int sigs[] = {SIGBUS, SIGSYS};
	size_t len = size_mb * MIB / 4;
	char *p = must_malloc(len);
	for (size_t i = 0; i < NELEM(sigs); i++) {
		fill(p, len, i);
		CHECK("__sysv_signal", __sysv_signal(sigs[i], on_legacy) == SIG_DFL);
		chill();
		CHECK_FILL("with a handler", p, len, i);
		CHECK_EQ("sigblock", 0, sigblock(1 << (SIGBUS - 1) | 1 << (SIGSYS - 1)));
		chill();
		CHECK_FILL("blocked by sigblock", p, len, i);
		legacy_seen = 0;
		raise(sigs[i]);
		CHECK_EQ("a blocked signal waits", 0, legacy_seen);
		sigsetmask(0);
		CHECK_EQ("and comes", sigs[i], legacy_seen);
		CHECK("the handler is called once", sigset(sigs[i], on_legacy) == SIG_DFL);
		CHECK_EQ("sighold", 0, sighold(sigs[i]));
		chill();
		CHECK_FILL("blocked by sighold", p, len, i);
		CHECK("sigset tells it", sigset(sigs[i], SIG_DFL) == SIG_HOLD);
	}
	free(p);
}
#pragma GCC diagnostic pop

static int traps;

static void answer(int signo, siginfo_t *info, void *context)
{
	ucontext_t *at = context;
	note(signo, info, context);
	traps++;
	at->uc_mcontext.gregs[REG_RAX] = 4242;
}

/* By an instruction of this program's: no function of libc's stands in between. */
static long call(long nr, void *a, long b, long c)
{
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(nr), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return result;
}

static void trap_calls(unsigned nr, unsigned data)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP | data),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog *program = cold_alloc(PAGE);
	*program = (struct sock_fprog){NELEM(code), code};
	CHECK_OK("no_new_privs", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	CHECK_OK("filter", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0));
}

static void check_trap(const char *what, long nr, int data, long result)
{
	CHECK_EQ(what, 4242, result);
	CHECK_EQ("signal", SIGSYS, seen);
	CHECK_EQ("si_code", SYS_SECCOMP, seen_info.si_code);
	CHECK_EQ("si_syscall", nr, seen_info.si_syscall);
	CHECK_EQ("si_errno", data, seen_info.si_errno);
}

static void filtered(void *arg)
{
	(void)arg;
	int fds[2];
	CHECK_OK("pipe", pipe(fds));
	cold_fill(60);
	set(SIGSYS, answer, 0);
	trap_calls(SYS_getpgrp, 7);
	trap_calls(SYS_getrandom, 0);
	for (int i = 1; i <= 3; i++) {
		cold_fill(60);
		check_trap("a call that the program's filter traps", SYS_getpgrp, 7, call(SYS_getpgrp, NULL, 0, 0));
		check_trap("one on cold memory", SYS_getrandom, 0, call(SYS_getrandom, cold, 100, 0));
		CHECK_EQ("calls of the handler", 2 * i, traps);
		CHECK_FILL("memory that no call has written", cold, COLD_LEN, 60);
		CHECK_EQ("write", 3, write(fds[1], "abc", 3));
		chill();
		CHECK_EQ("a call that only farpage's filter traps", 3, call(SYS_read, (void *)(intptr_t)fds[0], (long)cold, 3));
		CHECK_MEM("what it read", "abc", cold, 3);
	}
	pid_t pid = fork();
	if (pid == 0)
		_exit(call(SYS_getpgrp, NULL, 0, 0) == 4242 && first_bad(cold + PAGE, PAGE, 0) != SIZE_MAX ? 5 : 6);
	CHILD_EXPECT("a child behind the filter", pid, 5);
}

/* `arg` 0: no handler; 1: ignored; 2: a handler, and the signal is blocked. */
static void die_filtered(void *arg)
{
	intptr_t way = (intptr_t)arg;
	sigset_t all;
	sigfillset(&all);
	if (way == 2) {
		set(SIGSYS, answer, 0);
		sigprocmask(SIG_SETMASK, &all, NULL);
	} else {
		signal(SIGSYS, way ? SIG_IGN : SIG_DFL);
	}
	cold_fill(61);
	trap_calls(SYS_getpgrp, 7);
	call(SYS_getpgrp, NULL, 0, 0);
}

/* Sandboxes have a filter that traps calls for a handler of theirs. Each such trap was taken for one of farpage's own: the call was
 * made again, from the stub, where it was trapped again, until the stack ended. */
static void own_filter(void)
{
	CHILD_EXPECT("a handler answers", child_start(filtered, NULL), 0);
	for (intptr_t way = 0; way < 3; way++)
		CHILD_EXPECT("no handler, ignored, blocked", child_start(die_filtered, (void *)way), 128 + SIGSYS);
}

static ucontext_t context_back, context_there;
static char context_stack[256 << 10];

static void in_context(void)
{
	sigset_t now;
	CHECK_FILL("cold memory in a context with all signals blocked", cold, COLD_LEN, 60);
	sigprocmask(SIG_BLOCK, NULL, &now);
	CHECK("its mask", sigismember(&now, SIGUSR1) == 1);
	CHECK_OK("swapcontext back", swapcontext(&context_there, &context_back));
	CHECK_FILL("cold memory once more", cold, COLD_LEN, 61);
	setcontext(&context_back);
}

/* libc gives the kernel the mask that a program has put in a context, all signals: the next swapped page ended it. */
static void contexts(void)
{
	CHECK_OK("getcontext", getcontext(&context_there));
	context_there.uc_stack.ss_sp = context_stack;
	context_there.uc_stack.ss_size = sizeof context_stack;
	context_there.uc_link = NULL;
	sigfillset(&context_there.uc_sigmask);
	makecontext(&context_there, in_context, 0);
	for (int round = 0; round < 2; round++) {
		cold_fill((uint64_t)(60 + round));
		CHECK_OK("swapcontext", swapcontext(&context_back, &context_there));
		sigset_t now;
		sigprocmask(SIG_BLOCK, NULL, &now);
		CHECK("the mask afterwards", sigismember(&now, SIGUSR1) == 0);
		sigfillset(&context_there.uc_sigmask);
	}
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"reports", reports},	{"sent", sent},		  {"defaults", defaults},
		{"bus_error", bus_error}, {"wild", wild},	  {"full_mask", full_mask},
		{"thread_mask", thread_mask},
		{"full_handler_mask", full_handler_mask},	  {"waiting", waiting},
		{"interrupted", interrupted},
		{"directed", directed},	{"legacy", legacy},	  {"own_filter", own_filter},
		{"contexts", contexts},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
