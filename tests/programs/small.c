/* A process becomes managed in whoever asks for the memory that makes it so, however small its stack is: the filter alone once took
 * 32 KiB of that. A thread's ended in its guard page; below a coroutine's lie other things.
 * Usage: small MIB thread|context; MIB: more than half the budget. */
#include "check.h"

#include <pthread.h>
#include <ucontext.h>

enum { STACK = 32 * 1024, BELOW = 64 * 1024 };

static char below_and_stack[BELOW + STACK] __attribute__((aligned(4096)));
static ucontext_t caller, callee;

/* In blocks, since the last one is not the one that does it. */
static void fill_all(void)
{
	static char *blocks[1024];
	size_t count = size_mb < NELEM(blocks) ? size_mb : NELEM(blocks);
	for (size_t i = 0; i < count; i++) {
		blocks[i] = must_malloc(MIB);
		fill(blocks[i], MIB, i);
	}
	for (size_t i = 0; i < count; i++) {
		CHECK_FILL("a block", blocks[i], MIB, i);
		free(blocks[i]);
	}
}

static void *thread_main(void *unused)
{
	fill_all();
	return unused;
}

static void in_thread(void)
{
	pthread_t thread;
	pthread_attr_t attributes;
	pthread_attr_init(&attributes);
	CHECK_EQ("a small stack", 0, pthread_attr_setstacksize(&attributes, STACK));
	CHECK_EQ("a thread", 0, pthread_create(&thread, &attributes, thread_main, NULL));
	CHECK_EQ("its end", 0, pthread_join(thread, NULL));
}

static void in_context(void)
{
	memset(below_and_stack, 0x5a, sizeof below_and_stack);
	CHECK_OK("a context", getcontext(&callee));
	callee.uc_stack = (stack_t){.ss_sp = below_and_stack + BELOW, .ss_size = STACK};
	callee.uc_link = &caller;
	makecontext(&callee, fill_all, 0);
	CHECK_OK("there and back", swapcontext(&caller, &callee));
	CHECK_BYTE("what lies below the stack", below_and_stack, BELOW, 0x5a);
}

int main(int argc, char **argv)
{
	check_init(argv);
	size_mb = argc > 1 ? strtoul(argv[1], NULL, 10) : 16;
	const char *where = argc > 2 ? argv[2] : "thread";
	if (strcmp(where, "context") == 0)
		in_context();
	else
		in_thread();
	if (failures() == 0)
		say("ok small");
	return failures() ? 1 : 0;
}
