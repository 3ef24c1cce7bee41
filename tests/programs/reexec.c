/* A daemon that begins anew: leaves its parent, and each image fills its memory and executes the next. The last one writes its
 * number to the file READY and waits until the file GO is there. Usage: reexec MIB IMAGES READY GO. With 0 MiB it stays small, and dormant. */
#include "check.h"

#include <fcntl.h>

static void leave_parent(void)
{
	pid_t pid = fork();
	if (CHECK("fork", pid >= 0) && pid == 0)
		setsid();
	else
		_exit(failures() ? 1 : 0);
}

int main(int argc, char **argv)
{
	check_init(argv);
	if (!CHECK("four arguments, or five", argc == 5 || argc == 6))
		return 1;
	int left = atoi(argv[2]);
	if (argc == 5)
		leave_parent();
	size_t len = strtoul(argv[1], NULL, 10) * MIB;
	char *data = len ? map_anon(len) : NULL;
	if (data) {
		fill(data, len, left);
		CHECK_FILL("the data", data, len, left);
	}
	if (failures() == 0 && left > 1) {
		char number[16];
		snprintf(number, sizeof number, "%d", left - 1);
		execl("/proc/self/exe", argv[0], argv[1], number, argv[3], argv[4], "again", NULL);
		CHECK("exec", false);
	}
	CHECK("the file that says so", dprintf(open(argv[3], O_CREAT | O_WRONLY, 0600), "%d\n", getpid()) > 0);
	while (access(argv[4], F_OK) != 0)
		usleep(10000);
	if (data)
		CHECK_FILL("the data at the end", data, len, left);
	say(failures() ? "" : "ok reexec\n");
	return failures() ? 1 : 0;
}
