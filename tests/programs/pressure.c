/* Allocates and fills until malloc returns NULL, then verifies all of it.
 * Usage: pressure LIMIT_MIB [BLOCK_KIB]; stops at LIMIT_MIB at the latest; blocks of BLOCK_KIB (default 1024).
 * Prints `reached N MiB, refused` or `reached N MiB, limit`; exits 0 if every byte was right. */
#include "check.h"

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
		say("usage: %s LIMIT_MIB [BLOCK_KIB]", argv[0]);
		return 2;
	}
	struct head *list = NULL;
	uint64_t tag = 0;
	int why = 0;
	while (reached + len <= limit) {
		errno = 0;
		struct head *h = opaque(malloc(len));
		if (!h) {
			why = errno;
			CHECK_EQ("errno of a refused malloc", ENOMEM, why);
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
		free(list);
		list = next;
	}
	CHECK_EQ("blocks on the list", 0, tag);
	void *again = opaque(malloc(len));
	CHECK("malloc works again after freeing", again);
	free(again);
	return failures() ? 1 : 0;
}
