/* System calls on signals, ids, privileges, scheduling and a process's own settings, on plain and on cold memory (see twice.h).
 * What could change the machine is called by an ordinary user, with arguments that are wrong even so.
 * Usage: sem_task [MIB] [GROUP]; MIB (default 16) is the size of the block that makes memory cold. */
#include "twice.h"

#include <linux/seccomp.h>
#include <linux/filter.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>

#define SET_LEN 8
#define BIT(signo) (1ul << ((signo)-1))

static const uint64_t usr1 = BIT(SIGUSR1), usr2 = BIT(SIGUSR2);

static long plain(long nr, long a, long b, long c, long d)
{
	return raw_call(nr, (long[6]){a, b, c, d, 0, 0});
}

/* The kernel's struct sigaction. */
struct action {
	uint64_t handler, flags, restorer, mask;
};

static void default_action(void)
{
	static const struct action none;
	CHECK_EQ("rt_sigaction", 0, plain(SYS_rt_sigaction, SIGUSR2, (long)&none, 0, SET_LEN));
}

static void see_action(long result, char *text)
{
	struct action now;
	(void)result;
	CHECK_EQ("rt_sigaction", 0, plain(SYS_rt_sigaction, SIGUSR2, 0, (long)&now, SET_LEN));
	sprintf(text, "handler %lx flags %lx mask %lx", now.handler, now.flags, now.mask);
}

static void actions(void)
{
	static const struct action ignore = {1, SA_RESTART, 0, BIT(SIGUSR1) | BIT(SIGTERM)};
#define ACTION(...) TWICE(rt_sigaction, __VA_ARGS__, .before = default_action, .effect = see_action)
	chill();
	ACTION({NUM(SIGUSR2), IN(&ignore, 32), OUT(32), NUM(8)});
	ACTION({NUM(SIGUSR2), NIL, OUT(32), NUM(8)});
	ACTION({NUM(SIGUSR2), IN(&ignore, 32), NIL, NUM(8)});
	ACTION({NUM(SIGUSR2), IN(&ignore, 32), OUT(32), NUM(4)});
	ACTION({NUM(SIGKILL), IN(&ignore, 32), OUT(32), NUM(8)});
	ACTION({NUM(SIGKILL), NIL, OUT(32), NUM(8)});
	ACTION({NUM(0), IN(&ignore, 32), OUT(32), NUM(8)});
	ACTION({NUM(65), NIL, OUT(32), NUM(8)});
	default_action();
}

static void block_usr1(void)
{
	CHECK_EQ("rt_sigprocmask", 0, plain(SYS_rt_sigprocmask, SIG_SETMASK, (long)&usr1, 0, SET_LEN));
}

static void see_mask(long result, char *text)
{
	uint64_t now;
	(void)result;
	CHECK_EQ("rt_sigprocmask", 0, plain(SYS_rt_sigprocmask, SIG_BLOCK, 0, (long)&now, SET_LEN));
	sprintf(text, "mask %lx", now);
}

/* An unknown size was once accepted, and where the old mask had no place the new one was not set. */
static void masks(void)
{
	static const uint64_t many = BIT(SIGUSR2) | BIT(SIGKILL) | BIT(SIGTERM);
#define MASK(...) TWICE(rt_sigprocmask, __VA_ARGS__, .before = block_usr1, .effect = see_mask)
	chill();
	MASK({NUM(SIG_BLOCK), IN(&many, 8), OUT(8), NUM(8)});
	MASK({NUM(SIG_SETMASK), IN(&many, 8), OUT(8), NUM(8)});
	MASK({NUM(SIG_UNBLOCK), IN(&usr1, 8), NIL, NUM(8)});
	MASK({NUM(SIG_UNBLOCK), NIL, OUT(8), NUM(8)});
	MASK({NUM(SIG_BLOCK), IN(&many, 8), OUT(8), NUM(4)});
	MASK({NUM(99), IN(&many, 8), OUT(8), NUM(8)});
	MASK({NUM(99), NIL, OUT(8), NUM(8)});
	block_usr1();
	TWICE(signalfd, {NUM(-1), IN(&usr2, 8), NUM(8)}, .kind = DESCRIPTOR);
	TWICE(signalfd4, {NUM(-1), IN(&usr2, 8), NUM(8), NUM(0)}, .kind = DESCRIPTOR);
	TWICE(signalfd4, {NUM(-1), IN(&usr2, 8), NUM(16), NUM(0)}, .kind = DESCRIPTOR);
}

static void drain(void)
{
	static const struct timespec now = {0, 0};
	block_usr1();
	while (plain(SYS_rt_sigtimedwait, (long)&usr1, 0, (long)&now, SET_LEN) > 0)
		;
}

static void raise_blocked(void)
{
	drain();
	CHECK_OK("kill", kill(getpid(), SIGUSR1));
}

static void see_pending(long result, char *text)
{
	static const struct timespec now = {0, 0};
	siginfo_t info;
	(void)result;
	memset(&info, 0, sizeof info);
	long signo = plain(SYS_rt_sigtimedwait, (long)&usr1, (long)&info, (long)&now, SET_LEN);
	sprintf(text, "signal %ld code %d value %lx; ", signo, info.si_code, signo > 0 ? (long)info.si_value.sival_ptr : 0);
}

static void nothing(int signo)
{
	(void)signo;
}

static void pending(void)
{
	static const struct timespec moment = {0, 1000000}, bad = {0, -1};
	static const uint64_t none;
	siginfo_t queued = {.si_code = SI_QUEUE}, theirs = {.si_code = SI_USER};
	queued.si_signo = theirs.si_signo = SIGUSR1;
	queued.si_pid = getpid();
	queued.si_value.sival_ptr = (void *)0x123456789;
	signal(SIGUSR1, nothing);
	chill();
#define WAIT(ready, ...) TWICE(rt_sigtimedwait, __VA_ARGS__, .before = ready, .effect = see_pending)
	WAIT(raise_blocked, {IN(&usr1, 8), OUT(128), IN(&moment, 16), NUM(8)});
	WAIT(drain, {IN(&usr1, 8), OUT(128), IN(&moment, 16), NUM(8)}, .needed = 4);
	WAIT(raise_blocked, {IN(&usr1, 8), OUT(128), IN(&bad, 16), NUM(8)});
	WAIT(raise_blocked, {IN(&usr1, 8), OUT(128), IN(&moment, 16), NUM(4)});
#define PENDING(name, ready, ...) TWICE(name, __VA_ARGS__, .before = ready, .effect = see_pending)
	PENDING(rt_sigpending, raise_blocked, {OUT(8), NUM(8)});
	PENDING(rt_sigpending, raise_blocked, {OUT(4), NUM(4)});
	PENDING(rt_sigpending, raise_blocked, {OUT(16), NUM(16)});
	PENDING(rt_sigsuspend, raise_blocked, {IN(&none, 8), NUM(8)});
	PENDING(rt_sigsuspend, raise_blocked, {IN(&none, 8), NUM(4)});
	PENDING(rt_sigqueueinfo, drain, {NUM(getpid()), NUM(SIGUSR1), IN(&queued, 128)});
	PENDING(rt_sigqueueinfo, drain, {NUM(getppid()), NUM(0), IN(&theirs, 128)});
	PENDING(rt_tgsigqueueinfo, drain, {NUM(getpid()), NUM(getpid()), NUM(SIGUSR1), IN(&queued, 128)});
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	PENDING(pidfd_send_signal, drain, {NUM(self), NUM(SIGUSR1), IN(&queued, 128), NUM(0)});
	PENDING(pidfd_send_signal, drain, {NUM(self), NUM(SIGUSR2), IN(&queued, 128), NUM(0)}, .needed = 4);
	close(self);
	drain();
	plain(SYS_rt_sigprocmask, SIG_SETMASK, (long)&none, 0, SET_LEN);
}

static char stack[2][65536];

static void known_stack(void)
{
	stack_t known = {.ss_sp = stack[0], .ss_size = sizeof stack[0]};
	CHECK_OK("sigaltstack", sigaltstack(&known, NULL));
}

static void see_stack(long result, char *text)
{
	stack_t now;
	(void)result;
	CHECK_EQ("sigaltstack", 0, plain(SYS_sigaltstack, 0, (long)&now, 0, 0));
	sprintf(text, "stack %p flags %x size %zx", now.ss_sp, now.ss_flags, now.ss_size);
}

static void no_stack(void)
{
	stack_t off = {.ss_flags = SS_DISABLE};
	CHECK_OK("sigaltstack", sigaltstack(&off, NULL));
}

static long refusals[2];
static stack_t *cold_stacks;

static void on_the_stack(int signo)
{
	(void)signo;
	stack_t off = {.ss_flags = SS_DISABLE}, now;
	refusals[0] = plain(SYS_sigaltstack, (long)&off, (long)&now, 0, 0);
	refusals[1] = plain(SYS_sigaltstack, (long)cold_stacks, (long)(cold_stacks + 1), 0, 0);
}

/* In signal delivery such a call is trapped, and the handler itself runs on the stack that is there already. A second one was once said
 * to be set and was not, and neither was one that is too small or of unknown kind refused. */
static void stacks(void)
{
	stack_t other = {.ss_sp = stack[1], .ss_size = sizeof stack[1]}, small = other, odd = other, off = {.ss_flags = SS_DISABLE};
	small.ss_size = 1000;
	odd.ss_flags = 77;
#define STACK(...) TWICE(sigaltstack, __VA_ARGS__, .before = known_stack, .effect = see_stack, .keeps = true)
	chill();
	STACK({IN(&other, 24), OUT(24)});
	STACK({NIL, OUT(24)});
	STACK({IN(&other, 24), NIL});
	STACK({IN(&small, 24), OUT(24)});
	STACK({IN(&odd, 24), OUT(24)});
	STACK({IN(&off, 24), NIL});
	TWICE(sigaltstack, {IN(&other, 24), OUT(24)}, .before = no_stack, .effect = see_stack, .keeps = true);
	TWICE(sigaltstack, {NIL, OUT(24)}, .before = no_stack, .effect = see_stack, .keeps = true);
	/* Not while the code runs on it. */
	known_stack();
	cold_stacks = cold_alloc(PAGE);
	cold_stacks[0] = off;
	struct sigaction act = {.sa_handler = on_the_stack, .sa_flags = SA_ONSTACK};
	CHECK_OK("sigaction", sigaction(SIGUSR2, &act, NULL));
	chill_around();
	raise(SIGUSR2);
	CHECK_EQ("on the stack", -EPERM, refusals[0]);
	CHECK_EQ("on the stack, cold", -EPERM, refusals[1]);
	no_stack();
}

static void see_ids(long result, char *text)
{
	gid_t groups[64];
	(void)result;
	long n = plain(SYS_getgroups, 64, (long)groups, 0, 0);
	text += sprintf(text, "%ld groups", n);
	for (long i = 0; i < n; i++)
		text += sprintf(text, " %d", (int)groups[i]);
}

static void ids(void)
{
	gid_t groups[64];
	long n = plain(SYS_getgroups, 64, (long)groups, 0, 0);
	CHECK("getgroups", n >= 0 && n < 60);
	chill();
	TWICE(getgroups, {NUM(64), OUT(256)});
	TWICE(getgroups, {NUM(0), OUT(256)});
	TWICE(getgroups, {NUM(-1), OUT(256)});
	groups[n] = 100;
	TWICE(setgroups, {NUM(n + 1), IN(groups, (size_t)(n + 1) * 4)}, .effect = see_ids);
	TWICE(setgroups, {NUM(1 << 20), IN(groups, 4)}, .effect = see_ids);
	TWICE(getresuid, {OUT(4), OUT(4), OUT(4)});
	TWICE(getresgid, {OUT(4), OUT(4), OUT(4)});
	uint32_t head[2] = {0x20080522, 0}, unknown[2] = {1234, 0}, caps[6];
	CHECK_EQ("capget", 0, plain(SYS_capget, (long)head, (long)caps, 0, 0));
	TWICE(capget, {IN(head, 8), OUT(24)});
	TWICE(capget, {IN(unknown, 8), OUT(24)});
	TWICE(capget, {IN(unknown, 8), NIL});
	TWICE(capset, {IN(head, 8), IN(caps, 24)});
	TWICE(capset, {IN(unknown, 8), IN(caps, 24)});
}

static void ids_in_child(void)
{
	in_child(ids);
}

static void scheduling(void)
{
	struct sched_param zero = {0}, one = {1};
	struct rlimit files;
	struct attr {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t times[3];
		uint32_t clamp[2];
		char more[8];
	} now = {0}, large;
	long read = plain(SYS_sched_getattr, 0, (long)&now, 56, 0);
	large = now;
	large.size = sizeof large;
	large.more[0] = 1;
	getrlimit(RLIMIT_NOFILE, &files);
	chill();
	TWICE(sched_setparam, {NUM(0), IN(&zero, 4)});
	TWICE(sched_setparam, {NUM(0), IN(&one, 4)});
	TWICE(sched_getparam, {NUM(0), OUT(4)});
	TWICE(sched_setscheduler, {NUM(0), NUM(SCHED_OTHER), IN(&zero, 4)});
	TWICE(sched_setscheduler, {NUM(0), NUM(SCHED_OTHER), IN(&one, 4)});
	TWICE(sched_rr_get_interval, {NUM(0), OUT(16)});
	TWICE(sched_getattr, {NUM(0), OUT(56), NUM(56), NUM(0)});
	TWICE(sched_getattr, {NUM(0), OUT(100), NUM(100), NUM(0)});
	TWICE(sched_getattr, {NUM(0), OUT(56), NUM(8), NUM(0)});
	if (read == 0) {
		TWICE(sched_setattr, {NUM(0), IN(&now, 56), NUM(0)});
		TWICE(sched_setattr, {NUM(0), IN(&large, sizeof large), NUM(0)});
	}
	TWICE(prlimit64, {NUM(0), NUM(RLIMIT_NOFILE), IN(&files, 16), OUT(16)});
	TWICE(prlimit64, {NUM(0), NUM(12345), IN(&files, 16), OUT(16)});
	TWICE(getrlimit, {NUM(RLIMIT_CORE), OUT(16)});
	timer_t timer;
	CHECK_OK("timer_create", timer_create(CLOCK_MONOTONIC, &(struct sigevent){.sigev_notify = SIGEV_NONE}, &timer));
	TWICE(timer_gettime, {NUM(0), OUT(32)});
	TWICE(timer_gettime, {NUM(1234), OUT(32)});
	timer_delete(timer);
}

/* Registers that another one names, tables, and what the C library keeps with the kernel. */
static void own_settings(void)
{
	static const char descriptor[16] = {1};
	chill();
	TWICE(arch_prctl, {NUM(0x1003 /* FS */), OUT(8)});
	TWICE(arch_prctl, {NUM(0x1004 /* GS */), OUT(8)});
	TWICE(arch_prctl, {NUM(0x1021 /* XSAVE components */), OUT(8)});
	TWICE(arch_prctl, {NUM(0x1022), OUT(8)});
	TWICE(arch_prctl, {NUM(0x4001), OUT(8)});
	TWICE(arch_prctl, {NUM(0x9999), OUT(8)});
	TWICE(modify_ldt, {NUM(0), OUT(64), NUM(64)});
	TWICE(modify_ldt, {NUM(2), OUT(64), NUM(64)});
	TWICE(modify_ldt, {NUM(1), IN(descriptor, 16), NUM(16)});
	TWICE(modify_ldt, {NUM(1), IN(descriptor, 16), NUM(15)});
	TWICE(prctl, {NUM(PR_GET_NAME), OUT(16)});
	TWICE(prctl, {NUM(PR_SET_NAME), TEXT("a name")});
	TWICE(prctl, {NUM(PR_GET_CHILD_SUBREAPER), OUT(4)});
	TWICE(prctl, {NUM(PR_GET_PDEATHSIG), OUT(4)});
	TWICE(prctl, {NUM(PR_GET_TSC), OUT(4)});
	TWICE(prctl, {NUM(0x41555856 /* auxiliary vector */), OUT(512), NUM(512)});
	TWICE(get_robust_list, {NUM(0), OUT(8), OUT(8)});
	TWICE(get_robust_list, {NUM(getppid()), VARY(8, 0, 8), OUT(8)});
	/* Kept by the kernel: what it names stays. */
	TWICE(set_robust_list, {OUT(24), NUM(8)}, .keeps = true);
	TWICE(set_tid_address, {OUT(4)}, .whole = true, .keeps = true);
}

/* Faulted in by the kernel on its way into or out of a call of farpage's own, it would wait for what farpage holds there. */
static bool first_page_stays(char *window)
{
	unsigned char there = 1;
	for (int i = 0; i < 100 && there & 1; i++)
		CHECK("advice", madvise(window, WINDOW, MADV_PAGEOUT) == 0 && mincore(window, PAGE, &there) == 0);
	return there & 1;
}

static void kept(void)
{
	/* The kernel writes there whenever the thread was interrupted. */
	char *window = map_window();
	volatile uint32_t *area = (uint32_t *)window;
	char *fs;
	extern const ptrdiff_t __rseq_offset __attribute__((weak));
	extern const unsigned __rseq_size __attribute__((weak));
	plain(SYS_arch_prctl, 0x1003, (long)&fs, 0, 0);
	bool had = &__rseq_size && __rseq_size > 0;
	if (had && plain(SYS_rseq, (long)(fs + __rseq_offset), 32, 1, 0x53053053) != 0) {
		skip("kept/rseq", "libc's area can't be taken from it");
		return;
	}
	for (int way = 0; way < 2; way++) {
		memset(window, 0, WINDOW);
		chill_around();
		long args[6] = {(long)area, 32, 0, 0x53053053};
		long done = way ? syscall(SYS_rseq, args[0], 32L, 0L, 0x53053053L) : raw_call(SYS_rseq, args);
		if (done != 0) {
			skip("kept/rseq", "rseq gives %ld", done);
			return;
		}
		chill_around();
		CHECK("the area stays", first_page_stays(window));
		CHECK("the kernel has said on which CPU", area[0] < 65536 && area[0] == area[1]);
		CHECK_EQ("the area is given up", 0, plain(SYS_rseq, (long)area, 32, 1, 0x53053053));
		CHECK_EQ("no CPU", -1, (int)area[1]);
	}
}

/* The byte that says whether calls are the program's to answer: the kernel reads it at each. */
static void selector(void)
{
	enum { ON = 1, OFF = 0, SET = 59 };
	char *window = map_window();
	for (int way = 0; way < 2; way++) {
		memset(window, 0, WINDOW);
		chill_around();
		long args[6] = {SET, ON, 0, 0, (long)window};
		long done = way ? syscall(SYS_prctl, args[0], args[1], 0L, 0L, args[4]) : raw_call(SYS_prctl, args);
		if (done != 0) {
			skip("selector", "prctl gives %ld", done);
			return;
		}
		chill_around();
		CHECK("the selector stays", first_page_stays(window));
		CHECK_EQ("as before", 0, plain(SYS_prctl, SET, OFF, 0, 0));
	}
}

static void settings(void)
{
	in_child(own_settings);
	in_child(selector);
	in_child(kept);
}

static void clocks(void)
{
	/* Wrong even for who may set the time. */
	static const struct timeval bad_time = {5, 2000000};
	static const int bad_zone[2] = {99999, 0};
	static const struct timespec bad = {5, 2000000000};
	static const char timex[208];
	TWICE(settimeofday, {IN(&bad_time, 16), IN(bad_zone, 8)});
	TWICE(clock_settime, {NUM(CLOCK_REALTIME), IN(&bad, 16)});
	TWICE(clock_settime, {NUM(CLOCK_MONOTONIC), IN(&bad, 16)});
	TWICE(adjtimex, {{.data = timex, .len = 208, .vary_at = 0, .vary_len = 208}});
	TWICE(clock_adjtime, {NUM(CLOCK_REALTIME), {.data = timex, .len = 208, .vary_at = 0, .vary_len = 208}});
	TWICE(clock_adjtime, {NUM(CLOCK_MONOTONIC), IN(timex, 208)});
	TWICE(gettimeofday, {VARY(16, 0, 16), OUT(8)});
	TWICE(time, {VARY(8, 0, 8)}, .kind = SIGN);
}

static void refused(void)
{
	static const char image[64] = "no image of a module";
	static const uint64_t segment[4] = {0, 0, 1, 1};
	TWICE(sethostname, {IN(image, 64), NUM(65)});
	TWICE(setdomainname, {IN(image, 64), NUM(65)});
	TWICE(sethostname, {IN(image, 64), NUM(-1)});
	TWICE(syslog, {NUM(3), VARY(64, 0, 64), NUM(64)});
	TWICE(syslog, {NUM(3), OUT(64), NUM(0)});
	TWICE(syslog, {NUM(1234), OUT(64), NUM(64)});
	TWICE(init_module, {IN(image, 64), NUM(64), TEXT("options")});
	TWICE(delete_module, {TEXT("no_such_module"), NUM(0)});
	int fd = temp_file();
	write_all(fd, image, sizeof image);
	TWICE(finit_module, {NUM(fd), TEXT("options"), NUM(0)});
	close(fd);
	TWICE(kexec_load, {NUM(0), NUM(1), IN(segment, 32), NUM(0)});
	TWICE(kexec_file_load, {NUM(-1), NUM(-1), NUM(8), TEXT("command"), NUM(0)});
	TWICE(reboot, {NUM(1), NUM(2), NUM(3), TEXT("a command")});
	TWICE(lookup_dcookie, {NUM(1), OUT(64), NUM(64)});
}

static void machine(void)
{
	chill();
	as_nobody(clocks);
	as_nobody(refused);
}

/* Stand for the number of an open file and of this process. */
enum { AT = 777, SELF = 888 };

static const struct unpointed {
	const char *name;
	long nr;
	int used;
	bool opens;
	long args[6];
} unpointed[] = {
#define CALL(call, n, ...) {.name = #call, .nr = SYS_##call, .used = (n), .args = {__VA_ARGS__}}
#define OPENS(call, n, ...) {.name = #call, .nr = SYS_##call, .used = (n), .opens = true, .args = {__VA_ARGS__}}
	CALL(getpid, 0), CALL(getppid, 0), CALL(gettid, 0), CALL(getuid, 0), CALL(geteuid, 0), CALL(getgid, 0), CALL(getegid, 0),
	CALL(getpgrp, 0), CALL(sched_yield, 0), CALL(alarm, 1, 0), CALL(getpgid, 1, 0), CALL(getsid, 1, 0), CALL(getpriority, 2, 0, 0),
	CALL(sched_getscheduler, 1, 0), CALL(sched_get_priority_max, 1, 1), CALL(sched_get_priority_min, 1, 1),
	CALL(ioprio_get, 2, 1, 0), CALL(setfsuid, 1, -1), CALL(setfsgid, 1, -1), CALL(personality, 1, 0xffffffff),
	CALL(kill, 2, SELF, 0), CALL(tkill, 2, SELF, 0), CALL(tgkill, 3, SELF, SELF, 0), CALL(fsync, 1, AT), CALL(fdatasync, 1, AT),
	CALL(fchdir, 1, -1), CALL(fchmod, 2, AT, 0600), CALL(fchown, 3, AT, -1, -1), CALL(ftruncate, 2, AT, 5000),
	CALL(lseek, 3, AT, 7, 0), CALL(flock, 2, AT, 8), CALL(fallocate, 4, AT, 0, 0, 4096), CALL(fadvise64, 4, AT, 0, 0, 0),
	CALL(readahead, 3, AT, 0, 4096), CALL(sync_file_range, 4, AT, 0, 0, 0), OPENS(dup, 1, AT), OPENS(epoll_create, 1, 1),
	OPENS(epoll_create1, 1, 0), OPENS(eventfd, 1, 3), OPENS(eventfd2, 2, 3, 0), OPENS(inotify_init, 0), OPENS(inotify_init1, 1, 0),
	OPENS(memfd_secret, 1, 0), OPENS(timerfd_create, 2, 1, 0), CALL(inotify_rm_watch, 2, -1, 1), CALL(fanotify_init, 2, -1, 0),
	CALL(timer_getoverrun, 1, -1), CALL(timer_delete, 1, -1), CALL(io_destroy, 1, 0), CALL(kcmp, 5, SELF, SELF, 0, AT, AT),
	CALL(membarrier, 3, 0, 0, 0), CALL(pkey_free, 1, -1), CALL(setns, 2, -1, 0), CALL(unshare, 1, 0),
	CALL(process_mrelease, 2, -1, 0), CALL(pidfd_getfd, 3, -1, 0, 0), CALL(fsmount, 3, -1, 0, 0),
	CALL(landlock_restrict_self, 2, -1, 0), CALL(shutdown, 2, -1, 0), CALL(listen, 2, -1, 0), CALL(tee, 4, -1, -1, 1, 0),
	CALL(shmat, 3, -1, 0, 0), CALL(shmdt, 1, 8), CALL(mlockall, 1, 0), CALL(semget, 3, 0, -1, 0), CALL(shmget, 3, 0, 0, 0),
	CALL(userfaultfd, 1, -1), CALL(set_thread_area, 0), CALL(get_thread_area, 0), CALL(create_module, 0), CALL(get_kernel_syms, 0),
	CALL(query_module, 0), CALL(nfsservctl, 0), CALL(getpmsg, 0), CALL(putpmsg, 0), CALL(afs_syscall, 0), CALL(tuxcall, 0),
	CALL(security, 0), CALL(vserver, 0), CALL(epoll_ctl_old, 0), CALL(epoll_wait_old, 0), CALL(_sysctl, 0),
};

static long call_and_close(const struct unpointed *call, const long *args, bool by_libc)
{
	long result = by_libc ? syscall(call->nr, args[0], args[1], args[2], args[3], args[4], args[5]) : raw_call(call->nr, args);
	if (by_libc && result == -1)
		result = -errno;
	if (call->opens && result >= 0)
		close((int)result);
	return result;
}

/* Calls without pointers: what their unused registers hold, an address of cold memory too, does not matter. */
static void registers(void)
{
	int file = temp_file();
	char *cold = cold_alloc(PAGE);
	memset(cold, 1, PAGE);
	chill();
	for (size_t i = 0; i < NELEM(unpointed); i++) {
		const struct unpointed *call = &unpointed[i];
		long args[6], odd[6];
		for (int j = 0; j < 6; j++) {
			args[j] = call->args[j] == AT ? file : call->args[j] == SELF ? getpid() : call->args[j];
			odd[j] = j < call->used ? args[j] : (long)(cold + 8 * j);
		}
		long expected = call_and_close(call, args, false);
		CHECK_EQ(call->name, expected, call_and_close(call, odd, false));
		CHECK_EQ(call->name, expected, call_and_close(call, odd, true));
	}
	CHECK_BYTE("cold memory", cold, PAGE, 1);
	close(file);
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"actions", actions},	     {"masks", masks},	       {"pending", pending},   {"stacks", stacks},
		{"ids", ids_in_child}, {"scheduling", scheduling}, {"settings", settings}, {"machine", machine},
		{"registers", registers},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
