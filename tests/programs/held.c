/* Pages that the kernel holds for a device: an io_uring's registered buffers lie among pages that come and go. What is read into them
 * goes to the memory they had when they were registered, so they must be in their places when it comes.
 * Usage: held [MIB]; under farpage with --allow-io-uring. */
#include "check.h"

#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { BUFFERS = 64, ROUNDS = 5, WALKERS = 2, TOUCHES = 60000 };

static char *region;
static size_t pages;
static int ring, file;
static struct io_uring_params params;
static char *submissions, *completions;
static struct io_uring_sqe *entries;

static void open_ring(void)
{
	ring = syscall(SYS_io_uring_setup, 4, &params);
	if (ring < 0) {
		skip("held", "no io_uring: %s", strerror(errno));
		exit(0);
	}
	int prot = PROT_READ | PROT_WRITE;
	size_t len = params.sq_off.array + params.sq_entries * sizeof(unsigned);
	submissions = mmap(NULL, len, prot, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	len = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
	completions = mmap(NULL, len, prot, MAP_SHARED, ring, IORING_OFF_CQ_RING);
	entries = mmap(NULL, params.sq_entries * sizeof *entries, prot, MAP_SHARED, ring, IORING_OFF_SQES);
	CHECK("the ring's memory", submissions != MAP_FAILED && completions != MAP_FAILED && (void *)entries != MAP_FAILED);
}

static size_t page_of(int buffer)
{
	return (2 * buffer + 1) * pages / (2 * BUFFERS);
}

static void *buffer_at(int buffer)
{
	return region + page_of(buffer) * PAGE;
}

/* One read into registered memory, waited for; its result. */
static int read_fixed(int buffer, off_t offset)
{
	atomic_uint *tail = (atomic_uint *)(submissions + params.sq_off.tail);
	unsigned mask = *(unsigned *)(submissions + params.sq_off.ring_mask), at = *tail & mask;
	entries[at] = (struct io_uring_sqe){.opcode = IORING_OP_READ_FIXED, .fd = file, .off = offset, .buf_index = buffer,
					    .addr = (uintptr_t)buffer_at(buffer), .len = PAGE};
	((unsigned *)(submissions + params.sq_off.array))[at] = at;
	atomic_fetch_add(tail, 1);
	CHECK_EQ("io_uring_enter", 1, syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0));
	atomic_uint *head = (atomic_uint *)(completions + params.cq_off.head);
	unsigned last = *head & *(unsigned *)(completions + params.cq_off.ring_mask);
	int result = ((struct io_uring_cqe *)(completions + params.cq_off.cqes))[last].res;
	atomic_fetch_add(head, 1);
	return result;
}

/* Touches pages all over, each walker those of its own parity; every one must be as it was left. */
static void *walk(void *arg)
{
	uint64_t walker = (uintptr_t)arg, at = walker;
	for (int i = 0; i < TOUCHES; i++) {
		size_t page = (at = mix64(at)) % (pages / WALKERS) * WALKERS + walker % WALKERS;
		uint64_t *words = (uint64_t *)(region + page * PAGE);
		bool held = false;
		for (int buffer = 0; buffer < BUFFERS; buffer++)
			held |= page == page_of(buffer);
		if (held)
			continue;
		CHECK_EQ("a page beside", page, words[0]);
		words[1 + i % 500] = at;
	}
	return NULL;
}

static void check_moved(const char *at, size_t from, size_t to)
{
	for (size_t page = from; page < to; page++) {
		int buffer = 0;
		while (buffer < BUFFERS && page != page_of(buffer))
			buffer++;
		if (buffer < BUFFERS)
			CHECK_FILL("a held page, moved", at + (page - from) * PAGE, PAGE, (ROUNDS - 1) * BUFFERS + buffer);
		else
			CHECK_EQ("a page beside, moved", page, *(uint64_t *)(at + (page - from) * PAGE));
	}
}

/* Held pages go with their mappings. */
static void move_region(void)
{
	enum { AROUND = 15, SOME = 2 * AROUND + 1 };
	size_t head = (pages / 2 + AROUND) * PAGE, first = page_of(BUFFERS - 1) - AROUND;
	/* Shared memory is not managed, nor is what comes to its place. */
	char *away = mmap(NULL, SOME * PAGE, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char *moved = mremap(region + first * PAGE, SOME * PAGE, SOME * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, away);
	if (CHECK_EQ("moved away", (uintptr_t)away, (uintptr_t)moved))
		check_moved(moved, first, first + SOME);
	char *grown = mremap(region, head, head + MIB, MREMAP_MAYMOVE);
	if (!CHECK("moved to grow", grown != MAP_FAILED && grown != region))
		return;
	check_moved(grown, 0, head / PAGE);
	CHECK_ZERO("what it grew by", grown + head, MIB);
	char *left = mremap(grown, head, head, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	if (CHECK("moved and left mapped", left != MAP_FAILED))
		check_moved(left, 0, head / PAGE);
	CHECK_ZERO("what was left", grown, head);
}

int main(int argc, char **argv)
{
	check_init(argv);
	size_mb = argc > 1 ? strtoul(argv[1], NULL, 10) : size_mb;
	pages = size_mb * MIB / PAGE;
	region = map_anon(pages * PAGE);
	for (size_t page = 0; page < pages; page++)
		*(uint64_t *)(region + page * PAGE) = page;
	open_ring();
	struct iovec iov[BUFFERS];
	for (int buffer = 0; buffer < BUFFERS; buffer++)
		iov[buffer] = (struct iovec){buffer_at(buffer), PAGE};
	CHECK_OK("registering", syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, iov, BUFFERS));
	file = temp_file();
	char content[PAGE];
	for (int round = 0; round < ROUNDS; round++) {
		pthread_t walkers[WALKERS];
		for (uintptr_t i = 0; i < WALKERS; i++)
			pthread_create(&walkers[i], NULL, walk, (void *)(i + WALKERS * (round + 1)));
		for (int buffer = 0; buffer < BUFFERS; buffer++) {
			sleep_ms(2);
			fill(content, PAGE, round * BUFFERS + buffer);
			CHECK_EQ("pwrite", (long)PAGE, pwrite(file, content, PAGE, buffer * PAGE));
			CHECK_EQ("a read into a held page", (int)PAGE, read_fixed(buffer, buffer * PAGE));
			CHECK_FILL("what was read", buffer_at(buffer), PAGE, round * BUFFERS + buffer);
		}
		for (int i = 0; i < WALKERS; i++)
			pthread_join(walkers[i], NULL);
		for (int buffer = 0; buffer < BUFFERS; buffer++)
			CHECK_FILL("what was read, later", buffer_at(buffer), PAGE, round * BUFFERS + buffer);
	}
	move_region();
	if (failures() == 0)
		say("ok held\n");
	return failures() != 0;
}
