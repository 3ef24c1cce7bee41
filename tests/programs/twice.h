/* One system call made on plain memory and again on memory that has been pushed out: every difference is a failure.
 *
 * Each argument (and what a structure points to) has three pages of its own with a hole behind them. The call is made with its memory in
 * the middle of a page, across two pages and up to the hole; then with one argument after the other running into the hole, in the hole,
 * read-only and NULL. What the plain call gave is what the kernel says; the other ones, by libc's syscall() and by the instruction itself,
 * must give the same result, errno, effect, and the same bytes in all pages.
 */
#ifndef TWICE_H
#define TWICE_H

#include "check.h"

#include <sys/syscall.h>

enum { ARGS = 6, MEMS = 10, LINKS = 6, SEEN_LEN = 4096 };

/* An argument, or (from the seventh on) memory that others point to. */
struct mem {
	const void *data; /* what the call is given; NULL: nothing, it writes there */
	size_t len;	  /* bytes, at most two pages; 0: the argument is `value` */
	long value;
	unsigned vary_at, vary_len; /* bytes that may differ from one call to the next: times, addresses */
};

#define NUM(v) ((struct mem){.value = (long)(v)})
#define NIL NUM(0)
#define IN(p, n) ((struct mem){.data = (p), .len = (n)})
#define TEXT(s) IN(s, strlen(s) + 1)
#define OUT(n) ((struct mem){.len = (n)})
#define VARY(n, at, bytes) ((struct mem){.len = (n), .vary_at = (at), .vary_len = (bytes)})

/* The word at byte `at` of memory `from` is the address of memory `to`. */
struct link {
	int from, at, to;
};

enum kind {
	EXACT,	    /* the result is the same each time */
	SIGN,	    /* an id: only whether it is an error, and which */
	DESCRIPTOR, /* as SIGN, and to be closed */
};

struct call {
	const char *what;
	long nr;
	struct mem mems[MEMS];
	struct link links[LINKS];
	enum kind kind;
	/* Puts back what the call changes; before every call. */
	void (*before)(void);
	/* Describes in text what it changed. */
	void (*effect)(long result, char *seen);
	/* Memory that must not be NULL: the call would wait for ever, or do harm. */
	unsigned needed;
	/* Only valid pointers. */
	bool whole;
	/* The kernel keeps what it is given: the pages stay in RAM, so that each call needs others. */
	bool keeps;
};

void twice_at(const char *where, const struct call *call);
#define TWICE(name, ...) twice_at(WHERE, &(struct call){.what = #name, .nr = SYS_##name, .mems = __VA_ARGS__})
/* Where memory `i` of the call under way is. */
void *twice_mem(int i);
/* The call by the instruction itself: -errno on failure. */
long raw_call(long nr, const long *args);

/* Runs `body` in a child, as an ordinary user if this one is root; passes if nothing failed there. */
void in_child(void (*body)(void));
void as_nobody(void (*body)(void));

/* Calls that the headers of older systems do not know. */
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#ifndef SYS_futex_wake
#define SYS_futex_wake 454
#define SYS_futex_wait 455
#define SYS_futex_requeue 456
#endif
#ifndef SYS_statmount
#define SYS_statmount 457
#define SYS_listmount 458
#endif
#ifndef SYS_lsm_get_self_attr
#define SYS_lsm_get_self_attr 459
#define SYS_lsm_set_self_attr 460
#define SYS_lsm_list_modules 461
#endif
#ifndef SYS_setxattrat
#define SYS_setxattrat 463
#define SYS_getxattrat 464
#define SYS_listxattrat 465
#define SYS_removexattrat 466
#endif
#ifndef SYS_open_tree_attr
#define SYS_open_tree_attr 467
#endif
#ifndef SYS_file_getattr
#define SYS_file_getattr 468
#define SYS_file_setattr 469
#endif

#endif
