/* A process and its children read what they share. Usage: readers MIB CHILDREN ROUNDS [SECONDS]
 * It fills memory whose pages compress to a quarter, then all verify all of it, ROUNDS times, in a scattered order each; then, its children
 * ended, it holds the memory for SECONDS (default 0) and verifies it once more. Prints `ok readers MIB`. */
#include "check.h"

#include <sys/wait.h>

#define DENSE 1024ul

static void verify(const char *memory, size_t pages, unsigned round)
{
	for (size_t i = 0; i < pages; i++) {
		size_t page = mix64(i + ((uint64_t)round << 32)) % pages;
		CHECK_FILL("shared", memory + page * PAGE, DENSE, page);
	}
}

int main(int argc, char **argv)
{
	check_init(argv);
	if (argc < 4) {
		say("usage: %s MIB CHILDREN ROUNDS [SECONDS]", argv[0]);
		return 2;
	}
	size_t pages = strtoul(argv[1], NULL, 10) * MIB / PAGE;
	unsigned children = atoi(argv[2]), rounds = atoi(argv[3]), seconds = argc > 4 ? atoi(argv[4]) : 0;
	char *memory = map_anon(pages * PAGE);
	for (size_t page = 0; page < pages; page++)
		fill(memory + page * PAGE, DENSE, page);
	for (unsigned child = 1; child <= children; child++) {
		pid_t pid = fork();
		CHECK("fork", pid >= 0);
		if (pid == 0) {
			for (unsigned round = 1; round <= rounds; round++)
				verify(memory, pages, child * 1000 + round);
			_exit(failures() ? 1 : 0);
		}
	}
	for (unsigned round = 1; round <= rounds; round++)
		verify(memory, pages, round);
	for (unsigned child = 0; child < children; child++) {
		int status = -1;
		CHECK("a child", wait(&status) > 0 && status == 0);
	}
	say("children ended");
	sleep_ms(seconds * 1000);
	verify(memory, pages, 0);
	if (failures() == 0)
		say("ok readers %s", argv[1]);
	return failures() ? 1 : 0;
}
