/* A library loaded with RTLD_DEEPBIND, as PHP up to 8.4 loads its extensions: its symbols are libc's before they are anyone else's. A
 * block that libc's strdup had from our malloc went to libc's free ("free(): invalid pointer"), in a small program as well, and its
 * vector writes passed us by.
 * Usage: deepbound [MIB] */
#include "check.h"

#include <dlfcn.h>

#define LEN (64 * PAGE)

static void *(*gives)(size_t);
static char *(*copies)(const char *);
static void *(*grows)(void *, size_t);
static void (*frees)(void *);
static ssize_t (*writes)(int, void *, size_t);

/* By a name without a slash: found by the RUNPATH of the program that calls, not of whoever hands the call on. */
static void *load(bool in_namespace)
{
	const int how = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
	void *library = in_namespace ? dlmopen(LM_ID_BASE, "deepbound.so", how) : dlopen("deepbound.so", how);
	if (!CHECK(in_namespace ? "dlmopen" : "dlopen", library))
		return NULL;
	*(void **)&gives = dlsym(library, "library_gives");
	*(void **)&copies = dlsym(library, "library_copies");
	*(void **)&grows = dlsym(library, "library_grows");
	*(void **)&frees = dlsym(library, "library_frees");
	*(void **)&writes = dlsym(library, "library_writes");
	return CHECK("its functions", gives && copies && grows && frees && writes) ? library : NULL;
}

static void blocks(void)
{
	for (int turn = 0; turn < 100; turn++) {
		char *text = copies("what libc's strdup gives");
		CHECK_MEM("its text", "what libc's strdup gives", text, 25);
		frees(text);
		frees(must_malloc(1000));
		frees(strdup("the program's"));
		free(gives(1000));
		char *block = grows(must_malloc(PAGE), LEN);
		fill(block, LEN, 7);
		block = realloc(grows(block, LEN / 2), LEN);
		CHECK_FILL("a block that both have moved", block, LEN / 2, 7);
		frees(block);
		free(gives(10 * MIB));
		frees(must_malloc(10 * MIB));
	}
}

int main(int argc, char **argv)
{
	check_init(argv);
	size_mb = argc > 1 ? strtoul(argv[1], NULL, 10) : 16;
	void *library = load(false);
	if (!library)
		return 1;
	blocks();
	char *bytes = cold_alloc(LEN), *back = cold_alloc(LEN);
	int fd = temp_file();
	fill(bytes, LEN, 9);
	chill();
	CHECK_EQ("a vector write of cold memory", (ssize_t)LEN, writes(fd, bytes, LEN));
	CHECK_EQ("what was written", (ssize_t)LEN, pread(fd, back, LEN, 0));
	CHECK_FILL("its bytes", back, LEN, 9);
	CHECK_OK("dlclose", dlclose(library));
	CHECK("its own error", !dlopen("/nonexistent.so", RTLD_NOW) && strstr(dlerror(), "nonexistent"));
	if (load(true))
		blocks();
	if (failures() == 0)
		say("ok deepbound");
	return failures() ? 1 : 0;
}
