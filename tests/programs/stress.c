/* The never-a-wrong-byte program: random operations on memory whose every byte is known.
 *
 * usage: stress [--seconds N] [--threads T] [--procs P] [--mb M] [--seed S] [--ops N] [--hang S] [--signal HZ]
 *   --seconds N  how long (default 10)                --mb M      data of all processes together (default 64)
 *   --threads T  in each process (default 4)          --seed S    of every random choice (default 1)
 *   --procs P    worker processes (default 1)         --ops N     stop each thread after N operations
 *   --hang S     no progress for S seconds: report and abort (default 60)
 *   --signal HZ  a timer signal at this rate, whose handler touches shared pages (default 0: none)
 *
 * With more than one process half of them are forked before memory is filled and half after, so that these start on
 * shared pages. Prints operations and the longest pause of each kind, then `ok stress`. Exit status 0; 1 with one line
 * MISMATCH or FAIL on the first wrong byte or refused call; HANG and SIGABRT when nothing moves any more.
 * The order of a thread's operations follows from --seed, its process and its index alone.
 */
#include "stress.h"

#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

struct options options = {
	.seconds = 10, .threads = 4, .procs = 1, .mb = 64, .hang_s = 60, .seed = 1, .ops_max = UINT64_MAX};
struct thread threads[THREADS_MAX];
uint32_t proc_index;
uint64_t *counters;

const char *const op_names[OP_COUNT] = {"write", "verify", "patch", "scan",  "copy",   "file",    "filev",  "pipe",
					"socket", "msg",    "info",  "discard", "map",    "unmap",   "punch",  "remap",
					"protect", "malloc", "fork",  "thread", "visit",  "shared"};

static const struct {
	void (*run)(struct thread *);
	uint32_t weight;
} operations[OP_COUNT] = {
	{op_write, 120}, {op_verify, 160}, {op_patch, 80},  {op_scan, 12},	{op_copy, 40},	 {op_file, 20},
	{op_filev, 20},	 {op_pipe, 30},	   {op_socket, 30}, {op_msg, 30},	{op_info, 60},	 {op_discard, 40},
	{op_map, 20},	 {op_unmap, 16},   {op_punch, 12},  {op_remap, 16},	{op_protect, 20}, {op_malloc, 40},
	{op_fork, 3},	 {op_thread, 8},   {op_visit, 30},  {op_shared, 30},
};

/* Results of the worker processes, in memory that all of them share. */
struct totals {
	_Atomic uint64_t count[OP_COUNT], max_ns[OP_COUNT], data_pages;
};
static struct totals *totals;

static struct meta region_meta[REGIONS_MAX][REGION_PAGES_MAX];
static struct region region_table[REGIONS_MAX];
static uint64_t deadline_ns;
static uint32_t weight_sum;
static _Atomic bool finished;
static _Atomic uint64_t ticks;

uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t mix64(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

uint64_t rnd(struct thread *t)
{
	t->rng ^= t->rng << 13;
	t->rng ^= t->rng >> 7;
	t->rng ^= t->rng << 17;
	return t->rng * 0x2545f4914f6cdd1du;
}

uint32_t below(struct thread *t, uint64_t n)
{
	return (uint32_t)((rnd(t) >> 33) % n);
}

void die(const char *fmt, ...)
{
	char line[1024];
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(line, sizeof line - 1, fmt, ap);
	va_end(ap);
	if (n > (int)sizeof line - 2)
		n = sizeof line - 2;
	line[n++] = '\n';
	ssize_t done = write(STDERR_FILENO, line, (size_t)n);
	(void)done;
	_exit(1);
}

/* Ages each thread by its count of operations; all quiet, or one quiet for three times as long, is a hang. Time is read
 * from the clock: the timer signals of --signal end sleeps early (they once made a hang of 0.3 s). */
static void *watchdog(void *arg)
{
	(void)arg;
	uint64_t seen[THREADS_MAX] = {0}, moved_s[THREADS_MAX], quiet_s[THREADS_MAX];
	for (uint32_t i = 0; i < options.threads; i++)
		moved_s[i] = now_ns() / 1000000000u;
	while (!finished) {
		sleep(1);
		uint64_t least = UINT64_MAX, most = 0;
		for (uint32_t i = 0; i < options.threads; i++) {
			uint64_t done = threads[i].done;
			if (done != seen[i] || threads[i].op < 0)
				moved_s[i] = now_ns() / 1000000000u;
			quiet_s[i] = now_ns() / 1000000000u - moved_s[i];
			seen[i] = done;
			least = quiet_s[i] < least ? quiet_s[i] : least;
			most = quiet_s[i] > most ? quiet_s[i] : most;
		}
		if (finished || (least < options.hang_s && most < 3 * options.hang_s))
			continue;
		for (uint32_t i = 0; i < options.threads; i++) {
			int op = threads[i].op;
			fprintf(stderr, "HANG pid %d proc %u thread %u op %s for %llu s after %llu operations\n",
				(int)getpid(), proc_index, i, op < 0 ? "none" : op_names[op],
				(unsigned long long)quiet_s[i], (unsigned long long)seen[i]);
		}
		abort();
	}
	return NULL;
}

static void on_tick(int signo)
{
	(void)signo;
	int saved = errno;
	uint64_t n = atomic_fetch_add(&ticks, 1);
	/* The second counter word of each page belongs to nobody: only touch it. */
	atomic_fetch_add((_Atomic uint64_t *)&counters[n % COUNTERS_MAX * COUNTER_STRIDE + 8], 1);
	errno = saved;
}

static void *worker(void *arg)
{
	struct thread *t = arg;
	for (uint64_t n = 0; n < options.ops_max && now_ns() < deadline_ns; n++) {
		uint32_t pick = below(t, weight_sum), op = 0;
		while (pick >= operations[op].weight)
			pick -= operations[op++].weight;
		t->op = (int)op;
		pthread_mutex_lock(&t->lock);
		uint64_t start = now_ns();
		operations[op].run(t);
		uint64_t took = now_ns() - start;
		pthread_mutex_unlock(&t->lock);
		t->count[op]++;
		t->max_ns[op] = took > t->max_ns[op] ? took : t->max_ns[op];
		t->done++;
	}
	t->op = OP_SCAN;
	pthread_mutex_lock(&t->lock);
	regions_verify_all(t, "at the end");
	pthread_mutex_unlock(&t->lock);
	t->op = -1;
	return NULL;
}

static void thread_prepare(uint32_t i)
{
	struct thread *t = &threads[i];
	uint32_t share = REGIONS_MAX / options.threads;
	memset(t, 0, sizeof *t);
	pthread_mutex_init(&t->lock, NULL);
	t->index = i;
	t->op = -1;
	t->rng = mix64(options.seed ^ mix64(((uint64_t)proc_index << 32) | i)) | 1;
	t->gen = (uint64_t)i << 18;
	t->regions = &region_table[i * share];
	t->region_count = share;
	uint64_t pages = (uint64_t)options.mb * 256 / options.procs / options.threads;
	t->pages_target = pages > 4 * REGION_PAGES_MIN ? pages : 4 * REGION_PAGES_MIN;
}

static void memory_prepare(void)
{
	for (uint32_t i = 0; i < REGIONS_MAX; i++)
		region_table[i] = (struct region){.meta = region_meta[i]};
	counters = mmap(NULL, COUNTERS_MAX * COUNTER_STRIDE * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			-1, 0);
	MUST(counters != MAP_FAILED, "mmap of counters");
	for (uint32_t i = 0; i < options.threads; i++) {
		thread_prepare(i);
		regions_fill(&threads[i]);
	}
}

static void channels_open(struct thread *t)
{
	t->file = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (t->file < 0) {
		char path[] = "/tmp/stress-XXXXXX";
		t->file = mkostemp(path, O_CLOEXEC);
		unlink(path);
	}
	MUST(t->file >= 0, "temporary file");
	MUST(pipe2(t->pipe, O_CLOEXEC) == 0, "pipe");
	MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, t->sock) == 0, "socketpair");
	MUST(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, t->dgram) == 0, "socketpair of datagrams");
}

static void counters_verify(void)
{
	for (uint32_t c = 0; c < COUNTERS_MAX; c++) {
		uint64_t sum = 0;
		for (uint32_t i = 0; i < options.threads; i++)
			sum += threads[i].counted[c];
		if (counters[c * COUNTER_STRIDE] != sum)
			die("MISMATCH shared counter %u at %p: expected %llu got %llu", c,
			    (void *)&counters[c * COUNTER_STRIDE], (unsigned long long)sum,
			    (unsigned long long)counters[c * COUNTER_STRIDE]);
	}
}

static void max_into(_Atomic uint64_t *to, uint64_t value)
{
	uint64_t old = *to;
	while (value > old && !atomic_compare_exchange_weak(to, &old, value))
		;
}

static void totals_add(void)
{
	for (uint32_t i = 0; i < options.threads; i++) {
		totals->data_pages += threads[i].pages;
		for (uint32_t op = 0; op < OP_COUNT; op++) {
			totals->count[op] += threads[i].count[op];
			max_into(&totals->max_ns[op], threads[i].max_ns[op]);
		}
	}
}

/* One worker process, from filled memory to its end. */
static void process_run(void)
{
	for (uint32_t op = 0; op < OP_COUNT; op++)
		weight_sum += operations[op].weight;
	if (options.signal_hz) {
		struct sigaction act = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
		sigaction(SIGALRM, &act, NULL);
		struct itimerval every = {{0, 1000000 / options.signal_hz}, {0, 1000000 / options.signal_hz}};
		setitimer(ITIMER_REAL, &every, NULL);
	}
	for (uint32_t i = 0; i < options.threads; i++) {
		threads[i].rng = mix64(options.seed ^ mix64(((uint64_t)proc_index << 32) | i | 1u << 31)) | 1;
		channels_open(&threads[i]);
		MUST(pthread_create(&threads[i].handle, NULL, worker, &threads[i]) == 0, "pthread_create");
	}
	pthread_t guard;
	MUST(pthread_create(&guard, NULL, watchdog, NULL) == 0, "pthread_create");
	for (uint32_t i = 0; i < options.threads; i++)
		pthread_join(threads[i].handle, NULL);
	finished = true;
	pthread_join(guard, NULL);
	counters_verify();
	totals_add();
	for (uint32_t i = 0; i < options.threads; i++)
		regions_free(&threads[i]);
}

static pid_t process_start(uint32_t index, bool filled)
{
	pid_t parent = getpid(), pid = fork();
	MUST(pid >= 0, "fork of a worker process");
	if (pid > 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	proc_index = index;
	if (!filled)
		memory_prepare();
	process_run();
	_exit(0);
}

static int processes_wait(const pid_t *pids)
{
	int result = 0;
	for (uint32_t i = 0; i < options.procs; i++) {
		int status = 0;
		MUST(waitpid(pids[i], &status, 0) == pids[i], "waitpid");
		if (status == 0)
			continue;
		fprintf(stderr, "FAIL worker process %u (pid %d) ended with wait status %#x\n", i, (int)pids[i],
			(unsigned)status);
		result = 1;
	}
	return result;
}

static int run(void)
{
	deadline_ns = options.seconds ? now_ns() + options.seconds * 1000000000ull : UINT64_MAX;
	if (options.procs == 1) {
		memory_prepare();
		process_run();
		return 0;
	}
	pid_t pids[PROCS_MAX];
	uint32_t early = options.procs / 2;
	for (uint32_t i = 0; i < early; i++)
		pids[i] = process_start(i, false);
	proc_index = early;
	memory_prepare();
	for (uint32_t i = early; i < options.procs; i++)
		pids[i] = process_start(i, true);
	for (uint32_t i = 0; i < options.threads; i++)
		regions_free(&threads[i]);
	return processes_wait(pids);
}

static void report(void)
{
	uint64_t all = 0, worst = 0;
	for (uint32_t op = 0; op < OP_COUNT; op++) {
		all += totals->count[op];
		worst = totals->max_ns[op] > worst ? totals->max_ns[op] : worst;
		printf("op %-8s %9llu  longest %8.1f ms\n", op_names[op], (unsigned long long)totals->count[op],
		       (double)totals->max_ns[op] / 1e6);
	}
	printf("operations %llu, longest pause %.1f ms, data at the end %llu MiB, seed %llu\n", (unsigned long long)all,
	       (double)worst / 1e6, (unsigned long long)totals->data_pages / 256, (unsigned long long)options.seed);
}

static bool options_read(int argc, char **argv)
{
	static const struct option names[] = {
		{"seconds", 1, NULL, 's'}, {"threads", 1, NULL, 't'}, {"procs", 1, NULL, 'p'}, {"mb", 1, NULL, 'm'},
		{"seed", 1, NULL, 'S'},	   {"ops", 1, NULL, 'o'},     {"hang", 1, NULL, 'h'},  {"signal", 1, NULL, 'g'},
		{NULL, 0, NULL, 0}};
	for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
		uint64_t value = optarg ? strtoull(optarg, NULL, 0) : 0;
		switch (c) {
		case 's': options.seconds = (unsigned)value; break;
		case 't': options.threads = (unsigned)value; break;
		case 'p': options.procs = (unsigned)value; break;
		case 'm': options.mb = (unsigned)value; break;
		case 'S': options.seed = value; break;
		case 'o': options.ops_max = value; break;
		case 'h': options.hang_s = (unsigned)value; break;
		case 'g': options.signal_hz = (unsigned)value; break;
		default: return false;
		}
	}
	/* Half of the region entries must hold a thread's data, in regions of half the greatest size at worst. */
	uint64_t mb_max = (uint64_t)REGIONS_MAX * REGION_PAGES_MAX / 256 / 4;
	return optind == argc && options.threads >= 1 && options.threads <= THREADS_MAX && options.procs >= 1 &&
	       options.procs <= PROCS_MAX && options.mb >= 1 && options.mb / options.procs <= mb_max &&
	       options.hang_s >= 1 && options.signal_hz <= 10000 && (options.seconds || options.ops_max != UINT64_MAX);
}

int main(int argc, char **argv)
{
	if (!options_read(argc, argv)) {
		fprintf(stderr, "usage: %s [--seconds N] [--threads T] [--procs P] [--mb M] [--seed S] [--ops N] "
				"[--hang S] [--signal HZ]\n",
			argv[0]);
		return 2;
	}
	totals = mmap(NULL, sizeof *totals, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(totals != MAP_FAILED, "mmap of totals");
	if (run() != 0)
		return 1;
	report();
	printf("ok stress\n");
	return 0;
}
