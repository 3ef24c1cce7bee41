/* Stress operations that hand pages to system calls. See stress.h.
 *
 * Content goes from the pages of one region through a file, pipe or socket into pages of another one, which must then
 * hold exactly the first one's content.
 */
#include "stress.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

/* Fits in a pipe and in a socket's buffer, so one thread can write it all and then read it. */
#define IO_PAGES 12u
#define FILE_PAGES 256u

struct transfer {
	struct region *from, *to;
	char *src, *dst;
	uint32_t from_page, to_page, count;
	size_t len;
};

static struct transfer transfer_random(struct thread *t, uint32_t most)
{
	struct transfer x = {.from = region_random(t), .to = region_random(t)};
	range_random(t, x.from, most, &x.from_page, &x.count);
	x.to_page = below(t, x.to->pages);
	if (x.count > x.to->pages - x.to_page)
		x.count = x.to->pages - x.to_page;
	x.src = x.from->base + (size_t)x.from_page * PAGE;
	x.dst = x.to->base + (size_t)x.to_page * PAGE;
	x.len = (size_t)x.count * PAGE;
	return x;
}

static void transfer_done(struct thread *t, const struct transfer *x, const char *when)
{
	memmove(x->to->meta + x->to_page, x->from->meta + x->from_page, x->count * sizeof(struct meta));
	range_verify(t, x->to, x->to_page, x->count, when);
}

static size_t moved(ssize_t n, const char *what)
{
	if (n < 0 && errno == EINTR)
		return 0;
	MUST(n > 0, what);
	return (size_t)n;
}

static void write_whole(int fd, const char *p, size_t len)
{
	for (size_t done = 0; done < len;)
		done += moved(write(fd, p + done, len - done), "write");
}

static void read_whole(int fd, char *p, size_t len)
{
	for (size_t done = 0; done < len;)
		done += moved(read(fd, p + done, len - done), "read");
}

void op_file(struct thread *t)
{
	struct transfer x = transfer_random(t, FILE_PAGES);
	off_t base = (off_t)below(t, 16) * PAGE;
	for (size_t done = 0; done < x.len;)
		done += moved(pwrite(t->file, x.src + done, x.len - done, base + (off_t)done), "pwrite");
	for (size_t done = 0; done < x.len;)
		done += moved(pread(t->file, x.dst + done, x.len - done, base + (off_t)done), "pread");
	transfer_done(t, &x, "through a file");
}

/* Cuts [p, p + len) into uneven pieces. */
static int cut(struct thread *t, char *p, size_t len, struct iovec *iov, int most)
{
	int n = 0;
	while (len > 0) {
		size_t piece = n + 1 == most ? len : 1 + below(t, len);
		iov[n++] = (struct iovec){p, piece};
		p += piece;
		len -= piece;
	}
	return n;
}

void op_filev(struct thread *t)
{
	struct transfer x = transfer_random(t, FILE_PAGES);
	struct iovec out[8], in[8];
	int outs = cut(t, x.src, x.len, out, 8), ins = cut(t, x.dst, x.len, in, 8);
	ssize_t n = pwritev(t->file, out, outs, 0);
	MUST(n == (ssize_t)x.len, "pwritev writes all");
	MUST(lseek(t->file, 0, SEEK_SET) == 0, "lseek");
	n = below(t, 2) ? readv(t->file, in, ins) : preadv2(t->file, in, ins, 0, 0);
	MUST(n == (ssize_t)x.len, "readv reads all");
	transfer_done(t, &x, "through a file in pieces");
}

void op_pipe(struct thread *t)
{
	struct transfer x = transfer_random(t, IO_PAGES);
	if (below(t, 2)) {
		write_whole(t->pipe[1], x.src, x.len);
		read_whole(t->pipe[0], x.dst, x.len);
	} else {
		struct iovec out[4], in[4];
		int outs = cut(t, x.src, x.len, out, 4), ins = cut(t, x.dst, x.len, in, 4);
		MUST(writev(t->pipe[1], out, outs) == (ssize_t)x.len, "writev to a pipe writes all");
		MUST(readv(t->pipe[0], in, ins) == (ssize_t)x.len, "readv from a pipe reads all");
	}
	transfer_done(t, &x, "through a pipe");
}

void op_socket(struct thread *t)
{
	struct transfer x = transfer_random(t, IO_PAGES);
	if (below(t, 2)) {
		MUST(send(t->dgram[0], x.src, x.len, 0) == (ssize_t)x.len, "send of a datagram");
		MUST(recv(t->dgram[1], x.dst, x.len, 0) == (ssize_t)x.len, "recv of a datagram");
	} else {
		for (size_t done = 0; done < x.len;)
			done += moved(send(t->sock[0], x.src + done, x.len - done, 0), "send");
		for (size_t done = 0; done < x.len;)
			done += moved(recv(t->sock[1], x.dst + done, x.len - done, 0), "recv");
	}
	transfer_done(t, &x, "through a socket");
}

void op_msg(struct thread *t)
{
	struct transfer x = transfer_random(t, IO_PAGES);
	struct iovec out[4], in[4];
	struct msghdr send_msg = {.msg_iov = out}, recv_msg = {.msg_iov = in};
	send_msg.msg_iovlen = (size_t)cut(t, x.src, x.len, out, 4);
	recv_msg.msg_iovlen = (size_t)cut(t, x.dst, x.len, in, 4);
	MUST(sendmsg(t->dgram[0], &send_msg, 0) == (ssize_t)x.len, "sendmsg");
	MUST(recvmsg(t->dgram[1], &recv_msg, 0) == (ssize_t)x.len, "recvmsg");
	transfer_done(t, &x, "through messages");
}

static void info_fstat(struct thread *t, char *p)
{
	struct stat here;
	MUST(fstat(t->file, (struct stat *)p) == 0, "fstat into a page");
	MUST(fstat(t->file, &here) == 0, "fstat");
	MUST(((struct stat *)p)->st_ino == here.st_ino, "fstat result");
}

static void info_stat(struct thread *t, char *p)
{
	(void)t;
	strcpy(p, "/proc/self/exe");
	MUST(stat(p, (struct stat *)(p + 256)) == 0, "stat with path and result in a page");
	MUST(((struct stat *)(p + 256))->st_size > 0, "stat result");
}

static void info_clock(struct thread *t, char *p)
{
	(void)t;
	struct timespec a, b;
	clock_gettime(CLOCK_MONOTONIC, &a);
	MUST(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, p) == 0, "clock_gettime into a page");
	clock_gettime(CLOCK_MONOTONIC, &b);
	struct timespec *got = (struct timespec *)p;
	MUST(got->tv_sec >= a.tv_sec && got->tv_sec <= b.tv_sec, "clock_gettime result");
}

static void info_poll(struct thread *t, char *p)
{
	struct pollfd *fds = (struct pollfd *)p;
	fds[0] = (struct pollfd){.fd = t->pipe[1], .events = POLLOUT};
	fds[1] = (struct pollfd){.fd = t->pipe[0], .events = POLLIN};
	int n;
	do
		n = poll(fds, 2, 1000);
	while (n < 0 && errno == EINTR);
	MUST(n == 1 && fds[0].revents == POLLOUT && fds[1].revents == 0, "poll with its array in a page");
}

static void info_random(struct thread *t, char *p)
{
	(void)t;
	memset(p, 0, 256);
	MUST(getrandom(p, 256, 0) == 256, "getrandom into a page");
	bool seen = false;
	for (int i = 0; i < 256; i++)
		seen |= p[i] != 0;
	MUST(seen, "getrandom result");
}

static void info_dents(struct thread *t, char *p)
{
	(void)t;
	int fd = open("/proc/self", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	MUST(fd >= 0, "open /proc/self");
	long n = syscall(SYS_getdents64, fd, p, 2048);
	MUST(n > 0 && n <= 2048, "getdents64 into a page");
	struct dirent64 *first = (struct dirent64 *)p;
	MUST(strcmp(first->d_name, ".") == 0, "getdents64 result");
	close(fd);
}

/* The call writes into words 64-319 of a page; the words around them must keep what they held. */
void op_info(struct thread *t)
{
	static void (*const calls[])(struct thread *, char *) = {info_fstat, info_stat, info_clock,
								 info_poll, info_random, info_dents};
	struct region *r = region_random(t);
	uint32_t page = below(t, r->pages);
	char *base = r->base + (size_t)page * PAGE, copy[PAGE];
	page_verify(t, r, page, "before a call");
	memcpy(copy, base, PAGE);
	calls[below(t, sizeof calls / sizeof calls[0])](t, base + 512);
	/* What the call left is checked; put the page's own content back. */
	memcpy(base + 512, copy + 512, 2048);
	page_verify(t, r, page, "around the result of a call");
}
