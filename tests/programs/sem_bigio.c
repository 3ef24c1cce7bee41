/* System calls with buffers larger than the budget, and the partial results the kernel gives.
 * Usage: sem_bigio [MIB] [GROUP]; MIB (default 16) is the size of each buffer: give several times the budget.
 * Needs as much room for a temporary file. */
#include "check.h"

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

/* Writes again while more succeeds than the limit admits: for as long as a swap file is written it is lifted (README, Limits). */
static ssize_t written_in_limit(int fd, const char *data, size_t len, off_t at, ssize_t admitted)
{
	ssize_t got = pwrite(fd, data, len, at);
	for (int tries = 0; tries < 200 && got > admitted; tries++) {
		sleep_ms(10);
		got = ftruncate(fd, at) == 0 ? pwrite(fd, data, len, at) : -2;
	}
	return got;
}

static void files_limited(void *data)
{
	struct rlimit one = {MIB, MIB}, got = {0, 0}, less = {MIB / 2, MIB};
	CHECK_OK("setrlimit", setrlimit(RLIMIT_FSIZE, &one));
	for (int round = 0; round < 2; round++) {
		chill();
		CHECK_FILL("memory under a limit of file sizes", data, 4 * MIB, 1);
	}
	CHECK_OK("getrlimit", getrlimit(RLIMIT_FSIZE, &got));
	CHECK_EQ("soft limit", MIB, got.rlim_cur);
	CHECK_EQ("hard limit", MIB, got.rlim_max);
	signal(SIGXFSZ, SIG_IGN);
	int fd = temp_file();
	CHECK_EQ("write up to the limit", MIB, written_in_limit(fd, data, 2 * MIB, 0, MIB));
	CHECK_ERR("write beyond it", EFBIG, written_in_limit(fd, data, 1, MIB, 0));
	CHECK_OK("a lower soft limit", syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, &less, &got));
	CHECK_EQ("soft limit before", MIB, got.rlim_cur);
	one.rlim_cur = 2 * MIB;
	CHECK_ERR("soft limit above the hard one", EINVAL, setrlimit(RLIMIT_FSIZE, &one));
	if (geteuid() != 0) {
		one.rlim_max = 2 * MIB;
		CHECK_ERR("a higher hard limit", EPERM, setrlimit(RLIMIT_FSIZE, &one));
	}
	chill();
	CHECK_OK("getrlimit", getrlimit(RLIMIT_FSIZE, &got));
	CHECK_EQ("the lower soft limit", MIB / 2, got.rlim_cur);
	close(fd);
}

/* A limit of file sizes is for the program's own files. Pages that left for a swap file met it as well: the program was ended by SIGXFSZ,
 * and the file was shut for the whole tree. */
static void file_limit(void)
{
	char *data = must_malloc(4 * MIB);
	fill(data, 4 * MIB, 1);
	CHILD_EXPECT("child with a limit of file sizes", child_start(files_limited, data), 0);
	chill();
	CHECK_FILL("memory", data, 4 * MIB, 1);
	free(data);
}

static size_t big_len(void)
{
	/* Odd, so that no chunk size divides it. */
	return size_mb * MIB - 777;
}

struct stream {
	int fd;
	uint64_t tag;
	size_t total;
	int closes;
};

/* The other end of a pipe or socket: writes or reads `total` bytes of a pattern through a small static buffer. */
static void *stream_writer(void *arg)
{
	struct stream *s = arg;
	static char buf[24000];
	for (size_t done = 0; done < s->total;) {
		size_t part = s->total - done < sizeof buf ? s->total - done : sizeof buf;
		for (size_t i = 0; i < part; i += 8) {
			uint64_t w = pattern_word(s->tag, (done + i) / 8);
			memcpy(buf + i, &w, part - i < 8 ? part - i : 8);
		}
		if (!write_all(s->fd, buf, part))
			break;
		done += part;
	}
	if (s->closes)
		close(s->fd);
	return NULL;
}

static void *stream_reader(void *arg)
{
	struct stream *s = arg;
	static char buf[24000];
	size_t done = 0;
	while (done < s->total) {
		size_t part = s->total - done < sizeof buf ? s->total - done : sizeof buf;
		if (!read_all(s->fd, buf, part))
			break;
		for (size_t i = 0; i < part; i += 8) {
			uint64_t w = pattern_word(s->tag, (done + i) / 8);
			if (!CHECK_MEM("what a big write sent", &w, buf + i, part - i < 8 ? part - i : 8))
				return NULL;
		}
		done += part;
	}
	return NULL;
}

static pthread_t stream_start(struct stream *s, void *(*body)(void *))
{
	pthread_t t;
	CHECK_EQ("pthread_create", 0, pthread_create(&t, NULL, body, s));
	return t;
}

static void file(void)
{
	size_t len = big_len();
	int fd = temp_file();
	char *src = map_anon(len), *dst = must_malloc(len);
	fill(src, len, 1);
	if (!CHECK_EQ("one write of all", len, write(fd, src, len)))
		return;
	munmap(src, len);
	memset(dst, 0xee, len);
	CHECK_EQ("one read of all", len, pread(fd, dst, len, 0));
	CHECK_FILL("content", dst, len, 1);
	memset(dst, 0xee, len);
	CHECK_OK("ftruncate", ftruncate(fd, (off_t)(len - 123456)));
	CHECK_EQ("lseek", 0, lseek(fd, 0, SEEK_SET));
	CHECK_EQ("read past the end returns its part", len - 123456, read(fd, dst, len));
	CHECK_EQ("file position", len - 123456, lseek(fd, 0, SEEK_CUR));
	CHECK_FILL("content up to the end", dst, len - 123456, 1);
	CHECK_BYTE("untouched behind the end", dst + len - 123456, 123456, 0xee);
	CHECK_EQ("read at the end", 0, read(fd, dst, len));
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC), zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	CHECK_EQ("write to /dev/null", len, write(null, dst, len));
	CHECK_EQ("read of /dev/zero", len, read(zero, dst, len));
	CHECK_ZERO("zeros", dst, len);
	close(null);
	close(zero);
	free(dst);
	close(fd);
}

static void vector(void)
{
	enum { COUNT = 37 };
	size_t len = big_len(), cut[COUNT + 1] = {0};
	int fd = temp_file();
	struct iovec *out = must_malloc(COUNT * sizeof *out), *in = must_malloc(COUNT * sizeof *in);
	char *src = map_anon(len), *dst = map_anon(len);
	fill(src, len, 2);
	for (size_t i = 1; i <= COUNT; i++)
		cut[i] = i == COUNT ? len : len / COUNT * i + mix64(i) % 5000;
	for (size_t i = 0; i < COUNT; i++) {
		out[i] = (struct iovec){src + cut[i], cut[i + 1] - cut[i]};
		in[i] = (struct iovec){dst + cut[i], cut[i + 1] - cut[i]};
	}
	CHECK_EQ("one pwritev of all", len, pwritev(fd, out, COUNT, 4096));
	CHECK_EQ("one preadv of all", len, preadv(fd, in, COUNT, 4096));
	CHECK_FILL("content", dst, len, 2);
	memset(dst, 0, len);
	CHECK_OK("ftruncate", ftruncate(fd, (off_t)(len / 2)));
	CHECK_EQ("preadv past the end returns its part", len / 2 - 4096, preadv(fd, in, COUNT, 4096));
	CHECK_FILL("content up to the end", dst, len / 2 - 4096, 2);
	CHECK_ZERO("untouched behind the end", dst + len / 2 - 4096, len - (len / 2 - 4096));
	munmap(src, len);
	munmap(dst, len);
	free(out);
	free(in);
	close(fd);
}

static void pipe_blocking(void)
{
	size_t len = big_len();
	int fds[2];
	char *p = map_anon(len);
	CHECK_OK("pipe", pipe(fds));
	fill(p, len, 3);
	struct stream s = {.fd = fds[0], .tag = 3, .total = len};
	pthread_t t = stream_start(&s, stream_reader);
	CHECK_EQ("one blocking write of all", len, write(fds[1], p, len));
	pthread_join(t, NULL);
	memset(p, 0, len);
	s = (struct stream){.fd = fds[1], .tag = 4, .total = len, .closes = 1};
	t = stream_start(&s, stream_writer);
	size_t done = 0;
	for (ssize_t n; done < len && (n = read(fds[0], p + done, len - done)) > 0; done += (size_t)n) {
		if (!CHECK("a read returns at most what a pipe holds", n <= 65536))
			break;
	}
	CHECK_EQ("read in parts", len, done);
	CHECK_FILL("content", p, len, 4);
	pthread_join(t, NULL);
	CHECK_EQ("end of the pipe", 0, read(fds[0], p, len));
	CHECK_OK("pipe", (close(fds[0]), pipe(fds)));
	CHECK_EQ("write", 3, write(fds[1], "abc", 3));
	memset(p, 0xee, len);
	CHECK_EQ("read returns what there is", 3, read(fds[0], p, len));
	CHECK_BYTE("and writes no more", p + 3, len - 3, 0xee);
	close(fds[0]);
	signal(SIGPIPE, SIG_IGN);
	CHECK_ERR("write when nobody reads", EPIPE, write(fds[1], p, len));
	signal(SIGPIPE, SIG_DFL);
	close(fds[1]);
	munmap(p, len);
}

static void *close_later(void *arg)
{
	static char buf[30000];
	int fd = *(int *)arg;
	CHECK("read", read_all(fd, buf, sizeof buf));
	sleep_ms(30);
	close(fd);
	return NULL;
}

static void pipe_partial(void)
{
	size_t len = big_len();
	int fds[2];
	char *p = map_anon(len), *q = must_malloc(len);
	CHECK_OK("pipe", pipe2(fds, O_NONBLOCK));
	fill(p, len, 5);
	CHECK_ERR("read of an empty pipe", EAGAIN, read(fds[0], q, len));
	CHECK_EQ("write fills the pipe", 65536, write(fds[1], p, len));
	CHECK_ERR("write to a full pipe", EAGAIN, write(fds[1], p, len));
	CHECK_EQ("read empties the pipe", 65536, read(fds[0], q, len));
	CHECK_FILL("content", q, 65536, 5);
	struct iovec iov[2] = {{p, len / 2}, {p + len / 2, len - len / 2}};
	CHECK_EQ("writev fills the pipe", 65536, writev(fds[1], iov, 2));
	iov[0] = (struct iovec){q, 1000};
	iov[1] = (struct iovec){q + 1000, len - 1000};
	memset(q, 0, 65536);
	CHECK_EQ("readv empties the pipe", 65536, readv(fds[0], iov, 2));
	CHECK_FILL("content", q, 65536, 5);
	close(fds[0]);
	close(fds[1]);
	CHECK_OK("pipe", pipe(fds));
	signal(SIGPIPE, SIG_IGN);
	pthread_t t;
	pthread_create(&t, NULL, close_later, &fds[0]);
	ssize_t n = write(fds[1], p, len);
	CHECK("a write cut short by the reader's end returns its part", n >= 65536 && n <= 65536 + 30000 + 4096);
	pthread_join(t, NULL);
	signal(SIGPIPE, SIG_DFL);
	close(fds[1]);
	munmap(p, len);
	free(q);
}

/* Those that read one pipe: one asked whether more was there, another took it, and the first waited for good, with what it had read
 * not told to the writer, who waited for that. */
static void shared_pipe(void)
{
	enum { CHUNK = 100000, CHUNKS = 1500, READERS = 4 };
	int fds[2], told[2];
	pid_t readers[READERS];
	char *p = must_malloc(CHUNK);
	CHECK_OK("pipe", pipe(fds));
	CHECK_OK("pipe", pipe(told));
	fill(p, CHUNK, 3);
	for (int i = 0; i < READERS; i++) {
		readers[i] = fork();
		if (readers[i] == 0) {
			char *q = map_anon(4 * MIB);
			ssize_t n;
			close(fds[1]);
			fill(q, 4 * MIB, 4);
			while ((n = read(fds[0], q, 4 * MIB)) > 0)
				write_all(told[1], &n, sizeof n);
			_exit(n < 0 || failures());
		}
	}
	close(fds[0]);
	for (int i = 0; i < CHUNKS && !failures(); i++) {
		CHECK("write", write_all(fds[1], p, CHUNK));
		ssize_t sum = 0, n = 0;
		while (sum < CHUNK && read_all(told[0], &n, sizeof n) && n > 0)
			sum += n;
		CHECK_EQ("all of it was read", CHUNK, sum);
	}
	close(fds[1]);
	for (int i = 0; i < READERS; i++)
		CHILD_EXPECT("a reader", readers[i], 0);
	close(told[0]);
	close(told[1]);
	free(p);
}

static void socket_stream(void)
{
	size_t len = big_len();
	int fds[2];
	char *p = map_anon(len);
	CHECK_OK("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
	fill(p, len, 6);
	struct stream s = {.fd = fds[0], .tag = 6, .total = len};
	pthread_t t = stream_start(&s, stream_reader);
	CHECK_EQ("one blocking send of all", len, send(fds[1], p, len, 0));
	pthread_join(t, NULL);
	memset(p, 0, len);
	s = (struct stream){.fd = fds[0], .tag = 7, .total = len};
	t = stream_start(&s, stream_writer);
	CHECK_EQ("recv WAITALL of all", len, recv(fds[1], p, len, MSG_WAITALL));
	pthread_join(t, NULL);
	CHECK_FILL("content", p, len, 7);
	memset(p, 0, len);
	struct iovec iov[3] = {{p, 5}, {p + 5, len / 3}, {p + 5 + len / 3, len - 5 - len / 3}};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 3};
	s = (struct stream){.fd = fds[0], .tag = 8, .total = len};
	t = stream_start(&s, stream_writer);
	CHECK_EQ("recvmsg WAITALL of all", len, recvmsg(fds[1], &msg, MSG_WAITALL));
	pthread_join(t, NULL);
	CHECK_FILL("content", p, len, 8);
	char control[256];
	memset(p, 0, len);
	msg.msg_control = control;
	msg.msg_controllen = sizeof control;
	s = (struct stream){.fd = fds[0], .tag = 9, .total = len};
	t = stream_start(&s, stream_writer);
	CHECK_EQ("recvmsg WAITALL with room for control data, of which none comes", len, recvmsg(fds[1], &msg, MSG_WAITALL));
	CHECK_EQ("control data", 0, msg.msg_controllen);
	pthread_join(t, NULL);
	CHECK_FILL("content", p, len, 9);
	msg = (struct msghdr){.msg_iov = iov, .msg_iovlen = 3};
	fill(p, len, 8);
	s = (struct stream){.fd = fds[0], .tag = 8, .total = len};
	t = stream_start(&s, stream_reader);
	CHECK_EQ("one blocking sendmsg of all", len, sendmsg(fds[1], &msg, 0));
	pthread_join(t, NULL);
	CHECK_EQ("write", 3, write(fds[0], "abc", 3));
	CHECK_EQ("recv returns what there is", 3, recv(fds[1], p, len, 0));
	CHECK_ERR("recv when there is nothing", EAGAIN, recv(fds[1], p, len, MSG_DONTWAIT));
	munmap(p, len);
	close(fds[0]);
	close(fds[1]);
}

static void *descriptor_sender(void *arg)
{
	size_t len = big_len();
	int fd = *(int *)arg;
	char *p = map_anon(len);
	fill(p, len, 15);
	CHECK_EQ("send before it", len / 2, send(fd, p, len / 2, 0));
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {.head = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
	memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
	struct iovec iov = {p + len / 2, 10};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	CHECK_EQ("send with it", 10, sendmsg(fd, &msg, 0));
	CHECK_EQ("send after it", len - len / 2 - 10, send(fd, p + len / 2 + 10, len - len / 2 - 10, 0));
	munmap(p, len);
	return NULL;
}

/* A descriptor in the middle of a stream that is received by long calls: it comes once, with bytes that were sent no later than with it. */
static void descriptor_in_stream(void)
{
	size_t len = big_len(), done = 0, came_at = 0;
	int fds[2], came = 0;
	char *p = map_anon(len);
	pthread_t t;
	CHECK_OK("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
	pthread_create(&t, NULL, descriptor_sender, &fds[0]);
	while (done < len) {
		char control[256];
		struct iovec iov = {p + done, len - done};
		struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
		ssize_t n = recvmsg(fds[1], &msg, MSG_CMSG_CLOEXEC);
		if (!CHECK("recvmsg", n > 0))
			break;
		done += (size_t)n;
		struct cmsghdr *c = msg.msg_controllen ? CMSG_FIRSTHDR(&msg) : NULL;
		if (c && c->cmsg_type == SCM_RIGHTS) {
			int fd;
			memcpy(&fd, CMSG_DATA(c), sizeof fd);
			close(fd);
			came_at = done;
			came++;
		}
	}
	pthread_join(t, NULL);
	CHECK_EQ("descriptors", 1, came);
	CHECK_EQ("all that was sent before it and with it", len / 2 + 10, came_at);
	CHECK_FILL("content", p, len, 15);
	close(fds[0]);
	close(fds[1]);
	munmap(p, len);
}

/* How much a full socket takes is the kernel's affair; what it took must arrive, and nothing else. */
static void socket_partial(void)
{
	size_t len = big_len();
	int fds[2], waiting = 0;
	char *p = map_anon(len), *q = map_anon(len);
	CHECK_OK("socketpair", socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds));
	fill(p, len, 9);
	ssize_t n = send(fds[0], p, len, 0);
	CHECK("a nonblocking send takes a part", n > 0 && (size_t)n < len);
	CHECK_ERR("then nothing", EAGAIN, send(fds[0], p, len, 0));
	CHECK_OK("FIONREAD", ioctl(fds[1], FIONREAD, &waiting));
	CHECK_EQ("as much as was taken waits", n, waiting);
	CHECK_EQ("recv of all that waits", n, recv(fds[1], q, len, 0));
	CHECK_FILL("content", q, (size_t)n, 9);
	CHECK_ERR("then nothing", EAGAIN, recv(fds[1], q, len, 0));
	close(fds[0]);
	CHECK_EQ("end of the stream", 0, recv(fds[1], q, len, 0));
	close(fds[1]);
	CHECK_OK("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
	struct stream s = {.fd = fds[0], .tag = 10, .total = len / 3, .closes = 1};
	pthread_t t = stream_start(&s, stream_writer);
	CHECK_EQ("recv WAITALL ends where the stream ends", len / 3, recv(fds[1], q, len, MSG_WAITALL));
	CHECK_FILL("content", q, len / 3, 10);
	pthread_join(t, NULL);
	close(fds[1]);
	munmap(p, len);
	munmap(q, len);
}

static void socket_datagram(void)
{
	size_t len = big_len();
	int fds[2];
	char *p = map_anon(len), *q = map_anon(len);
	CHECK_OK("socketpair", socketpair(AF_UNIX, SOCK_DGRAM, 0, fds));
	fill(p, len, 11);
	CHECK_ERR("a datagram of that size", EMSGSIZE, send(fds[0], p, len, 0));
	CHECK_ERR("with write", EMSGSIZE, write(fds[0], p, len));
	CHECK_EQ("send", 5000, send(fds[0], p, 5000, 0));
	CHECK_EQ("send", 6000, send(fds[0], p, 6000, 0));
	memset(q, 0xee, 10000);
	CHECK_EQ("recv of one datagram only", 5000, recv(fds[1], q, len, 0));
	CHECK_FILL("content", q, 5000, 11);
	CHECK_BYTE("no more is written", q + 5000, 5000, 0xee);
	CHECK_EQ("read of the next one", 6000, read(fds[1], q, len));
	CHECK_FILL("content", q, 6000, 11);
	munmap(p, len);
	munmap(q, len);
	close(fds[0]);
	close(fds[1]);
}

static void random_bytes(void)
{
	size_t len = big_len() < 32 * MIB ? big_len() : 32 * MIB - 1;
	char *p = map_anon(len);
	CHECK_EQ("one getrandom of all", len, getrandom(p, len, 0));
	for (size_t off = 0; off + 64 <= len; off += PAGE) {
		static const char none[64];
		if (!CHECK("random bytes on every page", memcmp(p + off, none, 64) != 0))
			break;
	}
	munmap(p, len);
}

/* A hole in the middle of a big buffer: the part before it is transferred and counted. */
static void hole(void)
{
	size_t len = size_mb * MIB, at = len / 2 / PAGE * PAGE;
	int fd = temp_file();
	char *p = map_anon(len);
	fill(p, len, 12);
	CHECK_EQ("write", len, write(fd, p, len));
	CHECK_OK("mprotect", mprotect(p + at, PAGE, PROT_NONE));
	memset(p, 0, at);
	CHECK_EQ("pread up to the hole", at, pread(fd, p, len, 0));
	CHECK_FILL("content", p, at, 12);
	CHECK_EQ("pwrite up to the hole", at, pwrite(fd, p, len, 0));
	CHECK_OK("mprotect", mprotect(p + at, PAGE, PROT_READ | PROT_WRITE));
	CHECK_FILL("content", p, len, 12);
	munmap(p, len);
	close(fd);
}

static void stdio(void)
{
	size_t len = big_len();
	FILE *f = tmpfile();
	char *p = must_malloc(len);
	if (!CHECK("tmpfile", f))
		return;
	fill(p, len, 13);
	CHECK_EQ("fwrite", len, fwrite(p, 1, len, f));
	rewind(f);
	memset(p, 0, len);
	CHECK_EQ("fread", len, fread(p, 1, len, f));
	CHECK_FILL("content", p, len, 13);
	CHECK_EQ("fread at the end", 0, fread(p, 1, len, f));
	fclose(f);
	free(p);
}

/* Several requests in one io_submit, whose buffers together are more than a call may have in RAM at a time: the last were done in part, or failed. */
static void submitted(void)
{
	enum { REQUESTS = 12 };
	aio_context_t context = 0;
	size_t len = size_mb * MIB / 8;
	struct iocb requests[REQUESTS], *list[REQUESTS];
	struct io_event event;
	char *p = must_malloc(len);
	int fd = temp_file();
	fill(p, len, 50);
	write_all(fd, p, len);
	free(p);
	CHECK_OK("io_setup", (int)syscall(SYS_io_setup, REQUESTS, &context));
	for (size_t i = 0; i < REQUESTS; i++) {
		requests[i] = (struct iocb){.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = (unsigned)fd, .aio_nbytes = len};
		requests[i].aio_buf = (uintptr_t)must_malloc(len);
		list[i] = &requests[i];
	}
	chill();
	for (long done = 0, n; done < REQUESTS; done += n) {
		n = syscall(SYS_io_submit, context, REQUESTS - done, list + done);
		if (!CHECK("io_submit takes some", n > 0))
			break;
		for (long i = 0; i < n; i++) {
			CHECK_EQ("an event", 1, syscall(SYS_io_getevents, context, 1, 1, &event, NULL));
			CHECK_EQ("bytes read", len, event.res);
		}
	}
	for (size_t i = 0; i < REQUESTS; i++) {
		CHECK_FILL("what was read", (char *)(uintptr_t)requests[i].aio_buf, len, 50);
		free((void *)(uintptr_t)requests[i].aio_buf);
	}
	syscall(SYS_io_destroy, context);
	close(fd);
}

/* A read is under way in the device when its memory is made read-only and is to leave. Such pages were copied out, and what came later
 * was lost. */
static void read_only_meanwhile(void)
{
	enum { ROUNDS = 8 };
	aio_context_t context = 0;
	struct io_event event;
	const size_t len = size_mb * MIB / 4;
	char *p = map_anon(len), path[64];
	int buffered = temp_file();
	fill(p, len, 51);
	write_all(buffered, p, len);
	snprintf(path, sizeof path, "/proc/self/fd/%d", buffered);
	int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	if (fd < 0) {
		skip("read_only_meanwhile", "O_DIRECT: %s", strerror(errno));
		return;
	}
	CHECK_OK("io_setup", (int)syscall(SYS_io_setup, 1, &context));
	for (int round = 0; round < ROUNDS; round++) {
		fill(p, len, 52);
		struct iocb request = {.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = (unsigned)fd, .aio_buf = (uintptr_t)p, .aio_nbytes = len};
		struct iocb *list = &request;
		if (!CHECK_EQ("io_submit", 1, syscall(SYS_io_submit, context, 1, &list)))
			break;
		CHECK_OK("read-only", mprotect(p, len, PROT_READ));
		/* What comes last. */
		CHECK_OK("PAGEOUT", madvise(p + len / 4 * 3, len / 4, MADV_PAGEOUT));
		CHECK_EQ("an event", 1, syscall(SYS_io_getevents, context, 1, 1, &event, NULL));
		CHECK_EQ("bytes read", len, event.res);
		CHECK_FILL("what was read", p, len, 51);
		make_cold(p, len);
		CHECK_OK("writable", mprotect(p, len, PROT_READ | PROT_WRITE));
		CHECK_FILL("what was read, later", p, len, 51);
	}
	syscall(SYS_io_destroy, context);
	close(fd);
	close(buffered);
	munmap(p, len);
}

/* Lengths that no buffer has: the kernel refuses them, and these were cut to what it takes at most. */
static void too_long(void)
{
	static const size_t lengths[] = {SIZE_MAX, SIZE_MAX / 2 + 1, SIZE_MAX / 2 + 1 + PAGE};
	char *p = map_anon(MIB);
	int zero = open("/dev/zero", O_RDWR | O_CLOEXEC), fd = temp_file(), ends[2];
	fill(p, MIB, 61);
	for (size_t i = 0; i < NELEM(lengths); i++) {
		/* Hidden from the compiler, which knows better. */
		size_t len = (size_t)opaque((void *)lengths[i]);
		if (i % 2)
			chill();
		CHECK_ERR("read", EFAULT, read(zero, p, len));
		CHECK_ERR("pread", EFAULT, pread(zero, p, len, 0));
		CHECK_ERR("write", EFAULT, write(fd, p, len));
		CHECK_ERR("pwrite", EFAULT, pwrite(fd, p, len, PAGE));
		CHECK_ERR("read by its number", EFAULT, syscall(SYS_read, zero, p, len));
		CHECK_ERR("read of no descriptor", EBADF, read(-1, p, len));
	}
	CHECK_FILL("memory that no call has written", p, MIB, 61);
	CHECK_EQ("the file is as it was", 0, lseek(fd, 0, SEEK_END));
	/* A socket's are cut. */
	CHECK_OK("socketpair", socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
	CHECK_EQ("send", 3, send(ends[0], "abc", 3, 0));
	chill();
	CHECK_EQ("recv", 3, recv(ends[1], p, (size_t)opaque((void *)SIZE_MAX), 0));
	CHECK_MEM("what came", "abc", p, 3);
	close(ends[0]);
	close(ends[1]);
	close(zero);
	close(fd);
	munmap(p, MIB);
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"file", file},
		{"vector", vector},
		{"pipe_blocking", pipe_blocking},
		{"pipe_partial", pipe_partial}, {"shared_pipe", shared_pipe},
		{"socket_stream", socket_stream},
		{"descriptor_in_stream", descriptor_in_stream}, {"socket_partial", socket_partial},
		{"socket_datagram", socket_datagram},
		{"random_bytes", random_bytes},
		{"hole", hole},
		{"stdio", stdio},
		{"submitted", submitted},
		{"read_only_meanwhile", read_only_meanwhile}, {"too_long", too_long},
		{"file_limit", file_limit},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
