/* Shared by the self-checking programs: checks, groups, patterns, cold memory, caught faults.
 *
 * A program is a table of groups. `PROGRAM [MIB] [GROUP]` runs all of them (or one): every failed check prints one
 * line `FAIL group: what: expected E got G (file:line)`, every passed group prints `ok GROUP`, a group that this kernel
 * cannot check prints `skip NAME: why`. Exit status 0 if nothing failed, else 1. MIB is the size of the block that
 * chill() walks, and of the big data of a group: give several times the budget.
 *
 * Nothing here keeps its state in malloc'd or mapped memory, so a report is readable even when that memory is wrong.
 */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define MIB ((size_t)1 << 20)
#define NELEM(a) (sizeof(a) / sizeof((a)[0]))
/* Not in the headers of glibc 2.36. */
#define CALL_MSEAL 462

struct group {
	const char *name;
	void (*run)(void);
};

/* Size in MiB from the command line (default 16) and the path of this program's image. */
extern size_t size_mb;
extern const char *self_path;

int run_groups(int argc, char **argv, const struct group *groups, size_t count);
/* For programs without groups: notes argv[0] and prepares the reports. */
void check_init(char **argv);
/* Failures counted so far in this process. */
int failures(void);
void skip(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* One line to stdout in one write(2), without stdio's buffers. */
void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

void fail_at(const char *where, const char *what, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool check_eq_at(const char *where, const char *what, long long expected, long long got);
bool check_sys_at(const char *where, const char *what, long long rc, int expected_errno);
bool check_mem_at(const char *where, const char *what, const void *expected, const void *got, size_t len);
bool check_fill_at(const char *where, const char *what, const void *p, size_t len, uint64_t tag);
bool check_byte_at(const char *where, const char *what, const void *p, size_t len, unsigned char byte);

#define STR2(x) #x
#define STR(x) STR2(x)
#define WHERE __FILE__ ":" STR(__LINE__)

/* Each is true when the check passed. */
#define CHECK_EQ(what, expected, got) check_eq_at(WHERE, what, (long long)(expected), (long long)(got))
#define CHECK(what, cond) check_eq_at(WHERE, what, 1, !!(cond))
/* The call returned -1 (or MAP_FAILED) with this errno. Evaluate the call inside the argument. */
#define CHECK_ERR(what, expected_errno, call) (errno = 0, check_sys_at(WHERE, what, (long long)(call), expected_errno))
#define CHECK_OK(what, call) (errno = 0, check_sys_at(WHERE, what, (long long)(call), 0))
#define CHECK_MEM(what, expected, got, len) check_mem_at(WHERE, what, expected, got, len)
#define CHECK_FILL(what, p, len, tag) check_fill_at(WHERE, what, p, len, tag)
#define CHECK_ZERO(what, p, len) check_byte_at(WHERE, what, p, len, 0)
#define CHECK_BYTE(what, p, len, byte) check_byte_at(WHERE, what, p, len, byte)

/* Patterns: the content of word `i` of a block filled with `tag`. Pages differ in how well they compress. */
uint64_t mix64(uint64_t x);
uint64_t pattern_word(uint64_t tag, size_t i);
/* `p` need not be aligned; `len` any number of bytes. */
void fill(void *p, size_t len, uint64_t tag);
/* Offset of the first wrong byte, or SIZE_MAX when all `len` bytes are as fill() left them. */
size_t first_bad(const void *p, size_t len, uint64_t tag);

/* Anonymous private read-write mapping; ends the program if refused. */
void *map_anon(size_t len);
/* Where managed memory begins. */
#define MANAGED ((uintptr_t)0x2a0000000000)
static inline bool is_managed(const void *p)
{
	return (uintptr_t)p >> 40 == MANAGED >> 40;
}
/* What leaves at once on advice: whole aligned pieces of this size. */
#define WINDOW (64 * PAGE)
/* One of them, of fresh memory. */
void *map_window(void);
void *must_malloc(size_t len);
/* Pages of an arena which is mapped once per process: meant to go cold. Never freed. */
void *cold_alloc(size_t len);
/* Fills and verifies another block of size_mb MiB, so that a smaller budget pushes everything else out; then pushes out by advice what is there
 * all the same of managed memory (malloc'd blocks, stacks, mappings), to the tiers. It is a failed check if most of it stays. The
 * advice only with EXPECT_COLD=1 in the environment: a process that is managed from the first byte. One thread at a time. */
void chill(void);
/* The same where some of it has to stay: it is locked, a stack that signals come to, in a call that waits or was left. So much may stay
 * from then on. */
void chill_around(void);
/* Pushes out the memory at `p`, and what shares its windows of 64 pages, whatever the budget; checked in the same way. */
void make_cold(void *p, size_t len);

/* struct pm_scan_arg and struct page_region of linux/fs.h, which older headers lack. */
struct scan {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, any, returned;
};
struct region {
	uint64_t start, end, categories;
};
#define SCAN _IOWR('f', 16, struct scan)
#define IS_FILE (1 << 2)
#define IS_PRESENT (1 << 3)
#define IS_HUGE (1 << 6)

/* Hides where a pointer comes from, so that the compiler keeps every access and call. */
static inline void *opaque(void *p)
{
	__asm__ volatile("" : "+r"(p) : : "memory");
	return p;
}

enum access { ACCESS_READ, ACCESS_WRITE, ACCESS_EXEC };
/* Touches the address; 0 if that worked, else the signal it raised, with its details in `info`. */
int touch(void *addr, enum access how, siginfo_t *info);
void check_fault_at(const char *where, const char *what, void *addr, enum access how, int signo_code);
#define SEGV_UNMAPPED ((SIGSEGV << 8) | SEGV_MAPERR)
#define SEGV_DENIED ((SIGSEGV << 8) | SEGV_ACCERR)
#define BUS_NO_PAGE ((SIGBUS << 8) | BUS_ADRERR)
#define CHECK_FAULT(what, addr, how, signo_code) check_fault_at(WHERE, what, addr, how, signo_code)
#define CHECK_NO_FAULT(what, addr, how) check_fault_at(WHERE, what, addr, how, 0)

/* Runs `body(arg)` in a forked child, which exits 1 if a check failed in it. */
pid_t child_start(void (*body)(void *), void *arg);
/* Wait status compared with an exit code, or with 128 + signal. */
void child_expect_at(const char *where, const char *what, pid_t pid, int expected);
#define CHILD_EXPECT(what, pid, expected) child_expect_at(WHERE, what, pid, expected)

/* Registers the first 32 bytes at `area` as this thread's restartable sequences, in place of libc's; false if that can't be. The kernel
 * writes there whenever the thread goes on after it was stopped, and ends the process where it can't. */
bool own_rseq(void *area);

/* Unlinked temporary file, close-on-exec. */
int temp_file(void);
/* All bytes, or ends in a failed check. */
bool write_all(int fd, const void *p, size_t len);
bool read_all(int fd, void *p, size_t len);
void sleep_ms(unsigned ms);
uint64_t now_ns(void);

#endif
