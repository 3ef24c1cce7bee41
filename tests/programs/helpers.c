/* Threads that libc starts for itself, with all signals blocked, and that work on the program's memory.
 * Usage: helpers [MIB] [aio|timer]... */
#include "check.h"

#include <aio.h>
#include <stdatomic.h>
#include <time.h>

enum { READS = 8, TICKS = 10 };

static void aio(void)
{
	int fd = temp_file();
	size_t len = MIB;
	char *wanted = must_malloc(len);
	fill(wanted, len, 1);
	CHECK("write", write_all(fd, wanted, len));
	for (int i = 0; i < READS; i++) {
		char *got = must_malloc(len);
		struct aiocb *request = must_malloc(sizeof *request);
		memset(request, 0, sizeof *request);
		request->aio_fildes = fd;
		request->aio_buf = got;
		request->aio_nbytes = len;
		chill();
		CHECK_EQ("aio_read", 0, aio_read(request));
		while (aio_error(request) == EINPROGRESS)
			sleep_ms(1);
		CHECK_EQ("what aio_read read", (long)len, (long)aio_return(request));
		CHECK_FILL("its bytes", got, len, 1);
		free(request);
		free(got);
	}
	free(wanted);
	close(fd);
}

static void tick(union sigval value)
{
	++*(atomic_int *)value.sival_ptr;
}

static void timer(void)
{
	atomic_int *ticks = must_malloc(sizeof *ticks);
	*ticks = 0;
	struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = tick, .sigev_value.sival_ptr = ticks};
	struct itimerspec each = {.it_interval.tv_nsec = 20000000, .it_value.tv_nsec = 20000000};
	timer_t id;
	CHECK_EQ("timer_create", 0, timer_create(CLOCK_MONOTONIC, &event, &id));
	CHECK_EQ("timer_settime", 0, timer_settime(id, 0, &each, NULL));
	for (int i = 0; i < 600 && *ticks < TICKS; i++) {
		chill();
		sleep_ms(10);
	}
	CHECK("ticks of a timer", *ticks >= TICKS);
	timer_delete(id);
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {{"aio", aio}, {"timer", timer}};
	return run_groups(argc, argv, groups, NELEM(groups));
}
