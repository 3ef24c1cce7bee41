/* System calls on System V and POSIX queues, semaphores, shared memory, asynchronous I/O, futexes, keys, memory policies, tracing and
 * filters, on plain and on cold memory (see twice.h).
 * Usage: sem_ipc [MIB] [GROUP]; MIB (default 16) is the size of the block that makes memory cold. */
#include "twice.h"

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/perf_event.h>
#include <linux/seccomp.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <time.h>

static int id;
static const struct timespec moment = {0, 1000000}, bad_time = {0, -1};

static void shared_memory(void)
{
	struct shmid_ds now;
	id = shmget(IPC_PRIVATE, PAGE, 0600);
	CHECK("shmget", id >= 0);
	CHECK_OK("shmctl", shmctl(id, IPC_STAT, &now));
	chill();
	TWICE(shmctl, {NUM(id), NUM(IPC_STAT), OUT(112)});
	TWICE(shmctl, {NUM(id), NUM(IPC_SET), {.data = &now, .len = 112}});
	TWICE(shmctl, {NUM(0), NUM(3 /* IPC_INFO */), OUT(72)}, .kind = SIGN);
	TWICE(shmctl, {NUM(0), NUM(14 /* SHM_INFO */), VARY(48, 0, 48)}, .kind = SIGN);
	TWICE(shmctl, {NUM(-1), NUM(IPC_STAT), OUT(112)});
	shmctl(id, IPC_RMID, NULL);
}

#define SEGMENT (64 * PAGE)

/* A segment at an address among managed memory, in a gap or over it, is left alone by what is mapped and moved later. */
static void attached_among_managed(void)
{
	id = shmget(IPC_PRIVATE, SEGMENT, 0600);
	CHECK("shmget", id >= 0);
	/* A gap of our own: behind a fresh mapping there is often one, and sometimes none. */
	char *block = map_anon(4 * MIB + SEGMENT), *more[32];
	CHECK_OK("munmap", munmap(block + 4 * MIB, SEGMENT));
	fill(block, 4 * MIB, 61);
	char *gap = shmat(id, block + 4 * MIB, 0), *over = shmat(id, block + 2 * MIB, SHM_REMAP);
	CHECK("attached in a gap", gap == block + 4 * MIB);
	CHECK("attached over memory", over == block + 2 * MIB);
	fill(gap, SEGMENT, 62);
	char *heap = malloc(8 * MIB);
	CHECK("malloc", heap != NULL);
	free(heap);
	for (size_t i = 0; i < NELEM(more); i++) {
		more[i] = map_anon(MIB);
		fill(more[i], MIB, 63 + i);
		char *moved = mremap(more[i], MIB, 2 * MIB, MREMAP_MAYMOVE);
		CHECK("mremap", moved != MAP_FAILED);
		more[i] = moved;
	}
	chill();
	CHECK_FILL("before", block, 2 * MIB, 61);
	CHECK_FILL("attached over", over, SEGMENT, 62);
	CHECK_FILL("attached", gap, SEGMENT, 62);
	CHECK_OK("shmdt", shmdt(gap));
	CHECK_OK("shmdt", shmdt(over));
	char *fixed = mmap(over, SEGMENT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	CHECK("the place is free again", fixed == over);
	CHECK_ZERO("empty", fixed, SEGMENT);
	for (size_t i = 0; i < NELEM(more); i++) {
		CHECK_FILL("mapped after", more[i], MIB, 63 + i);
		munmap(more[i], 2 * MIB);
	}
	munmap(block, 4 * MIB);
	shmctl(id, IPC_RMID, NULL);
}

static void zero_semaphores(void)
{
	static unsigned short zeros[3];
	CHECK_OK("semctl", semctl(id, 0, SETALL, zeros));
}

static void see_semaphores(long result, char *text)
{
	unsigned short now[3];
	(void)result;
	CHECK_OK("semctl", semctl(id, 0, GETALL, now));
	sprintf(text, "%d %d %d", now[0], now[1], now[2]);
}

static void semaphores(void)
{
	static const struct sembuf up[2] = {{0, 2, 0}, {2, 5, 0}}, down[1] = {{1, -1, 0}}, never[1] = {{1, -1, IPC_NOWAIT}};
	static const unsigned short values[3] = {7, 8, 9};
	struct semid_ds now;
	id = semget(IPC_PRIVATE, 3, 0600);
	CHECK("semget", id >= 0);
	CHECK_OK("semctl", semctl(id, 0, IPC_STAT, &now));
	chill();
#define SEM(name, ...) TWICE(name, __VA_ARGS__, .before = zero_semaphores, .effect = see_semaphores)
	SEM(semop, {NUM(id), IN(up, sizeof up), NUM(2)});
	SEM(semop, {NUM(id), IN(never, sizeof never), NUM(1)});
	SEM(semop, {NUM(id), IN(up, sizeof up), NUM(0)});
	SEM(semop, {NUM(id), IN(up, sizeof up), NUM(100000)});
	SEM(semtimedop, {NUM(id), IN(down, sizeof down), NUM(1), IN(&moment, 16)}, .needed = 8);
	SEM(semtimedop, {NUM(id), IN(up, sizeof up), NUM(2), IN(&moment, 16)});
	SEM(semtimedop, {NUM(id), IN(down, sizeof down), NUM(1), IN(&bad_time, 16)}, .needed = 8);
	SEM(semctl, {NUM(id), NUM(0), NUM(GETALL), OUT(6)});
	SEM(semctl, {NUM(id), NUM(0), NUM(SETALL), IN(values, 6)});
	TWICE(semctl, {NUM(id), NUM(0), NUM(IPC_STAT), VARY(104, 48, 32)});
	TWICE(semctl, {NUM(id), NUM(0), NUM(IPC_SET), IN(&now, sizeof now)});
	TWICE(semctl, {NUM(0), NUM(0), NUM(IPC_INFO), OUT(40)}, .kind = SIGN);
	TWICE(semctl, {NUM(-1), NUM(0), NUM(GETALL), OUT(6)});
	semctl(id, 0, IPC_RMID);
}

static void drain_queue(void)
{
	char text[256];
	while (msgrcv(id, text, 200, 0, IPC_NOWAIT) >= 0)
		;
}

static void one_message(void)
{
	static const struct {
		long type;
		char text[40];
	} message = {5, "what a plain buffer says, forty bytes.."};
	drain_queue();
	CHECK_OK("msgsnd", msgsnd(id, &message, 40, 0));
}

static void see_queue(long result, char *text)
{
	struct {
		long type;
		char text[200];
	} got = {0};
	(void)result;
	long n = msgrcv(id, &got, 199, 0, IPC_NOWAIT);
	sprintf(text, "%ld bytes of type %ld: %s", n, got.type, got.text);
}

static void messages(void)
{
	static const struct {
		long type;
		char text[112];
	} message = {3, "a message in cold memory"}, bad = {0, "no such type"};
	struct msqid_ds now;
	id = msgget(IPC_PRIVATE, 0600);
	CHECK("msgget", id >= 0);
	CHECK_OK("msgctl", msgctl(id, IPC_STAT, &now));
	chill();
#define MSG(name, ready, ...) TWICE(name, __VA_ARGS__, .before = ready, .effect = see_queue)
	MSG(msgsnd, drain_queue, {NUM(id), IN(&message, 120), NUM(112), NUM(IPC_NOWAIT)});
	MSG(msgsnd, drain_queue, {NUM(id), IN(&message, 8), NUM(0), NUM(IPC_NOWAIT)});
	MSG(msgsnd, drain_queue, {NUM(id), IN(&bad, 120), NUM(112), NUM(IPC_NOWAIT)});
	MSG(msgsnd, drain_queue, {NUM(id), IN(&message, 120), NUM(-1), NUM(IPC_NOWAIT)});
	MSG(msgrcv, one_message, {NUM(id), OUT(48), NUM(40), NUM(0), NUM(IPC_NOWAIT)});
	MSG(msgrcv, one_message, {NUM(id), OUT(28), NUM(20), NUM(0), NUM(IPC_NOWAIT)});
	MSG(msgrcv, one_message, {NUM(id), OUT(28), NUM(20), NUM(0), NUM(IPC_NOWAIT | MSG_NOERROR)});
	MSG(msgrcv, one_message, {NUM(id), OUT(208), NUM(200), NUM(4), NUM(IPC_NOWAIT)});
	drain_queue();
	TWICE(msgctl, {NUM(id), NUM(IPC_STAT), OUT(120)});
	TWICE(msgctl, {NUM(id), NUM(IPC_SET), IN(&now, 120)});
	TWICE(msgctl, {NUM(0), NUM(IPC_INFO), VARY(32, 0, 8)}, .kind = SIGN);
	msgctl(id, IPC_RMID, NULL);
}

static char queue_name[32];
static int queue;

static void empty_mq(void)
{
	char text[128];
	static const struct timespec past;
	while (syscall(SYS_mq_timedreceive, queue, text, sizeof text, NULL, &past) >= 0)
		;
}

static void one_in_mq(void)
{
	empty_mq();
	CHECK_OK("mq_timedsend", (int)syscall(SYS_mq_timedsend, queue, "a text", 6, 9, NULL));
}

static void see_mq(long result, char *text)
{
	char got[129] = "";
	unsigned priority = 0;
	static const struct timespec past;
	(void)result;
	long n = syscall(SYS_mq_timedreceive, queue, got, 128, &priority, &past);
	sprintf(text, "%ld bytes of priority %u: %s", n, priority, got);
}

static void blocking_mq(void)
{
	static const long none[8];
	CHECK_OK("mq_getsetattr", (int)syscall(SYS_mq_getsetattr, queue, none, NULL));
}

static void no_notice(void)
{
	syscall(SYS_mq_notify, queue, NULL);
}

static void posix_queues(void)
{
	long attributes[8] = {0, 4, 128}, now[8] = {O_NONBLOCK}, bad[8] = {1234};
	snprintf(queue_name, sizeof queue_name, "farpage-%d", (int)getpid());
	queue = (int)syscall(SYS_mq_open, queue_name, O_CREAT | O_RDWR, 0600, attributes);
	if (queue < 0) {
		skip("posix_queues", "mq_open: %s", strerror(errno));
		return;
	}
	chill();
	TWICE(mq_open, {TEXT(queue_name), NUM(O_RDWR), NUM(0), NIL}, .kind = DESCRIPTOR);
	TWICE(mq_open, {TEXT(queue_name), NUM(O_CREAT | O_RDWR), NUM(0600), IN(attributes, 64)}, .kind = DESCRIPTOR);
	TWICE(mq_open, {TEXT("none"), NUM(O_RDWR), NUM(0), NIL}, .kind = DESCRIPTOR);
	TWICE(mq_timedsend, {NUM(queue), IN("some text", 9), NUM(9), NUM(3), IN(&moment, 16)}, .before = empty_mq, .effect = see_mq);
	TWICE(mq_timedsend, {NUM(queue), IN("some text", 9), NUM(999), NUM(3), IN(&moment, 16)}, .before = empty_mq, .effect = see_mq);
	TWICE(mq_timedsend, {NUM(queue), IN("some text", 9), NUM(9), NUM(3), IN(&bad_time, 16)}, .before = empty_mq, .effect = see_mq);
	TWICE(mq_timedreceive, {NUM(queue), OUT(128), NUM(128), OUT(4), IN(&moment, 16)}, .before = one_in_mq, .effect = see_mq);
	TWICE(mq_timedreceive, {NUM(queue), OUT(100), NUM(100), OUT(4), IN(&moment, 16)}, .before = one_in_mq, .effect = see_mq);
	TWICE(mq_timedreceive, {NUM(queue), OUT(128), NUM(128), OUT(4), IN(&moment, 16)}, .before = empty_mq, .needed = 16);
	TWICE(mq_getsetattr, {NUM(queue), IN(now, 64), OUT(64)}, .before = blocking_mq);
	TWICE(mq_getsetattr, {NUM(queue), IN(bad, 64), OUT(64)}, .before = blocking_mq);
	struct sigevent none = {.sigev_notify = SIGEV_NONE}, by_thread = {.sigev_notify = SIGEV_THREAD, .sigev_signo = -1};
	TWICE(mq_notify, {NUM(queue), IN(&none, 64)}, .before = no_notice);
	TWICE(mq_notify, {NUM(queue), IN(&by_thread, 64), [6] = IN("a cookie of thirty-two bytes....", 32)}, .links = {{1, 0, 6}},
	      .before = no_notice);
	TWICE(mq_unlink, {TEXT("none")});
	close(queue);
	syscall(SYS_mq_unlink, queue_name);
}

static aio_context_t context;
static int file;
static char content[200], in_file[200];
static struct iocb request;

/* One read is done and waits to be fetched. */
static void one_event(void)
{
	struct io_event events[8];
	static const struct timespec now;
	while (syscall(SYS_io_getevents, context, 0, 8, events, &now) > 0)
		;
	request = (struct iocb){.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = (unsigned)file, .aio_nbytes = 100, .aio_data = 77};
	request.aio_buf = (uintptr_t)in_file;
	CHECK_EQ("io_submit", 1, syscall(SYS_io_submit, context, 1, &(struct iocb *){&request}));
}

static void see_events(long result, char *text)
{
	struct io_event event = {0};
	static const struct timespec now;
	char got[201] = "";
	(void)result;
	long n = syscall(SYS_io_getevents, context, 0, 1, &event, &now);
	CHECK("pread", pread(file, got, 200, 0) >= 0);
	sprintf(text, "%ld events, result %lld data %llx, file: %s", n, n > 0 ? event.res : 0, n > 0 ? event.data : 0, got);
}

static void blank_file(void)
{
	memset(in_file, '.', sizeof in_file);
	CHECK_EQ("pwrite", 200, pwrite(file, in_file, 200, 0));
}

static void end_context(long result, char *text)
{
	aio_context_t made = 0;
	if (result == 0)
		memcpy(&made, twice_mem(1), sizeof made);
	sprintf(text, "%ld then %ld", result, result == 0 ? syscall(SYS_io_destroy, made) : 0);
}

static void asynchronous(void)
{
	static const uint64_t no_context, nothing_blocked;
	struct {
		uint64_t set, len;
	} pack = {0, 8};
	CHECK_OK("io_setup", (int)syscall(SYS_io_setup, 8, &context));
	file = temp_file();
	blank_file();
	memset(content, 'c', sizeof content);
	struct iocb write = {.aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = (unsigned)file, .aio_nbytes = 150, .aio_data = 5}, read = write;
	struct iocb vector = write, odd = write;
	read.aio_lio_opcode = IOCB_CMD_PREAD;
	vector.aio_lio_opcode = IOCB_CMD_PWRITEV;
	vector.aio_nbytes = 1;
	odd.aio_lio_opcode = 99;
	uint64_t places[2] = {0}, piece[2] = {0, 60};
	chill();
	TWICE(io_setup, {NUM(4), {.data = &no_context, .len = 8, .vary_len = 8}}, .effect = end_context);
	TWICE(io_setup, {NUM(0), IN(&no_context, 8)});
#define SUBMIT(...) TWICE(io_submit, __VA_ARGS__, .before = blank_file, .effect = see_events)
	SUBMIT({NUM(context), NUM(1), IN(places, 8), [6] = IN(&write, 64), IN(content, 150)}, .links = {{2, 0, 6}, {6, 24, 7}});
	SUBMIT({NUM(context), NUM(1), IN(places, 8), [6] = IN(&read, 64), OUT(150)}, .links = {{2, 0, 6}, {6, 24, 7}});
	SUBMIT({NUM(context), NUM(1), IN(places, 8), [6] = IN(&vector, 64), IN(piece, 16), IN(content, 60)},
	       .links = {{2, 0, 6}, {6, 24, 7}, {7, 0, 8}});
	SUBMIT({NUM(context), NUM(1), IN(places, 8), [6] = IN(&odd, 64), IN(content, 150)}, .links = {{2, 0, 6}, {6, 24, 7}});
	SUBMIT({NUM(context), NUM(0), IN(places, 8)});
	SUBMIT({NUM(context), NUM(-1), IN(places, 8)});
	TWICE(io_getevents, {NUM(context), NUM(1), NUM(4), OUT(128), IN(&moment, 16)}, .before = one_event, .needed = 16);
	TWICE(io_getevents, {NUM(context), NUM(0), NUM(0), OUT(128), IN(&moment, 16)}, .before = one_event, .needed = 16);
	TWICE(io_getevents, {NUM(context), NUM(3), NUM(2), OUT(128), IN(&moment, 16)}, .before = one_event, .needed = 16);
	TWICE(io_pgetevents, {NUM(context), NUM(1), NUM(4), OUT(128), IN(&moment, 16), IN(&pack, 16), IN(&nothing_blocked, 8)},
	      .links = {{5, 0, 6}}, .before = one_event, .needed = 16);
	pack.len = 3;
	TWICE(io_pgetevents, {NUM(context), NUM(1), NUM(4), OUT(128), IN(&moment, 16), IN(&pack, 16), IN(&nothing_blocked, 8)},
	      .links = {{5, 0, 6}}, .before = one_event, .needed = 16);
	TWICE(io_cancel, {NUM(context), IN(&write, 64), OUT(32)});
	TWICE(io_uring_enter, {NUM(-1), NUM(0), NUM(0), NUM(8), OUT(24), NUM(24)});
	TWICE(io_uring_register, {NUM(-1), NUM(2), OUT(8), NUM(1)});
	syscall(SYS_io_destroy, context);
	close(file);
}

/* Waits that end at once: the word is another one, or the time is over. */
static void futexes(void)
{
	enum { U32 = 2, PRIVATE = 128 };
	struct waiter {
		uint64_t value, address;
		uint32_t flags, reserved;
	} two[2] = {{5, 0, U32 | PRIVATE, 0}, {5, 0, U32 | PRIVATE, 0}}, odd[2] = {{5, 0, 99, 0}, {5, 0, 99, 0}};
	static const uint32_t five = 5, other = 6;
	static const struct timespec past = {0, 1};
	chill();
#define TWO {0, 8, 6}, {0, 32, 7}
	TWICE(futex_waitv, {IN(two, 48), NUM(2), NUM(0), IN(&past, 16), NUM(1), [6] = IN(&five, 4), IN(&other, 4)}, .links = {TWO});
	TWICE(futex_waitv, {IN(two, 48), NUM(2), NUM(0), IN(&past, 16), NUM(1), [6] = IN(&five, 4), IN(&five, 4)}, .links = {TWO},
	      .needed = 1 << 3);
	TWICE(futex_waitv, {IN(odd, 48), NUM(2), NUM(0), IN(&past, 16), NUM(1), [6] = IN(&five, 4), IN(&five, 4)}, .links = {TWO},
	      .needed = 1 << 3);
	TWICE(futex_waitv, {IN(two, 48), NUM(0), NUM(0), IN(&past, 16), NUM(1)}, .needed = 1 << 3);
	TWICE(futex_wake, {IN(&five, 4), NUM(-1), NUM(1), NUM(U32 | PRIVATE)});
	TWICE(futex_wake, {IN(&five, 4), NUM(-1), NUM(1), NUM(U32)});
	TWICE(futex_wait, {IN(&five, 4), NUM(6), NUM(-1), NUM(U32 | PRIVATE), IN(&past, 16), NUM(1)});
	TWICE(futex_wait, {IN(&five, 4), NUM(5), NUM(-1), NUM(U32 | PRIVATE), IN(&past, 16), NUM(1)}, .needed = 16);
	TWICE(futex_requeue, {IN(two, 48), NUM(0), NUM(1), NUM(1), [6] = IN(&five, 4), IN(&other, 4)}, .links = {TWO});
	two[0].value = 6;
	TWICE(futex_requeue, {IN(two, 48), NUM(0), NUM(1), NUM(1), [6] = IN(&five, 4), IN(&other, 4)}, .links = {TWO});
#define LEFT {.data = &moment, .len = 16, .vary_len = 16}
	static const uint64_t sets[2] = {0, 0}, pack[2] = {0, 8};
	TWICE(pselect6, {NUM(64), IN(sets, 8), IN(sets, 8), IN(sets, 8), LEFT, IN(pack, 16), IN(sets, 8)}, .links = {{5, 0, 6}},
	      .needed = 16);
	TWICE(pselect6, {NUM(-1), IN(sets, 8), IN(sets, 8), IN(sets, 8), LEFT, IN(pack, 16), IN(sets, 8)}, .links = {{5, 0, 6}},
	      .needed = 16);
}

static long key;

static void see_key(long result, char *text)
{
	char value[64] = "";
	long n = syscall(SYS_keyctl, 11, result > 1 ? result : key, value, 63);
	sprintf(text, "%d: %ld bytes %s", result < 0, n, value);
}

static void keys_in_child(void)
{
	enum { OWN = -2 };
	key = syscall(SYS_add_key, "user", "farpage one", "first", 5, OWN);
	if (key < 0) {
		skip("keys", "add_key: %s", strerror(errno));
		return;
	}
	chill();
	TWICE(add_key, {TEXT("user"), TEXT("farpage two"), IN("a payload", 9), NUM(9), NUM(OWN)}, .kind = SIGN, .effect = see_key);
	TWICE(add_key, {TEXT("user"), TEXT("farpage two"), IN("a payload", 9), NUM(1 << 21), NUM(OWN)}, .kind = SIGN);
	TWICE(add_key, {TEXT("nosuch"), TEXT("farpage two"), IN("a payload", 9), NUM(9), NUM(OWN)});
	TWICE(request_key, {TEXT("user"), TEXT("farpage one"), NIL, NUM(0)});
	TWICE(keyctl, {NUM(1), NIL}, .kind = SIGN);
	TWICE(keyctl, {NUM(2), NUM(key), IN("another payload", 15), NUM(15)}, .effect = see_key);
	TWICE(keyctl, {NUM(6), NUM(key), OUT(64), NUM(64)});
	TWICE(keyctl, {NUM(6), NUM(key), OUT(64), NUM(3)});
	TWICE(keyctl, {NUM(10), NUM(OWN), TEXT("user"), TEXT("farpage one"), NUM(0)});
	TWICE(keyctl, {NUM(11), NUM(key), OUT(64), NUM(64)});
	TWICE(keyctl, {NUM(11), NUM(key), OUT(4), NUM(4)});
	TWICE(keyctl, {NUM(17), NUM(key), OUT(64), NUM(64)});
	TWICE(keyctl, {NUM(31), OUT(8), NUM(8)});
	static const uint64_t piece[2] = {0, 9};
	TWICE(keyctl, {NUM(20), NUM(key), IN(piece, 16), NUM(1), NUM(0), [6] = IN("a payload", 9)}, .links = {{2, 0, 6}});
}

/* The names of a key derivation lie in a structure; the walk over the call once passed them by. */
static void derivation(void)
{
	enum { OWN = -2 };
	static const char two[] = "\2", prime[] = "\x17\x17\x17\x17\x17\x17\x17\x17\x17\x17\x17\x17\x17\x17\x17\x17";
	int32_t numbers[3] = {(int32_t)syscall(SYS_add_key, "user", "private", two, 1, OWN),
			      (int32_t)syscall(SYS_add_key, "user", "prime", prime, 16, OWN),
			      (int32_t)syscall(SYS_add_key, "user", "base", two, 1, OWN)};
	struct {
		uint64_t hash, other;
		uint32_t other_len, spare[8];
	} way = {0, 0, 8, {0}};
	TWICE(keyctl, {NUM(23), IN(numbers, 12), OUT(16), NUM(16), NIL});
	TWICE(keyctl, {NUM(23), IN(numbers, 12), OUT(64), NUM(32), IN(&way, sizeof way), [6] = TEXT("sha256"), IN("whatever", 8)},
	      .links = {{4, 0, 6}, {4, 8, 7}});
}

static void keys(void)
{
	in_child(keys_in_child);
	in_child(derivation);
}

static void default_policy(void)
{
	CHECK_OK("set_mempolicy", (int)syscall(SYS_set_mempolicy, 0, NULL, 0));
}

static void see_policy(long result, char *text)
{
	int mode = -1;
	uint64_t nodes[16] = {0};
	(void)result;
	CHECK_OK("get_mempolicy", (int)syscall(SYS_get_mempolicy, &mode, nodes, 1024, NULL, 0));
	sprintf(text, "mode %d nodes %lx", mode, nodes[0]);
}

static void policies_in_child(void)
{
	static char page[PAGE] __attribute__((aligned(4096)));
	static const uint64_t first = 1, none, both[2] = {1, 0};
	void *const pages[2] = {page, page};
	page[0] = 1;
	chill();
	TWICE(set_mempolicy, {NUM(2), IN(&first, 8), NUM(64)}, .before = default_policy, .effect = see_policy);
	TWICE(set_mempolicy, {NUM(2), IN(&none, 8), NUM(64)}, .before = default_policy, .effect = see_policy);
	TWICE(set_mempolicy, {NUM(2), IN(both, 16), NUM(128)}, .before = default_policy, .effect = see_policy);
	TWICE(set_mempolicy, {NUM(99), IN(&first, 8), NUM(64)}, .before = default_policy, .effect = see_policy);
	default_policy();
	TWICE(get_mempolicy, {OUT(4), OUT(128), NUM(1024), NUM(0), NUM(0)});
	TWICE(get_mempolicy, {OUT(4), OUT(8), NUM(64), NUM(0), NUM(4)});
	TWICE(get_mempolicy, {OUT(4), NIL, NUM(0), IN(page, 64), NUM(3)}, .whole = true);
	TWICE(mbind, {NUM(page), NUM(PAGE), NUM(1), IN(&first, 8), NUM(64), NUM(0)});
	TWICE(mbind, {NUM(page), NUM(PAGE), NUM(0), NIL, NUM(0), NUM(0)});
	TWICE(migrate_pages, {NUM(0), NUM(64), IN(&first, 8), IN(&first, 8)});
	TWICE(move_pages, {NUM(0), NUM(2), IN(pages, 16), NIL, OUT(8), NUM(0)});
	TWICE(move_pages, {NUM(0), NUM(2), IN(pages, 16), IN(both, 8), OUT(8), NUM(4)}, .needed = 8);
}

static void policies(void)
{
	if (syscall(SYS_set_mempolicy, 0, NULL, 0) < 0)
		skip("policies", "set_mempolicy: %s", strerror(errno));
	else
		in_child(policies_in_child);
}

static void filters_in_child(void)
{
	static const uint32_t action = SECCOMP_RET_TRAP, unknown = 0x12345678;
	static const struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
	struct {
		uint16_t len;
		uint64_t program;
	} one = {1, 0}, empty = {0, 0};
	CHECK_OK("prctl", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	chill();
	TWICE(seccomp, {NUM(2), NUM(0), IN(&action, 4)});
	TWICE(seccomp, {NUM(2), NUM(0), IN(&unknown, 4)});
	TWICE(seccomp, {NUM(3), NUM(0), OUT(6)});
	TWICE(seccomp, {NUM(1), NUM(0), IN(&one, 16), [6] = IN(&allow, 8)}, .links = {{2, 8, 6}});
	TWICE(seccomp, {NUM(1), NUM(0), IN(&empty, 16), [6] = IN(&allow, 8)}, .links = {{2, 8, 6}});
	TWICE(prctl, {NUM(PR_SET_SECCOMP), NUM(2), IN(&one, 16), [6] = IN(&allow, 8)}, .links = {{2, 8, 6}});
}

static int map;

static void programs_and_maps(void)
{
	static const uint32_t zero;
	static const uint64_t value = 0x123456789;
	static const struct bpf_insn insns[2] = {{.code = BPF_ALU64 | BPF_MOV | BPF_K, .imm = 0}, {.code = BPF_JMP | BPF_EXIT}};
	union bpf_attr make, element, load, large;
	memset(&make, 0, sizeof make);
	memset(&element, 0, sizeof element);
	memset(&load, 0, sizeof load);
	make.map_type = BPF_MAP_TYPE_ARRAY;
	make.key_size = 4;
	make.value_size = 8;
	make.max_entries = 1;
	memset(&large, 0xff, sizeof large);
	map = (int)syscall(SYS_bpf, BPF_MAP_CREATE, &make, sizeof make);
	element.map_fd = (uint32_t)map;
	load.prog_type = BPF_PROG_TYPE_SOCKET_FILTER;
	load.insn_cnt = 2;
	load.log_level = 1;
	load.log_size = 1000;
	TWICE(bpf, {NUM(BPF_MAP_CREATE), IN(&make, 72), NUM(72)}, .kind = DESCRIPTOR);
	TWICE(bpf, {NUM(BPF_MAP_CREATE), IN(&large, 120), NUM(120)}, .kind = DESCRIPTOR);
#define KEYED .links = {{1, 8, 6}, {1, 16, 7}}
	TWICE(bpf, {NUM(BPF_MAP_UPDATE_ELEM), IN(&element, 32), NUM(32), [6] = IN(&zero, 4), IN(&value, 8)}, KEYED);
	TWICE(bpf, {NUM(BPF_MAP_LOOKUP_ELEM), IN(&element, 32), NUM(32), [6] = IN(&zero, 4), OUT(8)}, KEYED);
	TWICE(bpf, {NUM(BPF_MAP_GET_NEXT_KEY), IN(&element, 32), NUM(32), [6] = IN(&zero, 4), OUT(4)}, KEYED);
	TWICE(bpf, {NUM(BPF_PROG_LOAD), IN(&load, 72), NUM(72), [6] = IN(insns, 16), TEXT("GPL"), VARY(1000, 0, 1000)},
	      .links = {{1, 8, 6}, {1, 16, 7}, {1, 32, 8}}, .kind = DESCRIPTOR);
	close(map);
}

/* A probe of the type that this machine gives to `name`, or 0. */
static uint32_t probe_type(const char *name)
{
	char path[96], text[16] = "";
	snprintf(path, sizeof path, "/sys/bus/event_source/devices/%s/type", name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	close(fd);
	return n > 0 ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

/* The path of a probe lies behind its structure; the walk over the call once passed it by. */
static void tracing(void)
{
	struct perf_event_attr clock = {.type = PERF_TYPE_SOFTWARE, .size = sizeof clock, .config = PERF_COUNT_SW_TASK_CLOCK,
					.disabled = 1, .exclude_kernel = 1};
	struct perf_event_attr large = clock, probe = {.type = probe_type("uprobe"), .size = sizeof probe, .disabled = 1};
	large.size = 5000;
	chill();
	TWICE(perf_event_open, {IN(&clock, sizeof clock), NUM(0), NUM(-1), NUM(-1), NUM(0)}, .kind = DESCRIPTOR);
	TWICE(perf_event_open, {IN(&large, sizeof large), NUM(0), NUM(-1), NUM(-1), NUM(0)}, .kind = DESCRIPTOR);
	if (probe.type)
		TWICE(perf_event_open, {IN(&probe, sizeof probe), NUM(0), NUM(-1), NUM(-1), NUM(0), [6] = TEXT("/nowhere/at/all")},
		      .links = {{0, offsetof(struct perf_event_attr, config1), 6}}, .kind = DESCRIPTOR);
	/* A string, though the number of the call says eight bytes. */
	static char filter[200];
	memset(filter, 'x', sizeof filter - 1);
	int counter = (int)syscall(SYS_perf_event_open, &clock, 0, -1, -1, 0);
	TWICE(ioctl, {NUM(counter), NUM(PERF_EVENT_IOC_SET_FILTER), TEXT(filter)});
	close(counter);
	in_child(filters_in_child);
	programs_and_maps();
	static const uint32_t size = 256;
	TWICE(lsm_list_modules, {OUT(256), IN(&size, 4), NUM(0)});
	TWICE(lsm_get_self_attr, {NUM(100), OUT(256), IN(&size, 4), NUM(0)});
	TWICE(lsm_set_self_attr, {NUM(100), OUT(64), NUM(64), NUM(0)});
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"shared_memory", shared_memory}, {"attached_among_managed", attached_among_managed}, {"semaphores", semaphores}, {"messages", messages},
		{"posix_queues", posix_queues},	  {"asynchronous", asynchronous}, {"futexes", futexes},
		{"keys", keys},			  {"policies", policies},	  {"tracing", tracing},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
