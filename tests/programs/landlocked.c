/* Forbids itself to open any file before it needs its memory, as xz does once it has opened what it reads; then files and fork. It could
 * not become managed any more (/proc/self/task: EACCES), and went on without a budget.
 * Usage: landlocked [MIB] */
#include "check.h"

#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

int main(int argc, char **argv)
{
	check_init(argv);
	size_t len = (argc > 1 ? strtoul(argv[1], NULL, 10) : 16) * MIB;
	struct landlock_ruleset_attr rules = {.handled_access_fs = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR |
								  LANDLOCK_ACCESS_FS_WRITE_FILE};
	int fd = temp_file(), ruleset = (int)syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
	if (ruleset < 0) {
		say("skip landlocked: landlock: %s", strerror(errno));
		return 0;
	}
	CHECK_OK("no new privileges", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	CHECK_OK("landlock_restrict_self", syscall(SYS_landlock_restrict_self, ruleset, 0));
	close(ruleset);
	CHECK_ERR("open", EACCES, open("/proc/self/maps", O_RDONLY));
	char *data = map_anon(len);
	for (int round = 0; round < 2; round++) {
		fill(data, len, 5);
		CHECK_FILL("the data", data, len, 5);
	}
	CHECK_EQ("what is written from it", (ssize_t)MIB, pwrite(fd, data, MIB, 0));
	CHECK_OK("what is dropped of it", madvise(data, MIB, MADV_DONTNEED));
	CHECK_ZERO("what was dropped", data, MIB);
	CHECK_EQ("what is read back", (ssize_t)MIB, pread(fd, data, MIB, 0));
	pid_t pid = fork();
	if (pid == 0)
		_exit(first_bad(data, len, 5) == SIZE_MAX ? 9 : 1);
	CHILD_EXPECT("a child", pid, 9);
	char *moved = mremap(data, len, len + 4 * MIB, MREMAP_MAYMOVE);
	if (CHECK("mremap", moved != MAP_FAILED))
		CHECK_FILL("the data, moved", moved, len, 5);
	if (failures() == 0)
		say("ok landlocked");
	return failures() ? 1 : 0;
}
