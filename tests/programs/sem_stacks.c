/* Calls from stacks in managed memory, and handlers on small alternate stacks. Usage: sem_stacks [MIB] [GROUP]; MIB
 * (default 16) is the size of the block that makes memory cold. */
#include "check.h"

#include <alloca.h>
#include <sys/mman.h>
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

static void (*const calls[])(void) = {call_munmap, call_mprotect, call_madvise, call_map_fixed,
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

int main(int argc, char **argv)
{
	static const struct group groups[] = {{"managed_stacks", managed_stacks}, {"small_stacks", small_stacks}};
	return run_groups(argc, argv, groups, NELEM(groups));
}
