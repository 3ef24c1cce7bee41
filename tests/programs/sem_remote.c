/* Memory reached by a process's number: process_vm_readv and writev, /proc/PID/mem, process_madvise, with both ends cold.
 * Usage: sem_remote [MIB] [GROUP]; MIB (default 16) is the size of the block that makes memory cold. */
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define LEN (40 * PAGE)

static void *cold_page(int byte)
{
	void *p = cold_alloc(PAGE);
	memset(p, byte, PAGE);
	return p;
}

/* Remote ends in cold memory of this process itself, with a hole and read-only memory behind it. */
static void own_memory(void)
{
	char *a = map_anon(LEN), *b = cold_alloc(LEN), small[100];
	struct iovec *local = cold_page(0), *remote = cold_page(0);
	fill(a, LEN, 13);
	memset(b, 0, LEN);
	local[0] = (struct iovec){b, 777};
	local[1] = (struct iovec){b + 777, LEN - 777};
	remote[0] = (struct iovec){a, LEN - 5};
	remote[1] = (struct iovec){a, 0};
	remote[2] = (struct iovec){a + LEN - 5, 5};
	chill();
	ssize_t n = process_vm_readv(getpid(), local, 2, remote, 3, 0);
	if (n < 0 && (errno == EPERM || errno == ENOSYS)) {
		skip("own_memory", "process_vm_readv: %s", strerror(errno));
		return;
	}
	CHECK_EQ("process_vm_readv of itself", LEN, n);
	CHECK_FILL("its content", b, LEN, 13);
	fill(b, LEN, 14);
	chill();
	CHECK_EQ("process_vm_writev to itself", LEN, process_vm_writev(getpid(), local, 2, remote, 3, 0));
	CHECK_FILL("its content", a, LEN, 14);
	CHECK_ERR("unknown flags", EINVAL, process_vm_readv(getpid(), local, 2, remote, 3, 1));
	CHECK_ERR("too many pieces", EINVAL, process_vm_readv(getpid(), local, 2, remote, 1025, 0));
	CHECK_EQ("no piece", 0, process_vm_readv(getpid(), local, 0, remote, 3, 0));
	CHECK_OK("mprotect", mprotect(a + LEN / 2, PAGE, PROT_READ));
	munmap(a + LEN - 2 * PAGE, 2 * PAGE);
	chill();
	CHECK_EQ("read that runs into a hole", LEN - 2 * PAGE, process_vm_readv(getpid(), local, 2, remote, 1, 0));
	CHECK_FILL("its content", b, LEN - 2 * PAGE, 14);
	chill();
	CHECK_EQ("write that runs into read-only memory", LEN / 2, process_vm_writev(getpid(), local, 2, remote, 1, 0));
	remote[0].iov_base = a + LEN - 2 * PAGE;
	CHECK_ERR("read of a hole", EFAULT, process_vm_readv(getpid(), local, 2, remote, 1, 0));
	int mem = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	if (mem >= 0) {
		chill();
		CHECK_EQ("pread of /proc/self/mem", LEN - 2 * PAGE, pread(mem, b, LEN, (off_t)(uintptr_t)a));
		CHECK_FILL("its content", b, LEN - 2 * PAGE, 14);
		chill();
		CHECK_EQ("pread into a local variable", sizeof small, pread(mem, small, sizeof small, (off_t)(uintptr_t)a));
		CHECK_FILL("its content", small, sizeof small, 14);
		size_t got = 0, whole = LEN - 2 * PAGE;
		CHECK_EQ("lseek in /proc/self/mem", (uintptr_t)a, lseek(mem, (off_t)(uintptr_t)a, SEEK_SET));
		memset(b, 0, LEN);
		chill();
		for (ssize_t n; got < whole && (n = read(mem, b + got, whole - got)) > 0;)
			got += (size_t)n;
		CHECK_EQ("read of /proc/self/mem", whole, got);
		CHECK_FILL("its content", b, whole, 14);
		fill(b, LEN, 15);
		chill();
		CHECK_EQ("pwrite of /proc/self/mem", 7 * PAGE, pwrite(mem, b, 7 * PAGE, (off_t)(uintptr_t)a));
		CHECK_FILL("its content", a, 7 * PAGE, 15);
		CHECK_ERR("pread of a hole", EIO, pread(mem, b, 10, (off_t)(uintptr_t)(a + LEN - PAGE)));
		close(mem);
	}
	munmap(a, LEN - 2 * PAGE);
	int fd = memfd_create("sem_remote", MFD_CLOEXEC);
	CHECK_EQ("an offset that looks like an address", 3, pwrite(fd, "abc", 3, 0x100000001000));
	CHECK_EQ("an offset that looks like an address", 3, pread(fd, small, 4, 0x100000001000));
	CHECK_MEM("content there", "abc", small, 3);
	close(fd);
}

static atomic_bool written;

static void *push_out_always(void *arg)
{
	while (!written)
		madvise(arg, LEN, MADV_PAGEOUT);
	return NULL;
}

/* By a file of /proc the kernel takes a page without holding it for DMA: it was moved out, and copied, before it was written to. */
static void written_while_leaving(void)
{
	const size_t pages = LEN / PAGE;
	char *a = map_anon(LEN);
	int mem = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	CHECK("open of /proc/self/mem", mem >= 0);
	fill(a, LEN, 18);
	written = false;
	pthread_t pusher;
	CHECK_EQ("pthread_create", 0, pthread_create(&pusher, NULL, push_out_always, a));
	uint64_t end = now_ns() + 1500000000;
	for (uint64_t i = 0; now_ns() < end; i++) {
		uint64_t *word = (uint64_t *)(a + mix64(i) % pages * PAGE);
		CHECK_EQ("pwrite", (int)sizeof i, pwrite(mem, &i, sizeof i, (off_t)(uintptr_t)word));
		if (!CHECK_EQ("what was written", i, *(volatile uint64_t *)word))
			break;
	}
	written = true;
	pthread_join(pusher, NULL);
	close(mem);
	mem = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
	CHECK_ERR("pwrite to what is open for reading", EBADF, pwrite(mem, a, PAGE, (off_t)(uintptr_t)a));
	close(mem);
	munmap(a, LEN);
}

static void vm_child(void *arg)
{
	char *p = arg;
	char go;
	int *fds = (int *)(void *)(p + LEN - 64);
	fill(p + 20 * PAGE, 10 * PAGE, 17);
	munmap(p + 30 * PAGE, PAGE);
	chill();
	CHECK("the child is ready", write_all(fds[3], "r", 1));
	CHECK("wait for the parent", read_all(fds[0], &go, 1));
	CHECK_FILL("what process_vm_writev left in the child", p, 10000, 15);
	CHECK_FILL("what pwrite left in the child", p + 20 * PAGE, 10 * PAGE, 18);
	fill(p, 10000, 16);
}

/* The swapped pages of another process: the kernel can't bring them in, and once said EFAULT. */
static void other_process(void)
{
	char *a = map_anon(LEN), *b = cold_alloc(LEN), ready, path[64];
	struct iovec *local = cold_page(0), *remote = cold_page(0);
	int fds[4];
	CHECK_OK("pipe", pipe(fds));
	CHECK_OK("pipe", pipe(fds + 2));
	fill(a, LEN, 14);
	memcpy(a + LEN - 64, fds, sizeof fds);
	pid_t pid = child_start(vm_child, a);
	*local = (struct iovec){b, 10000};
	*remote = (struct iovec){a, 10000};
	fill(b, LEN, 15);
	CHECK("wait for the child", read_all(fds[2], &ready, 1));
	chill();
	ssize_t n = process_vm_writev(pid, local, 1, remote, 1, 0);
	if (n < 0 && (errno == EPERM || errno == ENOSYS)) {
		skip("other_process", "process_vm_writev: %s", strerror(errno));
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		return;
	}
	CHECK_EQ("process_vm_writev to a child", 10000, n);
	memset(b, 0, LEN);
	chill();
	CHECK_EQ("process_vm_readv of a child", 10000, process_vm_readv(pid, local, 1, remote, 1, 0));
	CHECK_FILL("its content", b, 10000, 15);
	*local = (struct iovec){b, LEN};
	*remote = (struct iovec){a + 20 * PAGE, 20 * PAGE};
	CHECK_EQ("read that runs into a hole of the child", 10 * PAGE, process_vm_readv(pid, local, 1, remote, 1, 0));
	CHECK_FILL("its content", b, 10 * PAGE, 17);
	remote->iov_base = a + 30 * PAGE;
	CHECK_ERR("read of a hole of the child", EFAULT, process_vm_readv(pid, local, 1, remote, 1, 0));
	snprintf(path, sizeof path, "/proc/%d/mem", (int)pid);
	int mem = open(path, O_RDWR | O_CLOEXEC);
	CHECK("open of the child's memory", mem >= 0);
	fill(b, LEN, 18);
	chill();
	CHECK_EQ("pwrite to the child", 10 * PAGE, pwrite(mem, b, 10 * PAGE, (off_t)(uintptr_t)(a + 20 * PAGE)));
	memset(b, 0, LEN);
	CHECK_EQ("pread of the child", 10 * PAGE, pread(mem, b, LEN, (off_t)(uintptr_t)(a + 20 * PAGE)));
	CHECK_FILL("its content", b, 10 * PAGE, 18);
	close(mem);
	/* A process that is stopped can't bring its pages in: what comes is right, if not all, and it comes in a bounded time. */
	int status;
	kill(pid, SIGSTOP);
	CHECK_EQ("stopped", pid, waitpid(pid, &status, WUNTRACED));
	*remote = (struct iovec){a, LEN};
	memset(b, 0, LEN);
	n = process_vm_readv(pid, local, 1, remote, 1, 0);
	CHECK("read of a stopped process", n > 0 || (n < 0 && errno == EFAULT));
	if (n > 0)
		CHECK_FILL("its content", b, n < 10000 ? (size_t)n : 10000, 15);
	kill(pid, SIGCONT);
	*local = (struct iovec){b, 10000};
	CHECK_EQ("read after it goes on", 10000, process_vm_readv(pid, local, 1, remote, 1, 0));
	CHECK_FILL("its content", b, 10000, 15);
	CHECK("go", write_all(fds[1], "g", 1));
	CHILD_EXPECT("child", pid, 0);
	CHECK_FILL("own memory untouched", a, LEN - 64, 14);
	CHECK_ERR("process that is gone", ESRCH, process_vm_readv(pid, local, 1, remote, 1, 0));
	munmap(a, LEN);
	for (int i = 0; i < 4; i++)
		close(fds[i]);
}

/* Advice through a descriptor of this process: the kernel once dropped pages behind our back. */
static void advised(void)
{
	char *a = map_anon(LEN);
	struct iovec *ranges = cold_page(0), here[2] = {{a, 4 * PAGE}, {a + 8 * PAGE, 2 * PAGE}};
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	fill(a, LEN, 19);
	memcpy(ranges, here, sizeof here);
	chill();
	ssize_t n = syscall(SYS_process_madvise, self, here, 2, MADV_WILLNEED, 0);
	if (self < 0 || n < 0) {
		skip("advised", "process_madvise: %s", strerror(errno));
		return;
	}
	CHECK_EQ("process_madvise WILLNEED", 6 * PAGE, n);
	CHECK_EQ("process_madvise COLD", 6 * PAGE, syscall(SYS_process_madvise, self, ranges, 2, MADV_COLD, 0));
	CHECK_EQ("process_madvise PAGEOUT", 6 * PAGE, syscall(SYS_process_madvise, self, ranges, 2, MADV_PAGEOUT, 0));
	CHECK_FILL("content after advice", a, LEN, 19);
	CHECK_ERR("unknown flags", EINVAL, syscall(SYS_process_madvise, self, here, 2, MADV_COLD, 1));
	CHECK_ERR("unknown advice", EINVAL, syscall(SYS_process_madvise, self, here, 2, 12345, 0));
	CHECK_ERR("no process", EBADF, syscall(SYS_process_madvise, -1, here, 2, MADV_COLD, 0));
	chill();
	if (syscall(SYS_process_madvise, self, here, 2, MADV_DONTNEED, 0) == (long)(6 * PAGE)) {
		CHECK_ZERO("dropped", a, 4 * PAGE);
		CHECK_ZERO("dropped", a + 8 * PAGE, 2 * PAGE);
		fill(a, 4 * PAGE, 19);
	}
	chill();
	CHECK_FILL("what was not dropped", a, 8 * PAGE, 19);
	close(self);
	munmap(a, LEN);
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"own_memory", own_memory},
		{"other_process", other_process}, {"written_while_leaving", written_while_leaving},
		{"advised", advised},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
