/* What a process asks of the kernel while it is small, and what comes of it when it is managed. Usage: early [MIB]; the block that is
 * filled then, default 16 MiB: give several times the budget. Prints `lazily freed N KiB`: what the kernel may still drop at its leisure
 * of what was freed; none of it, where that is told from what is managed. */
#include "check.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

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
	chill_around();
	sleep_ms(2);
	CHECK("the kernel writes in the child", *(unsigned *)arg < 4096);
}

/* What failed of what was called before any constructor had run, and so before farpage had started in this process. */
static const char *wrong_before;

/* Libraries lock memory in their constructors, which run before ours (libgcrypt's in ffmpeg, which was ended by it). */
static void before_all(void)
{
	static char block[4 * PAGE] __attribute__((aligned(4096)));
	unsigned char there[4];
	char copy = 0;
	struct iovec from = {block, 1}, to = {&copy, 1};
	struct msghdr message = {.msg_iov = &from, .msg_iovlen = 1};
	struct rlimit limit;
	block[0] = 7;
#define EARLY(call) (wrong_before = wrong_before || (call) ? wrong_before : #call)
	EARLY(mlock(block, sizeof block) == 0);
	EARLY(mlock2(block, sizeof block, 0) == 0);
	EARLY(mincore(block, sizeof block, there) == 0 && (there[0] & 1));
	EARLY(munlock(block, sizeof block) == 0);
	EARLY(mlockall(MCL_CURRENT) == 0 || errno == ENOMEM || errno == EPERM);
	EARLY(munlockall() == 0);
	EARLY(process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1 && copy == 7);
	EARLY(syscall(SYS_mincore, block, sizeof block, there) == 0);
	EARLY(sendmsg(-1, &message, 0) == -1 && errno == EBADF);
	EARLY(readv(-1, &to, 1) == -1 && errno == EBADF);
	EARLY(getrlimit(RLIMIT_FSIZE, &limit) == 0);
	EARLY(madvise(block, sizeof block, MADV_WILLNEED) == 0);
	void *mapped = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EARLY(mapped != MAP_FAILED && (mapped = mremap(mapped, LEN, 2 * LEN, MREMAP_MAYMOVE)) != MAP_FAILED);
	EARLY(munmap(mapped, 2 * LEN) == 0);
	char *heap = malloc(LEN);
	EARLY(heap != NULL);
	free(heap);
}

__attribute__((section(".preinit_array"), used)) static void (*const before)(void) = before_all;

int main(int argc, char **argv)
{
	CHECK_OK(wrong_before ? wrong_before : "before constructors", wrong_before != NULL);
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
		chill_around();
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
