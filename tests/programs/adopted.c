/* What a process has in the place of managed memory, or has only read, when it begins to be managed. It writes all of that, and walks through
 * other memory meanwhile.
 * Usage: adopted [MIB], of the other memory: several times the budget. Prints `ok adopted`; a wrong byte is a FAIL and exit status 1. */
#include "check.h"

#include <fcntl.h>
#include <sys/mman.h>

#define PIECE (2 * MIB)

enum { DEV_ZERO, A_FILE, SHARED, MOVED, PIECES };
static const char *const names[] = {"private /dev/zero", "a private file", "shared memory", "a private file that was moved there"};

static char *put(char *place, int index)
{
	const int access = PROT_READ | PROT_WRITE;
	int zero = open("/dev/zero", O_RDWR), file = temp_file();
	CHECK_OK("ftruncate", ftruncate(file, PIECE));
	char *p = MAP_FAILED;
	if (index == DEV_ZERO)
		p = mmap(place, PIECE, access, MAP_PRIVATE | MAP_FIXED, zero, 0);
	if (index == A_FILE)
		p = mmap(place, PIECE, access, MAP_PRIVATE | MAP_FIXED, file, 0);
	if (index == SHARED)
		p = mmap(place, PIECE, access, MAP_SHARED | MAP_FIXED, file, 0);
	if (index == MOVED) {
		char *elsewhere = mmap(NULL, PIECE, access, MAP_PRIVATE, file, 0);
		p = mremap(elsewhere, PIECE, PIECE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
	}
	CHECK(names[index], p == place);
	close(zero);
	close(file);
	return p;
}

/* Walks through so much fresh memory, and gives it back. */
static void walk(void)
{
	size_t len = size_mb * MIB;
	char *p = map_anon(len);
	fill(p, len, 99);
	CHECK_FILL("other memory", p, len, 99);
	munmap(p, len);
}

static size_t resident(char *p, size_t len)
{
	static unsigned char seen[1 << 16];
	CHECK_OK("mincore", mincore(p, len, seen));
	size_t count = 0;
	for (size_t i = 0; i < len / PAGE; i++)
		count += seen[i] & 1;
	return count;
}

int main(int argc, char **argv)
{
	check_init(argv);
	size_mb = argc > 1 ? strtoul(argv[1], NULL, 10) : size_mb;
	char *reserved = mmap(NULL, (PIECES + 2) * PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *pieces[PIECES];
	for (int i = 0; i < PIECES; i++) {
		pieces[i] = put(reserved + (size_t)(i + 1) * PIECE, i);
		fill(pieces[i], PIECE, (uint64_t)i);
	}
	/* The kernel's page of zeros, a huge one if it has such, stands for all of it. */
	char *empty = map_anon(3 * PIECE);
	char *whole = (char *)(((uintptr_t)empty + PIECE - 1) & ~(PIECE - 1));
	madvise(whole, 2 * PIECE, MADV_HUGEPAGE);
	CHECK_ZERO("memory that was not written", whole, 2 * PIECE);
	walk();
	fill(whole, 2 * PIECE, 50);
	walk();
	walk();
	size_t there = resident(whole, 2 * PIECE);
	if (getenv("EXPECT_COLD"))
		CHECK("memory that was read before it was managed leaves", there < 2 * PIECE / PAGE / 2);
	CHECK_FILL("memory that was read before it was managed", whole, 2 * PIECE, 50);
	for (int i = 0; i < PIECES; i++)
		CHECK_FILL(names[i], pieces[i], PIECE, (uint64_t)i);
	if (failures() == 0)
		say("ok adopted");
	return failures() ? 1 : 0;
}
