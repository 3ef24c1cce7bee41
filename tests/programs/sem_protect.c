/* mprotect and executable memory. Usage: sem_protect [MIB] [GROUP]; MIB (default 16) makes memory cold. */
#include "check.h"

#include <sys/mman.h>
#include <sys/resource.h>

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define LEN (2 * MIB)

static void none_and_back(void)
{
	for (int cold = 0; cold < 2; cold++) {
		char *p = map_anon(LEN);
		fill(p, LEN, 1);
		if (cold)
			chill();
		CHECK_OK("to PROT_NONE", mprotect(p, LEN, PROT_NONE));
		CHECK_FAULT("read", p, ACCESS_READ, SEGV_DENIED);
		CHECK_FAULT("write", p + LEN - 1, ACCESS_WRITE, SEGV_DENIED);
		CHECK_FAULT("odd address", p + 5 * PAGE + 77, ACCESS_READ, SEGV_DENIED);
		chill_around();
		CHECK_OK("back", mprotect(p, LEN, RW));
		CHECK_FILL("content kept", p, LEN, 1);
		CHECK_OK("middle to PROT_NONE", mprotect(p + 100 * PAGE, 50 * PAGE, PROT_NONE));
		CHECK_NO_FAULT("page below", p + 99 * PAGE, ACCESS_READ);
		CHECK_FAULT("first page", p + 100 * PAGE, ACCESS_READ, SEGV_DENIED);
		CHECK_FAULT("last page", p + 149 * PAGE, ACCESS_WRITE, SEGV_DENIED);
		CHECK_NO_FAULT("page above", p + 150 * PAGE, ACCESS_READ);
		CHECK_OK("middle back", mprotect(p + 100 * PAGE, 50 * PAGE, RW));
		CHECK_FILL("content kept around", p, LEN, 1);
		munmap(p, LEN);
	}
	char *p = map_anon(LEN);
	CHECK_OK("never touched memory to PROT_NONE", mprotect(p, LEN, PROT_NONE));
	CHECK_FAULT("read", p + PAGE, ACCESS_READ, SEGV_DENIED);
	CHECK_OK("never touched memory back", mprotect(p, LEN, RW));
	CHECK_ZERO("is zero", p, LEN);
	munmap(p, LEN);
}

static void read_only(void)
{
	for (int cold = 0; cold < 2; cold++) {
		char *p = map_anon(LEN);
		fill(p, LEN, 2);
		CHECK_OK("to PROT_READ", mprotect(p, LEN, PROT_READ));
		if (cold)
			chill();
		CHECK_FAULT("write", p + 17 * PAGE + 5, ACCESS_WRITE, SEGV_DENIED);
		CHECK_FILL("readable", p, LEN, 2);
		CHECK_FAULT("write to a page just read", p + 17 * PAGE + 5, ACCESS_WRITE, SEGV_DENIED);
		CHECK_OK("back", mprotect(p, LEN, RW));
		fill(p, LEN, 3);
		chill();
		CHECK_FILL("writable", p, LEN, 3);
		munmap(p, LEN);
	}
	char *zero = mmap(NULL, LEN, PROT_READ, ANON, -1, 0);
	CHECK_ZERO("mapped read-only", zero, LEN);
	CHECK_FAULT("write", zero + PAGE, ACCESS_WRITE, SEGV_DENIED);
	CHECK_OK("to read and write", mprotect(zero, LEN, RW));
	fill(zero, LEN, 4);
	chill();
	CHECK_FILL("content", zero, LEN, 4);
	munmap(zero, LEN);
}

/* Every second page read-only: many mappings for the kernel. */
static void striped(void)
{
	char *p = map_anon(LEN), *copy = must_malloc(LEN);
	fill(p, LEN, 5);
	fill(copy, LEN, 5);
	for (size_t off = 0; off < LEN; off += 2 * PAGE) {
		if (!CHECK_OK("stripe", mprotect(p + off, PAGE, off % (4 * PAGE) ? PROT_NONE : PROT_READ)))
			return;
	}
	chill();
	for (size_t off = 0; off < LEN; off += 2 * PAGE) {
		if (off % (4 * PAGE) == 0)
			CHECK_MEM("read-only stripe", copy + off, p + off, PAGE);
		CHECK_MEM("writable stripe", copy + off + PAGE, p + off + PAGE, PAGE);
		p[off + PAGE] = copy[off + PAGE] = (char)(off / PAGE);
	}
	CHECK_FAULT("write to a read-only stripe", p + 100 * PAGE, ACCESS_WRITE, SEGV_DENIED);
	CHECK_FAULT("read of a closed stripe", p + 102 * PAGE, ACCESS_READ, SEGV_DENIED);
	CHECK_OK("all back at once", mprotect(p, LEN, RW));
	CHECK_MEM("all stripes", copy, p, LEN);
	munmap(p, LEN);
	free(copy);
}

static void reserve_commit(void)
{
	char *p = mmap(NULL, 8 * LEN, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
	for (unsigned i = 0; i < 8; i++) {
		CHECK_OK("commit by mprotect", mprotect(p + i * LEN, LEN / 2, RW));
		CHECK_ZERO("committed", p + i * LEN, LEN / 2);
		fill(p + i * LEN, LEN / 2, i);
	}
	chill();
	for (unsigned i = 0; i < 8; i++) {
		CHECK_FILL("content", p + i * LEN, LEN / 2, i);
		CHECK_FAULT("not committed", p + i * LEN + LEN / 2, ACCESS_READ, SEGV_DENIED);
	}
	CHECK_OK("decommit: discard", madvise(p + LEN, LEN / 2, MADV_DONTNEED));
	CHECK_OK("decommit: close", mprotect(p + LEN, LEN / 2, PROT_NONE));
	CHECK_FAULT("decommitted", p + LEN, ACCESS_READ, SEGV_DENIED);
	CHECK_OK("commit again", mprotect(p + LEN, LEN / 2, RW));
	CHECK_ZERO("commit again gives zeros", p + LEN, LEN / 2);
	CHECK_OK("close without discarding", mprotect(p + 2 * LEN, LEN / 2, PROT_NONE));
	CHECK_OK("discard while closed", madvise(p + 2 * LEN, LEN / 4, MADV_DONTNEED));
	CHECK_OK("open again", mprotect(p + 2 * LEN, LEN / 2, RW));
	CHECK_ZERO("discarded half", p + 2 * LEN, LEN / 4);
	char *copy = must_malloc(LEN / 2);
	fill(copy, LEN / 2, 2);
	CHECK_MEM("kept half", copy + LEN / 4, p + 2 * LEN + LEN / 4, LEN / 4);
	free(copy);
	munmap(p, 8 * LEN);
}

static void errors(void)
{
	char *p = map_anon(8 * PAGE);
	fill(p, 8 * PAGE, 6);
	CHECK_ERR("odd address", EINVAL, mprotect(p + 1, PAGE, RW));
	CHECK_OK("length 0", mprotect(p, 0, PROT_NONE));
	CHECK_NO_FAULT("length 0 changes nothing", p, ACCESS_READ);
	munmap(p + 4 * PAGE, PAGE);
	CHECK_ERR("over a hole", ENOMEM, mprotect(p, 8 * PAGE, PROT_READ));
	CHECK_ERR("nothing mapped", ENOMEM, mprotect(p + 4 * PAGE, PAGE, PROT_READ));
	CHECK_OK("writable again", mprotect(p, 4 * PAGE, RW));
	CHECK_FILL("content", p, 4 * PAGE, 6);
	munmap(p, 8 * PAGE);
}

#ifdef __x86_64__
typedef int (*function)(void);

/* mov eax, value; ret */
static void function_write(unsigned char *p, uint32_t value)
{
	p[0] = 0xb8;
	memcpy(p + 1, &value, 4);
	p[5] = 0xc3;
}

static function function_at(char *p)
{
	return (function)(uintptr_t)opaque(p);
}

static void exec(void)
{
	char *p = map_anon(LEN);
	for (size_t i = 0; i < LEN / PAGE; i++)
		function_write((unsigned char *)p + i * PAGE + i, (uint32_t)i * 3);
	CHECK_FAULT("call into memory that is not executable", p, ACCESS_EXEC, SEGV_DENIED);
	for (int round = 0; round < 2; round++) {
		CHECK_OK("to read and execute", mprotect(p, LEN, PROT_READ | PROT_EXEC));
		for (size_t i = 0; i < LEN / PAGE; i++)
			CHECK_EQ("result of generated code", i * (round ? 5 : 3), function_at(p + i * PAGE + i)());
		chill();
		for (size_t i = 0; i < LEN / PAGE; i++)
			CHECK_EQ("result of cold generated code", i * (round ? 5 : 3), function_at(p + i * PAGE + i)());
		CHECK_FAULT("write to code", p + PAGE, ACCESS_WRITE, SEGV_DENIED);
		CHECK_OK("to read and write", mprotect(p, LEN, RW));
		for (size_t i = 0; i < LEN / PAGE; i++)
			function_write((unsigned char *)p + i * PAGE + i, (uint32_t)i * 5);
	}
	munmap(p, LEN);
	p = mmap(NULL, LEN, RW | PROT_EXEC, ANON, -1, 0);
	if (p == MAP_FAILED) {
		skip("exec/rwx", "%s", strerror(errno));
		return;
	}
	for (unsigned round = 0; round < 3; round++) {
		for (size_t i = 0; i < LEN / PAGE; i++)
			function_write((unsigned char *)p + i * PAGE, (uint32_t)i + round);
		chill();
		for (size_t i = 0; i < LEN / PAGE; i++)
			CHECK_EQ("result of writable code", i + round, function_at(p + i * PAGE)());
	}
	/* An instruction across two cold pages. */
	function_write((unsigned char *)p + 10 * PAGE - 3, 4711);
	chill();
	CHECK_EQ("instruction over a page border", 4711, function_at(p + 10 * PAGE - 3)());
	munmap(p, LEN);
}
#else
static void exec(void)
{
	skip("exec", "code is generated for x86-64 only");
}
#endif

static void keys(void)
{
	int key = pkey_alloc(0, 0);
	if (key < 0) {
		skip("keys", "pkey_alloc: %s (no protection keys here)", strerror(errno));
		return;
	}
	char *p = map_anon(LEN);
	fill(p, LEN, 7);
	chill();
	CHECK_OK("pkey_mprotect", pkey_mprotect(p, LEN, RW, key));
	CHECK_FILL("content under a key", p, LEN, 7);
	fill(p, LEN, 8);
	chill_around();
	pkey_set(key, PKEY_DISABLE_WRITE);
	CHECK_FILL("readable under a key", p, LEN, 8);
	CHECK_FAULT("write under a key", p + 3 * PAGE, ACCESS_WRITE, (SIGSEGV << 8) | SEGV_PKUERR);
	pkey_set(key, 0);
	munmap(p, LEN);
	pkey_free(key);
}

/* Memory leaves whatever may be done with it. What may not be read, or may be executed and written, once stayed in RAM for good. */
static void leaves(void)
{
	static const int protections[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_EXEC, RW | PROT_EXEC, RW};
	for (size_t i = 0; i < 2 * NELEM(protections); i++) {
		bool gaps = i % 2;
		char *p = map_anon(LEN), *copy = must_malloc(LEN);
		fill(p, LEN, 20 + i);
		for (size_t at = 0; gaps && at < LEN; at += 3 * PAGE)
			CHECK_OK("DONTNEED", madvise(p + at, PAGE, MADV_DONTNEED));
		memcpy(copy, p, LEN);
		CHECK_OK("mprotect", mprotect(p, LEN, protections[i / 2]));
		make_cold(p, LEN);
		CHECK_OK("mprotect back", mprotect(p, LEN, RW));
		CHECK_MEM("content", copy, p, LEN);
		free(copy);
		munmap(p, LEN);
	}
}

/* Without room for mappings for a while (RLIMIT_AS here) read-only pages stay, since they leave by way of mappings of the engine's. Those were
 * lost then, and such pages stayed for good. */
static void no_room_for_a_while(void)
{
	char *p = map_anon(LEN), *copy = must_malloc(LEN);
	fill(p, LEN, 40);
	fill(copy, LEN, 40);
	CHECK_OK("to PROT_READ", mprotect(p, LEN, PROT_READ));
	struct rlimit limit;
	CHECK_OK("getrlimit", getrlimit(RLIMIT_AS, &limit));
	CHECK_OK("setrlimit", setrlimit(RLIMIT_AS, &(struct rlimit){MIB, limit.rlim_max}));
	for (int turn = 0; turn < 20; turn++)
		CHECK_OK("advised", madvise(p, LEN, MADV_PAGEOUT));
	CHECK_OK("setrlimit", setrlimit(RLIMIT_AS, &limit));
	CHECK_MEM("what stayed", copy, p, LEN);
	sleep(2);
	make_cold(p, LEN);
	CHECK_MEM("what left", copy, p, LEN);
	free(copy);
	munmap(p, LEN);
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"none_and_back", none_and_back}, {"read_only", read_only}, {"striped", striped},
		{"reserve_commit", reserve_commit}, {"errors", errors},	    {"exec", exec},
		{"leaves", leaves}, {"no_room_for_a_while", no_room_for_a_while},
		/* Last: where keys are used read-only pages do not leave. */
		{"keys", keys},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
