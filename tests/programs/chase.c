/* Goes through its pages again and again in the same order, which is none of addresses: a list with one node in each page.
 * Usage: chase MIB ROUNDS. The time of each round goes to stderr. Prints `ok chase MIB`. */
#include "check.h"

#include <sys/mman.h>
#include <time.h>

struct node {
	uint64_t next, number;
};

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	check_init(argv);
	size_t mb = argc > 1 ? strtoul(argv[1], NULL, 10) : 0, rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : 2;
	if (mb == 0) {
		say("usage: %s MIB ROUNDS", argv[0]);
		return 2;
	}
	size_t count = mb * MIB / PAGE;
	char *p = map_anon(count * PAGE);
	uint32_t *order = must_malloc(count * sizeof *order);
	for (size_t i = 0; i < count; i++)
		order[i] = (uint32_t)i;
	for (size_t i = count - 1; i > 0; i--) {
		size_t j = mix64(i) % (i + 1);
		uint32_t other = order[i];
		order[i] = order[j];
		order[j] = other;
	}
	for (size_t i = 0; i < count; i++) {
		char *page = p + order[i] * PAGE;
		fill(page, PAGE, i);
		*(struct node *)page = (struct node){order[(i + 1) % count] * PAGE, i};
	}
	uint64_t at = order[0] * PAGE;
	free(order);
	for (size_t round = 0; round < rounds; round++) {
		double start = seconds();
		size_t i = 0;
		for (; i < count; i++) {
			const struct node *node = (const struct node *)(p + at);
			if (node->number != i)
				break;
			at = node->next;
		}
		CHECK_EQ("nodes in order", count, i);
		fprintf(stderr, "round %zu: %.3f s, %.2f us a node\n", round, seconds() - start, (seconds() - start) * 1e6 / (double)count);
	}
	munmap(p, count * PAGE);
	if (failures() == 0)
		say("ok chase %zu", mb);
	return failures() ? 1 : 0;
}
