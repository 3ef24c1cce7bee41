/* Allocates and fills until malloc returns NULL, then verifies all of it.
 * Usage: pressure LIMIT_MIB [BLOCK_KIB [malloc|fixed|protect]]; stops at LIMIT_MIB at the latest; blocks of BLOCK_KIB
 * (default 1024) from malloc, or a reserved range that is opened block by block: by MAP_FIXED, as java does, or by mprotect.
 * Prints `reached N MiB, refused` or `reached N MiB, limit`; exits 0 if every byte was right. */
#include "check.h"

#include <sys/mman.h>

static char *reserved;
static const char *way = "malloc";

/* The next `len` bytes of what was reserved, opened. */
static void *open_next(size_t len, size_t reached)
{
	char *p = reserved + reached;
	if (strcmp(way, "protect") == 0)
		return mprotect(p, len, PROT_READ | PROT_WRITE) == 0 ? p : NULL;
	p = mmap(p, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

static void *take(size_t len, size_t reached)
{
	return reserved ? open_next(len, reached) : opaque(malloc(len));
}

static void give_back(void *p, size_t len)
{
	if (reserved)
		CHECK_EQ("munmap", 0, munmap(p, len));
	else
		free(p);
}

/* Lists of blocks, in the blocks themselves. */
struct head {
	struct head *next;
	uint64_t tag;
};

int main(int argc, char **argv)
{
	check_init(argv);
	size_t limit = argc > 1 ? strtoul(argv[1], NULL, 10) * MIB : 0;
	size_t len = (argc > 2 ? strtoul(argv[2], NULL, 10) : 1024) * 1024, reached = 0;
	if (limit == 0 || len < 1024) {
		say("usage: %s LIMIT_MIB [BLOCK_KIB [malloc|fixed|protect]]", argv[0]);
		return 2;
	}
	way = argc > 3 ? argv[3] : way;
	if (strcmp(way, "malloc") != 0) {
		reserved = mmap(NULL, limit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		CHECK("mmap", reserved != MAP_FAILED);
	}
	struct head *list = NULL;
	uint64_t tag = 0;
	int why = 0;
	while (reached + len <= limit) {
		errno = 0;
		struct head *h = take(len, reached);
		if (!h) {
			why = errno;
			CHECK_EQ("errno of a refusal", ENOMEM, why);
			break;
		}
		*h = (struct head){list, ++tag};
		fill(h + 1, len - sizeof *h, tag);
		list = h;
		reached += len;
	}
	for (struct head *h = list; h; h = h->next)
		CHECK_FILL("block", h + 1, len - sizeof *h, h->tag);
	say("reached %zu MiB, %s", reached / MIB, why ? "refused" : "limit");
	while (list) {
		CHECK_EQ("tag of a block", tag--, list->tag);
		struct head *next = list->next;
		give_back(list, len);
		list = next;
	}
	CHECK_EQ("blocks on the list", 0, tag);
	void *again = opaque(malloc(len));
	CHECK("malloc works again after giving all back", again);
	free(again);
	return failures() ? 1 : 0;
}
