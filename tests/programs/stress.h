/* The stress program's parts. See stress.c for the usage.
 *
 *   stress.c       options, worker processes and threads, watchdog, totals
 *   stress_page.c  what a page must contain; the report of a mismatch
 *   stress_mem.c   operations on memory: write, scan, copy, map, remap, protect, discard, malloc
 *   stress_io.c    operations that hand pages to system calls
 *   stress_proc.c  operations that fork, start threads or share pages
 *
 * Ownership: a region belongs to one thread, which holds its lock during each of its operations; another thread may
 * read pages of it after taking that lock. So there is no data race, and what a page must contain is known exactly.
 */
#ifndef STRESS_H
#define STRESS_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE 4096u
#define PAGE_WORDS 512u
#define THREADS_MAX 64u
#define PROCS_MAX 64u
#define REGION_PAGES_MIN 16u
#define REGION_PAGES_MAX 4096u
/* Regions of all threads of a process; each owns an equal share of them. */
#define REGIONS_MAX 2048u
#define COUNTERS_MAX 64u

enum kind { KIND_ZERO, KIND_RANDOM, KIND_SMALL, KIND_TEXT, KIND_SAME, KIND_HALF, KIND_COUNT };

/* What a page must contain: the address it had when it was written, a generation, a kind; then at most one later
 * partial write over words [patch_start, patch_start + patch_len) with a generation of its own. */
struct meta {
	uint64_t pfn : 36, gen : 24, kind : 4;
	uint64_t patch_gen : 40, patch_start : 10, patch_len : 10, unused : 4;
};

struct region {
	char *base; /* NULL: this entry is free */
	uint32_t pages;
	struct meta *meta; /* REGION_PAGES_MAX entries, static: never in memory under test */
};

enum op {
	OP_WRITE, OP_VERIFY, OP_PATCH, OP_SCAN, OP_COPY, OP_FILE, OP_FILEV, OP_PIPE, OP_SOCKET, OP_MSG, OP_INFO,
	OP_DISCARD, OP_MAP, OP_UNMAP, OP_PUNCH, OP_REMAP, OP_PROTECT, OP_MALLOC, OP_FORK, OP_THREAD, OP_VISIT,
	OP_SHARED, OP_COUNT
};

struct thread {
	pthread_mutex_t lock;
	pthread_t handle;
	uint32_t index;
	uint64_t rng;
	uint64_t gen;
	struct region *regions;
	uint32_t region_count; /* entries this thread owns */
	uint64_t pages, pages_target;
	int file, pipe[2], sock[2], dgram[2];
	uint64_t counted[COUNTERS_MAX]; /* its own additions to the shared counters */
	_Atomic uint64_t done;
	_Atomic int op;
	uint64_t count[OP_COUNT], max_ns[OP_COUNT];
};

struct options {
	unsigned seconds, threads, procs, mb, hang_s, signal_hz;
	uint64_t seed, ops_max;
};

extern struct options options;
extern struct thread threads[THREADS_MAX];
extern const char *const op_names[OP_COUNT];
extern uint32_t proc_index;
extern uint64_t *counters; /* COUNTERS_MAX atomic words, spread over shared pages */
#define COUNTER_STRIDE 256u /* words between two counters: two per page */

/* stress.c */
uint64_t now_ns(void);
uint64_t mix64(uint64_t x);
uint64_t rnd(struct thread *t);
/* 0 <= result < n */
uint32_t below(struct thread *t, uint64_t n);
/* Prints one line to stderr and ends the process with status 1. */
void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
#define MUST(cond, what) \
	do { \
		if (!(cond)) \
			die("FAIL %s: %s (errno %d) at %s:%d", what, #cond, errno, __FILE__, __LINE__); \
	} while (0)

/* stress_page.c */
void page_write(struct thread *t, struct region *r, uint32_t page);
void page_patch(struct thread *t, struct region *r, uint32_t page);
void page_verify(const struct thread *t, const struct region *r, uint32_t page, const char *when);
/* `content` must be that of a page described by `meta`, wherever it lies. */
void content_verify(const struct thread *t, const void *content, const struct meta *meta, const char *when);
void range_verify(const struct thread *t, const struct region *r, uint32_t first, uint32_t count, const char *when);
void range_zero(struct region *r, uint32_t first, uint32_t count);
struct region *region_random(struct thread *t);
/* A random run of at most `most` pages of the region. */
void range_random(struct thread *t, const struct region *r, uint32_t most, uint32_t *first, uint32_t *count);
/* Maps and fills regions up to the thread's target. */
void regions_fill(struct thread *t);
void regions_verify_all(struct thread *t, const char *when);
void regions_free(struct thread *t);
struct region *region_new(struct thread *t, uint32_t pages);
void region_drop(struct thread *t, struct region *r);
/* A free entry of this thread, or NULL. */
struct region *region_entry(struct thread *t);

/* One function per operation. */
void op_write(struct thread *t);
void op_verify(struct thread *t);
void op_patch(struct thread *t);
void op_scan(struct thread *t);
void op_copy(struct thread *t);
void op_discard(struct thread *t);
void op_map(struct thread *t);
void op_unmap(struct thread *t);
void op_punch(struct thread *t);
void op_remap(struct thread *t);
void op_protect(struct thread *t);
void op_malloc(struct thread *t);
void op_file(struct thread *t);
void op_filev(struct thread *t);
void op_pipe(struct thread *t);
void op_socket(struct thread *t);
void op_msg(struct thread *t);
void op_info(struct thread *t);
void op_fork(struct thread *t);
void op_thread(struct thread *t);
void op_visit(struct thread *t);
void op_shared(struct thread *t);

#endif
