/* See twice.h. */
#include "twice.h"

#include <sys/mman.h>

#define MAPPED (3 * PAGE)
#define ROOM (4 * PAGE)
#define MIDDLE ((size_t)1040)

enum side { PLAIN, COLD };
enum layout { INSIDE, ACROSS, EDGE, CUT, HOLE, SEALED, NONE };

static const char *const layout_names[] = {"inside", "across", "up to a hole", "into a hole", "in a hole", "read-only", "NULL"};
static char plain_rooms[MEMS * ROOM] __attribute__((aligned(4096)));
static char *rooms[2];
static char seen[2][SEEN_LEN];
static char *addresses[MEMS];

/* What one of the layouts makes of memory `which`; the others lie inside a page. */
struct place {
	enum layout layout;
	int which;
};

static void make_cold_rooms(void)
{
	static char *area;
	if (area)
		munmap(area, 2 * WINDOW);
	area = map_anon(2 * WINDOW);
	rooms[COLD] = (char *)(((uintptr_t)area + WINDOW - 1) / WINDOW * WINDOW);
	for (int i = 0; i < MEMS; i++)
		munmap(rooms[COLD] + i * ROOM + MAPPED, PAGE);
}

static void make_rooms(void)
{
	rooms[PLAIN] = plain_rooms;
	for (int i = 0; i < MEMS; i++)
		mprotect(rooms[PLAIN] + i * ROOM + MAPPED, PAGE, PROT_NONE);
	make_cold_rooms();
}

static size_t offset_of(const struct mem *mem, enum layout layout)
{
	size_t half = mem->len / 2;
	if (half >= 8)
		half -= half % 8;
	switch (layout) {
	case ACROSS:
		return PAGE - half;
	case EDGE:
		return MAPPED - mem->len;
	case CUT:
		return MAPPED - half;
	case HOLE:
		return MAPPED;
	default:
		return MIDDLE;
	}
}

static enum layout layout_of(const struct place *place, int i)
{
	if (place->layout <= EDGE || place->which == i)
		return place->layout;
	return INSIDE;
}

/* Puts all memory of the call in place; the arguments are then in `args`. */
static void lay_out(const struct call *call, enum side side, const struct place *place, long *args)
{
	for (int i = 0; i < MEMS; i++) {
		const struct mem *mem = &call->mems[i];
		enum layout layout = layout_of(place, i);
		char *room = rooms[side] + i * ROOM;
		addresses[i] = (char *)mem->value;
		if (mem->len == 0)
			continue;
		size_t at = offset_of(mem, layout), fits = mem->len < MAPPED - at ? mem->len : MAPPED - at;
		memset(room, 0xee, MAPPED);
		if (mem->data)
			memcpy(room + at, mem->data, fits);
		addresses[i] = layout == NONE ? NULL : room + at;
	}
	for (int i = 0; i < LINKS; i++) {
		const struct link *link = &call->links[i];
		char *word = addresses[link->from] + link->at;
		if (link->to && addresses[link->from] && word + 8 <= rooms[side] + link->from * ROOM + MAPPED)
			memcpy(word, &addresses[link->to], 8);
	}
	for (int i = 0; i < ARGS; i++)
		args[i] = (long)addresses[i];
	if (place->layout == SEALED)
		mprotect(rooms[side] + place->which * ROOM, MAPPED, PROT_READ);
	if (side == COLD)
		make_cold(rooms[COLD], WINDOW);
}

long raw_call(long nr, const long *args)
{
	register long r10 __asm__("r10") = args[3];
	register long r8 __asm__("r8") = args[4];
	register long r9 __asm__("r9") = args[5];
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(nr), "D"(args[0]), "S"(args[1]), "d"(args[2]), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

static long make(const struct call *call, enum side side, bool by_libc, const struct place *place)
{
	long args[ARGS];
	if (call->before)
		call->before();
	if (call->keeps && side == COLD)
		make_cold_rooms();
	lay_out(call, side, place, args);
	memset(seen[side], 0, SEEN_LEN);
	long result;
	if (by_libc) {
		result = syscall(call->nr, args[0], args[1], args[2], args[3], args[4], args[5]);
		result = result == -1 ? -errno : result;
	} else {
		result = raw_call(call->nr, args);
	}
	if (call->effect)
		call->effect(result, seen[side]);
	if (place->layout == SEALED)
		mprotect(rooms[side] + place->which * ROOM, MAPPED, PROT_READ | PROT_WRITE);
	if (call->kind == DESCRIPTOR && result >= 0)
		close((int)result);
	return call->kind != EXACT && result >= 0 ? 0 : result;
}

/* All pages of one argument, but for the words that hold addresses and the bytes that may vary. */
static bool compare(const char *where, const char *what, const struct call *call, int i)
{
	const struct mem *mem = &call->mems[i];
	static char expected[MAPPED], got[MAPPED];
	memcpy(expected, rooms[PLAIN] + i * ROOM, MAPPED);
	memcpy(got, rooms[COLD] + i * ROOM, MAPPED);
	size_t at = (size_t)(addresses[i] - rooms[COLD]) - (size_t)i * ROOM;
	if (!addresses[i])
		at = MAPPED;
	for (size_t j = 0; j < mem->vary_len && at + mem->vary_at + j < MAPPED; j++)
		got[at + mem->vary_at + j] = expected[at + mem->vary_at + j];
	for (int k = 0; k < LINKS; k++)
		for (size_t j = 0; call->links[k].to && call->links[k].from == i && j < 8; j++)
			if (at + (size_t)call->links[k].at + j < MAPPED)
				got[at + (size_t)call->links[k].at + j] = expected[at + (size_t)call->links[k].at + j];
	return check_mem_at(where, what, expected, got, MAPPED);
}

/* The call on both sides with one placement; false if they differ. */
static bool pair(const char *where, const struct call *call, struct place place)
{
	long expected = make(call, PLAIN, false, &place);
	for (int by_libc = 0; by_libc < 2; by_libc++) {
		char what[128];
		snprintf(what, sizeof what, "%s %s (argument %d)%s", call->what, layout_names[place.layout], place.which,
			 by_libc ? " by libc" : "");
		long got = make(call, COLD, by_libc, &place);
		if (got != expected || strcmp(seen[PLAIN], seen[COLD]) != 0) {
			fail_at(where, what, "plain %ld %.200s; cold %ld %.200s", expected, seen[PLAIN], got, seen[COLD]);
			return false;
		}
		for (int i = 0; i < MEMS; i++)
			if (call->mems[i].len && !compare(where, what, call, i))
				return false;
	}
	return true;
}

void twice_at(const char *where, const struct call *call)
{
	if (!rooms[COLD])
		make_rooms();
	for (enum layout layout = INSIDE; layout <= EDGE; layout++)
		if (!pair(where, call, (struct place){layout, 0}))
			return;
	for (int i = 0; i < MEMS && !call->whole; i++)
		for (enum layout layout = CUT; layout <= NONE && call->mems[i].len; layout++)
			if ((layout != NONE || !(call->needed >> i & 1)) && !pair(where, call, (struct place){layout, i}))
				return;
}

void *twice_mem(int i)
{
	return addresses[i];
}

static void run_body(void *body)
{
	(*(void (**)(void))body)();
}

static void run_as_nobody(void *body)
{
	if (geteuid() == 0 && (syscall(SYS_setgroups, 0, NULL) < 0 || setresgid(65534, 65534, 65534) < 0 || setresuid(65534, 65534, 65534) < 0))
		fail_at(WHERE, "as_nobody", "can't give up privileges: %s", strerror(errno));
	else
		run_body(body);
}

void in_child(void (*body)(void))
{
	CHILD_EXPECT("child", child_start(run_body, &body), 0);
}

void as_nobody(void (*body)(void))
{
	CHILD_EXPECT("child as an ordinary user", child_start(run_as_nobody, &body), 0);
}
