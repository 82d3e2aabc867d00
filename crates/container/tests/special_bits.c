// Tries every way to leave a set-user-ID or set-group-ID program in the folder argument 1, and prints one line per try: its
// name and the error number (0: it worked). With a second argument it makes no file there and works on that one. Without an
// argument it prints the ids with which it runs.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

static char path[4096];
static const char *existing;

static void say(const char *name, long answer) {
    printf("%s %d\n", name, answer < 0 ? errno : 0);
    fflush(stdout);
}

static const char *at(const char *folder, const char *name) {
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

// A copy of this program without special bits.
static const char *copy(const char *folder, const char *name) {
    if (existing && strcmp(folder, "/tmp")) return at(folder, existing);
    static char block[65536];
    // In a sticky folder a file of another user is not opened by O_CREAT, not even by root (fs.protected_regular).
    if (!strcmp(folder, "/tmp")) unlink(at(folder, name));
    int from = open("/proc/self/exe", O_RDONLY), to = open(at(folder, name), O_WRONLY | O_CREAT | O_TRUNC, 0755);
    for (ssize_t n; (n = read(from, block, sizeof block)) > 0;) {
        if (write(to, block, n) != n) { perror("write"); exit(1); }
    }
    close(from);
    close(to);
    chmod(path, 0755);
    return path;
}

static void by_chmod(const char *folder, mode_t mode, const char *kind) {
    char name[64];
#define WAY(way, call) do { \
        snprintf(name, sizeof name, way "-%s", kind); \
        copy(folder, name); \
        errno = 0; \
        say(name, call); \
    } while (0)
    WAY("chmod", syscall(SYS_chmod, path, mode));
    int fd;
    WAY("fchmod", (fd = open(path, O_RDONLY), syscall(SYS_fchmod, fd, mode)));
    close(fd);
    WAY("fchmodat", syscall(SYS_fchmodat, AT_FDCWD, path, mode));
    WAY("fchmodat2", syscall(SYS_fchmodat2, AT_FDCWD, path, mode, 0));
    WAY("high-half", syscall(SYS_chmod, path, 0xffff000000000000UL | mode));
}

static long by_tmpfile(const char *folder, mode_t mode) {
    char link[64];
    int fd = syscall(SYS_openat, AT_FDCWD, folder, O_TMPFILE | O_RDWR, mode);
    if (fd < 0) return -1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, link, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
}

static void by_creation(const char *folder, mode_t mode, const char *kind) {
    char name[64];
#define NEW(way, call) do { \
        snprintf(name, sizeof name, way "-%s", kind); \
        at(folder, name); \
        errno = 0; \
        say(name, call); \
    } while (0)
    NEW("open", syscall(SYS_open, path, O_CREAT | O_RDWR | O_EXCL, mode));
    NEW("creat", syscall(SYS_creat, path, mode));
    NEW("openat", syscall(SYS_openat, AT_FDCWD, path, O_CREAT | O_RDWR, mode));
    struct open_how how = {.flags = O_CREAT | O_RDWR, .mode = mode};
    NEW("openat2", syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how));
    NEW("mknod", syscall(SYS_mknod, path, S_IFREG | mode, 0));
    NEW("mknodat", syscall(SYS_mknodat, AT_FDCWD, path, S_IFREG | mode, 0));
    NEW("tmpfile", by_tmpfile(folder, mode));
}

static void by_attributes(const char *folder) {
    struct { uint32_t magic, permitted, inheritable, permitted_high, inheritable_high, root; } caps =
        {0x02000001, 0xffffffff, 0, 0, 0, 0};
    copy(folder, "capability-2");
    errno = 0;
    say("capability-2", setxattr(path, "security.capability", &caps, 20, 0));
    caps.magic = 0x03000001;
    caps.root = getuid() ? getuid() : 1000;
    copy(folder, "capability-3");
    errno = 0;
    say("capability-3", setxattr(path, "security.capability", &caps, 24, 0));
}

static void from_elsewhere(const char *folder) {
    char there[4096];
    snprintf(there, sizeof there, "%s", copy("/tmp", "elsewhere"));
    say("elsewhere-chmod", chmod(there, 04755));
    say("elsewhere-link", link(there, at(folder, "linked")));
    say("elsewhere-rename", rename(there, at(folder, "renamed")));
    errno = 0;
    say("io-uring", syscall(425, 1, path));
}

int main(int count, char **argument) {
    if (count < 2) {
        printf("%d %d %d %d\n", getuid(), geteuid(), getgid(), getegid());
        return 0;
    }
    umask(0);
    existing = argument[2];
    by_chmod(argument[1], 04755, "suid");
    by_chmod(argument[1], 02755, "sgid");
    if (!existing) {
        by_creation(argument[1], 04755, "suid");
        by_creation(argument[1], 02755, "sgid");
    }
    by_attributes(argument[1]);
    from_elsewhere(argument[1]);
    say("plain", syscall(SYS_chmod, copy(argument[1], "plain"), 01777));
    return 0;
}
