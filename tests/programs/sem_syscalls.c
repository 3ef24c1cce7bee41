/* System calls with every pointer in cold memory: files, directories, processes, times, limits. Sockets: sem_sockets;
 * waiting: sem_wait; buffers larger than the budget: sem_bigio; memory by a process's number: sem_remote.
 * Usage: sem_syscalls [MIB] [GROUP]; MIB (default 16) is the size of the block that makes memory cold. */
#include "check.h"

#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fiemap.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/kvm.h>
#include <linux/seccomp.h>
#include <pty.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>

#define LEN (40 * PAGE)

/* Cold pages whose every byte is `byte`. */
static void *cold_page(int byte)
{
	void *p = cold_alloc(PAGE);
	memset(p, byte, PAGE);
	return p;
}

static void file_io(void)
{
	int fd = temp_file();
	char *src = cold_alloc(LEN), *dst = cold_alloc(LEN);
	fill(src, LEN, 1);
	memset(dst, 0xee, LEN);
	chill();
	CHECK_EQ("write", LEN - 13, write(fd, src, LEN - 13));
	CHECK_EQ("lseek", 0, lseek(fd, 0, SEEK_SET));
	chill();
	CHECK_EQ("read ends at the end of the file", LEN - 13, read(fd, dst, LEN));
	CHECK_FILL("read content", dst, LEN - 13, 1);
	CHECK_BYTE("bytes behind it are untouched", dst + LEN - 13, 13, 0xee);
	CHECK_EQ("read at the end", 0, read(fd, dst, LEN));
	chill();
	CHECK_EQ("pwrite", 5000, pwrite(fd, src + 100, 5000, 7777));
	CHECK_EQ("pread", 5000, pread(fd, dst + 333, 5000, 7777));
	CHECK_MEM("pread content", src + 100, dst + 333, 5000);
	CHECK_EQ("read of 0 bytes", 0, read(fd, dst, 0));
	CHECK_ERR("read of a bad descriptor", EBADF, read(999, dst, LEN));
	chill();
	CHECK_EQ("raw write", LEN, syscall(SYS_pwrite64, fd, src, LEN, 0));
	CHECK_EQ("raw lseek", 0, syscall(SYS_lseek, fd, 0, SEEK_SET));
	CHECK_EQ("raw read", LEN, syscall(SYS_read, fd, dst, LEN));
	CHECK_FILL("raw read content", dst, LEN, 1);
	close(fd);
}

static void vectors(void)
{
	int fd = temp_file();
	char *src = cold_alloc(LEN), *dst = cold_alloc(LEN);
	struct iovec *iov = cold_alloc(PAGE);
	for (int way = 0; way < 3; way++) {
		fill(src, LEN, (uint64_t)way);
		memset(dst, 0, LEN);
		iov[0] = (struct iovec){src, 10000};
		iov[1] = (struct iovec){src + 10000, 0};
		iov[2] = (struct iovec){src + 10000, 1};
		iov[3] = (struct iovec){src + 10001, LEN - 10001};
		chill();
		ssize_t n = way == 0 ? writev(fd, iov, 4) : way == 1 ? pwritev(fd, iov, 4, 0) : pwritev2(fd, iov, 4, 0, 0);
		CHECK_EQ("vector write", LEN, n);
		iov[0] = (struct iovec){dst, 3};
		iov[1] = (struct iovec){dst + 3, LEN - 5};
		iov[2] = (struct iovec){dst + LEN - 2, 2};
		lseek(fd, 0, SEEK_SET);
		chill();
		n = way == 0 ? readv(fd, iov, 3) : way == 1 ? preadv(fd, iov, 3, 0) : preadv2(fd, iov, 3, 0, 0);
		CHECK_EQ("vector read", LEN, n);
		CHECK_FILL("vector content", dst, LEN, (uint64_t)way);
	}
	iov[0] = (struct iovec){dst, (size_t)-1};
	CHECK_ERR("length beyond SSIZE_MAX", EINVAL, readv(fd, iov, 1));
	CHECK_ERR("too many pieces", EINVAL, readv(fd, iov, 1025));
	CHECK_EQ("no piece", 0, readv(fd, iov, 0));
	close(fd);
}

/* What the kernel answers for memory that the program may not use. */
static void bad_buffers(void)
{
	int fd = temp_file(), fds[2];
	char *p = map_anon(LEN), *end = p + LEN / 2;
	fill(p, LEN, 5);
	CHECK_EQ("write", LEN, write(fd, p, LEN));
	CHECK_OK("pipe", pipe(fds));
	munmap(end, LEN / 2);
	chill();
	CHECK_ERR("read into a hole", EFAULT, pread(fd, end, PAGE, 0));
	CHECK_ERR("write from a hole", EFAULT, pwrite(fd, end, PAGE, 0));
	CHECK_EQ("read that runs into a hole returns its part", PAGE, pread(fd, end - PAGE, 3 * PAGE, 0));
	CHECK_EQ("write that runs into a hole returns its part", PAGE, pwrite(fd, end - PAGE, 3 * PAGE, 0));
	CHECK_EQ("write to a pipe that runs into a hole", PAGE, write(fds[1], end - PAGE, 2 * PAGE));
	CHECK_OK("mprotect", mprotect(p + PAGE, PAGE, PROT_READ));
	chill();
	CHECK_ERR("read into read-only memory", EFAULT, pread(fd, p + PAGE, 100, 0));
	CHECK_EQ("write from read-only memory", 100, pwrite(fd, p + PAGE, 100, 0));
	CHECK_EQ("read that runs into read-only memory", 50, pread(fd, p + PAGE - 50, 100, 0));
	CHECK_OK("mprotect", mprotect(p + 2 * PAGE, PAGE, PROT_NONE));
	CHECK_ERR("write from closed memory", EFAULT, pwrite(fd, p + 2 * PAGE, 100, 0));
	CHECK_ERR("stat into closed memory", EFAULT, fstat(fd, (struct stat *)(p + 2 * PAGE)));
	CHECK_ERR("open of a path in closed memory", EFAULT, open(p + 2 * PAGE, O_RDONLY));
	CHECK_ERR("null pointer", EFAULT, pread(fd, opaque(NULL), 10, 0));
	char *path = end - 4;
	memcpy(path, "/tmp", 4);
	CHECK_ERR("path that runs into a hole", EFAULT, open(path, O_RDONLY));
	path = end - 5;
	memcpy(path, "/tmp", 5);
	/* A page that is closed can't be moved. */
	chill_around();
	int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK("path that ends just before a hole", dir >= 0);
	close(dir);
	munmap(p, LEN);
	close(fds[0]);
	close(fds[1]);
	close(fd);
}

static void paths(void)
{
	char *dir = cold_page(0), *file = cold_page(0), *other = cold_page(0), *buf = cold_page(0xee);
	struct stat *st = cold_page(0xee), here;
	struct statx *stx = cold_page(0xee);
	struct statfs *fs = cold_page(0xee);
	struct timespec *times_ = cold_page(0);
	strcpy(dir, "/tmp/sem-XXXXXX");
	CHECK("mkdtemp", mkdtemp(dir));
	sprintf(file, "%s/file", dir);
	sprintf(other, "%s/link", dir);
	chill();
	int fd = open(file, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	CHECK("open", fd >= 0);
	CHECK_OK("ftruncate", ftruncate(fd, 12345));
	chill();
	CHECK_OK("symlink", symlink(file, other));
	CHECK_EQ("readlink", strlen(file), readlink(other, buf, PAGE));
	CHECK_MEM("readlink text", file, buf, strlen(file));
	CHECK_BYTE("readlink writes no more", buf + strlen(file), 100, 0xee);
	chill();
	CHECK_OK("stat", stat(other, st));
	CHECK_EQ("stat size", 12345, st->st_size);
	chill();
	CHECK_OK("lstat", lstat(other, st));
	CHECK("lstat type", S_ISLNK(st->st_mode));
	chill();
	CHECK_OK("fstat", fstat(fd, st));
	CHECK_OK("fstat", fstat(fd, &here));
	CHECK_MEM("fstat result", &here, st, offsetof(struct stat, st_atim));
	chill();
	CHECK_OK("statx", statx(AT_FDCWD, file, 0, STATX_BASIC_STATS, stx));
	CHECK_EQ("statx size", 12345, stx->stx_size);
	chill();
	CHECK_OK("statfs", statfs(file, fs));
	CHECK("statfs result", fs->f_bsize > 0);
	times_[0] = (struct timespec){1000, 0};
	times_[1] = (struct timespec){2000, 0};
	chill();
	CHECK_OK("utimensat", utimensat(AT_FDCWD, file, times_, 0));
	CHECK_OK("stat", stat(file, st));
	CHECK_EQ("utimensat result", 2000, st->st_mtim.tv_sec);
	chill();
	CHECK_OK("access", access(file, R_OK));
	CHECK_OK("chmod", chmod(file, 0640));
	CHECK_OK("rename", rename(file, other));
	CHECK_OK("chdir", chdir(dir));
	chill();
	CHECK("getcwd", getcwd(buf, PAGE) == buf);
	CHECK_MEM("getcwd text", dir, buf, strlen(dir) + 1);
	chill();
	CHECK("realpath", realpath("link", buf) == buf);
	CHECK_MEM("realpath text", other, buf, strlen(other) + 1);
	CHECK_OK("unlink", unlink(other));
	CHECK_OK("chdir", chdir("/"));
	CHECK_OK("rmdir", rmdir(dir));
	CHECK_ERR("stat of nothing", ENOENT, stat(file, st));
	close(fd);
}

static void directories(void)
{
	char *buf = cold_alloc(16 * PAGE);
	memset(buf, 0, 16 * PAGE);
	char dir[] = "/tmp/dents-XXXXXX", name[64];
	CHECK("mkdtemp", mkdtemp(dir));
	for (int i = 0; i < 500; i++) {
		snprintf(name, sizeof name, "%s/entry-%d", dir, i);
		close(open(name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	}
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), count = 0;
	static unsigned char found[500];
	chill();
	for (;;) {
		long n = syscall(SYS_getdents64, fd, buf, 3 * PAGE);
		CHECK("getdents64", n >= 0);
		if (n <= 0)
			break;
		for (long off = 0; off < n;) {
			struct dirent64 {
				uint64_t ino, next;
				uint16_t len;
				uint8_t type;
				char name[];
			} *d = (void *)(buf + off);
			int number = -1;
			if (sscanf(d->name, "entry-%d", &number) == 1 && number >= 0 && number < 500) {
				found[number]++;
				count++;
			}
			off += d->len;
		}
		chill();
	}
	CHECK_EQ("entries", 500, count);
	CHECK_BYTE("each entry once", found, sizeof found, 1);
	CHECK_ERR("getdents64 in too small a buffer", EINVAL, (lseek(fd, 0, SEEK_SET), syscall(SYS_getdents64, fd, buf, 5)));
	close(fd);
	for (int i = 0; i < 500; i++) {
		snprintf(name, sizeof name, "%s/entry-%d", dir, i);
		unlink(name);
	}
	rmdir(dir);
}

static void ioctls(void)
{
	int fds[2], *avail = cold_page(0xee), *on = cold_page(0);
	CHECK_OK("pipe", pipe(fds));
	CHECK_EQ("write", 77, write(fds[1], self_path, 0) + write(fds[1], avail, 77));
	chill();
	CHECK_OK("ioctl FIONREAD", ioctl(fds[0], FIONREAD, avail));
	CHECK_EQ("FIONREAD result", 77, *avail);
	*on = 1;
	chill();
	CHECK_OK("ioctl FIONBIO", ioctl(fds[0], FIONBIO, on));
	CHECK("FIONBIO took effect", fcntl(fds[0], F_GETFL) & O_NONBLOCK);
	struct flock *lock = cold_page(0);
	int file = temp_file();
	lock->l_type = F_WRLCK;
	chill();
	CHECK_OK("fcntl F_SETLK", fcntl(file, F_SETLK, lock));
	lock->l_type = F_RDLCK;
	chill();
	CHECK_OK("fcntl F_GETLK", fcntl(file, F_GETLK, lock));
	CHECK_EQ("F_GETLK result", F_UNLCK, lock->l_type);
	int *master = cold_page(0), *slave = cold_page(0);
	struct winsize *ws = cold_page(0);
	struct termios *tio = cold_page(0);
	ws->ws_row = 44;
	ws->ws_col = 123;
	if (openpty(master, slave, NULL, NULL, NULL) < 0) {
		skip("ioctls/terminal", "openpty: %s", strerror(errno));
	} else {
		chill();
		CHECK_OK("ioctl TIOCSWINSZ", ioctl(*master, TIOCSWINSZ, ws));
		memset(ws, 0, sizeof *ws);
		chill();
		CHECK_OK("ioctl TIOCGWINSZ", ioctl(*slave, TIOCGWINSZ, ws));
		CHECK_EQ("TIOCGWINSZ columns", 123, ws->ws_col);
		chill();
		CHECK_OK("tcgetattr", tcgetattr(*slave, tio));
		CHECK("tcgetattr result", tio->c_lflag & ICANON);
		close(*master);
		close(*slave);
	}
	close(file);
	close(fds[0]);
	close(fds[1]);
}

/* Arrays behind structures, of which the number of the ioctl says nothing: EFAULT where only the structure was in RAM. */
static void ioctl_arrays(void)
{
	const int entries = 256;
	char *pages = cold_alloc(PAGE + (size_t)entries * sizeof(struct kvm_cpuid_entry2));
	struct kvm_cpuid2 *cpuid = (void *)(pages + PAGE - sizeof *cpuid);
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	memset(cpuid, 0, sizeof *cpuid + (size_t)entries * sizeof *cpuid->entries);
	cpuid->nent = (uint32_t)entries;
	chill();
	if (kvm < 0)
		skip("ioctl_arrays/kvm", "/dev/kvm: %s", strerror(errno));
	else if (CHECK_OK("KVM_GET_SUPPORTED_CPUID", ioctl(kvm, KVM_GET_SUPPORTED_CPUID, cpuid)))
		CHECK("its entries", cpuid->nent > 1 && cpuid->nent <= (uint32_t)entries);
	close(kvm);

	/* More extents than 64 KiB hold. */
	enum { EXTENTS = 1500 };
	char path[] = "/var/tmp/extents-XXXXXX", page[4096] = "x";
	int fd = mkstemp(path);
	unlink(path);
	for (int i = 0; i < EXTENTS; i++)
		CHECK_EQ("pwrite", (ssize_t)sizeof page, pwrite(fd, page, sizeof page, (off_t)i * 64 * 1024));
	struct fiemap *map = cold_alloc(sizeof *map + EXTENTS * sizeof *map->fm_extents);
	memset(map, 0, sizeof *map + EXTENTS * sizeof *map->fm_extents);
	map->fm_length = FIEMAP_MAX_OFFSET;
	map->fm_flags = FIEMAP_FLAG_SYNC;
	map->fm_extent_count = EXTENTS;
	chill();
	errno = 0;
	if (ioctl(fd, FS_IOC_FIEMAP, map) < 0 && errno == EOPNOTSUPP) {
		skip("ioctl_arrays/fiemap", "%s", strerror(errno));
	} else if (CHECK_EQ("FS_IOC_FIEMAP", 0, errno)) {
		CHECK_EQ("extents", EXTENTS, map->fm_mapped_extents);
		CHECK_EQ("the last of them", (EXTENTS - 1) * 64 * 1024, map->fm_extents[EXTENTS - 1].fe_logical);
	}
	close(fd);
}

static struct sock_filter *cold_filter(void)
{
	struct sock_filter *filter = cold_page(0);
	filter[0] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	return filter;
}

static void filter_itself(void *filter)
{
	const struct sock_fprog program = {1, filter};
	CHECK_OK("no new privileges", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	CHECK_OK("PR_SET_SECCOMP", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0));
}

static void be_traced(void *unused)
{
	(void)unused;
	CHECK_OK("PTRACE_TRACEME", ptrace(PTRACE_TRACEME, 0, NULL, NULL));
	raise(SIGSTOP);
}

/* Structures on the stack that name cold memory, handed to libc's functions: no argument shows it to the filter. */
static void nested(void)
{
	struct sock_filter *filter = cold_filter();
	const struct sock_fprog program = {1, filter};
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), on = 1;
	chill();
	CHECK_OK("SO_ATTACH_FILTER", setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
	CHECK_ERR("a filter of no length", EINVAL, setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, 1));
	CHECK_OK("SO_PASSCRED", setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on));
	close(fd);
	filter = cold_filter();
	chill();
	CHILD_EXPECT("a child that filters itself", child_start(filter_itself, filter), 0);

	struct user_regs_struct *regs = cold_page(0xee);
	struct iovec iov = {regs, sizeof *regs};
	pid_t child = child_start(be_traced, NULL);
	int status = 0;
	CHECK_EQ("waitpid", child, waitpid(child, &status, 0));
	chill();
	CHECK_OK("PTRACE_GETREGSET", ptrace(PTRACE_GETREGSET, child, (void *)NT_PRSTATUS, &iov));
	CHECK_EQ("its length", sizeof *regs, iov.iov_len);
	CHECK("its stack", regs->rsp != 0 && regs->rsp != 0xeeeeeeeeeeeeeeee);
	chill();
	CHECK_OK("PTRACE_SETREGSET", ptrace(PTRACE_SETREGSET, child, (void *)NT_PRSTATUS, &iov));
	CHECK_OK("PTRACE_CONT", ptrace(PTRACE_CONT, child, NULL, NULL));
	CHILD_EXPECT("the child that was traced", child, 0);
}

static void offsets(void)
{
	int in = temp_file(), out = temp_file(), fds[2];
	char *src = cold_alloc(LEN), *dst = cold_alloc(LEN);
	off_t *off = cold_page(0);
	off64_t *off_in = cold_page(0), *off_out = cold_page(0);
	fill(src, LEN, 11);
	CHECK_EQ("write", LEN, pwrite(in, src, LEN, 0));
	*off = 100;
	chill();
	CHECK_EQ("sendfile", 20000, sendfile(out, in, off, 20000));
	CHECK_EQ("sendfile offset", 20100, *off);
	CHECK_EQ("pread", 20000, pread(out, dst, 20000, 0));
	CHECK_MEM("sendfile content", src + 100, dst, 20000);
	CHECK_OK("pipe", pipe(fds));
	*off_in = 300;
	chill();
	CHECK_EQ("splice", 10000, splice(in, off_in, fds[1], NULL, 10000, 0));
	CHECK_EQ("splice offset", 10300, *off_in);
	chill();
	CHECK_EQ("read of spliced data", 10000, read(fds[0], dst, LEN));
	CHECK_MEM("splice content", src + 300, dst, 10000);
	*off_in = 500;
	*off_out = 4096;
	chill();
	ssize_t n = copy_file_range(in, off_in, out, off_out, 30000, 0);
	if (n < 0) {
		skip("offsets/copy_file_range", "%s", strerror(errno));
	} else {
		CHECK_EQ("copy_file_range", 30000, n);
		CHECK_EQ("copy_file_range offset in", 30500, *off_in);
		CHECK_EQ("copy_file_range offset out", 34096, *off_out);
		CHECK_EQ("pread", 30000, pread(out, dst, 30000, 4096));
		CHECK_MEM("copy_file_range content", src + 500, dst, 30000);
	}
	struct iovec *iov = cold_page(0);
	iov[0] = (struct iovec){src, 5 * PAGE};
	iov[1] = (struct iovec){src + 5 * PAGE, 100};
	chill();
	CHECK_EQ("vmsplice", 5 * PAGE + 100, vmsplice(fds[1], iov, 2, 0));
	chill();
	CHECK_EQ("read of vmspliced data", 5 * PAGE + 100, read(fds[0], dst, LEN));
	CHECK_FILL("vmsplice content", dst, 5 * PAGE + 100, 11);
	close(in);
	close(out);
	close(fds[0]);
	close(fds[1]);
}

static void direct(void)
{
	char path[] = "/var/tmp/direct-XXXXXX", *src = cold_alloc(LEN), *dst = cold_alloc(LEN);
	close(mkstemp(path));
	int fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
	unlink(path);
	if (fd < 0) {
		skip("direct", "O_DIRECT: %s", strerror(errno));
		return;
	}
	fill(src, LEN, 12);
	memset(dst, 0, LEN);
	chill();
	CHECK_EQ("direct write from cold memory", LEN, pwrite(fd, src, LEN, 0));
	chill();
	CHECK_EQ("direct read into cold memory", LEN, pread(fd, dst, LEN, 0));
	CHECK_FILL("direct read content", dst, LEN, 12);
	chill();
	CHECK_FILL("direct read content, later", dst, LEN, 12);
	close(fd);
}

static void machine(void)
{
	struct utsname *un = cold_page(0xee), here;
	struct sysinfo *si = cold_page(0xee);
	struct tms *tm = cold_page(0xee);
	struct rlimit *rl = cold_page(0xee), rl_here;
	struct rusage *ru = cold_page(0xee);
	cpu_set_t *cpus = cold_page(0);
	char *random_bytes = cold_alloc(300 * PAGE);
	uname(&here);
	getrlimit(RLIMIT_NOFILE, &rl_here);
	memset(random_bytes, 0, 300 * PAGE);
	chill();
	CHECK_OK("uname", uname(un));
	CHECK_MEM("uname release", here.release, un->release, strlen(here.release) + 1);
	CHECK_OK("sysinfo", sysinfo(si));
	CHECK("sysinfo result", si->totalram > 0 && si->mem_unit > 0);
	CHECK("times", times(tm) != (clock_t)-1);
	CHECK("times result", tm->tms_utime >= 0 && tm->tms_cstime >= 0);
	CHECK_OK("getrlimit", getrlimit(RLIMIT_NOFILE, rl));
	CHECK_MEM("getrlimit result", &rl_here, rl, sizeof rl_here);
	chill();
	CHECK_OK("setrlimit", setrlimit(RLIMIT_NOFILE, rl));
	CHECK_OK("prlimit", prlimit(0, RLIMIT_NOFILE, rl, rl + 1));
	CHECK_MEM("prlimit result", &rl_here, rl + 1, sizeof rl_here);
	CHECK_OK("getrusage", getrusage(RUSAGE_SELF, ru));
	CHECK("getrusage result", ru->ru_utime.tv_sec >= 0 && ru->ru_utime.tv_usec < 1000000);
	CHECK_OK("sched_getaffinity", sched_getaffinity(0, sizeof *cpus, cpus));
	CHECK("sched_getaffinity result", CPU_COUNT(cpus) > 0);
	chill();
	CHECK_OK("sched_setaffinity", sched_setaffinity(0, sizeof *cpus, cpus));
	CHECK_EQ("getrandom", 100, getrandom(random_bytes, 100, 0));
	CHECK_ZERO("getrandom writes no more", random_bytes + 100, 100);
	chill();
	CHECK_EQ("long getrandom", 300 * PAGE, getrandom(random_bytes, 300 * PAGE, 0));
	for (size_t i = 0; i < 300; i++) {
		uint64_t any = 0;
		for (size_t j = 0; j < PAGE; j++)
			any += (unsigned char)random_bytes[i * PAGE + j];
		CHECK("random page is not zeros", any > 0);
	}
	unsigned *cpu = cold_page(0xee), *node = cold_page(0xee);
	chill();
	CHECK_OK("getcpu", (int)syscall(SYS_getcpu, cpu, node, NULL));
	CHECK("getcpu result", *cpu < 65536);
}

static void clocks(void)
{
	struct timespec *ts = cold_page(0xee), *rem = cold_page(0xee);
	struct timeval *tv = cold_page(0xee);
	time_t *t = cold_page(0);
	struct tm *broken = cold_page(0);
	chill();
	CHECK_OK("clock_gettime", clock_gettime(CLOCK_REALTIME, ts));
	CHECK("clock_gettime result", ts->tv_sec > 1000000000 && ts->tv_nsec < 1000000000);
	CHECK_OK("raw clock_gettime", (int)syscall(SYS_clock_gettime, CLOCK_MONOTONIC, rem));
	CHECK("raw clock_gettime result", rem->tv_nsec >= 0 && rem->tv_nsec < 1000000000);
	CHECK_OK("clock_getres", clock_getres(CLOCK_MONOTONIC, rem));
	CHECK_OK("gettimeofday", gettimeofday(tv, NULL));
	CHECK("gettimeofday result", tv->tv_sec >= ts->tv_sec && tv->tv_usec < 1000000);
	CHECK("time", time(t) == *t);
	CHECK("localtime_r", localtime_r(t, broken) == broken && broken->tm_year > 100);
	*ts = (struct timespec){0, 2000000};
	chill();
	uint64_t before = now_ns();
	CHECK_OK("nanosleep", nanosleep(ts, rem));
	CHECK("nanosleep slept", now_ns() - before >= 2000000);
	chill();
	before = now_ns();
	CHECK_EQ("clock_nanosleep", 0, clock_nanosleep(CLOCK_MONOTONIC, 0, ts, rem));
	CHECK("clock_nanosleep slept", now_ns() - before >= 2000000);
	ts->tv_nsec = 1000000000;
	CHECK_ERR("nanosleep of a bad time", EINVAL, nanosleep(ts, rem));
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"file_io", file_io},	{"vectors", vectors}, {"bad_buffers", bad_buffers}, {"paths", paths},
		{"directories", directories},		      {"ioctls", ioctls},	    {"offsets", offsets},
		{"ioctl_arrays", ioctl_arrays},		      {"nested", nested},
		{"direct", direct},	{"machine", machine}, {"clocks", clocks},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
