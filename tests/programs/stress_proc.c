/* Stress operations that fork, start threads or share pages. See stress.h. */
#include "stress.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

/* The child's life: what its parent's thread held at the fork must be there, before and after it writes its own. */
static void child_run(struct thread *t, uint32_t depth)
{
	for (int n = 0; n < 24; n++) {
		struct region *r = region_random(t);
		page_verify(t, r, below(t, r->pages), "in a forked child");
	}
	for (int n = 0; n < 8; n++) {
		struct region *r = region_random(t);
		uint32_t page = below(t, r->pages);
		page_write(t, r, page);
		page_verify(t, r, page, "written by a forked child");
		r = region_random(t);
		page = below(t, r->pages);
		page_patch(t, r, page);
		page_verify(t, r, page, "patched by a forked child");
	}
	if (depth == 0 && below(t, 4) == 0) {
		pid_t pid = fork();
		MUST(pid >= 0, "fork in a child");
		if (pid == 0) {
			child_run(t, depth + 1);
			_exit(0);
		}
		int status = 0;
		MUST(waitpid(pid, &status, 0) == pid && status == 0, "status of a child's child");
	}
	if (below(t, 2)) {
		op_discard(t);
		op_remap(t);
		op_malloc(t);
	}
	struct region *r = region_random(t);
	range_verify(t, r, 0, r->pages, "at a child's end");
}

void op_fork(struct thread *t)
{
	pid_t parent = getpid(), pid = fork();
	MUST(pid >= 0 || errno == EAGAIN || errno == ENOMEM, "fork");
	if (pid < 0)
		return;
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(0);
		t->rng = mix64(t->rng ^ 0xf0f0);
		child_run(t, 0);
		_exit(0);
	}
	/* The parent goes on writing while the child reads its snapshot. */
	for (int n = 0; n < 4; n++) {
		op_write(t);
		op_patch(t);
	}
	int status = 0;
	pid_t got;
	do
		got = waitpid(pid, &status, 0);
	while (got < 0 && errno == EINTR);
	MUST(got == pid, "waitpid");
	if (status != 0)
		die("FAIL child %d of thread %u ended with wait status %#x", (int)pid, t->index, (unsigned)status);
	op_verify(t);
}

struct short_life {
	struct thread *owner;
	uint64_t key;
};

/* Lives while its starter waits in pthread_join, so it may use the starter's regions. */
static void *short_thread(void *arg)
{
	struct short_life *life = arg;
	struct thread *t = life->owner;
	struct region *r = region_random(t);
	page_verify(t, r, below(t, r->pages), "by a short thread");
	page_write(t, r, below(t, r->pages));
	size_t len = 64 + below(t, 60000);
	unsigned char *p = malloc(len);
	MUST(p, "malloc in a short thread");
	memset(p, (int)life->key, len);
	for (size_t i = 0; i < len; i++)
		MUST(p[i] == (unsigned char)life->key, "malloc'd bytes of a short thread");
	free(p);
	return (void *)(uintptr_t)(life->key * 3);
}

void op_thread(struct thread *t)
{
	struct short_life *life = malloc(sizeof *life);
	MUST(life, "malloc");
	*life = (struct short_life){.owner = t, .key = rnd(t) >> 8};
	pthread_t handle;
	int rc = pthread_create(&handle, NULL, short_thread, life);
	MUST(rc == 0, "pthread_create");
	void *result = NULL;
	MUST(pthread_join(handle, &result) == 0, "pthread_join");
	MUST(result == (void *)(uintptr_t)(life->key * 3), "a short thread's result");
	free(life);
}

/* Reads pages of another thread, under its lock. Never waits, so locks cannot make a circle. */
void op_visit(struct thread *t)
{
	struct thread *other = &threads[below(t, options.threads)];
	uint64_t start = rnd(t), where = rnd(t);
	if (other == t || pthread_mutex_trylock(&other->lock) != 0)
		return;
	for (uint32_t i = 0; i < other->region_count; i++) {
		struct region *r = &other->regions[(start + i) % other->region_count];
		if (!r->base)
			continue;
		uint32_t first = (uint32_t)(where % r->pages), room = r->pages - first;
		range_verify(t, r, first, room < 16 ? room : 16, "another thread's page");
		break;
	}
	pthread_mutex_unlock(&other->lock);
}

void op_shared(struct thread *t)
{
	for (int n = 0; n < 32; n++) {
		uint32_t which = below(t, COUNTERS_MAX);
		atomic_fetch_add((_Atomic uint64_t *)&counters[which * COUNTER_STRIDE], 1);
		t->counted[which]++;
	}
}
