/* System calls on files, mounts and attributes, on plain and on cold memory (see twice.h).
 * Usage: sem_files [MIB] [GROUP]; MIB (default 16) is the size of the block that makes memory cold. */
#include "twice.h"

#include <fcntl.h>
#include <sys/fanotify.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <utime.h>

#define OPEN_HOW_LEN 24
#define HERE NUM(AT_FDCWD)

static char home[256];

/* The files as they are before each call: `file`, `link` to it, `dir` with nothing in it, no `new`. */
static void fresh(void)
{
	static const struct timespec times[2] = {{111, 0}, {111, 0}};
	unlink("new");
	rmdir("new");
	unlink("link");
	unlink("file");
	rmdir("dir");
	int fd = open("file", O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0644);
	CHECK("file", fd >= 0);
	CHECK_OK("ftruncate", ftruncate(fd, 5000));
	CHECK_OK("chown", fchown(fd, geteuid(), getegid()));
	fsetxattr(fd, "user.one", "1st value", 9, 0);
	CHECK_OK("futimens", futimens(fd, times));
	close(fd);
	CHECK_OK("symlink", symlink("file", "link"));
	CHECK_OK("mkdir", mkdir("dir", 0755));
}

/* What is there after a call. */
static void look(long result, char *text)
{
	static const char *const names[] = {"file", "link", "dir", "new"};
	(void)result;
	for (size_t i = 0; i < NELEM(names); i++) {
		struct stat st;
		char target[64] = "", value[64] = "";
		if (lstat(names[i], &st) < 0) {
			text += sprintf(text, "no %s; ", names[i]);
			continue;
		}
		long changed = st.st_mtim.tv_sec < 100000 ? st.st_mtim.tv_sec : 0;
		if (readlink(names[i], target, sizeof target - 1) < 0 && !S_ISLNK(st.st_mode))
			getxattr(names[i], "user.one", value, sizeof value - 1);
		text += sprintf(text, "%s mode %o size %ld links %ld owner %d changed %ld %s %s; ", names[i], st.st_mode,
				S_ISDIR(st.st_mode) ? 0 : (long)st.st_size, (long)st.st_nlink, (int)st.st_uid, changed, target, value);
	}
}

static void begin(void)
{
	const char *where = getenv("TMPDIR");
	snprintf(home, sizeof home, "%s/farpage-files-XXXXXX", where ? where : "/var/tmp");
	CHECK("mkdtemp", mkdtemp(home) != NULL);
	CHECK_OK("chdir", chdir(home));
	chill();
}

static void end(void)
{
	unlink("new");
	rmdir("new");
	unlink("link");
	unlink("file");
	rmdir("dir");
	CHECK_OK("chdir", chdir("/"));
	CHECK_OK("rmdir", rmdir(home));
}

#define PATHS(name, ...) TWICE(name, __VA_ARGS__, .before = fresh, .effect = look)

static void by_path(void)
{
	begin();
	struct utimbuf seconds = {1000, 2000};
	struct timeval micros[2] = {{3000, 5}, {4000, 6}}, bad[2] = {{1, 2000000}, {1, 0}};
	PATHS(mkdir, {TEXT("new"), NUM(0750)});
	PATHS(mkdir, {TEXT("file"), NUM(0750)});
	PATHS(rmdir, {TEXT("dir")});
	PATHS(creat, {TEXT("new"), NUM(0640)}, .kind = DESCRIPTOR);
	PATHS(open, {TEXT("new"), NUM(O_CREAT | O_WRONLY), NUM(0600)}, .kind = DESCRIPTOR);
	PATHS(link, {TEXT("file"), TEXT("new")});
	PATHS(link, {TEXT("none"), TEXT("new")});
	PATHS(unlink, {TEXT("file")});
	PATHS(symlink, {TEXT("to where"), TEXT("new")});
	PATHS(rename, {TEXT("file"), TEXT("new")});
	PATHS(chmod, {TEXT("file"), NUM(0600)});
	PATHS(chown, {TEXT("link"), NUM(geteuid()), NUM(getegid())});
	PATHS(lchown, {TEXT("link"), NUM(geteuid()), NUM(12345)});
	PATHS(truncate, {TEXT("file"), NUM(1234)});
	PATHS(mknod, {TEXT("new"), NUM(S_IFIFO | 0600), NUM(0)});
	PATHS(access, {TEXT("file"), NUM(R_OK)});
	PATHS(utime, {TEXT("file"), IN(&seconds, sizeof seconds)}, .needed = 2);
	PATHS(utimes, {TEXT("file"), IN(micros, sizeof micros)}, .needed = 2);
	PATHS(utimes, {TEXT("file"), IN(bad, sizeof bad)}, .needed = 2);
	PATHS(futimesat, {HERE, TEXT("file"), IN(micros, sizeof micros)}, .needed = 4);
	PATHS(uselib, {TEXT("none")});
	PATHS(chroot, {TEXT("file")});
	PATHS(chroot, {TEXT("none")});
	PATHS(readlink, {TEXT("link"), OUT(64), NUM(64)});
	PATHS(readlink, {TEXT("link"), OUT(2), NUM(2)});
	PATHS(readlink, {TEXT("link"), OUT(64), NUM(0)});
	end();
}

static void by_descriptor(void)
{
	begin();
	static const struct timespec times[2] = {{7000, 8}, {0, UTIME_OMIT}};
	PATHS(openat, {HERE, TEXT("new"), NUM(O_CREAT | O_RDWR), NUM(0640)}, .kind = DESCRIPTOR);
	PATHS(openat, {HERE, TEXT(""), NUM(O_RDONLY)});
	PATHS(mkdirat, {HERE, TEXT("new"), NUM(0700)});
	PATHS(mknodat, {HERE, TEXT("new"), NUM(S_IFREG | 0600), NUM(0)});
	PATHS(fchownat, {HERE, TEXT("link"), NUM(geteuid()), NUM(getegid()), NUM(AT_SYMLINK_NOFOLLOW)});
	PATHS(unlinkat, {HERE, TEXT("dir"), NUM(AT_REMOVEDIR)});
	PATHS(renameat, {HERE, TEXT("file"), HERE, TEXT("new")});
	PATHS(renameat2, {HERE, TEXT("link"), HERE, TEXT("file"), NUM(2 /* exchange */)});
	PATHS(renameat2, {HERE, TEXT("link"), HERE, TEXT("file"), NUM(1 /* not over another */)});
	PATHS(linkat, {HERE, TEXT("link"), HERE, TEXT("new"), NUM(AT_SYMLINK_FOLLOW)});
	PATHS(symlinkat, {TEXT("far away"), HERE, TEXT("new")});
	PATHS(readlinkat, {HERE, TEXT("link"), OUT(64), NUM(64)});
	PATHS(fchmodat, {HERE, TEXT("file"), NUM(0400)});
	PATHS(fchmodat2, {HERE, TEXT("file"), NUM(0400), NUM(0)});
	PATHS(faccessat, {HERE, TEXT("link"), NUM(R_OK)});
	PATHS(faccessat2, {HERE, TEXT("link"), NUM(R_OK), NUM(AT_EACCESS)});
	PATHS(utimensat, {HERE, TEXT("file"), IN(times, sizeof times), NUM(0)}, .needed = 6);
	PATHS(inotify_add_watch, {NUM(-1), TEXT("file"), NUM(1)});
	uint64_t how[4] = {O_CREAT | O_RDWR | O_CLOEXEC, 0640, 0, 0}, more[4] = {O_RDONLY, 0, 0, 1};
	static const char page[4104];
	PATHS(openat2, {HERE, TEXT("new"), IN(how, OPEN_HOW_LEN), NUM(OPEN_HOW_LEN)}, .kind = DESCRIPTOR);
	PATHS(openat2, {HERE, TEXT("new"), IN(how, sizeof how), NUM(sizeof how)}, .kind = DESCRIPTOR);
	PATHS(openat2, {HERE, TEXT("file"), IN(more, sizeof more), NUM(sizeof more)}, .kind = DESCRIPTOR);
	PATHS(openat2, {HERE, TEXT("file"), IN(page, sizeof page), NUM(sizeof page)}, .kind = DESCRIPTOR);
	PATHS(openat2, {HERE, TEXT("file"), IN(page, PAGE), NUM(PAGE)}, .kind = DESCRIPTOR);
	PATHS(openat2, {HERE, TEXT("file"), IN(how, 8), NUM(8)}, .kind = DESCRIPTOR);
	end();
}

static int steady;
static off_t steady_at;

static void seek_steady(void)
{
	lseek(steady, steady_at, SEEK_SET);
}

/* What the kernel tells of files that nobody changes. */
static void told(void)
{
	begin();
	fresh();
	struct stat st;
	CHECK_OK("stat", stat("file", &st));
	TWICE(stat, {TEXT("file"), OUT(sizeof st)});
	TWICE(lstat, {TEXT("link"), OUT(sizeof st)});
	TWICE(newfstatat, {HERE, TEXT("file"), OUT(sizeof st), NUM(0)});
	TWICE(statx, {HERE, TEXT("file"), NUM(0), NUM(0x17ff), OUT(256)});
	steady = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	TWICE(fstat, {NUM(steady), OUT(sizeof st)});
	TWICE(getdents, {NUM(steady), OUT(512), NUM(512)}, .before = seek_steady);
	TWICE(getdents, {NUM(steady), OUT(60), NUM(60)}, .before = seek_steady);
	TWICE(getdents64, {NUM(steady), OUT(512), NUM(512)}, .before = seek_steady);
	TWICE(getdents, {NUM(steady), OUT(512), NUM(0)}, .before = seek_steady);
	TWICE(fstatfs, {NUM(steady), VARY(sizeof(struct statfs), 24, 32)});
	TWICE(statfs, {TEXT("."), VARY(sizeof(struct statfs), 24, 32)});
	TWICE(ustat, {NUM(st.st_dev), VARY(32, 0, 16)});
	TWICE(ustat, {NUM(12345), OUT(32)});
	TWICE(sysfs, {NUM(1), TEXT("proc")});
	TWICE(sysfs, {NUM(1), TEXT("nosuchfs")});
	TWICE(sysfs, {NUM(2), NUM(0), OUT(64)});
	close(steady);
	steady = open("file", O_RDWR | O_CLOEXEC);
	TWICE(fstatfs, {NUM(-1), OUT(sizeof(struct statfs))});
	static const uint64_t range[2] = {0, 8192};
	TWICE(cachestat, {NUM(steady), IN(range, 16), VARY(40, 0, 40), NUM(0)});
	TWICE(cachestat, {NUM(steady), IN(range, 16), OUT(40), NUM(1)});
	TWICE(getcwd, {OUT(512), NUM(512)});
	TWICE(getcwd, {OUT(8), NUM(8)});
	static const uint32_t room[34] = {128}, none[2] = {0};
	TWICE(name_to_handle_at, {HERE, TEXT("file"), IN(room, sizeof room), OUT(4), NUM(0)});
	TWICE(name_to_handle_at, {HERE, TEXT("file"), IN(room, sizeof room), OUT(8), NUM(1 /* unique number */)});
	TWICE(name_to_handle_at, {HERE, TEXT("file"), IN(none, sizeof none), OUT(4), NUM(0)});
	struct file_handle *handle = (struct file_handle *)(uint32_t[34]){128};
	int mount;
	if (name_to_handle_at(AT_FDCWD, "file", handle, &mount, 0) == 0)
		TWICE(open_by_handle_at, {NUM(steady), IN(handle, 8 + handle->handle_bytes), NUM(O_RDONLY)}, .kind = DESCRIPTOR);
	TWICE(file_getattr, {HERE, TEXT("file"), OUT(24), NUM(24), NUM(0)});
	TWICE(file_getattr, {HERE, TEXT("file"), OUT(64), NUM(64), NUM(0)});
	TWICE(file_getattr, {HERE, TEXT("file"), OUT(8), NUM(8), NUM(0)});
	static const char no_flags[24];
	TWICE(file_setattr, {HERE, TEXT("file"), IN(no_flags, 24), NUM(24), NUM(0)});
	TWICE(file_setattr, {HERE, TEXT("file"), IN(no_flags, 24), NUM(8), NUM(0)});
	int watcher = (int)syscall(SYS_fanotify_init, FAN_CLASS_NOTIF | FAN_CLOEXEC | 0x200 /* reports file ids */, O_RDONLY);
	TWICE(fanotify_mark, {NUM(watcher), NUM(FAN_MARK_ADD), NUM(FAN_OPEN), HERE, TEXT("file")}, .needed = 16);
	TWICE(fanotify_mark, {NUM(watcher), NUM(FAN_MARK_ADD), NUM(FAN_OPEN), HERE, TEXT("none")}, .needed = 16);
	close(watcher);
	close(steady);
	end();
}

/* The attribute that a call set, and all names. */
static void attributes(long result, char *text)
{
	char names[256] = "", value[300] = "";
	(void)result;
	ssize_t n = listxattr("file", names, sizeof names);
	ssize_t m = getxattr("file", "user.two", value, sizeof value - 1);
	text += sprintf(text, "%zd bytes of names %s, %zd of value: ", n, n > 0 ? names + n - 9 : "", m);
	if (m > 0)
		memcpy(text, value, (size_t)m);
}

#define XATTRS(name, ...) TWICE(name, __VA_ARGS__, .before = fresh, .effect = attributes)

static void xattrs(void)
{
	static char value[200];
	memset(value, 'v', sizeof value);
	begin();
	fresh();
	XATTRS(setxattr, {TEXT("file"), TEXT("user.two"), IN(value, 200), NUM(200), NUM(0)});
	XATTRS(setxattr, {TEXT("file"), TEXT("user.two"), NIL, NUM(0), NUM(0)});
	XATTRS(setxattr, {TEXT("file"), TEXT("user.two"), IN(value, 200), NUM(0), NUM(0)});
	XATTRS(setxattr, {TEXT("file"), TEXT("user.one"), IN(value, 200), NUM(200), NUM(XATTR_CREATE)});
	XATTRS(setxattr, {TEXT("file"), TEXT("user.two"), IN(value, 200), NUM(1 << 20), NUM(0)});
	XATTRS(setxattr, {TEXT("file"), TEXT("other.two"), IN(value, 200), NUM(200), NUM(0)});
	XATTRS(lsetxattr, {TEXT("link"), TEXT("user.two"), IN(value, 20), NUM(20), NUM(0)});
	XATTRS(lsetxattr, {TEXT("file"), TEXT("user.two"), IN(value, 20), NUM(20), NUM(0)});
	XATTRS(getxattr, {TEXT("link"), TEXT("user.one"), OUT(64), NUM(64)});
	XATTRS(getxattr, {TEXT("file"), TEXT("user.one"), OUT(64), NUM(0)});
	XATTRS(getxattr, {TEXT("file"), TEXT("user.one"), OUT(64), NUM(8)});
	XATTRS(getxattr, {TEXT("file"), TEXT("user.two"), OUT(64), NUM(64)});
	XATTRS(lgetxattr, {TEXT("file"), TEXT("user.one"), OUT(9), NUM(9)});
	XATTRS(listxattr, {TEXT("link"), OUT(200), NUM(200)});
	XATTRS(listxattr, {TEXT("file"), OUT(200), NUM(0)});
	XATTRS(listxattr, {TEXT("file"), OUT(4), NUM(4)});
	XATTRS(llistxattr, {TEXT("file"), OUT(200), NUM(200)});
	XATTRS(removexattr, {TEXT("link"), TEXT("user.one")});
	XATTRS(removexattr, {TEXT("file"), TEXT("user.two")});
	XATTRS(lremovexattr, {TEXT("file"), TEXT("user.one")});
	end();
}

/* By descriptor, and by the calls whose value is named in a structure. */
static void xattrs_at(void)
{
	static char value[200];
	memset(value, 'w', sizeof value);
	struct args {
		uint64_t value;
		uint32_t size, flags;
	} set = {0, sizeof value, 0}, get = {0, 64, 0}, probe = {0, 0, 0};
	begin();
	XATTRS(setxattrat, {HERE, TEXT("file"), NUM(0), TEXT("user.two"), IN(&set, 16), NUM(16), IN(value, 200)}, .links = {{4, 0, 6}});
	XATTRS(getxattrat, {HERE, TEXT("link"), NUM(0), TEXT("user.one"), IN(&get, 16), NUM(16), OUT(64)}, .links = {{4, 0, 6}});
	XATTRS(getxattrat, {HERE, TEXT("file"), NUM(0), TEXT("user.one"), IN(&probe, 16), NUM(16)});
	XATTRS(getxattrat, {HERE, TEXT("file"), NUM(0), TEXT("user.one"), IN(&get, 8), NUM(8)});
	XATTRS(listxattrat, {HERE, TEXT("file"), NUM(0), OUT(200), NUM(200)});
	XATTRS(removexattrat, {HERE, TEXT("file"), NUM(0), TEXT("user.one")});
	unlink("file");
	int fd = open("file", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	fsetxattr(fd, "user.one", "value", 5, 0);
	TWICE(fsetxattr, {NUM(fd), TEXT("user.two"), IN(value, 100), NUM(100), NUM(0)}, .effect = attributes);
	TWICE(fgetxattr, {NUM(fd), TEXT("user.one"), OUT(100), NUM(100)});
	TWICE(flistxattr, {NUM(fd), OUT(100), NUM(100)});
	TWICE(fremovexattr, {NUM(fd), TEXT("user.three")});
	TWICE(fremovexattr, {NUM(-1), TEXT("user.one")});
	close(fd);
	end();
}

/* Calls on mounts: none of them finds what it is to change. */
static void mounts(void)
{
	static const char options[PAGE] = "size=1m";
	static const uint64_t no_change[4], other_change[4] = {4};
	begin();
	fresh();
	TWICE(mount, {TEXT("none"), TEXT("dir"), TEXT("nosuchfs"), NUM(0), IN(options, PAGE)}, .needed = 4);
	TWICE(mount, {TEXT("none"), TEXT("nowhere"), TEXT("nosuchfs"), NUM(0), IN(options, 64)}, .needed = 4);
	TWICE(umount2, {TEXT("nowhere"), NUM(0)});
	TWICE(umount2, {TEXT("dir"), NUM(0)});
	TWICE(pivot_root, {TEXT("nowhere"), TEXT("neither")});
	TWICE(acct, {TEXT("nowhere/at-all")}, .needed = 1);
	TWICE(swapon, {TEXT("nowhere"), NUM(0)});
	TWICE(swapoff, {TEXT("nowhere")});
	TWICE(quotactl, {NUM(0x800004 << 8), TEXT("nowhere"), NUM(0), OUT(4)}, .needed = 2);
	int fd = open("file", O_RDONLY | O_CLOEXEC);
	TWICE(quotactl_fd, {NUM(fd), NUM(0x800004 << 8), NUM(0), OUT(4)});
	close(fd);
	TWICE(open_tree, {HERE, TEXT("file"), NUM(0)}, .kind = DESCRIPTOR);
	TWICE(open_tree, {HERE, TEXT("nowhere"), NUM(0)}, .kind = DESCRIPTOR);
	TWICE(open_tree_attr, {HERE, TEXT("file"), NUM(0), IN(no_change, 32), NUM(32)}, .kind = DESCRIPTOR);
	TWICE(open_tree_attr, {HERE, TEXT("file"), NUM(0), IN(other_change, 32), NUM(32)}, .kind = DESCRIPTOR);
	TWICE(move_mount, {HERE, TEXT("file"), HERE, TEXT("nowhere"), NUM(0)});
	TWICE(mount_setattr, {HERE, TEXT("dir"), NUM(0), IN(other_change, 32), NUM(32)});
	TWICE(mount_setattr, {HERE, TEXT("dir"), NUM(0), IN(no_change, 32), NUM(32)});
	TWICE(mount_setattr, {HERE, TEXT("dir"), NUM(0), IN(no_change, 8), NUM(8)});
	TWICE(fspick, {HERE, TEXT("nowhere"), NUM(0)}, .kind = DESCRIPTOR);
	TWICE(fspick, {HERE, TEXT("dir"), NUM(0)}, .kind = DESCRIPTOR);
	TWICE(fsopen, {TEXT("nosuchfs"), NUM(0)}, .kind = DESCRIPTOR);
	TWICE(fsopen, {TEXT("tmpfs"), NUM(0)}, .kind = DESCRIPTOR);
	/* A file system that is described and never mounted. */
	int context = (int)syscall(SYS_fsopen, "tmpfs", 1);
	TWICE(fsconfig, {NUM(context), NUM(1), TEXT("size"), TEXT("1m"), NUM(0)});
	TWICE(fsconfig, {NUM(context), NUM(1), TEXT("nosuch"), TEXT("1m"), NUM(0)});
	TWICE(fsconfig, {NUM(context), NUM(0), TEXT("noswap"), NIL, NUM(0)});
	TWICE(fsconfig, {NUM(context), NUM(2), TEXT("blob"), IN(options, 100), NUM(100)});
	TWICE(fsconfig, {NUM(context), NUM(3), TEXT("source"), TEXT("dir"), HERE});
	close(context);
	end();
}

/* What the kernel tells of the mounts. */
static void mount_list(void)
{
	struct statx stx;
	begin();
	CHECK_OK("statx", statx(AT_FDCWD, ".", 0, 0x4000 /* the mount's unique number */, &stx));
	uint64_t request[4] = {24, ((uint64_t *)&stx)[18], 0x3f, 0}, all[4] = {24, (uint64_t)-1, 0, 0}, long_one[4] = {32, request[1], 2, 0};
	TWICE(statmount, {IN(request, 24), OUT(512), NUM(512), NUM(0)});
	TWICE(statmount, {IN(request, 24), OUT(64), NUM(64), NUM(0)});
	TWICE(statmount, {IN(long_one, 32), OUT(512), NUM(512), NUM(0)});
	TWICE(statmount, {IN(request, 24), OUT(512), NUM(512), NUM(1)});
	TWICE(listmount, {IN(all, 24), OUT(8 * 8), NUM(8), NUM(0)});
	TWICE(listmount, {IN(all, 24), OUT(8 * 8), NUM(0), NUM(0)});
	request[0] = 5000;
	TWICE(statmount, {IN(request, 24), OUT(512), NUM(512), NUM(0)});
	struct {
		uint64_t access, net;
	} handled = {7, 0};
	TWICE(landlock_create_ruleset, {IN(&handled, 8), NUM(8), NUM(0)}, .kind = DESCRIPTOR);
	TWICE(landlock_create_ruleset, {IN(&handled, 16), NUM(16), NUM(0)}, .kind = DESCRIPTOR);
	TWICE(landlock_create_ruleset, {IN(&handled, 4), NUM(4), NUM(0)}, .kind = DESCRIPTOR);
	int rules = (int)syscall(SYS_landlock_create_ruleset, &handled, 8, 0), dir = open(".", O_PATH | O_CLOEXEC);
	struct {
		uint64_t access;
		int fd;
	} __attribute__((packed)) beneath = {3, dir};
	TWICE(landlock_add_rule, {NUM(rules), NUM(1), IN(&beneath, sizeof beneath), NUM(0)});
	TWICE(landlock_add_rule, {NUM(rules), NUM(2), IN(&handled, 16), NUM(0)});
	close(rules);
	close(dir);
	end();
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"by_path", by_path}, {"by_descriptor", by_descriptor}, {"told", told},		    {"xattrs", xattrs},
		{"xattrs_at", xattrs_at}, {"mounts", mounts},		{"mount_list", mount_list},
	};
	return run_groups(argc, argv, groups, NELEM(groups));
}
