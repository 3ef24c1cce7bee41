/* What stable Rust can't say: initial-exec thread-local storage (a malloc must not call __tls_get_addr, which may malloc), variadic
 * functions, and raw system calls for the mappings of the archives linked into this library. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* jemalloc: one automatic arena for its own needs (outside the managed range); ours are made by the library. */
const char *_rjem_malloc_conf HIDDEN =
    "narenas:1,retain:true,dirty_decay_ms:1000,muzzy_decay_ms:0,oversize_threshold:0,thp:never,abort_conf:false";

static __thread int thread_bound __attribute__((tls_model("initial-exec")));
static __thread void *thread_stack __attribute__((tls_model("initial-exec")));
/* Address and length of what a child that borrowed this thread (vfork) made for its exec. */
static __thread unsigned long long thread_left[2] __attribute__((tls_model("initial-exec")));
/* Room for what this thread believes of its signal mask: two masks, two siginfos and two counts (sigmask.rs). */
static __thread unsigned long long thread_belief[36] __attribute__((tls_model("initial-exec")));

/* Who is in another library's exec, by its number: a child that borrows this thread (vfork) leaves its own here. */
static __thread int thread_execs __attribute__((tls_model("initial-exec")));

/* 1 once this thread's arena is chosen. */
HIDDEN int *farpage_thread_bound(void) { return &thread_bound; }
/* The alternate signal stack that the library gave this thread. */
HIDDEN void **farpage_thread_stack(void) { return &thread_stack; }
HIDDEN void *farpage_thread_belief(void) { return thread_belief; }
HIDDEN unsigned long long *farpage_thread_left(void) { return thread_left; }
HIDDEN int *farpage_thread_execs(void) { return &thread_execs; }

/* void *farpage_call_on(void *(*start)(void *), void *argument, void *top): calls start(argument) on the stack that ends at `top`.
 * Unwinding (pthread_exit, cancellation) passes from that stack to the caller's. */
__asm__(".text\n"
        ".globl farpage_call_on\n"
        ".hidden farpage_call_on\n"
        ".type farpage_call_on, @function\n"
        "farpage_call_on:\n"
        ".cfi_startproc\n"
        "push %rbp\n"
        ".cfi_def_cfa_offset 16\n"
        ".cfi_offset %rbp, -16\n"
        "mov %rsp, %rbp\n"
        ".cfi_def_cfa_register %rbp\n"
        "mov %rdx, %rsp\n"
        "mov %rdi, %rax\n"
        "mov %rsi, %rdi\n"
        "call *%rax\n"
        "leave\n"
        ".cfi_def_cfa %rsp, 8\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size farpage_call_on, . - farpage_call_on\n");

static long raw6(long nr, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long ret;
    __asm__ volatile("syscall" : "=a"(ret) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    if (ret < 0 && ret > -4096) {
        errno = (int)-ret;
        return -1;
    }
    return ret;
}

HIDDEN void *__wrap_mmap(void *addr, size_t len, int prot, int flags, int fd, long off)
{
    return (void *)raw6(SYS_mmap, (long)addr, (long)len, prot, flags, fd, off);
}
HIDDEN int __wrap_munmap(void *addr, size_t len) { return (int)raw6(SYS_munmap, (long)addr, (long)len, 0, 0, 0, 0); }
HIDDEN int __wrap_mprotect(void *addr, size_t len, int prot) { return (int)raw6(SYS_mprotect, (long)addr, (long)len, prot, 0, 0, 0); }
HIDDEN int __wrap_madvise(void *addr, size_t len, int advice) { return (int)raw6(SYS_madvise, (long)addr, (long)len, advice, 0, 0, 0); }
HIDDEN void *__wrap_mremap(void *old, size_t len, size_t new_len, int flags, void *to)
{
    return (void *)raw6(SYS_mremap, (long)old, (long)len, (long)new_len, flags, (long)to, 0);
}

extern int farpage_execv(const char *path, char *const argv[], int search);
extern int farpage_execve(const char *path, char *const argv[], char *const envp[]);

/* Collects a NULL-terminated list of arguments into an array on the stack. */
#define COLLECT(first, last)                                     \
    va_list args;                                                \
    size_t n = 1;                                                \
    va_start(args, first);                                       \
    for (const char *a = first; a; a = va_arg(args, const char *)) \
        n++;                                                     \
    va_end(args);                                                \
    const char *argv[n];                                         \
    va_start(args, first);                                       \
    argv[0] = first;                                             \
    for (size_t i = 1; i < n; i++)                               \
        argv[i] = va_arg(args, const char *);                    \
    last;                                                        \
    va_end(args)

HIDDEN int farpage_execl(const char *path, const char *first, ...)
{
    COLLECT(first, (void)0);
    return farpage_execv(path, (char *const *)argv, 0);
}
HIDDEN int farpage_execlp(const char *path, const char *first, ...)
{
    COLLECT(first, (void)0);
    return farpage_execv(path, (char *const *)argv, 1);
}
HIDDEN int farpage_execle(const char *path, const char *first, ...)
{
    char *const *envp;
    COLLECT(first, envp = va_arg(args, char *const *));
    return farpage_execve(path, (char *const *)argv, envp);
}
