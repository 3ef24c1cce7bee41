/* exec, vfork, posix_spawn, system, popen with everything they read in cold malloc'd memory.
 * Usage: sem_exec [MIB] [GROUP]; MIB (default 16) is the size of the block that makes memory cold.
 * It starts itself as `sem_exec --echo ARG...`: prints FARPAGE_TEST, argument count, a sum of all arguments and their
 * environment to stdout, checks 8 MiB of its own memory, exits 21. */
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;

static uint64_t sum_strings(char *const *list)
{
	uint64_t sum = 0;
	for (size_t i = 0; list[i]; i++) {
		for (size_t j = 0; list[i][j]; j++)
			sum = sum * 31 + (unsigned char)list[i][j];
	}
	return sum;
}

static int echo(int argc, char **argv)
{
	const char *env = getenv("FARPAGE_TEST");
	char *p = must_malloc(8 * MIB);
	fill(p, 8 * MIB, 1);
	CHECK_FILL("memory of the new image", p, 8 * MIB, 1);
	say("%s %d %llx", env ? env : "none", argc, (unsigned long long)sum_strings(argv + 1));
	free(p);
	return failures() ? 1 : 21;
}

/* argv and environment, strings and arrays, each on malloc'd pages of their own. */
struct image {
	char **argv, **envp;
	char expected[128];
};

static char *cold_string(const char *text)
{
	char *p = must_malloc(3 * PAGE);
	return strcpy(p + PAGE - 5, text);
}

/* With all of the environment, so that a preload library set there stays. */
static struct image image_make(size_t args, size_t arg_len)
{
	struct image im;
	size_t env_count = 0;
	while (environ[env_count])
		env_count++;
	im.argv = must_malloc((args + 3) * sizeof(char *));
	im.envp = must_malloc((env_count + 2) * sizeof(char *));
	im.argv[0] = cold_string("sem_exec");
	im.argv[1] = cold_string("--echo");
	for (size_t i = 0; i < args; i++) {
		im.argv[i + 2] = must_malloc(arg_len + 1);
		for (size_t j = 0; j < arg_len; j++)
			im.argv[i + 2][j] = (char)('a' + mix64(i * arg_len + j) % 26);
		im.argv[i + 2][arg_len] = 0;
	}
	im.argv[args + 2] = NULL;
	for (size_t i = 0; i < env_count; i++)
		im.envp[i] = cold_string(strlen(environ[i]) < 2 * PAGE ? environ[i] : "LONG=1");
	im.envp[env_count] = cold_string("FARPAGE_TEST=cold");
	im.envp[env_count + 1] = NULL;
	snprintf(im.expected, sizeof im.expected, "cold %zu %llx\n", args + 2,
		 (unsigned long long)sum_strings(im.argv + 1));
	return im;
}

static void image_free(struct image *im)
{
	free(im->argv[0] - (PAGE - 5));
	free(im->argv[1] - (PAGE - 5));
	for (size_t i = 2; im->argv[i]; i++)
		free(im->argv[i]);
	for (size_t i = 0; im->envp[i]; i++)
		free(im->envp[i] - (PAGE - 5));
	free(im->argv);
	free(im->envp);
}

static void expect_output(const char *what, int fd, const char *expected)
{
	char got[256];
	size_t len = 0;
	ssize_t n;
	while (len < sizeof got - 1 && (n = read(fd, got + len, sizeof got - 1 - len)) > 0)
		len += (size_t)n;
	got[len] = 0;
	if (strcmp(got, expected) != 0)
		fail_at(WHERE, what, "expected output %s got %s", expected, got);
}

enum start { START_EXECVE, START_EXECVPE, START_EXECVEAT, START_FEXECVE, START_RAW, START_VFORK, START_COUNT };

static void exec_now(enum start how, const char *path, struct image *im)
{
	int fd;
	switch (how) {
	case START_EXECVPE: execvpe(path, im->argv, im->envp); break;
	case START_EXECVEAT: syscall(SYS_execveat, AT_FDCWD, path, im->argv, im->envp, 0); break;
	case START_FEXECVE:
		fd = open(path, O_RDONLY | O_CLOEXEC);
		fexecve(fd, im->argv, im->envp);
		break;
	case START_RAW: syscall(SYS_execve, path, im->argv, im->envp); break;
	default: execve(path, im->argv, im->envp); break;
	}
	_exit(99);
}

static void exec_each(size_t args, size_t arg_len)
{
	static const char *const names[START_COUNT] = {"execve", "execvpe", "execveat", "fexecve", "raw execve", "vfork"};
	for (enum start how = START_EXECVE; how < START_COUNT; how++) {
		struct image im = image_make(args, arg_len);
		char *path = cold_string(self_path);
		int fds[2];
		CHECK_OK("pipe", pipe2(fds, O_CLOEXEC));
		chill();
		pid_t pid = how == START_VFORK ? vfork() : fork();
		if (pid == 0) {
			dup2(fds[1], 1);
			exec_now(how, path, &im);
		}
		close(fds[1]);
		expect_output(names[how], fds[0], im.expected);
		CHILD_EXPECT(names[how], pid, 21);
		close(fds[0]);
		image_free(&im);
		free(path - (PAGE - 5));
	}
}

static void exec_small(void)
{
	exec_each(5, 10);
}

/* About 1 MB of arguments; one alone is 100 KB. */
static void exec_large(void)
{
	exec_each(10000, 60);
	exec_each(3, 100000);
}

/* More strings than were looked at: the rest was out, and exec failed with EFAULT. */
static void exec_many(void)
{
	struct image im = image_make(160000, 2);
	int fds[2];
	CHECK_OK("pipe", pipe2(fds, O_CLOEXEC));
	chill();
	pid_t pid = fork();
	if (pid == 0) {
		dup2(fds[1], 1);
		exec_now(START_EXECVE, self_path, &im);
	}
	close(fds[1]);
	expect_output("160000 arguments", fds[0], im.expected);
	CHILD_EXPECT("160000 arguments", pid, 21);
	close(fds[0]);
	image_free(&im);
}

static void exec_fails(void)
{
	char *none = cold_string("/nonexistent/program");
	struct image im = image_make(3, 10);
	char *p = map_anon(4 * MIB);
	fill(p, 4 * MIB, 1);
	chill();
	CHECK_ERR("execve of nothing", ENOENT, execve(none, im.argv, im.envp));
	CHECK_ERR("execve of a directory", EACCES, execve("/tmp", im.argv, im.envp));
	CHECK_FILL("memory after a failed exec", p, 4 * MIB, 1);
	pid_t pid = vfork();
	if (pid == 0) {
		execve(none, im.argv, im.envp);
		_exit(errno == ENOENT ? 5 : 6);
	}
	CHILD_EXPECT("failed exec in a vfork child", pid, 5);
	CHECK_FILL("memory after a failed vfork and exec", p, 4 * MIB, 1);
	munmap(p, 4 * MIB);
	image_free(&im);
	free(none - (PAGE - 5));
}

static volatile int vfork_left;

static void vforks(void)
{
	size_t len = 4 * MIB;
	char *p = map_anon(len);
	for (int i = 0; i < 20; i++) {
		fill(p, len, (uint64_t)i);
		if (i % 4 == 0)
			chill();
		pid_t pid = vfork();
		if (pid == 0) {
			/* The child runs in the parent's memory: it reads cold pages and leaves marks. */
			vfork_left = first_bad(p, len, (uint64_t)i) == SIZE_MAX ? i : -1;
			p[5 * PAGE] = 'v';
			_exit(7);
		}
		CHILD_EXPECT("vfork child", pid, 7);
		CHECK_EQ("what the vfork child left", i, vfork_left);
		CHECK_EQ("byte the vfork child wrote", 'v', p[5 * PAGE]);
	}
	munmap(p, len);
}

static long mapped_pages(void)
{
	char text[64] = "";
	int fd = open("/proc/self/statm", O_RDONLY);
	read(fd, text, sizeof text - 1);
	close(fd);
	return atol(text);
}

static void vfork_true(bool fails_first)
{
	static char *argv[] = {"true", NULL}, *envp[] = {"A=b", NULL};
	pid_t pid = vfork();
	if (pid == 0) {
		if (fails_first)
			execve("/no/such/program", argv, envp);
		execve("/bin/true", argv, envp);
		_exit(9);
	}
	CHILD_EXPECT("vfork child with an environment", pid, 0);
}

/* A child of vfork starts a program with an environment of its own: what is made of it for the preload library lies in the parent's
 * memory, where two pages stayed with each such child. */
static void vfork_environment(void)
{
	enum { WARM = 10, TIMES = 200 };
	long before = 0;
	for (int i = 0; i < WARM + TIMES; i++) {
		if (i == WARM)
			before = mapped_pages();
		vfork_true(i % 2);
	}
	CHECK("mappings after many vforks", mapped_pages() - before < TIMES / 4);
}

/* Pages that a vfork child's exec had read stayed locked in the parent: they could not be dropped any more. */
static void vfork_leaves_nothing(void)
{
	for (int way = 0; way < 2; way++) {
		char *p = map_anon(4 * MIB);
		fill(p, 4 * MIB, 3);
		char **argv = (char **)(void *)p, **envp = (char **)(void *)(p + MIB);
		argv[0] = strcpy(p + PAGE, "sh");
		argv[1] = strcpy(p + 2 * PAGE, "-c");
		argv[2] = strcpy(p + 3 * PAGE, "exit 9");
		argv[3] = NULL;
		envp[0] = strcpy(p + MIB + PAGE, "PATH=/usr/bin:/bin");
		envp[1] = NULL;
		char *path = strcpy(p + 2 * MIB, way ? "sh" : "/bin/sh");
		chill();
		pid_t pid = vfork();
		if (pid == 0) {
			if (way)
				execvpe(path, argv, envp);
			else
				execve(path, argv, envp);
			_exit(99);
		}
		CHILD_EXPECT("exec in a vfork child", pid, 9);
		CHECK_OK("its strings are dropped", madvise(p, 4 * MIB, MADV_DONTNEED));
		CHECK_ZERO("what was dropped", p, 4 * MIB);
		munmap(p, 4 * MIB);
	}
}

static int vm_child(void *arg)
{
	struct image *im = arg;
	dup2(vfork_left, 1);
	execve(self_path, im->argv, im->envp);
	_exit(99);
}

/* As posix_spawn does it: a child in the same memory, on a stack of its own. Arguments that the flags do not name once decided
 * whether it lived: what a register held there, looking like a managed pointer, got the call trapped, and the child started on
 * its new stack in the middle of the handler. */
static void clone_vm(void)
{
	struct image im = image_make(5, 20);
	char *stack = must_malloc(256 * 1024);
	int fds[2];
	CHECK_OK("pipe", pipe2(fds, O_CLOEXEC));
	vfork_left = fds[1];
	chill();
	pid_t pid = clone(vm_child, stack + 256 * 1024, CLONE_VM | CLONE_VFORK | SIGCHLD, &im, im.argv, im.argv, im.envp);
	close(fds[1]);
	expect_output("clone in the same memory", fds[0], im.expected);
	CHILD_EXPECT("clone in the same memory", pid, 21);
	close(fds[0]);
	free(stack);
	image_free(&im);
}

static void spawned(void)
{
	for (int way = 0; way < 2; way++) {
		struct image im = image_make(way ? 2000 : 5, 30);
		posix_spawn_file_actions_t *acts = must_malloc(sizeof *acts);
		posix_spawnattr_t *attr = must_malloc(sizeof *attr);
		sigset_t *mask = cold_alloc(PAGE);
		pid_t *pid = cold_alloc(PAGE);
		char *out = cold_string("/tmp/sem-exec-XXXXXX"), *null = cold_string("/dev/null");
		close(mkstemp(out));
		posix_spawn_file_actions_init(acts);
		posix_spawn_file_actions_addopen(acts, 1, out, O_WRONLY | O_TRUNC, 0);
		posix_spawn_file_actions_addopen(acts, 9, null, O_RDONLY, 0);
		posix_spawn_file_actions_adddup2(acts, 9, 0);
		posix_spawn_file_actions_addclose(acts, 9);
		posix_spawnattr_init(attr);
		sigfillset(mask);
		posix_spawnattr_setsigdefault(attr, mask);
		sigemptyset(mask);
		posix_spawnattr_setsigmask(attr, mask);
		posix_spawnattr_setpgroup(attr, 0);
		posix_spawnattr_setflags(attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
		chill();
		CHECK_EQ("posix_spawn", 0, (way ? posix_spawnp : posix_spawn)(pid, self_path, acts, attr, im.argv, im.envp));
		CHILD_EXPECT("posix_spawn", *pid, 21);
		int fd = open(out, O_RDONLY | O_CLOEXEC);
		expect_output("posix_spawn", fd, im.expected);
		close(fd);
		unlink(out);
		CHECK_EQ("posix_spawn of nothing", ENOENT, posix_spawn(pid, "/nonexistent", NULL, NULL, im.argv, im.envp));
		posix_spawn_file_actions_destroy(acts);
		posix_spawnattr_destroy(attr);
		free(acts);
		free(attr);
		free(out - (PAGE - 5));
		free(null - (PAGE - 5));
		image_free(&im);
	}
}

static void shell(void)
{
	char *command = cold_string("exit 37");
	char *p = map_anon(4 * MIB);
	fill(p, 4 * MIB, 2);
	chill();
	CHECK_EQ("system", 37, WEXITSTATUS(system(command)));
	strcpy(command, "kill -9 $$");
	int status = system(command);
	CHECK("system of a command that is killed", WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	CHECK("system(NULL)", system(NULL) != 0);
	strcpy(command, "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done");
	chill();
	FILE *f = popen(command, "r");
	char line[64], expected[64];
	int n = 0;
	while (fgets(line, sizeof line, f)) {
		snprintf(expected, sizeof expected, "line %d\n", n++);
		if (!CHECK_MEM("popen text", expected, line, strlen(expected)))
			break;
	}
	CHECK_EQ("popen lines", 2000, n);
	CHECK_EQ("pclose", 0, pclose(f));
	strcpy(command, "n=$(wc -c); exit $((n / 20000))");
	char *text = must_malloc(MIB);
	memset(text, 'x', MIB);
	chill();
	f = popen(command, "w");
	CHECK_EQ("fwrite to popen", MIB, fwrite(text, 1, MIB, f));
	CHECK_EQ("pclose of a writer", MIB / 20000, WEXITSTATUS(pclose(f)));
	CHECK_FILL("memory after all of them", p, 4 * MIB, 2);
	munmap(p, 4 * MIB);
	free(text);
	free(command - (PAGE - 5));
}

static void environment(void)
{
	char *value = must_malloc(100001);
	memset(value, 'e', 100000);
	value[100000] = 0;
	CHECK_OK("setenv", setenv("FARPAGE_LONG", value, 1));
	chill();
	CHECK_EQ("a long variable reaches a child", 0,
		 WEXITSTATUS(system("test ${#FARPAGE_LONG} -eq 100000")));
	CHECK_OK("unsetenv", unsetenv("FARPAGE_LONG"));
	free(value);
}

/* An environment that the program keeps in an array of its own: libc hands it to the child of system and popen as it is, which ended at
 * a call with such a pointer. */
static void own_environment(void)
{
	char **before = environ;
	size_t count = 0;
	while (before[count])
		count++;
	char **own = cold_alloc((count + 2) * sizeof *own);
	memcpy(own, before, count * sizeof *own);
	own[count] = cold_string("FARPAGE_OWN=1");
	own[count + 1] = NULL;
	environ = own;
	shell();
	CHECK_EQ("its variable reaches a child", 0, WEXITSTATUS(system("test \"$FARPAGE_OWN\" = 1")));
	void (*interrupt)(int) = signal(SIGINT, SIG_IGN);
	CHECK_EQ("SIGINT ignored before is so in the child", 0, WEXITSTATUS(system("kill -INT $$; exit 0")));
	signal(SIGINT, SIG_DFL);
	int status = system("kill -INT $$; exit 0");
	CHECK("SIGINT is not ignored in the child otherwise", WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
	signal(SIGINT, interrupt);
	CHECK_EQ("a child of pclose that exits", 5, ({ FILE *f = popen("exit 5", "re"); WEXITSTATUS(pclose(f)); }));
	CHECK("popen of no kind", popen("true", "x") == NULL && errno == EINVAL);
	environ = before;
}

/* Environment with our variables alone: what a program does that starts others with a clean one. */
static void clean_environment(void)
{
	char *argv[] = {"sem_exec", "--echo", "x", NULL}, *envp[] = {"FARPAGE_TEST=clean", NULL};
	char expected[64];
	snprintf(expected, sizeof expected, "clean 3 %llx\n", (unsigned long long)sum_strings(argv + 1));
	int fds[2];
	CHECK_OK("pipe", pipe2(fds, O_CLOEXEC));
	pid_t pid = fork();
	if (pid == 0) {
		dup2(fds[1], 1);
		execve(self_path, argv, envp);
		_exit(99);
	}
	close(fds[1]);
	expect_output("clean environment", fds[0], expected);
	CHILD_EXPECT("clean environment", pid, 21);
	close(fds[0]);
}

/* A debugger starts its program so: traced before the exec, in the debugger's memory. Any signal would stop the child, and its
 * parent, which should let it go on, waits for the exec. Reading argv[0], swapped out, once was such a signal. */
static void traced_vfork(void)
{
	unsigned char *cold = must_malloc(4 * MIB);
	fill(cold, 4 * MIB, 3);
	char **argv = must_malloc(2 * sizeof *argv);
	argv[0] = cold_string("true");
	argv[1] = NULL;
	chill();
	pid_t pid = vfork();
	if (pid == 0) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		if (first_bad(cold, 4 * MIB, 3) != SIZE_MAX)
			_exit(98);
		execvp(argv[0], argv);
		_exit(99);
	}
	int status = 0, stops = 0;
	while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
		int sig = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
		CHECK_OK("PTRACE_CONT", ptrace(PTRACE_CONT, pid, NULL, (void *)(long)sig));
		stops++;
	}
	CHECK("stopped at its exec", stops > 0);
	CHECK_EQ("exit status", 0, status);
	free(argv[0] - PAGE + 5);
	free(argv);
	free(cold);
}

/* What the search along PATH finds: the exit code of a child that execs `name`, or its error. */
static int searched_for(const char *name)
{
	char *file = cold_string(name), *argv[] = {file, NULL};
	chill();
	pid_t pid = fork();
	if (pid == 0) {
		execvp(file, argv);
		_exit(errno);
	}
	int status = 0;
	waitpid(pid, &status, 0);
	free(file - PAGE + 5);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void script(const char *path, const char *text, mode_t mode)
{
	int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, mode);
	CHECK("a script", fd >= 0 && write_all(fd, text, strlen(text)));
	close(fd);
	chmod(path, mode);
}

static void searched(void)
{
	char here[] = "/tmp/sem_exec_XXXXXX", other[] = "/tmp/sem_exec_XXXXXX", path[600], before[4096];
	CHECK("directories", mkdtemp(here) && mkdtemp(other));
	snprintf(before, sizeof before, "%s", getenv("PATH"));
	snprintf(path, sizeof path, "%s/plain", here);
	script(path, "exit 117\n", 0755);
	snprintf(path, sizeof path, "%s/closed", here);
	script(path, "exit 118\n", 0644);
	snprintf(path, sizeof path, "%s/twice", here);
	script(path, "exit 119\n", 0644);
	snprintf(path, sizeof path, "%s/twice", other);
	script(path, "#!/bin/sh\nexit 120\n", 0755);
	snprintf(path, sizeof path, "/nowhere:%s:%s", here, other);
	setenv("PATH", path, 1);
	CHECK_EQ("a script without an interpreter line", 117, searched_for("plain"));
	CHECK_EQ("no permission", EACCES, searched_for("closed"));
	CHECK_EQ("no permission, then another", 120, searched_for("twice"));
	CHECK_EQ("nowhere", ENOENT, searched_for("absent"));
	CHECK_EQ("no name", ENOENT, searched_for(""));
	setenv("PATH", before, 1);
	for (size_t i = 0; i < 4; i++) {
		snprintf(path, sizeof path, "%s/%s", i == 3 ? other : here, (const char *[]){"plain", "closed", "twice", "twice"}[i]);
		unlink(path);
	}
	rmdir(here);
	rmdir(other);
}

static volatile sig_atomic_t came;

static void note(int signo)
{
	came = signo;
}

static void check_blocked(void)
{
	static const int some[] = {SIGBUS, SIGSYS, SIGUSR1};
	sigset_t set;
	sigemptyset(&set);
	CHECK_EQ("query of the mask", 0, pthread_sigmask(SIG_BLOCK, NULL, &set));
	for (size_t i = 0; i < NELEM(some); i++)
		CHECK_EQ("inherited mask", 1, sigismember(&set, some[i]));
}

static void *fill_blocked(void *arg)
{
	char *p = map_anon(size_mb * MIB);
	check_blocked();
	fill(p, size_mb * MIB, 60);
	CHECK_FILL("memory of a thread", p, size_mb * MIB, 60);
	CHECK_FILL("memory of the first thread", arg, MIB, 61);
	munmap(p, size_mb * MIB);
	return NULL;
}

/* `sem_exec --blocked MIB WAITS`: started with all signals blocked, and SIGBUS waiting if WAITS is 1. Ends with 22. */
static int blocked(char **argv)
{
	char *p = must_malloc(MIB);
	pthread_t t;
	sigset_t set;
	size_mb = strtoul(argv[2], NULL, 10);
	check_blocked();
	fill(p, MIB, 61);
	CHECK_EQ("pthread_create", 0, pthread_create(&t, NULL, fill_blocked, p));
	CHECK_EQ("pthread_join", 0, pthread_join(t, NULL));
	CHECK_FILL("memory", p, MIB, 61);
	CHECK_OK("sigpending", sigpending(&set));
	CHECK_EQ("SIGBUS from before the exec", argv[3][0] == '1', sigismember(&set, SIGBUS));
	signal(SIGBUS, note);
	raise(SIGBUS);
	CHECK_EQ("a blocked SIGBUS waits", 0, came);
	sigfillset(&set);
	CHECK_OK("sigprocmask", sigprocmask(SIG_UNBLOCK, &set, NULL));
	CHECK_EQ("and comes", SIGBUS, came);
	return failures() ? 1 : 22;
}

/* A mask that holds SIGBUS and SIGSYS reached the kernel by the attributes of a spawn, or was forgotten by an exec. Where it was the kernel's, a thread that
 * was made before the process was managed inherited it, and its first fault was its end. */
static void masks(void)
{
	char mib[16];
	char *argv[] = {"sem_exec", "--blocked", mib, "0", NULL};
	sigset_t all, before;
	posix_spawnattr_t attr;
	pid_t pid;
	snprintf(mib, sizeof mib, "%zu", size_mb);
	sigfillset(&all);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setsigmask(&attr, &all);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
	CHECK_EQ("posix_spawn", 0, posix_spawn(&pid, self_path, NULL, &attr, argv, environ));
	CHILD_EXPECT("spawned with a mask", pid, 22);
	posix_spawnattr_setflags(&attr, 0);
	CHECK_OK("sigprocmask", sigprocmask(SIG_SETMASK, &all, &before));
	for (int way = 0; way < 2; way++) {
		CHECK_EQ("posix_spawn", 0, posix_spawn(&pid, self_path, NULL, way ? &attr : NULL, argv, environ));
		CHILD_EXPECT("spawned by who blocks all", pid, 22);
	}
	pid = vfork();
	if (pid == 0) {
		execve(self_path, argv, environ);
		_exit(99);
	}
	CHILD_EXPECT("started by vfork and exec", pid, 22);
	for (int way = 0; way < 2; way++) {
		pid = fork();
		if (pid == 0) {
			argv[3] = "1";
			raise(SIGBUS);
			execve("/nonexistent", argv, environ);
			if (way)
				syscall(SYS_execve, self_path, argv, environ);
			else
				execv(self_path, argv);
			_exit(99);
		}
		CHILD_EXPECT("started by fork and exec", pid, 22);
	}
	CHECK_OK("sigprocmask", sigprocmask(SIG_SETMASK, &before, NULL));
	posix_spawnattr_destroy(&attr);
}

/* A name without a path is looked for in the child, by its parent's PATH: where that had left RAM the child ended by SIGBUS. */
static void searched_by_spawn(void)
{
	char **before = environ;
	size_t count = 0;
	while (before[count])
		count++;
	char **copy = cold_alloc((count + 1) * sizeof *copy);
	for (size_t i = 0; i < count; i++)
		copy[i] = strcpy(cold_alloc(strlen(before[i]) + 1), before[i]);
	copy[count] = NULL;
	environ = copy;
	for (int turn = 0; turn < 4; turn++) {
		char *argv[] = {"sh", "-c", "exit 6", NULL};
		pid_t pid = 0;
		int status = -1;
		chill();
		CHECK_EQ("posix_spawnp", 0, posix_spawnp(&pid, "sh", NULL, NULL, argv, before));
		CHECK_EQ("the child", pid, waitpid(pid, &status, 0));
		CHECK("its exit code", WIFEXITED(status) && WEXITSTATUS(status) == 6);
	}
	environ = before;
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"exec_small", exec_small}, {"exec_large", exec_large}, {"exec_many", exec_many}, {"exec_fails", exec_fails},
		{"vforks", vforks},	    {"vfork_leaves_nothing", vfork_leaves_nothing},
		{"vfork_environment", vfork_environment},
		{"clone_vm", clone_vm},	{"spawned", spawned},
		{"shell", shell},	    {"environment", environment},	{"own_environment", own_environment},
		{"clean_environment", clean_environment},
		{"traced_vfork", traced_vfork}, {"searched", searched}, {"masks", masks},
		{"searched_by_spawn", searched_by_spawn},
	};
	if (argc == 4 && strcmp(argv[1], "--blocked") == 0)
		return blocked(argv);
	if (argc > 1 && strcmp(argv[1], "--echo") == 0)
		return echo(argc, argv);
	return run_groups(argc, argv, groups, NELEM(groups));
}
