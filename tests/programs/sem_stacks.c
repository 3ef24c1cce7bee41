/* Calls from stacks in managed memory, and handlers on small alternate stacks. Usage: sem_stacks [MIB] [GROUP]; MIB
 * (default 16) is the size of the block that makes memory cold. */
#include "check.h"

#include <alloca.h>
#include <dlfcn.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <ucontext.h>

#define STACK_LEN (256 * 1024)
#define BLOCK (2 * MIB)

static ucontext_t main_context, routine_context;
static char *stack_low, *block, *cold;
static int file;

static void call_munmap(void)
{
	char *p = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (CHECK("mmap", p != MAP_FAILED)) {
		p[PAGE] = 1;
		CHECK_OK("munmap", munmap(p, BLOCK));
	}
}

static void call_mprotect(void)
{
	CHECK_OK("mprotect to read-only", mprotect(block, BLOCK, PROT_READ));
	CHECK_OK("mprotect back", mprotect(block, BLOCK, PROT_READ | PROT_WRITE));
}

static void call_madvise(void)
{
	CHECK_OK("madvise", madvise(block, BLOCK / 2, MADV_DONTNEED));
	CHECK_ZERO("what was dropped", block, PAGE);
}

static void call_process_madvise(void)
{
	static int self;
	struct iovec range = {block, BLOCK / 4};
	if (self <= 0)
		self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	long done = process_madvise(self, &range, 1, MADV_DONTNEED, 0);
	if (done < 0) /* of this very process: since Linux 6.13 */
		CHECK_EQ("process_madvise", EINVAL, errno);
	else
		CHECK_ZERO("what was dropped", block, PAGE);
}

static void call_map_fixed(void)
{
	char *p = mmap(block, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	CHECK("mmap over it", p == block);
	CHECK_ZERO("what is new", block, PAGE);
}

static void call_mremap(void)
{
	char *p = map_anon(BLOCK);
	p[0] = 77;
	p = mremap(p, BLOCK, 2 * BLOCK, MREMAP_MAYMOVE);
	if (CHECK("mremap", p != MAP_FAILED)) {
		CHECK_EQ("what was moved", 77, p[0]);
		munmap(p, 2 * BLOCK);
	}
}

static void call_malloc(void)
{
	char *p = must_malloc(8 * MIB + 1);
	p[4 * MIB] = 1;
	free(p);
}

static void call_readv(void)
{
	struct iovec into[2] = {{cold, PAGE}, {cold + 8 * PAGE, PAGE}};
	CHECK_EQ("readv into cold memory", 2 * PAGE, preadv(file, into, 2, 0));
	CHECK_FILL("what was read", cold, PAGE, 5);
}

/* The very stack that the call is made from. */
static void call_page_out(void)
{
	if (stack_low != NULL)
		CHECK_OK("PAGEOUT of the stack", madvise(stack_low, STACK_LEN, MADV_PAGEOUT));
}

static void call_fork(void)
{
	pid_t pid = fork();
	if (pid == 0)
		_exit(first_bad(block + BLOCK / 2, PAGE, 3) == SIZE_MAX ? 9 : 1);
	CHILD_EXPECT("child of a coroutine", pid, 9);
}

static void (*const calls[])(void) = {call_munmap, call_mprotect, call_madvise, call_process_madvise, call_map_fixed,
				      call_mremap, call_malloc, call_readv, call_page_out, call_fork};
static void (*the_call)(void);

/* Stops once, so that what lies below can be taken away, and then makes the call with `pad` bytes of the page used up. */
static void routine(int pad)
{
	char *volatile used = alloca((size_t)pad + 64);
	used[0] = 1;
	swapcontext(&routine_context, &main_context);
	the_call();
	used[1] = 1;
}

static void run_on(char *stack, int pad, bool swapped)
{
	stack_low = stack;
	memset(stack, swapped, STACK_LEN);
	getcontext(&routine_context);
	routine_context.uc_stack.ss_sp = stack;
	routine_context.uc_stack.ss_size = STACK_LEN;
	routine_context.uc_link = &main_context;
	makecontext(&routine_context, (void (*)(void))(void *)routine, 1, pad);
	swapcontext(&main_context, &routine_context);
	if (swapped)
		chill();
	else
		madvise(stack, STACK_LEN - 4 * PAGE, MADV_DONTNEED);
	swapcontext(&main_context, &routine_context);
}

static void prepare(void)
{
	block = map_anon(BLOCK);
	cold = cold_alloc(16 * PAGE);
	file = temp_file();
	char *page = must_malloc(2 * PAGE);
	fill(page, PAGE, 5);
	fill(page + PAGE, PAGE, 6);
	write_all(file, page, 2 * PAGE);
	free(page);
	fill(block + BLOCK / 2, PAGE, 3);
}

/* Deeper stack pages that are away while the call is under way: never touched, or swapped out. */
static void managed_stacks(void)
{
	prepare();
	char *stack = map_anon(STACK_LEN);
	for (size_t i = 0; i < NELEM(calls); i++) {
		the_call = calls[i];
		for (int pad = 0; pad < 4 * (int)PAGE; pad += 208)
			run_on(stack, 12 * (int)PAGE + pad, false);
		for (int pad = 0; pad < 3; pad++)
			run_on(stack, pad * 1360, true);
	}
	munmap(stack, STACK_LEN);
	stack_low = NULL;
	munmap(block, BLOCK);
	close(file);
}

/* libc's part of a spawn hands its child what lies on the stack that it is called on. */
static void call_shell(void)
{
	CHECK_EQ("system", 37, WEXITSTATUS(system("exit 37")));
	FILE *f = popen("echo text; exit 5", "r");
	char text[8] = "";
	CHECK("popen", f && fgets(text, sizeof text, f));
	CHECK_MEM("popen text", "text\n", text, 6);
	CHECK_EQ("pclose", 5, f ? WEXITSTATUS(pclose(f)) : -1);
}

static void call_spawn(void)
{
	char *argv[] = {"sh", "-c", "kill -USR2 $$; exit 6", NULL};
	sigset_t blocked, before;
	pid_t pid = 0;
	CHECK_EQ("posix_spawn", 0, posix_spawn(&pid, "/bin/sh", NULL, NULL, argv, environ));
	CHILD_EXPECT("a child with the coroutine's mask, empty", pid, 128 + SIGUSR2);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR2);
	sigprocmask(SIG_BLOCK, &blocked, &before);
	CHECK_EQ("posix_spawnp", 0, posix_spawnp(&pid, "sh", NULL, NULL, argv, environ));
	CHILD_EXPECT("a child with the coroutine's mask", pid, 6);
	posix_spawnattr_t attr;
	posix_spawnattr_init(&attr);
	posix_spawnattr_setsigmask(&attr, &before);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
	CHECK_EQ("posix_spawn", 0, posix_spawn(&pid, "/bin/sh", NULL, &attr, argv, environ));
	CHILD_EXPECT("a child with the mask that was asked for", pid, 128 + SIGUSR2);
	posix_spawnattr_destroy(&attr);
	sigset_t now;
	sigprocmask(SIG_SETMASK, &before, &now);
	CHECK("the mask as it was", sigismember(&now, SIGUSR2));
	CHECK_EQ("posix_spawn of nothing", ENOENT, posix_spawn(&pid, "/nonexistent", NULL, NULL, argv, environ));
	/* Not in every libc. */
	int (*pidfd_spawn)(int *, const char *, const void *, const void *, char *const *, char *const *) = NULL;
	*(void **)&pidfd_spawn = dlsym(RTLD_DEFAULT, "pidfd_spawn");
	int fd = -1, error = pidfd_spawn ? pidfd_spawn(&fd, "/bin/sh", NULL, NULL, argv, environ) : ENOSYS;
	siginfo_t info = {0};
	if (error == ENOSYS)
		return;
	CHECK_EQ("pidfd_spawn", 0, error);
	CHECK_OK("waitid", waitid(P_PIDFD, (id_t)fd, &info, WEXITED));
	CHECK_EQ("how it ended", SIGUSR2, info.si_status);
	close(fd);
}

static void spawns(void)
{
	char *stack = map_anon(STACK_LEN);
	for (int swapped = 0; swapped < 2; swapped++) {
		the_call = call_shell;
		run_on(stack, 1360, swapped);
		the_call = call_spawn;
		run_on(stack, 1360, swapped);
	}
	munmap(stack, STACK_LEN);
	call_shell();
	call_spawn();
}

#define SMALL 8192
#define AROUND (64 * 1024)

/* Whatever a handler of farpage's needs on an alternate stack of the size that old headers name, it does not write below. */
static void small_stacks(void)
{
	if (sysconf(_SC_MINSIGSTKSZ) > SMALL / 2) {
		skip("small_stacks", "signal frames of %ld bytes leave no room on a stack of %d", sysconf(_SC_MINSIGSTKSZ), SMALL);
		return;
	}
	prepare();
	static char plain[AROUND] __attribute__((aligned(4096)));
	char *const places[] = {plain, map_anon(256 * 1024)};
	for (size_t i = 0; i < NELEM(places); i++) {
		memset(places[i], 0x5a, AROUND);
		stack_t small = {.ss_sp = places[i] + AROUND - SMALL, .ss_size = SMALL}, before;
		CHECK_OK("sigaltstack", sigaltstack(&small, &before));
		for (size_t call = 0; call < NELEM(calls); call++) {
			chill_around();
			calls[call]();
			fill(cold, 16 * PAGE, call);
			CHECK_BYTE("memory below a small stack", places[i], AROUND - SMALL, 0x5a);
		}
		chill_around();
		CHECK_FILL("cold memory", cold, 16 * PAGE, NELEM(calls) - 1);
		char *big = must_malloc(size_mb * MIB / 2);
		CHECK("a big buffer", pread(file, big, size_mb * MIB / 2, 0) == 2 * PAGE);
		chill_around();
		CHECK("a big buffer that is cold", pwrite(file, big, size_mb * MIB / 2, 0) == (ssize_t)(size_mb * MIB / 2));
		CHECK_OK("file as it was", ftruncate(file, 2 * PAGE));
		free(big);
		CHECK_OK("sigaltstack as before", sigaltstack(&before, NULL));
		CHECK_BYTE("memory below a small stack", places[i], AROUND - SMALL, 0x5a);
	}
	munmap(places[1], 256 * 1024);
	munmap(block, BLOCK);
	close(file);
}

static ucontext_t outer;

static void nothing(void)
{
}

/* A coroutine whose context lies on the heap ends with a link to one that does not, in a thread that blocks all signals. The mask that was kept
 * there held SIGBUS, and went to the kernel by a call that nobody sees: the next cold page ended the program. */
static void mixed_contexts(void)
{
	sigset_t all, before;
	sigfillset(&all);
	CHECK_EQ("all signals blocked", 0, pthread_sigmask(SIG_BLOCK, &all, &before));
	for (int turn = 0; turn < 8; turn++) {
		ucontext_t *inner = cold_alloc(sizeof *inner);
		char *stack = must_malloc(64 * 1024), *data = cold_alloc(64 * PAGE);
		fill(data, 64 * PAGE, turn);
		if (turn % 2)
			chill();
		CHECK_OK("a context", getcontext(inner));
		inner->uc_stack = (stack_t){.ss_sp = stack, .ss_size = 64 * 1024};
		inner->uc_link = &outer;
		makecontext(inner, nothing, 0);
		CHECK_OK("there and back", swapcontext(&outer, inner));
		chill();
		CHECK_FILL("cold memory afterwards", data, 64 * PAGE, turn);
		sigset_t now;
		CHECK_EQ("the mask", 0, pthread_sigmask(SIG_BLOCK, NULL, &now));
		CHECK("an ordinary signal is blocked still", sigismember(&now, SIGUSR1));
		free(stack);
	}
	CHECK_EQ("the mask as before", 0, pthread_sigmask(SIG_SETMASK, &before, NULL));
}

static volatile size_t deepest;

static void deep_handler(int signal)
{
	volatile char room[MIB];
	for (size_t below = 1; below < MIB; below += PAGE)
		room[MIB - below] = (char)signal;
	deepest = sizeof room;
}

/* Handlers that use as much stack as their thread has, above a call that waits, and by SA_ONSTACK in a thread without an alternate stack. */
static void deep_handlers(void)
{
	int ends[2];
	char *place = cold_alloc(PAGE);
	memset(place, 1, PAGE);
	CHECK_OK("pipe", pipe(ends));
	for (int flags = 0; flags <= SA_ONSTACK; flags += SA_ONSTACK) {
		struct sigaction action = {.sa_handler = deep_handler, .sa_flags = flags};
		CHECK_OK("sigaction", sigaction(SIGALRM, &action, NULL));
		deepest = 0;
		chill();
		ualarm(200000, 200000); /* again, should this thread have to wait for a CPU */
		CHECK_ERR("a read that a handler interrupts", EINTR, read(ends[0], place, PAGE));
		ualarm(0, 0);
		CHECK_EQ("how deep it was", MIB, deepest);
		deepest = 0;
		raise(SIGALRM);
		CHECK_EQ("how deep it was when raised", MIB, deepest);
	}
	signal(SIGALRM, SIG_DFL);
	close(ends[0]);
	close(ends[1]);
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {{"mixed_contexts", mixed_contexts}, {"managed_stacks", managed_stacks}, {"spawns", spawns},
					      {"small_stacks", small_stacks}, {"deep_handlers", deep_handlers}};
	return run_groups(argc, argv, groups, NELEM(groups));
}
