/* Socket calls with every pointer in cold memory. Usage: sem_sockets [MIB] [GROUP]; MIB (default 16) makes it cold. */
#include "check.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <time.h>
#include <linux/errqueue.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#define LEN (10 * PAGE)

static void *cold_page(int byte)
{
	void *p = cold_alloc(PAGE);
	memset(p, byte, PAGE);
	return p;
}

static void pair(int type, int fds[2])
{
	CHECK_OK("socketpair", socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fds));
}

static void send_recv(void)
{
	int *fds = cold_page(0);
	char *src = cold_alloc(LEN), *dst = cold_alloc(LEN);
	fill(src, LEN, 1);
	memset(dst, 0xee, LEN);
	chill();
	CHECK_OK("socketpair into cold memory", socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
	CHECK_EQ("send", LEN, send(fds[0], src, LEN, 0));
	chill();
	CHECK_EQ("recv PEEK", 100, recv(fds[1], dst, 100, MSG_PEEK));
	CHECK_EQ("recv", LEN, recv(fds[1], dst, LEN, MSG_WAITALL));
	CHECK_FILL("recv content", dst, LEN, 1);
	CHECK_EQ("write", 3, write(fds[0], src, 3));
	chill();
	CHECK_EQ("recv returns what there is", 3, recv(fds[1], dst, LEN, 0));
	CHECK_ERR("recv when there is nothing", EAGAIN, recv(fds[1], dst, LEN, MSG_DONTWAIT));
	close(fds[0]);
	CHECK_EQ("recv after the other end closed", 0, recv(fds[1], dst, LEN, 0));
	CHECK_ERR("send after the other end closed", EPIPE, send(fds[1], src, LEN, MSG_NOSIGNAL));
	close(fds[1]);
}

/* One call, one datagram: never cut or joined. */
static void datagrams(void)
{
	int fds[2];
	char *src = cold_alloc(LEN), *dst = cold_alloc(LEN);
	fill(src, LEN, 2);
	pair(SOCK_DGRAM, fds);
	chill();
	CHECK_EQ("send", LEN, send(fds[0], src, LEN, 0));
	CHECK_EQ("send", 10, send(fds[0], src + 5000, 10, 0));
	CHECK_EQ("send of an empty one", 0, send(fds[0], src, 0, 0));
	CHECK_EQ("send", 20, send(fds[0], src, 20, 0));
	memset(dst, 0xee, LEN);
	chill();
	CHECK_EQ("recv", LEN, recv(fds[1], dst, LEN, 0));
	CHECK_FILL("content", dst, LEN, 2);
	memset(dst, 0xee, LEN);
	chill();
	CHECK_EQ("recv of a short one into a long buffer", 10, recv(fds[1], dst, LEN, 0));
	CHECK_MEM("content", src + 5000, dst, 10);
	CHECK_BYTE("no more is written", dst + 10, LEN - 10, 0xee);
	CHECK_EQ("recv of an empty one", 0, recv(fds[1], dst, LEN, 0));
	CHECK_EQ("recv into a short buffer", 7, recv(fds[1], dst, 7, 0));
	CHECK_ERR("its rest is gone", EAGAIN, recv(fds[1], dst, 7, MSG_DONTWAIT));
	close(fds[0]);
	close(fds[1]);
}

static void messages(void)
{
	int fds[2];
	char *src = cold_alloc(LEN), *dst = cold_alloc(LEN), *ctl = cold_page(0);
	struct msghdr *msg = cold_page(0);
	struct iovec *iov = cold_page(0);
	pair(SOCK_STREAM, fds);
	fill(src, LEN, 3);
	int file = temp_file();
	CHECK_EQ("write", 5, write(file, "hello", 5));
	iov[0] = (struct iovec){src, 5000};
	iov[1] = (struct iovec){src + 5000, 300};
	*msg = (struct msghdr){.msg_iov = iov, .msg_iovlen = 2, .msg_control = ctl, .msg_controllen = CMSG_SPACE(sizeof(int))};
	struct cmsghdr *c = CMSG_FIRSTHDR(msg);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &file, sizeof file);
	chill();
	CHECK_EQ("sendmsg with a descriptor", 5300, sendmsg(fds[0], msg, 0));
	close(file);
	memset(ctl, 0, PAGE);
	iov[0] = (struct iovec){dst, 100};
	iov[1] = (struct iovec){dst + 100, LEN - 100};
	*msg = (struct msghdr){.msg_iov = iov, .msg_iovlen = 2, .msg_control = ctl, .msg_controllen = PAGE};
	chill();
	CHECK_EQ("recvmsg", 5300, recvmsg(fds[1], msg, MSG_CMSG_CLOEXEC));
	CHECK_FILL("recvmsg content", dst, 5300, 3);
	CHECK_EQ("recvmsg flags", MSG_CMSG_CLOEXEC, msg->msg_flags);
	c = CMSG_FIRSTHDR(msg);
	if (CHECK("control data", c && c->cmsg_type == SCM_RIGHTS && msg->msg_controllen == CMSG_SPACE(sizeof(int)))) {
		memcpy(&file, CMSG_DATA(c), sizeof file);
		CHECK_EQ("read of the passed descriptor", 5, pread(file, dst, 10, 0));
		CHECK_MEM("its content", "hello", dst, 5);
		close(file);
	}
	close(fds[0]);
	close(fds[1]);
}

static void many_messages(void)
{
	enum { COUNT = 8 };
	int fds[2];
	char *src = cold_alloc(LEN), *dst = cold_alloc(LEN);
	struct mmsghdr *out = cold_page(0), *in = cold_page(0);
	struct iovec *iov = cold_page(0);
	struct timespec *ts = cold_page(0);
	pair(SOCK_DGRAM, fds);
	fill(src, LEN, 4);
	for (size_t i = 0; i < COUNT; i++) {
		iov[i] = (struct iovec){src + i * PAGE, 100 + i * 400};
		out[i].msg_hdr = (struct msghdr){.msg_iov = &iov[i], .msg_iovlen = 1};
		iov[COUNT + i] = (struct iovec){dst + i * PAGE, PAGE};
		in[i].msg_hdr = (struct msghdr){.msg_iov = &iov[COUNT + i], .msg_iovlen = 1};
	}
	chill();
	CHECK_EQ("sendmmsg", COUNT, sendmmsg(fds[0], out, COUNT, 0));
	ts->tv_sec = 5;
	chill();
	CHECK_EQ("recvmmsg", COUNT, recvmmsg(fds[1], in, COUNT, 0, ts));
	for (size_t i = 0; i < COUNT; i++) {
		CHECK_EQ("sendmmsg length", 100 + i * 400, out[i].msg_len);
		CHECK_EQ("recvmmsg length", 100 + i * 400, in[i].msg_len);
		CHECK_MEM("recvmmsg content", src + i * PAGE, dst + i * PAGE, 100 + i * 400);
	}
	CHECK_ERR("recvmmsg when there is nothing", EAGAIN, recvmmsg(fds[1], in, COUNT, MSG_DONTWAIT, NULL));
	close(fds[0]);
	close(fds[1]);
}

/* Buffers for all messages together are more than a call may have in RAM at a time. The kernel once took a message off its queue, found no buffer
 * for it, and answered with those before: it was lost. */
static void more_than_fits(void)
{
	enum { SENT = 8, ROOM = 16 };
	int fds[2];
	size_t len = size_mb * MIB / 8;
	struct mmsghdr *in = cold_page(0);
	struct iovec *iov = cold_page(0);
	pair(SOCK_DGRAM, fds);
	for (size_t i = 0; i < ROOM; i++) {
		iov[i] = (struct iovec){must_malloc(len), len};
		in[i].msg_hdr = (struct msghdr){.msg_iov = &iov[i], .msg_iovlen = 1};
	}
	for (int i = 0; i < SENT; i++)
		CHECK_EQ("send", sizeof i, send(fds[0], &i, sizeof i, 0));
	chill();
	for (int got = 0; got < SENT;) {
		int n = recvmmsg(fds[1], in, ROOM, MSG_DONTWAIT, NULL);
		if (!CHECK("recvmmsg has some of them", n > 0))
			break;
		for (int i = 0; i < n; i++, got++) {
			CHECK_EQ("length of a message", sizeof got, in[i].msg_len);
			CHECK_EQ("the next message", got, *(int *)iov[i].iov_base);
		}
	}
	CHECK_ERR("recvmmsg when there is nothing", EAGAIN, recvmmsg(fds[1], in, ROOM, MSG_DONTWAIT, NULL));
	for (size_t i = 0; i < ROOM; i++)
		free(iov[i].iov_base);
	close(fds[0]);
	close(fds[1]);
}

static void options_(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), *value = cold_page(0xee);
	socklen_t *len = cold_page(0);
	if (fd < 0) {
		skip("options", "no internet sockets: %s", strerror(errno));
		return;
	}
	*len = sizeof *value;
	chill();
	CHECK_OK("getsockopt", getsockopt(fd, SOL_SOCKET, SO_TYPE, value, len));
	CHECK_EQ("getsockopt value", SOCK_STREAM, *value);
	CHECK_EQ("getsockopt length", sizeof *value, *len);
	*value = 1;
	chill();
	CHECK_OK("setsockopt", setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, value, sizeof *value));
	*value = 0;
	chill();
	CHECK_OK("getsockopt", getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, value, len));
	CHECK("setsockopt took effect", *value != 0);
	struct linger *lin = cold_page(0);
	*lin = (struct linger){1, 7};
	chill();
	CHECK_OK("setsockopt SO_LINGER", setsockopt(fd, SOL_SOCKET, SO_LINGER, lin, sizeof *lin));
	close(fd);
}

/* A connection over the loopback: addresses and lengths in cold memory on both ends. */
static void addresses(void)
{
	struct sockaddr_in *at = cold_page(0), *peer = cold_page(0xee);
	socklen_t *len = cold_page(0);
	char *src = cold_alloc(LEN), *dst = cold_alloc(LEN);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	at->sin_family = AF_INET;
	at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	chill();
	if (listener < 0 || bind(listener, (struct sockaddr *)at, sizeof *at) < 0) {
		skip("addresses", "no loopback: %s", strerror(errno));
		return;
	}
	CHECK_OK("listen", listen(listener, 5));
	*len = sizeof *at;
	chill();
	CHECK_OK("getsockname", getsockname(listener, (struct sockaddr *)at, len));
	CHECK("getsockname port", at->sin_port != 0);
	chill();
	CHECK_OK("connect", connect(client, (struct sockaddr *)at, sizeof *at));
	*len = PAGE;
	chill();
	int server = accept4(listener, (struct sockaddr *)peer, len, SOCK_CLOEXEC);
	CHECK("accept", server >= 0);
	CHECK_EQ("accept length", sizeof *peer, *len);
	CHECK_EQ("accept family", AF_INET, peer->sin_family);
	CHECK_EQ("accept address", htonl(INADDR_LOOPBACK), peer->sin_addr.s_addr);
	*len = PAGE;
	chill();
	CHECK_OK("getpeername", getpeername(client, (struct sockaddr *)peer, len));
	CHECK_EQ("getpeername port", at->sin_port, peer->sin_port);
	fill(src, LEN, 5);
	chill();
	CHECK_EQ("send over TCP", LEN, send(client, src, LEN, 0));
	CHECK_EQ("recv over TCP", LEN, recv(server, dst, LEN, MSG_WAITALL));
	CHECK_FILL("content", dst, LEN, 5);
	close(listener);
	close(client);
	close(server);
	int a = socket(AF_INET, SOCK_DGRAM, 0), b = socket(AF_INET, SOCK_DGRAM, 0);
	at->sin_port = 0;
	CHECK_OK("bind", bind(a, (struct sockaddr *)at, sizeof *at));
	*len = sizeof *at;
	CHECK_OK("getsockname", getsockname(a, (struct sockaddr *)at, len));
	chill();
	CHECK_EQ("sendto", 3000, sendto(b, src, 3000, 0, (struct sockaddr *)at, sizeof *at));
	memset(peer, 0xee, sizeof *peer);
	*len = PAGE;
	chill();
	CHECK_EQ("recvfrom", 3000, recvfrom(a, dst, LEN, 0, (struct sockaddr *)peer, len));
	CHECK_FILL("recvfrom content", dst, 3000, 5);
	CHECK_EQ("recvfrom length", sizeof *peer, *len);
	CHECK_EQ("recvfrom address", htonl(INADDR_LOOPBACK), peer->sin_addr.s_addr);
	close(a);
	close(b);
}

static void names(void)
{
	struct sockaddr_un *un = cold_page(0);
	socklen_t len = sizeof *un;
	struct ucred *cred = cold_page(0xee);
	socklen_t *cred_len = cold_page(0);
	int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0), client = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	un->sun_family = AF_UNIX;
	snprintf(un->sun_path + 1, sizeof un->sun_path - 1, "farpage-test-%d", (int)getpid());
	chill();
	CHECK_OK("bind", bind(listener, (struct sockaddr *)un, len));
	CHECK_OK("listen", listen(listener, 1));
	CHECK_OK("connect", connect(client, (struct sockaddr *)un, len));
	int server = accept(listener, NULL, NULL);
	*cred_len = sizeof *cred;
	chill();
	CHECK_OK("SO_PEERCRED", getsockopt(server, SOL_SOCKET, SO_PEERCRED, cred, cred_len));
	CHECK_EQ("SO_PEERCRED pid", getpid(), cred->pid);
	char *src = cold_alloc(LEN), *dst = cold_alloc(LEN);
	fill(src, LEN, 6);
	chill();
	CHECK_EQ("send of a packet", 9000, send(client, src, 9000, 0));
	CHECK_EQ("send of a packet", 5, send(client, src, 5, 0));
	chill();
	CHECK_EQ("read of a packet", 9000, read(server, dst, LEN));
	CHECK_FILL("content", dst, 9000, 6);
	CHECK_EQ("read of the next packet", 5, read(server, dst, LEN));
	close(listener);
	close(client);
	close(server);
	struct addrinfo *hints = cold_page(0), **result = cold_page(0);
	char *host = cold_page(0);
	strcpy(host, "127.0.0.1");
	hints->ai_flags = AI_NUMERICHOST;
	chill();
	if (CHECK_EQ("getaddrinfo", 0, getaddrinfo(host, "80", hints, result))) {
		CHECK_EQ("getaddrinfo family", AF_INET, (*result)->ai_family);
		freeaddrinfo(*result);
	}
}

/* The structure lies on the stack, and names a buffer that is cold. */
static void hidden_buffers(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	char plain[4096];
	struct ifconf expected = {.ifc_len = sizeof plain, .ifc_buf = plain};
	CHECK_OK("SIOCGIFCONF", ioctl(fd, SIOCGIFCONF, &expected));
	struct ifconf got = {.ifc_len = sizeof plain, .ifc_buf = cold_page(0xee)};
	chill();
	CHECK_OK("SIOCGIFCONF into cold memory", ioctl(fd, SIOCGIFCONF, &got));
	CHECK_EQ("its length", expected.ifc_len, got.ifc_len);
	CHECK_MEM("its content", plain, got.ifc_buf, (size_t)expected.ifc_len);
	close(fd);
}

static int waiting_on;

static void *wait_for_message(void *buffer)
{
	struct iovec into = {buffer, PAGE};
	struct msghdr header = {.msg_iov = &into, .msg_iovlen = 1};
	CHECK_EQ("a cancelled recvmsg does not return", -2, recvmsg(waiting_on, &header, 0));
	return NULL;
}

static void *wait_for_bytes(void *buffer)
{
	struct iovec into[2] = {{buffer, PAGE}, {(char *)buffer + PAGE, PAGE}};
	CHECK_EQ("a cancelled readv does not return", -2, readv(waiting_on, into, 2));
	return NULL;
}

/* Threads that wait in a call on an array of buffers can be cancelled. */
static void cancelled(void)
{
	static void *(*const waits[])(void *) = {wait_for_message, wait_for_bytes};
	int fds[2];
	pair(SOCK_STREAM, fds);
	waiting_on = fds[0];
	for (size_t i = 0; i < 2 * NELEM(waits); i++) {
		pthread_t thread;
		void *result = NULL, *buffer = cold_alloc(2 * PAGE);
		memset(buffer, 1, 2 * PAGE);
		chill_around();
		pthread_create(&thread, NULL, waits[i % NELEM(waits)], buffer);
		if (i >= NELEM(waits))
			sleep_ms(50);
		CHECK_EQ("pthread_cancel", 0, pthread_cancel(thread));
		CHECK_EQ("pthread_join", 0, pthread_join(thread, &result));
		CHECK("was cancelled", result == PTHREAD_CANCELED);
	}
	close(fds[0]);
	close(fds[1]);
}

static void *drain(void *arg)
{
	static char sink[65536];
	while (read(*(int *)arg, sink, sizeof sink) > 0)
		;
	return NULL;
}

/* A send from the program's own memory has a number, by which the program learns when it may change that: one for each call, however long it is.
 * Done in pieces it had several. */
static void zero_copy(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof at;
	int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof at) < 0 || setsockopt(client, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) < 0) {
		skip("zero_copy", "SO_ZEROCOPY: %s", strerror(errno));
		return;
	}
	CHECK_OK("listen", listen(listener, 5));
	CHECK_OK("getsockname", getsockname(listener, (struct sockaddr *)&at, &len));
	CHECK_OK("connect", connect(client, (struct sockaddr *)&at, sizeof at));
	int server = accept(listener, NULL, NULL);
	pthread_t reader;
	CHECK_EQ("a thread", 0, pthread_create(&reader, NULL, drain, &server));
	char *data = must_malloc(6 * MIB);
	for (unsigned call = 0; call < 3; call++) {
		fill(data, 6 * MIB, call);
		ssize_t sent = send(client, data, 6 * MIB, MSG_ZEROCOPY);
		CHECK("sent", sent > 0);
	}
	shutdown(client, SHUT_WR);
	CHECK_EQ("its end", 0, pthread_join(reader, NULL));
	unsigned last = 0;
	for (int wait = 0; wait < 500 && last != 2; wait++) {
		char control[256];
		struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
		if (recvmsg(client, &message, MSG_ERRQUEUE) < 0) {
			usleep(10000);
			continue;
		}
		struct cmsghdr *head = CMSG_FIRSTHDR(&message);
		if (head)
			last = ((struct sock_extended_err *)CMSG_DATA(head))->ee_data;
	}
	CHECK_EQ("the last of three sends is number 2", 2, last);
	close(client);
	close(server);
	close(listener);
	free(data);
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"send_recv", send_recv}, {"datagrams", datagrams}, {"messages", messages}, {"many_messages", many_messages},
		{"more_than_fits", more_than_fits},
		{"options", options_},	  {"addresses", addresses}, {"zero_copy", zero_copy}, {"names", names},
		{"hidden_buffers", hidden_buffers}, {"cancelled", cancelled},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
