/* What a process asks of the kernel while it is small, and what comes of it when it is managed. Usage: early [MIB]; the block that is
 * filled then, default 16 MiB: give several times the budget. Prints `lazily freed N KiB`: what the kernel may still drop at its leisure
 * of what was freed; none of it, where that is told from what is managed. */
#include "check.h"

#include <sys/mman.h>
#include <sys/syscall.h>

#define LEN (2 * MIB)

/* Of all mappings between two addresses. */
static size_t lazily_freed_kib(const char *from, const char *to)
{
	FILE *file = fopen("/proc/self/smaps", "re");
	char line[512];
	unsigned long lo = 0, hi = 0, kib;
	size_t sum = 0;
	CHECK("smaps", file != NULL);
	while (file && fgets(line, sizeof line, file)) {
		unsigned long start, end;
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			lo = start, hi = end;
		else if (sscanf(line, "LazyFree: %lu kB", &kib) == 1 && lo < (uintptr_t)to && hi > (uintptr_t)from)
			sum += kib;
	}
	if (file)
		fclose(file);
	return sum;
}

static void child(void *arg)
{
	chill();
	sleep_ms(2);
	CHECK("the kernel writes in the child", *(unsigned *)arg < 4096);
}

int main(int argc, char **argv)
{
	check_init(argv);
	size_mb = argc > 1 ? strtoul(argv[1], NULL, 10) : 16;
	char *p = map_anon(3 * LEN);
	memset(p, 1, 2 * LEN);
	fill(p + 2 * LEN, LEN, 3);
	CHECK_OK("FREE", madvise(p, LEN, MADV_FREE));
	CHECK_OK("FREE by number", syscall(SYS_madvise, p + LEN, LEN, MADV_FREE));
	if (!own_rseq(p + 2 * LEN))
		skip("early", "rseq: %s", strerror(errno));
	for (int round = 0; round < 2; round++) {
		chill();
		for (size_t off = 0; off < 2 * LEN; off += PAGE)
			CHECK_BYTE("freed page", p + off, PAGE, p[off] ? 1 : 0);
		CHILD_EXPECT("child", child_start(child, p + 2 * LEN), 0);
	}
	static char whole[LEN];
	fill(whole, LEN, 3);
	CHECK_MEM("what was not freed", whole + 32, p + 2 * LEN + 32, LEN - 32);
	say("lazily freed %zu KiB", lazily_freed_kib(p, p + 2 * LEN));
	if (failures() == 0)
		say("ok early");
	return failures() ? 1 : 0;
}
