// Tries what a sandbox must not be able to do, and prints one line per try: its name and the error number (0: it worked).
// Run inside a sandbox of ours and under runc. It changes nothing even where it succeeds.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *name, long answer) {
    printf("%s %d\n", name, answer < 0 ? errno : 0);
    fflush(stdout);
}
#define TRY(name, ...) do { errno = 0; say(name, syscall(__VA_ARGS__)); } while (0)

static void open_for(const char *path, int flags) {
    char name[128];
    snprintf(name, sizeof name, "open:%s", path);
    errno = 0;
    int fd = open(path, flags);
    if (fd >= 0 && flags == O_RDONLY) {
        // A masked file opens and reads as empty.
        char byte;
        ssize_t got = read(fd, &byte, 1);
        if (got <= 0) { errno = got == 0 ? ENODATA : errno; close(fd); fd = -1; }
    }
    say(name, fd);
}

static void in_child(const char *name, long number, unsigned long flags) {
    // Whatever changes, changes in a child that ends at once.
    int pid = fork();
    if (pid == 0) { errno = 0; _exit(syscall(number, flags) < 0 ? errno : 0); }
    int status = 0;
    waitpid(pid, &status, 0);
    printf("%s %d\n", name, WIFEXITED(status) ? WEXITSTATUS(status) : 255);
    fflush(stdout);
}

int main(void) {
    char buffer[64] = {0};
    struct iovec local = {buffer, 8}, remote = {(void *)0x400000, 8};
    TRY("mount", SYS_mount, "none", "/tmp", "tmpfs", 0, 0);
    TRY("umount2", SYS_umount2, "/proc", 2);
    TRY("pivot_root", SYS_pivot_root, ".", ".");
    in_child("unshare_user", SYS_unshare, CLONE_NEWUSER);
    in_child("unshare_mount", SYS_unshare, CLONE_NEWNS);
    in_child("unshare_net", SYS_unshare, CLONE_NEWNET);
    int ns = open("/proc/self/ns/net", O_RDONLY);
    TRY("setns", SYS_setns, ns, 0);
    errno = 0;
    long made = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    if (made == 0) _exit(0);
    say("clone_newuser", made);
    TRY("bpf", SYS_bpf, 0, buffer, sizeof buffer);
    TRY("perf_event_open", SYS_perf_event_open, buffer, 0, -1, -1, 0);
    TRY("keyctl", SYS_keyctl, 0, -3, 1, 0, 0);
    TRY("add_key", SYS_add_key, "user", "atoll-probe", "x", 1, -1);
    TRY("request_key", SYS_request_key, "user", "atoll-probe", 0, -1);
    char ring[120] = {0};
    TRY("io_uring_setup", SYS_io_uring_setup, 4, ring);
    TRY("userfaultfd", SYS_userfaultfd, 0);
    TRY("kexec_load", SYS_kexec_load, 0, 0, 0, 0);
    TRY("init_module", SYS_init_module, 0, 0, "");
    TRY("finit_module", SYS_finit_module, -1, "", 0);
    TRY("delete_module", SYS_delete_module, "atoll_probe", 0);
    TRY("open_by_handle_at", SYS_open_by_handle_at, AT_FDCWD, buffer, 0);
    TRY("fsopen", SYS_fsopen, "tmpfs", 0);
    TRY("open_tree", SYS_open_tree, AT_FDCWD, "/", 1);
    TRY("move_mount", SYS_move_mount, -1, "", -1, "", 0);
    TRY("mount_setattr", SYS_mount_setattr, AT_FDCWD, "/", 0, buffer, 32);
    TRY("swapon", SYS_swapon, "/nothing", 0);
    TRY("syslog", SYS_syslog, 3, buffer, 8);
    TRY("acct", SYS_acct, 0);
    TRY("quotactl", SYS_quotactl, 0, 0, 0, 0);
    TRY("settimeofday", SYS_settimeofday, buffer, 0);
    TRY("clock_settime", SYS_clock_settime, 0, 0);
    TRY("iopl", SYS_iopl, 3);
    TRY("ioperm", SYS_ioperm, 0x70, 1, 1);
    TRY("pidfd_getfd", SYS_pidfd_getfd, -1, 0, 0);
    TRY("vhangup", SYS_vhangup);
    TRY("fanotify_init", SYS_fanotify_init, 0, 0);
    TRY("sethostname", SYS_sethostname, "probe", 5);
    TRY("mknod_mem", SYS_mknod, "/tmp/probe-mem", S_IFCHR | 0600, makedev(1, 1));
    TRY("socket_packet", SYS_socket, AF_PACKET, SOCK_RAW, 0);
    TRY("socket_raw", SYS_socket, AF_INET, SOCK_RAW, 1);
    TRY("socket_vsock", SYS_socket, AF_VSOCK, SOCK_STREAM, 0);
    TRY("socket_alg", SYS_socket, AF_ALG, SOCK_SEQPACKET, 0);
    TRY("socket_netfilter", SYS_socket, AF_NETLINK, SOCK_RAW, 12);
    TRY("personality", SYS_personality, 0x0400000);
    TRY("ptrace_agent", SYS_ptrace, PTRACE_SEIZE, 1, 0, 0);
    TRY("read_agent", SYS_process_vm_readv, 1, &local, 1, &remote, 1, 0);
    open_for("/proc/1/mem", O_RDWR);
    open_for("/proc/1/environ", O_RDONLY);
    open_for("/proc/1/root/etc", O_RDONLY);
    open_for("/proc/sys/kernel/core_pattern", O_WRONLY);
    open_for("/proc/sys/vm/drop_caches", O_WRONLY);
    open_for("/proc/sysrq-trigger", O_WRONLY);
    open_for("/proc/kcore", O_RDONLY);
    open_for("/proc/kmsg", O_RDONLY);
    open_for("/proc/timer_list", O_RDONLY);
    open_for("/proc/keys", O_RDONLY);
    open_for("/sys/kernel/uevent_helper", O_WRONLY);
    open_for("/sys/kernel/mm/transparent_hugepage/enabled", O_WRONLY);
    open_for("/sys/fs/cgroup/memory/release_agent", O_WRONLY);
    open_for("/dev/mem", O_RDONLY);
    open_for("/dev/kmsg", O_RDONLY);
    open_for("/dev/loop-control", O_RDWR);
    return 0;
}
