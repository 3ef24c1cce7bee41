/* Fills memory and verifies it. Usage: fill MIB [ROUNDS] [mmap|noreserve|huge|malloc] [SECONDS|PATH]
 * Each round fills all of it anew and verifies it twice, forwards and in a scattered order; then it holds the memory
 * for SECONDS (default 0) and verifies it once more. With a PATH it holds it until there is such a file, and begins no
 * round but the first where there is. Prints `ok fill MIB`. */
#include "check.h"

#include <ctype.h>
#include <sys/mman.h>

static const char *go;

static bool may_go(void)
{
	return go && access(go, F_OK) == 0;
}

/* Memory that is promised whether there is room for it or not. */
static char *map_noreserve(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK("mmap", p != MAP_FAILED);
	return p;
}

/* Memory that is asked to come in huge pages. */
static char *map_huge(size_t len)
{
	char *p = map_anon(len);
	CHECK("madvise(MADV_HUGEPAGE)", madvise(p, len, MADV_HUGEPAGE) == 0);
	return p;
}

/* Memory got in the way that is asked for, and whether munmap gives it back. */
static char *get(const char *way, size_t len, bool *mapped)
{
	*mapped = true;
	if (strcmp(way, "mmap") == 0)
		return map_anon(len);
	if (strcmp(way, "noreserve") == 0)
		return map_noreserve(len);
	if (strcmp(way, "huge") == 0)
		return map_huge(len);
	*mapped = false;
	return must_malloc(len);
}

int main(int argc, char **argv)
{
	check_init(argv);
	size_t mb = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
	unsigned rounds = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 1;
	bool mapped;
	const char *until = argc > 4 ? argv[4] : "0";
	go = isdigit((unsigned char)*until) ? NULL : until;
	unsigned seconds = (unsigned)strtoul(until, NULL, 10);
	uint64_t last = 0;
	if (mb == 0) {
		say("usage: %s MIB [ROUNDS] [mmap|noreserve|huge|malloc] [SECONDS]", argv[0]);
		return 2;
	}
	char *p = get(argc > 3 ? argv[3] : "malloc", mb * MIB, &mapped);
	size_t chunks = mb * 16, chunk = MIB / 16;
	for (uint64_t round = 1; round <= rounds && (round == 1 || !may_go()); round++) {
		last = round;
		for (size_t i = 0; i < chunks; i++)
			fill(p + i * chunk, chunk, (round << 32) + i);
		for (size_t i = 0; i < chunks; i++)
			CHECK_FILL("forwards", p + i * chunk, chunk, (round << 32) + i);
		for (size_t i = 0; i < chunks; i++) {
			size_t j = mix64(i + round) % chunks;
			CHECK_FILL("scattered", p + j * chunk, chunk, (round << 32) + j);
		}
	}
	if (seconds || go) {
		sleep_ms(seconds * 1000);
		while (go && !may_go())
			sleep_ms(20);
		for (size_t i = 0; last && i < chunks; i++)
			CHECK_FILL("after holding it", p + i * chunk, chunk, (last << 32) + i);
	}
	if (mapped)
		munmap(p, mb * MIB);
	else
		free(p);
	if (failures() == 0)
		say("ok fill %zu", mb);
	return failures() ? 1 : 0;
}
