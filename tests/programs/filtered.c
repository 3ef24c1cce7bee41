/* A seccomp filter of the program's that is older than farpage's: the program installs it first, and becomes active by growing. A call
 * that both trap comes to the program's handler by way of farpage. Usage: filtered [MIB]; MIB (default 16) is what it grows to. */
#include "check.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

static volatile int traps, mark;

static void answer(int signo, siginfo_t *info, void *context)
{
	(void)signo;
	traps++;
	mark = info->si_errno;
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = 4242;
}

static long getcwd_raw(char *p, size_t len)
{
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(SYS_getcwd), "D"(p), "S"(len) : "rcx", "r11", "memory");
	return result;
}

static void trap_getcwd(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getcwd, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP | 7),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {NELEM(code), code};
	CHECK_OK("no_new_privs", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	CHECK_OK("filter", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0));
}

static void die_unhandled(void *p)
{
	signal(SIGSYS, SIG_DFL);
	getcwd_raw(p, PAGE);
}

int main(int argc, char **argv)
{
	check_init(argv);
	size_t mb = argc > 1 ? strtoul(argv[1], NULL, 10) : 16;
	struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO};
	CHECK_OK("sigaction", sigaction(SIGSYS, &action, NULL));
	trap_getcwd();
	CHECK_EQ("a call before it is active", 4242, getcwd_raw(opaque(NULL), 0));
	char *p = map_anon(mb * MIB);
	for (int round = 2; round <= 4; round++) {
		fill(p, mb * MIB, (uint64_t)round);
		CHECK_EQ("a call on cold memory", 4242, getcwd_raw(p, PAGE));
		CHECK_EQ("what the filter says of it", 7, mark);
		CHECK_EQ("calls of the handler", round, traps);
		CHECK_FILL("memory", p, mb * MIB, (uint64_t)round);
	}
	CHILD_EXPECT("no handler", child_start(die_unhandled, p), 128 + SIGSYS);
	if (!failures())
		say("ok filtered");
	return failures() ? 1 : 0;
}
